/* A sum that a program writes by several ops, read off by running these ops on numbers of our choice: which elements of
 * what they read are the terms of each element that they give.
 *
 *      leaves    x0 (480)   x1 (480)        zeros everywhere, and in one leaf each element's own number:
 *      output    y (480)                    the numbers that come out say where each term stood
 *
 * Ops are run exactly for this. Anything that is no sum of single terms with one factor for all (a product of two
 * leaves, a term that counts twice, a maximum) is no written sum. */
#ifndef LB_BISECT_WRITTEN_SUM_H
#define LB_BISECT_WRITTEN_SUM_H

#include "subprogram/subprogram.h"

/* What a leaf brings: `count` terms to each element of the output, the first at first[element], each further one
 * `stride` elements on. */
typedef struct lb_written_leaf {
    lb_tensor tensor; /* dense; written before each run */
    uint32_t count;   /* 0: it brings none */
    int64_t stride;
    uint32_t *first;
} lb_written_leaf;

/* Term `place` of a leaf. */
typedef struct lb_written_term {
    uint32_t leaf, place;
} lb_written_term;

/* The ops, and what was recorded of what they read and gave. */
typedef struct lb_written_ops {
    const lb_subprogram *subprogram; /* of one output */
    const lb_tensor *inputs;         /* per leaf */
    uint32_t n_leaves, n_ops;
    const lb_tensor *target;
} lb_written_ops;

typedef struct lb_written_sum {
    lb_written_ops ops;
    int64_t elements; /* of the output */
    lb_written_leaf *leaves;
    lb_tensor *inputs; /* per leaf */
    lb_written_term *terms;
    uint32_t n_terms;
    double factor;  /* of every term: 1, or 1/n of a mean */
    lb_dtype dtype; /* of all terms */
    lb_run_cost cost;
} lb_written_sum;

enum { LB_WRITTEN_TERMS = 4096 }; /* at most */

/* `*found`: it is one. Release it in any case. LB_ERR_NOMEM is the only failure. */
lb_status lb_written_sum_read(const lb_written_ops *ops, lb_written_sum *sum, bool *found, lb_err *err);
void lb_written_sum_release(lb_written_sum *sum);

/* All terms 0; one term of every element. */
void lb_written_sum_clear(lb_written_sum *sum);
void lb_written_sum_put(lb_written_sum *sum, uint32_t term, double number);
/* What the side's ops make of these numbers, as they are or `exact`. `out`: elements. */
lb_status lb_written_sum_run(lb_written_sum *sum, bool exact, double *out, bool *ran, lb_err *err);
/* The recorded number of a term of one element. */
double lb_written_sum_recorded(const lb_written_sum *sum, uint32_t term, int64_t element);

#endif
