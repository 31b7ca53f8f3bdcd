/* Tensor cores: see tensor_core.h.
 *
 * Sixteen neighbouring outputs are computed side by side. Operands are split once into a double and its unnormalised
 * exponent; products of two of them are exact in double, so is their scaling by a power of two, and a truncated term is
 * an integer below 2^28. Thus the fused sum is: largest exponent, multiply, truncate, add, all without error. */
#include "orders/tensor_core.h"

#include <lastbit/processor.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#if LB_HAVE_X86
#include <immintrin.h>
#endif

enum { WIDTH = 16, ROWS = 4, DEPTH = 256, ZERO_EXPONENT = -4096 };

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const struct arch {
    const char *name;
    int sixteen, tf32, eight; /* terms of a fused sum */
    bool bf16;
    int fraction, fraction_eight, output_eight;
} archs[] = {
    {"v100", 4, 0, 0, false, 23, 0, 0},       {"a100", 8, 4, 0, true, 24, 0, 0},
    {"ada", 8, 4, 16, true, 24, 13, 13},      {"h100", 16, 8, 32, true, 25, 13, 13},
    {"h100-fp8", 0, 0, 32, false, 0, 13, 13}, {"b200", 16, 8, 32, true, 25, 25, 23},
};
enum { ARCHS = sizeof archs / sizeof *archs };

int lb_tensor_core_arch(const char *name, size_t length)
{
    for (int i = 0; i < ARCHS; i++)
        if (strlen(archs[i].name) == length && !strncmp(archs[i].name, name, length)) return i;
    return -1;
}

const char *lb_tensor_core_name(int arch)
{
    return arch >= 0 && arch < ARCHS ? archs[arch].name : NULL;
}

lb_status lb_tensor_core_find(int arch, lb_dtype a, lb_dtype b, lb_dtype accumulate, lb_tensor_core *core, lb_err *err)
{
    const struct arch *found = &archs[arch];
    const lb_dtype input = lb_dtype_bits(a) <= lb_dtype_bits(b) ? a : b;
    const bool eight = lb_dtype_bits(input) == 8 && lb_dtype_is_float(input), f16 = accumulate == LB_F16;
    *core = (lb_tensor_core){input, 0, found->fraction, -133, f16 ? 10 : 23};
    if (input == LB_F16 || (input == LB_BF16 && found->bf16)) core->terms = found->sixteen;
    if (input == LB_F32) core->terms = found->tf32;
    if (eight) {
        core->terms = found->eight;
        core->fraction = found->fraction_eight;
        if (!f16) core->output = found->output_eight;
    }
    if (f16 && input == LB_F16 && !strcmp(found->name, "b200")) core->floor = -15;
    if (core->terms) return LB_OK;
    return lb_fail(err, LB_ERR_UNSUPPORTED, "the tensor cores of %s do not multiply %s", found->name,
                   lb_dtype_name(input));
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static int least_exponent(lb_dtype dtype)
{
    return dtype == LB_F32 ? -126 : (int)lrint(log2(lb_dtype_min_normal(dtype)));
}

/* A finite nonzero x is significand * 2^exponent with significand in [1, 2), or below 1 at the least exponent. */
static int exponent_of(float x, int least)
{
    if (x == 0) return ZERO_EXPONENT;
    int e;
    frexpf(x, &e);
    return !isfinite(x) ? 128 : e - 1 < least ? least : e - 1;
}

/* Value and exponent of elements, `stride` apart. */
typedef struct halves {
    double *value;
    int32_t *exponent;
    size_t stride;
} halves;

/* `depth` elements (DEPTH at most), `step` apart. */
static void split(const lb_matrix *x, ptrdiff_t at, ptrdiff_t step, size_t depth, lb_dtype input, halves out)
{
    float scratch[DEPTH];
    const int least = least_exponent(input);
    lb_load_f32_strided(scratch, x->dtype, (const char *)x->data + at * (ptrdiff_t)(lb_dtype_bits(x->dtype) / 8), step,
                        depth);
    if (input == LB_F32) lb_round_to_grid_tf32(scratch, depth, LB_RZ);
    for (size_t p = 0; p < depth; p++) {
        out.value[p * out.stride] = scratch[p];
        out.exponent[p * out.stride] = exponent_of(scratch[p], least);
    }
}

/* ---- one fused sum ----------------------------------------------------------------------------------------------- */

LB_INLINE double power_of_two(int64_t exponent)
{
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

/* Towards zero, to `output` fraction bits; for f16 to odd, so that a second rounding is as good as one. */
LB_INLINE float truncated(double x, int output)
{
    float y = (float)x; /* to nearest: one step too far at most */
    uint32_t bits;
    memcpy(&bits, &y, 4);
    const double wide = y, size = fabs(x);
    bits -= (uint32_t)((fabs(wide) > size) & (size < 0x1p128));
    if (output == 10) bits |= (uint32_t)(wide != x);
    if (output == 13) bits &= 0xFFFFFC00;
    bits = x != x ? 0x7FFFFFFF : bits;
    memcpy(&y, &bits, 4);
    return y;
}

/* One group of products by WIDTH outputs: a[p] with exponent ea[p], b[p * WIDTH + j] with eb[p * WIDTH + j]. */
typedef struct group {
    int terms;
    const double *a, *b;
    const int32_t *ea, *eb;
} group;

/* top[j], which starts at the accumulators' exponents, becomes the largest exponent. */
static void tops_scalar(const group *group, int32_t *top)
{
    for (int p = 0; p < group->terms; p++)
        for (int j = 0; j < WIDTH; j++) {
            const int32_t e = group->ea[p] + group->eb[p * WIDTH + j];
            if (e > top[j]) top[j] = e;
        }
}

/* sum[j] += the products times scale[j], each truncated. */
static void sums_scalar(const group *group, const double *scale, double *sum)
{
    for (int p = 0; p < group->terms; p++)
        for (int j = 0; j < WIDTH; j++) sum[j] += trunc(group->a[p] * group->b[p * WIDTH + j] * scale[j]);
}

#if LB_HAVE_X86
LB_TARGET_AVX2 static void tops_avx2(const group *group, int32_t *top)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)top), high = _mm256_loadu_si256((const __m256i *)(top + 8));
    for (int p = 0; p < group->terms; p++) {
        const __m256i a = _mm256_set1_epi32(group->ea[p]);
        const __m256i *b = (const __m256i *)(group->eb + p * WIDTH);
        low = _mm256_max_epi32(low, _mm256_add_epi32(a, _mm256_loadu_si256(b)));
        high = _mm256_max_epi32(high, _mm256_add_epi32(a, _mm256_loadu_si256(b + 1)));
    }
    _mm256_storeu_si256((__m256i *)top, low);
    _mm256_storeu_si256((__m256i *)(top + 8), high);
}

LB_TARGET_AVX2 static void sums_avx2(const group *group, const double *scale, double *sum)
{
    __m256d unit[4], part[4];
    for (int v = 0; v < 4; v++) unit[v] = _mm256_loadu_pd(scale + v * 4), part[v] = _mm256_loadu_pd(sum + v * 4);
    for (int p = 0; p < group->terms; p++) {
        const __m256d a = _mm256_set1_pd(group->a[p]);
        for (int v = 0; v < 4; v++) {
            const __m256d term =
                _mm256_mul_pd(_mm256_mul_pd(a, _mm256_loadu_pd(group->b + p * WIDTH + v * 4)), unit[v]);
            part[v] = _mm256_add_pd(part[v], _mm256_round_pd(term, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
        }
    }
    for (int v = 0; v < 4; v++) _mm256_storeu_pd(sum + v * 4, part[v]);
}

LB_TARGET_AVX512 static void tops_avx512(const group *group, int32_t *top)
{
    __m512i most = _mm512_loadu_si512(top);
    for (int p = 0; p < group->terms; p++)
        most = _mm512_max_epi32(
            most, _mm512_add_epi32(_mm512_set1_epi32(group->ea[p]), _mm512_loadu_si512(group->eb + p * WIDTH)));
    _mm512_storeu_si512(top, most);
}

LB_TARGET_AVX512 static void sums_avx512(const group *group, const double *scale, double *sum)
{
    const __m512d unit[2] = {_mm512_loadu_pd(scale), _mm512_loadu_pd(scale + 8)};
    __m512d part[2] = {_mm512_loadu_pd(sum), _mm512_loadu_pd(sum + 8)};
    for (int p = 0; p < group->terms; p++) {
        const __m512d a = _mm512_set1_pd(group->a[p]);
        for (int v = 0; v < 2; v++) {
            const __m512d term =
                _mm512_mul_pd(_mm512_mul_pd(a, _mm512_loadu_pd(group->b + p * WIDTH + v * 8)), unit[v]);
            part[v] = _mm512_add_pd(part[v], _mm512_roundscale_pd(term, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
        }
    }
    _mm512_storeu_pd(sum, part[0]);
    _mm512_storeu_pd(sum + 8, part[1]);
}
#endif

/* The accumulators' own exponents, at least `floor`. */
LB_INLINE void own_exponents(const float *acc, int floor, int32_t *top)
{
    for (int j = 0; j < WIDTH; j++) {
        uint32_t bits;
        memcpy(&bits, acc + j, 4);
        const int32_t field = (int32_t)(bits >> 23 & 255), e = (field ? field : 1) - 127;
        top[j] = (bits << 1) && e > floor ? e : floor;
    }
}

LB_INLINE void start_sums(const float *acc, const int32_t *top, int fraction, double *scale, double *sum)
{
    for (int j = 0; j < WIDTH; j++) {
        scale[j] = power_of_two(fraction - (int64_t)top[j]);
        sum[j] = __builtin_trunc(acc[j] * scale[j]);
    }
}

LB_INLINE void end_sums(float *acc, const int32_t *top, int fraction, int output, const double *sum)
{
    for (int j = 0; j < WIDTH; j++) /* adding +0: never -0 */
        acc[j] = truncated(sum[j] * power_of_two((int64_t)top[j] - fraction) + 0.0, output);
}

/* ---- chains ------------------------------------------------------------------------------------------------------ */

/* acc[r][j] = the chain of all terms from acc[r][j] on, one fused sum after the other. Rows are interleaved: the sums
 * of a chain wait for each other, those of different rows do not. Row r of A starts at a + r * DEPTH. */
#define CHAINS(TARGET, ISA)                                                                                            \
    TARGET static void chains_##ISA(const lb_tensor_core *core, float acc[][WIDTH], size_t rows, const group *all)     \
    {                                                                                                                  \
        const size_t depth = (size_t)all->terms;                                                                       \
        for (size_t p = 0; p < depth; p += (size_t)core->terms)                                                        \
            for (size_t r = 0; r < rows; r++) {                                                                        \
                const int terms = depth - p < (size_t)core->terms ? (int)(depth - p) : core->terms;                    \
                const group g = {terms, all->a + r * DEPTH + p, all->b + p * WIDTH, all->ea + r * DEPTH + p,           \
                                 all->eb + p * WIDTH};                                                                 \
                int32_t top[WIDTH];                                                                                    \
                double scale[WIDTH], sum[WIDTH];                                                                       \
                own_exponents(acc[r], core->floor, top);                                                               \
                tops_##ISA(&g, top);                                                                                   \
                start_sums(acc[r], top, core->fraction, scale, sum);                                                   \
                sums_##ISA(&g, scale, sum);                                                                            \
                end_sums(acc[r], top, core->fraction, core->output, sum);                                              \
                if (core->output == 10) lb_round_to_grid_f32(acc[r], WIDTH, LB_F16, NULL);                             \
            }                                                                                                          \
    }
CHAINS(, scalar)
#if LB_HAVE_X86
CHAINS(LB_TARGET_AVX2, avx2)
CHAINS(LB_TARGET_AVX512, avx512)
#endif

static void chains(const lb_tensor_core *core, float acc[][WIDTH], size_t rows, const group *all)
{
#if LB_HAVE_X86
    if (lb_processor_isa() == LB_ISA_AVX512)
        chains_avx512(core, acc, rows, all);
    else if (lb_processor_isa() == LB_ISA_AVX2)
        chains_avx2(core, acc, rows, all);
    else
#endif
        chains_scalar(core, acc, rows, all);
}

typedef struct product {
    const lb_tensor_core *core;
    size_t m, n, k;
    const lb_matrix *a, *b;
    float *c;
    double *value; /* of DEPTH columns of A, a row after the other */
    int32_t *exponent;
} product;

/* The terms [p, p + depth) of all rows by sixteen columns from j on; `fresh`: the chains start from +0 here. */
static void panel(const product *product, size_t j, size_t p, size_t depth, bool fresh)
{
    double b[DEPTH * WIDTH];
    int32_t eb[DEPTH * WIDTH];
    float acc[ROWS][WIDTH];
    const size_t width = product->n - j < WIDTH ? product->n - j : WIDTH;
    for (size_t x = 0; x < WIDTH; x++) {
        const size_t column = j + (x < width ? x : 0);
        split(product->b, (ptrdiff_t)p * product->b->row_stride + (ptrdiff_t)column * product->b->col_stride,
              product->b->row_stride, depth, product->core->input, (halves){b + x, eb + x, WIDTH});
    }
    for (size_t i = 0; i < product->m; i += ROWS) {
        const size_t rows = product->m - i < ROWS ? product->m - i : ROWS;
        float *c = product->c + i * product->n + j;
        memset(acc, 0, sizeof acc);
        for (size_t r = 0; !fresh && r < rows; r++) memcpy(acc[r], c + r * product->n, width * sizeof *c);
        chains(product->core, acc, rows,
               &(group){(int)depth, product->value + i * DEPTH, b, product->exponent + i * DEPTH, eb});
        for (size_t r = 0; r < rows; r++) memcpy(c + r * product->n, acc[r], width * sizeof *c);
    }
}

/* The chain of terms [first, last); a piece of it ends where a group does. */
static void pass(const product *product, size_t first, size_t last, bool fresh)
{
    for (size_t p = first; p < last; p += DEPTH) {
        const size_t depth = last - p < DEPTH ? last - p : DEPTH;
#pragma omp parallel for schedule(static) if (product->m * depth > 65536)
        for (size_t i = 0; i < product->m; i++)
            split(product->a, (ptrdiff_t)i * product->a->row_stride + (ptrdiff_t)p * product->a->col_stride,
                  product->a->col_stride, depth, product->core->input,
                  (halves){product->value + i * DEPTH, product->exponent + i * DEPTH, 1});
#pragma omp parallel for schedule(static) if (product->m * product->n * depth > 65536)
        for (size_t j = 0; j < product->n; j += WIDTH) panel(product, j, p, depth, fresh && p == first);
    }
}

static float added(float sum, float part)
{
    const float y = sum + part;
    return y == y ? y : (float)NAN;
}

lb_status lb_tensor_core_product(const lb_tensor_core *core, const lb_tensor_core_shape *shape, const lb_matrix *a,
                                 const lb_matrix *b, float *c)
{
    const size_t m = shape->m, n = shape->n, k = shape->k, promote = shape->promote > 0 ? (size_t)shape->promote : k;
    const bool pieces = promote < k;
    product product = {
        core, m, n, k, a, b, c, malloc(m * DEPTH * sizeof(double) + 1), malloc(m * DEPTH * sizeof(int32_t) + 1)};
    float *part = pieces ? malloc(m * n * sizeof *part + 1) : NULL;
    const lb_status status = product.value && product.exponent && (part || !pieces) ? LB_OK : LB_ERR_NOMEM;
    if (status == LB_OK && !shape->add && (pieces || !k)) memset(c, 0, m * n * sizeof *c);
    if (status == LB_OK && !pieces) pass(&product, 0, k, !shape->add);
    if (pieces) product.c = part;
    for (size_t p = 0; status == LB_OK && pieces && p < k; p += promote) {
        pass(&product, p, k - p < promote ? k : p + promote, true);
        for (size_t i = 0; i < m * n; i++) c[i] = added(c[i], part[i]);
    }
    free(part);
    free(product.exponent);
    free(product.value);
    return status;
}

/* An operand as the unit reads it. */
static float operand(const lb_tensor_core *core, float x)
{
    if (core->input == LB_F32) lb_round_to_grid_tf32(&x, 1, LB_RZ);
    return x;
}

float lb_tensor_core_sum(const lb_tensor_core *core, const float *a, const float *b, size_t count, float acc)
{
    const int least = b ? least_exponent(core->input) : -126, own = exponent_of(acc, -126);
    int top = own > core->floor ? own : core->floor;
    for (size_t i = 0; i < count; i++) {
        const int e = b ? exponent_of(operand(core, a[i]), least) + exponent_of(operand(core, b[i]), least)
                        : exponent_of(a[i], least);
        top = e > top ? e : top;
    }
    const double scale = power_of_two(core->fraction - top);
    double sum = trunc(acc * scale);
    for (size_t i = 0; i < count; i++)
        sum += trunc((b ? (double)operand(core, a[i]) * (double)operand(core, b[i]) : (double)a[i]) * scale);
    float y = truncated(sum * power_of_two(top - core->fraction) + 0.0, core->output);
    if (core->output == 10) lb_round_to_grid_f32(&y, 1, LB_F16, NULL);
    return y;
}
