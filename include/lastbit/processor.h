/* Which instructions the loops of this process use.
 *
 * Simplest use:
 *
 *     printf("%s\n", lb_processor_isa_name(lb_processor_isa()));
 *
 * Results never depend on it: every path is compared bit by bit with the scalar one. It is visible so that a test (or
 * a user who doubts it) can force a level: LASTBIT_ISA=scalar|avx2|avx512 in the environment, or lb_processor_limit.
 */
#ifndef LASTBIT_PROCESSOR_H
#define LASTBIT_PROCESSOR_H

#include <lastbit/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Each level contains the ones before it. AVX2 means AVX2 + FMA + F16C; AVX512 means F + BW + DQ + VL besides. */
typedef enum lb_isa { LB_ISA_SCALAR, LB_ISA_AVX2, LB_ISA_AVX512 } lb_isa;

/* The level in use: the least of what the processor has, LASTBIT_ISA and lb_processor_limit. Any thread. */
LB_API lb_isa lb_processor_isa(void);
/* Use at most `level` from now on; LB_ISA_AVX512 lifts the limit. Not while kernels run in other threads. */
LB_API void lb_processor_limit(lb_isa level);
/* What the processor has, whatever the limits say. */
LB_API lb_isa lb_processor_best(void);
LB_API const char *lb_processor_isa_name(lb_isa level); /* "scalar", "avx2", "avx512" */

#if defined(__x86_64__) && defined(__GNUC__)
#define LB_HAVE_X86 1
#define LB_TARGET_AVX2 __attribute__((target("avx2,fma,f16c,bmi,bmi2")))
#if defined(                                                                                                           \
    __clang__) /* knows the width by another name, and vectorises these loops at 512 bits or 256 as it sees fit */
#define LB_WIDE_VECTORS
#else
#define LB_WIDE_VECTORS ",prefer-vector-width=512"
#endif
#define LB_TARGET_AVX512                                                                                               \
    __attribute__((target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl" LB_WIDE_VECTORS)))
#else
#define LB_HAVE_X86 0
#define LB_TARGET_AVX2
#define LB_TARGET_AVX512
#endif

/* Defines `static void name params` that runs `body args`, a function declared LB_INLINE, compiled once per level. The
 * compiler may vectorise it as it likes: under strict floating point that cannot change a bit. A build that counts
 * branches (preset coverage) counts those of the source: in copies for one rounding or one type all others are dead. */
#ifdef LASTBIT_COUNT_BRANCHES
#define LB_INLINE static inline __attribute__((unused))
#else
#define LB_INLINE static inline __attribute__((always_inline))
#endif
#define LB_PER_ISA(name, body, params, args)                                                                           \
    LB_TARGET_AVX512 static void name##_avx512 params                                                                  \
    {                                                                                                                  \
        body args;                                                                                                     \
    }                                                                                                                  \
    LB_TARGET_AVX2 static void name##_avx2 params                                                                      \
    {                                                                                                                  \
        body args;                                                                                                     \
    }                                                                                                                  \
    static void name params                                                                                            \
    {                                                                                                                  \
        switch (lb_processor_isa()) {                                                                                  \
        case LB_ISA_AVX512: name##_avx512 args; return;                                                                \
        case LB_ISA_AVX2: name##_avx2 args; return;                                                                    \
        case LB_ISA_SCALAR: break;                                                                                     \
        }                                                                                                              \
        body args;                                                                                                     \
    }

#ifdef __cplusplus
}
#endif
#endif
