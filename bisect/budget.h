/* The budget: how much of the final gap each cause and layer makes. A is replayed from its sources with one change at a time, then
 * with all of them; what is seen of each is how far the last output moves towards B's. */
#ifndef LB_BISECT_BUDGET_H
#define LB_BISECT_BUDGET_H

#include "cause.h"

/* `findings`: of one step of one rank. `*made` false: no module's output is there to be looked at, or nothing can be changed.
 * The layers of the rows are malloc'ed, and the caller's. */
lb_status lb_budget_make(const lb_stretch_source *source, const lb_explain_finding *findings, uint32_t n,
                         void (*progress)(const char *what, uint64_t done, uint64_t total),
                         lb_explain_budget *budget, bool *made, lb_err *err);

#endif
