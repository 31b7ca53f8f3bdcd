/* Recognises where a mixture of experts puts its experts' outputs together.
 *
 *   one expert after the other      acc = 0; for every expert: acc.index_add_(0, tokens, out * weights[tokens, slots, None])
 *   all at once                     (out * weights[:, None])[rows]?.view(tokens, slots, hidden).sum(1)
 *
 * as Hugging Face's `eager`, and its `grouped_mm` and `batched_mm`, write it. */
#include "recogniser.h"

#include <stdlib.h>
#include <string.h>

typedef struct finalise {
    lb_composite composite;
    uint32_t *ops, n_ops, *list, n_list;
    uint32_t room;
} finalise;

/* ---- one expert after the other ---------------------------------------------------------------------------------------------- */

static bool grow(finalise *f)
{
    if (f->n_ops + 4 <= f->room) return true;
    const uint32_t room = f->room ? 2 * f->room : 64;
    uint32_t *ops = realloc(f->ops, room * sizeof *ops);
    if (ops) f->ops = ops;
    uint32_t *list = ops ? realloc(f->list, room * sizeof *list) : NULL;
    if (list) f->list = list, f->room = room;
    return list != NULL;
}

/* out, tokens and slots of acc.index_add_(0, tokens, out * weights[tokens, slots]). */
static bool take_expert(const lb_recogniser *t, finalise *f, uint32_t add)
{
    double dim = 1, alpha = 1;
    if (!lb_recogniser_is(t, add, "index_add") || !lb_recogniser_number(t, add, 1, &dim) || dim != 0)
        return false;
    if (lb_recogniser_number(t, add, 4, &alpha) && alpha != 1) return false;
    const lb_reading tokens = lb_recogniser_arg(t, add, 2);
    const uint32_t mul = lb_recogniser_maker(t, lb_recogniser_arg(t, add, 3));
    if (tokens.op == LB_NONE || mul == LB_NONE || !lb_recogniser_is(t, mul, "mul")) return false;
    for (uint32_t i = 0; i < 2; i++) {
        const lb_reading out = lb_recogniser_arg(t, mul, i), weight = lb_recogniser_arg(t, mul, 1 - i);
        const uint32_t pick = weight.op == LB_NONE ? LB_NONE : lb_recogniser_maker(t, weight);
        if (out.op == LB_NONE || pick == LB_NONE || !lb_recogniser_is(t, pick, "index")) continue;
        const lb_reading by_token = lb_recogniser_item(t, pick, 1, 0),
                         by_slot = lb_recogniser_item(t, pick, 1, 1), all = lb_recogniser_arg(t, pick, 0);
        if (by_token.op == LB_NONE || by_slot.op == LB_NONE || all.op == LB_NONE ||
            !lb_recogniser_same(t, by_token, tokens))
            continue;
        const lb_layout *l = &lb_recogniser_value(t, all.value)->layout;
        if (l->ndim < 2 || lb_layout_numel(l) != l->shape[0] * l->shape[1]) continue;
        uint32_t *weights = &f->composite.inputs[LB_FINALISE_WEIGHTS];
        if (*weights != LB_NONE && *weights != all.value) return false;
        *weights = all.value;
        f->composite.numbers[LB_FINALISE_SLOTS] = (double)l->shape[1];
        f->ops[f->n_ops++] = add, f->ops[f->n_ops++] = mul, f->ops[f->n_ops++] = pick;
        f->list[f->n_list++] = out.value, f->list[f->n_list++] = tokens.value,
        f->list[f->n_list++] = by_slot.value;
        return true;
    }
    return false;
}

static uint32_t next_expert(const lb_recogniser *t, uint32_t op)
{
    uint32_t users[4];
    const uint32_t n = lb_recogniser_users(t, op, users, 4);
    for (uint32_t u = 0; u < n && u < 4; u++)
        if (lb_recogniser_is(t, users[u], "index_add") &&
            lb_recogniser_maker(t, lb_recogniser_arg(t, users[u], 0)) == op)
            return users[u];
    return LB_NONE;
}

static lb_status one_by_one(lb_recogniser *t, uint32_t zeros)
{
    static const char *const names[] = {"zeros_like", "zeros", "new_zeros", NULL};
    if (!lb_recogniser_is_any(t, zeros, names)) return LB_OK;
    finalise f = {.composite = lb_recogniser_composite(t, LB_COMPOSITE_FINALISE)};
    uint32_t last = LB_NONE;
    lb_status status = LB_OK;
    for (uint32_t op = next_expert(t, zeros); op != LB_NONE && status == LB_OK; op = next_expert(t, op)) {
        if (!grow(&f))
            status = lb_fail(t->err, LB_ERR_NOMEM, "out of memory for composites");
        else if (!take_expert(t, &f, op))
            f.n_list = 0, status = LB_ERR_NOT_FOUND;
        last = op;
    }
    if (status == LB_OK && f.n_list) {
        f.ops[f.n_ops++] = zeros;
        f.composite.list = f.list, f.composite.n_list = f.n_list;
        f.composite.flags = LB_FINALISE_BY_SLOT;
        f.composite.outputs[LB_FINALISE_Y] = lb_recogniser_result(t, last);
        status = lb_recogniser_add(t, &f.composite, f.ops, f.n_ops);
    }
    free(f.ops);
    free(f.list);
    return status == LB_ERR_NOT_FOUND ? LB_OK : status;
}

/* ---- all at once ------------------------------------------------------------------------------------------------------------------ */

/* The experts behind the rows: what was sorted to make them, or what picked a weight matrix for each. */
static void find_ids(const lb_recogniser *t, lb_composite *c, uint32_t mul, uint32_t reorder)
{
    const double rows = (double)lb_layout_numel(&lb_recogniser_value(t, c->outputs[0])->layout);
    lb_reading ids = {LB_NONE, LB_NONE};
    if (reorder != LB_NONE) { /* rows[i] = place of i in the sorted order: index_put(sorted order, 0 … n - 1) */
        const uint32_t put = lb_recogniser_maker(t, lb_recogniser_item(t, reorder, 1, 0));
        const uint32_t sort =
            put == LB_NONE ? LB_NONE : lb_recogniser_maker(t, lb_recogniser_item(t, put, 1, 0));
        if (sort != LB_NONE && (lb_recogniser_is(t, sort, "sort") || lb_recogniser_is(t, sort, "argsort")))
            ids = lb_recogniser_arg(t, sort, 0);
    } else {
        const uint32_t product = lb_recogniser_maker(t, lb_recogniser_arg(t, mul, 0));
        const uint32_t pick =
            product == LB_NONE ? LB_NONE : lb_recogniser_maker(t, lb_recogniser_arg(t, product, 0));
        if (pick != LB_NONE && lb_recogniser_is(t, pick, "index")) ids = lb_recogniser_item(t, pick, 1, 0);
    }
    if (ids.op == LB_NONE || rows <= 0 || lb_dtype_is_float(lb_recogniser_value(t, ids.value)->dtype)) return;
    c->inputs[LB_FINALISE_IDS] = ids.value;
}

static lb_status at_once(lb_recogniser *t, uint32_t sum)
{
    if (!lb_recogniser_is(t, sum, "sum")) return LB_OK;
    const lb_reading in = lb_recogniser_arg(t, sum, 0);
    if (in.op == LB_NONE || t->program->ops[sum].args < 2) return LB_OK;
    const lb_layout *l = &lb_recogniser_value(t, in.value)->layout;
    const lb_arg *dims = &lb_op_args(t->program, &t->program->ops[sum])[1];
    if (l->ndim != 3 || dims->tag != LB_ARG_LIST || dims->count != 1) return LB_OK;
    const lb_arg *d = &t->program->args[dims->u.first];
    if (d->tag != LB_ARG_INT || (d->u.i != 1 && d->u.i != -2) || !lb_layout_is_contiguous(l)) return LB_OK;
    uint32_t mul = lb_recogniser_maker(t, in), reorder = LB_NONE;
    lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_FINALISE);
    if (mul != LB_NONE && lb_recogniser_is(t, mul, "index")) {
        reorder = mul;
        const lb_reading rows = lb_recogniser_item(t, reorder, 1, 0);
        if (rows.op == LB_NONE || lb_recogniser_item(t, reorder, 1, 1).op != LB_NONE) return LB_OK;
        c.inputs[LB_FINALISE_ROWS] = rows.value;
        mul = lb_recogniser_maker(t, lb_recogniser_arg(t, reorder, 0));
    }
    if (mul == LB_NONE || !lb_recogniser_is(t, mul, "mul")) return LB_OK;
    const lb_reading x = lb_recogniser_arg(t, mul, 0), w = lb_recogniser_arg(t, mul, 1);
    if (x.op == LB_NONE || w.op == LB_NONE) return LB_OK;
    const lb_layout *lx = &lb_recogniser_value(t, x.value)->layout,
                    *lw = &lb_recogniser_value(t, w.value)->layout;
    if (lx->ndim != 2 || lw->ndim != 2 || lw->shape[0] != lx->shape[0] || lw->shape[1] != 1 ||
        lx->shape[1] != l->shape[2])
        return LB_OK;
    c.inputs[LB_FINALISE_X] = x.value, c.inputs[LB_FINALISE_WEIGHTS] = w.value;
    c.outputs[LB_FINALISE_Y] = lb_recogniser_result(t, sum);
    c.numbers[LB_FINALISE_SLOTS] = (double)l->shape[1];
    find_ids(t, &c, mul, reorder);
    const uint32_t ops[] = {sum, mul, reorder};
    return lb_recogniser_add(t, &c, ops, reorder == LB_NONE ? 2 : 3);
}

lb_status lb_recogniser_finalise(lb_recogniser *t)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        if (!lb_recogniser_forward(t, i)) continue;
        LB_TRY(one_by_one(t, i));
        LB_TRY(at_once(t, i));
    }
    return LB_OK;
}
