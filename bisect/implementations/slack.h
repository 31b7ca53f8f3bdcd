/* How far rounding alone may take the two sides apart where one holds a tensor that the other does not.
 *
 *      A   norm.weight, c_attn.weight          B   W_Q: c_attn's columns times norm.weight, folded once and rounded to f32
 *
 * Exact arithmetic from B's tensor and from A's two part by that rounding. It is measured: each side runs once more with every such tensor disturbed by
 * the unit roundoff of its dtype (a buffer of positions by as many as it has rows: its angles grow with them), and what moves is the slack of
 * each counterpart. A tensor that is another one moves what follows by far more. */
#ifndef LB_BISECT_SLACK_H
#define LB_BISECT_SLACK_H

#include "implementations.h"

/* Behind a free run. Fills the slack of the counterparts; `*tensors`: how many tensors one side alone holds. */
lb_status lb_slack_measure(lb_implementations *x, uint32_t *tensors, lb_err *err);

#endif
