/* Batches of matrices as dense f64 arrays, and what factorisations are made of: dot products with a stated order,
 * orthonormal columns.
 *
 * Matrices are held by columns: element (i, j) of an m × n matrix is x[j * m + i], so that loops along a column are
 * over neighbours. Vectors are one column. A batch has the leading dimensions of the first result that is wanted;
 * operands broadcast to it. */
#ifndef LB_REPLAY_MATRIX_BATCH_H
#define LB_REPLAY_MATRIX_BATCH_H

#include "kernel/frame.h"

typedef struct lb_matrix_columns {
    double *x; /* NULL: it is not there */
    int64_t m, n;
} lb_matrix_columns;

typedef struct lb_matrix_batch {
    lb_call *call;
    int n_dims; /* of the batch */
    int64_t shape[LB_MAX_DIMS], count;
    int64_t b; /* the one at hand */
    lb_status status;
    double *blocks[64]; /* what was allocated for it */
    int n_blocks;
} lb_matrix_batch;

/* `first`: the result that says how many matrices there are, the last `core` of its dimensions are those of one. */
lb_matrix_batch lb_matrix_batch_begin(lb_call *call, uint32_t first, int core);
/* Goes to the next matrix and frees what was taken for the last one; false at the end, or after a failure. */
bool lb_matrix_batch_next(lb_matrix_batch *batch);
/* Frees everything; the first failure. */
lb_status lb_matrix_batch_end(lb_matrix_batch *batch);
void lb_matrix_batch_refuse(lb_matrix_batch *batch, const char *why);

/* Zeros. After a failure, and where memory is short (which is one), x is NULL. */
lb_matrix_columns lb_matrix_columns_new(lb_matrix_batch *batch, int64_t m, int64_t n);
/* The matrix (core 2) or vector (core 1) at hand of a tensor. Empty where there is no tensor. */
lb_matrix_columns lb_matrix_columns_read(lb_matrix_batch *batch, const lb_tensor *tensor, int core);
/* Of arg `i`, and of what was recorded of `result` (lb_call.branch). */
lb_matrix_columns lb_matrix_columns_arg(lb_matrix_batch *batch, uint32_t i);
lb_matrix_columns lb_matrix_columns_branch(lb_matrix_batch *batch, uint32_t result, int core);
/* Into `result`, rounded once; nothing where it is not wanted. Shapes have to fit. */
void lb_matrix_columns_write(lb_matrix_batch *batch, uint32_t result, int core, lb_matrix_columns a);
/* NaN into all of the matrix at hand in `result`. */
void lb_matrix_columns_write_nan(lb_matrix_batch *batch, uint32_t result, int core);
void lb_matrix_numbers_write(lb_matrix_batch *batch, uint32_t result, int core, const int64_t *numbers, int64_t n);
bool lb_matrix_columns_finite(lb_matrix_columns a);
lb_matrix_columns lb_matrix_columns_transposed(lb_matrix_batch *batch, lb_matrix_columns a);
/* One triangle of a square matrix becomes the mirror image of the other, which is the upper one where `upper`. */
void lb_matrix_columns_mirror(lb_matrix_columns a, bool upper);
/* a b, each element a sum over ascending k. */
lb_matrix_columns lb_matrix_columns_product(lb_matrix_batch *batch, lb_matrix_columns a, lb_matrix_columns b);
/* The unit roundoff of what was recorded of `result`; that of the result where nothing was. */
double lb_matrix_branch_roundoff(const lb_matrix_batch *batch, uint32_t result);

enum { LB_MATRIX_MOST_ROWS = 2048 };
/* Refuses matrices of more rows or columns than that, and where `square` those that are not. False: refused, or not
 * there. */
bool lb_matrix_is_usable(lb_matrix_batch *batch, lb_matrix_columns a, bool square);
/* Refuses a matrix of which the recorded result `info` says that the library could not factorise it: what it left is
 * half done. True: refused. */
bool lb_matrix_batch_gave_up(lb_matrix_batch *batch, uint32_t info);
/* 0 into `result`, one number for each matrix. */
void lb_matrix_zero_write(lb_matrix_batch *batch, uint32_t result);
lb_matrix_columns lb_matrix_columns_identity(lb_matrix_batch *batch, int64_t n);

/* Eight partial sums, put together in pairs. */
double lb_matrix_dot(const double *x, const double *y, int64_t n);
/* The largest magnitude comes first, so that squares neither overflow nor vanish. */
double lb_matrix_length(const double *x, int64_t n);
/* x += a y */
void lb_matrix_add_scaled(double *x, double a, const double *y, int64_t n);
/* x made orthogonal to the first n of `columns`, in two passes; what is left of its length. */
double lb_matrix_orthogonalise(double *x, lb_matrix_columns columns, int64_t n);
/* Column `at` of `columns` := `wanted` (NULL: none) made orthogonal to the columns before it and of length 1; where too
 * little of it is left, or it is none, the first unit vector of which enough is left. */
void lb_matrix_fill_column(lb_matrix_columns columns, int64_t at, const double *wanted);

#endif
