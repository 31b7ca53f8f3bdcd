/* How far rounding alone may take the two sides apart where one holds a tensor that the other does not.
 *
 *      A   norm.weight, c_attn.weight          B   W_Q: c_attn's columns times norm.weight, folded once and rounded to
 *          f32
 *
 * Exact arithmetic from B's tensor and from A's two part by that rounding. It is measured: each side runs once more
 * with every such tensor disturbed by the unit roundoff of its dtype, and what moves is the slack of each counterpart.
 * Row r of a table, which no op of the step fills, is disturbed by r + 1 of these: the angles in it grow with r, and so
 * does their rounding.
 *
 * Invariant: what is called the same leaves no room for a difference larger than SLACK_TIMES such roundings between two
 * places where the sides meet.
 *   - In free runs the slack of all layers adds up, so that it would hide more in the last layer than in the first. A
 *   pair that is equal but for slack
 *     is therefore judged again from place to place: both sides go on from their own, and A's, numbers at every
 *     counterpart, disturbed and not.
 *   - Where even that allows more than SLACK_LARGE (a table held in 16 bits) a counterpart within it is in doubt, and
 *   neither same nor apart.
 * A tensor that is another one moves what follows by far more.
 *
 * Roundings to a coarser dtype that one side alone makes: a softmax that is cast to bf16 and back, a rotary table that
 * is held in bf16.
 *
 *      A   cos ─▶ mul                          B   cos ─▶ to bf16 ─▶ to f32 ─▶ mul
 *
 * In exact arithmetic a cast is the identity, so that both sides are one function and the difference is rounding. It is
 * of another size than the rest of it, though, and has one cause. What it does is measured: the side runs once more,
 * exact but for these casts; and beside it stands what all the rounding of the other side does, its recorded numbers
 * against its exact ones. */
#ifndef LB_BISECT_SLACK_H
#define LB_BISECT_SLACK_H

#include "implementations/implementations.h"

/* Fills the slack of the counterparts, behind a free run of both, or (`from_place_to_place`) behind a run of B from A's
 * numbers at the counterparts. `*tensors`: how many tensors one side alone holds. */
lb_status lb_slack_measure(lb_implementations *x, bool from_place_to_place, uint32_t *tensors, lb_err *err);
/* How far apart, relative L2, two values may be that are one but for such rounding; at most 2^-16, so that no other
 * number is taken for it. 0: neither side holds a tensor alone, or the two are given different inputs, which is not
 * rounding. */
double lb_slack_room(const lb_implementations *x);
/* Behind runs of two sides that are the same. Fills `x->coarse`; `times` is 0 where no side makes such a rounding, or
 * none that is large. */
lb_status lb_slack_find_coarse(lb_implementations *x, lb_err *err);

#endif
