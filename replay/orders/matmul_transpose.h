/* Turning rows into panels: dst[p * stride + i] = src[i * src_stride + p], for p < depth and i < width. Private to
 * matmul.c.
 *
 * Whole groups of neighbours are written: `stride` is at least `width` rounded up to 16 (of f32; 8 of f64, with AVX2
 * half of it). What lies beyond `width` is copies of the last row, which are not used.
 *
 * Four rows are put side by side in the 128-bit lanes of a register while they are loaded, so that transposing within
 * lanes is all that is left to do:
 *
 *      row 0  a0 a1 a2 a3 ┐                        ┌ a0 b0 c0 d0 │ e0 …    column p
 *      row 1  b0 b1 b2 b3 ┼ lane 0, rows 4 … 7     │ a1 b1 c1 d1 │ e1 …    column p + 1
 *      row 2  c0 c1 c2 c3 ┤ are lane 1, …      ──▶ │ a2 b2 c2 d2 │ e2 …    …
 *      row 3  d0 d1 d2 d3 ┘                        └ a3 b3 c3 d3 │ e3 …
 */
#ifndef LB_REPLAY_MATMUL_TRANSPOSE_H
#define LB_REPLAY_MATMUL_TRANSPOSE_H

#include <lastbit/processor.h>

#include <stddef.h>
#if LB_HAVE_X86
#include <immintrin.h>
#endif

#define TRANSPOSE_PLAIN(first_p)                                                                                       \
    for (size_t q = (first_p); q < depth; q++)                                                                         \
        for (size_t i = 0; i < width; i++) dst[q * stride + i] = src[(ptrdiff_t)i * src_stride + (ptrdiff_t)q];

#if LB_HAVE_X86

/* `rows` pointers from the i-th row on; beyond the last row, that one again. */
#define ROW_POINTERS(type, rows)                                                                                       \
    const type *row[rows];                                                                                             \
    for (size_t r_ = 0; r_ < (rows); r_++)                                                                             \
        row[r_] = src + (ptrdiff_t)(i + r_ < width ? i + r_ : width - 1) * src_stride;

/* The four columns of a 4 x 4 transposition inside every 128-bit lane. */
#define TRANSPOSE_LANES(prefix, v, store)                                                                              \
    do {                                                                                                               \
        const __typeof__((v)[0]) low_ = prefix##_unpacklo_ps((v)[0], (v)[1]),                                          \
                                 high_ = prefix##_unpackhi_ps((v)[0], (v)[1]),                                         \
                                 low2_ = prefix##_unpacklo_ps((v)[2], (v)[3]),                                         \
                                 high2_ = prefix##_unpackhi_ps((v)[2], (v)[3]);                                        \
        store(0, prefix##_shuffle_ps(low_, low2_, 0x44));                                                              \
        store(1, prefix##_shuffle_ps(low_, low2_, 0xee));                                                              \
        store(2, prefix##_shuffle_ps(high_, high2_, 0x44));                                                            \
        store(3, prefix##_shuffle_ps(high_, high2_, 0xee));                                                            \
    } while (0)

LB_TARGET_AVX512 LB_INLINE void transpose_16_rows(float *dst, size_t stride, const float *const row[16], size_t p,
                                                  int columns)
{
    __m512 v[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
        for (int j = 0; j < columns / 4; j++) {
            const __m512 one = _mm512_castps128_ps512(_mm_loadu_ps(row[i] + p + 4 * j)),
                         two = _mm512_insertf32x4(one, _mm_loadu_ps(row[i + 4] + p + 4 * j), 1),
                         three = _mm512_insertf32x4(two, _mm_loadu_ps(row[i + 8] + p + 4 * j), 2);
            v[j][i] = _mm512_insertf32x4(three, _mm_loadu_ps(row[i + 12] + p + 4 * j), 3);
        }
#pragma GCC unroll 4
    for (int j = 0; j < columns / 4; j++) {
#define STORE_COLUMN(c, x) _mm512_storeu_ps(dst + (p + (size_t)(4 * j + (c))) * stride, x)
        TRANSPOSE_LANES(_mm512, v[j], STORE_COLUMN);
#undef STORE_COLUMN
    }
}

LB_TARGET_AVX512 static void transpose_f32_avx512(float *dst, size_t stride, const float *src, ptrdiff_t src_stride,
                                                  size_t width, size_t depth)
{
    const size_t deep = depth / 16 * 16, whole = depth / 4 * 4;
    for (size_t i = 0; i < width; i += 16) {
        ROW_POINTERS(float, 16)
        for (size_t p = 0; p < deep; p += 16) transpose_16_rows(dst + i, stride, row, p, 16);
        for (size_t p = deep; p < whole; p += 4) transpose_16_rows(dst + i, stride, row, p, 4);
    }
    TRANSPOSE_PLAIN(whole)
}

LB_TARGET_AVX2 LB_INLINE void transpose_8_rows(float *dst, size_t stride, const float *const row[8], size_t p)
{
    __m256 v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(row[i] + p)), _mm_loadu_ps(row[i + 4] + p), 1);
#define STORE_COLUMN(c, x) _mm256_storeu_ps(dst + (p + (c)) * stride, x)
    TRANSPOSE_LANES(_mm256, v, STORE_COLUMN);
#undef STORE_COLUMN
}

LB_TARGET_AVX2 static void transpose_f32_avx2(float *dst, size_t stride, const float *src, ptrdiff_t src_stride,
                                              size_t width, size_t depth)
{
    const size_t whole = depth / 4 * 4;
    for (size_t i = 0; i < width; i += 8) {
        ROW_POINTERS(float, 8)
        for (size_t p = 0; p < whole; p += 4) transpose_8_rows(dst + i, stride, row, p);
    }
    TRANSPOSE_PLAIN(whole)
}

LB_TARGET_AVX2 static void transpose_f64_avx2(double *dst, size_t stride, const double *src, ptrdiff_t src_stride,
                                              size_t width, size_t depth)
{
    const size_t whole = depth / 4 * 4;
    for (size_t i = 0; i < width; i += 4) {
        ROW_POINTERS(double, 4)
        for (size_t p = 0; p < whole; p += 4) {
            double *d = dst + i + p * stride;
            const __m256d a = _mm256_loadu_pd(row[0] + p), b = _mm256_loadu_pd(row[1] + p),
                          c = _mm256_loadu_pd(row[2] + p), e = _mm256_loadu_pd(row[3] + p);
            const __m256d ab0 = _mm256_unpacklo_pd(a, b), ab1 = _mm256_unpackhi_pd(a, b),
                          ce0 = _mm256_unpacklo_pd(c, e), ce1 = _mm256_unpackhi_pd(c, e);
            _mm256_storeu_pd(d, _mm256_permute2f128_pd(ab0, ce0, 0x20));
            _mm256_storeu_pd(d + stride, _mm256_permute2f128_pd(ab1, ce1, 0x20));
            _mm256_storeu_pd(d + 2 * stride, _mm256_permute2f128_pd(ab0, ce0, 0x31));
            _mm256_storeu_pd(d + 3 * stride, _mm256_permute2f128_pd(ab1, ce1, 0x31));
        }
    }
    TRANSPOSE_PLAIN(whole)
}
#endif

static void transpose_f32(float *dst, size_t stride, const float *src, ptrdiff_t src_stride, size_t width, size_t depth)
{
#if LB_HAVE_X86
    switch (lb_processor_isa()) {
    case LB_ISA_AVX512: transpose_f32_avx512(dst, stride, src, src_stride, width, depth); return;
    case LB_ISA_AVX2: transpose_f32_avx2(dst, stride, src, src_stride, width, depth); return;
    case LB_ISA_SCALAR: break;
    }
#endif
    TRANSPOSE_PLAIN(0)
}

static void transpose_f64(double *dst, size_t stride, const double *src, ptrdiff_t src_stride, size_t width,
                          size_t depth)
{
#if LB_HAVE_X86
    if (lb_processor_isa() != LB_ISA_SCALAR) {
        transpose_f64_avx2(dst, stride, src, src_stride, width, depth);
        return;
    }
#endif
    TRANSPOSE_PLAIN(0)
}

#undef TRANSPOSE_PLAIN
#endif
