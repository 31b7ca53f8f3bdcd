/* Roundings to a coarser dtype that one side alone makes: a softmax that is cast to bf16 and back, a rotary table that is held in bf16.
 *
 *      A   cos ─▶ mul                          B   cos ─▶ to bf16 ─▶ to f32 ─▶ mul
 *
 * In exact arithmetic a cast is the identity, so that both sides are one function and the difference is rounding. It is of another size than the rest
 * of it, though, and has one cause. What it does is measured: the side runs once more, exact but for these casts; and beside it stands what all the
 * rounding of the other side does, its recorded numbers against its exact ones. */
#ifndef LB_BISECT_COARSE_ROUNDING_H
#define LB_BISECT_COARSE_ROUNDING_H

#include "implementations.h"

/* Behind runs of two sides that are the same. Fills `x->coarse`; `times` is 0 where no side makes such a rounding, or none that is large. */
lb_status lb_coarse_rounding_find(lb_implementations *x, lb_err *err);

#endif
