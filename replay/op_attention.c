/* Scaled dot-product attention, forward and backward, under the names of torch's CPU and CUDA implementations.
 *
 * All compute softmax(scale q k' + mask) v by heads; they differ in the order of their arguments and in what else they
 * return. Here: fma chains for the products, exponentials of score - row maximum, one division at the end. For 16-bit inputs
 * the exponentials are rounded to that dtype before they meet v, and so are the gradients of the scores, as in torch's
 * kernels. The causal mask is aligned to the upper left. Dropout is not computed: such an op is opaque. */
#include "elementary.h"
#include "frame.h"
#include "product.h"
#include "schedule.h"

#include <math.h>
#include <string.h>

typedef struct head {
    lb_dtype type;
    lb_method method;
    int64_t queries, keys, size, values;
    double scale;
    float empty_lse; /* of a row that attends to nothing */
    bool causal;
    lb_dtype rounds; /* the inputs' 16-bit dtype, or none */
} head;

#define REAL float
#define NAME(x) x##_f32
#define ROUND lb_round_to_grid_f32
#include "attention_real.h"
#undef REAL
#undef NAME
#undef ROUND
#define REAL double
#define NAME(x) x##_f64
#define ROUND lb_round_to_grid_f64
#include "attention_real.h"

/* ---- arguments ------------------------------------------------------------------------------------------------------- */

#define NONE 99
/* Positions in the schema. Gradients: query, key and value follow grad_out. */
typedef struct positions {
    uint32_t query, mask, dropout, causal, scale; /* query, key, value stand together */
    uint32_t out, lse;                            /* backward: out, logsumexp */
    bool lse_plus_inf; /* CUDA: a row that attends to nothing has lse +inf, else -inf */
} positions;

static const positions cpu_forward = {0, 5, 3, 4, 6, NONE, NONE, false};
static const positions flash_forward = {0, NONE, 3, 4, 6, NONE, NONE, true};
static const positions efficient_forward = {0, 3, 5, 6, 7, NONE, NONE, true};
static const positions cudnn_forward = {0, 3, 5, 6, 8, NONE, NONE, true};
static const positions cpu_backward = {1, 8, 6, 7, 9, 4, 5, false};
static const positions flash_backward = {1, NONE, 10, 11, 14, 4, 5, true};
static const positions efficient_backward = {1, 4, 9, 11, 12, 5, 6, true};
static const positions cudnn_backward = {1, 8, 13, 14, 15, 4, 5, true};

/* (batch, heads, queries, size), (batch, kv_heads, keys, size or values) */
typedef struct attention {
    lb_frame frame;
    head h;
    int64_t batch, heads, kv_heads;
    const char *q, *k, *v, *mask;
    int64_t element; /* bytes */
} attention;

/* The mask as (batch, heads, queries, keys) reals: bools become 0 and -inf. */
static const void *expanded_mask(attention *a, const lb_tensor *mask)
{
    lb_frame *f = &a->frame;
    const int64_t shape[4] = {a->batch, a->heads, a->h.queries, a->h.keys};
    lb_tensor wide = *mask;
    wide.layout.ndim = 4;
    if (mask->layout.ndim < 2 || mask->layout.ndim > 4) {
        lb_frame_fail(f, LB_ERR_INVALID, "a mask of another number of dimensions");
        return NULL;
    }
    for (int d = 0; d < 4; d++) {
        int own = d - (4 - mask->layout.ndim);
        int64_t size = own >= 0 ? mask->layout.shape[own] : 1;
        if (size != 1 && size != shape[d]) lb_frame_fail(f, LB_ERR_INVALID, "a mask of another shape");
        wide.layout.shape[d] = shape[d];
        wide.layout.stride[d] = size == 1 ? 0 : mask->layout.stride[own];
    }
    if (mask->dtype != LB_BOOL) return lb_frame_tensor(f, &wide);
    const int64_t *keep = lb_frame_integers(f, &wide);
    int64_t n = lb_tensor_numel(&wide);
    void *x = lb_frame_reals(f, n);
    for (int64_t i = 0; x && i < n; i++) {
        if (f->wide)
            ((double *)x)[i] = keep[i] ? 0 : -INFINITY;
        else
            ((float *)x)[i] = keep[i] ? 0 : -INFINITY;
    }
    return x;
}

static bool attention_begin(attention *a, lb_call *call, const positions *at)
{
    const lb_tensor *q = lb_call_tensor(call, at->query), *k = lb_call_tensor(call, at->query + 1);
    const lb_tensor *v = lb_call_tensor(call, at->query + 2);
    a->frame = lb_frame_begin(call);
    lb_frame *f = &a->frame;
    if (lb_call_float(call, at->dropout, 0) != 0) lb_frame_fail(f, LB_ERR_UNSUPPORTED, "dropout inside attention");
    if (q->layout.ndim != 4 || k->layout.ndim != 4 || v->layout.ndim != 4)
        lb_frame_fail(f, LB_ERR_UNSUPPORTED, "attention of other than four dimensions");
    if (!lb_frame_ok(f)) return false;
    const int64_t *qs = q->layout.shape, *ks = k->layout.shape, *vs = v->layout.shape;
    a->batch = qs[0], a->heads = qs[1], a->kv_heads = ks[1];
    a->h = (head){.type = f->type, .method = call->method, .queries = qs[2], .keys = ks[2], .size = qs[3], .values = vs[3]};
    a->h.scale = lb_call_float(call, at->scale, 1 / sqrt((double)qs[3]));
    if (!f->wide) a->h.scale = (float)a->h.scale;
    a->h.causal = lb_call_int(call, at->causal, 0) != 0;
    a->h.empty_lse = at->lse_plus_inf ? INFINITY : -INFINITY;
    bool narrow = lb_dtype_bits(q->dtype) == 16 && lb_dtype_bits(call->results[0].dtype) == 16;
    a->h.rounds = narrow && !f->wide ? q->dtype : LB_NO_DTYPE;
    if (ks[1] != vs[1] || !ks[1] || qs[1] % ks[1] || ks[2] != vs[2] || ks[3] != qs[3])
        lb_frame_fail(f, LB_ERR_INVALID, "query, key and value do not match");
    a->q = lb_frame_tensor(f, q), a->k = lb_frame_tensor(f, k), a->v = lb_frame_tensor(f, v);
    const lb_tensor *mask = lb_call_tensor(call, at->mask);
    a->mask = mask && lb_frame_ok(f) && lb_tensor_numel(mask) ? expanded_mask(a, mask) : NULL;
    a->element = f->wide ? 8 : 4;
    return lb_frame_ok(f);
}

static const void *query_of(const attention *a, int64_t i) { return a->q + i * a->h.queries * a->h.size * a->element; }

/* Head i of batch * heads reads key and value head… */
static int64_t kv_index(const attention *a, int64_t i)
{
    return i / a->heads * a->kv_heads + i % a->heads / (a->heads / a->kv_heads);
}
static const void *key_of(const attention *a, int64_t i) { return a->k + kv_index(a, i) * a->h.keys * a->h.size * a->element; }
static const void *value_of(const attention *a, int64_t i) { return a->v + kv_index(a, i) * a->h.keys * a->h.values * a->element; }
static const void *mask_of(const attention *a, int64_t i)
{
    return a->mask ? a->mask + i * a->h.queries * a->h.keys * a->element : NULL;
}

/* ---- forward ---------------------------------------------------------------------------------------------------------- */

/* The log-sum-exps as the result holds them: rows may be padded (efficient attention: to 32), the rest is +inf. */
static void *lse_output(attention *a, int64_t *padded)
{
    const lb_tensor *lse = &a->frame.call->results[1];
    int64_t rows = a->batch * a->heads;
    *padded = a->h.queries;
    if (a->frame.call->n_results > 1 && lse->data && rows && lb_tensor_numel(lse) % rows == 0) *padded = lb_tensor_numel(lse) / rows;
    if (*padded < a->h.queries) { /* compute_log_sumexp was false */
        *padded = a->h.queries;
        return lb_frame_reals(&a->frame, rows * *padded);
    }
    return lb_frame_output(&a->frame, 1, rows * *padded);
}

static void pad(const attention *a, void *lse, int64_t head_index, int64_t padded)
{
    for (int64_t j = a->h.queries; j < padded; j++) {
        if (a->frame.wide)
            ((double *)lse)[head_index * padded + j] = INFINITY;
        else
            ((float *)lse)[head_index * padded + j] = INFINITY;
    }
}

/* For 16-bit inputs torch 2.13 (CPU) takes an exponential with a relative error of 5.4e-5 (measured: exp(0) is 0.9999466), which
 * the rounding of p hides, but not the log-sum-exp: 5.4e-5 / (8 * 2^-24), rounded up. */
#define FAST_EXP 128

/* t_j = scale sum |q k_j| + |mask| + |score - max|; y's twin is sum p_j |v_j| (1 + t_j + sum p t), times the roundings of p. */
static void twin_head(const attention *a, const double *q, const double *k, const double *v, const double *mask,
                      double *scores, double *sum, double *y, double *lse)
{
    const head *h = &a->h;
    double rounding = lb_twin_scale(a->frame.call, 0);
    if (!head_scores_f64(h, q, k, mask, scores)) return;
    for (int64_t i = 0; i < h->queries; i++) {
        double *row = scores + i * h->keys, top = -INFINITY, total = 0, weighted = 0;
        for (int64_t j = 0; j < h->keys; j++) top = row[j] > top ? row[j] : top;
        for (int64_t j = 0; j < h->keys; j++) total += row[j] == -INFINITY ? 0 : exp(row[j] - top);
        memset(y + i * h->values, 0, (size_t)h->values * sizeof *y);
        for (int pass = 0; pass < 2; pass++)
            for (int64_t j = 0; j < h->keys; j++) {
                if (row[j] == -INFINITY) continue;
                double p = exp(row[j] - top) / total, t = fabs(row[j] - top) + (mask ? fabs(mask[i * h->keys + j]) : 0);
                for (int64_t d = 0; d < h->size; d++) t += fabs(h->scale * q[i * h->size + d] * k[j * h->size + d]);
                if (pass == 0)
                    weighted += p * t;
                else
                    for (int64_t d = 0; d < h->values; d++)
                        y[i * h->values + d] += p * fabs(v[j * h->values + d]) * (rounding + t + weighted);
            }
        lse[i] = isinf(top) ? 0 : fabs(top) + fabs(log(total)) + 1 + weighted + (rounding > 1 ? FAST_EXP : 0);
        sum[i] = 1;
    }
}

static lb_status forward(lb_call *call, const positions *at, bool twin)
{
    attention a;
    if (!attention_begin(&a, call, at)) return lb_frame_end(&a.frame);
    lb_frame *f = &a.frame;
    int64_t heads = a.batch * a.heads, padded, square = a.h.queries * a.h.keys;
    char *y = lb_frame_output(f, 0, heads * a.h.queries * a.h.values), *lse = lse_output(&a, &padded);
    char *scores = lb_frame_reals(f, square), *sum = lb_frame_reals(f, a.h.queries);
    for (int64_t i = 0; lb_frame_ok(f) && i < heads; i++) {
        void *out = y + i * a.h.queries * a.h.values * a.element, *log_sum = lse + i * padded * a.element;
        bool done = true;
        if (twin)
            twin_head(&a, query_of(&a, i), key_of(&a, i), value_of(&a, i), mask_of(&a, i), (double *)scores, (double *)sum, out, log_sum);
        else if (f->wide)
            done = head_forward_f64(&a.h, query_of(&a, i), key_of(&a, i), value_of(&a, i), mask_of(&a, i), (double *)scores,
                                    (double *)sum, out, log_sum);
        else
            done = head_forward_f32(&a.h, query_of(&a, i), key_of(&a, i), value_of(&a, i), mask_of(&a, i), (float *)scores,
                                    (float *)sum, out, log_sum);
        if (!done) lb_frame_fail(f, LB_ERR_NOMEM, "no memory for a product");
        pad(&a, lse, i, padded);
    }
    return lb_frame_end(f);
}

/* ---- backward --------------------------------------------------------------------------------------------------------- */

/* With t as in twin_head (|score - lse| for |score - max|): |ds| is p (sum |dy v| + sum |dy y|) (r + t) where r is the growth by
 * 16-bit roundings, and dv's weights are p (r + t). */
static void twin_head_backward(const attention *a, const double *dy, const double *q, const double *k, const double *v,
                               const double *y, const double *lse, const double *mask, double *p, double *dq, double *dk,
                               double *dv)
{
    const head *h = &a->h;
    double rounding = lb_twin_scale(a->frame.call, 1), scale = fabs(h->scale);
    if (!head_scores_f64(h, q, k, mask, p)) return;
    memset(dq, 0, (size_t)(h->queries * h->size) * sizeof *dq);
    for (int64_t i = 0; i < h->queries; i++) {
        double delta = 0;
        for (int64_t d = 0; d < h->values; d++) delta += fabs(dy[i * h->values + d] * y[i * h->values + d]);
        for (int64_t j = 0; j < h->keys; j++) {
            double s = p[i * h->keys + j], t = fabs(s - lse[i]) + (mask ? fabs(mask[i * h->keys + j]) : 0), dp = delta;
            if (s == -INFINITY || isinf(lse[i])) continue;
            for (int64_t d = 0; d < h->size; d++) t += fabs(h->scale * q[i * h->size + d] * k[j * h->size + d]);
            for (int64_t d = 0; d < h->values; d++) dp += fabs(dy[i * h->values + d] * v[j * h->values + d]);
            double weight = exp(s - lse[i]) * (rounding + t), ds = weight * dp * scale;
            for (int64_t d = 0; d < h->values; d++) dv[j * h->values + d] += weight * fabs(dy[i * h->values + d]);
            for (int64_t d = 0; d < h->size; d++) {
                dq[i * h->size + d] += ds * fabs(k[j * h->size + d]);
                dk[j * h->size + d] += ds * fabs(q[i * h->size + d]);
            }
        }
    }
}

static lb_status backward(lb_call *call, const positions *at, bool twin)
{
    attention a;
    if (!attention_begin(&a, call, at)) return lb_frame_end(&a.frame);
    lb_frame *f = &a.frame;
    const head *h = &a.h;
    int64_t heads = a.batch * a.heads, kv_heads = a.batch * a.kv_heads, square = h->queries * h->keys, size = a.element;
    if (call->n_results > 3 && call->results[3].data && lb_tensor_numel(&call->results[3]))
        lb_frame_fail(f, LB_ERR_UNSUPPORTED, "the gradient of an attention bias");
    const char *dy = lb_frame_input(f, 0), *y = lb_frame_input(f, at->out), *lse = lb_frame_input(f, at->lse);
    int64_t padded = heads ? lb_tensor_numel(lb_call_tensor(call, at->lse)) / heads : 0;
    char *dq = lb_frame_output(f, 0, heads * h->queries * h->size), *dk = lb_frame_output(f, 1, kv_heads * h->keys * h->size);
    char *dv = lb_frame_output(f, 2, kv_heads * h->keys * h->values);
    char *p = lb_frame_reals(f, square), *ds = lb_frame_reals(f, square);
    char *part = lb_frame_reals(f, h->keys * (h->size > h->values ? h->size : h->values));
    if (lb_frame_ok(f)) {
        memset(dk, 0, (size_t)(kv_heads * h->keys * h->size * size));
        memset(dv, 0, (size_t)(kv_heads * h->keys * h->values * size));
    }
    for (int64_t i = 0; lb_frame_ok(f) && i < heads; i++) {
        int64_t kv = kv_index(&a, i);
        const void *di = dy + i * h->queries * h->values * size, *yi = y + i * h->queries * h->values * size;
        const void *li = lse + i * padded * size;
        void *qi = dq + i * h->queries * h->size * size, *ki = dk + kv * h->keys * h->size * size;
        void *vi = dv + kv * h->keys * h->values * size;
        bool done = true;
        if (twin)
            twin_head_backward(&a, di, query_of(&a, i), key_of(&a, i), value_of(&a, i), yi, li, mask_of(&a, i), (double *)p, qi, ki, vi);
        else if (f->wide)
            done = head_backward_f64(h, di, query_of(&a, i), key_of(&a, i), value_of(&a, i), yi, li, mask_of(&a, i),
                                     (double *)p, (double *)ds, (double *)part, qi, ki, vi);
        else
            done = head_backward_f32(h, di, query_of(&a, i), key_of(&a, i), value_of(&a, i), yi, li, mask_of(&a, i),
                                     (float *)p, (float *)ds, (float *)part, qi, ki, vi);
        if (!done) lb_frame_fail(f, LB_ERR_NOMEM, "no memory for a product");
    }
    return lb_frame_end(f);
}

#define ATTENTION(DIRECTION, NAME)                                                                           \
    static lb_status NAME##_##DIRECTION##_kernel(lb_call *call) { return DIRECTION(call, &NAME##_##DIRECTION, false); }  \
    static lb_status NAME##_##DIRECTION##_twin(lb_call *call) { return DIRECTION(call, &NAME##_##DIRECTION, true); }
ATTENTION(forward, cpu)
ATTENTION(forward, flash)
ATTENTION(forward, efficient)
ATTENTION(forward, cudnn)
ATTENTION(backward, cpu)
ATTENTION(backward, flash)
ATTENTION(backward, efficient)
ATTENTION(backward, cudnn)

#define DOT "aten::_scaled_dot_product_"
#define ROW(NAME, ARGS, IMPLEMENTATION, DIRECTION, ROUNDINGS, SAMPLES)                                       \
    {DOT NAME, ARGS, IMPLEMENTATION##_##DIRECTION##_kernel, IMPLEMENTATION##_##DIRECTION##_twin, ROUNDINGS, 1, LB_ROW_REDUCTION, \
     "openblas", SAMPLES},
const lb_op_row lb_rows_attention[] = {
    ROW("flash_attention_for_cpu", "query key value dropout_p is_causal attn_mask scale", cpu, forward, 8, "attention")
    ROW("flash_attention", "query key value dropout_p is_causal return_debug_mask scale", flash, forward, 8, "device")
    ROW("efficient_attention", "query key value attn_bias compute_log_sumexp dropout_p is_causal scale", efficient, forward, 8, "device")
    ROW("cudnn_attention", "query key value attn_bias compute_log_sumexp dropout_p is_causal return_debug_mask scale", cudnn, forward, 8, "device")
    ROW("flash_attention_for_cpu_backward",
        "grad_out query key value out logsumexp dropout_p is_causal attn_mask scale", cpu, backward, 10, "attention_backward")
    ROW("flash_attention_backward",
        "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal philox_seed philox_offset scale",
        flash, backward, 10, "device")
    ROW("efficient_attention_backward",
        "grad_out_ query key value attn_bias out logsumexp philox_seed philox_offset dropout_p grad_input_mask is_causal scale",
        efficient, backward, 10, "device")
    ROW("cudnn_attention_backward",
        "grad_out query key value out logsumexp philox_seed philox_offset attn_bias cum_seq_q cum_seq_k max_q max_k dropout_p is_causal scale",
        cudnn, backward, 10, "device")
    {NULL},
};
