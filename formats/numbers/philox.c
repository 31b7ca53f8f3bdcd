/* Philox4x32-10, one block and many: see philox.h.
 *
 * A round multiplies two of the four words, 32 by 32 bits to 64. The vector code keeps each word in the low half of a
 * 64-bit lane: the multiplication looks at nothing else, so what the high halves hold need not be cleared until the
 * end.
 */
#include "numbers/philox.h"

#include <lastbit/processor.h>

#if LB_HAVE_X86
#include <immintrin.h>
#endif

#define M0 0xD2511F53u
#define M1 0xCD9E8D57u
#define W0 0x9E3779B9u
#define W1 0xBB67AE85u

static void philox_block(uint64_t key, uint64_t counter, uint64_t stream, uint32_t words[4])
{
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = (uint32_t)stream,
             c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < 10; i++, k0 += W0, k1 += W1) {
        const uint64_t p0 = (uint64_t)M0 * c0, p1 = (uint64_t)M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

void lb_philox(uint64_t key, uint64_t counter, uint64_t stream, uint32_t words[4])
{
    philox_block(key, counter, stream, words);
}

#if LB_HAVE_X86
/* Blocks first .. first + 7. Lanes 2j hold block j and lanes 2j + 1 block 4 + j, which is how unpacking leaves them. */
LB_TARGET_AVX512 static void philox_8(uint32_t *words, uint64_t key, uint64_t first)
{
    const __m512i m0 = _mm512_set1_epi64(M0), m1 = _mm512_set1_epi64(M1);
    const __m512i counter =
        _mm512_add_epi64(_mm512_set1_epi64((long long)first), _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0));
    __m512i c0 = counter, c1 = _mm512_srli_epi64(counter, 32), c2 = _mm512_setzero_si512(), c3 = c2;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < 10; i++, k0 += W0, k1 += W1) {
        const __m512i p0 = _mm512_mul_epu32(c0, m0), p1 = _mm512_mul_epu32(c2, m1);
        c0 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p1, 32), c1), _mm512_set1_epi64(k0));
        c2 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p0, 32), c3), _mm512_set1_epi64(k1));
        c1 = p1;
        c3 = p0;
    }
    const __m512i left = _mm512_mask_blend_epi32(0xaaaa, c0, _mm512_slli_epi64(c1, 32));
    const __m512i right = _mm512_mask_blend_epi32(0xaaaa, c2, _mm512_slli_epi64(c3, 32));
    _mm512_storeu_si512(words, _mm512_unpacklo_epi64(left, right));
    _mm512_storeu_si512(words + 16, _mm512_unpackhi_epi64(left, right));
}

/* Blocks first .. first + 3. */
LB_TARGET_AVX2 static void philox_4(uint32_t *words, uint64_t key, uint64_t first)
{
    const __m256i m0 = _mm256_set1_epi64x(M0), m1 = _mm256_set1_epi64x(M1);
    const __m256i counter = _mm256_add_epi64(_mm256_set1_epi64x((long long)first), _mm256_set_epi64x(3, 1, 2, 0));
    __m256i c0 = counter, c1 = _mm256_srli_epi64(counter, 32), c2 = _mm256_setzero_si256(), c3 = c2;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < 10; i++, k0 += W0, k1 += W1) {
        const __m256i p0 = _mm256_mul_epu32(c0, m0), p1 = _mm256_mul_epu32(c2, m1);
        c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1), _mm256_set1_epi64x(k0));
        c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3), _mm256_set1_epi64x(k1));
        c1 = p1;
        c3 = p0;
    }
    const __m256i left = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xaa);
    const __m256i right = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xaa);
    _mm256_storeu_si256((__m256i *)(void *)words, _mm256_unpacklo_epi64(left, right));
    _mm256_storeu_si256((__m256i *)(void *)(words + 8), _mm256_unpackhi_epi64(left, right));
}

/* Several at a time: one chain of multiplications leaves the processor waiting. */
LB_TARGET_AVX512 static void philox_many_avx512(uint32_t *words, size_t n, uint64_t key, uint64_t first)
{
    for (size_t b = 0; b < n; b += 16, words += 64) {
        philox_8(words, key, first + b);
        philox_8(words + 32, key, first + b + 8);
    }
}

LB_TARGET_AVX2 static void philox_many_avx2(uint32_t *words, size_t n, uint64_t key, uint64_t first)
{
    for (size_t b = 0; b < n; b += 8, words += 32) {
        philox_4(words, key, first + b);
        philox_4(words + 16, key, first + b + 4);
    }
}
#endif

/* n blocks, a multiple of 16. */
static void philox_many(uint32_t *words, size_t n, uint64_t key, uint64_t first)
{
#if LB_HAVE_X86
    switch (lb_processor_isa()) {
    case LB_ISA_AVX512: philox_many_avx512(words, n, key, first); return;
    case LB_ISA_AVX2: philox_many_avx2(words, n, key, first); return;
    default: break;
    }
#endif
    for (size_t b = 0; b < n; b++) philox_block(key, first + b, 0, words + 4 * b);
}

const uint32_t *random_draw(random_source *source, size_t at, size_t n)
{
    if (source->cast->rounding != LB_STOCHASTIC) return NULL;
    const uint64_t number = source->cast->counter + at;
    philox_many(source->words, (n + 3 + 63) / 64 * 16, source->cast->seed, number / 4);
    return source->words + number % 4;
}
