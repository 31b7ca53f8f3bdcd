/* Recognises layer norm as torch's op, and RMSNorm: written out, as one op of torch, or as a custom op; with and without the residual addition before it.
 *
 *      x ─ cast? ─ square ─ mean over the last dimension ─ + eps ─ rsqrt ─ × x ─ cast? ─ × (offset + weight) ─ cast?
 *
 * The reciprocal root is what is looked for; what stands before it must be exactly this, behind it is taken what still belongs to the
 * same call. */
#include "recogniser.h"

#include "ops.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_OPS = 24 };

typedef struct norm {
    lb_composite composite;
    uint32_t ops[MOST_OPS], n_ops;
} norm;

static void take(norm *n, uint32_t op)
{
    if (n->n_ops < MOST_OPS) n->ops[n->n_ops++] = op;
}

/* ---- before the root ------------------------------------------------------------------------------------------------------ */

/* x of x², x·x, pow(x, 2). */
static lb_reading squared(const lb_recogniser *t, uint32_t op)
{
    const lb_reading nothing = {LB_NONE, LB_NONE}, x = op == LB_NONE ? nothing : lb_recogniser_arg(t, op, 0);
    double exponent = 0;
    if (x.op == LB_NONE) return nothing;
    if (lb_recogniser_is(t, op, "square")) return x;
    if (lb_recogniser_is(t, op, "pow") && lb_recogniser_number(t, op, 1, &exponent) && exponent == 2) return x;
    if (!lb_recogniser_is(t, op, "mul")) return nothing;
    const lb_reading y = lb_recogniser_arg(t, op, 1);
    return y.op != LB_NONE && y.value == x.value ? x : nothing;
}

/* What a mean over the last dimension is taken of: `mean`, or a sum divided by the number of its terms. */
static lb_reading averaged(const lb_recogniser *t, uint32_t op, norm *n)
{
    const lb_reading nothing = {LB_NONE, LB_NONE};
    double divisor = 0;
    uint32_t sum = op;
    bool scaled = false;
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
    take(n, sum);
    if (scaled) take(n, op);
    return of;
}

/* 1 / sqrt(v) in its spellings: what v is. */
static lb_reading under_root(const lb_recogniser *t, uint32_t op, norm *n)
{
    const lb_reading nothing = {LB_NONE, LB_NONE};
    double exponent = 0;
    if (lb_recogniser_is(t, op, "rsqrt")) return lb_recogniser_arg(t, op, 0);
    if (lb_recogniser_is(t, op, "pow") && lb_recogniser_number(t, op, 1, &exponent) && exponent == -0.5)
        return lb_recogniser_arg(t, op, 0);
    double factor = 0;
    if (lb_recogniser_is(t, op, "mul") && lb_recogniser_number(t, op, 1, &factor) &&
        factor == 1) { /* Python's 1 / x */
        op = lb_recogniser_maker(t, lb_recogniser_arg(t, op, 0));
        if (op != LB_NONE) take(n, op);
    }
    if (op == LB_NONE || !lb_recogniser_is(t, op, "reciprocal")) return nothing;
    const uint32_t root = lb_recogniser_maker(t, lb_recogniser_arg(t, op, 0));
    if (root == LB_NONE || !lb_recogniser_is(t, root, "sqrt")) return nothing;
    take(n, root);
    return lb_recogniser_arg(t, root, 0);
}

/* x / sqrt(v): the root is no reciprocal. */
static lb_reading divided_by_root(const lb_recogniser *t, uint32_t op)
{
    return lb_recogniser_is(t, op, "sqrt") ? lb_recogniser_arg(t, op, 0) : (lb_reading){LB_NONE, LB_NONE};
}

static lb_reading mean_square(const lb_recogniser *t, lb_reading variance, norm *n)
{
    const lb_reading nothing = {LB_NONE, LB_NONE};
    const uint32_t add = lb_recogniser_maker(t, variance);
    if (add == LB_NONE || !lb_recogniser_is(t, add, "add")) return nothing;
    if (!lb_recogniser_number(t, add, 1, &n->composite.numbers[LB_NORM_EPS])) return nothing;
    take(n, add);
    const uint32_t mean = lb_recogniser_maker(t, lb_recogniser_arg(t, add, 0));
    const lb_reading of = mean == LB_NONE ? nothing : averaged(t, mean, n);
    if (of.op == LB_NONE) return nothing;
    const uint32_t square = lb_recogniser_maker(t, of);
    const lb_reading x = squared(t, square);
    if (x.op != LB_NONE) take(n, square);
    return x;
}

/* ---- behind the root ------------------------------------------------------------------------------------------------------ */

/* The other operand of the product, when it is the x that was squared. */
static bool normalises(const lb_recogniser *t, uint32_t op, uint32_t root, bool divides, lb_reading x,
                       lb_reading *other)
{
    if (!lb_recogniser_is(t, op, divides ? "div" : "mul")) return false;
    for (uint32_t i = 0; i < (divides ? 1u : 2u); i++) {
        const lb_reading r = lb_recogniser_arg(t, op, 1 - i), y = lb_recogniser_arg(t, op, i);
        if (r.op == LB_NONE || y.op == LB_NONE || lb_recogniser_maker(t, r) != root) continue;
        *other = y;
        return lb_recogniser_same(t, x, y);
    }
    return false;
}

/* One number per element of a row: (n), or dimensions of size 1 before it. */
static bool is_row(const lb_value *w, const lb_value *y)
{
    const int d = w->layout.ndim;
    return d >= 1 && d <= y->layout.ndim && w->layout.shape[d - 1] == y->layout.shape[y->layout.ndim - 1] &&
           lb_layout_numel(&w->layout) == w->layout.shape[d - 1] && lb_dtype_is_float(w->dtype);
}

static lb_reading take_casts(const lb_recogniser *t, norm *n, lb_reading r)
{
    for (uint32_t cast; (cast = lb_recogniser_cast(t, r)) != LB_NONE; r = lb_recogniser_arg(t, cast, 0))
        take(n, cast);
    return r;
}

/* weight, or 1 + weight, behind casts. */
static void take_weight(const lb_recogniser *t, norm *n, lb_reading w)
{
    w = take_casts(t, n, w);
    const uint32_t add = lb_recogniser_maker(t, w);
    double offset = 0;
    uint32_t operand = 0;
    const bool adds =
        add != LB_NONE && lb_recogniser_is(t, add, "add") &&
        (lb_recogniser_number(t, add, 1, &offset) || (operand = 1, lb_recogniser_number(t, add, 0, &offset)));
    if (adds && offset == 1 && lb_recogniser_arg(t, add, operand).op != LB_NONE) {
        n->composite.numbers[LB_NORM_OFFSET] = offset;
        take(n, add);
        w = take_casts(t, n, lb_recogniser_arg(t, add, operand));
    }
    n->composite.inputs[LB_NORM_WEIGHT] = w.value;
}

/* From the normalised x on: a cast, the weight, a cast, as long as nothing else reads what lies between. */
static void follow(const lb_recogniser *t, norm *n, uint32_t op)
{
    for (bool weighted = false;;) {
        uint32_t user;
        n->composite.outputs[LB_NORM_Y] = lb_recogniser_result(t, op);
        if (lb_recogniser_users(t, op, &user, 1) != 1 || !lb_recogniser_same_call(t, op, user)) return;
        if (lb_recogniser_is(t, user, "_to_copy")) {
            if (!lb_dtype_is_float(lb_recogniser_value(t, lb_recogniser_result(t, user))->dtype)) return;
        } else if (lb_recogniser_is(t, user, "mul") && !weighted) {
            const lb_reading a = lb_recogniser_arg(t, user, 0), b = lb_recogniser_arg(t, user, 1);
            if (a.op == LB_NONE || b.op == LB_NONE) return;
            const lb_reading w = lb_recogniser_maker(t, a) == op ? b : a;
            if (!is_row(lb_recogniser_value(t, w.value), lb_recogniser_value(t, lb_recogniser_result(t, op))))
                return;
            take_weight(t, n, w);
            weighted = true;
        } else {
            return;
        }
        take(n, user);
        op = user;
    }
}

/* ---- the residual addition ------------------------------------------------------------------------------------------------ */

static lb_status add_with_residual(lb_recogniser *t, const norm *found, lb_reading x)
{
    const uint32_t add = lb_recogniser_maker(t, x);
    double alpha = 1;
    if (add == LB_NONE || !lb_recogniser_forward(t, add) || !lb_recogniser_is(t, add, "add")) return LB_OK;
    const lb_reading a = lb_recogniser_arg(t, add, 0), b = lb_recogniser_arg(t, add, 1);
    if (a.op == LB_NONE || b.op == LB_NONE || (lb_recogniser_number(t, add, 2, &alpha) && alpha != 1))
        return LB_OK;
    const lb_value *va = lb_recogniser_value(t, a.value), *vb = lb_recogniser_value(t, b.value),
                   *sum = lb_recogniser_value(t, lb_recogniser_result(t, add));
    if (!lb_layout_same_shape(&va->layout, &vb->layout) || !lb_layout_same_shape(&va->layout, &sum->layout))
        return LB_OK;
    if (va->dtype != vb->dtype || va->dtype != sum->dtype || !lb_dtype_is_float(va->dtype)) return LB_OK;
    norm n = *found;
    n.composite.kind = LB_COMPOSITE_ADD_RMS_NORM;
    n.composite.inputs[LB_NORM_X] = a.value, n.composite.inputs[LB_NORM_RESIDUAL] = b.value;
    n.composite.outputs[LB_NORM_SUM] = lb_recogniser_result(t, add);
    take(&n, add);
    return lb_recogniser_add(t, &n.composite, n.ops, n.n_ops);
}

/* Casts in front belong to the norm when they are made in the same call. */
static lb_reading take_own_casts(const lb_recogniser *t, norm *n, uint32_t root, lb_reading r)
{
    for (uint32_t cast;
         (cast = lb_recogniser_cast(t, r)) != LB_NONE && lb_recogniser_same_call(t, cast, root);) {
        take(n, cast);
        r = lb_recogniser_arg(t, cast, 0);
    }
    return r;
}

static lb_status written_out(lb_recogniser *t, uint32_t op)
{
    norm n = {.composite = lb_recogniser_composite(t, LB_COMPOSITE_RMS_NORM)};
    bool divides = false;
    take(&n, op);
    lb_reading variance = under_root(t, op, &n);
    if (variance.op == LB_NONE) variance = divided_by_root(t, op), divides = true;
    if (variance.op == LB_NONE) return LB_OK;
    const lb_reading x = mean_square(t, variance, &n);
    if (x.op == LB_NONE) return LB_OK;
    uint32_t users[8], count = lb_recogniser_users(t, op, users, 8);
    lb_reading other;
    for (uint32_t u = 0; u < count && u < 8; u++) {
        if (!normalises(t, users[u], op, divides, x, &other)) continue;
        take_own_casts(t, &n, op, x);
        const lb_reading in = take_own_casts(t, &n, op, other);
        n.composite.inputs[LB_NORM_X] = in.value;
        take(&n, users[u]);
        follow(t, &n, users[u]);
        LB_TRY(lb_recogniser_add(t, &n.composite, n.ops, n.n_ops));
        return add_with_residual(t, &n, in);
    }
    return LB_OK;
}

/* ---- one op ----------------------------------------------------------------------------------------------------------------- */

static bool reading_named(const lb_recogniser *t, uint32_t op, const char *name, uint32_t *value)
{
    uint32_t at;
    if (!lb_recogniser_position(t, op, name, &at) || lb_recogniser_arg(t, op, at).op == LB_NONE) return false;
    *value = lb_recogniser_arg(t, op, at).value;
    return true;
}

static lb_status single(lb_recogniser *t, uint32_t i)
{
    const lb_op *op = &t->program->ops[i];
    const char *name = lb_op_name(t->program, op);
    if ((!strstr(name, "rms_norm") && !strstr(name, "rmsnorm")) || strstr(name, "backward")) return LB_OK;
    const lb_op_row *row = lb_op_find(name, NULL);
    uint32_t at;
    if (!row || !row->kernel) return LB_OK;
    norm n = {.composite = lb_recogniser_composite(t, LB_COMPOSITE_RMS_NORM)};
    lb_composite *c = &n.composite;
    if (!reading_named(t, i, "input", &c->inputs[LB_NORM_X])) return LB_OK;
    const lb_value *x = lb_recogniser_value(t, c->inputs[LB_NORM_X]);
    reading_named(t, i, "weight", &c->inputs[LB_NORM_WEIGHT]);
    c->numbers[LB_NORM_EPS] = x->dtype == LB_F64 ? 0x1p-52 : 0x1p-23; /* torch's own where none is given */
    if (lb_recogniser_position(t, i, "eps", &at) || lb_recogniser_position(t, i, "epsilon", &at))
        lb_recogniser_number(t, i, at, &c->numbers[LB_NORM_EPS]);
    if (lb_recogniser_position(t, i, "normalized_shape", &at)) {
        const lb_arg *shape = &lb_op_args(t->program, op)[at];
        if (shape->tag == LB_ARG_LIST && shape->count != 1) return LB_OK;
    }
    c->numbers[LB_NORM_OFFSET] = strstr(name, "gemma") ? 1 : 0;
    if (lb_recogniser_position(t, i, "zero_centered_gamma", &at) && at < op->args &&
        lb_op_args(t->program, op)[at].u.i)
        c->numbers[LB_NORM_OFFSET] = 1;
    if (reading_named(t, i, "residual", &c->inputs[LB_NORM_RESIDUAL])) {
        if (op->written < 2) return LB_OK;
        c->kind = LB_COMPOSITE_ADD_RMS_NORM;
        c->outputs[LB_NORM_SUM] = lb_op_written(t->program, op)[1];
        c->outputs[LB_NORM_Y] = lb_op_written(t->program, op)[0];
    } else {
        c->outputs[LB_NORM_Y] = lb_recogniser_result(t, i);
    }
    take(&n, i);
    LB_TRY(lb_recogniser_add(t, c, n.ops, n.n_ops));
    if (c->kind == LB_COMPOSITE_ADD_RMS_NORM) return LB_OK;
    return add_with_residual(t, &n, (lb_reading){i, c->inputs[LB_NORM_X]});
}

lb_status lb_recogniser_norms(lb_recogniser *t)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        if (!lb_recogniser_forward(t, i)) continue;
        LB_TRY(written_out(t, i));
        LB_TRY(single(t, i));
    }
    return LB_OK;
}

lb_status lb_recogniser_layer_norms(lb_recogniser *t)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        const lb_op *op = &t->program->ops[i];
        if (!lb_recogniser_forward(t, i) || !lb_recogniser_is(t, i, "native_layer_norm") || op->results < 3 ||
            op->args < 5)
            continue;
        const lb_arg *shape = &lb_op_args(t->program, op)[1];
        lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_LAYER_NORM);
        if (shape->tag != LB_ARG_LIST || shape->count != 1 ||
            !lb_recogniser_number(t, i, 4, &c.numbers[LB_LAYER_EPS]))
            continue;
        for (uint32_t k = 0; k < 3; k++) {
            static const uint32_t args[] = {0, 2, 3};
            c.inputs[k] = lb_recogniser_arg(t, i, args[k]).value;
            c.outputs[k] = lb_op_results(t->program, op)[k];
        }
        LB_TRY(lb_recogniser_add(t, &c, &i, 1));
    }
    return LB_OK;
}

/* ---- behind a collective ------------------------------------------------------------------------------------------------------ */

/* The all-reduce whose result `value` is, as the op that adds it reads it; behind a wait, where there is one. */
static uint32_t all_reduce(const lb_recogniser *t, uint32_t add, uint32_t value)
{
    uint32_t op = lb_recogniser_maker(t, (lb_reading){add, value});
    if (op != LB_NONE && strstr(lb_op_name(t->program, &t->program->ops[op]), "wait_tensor"))
        op = lb_recogniser_maker(t, lb_recogniser_arg(t, op, 0));
    if (op == LB_NONE) return LB_NONE;
    const char *name = lb_op_name(t->program, &t->program->ops[op]);
    return strstr(name, "allreduce") || strstr(name, "all_reduce") ? op : LB_NONE;
}

lb_status lb_recogniser_allreduce_norms(lb_recogniser *t)
{
    for (uint32_t i = 0, n = t->found->n; i < n; i++) {
        const lb_composite c = t->found->rows[i];
        uint32_t ops[MOST_OPS + 1];
        for (uint32_t k = 0; k < c.n_ops && k <= MOST_OPS; k++) ops[k] = c.ops[k];
        for (int swapped = 0; c.kind == LB_COMPOSITE_ADD_RMS_NORM && swapped < 2; swapped++) {
            lb_composite found = c;
            found.kind = LB_COMPOSITE_ALLREDUCE_NORM;
            found.inputs[LB_NORM_X] = c.inputs[swapped ? LB_NORM_RESIDUAL : LB_NORM_X];
            found.inputs[LB_NORM_RESIDUAL] = c.inputs[swapped ? LB_NORM_X : LB_NORM_RESIDUAL];
            const uint32_t collective = all_reduce(t, c.ops[0], found.inputs[LB_NORM_X]);
            if (collective == LB_NONE) continue;
            const lb_reading listed = lb_recogniser_item(t, collective, 0, 0);
            found.inputs[LB_NORM_OWN] =
                (listed.op != LB_NONE ? listed : lb_recogniser_arg(t, collective, 0)).value;
            LB_TRY(lb_recogniser_add(t, &found, ops, c.n_ops));
            break;
        }
    }
    return LB_OK;
}
