/* Attention by heads; see attention.h. fma chains for the products, exponentials of score - row maximum, one division
 * at the end. For 16-bit inputs the exponentials are rounded to that dtype before they meet v, and so are the gradients
 * of the scores, as in torch's fused kernels. */
#include "sequence/attention.h"

#include "sequence/attention_call.h"
#include "functions/elementary.h"
#include "kernel/product.h"
#include "orders/schedule.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* ---- what a query sees ------------------------------------------------------------------------------------------- */

static int64_t first_key(const lb_attention_head *head, int64_t i)
{
    int64_t first = head->left < 0 ? 0 : i + head->shift - head->left;
    return first < 0 ? 0 : first > head->keys ? head->keys : first;
}
static int64_t last_key(const lb_attention_head *head, int64_t i)
{
    int64_t last = head->right < 0 ? head->keys - 1 : i + head->shift + head->right;
    return last < -1 ? -1 : last >= head->keys ? head->keys - 1 : last;
}
/* One past the last key, and never before the first: the keys seen are [first_key, end_key). */
static int64_t end_key(const lb_attention_head *head, int64_t i)
{
    const int64_t first = first_key(head, i), end = last_key(head, i) + 1;
    return end < first ? first : end;
}

/* Fused kernels take queries by blocks and leave out blocks of keys that a causal block sees nothing of. What is left
 * out counts only where values are not finite: 0 times them is NaN. Sizes as in torch's for the CPU. */
enum { KEY_BLOCK = 512 };
static int64_t query_block(const lb_attention_head *head)
{
    return head->queries >= 768 ? 256 : head->queries >= 192 ? 64 : 32;
}
static bool has_blocks(const lb_attention_head *head, const void *mask)
{
    return !mask && head->right >= 0 && head->keys > KEY_BLOCK;
}
static lb_attention_head block_from(const lb_attention_head *head, int64_t first)
{
    lb_attention_head block = *head;
    const int64_t size = query_block(head), left = head->queries - first;
    block.queries = left < size ? left : size;
    block.shift = head->shift + first;
    int64_t keys = (last_key(head, first + block.queries - 1) + KEY_BLOCK) / KEY_BLOCK * KEY_BLOCK;
    if (keys < KEY_BLOCK) keys = KEY_BLOCK;
    block.keys = keys < head->keys ? keys : head->keys;
    return block;
}

/* What one head reads, and where it writes and computes: `scores`, `p` and `ds` have room for queries * keys, `terms`
 * for the keys in f64, `part` for the larger of dk and dv. */
typedef struct head_inputs {
    const void *q, *k, *v, *mask;
} head_inputs;
typedef struct head_outputs {
    void *scores, *terms, *sum, *y, *lse;
} head_outputs;

typedef struct gradients {
    const void *dy, *y, *lse;
    void *p, *ds, *part, *dq, *dk, *dv;
} gradients;

#define REAL_TEMPLATE "sequence/attention_real.h"
#include "functions/real_template.h"

/* ---- threads over heads ------------------------------------------------------------------------------------------ */

enum { MOST_SCORE_BYTES = 16 << 20, LEAST_SCORES = 1024 };

/* How many threads take heads, of which `groups` may run at one time. Scores too large to be held once per thread are
 * left to the threads of each product; few are no work for two. */
static int64_t workers_of(const lb_attention_call *attention, int64_t square, int64_t groups)
{
    const bool alone =
        omp_in_parallel() || square * attention->element > MOST_SCORE_BYTES || groups * square < LEAST_SCORES;
    const int64_t threads = alone ? 1 : omp_get_max_threads();
    return threads < groups ? threads : groups < 1 ? 1 : groups;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* For 16-bit inputs torch 2.13 (CPU) takes an exponential with a relative error of 5.4e-5 (measured: exp(0) is
 * 0.9999466), which the rounding of p hides, but not the log-sum-exp: 5.4e-5 / (8 * 2^-24), rounded up. */
#define FAST_EXP 128

/* How far off a score may be whose terms add up to t: an exponential of it is off by the factor exp of that, which
 * matters when t is beyond 1e5. */
static double exponent_error(const lb_attention_call *attention, double t)
{
    const lb_op_row *row = attention->frame.call->row;
    double terms = (double)(attention->h.keys > attention->h.size ? attention->h.keys : attention->h.size);
    bool f64 = lb_attention_tensor(attention->frame.call, attention->form->query)->dtype == LB_F64;
    return t * (row->roundings + row->roundings_per_term * terms) * (f64 ? 0x1p-53 : 0x1p-24);
}

/* What rounding one p or ds below the normal numbers of its 16 bits adds, as a twin. */
static double underflow(const lb_attention_call *attention)
{
    const lb_tensor *q = lb_attention_tensor(attention->frame.call, attention->form->query);
    if (attention->form->wide || lb_dtype_bits(q->dtype) != 16) return 0;
    return 0.5 * lb_dtype_min_subnormal(q->dtype) / (0x1p-24 * attention->frame.call->row->roundings);
}

/* t_j = scale sum |q k_j| + |mask| */
static double score_terms(const lb_attention_head *head, const double *q, const double *k, const double *mask,
                          int64_t i, int64_t j)
{
    double t = mask && !isinf(mask[i * head->keys + j]) ? fabs(mask[i * head->keys + j]) : 0;
    for (int64_t d = 0; d < head->size; d++) t += fabs(head->scale * q[i * head->size + d] * k[j * head->size + d]);
    return t;
}

/* Of exp(inf - inf) torch's CPU kernels make 0, inf or NaN, as the processor's vectors have it: of a row that sees +inf
 * nothing is said. */
static void leave_row_open(const lb_attention_head *head, double *y, double *lse)
{
    for (int64_t d = 0; d < head->values; d++) y[d] = 0x1p128;
    *lse = 0x1p128;
}

/* With t_j besides |score - max|, y's twin is sum p_j |v_j| (1 + t_j + sum p t), times the roundings of p. */
static void twin_head(const lb_attention_call *attention, const head_inputs *in, const head_outputs *out)
{
    const lb_attention_head *head = &attention->h;
    const double *q = in->q, *k = in->k, *v = in->v, *mask = in->mask;
    double *scores = out->scores, *t = out->terms, *sum = out->sum, *y = out->y, *lse = out->lse;
    double rounding =
               attention->form->wide ? 1 : lb_frame_twin_scale(attention->frame.call, attention->form->query - 1u),
           least = underflow(attention);
    if (!head_scores_f64(head, q, k, mask, scores)) return;
    for (int64_t i = 0; i < head->queries; i++) {
        double *row = scores + i * head->keys, top = -INFINITY, most = 0, total = 0, weighted = 0;
        for (int64_t j = 0; j < head->keys; j++) top = row[j] > top ? row[j] : top;
        memset(y + i * head->values, 0, (size_t)head->values * sizeof *y);
        for (int64_t j = 0; j < head->keys; j++) {
            t[j] = row[j] == -INFINITY ? 0 : score_terms(head, q, k, mask, i, j);
            if (row[j] == top) most = t[j];
            total += row[j] == -INFINITY ? 0 : exp(row[j] - top);
        }
        for (int64_t j = 0; j < head->keys; j++) { /* rows become p */
            if (row[j] == -INFINITY) {
                row[j] = 0;
                continue;
            }
            double p = exp(row[j] - top + exponent_error(attention, t[j] + most)) / total;
            t[j] += fabs(row[j] - top);
            row[j] = p > 1 ? 1 : p;
            weighted += row[j] * t[j];
        }
        for (int64_t j = 0; j < head->keys; j++) {
            const double p = row[j];
            for (int64_t d = 0; p != 0 && d < head->values; d++)
                y[i * head->values + d] += fabs(v[j * head->values + d]) * (p * (rounding + t[j] + weighted) + least);
            if (attention->form->weights) row[j] = p * (1 + t[j] + weighted);
        }
        lse[i] = isinf(top) ? 0 : fabs(top) + fabs(log(total)) + 1 + weighted + most + (rounding > 1 ? FAST_EXP : 0);
        if (top == INFINITY && head->fast_exp) leave_row_open(head, y + i * head->values, &lse[i]);
        sum[i] = 1;
    }
}

/* Result 1 of the math form: exponentials over their sums. */
static void keep_weights(const lb_attention_call *attention, const void *scores, const void *sum, void *weights,
                         int64_t i)
{
    const lb_attention_head *head = &attention->h;
    for (int64_t r = 0; weights && r < head->queries; r++)
        for (int64_t j = 0; j < head->keys; j++) {
            int64_t from = r * head->keys + j, to = i * head->queries * head->keys + from;
            if (attention->frame.wide)
                ((double *)weights)[to] = ((const double *)scores)[from] / ((const double *)sum)[r];
            else
                ((float *)weights)[to] = ((const float *)scores)[from] / ((const float *)sum)[r];
        }
}

static bool head_forward(const lb_attention_call *attention, const head_inputs *in, const head_outputs *out)
{
    const lb_attention_head *head = &attention->h;
    const int64_t step = has_blocks(head, in->mask) && !attention->form->weights ? query_block(head) : head->queries,
                  e = attention->element;
    bool done = true;
    for (int64_t m = 0; done && m < head->queries; m += step) {
        const lb_attention_head block = step < head->queries ? block_from(head, m) : *head;
        head_inputs rows = *in;
        head_outputs part = *out;
        rows.q = (const char *)in->q + m * head->size * e;
        part.y = (char *)out->y + m * head->values * e, part.lse = (char *)out->lse + m * e;
        done = attention->frame.wide ? head_forward_f64(&block, &rows, &part) : head_forward_f32(&block, &rows, &part);
    }
    return done;
}

/* Where the results of a forward call go, and what every thread computes in. */
typedef struct forward {
    char *y, *lse, *scores, *sum;
    double *terms;
    void *weights;
    int64_t rows, square;
    bool twin;
} forward;

static bool run_forward(const lb_attention_call *attention, const forward *forward, const lb_attention_sequence *one,
                        int64_t s, int64_t i)
{
    const int64_t values = attention->h.values, worker = omp_get_thread_num();
    const head_inputs in = {.q = attention->q + lb_attention_query_at(attention, one, i, attention->h.size),
                            .k = attention->k + lb_attention_key_at(attention, one, i, attention->h.size),
                            .v = attention->v + lb_attention_key_at(attention, one, i, values),
                            .mask = lb_attention_mask_of(attention, i)};
    const head_outputs out = {.scores = forward->scores + worker * forward->square * attention->element,
                              .terms = forward->twin ? forward->terms + worker * attention->kv_tokens : NULL,
                              .sum = forward->sum + worker * attention->tokens * attention->element,
                              .y = forward->y + lb_attention_query_at(attention, one, i, values),
                              .lse = forward->lse + lb_attention_lse_at(attention, one, s, i, forward->rows)};
    bool done = true;
    if (forward->twin)
        twin_head(attention, &in, &out);
    else
        done = head_forward(attention, &in, &out);
    keep_weights(attention, out.scores, out.sum, forward->weights, i);
    lb_attention_pad_lse(attention, out.lse, forward->rows);
    return done;
}

lb_status lb_attention_forward(lb_call *call, const lb_attention_form *form, bool twin)
{
    lb_attention_call attention;
    if (!lb_attention_begin(&attention, call, form)) return lb_frame_end(&attention.frame);
    lb_frame *frame = &attention.frame;
    int64_t heads = attention.batch * attention.heads, values = attention.h.values;
    forward forward = {.square = attention.tokens * attention.kv_tokens, .twin = twin};
    const int64_t workers = workers_of(&attention, forward.square, heads);
    lb_tensor result = lb_attention_heads_first(&attention, &call->results[0]);
    forward.y = lb_frame_output_view(frame, &result, heads * attention.tokens * values);
    forward.lse = lb_attention_lse_output(&attention, &forward.rows);
    forward.scores = lb_frame_reals(frame, workers * forward.square),
    forward.sum = lb_frame_reals(frame, workers * attention.tokens);
    if (twin) forward.terms = lb_frame_scratch(frame, (size_t)(workers * attention.kv_tokens) * sizeof *forward.terms);
    if (form->weights && call->n_results > 1 && call->results[1].data)
        forward.weights = lb_frame_output(frame, 1, heads * forward.square);
    if (lb_frame_ok(frame) && attention.ragged)
        memset(forward.y, 0, (size_t)(heads * attention.tokens * values * attention.element));
    if (lb_frame_ok(frame) && attention.ragged && form->ragged_lse_by_head)
        memset(forward.lse, 0, (size_t)(heads * forward.rows * attention.element));
    for (int64_t s = 0; s < attention.sequences && lb_frame_ok(frame); s++) {
        const lb_attention_sequence one = lb_attention_sequence_of(&attention, s);
        bool failed = false;
#pragma omp parallel for num_threads((int)workers) if (workers > 1) schedule(static) reduction(|| : failed)
        for (int64_t i = 0; i < heads; i++) failed = failed || !run_forward(&attention, &forward, &one, s, i);
        if (failed) lb_frame_fail(frame, LB_ERR_NOMEM, "no memory for a product");
    }
    return lb_frame_end(frame);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* With t as in twin_head, |score - lse| for |score - max|, `most` that of the largest, from which lse comes: |ds| is p
 * (sum |dy v| + sum |dy y|) (r + t) where r is the growth by 16-bit roundings, and dv's weights are p (r + t). */
#define VACUOUS 1e150
static void twin_head_backward(const lb_attention_call *attention, const gradients *gradients, const head_inputs *in)
{
    const lb_attention_head *head = &attention->h;
    const double *q = in->q, *k = in->k, *v = in->v, *mask = in->mask;
    const double *dy = gradients->dy, *y = gradients->y, *lse = gradients->lse;
    double *p = gradients->p, *ds = gradients->ds, *dq = gradients->dq, *dk = gradients->dk, *dv = gradients->dv;
    double rounding = lb_frame_twin_scale(attention->frame.call, attention->form->query - 1u),
           scale = fabs(head->scale), least = underflow(attention);
    if (!head_scores_f64(head, q, k, mask, p)) return;
    memset(dq, 0, (size_t)(head->queries * head->size) * sizeof *dq);
    /* The gradients hold 16 bits too while blocks and heads are added to them. */
    const double parts = (double)(head->queries / query_block(head) + 1),
                 key_parts = (double)(head->keys / KEY_BLOCK + 1);
    for (int64_t j = 0; j < head->keys * head->values; j++) dv[j] += least * parts;
    for (int64_t j = 0; j < head->keys * head->size; j++) dk[j] += least * parts;
    for (int64_t j = 0; j < head->queries * head->size; j++) dq[j] += least * key_parts;
    for (int64_t i = 0; i < head->queries; i++) {
        double delta = 0, top = -INFINITY, most = 0;
        for (int64_t j = 0; j < head->keys; j++)
            if (p[i * head->keys + j] > top) top = p[i * head->keys + j], most = score_terms(head, q, k, mask, i, j);
        for (int64_t d = 0; d < head->values; d++) delta += fabs(dy[i * head->values + d] * y[i * head->values + d]);
        for (int64_t j = 0; j < head->keys; j++) {
            double s = p[i * head->keys + j], dp = delta;
            ds[i * head->keys + j] = 0;
            if (s == -INFINITY || isinf(lse[i])) continue;
            double t = score_terms(head, q, k, mask, i, j), error = exponent_error(attention, t + most);
            for (int64_t d = 0; d < head->values; d++) dp += fabs(dy[i * head->values + d] * v[j * head->values + d]);
            double weight = exp(s - lse[i] + error) * (rounding + t + fabs(s - lse[i]));
            const double vacuous = weight > VACUOUS; /* infinity, which times a 0 is NaN */
            if (vacuous) weight = VACUOUS, dp += 1;
            ds[i * head->keys + j] = weight * dp;
            for (int64_t d = 0; d < head->values; d++)
                dv[j * head->values + d] += (weight + least) * (fabs(dy[i * head->values + d]) + vacuous);
            for (int64_t d = 0; d < head->size; d++) {
                dq[i * head->size + d] += (weight * dp + least) * scale * (fabs(k[j * head->size + d]) + vacuous);
                dk[j * head->size + d] += (weight * dp + least) * scale * (fabs(q[i * head->size + d]) + vacuous);
            }
        }
    }
}

static bool head_backward(const lb_attention_call *attention, const gradients *g, const head_inputs *in, bool twin)
{
    if (twin) {
        twin_head_backward(attention, g, in);
        return true;
    }
    const lb_attention_head *head = &attention->h;
    const int64_t step = has_blocks(head, in->mask) ? query_block(head) : head->queries, e = attention->element;
    bool done = true;
    for (int64_t m = 0; done && m < head->queries; m += step) {
        const lb_attention_head block = step < head->queries ? block_from(head, m) : *head;
        head_inputs rows = *in;
        gradients part = *g;
        rows.q = (const char *)in->q + m * head->size * e, part.dq = (char *)g->dq + m * head->size * e;
        part.dy = (const char *)g->dy + m * head->values * e, part.y = (const char *)g->y + m * head->values * e;
        part.lse = (const char *)g->lse + m * e;
        done =
            attention->frame.wide ? head_backward_f64(&block, &part, &rows) : head_backward_f32(&block, &part, &rows);
    }
    return done;
}

static const char *input_heads_first(lb_attention_call *attention, const lb_tensor *tensor)
{
    if (!tensor || !lb_frame_ok(&attention->frame)) return NULL;
    lb_tensor view = lb_attention_heads_first(attention, tensor);
    return lb_frame_tensor(&attention->frame, &view);
}

/* A gradient as heads first. `view` holds it until the frame ends. */
static char *gradient_output(lb_attention_call *attention, uint32_t r, int64_t elements, lb_tensor *view)
{
    const lb_call *call = attention->frame.call;
    *view = (lb_tensor){0};
    if (r < call->n_results && call->results[r].data) *view = lb_attention_heads_first(attention, &call->results[r]);
    char *g = lb_frame_output_view(&attention->frame, view, elements);
    if (lb_frame_ok(&attention->frame)) memset(g, 0, (size_t)(elements * attention->element));
    return g;
}

/* What a backward call reads and writes, heads first, and what every thread computes in. */
typedef struct backward {
    const char *dy, *y, *lse;
    char *dq, *dk, *dv, *p, *ds, *part;
    int64_t square, part_size, rows;
    bool biased, twin;
} backward;

static bool run_backward(const lb_attention_call *attention, const backward *backward, const lb_attention_sequence *one,
                         int64_t s, int64_t i)
{
    const int64_t worker = omp_get_thread_num(), e = attention->element, size = attention->h.size,
                  values = attention->h.values;
    const int64_t of_q = lb_attention_query_at(attention, one, i, size),
                  of_k = lb_attention_key_at(attention, one, i, size);
    const int64_t of_y = lb_attention_query_at(attention, one, i, values),
                  of_v = lb_attention_key_at(attention, one, i, values);
    const gradients gradients = {backward->dy + of_y,
                                 backward->y + of_y,
                                 backward->lse + lb_attention_lse_at(attention, one, s, i, backward->rows),
                                 backward->p + worker * backward->square * e,
                                 backward->ds + (backward->biased ? i : worker) * backward->square * e,
                                 backward->part + worker * backward->part_size * e,
                                 backward->dq + of_q,
                                 backward->dk + of_k,
                                 backward->dv + of_v};
    const head_inputs in = {attention->q + of_q, attention->k + of_k, attention->v + of_v,
                            lb_attention_mask_of(attention, i)};
    return head_backward(attention, &gradients, &in, backward->twin);
}

lb_status lb_attention_backward(lb_call *call, const lb_attention_form *form, bool twin)
{
    lb_attention_call attention;
    if (!lb_attention_begin(&attention, call, form)) return lb_frame_end(&attention.frame);
    lb_frame *frame = &attention.frame;
    const lb_tensor *lse_tensor = lb_attention_tensor(call, form->lse);
    int64_t heads = attention.batch * attention.heads, kv_heads = attention.batch * attention.kv_heads,
            square = attention.tokens * attention.kv_tokens;
    int64_t width = attention.h.size > attention.h.values ? attention.h.size : attention.h.values,
            rows = lb_attention_lse_rows(&attention, lb_tensor_numel(lse_tensor));
    const lb_tensor *of_out = lb_frame_arg_tensor(call, 0), *out = lb_attention_tensor(call, form->out);
    if (rows < lb_attention_longest(&attention) ||
        (attention.ragged && form->ragged_lse_by_head && lb_tensor_numel(lse_tensor) != heads * rows))
        lb_frame_fail(frame, LB_ERR_INVALID, "log-sum-exps of another shape");
    if (lb_tensor_numel(of_out) != heads * attention.tokens * attention.h.values ||
        lb_tensor_numel(out) != heads * attention.tokens * attention.h.values)
        lb_frame_fail(frame, LB_ERR_INVALID, "a result, or its gradient, of another shape");
    const char *dy = input_heads_first(&attention, of_out), *y = input_heads_first(&attention, out);
    const char *lse = lb_frame_tensor(frame, lse_tensor);
    lb_tensor views[3];
    char *dq = gradient_output(&attention, form->first, heads * attention.tokens * attention.h.size, &views[0]);
    char *dk =
        gradient_output(&attention, form->first + 1u, kv_heads * attention.kv_tokens * attention.h.size, &views[1]);
    char *dv =
        gradient_output(&attention, form->first + 2u, kv_heads * attention.kv_tokens * attention.h.values, &views[2]);
    bool biased = !form->first && call->n_results > 3 && call->results[3].data && lb_tensor_numel(&call->results[3]);
    const int64_t workers = workers_of(&attention, square, kv_heads), group = attention.heads / attention.kv_heads;
    backward backward = {
        .dy = dy, .y = y, .lse = lse, .dq = dq, .dk = dk, .dv = dv, .square = square, .rows = rows, .twin = twin};
    backward.part_size = attention.kv_tokens * width, backward.biased = biased;
    backward.p = lb_frame_reals(frame, workers * square),
    backward.part = lb_frame_reals(frame, workers * backward.part_size);
    backward.ds = biased ? lb_frame_output(frame, 3, heads * square) : lb_frame_reals(frame, workers * square);
    for (int64_t s = 0; s < attention.sequences && lb_frame_ok(frame); s++) {
        const lb_attention_sequence one = lb_attention_sequence_of(&attention, s);
        bool failed = false;
        /* Heads that share keys and values add to the same gradients, one after the other. */
#pragma omp parallel for num_threads((int)workers) if (workers > 1) schedule(static) reduction(|| : failed)
        for (int64_t first = 0; first < heads; first += group)
            for (int64_t i = first; i < first + group; i++)
                failed = failed || !run_backward(&attention, &backward, &one, s, i);
        if (failed) lb_frame_fail(frame, LB_ERR_NOMEM, "no memory for a product");
    }
    return lb_frame_end(frame);
}
