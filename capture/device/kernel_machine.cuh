/* What the measuring kernel uses of the device beyond the language: values of other threads, counters, words of
 * other blocks, numbers in their bits. tests/capture/device/cuda_on_host.h has the same for the host. */
#ifndef LB_KERNEL_MACHINE_CUH
#define LB_KERNEL_MACHINE_CUH

#include "digest_kernel.h"

#ifdef __CUDACC__
#define LB_DEVICE static __device__ __forceinline__
/* What is called seldom, or not at all where it matters: one copy of its code is enough. */
#define LB_SELDOM static __device__ __noinline__
#define LB_TABLE static __device__ __constant__ const
/* What is read where the driver has put it, word by word, and not copied to each thread's stack first. */
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1107
#define LB_PARAMETER(type) const __grid_constant__ type
#else
#define LB_PARAMETER(type) const type
#endif

/* Of all threads of a warp, each of which takes part: what the one has whose number differs in this bit; the least, the
 * most and the sum. */
LB_DEVICE uint64_t partners(uint64_t value, uint32_t bit)
{
    return __shfl_xor_sync(0xffffffffu, (unsigned long long)value, (int)bit);
}
LB_DEVICE int32_t least(int32_t value)
{
    return __reduce_min_sync(0xffffffffu, value);
}
LB_DEVICE int32_t most(int32_t value)
{
    return __reduce_max_sync(0xffffffffu, value);
}
LB_DEVICE uint32_t total(uint32_t value)
{
    return __reduce_add_sync(0xffffffffu, value);
}
LB_DEVICE uint32_t value_bits(float value)
{
    return __float_as_uint(value);
}
LB_DEVICE float half_value(uint32_t bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((uint16_t)bits));
    return value;
}
LB_DEVICE float bits_value(uint32_t bits)
{
    return __uint_as_float(bits);
}
LB_DEVICE uint64_t double_bits(double value)
{
    return (uint64_t)__double_as_longlong(value);
}
LB_DEVICE double bits_double(uint64_t bits)
{
    return __longlong_as_double((long long)bits);
}
LB_DEVICE uint64_t high_product(uint64_t a, uint64_t b)
{
    return __umul64hi(a, b);
}
LB_DEVICE uint32_t count_one(uint64_t *counter)
{
    return (uint32_t)atomicAdd((unsigned long long *)counter, 1ull);
}
/* Of words that other blocks read or write meanwhile. */
LB_DEVICE void set_visibly(uint64_t *word, uint64_t value)
{
    *(volatile uint64_t *)word = value;
}
LB_DEVICE uint64_t get_visible(const uint64_t *word)
{
    return *(const volatile uint64_t *)word;
}
/* What another block has written, and a fence has ordered. */
LB_DEVICE uint64_t get_written(const uint64_t *word)
{
    return __ldcg((const unsigned long long *)word);
}

/* Two numbers of 16 bits in a word: the smaller and the larger of each, without regard to what is no number. */
LB_DEVICE uint32_t min_bf16(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("min.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
LB_DEVICE uint32_t max_bf16(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
LB_DEVICE uint32_t min_f16(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
LB_DEVICE uint32_t max_f16(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
/* Adds 1.0, as f16, to each half of `counts` where that of `x` is zero. Zero has the same bits in f16 and bf16. */
LB_DEVICE uint32_t count_zeros(uint32_t counts, uint32_t x)
{
    uint32_t r;
    asm("{ .reg .b32 t; set.eq.f16x2.f16x2 t, %2, %3; add.rn.f16x2 %0, %1, t; }"
        : "=r"(r)
        : "r"(counts), "r"(x), "r"(0));
    return r;
}
#endif

#endif
