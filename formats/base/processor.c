/* Run-time choice of instructions: see lastbit/processor.h. */
#include <lastbit/processor.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if LB_HAVE_X86
#include <cpuid.h>
#endif

static atomic_int level_in_use = -1; /* -1: not looked at yet */

#if LB_HAVE_X86
/* Not every compiler's __builtin_cpu_supports knows it. That the system saves the wide registers says avx2. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx = 0, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#endif

lb_isa lb_processor_best(void)
{
#if LB_HAVE_X86
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi") ||
        !__builtin_cpu_supports("bmi2") || !has_f16c())
        return LB_ISA_SCALAR;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return LB_ISA_AVX512;
    return LB_ISA_AVX2;
#else
    return LB_ISA_SCALAR;
#endif
}

const char *lb_processor_isa_name(lb_isa level)
{
    switch (level) {
    case LB_ISA_SCALAR: return "scalar";
    case LB_ISA_AVX2: return "avx2";
    case LB_ISA_AVX512: return "avx512";
    }
    return "?";
}

/* What the environment allows; a word it does not know changes nothing. */
static lb_isa environment_limit(void)
{
    const char *text = getenv("LASTBIT_ISA");
    for (int level = LB_ISA_SCALAR; text && level <= LB_ISA_AVX512; level++)
        if (strcmp(text, lb_processor_isa_name((lb_isa)level)) == 0) return (lb_isa)level;
    return LB_ISA_AVX512;
}

void lb_processor_limit(lb_isa level)
{
    lb_isa best = lb_processor_best(), environment = environment_limit();
    if (environment < best) best = environment;
    if (level < best) best = level;
    atomic_store_explicit(&level_in_use, (int)best, memory_order_relaxed);
}

lb_isa lb_processor_isa(void)
{
    int level = atomic_load_explicit(&level_in_use, memory_order_relaxed);
    if (level >= 0) return (lb_isa)level;
    lb_processor_limit(LB_ISA_AVX512);
    return (lb_isa)atomic_load_explicit(&level_in_use, memory_order_relaxed);
}
