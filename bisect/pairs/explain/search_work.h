/* What a search costs, in operations. They are counted from shapes alone, so that a search with a limit ends at the
 * same candidate on every machine. One operation is one element that passes through an elementwise loop; a product's
 * multiply-adds are cheaper, and a call of any op costs some thousand. */
#ifndef LB_BISECT_SEARCH_WORK_H
#define LB_BISECT_SEARCH_WORK_H

#include "explain/candidate.h"

double lb_work_of_op(const lb_program *program, const lb_op *op);
/* Of the rows `ops`; NULL: of all. */
double lb_work_of_ops(const lb_program *program, const uint32_t *ops, uint32_t n_ops);
/* How many times as long the ops take under a candidate, as schedules are interpreted. */
double lb_work_slowness(const lb_candidate *candidate);
/* Two places of one key run the same ops with the same arguments on tensors of the same types and layouts. */
uint64_t lb_work_key(const lb_program *program, const uint32_t *ops, uint32_t n_ops);

/* Which ops there are, with the dtypes of their results and the floating-point numbers among their arguments; not how
 * many, in which order or on which shapes: a loop over experts of which one had no rows is of the same kind. */
uint64_t lb_work_kind(const lb_program *program, const uint32_t *ops, uint32_t n_ops);

#endif
