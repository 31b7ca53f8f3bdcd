/* Statistics in one pass: see lastbit/statistics.h, which says in which order sums are made.
 *
 * The vector kernels do, lane by lane, what the plain loop does, so that sums are the same bits for every layout of the
 * same elements and for every instruction set. (They may use fma for squares of f32: such a product is exact in f64, so
 * fused or not is the same.)
 *
 * Types that f32 holds exactly are read as f32, the others as f64. Nearly every block is finite: it is summed without
 * looking, and done again with masks only when its running "x - x" shows that something in it was not. */
#include <lastbit/statistics.h>

#include <lastbit/processor.h>

#include "tensors/dense_pieces.h"
#include "tensors/lane_pairs.h"

#include <math.h>
#include <string.h>

#define STRIPE 64      /* bytes whose elements go to a lane each */
#define ROWS 16        /* stripes of a block */
#define MOST_LANES 128 /* elements of 4 bits */
#define MOST (ROWS * MOST_LANES)

/* What goes on from block to block without regard to order: of f32, and of f64. */
typedef struct bounds {
    float low[16], high[16];
    int32_t zero[16]; /* enough for one call's blocks: see add_elements */
    double low64[4], high64[4];
    int64_t zero64[4];
} bounds;

/* Of a block: whole rows of the lanes, and perhaps one that is not whole, with zeros behind it. */
typedef struct rows {
    size_t lanes, n;  /* n: elements of the whole ones */
    const void *last; /* NULL: there is none. Its elements are only added; bounds are asked of them one by one. */
} rows;

/* One element, counted by class. Masked elements add nothing: sums start at +0.0 and are never -0. */
static void add_masked(lb_statistics_state *state, double number, double *sum, double *square)
{
    if (number != number) {
        state->nan++;
    } else if (number == INFINITY) {
        state->pos_inf++;
    } else if (number == -INFINITY) {
        state->neg_inf++;
    } else {
        state->zero += number == 0;
        *sum += number;
        *square += number * number;
        state->min = number < state->min ? number : state->min;
        state->max = number > state->max ? number : state->max;
    }
}

/* A finite one that is added elsewhere. */
static void add_bounds(lb_statistics_state *state, double v)
{
    state->zero += v == 0;
    state->min = v < state->min ? v : state->min;
    state->max = v > state->max ? v : state->max;
}

/* Any number of elements of a block, whatever they are. */
static lb_lane_sums plain_masked(lb_statistics_state *state, const double *x, size_t n, size_t lanes)
{
    double sum[MOST_LANES], squares[MOST_LANES];
    memset(sum, 0, lanes * sizeof *sum);
    memset(squares, 0, lanes * sizeof *squares);
    for (size_t i = 0; i < n; i++) add_masked(state, x[i], &sum[i % lanes], &squares[i % lanes]);
    return (lb_lane_sums){lb_lane_paired(sum, lanes), lb_lane_paired(squares, lanes)};
}

/* The kernels of whole blocks: false, and nothing is to be taken from them, when an element was not finite. */
static bool plain_f64(lb_statistics_state *state, const double *x, size_t lanes, lb_lane_sums *to)
{
    double sum[MOST_LANES] = {0}, squares[MOST_LANES] = {0}, odd = 0, low = state->min, high = state->max;
    int64_t zero = 0;
    for (size_t i = 0; i < ROWS * lanes; i += lanes) {
        for (size_t k = 0; k < lanes; k++) {
            const double v = x[i + k];
            odd += v - v;
            zero += v == 0;
            sum[k] += v;
            squares[k] += v * v;
            low = v < low ? v : low;
            high = v > high ? v : high;
        }
    }
    if (odd != 0) return false;
    state->zero += zero;
    state->min = low;
    state->max = high;
    *to = (lb_lane_sums){lb_lane_paired(sum, lanes), lb_lane_paired(squares, lanes)};
    return true;
}

#if LB_HAVE_X86
LB_TARGET_AVX2 static bool avx2_f32(const float *x, const rows *rows, lb_lane_sums *to, bounds *bounds)
{
    const size_t lanes = rows->lanes;
    __m256 low = _mm256_loadu_ps(bounds->low), high = _mm256_loadu_ps(bounds->high), odd = _mm256_setzero_ps();
    __m256i zero = _mm256_loadu_si256((const __m256i *)(const void *)bounds->zero);
    __m128d eights[MOST_LANES / 8];
    for (size_t k = 0; k < lanes; k += 8) {
        __m256d sum[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()}, squares[2] = {sum[0], sum[0]};
        for (size_t i = k; i < rows->n; i += lanes) {
            const __m256 v = _mm256_loadu_ps(x + i);
            const __m256d p = _mm256_cvtps_pd(_mm256_castps256_ps128(v)),
                          q = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
            odd = _mm256_or_ps(odd, _mm256_sub_ps(v, v));
            zero = _mm256_sub_epi32(zero, _mm256_castps_si256(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_EQ_OQ)));
            low = _mm256_min_ps(v, low);
            high = _mm256_max_ps(v, high);
            sum[0] = _mm256_add_pd(sum[0], p);
            sum[1] = _mm256_add_pd(sum[1], q);
            squares[0] = _mm256_fmadd_pd(p, p, squares[0]);
            squares[1] = _mm256_fmadd_pd(q, q, squares[1]);
        }
        if (rows->last) {
            const __m256 v = _mm256_loadu_ps((const float *)rows->last + k);
            const __m256d p = _mm256_cvtps_pd(_mm256_castps256_ps128(v)),
                          q = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
            odd = _mm256_or_ps(odd, _mm256_sub_ps(v, v));
            sum[0] = _mm256_add_pd(sum[0], p);
            sum[1] = _mm256_add_pd(sum[1], q);
            squares[0] = _mm256_fmadd_pd(p, p, squares[0]);
            squares[1] = _mm256_fmadd_pd(q, q, squares[1]);
        }
        eights[k / 8] = lb_lane_eight(sum, squares);
    }
    if (_mm256_movemask_ps(_mm256_cmp_ps(odd, odd, _CMP_UNORD_Q))) return false;
    _mm256_storeu_ps(bounds->low, low);
    _mm256_storeu_ps(bounds->high, high);
    _mm256_storeu_si256((__m256i *)(void *)bounds->zero, zero);
    *to = lb_lane_sums_of(eights, lanes / 8);
    return true;
}

LB_TARGET_AVX2 static bool avx2_f64(const double *x, const rows *rows, lb_lane_sums *to, bounds *bounds)
{
    const __m256d first_low = _mm256_loadu_pd(bounds->low64), first_high = _mm256_loadu_pd(bounds->high64);
    __m256d low[2] = {first_low, first_low}, high[2] = {first_high, first_high}, odd = _mm256_setzero_pd();
    __m256i zero = _mm256_loadu_si256((const __m256i *)(const void *)bounds->zero64);
    __m128d eights[MOST_LANES / 8];
    for (size_t k = 0; k < rows->lanes; k += 8) {
        __m256d sum[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()}, squares[2] = {sum[0], sum[0]};
        for (size_t i = k; i < rows->n; i += rows->lanes) {
            for (int h = 0; h < 2; h++) {
                const __m256d v = _mm256_loadu_pd(x + i + 4 * h);
                odd = _mm256_or_pd(odd, _mm256_sub_pd(v, v));
                zero = _mm256_sub_epi64(zero, _mm256_castpd_si256(_mm256_cmp_pd(v, _mm256_setzero_pd(), _CMP_EQ_OQ)));
                low[h] = _mm256_min_pd(v, low[h]);
                high[h] = _mm256_max_pd(v, high[h]);
                sum[h] = _mm256_add_pd(sum[h], v);
                squares[h] = _mm256_add_pd(squares[h], _mm256_mul_pd(v, v));
            }
        }
        if (rows->last) {
            for (int h = 0; h < 2; h++) {
                const __m256d v = _mm256_loadu_pd((const double *)rows->last + k + 4 * h);
                odd = _mm256_or_pd(odd, _mm256_sub_pd(v, v));
                sum[h] = _mm256_add_pd(sum[h], v);
                squares[h] = _mm256_add_pd(squares[h], _mm256_mul_pd(v, v));
            }
        }
        eights[k / 8] = lb_lane_eight(sum, squares);
    }
    if (_mm256_movemask_pd(_mm256_cmp_pd(odd, odd, _CMP_UNORD_Q))) return false;
    _mm256_storeu_pd(bounds->low64, _mm256_min_pd(low[0], low[1]));
    _mm256_storeu_pd(bounds->high64, _mm256_max_pd(high[0], high[1]));
    _mm256_storeu_si256((__m256i *)(void *)bounds->zero64, zero);
    *to = lb_lane_sums_of(eights, rows->lanes / 8);
    return true;
}

/* The masked kernel, for blocks that are not finite (a step that went NaN is nothing else). */
LB_TARGET_AVX2 static lb_lane_sums avx2_masked(lb_statistics_state *state, const double *x, size_t lanes)
{
    const __m256d inf = _mm256_set1_pd(INFINITY), minus_inf = _mm256_set1_pd(-INFINITY);
    __m256d low = inf, high = minus_inf;
    __m256i zero = _mm256_setzero_si256(), nan = zero, pos = zero, neg = zero;
    __m128d eights[MOST_LANES / 8];
#define COUNT(counter, mask) counter = _mm256_sub_epi64(counter, _mm256_castpd_si256(mask))
    for (size_t k = 0; k < lanes; k += 8) {
        __m256d sum[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()}, squares[2] = {sum[0], sum[0]};
        for (size_t i = k; i < ROWS * lanes; i += lanes) {
            for (int h = 0; h < 2; h++) {
                const __m256d v = _mm256_loadu_pd(x + i + 4 * h), d = _mm256_sub_pd(v, v),
                              finite = _mm256_cmp_pd(d, d, _CMP_ORD_Q), kept = _mm256_and_pd(v, finite);
                COUNT(zero, _mm256_cmp_pd(v, _mm256_setzero_pd(), _CMP_EQ_OQ));
                COUNT(nan, _mm256_cmp_pd(v, v, _CMP_UNORD_Q));
                COUNT(pos, _mm256_cmp_pd(v, inf, _CMP_EQ_OQ));
                COUNT(neg, _mm256_cmp_pd(v, minus_inf, _CMP_EQ_OQ));
                sum[h] = _mm256_add_pd(sum[h], kept);
                squares[h] = _mm256_add_pd(squares[h], _mm256_mul_pd(kept, kept));
                low = _mm256_min_pd(_mm256_blendv_pd(inf, v, finite), low);
                high = _mm256_max_pd(_mm256_blendv_pd(minus_inf, v, finite), high);
            }
        }
        eights[k / 8] = lb_lane_eight(sum, squares);
    }
#undef COUNT
    const __m256i counters[4] = {zero, nan, pos, neg};
    int64_t *totals[4] = {&state->zero, &state->nan, &state->pos_inf, &state->neg_inf}, four[4];
    double lows[4], highs[4];
    _mm256_storeu_pd(lows, low);
    _mm256_storeu_pd(highs, high);
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_si256((__m256i *)four, counters[k]);
        *totals[k] += four[0] + four[1] + four[2] + four[3];
        state->min = lows[k] < state->min ? lows[k] : state->min;
        state->max = highs[k] > state->max ? highs[k] : state->max;
    }
    return lb_lane_sums_of(eights, lanes / 8);
}

LB_TARGET_AVX512 static bool avx512_f32(const float *x, const rows *rows, lb_lane_sums *to, bounds *bounds)
{
    const size_t lanes = rows->lanes;
    __m512 low = _mm512_loadu_ps(bounds->low), high = _mm512_loadu_ps(bounds->high), odd = _mm512_setzero_ps();
    __m512i zero = _mm512_loadu_si512(bounds->zero), one = _mm512_set1_epi32(1);
    __m128d sixteens[MOST_LANES / 16];
    for (size_t k = 0; k < lanes; k += 16) {
        __m512d sum[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()}, squares[2] = {sum[0], sum[0]};
        for (size_t i = k; i < rows->n; i += lanes) {
            const __m512 v = _mm512_loadu_ps(x + i);
            const __m512d p = _mm512_cvtps_pd(_mm512_castps512_ps256(v)),
                          q = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
            odd = _mm512_or_ps(odd, _mm512_sub_ps(v, v));
            zero = _mm512_mask_add_epi32(zero, _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_EQ_OQ), zero, one);
            low = _mm512_min_ps(v, low);
            high = _mm512_max_ps(v, high);
            sum[0] = _mm512_add_pd(sum[0], p);
            sum[1] = _mm512_add_pd(sum[1], q);
            squares[0] = _mm512_fmadd_pd(p, p, squares[0]);
            squares[1] = _mm512_fmadd_pd(q, q, squares[1]);
        }
        if (rows->last) {
            const __m512 v = _mm512_loadu_ps((const float *)rows->last + k);
            const __m512d p = _mm512_cvtps_pd(_mm512_castps512_ps256(v)),
                          q = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
            odd = _mm512_or_ps(odd, _mm512_sub_ps(v, v));
            sum[0] = _mm512_add_pd(sum[0], p);
            sum[1] = _mm512_add_pd(sum[1], q);
            squares[0] = _mm512_fmadd_pd(p, p, squares[0]);
            squares[1] = _mm512_fmadd_pd(q, q, squares[1]);
        }
        sixteens[k / 16] = lb_lane_sixteen(sum, squares);
    }
    if (_mm512_cmp_ps_mask(odd, odd, _CMP_UNORD_Q)) return false;
    _mm512_storeu_ps(bounds->low, low);
    _mm512_storeu_ps(bounds->high, high);
    _mm512_storeu_si512(bounds->zero, zero);
    *to = lb_lane_sums_of(sixteens, lanes / 16);
    return true;
}
#endif

/* ---- blocks of elements ------------------------------------------------------------------------------------------ */

static void add_f64(lb_statistics_state *state, bounds *bounds, const double *x, size_t n, size_t lanes)
{
    lb_lane_sums sums;
    bool done = false;
#if LB_HAVE_X86
    double last[MOST_LANES];
    const size_t rest = n % lanes;
    const rows rows = {lanes, n - rest, rest ? last : NULL};
    if (lb_processor_isa() >= LB_ISA_AVX2) {
        for (size_t i = 0; rest && i < lanes; i++) last[i] = i < rest ? x[rows.n + i] : 0;
        done = avx2_f64(x, &rows, &sums, bounds);
        for (size_t i = 0; done && i < rest; i++) add_bounds(state, last[i]);
        if (!done && n == ROWS * lanes) {
            sums = avx2_masked(state, x, lanes);
            done = true;
        }
    }
#endif
    (void)bounds;
    if (!done && (n < ROWS * lanes || !plain_f64(state, x, lanes, &sums))) sums = plain_masked(state, x, n, lanes);
    lb_statistics_add_block(state, sums.sum, sums.squares);
}

static void add_f32(lb_statistics_state *state, bounds *bounds, const float *x, size_t n, size_t lanes)
{
#if LB_HAVE_X86
    const lb_isa isa = lb_processor_isa();
    if (isa >= LB_ISA_AVX2) {
        lb_lane_sums sums;
        float last[MOST_LANES];
        const size_t rest = n % lanes;
        const rows rows = {lanes, n - rest, rest ? last : NULL};
        for (size_t i = 0; rest && i < lanes; i++) last[i] = i < rest ? x[rows.n + i] : 0;
        if (isa >= LB_ISA_AVX512 ? avx512_f32(x, &rows, &sums, bounds) : avx2_f32(x, &rows, &sums, bounds)) {
            for (size_t i = 0; i < rest; i++) add_bounds(state, (double)last[i]);
            lb_statistics_add_block(state, sums.sum, sums.squares);
            return;
        }
    }
#endif
    double wide[MOST];
    for (size_t i = 0; i < n; i++) wide[i] = (double)x[i];
    add_f64(state, bounds, wide, n, lanes);
}

static bounds bounds_begin(void)
{
    bounds b = {.zero = {0}};
    for (size_t i = 0; i < 16; i++) b.low[i] = INFINITY, b.high[i] = -INFINITY;
    for (size_t i = 0; i < 4; i++) b.low64[i] = INFINITY, b.high64[i] = -INFINITY;
    return b;
}

static void bounds_end(lb_statistics_state *state, const bounds *bounds)
{
    for (size_t i = 0; i < 16; i++) {
        state->zero += bounds->zero[i];
        state->min = bounds->low[i] < state->min ? (double)bounds->low[i] : state->min;
        state->max = bounds->high[i] > state->max ? (double)bounds->high[i] : state->max;
    }
    for (size_t i = 0; i < 4; i++) {
        state->zero += bounds->zero64[i];
        state->min = bounds->low64[i] < state->min ? bounds->low64[i] : state->min;
        state->max = bounds->high64[i] > state->max ? bounds->high64[i] : state->max;
    }
}

static bool fits_f32(lb_dtype dtype)
{
    size_t bits = lb_dtype_bits(dtype);
    return dtype == LB_F32 || bits <= 16;
}

/* At most so many elements that 32 bits count zeros. */
static void add_some(lb_statistics_state *state, lb_dtype dtype, const char *bytes, size_t n)
{
    const size_t bits = lb_dtype_bits(dtype), lanes = STRIPE * 8 / bits, per_block = ROWS * lanes;
    bounds bounds = bounds_begin();
    union {
        float f32[MOST];
        double f64[MOST / 2];
    } space;
    for (size_t at = 0; at < n; at += per_block) {
        const size_t take = n - at < per_block ? n - at : per_block;
        const char *from = bytes + at * bits / 8;
        if (dtype == LB_F32 && (uintptr_t)from % sizeof(float) == 0) {
            add_f32(state, &bounds, (const float *)(const void *)from, take, lanes);
        } else if (fits_f32(dtype)) {
            lb_load_f32(space.f32, dtype, from, take);
            add_f32(state, &bounds, space.f32, take, lanes);
        } else {
            lb_load_f64(space.f64, dtype, from, take);
            add_f64(state, &bounds, space.f64, take, lanes);
        }
    }
    bounds_end(state, &bounds);
    state->elements += (int64_t)n;
}

/* Dense elements, whole blocks or the last ones. */
static void add_elements(lb_statistics_state *state, lb_dtype dtype, const char *bytes, size_t n)
{
    const size_t most = (size_t)1 << 28;
    for (size_t take; n > 0; n -= take) {
        take = n < most ? n : most;
        add_some(state, dtype, bytes, take);
        bytes += take * lb_dtype_bits(dtype) / 8;
    }
}

/* ---- sums of blocks ---------------------------------------------------------------------------------------------- */

void lb_statistics_begin(lb_statistics_state *state)
{
    memset(state, 0, sizeof *state);
    state->min = INFINITY;
    state->max = -INFINITY;
}

/* Of 2^k groups that follow what is there, which is a multiple of as many. */
static void add_groups(lb_statistics_state *state, unsigned k, double sum, double squares)
{
    for (state->groups += UINT64_C(1) << k; !(state->groups >> k & 1); k++) {
        sum = state->group_sum[k] + sum;
        squares = state->group_squares[k] + squares;
    }
    state->group_sum[k] = sum;
    state->group_squares[k] = squares;
}

void lb_statistics_add_block(lb_statistics_state *state, double sum, double squares)
{
    state->sum[state->blocks] = sum;
    state->squares[state->blocks] = squares;
    if (++state->blocks < LB_STATISTICS_GROUP) return;
    state->blocks = 0;
    add_groups(state, 0, lb_lane_paired(state->sum, LB_STATISTICS_GROUP),
               lb_lane_paired(state->squares, LB_STATISTICS_GROUP));
}

void lb_statistics_join(lb_statistics_state *state, const lb_statistics_state *next)
{
    for (unsigned k = sizeof next->group_sum / sizeof next->group_sum[0]; k-- > 0;)
        if (next->groups >> k & 1) add_groups(state, k, next->group_sum[k], next->group_squares[k]);
    memcpy(state->sum, next->sum, sizeof state->sum);
    memcpy(state->squares, next->squares, sizeof state->squares);
    state->blocks = next->blocks;
    state->elements += next->elements;
    state->zero += next->zero;
    state->nan += next->nan;
    state->pos_inf += next->pos_inf;
    state->neg_inf += next->neg_inf;
    state->min = next->min < state->min ? next->min : state->min;
    state->max = next->max > state->max ? next->max : state->max;
}

/* The blocks of no full group, and before them groups, the fewest first. A block that is missing is +0, which adds
 * nothing. */
static double sum_of(const double *blocks, uint32_t n_blocks, const double *groups, uint64_t which)
{
    double last[LB_STATISTICS_GROUP] = {0};
    memcpy(last, blocks, n_blocks * sizeof *last);
    double sum = lb_lane_paired(last, LB_STATISTICS_GROUP);
    for (unsigned k = 0; which >> k; k++)
        if (which >> k & 1) sum = groups[k] + sum;
    return sum;
}

lb_statistics lb_statistics_end(const lb_statistics_state *state)
{
    /* A bound that is zero is +0, whichever zero came first. */
    return (lb_statistics){state->elements,
                           state->nan,
                           state->pos_inf,
                           state->neg_inf,
                           state->zero,
                           state->min + 0.0,
                           state->max + 0.0,
                           sum_of(state->sum, state->blocks, state->group_sum, state->groups),
                           sum_of(state->squares, state->blocks, state->group_squares, state->groups)};
}

/* A complex view as a view of its parts: one more dimension, of size 2. Dimensions of size 1 make room for it; a view
 * of 16 real dimensions has none and shows its real parts alone. */
static lb_tensor parts_of(const lb_tensor *tensor)
{
    lb_tensor parts = *tensor;
    parts.dtype = lb_dtype_part(tensor->dtype);
    if (parts.dtype == tensor->dtype) return parts;
    lb_layout *layout = &parts.layout;
    int kept = 0;
    for (int d = 0; d < layout->ndim; d++) {
        if (layout->shape[d] == 1) continue;
        layout->shape[kept] = layout->shape[d];
        layout->stride[kept++] = layout->stride[d] * 2;
    }
    layout->ndim = kept;
    if (kept < LB_MAX_DIMS) {
        layout->shape[layout->ndim] = 2;
        layout->stride[layout->ndim++] = 1;
    }
    return parts;
}

void lb_statistics_add(lb_statistics_state *state, lb_dtype dtype, const void *elements, size_t count)
{
    lb_dtype part = lb_dtype_part(dtype);
    if (lb_dtype_bits(dtype) == 0) return;
    if (part != dtype) count *= 2; /* of the parts */
    add_elements(state, part, (const char *)elements, count);
}

lb_statistics lb_statistics_of(const lb_tensor *tensor)
{
    lb_tensor view = parts_of(tensor);
    lb_statistics_state state;
    lb_statistics_begin(&state);
    int64_t elements = lb_layout_numel(&view.layout);
    if (lb_dtype_bits(view.dtype) == 0 || elements < 0) return lb_statistics_end(&state);
    lb_dense_pieces pieces;
    for (lb_dense_begin(&pieces, &view); lb_dense_next(&pieces);)
        add_elements(&state, view.dtype, pieces.bytes, pieces.elements);
    return lb_statistics_end(&state);
}
