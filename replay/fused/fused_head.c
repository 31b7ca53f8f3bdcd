/* One head of fused attention: see fused_head.h, and fused_attention.c for what the forms are. */
#include "fused/fused_head.h"

#include "functions/elementary.h"
#include "functions/real_bits.h"

#include <math.h>
#include <string.h>

/* ---- scores ------------------------------------------------------------------------------------------------------ */

static const double *mask_row(const lb_fused_heads *heads, int64_t head, int64_t i)
{
    return heads->mask ? heads->mask + (head * heads->queries + i) * heads->keys : NULL;
}

/* A matrix whose rows, or whose columns, lie `step` apart. */
static lb_matrix by_rows(const float *x, int64_t step)
{
    return (lb_matrix){x, LB_F32, step, 1};
}
static lb_matrix by_columns(const float *x, int64_t step)
{
    return (lb_matrix){x, LB_F32, 1, step};
}

static bool product(lb_fused_heads *heads, lb_product shape, lb_matrix a, lb_matrix b, float *c)
{
    const lb_matrix_pair operands = {.a = a, .b = b};
    if (lb_product_matrices(&shape, LB_F32, &heads->method, &operands, c) == LB_OK) return true;
    lb_frame_fail(&heads->frame, LB_ERR_UNSUPPORTED, "this order of the products");
    return false;
}

/* s (queries, count) = scores of keys first … first + count - 1, masked. Keys lie (keys, size), or (size, keys). */
static bool scores(lb_fused_heads *heads, int64_t head, const float *q, const float *k, int64_t first, int64_t count)
{
    const bool rounds = heads->kernel.form == LB_HEAD_UNFUSED;
    const float *from = heads->turned ? k + first : k + first * heads->size;
    const float scale = (float)heads->scale, cap = (float)heads->cap;
    if (!product(heads, (lb_product){.m = heads->queries, .n = count, .k = heads->size}, by_rows(q, heads->size),
                 heads->turned ? by_rows(from, heads->keys) : by_columns(from, heads->size), heads->s))
        return false;
    const int64_t n = heads->queries * count;
    if (rounds) lb_fused_round(heads->s, n, heads->narrow);
    if (heads->kernel.form != LB_HEAD_MATH && !(heads->kernel.base_two && !heads->mask && !heads->cap))
        for (int64_t i = 0; i < n; i++) heads->s[i] *= scale;
    if (rounds) lb_fused_round(heads->s, n, heads->narrow);
    if (heads->cap) {
        for (int64_t i = 0; i < n; i++) heads->s[i] /= cap;
        if (rounds) lb_fused_round(heads->s, n, heads->narrow);
        lb_tanh_f32(heads->s, heads->s, (size_t)n);
        if (rounds) lb_fused_round(heads->s, n, heads->narrow);
        for (int64_t i = 0; i < n; i++) heads->s[i] *= cap;
        if (rounds) lb_fused_round(heads->s, n, heads->narrow);
    }
    for (int64_t i = 0; i < heads->queries; i++) {
        const double *mask = mask_row(heads, head, i);
        float *row = heads->s + i * count;
        for (int64_t j = 0; mask && j < count; j++) row[j] += (float)mask[first + j];
        for (int64_t j = 0; heads->causal && j < count; j++)
            if (first + j > i) row[j] = -INFINITY;
    }
    if (rounds && heads->mask) lb_fused_round(heads->s, n, heads->narrow);
    return true;
}

/* Vectorized<float>::fexp_u20 of torch's vec512_float.h, for 16-bit p: 2^xi times a cubic for 2^xf, put together in the
 * bits of a float (Malossi et al., Fast Exponential Computation on SIMD Architectures). */
static float fast_exp_narrow(float x)
{
    if (x < float_of(0xc2aeac50)) return 0;
    if (x > float_of(0x42b17218)) return INFINITY;
    const float t = x * float_of(0x3fb8aa3b), f = t - floorf(t);
    const float c = fmaf(f, fmaf(f, fmaf(f, -0.079204240219773236f, -0.22433836478672356f), 0.30354260500649682f),
                         0.00010703434948458272f);
    return float_of((uint32_t)(int32_t)fmaf(8388608.0f, t - c, 8388608.0f * 127.0f));
}

/* Vectorized<float>::exp_u20 of the same, for f32 p. */
static float fast_exp_wide(float x)
{
    const float low = float_of(0xc2aeac50), high = float_of(0x42b17218);
    const bool under = x < low;
    x = x < high ? x : high, x = x > low ? x : low;
    const float n = floorf(fmaf(x, float_of(0x3fb8aa3b), 0.5f)), r = fmaf(-n, float_of(0x3f317218), x);
    float y = fmaf(r, 0.00828929059f, 0.0418978221f);
    y = fmaf(r, y, 0.166676521f), y = fmaf(r, y, 0.499991506f), y = fmaf(r, y, 0.999999701f), y = fmaf(r, y, 1.0f);
    return under ? 0 : y * float_of((uint32_t)((int32_t)(n - 1) + 127) << 23) * 2;
}

/* torch's `_exp_reduce_sum_fusion_kernel`: vectors of 16 with the fast exponential, lanes added up by halves, then the
 * tail. */
static float fast_exponentials(const lb_fused_heads *heads, const float *s, float *p, int64_t n, float top)
{
    float lanes[16] = {0};
    const int64_t full = n / 16 * 16;
    for (int64_t j = 0; j < full; j++) {
        p[j] = heads->narrow ? fast_exp_narrow(s[j] - top) : fast_exp_wide(s[j] - top);
        lanes[j % 16] += p[j];
    }
    for (int half = 8; half >= 1; half /= 2)
        for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
    for (int64_t j = full; j < n; j++) lanes[0] += p[j] = (float)lb_exp((double)(s[j] - top));
    return lanes[0];
}

/* Row of scores -> p = e^(s - top) or 2^(s log2 e scale - top log2 e scale); the sum of them. */
static float exponentials(const lb_fused_heads *heads, const float *s, float *p, int64_t n, float top)
{
    if (top == -INFINITY) {
        memset(p, 0, (size_t)n * sizeof *p);
        return 0;
    }
    if (heads->kernel.fast) return fast_exponentials(heads, s, p, n, top);
    if (heads->kernel.base_two) {
        const float base = (float)(1.4426950408889634 * (heads->mask || heads->cap ? 1 : heads->scale)),
                    shift = top * base;
        for (int64_t j = 0; j < n; j++) p[j] = fmaf(s[j], base, -shift);
        lb_exp2_f32(p, p, (size_t)n);
    } else {
        for (int64_t j = 0; j < n; j++) p[j] = s[j] - top;
        lb_exp_f32(p, p, (size_t)n);
    }
    return lb_schedule_sum_f32(heads->kernel.has_sum ? &heads->kernel.sum : NULL, p, n, LB_NO_DTYPE);
}

static float rescale(const lb_fused_heads *heads, float old, float top)
{
    if (old == -INFINITY) return 0;
    if (heads->kernel.base_two) {
        const float base = (float)(1.4426950408889634 * (heads->mask || heads->cap ? 1 : heads->scale));
        return (float)lb_exp2((double)((old - top) * base));
    }
    return (float)lb_exp((double)(old - top));
}

/* The sink as the scores are held: where the scale is folded into the base, without it. */
static float sink_of(const lb_fused_heads *heads, int64_t head)
{
    const bool folded = heads->kernel.base_two && !heads->mask && !heads->cap;
    return (float)(folded ? heads->sinks[head] / heads->scale : heads->sinks[head]);
}

/* o, top and sum over the keys first … last - 1, by blocks. */
static bool pass(lb_fused_heads *heads, int64_t head, const lb_fused_head_floats *floats, int64_t first, int64_t last)
{
    const int64_t block = heads->kernel.block ? heads->kernel.block : last - first;
    const bool begun = heads->sinks && heads->kernel.sink_first;
    for (int64_t i = 0; i < heads->queries; i++)
        heads->top[i] = begun ? sink_of(heads, head) : -INFINITY, heads->sum[i] = begun;
    memset(heads->o, 0, (size_t)(heads->queries * heads->values) * sizeof *heads->o);
    for (int64_t at = first; at < last; at += block) {
        const int64_t n = last - at < block ? last - at : block;
        if (heads->causal && at >= heads->queries) break;
        if (!scores(heads, head, floats->q, floats->k, at, n)) return false;
        for (int64_t i = 0; i < heads->queries; i++) {
            float top = heads->top[i];
            for (int64_t j = 0; j < n; j++) top = heads->s[i * n + j] > top ? heads->s[i * n + j] : top;
            const float sum = exponentials(heads, heads->s + i * n, heads->p + i * n, n, top),
                        a = rescale(heads, heads->top[i], top);
            heads->sum[i] = at == first && !begun ? sum : heads->sum[i] * a + sum;
            for (int64_t d = 0; at > first && d < heads->values; d++) heads->o[i * heads->values + d] *= a;
            heads->top[i] = top;
        }
        if (heads->kernel.p_narrow) lb_fused_round(heads->p, heads->queries * n, heads->narrow);
        if (!product(heads, (lb_product){.m = heads->queries, .n = heads->values, .k = n}, by_rows(heads->p, n),
                     by_rows(floats->v + at * heads->values, heads->values), at == first ? heads->o : heads->part))
            return false;
        for (int64_t i = 0; at > first && i < heads->queries * heads->values; i++) heads->o[i] += heads->part[i];
    }
    return true;
}

/* What a pass over all keys left, with the sink's share of the sum. */
static void add_sink(lb_fused_heads *heads, int64_t head)
{
    if (!heads->sinks || heads->kernel.sink_first) return;
    for (int64_t i = 0; i < heads->queries; i++)
        if (heads->top[i] != -INFINITY) heads->sum[i] += rescale(heads, sink_of(heads, head), heads->top[i]);
}

/* y = o / sum; a row that saw nothing is 0. */
static void finish(const lb_fused_heads *heads, float *y, float *lse)
{
    for (int64_t i = 0; i < heads->queries; i++) {
        const float sum = heads->top[i] == -INFINITY ? 1 : heads->sum[i], inverse = 1 / sum;
        for (int64_t d = 0; d < heads->values; d++)
            y[i * heads->values + d] = heads->kernel.reciprocal ? heads->o[i * heads->values + d] * inverse
                                                                : heads->o[i * heads->values + d] / sum;
        const double scale = heads->kernel.base_two && !heads->mask && !heads->cap ? heads->scale : 1;
        if (lse) lse[i] = heads->top[i] == -INFINITY ? 0 : (float)lb_log((double)sum) + (float)(heads->top[i] * scale);
    }
}

/* A row of keys + 1 scores of which the maximum was taken off, rounded as all scores are; the last one's part is
 * dropped. */
static void softmax_with_sink(const lb_fused_heads *heads, int64_t head, const float *scores, float *p, float *lse)
{
    float *row = heads->row, top = sink_of(heads, head);
    const int64_t n = heads->keys + 1;
    memcpy(row, scores, (size_t)heads->keys * sizeof *row);
    row[heads->keys] = top;
    for (int64_t j = 0; j < heads->keys; j++) top = row[j] > top ? row[j] : top;
    for (int64_t j = 0; j < n; j++) row[j] -= top;
    if (heads->kernel.form == LB_HEAD_UNFUSED) lb_fused_round(row, n, heads->narrow);
    const float sum = exponentials(heads, row, row, n, 0);
    for (int64_t j = 0; j < heads->keys; j++) p[j] = row[j] / sum;
    if (lse) *lse = (float)lb_log((double)sum) + top;
}

/* The softmax in f32 by itself, then its product: what ops one by one do. */
static bool whole(lb_fused_heads *heads, int64_t head, const lb_fused_head_floats *floats)
{
    float *lse = floats->lse;
    if (!scores(heads, head, floats->q, floats->k, 0, heads->keys)) return false;
    for (int64_t i = 0; i < heads->queries; i++) {
        float top = -INFINITY, *row = heads->s + i * heads->keys, *p = heads->p + i * heads->keys;
        if (heads->sinks) {
            softmax_with_sink(heads, head, row, p, lse ? &lse[i] : NULL);
            continue;
        }
        for (int64_t j = 0; j < heads->keys; j++) top = row[j] > top ? row[j] : top;
        const float sum = exponentials(heads, row, p, heads->keys, top);
        for (int64_t j = 0; top != -INFINITY && j < heads->keys; j++) p[j] /= sum;
        if (lse) lse[i] = top == -INFINITY ? 0 : (float)lb_log((double)sum) + top;
    }
    if (heads->kernel.p_narrow) lb_fused_round(heads->p, heads->queries * heads->keys, heads->narrow);
    return product(heads, (lb_product){.m = heads->queries, .n = heads->values, .k = heads->keys},
                   by_rows(heads->p, heads->keys), by_rows(floats->v, heads->values), floats->y);
}

static bool split(lb_fused_heads *heads, int64_t head, const lb_fused_head_floats *floats)
{
    float *y = floats->y, *lse = floats->lse;
    const int64_t n = heads->kernel.slices, block = heads->kernel.block ? heads->kernel.block : 1,
                  blocks = (heads->keys + block - 1) / block;
    const int64_t step = (blocks + n - 1) / n * block, rows = heads->queries, width = heads->values;
    float *parts = lb_frame_scratch(&heads->frame, (size_t)(n * rows * (width + 1)) * sizeof *parts);
    if (!parts) return false;
    for (int64_t s = 0; s < n; s++) {
        const int64_t first = s * step, last = first + step < heads->keys ? first + step : heads->keys;
        float *part = parts + s * rows * (width + 1), *log_sum = part + rows * width;
        for (int64_t i = 0; i < rows; i++) heads->top[i] = -INFINITY;
        memset(heads->o, 0, (size_t)(rows * width) * sizeof *heads->o);
        if (first < last && !pass(heads, head, floats, first, last)) return false;
        finish(heads, part, log_sum);
        for (int64_t i = 0; i < rows; i++)
            if (heads->top[i] == -INFINITY) log_sum[i] = -INFINITY;
    }
    for (int64_t i = 0; i < rows; i++) {
        float top = heads->sinks ? (float)heads->sinks[head] : -INFINITY, total = 0;
        for (int64_t s = 0; s < n; s++)
            top = parts[s * rows * (width + 1) + rows * width + i] > top
                      ? parts[s * rows * (width + 1) + rows * width + i]
                      : top;
        for (int64_t s = 0; s < n && top != -INFINITY; s++)
            total += (float)lb_exp((double)(parts[s * rows * (width + 1) + rows * width + i] - top));
        if (heads->sinks) total += (float)lb_exp((double)((float)heads->sinks[head] - top));
        const float all = top == -INFINITY ? 0 : (float)lb_log((double)total) + top;
        if (lse) lse[i] = all;
        for (int64_t d = 0; d < width; d++) y[i * width + d] = 0;
        for (int64_t s = 0; s < n && top != -INFINITY; s++) {
            const float *part = parts + s * rows * (width + 1),
                        weight = (float)lb_exp((double)(part[rows * width + i] - all));
            for (int64_t d = 0; d < width; d++) y[i * width + d] = fmaf(weight, part[i * width + d], y[i * width + d]);
        }
    }
    return true;
}

bool lb_fused_head_f32(lb_fused_heads *heads, int64_t head, const lb_fused_head_floats *floats)
{
    if (heads->kernel.form == LB_HEAD_SPLITKV) return split(heads, head, floats);
    if (heads->kernel.form != LB_HEAD_FLASH) return whole(heads, head, floats);
    if (!pass(heads, head, floats, 0, heads->keys)) return false;
    add_sink(heads, head);
    finish(heads, floats->y, floats->lse);
    return true;
}

/* ---- the real function ------------------------------------------------------------------------------------------- */

/* Twin: sum p |v| (roundings of p + terms of its score and of the weighted scores). */
void lb_fused_head_f64(lb_fused_heads *heads, int64_t head, const lb_fused_head_numbers *numbers, bool twin,
                       double scale16)
{
    const double *q = numbers->q, *k = numbers->k, *v = numbers->v;
    double *y = numbers->y, *lse = numbers->lse;
    double *s = heads->wide, *terms = heads->wide + heads->keys;
    for (int64_t i = 0; i < heads->queries; i++) {
        const double *mask = mask_row(heads, head, i);
        double top = -INFINITY, sum = 0, weighted = 0, *row = y + i * heads->values;
        for (int64_t j = 0; j < heads->keys; j++) {
            double dot = 0, all = 0;
            for (int64_t d = 0; d < heads->size; d++) {
                const double term =
                    q[i * heads->size + d] * (heads->turned ? k[d * heads->keys + j] : k[j * heads->size + d]);
                dot += term, all += fabs(term);
            }
            s[j] = dot * heads->scale;
            terms[j] = all * fabs(heads->scale) * (double)heads->size;
            if (heads->cap) s[j] = heads->cap * lb_tanh(s[j] / heads->cap);
            if (mask) terms[j] += isfinite(mask[j]) && fabs(mask[j]) < 1e30 ? fabs(mask[j]) : 0, s[j] += mask[j];
            if (heads->causal && j > i) s[j] = -INFINITY;
            top = s[j] > top ? s[j] : top;
        }
        for (int64_t d = 0; d < heads->values; d++) row[d] = 0;
        if (heads->sinks && heads->sinks[head] > top) top = heads->sinks[head];
        for (int64_t j = 0; top != -INFINITY && j < heads->keys; j++) {
            const double p = lb_exp(s[j] - top);
            const bool rounds = heads->kernel.form == LB_HEAD_UNFUSED;
            terms[j] = (terms[j] + fabs(s[j] - top)) * (rounds ? 4 * scale16 : 1) + 8;
            sum += s[j] = p;
            weighted += p * terms[j];
        }
        if (heads->sinks) { /* a score with its one rounding */
            const double p = lb_exp(heads->sinks[head] - top);
            sum += p, weighted += p * (fabs(heads->sinks[head] - top) * 4 * scale16 + 8);
        }
        for (int64_t j = 0; sum > 0 && j < heads->keys; j++) {
            const double p = s[j] / sum,
                         factor = twin ? 2 * scale16 + (double)heads->keys + terms[j] + weighted / sum : 1;
            for (int64_t d = 0; p > 0 && d < heads->values; d++) {
                const double x = v[j * heads->values + d];
                row[d] += p * (twin ? fabs(x) * factor : x);
            }
        }
        if (lse)
            lse[i] = sum > 0 ? (twin ? fabs(top) + fabs(lb_log(sum)) + weighted / sum + 8 + (scale16 > 1 ? 1024 : 0)
                                     : lb_log(sum) + top)
                             : 0;
    }
}
