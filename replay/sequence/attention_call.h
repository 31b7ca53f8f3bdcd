/* A call of attention as it was read: where heads, sequences and log-sum-exps lie, whatever the op's name. attention.c
 * computes them. */
#ifndef LB_REPLAY_ATTENTION_CALL_H
#define LB_REPLAY_ATTENTION_CALL_H

#include "sequence/attention.h"
#include "kernel/frame.h"
#include "kernel/product.h"

typedef struct lb_attention_head {
    lb_dtype type;
    lb_method method;
    int64_t queries, keys, size, values;
    double scale;
    float empty_lse;            /* of a row that attends to nothing */
    int64_t vector;             /* torch's CPU kernels: lanes of a vector; else 0 */
    lb_dtype fast_exp;          /* … for inputs of this dtype have exponentials of their own kind, see `overflows` */
    bool skips_nan;             /* the maximum of a row passes over NaNs behind the last full vector */
    int64_t left, right, shift; /* query i sees keys i + shift - left … i + shift + right; negative: no such limit */
    lb_dtype rounds;            /* the inputs' 16-bit dtype, or none */
} lb_attention_head;

/* A run of tokens that attend to each other. */
typedef struct lb_attention_sequence {
    int64_t first_query, first_key, queries, keys;
} lb_attention_sequence;

typedef struct lb_attention_call {
    lb_frame frame;
    const lb_attention_form *form;
    lb_attention_head h;
    int64_t batch, heads, kv_heads, tokens, kv_tokens; /* tokens: rows of one head */
    bool ragged;
    int64_t sequences;
    const int64_t *query_borders, *key_borders;
    const char *q, *k, *v, *mask;
    int64_t element; /* bytes */
} lb_attention_call;

/* Begins the frame. False: it failed, and has only to be ended. */
bool lb_attention_begin(lb_attention_call *attention, lb_call *call, const lb_attention_form *form);
/* The argument at a position of the form; NULL: there is none. */
const lb_tensor *lb_attention_tensor(const lb_call *call, uint8_t position);
/* The same elements seen as (…, heads, tokens, size). */
lb_tensor lb_attention_heads_first(const lb_attention_call *attention, const lb_tensor *tensor);
/* Sequence s of the batch. Sets the sizes of the head to its own. */
lb_attention_sequence lb_attention_sequence_of(lb_attention_call *attention, int64_t s);

/* Byte offsets of head i's rows in arrays that lie as query (or out) and as key (value). */
int64_t lb_attention_query_at(const lb_attention_call *attention, const lb_attention_sequence *sequence, int64_t i,
                              int64_t width);
int64_t lb_attention_key_at(const lb_attention_call *attention, const lb_attention_sequence *sequence, int64_t i,
                            int64_t width);
const void *lb_attention_mask_of(const lb_attention_call *attention, int64_t i);

/* Rows of one head in the log-sum-exps, which may be padded (efficient attention: to 32). */
int64_t lb_attention_lse_rows(const lb_attention_call *attention, int64_t numel);
int64_t lb_attention_lse_at(const lb_attention_call *attention, const lb_attention_sequence *one, int64_t s, int64_t i,
                            int64_t rows);
/* Queries of the longest sequence. */
int64_t lb_attention_longest(const lb_attention_call *attention);
/* Result 1, or room for what it would be: not wanted, compute_log_sumexp was false, or it holds something else. */
void *lb_attention_lse_output(lb_attention_call *attention, int64_t *rows);
/* Behind the rows of a padded head lies +inf. */
void lb_attention_pad_lse(const lb_attention_call *attention, char *lse, int64_t rows);

#endif
