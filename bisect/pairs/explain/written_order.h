/* Finds in which order each side adds the same terms, where the sum is spelled out in ops: a ring of sends and receives
 * against additions in rank order, or two different loops over experts. Each side's order is read from its ops
 * (addition_trees.h). It is accepted only if it reproduces all recorded bits under one rounding rule for the whole
 * side. */
#ifndef LB_BISECT_WRITTEN_ORDER_H
#define LB_BISECT_WRITTEN_ORDER_H

#include "explain/match_site.h"

typedef struct lb_written_order {
    /* both sides add up the same terms with the same factor, in orders (or with roundings on the way) that differ */
    bool found;
    char name[2][160]; /* "rank", "mpi_ring", "pairwise", "sequential in f64", "[1 2 3 0]" */
    uint32_t terms;
    uint32_t tried, excluded; /* orders with names, on the second side's numbers */
    lb_run_cost cost;
} lb_written_order;

/* Needs sides of which replay gives the own bits. `most_runs`: of each side's ops, where its order has no name.
 * LB_ERR_NOMEM is the only failure. */
lb_status lb_written_order_find(const lb_match_site *site, uint64_t most_runs, lb_written_order *order, lb_err *err);

#endif
