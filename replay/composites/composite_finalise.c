/* Recognises where a mixture of experts puts its experts' outputs together.
 *
 *   one expert after the other      acc = 0; for every expert: acc.index_add_(0, tokens, out * weights[tokens, slots,
 *                                   None]) or rows[tokens, slots] = out * weights[tokens, slots, None], then
 *                                   rows.sum(1)
 *   all at once                     (out * weights[:, None])[rows]?.view(tokens, slots, hidden).sum(1)
 *   one slot after the other        acc = out[:, i] * weights[:, i, None] + out[:, k] * weights[:, k, None] + …, from 0
 *                                   or not
 *
 * as Hugging Face's `eager`, and its `grouped_mm` and `batched_mm`, write it, and as people write it by hand: with
 * casts around the products, in any order of the slots. */
#include "composites/recogniser.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_SLOTS = 64 };

/* What is cast at the end, and nothing else is done with it: the cast belongs to it. */
static uint32_t with_cast(const lb_recogniser *t, uint32_t op, uint32_t *ops, uint32_t *n_ops)
{
    uint32_t users[2];
    ops[(*n_ops)++] = op;
    if (lb_recogniser_users(t, op, users, 2) == 1 && lb_recogniser_is(t, users[0], "_to_copy") &&
        lb_recogniser_same_call(t, users[0], op))
        op = ops[(*n_ops)++] = users[0];
    return op;
}

static bool is_zeros(const lb_recogniser *t, uint32_t op)
{
    static const char *const names[] = {"zeros_like", "zeros", "new_zeros", NULL};
    return op != LB_NONE && lb_recogniser_is_any(t, op, names);
}

typedef struct finalise {
    lb_composite composite;
    uint32_t *ops, n_ops, *list, n_list;
} finalise;

/* ---- one expert after the other ---------------------------------------------------------------------------------- */

static bool grow(finalise *f)
{
    uint32_t *ops = lb_array_reserve(f->ops, f->n_ops, 8, sizeof *ops);
    if (ops) f->ops = ops;
    uint32_t *list = lb_array_reserve(f->list, f->n_list, 8, sizeof *list);
    if (list) f->list = list;
    return ops && list;
}

/* out, tokens and slots of a product `value` = out * weights[tokens, slots], which `op` puts where it belongs.
 * `by_slot`: as it says; nothing: as the weights say. */
static bool take_product(const lb_recogniser *t, finalise *f, uint32_t op, lb_reading value, lb_reading tokens,
                         lb_reading slots)
{
    const uint32_t mul = lb_recogniser_maker(t, value);
    if (tokens.op == LB_NONE || mul == LB_NONE || !lb_recogniser_is(t, mul, "mul")) return false;
    for (uint32_t i = 0; i < 2; i++) {
        const lb_reading out = lb_recogniser_peel(t, lb_recogniser_arg(t, mul, i)),
                         weight = lb_recogniser_peel(t, lb_recogniser_arg(t, mul, 1 - i));
        const uint32_t pick = weight.op == LB_NONE ? LB_NONE : lb_recogniser_maker(t, weight);
        if (out.op == LB_NONE || pick == LB_NONE || !lb_recogniser_is(t, pick, "index")) continue;
        const lb_reading by_token = lb_recogniser_item(t, pick, 1, 0), by_slot = lb_recogniser_item(t, pick, 1, 1),
                         all = lb_recogniser_arg(t, pick, 0);
        if (by_token.op == LB_NONE || by_slot.op == LB_NONE || all.op == LB_NONE ||
            !lb_recogniser_same(t, by_token, tokens) || (slots.op != LB_NONE && !lb_recogniser_same(t, by_slot, slots)))
            continue;
        const lb_layout *l = &lb_recogniser_value(t, all.value)->layout;
        if (l->ndim < 2 || lb_layout_numel(l) != l->shape[0] * l->shape[1]) continue;
        uint32_t *weights = &f->composite.inputs[LB_FINALISE_WEIGHTS];
        if (*weights != LB_NONE && *weights != all.value) return false;
        *weights = all.value;
        f->composite.numbers[LB_FINALISE_SLOTS] = (double)l->shape[1];
        f->ops[f->n_ops++] = op, f->ops[f->n_ops++] = mul, f->ops[f->n_ops++] = pick;
        f->list[f->n_list++] = out.value, f->list[f->n_list++] = tokens.value, f->list[f->n_list++] = by_slot.value;
        return true;
    }
    return false;
}

/* acc.index_add_(0, tokens, product) */
static bool take_expert(const lb_recogniser *t, finalise *f, uint32_t add)
{
    double dim = 1, alpha = 1;
    if (!lb_recogniser_is(t, add, "index_add") || !lb_recogniser_number(t, add, 1, &dim) || dim != 0) return false;
    if (lb_recogniser_number(t, add, 4, &alpha) && alpha != 1) return false;
    return take_product(t, f, add, lb_recogniser_arg(t, add, 3), lb_recogniser_arg(t, add, 2),
                        (lb_reading){LB_NONE, LB_NONE});
}

/* rows[tokens, slots] = product, nothing added to what was there */
static bool take_put(const lb_recogniser *t, finalise *f, uint32_t put)
{
    const lb_op *op = &t->program->ops[put];
    if (!lb_recogniser_is(t, put, "index_put")) return false;
    if (op->args > 3 && lb_op_args(t->program, op)[3].tag == LB_ARG_BOOL && lb_op_args(t->program, op)[3].u.i)
        return false;
    if (lb_recogniser_item(t, put, 1, 2).op != LB_NONE || lb_recogniser_item(t, put, 1, 1).op == LB_NONE) return false;
    return take_product(t, f, put, lb_recogniser_arg(t, put, 2), lb_recogniser_item(t, put, 1, 0),
                        lb_recogniser_item(t, put, 1, 1));
}

/* The op `name` that changes what `op` gave. */
static uint32_t next_of(const lb_recogniser *t, uint32_t op, const char *name)
{
    uint32_t users[4];
    const uint32_t n = lb_recogniser_users(t, op, users, 4);
    for (uint32_t u = 0; u < n && u < 4; u++)
        if (lb_recogniser_is(t, users[u], name) && lb_recogniser_maker(t, lb_recogniser_arg(t, users[u], 0)) == op)
            return users[u];
    return LB_NONE;
}

/* Is `sum` over slots: the middle one of three dimensions? */
static bool is_over_slots(const lb_recogniser *t, uint32_t sum)
{
    if (sum == LB_NONE || !lb_recogniser_is(t, sum, "sum") || t->program->ops[sum].args < 2) return false;
    const lb_reading in = lb_recogniser_arg(t, sum, 0);
    const lb_arg *dims = &lb_op_args(t->program, &t->program->ops[sum])[1];
    if (in.op == LB_NONE || lb_recogniser_value(t, in.value)->layout.ndim != 3 || dims->tag != LB_ARG_LIST ||
        dims->count != 1)
        return false;
    const lb_arg *d = &t->program->args[dims->u.first];
    return d->tag == LB_ARG_INT && (d->u.i == 1 || d->u.i == -2);
}

/* All experts from `zeros` on, by ops of that name; `*last`: the last of them. f->n_list is 0 when one of them is
 * something else. */
static lb_status take_experts(lb_recogniser *t, finalise *f, uint32_t zeros, const char *name,
                              bool (*take)(const lb_recogniser *, finalise *, uint32_t), uint32_t *last)
{
    for (uint32_t op = next_of(t, zeros, name); op != LB_NONE; op = next_of(t, op, name)) {
        if (!grow(f)) return lb_fail(t->err, LB_ERR_NOMEM, "out of memory for composites");
        if (!take(t, f, op)) {
            f->n_list = 0;
            return LB_OK;
        }
        *last = op;
    }
    return LB_OK;
}

static lb_status one_by_one(lb_recogniser *t, uint32_t zeros)
{
    if (!is_zeros(t, zeros)) return LB_OK;
    finalise f = {.composite = lb_recogniser_composite(t, LB_COMPOSITE_FINALISE)};
    uint32_t last = LB_NONE;
    lb_status status = take_experts(t, &f, zeros, "index_add", take_expert, &last);
    if (status == LB_OK && !f.n_list) {
        f.n_ops = 0, f.composite.inputs[LB_FINALISE_WEIGHTS] = LB_NONE;
        status = take_experts(t, &f, zeros, "index_put", take_put, &last);
        const uint32_t sum = f.n_list ? next_of(t, last, "sum") : LB_NONE;
        if (is_over_slots(t, sum))
            f.ops[f.n_ops++] = last = sum;
        else
            f.n_list = 0;
    }
    if (status == LB_OK && f.n_list && !grow(&f))
        status = lb_fail(t->err, LB_ERR_NOMEM, "out of memory for composites");
    if (status == LB_OK && f.n_list) {
        f.ops[f.n_ops++] = zeros;
        f.composite.list = f.list, f.composite.n_list = f.n_list;
        f.composite.flags = LB_FINALISE_BY_SLOT;
        f.composite.outputs[LB_FINALISE_Y] = lb_recogniser_result(t, with_cast(t, last, f.ops, &f.n_ops));
        status = lb_recogniser_add(t, &f.composite, f.ops, f.n_ops);
    }
    free(f.ops);
    free(f.list);
    return status;
}

/* ---- all at once ------------------------------------------------------------------------------------------------- */

/* The experts behind the rows: what was sorted to make them, or what picked a weight matrix for each. */
static void find_ids(const lb_recogniser *t, lb_composite *c, uint32_t mul, uint32_t reorder)
{
    const double rows = (double)lb_layout_numel(&lb_recogniser_value(t, c->outputs[0])->layout);
    lb_reading ids = {LB_NONE, LB_NONE};
    if (reorder != LB_NONE) { /* rows[i] = place of i in the sorted order: index_put(sorted order, 0 … n - 1) */
        const uint32_t put = lb_recogniser_maker(t, lb_recogniser_item(t, reorder, 1, 0));
        const uint32_t sort = put == LB_NONE ? LB_NONE : lb_recogniser_maker(t, lb_recogniser_item(t, put, 1, 0));
        if (sort != LB_NONE && (lb_recogniser_is(t, sort, "sort") || lb_recogniser_is(t, sort, "argsort")))
            ids = lb_recogniser_arg(t, sort, 0);
    } else {
        const uint32_t product = lb_recogniser_maker(t, lb_recogniser_arg(t, mul, 0));
        const uint32_t pick = product == LB_NONE ? LB_NONE : lb_recogniser_maker(t, lb_recogniser_arg(t, product, 0));
        if (pick != LB_NONE && lb_recogniser_is(t, pick, "index")) ids = lb_recogniser_item(t, pick, 1, 0);
    }
    if (ids.op == LB_NONE || rows <= 0 || lb_dtype_is_float(lb_recogniser_value(t, ids.value)->dtype)) return;
    c->inputs[LB_FINALISE_IDS] = ids.value;
}

/* (out * weights[..., None]) of (tokens, slots, hidden) and (tokens, slots, 1), casts around them. */
static lb_status by_three_dimensions(lb_recogniser *t, uint32_t sum, uint32_t mul, const lb_layout *l)
{
    for (uint32_t i = 0; i < 2; i++) {
        const lb_reading x = lb_recogniser_peel(t, lb_recogniser_arg(t, mul, i)),
                         w = lb_recogniser_peel(t, lb_recogniser_arg(t, mul, 1 - i));
        if (x.op == LB_NONE || w.op == LB_NONE) return LB_OK;
        const lb_layout *lw = &lb_recogniser_value(t, w.value)->layout;
        if (!lb_layout_same_shape(&lb_recogniser_value(t, x.value)->layout, l) || lw->ndim != 3 ||
            lw->shape[0] != l->shape[0] || lw->shape[1] != l->shape[1] || lw->shape[2] != 1)
            continue;
        uint32_t ops[3] = {mul}, n = 1;
        lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_FINALISE);
        c.inputs[LB_FINALISE_X] = x.value, c.inputs[LB_FINALISE_WEIGHTS] = w.value;
        c.numbers[LB_FINALISE_SLOTS] = (double)l->shape[1];
        c.outputs[LB_FINALISE_Y] = lb_recogniser_result(t, with_cast(t, sum, ops, &n));
        return lb_recogniser_add(t, &c, ops, n);
    }
    return LB_OK;
}

static lb_status at_once(lb_recogniser *t, uint32_t sum)
{
    if (!is_over_slots(t, sum)) return LB_OK;
    const lb_reading in = lb_recogniser_arg(t, sum, 0);
    const lb_layout *l = &lb_recogniser_value(t, in.value)->layout;
    if (!lb_layout_is_contiguous(l)) return LB_OK;
    uint32_t mul = lb_recogniser_maker(t, lb_recogniser_peel(t, in)), reorder = LB_NONE;
    if (mul != LB_NONE && lb_recogniser_is(t, mul, "mul") &&
        lb_layout_same_shape(&lb_recogniser_value(t, lb_recogniser_result(t, mul))->layout, l))
        return by_three_dimensions(t, sum, mul, l);
    mul = lb_recogniser_maker(t, in);
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
    const lb_layout *lx = &lb_recogniser_value(t, x.value)->layout, *lw = &lb_recogniser_value(t, w.value)->layout;
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

/* ---- one slot after the other ------------------------------------------------------------------------------------ */

typedef struct slots {
    const lb_recogniser *t;
    uint32_t ops[4 * MOST_SLOTS + 4], n_ops;
    uint32_t x, weights;       /* values: (tokens, slots, hidden) and (tokens, slots) */
    int64_t tokens, hidden, n; /* n: slots */
    uint64_t seen;
} slots;

/* Of which part of `*whole`, all that one op gave, is a reading slot `*slot`? Its rows are `step` apart, and `size`
 * long. */
static bool take_window(const slots *s, lb_reading part, int64_t size, uint32_t *whole, int64_t *slot)
{
    const lb_recogniser *t = s->t;
    const uint32_t maker = lb_recogniser_maker(t, part),
                   value = maker == LB_NONE ? LB_NONE : lb_recogniser_result(t, maker);
    if (value == LB_NONE || (*whole != LB_NONE && *whole != value)) return false;
    const lb_layout *all = &lb_recogniser_value(t, value)->layout, *l = &lb_recogniser_value(t, part.value)->layout;
    if (lb_recogniser_value(t, value)->storage != lb_recogniser_value(t, part.value)->storage ||
        lb_layout_numel(all) != s->tokens * s->n * size || !lb_layout_is_contiguous(all))
        return false;
    if (l->ndim != 2 || (l->shape[0] > 1 && l->stride[0] != s->n * size) || (size > 1 && l->stride[1] != 1) ||
        (l->offset - all->offset) % size)
        return false;
    *whole = value, *slot = (l->offset - all->offset) / size;
    return *slot >= 0 && *slot < s->n;
}

/* out[:, k] * weights[:, k, None]: it is added to what stands for `s` unless that slot is there already. */
static bool take_slot(slots *s, lb_reading term)
{
    const lb_recogniser *t = s->t;
    const uint32_t mul = lb_recogniser_maker(t, lb_recogniser_peel(t, term));
    if (mul == LB_NONE || !lb_recogniser_is(t, mul, "mul")) return false;
    for (uint32_t i = 0; i < 2; i++) {
        const lb_reading x = lb_recogniser_peel(t, lb_recogniser_arg(t, mul, i)),
                         w = lb_recogniser_peel(t, lb_recogniser_arg(t, mul, 1 - i));
        int64_t slot, other;
        if (x.op == LB_NONE || w.op == LB_NONE) return false;
        const lb_layout *lx = &lb_recogniser_value(t, x.value)->layout, *lw = &lb_recogniser_value(t, w.value)->layout;
        if (lx->ndim != 2 || lw->ndim != 2 || lw->shape[1] != 1 || lw->shape[0] != lx->shape[0]) continue;
        const uint32_t from = lb_recogniser_maker(t, w);
        if (!s->n && from != LB_NONE && lx->shape[0] > 0) { /* the first one tells the sizes */
            s->tokens = lx->shape[0], s->hidden = lx->shape[1];
            s->n = lb_layout_numel(&lb_recogniser_value(t, lb_recogniser_result(t, from))->layout) / s->tokens;
        }
        if (s->n < 2 || s->n > MOST_SLOTS || s->tokens != lx->shape[0] || s->hidden != lx->shape[1] ||
            !take_window(s, x, s->hidden, &s->x, &slot) || !take_window(s, w, 1, &s->weights, &other) ||
            slot != other || s->seen >> slot & 1)
            return false;
        s->seen |= (uint64_t)1 << slot;
        s->ops[s->n_ops++] = mul;
        return true;
    }
    return false;
}

static bool is_plain_add(const lb_recogniser *t, uint32_t op)
{
    double alpha = 1;
    return op != LB_NONE && lb_recogniser_is(t, op, "add") && (!lb_recogniser_number(t, op, 2, &alpha) || alpha == 1);
}

/* From the last addition back to the first: each adds one slot to what the one before it gave. */
static bool take_chain(slots *s, uint32_t last)
{
    for (uint32_t add = last; add != LB_NONE;) {
        uint32_t before = LB_NONE;
        int taken = 0;
        if (s->n_ops >= 4 * MOST_SLOTS) return false;
        s->ops[s->n_ops++] = add;
        for (uint32_t i = 0; i < 2; i++) {
            const lb_reading side = lb_recogniser_arg(s->t, add, i);
            const uint32_t maker = lb_recogniser_maker(s->t, lb_recogniser_peel(s->t, side));
            if (is_zeros(s->t, maker))
                s->ops[s->n_ops++] = maker;
            else if (is_plain_add(s->t, maker) && before == LB_NONE)
                before = maker;
            else if (side.op != LB_NONE && take_slot(s, side))
                taken++;
            else
                return false;
        }
        if (!taken) return false;
        add = before;
    }
    return s->n > 1 && s->seen == (s->n == MOST_SLOTS ? UINT64_MAX : ((uint64_t)1 << s->n) - 1);
}

static lb_status slot_by_slot(lb_recogniser *t, uint32_t last)
{
    slots s = {.t = t, .x = LB_NONE, .weights = LB_NONE};
    if (!is_plain_add(t, last) || !take_chain(&s, last)) return LB_OK;
    lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_FINALISE);
    c.inputs[LB_FINALISE_X] = s.x, c.inputs[LB_FINALISE_WEIGHTS] = s.weights;
    c.numbers[LB_FINALISE_SLOTS] = (double)s.n;
    c.outputs[LB_FINALISE_Y] = lb_recogniser_result(t, with_cast(t, last, s.ops, &s.n_ops));
    return lb_recogniser_add(t, &c, s.ops, s.n_ops);
}

lb_status lb_recogniser_finalise(lb_recogniser *t)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        if (!lb_recogniser_forward(t, i)) continue;
        LB_TRY(one_by_one(t, i));
        LB_TRY(at_once(t, i));
        LB_TRY(slot_by_slot(t, i));
    }
    return LB_OK;
}
