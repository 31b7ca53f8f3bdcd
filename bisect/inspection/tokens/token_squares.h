/* Masks that a step was given as squares of the token that asks by the token that is asked, causal or not:
 *
 *      documents   1             padding   0 . . .      on the left: what asks from there may see anything
 *                  1 1                     0 1
 *                  0 0 1                   0 1 1
 *                  0 0 1 1                 0 1 1 1
 *
 * What is neither of the two in every element (a window, a tree) is no mask here. */
#ifndef LB_BISECT_TOKEN_SQUARES_H
#define LB_BISECT_TOKEN_SQUARES_H

#include <lastbit/tensor.h>

typedef enum lb_square_kind { LB_SQUARE_NONE, LB_SQUARE_PADDING, LB_SQUARE_DOCUMENTS } lb_square_kind;

typedef struct lb_token_squares {
    const double *numbers; /* row-major */
    int64_t n;             /* one for each sequence, or one for all */
    int64_t columns;
} lb_token_squares;

/* Is it of such squares, whatever dimensions of one it has? */
bool lb_token_squares_shape(const lb_layout *layout, int64_t rows, int64_t columns);
/* Fills `hidden` or `document`, of a number for each token of `rows` sequences; the other is left in no state. Padding
 * on the left that sees itself could be a document: it is not where all of it is one token. */
lb_square_kind lb_token_squares_read(const lb_token_squares *squares, int64_t rows, const int64_t *tokens,
                                     uint8_t *hidden, int32_t *document);

#endif
