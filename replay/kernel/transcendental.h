/* Elementwise loops through transcendental functions: evaluated in f64, rounded once to the result.
 *
 * LB_F64_LOOP(name, statements, expression) defines a loop over f64 lanes. `statements` run before it on whole chunks and fill the scratch
 * arrays t, u, v by array functions (FN(exp, t, t)) and SET(t, …); the expression then reads A … E, t[i], u[i], v[i] and the scalars. */
#ifndef LB_REPLAY_TRANSCENDENTAL_H
#define LB_REPLAY_TRANSCENDENTAL_H

#include "elementary.h"
#include "pointwise.h"

#include <math.h>

#if defined(__GNUC__) && !defined(__clang__)
/* A loop over n lanes fills the scratch arrays before an array function reads n of them; n = 0 reads none. */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

/* dst and src may be the same array. */
#define FN(NAME, DST, SRC) lb_##NAME##_f64(DST, SRC, n)
#define SET(DST, EXPRESSION)                                                                                 \
    LB_INDEPENDENT                                                                                           \
    for (size_t i = 0; i < n; i++) (DST)[i] = (EXPRESSION)

#define LB_F64_LOOP(NAME, STATEMENTS, EXPRESSION)                                                            \
    LB_INLINE void NAME##_body(const lb_lanes *l)                                                            \
    {                                                                                                        \
        typedef double T;                                                                                    \
        const T *in0 = l->in[0], *in1 = l->in[1], *in2 = l->in[2], *in3 = l->in[3], *in4 = l->in[4];         \
        T *out = l->out[0], t[LB_LANES], u[LB_LANES], v[LB_LANES];                                           \
        const T s0 = l->s[0], s1 = l->s[1], s2 = l->s[2], s3 = l->s[3];                                      \
        const size_t n = l->n;                                                                               \
        (void)s0, (void)s1, (void)s2, (void)s3, (void)in0, (void)in1, (void)in2, (void)in3, (void)in4;       \
        (void)t, (void)u, (void)v;                                                                           \
        STATEMENTS                                                                                           \
        LB_INDEPENDENT                                                                                       \
        for (size_t i = 0; i < n; i++) out[i] = (T)(EXPRESSION);                                             \
    }                                                                                                        \
    LB_PER_ISA(NAME, NAME##_body, (const lb_lanes *l), (l))

/* Kinds for LB_DEFINE: D one f64 loop, DT with a twin; the `I` column holds the statements, which the twin shares. */
#define LB_DEFINE_D(ID, PATTERN, FLAGS, F, STATEMENTS, TW)                                                   \
    LB_F64_LOOP(ID##_loop_f64, STATEMENTS, F)                                                                \
    static const lb_pointwise ID##_op = {PATTERN, NULL, ID##_loop_f64, NULL, NULL, FLAGS};                   \
    LB_KERNEL(ID)
#define LB_DEFINE_DT(ID, PATTERN, FLAGS, F, STATEMENTS, TW)                                                  \
    LB_F64_LOOP(ID##_loop_f64, STATEMENTS, F)                                                                \
    LB_F64_LOOP(ID##_loop_twin, STATEMENTS, TW)                                                              \
    static const lb_pointwise ID##_op = {PATTERN, NULL, ID##_loop_f64, NULL, ID##_loop_twin, FLAGS};         \
    LB_KERNEL(ID) LB_TWIN(ID)
#define LB_TWIN_OF_D(ID) NULL
#define LB_TWIN_OF_DT(ID) ID##_twin

/* Kind U: the function of elementary.h by itself, with its f32 form. The `F` column is its name. */
#define LB_DEFINE_U(ID, PATTERN, FLAGS, NAME, STATEMENTS, TW)                                                \
    static void ID##_loop_f32(const lb_lanes *l) { lb_##NAME##_f32(l->out[0], l->in[0], l->n); }             \
    static void ID##_loop_f64(const lb_lanes *l) { lb_##NAME##_f64(l->out[0], l->in[0], l->n); }             \
    static const lb_pointwise ID##_op = {PATTERN, ID##_loop_f32, ID##_loop_f64, NULL, NULL, FLAGS};          \
    LB_KERNEL(ID)
#define LB_TWIN_OF_U(ID) NULL
/* Kind UT: with a twin, which has the function's value in t. */
#define LB_DEFINE_UT(ID, PATTERN, FLAGS, NAME, STATEMENTS, TW)                                               \
    static void ID##_loop_f32(const lb_lanes *l) { lb_##NAME##_f32(l->out[0], l->in[0], l->n); }             \
    static void ID##_loop_f64(const lb_lanes *l) { lb_##NAME##_f64(l->out[0], l->in[0], l->n); }             \
    LB_F64_LOOP(ID##_loop_twin, FN(NAME, t, in0);, TW)                                                       \
    static const lb_pointwise ID##_op = {PATTERN, ID##_loop_f32, ID##_loop_f64, NULL, ID##_loop_twin, FLAGS}; \
    LB_KERNEL(ID) LB_TWIN(ID)
#define LB_TWIN_OF_UT(ID) ID##_twin

#endif
