/* Which order of the ranks gave what the members of a reduction recorded. Libraries choose it by size and topology and
 * seldom say which, so that the order that replay would take is often another one: its bits differ and nothing is
 * wrong. */
#ifndef LB_REPLAY_RECORDED_ORDER_H
#define LB_REPLAY_RECORDED_ORDER_H

#include "orders/collective_sum.h"
#include "machine/machine.h"

/* What one member recorded: elements [first, first + n) of the reduction, dense. */
typedef struct lb_recorded_part {
    int64_t first, n;
    char *bytes;
    bool *legal; /* per element, all false: an order has given it */
} lb_recorded_part;

typedef struct lb_recorded_sum {
    lb_rank_terms terms; /* what was brought; elements of a reduction are those of a stream */
    lb_collective_reduction reduction;
    lb_recorded_part *parts;
    uint32_t n_parts;
    /* the reduction in that order, to `out` */
    lb_status (*reduce)(void *context, const lb_collective_order *order, char *out);
    void *context;
} lb_recorded_sum;

/* Has every part the bits of `reduced`? NaNs have no bits that matter. */
bool lb_recorded_order_gives(const lb_recorded_sum *sum, const char *reduced);
/* The first of the orders that libraries have which does; where none does, whether each recorded sum is one that some
 * order gives (sum_fault.h) or, where there are many, lies within the rounding of any. `room`: of `terms.count`
 * elements, is written over. */
lb_status lb_recorded_order_find(const lb_recorded_sum *sum, char *room, lb_sum_verdict *verdict);

#endif
