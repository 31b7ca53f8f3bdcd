/* The hashes of lastbit/fingerprint.h, 4 or 8 elements at once. Each function adds as many elements as fill its lanes
 * and gives their number; what is left is the caller's. Integer sums have no order: the bits are those of a loop. */
#ifndef LB_MIXED_LANES_H
#define LB_MIXED_LANES_H

#include <lastbit/dtype.h>
#include <lastbit/processor.h>

#define LB_LANE_P1 0x9E3779B185EBCA87u
#define LB_LANE_P2 0xC2B2AE3D27D4EB4Fu
#define LB_LANE_P3 0x165667B19E3779F9u
#define LB_LANE_MIX_A 0x9E3779B1u, 0x85EBCA77u
#define LB_LANE_MIX_B 0xC2B2AE3Du, 0x165667B1u
#define LB_LANE_NAN 0x7FF8000000000000u

/* What w is made of: the bits of an element, or its number as f64. */
typedef enum lb_lane_kind {
    LB_LANE_RAW8,
    LB_LANE_RAW16,
    LB_LANE_RAW32,
    LB_LANE_RAW64,
    LB_LANE_BF16,
    LB_LANE_F16,
    LB_LANE_F32,
    LB_LANE_F64
} lb_lane_kind;

static inline size_t lb_lane_width(lb_lane_kind kind)
{
    static const unsigned char widths[] = {1, 2, 4, 8, 2, 2, 4, 8};
    return widths[kind];
}

#if LB_HAVE_X86
#include <immintrin.h>

/* ---- AVX2: a product with 32 bits is two of _mm256_mul_epu32 ----------------------------------------------------- */

LB_TARGET_AVX2 LB_INLINE __m256i lb_lane_times_avx2(__m256i x, __m256i p)
{
    return _mm256_add_epi64(_mm256_mul_epu32(x, p),
                            _mm256_slli_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), p), 32));
}

LB_TARGET_AVX2 LB_INLINE __m256i lb_lane_mixed_avx2(__m256i x, uint32_t p, uint32_t q)
{
    x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
    x = lb_lane_times_avx2(x, _mm256_set1_epi64x(p));
    x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 29));
    x = lb_lane_times_avx2(x, _mm256_set1_epi64x(q));
    return _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
}

/* -0 becomes 0, every NaN the same. */
LB_TARGET_AVX2 LB_INLINE __m256i lb_lane_number_avx2(__m256d x)
{
    x = _mm256_add_pd(x, _mm256_setzero_pd());
    return _mm256_castpd_si256(
        _mm256_blendv_pd(x, _mm256_castsi256_pd(_mm256_set1_epi64x(LB_LANE_NAN)), _mm256_cmp_pd(x, x, _CMP_UNORD_Q)));
}

LB_TARGET_AVX2 LB_INLINE __m256i lb_lane_load_avx2(lb_lane_kind kind, const char *p)
{
    int32_t four;
    switch (kind) {
    case LB_LANE_RAW8: __builtin_memcpy(&four, p, 4); return _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
    case LB_LANE_RAW16: return _mm256_cvtepu16_epi64(_mm_loadl_epi64((const __m128i *)p));
    case LB_LANE_RAW32: return _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)p));
    case LB_LANE_RAW64: return _mm256_loadu_si256((const __m256i *)p);
    case LB_LANE_BF16:
        return lb_lane_number_avx2(_mm256_cvtps_pd(
            _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p)), 16))));
    case LB_LANE_F16: return lb_lane_number_avx2(_mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p))));
    case LB_LANE_F32: return lb_lane_number_avx2(_mm256_cvtps_pd(_mm_loadu_ps((const float *)p)));
    case LB_LANE_F64: break;
    }
    return lb_lane_number_avx2(_mm256_loadu_pd((const double *)p));
}

LB_TARGET_AVX2 LB_INLINE size_t lb_lane_loop_avx2(lb_lane_kind kind, const char *p, size_t n, uint64_t first,
                                                  uint64_t tag, uint64_t *sum_a, uint64_t *sum_b)
{
    const uint64_t at[4] = {first + 1, first + 2, first + 3, first + 4};
    const size_t width = lb_lane_width(kind), whole = n / 4 * 4;
    uint64_t a[4], b[4];
    for (int i = 0; i < 4; i++)
        a[i] = at[i] * LB_LANE_P1 + tag * LB_LANE_P2, b[i] = at[i] * LB_LANE_P2 + tag * LB_LANE_P3;
    __m256i key_a = _mm256_loadu_si256((const __m256i *)a), key_b = _mm256_loadu_si256((const __m256i *)b);
    __m256i all_a = _mm256_setzero_si256(), all_b = all_a;
    for (size_t i = 0; i < whole; i += 4, p += 4 * width) {
        const __m256i bits = lb_lane_load_avx2(kind, p);
        all_a = _mm256_add_epi64(all_a, lb_lane_mixed_avx2(_mm256_xor_si256(bits, key_a), LB_LANE_MIX_A));
        all_b = _mm256_add_epi64(all_b, lb_lane_mixed_avx2(_mm256_xor_si256(bits, key_b), LB_LANE_MIX_B));
        key_a = _mm256_add_epi64(key_a, _mm256_set1_epi64x((int64_t)(4 * LB_LANE_P1)));
        key_b = _mm256_add_epi64(key_b, _mm256_set1_epi64x((int64_t)(4 * LB_LANE_P2)));
    }
    _mm256_storeu_si256((__m256i *)a, all_a), _mm256_storeu_si256((__m256i *)b, all_b);
    for (int i = 0; i < 4; i++) *sum_a += a[i], *sum_b += b[i];
    return whole;
}

/* ---- AVX-512 ----------------------------------------------------------------------------------------------------- */

LB_TARGET_AVX512 LB_INLINE __m512i lb_lane_mixed_avx512(__m512i x, uint32_t p, uint32_t q)
{
    x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 32));
    x = _mm512_mullo_epi64(x, _mm512_set1_epi64(p));
    x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 29));
    x = _mm512_mullo_epi64(x, _mm512_set1_epi64(q));
    return _mm512_xor_si512(x, _mm512_srli_epi64(x, 32));
}

LB_TARGET_AVX512 LB_INLINE __m512i lb_lane_number_avx512(__m512d x)
{
    x = _mm512_add_pd(x, _mm512_setzero_pd());
    return _mm512_mask_mov_epi64(_mm512_castpd_si512(x), _mm512_cmp_pd_mask(x, x, _CMP_UNORD_Q),
                                 _mm512_set1_epi64(LB_LANE_NAN));
}

LB_TARGET_AVX512 LB_INLINE __m512i lb_lane_load_avx512(lb_lane_kind kind, const char *p)
{
    switch (kind) {
    case LB_LANE_RAW8: return _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)p));
    case LB_LANE_RAW16: return _mm512_cvtepu16_epi64(_mm_loadu_si128((const __m128i *)p));
    case LB_LANE_RAW32: return _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i *)p));
    case LB_LANE_RAW64: return _mm512_loadu_si512(p);
    case LB_LANE_BF16:
        return lb_lane_number_avx512(_mm512_cvtps_pd(
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16))));
    case LB_LANE_F16:
        return lb_lane_number_avx512(_mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p))));
    case LB_LANE_F32: return lb_lane_number_avx512(_mm512_cvtps_pd(_mm256_loadu_ps((const float *)p)));
    case LB_LANE_F64: break;
    }
    return lb_lane_number_avx512(_mm512_loadu_pd(p));
}

LB_TARGET_AVX512 LB_INLINE size_t lb_lane_loop_avx512(lb_lane_kind kind, const char *p, size_t n, uint64_t first,
                                                      uint64_t tag, uint64_t *sum_a, uint64_t *sum_b)
{
    const size_t width = lb_lane_width(kind), whole = n / 8 * 8;
    const __m512i at = _mm512_add_epi64(_mm512_set1_epi64((int64_t)first), _mm512_set_epi64(8, 7, 6, 5, 4, 3, 2, 1));
    __m512i key_a = _mm512_add_epi64(_mm512_mullo_epi64(at, _mm512_set1_epi64((int64_t)LB_LANE_P1)),
                                     _mm512_set1_epi64((int64_t)(tag * LB_LANE_P2)));
    __m512i key_b = _mm512_add_epi64(_mm512_mullo_epi64(at, _mm512_set1_epi64((int64_t)LB_LANE_P2)),
                                     _mm512_set1_epi64((int64_t)(tag * LB_LANE_P3)));
    __m512i all_a = _mm512_setzero_si512(), all_b = all_a;
    for (size_t i = 0; i < whole; i += 8, p += 8 * width) {
        const __m512i bits = lb_lane_load_avx512(kind, p);
        all_a = _mm512_add_epi64(all_a, lb_lane_mixed_avx512(_mm512_xor_si512(bits, key_a), LB_LANE_MIX_A));
        all_b = _mm512_add_epi64(all_b, lb_lane_mixed_avx512(_mm512_xor_si512(bits, key_b), LB_LANE_MIX_B));
        key_a = _mm512_add_epi64(key_a, _mm512_set1_epi64((int64_t)(8 * LB_LANE_P1)));
        key_b = _mm512_add_epi64(key_b, _mm512_set1_epi64((int64_t)(8 * LB_LANE_P2)));
    }
    uint64_t a[8], b[8]; /* a reduction of the compiler's adds signed numbers */
    _mm512_storeu_si512(a, all_a), _mm512_storeu_si512(b, all_b);
    for (int i = 0; i < 8; i++) *sum_a += a[i], *sum_b += b[i];
    return whole;
}

/* A loop for each kind, so that none asks for it in every element. */
#define LB_LANE_KINDS(level)                                                                                           \
    switch (kind) {                                                                                                    \
    case LB_LANE_RAW8: return lb_lane_loop_##level(LB_LANE_RAW8, p, n, first, tag, sum_a, sum_b);                      \
    case LB_LANE_RAW16: return lb_lane_loop_##level(LB_LANE_RAW16, p, n, first, tag, sum_a, sum_b);                    \
    case LB_LANE_RAW32: return lb_lane_loop_##level(LB_LANE_RAW32, p, n, first, tag, sum_a, sum_b);                    \
    case LB_LANE_RAW64: return lb_lane_loop_##level(LB_LANE_RAW64, p, n, first, tag, sum_a, sum_b);                    \
    case LB_LANE_BF16: return lb_lane_loop_##level(LB_LANE_BF16, p, n, first, tag, sum_a, sum_b);                      \
    case LB_LANE_F16: return lb_lane_loop_##level(LB_LANE_F16, p, n, first, tag, sum_a, sum_b);                        \
    case LB_LANE_F32: return lb_lane_loop_##level(LB_LANE_F32, p, n, first, tag, sum_a, sum_b);                        \
    case LB_LANE_F64: return lb_lane_loop_##level(LB_LANE_F64, p, n, first, tag, sum_a, sum_b);                        \
    }                                                                                                                  \
    return 0;

LB_TARGET_AVX2 static size_t lb_lane_mix_avx2(lb_lane_kind kind, const char *p, size_t n, uint64_t first, uint64_t tag,
                                              uint64_t *sum_a, uint64_t *sum_b){LB_LANE_KINDS(avx2)}

LB_TARGET_AVX512 static size_t lb_lane_mix_avx512(lb_lane_kind kind, const char *p, size_t n, uint64_t first,
                                                  uint64_t tag, uint64_t *sum_a, uint64_t *sum_b)
{
    LB_LANE_KINDS(avx512)
}
#endif

#endif
