/* Elementwise loops through transcendental functions: evaluated in f64, rounded once to the result.
 *
 * LB_F64_LOOP(name, statements, expression) defines a loop over f64 lanes. `statements` run before it on whole chunks
 * and fill the scratch arrays t, u, v by array functions (FN(exp, t, t)) and SET(t, …); the expression then reads a[i]
 * … e[i], t[i], u[i], v[i] and the scalars. */
#ifndef LB_REPLAY_TRANSCENDENTAL_H
#define LB_REPLAY_TRANSCENDENTAL_H

#include "functions/elementary.h"
#include "kernel/pointwise.h"

#include <math.h>

#if defined(__GNUC__) && !defined(__clang__)
/* A loop over n lanes fills the scratch arrays before an array function reads n of them; n = 0 reads none. */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

/* dst and src may be the same array. */
#define LB_F64_FN(NAME, DST, SRC) lb_##NAME##_f64(DST, SRC, n)
#define LB_F64_SET(DST, EXPRESSION)                                                                                    \
    LB_INDEPENDENT                                                                                                     \
    for (size_t i = 0; i < n; i++) (DST)[i] = (EXPRESSION)

#define LB_F64_LOOP(NAME, STATEMENTS, EXPRESSION)                                                                      \
    LB_INLINE void NAME##_body(const lb_lanes *l)                                                                      \
    {                                                                                                                  \
        typedef double T;                                                                                              \
        const T *a = l->in[0], *b = l->in[1], *c = l->in[2], *d = l->in[3], *e = l->in[4];                             \
        T *out = l->out[0], t[LB_LANES], u[LB_LANES], v[LB_LANES];                                                     \
        const T s0 = l->s[0], s1 = l->s[1], s2 = l->s[2], s3 = l->s[3];                                                \
        const size_t n = l->n;                                                                                         \
        (void)s0, (void)s1, (void)s2, (void)s3, (void)a, (void)b, (void)c, (void)d, (void)e;                           \
        (void)t, (void)u, (void)v;                                                                                     \
        STATEMENTS                                                                                                     \
        LB_INDEPENDENT                                                                                                 \
        for (size_t i = 0; i < n; i++) out[i] = (T)(EXPRESSION);                                                       \
    }                                                                                                                  \
    LB_PER_ISA(NAME, NAME##_body, (const lb_lanes *l), (l))

/* Further kinds of pointwise.h: D one f64 loop, DT with a twin, which shares the statements. */
#define LB_POINTWISE_D(ID, PATTERN, FLAGS, STATEMENTS, REAL)                                                           \
    LB_F64_LOOP(ID##_loop_f64, STATEMENTS, REAL)                                                                       \
    static const lb_pointwise ID##_op = {PATTERN, NULL, ID##_loop_f64, NULL, NULL, FLAGS};                             \
    LB_KERNEL(ID)
#define LB_POINTWISE_DT(ID, PATTERN, FLAGS, STATEMENTS, REAL, TWIN)                                                    \
    LB_F64_LOOP(ID##_loop_f64, STATEMENTS, REAL)                                                                       \
    LB_F64_LOOP(ID##_loop_twin, STATEMENTS, TWIN)                                                                      \
    static const lb_pointwise ID##_op = {PATTERN, NULL, ID##_loop_f64, NULL, ID##_loop_twin, FLAGS};                   \
    LB_KERNEL(ID) LB_TWIN(ID)

/* Kind U: the function of elementary.h called NAME by itself, with its f32 form; UT: with a twin, which has the
 * function's value in t. */
#define LB_ARRAY_LOOPS(ID, NAME)                                                                                       \
    static void ID##_loop_f32(const lb_lanes *l)                                                                       \
    {                                                                                                                  \
        lb_##NAME##_f32(l->out[0], l->in[0], l->n);                                                                    \
    }                                                                                                                  \
    static void ID##_loop_f64(const lb_lanes *l)                                                                       \
    {                                                                                                                  \
        lb_##NAME##_f64(l->out[0], l->in[0], l->n);                                                                    \
    }
#define LB_POINTWISE_U(ID, PATTERN, FLAGS, NAME)                                                                       \
    LB_ARRAY_LOOPS(ID, NAME)                                                                                           \
    static const lb_pointwise ID##_op = {PATTERN, ID##_loop_f32, ID##_loop_f64, NULL, NULL, FLAGS};                    \
    LB_KERNEL(ID)
#define LB_POINTWISE_UT(ID, PATTERN, FLAGS, NAME, TWIN)                                                                \
    LB_ARRAY_LOOPS(ID, NAME)                                                                                           \
    LB_F64_LOOP(ID##_loop_twin, LB_F64_FN(NAME, t, a);, TWIN)                                                          \
    static const lb_pointwise ID##_op = {PATTERN, ID##_loop_f32, ID##_loop_f64, NULL, ID##_loop_twin, FLAGS};          \
    LB_KERNEL(ID) LB_TWIN(ID)

#endif
