/* Rounding to the values of a type while keeping f32 or f64 storage: see lastbit/dtype.h.
 *
 * Emulating arithmetic in a narrow type spends its time here, so bf16 and f16 have loops of their own; the others encode
 * and decode in one pass.
 */
#include "float_format.h"

#if LB_HAVE_X86
#include <immintrin.h>
#endif

#define CHUNK 256

static const lb_cast torch_cast = LB_CAST_INIT;

LB_INLINE void bf16_grid_body(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = bits_of_f32(x[i]), rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
        x[i] = f32_of_bits((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : rounded);
    }
}
LB_PER_ISA(bf16_grid, bf16_grid_body, (float *x, size_t n), (x, n))

LB_INLINE void small_grid_body(float *x, size_t n, const float_target *target, const float_format *format)
{
    const float_target t = *target;
    const float_format f = *format;
    for (size_t i = 0; i < n; i++) x[i] = float_decode(float_encode_f32(x[i], &t, LB_RNE, 0), &f);
}
LB_PER_ISA(small_grid, small_grid_body,
           (float *x, size_t n, const float_target *target, const float_format *format), (x, n, target, format))

#if LB_HAVE_X86
LB_TARGET_AVX2 static size_t f16_grid_f16c(float *x, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_storeu_ps(x + i, _mm256_cvtph_ps(h));
    }
    return i;
}
#endif

/* Nearest even, torch's overflow, to any type with a layout. */
static void plain_grid(float *x, size_t n, lb_dtype dtype, const float_format *format)
{
    if (dtype == LB_BF16) {
        bf16_grid(x, n);
        return;
    }
    size_t done = 0;
#if LB_HAVE_X86
    if (dtype == LB_F16 && lb_processor_isa() != LB_ISA_SCALAR) done = f16_grid_f16c(x, n);
#endif
    const float_target target = float_target_of(format, &torch_cast);
    small_grid(x + done, n - done, &target, format);
}

void lb_round_to_grid_f32(float *x, size_t n, lb_dtype dtype, const lb_cast *cast)
{
    if (!cast) cast = &torch_cast;
    dtype = lb_dtype_part(dtype);
    if (dtype == LB_F64 || (dtype == LB_F32 && !cast->flush_subnormals)) return;
    const float_format *format = float_format_of(dtype);
    if (format && cast->rounding == LB_RNE && cast->overflow == LB_OVERFLOW_TORCH && !cast->flush_subnormals) {
        plain_grid(x, n, dtype, format);
        return;
    }
    uint64_t typed[CHUNK]; /* wide enough for any part */
    lb_cast rest = *cast;
    for (size_t at = 0; at < n; at += CHUNK, rest.counter += CHUNK) {
        const size_t count = n - at < CHUNK ? n - at : CHUNK;
        memset(typed, 0, sizeof typed);
        lb_store_f32(dtype, typed, x + at, count, &rest);
        lb_load_f32(x + at, dtype, typed, count);
    }
}

void lb_round_to_grid_f64(double *x, size_t n, lb_dtype dtype, const lb_cast *cast)
{
    if (!cast) cast = &torch_cast;
    dtype = lb_dtype_part(dtype);
    if (dtype == LB_F64) return;
    uint64_t typed[CHUNK];
    lb_cast rest = *cast;
    for (size_t at = 0; at < n; at += CHUNK, rest.counter += CHUNK) {
        const size_t count = n - at < CHUNK ? n - at : CHUNK;
        memset(typed, 0, sizeof typed);
        lb_store_f64(dtype, typed, x + at, count, &rest);
        lb_load_f64(x + at, dtype, typed, count);
    }
}

/* 13 fraction bits go. Infinity stays; a NaN whose upper fraction bits are all zero must not turn into infinity. */
LB_INLINE void tf32_grid_body(float *x, size_t n, lb_rounding rounding)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = bits_of_f32(x[i]);
        const uint32_t bias = rounding == LB_RNE ? 0xfffu + ((u >> 13) & 1u) : rounding == LB_RNA ? 0x1000u : 0u;
        const uint32_t special = (u & 0x7f800000u) == 0x7f800000u;
        const uint32_t nan = (u & 0x7fffffffu) > 0x7f800000u ? 0x400000u : 0u;
        x[i] = f32_of_bits(((u + (special ? 0u : bias)) & 0xffffe000u) | nan);
    }
}
LB_PER_ISA(tf32_grid, tf32_grid_body, (float *x, size_t n, lb_rounding rounding), (x, n, rounding))

void lb_round_to_tf32(float *x, size_t n, lb_rounding rounding)
{
    LB_CHECK(rounding != LB_STOCHASTIC);
    tf32_grid(x, n, rounding);
}
