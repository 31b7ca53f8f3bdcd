/* How verdicts flow from op to op: what inputs bring along, what results take on. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_FLOW_H
#define LB_BISECT_DIFF_FLOW_H

#include "diff_walk.h"

/* The worst of both. */
void lb_inflow_add(lb_inflow *in, const lb_inflow *more);
/* `op_b` NULL: the op has no partner, or several: what is known of A's storages counts. */
lb_inflow lb_flow_in(lb_walk *walk, const lb_op *op_a, const lb_op *op_b);
/* Results and written values of an op of A take `from` on; a result that is its whole storage forgets what was there. */
void lb_flow_out(lb_walk *walk, const lb_op *op_a, const lb_taint *from);

#endif
