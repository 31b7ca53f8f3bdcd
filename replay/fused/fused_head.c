/* One head of fused attention: see fused_head.h, and fused_attention.c for what the forms are. */
#include "fused/fused_head.h"

#include "functions/elementary.h"
#include "functions/real_bits.h"

#include <math.h>
#include <string.h>

/* ---- scores ------------------------------------------------------------------------------------------------------ */

static const double *mask_row(const lb_fused_heads *w, int64_t head, int64_t i)
{
    return w->mask ? w->mask + (head * w->queries + i) * w->keys : NULL;
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

static bool product(lb_fused_heads *w, lb_product shape, lb_matrix a, lb_matrix b, float *c)
{
    const lb_matrix_pair operands = {.a = a, .b = b};
    if (lb_product_matrices(&shape, LB_F32, &w->method, &operands, c) == LB_OK) return true;
    lb_frame_fail(&w->frame, LB_ERR_UNSUPPORTED, "this order of the products");
    return false;
}

/* s (queries, count) = scores of keys first … first + count - 1, masked. Keys lie (keys, size), or (size, keys). */
static bool scores(lb_fused_heads *w, int64_t head, const float *q, const float *k, int64_t first, int64_t count)
{
    const bool rounds = w->kernel.form == LB_HEAD_UNFUSED;
    const float *from = w->turned ? k + first : k + first * w->size;
    const float scale = (float)w->scale, cap = (float)w->cap;
    if (!product(w, (lb_product){.m = w->queries, .n = count, .k = w->size}, by_rows(q, w->size),
                 w->turned ? by_rows(from, w->keys) : by_columns(from, w->size), w->s))
        return false;
    const int64_t n = w->queries * count;
    if (rounds) lb_fused_round(w->s, n, w->narrow);
    if (w->kernel.form != LB_HEAD_MATH && !(w->kernel.base_two && !w->mask && !w->cap))
        for (int64_t i = 0; i < n; i++) w->s[i] *= scale;
    if (rounds) lb_fused_round(w->s, n, w->narrow);
    if (w->cap) {
        for (int64_t i = 0; i < n; i++) w->s[i] /= cap;
        if (rounds) lb_fused_round(w->s, n, w->narrow);
        lb_tanh_f32(w->s, w->s, (size_t)n);
        if (rounds) lb_fused_round(w->s, n, w->narrow);
        for (int64_t i = 0; i < n; i++) w->s[i] *= cap;
        if (rounds) lb_fused_round(w->s, n, w->narrow);
    }
    for (int64_t i = 0; i < w->queries; i++) {
        const double *mask = mask_row(w, head, i);
        float *row = w->s + i * count;
        for (int64_t j = 0; mask && j < count; j++) row[j] += (float)mask[first + j];
        for (int64_t j = 0; w->causal && j < count; j++)
            if (first + j > i) row[j] = -INFINITY;
    }
    if (rounds && w->mask) lb_fused_round(w->s, n, w->narrow);
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
static float fast_exponentials(const lb_fused_heads *w, const float *s, float *p, int64_t n, float top)
{
    float lanes[16] = {0};
    const int64_t full = n / 16 * 16;
    for (int64_t j = 0; j < full; j++) {
        p[j] = w->narrow ? fast_exp_narrow(s[j] - top) : fast_exp_wide(s[j] - top);
        lanes[j % 16] += p[j];
    }
    for (int half = 8; half >= 1; half /= 2)
        for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
    for (int64_t j = full; j < n; j++) lanes[0] += p[j] = (float)lb_exp((double)(s[j] - top));
    return lanes[0];
}

/* Row of scores -> p = e^(s - top) or 2^(s log2 e scale - top log2 e scale); the sum of them. */
static float exponentials(const lb_fused_heads *w, const float *s, float *p, int64_t n, float top)
{
    if (top == -INFINITY) {
        memset(p, 0, (size_t)n * sizeof *p);
        return 0;
    }
    if (w->kernel.fast) return fast_exponentials(w, s, p, n, top);
    if (w->kernel.base_two) {
        const float base = (float)(1.4426950408889634 * (w->mask || w->cap ? 1 : w->scale)), shift = top * base;
        for (int64_t j = 0; j < n; j++) p[j] = fmaf(s[j], base, -shift);
        lb_exp2_f32(p, p, (size_t)n);
    } else {
        for (int64_t j = 0; j < n; j++) p[j] = s[j] - top;
        lb_exp_f32(p, p, (size_t)n);
    }
    return lb_schedule_sum_f32(w->kernel.has_sum ? &w->kernel.sum : NULL, p, n, LB_NO_DTYPE);
}

static float rescale(const lb_fused_heads *w, float old, float top)
{
    if (old == -INFINITY) return 0;
    if (w->kernel.base_two) {
        const float base = (float)(1.4426950408889634 * (w->mask || w->cap ? 1 : w->scale));
        return (float)lb_exp2((double)((old - top) * base));
    }
    return (float)lb_exp((double)(old - top));
}

/* The sink as the scores are held: where the scale is folded into the base, without it. */
static float sink_of(const lb_fused_heads *w, int64_t head)
{
    const bool folded = w->kernel.base_two && !w->mask && !w->cap;
    return (float)(folded ? w->sinks[head] / w->scale : w->sinks[head]);
}

/* o, top and sum over the keys first … last - 1, by blocks. */
static bool pass(lb_fused_heads *w, int64_t head, const float *q, const float *k, const float *v, int64_t first,
                 int64_t last)
{
    const int64_t block = w->kernel.block ? w->kernel.block : last - first;
    const bool begun = w->sinks && w->kernel.sink_first;
    for (int64_t i = 0; i < w->queries; i++) w->top[i] = begun ? sink_of(w, head) : -INFINITY, w->sum[i] = begun;
    memset(w->o, 0, (size_t)(w->queries * w->values) * sizeof *w->o);
    for (int64_t at = first; at < last; at += block) {
        const int64_t n = last - at < block ? last - at : block;
        if (w->causal && at >= w->queries) break;
        if (!scores(w, head, q, k, at, n)) return false;
        for (int64_t i = 0; i < w->queries; i++) {
            float top = w->top[i];
            for (int64_t j = 0; j < n; j++) top = w->s[i * n + j] > top ? w->s[i * n + j] : top;
            const float sum = exponentials(w, w->s + i * n, w->p + i * n, n, top), a = rescale(w, w->top[i], top);
            w->sum[i] = at == first && !begun ? sum : w->sum[i] * a + sum;
            for (int64_t d = 0; at > first && d < w->values; d++) w->o[i * w->values + d] *= a;
            w->top[i] = top;
        }
        if (w->kernel.p_narrow) lb_fused_round(w->p, w->queries * n, w->narrow);
        if (!product(w, (lb_product){.m = w->queries, .n = w->values, .k = n}, by_rows(w->p, n),
                     by_rows(v + at * w->values, w->values), at == first ? w->o : w->part))
            return false;
        for (int64_t i = 0; at > first && i < w->queries * w->values; i++) w->o[i] += w->part[i];
    }
    return true;
}

/* What a pass over all keys left, with the sink's share of the sum. */
static void add_sink(lb_fused_heads *w, int64_t head)
{
    if (!w->sinks || w->kernel.sink_first) return;
    for (int64_t i = 0; i < w->queries; i++)
        if (w->top[i] != -INFINITY) w->sum[i] += rescale(w, sink_of(w, head), w->top[i]);
}

/* y = o / sum; a row that saw nothing is 0. */
static void finish(const lb_fused_heads *w, float *y, float *lse)
{
    for (int64_t i = 0; i < w->queries; i++) {
        const float sum = w->top[i] == -INFINITY ? 1 : w->sum[i], inverse = 1 / sum;
        for (int64_t d = 0; d < w->values; d++)
            y[i * w->values + d] =
                w->kernel.reciprocal ? w->o[i * w->values + d] * inverse : w->o[i * w->values + d] / sum;
        const double scale = w->kernel.base_two && !w->mask && !w->cap ? w->scale : 1;
        if (lse) lse[i] = w->top[i] == -INFINITY ? 0 : (float)lb_log((double)sum) + (float)(w->top[i] * scale);
    }
}

/* A row of keys + 1 scores of which the maximum was taken off, rounded as all scores are; the last one's part is
 * dropped. */
static void softmax_with_sink(const lb_fused_heads *w, int64_t head, const float *scores, float *p, float *lse)
{
    float *row = w->row, top = sink_of(w, head);
    const int64_t n = w->keys + 1;
    memcpy(row, scores, (size_t)w->keys * sizeof *row);
    row[w->keys] = top;
    for (int64_t j = 0; j < w->keys; j++) top = row[j] > top ? row[j] : top;
    for (int64_t j = 0; j < n; j++) row[j] -= top;
    if (w->kernel.form == LB_HEAD_UNFUSED) lb_fused_round(row, n, w->narrow);
    const float sum = exponentials(w, row, row, n, 0);
    for (int64_t j = 0; j < w->keys; j++) p[j] = row[j] / sum;
    if (lse) *lse = (float)lb_log((double)sum) + top;
}

/* The softmax in f32 by itself, then its product: what ops one by one do. */
static bool whole(lb_fused_heads *w, int64_t head, const float *q, const float *k, const float *v, float *y, float *lse)
{
    if (!scores(w, head, q, k, 0, w->keys)) return false;
    for (int64_t i = 0; i < w->queries; i++) {
        float top = -INFINITY, *row = w->s + i * w->keys, *p = w->p + i * w->keys;
        if (w->sinks) {
            softmax_with_sink(w, head, row, p, lse ? &lse[i] : NULL);
            continue;
        }
        for (int64_t j = 0; j < w->keys; j++) top = row[j] > top ? row[j] : top;
        const float sum = exponentials(w, row, p, w->keys, top);
        for (int64_t j = 0; top != -INFINITY && j < w->keys; j++) p[j] /= sum;
        if (lse) lse[i] = top == -INFINITY ? 0 : (float)lb_log((double)sum) + top;
    }
    if (w->kernel.p_narrow) lb_fused_round(w->p, w->queries * w->keys, w->narrow);
    return product(w, (lb_product){.m = w->queries, .n = w->values, .k = w->keys}, by_rows(w->p, w->keys),
                   by_rows(v, w->values), y);
}

static bool split(lb_fused_heads *w, int64_t head, const float *q, const float *k, const float *v, float *y, float *lse)
{
    const int64_t n = w->kernel.slices, block = w->kernel.block ? w->kernel.block : 1,
                  blocks = (w->keys + block - 1) / block;
    const int64_t step = (blocks + n - 1) / n * block, rows = w->queries, width = w->values;
    float *parts = lb_frame_scratch(&w->frame, (size_t)(n * rows * (width + 1)) * sizeof *parts);
    if (!parts) return false;
    for (int64_t s = 0; s < n; s++) {
        const int64_t first = s * step, last = first + step < w->keys ? first + step : w->keys;
        float *part = parts + s * rows * (width + 1), *log_sum = part + rows * width;
        for (int64_t i = 0; i < rows; i++) w->top[i] = -INFINITY;
        memset(w->o, 0, (size_t)(rows * width) * sizeof *w->o);
        if (first < last && !pass(w, head, q, k, v, first, last)) return false;
        finish(w, part, log_sum);
        for (int64_t i = 0; i < rows; i++)
            if (w->top[i] == -INFINITY) log_sum[i] = -INFINITY;
    }
    for (int64_t i = 0; i < rows; i++) {
        float top = w->sinks ? (float)w->sinks[head] : -INFINITY, total = 0;
        for (int64_t s = 0; s < n; s++)
            top = parts[s * rows * (width + 1) + rows * width + i] > top
                      ? parts[s * rows * (width + 1) + rows * width + i]
                      : top;
        for (int64_t s = 0; s < n && top != -INFINITY; s++)
            total += (float)lb_exp((double)(parts[s * rows * (width + 1) + rows * width + i] - top));
        if (w->sinks) total += (float)lb_exp((double)((float)w->sinks[head] - top));
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

bool lb_fused_head_f32(lb_fused_heads *w, int64_t head, const float *q, const float *k, const float *v, float *y,
                       float *lse)
{
    if (w->kernel.form == LB_HEAD_SPLITKV) return split(w, head, q, k, v, y, lse);
    if (w->kernel.form != LB_HEAD_FLASH) return whole(w, head, q, k, v, y, lse);
    if (!pass(w, head, q, k, v, 0, w->keys)) return false;
    add_sink(w, head);
    finish(w, y, lse);
    return true;
}

/* ---- the real function ------------------------------------------------------------------------------------------- */

/* Twin: sum p |v| (roundings of p + terms of its score and of the weighted scores). */
void lb_fused_head_f64(lb_fused_heads *w, int64_t head, const lb_fused_head_numbers *numbers, bool twin, double scale16)
{
    const double *q = numbers->q, *k = numbers->k, *v = numbers->v;
    double *y = numbers->y, *lse = numbers->lse;
    double *s = w->wide, *terms = w->wide + w->keys;
    for (int64_t i = 0; i < w->queries; i++) {
        const double *mask = mask_row(w, head, i);
        double top = -INFINITY, sum = 0, weighted = 0, *row = y + i * w->values;
        for (int64_t j = 0; j < w->keys; j++) {
            double dot = 0, all = 0;
            for (int64_t d = 0; d < w->size; d++) {
                const double term = q[i * w->size + d] * (w->turned ? k[d * w->keys + j] : k[j * w->size + d]);
                dot += term, all += fabs(term);
            }
            s[j] = dot * w->scale;
            terms[j] = all * fabs(w->scale) * (double)w->size;
            if (w->cap) s[j] = w->cap * lb_tanh(s[j] / w->cap);
            if (mask) terms[j] += isfinite(mask[j]) && fabs(mask[j]) < 1e30 ? fabs(mask[j]) : 0, s[j] += mask[j];
            if (w->causal && j > i) s[j] = -INFINITY;
            top = s[j] > top ? s[j] : top;
        }
        for (int64_t d = 0; d < w->values; d++) row[d] = 0;
        if (w->sinks && w->sinks[head] > top) top = w->sinks[head];
        for (int64_t j = 0; top != -INFINITY && j < w->keys; j++) {
            const double p = lb_exp(s[j] - top);
            const bool rounds = w->kernel.form == LB_HEAD_UNFUSED;
            terms[j] = (terms[j] + fabs(s[j] - top)) * (rounds ? 4 * scale16 : 1) + 8;
            sum += s[j] = p;
            weighted += p * terms[j];
        }
        if (w->sinks) { /* a score with its one rounding */
            const double p = lb_exp(w->sinks[head] - top);
            sum += p, weighted += p * (fabs(w->sinks[head] - top) * 4 * scale16 + 8);
        }
        for (int64_t j = 0; sum > 0 && j < w->keys; j++) {
            const double p = s[j] / sum, factor = twin ? 2 * scale16 + (double)w->keys + terms[j] + weighted / sum : 1;
            for (int64_t d = 0; p > 0 && d < w->values; d++) {
                const double x = v[j * w->values + d];
                row[d] += p * (twin ? fabs(x) * factor : x);
            }
        }
        if (lse)
            lse[i] = sum > 0 ? (twin ? fabs(top) + fabs(lb_log(sum)) + weighted / sum + 8 + (scale16 > 1 ? 1024 : 0)
                                     : lb_log(sum) + top)
                             : 0;
    }
}
