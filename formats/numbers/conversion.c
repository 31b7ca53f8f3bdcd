/* Arrays from one element type to another: see lastbit/dtype.h for what each conversion gives.
 *
 * Dense loops do the work, compiled once per instruction set; a strided side is gathered or scattered in chunks around
 * them. Element pointers may be unaligned (tensors inside a safetensors file are), hence the any_* types.
 */
#include "numbers/philox.h"
#include "numbers/rounding.h"

#include <math.h>
#if LB_HAVE_X86
#include <immintrin.h>
#endif

#define CHUNK 256 /* elements gathered at a time */

#define ANY __attribute__((aligned(1), may_alias))
typedef uint16_t any_u16 ANY;
typedef uint32_t any_u32 ANY;
typedef uint64_t any_u64 ANY;
typedef int8_t any_i8 ANY;
typedef int16_t any_i16 ANY;
typedef int32_t any_i32 ANY;
typedef int64_t any_i64 ANY;
typedef float any_f32 ANY;
typedef double any_f64 ANY;

static const lb_cast torch_cast = LB_CAST_INIT;

/* --- f32 <- typed ---------------------------------------------------------------------------------------------- */

LB_INLINE void bf16_load_body(float *dst, const any_u16 *src, size_t n)
{
    for (size_t i = 0; i < n; i++) dst[i] = f32_of_bits((uint32_t)src[i] << 16);
}
LB_PER_ISA(bf16_load, bf16_load_body, (float *dst, const any_u16 *src, size_t n), (dst, src, n))

LB_INLINE void u8_load_body(float *dst, const uint8_t *src, size_t n, const float_format *format)
{
    const float_format f = *format;
    for (size_t i = 0; i < n; i++) dst[i] = float_decode(src[i], &f);
}
LB_PER_ISA(u8_load, u8_load_body, (float *dst, const uint8_t *src, size_t n, const float_format *format),
           (dst, src, n, format))

static void f16_load_scalar(float *dst, const any_u16 *src, size_t n)
{
    const float_format format = *float_format_of(LB_F16);
    for (size_t i = 0; i < n; i++) dst[i] = float_decode(src[i], &format);
}

#if LB_HAVE_X86
LB_TARGET_AVX2 static void f16_load_f16c(float *dst, const any_u16 *src, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + i))));
    f16_load_scalar(dst + i, src + i, n - i);
}
#endif

static void f16_load(float *dst, const any_u16 *src, size_t n)
{
#if LB_HAVE_X86
    if (lb_processor_isa() != LB_ISA_SCALAR) {
        f16_load_f16c(dst, src, n);
        return;
    }
#endif
    f16_load_scalar(dst, src, n);
}

static void e2m1_load(float *dst, const uint8_t *src, size_t n)
{
    uint8_t codes[CHUNK];
    for (size_t at = 0; at < n; at += CHUNK) {
        const size_t count = n - at < CHUNK ? n - at : CHUNK;
        for (size_t i = 0; i < (count + 1) / 2; i++) {
            codes[2 * i] = src[at / 2 + i] & 15u;
            codes[2 * i + 1] = src[at / 2 + i] >> 4;
        }
        u8_load(dst + at, codes, count, float_format_of(LB_E2M1));
    }
}

#define LOAD_LOOP(type, expression)                                                                                    \
    do {                                                                                                               \
        const type *s = (const type *)src;                                                                             \
        for (size_t i = 0; i < n; i++) dst[i] = (expression);                                                          \
        return;                                                                                                        \
    } while (0)

void lb_load_f32(float *dst, lb_dtype src_dtype, const void *src, size_t n)
{
    switch (src_dtype) {
    case LB_F64: LOAD_LOOP(any_f64, (float)s[i]);
    case LB_F32:
        if (n && dst != src) memmove(dst, src, n * sizeof *dst);
        return;
    case LB_BF16: bf16_load(dst, (const any_u16 *)src, n); return;
    case LB_F16: f16_load(dst, (const any_u16 *)src, n); return;
    case LB_E4M3FN:
    case LB_E5M2:
    case LB_E4M3FNUZ:
    case LB_E5M2FNUZ: u8_load(dst, (const uint8_t *)src, n, float_format_of(src_dtype)); return;
    case LB_E8M0: LOAD_LOOP(uint8_t, scale_decode(s[i]));
    case LB_E2M1: e2m1_load(dst, (const uint8_t *)src, n); return;
    case LB_C32: LOAD_LOOP(any_u16, float_decode(s[2 * i], float_format_of(LB_F16)));
    case LB_C64: LOAD_LOOP(any_f32, s[2 * i]);
    case LB_C128: LOAD_LOOP(any_f64, (float)s[2 * i]);
    case LB_I8: LOAD_LOOP(any_i8, (float)s[i]);
    case LB_I16: LOAD_LOOP(any_i16, (float)s[i]);
    case LB_I32: LOAD_LOOP(any_i32, (float)s[i]);
    case LB_I64: LOAD_LOOP(any_i64, (float)s[i]);
    case LB_U8: LOAD_LOOP(uint8_t, (float)s[i]);
    case LB_U16: LOAD_LOOP(any_u16, (float)s[i]);
    case LB_U32: LOAD_LOOP(any_u32, (float)s[i]);
    case LB_U64: LOAD_LOOP(any_u64, (float)s[i]);
    case LB_BOOL: LOAD_LOOP(uint8_t, s[i] ? 1.0f : 0.0f);
    default: LB_CHECK(!"a dtype");
    }
}

LB_INLINE void f32_widen_body(double *dst, const any_f32 *src, size_t n)
{
    for (size_t i = 0; i < n; i++) dst[i] = (double)src[i];
}
LB_PER_ISA(f32_widen, f32_widen_body, (double *dst, const any_f32 *src, size_t n), (dst, src, n))

void lb_load_f64(double *dst, lb_dtype src_dtype, const void *src, size_t n)
{
    switch (src_dtype) {
    case LB_F64:
        if (n && dst != src) memmove(dst, src, n * sizeof *dst);
        return;
    case LB_C128: LOAD_LOOP(any_f64, s[2 * i]);
    case LB_F32: f32_widen(dst, src, n); return;
    case LB_I32: LOAD_LOOP(any_i32, (double)s[i]);
    case LB_I64: LOAD_LOOP(any_i64, (double)s[i]);
    case LB_U32: LOAD_LOOP(any_u32, (double)s[i]);
    case LB_U64: LOAD_LOOP(any_u64, (double)s[i]);
    default: break;
    }
    /* Every other type is exact in f32. */
    const char *from = src;
    float part[CHUNK];
    for (size_t at = 0; at < n; at += CHUNK) {
        const size_t count = n - at < CHUNK ? n - at : CHUNK;
        lb_load_f32(part, src_dtype, from + lb_dtype_bytes(src_dtype, at), count);
        for (size_t i = 0; i < count; i++) dst[at + i] = part[i];
    }
}

/* --- typed <- f32 ---------------------------------------------------------------------------------------------- */

LB_INLINE void bf16_store_body(any_u16 *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = bits_of_f32(src[i]), rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        dst[i] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
    }
}
LB_PER_ISA(bf16_store, bf16_store_body, (any_u16 * dst, const float *src, size_t n), (dst, src, n))

/* One loop per rounding, so that each compiles to straight vector code. */
#define ENCODE_LOOPS(convert)                                                                                          \
    switch (rounding) {                                                                                                \
    case LB_RNE:                                                                                                       \
        for (size_t i = 0; i < n; i++) convert(LB_RNE, 0);                                                             \
        break;                                                                                                         \
    case LB_RZ:                                                                                                        \
        for (size_t i = 0; i < n; i++) convert(LB_RZ, 0);                                                              \
        break;                                                                                                         \
    case LB_RNA:                                                                                                       \
        for (size_t i = 0; i < n; i++) convert(LB_RNA, 0);                                                             \
        break;                                                                                                         \
    case LB_STOCHASTIC:                                                                                                \
        for (size_t i = 0; i < n; i++) convert(LB_STOCHASTIC, random[i]);                                              \
        break;                                                                                                         \
    }

#define NARROW_PARAMETERS(type)                                                                                        \
    (type * dst, const float *src, size_t n, const float_target *target, const rounder *g, lb_rounding rounding,       \
     const uint32_t *random)
#define NARROW_ARGUMENTS (dst, src, n, target, g, rounding, random)

/* bf16 has f32's exponents, too large for a rounder. */
#define NARROW_BF16(mode, word) dst[i] = (uint16_t)float_encode_f32(src[i], &t, mode, word)
LB_INLINE void bf16_round_body NARROW_PARAMETERS(any_u16)
{
    const float_target t = *target;
    (void)g;
    ENCODE_LOOPS(NARROW_BF16)
}
LB_PER_ISA(bf16_round, bf16_round_body, NARROW_PARAMETERS(any_u16), NARROW_ARGUMENTS)

#define NARROW(mode, word) dst[i] = (__typeof__(*dst))round_to_code(src[i], &own, &t, mode, word)
LB_INLINE void u16_round_body NARROW_PARAMETERS(any_u16)
{
    const float_target t = *target;
    const rounder own = *g;
    ENCODE_LOOPS(NARROW)
}
LB_PER_ISA(u16_round, u16_round_body, NARROW_PARAMETERS(any_u16), NARROW_ARGUMENTS)

LB_INLINE void u8_round_body NARROW_PARAMETERS(uint8_t)
{
    const float_target t = *target;
    const rounder own = *g;
    ENCODE_LOOPS(NARROW)
}
LB_PER_ISA(u8_round, u8_round_body, NARROW_PARAMETERS(uint8_t), NARROW_ARGUMENTS)

#if LB_HAVE_X86
LB_TARGET_AVX2 static size_t f16_store_f16c(any_u16 *dst, const float *src, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(dst + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return i;
}
#endif

static bool plain(const lb_cast *cast)
{
    return cast->rounding == LB_RNE && cast->overflow == LB_OVERFLOW_TORCH && !cast->flush_subnormals;
}

/* bf16, f16, the 8-bit floats, and e2m1 one code per byte; at most PHILOX_DRAWN elements when numbers are drawn. */
static void narrow_store(lb_dtype dtype, void *dst, const float *src, size_t n, const lb_cast *cast,
                         const uint32_t *random)
{
    if (dtype == LB_BF16 && plain(cast)) {
        bf16_store(dst, src, n);
        return;
    }
    size_t done = 0;
#if LB_HAVE_X86
    if (dtype == LB_F16 && plain(cast) && lb_processor_isa() != LB_ISA_SCALAR) done = f16_store_f16c(dst, src, n);
#endif
    const float_format *format = float_format_of(dtype);
    const float_target target = float_target_of(format, cast);
    const rounder rounder = rounder_of(format);
    if (dtype == LB_BF16)
        bf16_round(dst, src, n, &target, &rounder, cast->rounding, random);
    else if (dtype == LB_F16)
        u16_round((any_u16 *)dst + done, src + done, n - done, &target, &rounder, cast->rounding, random);
    else
        u8_round(dst, src, n, &target, &rounder, cast->rounding, random);
}

/* What cvttss2si, cvttsd2si and the usual code for unsigned targets leave; C leaves out of range undefined. */
LB_INLINE int32_t truncate_i32(double x)
{
    return x > -2147483649.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN;
}
LB_INLINE int64_t truncate_i64(double x)
{
    return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN;
}
LB_INLINE uint32_t truncate_u32(double x)
{
    return x >= 2147483648.0 ? (uint32_t)truncate_i32(x - 2147483648.0) ^ 0x80000000u : (uint32_t)truncate_i32(x);
}
LB_INLINE uint64_t truncate_u64(double x)
{
    return x >= 0x1p63 ? (uint64_t)truncate_i64(x - 0x1p63) ^ 0x8000000000000000u : (uint64_t)truncate_i64(x);
}

#define STORE_LOOP(type, expression)                                                                                   \
    do {                                                                                                               \
        type *d = (type *)dst;                                                                                         \
        for (size_t i = 0; i < n; i++) d[i] = (type)(expression);                                                      \
        return;                                                                                                        \
    } while (0)

/* Integers, bool and the wide types, from f32 or f64 alike (every f32 is an f64). */
#define STORE_CASES                                                                                                    \
    case LB_I8: STORE_LOOP(any_i8, truncate_i32(src[i]));                                                              \
    case LB_I16: STORE_LOOP(any_i16, truncate_i32(src[i]));                                                            \
    case LB_I32: STORE_LOOP(any_i32, truncate_i32(src[i]));                                                            \
    case LB_I64: STORE_LOOP(any_i64, truncate_i64(src[i]));                                                            \
    case LB_U8: STORE_LOOP(uint8_t, truncate_i32(src[i]));                                                             \
    case LB_U16: STORE_LOOP(any_u16, truncate_i32(src[i]));                                                            \
    case LB_U32: STORE_LOOP(any_u32, truncate_u32(src[i]));                                                            \
    case LB_U64: STORE_LOOP(any_u64, truncate_u64(src[i]));                                                            \
    case LB_BOOL: STORE_LOOP(uint8_t, src[i] != 0);

static void put_nibble(uint8_t *bytes, size_t i, uint32_t code)
{
    const unsigned at = i % 2 * 4;
    bytes[i / 2] = (uint8_t)((bytes[i / 2] & (0xf0u >> at)) | (code << at));
}

/* n elements from an even one on. */
static void e2m1_store(uint8_t *dst, const float *src, size_t n, const lb_cast *cast, const uint32_t *random)
{
    uint8_t codes[CHUNK];
    for (size_t at = 0; at < n; at += CHUNK) {
        const size_t count = n - at < CHUNK ? n - at : CHUNK;
        narrow_store(LB_E2M1, codes, src + at, count, cast, random ? random + at : NULL);
        for (size_t i = 0; i < count / 2; i++) dst[at / 2 + i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
        if (count % 2) put_nibble(dst, at + count - 1, codes[count - 1]);
    }
}

/* Real parts at dst[2i], zeros between. */
static void complex_from_f64(lb_dtype dtype, void *dst, size_t i, double x, const lb_cast *cast)
{
    const lb_dtype part = lb_dtype_part(dtype);
    const size_t size = lb_dtype_bits(part) / 8;
    lb_from_f64(part, (char *)dst + 2 * i * size, x, cast);
    memset((char *)dst + (2 * i + 1) * size, 0, size);
}

static void flush_f32(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = bits_of_f32(x[i]);
        x[i] = (u & 0x7f800000u) ? x[i] : f32_of_bits(u & 0x80000000u);
    }
}

void lb_store_f32(lb_dtype dst_dtype, void *dst, const float *src, size_t n, const lb_cast *cast)
{
    if (!cast) cast = &torch_cast;
    switch (dst_dtype) {
        STORE_CASES
    case LB_F64: STORE_LOOP(any_f64, src[i]);
    case LB_F32:
        if (n && dst != src) memmove(dst, src, n * sizeof *src);
        if (cast->flush_subnormals) flush_f32(dst, n);
        return;
    default: break;
    }
    random_source source = {.cast = cast};
    const bool drawing = cast->rounding == LB_STOCHASTIC;
    const size_t step = drawing ? LB_PHILOX_DRAWN : n;
    for (size_t at = 0; at < n; at += step) {
        const size_t count = n - at < step ? n - at : step;
        const uint32_t *random = random_draw(&source, at, count);
        switch (dst_dtype) {
        case LB_BF16:
        case LB_F16:
        case LB_E4M3FN:
        case LB_E5M2:
        case LB_E4M3FNUZ:
        case LB_E5M2FNUZ:
            narrow_store(dst_dtype, (char *)dst + lb_dtype_bytes(dst_dtype, at), src + at, count, cast, random);
            break;
        case LB_E8M0:
            for (size_t i = at; i < at + count; i++)
                ((uint8_t *)dst)[i] =
                    (uint8_t)scale_encode(src[i], cast->rounding, cast->overflow, random ? random[i - at] : 0);
            break;
        case LB_E2M1: e2m1_store((uint8_t *)dst + at / 2, src + at, count, cast, random); break;
        case LB_C32:
        case LB_C64:
        case LB_C128:
            for (size_t i = at; i < at + count; i++) complex_from_f64(dst_dtype, dst, i, src[i], cast);
            break;
        default: LB_CHECK(!"a dtype");
        }
    }
}

/* One f64 to a float type, rounded once. */
static void exact_store(lb_dtype dtype, void *dst, size_t i, double x, const lb_cast *cast, uint32_t random)
{
    if (dtype == LB_E8M0) {
        ((uint8_t *)dst)[i] = (uint8_t)scale_encode((float)x, cast->rounding, cast->overflow, random);
        return;
    }
    const float_format *format = dtype == LB_F32 ? &float_format_f32 : float_format_of(dtype);
    LB_CHECK(format);
    const float_target target = float_target_of(format, cast);
    const uint32_t code = float_encode_f64(x, &target, cast->rounding, random);
    switch (lb_dtype_bits(dtype)) {
    case 32: ((any_u32 *)dst)[i] = code; break;
    case 16: ((any_u16 *)dst)[i] = (uint16_t)code; break;
    case 8: ((uint8_t *)dst)[i] = (uint8_t)code; break;
    default: put_nibble(dst, i, code); break;
    }
}

void lb_store_f64(lb_dtype dst_dtype, void *dst, const double *src, size_t n, const lb_cast *cast)
{
    if (!cast) cast = &torch_cast;
    switch (dst_dtype) {
        STORE_CASES
    case LB_F64:
        if (n && dst != src) memmove(dst, src, n * sizeof *src);
        return;
    case LB_C32:
    case LB_C64:
    case LB_C128:
        for (size_t i = 0; i < n; i++) complex_from_f64(dst_dtype, dst, i, src[i], cast);
        return;
    case LB_F32:
        if (plain(cast)) STORE_LOOP(any_f32, src[i]);
        break;
    default: break;
    }
    if (dst_dtype == LB_F32 || cast->exact) {
        random_source source = {.cast = cast};
        for (size_t at = 0; at < n; at += LB_PHILOX_DRAWN) {
            const uint32_t *random = random_draw(&source, at, n - at < LB_PHILOX_DRAWN ? n - at : LB_PHILOX_DRAWN);
            for (size_t i = at; i < n && i < at + LB_PHILOX_DRAWN; i++)
                exact_store(dst_dtype, dst, i, src[i], cast, random ? random[i - at] : 0);
        }
        return;
    }
    float part[CHUNK];
    lb_cast rest = *cast;
    for (size_t at = 0; at < n; at += CHUNK, rest.counter += CHUNK) {
        const size_t count = n - at < CHUNK ? n - at : CHUNK;
        for (size_t i = 0; i < count; i++) part[i] = (float)src[at + i];
        lb_store_f32(dst_dtype, (char *)dst + lb_dtype_bytes(dst_dtype, at), part, count, &rest);
    }
}
