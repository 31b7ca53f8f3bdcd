/* Counterparts whose elements stand in another order on B: time before batch, channels last, heads put together
 * differently.
 *
 *      (2, 12, 64)  ─▶  (12, 2, 64)        the sizes say which dimension is which
 *      (2, 64, 11)  ─▶  (22, 64)           a convolution over one place beside a product
 *      (2, 16, 16, 16), channels last      they do not: what a product or convolution makes of it does
 *      gradients of heads                  only their numbers do
 *
 * Where the order is not known B never goes on from A's numbers. */
#ifndef LB_BISECT_COUNTERPART_ORDERS_H
#define LB_BISECT_COUNTERPART_ORDERS_H

#include "counterparts/counterparts.h"

/* Do elements of these shapes stand in one order, one behind the other? (24, 64) and (2, 12, 64) do; (2, 12, 4, 16) and
 * (2, 4, 12, 16) are turned. */
bool lb_counterpart_orders_agree(const lb_layout *x, const lb_layout *y);
/* Are x's dimensions y's in another order, each of another size, so that the shapes say which is which? */
bool lb_counterpart_orders_turned(const lb_layout *x, const lb_layout *y);
/* A's value for one of B that it is turned into, piece by piece. False when out of memory. */
bool lb_counterpart_orders_add_turned(lb_counterparts *counterparts, uint32_t va, const lb_layout *x,
                                      const lb_layout *y);
/* Do features come first on one side, before places ((2, 64, 11), as a convolution gives them), and last on the other,
 * behind rows and places that may be one dimension ((22, 64), as a product does)? */
bool lb_counterpart_orders_channels(const lb_layout *x, const lb_layout *y);
bool lb_counterpart_orders_add_channels(lb_counterparts *counterparts, uint32_t va, const lb_layout *x,
                                        const lb_layout *y);
/* Behind runs in which B went on from A's numbers. A gradient of a value whose elements stand in another order on B
 * (heads put together differently) is no counterpart, although both sides take it from a product with the same weight:
 * it becomes TURNED. Were there any? */
bool lb_counterpart_orders_find_turned(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b);
/* Behind free runs. Numbers that both sides have in other orders although the shapes do not say so (channels last, of
 * as many channels as rows) are one quantity where a product or convolution that goes on from them gives the same on
 * both: B never goes on from A's there. Were there any? */
bool lb_counterpart_orders_find_others(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b,
                                       const uint32_t *met_of_b);
/* Does a product or convolution that goes on from the value, through ops that do not mix elements, give what the other
 * side has? */
bool lb_counterpart_orders_leads_to_same(const lb_exact_side *side, uint32_t value, const uint32_t *met);

#endif
