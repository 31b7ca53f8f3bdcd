/* Scaled dot-product attention, forward and backward: one computation for all the names that torch has for it.
 *
 * softmax(scale q k' + mask) v by heads. The names differ in the order of their arguments, in how the tensors lie and
 * in what else they return, which a form says:
 *
 *      heads first   (batch…, heads, tokens, size)          tokens first  (batch, tokens, heads, size)
 *      ragged        (all tokens, heads, size), with the borders of the sequences in two int tensors
 *
 * Dropout inside attention is LB_ERR_UNSUPPORTED. */
#ifndef LB_REPLAY_ATTENTION_H
#define LB_REPLAY_ATTENTION_H

#include "kernel/ops.h"

/* Where the causal mask is anchored when there are fewer queries than keys. */
typedef enum lb_corner { LB_TOP_LEFT, LB_BOTTOM_RIGHT } lb_corner;

/* Positions in the schema plus one; 0: the op has no such argument. Query, key and value stand together. */
typedef struct lb_attention_form {
    uint8_t query, mask, dropout, causal, scale;
    uint8_t out, lse;    /* backward: of the forward */
    uint8_t borders;     /* of the sequences of queries; those of the keys follow */
    uint8_t left, right; /* window */
    uint8_t mask_type;   /* instead of `causal`: 0 none, 1 causal from the top left, 2 from the bottom right */
    uint8_t refused[4];  /* args that must not be given */
    uint8_t cap;         /* must be 0: scores go through no tanh */
    uint8_t first;       /* backward: results before the gradients, which the form does not give */
    lb_corner corner;
    bool tokens_first, lse_plus_inf; /* CUDA: a row that attends to nothing has lse +inf, else -inf */
    bool of_cpu;                     /* … 0, and a row of nothing but NaN may count as one, see sees_nothing */
    bool ragged_lse_by_head;         /* of ragged inputs it lies (heads, all tokens), else (sequences, heads, padded) */
    bool weights;                    /* result 1 is the attention weights */
    bool wide;                       /* nothing is rounded to 16 bits inside */
    bool added_bools;                /* a mask of bools is added as 0 and 1, not as -inf and 0 */
} lb_attention_form;

lb_status lb_attention_forward(lb_call *call, const lb_attention_form *form, bool twin);
lb_status lb_attention_backward(lb_call *call, const lb_attention_form *form, bool twin);

#endif
