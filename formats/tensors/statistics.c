/* Statistics in one pass: see lastbit/statistics.h.
 *
 * Elements are taken in row-major order in blocks; element i of a block goes to lane i mod 16 of f64 accumulators that
 * are added up in a fixed order. So the sums are the same bits for every layout of the same elements and for every
 * instruction set: the vector kernels do, lane by lane, what the plain loop does. (They may use fma for squares of
 * f32: such a product is exact in f64, so fused or not is the same.)
 *
 * Types that f32 holds exactly are read as f32, the others as f64. Nearly every block is finite: it is summed without
 * looking, and done again with masks only when its running "x - x" shows that something in it was not. */
#include <lastbit/statistics.h>

#include <lastbit/processor.h>

#include "tensors/dense_pieces.h"

#include <math.h>
#include <string.h>

#define LANES 16
#define BLOCK 1024 /* a multiple of LANES; every block but the last is full, so lanes do not depend on row lengths */

typedef lb_statistics_state lanes;

/* One element, counted by class. Masked elements add nothing: sums start at +0.0 and are never -0. */
static void add_masked(lanes *l, double v, size_t lane)
{
    if (v != v) {
        l->nan++;
    } else if (v == INFINITY) {
        l->pos_inf++;
    } else if (v == -INFINITY) {
        l->neg_inf++;
    } else {
        l->zero += v == 0;
        l->sum[lane] += v;
        l->squares[lane] += v * v;
        l->min = v < l->min ? v : l->min;
        l->max = v > l->max ? v : l->max;
    }
}

/* The plain kernels: finite elements only, n a multiple of LANES; false, with `l` in an undefined state, when one was
 * not. */
#define PLAIN_KERNEL(name, type)                                                                                       \
    static bool name(lanes *l, const type *x, size_t n)                                                                \
    {                                                                                                                  \
        double odd = 0;                                                                                                \
        for (size_t i = 0; i < n; i++) {                                                                               \
            double v = (double)x[i];                                                                                   \
            odd += v - v;                                                                                              \
            l->zero += v == 0;                                                                                         \
            l->sum[i % LANES] += v;                                                                                    \
            l->squares[i % LANES] += v * v;                                                                            \
            l->min = v < l->min ? v : l->min;                                                                          \
            l->max = v > l->max ? v : l->max;                                                                          \
        }                                                                                                              \
        return odd == 0;                                                                                               \
    }
PLAIN_KERNEL(plain_f32, float)
PLAIN_KERNEL(plain_f64, double)
#undef PLAIN_KERNEL

#if LB_HAVE_X86
#include <immintrin.h>

static void take_bounds(lanes *l, const double *low, const double *high, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        l->min = low[k] < l->min ? low[k] : l->min;
        l->max = high[k] > l->max ? high[k] : l->max;
    }
}

LB_TARGET_AVX2 static bool avx2_f64(lanes *l, const double *x, size_t n)
{
    __m256d sum[4], squares[4], low = _mm256_set1_pd(INFINITY), high = _mm256_set1_pd(-INFINITY),
                                odd = _mm256_setzero_pd();
    __m256i zero = _mm256_setzero_si256();
    for (int k = 0; k < 4; k++) {
        sum[k] = _mm256_loadu_pd(l->sum + 4 * k);
        squares[k] = _mm256_loadu_pd(l->squares + 4 * k);
    }
    for (size_t i = 0; i < n; i += LANES) {
        for (int k = 0; k < 4; k++) {
            __m256d v = _mm256_loadu_pd(x + i + 4 * k);
            odd = _mm256_or_pd(odd, _mm256_sub_pd(v, v));
            zero = _mm256_sub_epi64(zero, _mm256_castpd_si256(_mm256_cmp_pd(v, _mm256_setzero_pd(), _CMP_EQ_OQ)));
            sum[k] = _mm256_add_pd(sum[k], v);
            squares[k] = _mm256_add_pd(squares[k], _mm256_mul_pd(v, v));
            low = _mm256_min_pd(v, low);
            high = _mm256_max_pd(v, high);
        }
    }
    int64_t zeros[4];
    double lows[4], highs[4];
    _mm256_storeu_si256((__m256i *)zeros, zero);
    _mm256_storeu_pd(lows, low);
    _mm256_storeu_pd(highs, high);
    l->zero += zeros[0] + zeros[1] + zeros[2] + zeros[3];
    take_bounds(l, lows, highs, 4);
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_pd(l->sum + 4 * k, sum[k]);
        _mm256_storeu_pd(l->squares + 4 * k, squares[k]);
    }
    return _mm256_movemask_pd(_mm256_cmp_pd(odd, odd, _CMP_UNORD_Q)) == 0;
}

/* The masked kernel, for blocks that are not finite (a step that went NaN is nothing else). n a multiple of LANES. */
LB_TARGET_AVX2 static void avx2_masked(lanes *l, const double *x, size_t n)
{
    const __m256d inf = _mm256_set1_pd(INFINITY), minus_inf = _mm256_set1_pd(-INFINITY);
    __m256d low = inf, high = minus_inf;
    __m256i zero = _mm256_setzero_si256(), nan = zero, pos = zero, neg = zero;
#define COUNT(counter, mask) counter = _mm256_sub_epi64(counter, _mm256_castpd_si256(mask))
    for (int k = 0; k < 4; k++) {
        __m256d sum = _mm256_loadu_pd(l->sum + 4 * k), squares = _mm256_loadu_pd(l->squares + 4 * k);
        for (size_t i = 4 * (size_t)k; i < n; i += LANES) {
            __m256d v = _mm256_loadu_pd(x + i), d = _mm256_sub_pd(v, v), finite = _mm256_cmp_pd(d, d, _CMP_ORD_Q);
            __m256d kept = _mm256_and_pd(v, finite);
            COUNT(zero, _mm256_cmp_pd(v, _mm256_setzero_pd(), _CMP_EQ_OQ));
            COUNT(nan, _mm256_cmp_pd(v, v, _CMP_UNORD_Q));
            COUNT(pos, _mm256_cmp_pd(v, inf, _CMP_EQ_OQ));
            COUNT(neg, _mm256_cmp_pd(v, minus_inf, _CMP_EQ_OQ));
            sum = _mm256_add_pd(sum, kept);
            squares = _mm256_add_pd(squares, _mm256_mul_pd(kept, kept));
            low = _mm256_min_pd(_mm256_blendv_pd(inf, v, finite), low);
            high = _mm256_max_pd(_mm256_blendv_pd(minus_inf, v, finite), high);
        }
        _mm256_storeu_pd(l->sum + 4 * k, sum);
        _mm256_storeu_pd(l->squares + 4 * k, squares);
    }
#undef COUNT
    const __m256i counters[4] = {zero, nan, pos, neg};
    int64_t *totals[4] = {&l->zero, &l->nan, &l->pos_inf, &l->neg_inf}, four[4];
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_si256((__m256i *)four, counters[k]);
        *totals[k] += four[0] + four[1] + four[2] + four[3];
    }
    double lows[4], highs[4];
    _mm256_storeu_pd(lows, low);
    _mm256_storeu_pd(highs, high);
    take_bounds(l, lows, highs, 4);
}

LB_TARGET_AVX2 static bool avx2_f32(lanes *l, const float *x, size_t n)
{
    __m256d sum[4], squares[4];
    __m256 low = _mm256_set1_ps(INFINITY), high = _mm256_set1_ps(-INFINITY), odd = _mm256_setzero_ps();
    __m256i zero = _mm256_setzero_si256(); /* 32 bits are enough for one block */
    for (int k = 0; k < 4; k++) {
        sum[k] = _mm256_loadu_pd(l->sum + 4 * k);
        squares[k] = _mm256_loadu_pd(l->squares + 4 * k);
    }
    for (size_t i = 0; i < n; i += LANES) {
        for (int k = 0; k < 2; k++) {
            __m256 v = _mm256_loadu_ps(x + i + 8 * k);
            __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(v)), b = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
            odd = _mm256_or_ps(odd, _mm256_sub_ps(v, v));
            zero = _mm256_sub_epi32(zero, _mm256_castps_si256(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_EQ_OQ)));
            low = _mm256_min_ps(v, low);
            high = _mm256_max_ps(v, high);
            sum[2 * k] = _mm256_add_pd(sum[2 * k], a);
            sum[2 * k + 1] = _mm256_add_pd(sum[2 * k + 1], b);
            squares[2 * k] = _mm256_fmadd_pd(a, a, squares[2 * k]);
            squares[2 * k + 1] = _mm256_fmadd_pd(b, b, squares[2 * k + 1]);
        }
    }
    int32_t zeros[8];
    float lows[8], highs[8];
    _mm256_storeu_si256((__m256i *)zeros, zero);
    _mm256_storeu_ps(lows, low);
    _mm256_storeu_ps(highs, high);
    for (int k = 0; k < 8; k++) {
        double bounds[2] = {lows[k], highs[k]};
        l->zero += zeros[k];
        take_bounds(l, bounds, bounds + 1, 1);
    }
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_pd(l->sum + 4 * k, sum[k]);
        _mm256_storeu_pd(l->squares + 4 * k, squares[k]);
    }
    return _mm256_movemask_ps(_mm256_cmp_ps(odd, odd, _CMP_UNORD_Q)) == 0;
}

LB_TARGET_AVX512 static bool avx512_f32(lanes *l, const float *x, size_t n)
{
    __m512d sum0 = _mm512_loadu_pd(l->sum), sum1 = _mm512_loadu_pd(l->sum + 8);
    __m512d squares0 = _mm512_loadu_pd(l->squares), squares1 = _mm512_loadu_pd(l->squares + 8);
    __m512 low = _mm512_set1_ps(INFINITY), high = _mm512_set1_ps(-INFINITY), odd = _mm512_setzero_ps();
    __m512i zero = _mm512_setzero_si512(), one = _mm512_set1_epi32(1);
    for (size_t i = 0; i < n; i += LANES) {
        __m512 v = _mm512_loadu_ps(x + i);
        __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(v)), b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
        odd = _mm512_or_ps(odd, _mm512_sub_ps(v, v));
        zero = _mm512_mask_add_epi32(zero, _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_EQ_OQ), zero, one);
        low = _mm512_min_ps(v, low);
        high = _mm512_max_ps(v, high);
        sum0 = _mm512_add_pd(sum0, a);
        sum1 = _mm512_add_pd(sum1, b);
        squares0 = _mm512_fmadd_pd(a, a, squares0);
        squares1 = _mm512_fmadd_pd(b, b, squares1);
    }
    double bounds[2] = {_mm512_reduce_min_ps(low), _mm512_reduce_max_ps(high)};
    l->zero += _mm512_reduce_add_epi32(zero);
    take_bounds(l, bounds, bounds + 1, 1);
    _mm512_storeu_pd(l->sum, sum0);
    _mm512_storeu_pd(l->sum + 8, sum1);
    _mm512_storeu_pd(l->squares, squares0);
    _mm512_storeu_pd(l->squares + 8, squares1);
    return _mm512_cmp_ps_mask(odd, odd, _CMP_UNORD_Q) == 0;
}
#else
#define avx2_f64 plain_f64
#define avx2_f32 plain_f32
#define avx512_f32 plain_f32
static void avx2_masked(lanes *l, const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++) add_masked(l, x[i], i % LANES);
}
#endif

/* What is left of a block when the plain kernel gave up on it, or at its end. */
static void add_rest(lanes *l, const double *x, size_t n, lb_isa isa)
{
    size_t whole = isa >= LB_ISA_AVX2 ? n - n % LANES : 0;
    if (whole) avx2_masked(l, x, whole);
    for (size_t i = whole; i < n; i++) add_masked(l, x[i], i % LANES);
}

static void add_f32(lanes *l, const float *x, size_t n, lb_isa isa)
{
    size_t whole = n - n % LANES;
    lanes before = *l;
    bool finite = isa >= LB_ISA_AVX512 ? avx512_f32(l, x, whole)
                  : isa >= LB_ISA_AVX2 ? avx2_f32(l, x, whole)
                                       : plain_f32(l, x, whole);
    if (!finite) {
        *l = before;
        whole = 0;
    }
    double rest[BLOCK];
    for (size_t i = whole; i < n; i++) rest[i - whole] = (double)x[i];
    add_rest(l, rest, n - whole, isa);
}

static void add_f64(lanes *l, const double *x, size_t n, lb_isa isa)
{
    size_t whole = n - n % LANES;
    lanes before = *l;
    bool finite = isa >= LB_ISA_AVX2 ? avx2_f64(l, x, whole) : plain_f64(l, x, whole);
    if (!finite) {
        *l = before;
        whole = 0;
    }
    add_rest(l, x + whole, n - whole, isa);
}

void lb_statistics_begin(lb_statistics_state *state)
{
    memset(state, 0, sizeof *state);
    state->min = INFINITY;
    state->max = -INFINITY;
}

static double sum_of(const double lane[LANES])
{
    double sum = 0;
    for (size_t j = 0; j < LANES; j++) sum += lane[j];
    return sum;
}

static void end_piece(lanes *l)
{
    l->whole_sum += sum_of(l->sum);
    l->whole_squares += sum_of(l->squares);
    memset(l->sum, 0, sizeof l->sum);
    memset(l->squares, 0, sizeof l->squares);
    l->in_piece = 0;
}

void lb_statistics_turn(lb_statistics_state *state)
{
    if (state->in_piece >= LB_STATISTICS_PIECE) end_piece(state);
}

void lb_statistics_join(lb_statistics_state *state, const lb_statistics_state *next)
{
    end_piece(state);
    memcpy(state->sum, next->sum, sizeof state->sum);
    memcpy(state->squares, next->squares, sizeof state->squares);
    state->in_piece = next->in_piece;
    state->elements += next->elements;
    state->zero += next->zero;
    state->nan += next->nan;
    state->pos_inf += next->pos_inf;
    state->neg_inf += next->neg_inf;
    state->min = next->min < state->min ? next->min : state->min;
    state->max = next->max > state->max ? next->max : state->max;
}

lb_statistics lb_statistics_end(const lb_statistics_state *l)
{
    /* A bound that is zero is +0, whichever zero came first. */
    return (lb_statistics){l->elements,
                           l->nan,
                           l->pos_inf,
                           l->neg_inf,
                           l->zero,
                           l->min + 0.0,
                           l->max + 0.0,
                           l->whole_sum + sum_of(l->sum),
                           l->whole_squares + sum_of(l->squares)};
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

static bool fits_f32(lb_dtype dtype)
{
    size_t bits = lb_dtype_bits(dtype);
    return dtype == LB_F32 || bits <= 16;
}

/* Dense elements of one piece. */
static void add_in_piece(lanes *l, lb_dtype dtype, const char *bytes, size_t n)
{
    const size_t bits = lb_dtype_bits(dtype);
    const lb_isa isa = lb_processor_isa();
    union {
        float f32[BLOCK];
        double f64[BLOCK];
    } block;
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t take = n - at < BLOCK ? n - at : BLOCK;
        const char *from = bytes + at * bits / 8;
        if (dtype == LB_F32 && (uintptr_t)from % sizeof(float) == 0) {
            add_f32(l, (const float *)(const void *)from, take, isa);
        } else if (fits_f32(dtype)) {
            lb_load_f32(block.f32, dtype, from, take);
            add_f32(l, block.f32, take, isa);
        } else {
            lb_load_f64(block.f64, dtype, from, take);
            add_f64(l, block.f64, take, isa);
        }
    }
    l->in_piece += (int64_t)n;
    l->elements += (int64_t)n;
}

/* Dense elements, a multiple of LANES of them or the last ones. */
static void add_elements(lanes *l, lb_dtype dtype, const char *bytes, size_t n)
{
    while (n > 0) {
        lb_statistics_turn(l);
        size_t room = (size_t)(LB_STATISTICS_PIECE - l->in_piece), take = n < room ? n : room;
        add_in_piece(l, dtype, bytes, take);
        bytes += take * lb_dtype_bits(dtype) / 8;
        n -= take;
    }
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
    lanes l;
    lb_statistics_begin(&l);
    int64_t elements = lb_layout_numel(&view.layout);
    if (lb_dtype_bits(view.dtype) == 0 || elements < 0) return lb_statistics_end(&l);
    lb_dense_pieces pieces;
    for (lb_dense_begin(&pieces, &view); lb_dense_next(&pieces);)
        add_elements(&l, view.dtype, pieces.bytes, pieces.elements);
    return lb_statistics_end(&l);
}
