/* Scalars of both sides: see scalars.h. */
#include "exact/scalars.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The one number of a program's constants that becomes `x` in f32 and is not `x`; x where there is none, or several. */
static double unrounded(const lb_program *p, double x)
{
    double found = x;
    for (uint32_t i = 0; i < p->n_args; i++) {
        const double y = p->args[i].tag == LB_ARG_FLOAT ? p->args[i].u.f : x;
        if (y == x || y == found || (double)(float)y != x) continue;
        if (found != x) return x;
        found = y;
    }
    return found;
}

/* Does the program read numbers of tensors that f32 or less rounded, as 1 - mu_product.item() does? */
static bool reads_rounded_scalars(const lb_program *p)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (strcmp(lb_op_name(p, op), "aten::_local_scalar_dense") || !op->args ||
            lb_op_args(p, op)->tag != LB_ARG_VALUE)
            continue;
        const lb_dtype dtype = p->values[lb_op_args(p, op)->u.value].dtype;
        if (lb_dtype_is_float(dtype) && lb_dtype_bits(dtype) <= 32) return true;
    }
    return false;
}

/* The one number of a program's constants that lies within a few roundings to f32 of `x`; x where it is there itself,
 * where there is none, or several. */
static double nearest(const lb_program *p, double x)
{
    const double most = 4 * 0x1p-24 * fabs(x);
    double found = x;
    for (uint32_t i = 0; i < p->n_args; i++) {
        const double y = p->args[i].tag == LB_ARG_FLOAT ? p->args[i].u.f : NAN;
        if (y == x) return x;
        if (!(fabs(y - x) <= most) || y == found) continue;
        if (found != x) return x;
        found = y;
    }
    return found;
}

lb_status lb_scalars_settle(lb_exact_side sides[2], lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        lb_program *p = sides[k].own;
        const bool rounded = reads_rounded_scalars(p);
        for (uint32_t i = 0; i < p->n_args; i++) {
            if (p->args[i].tag != LB_ARG_FLOAT) continue;
            double *x = &p->args[i].u.f;
            if ((double)(float)*x == *x) *x = unrounded(sides[!k].program, *x);
            if (rounded) *x = nearest(sides[!k].own, *x);
        }
        LB_TRY(lb_exact_side_prepare(&sides[k], err));
    }
    return LB_OK;
}

/* ---- numbers read from tensors ---- */

static bool is_scalar(const lb_exact_side *s, uint32_t v)
{
    return s->kept[v] && s->graph.given[v] && lb_layout_numel(&s->program->values[v].layout) == 1 &&
           lb_dtype_is_float(s->program->values[v].dtype);
}

/* The one exact scalar of a side that lies within a few roundings to f32 of `x`; x where there is none, or several. */
static double exact_scalar(const lb_exact_side *s, double x)
{
    const double most = 4 * 0x1p-24 * fabs(x), equal = 0x1p-40 * fabs(x);
    double found = x;
    for (uint32_t v = 0; v < s->program->n_values; v++) {
        if (!is_scalar(s, v)) continue;
        const double y = *s->kept[v];
        if (!(fabs(y - x) <= most) || fabs(y - found) <= equal) continue;
        if (found != x) return x;
        found = y;
    }
    return found;
}

/* A number of a few decimal digits, which a person wrote: none that was computed from what was read. */
static bool is_written(double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", x);
    return strtod(text, NULL) == x;
}

lb_status lb_scalars_settle_read(lb_exact_side *side, const lb_exact_side *other, bool *changed, lb_err *err)
{
    lb_program *p = side->own;
    *changed = false;
    if (!reads_rounded_scalars(p)) return LB_OK;
    for (uint32_t i = 0; i < p->n_args; i++) {
        if (p->args[i].tag != LB_ARG_FLOAT || is_written(p->args[i].u.f)) continue;
        const double before = p->args[i].u.f, now = exact_scalar(other, before);
        if (now != before) p->args[i].u.f = now, *changed = true;
    }
    return *changed ? lb_exact_side_prepare(side, err) : LB_OK;
}
