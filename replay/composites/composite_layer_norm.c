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
static lb_reading of_op(const lb_recogniser *recogniser, uint32_t op, lb_norm_parts *parts, const char *const *names)
{
    double *less = &parts->composite.numbers[LB_LAYER_LESS];
    uint32_t at;
    if (op == LB_NONE || !lb_recogniser_is_any(recogniser, op, names)) return nothing;
    const lb_reading x = lb_recogniser_arg(recogniser, op, 0);
    if (x.op == LB_NONE || !lb_recogniser_position(recogniser, op, "correction", &at) ||
        !lb_recogniser_last_dim(recogniser, op, 1, lb_recogniser_value(recogniser, x.value)->layout.ndim))
        return nothing;
    *less = 1; /* torch's own where none is given */
    lb_recogniser_number(recogniser, op, at, less);
    lb_norm_take(parts, op);
    return x;
}

/* x of mean((x - mean(x))²). */
static lb_reading of_differences(const lb_recogniser *recogniser, lb_reading variance, lb_norm_parts *parts)
{
    const lb_reading squares = lb_norm_averaged(recogniser, lb_recogniser_maker(recogniser, variance), parts);
    const uint32_t square = squares.op == LB_NONE ? LB_NONE : lb_recogniser_maker(recogniser, squares);
    const lb_reading difference = lb_norm_squared(recogniser, square);
    if (difference.op == LB_NONE) return nothing;
    lb_norm_take(parts, square);
    return lb_norm_centred(recogniser, difference, parts);
}

/* x of mean(x²) - mean(x)². */
static lb_reading of_squares(const lb_recogniser *recogniser, lb_reading variance, lb_norm_parts *parts)
{
    const uint32_t sub = lb_recogniser_maker(recogniser, variance);
    double alpha = 1;
    if (sub == LB_NONE || !lb_recogniser_is(recogniser, sub, "sub") ||
        (lb_recogniser_number(recogniser, sub, 2, &alpha) && alpha != 1))
        return nothing;
    const lb_reading mean_square = lb_recogniser_arg(recogniser, sub, 0),
                     square = lb_recogniser_arg(recogniser, sub, 1);
    if (mean_square.op == LB_NONE || square.op == LB_NONE) return nothing;
    const uint32_t of_mean = lb_recogniser_maker(recogniser, square);
    const lb_reading squares = lb_norm_averaged(recogniser, lb_recogniser_maker(recogniser, mean_square), parts),
                     mean = lb_norm_squared(recogniser, of_mean);
    if (squares.op == LB_NONE || mean.op == LB_NONE) return nothing;
    const uint32_t of_x = lb_recogniser_maker(recogniser, squares);
    const lb_reading x = lb_norm_squared(recogniser, of_x),
                     again = lb_norm_averaged(recogniser, lb_recogniser_maker(recogniser, mean), parts);
    if (!lb_recogniser_same(recogniser, x, again)) return nothing;
    lb_norm_take(parts, sub), lb_norm_take(parts, of_mean), lb_norm_take(parts, of_x);
    return x;
}

/* Whether `reading` is result 0 of the op: var_mean gives the mean besides. */
static bool gives_first(const lb_recogniser *recogniser, uint32_t op, lb_reading reading)
{
    const uint32_t first = op == LB_NONE ? LB_NONE : lb_recogniser_result(recogniser, op);
    return first != LB_NONE &&
           lb_recogniser_value(recogniser, first)->storage == lb_recogniser_value(recogniser, reading.value)->storage;
}

/* The x whose variance stands in the root. */
static lb_reading spread_of(const lb_recogniser *recogniser, const lb_norm_root *root, lb_norm_parts *parts)
{
    static const char *const variances[] = {"var", "var_mean", NULL}, *const deviations[] = {"std", NULL};
    if (root->variance.op == LB_NONE) return of_op(recogniser, root->spread, parts, deviations);
    const lb_norm_parts before = *parts;
    const uint32_t op = lb_recogniser_maker(recogniser, root->variance);
    lb_reading x = gives_first(recogniser, op, root->variance) ? of_op(recogniser, op, parts, variances) : nothing;
    if (x.op == LB_NONE) *parts = before, x = of_differences(recogniser, root->variance, parts);
    if (x.op == LB_NONE) *parts = before, x = of_squares(recogniser, root->variance, parts);
    return x;
}

/* ---- behind the root --------------------------------------------------------------------------------------------- */

static bool takes_weight(const lb_recogniser *recogniser, lb_norm_parts *parts, lb_reading weight, uint32_t normal)
{
    const lb_value *value = lb_recogniser_value(recogniser, lb_recogniser_result(recogniser, normal));
    if (parts->composite.inputs[LB_LAYER_WEIGHT] != LB_NONE ||
        !lb_norm_is_row(lb_recogniser_value(recogniser, weight.value), value))
        return false;
    parts->composite.inputs[LB_LAYER_WEIGHT] = weight.value;
    return true;
}

/* Behind x - mean, or the weight times that: x. */
static lb_reading numerator(const lb_recogniser *recogniser, lb_reading reading, lb_norm_parts *parts)
{
    const lb_norm_parts before = *parts;
    const lb_reading x = lb_norm_centred(recogniser, reading, parts);
    if (x.op != LB_NONE) return x;
    *parts = before;
    const uint32_t mul = lb_recogniser_maker(recogniser, reading);
    for (uint32_t i = 0; mul != LB_NONE && lb_recogniser_is(recogniser, mul, "mul") && i < 2; i++) {
        const lb_reading centred = lb_recogniser_arg(recogniser, mul, i),
                         weight = lb_recogniser_arg(recogniser, mul, 1 - i);
        if (centred.op == LB_NONE || weight.op == LB_NONE) continue;
        const lb_reading behind = lb_norm_centred(recogniser, centred, parts);
        if (behind.op != LB_NONE && takes_weight(recogniser, parts, weight, mul)) {
            lb_norm_take(parts, mul);
            return behind;
        }
        *parts = before;
    }
    return nothing;
}

static bool normalises(const lb_recogniser *recogniser, uint32_t op, uint32_t root, bool divides, lb_reading x,
                       lb_norm_parts *parts)
{
    if (!lb_recogniser_is(recogniser, op, divides ? "div" : "mul")) return false;
    for (uint32_t i = 0; i < (divides ? 1u : 2u); i++) {
        const lb_reading reading = lb_recogniser_arg(recogniser, op, 1 - i), y = lb_recogniser_arg(recogniser, op, i);
        if (reading.op == LB_NONE || y.op == LB_NONE || lb_recogniser_maker(recogniser, reading) != root) continue;
        const lb_norm_parts before = *parts;
        const lb_reading of = numerator(recogniser, y, parts);
        if (lb_recogniser_same(recogniser, x, of)) {
            lb_norm_take_own_casts(recogniser, parts, op, of);
            return true;
        }
        *parts = before;
    }
    return false;
}

/* From the normalised x on: casts, the weight, the bias, as long as nothing else reads what lies between. */
static void follow(const lb_recogniser *recogniser, lb_norm_parts *parts, uint32_t op)
{
    for (;;) {
        uint32_t user;
        double alpha = 1;
        const bool biased = parts->composite.inputs[LB_LAYER_BIAS] != LB_NONE;
        parts->composite.outputs[LB_LAYER_Y] = lb_recogniser_result(recogniser, op);
        if (lb_recogniser_users(recogniser, op, &user, 1) != 1 || !lb_recogniser_same_call(recogniser, op, user))
            return;
        const lb_reading a = lb_recogniser_arg(recogniser, user, 0), b = lb_recogniser_arg(recogniser, user, 1);
        if (lb_recogniser_is(recogniser, user, "_to_copy")) {
            if (!lb_dtype_is_float(lb_recogniser_value(recogniser, lb_recogniser_result(recogniser, user))->dtype))
                return;
        } else if (a.op == LB_NONE || b.op == LB_NONE || biased) {
            return;
        } else {
            const lb_reading w = lb_recogniser_maker(recogniser, a) == op ? b : a;
            const lb_value *value = lb_recogniser_value(recogniser, lb_recogniser_result(recogniser, op));
            if (lb_recogniser_is(recogniser, user, "mul")) {
                if (!takes_weight(recogniser, parts, w, op)) return;
            } else if (lb_recogniser_is(recogniser, user, "add") &&
                       !(lb_recogniser_number(recogniser, user, 2, &alpha) && alpha != 1) &&
                       lb_norm_is_row(lb_recogniser_value(recogniser, w.value), value)) {
                parts->composite.inputs[LB_LAYER_BIAS] = w.value;
            } else {
                return;
            }
        }
        lb_norm_take(parts, user);
        op = user;
    }
}

static lb_status written_out(lb_recogniser *recogniser, uint32_t op)
{
    lb_norm_parts parts = {.composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_LAYER_NORM)};
    lb_norm_root root;
    lb_norm_take(&parts, op);
    if (!lb_norm_read_root(recogniser, op, &parts, &root)) return LB_OK;
    const lb_reading x = spread_of(recogniser, &root, &parts);
    if (x.op == LB_NONE) return LB_OK;
    parts.composite.numbers[LB_LAYER_EPS] = root.eps, parts.composite.numbers[LB_LAYER_PLACE] = root.place;
    uint32_t users[8], count = lb_recogniser_users(recogniser, op, users, 8);
    for (uint32_t u = 0; u < count && u < 8; u++) {
        if (!normalises(recogniser, users[u], op, root.divides, x, &parts)) continue;
        parts.composite.inputs[LB_LAYER_X] = lb_norm_take_own_casts(recogniser, &parts, op, x).value;
        lb_norm_take(&parts, users[u]);
        follow(recogniser, &parts, users[u]);
        return lb_recogniser_add(recogniser, &parts.composite, parts.ops, parts.n_ops);
    }
    return LB_OK;
}

/* ---- one op ------------------------------------------------------------------------------------------------------ */

static lb_status single(lb_recogniser *recogniser, uint32_t i)
{
    const lb_op *op = &recogniser->program->ops[i];
    if (!lb_recogniser_is(recogniser, i, "native_layer_norm") || op->results < 3 || op->args < 5) return LB_OK;
    const lb_arg *shape = &lb_op_args(recogniser->program, op)[1];
    lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_LAYER_NORM);
    if (shape->tag != LB_ARG_LIST || shape->count != 1 ||
        !lb_recogniser_number(recogniser, i, 4, &composite.numbers[LB_LAYER_EPS]))
        return LB_OK;
    for (uint32_t k = 0; k < 3; k++) {
        static const uint32_t args[] = {0, 2, 3};
        composite.inputs[k] = lb_recogniser_arg(recogniser, i, args[k]).value;
        composite.outputs[k] = lb_op_results(recogniser->program, op)[k];
    }
    return lb_recogniser_add(recogniser, &composite, &i, 1);
}

lb_status lb_recogniser_layer_norms(lb_recogniser *recogniser)
{
    for (uint32_t i = 0; i < recogniser->program->n_ops; i++) {
        if (!lb_recogniser_forward(recogniser, i)) continue;
        LB_TRY(written_out(recogniser, i));
        LB_TRY(single(recogniser, i));
    }
    return LB_OK;
}
