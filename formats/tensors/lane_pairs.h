/* Lanes added in pairs of neighbours, as lastbit/statistics.h has it, for each set of instructions. */
#ifndef LB_LANE_PAIRS_H
#define LB_LANE_PAIRS_H

#include <lastbit/processor.h>

#include <stddef.h>

/* Of a block. */
typedef struct lb_lane_sums {
    double sum, squares;
} lb_lane_sums;

/* `x` is overwritten; `n` is a power of two. */
static inline double lb_lane_paired(double *x, size_t n)
{
    for (; n > 1; n /= 2)
        for (size_t i = 0; i < n / 2; i++) x[i] = x[2 * i] + x[2 * i + 1];
    return x[0];
}

#if LB_HAVE_X86
#include <immintrin.h>

/* The sums of eight lanes, in pairs: {sum, squares}. */
LB_TARGET_AVX2 LB_INLINE __m128d lb_lane_eight(const __m256d sum[2], const __m256d squares[2])
{
    const __m256d a = _mm256_hadd_pd(sum[0], sum[1]), b = _mm256_hadd_pd(squares[0], squares[1]);
    const __m256d c = _mm256_add_pd(_mm256_permute2f128_pd(a, b, 0x20), _mm256_permute2f128_pd(a, b, 0x31));
    return _mm_hadd_pd(_mm256_castpd256_pd128(c), _mm256_extractf128_pd(c, 1));
}

/* Of `n` times eight lanes, or sixteen, each as a vector {sum, squares}. */
LB_TARGET_AVX2 LB_INLINE lb_lane_sums lb_lane_sums_of(__m128d *eights, size_t n)
{
    for (; n > 1; n /= 2)
        for (size_t i = 0; i < n / 2; i++) eights[i] = _mm_add_pd(eights[2 * i], eights[2 * i + 1]);
    return (lb_lane_sums){_mm_cvtsd_f64(eights[0]), _mm_cvtsd_f64(_mm_unpackhi_pd(eights[0], eights[0]))};
}

/* The sums of sixteen lanes, in pairs: {sum, squares}. */
LB_TARGET_AVX512 LB_INLINE __m128d lb_lane_sixteen(const __m512d sum[2], const __m512d squares[2])
{
    const __m512d a = _mm512_add_pd(_mm512_unpacklo_pd(sum[0], sum[1]), _mm512_unpackhi_pd(sum[0], sum[1]));
    const __m512d b =
        _mm512_add_pd(_mm512_unpacklo_pd(squares[0], squares[1]), _mm512_unpackhi_pd(squares[0], squares[1]));
    const __m512d c = _mm512_add_pd(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xDD));
    const __m256d d = _mm256_add_pd(_mm512_castpd512_pd256(_mm512_shuffle_f64x2(c, c, 0x08)),
                                    _mm512_castpd512_pd256(_mm512_shuffle_f64x2(c, c, 0x0D)));
    return _mm_hadd_pd(_mm256_castpd256_pd128(d), _mm256_extractf128_pd(d, 1));
}

#endif

#endif
