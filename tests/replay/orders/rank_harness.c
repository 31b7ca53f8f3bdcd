/* Reductions over ranks for Python: what an order makes of given contributions (judged_mpi.py, test_gloo_orders.py). */
#include "orders/collective_sum.h"

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
