/* Which messages an order of ranks is made of: who hands what on to whom, for one element.
 *
 *      turn 0   rank 1 ─▶ rank 0 adds        turn 2   rank 0 ─▶ rank 2 holds what came
 *               rank 3 ─▶ rank 2 adds                 rank 2 ─▶ rank 3 …
 *
 * The folds of collective_order.h say what is added up; hops say where it lies meanwhile, so that a bit that changed on
 * its way can be followed to those who received it. How a result is handed out again is not seen in its bits: rings go
 * on around, recursive doubling and halving go back the way they came, trees hand down what they took up. */
#ifndef LB_REPLAY_COLLECTIVE_HOPS_H
#define LB_REPLAY_COLLECTIVE_HOPS_H

#include "orders/collective_sum.h"

typedef struct lb_collective_hop {
    uint16_t from, to; /* members; the same: no message, it takes in its own contribution */
    uint16_t turn;     /* hops of one turn carry what their senders held before it */
    bool adds;         /* to what the receiver holds; false: it holds what came from now on */
    bool own;          /* what the sender brought, not what it holds */
} lb_collective_hop;

typedef struct lb_collective_hops {
    lb_collective_hop *list;
    uint32_t n;
    bool wide; /* sums are rounded when they are handed on or done, not at each addition */
} lb_collective_hops;

#define LB_COLLECTIVE_HOPS_RANKS 64

/* Of element `at` of `count`; order->home as for lb_collective_reduce. LB_ERR_INVALID: there is no such element.
 * LB_ERR_UNSUPPORTED: more ranks than that. */
lb_status lb_collective_hops_list(const lb_collective_order *order, uint32_t n, int64_t count, size_t element_bytes,
                                  int64_t at, lb_collective_hops *hops, lb_err *err);
void lb_collective_hops_release(lb_collective_hops *hops);

/* What a hop does to numbers: to the payload's type, and two contributions into one (a mean is added up, too). */
double lb_hops_rounded(lb_dtype dtype, double x);
double lb_hops_joined(lb_collective_reduction reduction, double a, double b);
/* What is reduced: one element that each of n members brings. */
typedef struct lb_hops_element {
    const lb_collective_order *order;
    lb_collective_reduction reduction;
    lb_dtype dtype;
    uint32_t n;
    const double *brought; /* n numbers */
} lb_hops_element;

/* Bits of the payload that one hop carries, turned over on the way; `mask` 0: none are. */
typedef struct lb_hops_flip {
    uint32_t hop;
    uint64_t mask;
} lb_hops_flip;

/* What each member holds in the end: n numbers. */
void lb_collective_hops_run(const lb_collective_hops *hops, const lb_hops_element *element, lb_hops_flip flip,
                            double *held);

#endif
