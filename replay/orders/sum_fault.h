/* Is a number that came out of a sum over ranks one that some order of addition gives, and if not, on which hop did its
 * bits change?
 *
 *      x0 ─┐
 *      x1 ─┼─▶ every tree over the ranks, each addition rounded to the payload's type or kept wide: a small set
 *      x2 ─┘    of numbers; what is not in it no order gives, whatever the library's algorithm was
 *
 * So no tolerance is needed: up to eight ranks the set is written out. With more ranks, and for numbers that the set
 * cannot speak of (not finite, subnormal), only what lies outside the rounding bound of any order is refused.
 *
 * Where a bit changed is told by who received what: the messages of an order (collective_hops.h) are run again with
 * bits of one of them turned over, until every member has what it received.
 */
#ifndef LB_REPLAY_SUM_FAULT_H
#define LB_REPLAY_SUM_FAULT_H

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

/* Bits that were turned over on the way from one member to another. */
typedef struct lb_sum_fault_hop {
    uint16_t from, to; /* members */
    uint64_t bits;     /* of the element, as a mask */
} lb_sum_fault_hop;
/* All hops on which turned bits make element `at` what each member received (one pointer each, NULL: nothing): as many
 * as there are, at most `room` of them written. One bit where that is enough; several of a result that was handed out,
 * two of a partial sum. 0 where every member has what the order gives, or no hop explains it. */
uint32_t lb_sum_fault_hops(const lb_collective_order *order, lb_collective_reduction reduction,
                           const lb_rank_terms *terms, int64_t at, const void *const *received, lb_sum_fault_hop *hops,
                           uint32_t room);
/* The same in every order that may have given the sum: orders whose bits are the same send other messages. */
enum { LB_SUM_FAULT_HOPS = 64 };
typedef struct lb_sum_fault_way {
    char order[LB_COLLECTIVE_ORDER_NAME];
    lb_sum_fault_hop hops[LB_SUM_FAULT_HOPS];
    uint32_t n, possible; /* hops that are here, and how many there are: sums that are exact on the way have many */
} lb_sum_fault_way;
typedef struct lb_sum_fault_question {
    lb_collective_reduction reduction;
    const lb_rank_terms *terms;
    int64_t at;
    const void *const *received;
    const char *told; /* an order that was recorded, tried first; NULL */
    /* may it be this one? Sets order->home */
    bool (*fits)(void *context, lb_collective_order *order);
    void *context;
} lb_sum_fault_question;
/* The ways that have hops, at most `room`. */
uint32_t lb_sum_fault_ways(const lb_sum_fault_question *question, lb_sum_fault_way *ways, uint32_t room);
/* The bit of a mask that has one; -1. */
int lb_sum_fault_one_bit(uint64_t bits);

/* The one bit in which two elements of so many bytes differ; -1: none, or several. */
int lb_sum_fault_bit(const void *a, const void *b, size_t bytes);

#endif
