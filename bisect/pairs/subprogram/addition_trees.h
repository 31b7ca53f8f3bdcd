/* The trees in which a written sum adds up its terms: see written_sum.h.
 *
 * An order is found as that of a live kernel is (lastbit/order.h; FPRev, Xie et al., arXiv 2411.00442): a huge M at
 * term i, -M at term j and a unit at every other one, and those units survive that are added after i and j have met.
 * All elements of the output are asked at once; those that answer alike have one tree. */
#ifndef LB_BISECT_ADDITION_TREES_H
#define LB_BISECT_ADDITION_TREES_H

#include "subprogram/written_sum.h"

#include <lastbit/order.h>

/* How a side rounds on the way: every addition to `accumulate`, the result to the dtype of the output, and where a
 * factor comes in. */
typedef enum lb_addition_scaling {
    LB_SCALING_NONE,
    LB_SCALING_SUM_TIMES,   /* the sum times the factor */
    LB_SCALING_SUM_OVER,    /* divided by its reciprocal */
    LB_SCALING_TERMS_TIMES, /* each term before it is added */
    LB_SCALING_TERMS_OVER
} lb_addition_scaling;

typedef struct lb_addition_rule {
    lb_dtype accumulate;
    lb_addition_scaling scaling;
} lb_addition_rule;

typedef struct lb_addition_tree {
    lb_sum_tree *tree; /* leaves: terms of the written sum */
    int64_t first;     /* element that has it */
} lb_addition_tree;

typedef struct lb_addition_trees {
    lb_addition_tree *list;
    uint32_t n;
    uint32_t *of; /* per element: row of list */
    lb_addition_rule rule;
    uint32_t tried, excluded; /* orders that have names */
    char name[48];            /* of all of them together: "mpi_ring"; "": none is known */
} lb_addition_trees;

/* `*found`: every element has a tree, and the trees give all recorded bits. Orders that have names are tried on the
 * recorded numbers, which runs nothing and ends at the first element that misses; where none gives the bits, the ops
 * are asked, by `most_runs` runs at most. `ranks`: each term is what one rank brought, in order of ranks. Release it in
 * any case. */
lb_status lb_addition_trees_find(lb_written_sum *sum, bool ranks, uint64_t most_runs, lb_addition_trees *trees,
                                 bool *found, lb_err *err);
void lb_addition_trees_release(lb_addition_trees *trees);

#endif
