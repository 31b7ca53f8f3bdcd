/* Names the place of a difference: the op that computes a different function and its layer. For code that a module runs
 * between two of its submodules, it also names the submodules before and after. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_PLACE_H
#define LB_BISECT_DIFF_PLACE_H

#include "diff/diff_verdict.h"
#include "diff/diff_walk.h"

/* It is unknown whether the divergence is one. Either it follows from weights or states that the two sides hold in
 * different tensors, or from a choice that rounding changed, behind which the sides compute in different shapes. `*why`
 * (may be NULL): which of these, as one of the sentences below. */
bool lb_place_is_unknown(const lb_diff_walk *walk, const lb_divergence *divergence, const char **why);
#define LB_WHY_FLIPPED                                                                                                 \
    "it follows from a choice that the two sides made differently, and its shapes differ: whether that is rounding "   \
    "is unknown"
#define LB_WHY_UNKNOWN_SOURCES                                                                                         \
    "it follows from weights or states that the two sides hold in other tensors, and which are not known to be the "   \
    "same"
#define LB_WHY_KEPT                                                                                                    \
    "the model is given more rows on one side; what the other has of them was kept by an earlier step, with that "     \
    "step's rounding"
#define LB_WHY_CUT                                                                                                     \
    "the ranks of the two sides hold other parts of a tensor that this may follow from: whether that is rounding "     \
    "cannot be told"
/* Reports the divergence at the pair (or join) `ia`, of which `row` is the row. Where one side runs ops of its own
 * between what is the same and the pair, these ops are the place: they get a row of their own, and `row` inherits from
 * it. Without such ops the pair is the place. */
void lb_place_divergence(lb_diff_walk *walk, const lb_divergence *divergence, uint32_t ia, const lb_evidence *evidence,
                         lb_diff_row *row);
/* The same where `row` is of a parameter or a result that no aligned pair gave. */
void lb_place_final(lb_diff_walk *walk, const lb_divergence *divergence, lb_diff_row *row);
/* May the arguments of the pair other than tensors follow from numbers that Python read and that differ? Not when they
 * are further apart than those numbers are, up to a factor of 8. */
bool lb_place_args_follow(const lb_diff_walk *walk, uint32_t ia, uint32_t ib);

/* Gives a row of an op that B alone runs its place among A's. */
void lb_place_order(const lb_diff_walk *walk, lb_diff_row *row);

/* For code that stands between two modules that its own module calls: fills row->before and after, and adds "; between
 * layers.0.mlp and layers.1.input_layernorm" to its why. */
void lb_place_neighbours(lb_diff_report *report, const lb_program *program, uint32_t op, lb_diff_row *row);

#endif
