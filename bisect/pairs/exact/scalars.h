/* Constants of both sides that are one number, as far as rounding went before they were recorded.
 *
 *      A   clip = 1.5 / (norm + 1e-6), a tensor            B   g * (1.5 / (norm.item() + 1e-6))
 *
 * What a program reads from a tensor and computes with in its own language reaches the recording as a constant that has
 * the rounding of the tensor in it; in exact arithmetic the other side's tensor has not. */
#ifndef LB_BISECT_SCALARS_H
#define LB_BISECT_SCALARS_H

#include "exact/exact_side.h"

/* A constant that one side rounded to f32 before it was recorded (an eps that went through C++) is the other side's:
 * 9.99999997475e-07 is 1e-06 in f32. So is one that was written with fewer digits (0.79788456 of sqrt(2 / pi)), where
 * ops compute in f32 or less: to them both are one number, and both sides run with it. A program that reads numbers of
 * f32 tensors makes constants of them with a few such roundings (the products of momenta that NAdam keeps in a tensor):
 * they are the other side's, too. Before the first run. */
lb_status lb_scalars_settle(lb_exact_side sides[2], lb_err *err);
/* Tensors of one number that a program made (torch.tensor(3.9), rounded to f32) hold the constant of either program
 * that they round: clamp(max=3.9) has it as f64. Behind what B takes from A, before the first run. */
lb_status lb_scalars_hold(lb_exact_side sides[2], lb_err *err);
/* Behind runs of both sides. Where the program of `side` reads numbers of tensors in f32 or less, a constant of its own
 * that has more digits than people write becomes the one exact scalar of `other` that is within a few such roundings of
 * it, where there is no second one. `*changed`: some did; the side is to run again. */
lb_status lb_scalars_settle_read(lb_exact_side *side, const lb_exact_side *other, bool *changed, lb_err *err);

#endif
