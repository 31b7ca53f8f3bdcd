/* Fused attention: how keys are cut in blocks, how their parts of the softmax are put together, and what is rounded to 16 bits.
 *
 *      unfused      the scores as ops one by one leave them: rounded to T after the product, the scale, the cap and the mask
 *      math         torch's math form: q and k scaled by sqrt(scale) each, all in f32
 *      flash[:B]    one pass over blocks of B keys (512; 0: all). A new maximum m rescales what was summed:
 *                      a = e^(m_old - m)   l = l a + sum p   o = o a + p v   at the end y = o / l
 *      splitkv:N    N slices of whole blocks of keys, each a softmax of its own with y_i and lse_i; y = sum y_i e^(lse_i - lse)
 *
 * A sink, one more score per row without a value, is one more element of an unfused row; flash adds it to the sum at the end
 * (FlashAttention's `learnable_sink`) or begins with it (sink:first: m = sink, l = 1, vLLM's Triton kernel); to splitkv it is a slice.
 *
 * Products are chains of fma in f32, or in the order gemm: says. Blocks of 512 keys, whose rows of p are added as vectors, rounded to T
 * before they meet v, and y times 1 / l is torch's CPU kernel (FlashAttentionKernel.cpp; with exp:fast and gemm:torch:1 its bits come out
 * as long as MKL takes a product in one tile, some 64 rows); exp:2 with the scale folded into the base is
 * FlashAttention's (softmax.h `scale_apply_exp2`), splitkv its decoding (flash_fwd_kernel.h `combine_attn_seqk_parallel`). */
#include "elementary.h"
#include "fused.h"
#include "product.h"
#include "real_bits.h"
#include "schedule.h"

#include <math.h>
#include <string.h>

typedef enum form { UNFUSED, MATH, FLASH, SPLITKV } form;

typedef struct kernel {
    form form;
    int64_t block, slices;
    bool p_narrow, base_two, fast, reciprocal, sink_first;
    lb_schedule sum, gemm;
    bool has_sum, has_gemm;
} kernel;

/* ---- texts ----------------------------------------------------------------------------------------------------------------------- */

static const lb_composite_kernel kernels[] = {
    {"eager", "eager", "the recorded ops, one by one"},
    {"flash", "flash[:KEYS]",
     "online softmax over blocks of keys (512) in f32, p rounded to the type: torch's CPU kernel, "
     "FlashAttention"},
    {"flash-cpu", "flash-cpu",
     "torch's CPU kernel: flash:512,exp:fast,end:reciprocal,gemm:torch:1 (AVX-512, MKL, one thread)"},
    {"unfused", "unfused",
     "Hugging Face's eager: scores rounded to the type after every op, softmax in f32, p rounded"},
    {"math", "math",
     "torch's math form: all in f32, q and k each scaled by the root of the scale, one rounding at the end"},
    {"splitkv", "splitkv:SLICES",
     "slices of keys apart, then weighed by their log-sum-exps in f32: decoding kernels"},
    {NULL, NULL, NULL}};

#define OPTIONS                                                                                                \
    "p:t|f32 (what meets v), exp:e|2|fast (2: base 2, the scale folded in; fast: torch's vector code for "     \
    "AVX-512), end:divide|reciprocal, sum:ORDER (of p in a block), "                                           \
    "gemm:ORDER (of both products), block:KEYS (of a slice), sink:end|first (of flash, where there is one)"

static lb_status read_kernel(lb_composite_kind kind, const char *text, kernel *k, lb_err *err)
{
    lb_kernel_text parsed;
    int64_t number = 0;
    *k = (kernel){.p_narrow = true};
    if (!strcmp(text, "flash-cpu")) text = "flash:512,exp:fast,end:reciprocal,gemm:torch:1";
    LB_TRY(lb_kernel_text_parse(text, &parsed, err));
    const char *const names[] = {"unfused", "math", "flash", "splitkv"};
    int form = -1;
    for (int i = 0; i < 4; i++)
        if (!strcmp(parsed.name, names[i])) form = i;
    const bool whole = !strcmp(parsed.parameters, "0");
    const int n = whole ? 1 : lb_kernel_text_numbers(parsed.parameters, &number, form >= FLASH);
    const int p = lb_kernel_text_choice(&parsed, "p", "t|f32", form == MATH),
              base = lb_kernel_text_choice(&parsed, "exp", "e|2|fast", 0),
              end = lb_kernel_text_choice(&parsed, "end", "divide|reciprocal", form == FLASH),
              sink = lb_kernel_text_choice(&parsed, "sink", "end|first", 0);
    bool ok = form >= 0 && n >= 0 && (form != SPLITKV || (n == 1 && number > 0)) && p >= 0 && base >= 0 &&
              end >= 0 && sink >= 0 && (!sink || form == FLASH) &&
              lb_kernel_text_keys(&parsed, "p exp end sum gemm block sink") &&
              lb_kernel_text_order(&parsed, "sum", &k->sum, &k->has_sum) &&
              lb_kernel_text_order(&parsed, "gemm", &k->gemm, &k->has_gemm);
    k->form = (enum form)form, k->p_narrow = !p, k->base_two = base == 1, k->fast = base == 2,
    k->reciprocal = end, k->sink_first = sink;
    k->block = form == FLASH ? (n == 1 ? number : 512) : 0;
    k->slices = form == SPLITKV ? number : 1;
    for (uint32_t i = 0; ok && i < parsed.n_options; i++)
        if (!strcmp(parsed.options[i].key, "block"))
            ok = form == SPLITKV && lb_kernel_text_numbers(parsed.options[i].value, &k->block, 1) == 1;
    return ok ? LB_OK : lb_kernel_text_refuse(kind, text, err);
}

static lb_status check(lb_composite_kind kind, const char *text, lb_err *err)
{
    kernel k;
    return read_kernel(kind, text, &k, err);
}

/* ---- one head ---------------------------------------------------------------------------------------------------------------------- */

typedef struct work {
    lb_frame frame;
    kernel kernel;
    lb_method method; /* of the products */
    lb_dtype narrow;
    int64_t queries, keys, size, values, heads,
        groups; /* heads of all batches, and how many share a key head */
    double scale, cap, batch_heads;
    bool causal, turned, hides;
    const char *q, *k, *v;
    const double *mask;  /* (batches, heads, queries, keys), or NULL */
    const double *sinks; /* (batches, heads), or NULL */
    char *y, *lse;
    /* of one head */
    float *s, *p, *o, *part, *top, *sum, *row;
    double *wide;
} work;

static const double *mask_row(const work *w, int64_t head, int64_t i)
{
    return w->mask ? w->mask + (head * w->queries + i) * w->keys : NULL;
}

static bool product(work *w, bool turned, const float *a, const float *b, int64_t m, int64_t n, int64_t k,
                    int64_t a_row, int64_t b_row, float *c)
{
    const lb_product shape = {.m = m, .n = n, .k = k};
    const lb_matmul_batch one = {.batch = 1};
    const lb_matrix left = {a, LB_F32, a_row, 1}, right = {b, LB_F32, turned ? 1 : b_row, turned ? b_row : 1};
    if (lb_product_matrices(&shape, LB_F32, &w->method, &one, &left, &right, false, c) == LB_OK) return true;
    lb_frame_fail(&w->frame, LB_ERR_UNSUPPORTED, "this order of the products");
    return false;
}

/* s (queries, count) = scores of keys first … first + count - 1, masked. Keys lie (keys, size), or (size, keys). */
static bool scores(work *w, int64_t head, const float *q, const float *k, int64_t first, int64_t count)
{
    const bool rounds = w->kernel.form == UNFUSED;
    const float *from = w->turned ? k + first : k + first * w->size;
    const float scale = (float)w->scale, cap = (float)w->cap;
    if (!product(w, !w->turned, q, from, w->queries, count, w->size, w->size, w->turned ? w->keys : w->size,
                 w->s))
        return false;
    const int64_t n = w->queries * count;
    if (rounds) lb_fused_round(w->s, n, w->narrow);
    if (w->kernel.form != MATH && !(w->kernel.base_two && !w->mask && !w->cap))
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

/* Vectorized<float>::fexp_u20 of torch's vec512_float.h, for 16-bit p: 2^xi times a cubic for 2^xf, put together in the bits of a float
 * (Malossi et al., Fast Exponential Computation on SIMD Architectures). */
static float fast_exp_narrow(float x)
{
    if (x < float_of(0xc2aeac50)) return 0;
    if (x > float_of(0x42b17218)) return INFINITY;
    const float t = x * float_of(0x3fb8aa3b), f = t - floorf(t);
    const float c =
        fmaf(f, fmaf(f, fmaf(f, -0.079204240219773236f, -0.22433836478672356f), 0.30354260500649682f),
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
    y = fmaf(r, y, 0.166676521f), y = fmaf(r, y, 0.499991506f), y = fmaf(r, y, 0.999999701f),
    y = fmaf(r, y, 1.0f);
    return under ? 0 : y * float_of((uint32_t)((int32_t)(n - 1) + 127) << 23) * 2;
}

/* torch's `_exp_reduce_sum_fusion_kernel`: vectors of 16 with the fast exponential, lanes added up by halves, then the tail. */
static float fast_exponentials(const work *w, const float *s, float *p, int64_t n, float top)
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
static float exponentials(const work *w, const float *s, float *p, int64_t n, float top)
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
    return lb_sum_f32(w->kernel.has_sum ? &w->kernel.sum : NULL, p, n, LB_NO_DTYPE);
}

static float rescale(const work *w, float old, float top)
{
    if (old == -INFINITY) return 0;
    if (w->kernel.base_two) {
        const float base = (float)(1.4426950408889634 * (w->mask || w->cap ? 1 : w->scale));
        return (float)lb_exp2((double)((old - top) * base));
    }
    return (float)lb_exp((double)(old - top));
}

/* The sink as the scores are held: where the scale is folded into the base, without it. */
static float sink_of(const work *w, int64_t head)
{
    const bool folded = w->kernel.base_two && !w->mask && !w->cap;
    return (float)(folded ? w->sinks[head] / w->scale : w->sinks[head]);
}

/* o, top and sum over the keys first … last - 1, by blocks. */
static bool pass(work *w, int64_t head, const float *q, const float *k, const float *v, int64_t first,
                 int64_t last)
{
    const int64_t block = w->kernel.block ? w->kernel.block : last - first;
    const bool begun = w->sinks && w->kernel.sink_first;
    for (int64_t i = 0; i < w->queries; i++)
        w->top[i] = begun ? sink_of(w, head) : -INFINITY, w->sum[i] = begun;
    memset(w->o, 0, (size_t)(w->queries * w->values) * sizeof *w->o);
    for (int64_t at = first; at < last; at += block) {
        const int64_t n = last - at < block ? last - at : block;
        if (w->causal && at >= w->queries) break;
        if (!scores(w, head, q, k, at, n)) return false;
        for (int64_t i = 0; i < w->queries; i++) {
            float top = w->top[i];
            for (int64_t j = 0; j < n; j++) top = w->s[i * n + j] > top ? w->s[i * n + j] : top;
            const float sum = exponentials(w, w->s + i * n, w->p + i * n, n, top),
                        a = rescale(w, w->top[i], top);
            w->sum[i] = at == first && !begun ? sum : w->sum[i] * a + sum;
            for (int64_t d = 0; at > first && d < w->values; d++) w->o[i * w->values + d] *= a;
            w->top[i] = top;
        }
        if (w->kernel.p_narrow) lb_fused_round(w->p, w->queries * n, w->narrow);
        if (!product(w, false, w->p, v + at * w->values, w->queries, w->values, n, n, w->values,
                     at == first ? w->o : w->part))
            return false;
        for (int64_t i = 0; at > first && i < w->queries * w->values; i++) w->o[i] += w->part[i];
    }
    return true;
}

/* What a pass over all keys left, with the sink's share of the sum. */
static void add_sink(work *w, int64_t head)
{
    if (!w->sinks || w->kernel.sink_first) return;
    for (int64_t i = 0; i < w->queries; i++)
        if (w->top[i] != -INFINITY) w->sum[i] += rescale(w, sink_of(w, head), w->top[i]);
}

/* y = o / sum; a row that saw nothing is 0. */
static void finish(const work *w, float *y, float *lse)
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

/* A row of keys + 1 scores of which the maximum was taken off, rounded as all scores are; the last one's part is dropped. */
static void softmax_with_sink(const work *w, int64_t head, const float *scores, float *p, float *lse)
{
    float *row = w->row, top = sink_of(w, head);
    const int64_t n = w->keys + 1;
    memcpy(row, scores, (size_t)w->keys * sizeof *row);
    row[w->keys] = top;
    for (int64_t j = 0; j < w->keys; j++) top = row[j] > top ? row[j] : top;
    for (int64_t j = 0; j < n; j++) row[j] -= top;
    if (w->kernel.form == UNFUSED) lb_fused_round(row, n, w->narrow);
    const float sum = exponentials(w, row, row, n, 0);
    for (int64_t j = 0; j < w->keys; j++) p[j] = row[j] / sum;
    if (lse) *lse = (float)lb_log((double)sum) + top;
}

/* The softmax in f32 by itself, then its product: what ops one by one do. */
static bool whole(work *w, int64_t head, const float *q, const float *k, const float *v, float *y, float *lse)
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
    return product(w, false, w->p, v, w->queries, w->values, w->keys, w->keys, w->values, y);
}

static bool split(work *w, int64_t head, const float *q, const float *k, const float *v, float *y, float *lse)
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
            for (int64_t d = 0; d < width; d++)
                y[i * width + d] = fmaf(weight, part[i * width + d], y[i * width + d]);
        }
    }
    return true;
}

static bool head_f32(work *w, int64_t head, const float *q, const float *k, const float *v, float *y,
                     float *lse)
{
    if (w->kernel.form == SPLITKV) return split(w, head, q, k, v, y, lse);
    if (w->kernel.form != FLASH) return whole(w, head, q, k, v, y, lse);
    if (!pass(w, head, q, k, v, 0, w->keys)) return false;
    add_sink(w, head);
    finish(w, y, lse);
    return true;
}

/* ---- the real function ---------------------------------------------------------------------------------------------------------------- */

/* Twin: sum p |v| (roundings of p + terms of its score and of the weighted scores). */
static void head_f64(work *w, int64_t head, const double *q, const double *k, const double *v, double *y,
                     double *lse, bool twin, double scale16)
{
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
            if (mask)
                terms[j] += isfinite(mask[j]) && fabs(mask[j]) < 1e30 ? fabs(mask[j]) : 0, s[j] += mask[j];
            if (w->causal && j > i) s[j] = -INFINITY;
            top = s[j] > top ? s[j] : top;
        }
        for (int64_t d = 0; d < w->values; d++) row[d] = 0;
        if (w->sinks && w->sinks[head] > top) top = w->sinks[head];
        for (int64_t j = 0; top != -INFINITY && j < w->keys; j++) {
            const double p = lb_exp(s[j] - top);
            const bool rounds = w->kernel.form == UNFUSED;
            terms[j] = (terms[j] + fabs(s[j] - top)) * (rounds ? 4 * scale16 : 1) + 8;
            sum += s[j] = p;
            weighted += p * terms[j];
        }
        if (w->sinks) { /* a score with its one rounding */
            const double p = lb_exp(w->sinks[head] - top);
            sum += p, weighted += p * (fabs(w->sinks[head] - top) * 4 * scale16 + 8);
        }
        for (int64_t j = 0; sum > 0 && j < w->keys; j++) {
            const double p = s[j] / sum,
                         factor = twin ? 2 * scale16 + (double)w->keys + terms[j] + weighted / sum : 1;
            for (int64_t d = 0; p > 0 && d < w->values; d++) {
                const double x = v[j * w->values + d];
                row[d] += p * (twin ? fabs(x) * factor : x);
            }
        }
        if (lse)
            lse[i] = sum > 0
                         ? (twin ? fabs(top) + fabs(lb_log(sum)) + weighted / sum + 8 + (scale16 > 1 ? 1024 : 0)
                                 : lb_log(sum) + top)
                         : 0;
    }
}

/* ---- a call ------------------------------------------------------------------------------------------------------------------------------ */

static int64_t dim(const lb_tensor *t, int from_end)
{
    return t->layout.ndim >= from_end ? t->layout.shape[t->layout.ndim - from_end] : 1;
}
static int64_t leading(const lb_tensor *t)
{
    const int64_t matrix = dim(t, 1) * dim(t, 2);
    return matrix ? lb_tensor_numel(t) / matrix : 0;
}

/* As (batches, heads, queries, keys) of f64; bools hide where they are false. */
static const double *read_mask(work *w, const lb_tensor *mask)
{
    const int64_t shape[4] = {w->batch_heads > 0 ? w->heads / (int64_t)w->batch_heads : 0,
                              (int64_t)w->batch_heads, w->queries, w->keys};
    lb_tensor wide = *mask;
    wide.layout.ndim = 4;
    for (int d = 0; d < 4; d++) {
        const int own = d - (4 - mask->layout.ndim);
        const int64_t size = own >= 0 ? mask->layout.shape[own] : 1;
        if (size != 1 && size != shape[d]) {
            lb_frame_fail(&w->frame, LB_ERR_INVALID, "a mask of another shape");
            return NULL;
        }
        wide.layout.shape[d] = shape[d],
        wide.layout.stride[d] = own >= 0 && size > 1 ? mask->layout.stride[own] : 0;
    }
    const int64_t n = lb_tensor_numel(&wide);
    double *out = lb_frame_scratch(&w->frame, (size_t)(n > 0 ? n : 1) * sizeof *out);
    const size_t bytes = lb_dtype_bits(mask->dtype) / 8;
    int64_t at = 0;
    for (lb_rows r = lb_rows_of(&wide.layout); out && lb_rows_next(&r); at += r.count)
        for (int64_t j = 0; j < r.count; j++) {
            const double x =
                lb_to_f64(mask->dtype, (const char *)mask->data + (r.offset + j * r.stride) * (int64_t)bytes);
            out[at + j] = mask->dtype != LB_BOOL ? x : (x != 0) != w->hides ? 0 : -INFINITY;
        }
    return out;
}

/* One number per head of each batch: sinks are the same for all queries. */
static const double *read_sinks(work *w, const lb_tensor *sinks)
{
    const int64_t heads = (int64_t)w->batch_heads;
    const lb_layout *l = &sinks->layout;
    double *out = lb_frame_scratch(&w->frame, (size_t)(w->heads + 1) * sizeof *out);
    if (l->ndim != 4 || l->shape[1] != heads || (l->shape[0] != 1 && l->shape[0] * heads != w->heads) ||
        l->shape[3] != 1) {
        lb_frame_fail(&w->frame, LB_ERR_INVALID, "sinks are (batches, heads, queries, 1)");
        return NULL;
    }
    for (int64_t h = 0; out && h < w->heads; h++) {
        const int64_t batch = l->shape[0] == 1 ? 0 : h / heads;
        const int64_t at = batch * l->stride[0] + h % heads * l->stride[1];
        out[h] = lb_to_f64(sinks->dtype,
                           (const char *)sinks->data + at * (int64_t)(lb_dtype_bits(sinks->dtype) / 8));
    }
    return out;
}

static bool begin(work *w, lb_call *call)
{
    const lb_tensor *q = lb_fused_input(call, LB_ATTENTION_Q), *k = lb_fused_input(call, LB_ATTENTION_K),
                    *v = lb_fused_input(call, LB_ATTENTION_V);
    const lb_tensor *mask = lb_fused_input(call, LB_ATTENTION_MASK), *y = &call->results[0];
    if (!k || !v || q->layout.ndim < 2 || k->layout.ndim < 2 || v->layout.ndim < 2 ||
        (mask && mask->layout.ndim > 4)) {
        lb_frame_fail(&w->frame, LB_ERR_INVALID, "q, k and v are (..., tokens, size)");
        return false;
    }
    w->causal = lb_fused_flags(call) & LB_ATTENTION_CAUSAL,
    w->turned = lb_fused_flags(call) & LB_ATTENTION_TURNED;
    w->hides = lb_fused_flags(call) & LB_ATTENTION_HIDDEN;
    w->queries = dim(q, 2), w->size = dim(q, 1), w->keys = dim(v, 2), w->values = dim(v, 1),
    w->heads = leading(q);
    w->scale = lb_fused_number(call, LB_ATTENTION_SCALE), w->cap = lb_fused_number(call, LB_ATTENTION_CAP);
    w->batch_heads = lb_fused_number(call, LB_ATTENTION_HEADS);
    const int64_t kv = leading(v);
    if (dim(k, w->turned ? 1 : 2) != w->keys || dim(k, w->turned ? 2 : 1) != w->size || leading(k) != kv ||
        !kv || w->heads % kv || lb_tensor_numel(y) != w->heads * w->queries * w->values || w->batch_heads < 1 ||
        w->heads % (int64_t)w->batch_heads)
        lb_frame_fail(&w->frame, LB_ERR_INVALID, "query, key, value and result do not match");
    if (!lb_frame_ok(&w->frame)) return false;
    w->groups = w->heads / kv;
    w->narrow = lb_fused_narrow(&w->frame, q);
    if (w->kernel.has_gemm && w->kernel.gemm.kind == LB_SCHEDULE_TENSOR_CORE) w->method.compute = w->narrow;
    w->q = lb_frame_tensor(&w->frame, q), w->k = lb_frame_tensor(&w->frame, k),
    w->v = lb_frame_tensor(&w->frame, v);
    w->mask = mask ? read_mask(w, mask) : NULL;
    const lb_tensor *sinks = lb_fused_input(call, LB_ATTENTION_SINKS);
    w->sinks = sinks ? read_sinks(w, sinks) : NULL;
    w->y = lb_frame_output(&w->frame, LB_ATTENTION_Y, w->heads * w->queries * w->values);
    w->lse = lb_fused_wants(call, LB_ATTENTION_LSE)
                 ? lb_frame_output(&w->frame, LB_ATTENTION_LSE, w->heads * w->queries)
                 : NULL;
    const size_t square = (size_t)(w->queries * w->keys + 1) * sizeof(float),
                 rows = (size_t)(w->queries * w->values + 1) * sizeof(float);
    w->s = lb_frame_scratch(&w->frame, square), w->p = lb_frame_scratch(&w->frame, square);
    w->o = lb_frame_scratch(&w->frame, rows), w->part = lb_frame_scratch(&w->frame, rows);
    w->top = lb_frame_scratch(&w->frame, rows + square), w->sum = lb_frame_scratch(&w->frame, rows + square);
    w->row = lb_frame_scratch(&w->frame, (size_t)(w->keys + 2) * sizeof *w->row);
    w->wide = lb_frame_scratch(&w->frame, (size_t)(2 * w->keys + 2) * sizeof *w->wide);
    return lb_frame_ok(&w->frame);
}

/* The math form scales what it multiplies. */
static const float *scaled(work *w, const char *x, int64_t n)
{
    if (w->kernel.form != MATH) return (const float *)x;
    const float root = (float)sqrt(fabs(w->scale)), sign = w->scale < 0 ? -1 : 1;
    float *y = lb_frame_scratch(&w->frame, (size_t)(n + 1) * sizeof *y);
    for (int64_t i = 0; y && i < n; i++) y[i] = ((const float *)x)[i] * root * (x == w->q ? sign : 1);
    return y;
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    work w = {.frame = lb_frame_begin(call)};
    LB_TRY(read_kernel(kind, lb_fused_text(call), &w.kernel, call->err));
    if (w.kernel.has_gemm) w.method.schedule = &w.kernel.gemm;
    if (!begin(&w, call)) return lb_frame_end(&w.frame);
    const int64_t q_step = w.queries * w.size, k_step = w.keys * w.size, v_step = w.keys * w.values,
                  y_step = w.queries * w.values;
    const double scale16 = lb_twin_scale(call, LB_FUSED_INPUTS);
    const float *q = w.frame.wide ? NULL : scaled(&w, w.q, w.heads * q_step),
                *k = w.frame.wide ? NULL : scaled(&w, w.k, w.heads / w.groups * k_step);
    const uint32_t buffers = w.frame.n_buffers;
    for (int64_t h = 0; h < w.heads && lb_frame_ok(&w.frame); h++) {
        const int64_t g = h / w.groups;
        if (w.frame.wide)
            head_f64(&w, h, (const double *)w.q + h * q_step, (const double *)w.k + g * k_step,
                     (const double *)w.v + g * v_step, (double *)w.y + h * y_step,
                     w.lse ? (double *)w.lse + h * w.queries : NULL, twin, scale16);
        else
            head_f32(&w, h, q + h * q_step, k + g * k_step, (const float *)w.v + g * v_step,
                     (float *)w.y + h * y_step, w.lse ? (float *)w.lse + h * w.queries : NULL);
        while (w.frame.n_buffers > buffers)
            __builtin_free(w.frame.buffers[--w.frame.n_buffers]); /* of the slices */
    }
    return lb_frame_end(&w.frame);
}

/* ---- candidates -------------------------------------------------------------------------------------------------------------------------- */

static uint32_t candidates(const lb_composite *c, char (*texts)[LB_COMPOSITE_TEXT], uint32_t room)
{
    const lb_layout *v = &c->program->values[c->inputs[LB_ATTENTION_V]].layout;
    const int64_t keys = v->ndim >= 2 ? v->shape[v->ndim - 2] : 1;
    const bool narrow = lb_dtype_bits(c->program->values[c->inputs[LB_ATTENTION_Q]].dtype) == 16;
    uint32_t n = lb_candidate_add_all(texts, room, 0, "eager flash-cpu flash:512 unfused math");
    for (int wide = 0; wide < (narrow ? 2 : 1); wide++)
        for (int two = 0; two < 2; two++)
            for (int end = 0; end < 2; end++) {
                const char *options[] = {wide ? ",p:f32" : "", two ? ",exp:2" : "", end ? ",end:divide" : ""};
                for (int64_t block = 512; block >= 16; block /= 2)
                    if (block < keys || block == 512)
                        n = lb_candidate_add(texts, room, n, "flash:%d%s%s%s", (int)block, options[0],
                                             options[1], options[2]);
                for (int64_t slices = 2; slices <= 16 && slices <= keys && !end; slices *= 2)
                    n = lb_candidate_add(texts, room, n, "splitkv:%d%s%s", (int)slices, options[0], options[1]);
            }
    for (int64_t block = 512; block >= 16 && c->inputs[LB_ATTENTION_SINKS] != LB_NONE; block /= 2)
        if (block < keys || block == 512)
            n = lb_candidate_add(texts, room, n, "flash:%d,sink:first", (int)block);
    if (narrow) n = lb_candidate_add(texts, room, n, "unfused,p:f32");
    return n;
}

const lb_fused_kind lb_fused_attention = {
    .row = "fused::attention",
    .kernels = kernels,
    .options = OPTIONS,
    .usual = "flash",
    .run = run,
    .check = check,
    .candidates = candidates,
};
