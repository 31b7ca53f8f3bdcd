/* Parts of norms: see norm_parts.h. */
#include "composites/norm_parts.h"

static const lb_reading nothing = {LB_NONE, LB_NONE};

void lb_norm_take(lb_norm_parts *parts, uint32_t op)
{
    if (parts->n_ops < LB_NORM_MOST_OPS) parts->ops[parts->n_ops++] = op;
}

/* ---- the root ---------------------------------------------------------------------------------------------------- */

static bool is_power(const lb_recogniser *recogniser, uint32_t op, double exponent)
{
    double number = 0;
    return lb_recogniser_is(recogniser, op, "pow") && lb_recogniser_number(recogniser, op, 1, &number) &&
           number == exponent;
}

static bool is_root(const lb_recogniser *recogniser, uint32_t op)
{
    return lb_recogniser_is(recogniser, op, "sqrt") || is_power(recogniser, op, 0.5);
}

/* The op behind 1 / x, as torch or Python write it; LB_NONE: `op` is nothing of that. */
static uint32_t behind_reciprocal(const lb_recogniser *recogniser, uint32_t op, lb_norm_parts *parts)
{
    double factor = 0;
    if (lb_recogniser_is(recogniser, op, "mul") && lb_recogniser_number(recogniser, op, 1, &factor) &&
        factor == 1) { /* Python's 1 / x */
        op = lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, op, 0));
        if (op != LB_NONE) lb_norm_take(parts, op);
    }
    if (op == LB_NONE || !lb_recogniser_is(recogniser, op, "reciprocal")) return LB_NONE;
    const uint32_t behind = lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, op, 0));
    if (behind != LB_NONE) lb_norm_take(parts, behind);
    return behind;
}

/* v of v + eps. */
static lb_reading without_eps(const lb_recogniser *recogniser, lb_reading reading, lb_norm_parts *parts, double *eps)
{
    const uint32_t add = lb_recogniser_maker(recogniser, reading);
    if (add == LB_NONE || !lb_recogniser_is(recogniser, add, "add") || !lb_recogniser_number(recogniser, add, 1, eps))
        return nothing;
    lb_norm_take(parts, add);
    return lb_recogniser_arg(recogniser, add, 0);
}

/* eps as clamp_min(x, eps) or clamp(x, eps) say it. */
static bool is_floor(const lb_recogniser *recogniser, uint32_t op, double *eps)
{
    double most;
    if (lb_recogniser_is(recogniser, op, "clamp_min")) return lb_recogniser_number(recogniser, op, 1, eps);
    return lb_recogniser_is(recogniser, op, "clamp") && lb_recogniser_number(recogniser, op, 1, eps) &&
           !lb_recogniser_number(recogniser, op, 2, &most);
}

bool lb_norm_read_root(const lb_recogniser *recogniser, uint32_t op, lb_norm_parts *parts, lb_norm_root *root)
{
    *root = (lb_norm_root){.variance = nothing, .spread = LB_NONE};
    if (lb_recogniser_is(recogniser, op, "rsqrt") || is_power(recogniser, op, -0.5)) {
        root->variance = without_eps(recogniser, lb_recogniser_arg(recogniser, op, 0), parts, &root->eps);
        return root->variance.op != LB_NONE;
    }
    uint32_t divisor = behind_reciprocal(recogniser, op, parts);
    if (divisor == LB_NONE) root->divides = true, divisor = op;
    const bool added =
        lb_recogniser_is(recogniser, divisor, "add") && lb_recogniser_number(recogniser, divisor, 1, &root->eps);
    if (!added && !is_floor(recogniser, divisor, &root->eps)) {
        if (!is_root(recogniser, divisor)) return false;
        root->variance = without_eps(recogniser, lb_recogniser_arg(recogniser, divisor, 0), parts, &root->eps);
        return root->variance.op != LB_NONE;
    }
    root->place = added ? LB_EPS_ADDED : LB_EPS_LEAST;
    root->spread = lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, divisor, 0));
    if (root->spread == LB_NONE) return false;
    if (is_root(recogniser, root->spread)) {
        lb_norm_take(parts, root->spread);
        root->variance = lb_recogniser_arg(recogniser, root->spread, 0), root->spread = LB_NONE;
    }
    return true;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

lb_reading lb_norm_squared(const lb_recogniser *recogniser, uint32_t op)
{
    const lb_reading x = op == LB_NONE ? nothing : lb_recogniser_arg(recogniser, op, 0);
    if (x.op == LB_NONE) return nothing;
    if (lb_recogniser_is(recogniser, op, "square") || is_power(recogniser, op, 2)) return x;
    if (!lb_recogniser_is(recogniser, op, "mul")) return nothing;
    const lb_reading y = lb_recogniser_arg(recogniser, op, 1);
    return y.op != LB_NONE && y.value == x.value ? x : nothing;
}

lb_reading lb_norm_averaged(const lb_recogniser *recogniser, uint32_t op, lb_norm_parts *parts)
{
    double divisor = 0;
    uint32_t sum = op;
    bool scaled = false;
    if (op == LB_NONE) return nothing;
    if (lb_recogniser_is(recogniser, op, "div") && lb_recogniser_number(recogniser, op, 1, &divisor))
        scaled = true;
    else if (lb_recogniser_is(recogniser, op, "mul") && lb_recogniser_number(recogniser, op, 1, &divisor) &&
             divisor != 0)
        scaled = true, divisor = 1 / divisor;
    if (scaled) sum = lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, op, 0));
    if (sum == LB_NONE || !lb_recogniser_is(recogniser, sum, scaled ? "sum" : "mean")) return nothing;
    const lb_reading of = lb_recogniser_arg(recogniser, sum, 0);
    if (of.op == LB_NONE) return nothing;
    const lb_layout *layout = &lb_recogniser_value(recogniser, of.value)->layout;
    if (layout->ndim < 1 || !lb_recogniser_last_dim(recogniser, sum, 1, layout->ndim)) return nothing;
    const double size = (double)layout->shape[layout->ndim - 1];
    if (scaled && (divisor < size * (1 - 1e-6) || divisor > size * (1 + 1e-6))) return nothing;
    lb_norm_take(parts, sum);
    if (scaled) lb_norm_take(parts, op);
    return of;
}

/* What the op that gave `mean` took it of. */
static lb_reading mean_of(const lb_recogniser *recogniser, lb_reading mean, lb_norm_parts *parts)
{
    const uint32_t op = lb_recogniser_maker(recogniser, mean);
    if (op == LB_NONE || !lb_recogniser_is(recogniser, op, "var_mean")) return lb_norm_averaged(recogniser, op, parts);
    const lb_reading x = lb_recogniser_arg(recogniser, op, 0);
    const lb_op *row = &recogniser->program->ops[op];
    const uint32_t second = row->results == 2 ? lb_op_results(recogniser->program, row)[1] : LB_NONE;
    if (x.op == LB_NONE || second == LB_NONE ||
        lb_recogniser_value(recogniser, second)->storage != lb_recogniser_value(recogniser, mean.value)->storage ||
        !lb_recogniser_last_dim(recogniser, op, 1, lb_recogniser_value(recogniser, x.value)->layout.ndim))
        return nothing;
    lb_norm_take(parts, op);
    return x;
}

lb_reading lb_norm_centred(const lb_recogniser *recogniser, lb_reading reading, lb_norm_parts *parts)
{
    reading = lb_norm_take_casts(recogniser, parts, reading);
    const uint32_t sub = lb_recogniser_maker(recogniser, reading);
    double alpha = 1;
    if (sub == LB_NONE || !lb_recogniser_is(recogniser, sub, "sub") ||
        (lb_recogniser_number(recogniser, sub, 2, &alpha) && alpha != 1))
        return nothing;
    const lb_reading x = lb_recogniser_arg(recogniser, sub, 0), mean = lb_recogniser_arg(recogniser, sub, 1);
    if (x.op == LB_NONE || mean.op == LB_NONE) return nothing;
    const lb_layout *rows = &lb_recogniser_value(recogniser, x.value)->layout,
                    *m = &lb_recogniser_value(recogniser, mean.value)->layout;
    if (m->ndim != rows->ndim || m->ndim < 1 || m->shape[m->ndim - 1] != 1) return nothing;
    const lb_reading of = mean_of(recogniser, mean, parts);
    if (!lb_recogniser_same(recogniser, x, of)) return nothing;
    lb_norm_take(parts, sub);
    lb_norm_take_own_casts(recogniser, parts, sub, of); /* x is often cast again for each that reads it */
    return x;
}

bool lb_norm_is_row(const lb_value *w, const lb_value *y)
{
    const int d = w->layout.ndim;
    return d >= 1 && d <= y->layout.ndim && w->layout.shape[d - 1] == y->layout.shape[y->layout.ndim - 1] &&
           lb_layout_numel(&w->layout) == w->layout.shape[d - 1] && lb_dtype_is_float(w->dtype);
}

lb_reading lb_norm_take_casts(const lb_recogniser *recogniser, lb_norm_parts *parts, lb_reading reading)
{
    for (uint32_t cast; (cast = lb_recogniser_cast(recogniser, reading)) != LB_NONE;
         reading = lb_recogniser_arg(recogniser, cast, 0))
        lb_norm_take(parts, cast);
    return reading;
}

lb_reading lb_norm_take_own_casts(const lb_recogniser *recogniser, lb_norm_parts *parts, uint32_t root,
                                  lb_reading reading)
{
    for (uint32_t cast; (cast = lb_recogniser_cast(recogniser, reading)) != LB_NONE &&
                        lb_recogniser_same_call(recogniser, cast, root);) {
        lb_norm_take(parts, cast);
        reading = lb_recogniser_arg(recogniser, cast, 0);
    }
    return reading;
}
