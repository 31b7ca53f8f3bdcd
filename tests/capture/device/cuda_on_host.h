/* A .cu file as plain C++: what its kernels use of CUDA, as functions of the host. Include it before the file.
 *
 * Each thread of a block is a fiber; fibers of a warp run one after the other in random order, as do warps, and stop at
 * __syncwarp and __syncthreads; now and then one stands at a fence while the others go on. So a kernel that forgets a
 * barrier reads what is not there yet, and under ThreadSanitizer, which is told of fibers and barriers, it is a data
 * race. */
#ifndef CUDA_ON_HOST_H
#define CUDA_ON_HOST_H

#include <math.h>
#include <stdint.h>
#include <string.h>

struct host_index {
    uint32_t x;
};
const host_index *host_thread_index(), *host_block_index(); /* of the thread that runs now */
#define threadIdx (*host_thread_index())
#define blockIdx (*host_block_index())

#define __global__
#define __shared__ thread_local
#define __launch_bounds__(threads, blocks)
#define LB_DEVICE static inline
#define LB_SELDOM static
#define LB_TABLE static const
#define LB_PARAMETER(type) const type &

void __syncwarp();
void __threadfence(); /* other threads may go on while one stands at it */
void __threadfence_system();
void __syncthreads();
/* What each of a warp's threads has, given by all; until the next call. */
const uint64_t *of_warp(uint64_t value);

static inline uint64_t partners(uint64_t value, uint32_t bit)
{
    return of_warp(value)[(threadIdx.x % 32) ^ bit];
}
static inline int32_t least(int32_t value)
{
    const uint64_t *all = of_warp((uint32_t)value);
    for (int i = 0; i < 32; i++) value = (int32_t)all[i] < value ? (int32_t)all[i] : value;
    return value;
}
static inline int32_t most(int32_t value)
{
    const uint64_t *all = of_warp((uint32_t)value);
    for (int i = 0; i < 32; i++) value = (int32_t)all[i] > value ? (int32_t)all[i] : value;
    return value;
}
static inline uint32_t total(uint32_t value)
{
    const uint64_t *all = of_warp(value);
    value = 0;
    for (int i = 0; i < 32; i++) value += (uint32_t)all[i];
    return value;
}
static inline uint32_t value_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline uint32_t count_one(uint64_t *counter)
{
    return (uint32_t)__atomic_fetch_add(counter, 1, __ATOMIC_SEQ_CST);
}
static inline uint64_t get_visible(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}
static inline uint64_t get_written(const uint64_t *word)
{
    return *word;
}
static inline void set_visibly(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

static inline float bits_value(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline uint64_t double_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
static inline double bits_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
/* IEEE half precision. */
static inline float half_value(uint32_t bits)
{
    const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexpf((float)(1024 + fraction), (int)exponent - 25) : ldexpf((float)fraction, -24));
}
static inline float bf16_value(uint32_t bits)
{
    return bits_value(bits << 16);
}
/* Halves of a word one by one. What is no number loses, as in the device's instructions. */
static inline uint32_t by_halves(uint32_t a, uint32_t b, float (*value)(uint32_t), bool larger)
{
    uint32_t result = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        const uint32_t x = a >> shift & 0xffff, y = b >> shift & 0xffff;
        const float v = value(x), w = value(y);
        result |= (isnan(w) || (!isnan(v) && (larger ? v >= w : v <= w)) ? x : y) << shift;
    }
    return result;
}
static inline uint32_t min_bf16(uint32_t a, uint32_t b)
{
    return by_halves(a, b, bf16_value, false);
}
static inline uint32_t max_bf16(uint32_t a, uint32_t b)
{
    return by_halves(a, b, bf16_value, true);
}
static inline uint32_t min_f16(uint32_t a, uint32_t b)
{
    return by_halves(a, b, half_value, false);
}
static inline uint32_t max_f16(uint32_t a, uint32_t b)
{
    return by_halves(a, b, half_value, true);
}
/* A whole number below 2048 as f16. */
static inline uint16_t half_bits(uint32_t count)
{
    if (count == 0) return 0;
    const uint32_t exponent = 31 - (uint32_t)__builtin_clz(count);
    return (uint16_t)((exponent + 15) << 10 | ((count << (10 - exponent)) & 1023));
}
static inline uint32_t count_zeros(uint32_t counts, uint32_t x)
{
    const uint32_t low = (uint32_t)half_value(counts & 0xffff) + ((x & 0x7fff) == 0);
    const uint32_t high = (uint32_t)half_value(counts >> 16) + ((x & 0x7fff0000) == 0);
    return half_bits(low) | (uint32_t)half_bits(high) << 16;
}
static inline uint64_t high_product(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
}
static inline double __dadd_rn(double a, double b)
{
    return a + b;
}
static inline double __dmul_rn(double a, double b)
{
    return a * b;
}
static inline double __fma_rn(double a, double b, double c)
{
    return __builtin_fma(a, b, c);
}

#endif
