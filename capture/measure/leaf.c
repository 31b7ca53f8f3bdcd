/* See leaf.h. XXH3 for more than 240 bytes, as its specification has it (github.com/Cyan4973/xxHash,
 * doc/xxhash_spec.md):
 *
 *   eight 64-bit sums take in stripes of 64 bytes, 16 to a block, each against the secret from 8 bytes further on;
 *   after a block the sums are scrambled. The last stripe of all is the last 64 bytes, which the one before may
 *   overlap.
 *
 * Elements of f32 and of the 16-bit floats are summarised from the register that the hash takes its stripe from. Nearly
 * every block is finite and is summed without looking; an element that is not shows as a NaN or inf in the sums (f64
 * sums of f32 numbers cannot overflow by themselves), and its block is done again the slow way. */
#include "measure/leaf.h"

#include <lastbit/processor.h>

#include "tensors/lane_pairs.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

#define STRIPE 64
#define BLOCK 1024 /* bytes between scrambles */
#define SECRET 192
#define LONG 240   /* up to here XXH3 is another function */
#define TOGETHER 4 /* blocks that are hashed and summarised before the sums are looked at */

#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87ull
#define PRIME64_2 0xC2B2AE3D27D4EB4Full
#define PRIME64_3 0x165667B19E3779F9ull
#define PRIME64_4 0x85EBCA77C2B2AE63ull
#define PRIME64_5 0x27D4EB2F165667C5ull

static const uint8_t fixed_secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

typedef struct hash {
    uint64_t sums[8];
    uint8_t secret[SECRET];
} hash;

static uint64_t word_at(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static void begin(hash *hash, uint64_t seed)
{
    static const uint64_t start[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                      PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    memcpy(hash->sums, start, sizeof start);
    for (size_t i = 0; i < SECRET; i += 16) {
        uint64_t low = word_at(fixed_secret + i) + seed, high = word_at(fixed_secret + i + 8) - seed;
        memcpy(hash->secret + i, &low, sizeof low);
        memcpy(hash->secret + i + 8, &high, sizeof high);
    }
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t end(const hash *hash, uint64_t size)
{
    uint64_t x = size * PRIME64_1;
    for (int i = 0; i < 4; i++)
        x += fold(hash->sums[2 * i] ^ word_at(hash->secret + 11 + 16 * i),
                  hash->sums[2 * i + 1] ^ word_at(hash->secret + 19 + 16 * i));
    x ^= x >> 37;
    x *= 0x165667919E3779F9ull;
    return x ^ x >> 32;
}

/* ---- stripes, one instruction set each --------------------------------------------------------------------------- */

static void plain_stripes(hash *hash, const uint8_t *bytes, size_t n, const uint8_t *secret)
{
    for (size_t s = 0; s < n; s++) {
        for (int i = 0; i < 8; i++) {
            uint64_t word = word_at(bytes + STRIPE * s + 8 * i), keyed = word ^ word_at(secret + 8 * s + 8 * i);
            hash->sums[i ^ 1] += word;
            hash->sums[i] += (keyed & 0xFFFFFFFFu) * (keyed >> 32);
        }
    }
}

static void plain_scramble(hash *hash)
{
    for (int i = 0; i < 8; i++)
        hash->sums[i] =
            (hash->sums[i] ^ hash->sums[i] >> 47 ^ word_at(hash->secret + SECRET - STRIPE + 8 * i)) * PRIME32_1;
}

static void plain_blocks(hash *hash, const uint8_t *bytes, size_t n)
{
    for (size_t b = 0; b < n; b++) {
        plain_stripes(hash, bytes + BLOCK * b, BLOCK / STRIPE, hash->secret);
        plain_scramble(hash);
    }
}

#if LB_HAVE_X86
#include <immintrin.h>

#define AHEAD 4096 /* the hardware does not fetch beyond a page by itself */

LB_TARGET_AVX2 LB_INLINE __m256i avx2_take(__m256i sum, __m256i data, const uint8_t *secret)
{
    __m256i keyed = _mm256_xor_si256(data, _mm256_loadu_si256((const __m256i *)(const void *)secret));
    sum = _mm256_add_epi64(sum, _mm256_shuffle_epi32(data, 0x4E));
    return _mm256_add_epi64(sum, _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32)));
}

LB_TARGET_AVX2 LB_INLINE __m256i avx2_scrambled(__m256i sum, const uint8_t *secret)
{
    const __m256i prime = _mm256_set1_epi64x(PRIME32_1);
    sum = _mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47));
    sum = _mm256_xor_si256(sum, _mm256_loadu_si256((const __m256i *)(const void *)secret));
    __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(sum, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(sum, prime), _mm256_slli_epi64(high, 32));
}

LB_TARGET_AVX2 static void avx2_blocks(hash *hash, const uint8_t *bytes, size_t n)
{
    __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)hash->sums);
    __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(hash->sums + 4));
    for (size_t block = 0; block < n; block++) {
        for (size_t s = 0; s < BLOCK / STRIPE; s++, bytes += STRIPE) {
            _mm_prefetch((const char *)bytes + AHEAD, _MM_HINT_T0);
            a = avx2_take(a, _mm256_loadu_si256((const __m256i *)(const void *)bytes), hash->secret + 8 * s);
            b = avx2_take(b, _mm256_loadu_si256((const __m256i *)(const void *)(bytes + 32)),
                          hash->secret + 8 * s + 32);
        }
        a = avx2_scrambled(a, hash->secret + SECRET - STRIPE);
        b = avx2_scrambled(b, hash->secret + SECRET - STRIPE + 32);
    }
    _mm256_storeu_si256((__m256i *)(void *)hash->sums, a);
    _mm256_storeu_si256((__m256i *)(void *)(hash->sums + 4), b);
}

LB_TARGET_AVX512 LB_INLINE __m512i avx512_take(__m512i sum, __m512i data, const uint8_t *secret)
{
    __m512i keyed = _mm512_xor_si512(data, _mm512_loadu_si512(secret));
    sum = _mm512_add_epi64(sum, _mm512_shuffle_epi32(data, _MM_PERM_BADC));
    return _mm512_add_epi64(sum, _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32)));
}

LB_TARGET_AVX512 LB_INLINE __m512i avx512_scrambled(__m512i sum, const uint8_t *secret)
{
    const __m512i prime = _mm512_set1_epi64(PRIME32_1);
    sum = _mm512_xor_si512(sum, _mm512_srli_epi64(sum, 47));
    sum = _mm512_xor_si512(sum, _mm512_loadu_si512(secret));
    __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(sum, 32), prime);
    return _mm512_add_epi64(_mm512_mul_epu32(sum, prime), _mm512_slli_epi64(high, 32));
}

LB_TARGET_AVX512 static void avx512_blocks(hash *hash, const uint8_t *bytes, size_t n)
{
    __m512i sum = _mm512_loadu_si512(hash->sums);
    for (size_t block = 0; block < n; block++) {
        for (size_t s = 0; s < BLOCK / STRIPE; s++, bytes += STRIPE) {
            _mm_prefetch((const char *)bytes + AHEAD, _MM_HINT_T0);
            sum = avx512_take(sum, _mm512_loadu_si512(bytes), hash->secret + 8 * s);
        }
        sum = avx512_scrambled(sum, hash->secret + SECRET - STRIPE);
    }
    _mm512_storeu_si512(hash->sums, sum);
}

/* ---- stripes and statistics together ----------------------------------------------------------------------------- */

/* Of blocks that are hashed together. */
typedef struct summary {
    __m512d sum[4], squares[4]; /* of the block at hand */
    __m512 low, high;
    __m512i zero;
} summary;

/* Sixteen elements, one to a lane. `x` and `y`: the same as f64. */
LB_TARGET_AVX512 LB_INLINE void take_sixteen(summary *summary, int at, __m512 v, __m512d x, __m512d y)
{
    summary->zero = _mm512_mask_add_epi32(summary->zero, _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_EQ_OQ),
                                          summary->zero, _mm512_set1_epi32(1));
    summary->low = _mm512_min_ps(v, summary->low);
    summary->high = _mm512_max_ps(v, summary->high);
    summary->sum[at] = _mm512_add_pd(summary->sum[at], x);
    summary->sum[at + 1] = _mm512_add_pd(summary->sum[at + 1], y);
    summary->squares[at] = _mm512_fmadd_pd(x, x, summary->squares[at]);
    summary->squares[at + 1] = _mm512_fmadd_pd(y, y, summary->squares[at + 1]);
}

LB_TARGET_AVX512 LB_INLINE void take_f32(summary *summary, const uint8_t *stripe, __m512i data)
{
    take_sixteen(summary, 0, _mm512_castsi512_ps(data),
                 _mm512_cvtps_pd(_mm256_loadu_ps((const float *)(const void *)stripe)),
                 _mm512_cvtps_pd(_mm256_loadu_ps((const float *)(const void *)(stripe + 32))));
}

LB_TARGET_AVX512 LB_INLINE void take_wide(summary *summary, int at, __m512 v)
{
    take_sixteen(summary, at, v, _mm512_cvtps_pd(_mm512_castps512_ps256(v)),
                 _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)));
}

LB_TARGET_AVX512 LB_INLINE void take_bf16(summary *summary, const uint8_t *stripe, __m512i data)
{
    (void)stripe;
    __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(data)),
            high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(data, 1));
    take_wide(summary, 0, _mm512_castsi512_ps(_mm512_slli_epi32(low, 16)));
    take_wide(summary, 2, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16)));
}

LB_TARGET_AVX512 LB_INLINE void take_f16(summary *summary, const uint8_t *stripe, __m512i data)
{
    (void)stripe;
    take_wide(summary, 0, _mm512_cvtph_ps(_mm512_castsi512_si256(data)));
    take_wide(summary, 2, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(data, 1)));
}

LB_TARGET_AVX512 LB_INLINE lb_lane_sums end_block(summary *summary, int sixteens)
{
    __m128d sums[2];
    for (int k = 0; k < sixteens; k++) sums[k] = lb_lane_sixteen(summary->sum + 2 * k, summary->squares + 2 * k);
    for (int k = 0; k < 4; k++) summary->sum[k] = summary->squares[k] = _mm512_setzero_pd();
    return lb_lane_sums_of(sums, (size_t)sixteens);
}

/* Adds what was found; false, and nothing is added, when an element was not finite. */
LB_TARGET_AVX512 LB_INLINE bool add_summary(lb_statistics_state *to, const summary *summary, const lb_lane_sums *blocks,
                                            size_t n)
{
    double odd = 0;
    for (size_t i = 0; i < n; i++) odd += blocks[i].sum - blocks[i].sum;
    if (odd != 0) return false;
    double low = _mm512_reduce_min_ps(summary->low), high = _mm512_reduce_max_ps(summary->high);
    to->zero += _mm512_reduce_add_epi32(summary->zero);
    to->min = low < to->min ? low : to->min;
    to->max = high > to->max ? high : to->max;
    for (size_t i = 0; i < n; i++) lb_statistics_add_block(to, blocks[i].sum, blocks[i].squares);
    return true;
}

/* `n` blocks, at most TOGETHER; false when an element was not finite: then only the hash went on. */
#define FUSED(name, take, sixteens)                                                                                    \
    LB_TARGET_AVX512 static bool name(hash *h, const uint8_t *bytes, size_t n, lb_statistics_state *statistics)        \
    {                                                                                                                  \
        summary s = {.low = _mm512_set1_ps(INFINITY), .high = _mm512_set1_ps(-INFINITY)};                              \
        lb_lane_sums blocks[TOGETHER];                                                                                 \
        __m512i sum = _mm512_loadu_si512(h->sums);                                                                     \
        for (size_t block = 0; block < n; block++) {                                                                   \
            for (size_t i = 0; i < BLOCK / STRIPE; i++, bytes += STRIPE) {                                             \
                __m512i data = _mm512_loadu_si512(bytes);                                                              \
                _mm_prefetch((const char *)bytes + AHEAD, _MM_HINT_T0);                                                \
                sum = avx512_take(sum, data, h->secret + 8 * i);                                                       \
                take(&s, bytes, data);                                                                                 \
            }                                                                                                          \
            sum = avx512_scrambled(sum, h->secret + SECRET - STRIPE);                                                  \
            blocks[block] = end_block(&s, sixteens);                                                                   \
        }                                                                                                              \
        _mm512_storeu_si512(h->sums, sum);                                                                             \
        return add_summary(statistics, &s, blocks, n);                                                                 \
    }
FUSED(fused_f32, take_f32, 1)
FUSED(fused_bf16, take_bf16, 2)
FUSED(fused_f16, take_f16, 2)
#undef FUSED
#endif

/* ---- a leaf ------------------------------------------------------------------------------------------------------ */

static void add_blocks(hash *hash, const uint8_t *bytes, size_t n)
{
#if LB_HAVE_X86
    switch (lb_processor_isa()) {
    case LB_ISA_AVX512: avx512_blocks(hash, bytes, n); return;
    case LB_ISA_AVX2: avx2_blocks(hash, bytes, n); return;
    case LB_ISA_SCALAR: break;
    }
#endif
    plain_blocks(hash, bytes, n);
}

/* `n` whole blocks of elements, hashed and summarised. */
static void add_both(hash *hash, const uint8_t *bytes, size_t n, lb_dtype dtype, size_t elements,
                     lb_statistics_state *statistics)
{
#if LB_HAVE_X86
    if (lb_processor_isa() == LB_ISA_AVX512 && (dtype == LB_F32 || dtype == LB_BF16 || dtype == LB_F16)) {
        bool finite = dtype == LB_F32    ? fused_f32(hash, bytes, n, statistics)
                      : dtype == LB_BF16 ? fused_bf16(hash, bytes, n, statistics)
                                         : fused_f16(hash, bytes, n, statistics);
        if (!finite) {
            lb_statistics_add(statistics, dtype, bytes, elements);
            return;
        }
        statistics->elements += (int64_t)elements;
        return;
    }
#endif
    lb_statistics_add(statistics, dtype, bytes, elements);
    add_blocks(hash, bytes, n);
}

uint64_t lb_leaf_measure(const void *leaf, size_t size, uint64_t seed, lb_dtype dtype, size_t elements,
                         lb_statistics_state *statistics)
{
    if (size <= LONG) {
        if (statistics) lb_statistics_add(statistics, dtype, leaf, elements);
        return XXH3_64bits_withSeed(leaf, size, seed);
    }
    hash hash;
    begin(&hash, seed);
    const uint8_t *bytes = (const uint8_t *)leaf;
    const size_t whole = (size - 1) / BLOCK; /* blocks that are scrambled; the last is not, even when it is full */
    size_t done = 0;
    if (!statistics) {
        add_blocks(&hash, bytes, whole);
        done = whole * BLOCK;
    } else {
        const size_t per = TOGETHER * BLOCK * 8 / lb_dtype_bits(dtype);
        for (; done + TOGETHER * BLOCK < size; done += TOGETHER * BLOCK, elements -= per)
            add_both(&hash, bytes + done, TOGETHER, dtype, per, statistics);
        const size_t last = whole - done / BLOCK, in_last = last * BLOCK * 8 / lb_dtype_bits(dtype);
        if (last) add_both(&hash, bytes + done, last, dtype, in_last, statistics);
        done += last * BLOCK;
        lb_statistics_add(statistics, dtype, bytes + done, elements - in_last);
    }
    plain_stripes(&hash, bytes + done, (size - 1 - done) / STRIPE, hash.secret);
    plain_stripes(&hash, bytes + size - STRIPE, 1, hash.secret + SECRET - STRIPE - 7);
    return end(&hash, size);
}
