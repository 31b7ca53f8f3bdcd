/* In which order two sides add up the same terms, where each writes the sum by ops of its own: a ring of sends and receives against additions
 * in rank order, a loop over experts against another.
 *
 * A side's order is found as that of a live kernel is (lastbit/order.h; FPRev, Xie et al., arXiv 2411.00442): a huge M at term i, -M at term j
 * and a unit at every other one, and those units survive that are added after i and j have met. All elements of the output are asked at
 * once; those that answer alike have one tree. What was found is then proven on the recorded numbers: each tree gives all recorded bits of
 * its elements, under one rule of rounding for the whole side. */
#ifndef LB_BISECT_WRITTEN_ORDER_H
#define LB_BISECT_WRITTEN_ORDER_H

#include "match_site.h"

typedef struct lb_written_order {
    bool found;        /* both sides add up the same terms with the same factor, in orders (or with roundings on the way) that differ */
    char name[2][160]; /* "rank", "mpi_ring", "pairwise", "sequential in f64", "[1 2 3 0]" */
    uint32_t terms;
    lb_run_cost cost;
} lb_written_order;

/* Needs sides of which replay gives the own bits. `most_work`: what may be spent, in operations (search_work.h); 0: no limit. LB_ERR_NOMEM is the
 * only failure. */
lb_status lb_written_order_find(const lb_match_site *site, double most_work, lb_written_order *order, lb_err *err);

#endif
