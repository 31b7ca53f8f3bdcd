/* Rounding to the values of a type while keeping f32 or f64 storage: see lastbit/dtype.h.
 *
 * Emulating arithmetic in a narrow type spends its time here. f16 has instructions of its own; the other types with
 * short exponents add a magic number (rounding.h); bf16 and tf32, which are f32 with a shorter fraction, add an
 * integer. Every loop gives what a store and a load would.
 */
#include "numbers/philox.h"
#include "numbers/rounding.h"

#if LB_HAVE_X86
#include <immintrin.h>
#endif

#define CHUNK 256

static const lb_cast torch_cast = LB_CAST_INIT;

/* Bits with which a value that does not fit, an infinity and a NaN come out; each takes the sign of x where `_sign`
 * says. */
typedef struct grid {
    rounder rounder;
    int32_t most;     /* bits of the largest value */
    int32_t smallest; /* smaller results become 0: flush_subnormals */
    int32_t unsigned_zero;
    uint32_t over, over_sign, inf, inf_sign, nan, nan_sign, payload;
} grid;

/* What the scalar definition makes of x and of -x. */
static void outcome(float x, const float_format *format, const float_target *target, lb_rounding rounding,
                    uint32_t *bits, uint32_t *sign)
{
    *bits = bits_of_f32(float_decode(float_encode_f32(x, target, rounding, 0), format));
    *sign = *bits ^ bits_of_f32(float_decode(float_encode_f32(-x, target, rounding, 0), format));
}

static grid grid_of(const float_format *format, const lb_cast *cast)
{
    const float_target target = float_target_of(format, cast);
    grid g = {.rounder = rounder_of(format),
              .unsigned_zero = (int32_t)format->unsigned_zero,
              .payload = format->payload_mask << 13};
    g.most = (int32_t)bits_of_f32(float_decode(format->max_code, format));
    g.smallest = cast->flush_subnormals ? (int32_t)(128 - format->bias) << 23 : 0;
    /* What is above the largest finite f32, no rounding makes finite: only infinity stands for it. */
    outcome(format->bias < 127 ? 0x1p127f : __builtin_inff(), format, &target, cast->rounding, &g.over, &g.over_sign);
    outcome(__builtin_inff(), format, &target, cast->rounding, &g.inf, &g.inf_sign);
    outcome(__builtin_nanf(""), format, &target, cast->rounding, &g.nan, &g.nan_sign);
    return g;
}

/* A magnitude on the grid, of x = `u`, with sign and specials put back. `simple`: no subnormals to flush, no unsigned
 * zero, no NaN payload; fewer instructions per cache line keep more lines under way. */
LB_INLINE float settle(int32_t magnitude, uint32_t u, const grid *grid, lb_rounding rounding, bool simple)
{
    const int32_t a = (int32_t)(u & 0x7fffffffu);
    const uint32_t sign = u & 0x80000000u;
    if (!simple) magnitude = magnitude < grid->smallest ? 0 : magnitude;
    uint32_t v = (uint32_t)magnitude | (simple || magnitude || !grid->unsigned_zero ? sign : 0u);
    v = magnitude > grid->most ? grid->over | (sign & grid->over_sign) : v;
    /* Elsewhere infinity is treated as any overflow is. */
    if (rounding == LB_RZ) v = a == 0x7f800000 ? grid->inf | (sign & grid->inf_sign) : v;
    v = a > 0x7f800000 ? grid->nan | (sign & grid->nan_sign) | (simple ? 0u : u & grid->payload) : v;
    return f32_of_bits(v);
}

static bool is_simple(const grid *grid)
{
    return !grid->smallest && !grid->unsigned_zero && !grid->payload;
}

#define EACH_ROUNDING(convert, simple)                                                                                 \
    switch (rounding) {                                                                                                \
    case LB_RNE:                                                                                                       \
        for (size_t i = 0; i < n; i++) convert(LB_RNE, 0, simple);                                                     \
        break;                                                                                                         \
    case LB_RZ:                                                                                                        \
        for (size_t i = 0; i < n; i++) convert(LB_RZ, 0, simple);                                                      \
        break;                                                                                                         \
    case LB_RNA:                                                                                                       \
        for (size_t i = 0; i < n; i++) convert(LB_RNA, 0, simple);                                                     \
        break;                                                                                                         \
    case LB_STOCHASTIC:                                                                                                \
        for (size_t i = 0; i < n; i++) convert(LB_STOCHASTIC, random[i], simple);                                      \
        break;                                                                                                         \
    }
#define GRID_PARAMETERS (float *x, size_t n, const grid *target, lb_rounding rounding, const uint32_t *random)
#define GRID_ARGUMENTS (x, n, target, rounding, random)

/* --- short exponents ------------------------------------------------------------------------------------------- */

LB_INLINE float round_narrow(float x, const grid *grid, lb_rounding rounding, uint32_t random, bool simple)
{
    const uint32_t u = bits_of_f32(x);
    const rounded rounded = round_magnitude((int32_t)(u & 0x7fffffffu), &grid->rounder, rounding, random);
    return settle((int32_t)bits_of_f32(rounded.value), u, grid, rounding, simple);
}

#define NARROW(mode, word, simple) x[i] = round_narrow(x[i], &g, mode, word, simple)
LB_INLINE void narrow_grid_body GRID_PARAMETERS
{
    const grid g = *target;
    if (is_simple(&g))
        EACH_ROUNDING(NARROW, true)
    else
        EACH_ROUNDING(NARROW, false)
}
LB_PER_ISA(narrow_grid, narrow_grid_body, GRID_PARAMETERS, GRID_ARGUMENTS)

#if LB_HAVE_X86
#define F16_LOOP(width, load, to_half, from_half, store, mode)                                                         \
    for (; i + (width) <= n; i += (width)) store(x + i, from_half(to_half(load(x + i), mode)))

#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define TO_ZERO (_MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)
LB_TARGET_AVX512 static size_t f16_grid_avx512(float *x, size_t n, bool nearest)
{
    size_t i = 0;
    if (nearest)
        F16_LOOP(16, _mm512_loadu_ps, _mm512_cvtps_ph, _mm512_cvtph_ps, _mm512_storeu_ps, NEAREST);
    else
        F16_LOOP(16, _mm512_loadu_ps, _mm512_cvtps_ph, _mm512_cvtph_ps, _mm512_storeu_ps, TO_ZERO);
    return i;
}

LB_TARGET_AVX2 static size_t f16_grid_avx2(float *x, size_t n, bool nearest)
{
    size_t i = 0;
    if (nearest)
        F16_LOOP(8, _mm256_loadu_ps, _mm256_cvtps_ph, _mm256_cvtph_ps, _mm256_storeu_ps, NEAREST);
    else
        F16_LOOP(8, _mm256_loadu_ps, _mm256_cvtps_ph, _mm256_cvtph_ps, _mm256_storeu_ps, TO_ZERO);
    return i;
}
#endif

/* How many elements the processor's own conversion to f16 has rounded. */
static size_t f16_grid(float *x, size_t n, const lb_cast *cast)
{
#if LB_HAVE_X86
    const bool nearest = cast->rounding == LB_RNE;
    if ((!nearest && cast->rounding != LB_RZ) || cast->overflow == LB_OVERFLOW_SATURATE || cast->flush_subnormals)
        return 0;
    if (lb_processor_isa() == LB_ISA_AVX512) return f16_grid_avx512(x, n, nearest);
    if (lb_processor_isa() == LB_ISA_AVX2) return f16_grid_avx2(x, n, nearest);
#else
    (void)x, (void)n, (void)cast;
#endif
    return 0;
}

/* --- f32's exponents: bf16 drops 16 bits of the fraction, tf32 13 ---------------------------------------------- */

LB_INLINE float round_wide(float x, const grid *grid, uint32_t drop, lb_rounding rounding, uint32_t random, bool simple)
{
    const uint32_t u = bits_of_f32(x), step = 1u << drop;
    uint32_t a = u & 0x7fffffffu;
    if (rounding == LB_RNE) a += step / 2 - 1 + ((a >> drop) & 1u);
    if (rounding == LB_RNA) a += step / 2;
    if (rounding == LB_STOCHASTIC) a += random < a << (32 - drop) ? step : 0u;
    return settle((int32_t)(a & (0u - step)), u, grid, rounding, simple);
}

#define BF16(mode, word, simple) x[i] = round_wide(x[i], &g, 16, mode, word, simple)
#define TF32(mode, word, simple) x[i] = round_wide(x[i], &g, 13, mode, word, simple)
LB_INLINE void bf16_grid_body GRID_PARAMETERS
{
    const grid g = *target;
    if (is_simple(&g))
        EACH_ROUNDING(BF16, true)
    else
        EACH_ROUNDING(BF16, false)
}
LB_PER_ISA(bf16_grid, bf16_grid_body, GRID_PARAMETERS, GRID_ARGUMENTS)

LB_INLINE void tf32_grid_body GRID_PARAMETERS
{
    const grid g = *target;
    if (is_simple(&g))
        EACH_ROUNDING(TF32, true)
    else
        EACH_ROUNDING(TF32, false)
}
LB_PER_ISA(tf32_grid, tf32_grid_body, GRID_PARAMETERS, GRID_ARGUMENTS)

/* torch's own cast to bf16, the commonest of all: no test for overflow, since the carry into infinity is right. */
LB_INLINE void bf16_plain_body(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = bits_of_f32(x[i]), rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
        x[i] = f32_of_bits((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : rounded);
    }
}
LB_PER_ISA(bf16_plain, bf16_plain_body, (float *x, size_t n), (x, n))

/* --- all of them ------------------------------------------------------------------------------------------------ */

static void grid_run(float *x, size_t n, lb_dtype dtype, const grid *grid, lb_rounding rounding, const uint32_t *random)
{
    if (dtype == LB_BF16)
        bf16_grid(x, n, grid, rounding, random);
    else if (dtype == LB_TF32)
        tf32_grid(x, n, grid, rounding, random);
    else
        narrow_grid(x, n, grid, rounding, random);
}

/* f32 without its subnormals, e8m0, and types that are no floats: through the codes. */
static void grid_by_codes(float *x, size_t n, lb_dtype dtype, const lb_cast *cast)
{
    uint64_t typed[CHUNK]; /* wide enough for any part */
    lb_cast rest = *cast;
    for (size_t at = 0; at < n; at += CHUNK, rest.counter += CHUNK) {
        const size_t count = n - at < CHUNK ? n - at : CHUNK;
        memset(typed, 0, sizeof typed);
        lb_store_f32(dtype, typed, x + at, count, &rest);
        lb_load_f32(x + at, dtype, typed, count);
    }
}

void lb_round_to_grid_f32(float *x, size_t n, lb_dtype dtype, const lb_cast *cast)
{
    if (!cast) cast = &torch_cast;
    dtype = lb_dtype_part(dtype);
    if (dtype == LB_F64 || (dtype == LB_F32 && !cast->flush_subnormals)) return;
    const float_format *format = float_format_of(dtype);
    if (!format) {
        grid_by_codes(x, n, dtype, cast);
        return;
    }
    const bool plain = cast->rounding == LB_RNE && cast->overflow != LB_OVERFLOW_SATURATE && !cast->flush_subnormals;
    if (dtype == LB_BF16 && plain) {
        bf16_plain(x, n);
        return;
    }
    const size_t done = dtype == LB_F16 ? f16_grid(x, n, cast) : 0;
    const grid grid = grid_of(format, cast);
    if (cast->rounding != LB_STOCHASTIC) {
        grid_run(x + done, n - done, dtype, &grid, cast->rounding, NULL);
        return;
    }
    random_source source = {.cast = cast};
    for (size_t at = 0; at < n; at += LB_PHILOX_DRAWN) {
        const size_t count = n - at < LB_PHILOX_DRAWN ? n - at : LB_PHILOX_DRAWN;
        grid_run(x + at, count, dtype, &grid, cast->rounding, random_draw(&source, at, count));
    }
}

/* tf32 has no codes to store: an f64 goes to f32 first, or keeps its one rounding. */
static void tf32_from_f64(double *x, size_t n, const lb_cast *cast)
{
    const float_format *format = float_format_of(LB_TF32);
    const float_target target = float_target_of(format, cast);
    random_source source = {.cast = cast};
    for (size_t at = 0; at < n; at += LB_PHILOX_DRAWN) {
        const size_t count = n - at < LB_PHILOX_DRAWN ? n - at : LB_PHILOX_DRAWN;
        const uint32_t *random = random_draw(&source, at, count);
        for (size_t i = 0; i < count; i++) {
            const double from = cast->exact ? x[at + i] : (double)(float)x[at + i];
            const uint32_t code = float_encode_f64(from, &target, cast->rounding, random ? random[i] : 0);
            x[at + i] = float_decode(code, format);
        }
    }
}

void lb_round_to_grid_f64(double *x, size_t n, lb_dtype dtype, const lb_cast *cast)
{
    if (!cast) cast = &torch_cast;
    dtype = lb_dtype_part(dtype);
    if (dtype == LB_F64) return;
    if (dtype == LB_TF32) {
        tf32_from_f64(x, n, cast);
        return;
    }
    uint64_t typed[CHUNK];
    lb_cast rest = *cast;
    for (size_t at = 0; at < n; at += CHUNK, rest.counter += CHUNK) {
        const size_t count = n - at < CHUNK ? n - at : CHUNK;
        memset(typed, 0, sizeof typed);
        lb_store_f64(dtype, typed, x + at, count, &rest);
        lb_load_f64(x + at, dtype, typed, count);
    }
}

void lb_round_to_grid_tf32(float *x, size_t n, lb_rounding rounding)
{
    LB_CHECK(rounding != LB_STOCHASTIC);
    lb_round_to_grid_f32(x, n, LB_TF32, &(lb_cast){.rounding = rounding});
}
