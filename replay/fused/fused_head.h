/* One head of fused attention: scores, exponentials and what they weigh, under a kernel of fused_attention.c. */
#ifndef LB_REPLAY_FUSED_HEAD_H
#define LB_REPLAY_FUSED_HEAD_H

#include "fused/fused.h"
#include "kernel/product.h"
#include "orders/schedule.h"

/* The forms of fused_attention.c. */
typedef enum lb_head_form { LB_HEAD_UNFUSED, LB_HEAD_MATH, LB_HEAD_FLASH, LB_HEAD_SPLITKV } lb_head_form;

typedef struct lb_fused_attention_kernel {
    lb_head_form form;
    int64_t block, slices;
    bool p_narrow, base_two, fast, reciprocal, sink_first;
    lb_schedule sum, gemm;
    bool has_sum, has_gemm;
} lb_fused_attention_kernel;

/* All heads of a call, and room for one. */
typedef struct lb_fused_heads {
    lb_frame frame;
    lb_fused_attention_kernel kernel;
    lb_method method; /* of the products */
    lb_dtype narrow;
    int64_t queries, keys, size, values, heads, groups; /* heads of all batches, and how many share a key head */
    double scale, cap, batch_heads;
    bool causal, turned, hides;
    const char *q, *k, *v;
    const double *mask;  /* (batches, heads, queries, keys), or NULL */
    const double *sinks; /* (batches, heads), or NULL */
    char *y, *lse;
    /* of one head */
    float *s, *p, *o, *part, *top, *sum, *row;
    double *wide;
} lb_fused_heads;

/* What one head reads and gives in f64; lse may be NULL. */
typedef struct lb_fused_head_numbers {
    const double *q, *k, *v;
    double *y, *lse;
} lb_fused_head_numbers;

/* The same in f32. */
typedef struct lb_fused_head_floats {
    const float *q, *k, *v;
    float *y, *lse;
} lb_fused_head_floats;

/* y and, where it is wanted, lse of all queries of a head. False: the frame failed. */
bool lb_fused_head_f32(lb_fused_heads *heads, int64_t head, const lb_fused_head_floats *floats);
/* The real function, whatever the kernel; `twin`: its terms, those of scores rounded to 16 bits times `scale16`. */
void lb_fused_head_f64(lb_fused_heads *heads, int64_t head, const lb_fused_head_numbers *numbers, bool twin,
                       double scale16);

#endif
