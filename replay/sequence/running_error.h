/* Numbers that carry a bound of their own error through a computation: running error analysis of what rounds in many
 * places, as recurrences do.
 *
 * The error is in units of the roundoff of f32 (or, of a computation in f64, of f64) times what a row's bound
 * multiplies its twin with, so v is the kernel's result and |v| + e its twin. */
#ifndef LB_REPLAY_RUNNING_ERROR_H
#define LB_REPLAY_RUNNING_ERROR_H

#include "functions/elementary.h"
#include "kernel/ops.h"

#include <math.h>

/* A value and what it may be off by. */
typedef struct lb_number {
    double v, e;
} lb_number;

/* How is computed. */
typedef struct lb_number_type {
    bool wide;   /* in f64, else in f32 */
    double once; /* units of error that one operation may add, per magnitude of its result */
    double unit; /* what a unit of error stands for; 0 leaves products of two errors out */
} lb_number_type;

/* What a row's bound multiplies its twin with, in roundoffs. */
static inline double lb_number_factor(const lb_call *call)
{
    const lb_op_row *row = call->row;
    return (double)row->roundings + (double)row->roundings_per_term * lb_call_terms(call);
}

/* A result of one operation, as it is held. */
static inline double lb_number_step(lb_number_type t, double v)
{
    return t.wide ? v : (float)v;
}

static inline lb_number lb_number_from(lb_number_type t, const void *x, int64_t i)
{
    return (lb_number){t.wide ? ((const double *)x)[i] : ((const float *)x)[i], 0};
}

static inline lb_number lb_number_add(lb_number_type t, lb_number a, lb_number b)
{
    const double v = lb_number_step(t, a.v + b.v);
    return (lb_number){v, a.e + b.e + t.once * fabs(v)};
}

static inline lb_number lb_number_subtract(lb_number_type t, lb_number a, lb_number b)
{
    return lb_number_add(t, a, (lb_number){-b.v, b.e});
}

static inline lb_number lb_number_multiply(lb_number_type t, lb_number a, lb_number b)
{
    const double v = lb_number_step(t, a.v * b.v);
    return (lb_number){v, fabs(a.v) * b.e + fabs(b.v) * a.e + a.e * b.e * t.unit + t.once * fabs(v)};
}

/* a + b c in a chain; the roundings of the chain are counted per term. */
static inline lb_number lb_number_chain(lb_number_type t, lb_number a, lb_number b, lb_number c)
{
    const double v = lb_number_step(t, fma(b.v, c.v, a.v));
    return (lb_number){v, a.e + fabs(b.v * c.v) + fabs(b.v) * c.e + fabs(c.v) * b.e + b.e * c.e * t.unit};
}

static inline lb_number lb_number_sigmoid(lb_number_type t, lb_number a)
{
    const double v = lb_number_step(t, lb_sigmoid(a.v));
    return (lb_number){v, a.e / 4 + 2 * t.once * v};
}

static inline lb_number lb_number_tanh(lb_number_type t, lb_number a)
{
    const double v = lb_number_step(t, lb_tanh(a.v));
    return (lb_number){v, a.e + 2 * t.once * fabs(v)};
}

static inline lb_number lb_number_one_minus(lb_number_type t, lb_number a)
{
    return lb_number_subtract(t, (lb_number){1, 0}, a);
}

/* Stored in 16 bits on the way, or not: `coarse` is what that may add, 0 for wider types. */
static inline lb_number lb_number_kept(lb_number a, double coarse)
{
    a.e += fabs(a.v) * coarse;
    return a;
}

/* What goes into a result: a value, or its twin. */
static inline double lb_number_shown(lb_number a, bool twin)
{
    return twin ? a.e + fabs(a.v) : a.v;
}

#endif
