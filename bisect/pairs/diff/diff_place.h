/* The place of a difference: the op that computes another function, its layer, and where that layer's code stands
 * between modules, its neighbours. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_PLACE_H
#define LB_BISECT_DIFF_PLACE_H

#include "diff/diff_verdict.h"
#include "diff/diff_walk.h"

/* Nobody knows whether it is one: weights or states that either side holds otherwise lead to it, or a choice that
 * rounding changed, behind which the sides compute other shapes. `*why` (may be NULL): which. */
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
/* `row` is that of the pair (or join) `ia`, whose node is a divergence. Where one side runs ops of its own between what
 * is the same and the pair, these are the place: they get a row of their own, and `row` inherits from it. Otherwise the
 * pair is the place. */
void lb_place_divergence(lb_diff_walk *walk, const lb_divergence *divergence, uint32_t ia, const lb_evidence *evidence,
                         lb_diff_row *row);
/* The same where a parameter or a result is the divergence that `row` speaks of: what no aligned pair gave. */
void lb_place_final(lb_diff_walk *walk, const lb_divergence *divergence, lb_diff_row *row);
/* May the arguments of the pair that are no tensors follow from numbers that Python read, which differ? Not when they
 * are further apart than those numbers are, up to a factor of 8. */
bool lb_place_args_follow(const lb_diff_walk *walk, uint32_t ia, uint32_t ib);

/* Gives a row of an op that B alone runs its place among A's. */
void lb_place_order(const lb_diff_walk *walk, lb_diff_row *row);

/* Code of a module that calls others stands between two of these: row->before and after, and "; between layers.0.mlp
 * and layers.1.input_layernorm" behind its why. */
void lb_place_neighbours(lb_diff_report *report, const lb_program *program, uint32_t op, lb_diff_row *row);

#endif
