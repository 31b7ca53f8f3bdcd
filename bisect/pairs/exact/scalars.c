/* Scalars of both sides: see scalars.h. */
#include "exact/scalars.h"

#include "base/array.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Constants that kernels of one fused op compute with, and a person writes down: sqrt(2 / pi) of a GELU by tanh, and
 * what its derivative multiplies a square by; sqrt(1 / 2) and 1 / sqrt(2 pi) of one by erf and of its derivative. */
static const double OF_KERNELS[] = {0.79788456080286535588, 0.10703222440890037, 0.70710678118654752440,
                                    0.39894228040143267794};

/* The constants of both programs, each once. */
typedef struct constants {
    double *list;
    uint32_t n;
} constants;

static bool list_constants(const lb_exact_side sides[2], constants *out)
{
    for (int k = 0; k < 2; k++) {
        const lb_program *p = sides[k].program;
        for (uint32_t i = 0; i < p->n_args; i++) {
            if (p->args[i].tag != LB_ARG_FLOAT) continue;
            const double x = p->args[i].u.f;
            uint32_t at = 0;
            while (at < out->n && out->list[at] != x) at++;
            if (at < out->n || isnan(x)) continue;
            double *more = lb_array_grow(out->list, out->n, sizeof *more);
            if (!more) return false;
            out->list = more, out->list[out->n++] = x;
        }
    }
    return true;
}

/* All constants that are `x` in f32 are one number: of a kernel, or the lowest of those that f32 does not hold (1e-06
 * beside 9.99999997475e-07). */
static double one_in_f32(const constants *all, double x)
{
    const float narrow = (float)x;
    double found = x;
    if (!isnormal(narrow)) return x;
    for (size_t i = 0; i < sizeof OF_KERNELS / sizeof *OF_KERNELS; i++)
        if ((float)OF_KERNELS[i] == narrow) return OF_KERNELS[i];
    for (uint32_t i = 0; i < all->n; i++) {
        const double y = all->list[i];
        if ((float)y != narrow || (double)(float)y == y) continue;
        if ((double)(float)found == found || y < found) found = y;
    }
    return found;
}

/* Per argument: an op computes with it in f64, where more digits count. malloc'ed; NULL: out of memory. */
static uint8_t *list_wide(const lb_program *p)
{
    uint8_t *wide = calloc((size_t)p->n_args + 1, 1);
    for (uint32_t i = 0; i < p->n_ops && wide; i++)
        for (uint32_t k = 0; k < lb_op_outcomes(&p->ops[i]); k++) {
            const uint32_t v = lb_op_outcome(p, &p->ops[i], k);
            if (v == LB_NONE || !lb_dtype_is_float(p->values[v].dtype) || lb_dtype_bits(p->values[v].dtype) <= 32)
                continue;
            memset(wide + p->ops[i].first_arg, 1, p->ops[i].args);
        }
    return wide;
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

static lb_status settle_side(lb_exact_side sides[2], int side, const constants *all, lb_err *err)
{
    lb_program *p = sides[side].own;
    const bool rounded = reads_rounded_scalars(p);
    uint8_t *wide = list_wide(p);
    if (!wide) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u arguments", p->n_args);
    for (uint32_t i = 0; i < p->n_args; i++) {
        if (p->args[i].tag != LB_ARG_FLOAT) continue;
        double *x = &p->args[i].u.f;
        if (!wide[i] || (double)(float)*x == *x) *x = one_in_f32(all, *x);
        if (rounded) *x = nearest(sides[!side].own, *x);
    }
    free(wide);
    return lb_exact_side_prepare(&sides[side], err);
}

lb_status lb_scalars_settle(lb_exact_side sides[2], lb_err *err)
{
    constants all = {0};
    lb_status status =
        list_constants(sides, &all) ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u constants", all.n);
    for (int k = 0; k < 2 && status == LB_OK; k++) status = settle_side(sides, k, &all, err);
    free(all.list);
    return status;
}

/* ---- numbers that are tensors ---- */

/* A number that the program made a tensor of, in f32 or less: torch.tensor(3.9). */
static bool is_constant_tensor(const lb_program *p, uint32_t v)
{
    const lb_value *value = &p->values[v];
    return lb_layout_numel(&value->layout) == 1 && lb_dtype_is_float(value->dtype) &&
           lb_dtype_bits(value->dtype) <= 32 &&
           !(value->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE | LB_VALUE_GRADIENT | LB_VALUE_INPUT));
}

/* The side goes on from the constant of either program that the tensor's number is in f32. */
static void hold_constant(lb_exact_side *s, uint32_t v, const constants *all)
{
    double *number = lb_exact_side_recorded(s, v);
    const double one = number ? one_in_f32(all, *number) : 0;
    if (!number || one == *number) {
        free(number);
        return;
    }
    *number = one;
    lb_exact_side_hold(s, v, number);
}

lb_status lb_scalars_hold(lb_exact_side sides[2], lb_err *err)
{
    constants all = {0};
    const bool room = list_constants(sides, &all);
    for (int k = 0; k < 2 && room; k++) {
        const lb_program *p = sides[k].program;
        for (uint32_t i = 0; i < p->n_ops; i++) {
            const uint32_t v = lb_op_is_source(p, &p->ops[i]) ? lb_op_results(p, &p->ops[i])[0] : LB_NONE;
            if (v != LB_NONE && is_constant_tensor(p, v)) hold_constant(&sides[k], v, &all);
        }
    }
    free(all.list);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u constants", all.n);
}

/* ---- numbers read from tensors ---- */

static bool is_scalar(const lb_exact_side *s, uint32_t v)
{
    return s->kept[v] && s->graph.given[v] && lb_layout_numel(&s->program->values[v].layout) == 1 &&
           lb_dtype_is_float(s->program->values[v].dtype);
}

/* The exact scalars of a side, each once. */
static bool list_scalars(const lb_exact_side *s, constants *out)
{
    for (uint32_t v = 0; v < s->program->n_values; v++) {
        const double y = is_scalar(s, v) ? fabs(*s->kept[v]) : 0;
        uint32_t at = 0;
        if (!isnormal(y)) continue;
        while (at < out->n && fabs(out->list[at] - y) > 0x1p-40 * y) at++;
        if (at < out->n) continue;
        double *more = lb_array_grow(out->list, out->n, sizeof *more);
        if (!more) return false;
        out->list = more, out->list[out->n++] = y;
    }
    return true;
}

/* What lies within a few roundings to f32 of a positive number. */
typedef struct nearby {
    double number, found; /* found: 0: none yet */
    bool several;
} nearby;

static void consider(nearby *n, double y)
{
    if (!(fabs(y - n->number) <= 4 * 0x1p-24 * n->number)) return;
    n->several |= n->found && fabs(y - n->found) > 0x1p-40 * y;
    n->found = y;
}

/* The one exact scalar of a side that lies within a few roundings to f32 of `x`, or else the one product or quotient of
 * two: a program that reads a norm multiplies it by a rate, and divides by another norm. x where there is none, or
 * several. */
static double exact_scalar(const constants *scalars, double x)
{
    enum { MOST_OF_PRODUCTS = 1024 };
    const double *list = scalars->list;
    nearby n = {fabs(x), 0, false};
    for (uint32_t i = 0; i < scalars->n; i++) consider(&n, list[i]);
    for (uint32_t i = 0; i < scalars->n && !n.found && scalars->n <= MOST_OF_PRODUCTS; i++)
        for (uint32_t k = 0; k < scalars->n; k++) {
            consider(&n, list[i] / list[k]);
            if (k <= i) consider(&n, list[i] * list[k]);
        }
    return n.found && !n.several ? copysign(n.found, x) : x;
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
    constants scalars = {0};
    *changed = false;
    if (!reads_rounded_scalars(p)) return LB_OK;
    if (!list_scalars(other, &scalars)) {
        free(scalars.list);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for the scalars of %u values", other->program->n_values);
    }
    for (uint32_t i = 0; i < p->n_args; i++) {
        if (p->args[i].tag != LB_ARG_FLOAT || is_written(p->args[i].u.f)) continue;
        const double before = p->args[i].u.f, now = exact_scalar(&scalars, before);
        if (now != before) p->args[i].u.f = now, *changed = true;
    }
    free(scalars.list);
    return *changed ? lb_exact_side_prepare(side, err) : LB_OK;
}
