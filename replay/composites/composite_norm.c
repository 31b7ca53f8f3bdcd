/* Recognises RMSNorm: written out, as one op of torch, or as a custom op; with and without the residual addition before
 * it.
 *
 *      x ─ cast? ─ square ─ mean over the last dimension ─ + eps ─ rsqrt ─ × x ─ cast? ─ × (offset + weight) ─ cast?
 *      x ─ 2-norm over the last dimension ─ at least eps ─ x / that ─ × sqrt(size of a row) ─ × (offset + weight)
 *
 * The root is what is looked for (norm_parts.h has its spellings); what stands before it must be exactly this, behind
 * it is taken what still belongs to the same call. */
#include "composites/norm_parts.h"

#include "kernel/ops.h"

#include <math.h>
#include <string.h>

/* ---- before the root --------------------------------------------------------------------------------------------- */

static lb_reading mean_square(const lb_recogniser *recogniser, lb_reading variance, lb_norm_parts *parts)
{
    const lb_reading nothing = {LB_NONE, LB_NONE},
                     of = lb_norm_averaged(recogniser, lb_recogniser_maker(recogniser, variance), parts);
    if (of.op == LB_NONE) return nothing;
    const uint32_t square = lb_recogniser_maker(recogniser, of);
    const lb_reading x = lb_norm_squared(recogniser, square);
    if (x.op != LB_NONE) lb_norm_take(parts, square);
    return x;
}

/* x of its 2-norm over the last dimension, or of the norm times a number. `*times`: what the norm has to be multiplied
 * with to become the root of the mean square. */
static lb_reading of_norm(const lb_recogniser *recogniser, uint32_t op, lb_norm_parts *parts, double *times)
{
    const lb_reading nothing = {LB_NONE, LB_NONE};
    double factor = 1, order = 0;
    lb_norm_take(parts, op);
    const bool multiplied = lb_recogniser_is(recogniser, op, "mul") && lb_recogniser_number(recogniser, op, 1, &factor);
    if (multiplied && (op = lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, op, 0))) != LB_NONE)
        lb_norm_take(parts, op);
    static const char *const norms[] = {"linalg_vector_norm", "norm", NULL};
    if (op == LB_NONE || !lb_recogniser_is_any(recogniser, op, norms) ||
        !lb_recogniser_number(recogniser, op, 1, &order) || order != 2)
        return nothing;
    const lb_reading x = lb_recogniser_arg(recogniser, op, 0);
    if (x.op == LB_NONE) return nothing;
    const lb_layout *layout = &lb_recogniser_value(recogniser, x.value)->layout;
    if (layout->ndim < 1 || !lb_recogniser_last_dim(recogniser, op, 2, layout->ndim) || !(factor > 0)) return nothing;
    *times = 1 / (factor * sqrt((double)layout->shape[layout->ndim - 1]));
    return x;
}

/* The x whose mean square stands in the root, eps as the root of the mean square has it. `*factor`: what x over the
 * root has to be multiplied with yet. */
static lb_reading spread_of(const lb_recogniser *recogniser, uint32_t op, lb_norm_parts *parts, bool *divides,
                            double *factor)
{
    const lb_reading nothing = {LB_NONE, LB_NONE};
    lb_norm_root root;
    double times = 1;
    if (!lb_norm_read_root(recogniser, op, parts, &root)) return nothing;
    const lb_reading x = root.spread == LB_NONE ? mean_square(recogniser, root.variance, parts)
                                                : of_norm(recogniser, root.spread, parts, &times);
    *divides = root.divides, *factor = 1 / times;
    parts->composite.numbers[LB_NORM_EPS] = root.eps * times, parts->composite.numbers[LB_NORM_PLACE] = root.place;
    return x;
}

/* ---- behind the root --------------------------------------------------------------------------------------------- */

/* The other operand of the product, when it is the x that was squared. */
static bool normalises(const lb_recogniser *recogniser, uint32_t op, uint32_t root, bool divides, lb_reading x,
                       lb_reading *other)
{
    if (!lb_recogniser_is(recogniser, op, divides ? "div" : "mul")) return false;
    for (uint32_t i = 0; i < (divides ? 1u : 2u); i++) {
        const lb_reading r = lb_recogniser_arg(recogniser, op, 1 - i), y = lb_recogniser_arg(recogniser, op, i);
        if (r.op == LB_NONE || y.op == LB_NONE || lb_recogniser_maker(recogniser, r) != root) continue;
        *other = y;
        return lb_recogniser_same(recogniser, x, y);
    }
    return false;
}

/* weight, or 1 + weight, behind casts. */
static void take_weight(const lb_recogniser *recogniser, lb_norm_parts *parts, lb_reading weight)
{
    weight = lb_norm_take_casts(recogniser, parts, weight);
    const uint32_t add = lb_recogniser_maker(recogniser, weight);
    double offset = 0;
    uint32_t operand = 0;
    const bool adds = add != LB_NONE && lb_recogniser_is(recogniser, add, "add") &&
                      (lb_recogniser_number(recogniser, add, 1, &offset) ||
                       (operand = 1, lb_recogniser_number(recogniser, add, 0, &offset)));
    if (adds && offset == 1 && lb_recogniser_arg(recogniser, add, operand).op != LB_NONE) {
        parts->composite.numbers[LB_NORM_OFFSET] = offset;
        lb_norm_take(parts, add);
        weight = lb_norm_take_casts(recogniser, parts, lb_recogniser_arg(recogniser, add, operand));
    }
    parts->composite.inputs[LB_NORM_WEIGHT] = weight.value;
}

static bool near(double x, double y)
{
    return fabs(x - y) <= 1e-6 * fabs(y);
}

/* From the normalised x on: a cast, the factor that is still to come, the weight, a cast, as long as nothing else reads
 * what lies between. False: the factor did not come. */
static bool follow(const lb_recogniser *recogniser, lb_norm_parts *parts, uint32_t op, double factor)
{
    for (bool weighted = false, whole = near(factor, 1);;) {
        uint32_t user;
        double number;
        parts->composite.outputs[LB_NORM_Y] = lb_recogniser_result(recogniser, op);
        if (lb_recogniser_users(recogniser, op, &user, 1) != 1 || !lb_recogniser_same_call(recogniser, op, user))
            return whole;
        if (lb_recogniser_is(recogniser, user, "_to_copy")) {
            if (!lb_dtype_is_float(lb_recogniser_value(recogniser, lb_recogniser_result(recogniser, user))->dtype))
                return whole;
        } else if (!whole && lb_recogniser_is(recogniser, user, "mul") &&
                   lb_recogniser_number(recogniser, user, 1, &number)) {
            if (!near(number, factor)) return false;
            whole = true;
        } else if (lb_recogniser_is(recogniser, user, "mul") && !weighted) {
            const lb_reading a = lb_recogniser_arg(recogniser, user, 0), b = lb_recogniser_arg(recogniser, user, 1);
            if (a.op == LB_NONE || b.op == LB_NONE) return whole;
            const lb_reading weight = lb_recogniser_maker(recogniser, a) == op ? b : a;
            if (!lb_norm_is_row(lb_recogniser_value(recogniser, weight.value),
                                lb_recogniser_value(recogniser, lb_recogniser_result(recogniser, op))))
                return whole;
            take_weight(recogniser, parts, weight);
            weighted = true;
        } else {
            return whole;
        }
        lb_norm_take(parts, user);
        op = user;
    }
}

/* ---- the residual addition --------------------------------------------------------------------------------------- */

static lb_status add_with_residual(lb_recogniser *recogniser, const lb_norm_parts *found, lb_reading x)
{
    const uint32_t add = lb_recogniser_maker(recogniser, x);
    double alpha = 1;
    if (add == LB_NONE || !lb_recogniser_forward(recogniser, add) || !lb_recogniser_is(recogniser, add, "add"))
        return LB_OK;
    const lb_reading a = lb_recogniser_arg(recogniser, add, 0), b = lb_recogniser_arg(recogniser, add, 1);
    if (a.op == LB_NONE || b.op == LB_NONE || (lb_recogniser_number(recogniser, add, 2, &alpha) && alpha != 1))
        return LB_OK;
    const lb_value *va = lb_recogniser_value(recogniser, a.value), *vb = lb_recogniser_value(recogniser, b.value),
                   *sum = lb_recogniser_value(recogniser, lb_recogniser_result(recogniser, add));
    if (!lb_layout_same_shape(&va->layout, &vb->layout) || !lb_layout_same_shape(&va->layout, &sum->layout))
        return LB_OK;
    if (va->dtype != vb->dtype || va->dtype != sum->dtype || !lb_dtype_is_float(va->dtype)) return LB_OK;
    lb_norm_parts parts = *found;
    parts.composite.kind = LB_COMPOSITE_ADD_RMS_NORM;
    parts.composite.inputs[LB_NORM_X] = a.value, parts.composite.inputs[LB_NORM_RESIDUAL] = b.value;
    parts.composite.outputs[LB_NORM_SUM] = lb_recogniser_result(recogniser, add);
    lb_norm_take(&parts, add);
    return lb_recogniser_add(recogniser, &parts.composite, parts.ops, parts.n_ops);
}

static lb_status written_out(lb_recogniser *recogniser, uint32_t op)
{
    lb_norm_parts parts = {.composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_RMS_NORM)},
                  centring = {.n_ops = 0};
    bool divides = false;
    double factor = 1;
    lb_norm_take(&parts, op);
    const lb_reading x = spread_of(recogniser, op, &parts, &divides, &factor);
    if (x.op == LB_NONE || lb_norm_centred(recogniser, x, &centring).op != LB_NONE)
        return LB_OK; /* centred: a layer norm */
    uint32_t users[8], count = lb_recogniser_users(recogniser, op, users, 8);
    lb_reading other;
    for (uint32_t u = 0; u < count && u < 8; u++) {
        if (!normalises(recogniser, users[u], op, divides, x, &other)) continue;
        lb_norm_take_own_casts(recogniser, &parts, op, x);
        const lb_reading in = lb_norm_take_own_casts(recogniser, &parts, op, other);
        parts.composite.inputs[LB_NORM_X] = in.value;
        lb_norm_take(&parts, users[u]);
        if (!follow(recogniser, &parts, users[u], factor)) return LB_OK;
        LB_TRY(lb_recogniser_add(recogniser, &parts.composite, parts.ops, parts.n_ops));
        return add_with_residual(recogniser, &parts, in);
    }
    return LB_OK;
}

/* ---- one op ------------------------------------------------------------------------------------------------------ */

static bool reading_named(const lb_recogniser *recogniser, uint32_t op, const char *name, uint32_t *value)
{
    uint32_t at;
    if (!lb_recogniser_position(recogniser, op, name, &at) || lb_recogniser_arg(recogniser, op, at).op == LB_NONE)
        return false;
    *value = lb_recogniser_arg(recogniser, op, at).value;
    return true;
}

static lb_status single(lb_recogniser *recogniser, uint32_t i)
{
    const lb_op *op = &recogniser->program->ops[i];
    const char *name = lb_op_name(recogniser->program, op);
    if ((!strstr(name, "rms_norm") && !strstr(name, "rmsnorm")) || strstr(name, "backward")) return LB_OK;
    const lb_op_row *row = lb_op_find(name, NULL);
    uint32_t at;
    if (!row || !row->kernel) return LB_OK;
    lb_norm_parts parts = {.composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_RMS_NORM)};
    lb_composite *composite = &parts.composite;
    if (!reading_named(recogniser, i, "input", &composite->inputs[LB_NORM_X])) return LB_OK;
    const lb_value *value = lb_recogniser_value(recogniser, composite->inputs[LB_NORM_X]);
    reading_named(recogniser, i, "weight", &composite->inputs[LB_NORM_WEIGHT]);
    composite->numbers[LB_NORM_EPS] = value->dtype == LB_F64 ? 0x1p-52 : 0x1p-23; /* torch's own where none is given */
    if (lb_recogniser_position(recogniser, i, "eps", &at) || lb_recogniser_position(recogniser, i, "epsilon", &at))
        lb_recogniser_number(recogniser, i, at, &composite->numbers[LB_NORM_EPS]);
    if (lb_recogniser_position(recogniser, i, "normalized_shape", &at)) {
        const lb_arg *shape = &lb_op_args(recogniser->program, op)[at];
        if (shape->tag == LB_ARG_LIST && shape->count != 1) return LB_OK;
    }
    composite->numbers[LB_NORM_OFFSET] = strstr(name, "gemma") ? 1 : 0;
    if (lb_recogniser_position(recogniser, i, "zero_centered_gamma", &at) && at < op->args &&
        lb_op_args(recogniser->program, op)[at].u.i)
        composite->numbers[LB_NORM_OFFSET] = 1;
    if (reading_named(recogniser, i, "residual", &composite->inputs[LB_NORM_RESIDUAL])) {
        if (op->written < 2) return LB_OK;
        composite->kind = LB_COMPOSITE_ADD_RMS_NORM;
        composite->outputs[LB_NORM_SUM] = lb_op_written(recogniser->program, op)[1];
        composite->outputs[LB_NORM_Y] = lb_op_written(recogniser->program, op)[0];
    } else {
        composite->outputs[LB_NORM_Y] = lb_recogniser_result(recogniser, i);
    }
    lb_norm_take(&parts, i);
    LB_TRY(lb_recogniser_add(recogniser, composite, parts.ops, parts.n_ops));
    if (composite->kind == LB_COMPOSITE_ADD_RMS_NORM) return LB_OK;
    return add_with_residual(recogniser, &parts, (lb_reading){i, composite->inputs[LB_NORM_X]});
}

lb_status lb_recogniser_norms(lb_recogniser *recogniser)
{
    for (uint32_t i = 0; i < recogniser->program->n_ops; i++) {
        if (!lb_recogniser_forward(recogniser, i)) continue;
        LB_TRY(written_out(recogniser, i));
        LB_TRY(single(recogniser, i));
    }
    return LB_OK;
}

/* ---- behind a collective ----------------------------------------------------------------------------------------- */

/* The all-reduce whose result `value` is, as the op that adds it reads it; behind a wait, where there is one. */
static uint32_t all_reduce(const lb_recogniser *recogniser, uint32_t add, uint32_t value)
{
    uint32_t op = lb_recogniser_maker(recogniser, (lb_reading){add, value});
    if (op != LB_NONE && strstr(lb_op_name(recogniser->program, &recogniser->program->ops[op]), "wait_tensor"))
        op = lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, op, 0));
    if (op == LB_NONE) return LB_NONE;
    const char *name = lb_op_name(recogniser->program, &recogniser->program->ops[op]);
    return strstr(name, "allreduce") || strstr(name, "all_reduce") ? op : LB_NONE;
}

lb_status lb_recogniser_allreduce_norms(lb_recogniser *recogniser)
{
    for (uint32_t i = 0, n = recogniser->found->n; i < n; i++) {
        const lb_composite composite = recogniser->found->rows[i];
        uint32_t ops[LB_NORM_MOST_OPS + 1];
        for (uint32_t k = 0; k < composite.n_ops && k <= LB_NORM_MOST_OPS; k++) ops[k] = composite.ops[k];
        for (int swapped = 0; composite.kind == LB_COMPOSITE_ADD_RMS_NORM && swapped < 2; swapped++) {
            lb_composite found = composite;
            found.kind = LB_COMPOSITE_ALLREDUCE_NORM;
            found.inputs[LB_NORM_X] = composite.inputs[swapped ? LB_NORM_RESIDUAL : LB_NORM_X];
            found.inputs[LB_NORM_RESIDUAL] = composite.inputs[swapped ? LB_NORM_X : LB_NORM_RESIDUAL];
            const uint32_t collective = all_reduce(recogniser, composite.ops[0], found.inputs[LB_NORM_X]);
            if (collective == LB_NONE) continue;
            const lb_reading listed = lb_recogniser_item(recogniser, collective, 0, 0);
            found.inputs[LB_NORM_OWN] =
                (listed.op != LB_NONE ? listed : lb_recogniser_arg(recogniser, collective, 0)).value;
            LB_TRY(lb_recogniser_add(recogniser, &found, ops, composite.n_ops));
            break;
        }
    }
    return LB_OK;
}
