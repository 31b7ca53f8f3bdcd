/* Values that ranks share out between them beside a value that the other side has whole, or shares out among another
 * number of ranks.
 *
 *      A   one process   logits (4, 6, 40)        B   rank 0   logits (2, 6, 40)         rows of the batch; of a
 *          vocabulary in parts (4, 6, 20)
 *                                                     rank 1   logits (2, 6, 40)         columns; of a sequence in parts (4, 3, 40) what is between
 *
 * Ranks do one thing each with their part: what an op gives on one rank stands beside what the same op of the same
 * module gives on each other one. Which dimension is shared out is read from the shapes: all others are as long as on
 * the other side. */
#ifndef LB_BISECT_RANK_PARTS_H
#define LB_BISECT_RANK_PARTS_H

#include "counterparts/counterparts.h"

/* The values of a list that stand beside each other on all ranks that have any, in the order of ranks; one alone where
 * the side is one process, or one rank alone has it. */
typedef struct lb_rank_parts {
    uint32_t *values, *first; /* values[first[i], first[i + 1]): group i */
    uint32_t n_groups;
} lb_rank_parts;

/* `list`: values that ops give; what was put together of several ranks is left out. False when out of memory. */
bool lb_rank_parts_group(const lb_exact_side *side, const uint32_t *list, uint32_t n, lb_rank_parts *parts);
void lb_rank_parts_release(lb_rank_parts *parts);
/* Adds a counterpart for each of B's values of a group. `*added` false: the shapes do not fit, and there is none. False
 * when out of memory. */
bool lb_rank_parts_put(lb_counterparts *out, lb_counterpart_kind kind, const lb_exact_side *a, const uint32_t *of_a,
                       uint32_t n_a, const lb_exact_side *b, const uint32_t *of_b, uint32_t n_b, bool *added);
/* Do parts fit together as their shapes are, and yet hold `scale` times the other side's numbers in another order: that
 * of ranks exchanged? Of what runs kept. */
bool lb_rank_parts_are_out_of_order(const lb_exact_side *a, const uint32_t *of_a, uint32_t n_a, const lb_exact_side *b,
                                    const uint32_t *of_b, uint32_t n_b, double scale);
/* Behind a comparison of free runs. Where the numbers of a group are there and stand in another order (a sequence
 * shared out in a zigzag) what each rank has is not known: no anchor in parts stays, and of what leaves such a group is
 * the same but for its order (any_order). */
void lb_rank_parts_settle(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b);
/* Has another rank a parameter of that name with different numbers, so that each may be a part? Of any on the side? */
bool lb_rank_parts_has_part(const lb_step_sources *sources, uint32_t row);
bool lb_rank_parts_is_shared_out(const lb_step_sources *sources);
/* Are these ops of two ranks one op of the program that both run? */
bool lb_rank_parts_same_op(const lb_exact_side *side, uint32_t x, uint32_t y);
/* Has either side several parts? */
bool lb_rank_parts_are_parted(const lb_exact_side *const sides[2]);
/* Where a side has parts: may a value of A be one of B, or what all parts of B have where that is given be one of A's?
 * The numbers fit together and go in one direction. */
bool lb_rank_parts_may_be_one(const lb_exact_side *const sides[2], uint32_t a, uint32_t b);
/* Adds counterparts of what may be one: for each part of B. False when out of memory. */
bool lb_rank_parts_add_shared(lb_counterparts *out, const lb_exact_side *const sides[2], uint32_t a, uint32_t b);

#endif
