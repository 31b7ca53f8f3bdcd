/* Recognises cross-entropy: as torch's two ops, and written out.
 *
 *      log_softmax ─ nll_loss
 *      log_softmax ─ gather, or index ─ neg ─ mean       neg before the mean or behind it; a sum, also divided by the number of rows
 *      logsumexp(x) - gather(x) ─ mean                   the other way round with neg
 */
#include "composites/recogniser.h"

enum { MOST_OPS = 12 };

typedef struct loss {
    const lb_recogniser *recogniser;
    lb_composite composite;
    uint32_t ops[MOST_OPS], n_ops;
} loss;

static void take(loss *loss, uint32_t op)
{
    if (loss->n_ops < MOST_OPS) loss->ops[loss->n_ops++] = op;
}

static const lb_reading nothing = {LB_NONE, LB_NONE};

static int64_t numel(const lb_recogniser *recogniser, uint32_t value)
{
    return lb_layout_numel(&lb_recogniser_value(recogniser, value)->layout);
}

static const lb_layout *layout_of(const lb_recogniser *recogniser, lb_reading reading)
{
    return &lb_recogniser_value(recogniser, reading.value)->layout;
}

/* ---- as two ops -------------------------------------------------------------------------------------------------- */

static lb_status two_ops(lb_recogniser *recogniser, uint32_t i)
{
    if (!lb_recogniser_is(recogniser, i, "nll_loss_forward")) return LB_OK;
    const uint32_t softmax = lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, i, 0));
    double reduction = 0, ignored = -100;
    const lb_reading target = lb_recogniser_arg(recogniser, i, 1);
    if (softmax == LB_NONE || !lb_recogniser_is(recogniser, softmax, "_log_softmax") || target.op == LB_NONE ||
        lb_recogniser_arg(recogniser, i, 2).op != LB_NONE)
        return LB_OK;
    if (!lb_recogniser_number(recogniser, i, 3, &reduction) || reduction < 1) return LB_OK;
    const lb_reading logits = lb_recogniser_arg(recogniser, softmax, 0);
    if (layout_of(recogniser, logits)->ndim != 2 || !lb_recogniser_last_dim(recogniser, softmax, 1, 2)) return LB_OK;
    lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_CROSS_ENTROPY);
    lb_recogniser_number(recogniser, i, 4, &ignored);
    composite.numbers[LB_LOSS_IGNORED] = ignored;
    if (reduction == 2) composite.flags |= LB_LOSS_SUM;
    composite.inputs[LB_LOSS_LOGITS] = logits.value, composite.inputs[LB_LOSS_TARGET] = target.value;
    composite.outputs[LB_LOSS_Y] = lb_recogniser_result(recogniser, i);
    const uint32_t ops[] = {i, softmax};
    return lb_recogniser_add(recogniser, &composite, ops, 2);
}

/* ---- written out: one number per row ----------------------------------------------------------------------------- */

/* 0, 1, … of as many rows as x has; made here. */
static bool counts_rows(loss *loss, lb_reading reading, const lb_layout *layout)
{
    const lb_recogniser *recogniser = loss->recogniser;
    const uint32_t op = reading.op == LB_NONE ? LB_NONE : lb_recogniser_maker(recogniser, reading);
    double from = 0, end = 0;
    uint32_t at;
    if (op == LB_NONE || !lb_recogniser_is(recogniser, op, "arange") || layout->ndim != 2) return false;
    if (lb_recogniser_position(recogniser, op, "step", &at)) return false;
    if (lb_recogniser_position(recogniser, op, "start", &at) &&
        (!lb_recogniser_number(recogniser, op, at, &from) || from != 0))
        return false;
    if (!lb_recogniser_position(recogniser, op, "end", &at) || !lb_recogniser_number(recogniser, op, at, &end) ||
        end != (double)layout->shape[0])
        return false;
    take(loss, op);
    return true;
}

/* x of x[row, target[row]] for every row; the target becomes an input. */
static lb_reading picked(loss *loss, lb_reading reading)
{
    const lb_recogniser *recogniser = loss->recogniser;
    const uint32_t op = lb_recogniser_maker(recogniser, reading);
    if (op == LB_NONE || !lb_recogniser_forward(recogniser, op)) return nothing;
    const lb_reading x = lb_recogniser_arg(recogniser, op, 0);
    lb_reading target = nothing;
    double axis;
    if (x.op == LB_NONE || layout_of(recogniser, x)->ndim < 2) return nothing;
    const lb_layout *rows = layout_of(recogniser, x);
    if (lb_recogniser_is(recogniser, op, "gather") && lb_recogniser_number(recogniser, op, 1, &axis) &&
        (axis == -1 || axis == rows->ndim - 1))
        target = lb_recogniser_arg(recogniser, op, 2);
    else if (lb_recogniser_is(recogniser, op, "index") && lb_recogniser_item(recogniser, op, 1, 2).op == LB_NONE &&
             counts_rows(loss, lb_recogniser_item(recogniser, op, 1, 0), rows))
        target = lb_recogniser_item(recogniser, op, 1, 1);
    if (target.op == LB_NONE ||
        numel(recogniser, target.value) * rows->shape[rows->ndim - 1] != numel(recogniser, x.value))
        return nothing;
    take(loss, op);
    loss->composite.inputs[LB_LOSS_TARGET] = target.value;
    return x;
}

/* The logits of -log_softmax(x)[target], with its sign. */
static lb_reading of_log_softmax(loss *loss, lb_reading reading, int *sign)
{
    const lb_recogniser *recogniser = loss->recogniser;
    const lb_reading x = picked(loss, reading);
    const uint32_t softmax = x.op == LB_NONE ? LB_NONE : lb_recogniser_maker(recogniser, x);
    if (softmax == LB_NONE || !lb_recogniser_is(recogniser, softmax, "_log_softmax") ||
        !lb_recogniser_last_dim(recogniser, softmax, 1, layout_of(recogniser, x)->ndim))
        return nothing;
    take(loss, softmax);
    *sign = -*sign;
    return lb_recogniser_arg(recogniser, softmax, 0);
}

/* The logits of logsumexp(x) - x[target]. */
static lb_reading of_logsumexp(loss *loss, lb_reading reading, int *sign)
{
    const lb_recogniser *recogniser = loss->recogniser;
    const uint32_t sub = lb_recogniser_maker(recogniser, reading);
    double alpha = 1;
    if (sub == LB_NONE || !lb_recogniser_is(recogniser, sub, "sub") ||
        (lb_recogniser_number(recogniser, sub, 2, &alpha) && alpha != 1))
        return nothing;
    for (uint32_t i = 0; i < 2; i++) {
        const lb_reading sum = lb_recogniser_arg(recogniser, sub, i), own = lb_recogniser_arg(recogniser, sub, 1 - i);
        const uint32_t lse = sum.op == LB_NONE ? LB_NONE : lb_recogniser_maker(recogniser, sum);
        if (lse == LB_NONE || own.op == LB_NONE || !lb_recogniser_is(recogniser, lse, "logsumexp")) continue;
        const lb_reading x = lb_recogniser_arg(recogniser, lse, 0), again = picked(loss, own);
        if (again.op == LB_NONE || !lb_recogniser_same(recogniser, x, again) ||
            !lb_recogniser_last_dim(recogniser, lse, 1, layout_of(recogniser, x)->ndim) ||
            !lb_layout_same_shape(layout_of(recogniser, sum), layout_of(recogniser, own)))
            return nothing;
        take(loss, sub), take(loss, lse);
        if (i) *sign = -*sign;
        return x;
    }
    return nothing;
}

/* ---- written out: of all rows ------------------------------------------------------------------------------------ */

/* Steps over a neg before the mean. */
static lb_reading unsigned_of(loss *loss, lb_reading reading, int *sign)
{
    const uint32_t op = lb_recogniser_maker(loss->recogniser, reading);
    if (op == LB_NONE || !lb_recogniser_is(loss->recogniser, op, "neg")) return reading;
    take(loss, op);
    *sign = -*sign;
    return lb_recogniser_arg(loss->recogniser, op, 0);
}

static bool reduces_all(const lb_recogniser *recogniser, uint32_t op)
{
    static const char *const names[] = {"mean", "sum", NULL};
    if (!lb_recogniser_is_any(recogniser, op, names)) return false;
    const uint32_t y = lb_recogniser_result(recogniser, op);
    const lb_reading x = lb_recogniser_arg(recogniser, op, 0);
    return x.op != LB_NONE && y != LB_NONE && numel(recogniser, y) == 1 && numel(recogniser, x.value) > 1 &&
           lb_recogniser_value(recogniser, x.value)->dtype == lb_recogniser_value(recogniser, y)->dtype;
}

/* From the mean or sum on: neg, and a sum's division by the number of rows. The last op; *sign becomes what it is
 * there. */
static uint32_t follow(loss *loss, uint32_t op, int64_t rows, int *sign)
{
    for (uint32_t user; lb_recogniser_users(loss->recogniser, op, &user, 1) == 1; op = user) {
        double number = 0;
        if (lb_recogniser_is(loss->recogniser, user, "neg") && *sign < 0)
            *sign = 1;
        else if (lb_recogniser_is(loss->recogniser, user, "div") && loss->composite.flags & LB_LOSS_SUM &&
                 lb_recogniser_number(loss->recogniser, user, 1, &number) && number == (double)rows)
            loss->composite.flags &= ~(uint32_t)LB_LOSS_SUM;
        else
            break;
        take(loss, user);
    }
    return op;
}

static lb_status written_out(lb_recogniser *recogniser, uint32_t op)
{
    if (!reduces_all(recogniser, op)) return LB_OK;
    loss found = {.recogniser = recogniser,
                  .composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_CROSS_ENTROPY)};
    int sign = 1;
    take(&found, op);
    const lb_reading rows = unsigned_of(&found, lb_recogniser_arg(recogniser, op, 0), &sign);
    if (rows.op == LB_NONE) return LB_OK;
    const loss before = found;
    lb_reading logits = of_logsumexp(&found, rows, &sign);
    if (logits.op == LB_NONE) found = before, logits = of_log_softmax(&found, rows, &sign);
    if (logits.op == LB_NONE) return LB_OK;
    const int64_t n = numel(recogniser, found.composite.inputs[LB_LOSS_TARGET]);
    if (numel(recogniser, rows.value) != n) return LB_OK;
    if (lb_recogniser_is(recogniser, op, "sum")) found.composite.flags |= LB_LOSS_SUM;
    const uint32_t last = follow(&found, op, n, &sign);
    if (sign < 0) return LB_OK; /* a log-likelihood */
    found.composite.inputs[LB_LOSS_LOGITS] = logits.value;
    found.composite.numbers[LB_LOSS_IGNORED] = -100; /* what gather and index would refuse: every row counts */
    found.composite.outputs[LB_LOSS_Y] = lb_recogniser_result(recogniser, last);
    return lb_recogniser_add(recogniser, &found.composite, found.ops, found.n_ops);
}

lb_status lb_recogniser_losses(lb_recogniser *recogniser)
{
    for (uint32_t i = 0; i < recogniser->program->n_ops; i++) {
        if (!lb_recogniser_forward(recogniser, i)) continue;
        LB_TRY(two_ops(recogniser, i));
        LB_TRY(written_out(recogniser, i));
    }
    return LB_OK;
}
