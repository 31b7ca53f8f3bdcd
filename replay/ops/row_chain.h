/* Rows one after the other, as an op that is a whole layer runs them: each result is held in the op's dtype as torch's
 * CPU kernels hold it; in f64 it is the exact value.
 *
 * The twin of such an op runs the chain in f64 with the error of every number beside it: in parts of what the row's
 * bound multiplies its twin with, to first order. */
#ifndef LB_REPLAY_ROW_CHAIN_H
#define LB_REPLAY_ROW_CHAIN_H

#include "kernel/frame.h"
#include "ops/row_call.h"

#include <math.h>

enum { LB_ROW_CHAIN_MOST = 96 };
#define LB_ROW_CHAIN_UNKNOWN INFINITY /* the error of a number that may have overflowed */

/* A tensor on the way, and of a twin what its elements may be off by. */
typedef struct lb_row_chain_number {
    lb_tensor value, error;
} lb_row_chain_number;

typedef struct lb_row_chain {
    lb_call *call;
    lb_call apart; /* for rows that are no product: orders of sums are for products */
    bool twin;
    lb_dtype type;
    double factor;        /* roundings in an error of 1 */
    double unit;          /* what an error of 1 stands for */
    double coarse, least; /* what holding a number in 16 bits adds: per magnitude, and below the normal ones */
    double largest;       /* finite number that the op can hold */
    lb_status status;
    void *owned[LB_ROW_CHAIN_MOST];
    int n;
} lb_row_chain;

/* The chain of a call; ends by lb_row_chain_end, which frees what was made and returns its status. */
lb_row_chain lb_row_chain_begin(lb_call *call, bool twin);
lb_status lb_row_chain_end(lb_row_chain *chain);
/* Nothing failed so far: what follows a failure does nothing. */
bool lb_row_chain_ok(const lb_row_chain *chain);
/* Ends it: the row cannot compute this. */
lb_status lb_row_chain_refuse(lb_row_chain *chain, const char *what);
/* ---- tensors on the way: they live as long as the chain ---- */

lb_tensor lb_row_chain_fresh(lb_row_chain *chain, lb_dtype type, int ndim, const int64_t *shape);
lb_row_chain_number lb_row_chain_number_of(lb_row_chain *chain, int ndim, const int64_t *shape);
/* The same elements under another shape and other strides, from element `first` on. */
lb_tensor lb_row_chain_seen_as(lb_tensor tensor, const lb_layout *layout, int64_t first);
lb_row_chain_number lb_row_chain_number_seen_as(lb_row_chain_number x, const lb_layout *layout);
/* Elements `part` of `parts` along the first dimension. */
lb_tensor lb_row_chain_part_of(const lb_tensor *tensor, int64_t part, int64_t parts);
/* An argument, exact. Where errors are asked for, they are 0. */
lb_row_chain_number lb_row_chain_number_from(lb_row_chain *chain, const lb_tensor *tensor);
/* Runs a row, or its twin, as a part of the call `as`. */
void lb_row_chain_run(lb_row_chain *chain, lb_call *as, lb_row_call *piece, bool twin);
/* a + k |b|, of dense f64 tensors. */
void lb_row_chain_add_magnitudes(lb_row_chain *chain, lb_tensor *a, const lb_tensor *b, double k);
/* k |value| + m error */
lb_tensor lb_row_chain_mixed(lb_row_chain *chain, const lb_row_chain_number *x, double k, double m);
/* What `n` roundings are in parts of all that the row's bound has. */
double lb_row_chain_roundings(const lb_row_chain *chain, double n);
double lb_row_chain_roundings_of_sum(const lb_row_chain *chain, int64_t terms);
/* Held in the op's type: in 16 bits `times` over. Beyond its largest number nothing more can be said. */
void lb_row_chain_hold(lb_row_chain *chain, lb_row_chain_number *x, double times);
/* ---- links ---------------------------------------------------------------------------------------------------- *
 * y = x W' + b into the value and the error of y; products (b transposed: a b'), sums, norms, gelu or relu. */

void lb_row_chain_linear_into(lb_row_chain *chain, const lb_row_chain_number *x, const lb_tensor *weight,
                              const lb_tensor *bias, lb_row_chain_number *y);
lb_row_chain_number lb_row_chain_linear(lb_row_chain *chain, const lb_row_chain_number *x, const lb_tensor *weight,
                                        const lb_tensor *bias);
void lb_row_chain_product(lb_row_chain *chain, const lb_row_chain_number *a, const lb_row_chain_number *b, bool turned,
                          lb_row_chain_number *y);
lb_row_chain_number lb_row_chain_sum(lb_row_chain *chain, const lb_row_chain_number *a, const lb_row_chain_number *b);
lb_row_chain_number lb_row_chain_norm(lb_row_chain *chain, const lb_row_chain_number *x, const lb_tensor *weight,
                                      const lb_tensor *bias, double eps);
lb_row_chain_number lb_row_chain_activated(lb_row_chain *chain, const lb_row_chain_number *x, bool gelu);

#endif
