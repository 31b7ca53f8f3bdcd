/* One step of two implementations, judged (implementations.h), as a report: tensors beside tensors, places that differ,
 * rows of what met, sentences on what was not compared, and each side against its own recording. */
#ifndef LB_BISECT_IMPLEMENTATION_REPORT_H
#define LB_BISECT_IMPLEMENTATION_REPORT_H

#include "diff/diff_report.h"
#include "implementations/implementations.h"

typedef struct lb_implementation_report_of {
    const lb_implementations *x;
    const uint8_t *spared;    /* per region (smallest_set.h); NULL: not asked */
    const lb_diff_row *place; /* that the walk over aligned ops has named; NULL: none */
    bool first;               /* the first step of the report, which lists tensors beside tensors */
} lb_implementation_report_of;

/* `*cleared` is set where the place lies in no region that differs. On failure the report has part of the step. */
lb_status lb_implementation_report_step(const lb_implementation_report_of *of, lb_diff_report *report, bool *cleared,
                                        lb_err *err);

#endif
