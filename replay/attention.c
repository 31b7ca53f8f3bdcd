/* Attention by heads; see attention.h. fma chains for the products, exponentials of score - row maximum, one division at the
 * end. For 16-bit inputs the exponentials are rounded to that dtype before they meet v, and so are the gradients of the scores,
 * as in torch's fused kernels. */
#include "attention.h"

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
    float empty_lse;   /* of a row that attends to nothing */
    int64_t vector;    /* torch's CPU kernels: lanes of a vector; else 0 */
    lb_dtype fast_exp; /* … for inputs of this dtype have exponentials of their own kind, see `overflows` */
    bool skips_nan;    /* the maximum of a row passes over NaNs behind the last full vector */
    int64_t left, right,
        shift;       /* query i sees keys i + shift - left … i + shift + right; negative: no such limit */
    lb_dtype rounds; /* the inputs' 16-bit dtype, or none */
} head;

static int64_t first_key(const head *h, int64_t i)
{
    int64_t first = h->left < 0 ? 0 : i + h->shift - h->left;
    return first < 0 ? 0 : first > h->keys ? h->keys : first;
}
static int64_t last_key(const head *h, int64_t i)
{
    int64_t last = h->right < 0 ? h->keys - 1 : i + h->shift + h->right;
    return last < -1 ? -1 : last >= h->keys ? h->keys - 1 : last;
}

/* Fused kernels take queries by blocks and leave out blocks of keys that a causal block sees nothing of. What is left out counts
 * only where values are not finite: 0 times them is NaN. Sizes as in torch's for the CPU. */
enum { KEY_BLOCK = 512 };
static int64_t query_block(const head *h)
{
    return h->queries >= 768 ? 256 : h->queries >= 192 ? 64 : 32;
}
static bool has_blocks(const head *h, const void *mask)
{
    return !mask && h->right >= 0 && h->keys > KEY_BLOCK;
}
static head block_from(const head *h, int64_t first)
{
    head block = *h;
    const int64_t size = query_block(h), left = h->queries - first;
    block.queries = left < size ? left : size;
    block.shift = h->shift + first;
    int64_t keys = (last_key(h, first + block.queries - 1) + KEY_BLOCK) / KEY_BLOCK * KEY_BLOCK;
    if (keys < KEY_BLOCK) keys = KEY_BLOCK;
    block.keys = keys < h->keys ? keys : h->keys;
    return block;
}

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
#undef REAL
#undef NAME
#undef ROUND

/* A run of tokens that attend to each other. */
typedef struct sequence {
    int64_t first_query, first_key, queries, keys;
} sequence;

typedef struct attention {
    lb_frame frame;
    const lb_attention_form *form;
    head h;
    int64_t batch, heads, kv_heads, tokens, kv_tokens; /* tokens: rows of one head */
    bool ragged;
    int64_t sequences;
    const int64_t *query_borders, *key_borders;
    const char *q, *k, *v, *mask;
    int64_t element; /* bytes */
} attention;

static const lb_tensor *tensor_at(const lb_call *call, uint8_t position)
{
    return position ? lb_call_tensor(call, position - 1u) : NULL;
}
static int64_t int_at(const lb_call *call, uint8_t position, int64_t otherwise)
{
    return position ? lb_call_int(call, position - 1u, otherwise) : otherwise;
}

/* The same elements seen as (…, heads, tokens, size). */
static lb_tensor heads_first(const attention *a, const lb_tensor *tensor)
{
    lb_tensor view = *tensor;
    lb_layout *l = &view.layout;
    if (!a->form->tokens_first && !a->ragged) return view;
    int at = l->ndim - 3;
    int64_t shape = l->shape[at], stride = l->stride[at];
    l->shape[at] = l->shape[at + 1], l->stride[at] = l->stride[at + 1];
    l->shape[at + 1] = shape, l->stride[at + 1] = stride;
    return view;
}

/* Dimension `from_end` (1 is the last) of a (…, heads, tokens, size) tensor; heads of a 2- or 3-d one are 1. */
static int64_t size_at(const lb_tensor *t, int from_end)
{
    return t->layout.ndim >= from_end ? t->layout.shape[t->layout.ndim - from_end] : 1;
}

/* The mask as (batch, heads, queries, keys) reals: bools become 0 and -inf. */
static const void *expanded_mask(attention *a, const lb_tensor *mask, const lb_tensor *query)
{
    lb_frame *f = &a->frame;
    lb_tensor wide = *mask;
    int ndim = query->layout.ndim;
    wide.layout.ndim = ndim;
    if (mask->layout.ndim > ndim) {
        lb_frame_fail(f, LB_ERR_INVALID, "a mask of another number of dimensions");
        return NULL;
    }
    for (int d = 0; d < ndim; d++) {
        int own = d - (ndim - mask->layout.ndim);
        int64_t size = own >= 0 ? mask->layout.shape[own] : 1,
                want = d == ndim - 1 ? a->h.keys : query->layout.shape[d];
        if (size != 1 && size != want) lb_frame_fail(f, LB_ERR_INVALID, "a mask of another shape");
        wide.layout.shape[d] = want;
        wide.layout.stride[d] = size == 1 ? 0 : mask->layout.stride[own];
    }
    if (mask->dtype != LB_BOOL || a->form->added_bools) return lb_frame_tensor(f, &wide);
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

/* Which keys a query sees, from causal flag, mask type and window. */
static void read_window(attention *a, const lb_call *call)
{
    const lb_attention_form *form = a->form;
    int64_t type = int_at(call, form->mask_type, 0);
    bool causal = int_at(call, form->causal, 0) != 0 || type != 0;
    a->h.left = int_at(call, form->left, -1), a->h.right = int_at(call, form->right, -1);
    if (a->h.left >= 0 && !form->right) a->h.left--; /* efficient attention counts the query's own key */
    if (causal) a->h.right = 0;
}
static void set_shift(attention *a, const lb_call *call)
{
    bool bottom = a->form->corner == LB_BOTTOM_RIGHT || int_at(call, a->form->mask_type, 0) == 2;
    a->h.shift = bottom ? a->h.keys - a->h.queries : 0;
}

static void read_borders(attention *a, const lb_call *call)
{
    lb_frame *f = &a->frame;
    const lb_tensor *queries = tensor_at(call, a->form->borders),
                    *keys = tensor_at(call, (uint8_t)(a->form->borders + 1));
    a->sequences = 1;
    if (!a->ragged) return;
    a->sequences = queries ? lb_tensor_numel(queries) - 1 : 0;
    a->query_borders = lb_frame_integers(f, queries), a->key_borders = lb_frame_integers(f, keys);
    if (!lb_frame_ok(f)) return;
    bool fits = keys && lb_tensor_numel(keys) == a->sequences + 1 &&
                a->query_borders[a->sequences] <= a->tokens && a->key_borders[a->sequences] <= a->kv_tokens;
    for (int64_t s = 0; fits && s < a->sequences; s++)
        fits = a->query_borders[s] >= 0 && a->query_borders[s] <= a->query_borders[s + 1] &&
               a->key_borders[s] >= 0 && a->key_borders[s] <= a->key_borders[s + 1];
    if (!fits) lb_frame_fail(f, LB_ERR_INVALID, "borders of sequences do not ascend inside the tensors");
}

static bool attention_begin(attention *a, lb_call *call, const lb_attention_form *form)
{
    *a = (attention){.frame = lb_frame_begin(call), .form = form};
    const lb_tensor *q = tensor_at(call, form->query), *k = tensor_at(call, (uint8_t)(form->query + 1));
    const lb_tensor *v = tensor_at(call, (uint8_t)(form->query + 2));
    lb_frame *f = &a->frame;
    a->ragged = tensor_at(call, form->borders) && lb_tensor_numel(tensor_at(call, form->borders)) > 1 &&
                (q->layout.ndim == 3 || form->tokens_first);
    if (form->dropout && lb_call_float(call, form->dropout - 1u, 0) != 0)
        lb_frame_fail(f, LB_ERR_UNSUPPORTED, "dropout inside attention");
    if (form->cap && lb_call_float(call, form->cap - 1u, 0) != 0)
        lb_frame_fail(f, LB_ERR_UNSUPPORTED, "scores that are capped");
    for (int i = 0; i < 4; i++)
        if (form->refused[i] && lb_call_given(call, form->refused[i] - 1u))
            lb_frame_fail(f, LB_ERR_UNSUPPORTED, "slopes, block tables and key lengths are not computed");
    if (q->layout.ndim < 2 || k->layout.ndim != q->layout.ndim || v->layout.ndim != q->layout.ndim)
        lb_frame_fail(f, LB_ERR_UNSUPPORTED, "attention between tensors of different dimensions");
    if (!lb_frame_ok(f)) return false;
    lb_tensor qs = heads_first(a, q), ks = heads_first(a, k), vs = heads_first(a, v);
    a->heads = size_at(&qs, 3), a->kv_heads = size_at(&ks, 3);
    a->tokens = size_at(&qs, 2), a->kv_tokens = size_at(&ks, 2);
    a->batch = 1;
    for (int d = 0; d + 3 < qs.layout.ndim; d++) {
        a->batch *= qs.layout.shape[d];
        if (ks.layout.shape[d] != qs.layout.shape[d] || vs.layout.shape[d] != qs.layout.shape[d])
            lb_frame_fail(f, LB_ERR_UNSUPPORTED, "batches that are broadcast");
    }
    a->h = (head){.type = f->type,
                  .method = call->method,
                  .queries = a->tokens,
                  .keys = a->kv_tokens,
                  .size = size_at(&qs, 1),
                  .values = size_at(&vs, 1),
                  .empty_lse = form->of_cpu         ? 0
                               : form->lse_plus_inf ? INFINITY
                                                    : -INFINITY};
    a->h.scale = 1 / sqrt((double)a->h.size);
    if (form->scale) a->h.scale = lb_call_float(call, form->scale - 1u, a->h.scale);
    if (!f->wide) a->h.scale = (float)a->h.scale;
    bool narrow = lb_dtype_bits(q->dtype) == 16 && lb_dtype_bits(call->results[0].dtype) == 16 && !form->wide;
    a->h.rounds = narrow && !f->wide ? q->dtype : LB_NO_DTYPE;
    if (size_at(&vs, 3) != a->kv_heads || !a->kv_heads || a->heads % a->kv_heads ||
        size_at(&vs, 2) != a->kv_tokens || size_at(&ks, 1) != a->h.size)
        lb_frame_fail(f, LB_ERR_INVALID, "query, key and value do not match");
    read_window(a, call);
    read_borders(a, call);
    a->q = lb_frame_tensor(f, &qs), a->k = lb_frame_tensor(f, &ks), a->v = lb_frame_tensor(f, &vs);
    const lb_tensor *mask = tensor_at(call, form->mask);
    if (mask && lb_tensor_numel(mask) && a->ragged)
        lb_frame_fail(f, LB_ERR_UNSUPPORTED, "a mask over ragged sequences");
    a->mask = mask && lb_frame_ok(f) && lb_tensor_numel(mask) ? expanded_mask(a, mask, &qs) : NULL;
    if (form->of_cpu) a->h.vector = q->dtype == LB_F64 ? 8 : 16; /* AVX-512; with AVX2 it is half as much */
    if (form->of_cpu && q->dtype != LB_F64) a->h.fast_exp = q->dtype;
    a->h.skips_nan = a->h.vector && !a->mask;
    a->element = f->wide ? 8 : 4;
    return lb_frame_ok(f);
}

/* Sequence s of the batch. Sets the sizes of the head to its own. */
static sequence sequence_of(attention *a, int64_t s)
{
    sequence one = {0, 0, a->tokens, a->kv_tokens};
    if (a->ragged)
        one = (sequence){a->query_borders[s], a->key_borders[s], a->query_borders[s + 1] - a->query_borders[s],
                         a->key_borders[s + 1] - a->key_borders[s]};
    a->h.queries = one.queries, a->h.keys = one.keys;
    set_shift(a, a->frame.call);
    return one;
}

/* Head i of batch * heads reads key and value head… */
static int64_t kv_index(const attention *a, int64_t i)
{
    return i / a->heads * a->kv_heads + i % a->heads / (a->heads / a->kv_heads);
}

/* Element offsets of a head's rows in arrays that lie as query (or out) and as key (value). */
static int64_t query_at(const attention *a, const sequence *s, int64_t i, int64_t width)
{
    return (i * a->tokens + s->first_query) * width * a->element;
}
static int64_t key_at(const attention *a, const sequence *s, int64_t i, int64_t width)
{
    return (kv_index(a, i) * a->kv_tokens + s->first_key) * width * a->element;
}
static const void *mask_of(const attention *a, int64_t i)
{
    return a->mask ? a->mask + i * a->h.queries * a->h.keys * a->element : NULL;
}

/* ---- log-sum-exps ----------------------------------------------------------------------------------------------------- */

/* Rows of one head in the log-sum-exps, which may be padded (efficient attention: to 32). */
static int64_t lse_rows(const attention *a, int64_t numel)
{
    if (a->ragged && a->form->ragged_lse_by_head) return a->tokens;
    int64_t heads = a->batch * a->heads * a->sequences;
    return heads ? numel / heads : 0;
}

static int64_t lse_at(const attention *a, const sequence *one, int64_t s, int64_t i, int64_t rows)
{
    if (a->ragged && a->form->ragged_lse_by_head) return (i * rows + one->first_query) * a->element;
    return (s * a->batch * a->heads + i) * rows * a->element;
}

static int64_t longest(const attention *a)
{
    int64_t most = a->ragged ? 0 : a->tokens;
    for (int64_t s = 0; a->ragged && s < a->sequences; s++)
        if (a->query_borders[s + 1] - a->query_borders[s] > most)
            most = a->query_borders[s + 1] - a->query_borders[s];
    return most;
}

/* Result 1, or room for what it would be: not wanted, compute_log_sumexp was false, or it holds something else. */
static void *lse_output(attention *a, int64_t *rows)
{
    const lb_call *call = a->frame.call;
    bool there = call->n_results > 1 && call->results[1].data && !a->form->weights;
    *rows = there ? lse_rows(a, lb_tensor_numel(&call->results[1])) : 0;
    int64_t heads = a->batch * a->heads * (a->ragged && a->form->ragged_lse_by_head ? 1 : a->sequences);
    if (*rows >= longest(a) && heads) return lb_frame_output(&a->frame, 1, heads * *rows);
    *rows = a->ragged && a->form->ragged_lse_by_head ? a->tokens : longest(a);
    return lb_frame_reals(&a->frame, heads * *rows);
}

/* Behind the rows of a padded head lies +inf. */
static void pad(const attention *a, char *lse, int64_t rows)
{
    for (int64_t j = a->h.queries; j < rows && !(a->ragged && a->form->ragged_lse_by_head); j++) {
        if (a->frame.wide)
            ((double *)lse)[j] = INFINITY;
        else
            ((float *)lse)[j] = INFINITY;
    }
}

/* ---- forward ---------------------------------------------------------------------------------------------------------- */

/* For 16-bit inputs torch 2.13 (CPU) takes an exponential with a relative error of 5.4e-5 (measured: exp(0) is 0.9999466), which
 * the rounding of p hides, but not the log-sum-exp: 5.4e-5 / (8 * 2^-24), rounded up. */
#define FAST_EXP 128

/* How far off a score may be whose terms add up to t: an exponential of it is off by the factor exp of that, which matters when t is
 * beyond 1e5. */
static double exponent_error(const attention *a, double t)
{
    const lb_op_row *row = a->frame.call->row;
    double terms = (double)(a->h.keys > a->h.size ? a->h.keys : a->h.size);
    bool f64 = tensor_at(a->frame.call, a->form->query)->dtype == LB_F64;
    return t * (row->roundings + row->roundings_per_term * terms) * (f64 ? 0x1p-53 : 0x1p-24);
}

/* What rounding one p or ds below the normal numbers of its 16 bits adds, as a twin. */
static double underflow(const attention *a)
{
    const lb_tensor *q = tensor_at(a->frame.call, a->form->query);
    if (a->form->wide || lb_dtype_bits(q->dtype) != 16) return 0;
    return 0.5 * lb_dtype_min_subnormal(q->dtype) / (0x1p-24 * a->frame.call->row->roundings);
}

/* t_j = scale sum |q k_j| + |mask| */
static double score_terms(const head *h, const double *q, const double *k, const double *mask, int64_t i,
                          int64_t j)
{
    double t = mask && !isinf(mask[i * h->keys + j]) ? fabs(mask[i * h->keys + j]) : 0;
    for (int64_t d = 0; d < h->size; d++) t += fabs(h->scale * q[i * h->size + d] * k[j * h->size + d]);
    return t;
}

/* With t_j besides |score - max|, y's twin is sum p_j |v_j| (1 + t_j + sum p t), times the roundings of p. `t` holds the keys. */
static void twin_head(const attention *a, const double *q, const double *k, const double *v, const double *mask,
                      double *scores, double *t, double *sum, double *y, double *lse)
{
    const head *h = &a->h;
    double rounding = a->form->wide ? 1 : lb_twin_scale(a->frame.call, a->form->query - 1u),
           least = underflow(a);
    if (!head_scores_f64(h, q, k, mask, scores)) return;
    for (int64_t i = 0; i < h->queries; i++) {
        double *row = scores + i * h->keys, top = -INFINITY, most = 0, total = 0, weighted = 0;
        for (int64_t j = 0; j < h->keys; j++) top = row[j] > top ? row[j] : top;
        memset(y + i * h->values, 0, (size_t)h->values * sizeof *y);
        for (int64_t j = 0; j < h->keys; j++) {
            t[j] = row[j] == -INFINITY ? 0 : score_terms(h, q, k, mask, i, j);
            if (row[j] == top) most = t[j];
            total += row[j] == -INFINITY ? 0 : exp(row[j] - top);
        }
        for (int64_t j = 0; j < h->keys; j++) { /* rows become p */
            if (row[j] == -INFINITY) {
                row[j] = 0;
                continue;
            }
            double p = exp(row[j] - top + exponent_error(a, t[j] + most)) / total;
            t[j] += fabs(row[j] - top);
            row[j] = p > 1 ? 1 : p;
            weighted += row[j] * t[j];
        }
        for (int64_t j = 0; j < h->keys; j++) {
            const double p = row[j];
            for (int64_t d = 0; p != 0 && d < h->values; d++)
                y[i * h->values + d] += fabs(v[j * h->values + d]) * (p * (rounding + t[j] + weighted) + least);
            if (a->form->weights) row[j] = p * (1 + t[j] + weighted);
        }
        lse[i] =
            isinf(top) ? 0 : fabs(top) + fabs(log(total)) + 1 + weighted + most + (rounding > 1 ? FAST_EXP : 0);
        sum[i] = 1;
    }
}

/* Result 1 of the math form: exponentials over their sums. */
static void keep_weights(const attention *a, const void *scores, const void *sum, void *weights, int64_t i)
{
    const head *h = &a->h;
    for (int64_t r = 0; weights && r < h->queries; r++)
        for (int64_t j = 0; j < h->keys; j++) {
            int64_t from = r * h->keys + j, to = i * h->queries * h->keys + from;
            if (a->frame.wide)
                ((double *)weights)[to] = ((const double *)scores)[from] / ((const double *)sum)[r];
            else
                ((float *)weights)[to] = ((const float *)scores)[from] / ((const float *)sum)[r];
        }
}

static bool head_forward(const attention *a, const char *q, const char *k, const char *v, const void *mask,
                         void *scores, void *sum, char *y, char *lse)
{
    const head *h = &a->h;
    const int64_t step = has_blocks(h, mask) && !a->form->weights ? query_block(h) : h->queries, e = a->element;
    bool done = true;
    for (int64_t m = 0; done && m < h->queries; m += step) {
        const head block = step < h->queries ? block_from(h, m) : *h;
        const char *rows = q + m * h->size * e;
        char *out = y + m * h->values * e, *log_sum = lse + m * e;
        done = a->frame.wide
                   ? head_forward_f64(&block, (const double *)rows, (const double *)k, (const double *)v, mask,
                                      scores, sum, (double *)out, (double *)log_sum)
                   : head_forward_f32(&block, (const float *)rows, (const float *)k, (const float *)v, mask,
                                      scores, sum, (float *)out, (float *)log_sum);
    }
    return done;
}

lb_status lb_attention_forward(lb_call *call, const lb_attention_form *form, bool twin)
{
    attention a;
    if (!attention_begin(&a, call, form)) return lb_frame_end(&a.frame);
    lb_frame *f = &a.frame;
    int64_t heads = a.batch * a.heads, rows, values = a.h.values, square = a.tokens * a.kv_tokens;
    lb_tensor result = heads_first(&a, &call->results[0]);
    char *y = lb_frame_output_view(f, &result, heads * a.tokens * values), *lse = lse_output(&a, &rows);
    char *scores = lb_frame_reals(f, square), *sum = lb_frame_reals(f, a.tokens);
    double *terms = twin ? lb_frame_scratch(f, (size_t)a.kv_tokens * sizeof *terms) : NULL;
    bool keep = form->weights && call->n_results > 1 && call->results[1].data;
    void *weights = keep ? lb_frame_output(f, 1, heads * square) : NULL;
    if (lb_frame_ok(f) && a.ragged) memset(y, 0, (size_t)(heads * a.tokens * values * a.element));
    if (lb_frame_ok(f) && a.ragged && form->ragged_lse_by_head)
        memset(lse, 0, (size_t)(heads * rows * a.element));
    for (int64_t s = 0; s < a.sequences; s++) {
        const sequence one = sequence_of(&a, s);
        for (int64_t i = 0; lb_frame_ok(f) && i < heads; i++) {
            const void *q = a.q + query_at(&a, &one, i, a.h.size), *k = a.k + key_at(&a, &one, i, a.h.size);
            const void *v = a.v + key_at(&a, &one, i, values);
            void *out = y + query_at(&a, &one, i, values);
            char *log_sum = lse + lse_at(&a, &one, s, i, rows);
            bool done = true;
            if (twin)
                twin_head(&a, q, k, v, mask_of(&a, i), (double *)scores, terms, (double *)sum, out,
                          (double *)log_sum);
            else
                done = head_forward(&a, q, k, v, mask_of(&a, i), scores, sum, out, log_sum);
            if (!done) lb_frame_fail(f, LB_ERR_NOMEM, "no memory for a product");
            keep_weights(&a, scores, sum, weights, i);
            pad(&a, log_sum, rows);
        }
    }
    return lb_frame_end(f);
}

/* ---- backward --------------------------------------------------------------------------------------------------------- */

typedef struct gradients {
    const void *dy, *y, *lse;
    void *p, *ds, *part, *dq, *dk, *dv;
} gradients;

/* With t as in twin_head, |score - lse| for |score - max|, `most` that of the largest, from which lse comes: |ds| is p (sum |dy v| +
 * sum |dy y|) (r + t) where r is the growth by 16-bit roundings, and dv's weights are p (r + t). */
#define VACUOUS 1e150
static void twin_head_backward(const attention *a, const gradients *g, const double *q, const double *k,
                               const double *v, const double *mask)
{
    const head *h = &a->h;
    const double *dy = g->dy, *y = g->y, *lse = g->lse;
    double *p = g->p, *ds = g->ds, *dq = g->dq, *dk = g->dk, *dv = g->dv;
    double rounding = lb_twin_scale(a->frame.call, a->form->query - 1u), scale = fabs(h->scale),
           least = underflow(a);
    if (!head_scores_f64(h, q, k, mask, p)) return;
    memset(dq, 0, (size_t)(h->queries * h->size) * sizeof *dq);
    /* The gradients hold 16 bits too while blocks and heads are added to them. */
    const double parts = (double)(h->queries / query_block(h) + 1),
                 key_parts = (double)(h->keys / KEY_BLOCK + 1);
    for (int64_t j = 0; j < h->keys * h->values; j++) dv[j] += least * parts;
    for (int64_t j = 0; j < h->keys * h->size; j++) dk[j] += least * parts;
    for (int64_t j = 0; j < h->queries * h->size; j++) dq[j] += least * key_parts;
    for (int64_t i = 0; i < h->queries; i++) {
        double delta = 0, top = -INFINITY, most = 0;
        for (int64_t j = 0; j < h->keys; j++)
            if (p[i * h->keys + j] > top) top = p[i * h->keys + j], most = score_terms(h, q, k, mask, i, j);
        for (int64_t d = 0; d < h->values; d++) delta += fabs(dy[i * h->values + d] * y[i * h->values + d]);
        for (int64_t j = 0; j < h->keys; j++) {
            double s = p[i * h->keys + j], dp = delta;
            ds[i * h->keys + j] = 0;
            if (s == -INFINITY || isinf(lse[i])) continue;
            double t = score_terms(h, q, k, mask, i, j), error = exponent_error(a, t + most);
            for (int64_t d = 0; d < h->values; d++) dp += fabs(dy[i * h->values + d] * v[j * h->values + d]);
            double weight = exp(s - lse[i] + error) * (rounding + t + fabs(s - lse[i]));
            const double vacuous = weight > VACUOUS; /* infinity, which times a 0 is NaN */
            if (vacuous) weight = VACUOUS, dp += 1;
            ds[i * h->keys + j] = weight * dp;
            for (int64_t d = 0; d < h->values; d++)
                dv[j * h->values + d] += (weight + least) * (fabs(dy[i * h->values + d]) + vacuous);
            for (int64_t d = 0; d < h->size; d++) {
                dq[i * h->size + d] += (weight * dp + least) * scale * (fabs(k[j * h->size + d]) + vacuous);
                dk[j * h->size + d] += (weight * dp + least) * scale * (fabs(q[i * h->size + d]) + vacuous);
            }
        }
    }
}

static bool head_backward(const attention *a, const gradients *g, const void *q, const void *k, const void *v,
                          const void *mask, bool twin)
{
    if (twin) {
        twin_head_backward(a, g, q, k, v, mask);
        return true;
    }
    const head *h = &a->h;
    const int64_t step = has_blocks(h, mask) ? query_block(h) : h->queries, e = a->element;
    bool done = true;
    for (int64_t m = 0; done && m < h->queries; m += step) {
        const head block = step < h->queries ? block_from(h, m) : *h;
        const void *dy = (const char *)g->dy + m * h->values * e, *y = (const char *)g->y + m * h->values * e;
        const void *rows = (const char *)q + m * h->size * e, *lse = (const char *)g->lse + m * e;
        void *dq = (char *)g->dq + m * h->size * e;
        done = a->frame.wide ? head_backward_f64(&block, dy, rows, k, v, y, lse, mask, g->p, g->ds, g->part, dq,
                                                 g->dk, g->dv)
                             : head_backward_f32(&block, dy, rows, k, v, y, lse, mask, g->p, g->ds, g->part, dq,
                                                 g->dk, g->dv);
    }
    return done;
}

static const char *input_heads_first(attention *a, const lb_tensor *tensor)
{
    if (!tensor || !lb_frame_ok(&a->frame)) return NULL;
    lb_tensor view = heads_first(a, tensor);
    return lb_frame_tensor(&a->frame, &view);
}

/* A gradient as heads first. `view` holds it until the frame ends. */
static char *gradient_output(attention *a, uint32_t r, int64_t elements, lb_tensor *view)
{
    const lb_call *call = a->frame.call;
    *view = (lb_tensor){0};
    if (r < call->n_results && call->results[r].data) *view = heads_first(a, &call->results[r]);
    char *g = lb_frame_output_view(&a->frame, view, elements);
    if (lb_frame_ok(&a->frame)) memset(g, 0, (size_t)(elements * a->element));
    return g;
}

lb_status lb_attention_backward(lb_call *call, const lb_attention_form *form, bool twin)
{
    attention a;
    if (!attention_begin(&a, call, form)) return lb_frame_end(&a.frame);
    lb_frame *f = &a.frame;
    const lb_tensor *lse_tensor = tensor_at(call, form->lse);
    int64_t heads = a.batch * a.heads, kv_heads = a.batch * a.kv_heads, square = a.tokens * a.kv_tokens;
    int64_t width = a.h.size > a.h.values ? a.h.size : a.h.values,
            rows = lse_rows(&a, lb_tensor_numel(lse_tensor));
    if (rows < longest(&a)) lb_frame_fail(f, LB_ERR_INVALID, "log-sum-exps of another shape");
    const char *dy = input_heads_first(&a, lb_call_tensor(call, 0)),
               *y = input_heads_first(&a, tensor_at(call, form->out));
    const char *lse = lb_frame_tensor(f, lse_tensor);
    lb_tensor views[3];
    char *dq = gradient_output(&a, form->first, heads * a.tokens * a.h.size, &views[0]);
    char *dk = gradient_output(&a, form->first + 1u, kv_heads * a.kv_tokens * a.h.size, &views[1]);
    char *dv = gradient_output(&a, form->first + 2u, kv_heads * a.kv_tokens * a.h.values, &views[2]);
    bool biased = !form->first && call->n_results > 3 && call->results[3].data && lb_tensor_numel(&call->results[3]);
    char *p = lb_frame_reals(f, square), *part = lb_frame_reals(f, a.kv_tokens * width);
    char *bias = biased ? lb_frame_output(f, 3, heads * square) : NULL,
         *ds = biased ? bias : lb_frame_reals(f, square);
    for (int64_t s = 0; s < a.sequences; s++) {
        const sequence one = sequence_of(&a, s);
        for (int64_t i = 0; lb_frame_ok(f) && i < heads; i++) {
            gradients g = {dy + query_at(&a, &one, i, a.h.values),    y + query_at(&a, &one, i, a.h.values),
                           lse + lse_at(&a, &one, s, i, rows),        p,
                           biased ? ds + i * square * a.element : ds, part,
                           dq + query_at(&a, &one, i, a.h.size),      dk + key_at(&a, &one, i, a.h.size),
                           dv + key_at(&a, &one, i, a.h.values)};
            if (!head_backward(&a, &g, a.q + query_at(&a, &one, i, a.h.size),
                               a.k + key_at(&a, &one, i, a.h.size), a.v + key_at(&a, &one, i, a.h.values),
                               mask_of(&a, i), twin))
                lb_frame_fail(f, LB_ERR_NOMEM, "no memory for a product");
        }
    }
    return lb_frame_end(f);
}
