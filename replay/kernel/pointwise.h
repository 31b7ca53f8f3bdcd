/* The driver of elementwise kernels: one op is a loop over a chunk of dense elements, everything else is here.
 *
 *      operands: any dtype, strides, broadcasting, or a Python scalar      results: any dtype, strides
 *             │ gathered in chunks of LB_LANES elements                              ▲ rounded once, scattered
 *             ▼                                                                      │
 *      dense f32 (or f64, i64) buffers ──── loop(lanes): out[i] = f(in0[i], in1[i], …) ──── dense buffer
 *
 * An operand that is dense in the compute type already is used in place; one that is the same everywhere (a scalar, a
 * 0-dim tensor) is loaded once. Chunks are split over threads above LB_LANES_PARALLEL elements; elements do not know
 * their neighbours, so bits depend neither on that nor on the instruction set.
 *
 * Compute type: f64 as soon as an operand or a result is f64; int64 when all operands are integers or bool and so are
 * the results; else f32. A loop missing for a type falls back: f32 -> f64 (functions evaluated in f64 and rounded
 * once), int64 -> f32.
 *
 * Argument patterns, one character per argument of the schema:
 *      x  operand: a tensor, or a scalar, which is read as a tensor of one element
 *      o  operand that may be None: read as zeros, lanes->given[k] says so
 *      s  scalar: lanes->s[k] (f64, in f32 loops to be rounded to f32) and lanes->i[k]; None gives 0
 *      1  scalar whose default is 1 (alpha, value); None gives 1
 *      n  scalar or None: None gives NaN in s[k], and given_s[k] is false
 *      t  string (approximate="tanh", rounding_mode="floor"): lanes->text[0]
 *      -  not used
 */
#ifndef LB_REPLAY_POINTWISE_H
#define LB_REPLAY_POINTWISE_H

#include "kernel/ops.h"

#include <lastbit/processor.h>

#define LB_LANES 1024
#define LB_LANES_PARALLEL 65536
#define LB_LANES_INPUTS 5
#define LB_LANES_OUTPUTS 5
#define LB_LANES_SCALARS 12

typedef struct lb_lanes {
    size_t n;
    const void *in[LB_LANES_INPUTS];
    void *out[LB_LANES_OUTPUTS];
    double s[LB_LANES_SCALARS];
    int64_t i[LB_LANES_SCALARS];
    bool given[LB_LANES_INPUTS], given_s[LB_LANES_SCALARS];
    bool scalar[LB_LANES_INPUTS]; /* the operand was a Python scalar */
    bool single[LB_LANES_INPUTS]; /* the same value everywhere */
    lb_dtype common;              /* what the operands promote to; of a shadow call f64 */
    lb_dtype result;              /* of the first result */
    /* For twins of ops whose steps torch rounds to the common dtype where that has 16 bits: how much coarser it is than
     * f32 (at least 1), and an absolute part for its subnormals (0 for f32 and f64). COARSE(x) applies both. */
    double coarse, grain;
    char text; /* first letter of the string argument, 0: None */
} lb_lanes;

typedef void (*lb_lane_loop)(const lb_lanes *lanes);

enum lb_pointwise_flags {
    /* Scalars and 0-dim tensors take the dtype that the operands promote to before anything is computed (comparisons,
     * maximum, …); without it they are only rounded to the compute type (add, mul, …). */
    LB_POINTWISE_COMMON = 1 << 0,
    LB_POINTWISE_COMMON_FIRST = 1 << 1 /* the first operand alone (mul, div: torch reads the second as it is) */
};

typedef struct lb_pointwise {
    const char *pattern;
    lb_lane_loop f32, f64, i64, twin;
    unsigned flags;
} lb_pointwise;

/* Runs the loop over all results of the call. LB_ERR_UNSUPPORTED: complex, u64, sub-byte, or no loop for these
 * dtypes. */
lb_status lb_pointwise_run(lb_call *call, const lb_pointwise *op);
/* The same with the twin loop, in f64. */
lb_status lb_pointwise_twin(lb_call *call, const lb_pointwise *op);
/* result = source, broadcast, in any dtypes (complex and bits included), rounded as `cast` says. They may be the same
 * memory. */
lb_status lb_pointwise_copy(lb_call *call, const lb_tensor *result, const lb_tensor *source);
/* result = value everywhere. */
lb_status lb_pointwise_fill(lb_call *call, const lb_tensor *result, const lb_operand *value);
/* part(job, first, last) for all of [0, steps): over threads, cut at multiples of `grain`, when `elements` are many. */
void lb_pointwise_lanes_share(int64_t elements, int64_t steps, int64_t grain,
                              void (*part)(const void *, int64_t, int64_t), const void *job);

/* ---- writing loops ---------------------------------------------------------------------------------------------- *
 * LB_LOOP(name, type, expression) defines `name`, a loop whose expression may use a[i] … e[i] (the elements of the
 * operands), s0 … s3 (the scalars, in the type) and l (the lanes). T is the type. Selections must be written as `?:`,
 * so that the loop vectorises. */

#if defined(__clang__)
#define LB_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define LB_INDEPENDENT _Pragma("GCC ivdep")
#endif

#define LB_LANE_SCALAR(T, k) _Generic((T)0, int64_t: l->i[k], default: (T)l->s[k])

#define LB_LOOP(NAME, TYPE, EXPRESSION)                                                                                \
    LB_INLINE void NAME##_body(const lb_lanes *l)                                                                      \
    {                                                                                                                  \
        typedef TYPE T;                                                                                                \
        const T *a = l->in[0], *b = l->in[1], *c = l->in[2], *d = l->in[3], *e = l->in[4];                             \
        T *out = l->out[0];                                                                                            \
        const T s0 = LB_LANE_SCALAR(T, 0), s1 = LB_LANE_SCALAR(T, 1), s2 = LB_LANE_SCALAR(T, 2),                       \
                s3 = LB_LANE_SCALAR(T, 3);                                                                             \
        const size_t n = l->n;                                                                                         \
        (void)s0, (void)s1, (void)s2, (void)s3, (void)a, (void)b, (void)c, (void)d, (void)e;                           \
        LB_INDEPENDENT                                                                                                 \
        for (size_t i = 0; i < n; i++) {                                                                               \
            out[i] = (T)(EXPRESSION);                                                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    LB_PER_ISA(NAME, NAME##_body, (const lb_lanes *l), (l))

/* ---- writing ops -------------------------------------------------------------------------------------------------- *
 * LB_POINTWISE_KIND(id, pattern, flags, expressions…) makes the loops and from them id_op, id_kernel and, in kinds …T,
 * id_twin. KIND says which expressions follow: F one for f32 and f64, FI another for int64, I that alone, …T the twin
 * last. More kinds are in transcendental.h. */
#define LB_KERNEL(ID)                                                                                                  \
    static __attribute__((unused)) lb_status ID##_kernel(lb_call *call)                                                \
    {                                                                                                                  \
        return lb_pointwise_run(call, &ID##_op);                                                                       \
    }
#define LB_TWIN(ID)                                                                                                    \
    static __attribute__((unused)) lb_status ID##_twin(lb_call *call)                                                  \
    {                                                                                                                  \
        return lb_pointwise_twin(call, &ID##_op);                                                                      \
    }

#define LB_POINTWISE_F(ID, PATTERN, FLAGS, REAL)                                                                       \
    LB_LOOP(ID##_loop_f32, float, REAL)                                                                                \
    LB_LOOP(ID##_loop_f64, double, REAL)                                                                               \
    static const lb_pointwise ID##_op = {PATTERN, ID##_loop_f32, ID##_loop_f64, NULL, NULL, FLAGS};                    \
    LB_KERNEL(ID)
#define LB_POINTWISE_FT(ID, PATTERN, FLAGS, REAL, TWIN)                                                                \
    LB_LOOP(ID##_loop_f32, float, REAL)                                                                                \
    LB_LOOP(ID##_loop_f64, double, REAL)                                                                               \
    LB_LOOP(ID##_loop_twin, double, TWIN)                                                                              \
    static const lb_pointwise ID##_op = {PATTERN, ID##_loop_f32, ID##_loop_f64, NULL, ID##_loop_twin, FLAGS};          \
    LB_KERNEL(ID) LB_TWIN(ID)
#define LB_POINTWISE_FI(ID, PATTERN, FLAGS, REAL, INTEGER)                                                             \
    LB_LOOP(ID##_loop_f32, float, REAL)                                                                                \
    LB_LOOP(ID##_loop_f64, double, REAL)                                                                               \
    LB_LOOP(ID##_loop_i64, int64_t, INTEGER)                                                                           \
    static const lb_pointwise ID##_op = {PATTERN, ID##_loop_f32, ID##_loop_f64, ID##_loop_i64, NULL, FLAGS};           \
    LB_KERNEL(ID)
#define LB_POINTWISE_FIT(ID, PATTERN, FLAGS, REAL, INTEGER, TWIN)                                                      \
    LB_LOOP(ID##_loop_f32, float, REAL)                                                                                \
    LB_LOOP(ID##_loop_f64, double, REAL)                                                                               \
    LB_LOOP(ID##_loop_i64, int64_t, INTEGER)                                                                           \
    LB_LOOP(ID##_loop_twin, double, TWIN)                                                                              \
    static const lb_pointwise ID##_op = {PATTERN, ID##_loop_f32, ID##_loop_f64, ID##_loop_i64, ID##_loop_twin, FLAGS}; \
    LB_KERNEL(ID) LB_TWIN(ID)
#define LB_POINTWISE_I(ID, PATTERN, FLAGS, INTEGER)                                                                    \
    LB_LOOP(ID##_loop_i64, int64_t, INTEGER)                                                                           \
    static const lb_pointwise ID##_op = {PATTERN, NULL, NULL, ID##_loop_i64, NULL, FLAGS};                             \
    LB_KERNEL(ID)

#define LB_COARSE(x) ((x) * l->coarse + l->grain)
/* A finite twin of this size says nothing of the element (bound.c). So where x, which torch computes on the way in f32,
 * or in f64 where operands are f64, overflows there: one may have become infinite or NaN. And where torch's own loops,
 * vectors and scalars, disagree. */
#define LB_NOTHING_SAID (l->common == LB_F64 ? 0x1.fffffffffffffp1023 : 0x1p128)
#define LB_UNLESS_OVERFLOWS(x, TWIN)                                                                                   \
    (LB_ABS(x) <= (l->common == LB_F64 ? 0x1p1023 : 0x1.fffffep127) ? (TWIN) : LB_NOTHING_SAID)
/* The same where torch rounds x to the common dtype: f16 overflows soon. */
#define LB_UNLESS_STEP_OVERFLOWS(x, TWIN)                                                                              \
    (l->common == LB_F16 && !(LB_ABS(x) < 65504) ? LB_NOTHING_SAID : LB_UNLESS_OVERFLOWS(x, TWIN))
/* What an exp of the compute type loses below the least normal number, as a twin: multiplied with what magnifies it. */
#define LB_UNDERFLOW (l->common == LB_F64 ? 0x1p-969 : 0x1p-102)
/* The twin of a function that is exact wherever x, which decides which value is taken, is a number. */
#define LB_UNLESS_NAN(x) ((x) == (x) ? 0 : LB_NOTHING_SAID)

/* Integers wrap around, as in torch. */
#define LB_WADD(x, y) ((int64_t)((uint64_t)(x) + (uint64_t)(y)))
#define LB_WSUB(x, y) ((int64_t)((uint64_t)(x) - (uint64_t)(y)))
#define LB_WMUL(x, y) ((int64_t)((uint64_t)(x) * (uint64_t)(y)))

/* Functions of the loop's type. */
#define LB_SQRT(x) _Generic((x), float: __builtin_sqrtf, double: __builtin_sqrt)(x)
#define LB_ABS(x) _Generic((x), float: __builtin_fabsf, double: __builtin_fabs, int64_t: __builtin_llabs)(x)
#define LB_FMA(x, y, z) _Generic((x), float: __builtin_fmaf, double: __builtin_fma)(x, y, z)
#define LB_FLOOR(x) _Generic((x), float: __builtin_floorf, double: __builtin_floor)(x)
#define LB_CEIL(x) _Generic((x), float: __builtin_ceilf, double: __builtin_ceil)(x)
#define LB_TRUNC(x) _Generic((x), float: __builtin_truncf, double: __builtin_trunc)(x)
#define LB_RINT(x) _Generic((x), float: __builtin_rintf, double: __builtin_rint)(x)
#define LB_FMOD(x, y) _Generic((x), float: __builtin_fmodf, double: __builtin_fmod)(x, y)
#define LB_COPYSIGN(x, y) _Generic((x), float: __builtin_copysignf, double: __builtin_copysign)(x, y)

#endif
