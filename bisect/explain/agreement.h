/* Agreement between places: one order for one kind of op.
 *
 * Results of few bits fit several orders, and each place names one that fits it. Where a single order gives the bits of all
 * places at which the same op differs, it is what ran, and it is named at all of them. */
#ifndef LB_BISECT_AGREEMENT_H
#define LB_BISECT_AGREEMENT_H

#include "cause.h"

/* What was found of a stretch. */
typedef struct lb_answer {
    const lb_stretch *stretch; /* NULL: nothing to tell */
    lb_cause_found found;
} lb_answer;

/* LB_ERR_NOMEM is the only failure. */
lb_status lb_agreement_reach(const lb_stretch_source *source, lb_answer *answers, uint32_t n, lb_err *err);

#endif
