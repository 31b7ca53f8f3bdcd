/* Recognises cross-entropy: as torch's two ops, and written out.
 *
 *      log_softmax ─ nll_loss
 *      log_softmax ─ gather, or index ─ neg ─ mean       neg before the mean or behind it; a sum, also divided by the number of rows
 *      logsumexp(x) - gather(x) ─ mean                   the other way round with neg
 */
#include "composites/recogniser.h"

enum { MOST_OPS = 12 };

typedef struct loss {
    const lb_recogniser *t;
    lb_composite composite;
    uint32_t ops[MOST_OPS], n_ops;
} loss;

static void take(loss *l, uint32_t op)
{
    if (l->n_ops < MOST_OPS) l->ops[l->n_ops++] = op;
}

static const lb_reading nothing = {LB_NONE, LB_NONE};

static int64_t numel(const lb_recogniser *t, uint32_t value)
{
    return lb_layout_numel(&lb_recogniser_value(t, value)->layout);
}

static const lb_layout *layout_of(const lb_recogniser *t, lb_reading r)
{
    return &lb_recogniser_value(t, r.value)->layout;
}

/* ---- as two ops -------------------------------------------------------------------------------------------------- */

static lb_status two_ops(lb_recogniser *t, uint32_t i)
{
    if (!lb_recogniser_is(t, i, "nll_loss_forward")) return LB_OK;
    const uint32_t softmax = lb_recogniser_maker(t, lb_recogniser_arg(t, i, 0));
    double reduction = 0, ignored = -100;
    const lb_reading target = lb_recogniser_arg(t, i, 1);
    if (softmax == LB_NONE || !lb_recogniser_is(t, softmax, "_log_softmax") || target.op == LB_NONE ||
        lb_recogniser_arg(t, i, 2).op != LB_NONE)
        return LB_OK;
    if (!lb_recogniser_number(t, i, 3, &reduction) || reduction < 1) return LB_OK;
    const lb_reading logits = lb_recogniser_arg(t, softmax, 0);
    if (layout_of(t, logits)->ndim != 2 || !lb_recogniser_last_dim(t, softmax, 1, 2)) return LB_OK;
    lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_CROSS_ENTROPY);
    lb_recogniser_number(t, i, 4, &ignored);
    c.numbers[LB_LOSS_IGNORED] = ignored;
    if (reduction == 2) c.flags |= LB_LOSS_SUM;
    c.inputs[LB_LOSS_LOGITS] = logits.value, c.inputs[LB_LOSS_TARGET] = target.value;
    c.outputs[LB_LOSS_Y] = lb_recogniser_result(t, i);
    const uint32_t ops[] = {i, softmax};
    return lb_recogniser_add(t, &c, ops, 2);
}

/* ---- written out: one number per row ----------------------------------------------------------------------------- */

/* 0, 1, … of as many rows as x has; made here. */
static bool counts_rows(loss *l, lb_reading r, const lb_layout *x)
{
    const lb_recogniser *t = l->t;
    const uint32_t op = r.op == LB_NONE ? LB_NONE : lb_recogniser_maker(t, r);
    double from = 0, end = 0;
    uint32_t at;
    if (op == LB_NONE || !lb_recogniser_is(t, op, "arange") || x->ndim != 2) return false;
    if (lb_recogniser_position(t, op, "step", &at)) return false;
    if (lb_recogniser_position(t, op, "start", &at) && (!lb_recogniser_number(t, op, at, &from) || from != 0))
        return false;
    if (!lb_recogniser_position(t, op, "end", &at) || !lb_recogniser_number(t, op, at, &end) ||
        end != (double)x->shape[0])
        return false;
    take(l, op);
    return true;
}

/* x of x[row, target[row]] for every row; the target becomes an input. */
static lb_reading picked(loss *l, lb_reading r)
{
    const lb_recogniser *t = l->t;
    const uint32_t op = lb_recogniser_maker(t, r);
    if (op == LB_NONE || !lb_recogniser_forward(t, op)) return nothing;
    const lb_reading x = lb_recogniser_arg(t, op, 0);
    lb_reading target = nothing;
    double axis;
    if (x.op == LB_NONE || layout_of(t, x)->ndim < 2) return nothing;
    const lb_layout *rows = layout_of(t, x);
    if (lb_recogniser_is(t, op, "gather") && lb_recogniser_number(t, op, 1, &axis) &&
        (axis == -1 || axis == rows->ndim - 1))
        target = lb_recogniser_arg(t, op, 2);
    else if (lb_recogniser_is(t, op, "index") && lb_recogniser_item(t, op, 1, 2).op == LB_NONE &&
             counts_rows(l, lb_recogniser_item(t, op, 1, 0), rows))
        target = lb_recogniser_item(t, op, 1, 1);
    if (target.op == LB_NONE || numel(t, target.value) * rows->shape[rows->ndim - 1] != numel(t, x.value))
        return nothing;
    take(l, op);
    l->composite.inputs[LB_LOSS_TARGET] = target.value;
    return x;
}

/* The logits of -log_softmax(x)[target], with its sign. */
static lb_reading of_log_softmax(loss *l, lb_reading r, int *sign)
{
    const lb_recogniser *t = l->t;
    const lb_reading x = picked(l, r);
    const uint32_t softmax = x.op == LB_NONE ? LB_NONE : lb_recogniser_maker(t, x);
    if (softmax == LB_NONE || !lb_recogniser_is(t, softmax, "_log_softmax") ||
        !lb_recogniser_last_dim(t, softmax, 1, layout_of(t, x)->ndim))
        return nothing;
    take(l, softmax);
    *sign = -*sign;
    return lb_recogniser_arg(t, softmax, 0);
}

/* The logits of logsumexp(x) - x[target]. */
static lb_reading of_logsumexp(loss *l, lb_reading r, int *sign)
{
    const lb_recogniser *t = l->t;
    const uint32_t sub = lb_recogniser_maker(t, r);
    double alpha = 1;
    if (sub == LB_NONE || !lb_recogniser_is(t, sub, "sub") || (lb_recogniser_number(t, sub, 2, &alpha) && alpha != 1))
        return nothing;
    for (uint32_t i = 0; i < 2; i++) {
        const lb_reading sum = lb_recogniser_arg(t, sub, i), own = lb_recogniser_arg(t, sub, 1 - i);
        const uint32_t lse = sum.op == LB_NONE ? LB_NONE : lb_recogniser_maker(t, sum);
        if (lse == LB_NONE || own.op == LB_NONE || !lb_recogniser_is(t, lse, "logsumexp")) continue;
        const lb_reading x = lb_recogniser_arg(t, lse, 0), again = picked(l, own);
        if (again.op == LB_NONE || !lb_recogniser_same(t, x, again) ||
            !lb_recogniser_last_dim(t, lse, 1, layout_of(t, x)->ndim) ||
            !lb_layout_same_shape(layout_of(t, sum), layout_of(t, own)))
            return nothing;
        take(l, sub), take(l, lse);
        if (i) *sign = -*sign;
        return x;
    }
    return nothing;
}

/* ---- written out: of all rows ------------------------------------------------------------------------------------ */

/* Steps over a neg before the mean. */
static lb_reading unsigned_of(loss *l, lb_reading r, int *sign)
{
    const uint32_t op = lb_recogniser_maker(l->t, r);
    if (op == LB_NONE || !lb_recogniser_is(l->t, op, "neg")) return r;
    take(l, op);
    *sign = -*sign;
    return lb_recogniser_arg(l->t, op, 0);
}

static bool reduces_all(const lb_recogniser *t, uint32_t op)
{
    static const char *const names[] = {"mean", "sum", NULL};
    if (!lb_recogniser_is_any(t, op, names)) return false;
    const uint32_t y = lb_recogniser_result(t, op);
    const lb_reading x = lb_recogniser_arg(t, op, 0);
    return x.op != LB_NONE && y != LB_NONE && numel(t, y) == 1 && numel(t, x.value) > 1 &&
           lb_recogniser_value(t, x.value)->dtype == lb_recogniser_value(t, y)->dtype;
}

/* From the mean or sum on: neg, and a sum's division by the number of rows. The last op; *sign becomes what it is
 * there. */
static uint32_t follow(loss *l, uint32_t op, int64_t rows, int *sign)
{
    for (uint32_t user; lb_recogniser_users(l->t, op, &user, 1) == 1; op = user) {
        double number = 0;
        if (lb_recogniser_is(l->t, user, "neg") && *sign < 0)
            *sign = 1;
        else if (lb_recogniser_is(l->t, user, "div") && l->composite.flags & LB_LOSS_SUM &&
                 lb_recogniser_number(l->t, user, 1, &number) && number == (double)rows)
            l->composite.flags &= ~(uint32_t)LB_LOSS_SUM;
        else
            break;
        take(l, user);
    }
    return op;
}

static lb_status written_out(lb_recogniser *t, uint32_t op)
{
    if (!reduces_all(t, op)) return LB_OK;
    loss l = {.t = t, .composite = lb_recogniser_composite(t, LB_COMPOSITE_CROSS_ENTROPY)};
    int sign = 1;
    take(&l, op);
    const lb_reading rows = unsigned_of(&l, lb_recogniser_arg(t, op, 0), &sign);
    if (rows.op == LB_NONE) return LB_OK;
    const loss before = l;
    lb_reading logits = of_logsumexp(&l, rows, &sign);
    if (logits.op == LB_NONE) l = before, logits = of_log_softmax(&l, rows, &sign);
    if (logits.op == LB_NONE) return LB_OK;
    const int64_t n = numel(t, l.composite.inputs[LB_LOSS_TARGET]);
    if (numel(t, rows.value) != n) return LB_OK;
    if (lb_recogniser_is(t, op, "sum")) l.composite.flags |= LB_LOSS_SUM;
    const uint32_t last = follow(&l, op, n, &sign);
    if (sign < 0) return LB_OK; /* a log-likelihood */
    l.composite.inputs[LB_LOSS_LOGITS] = logits.value;
    l.composite.numbers[LB_LOSS_IGNORED] = -100; /* what gather and index would refuse: every row counts */
    l.composite.outputs[LB_LOSS_Y] = lb_recogniser_result(t, last);
    return lb_recogniser_add(t, &l.composite, l.ops, l.n_ops);
}

lb_status lb_recogniser_losses(lb_recogniser *t)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        if (!lb_recogniser_forward(t, i)) continue;
        LB_TRY(two_ops(t, i));
        LB_TRY(written_out(t, i));
    }
    return LB_OK;
}
