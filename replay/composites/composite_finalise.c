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
static uint32_t with_cast(const lb_recogniser *recogniser, uint32_t op, uint32_t *ops, uint32_t *n_ops)
{
    uint32_t users[2];
    ops[(*n_ops)++] = op;
    if (lb_recogniser_users(recogniser, op, users, 2) == 1 && lb_recogniser_is(recogniser, users[0], "_to_copy") &&
        lb_recogniser_same_call(recogniser, users[0], op))
        op = ops[(*n_ops)++] = users[0];
    return op;
}

static bool is_zeros(const lb_recogniser *recogniser, uint32_t op)
{
    static const char *const names[] = {"zeros_like", "zeros", "new_zeros", NULL};
    return op != LB_NONE && lb_recogniser_is_any(recogniser, op, names);
}

typedef struct finalise {
    lb_composite composite;
    uint32_t *ops, n_ops, *list, n_list;
} finalise;

/* ---- one expert after the other ---------------------------------------------------------------------------------- */

static bool grow(finalise *finalise)
{
    uint32_t *ops = lb_array_reserve(finalise->ops, finalise->n_ops, 8, sizeof *ops);
    if (ops) finalise->ops = ops;
    uint32_t *list = lb_array_reserve(finalise->list, finalise->n_list, 8, sizeof *list);
    if (list) finalise->list = list;
    return ops && list;
}

/* out, tokens and slots of a product `value` = out * weights[tokens, slots], which `op` puts where it belongs.
 * `by_slot`: as it says; nothing: as the weights say. */
static bool take_product(const lb_recogniser *recogniser, finalise *finalise, uint32_t op, lb_reading value,
                         lb_reading tokens, lb_reading slots)
{
    const uint32_t mul = lb_recogniser_maker(recogniser, value);
    if (tokens.op == LB_NONE || mul == LB_NONE || !lb_recogniser_is(recogniser, mul, "mul")) return false;
    for (uint32_t i = 0; i < 2; i++) {
        const lb_reading out = lb_recogniser_peel(recogniser, lb_recogniser_arg(recogniser, mul, i)),
                         weight = lb_recogniser_peel(recogniser, lb_recogniser_arg(recogniser, mul, 1 - i));
        const uint32_t pick = weight.op == LB_NONE ? LB_NONE : lb_recogniser_maker(recogniser, weight);
        if (out.op == LB_NONE || pick == LB_NONE || !lb_recogniser_is(recogniser, pick, "index")) continue;
        const lb_reading by_token = lb_recogniser_item(recogniser, pick, 1, 0),
                         by_slot = lb_recogniser_item(recogniser, pick, 1, 1),
                         all = lb_recogniser_arg(recogniser, pick, 0);
        if (by_token.op == LB_NONE || by_slot.op == LB_NONE || all.op == LB_NONE ||
            !lb_recogniser_same(recogniser, by_token, tokens) ||
            (slots.op != LB_NONE && !lb_recogniser_same(recogniser, by_slot, slots)))
            continue;
        const lb_layout *layout = &lb_recogniser_value(recogniser, all.value)->layout;
        if (layout->ndim < 2 || lb_layout_numel(layout) != layout->shape[0] * layout->shape[1]) continue;
        uint32_t *weights = &finalise->composite.inputs[LB_FINALISE_WEIGHTS];
        if (*weights != LB_NONE && *weights != all.value) return false;
        *weights = all.value;
        finalise->composite.numbers[LB_FINALISE_SLOTS] = (double)layout->shape[1];
        finalise->ops[finalise->n_ops++] = op, finalise->ops[finalise->n_ops++] = mul,
        finalise->ops[finalise->n_ops++] = pick;
        finalise->list[finalise->n_list++] = out.value, finalise->list[finalise->n_list++] = tokens.value,
        finalise->list[finalise->n_list++] = by_slot.value;
        return true;
    }
    return false;
}

/* acc.index_add_(0, tokens, product) */
static bool take_expert(const lb_recogniser *recogniser, finalise *finalise, uint32_t add)
{
    double dim = 1, alpha = 1;
    if (!lb_recogniser_is(recogniser, add, "index_add") || !lb_recogniser_number(recogniser, add, 1, &dim) || dim != 0)
        return false;
    if (lb_recogniser_number(recogniser, add, 4, &alpha) && alpha != 1) return false;
    return take_product(recogniser, finalise, add, lb_recogniser_arg(recogniser, add, 3),
                        lb_recogniser_arg(recogniser, add, 2), (lb_reading){LB_NONE, LB_NONE});
}

/* rows[tokens, slots] = product, nothing added to what was there */
static bool take_put(const lb_recogniser *recogniser, finalise *finalise, uint32_t put)
{
    const lb_op *op = &recogniser->program->ops[put];
    if (!lb_recogniser_is(recogniser, put, "index_put")) return false;
    if (op->args > 3 && lb_op_args(recogniser->program, op)[3].tag == LB_ARG_BOOL &&
        lb_op_args(recogniser->program, op)[3].u.i)
        return false;
    if (lb_recogniser_item(recogniser, put, 1, 2).op != LB_NONE ||
        lb_recogniser_item(recogniser, put, 1, 1).op == LB_NONE)
        return false;
    return take_product(recogniser, finalise, put, lb_recogniser_arg(recogniser, put, 2),
                        lb_recogniser_item(recogniser, put, 1, 0), lb_recogniser_item(recogniser, put, 1, 1));
}

/* The op `name` that changes what `op` gave. */
static uint32_t next_of(const lb_recogniser *recogniser, uint32_t op, const char *name)
{
    uint32_t users[4];
    const uint32_t n = lb_recogniser_users(recogniser, op, users, 4);
    for (uint32_t u = 0; u < n && u < 4; u++)
        if (lb_recogniser_is(recogniser, users[u], name) &&
            lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, users[u], 0)) == op)
            return users[u];
    return LB_NONE;
}

/* Is `sum` over slots: the middle one of three dimensions? */
static bool is_over_slots(const lb_recogniser *recogniser, uint32_t sum)
{
    if (sum == LB_NONE || !lb_recogniser_is(recogniser, sum, "sum") || recogniser->program->ops[sum].args < 2)
        return false;
    const lb_reading in = lb_recogniser_arg(recogniser, sum, 0);
    const lb_arg *dims = &lb_op_args(recogniser->program, &recogniser->program->ops[sum])[1];
    if (in.op == LB_NONE || lb_recogniser_value(recogniser, in.value)->layout.ndim != 3 || dims->tag != LB_ARG_LIST ||
        dims->count != 1)
        return false;
    const lb_arg *arg = &recogniser->program->args[dims->u.first];
    return arg->tag == LB_ARG_INT && (arg->u.i == 1 || arg->u.i == -2);
}

/* All experts from `zeros` on, by ops of that name; `*last`: the last of them. f->n_list is 0 when one of them is
 * something else. */
static lb_status take_experts(lb_recogniser *recogniser, finalise *found, uint32_t zeros, const char *name,
                              bool (*take)(const lb_recogniser *, finalise *, uint32_t), uint32_t *last)
{
    for (uint32_t op = next_of(recogniser, zeros, name); op != LB_NONE; op = next_of(recogniser, op, name)) {
        if (!grow(found)) return lb_fail(recogniser->err, LB_ERR_NOMEM, "out of memory for composites");
        if (!take(recogniser, found, op)) {
            found->n_list = 0;
            return LB_OK;
        }
        *last = op;
    }
    return LB_OK;
}

static lb_status one_by_one(lb_recogniser *recogniser, uint32_t zeros)
{
    if (!is_zeros(recogniser, zeros)) return LB_OK;
    finalise finalise = {.composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_FINALISE)};
    uint32_t last = LB_NONE;
    lb_status status = take_experts(recogniser, &finalise, zeros, "index_add", take_expert, &last);
    if (status == LB_OK && !finalise.n_list) {
        finalise.n_ops = 0, finalise.composite.inputs[LB_FINALISE_WEIGHTS] = LB_NONE;
        status = take_experts(recogniser, &finalise, zeros, "index_put", take_put, &last);
        const uint32_t sum = finalise.n_list ? next_of(recogniser, last, "sum") : LB_NONE;
        if (is_over_slots(recogniser, sum))
            finalise.ops[finalise.n_ops++] = last = sum;
        else
            finalise.n_list = 0;
    }
    if (status == LB_OK && finalise.n_list && !grow(&finalise))
        status = lb_fail(recogniser->err, LB_ERR_NOMEM, "out of memory for composites");
    if (status == LB_OK && finalise.n_list) {
        finalise.ops[finalise.n_ops++] = zeros;
        finalise.composite.list = finalise.list, finalise.composite.n_list = finalise.n_list;
        finalise.composite.flags = LB_FINALISE_BY_SLOT;
        finalise.composite.outputs[LB_FINALISE_Y] =
            lb_recogniser_result(recogniser, with_cast(recogniser, last, finalise.ops, &finalise.n_ops));
        status = lb_recogniser_add(recogniser, &finalise.composite, finalise.ops, finalise.n_ops);
    }
    free(finalise.ops);
    free(finalise.list);
    return status;
}

/* ---- all at once ------------------------------------------------------------------------------------------------- */

/* The experts behind the rows: what was sorted to make them, or what picked a weight matrix for each. */
static void find_ids(const lb_recogniser *recogniser, lb_composite *composite, uint32_t mul, uint32_t reorder)
{
    const double rows = (double)lb_layout_numel(&lb_recogniser_value(recogniser, composite->outputs[0])->layout);
    lb_reading ids = {LB_NONE, LB_NONE};
    if (reorder != LB_NONE) { /* rows[i] = place of i in the sorted order: index_put(sorted order, 0 … n - 1) */
        const uint32_t put = lb_recogniser_maker(recogniser, lb_recogniser_item(recogniser, reorder, 1, 0));
        const uint32_t sort =
            put == LB_NONE ? LB_NONE : lb_recogniser_maker(recogniser, lb_recogniser_item(recogniser, put, 1, 0));
        if (sort != LB_NONE &&
            (lb_recogniser_is(recogniser, sort, "sort") || lb_recogniser_is(recogniser, sort, "argsort")))
            ids = lb_recogniser_arg(recogniser, sort, 0);
    } else {
        const uint32_t product = lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, mul, 0));
        const uint32_t pick =
            product == LB_NONE ? LB_NONE : lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, product, 0));
        if (pick != LB_NONE && lb_recogniser_is(recogniser, pick, "index"))
            ids = lb_recogniser_item(recogniser, pick, 1, 0);
    }
    if (ids.op == LB_NONE || rows <= 0 || lb_dtype_is_float(lb_recogniser_value(recogniser, ids.value)->dtype)) return;
    composite->inputs[LB_FINALISE_IDS] = ids.value;
}

/* (out * weights[..., None]) of (tokens, slots, hidden) and (tokens, slots, 1), casts around them. */
static lb_status by_three_dimensions(lb_recogniser *recogniser, uint32_t sum, uint32_t mul, const lb_layout *layout)
{
    for (uint32_t i = 0; i < 2; i++) {
        const lb_reading x = lb_recogniser_peel(recogniser, lb_recogniser_arg(recogniser, mul, i)),
                         weight = lb_recogniser_peel(recogniser, lb_recogniser_arg(recogniser, mul, 1 - i));
        if (x.op == LB_NONE || weight.op == LB_NONE) return LB_OK;
        const lb_layout *lw = &lb_recogniser_value(recogniser, weight.value)->layout;
        if (!lb_layout_same_shape(&lb_recogniser_value(recogniser, x.value)->layout, layout) || lw->ndim != 3 ||
            lw->shape[0] != layout->shape[0] || lw->shape[1] != layout->shape[1] || lw->shape[2] != 1)
            continue;
        uint32_t ops[3] = {mul}, n = 1;
        lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_FINALISE);
        composite.inputs[LB_FINALISE_X] = x.value, composite.inputs[LB_FINALISE_WEIGHTS] = weight.value;
        composite.numbers[LB_FINALISE_SLOTS] = (double)layout->shape[1];
        composite.outputs[LB_FINALISE_Y] = lb_recogniser_result(recogniser, with_cast(recogniser, sum, ops, &n));
        return lb_recogniser_add(recogniser, &composite, ops, n);
    }
    return LB_OK;
}

static lb_status at_once(lb_recogniser *recogniser, uint32_t sum)
{
    if (!is_over_slots(recogniser, sum)) return LB_OK;
    const lb_reading in = lb_recogniser_arg(recogniser, sum, 0);
    const lb_layout *layout = &lb_recogniser_value(recogniser, in.value)->layout;
    if (!lb_layout_is_contiguous(layout)) return LB_OK;
    uint32_t mul = lb_recogniser_maker(recogniser, lb_recogniser_peel(recogniser, in)), reorder = LB_NONE;
    if (mul != LB_NONE && lb_recogniser_is(recogniser, mul, "mul") &&
        lb_layout_same_shape(&lb_recogniser_value(recogniser, lb_recogniser_result(recogniser, mul))->layout, layout))
        return by_three_dimensions(recogniser, sum, mul, layout);
    mul = lb_recogniser_maker(recogniser, in);
    lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_FINALISE);
    if (mul != LB_NONE && lb_recogniser_is(recogniser, mul, "index")) {
        reorder = mul;
        const lb_reading rows = lb_recogniser_item(recogniser, reorder, 1, 0);
        if (rows.op == LB_NONE || lb_recogniser_item(recogniser, reorder, 1, 1).op != LB_NONE) return LB_OK;
        composite.inputs[LB_FINALISE_ROWS] = rows.value;
        mul = lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, reorder, 0));
    }
    if (mul == LB_NONE || !lb_recogniser_is(recogniser, mul, "mul")) return LB_OK;
    const lb_reading x = lb_recogniser_arg(recogniser, mul, 0), weight = lb_recogniser_arg(recogniser, mul, 1);
    if (x.op == LB_NONE || weight.op == LB_NONE) return LB_OK;
    const lb_layout *lx = &lb_recogniser_value(recogniser, x.value)->layout,
                    *lw = &lb_recogniser_value(recogniser, weight.value)->layout;
    if (lx->ndim != 2 || lw->ndim != 2 || lw->shape[0] != lx->shape[0] || lw->shape[1] != 1 ||
        lx->shape[1] != layout->shape[2])
        return LB_OK;
    composite.inputs[LB_FINALISE_X] = x.value, composite.inputs[LB_FINALISE_WEIGHTS] = weight.value;
    composite.outputs[LB_FINALISE_Y] = lb_recogniser_result(recogniser, sum);
    composite.numbers[LB_FINALISE_SLOTS] = (double)layout->shape[1];
    find_ids(recogniser, &composite, mul, reorder);
    const uint32_t ops[] = {sum, mul, reorder};
    return lb_recogniser_add(recogniser, &composite, ops, reorder == LB_NONE ? 2 : 3);
}

/* ---- one slot after the other ------------------------------------------------------------------------------------ */

typedef struct slots {
    const lb_recogniser *recogniser;
    uint32_t ops[4 * MOST_SLOTS + 4], n_ops;
    uint32_t x, weights;       /* values: (tokens, slots, hidden) and (tokens, slots) */
    int64_t tokens, hidden, n; /* n: slots */
    uint64_t seen;
} slots;

/* Of which part of `*whole`, all that one op gave, is a reading slot `*slot`? Its rows are `step` apart, and `size`
 * long. */
static bool take_window(const slots *slots, lb_reading part, int64_t size, uint32_t *whole, int64_t *slot)
{
    const lb_recogniser *recogniser = slots->recogniser;
    const uint32_t maker = lb_recogniser_maker(recogniser, part),
                   value = maker == LB_NONE ? LB_NONE : lb_recogniser_result(recogniser, maker);
    if (value == LB_NONE || (*whole != LB_NONE && *whole != value)) return false;
    const lb_layout *all = &lb_recogniser_value(recogniser, value)->layout,
                    *layout = &lb_recogniser_value(recogniser, part.value)->layout;
    if (lb_recogniser_value(recogniser, value)->storage != lb_recogniser_value(recogniser, part.value)->storage ||
        lb_layout_numel(all) != slots->tokens * slots->n * size || !lb_layout_is_contiguous(all))
        return false;
    if (layout->ndim != 2 || (layout->shape[0] > 1 && layout->stride[0] != slots->n * size) ||
        (size > 1 && layout->stride[1] != 1) || (layout->offset - all->offset) % size)
        return false;
    *whole = value, *slot = (layout->offset - all->offset) / size;
    return *slot >= 0 && *slot < slots->n;
}

/* out[:, k] * weights[:, k, None]: it is added to what stands for `slots` unless that slot is there already. */
static bool take_slot(slots *slots, lb_reading term)
{
    const lb_recogniser *recogniser = slots->recogniser;
    const uint32_t mul = lb_recogniser_maker(recogniser, lb_recogniser_peel(recogniser, term));
    if (mul == LB_NONE || !lb_recogniser_is(recogniser, mul, "mul")) return false;
    for (uint32_t i = 0; i < 2; i++) {
        const lb_reading x = lb_recogniser_peel(recogniser, lb_recogniser_arg(recogniser, mul, i)),
                         weight = lb_recogniser_peel(recogniser, lb_recogniser_arg(recogniser, mul, 1 - i));
        int64_t slot, other;
        if (x.op == LB_NONE || weight.op == LB_NONE) return false;
        const lb_layout *lx = &lb_recogniser_value(recogniser, x.value)->layout,
                        *lw = &lb_recogniser_value(recogniser, weight.value)->layout;
        if (lx->ndim != 2 || lw->ndim != 2 || lw->shape[1] != 1 || lw->shape[0] != lx->shape[0]) continue;
        const uint32_t from = lb_recogniser_maker(recogniser, weight);
        if (!slots->n && from != LB_NONE && lx->shape[0] > 0) { /* the first one tells the sizes */
            slots->tokens = lx->shape[0], slots->hidden = lx->shape[1];
            slots->n =
                lb_layout_numel(&lb_recogniser_value(recogniser, lb_recogniser_result(recogniser, from))->layout) /
                slots->tokens;
        }
        if (slots->n < 2 || slots->n > MOST_SLOTS || slots->tokens != lx->shape[0] || slots->hidden != lx->shape[1] ||
            !take_window(slots, x, slots->hidden, &slots->x, &slot) ||
            !take_window(slots, weight, 1, &slots->weights, &other) || slot != other || slots->seen >> slot & 1)
            return false;
        slots->seen |= (uint64_t)1 << slot;
        slots->ops[slots->n_ops++] = mul;
        return true;
    }
    return false;
}

static bool is_plain_add(const lb_recogniser *recogniser, uint32_t op)
{
    double alpha = 1;
    return op != LB_NONE && lb_recogniser_is(recogniser, op, "add") &&
           (!lb_recogniser_number(recogniser, op, 2, &alpha) || alpha == 1);
}

/* From the last addition back to the first: each adds one slot to what the one before it gave. */
static bool take_chain(slots *slots, uint32_t last)
{
    for (uint32_t add = last; add != LB_NONE;) {
        uint32_t before = LB_NONE;
        int taken = 0;
        if (slots->n_ops >= 4 * MOST_SLOTS) return false;
        slots->ops[slots->n_ops++] = add;
        for (uint32_t i = 0; i < 2; i++) {
            const lb_reading side = lb_recogniser_arg(slots->recogniser, add, i);
            const uint32_t maker = lb_recogniser_maker(slots->recogniser, lb_recogniser_peel(slots->recogniser, side));
            if (is_zeros(slots->recogniser, maker))
                slots->ops[slots->n_ops++] = maker;
            else if (is_plain_add(slots->recogniser, maker) && before == LB_NONE)
                before = maker;
            else if (side.op != LB_NONE && take_slot(slots, side))
                taken++;
            else
                return false;
        }
        if (!taken) return false;
        add = before;
    }
    return slots->n > 1 && slots->seen == (slots->n == MOST_SLOTS ? UINT64_MAX : ((uint64_t)1 << slots->n) - 1);
}

static lb_status slot_by_slot(lb_recogniser *recogniser, uint32_t last)
{
    slots slots = {.recogniser = recogniser, .x = LB_NONE, .weights = LB_NONE};
    if (!is_plain_add(recogniser, last) || !take_chain(&slots, last)) return LB_OK;
    lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_FINALISE);
    composite.inputs[LB_FINALISE_X] = slots.x, composite.inputs[LB_FINALISE_WEIGHTS] = slots.weights;
    composite.numbers[LB_FINALISE_SLOTS] = (double)slots.n;
    composite.outputs[LB_FINALISE_Y] =
        lb_recogniser_result(recogniser, with_cast(recogniser, last, slots.ops, &slots.n_ops));
    return lb_recogniser_add(recogniser, &composite, slots.ops, slots.n_ops);
}

lb_status lb_recogniser_finalise(lb_recogniser *recogniser)
{
    for (uint32_t i = 0; i < recogniser->program->n_ops; i++) {
        if (!lb_recogniser_forward(recogniser, i)) continue;
        LB_TRY(one_by_one(recogniser, i));
        LB_TRY(at_once(recogniser, i));
        LB_TRY(slot_by_slot(recogniser, i));
    }
    return LB_OK;
}
