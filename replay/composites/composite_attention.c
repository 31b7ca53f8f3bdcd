/* Recognises attention: one op of torch, or a softmax between two products; and softmax by itself.
 *
 *      q k' ─ × scale ─ tanh cap? ─ + mask, or fill ─ cast? ─ softmax ─ cast? ─ × v ─ cast?
 *
 * Between the mask and the softmax one more score per head may be put behind the row (gpt_oss' sinks), of which the
 * maximum is taken off first, and whose probability no value meets.
 *
 * Copies in front that keep the elements in their order (expanded heads made dense, casts to f32) and factors of q and
 * k before the product (torch's math form) are part of it. */
#include "composites/recogniser.h"

#include <string.h>

enum { MOST_OPS = 48 };

typedef struct attention {
    lb_composite composite;
    uint32_t ops[MOST_OPS], n_ops;
} attention;

static void take(attention *attention, uint32_t op)
{
    if (attention->n_ops < MOST_OPS) attention->ops[attention->n_ops++] = op;
}

/* ---- operands of products ---------------------------------------------------------------------------------------- */

static lb_layout turned_layout(const lb_layout *layout)
{
    lb_layout l = *layout;
    const int n = l.ndim;
    if (n < 2) return l;
    l.shape[n - 2] = layout->shape[n - 1], l.shape[n - 1] = layout->shape[n - 2];
    l.stride[n - 2] = layout->stride[n - 1], l.stride[n - 1] = layout->stride[n - 2];
    return l;
}

/* The elements of `read`, row-major, are those of `made`. */
static bool same_order(const lb_layout *read, const lb_layout *made)
{
    bool same = read->ndim == made->ndim && read->offset == made->offset;
    for (int d = 0; same && d < read->ndim; d++)
        same = read->shape[d] == made->shape[d] && (read->shape[d] < 2 || read->stride[d] == made->stride[d]);
    return same || (read->offset == made->offset && lb_layout_numel(read) == lb_layout_numel(made) &&
                    lb_layout_is_contiguous(read) && lb_layout_is_contiguous(made));
}

typedef struct operand {
    lb_reading reading;
    bool turned; /* it shows the last two dimensions exchanged */
    double factor;
} operand;

/* One step back through a copy, a cast or a factor that belongs to the call. False when there is none. */
static bool step_back(const lb_recogniser *recogniser, attention *attention, uint32_t anchor, operand *operand)
{
    static const char *const copies[] = {"clone", "_to_copy", NULL};
    const uint32_t maker = lb_recogniser_maker(recogniser, operand->reading);
    double factor = 1;
    if (maker == LB_NONE || !lb_recogniser_same_call(recogniser, maker, anchor) ||
        lb_recogniser_arg(recogniser, maker, 0).op == LB_NONE)
        return false;
    const bool scales =
        lb_recogniser_is(recogniser, maker, "mul") && lb_recogniser_number(recogniser, maker, 1, &factor);
    if (!scales && !lb_recogniser_is_any(recogniser, maker, copies)) return false;
    const lb_value *read = lb_recogniser_value(recogniser, operand->reading.value),
                   *made = lb_recogniser_value(recogniser, lb_recogniser_result(recogniser, maker));
    const lb_reading from = lb_recogniser_arg(recogniser, maker, 0);
    if (!lb_dtype_is_float(lb_recogniser_value(recogniser, from.value)->dtype)) return false;
    const lb_layout turned = turned_layout(&read->layout), made_turned = turned_layout(&made->layout);
    if (same_order(&turned, &made_turned)) { /* both show the last dimensions exchanged */
    } else if (same_order(&turned, &made->layout) && !same_order(&read->layout, &made->layout))
        operand->turned = !operand->turned;
    else if (!same_order(&read->layout, &made->layout))
        return false;
    take(attention, maker);
    operand->reading = from;
    operand->factor *= factor;
    return true;
}

static operand trace_operand(const lb_recogniser *recogniser, attention *attention, uint32_t anchor, lb_reading reading,
                             bool turned)
{
    operand operand = {reading, turned, 1};
    while (step_back(recogniser, attention, anchor, &operand)) {
    }
    return operand;
}

static bool is_product(const lb_recogniser *recogniser, uint32_t op)
{
    static const char *const products[] = {"bmm", "matmul", "mm", NULL};
    return op != LB_NONE && lb_recogniser_is_any(recogniser, op, products);
}

/* ---- between the products ---------------------------------------------------------------------------------------- */

/* The product behind `reading`, at most through the ops named above; LB_NONE. */
static uint32_t scores(const lb_recogniser *recogniser, attention *attention, lb_reading reading)
{
    double *numbers = attention->composite.numbers, outer = 0;
    bool capped = false;
    for (int hops = 0; hops < 12; hops++) {
        const uint32_t op = lb_recogniser_maker(recogniser, reading);
        double number = 0;
        if (op == LB_NONE) return LB_NONE;
        if (is_product(recogniser, op)) return op;
        take(attention, op);
        if (lb_recogniser_is(recogniser, op, "_to_copy") || lb_recogniser_is(recogniser, op, "clone")) {
            reading = lb_recogniser_arg(recogniser, op, 0);
        } else if (lb_recogniser_is(recogniser, op, "mul") && lb_recogniser_number(recogniser, op, 1, &number)) {
            const uint32_t inner = lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, op, 0));
            if (inner != LB_NONE && lb_recogniser_is(recogniser, inner, "tanh"))
                outer = number;
            else
                numbers[LB_ATTENTION_SCALE] *= number;
            reading = lb_recogniser_arg(recogniser, op, 0);
        } else if (lb_recogniser_is(recogniser, op, "tanh")) {
            if (!outer || capped) return LB_NONE;
            numbers[LB_ATTENTION_CAP] = outer, capped = true;
            reading = lb_recogniser_arg(recogniser, op, 0);
        } else if (lb_recogniser_is(recogniser, op, "div") && lb_recogniser_number(recogniser, op, 1, &number)) {
            if (capped && number == numbers[LB_ATTENTION_CAP] && outer)
                outer = 0;
            else
                numbers[LB_ATTENTION_SCALE] /= number;
            reading = lb_recogniser_arg(recogniser, op, 0);
        } else if (lb_recogniser_is(recogniser, op, "add") &&
                   attention->composite.inputs[LB_ATTENTION_MASK] == LB_NONE) {
            const lb_reading left = lb_recogniser_arg(recogniser, op, 0), right = lb_recogniser_arg(recogniser, op, 1);
            if (left.op == LB_NONE || right.op == LB_NONE) return LB_NONE;
            attention->composite.inputs[LB_ATTENTION_MASK] = right.value;
            reading = left;
        } else if (lb_recogniser_is(recogniser, op, "masked_fill") &&
                   attention->composite.inputs[LB_ATTENTION_MASK] == LB_NONE &&
                   lb_recogniser_number(recogniser, op, 2, &number) && number <= -1e4) {
            if (lb_recogniser_arg(recogniser, op, 1).op == LB_NONE) return LB_NONE;
            attention->composite.inputs[LB_ATTENTION_MASK] = lb_recogniser_arg(recogniser, op, 1).value;
            attention->composite.flags |= LB_ATTENTION_HIDDEN;
            reading = lb_recogniser_arg(recogniser, op, 0);
        } else {
            return LB_NONE;
        }
        if (reading.op == LB_NONE) return LB_NONE;
    }
    return LB_NONE;
}

/* x - max(x) of x = cat(scores, sinks): the scores, and the sinks noted; `reading` itself when it is not that. */
static lb_reading without_sinks(const lb_recogniser *recogniser, attention *attention, lb_reading reading)
{
    const uint32_t sub = lb_recogniser_maker(recogniser, reading);
    if (sub == LB_NONE || !lb_recogniser_is(recogniser, sub, "sub")) return reading;
    const lb_reading all = lb_recogniser_arg(recogniser, sub, 0), top = lb_recogniser_arg(recogniser, sub, 1);
    const uint32_t cat = all.op == LB_NONE ? LB_NONE : lb_recogniser_maker(recogniser, all),
                   max = top.op == LB_NONE ? LB_NONE : lb_recogniser_maker(recogniser, top);
    if (cat == LB_NONE || max == LB_NONE || !lb_recogniser_is(recogniser, cat, "cat")) return reading;
    if (!lb_recogniser_is(recogniser, max, "max") && !lb_recogniser_is(recogniser, max, "amax")) return reading;
    const lb_reading scores = lb_recogniser_item(recogniser, cat, 0, 0),
                     sinks = lb_recogniser_item(recogniser, cat, 0, 1),
                     more = lb_recogniser_item(recogniser, cat, 0, 2);
    if (scores.op == LB_NONE || sinks.op == LB_NONE || more.op != LB_NONE ||
        lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, max, 0)) != cat)
        return reading;
    const lb_layout *layout = &lb_recogniser_value(recogniser, sinks.value)->layout;
    if (layout->ndim != 4 || layout->shape[3] != 1) return reading;
    attention->composite.inputs[LB_ATTENTION_SINKS] = sinks.value;
    take(attention, sub), take(attention, max), take(attention, cat);
    return scores;
}

/* The product that takes what `op` made as its left operand, behind casts and copies. */
static uint32_t weighted_sum(const lb_recogniser *recogniser, attention *attention, uint32_t op)
{
    static const char *const copies[] = {"_to_copy", "clone", NULL};
    uint32_t users[8];
    const uint32_t n = lb_recogniser_users(recogniser, op, users, 8);
    for (uint32_t u = 0; u < n && u < 8; u++) {
        if (is_product(recogniser, users[u]) &&
            lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, users[u], 0)) == op)
            return users[u];
        if (!lb_recogniser_is_any(recogniser, users[u], copies)) continue;
        const uint32_t product = weighted_sum(recogniser, attention, users[u]);
        if (product == LB_NONE) continue;
        take(attention, users[u]);
        return product;
    }
    return LB_NONE;
}

static void follow_cast(const lb_recogniser *recogniser, attention *attention, uint32_t product)
{
    uint32_t user;
    attention->composite.outputs[LB_ATTENTION_Y] = lb_recogniser_result(recogniser, product);
    if (lb_recogniser_users(recogniser, product, &user, 1) != 1 || !lb_recogniser_is(recogniser, user, "_to_copy") ||
        !lb_recogniser_same_call(recogniser, product, user))
        return;
    const lb_value *made = lb_recogniser_value(recogniser, lb_recogniser_result(recogniser, user));
    if (!lb_dtype_is_float(made->dtype) ||
        lb_layout_numel(&made->layout) !=
            lb_layout_numel(&lb_recogniser_value(recogniser, lb_recogniser_result(recogniser, product))->layout))
        return;
    take(attention, user);
    attention->composite.outputs[LB_ATTENTION_Y] = lb_recogniser_result(recogniser, user);
}

/* Heads of a batch: scores are read as (batches, heads, queries, keys) by the softmax. */
static double heads_of(const lb_value *scores)
{
    return scores->layout.ndim >= 3 ? (double)scores->layout.shape[scores->layout.ndim - 3] : 1;
}

static lb_status written_out(lb_recogniser *recogniser, uint32_t softmax)
{
    attention attention = {.composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_ATTENTION)};
    lb_composite *composite = &attention.composite;
    const lb_reading x = lb_recogniser_arg(recogniser, softmax, 0);
    composite->numbers[LB_ATTENTION_SCALE] = 1;
    composite->numbers[LB_ATTENTION_HEADS] = heads_of(lb_recogniser_value(recogniser, x.value));
    take(&attention, softmax);
    const uint32_t first = scores(recogniser, &attention, without_sinks(recogniser, &attention, x));
    const uint32_t second = first == LB_NONE ? LB_NONE : weighted_sum(recogniser, &attention, softmax);
    if (second == LB_NONE) return LB_OK;
    take(&attention, first);
    take(&attention, second);
    const operand q = trace_operand(recogniser, &attention, first, lb_recogniser_arg(recogniser, first, 0), false),
                  k = trace_operand(recogniser, &attention, first, lb_recogniser_arg(recogniser, first, 1), true);
    const operand v = trace_operand(recogniser, &attention, second, lb_recogniser_arg(recogniser, second, 1), false);
    if (q.turned || v.turned || v.factor != 1) return LB_OK;
    composite->numbers[LB_ATTENTION_SCALE] *= q.factor * k.factor;
    composite->inputs[LB_ATTENTION_Q] = q.reading.value, composite->inputs[LB_ATTENTION_K] = k.reading.value,
    composite->inputs[LB_ATTENTION_V] = v.reading.value;
    if (k.turned) composite->flags |= LB_ATTENTION_TURNED;
    follow_cast(recogniser, &attention, second);
    return lb_recogniser_add(recogniser, composite, attention.ops, attention.n_ops);
}

/* ---- one op ------------------------------------------------------------------------------------------------------ */

static void argument(const lb_recogniser *recogniser, uint32_t op, const char *name, uint32_t *value)
{
    uint32_t at;
    if (lb_recogniser_position(recogniser, op, name, &at) && lb_recogniser_arg(recogniser, op, at).op != LB_NONE)
        *value = lb_recogniser_arg(recogniser, op, at).value;
}

static double number(const lb_recogniser *recogniser, uint32_t op, const char *name, double otherwise)
{
    uint32_t at;
    double x = otherwise;
    if (!lb_recogniser_position(recogniser, op, name, &at) || at >= recogniser->program->ops[op].args) return otherwise;
    const lb_arg *arg = &lb_op_args(recogniser->program, &recogniser->program->ops[op])[at];
    if (arg->tag == LB_ARG_BOOL) return (double)arg->u.i;
    return lb_recogniser_number(recogniser, op, at, &x) ? x : otherwise;
}

static lb_status single(lb_recogniser *recogniser, uint32_t op)
{
    static const char *const names[] = {"_scaled_dot_product_flash_attention_for_cpu",
                                        "_scaled_dot_product_flash_attention",
                                        "_scaled_dot_product_efficient_attention",
                                        "_scaled_dot_product_cudnn_attention",
                                        "_scaled_dot_product_fused_attention_overrideable",
                                        "scaled_dot_product_attention",
                                        "_scaled_dot_product_attention_math",
                                        NULL};
    if (!lb_recogniser_is_any(recogniser, op, names) || number(recogniser, op, "dropout_p", 0) != 0) return LB_OK;
    lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_ATTENTION);
    argument(recogniser, op, "query", &composite.inputs[LB_ATTENTION_Q]);
    argument(recogniser, op, "key", &composite.inputs[LB_ATTENTION_K]);
    argument(recogniser, op, "value", &composite.inputs[LB_ATTENTION_V]);
    argument(recogniser, op, "attn_mask", &composite.inputs[LB_ATTENTION_MASK]);
    argument(recogniser, op, "attn_bias", &composite.inputs[LB_ATTENTION_MASK]);
    if (composite.inputs[LB_ATTENTION_Q] == LB_NONE || composite.inputs[LB_ATTENTION_K] == LB_NONE ||
        composite.inputs[LB_ATTENTION_V] == LB_NONE)
        return LB_OK;
    const lb_layout *layout = &lb_recogniser_value(recogniser, composite.inputs[LB_ATTENTION_Q])->layout;
    if (layout->ndim < 3) return LB_OK;
    composite.numbers[LB_ATTENTION_SCALE] = number(recogniser, op, "scale", 0);
    if (composite.numbers[LB_ATTENTION_SCALE] == 0)
        composite.numbers[LB_ATTENTION_SCALE] = 1 / __builtin_sqrt((double)layout->shape[layout->ndim - 1]);
    composite.numbers[LB_ATTENTION_HEADS] = (double)layout->shape[layout->ndim - 3];
    if (number(recogniser, op, "is_causal", 0) != 0) composite.flags |= LB_ATTENTION_CAUSAL;
    composite.outputs[LB_ATTENTION_Y] = lb_recogniser_result(recogniser, op);
    if (lb_recogniser_is(recogniser, op, names[0]) && recogniser->program->ops[op].results > 1)
        composite.outputs[LB_ATTENTION_LSE] = lb_op_results(recogniser->program, &recogniser->program->ops[op])[1];
    return lb_recogniser_add(recogniser, &composite, &op, 1);
}

static lb_status softmax_alone(lb_recogniser *recogniser, uint32_t op)
{
    lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_SOFTMAX);
    composite.inputs[LB_SOFTMAX_X] = lb_recogniser_arg(recogniser, op, 0).value;
    composite.outputs[LB_SOFTMAX_Y] = lb_recogniser_result(recogniser, op);
    return lb_recogniser_add(recogniser, &composite, &op, 1);
}

lb_status lb_recogniser_attention(lb_recogniser *recogniser)
{
    static const char *const softmaxes[] = {"_softmax", "_safe_softmax", "softmax", NULL};
    for (uint32_t i = 0; i < recogniser->program->n_ops; i++) {
        if (!lb_recogniser_forward(recogniser, i)) continue;
        LB_TRY(single(recogniser, i));
        const lb_reading x = lb_recogniser_arg(recogniser, i, 0);
        if (!lb_recogniser_is_any(recogniser, i, softmaxes) || x.op == LB_NONE ||
            !lb_recogniser_last_dim(recogniser, i, 1, lb_recogniser_value(recogniser, x.value)->layout.ndim))
            continue;
        LB_TRY(softmax_alone(recogniser, i));
        LB_TRY(written_out(recogniser, i));
    }
    return LB_OK;
}
