/* Is a number that came out of a sum over ranks one that some order of addition gives, and if not, on which hop did its
 * bits change?
 *
 *      x0 ─┐
 *      x1 ─┼─▶ every tree over the ranks, each addition rounded to the payload's type or kept wide: a small set of numbers
 *      x2 ─┘    what is not in it no order gives, whatever the library's algorithm was
 *
 * So no tolerance is needed: up to eight ranks the set is written out. With more ranks, and for numbers that the set
 * cannot speak of (not finite, subnormal), only what lies outside the rounding bound of any order is refused.
 *
 *      ring     rank a ▸ a+1 ▸ … hands a sum on, n-1 hops; then the result goes around, n-1 hops more
 *
 * A bit that changed on a hop of the first half is in what all members received; of the second half in what those
 * behind it received.
 */
#ifndef LB_BISECT_SUM_FAULT_H
#define LB_BISECT_SUM_FAULT_H

#include "orders/collective_sum.h"

#include <stdbool.h>

typedef enum lb_sum_fault_answer {
    LB_SUM_FAULT_NONE,   /* some order gives it */
    LB_SUM_FAULT_PROVEN, /* no order does */
    LB_SUM_FAULT_UNKNOWN
} lb_sum_fault_answer;

/* Of element `at`; `value` lies as one element of the terms' dtype. */
lb_sum_fault_answer lb_sum_fault_of(lb_collective_reduction reduction, const lb_rank_terms *terms, int64_t at,
                                    const void *value);

/* The way that an element takes around a ring: members in the order in which they add, the last one has the sum first.
 * false: this order is no ring. `path` has room for n. */
bool lb_sum_fault_path(const lb_collective_order *order, const lb_rank_terms *terms, int64_t at, uint16_t *path);

/* One bit that was turned over on the way. */
typedef struct lb_sum_fault_hop {
    uint16_t from, to; /* members */
    int bit;
} lb_sum_fault_hop;
/* All hops of the adding half on which one flipped bit gives `value`: as many as there are, at most `room` of them
 * written; 0 where the order is no ring. */
uint32_t lb_sum_fault_hops(const lb_collective_order *order, lb_collective_reduction reduction,
                           const lb_rank_terms *terms, int64_t at, const void *value, lb_sum_fault_hop *hops,
                           uint32_t room);

/* The hop of the second half behind which all, and no others, received another number: 1, or 0 where there is none.
 * `wrong`: per member. */
uint32_t lb_sum_fault_late(const lb_collective_order *order, const lb_rank_terms *terms, int64_t at, const bool *wrong,
                           lb_sum_fault_hop *hop);

/* The one bit in which two elements of so many bytes differ; -1: none, or several. */
int lb_sum_fault_bit(const void *a, const void *b, size_t bytes);

#endif
