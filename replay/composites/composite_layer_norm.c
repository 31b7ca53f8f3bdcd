/* Recognises layer norm: as torch's op, and written out.
 *
 *      x ─ x - mean over the last dimension ─ / sqrt(variance + eps) ─ × weight ─ + bias
 *
 * The variance is the mean square of what is left without the mean, the mean square of x less that of the mean, or
 * torch's var; its root may be torch's std. The weight may also meet x - mean before the root does. As with RMSNorm the
 * root is what is looked for. */
#include "composites/norm_parts.h"

/* ---- the variance ------------------------------------------------------------------------------------------------ */

static const lb_reading nothing = {LB_NONE, LB_NONE};

/* x of torch's var, var_mean or std over the last dimension. */
static lb_reading of_op(const lb_recogniser *t, uint32_t op, lb_norm_parts *n, const char *const *names)
{
    double *less = &n->composite.numbers[LB_LAYER_LESS];
    uint32_t at;
    if (op == LB_NONE || !lb_recogniser_is_any(t, op, names)) return nothing;
    const lb_reading x = lb_recogniser_arg(t, op, 0);
    if (x.op == LB_NONE || !lb_recogniser_position(t, op, "correction", &at) ||
        !lb_recogniser_last_dim(t, op, 1, lb_recogniser_value(t, x.value)->layout.ndim))
        return nothing;
    *less = 1; /* torch's own where none is given */
    lb_recogniser_number(t, op, at, less);
    lb_norm_take(n, op);
    return x;
}

/* x of mean((x - mean(x))²). */
static lb_reading of_differences(const lb_recogniser *t, lb_reading variance, lb_norm_parts *n)
{
    const lb_reading squares = lb_norm_averaged(t, lb_recogniser_maker(t, variance), n);
    const uint32_t square = squares.op == LB_NONE ? LB_NONE : lb_recogniser_maker(t, squares);
    const lb_reading difference = lb_norm_squared(t, square);
    if (difference.op == LB_NONE) return nothing;
    lb_norm_take(n, square);
    return lb_norm_centred(t, difference, n);
}

/* x of mean(x²) - mean(x)². */
static lb_reading of_squares(const lb_recogniser *t, lb_reading variance, lb_norm_parts *n)
{
    const uint32_t sub = lb_recogniser_maker(t, variance);
    double alpha = 1;
    if (sub == LB_NONE || !lb_recogniser_is(t, sub, "sub") || (lb_recogniser_number(t, sub, 2, &alpha) && alpha != 1))
        return nothing;
    const lb_reading mean_square = lb_recogniser_arg(t, sub, 0), square = lb_recogniser_arg(t, sub, 1);
    if (mean_square.op == LB_NONE || square.op == LB_NONE) return nothing;
    const uint32_t of_mean = lb_recogniser_maker(t, square);
    const lb_reading squares = lb_norm_averaged(t, lb_recogniser_maker(t, mean_square), n),
                     mean = lb_norm_squared(t, of_mean);
    if (squares.op == LB_NONE || mean.op == LB_NONE) return nothing;
    const uint32_t of_x = lb_recogniser_maker(t, squares);
    const lb_reading x = lb_norm_squared(t, of_x), again = lb_norm_averaged(t, lb_recogniser_maker(t, mean), n);
    if (!lb_recogniser_same(t, x, again)) return nothing;
    lb_norm_take(n, sub), lb_norm_take(n, of_mean), lb_norm_take(n, of_x);
    return x;
}

/* Whether `r` is result 0 of the op: var_mean gives the mean besides. */
static bool gives_first(const lb_recogniser *t, uint32_t op, lb_reading r)
{
    const uint32_t first = op == LB_NONE ? LB_NONE : lb_recogniser_result(t, op);
    return first != LB_NONE && lb_recogniser_value(t, first)->storage == lb_recogniser_value(t, r.value)->storage;
}

/* The x whose variance stands in the root. */
static lb_reading spread_of(const lb_recogniser *t, const lb_norm_root *root, lb_norm_parts *n)
{
    static const char *const variances[] = {"var", "var_mean", NULL}, *const deviations[] = {"std", NULL};
    if (root->variance.op == LB_NONE) return of_op(t, root->spread, n, deviations);
    const lb_norm_parts before = *n;
    const uint32_t op = lb_recogniser_maker(t, root->variance);
    lb_reading x = gives_first(t, op, root->variance) ? of_op(t, op, n, variances) : nothing;
    if (x.op == LB_NONE) *n = before, x = of_differences(t, root->variance, n);
    if (x.op == LB_NONE) *n = before, x = of_squares(t, root->variance, n);
    return x;
}

/* ---- behind the root --------------------------------------------------------------------------------------------- */

static bool takes_weight(const lb_recogniser *t, lb_norm_parts *n, lb_reading weight, uint32_t normal)
{
    const lb_value *y = lb_recogniser_value(t, lb_recogniser_result(t, normal));
    if (n->composite.inputs[LB_LAYER_WEIGHT] != LB_NONE || !lb_norm_is_row(lb_recogniser_value(t, weight.value), y))
        return false;
    n->composite.inputs[LB_LAYER_WEIGHT] = weight.value;
    return true;
}

/* Behind x - mean, or the weight times that: x. */
static lb_reading numerator(const lb_recogniser *t, lb_reading r, lb_norm_parts *n)
{
    const lb_norm_parts before = *n;
    const lb_reading x = lb_norm_centred(t, r, n);
    if (x.op != LB_NONE) return x;
    *n = before;
    const uint32_t mul = lb_recogniser_maker(t, r);
    for (uint32_t i = 0; mul != LB_NONE && lb_recogniser_is(t, mul, "mul") && i < 2; i++) {
        const lb_reading centred = lb_recogniser_arg(t, mul, i), weight = lb_recogniser_arg(t, mul, 1 - i);
        if (centred.op == LB_NONE || weight.op == LB_NONE) continue;
        const lb_reading behind = lb_norm_centred(t, centred, n);
        if (behind.op != LB_NONE && takes_weight(t, n, weight, mul)) {
            lb_norm_take(n, mul);
            return behind;
        }
        *n = before;
    }
    return nothing;
}

static bool normalises(const lb_recogniser *t, uint32_t op, uint32_t root, bool divides, lb_reading x, lb_norm_parts *n)
{
    if (!lb_recogniser_is(t, op, divides ? "div" : "mul")) return false;
    for (uint32_t i = 0; i < (divides ? 1u : 2u); i++) {
        const lb_reading r = lb_recogniser_arg(t, op, 1 - i), y = lb_recogniser_arg(t, op, i);
        if (r.op == LB_NONE || y.op == LB_NONE || lb_recogniser_maker(t, r) != root) continue;
        const lb_norm_parts before = *n;
        const lb_reading of = numerator(t, y, n);
        if (lb_recogniser_same(t, x, of)) {
            lb_norm_take_own_casts(t, n, op, of);
            return true;
        }
        *n = before;
    }
    return false;
}

/* From the normalised x on: casts, the weight, the bias, as long as nothing else reads what lies between. */
static void follow(const lb_recogniser *t, lb_norm_parts *n, uint32_t op)
{
    for (;;) {
        uint32_t user;
        double alpha = 1;
        const bool biased = n->composite.inputs[LB_LAYER_BIAS] != LB_NONE;
        n->composite.outputs[LB_LAYER_Y] = lb_recogniser_result(t, op);
        if (lb_recogniser_users(t, op, &user, 1) != 1 || !lb_recogniser_same_call(t, op, user)) return;
        const lb_reading a = lb_recogniser_arg(t, user, 0), b = lb_recogniser_arg(t, user, 1);
        if (lb_recogniser_is(t, user, "_to_copy")) {
            if (!lb_dtype_is_float(lb_recogniser_value(t, lb_recogniser_result(t, user))->dtype)) return;
        } else if (a.op == LB_NONE || b.op == LB_NONE || biased) {
            return;
        } else {
            const lb_reading w = lb_recogniser_maker(t, a) == op ? b : a;
            const lb_value *y = lb_recogniser_value(t, lb_recogniser_result(t, op));
            if (lb_recogniser_is(t, user, "mul")) {
                if (!takes_weight(t, n, w, op)) return;
            } else if (lb_recogniser_is(t, user, "add") && !(lb_recogniser_number(t, user, 2, &alpha) && alpha != 1) &&
                       lb_norm_is_row(lb_recogniser_value(t, w.value), y)) {
                n->composite.inputs[LB_LAYER_BIAS] = w.value;
            } else {
                return;
            }
        }
        lb_norm_take(n, user);
        op = user;
    }
}

static lb_status written_out(lb_recogniser *t, uint32_t op)
{
    lb_norm_parts n = {.composite = lb_recogniser_composite(t, LB_COMPOSITE_LAYER_NORM)};
    lb_norm_root root;
    lb_norm_take(&n, op);
    if (!lb_norm_read_root(t, op, &n, &root)) return LB_OK;
    const lb_reading x = spread_of(t, &root, &n);
    if (x.op == LB_NONE) return LB_OK;
    n.composite.numbers[LB_LAYER_EPS] = root.eps, n.composite.numbers[LB_LAYER_PLACE] = root.place;
    uint32_t users[8], count = lb_recogniser_users(t, op, users, 8);
    for (uint32_t u = 0; u < count && u < 8; u++) {
        if (!normalises(t, users[u], op, root.divides, x, &n)) continue;
        n.composite.inputs[LB_LAYER_X] = lb_norm_take_own_casts(t, &n, op, x).value;
        lb_norm_take(&n, users[u]);
        follow(t, &n, users[u]);
        return lb_recogniser_add(t, &n.composite, n.ops, n.n_ops);
    }
    return LB_OK;
}

/* ---- one op ------------------------------------------------------------------------------------------------------ */

static lb_status single(lb_recogniser *t, uint32_t i)
{
    const lb_op *op = &t->program->ops[i];
    if (!lb_recogniser_is(t, i, "native_layer_norm") || op->results < 3 || op->args < 5) return LB_OK;
    const lb_arg *shape = &lb_op_args(t->program, op)[1];
    lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_LAYER_NORM);
    if (shape->tag != LB_ARG_LIST || shape->count != 1 || !lb_recogniser_number(t, i, 4, &c.numbers[LB_LAYER_EPS]))
        return LB_OK;
    for (uint32_t k = 0; k < 3; k++) {
        static const uint32_t args[] = {0, 2, 3};
        c.inputs[k] = lb_recogniser_arg(t, i, args[k]).value;
        c.outputs[k] = lb_op_results(t->program, op)[k];
    }
    return lb_recogniser_add(t, &c, &i, 1);
}

lb_status lb_recogniser_layer_norms(lb_recogniser *t)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        if (!lb_recogniser_forward(t, i)) continue;
        LB_TRY(written_out(t, i));
        LB_TRY(single(t, i));
    }
    return LB_OK;
}
