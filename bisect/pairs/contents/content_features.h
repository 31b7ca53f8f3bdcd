/* Vectors that go with a matrix: the biases of rows that were fused, permuted or interleaved.
 *
 *      A   q.weight, k.weight    B   qk.weight   row 0 is q's row 0, row 1 is k's row 0, row 2 is q's row 1, …
 *          q.bias,   k.bias          qk.bias     so element 0 is an element 0, element 1 another tensor's element 0, …
 *
 * Of a bias single numbers say little: in bf16 many are equal, and a bias of zeros holds one alone. The rows of the
 * matrix say where each of them stands, so that the whole vector is compared under that order. Of several vectors of A
 * with these numbers it is the one whose name begins most like that of the matrix that it goes with. */
#ifndef LB_BISECT_CONTENT_FEATURES_H
#define LB_BISECT_CONTENT_FEATURES_H

#include "contents/contents.h"

/* A row of a matrix, or a column of it. */
typedef struct lb_content_feature {
    uint32_t tensor;
    int64_t at;
} lb_content_feature;

/* What the rows (or columns) of a matrix of B are. */
typedef struct lb_content_order {
    bool of_columns[2]; /* of A's matrices, of B's: a feature is a column */
    int64_t n;
    lb_content_feature *list; /* malloc'ed; NULL: the runs hold no whole rows or columns */
} lb_content_order;
/* `a`: layouts alone are read. False: out of memory. */
bool lb_content_order_of(const lb_content_run *runs, uint32_t n, const lb_content_tensor *a, const lb_layout *b,
                         lb_content_order *o);
/* How many rows or columns a matrix has. */
int64_t lb_content_features_in(const lb_layout *l, bool columns);

/* Behind the matrices: fills in what was not found. False: out of memory. */
bool lb_content_features_match(const lb_content_tensor *a, uint32_t n_a, const lb_content_tensor *b, uint32_t n_b,
                               lb_contents *contents);

#endif
