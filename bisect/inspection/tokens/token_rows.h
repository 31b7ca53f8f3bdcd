/* Which elements of a value belong to which token, told by its shape: of two sequences of eight tokens
 *
 *      (2, 8, 64) or (16, 64)     hidden states           (2, 4, 8, 16) or (8, 8, 16)     heads
 *      (2, 64, 8)                 channels of a convolution        (8, 2, 64)   hidden states, tokens first
 *
 * A square of tokens by tokens has two answers (the token that asks, the token that is asked) until a softmax has taken
 * the latter away; it has none here before that. */
#ifndef LB_BISECT_TOKEN_ROWS_H
#define LB_BISECT_TOKEN_ROWS_H

#include <lastbit/tensor.h>

/* Element ((sequence * heads + head) * columns + column) * inner + i; tokens first, and heads are 1: (column * rows +
 * sequence) * inner + i. */
typedef struct lb_token_rows {
    int64_t rows, heads, columns, inner;
    bool tokens_first;
} lb_token_rows;

/* False: the shape does not tell. `weighed`: a softmax gave it. */
bool lb_token_rows_of(const lb_layout *layout, int64_t rows, int64_t columns, bool weighed, lb_token_rows *shape);

/* What the numbers of a token add up to with random signs and sizes, and the root of the sum of their squares. Numbers
 * of masks (1e30 and more in size, or not finite) are left out. */
typedef struct lb_token_sum {
    double sum, norm;
} lb_token_sum;

/* `sums`: one per token. */
void lb_token_rows_add_up(const lb_token_rows *shape, const double *numbers, lb_token_sum *sums);
/* The same of numbers that stand `stride` apart. */
lb_token_sum lb_token_rows_sum(const double *numbers, int64_t n, int64_t stride);
/* |a - b| beside the larger norm; rounding in f64 leaves less than LB_TOKEN_ROWS_ROUNDING. */
double lb_token_rows_gap(const lb_token_sum *a, const lb_token_sum *b);
#define LB_TOKEN_ROWS_ROUNDING 1e-11

#endif
