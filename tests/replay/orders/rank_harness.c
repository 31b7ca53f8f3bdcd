/* Reductions over ranks for Python: what an order makes of given contributions (judged_mpi.py, test_gloo_orders.py). */
#include "orders/collective_hops.h"

/* `home`: 1 + the rank that alone receives it, or 0; `blocks`: a reduce-scatter of equal blocks. */
LB_API int harness_rank_sum(const char *order_text, const char *reduction_text, uint32_t n, int dtype, int64_t count,
                            uint32_t home, int blocks, const void *const *inputs, void *out)
{
    lb_collective_order order;
    lb_collective_reduction reduction;
    const lb_rank_terms terms = {inputs, n, (lb_dtype)dtype, count};
    if (lb_collective_order_parse(order_text, &order, NULL) != LB_OK ||
        !lb_collective_reduction_parse(reduction_text, &reduction))
        return -1;
    order.home = home;
    return blocks ? lb_collective_reduce_blocks(&order, reduction, &terms, out, NULL)
                  : lb_collective_reduce(&order, reduction, &terms, out, NULL);
}

/* What each of n ranks has of element `at` when the bits of `mask` were turned over on hop number `hop` of the order,
 * counted among the messages from one rank to another; from[0], from[1]: that hop. The number of messages there are. */
LB_API int harness_hop(const char *order_text, uint32_t n, int dtype, int64_t count, int64_t at, uint32_t home,
                       const void *const *inputs, uint32_t hop, uint64_t mask, double *held, uint32_t from[2])
{
    lb_collective_order order;
    lb_collective_hops hops;
    double brought[LB_COLLECTIVE_HOPS_RANKS];
    const size_t size = lb_dtype_bits((lb_dtype)dtype) / 8;
    uint32_t messages = 0, changed = 0;
    if (lb_collective_order_parse(order_text, &order, NULL) != LB_OK) return -1;
    order.home = home;
    if (lb_collective_hops_list(&order, n, count, size, at, &hops, NULL) != LB_OK) return -1;
    for (uint32_t r = 0; r < n; r++)
        lb_load_f64(&brought[r], (lb_dtype)dtype, (const char *)inputs[r] + (size_t)at * size, 1);
    for (uint32_t h = 0; h < hops.n; h++) {
        if (hops.list[h].from == hops.list[h].to) continue;
        if (messages++ == hop) changed = h, from[0] = hops.list[h].from, from[1] = hops.list[h].to;
    }
    const lb_hops_element element = {&order, LB_REDUCE_SUM, (lb_dtype)dtype, n, brought};
    lb_collective_hops_run(&hops, &element, (lb_hops_flip){changed, mask}, held);
    lb_collective_hops_release(&hops);
    return (int)messages;
}
