/* Parts of norms: see norm_parts.h. */
#include "composites/norm_parts.h"

static const lb_reading nothing = {LB_NONE, LB_NONE};

void lb_norm_take(lb_norm_parts *n, uint32_t op)
{
    if (n->n_ops < LB_NORM_MOST_OPS) n->ops[n->n_ops++] = op;
}

/* ---- the root ---------------------------------------------------------------------------------------------------- */

static bool is_power(const lb_recogniser *t, uint32_t op, double exponent)
{
    double number = 0;
    return lb_recogniser_is(t, op, "pow") && lb_recogniser_number(t, op, 1, &number) && number == exponent;
}

static bool is_root(const lb_recogniser *t, uint32_t op)
{
    return lb_recogniser_is(t, op, "sqrt") || is_power(t, op, 0.5);
}

/* The op behind 1 / x, as torch or Python write it; LB_NONE: `op` is nothing of that. */
static uint32_t behind_reciprocal(const lb_recogniser *t, uint32_t op, lb_norm_parts *n)
{
    double factor = 0;
    if (lb_recogniser_is(t, op, "mul") && lb_recogniser_number(t, op, 1, &factor) && factor == 1) { /* Python's 1 / x */
        op = lb_recogniser_maker(t, lb_recogniser_arg(t, op, 0));
        if (op != LB_NONE) lb_norm_take(n, op);
    }
    if (op == LB_NONE || !lb_recogniser_is(t, op, "reciprocal")) return LB_NONE;
    const uint32_t behind = lb_recogniser_maker(t, lb_recogniser_arg(t, op, 0));
    if (behind != LB_NONE) lb_norm_take(n, behind);
    return behind;
}

/* v of v + eps. */
static lb_reading without_eps(const lb_recogniser *t, lb_reading r, lb_norm_parts *n, double *eps)
{
    const uint32_t add = lb_recogniser_maker(t, r);
    if (add == LB_NONE || !lb_recogniser_is(t, add, "add") || !lb_recogniser_number(t, add, 1, eps)) return nothing;
    lb_norm_take(n, add);
    return lb_recogniser_arg(t, add, 0);
}

/* eps as clamp_min(x, eps) or clamp(x, eps) say it. */
static bool is_floor(const lb_recogniser *t, uint32_t op, double *eps)
{
    double most;
    if (lb_recogniser_is(t, op, "clamp_min")) return lb_recogniser_number(t, op, 1, eps);
    return lb_recogniser_is(t, op, "clamp") && lb_recogniser_number(t, op, 1, eps) &&
           !lb_recogniser_number(t, op, 2, &most);
}

bool lb_norm_read_root(const lb_recogniser *t, uint32_t op, lb_norm_parts *n, lb_norm_root *root)
{
    *root = (lb_norm_root){.variance = nothing, .spread = LB_NONE};
    if (lb_recogniser_is(t, op, "rsqrt") || is_power(t, op, -0.5)) {
        root->variance = without_eps(t, lb_recogniser_arg(t, op, 0), n, &root->eps);
        return root->variance.op != LB_NONE;
    }
    uint32_t divisor = behind_reciprocal(t, op, n);
    if (divisor == LB_NONE) root->divides = true, divisor = op;
    const bool added = lb_recogniser_is(t, divisor, "add") && lb_recogniser_number(t, divisor, 1, &root->eps);
    if (!added && !is_floor(t, divisor, &root->eps)) {
        if (!is_root(t, divisor)) return false;
        root->variance = without_eps(t, lb_recogniser_arg(t, divisor, 0), n, &root->eps);
        return root->variance.op != LB_NONE;
    }
    root->place = added ? LB_EPS_ADDED : LB_EPS_LEAST;
    root->spread = lb_recogniser_maker(t, lb_recogniser_arg(t, divisor, 0));
    if (root->spread == LB_NONE) return false;
    if (is_root(t, root->spread)) {
        lb_norm_take(n, root->spread);
        root->variance = lb_recogniser_arg(t, root->spread, 0), root->spread = LB_NONE;
    }
    return true;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

lb_reading lb_norm_squared(const lb_recogniser *t, uint32_t op)
{
    const lb_reading x = op == LB_NONE ? nothing : lb_recogniser_arg(t, op, 0);
    if (x.op == LB_NONE) return nothing;
    if (lb_recogniser_is(t, op, "square") || is_power(t, op, 2)) return x;
    if (!lb_recogniser_is(t, op, "mul")) return nothing;
    const lb_reading y = lb_recogniser_arg(t, op, 1);
    return y.op != LB_NONE && y.value == x.value ? x : nothing;
}

lb_reading lb_norm_averaged(const lb_recogniser *t, uint32_t op, lb_norm_parts *n)
{
    double divisor = 0;
    uint32_t sum = op;
    bool scaled = false;
    if (op == LB_NONE) return nothing;
    if (lb_recogniser_is(t, op, "div") && lb_recogniser_number(t, op, 1, &divisor))
        scaled = true;
    else if (lb_recogniser_is(t, op, "mul") && lb_recogniser_number(t, op, 1, &divisor) && divisor != 0)
        scaled = true, divisor = 1 / divisor;
    if (scaled) sum = lb_recogniser_maker(t, lb_recogniser_arg(t, op, 0));
    if (sum == LB_NONE || !lb_recogniser_is(t, sum, scaled ? "sum" : "mean")) return nothing;
    const lb_reading of = lb_recogniser_arg(t, sum, 0);
    if (of.op == LB_NONE) return nothing;
    const lb_layout *l = &lb_recogniser_value(t, of.value)->layout;
    if (l->ndim < 1 || !lb_recogniser_last_dim(t, sum, 1, l->ndim)) return nothing;
    const double size = (double)l->shape[l->ndim - 1];
    if (scaled && (divisor < size * (1 - 1e-6) || divisor > size * (1 + 1e-6))) return nothing;
    lb_norm_take(n, sum);
    if (scaled) lb_norm_take(n, op);
    return of;
}

/* What the op that gave `mean` took it of. */
static lb_reading mean_of(const lb_recogniser *t, lb_reading mean, lb_norm_parts *n)
{
    const uint32_t op = lb_recogniser_maker(t, mean);
    if (op == LB_NONE || !lb_recogniser_is(t, op, "var_mean")) return lb_norm_averaged(t, op, n);
    const lb_reading x = lb_recogniser_arg(t, op, 0);
    const lb_op *row = &t->program->ops[op];
    const uint32_t second = row->results == 2 ? lb_op_results(t->program, row)[1] : LB_NONE;
    if (x.op == LB_NONE || second == LB_NONE ||
        lb_recogniser_value(t, second)->storage != lb_recogniser_value(t, mean.value)->storage ||
        !lb_recogniser_last_dim(t, op, 1, lb_recogniser_value(t, x.value)->layout.ndim))
        return nothing;
    lb_norm_take(n, op);
    return x;
}

lb_reading lb_norm_centred(const lb_recogniser *t, lb_reading r, lb_norm_parts *n)
{
    r = lb_norm_take_casts(t, n, r);
    const uint32_t sub = lb_recogniser_maker(t, r);
    double alpha = 1;
    if (sub == LB_NONE || !lb_recogniser_is(t, sub, "sub") || (lb_recogniser_number(t, sub, 2, &alpha) && alpha != 1))
        return nothing;
    const lb_reading x = lb_recogniser_arg(t, sub, 0), mean = lb_recogniser_arg(t, sub, 1);
    if (x.op == LB_NONE || mean.op == LB_NONE) return nothing;
    const lb_layout *rows = &lb_recogniser_value(t, x.value)->layout, *m = &lb_recogniser_value(t, mean.value)->layout;
    if (m->ndim != rows->ndim || m->ndim < 1 || m->shape[m->ndim - 1] != 1) return nothing;
    const lb_reading of = mean_of(t, mean, n);
    if (!lb_recogniser_same(t, x, of)) return nothing;
    lb_norm_take(n, sub);
    lb_norm_take_own_casts(t, n, sub, of); /* x is often cast again for each that reads it */
    return x;
}

bool lb_norm_is_row(const lb_value *w, const lb_value *y)
{
    const int d = w->layout.ndim;
    return d >= 1 && d <= y->layout.ndim && w->layout.shape[d - 1] == y->layout.shape[y->layout.ndim - 1] &&
           lb_layout_numel(&w->layout) == w->layout.shape[d - 1] && lb_dtype_is_float(w->dtype);
}

lb_reading lb_norm_take_casts(const lb_recogniser *t, lb_norm_parts *n, lb_reading r)
{
    for (uint32_t cast; (cast = lb_recogniser_cast(t, r)) != LB_NONE; r = lb_recogniser_arg(t, cast, 0))
        lb_norm_take(n, cast);
    return r;
}

lb_reading lb_norm_take_own_casts(const lb_recogniser *t, lb_norm_parts *n, uint32_t root, lb_reading r)
{
    for (uint32_t cast; (cast = lb_recogniser_cast(t, r)) != LB_NONE && lb_recogniser_same_call(t, cast, root);) {
        lb_norm_take(n, cast);
        r = lb_recogniser_arg(t, cast, 0);
    }
    return r;
}
