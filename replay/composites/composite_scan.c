/* Recognises selective scans, h = exp(e) h + dt B u and y = C h, where they are written out for all of time at once;
 * composite_recurrence.c does where they are written step by step.
 *
 *   pair by pair   y = (C B' * exp(c_t - c_s masked) * dt) u, with c the cumulative sum of e    the masked product of
 *                  Mamba-2, or with tril((C exp(c)) (B exp(-c))') for the pairs                          which
 *                  overflows where c is far from 0
 *   in chunks      pairs inside a chunk, plus what the state before it gives                  Mamba-2, Bamba,
 *                  Falcon-H1, …
 *
 * What stands around it (convolution, softplus, D u, the gate) is other parts' business. */
#include "composites/scan_parts.h"

#include <math.h>

/* The one leaf whose maker is what `is` says; *at keeps its place. LB_NONE: none, or several. */
static uint32_t only_maker(const lb_recogniser *recogniser, lb_reading *leaves, uint32_t n,
                           bool (*is)(const lb_recogniser *, uint32_t), uint32_t *at)
{
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; i < n; i++) {
        lb_reading reading = leaves[i];
        const uint32_t maker = lb_scan_maker(recogniser, &reading);
        if (maker == LB_NONE || !is(recogniser, maker)) continue;
        if (found != LB_NONE) return LB_NONE;
        found = maker, *at = i;
    }
    return found;
}

/* masked_fill(x, mask, fill): what was filled is what `x` was before. */
static lb_reading masked(const lb_recogniser *recogniser, uint32_t op, double fill)
{
    double number;
    if (op == LB_NONE || !lb_recogniser_is(recogniser, op, "masked_fill") ||
        !lb_recogniser_number(recogniser, op, 2, &number) || number != fill)
        return (lb_reading){LB_NONE, LB_NONE};
    return lb_recogniser_arg(recogniser, op, 0);
}

/* True above the diagonal: triu(…, 1), or not tril(…, 0). */
static bool hides_the_future(const lb_recogniser *recogniser, uint32_t masked_fill)
{
    const uint32_t mask = lb_scan_maker_of_arg(recogniser, masked_fill, 1);
    double diagonal = 0;
    if (mask == LB_NONE) return false;
    if (lb_recogniser_is(recogniser, mask, "triu"))
        return lb_recogniser_number(recogniser, mask, 1, &diagonal) && diagonal == 1;
    const uint32_t inner =
        lb_recogniser_is(recogniser, mask, "bitwise_not") ? lb_scan_maker_of_arg(recogniser, mask, 0) : LB_NONE;
    return inner != LB_NONE && lb_recogniser_is(recogniser, inner, "tril") &&
           (!lb_recogniser_number(recogniser, inner, 1, &diagonal) || diagonal == 0);
}

static bool sums_along_last(const lb_recogniser *recogniser, uint32_t op)
{
    if (op == LB_NONE || !lb_recogniser_is(recogniser, op, "cumsum")) return false;
    return lb_recogniser_last_dim(recogniser, op, 1,
                                  lb_scan_layout(recogniser, lb_recogniser_arg(recogniser, op, 0).value)->ndim);
}

static int64_t last_of(const lb_layout *layout)
{
    return layout->ndim ? layout->shape[layout->ndim - 1] : 1;
}

/* ---- pair by pair ------------------------------------------------------------------------------------------------ */

/* exp(masked(c[:, None] - c[None, :])) with c = cumsum(e): e. */
static lb_reading exponent_of_pairs(const lb_recogniser *recogniser, uint32_t exp)
{
    const lb_reading none = {LB_NONE, LB_NONE};
    const uint32_t fill = lb_scan_maker_of_arg(recogniser, exp, 0);
    lb_reading difference = masked(recogniser, fill, -INFINITY);
    const uint32_t sub = difference.op == LB_NONE ? LB_NONE : lb_scan_maker(recogniser, &difference);
    double alpha = 1;
    if (sub == LB_NONE || !lb_recogniser_is(recogniser, sub, "sub") || !hides_the_future(recogniser, fill)) return none;
    const lb_reading late = lb_recogniser_arg(recogniser, sub, 0), early = lb_recogniser_arg(recogniser, sub, 1);
    if (late.op == LB_NONE || early.op == LB_NONE || (lb_recogniser_number(recogniser, sub, 2, &alpha) && alpha != 1))
        return none;
    const uint32_t sum = lb_recogniser_maker(recogniser, late);
    const lb_layout *x = lb_scan_layout(recogniser, late.value), *y = lb_scan_layout(recogniser, early.value);
    if (sum == LB_NONE || sum != lb_recogniser_maker(recogniser, early) || !sums_along_last(recogniser, sum) ||
        x->ndim < 2 || y->ndim < 2 || x->shape[x->ndim - 1] != 1 || y->shape[y->ndim - 2] != 1)
        return none;
    return lb_recogniser_arg(recogniser, sum, 0);
}

static lb_status pairs(lb_recogniser *recogniser, uint32_t op)
{
    lb_reading leaves[3];
    uint32_t n = 0, at_product = 0, at_exp = 0;
    bool added;
    if (!lb_scan_is_product(recogniser, op) ||
        !lb_scan_factors(recogniser, lb_recogniser_arg(recogniser, op, 0), leaves, &n, 3) || n < 2)
        return LB_OK;
    const uint32_t cb = only_maker(recogniser, leaves, n, lb_scan_is_product, &at_product),
                   exp = only_maker(recogniser, leaves, n, lb_scan_is_exp, &at_exp);
    if (cb == LB_NONE || exp == LB_NONE) return LB_OK;
    const lb_reading e = exponent_of_pairs(recogniser, exp), u = lb_recogniser_arg(recogniser, op, 1);
    if (e.op == LB_NONE || u.op == LB_NONE) return LB_OK;
    lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_SELECTIVE_SCAN);
    composite.inputs[LB_SCAN_EXPONENT] = e.value, composite.inputs[LB_SCAN_U] = u.value;
    composite.inputs[LB_SCAN_C] = lb_recogniser_arg(recogniser, cb, 0).value,
    composite.inputs[LB_SCAN_B] = lb_recogniser_arg(recogniser, cb, 1).value;
    if (n == 3) composite.inputs[LB_SCAN_DT] = leaves[3 - at_product - at_exp].value;
    composite.outputs[LB_SCAN_Y] = lb_recogniser_result(recogniser, op);
    composite.flags = LB_SCAN_TURNED;
    const lb_layout *le = lb_scan_layout(recogniser, e.value), *lu = lb_scan_layout(recogniser, u.value),
                    *lc = lb_scan_layout(recogniser, composite.inputs[LB_SCAN_C]),
                    *lb = lb_scan_layout(recogniser, composite.inputs[LB_SCAN_B]);
    const int64_t time = last_of(le), states = last_of(lc), batch = le->ndim == 3 ? le->shape[0] : 0;
    if (batch < 1 || lu->ndim != 3 || lu->shape[1] != time || lu->shape[0] != batch * le->shape[1] || lc->ndim != 3 ||
        lc->shape[1] != time || lb->ndim != 3 || lb->shape[1] != states || lb->shape[2] != time ||
        lc->shape[0] != lb->shape[0] || lc->shape[0] % batch || (batch * le->shape[1]) % lc->shape[0] ||
        (n == 3 && lb_layout_numel(lb_scan_layout(recogniser, composite.inputs[LB_SCAN_DT])) != lb_layout_numel(le)))
        return LB_OK;
    return lb_recogniser_add_between(recogniser, &composite, op, &added);
}

/* exp(c) or exp(-c) times something: that, and the op that summed c. */
static lb_reading scaled(const lb_recogniser *recogniser, uint32_t product, uint32_t operand, bool negative,
                         uint32_t *sum)
{
    lb_reading leaves[2];
    uint32_t n = 0, at = 0;
    *sum = LB_NONE;
    if (!lb_scan_factors(recogniser, lb_recogniser_arg(recogniser, product, operand), leaves, &n, 2) || n != 2)
        return (lb_reading){LB_NONE, LB_NONE};
    const uint32_t exp = only_maker(recogniser, leaves, n, lb_scan_is_exp, &at);
    uint32_t inner = exp == LB_NONE ? LB_NONE : lb_scan_maker_of_arg(recogniser, exp, 0);
    if (negative)
        inner = inner != LB_NONE && lb_recogniser_is(recogniser, inner, "neg")
                    ? lb_scan_maker_of_arg(recogniser, inner, 0)
                    : LB_NONE;
    *sum = inner;
    return leaves[1 - at];
}

static bool is_lower(const lb_recogniser *recogniser, uint32_t op)
{
    double diagonal = 0;
    return lb_recogniser_is(recogniser, op, "tril") &&
           (!lb_recogniser_number(recogniser, op, 1, &diagonal) || diagonal == 0);
}

static lb_status factored(lb_recogniser *recogniser, uint32_t op)
{
    lb_reading leaves[2];
    uint32_t n = 0, at = 0, sums[2];
    bool added;
    if (!lb_scan_is_product(recogniser, op) ||
        !lb_scan_factors(recogniser, lb_recogniser_arg(recogniser, op, 0), leaves, &n, 2))
        return LB_OK;
    const uint32_t lower = only_maker(recogniser, leaves, n, is_lower, &at),
                   product = lower == LB_NONE ? LB_NONE : lb_scan_maker_of_arg(recogniser, lower, 0);
    if (product == LB_NONE || !lb_scan_is_product(recogniser, product)) return LB_OK;
    const lb_reading c_in = scaled(recogniser, product, 0, false, &sums[0]),
                     b_in = scaled(recogniser, product, 1, true, &sums[1]), u = lb_recogniser_arg(recogniser, op, 1);
    if (c_in.op == LB_NONE || b_in.op == LB_NONE || u.op == LB_NONE || sums[0] != sums[1] ||
        !sums_along_last(recogniser, sums[0]))
        return LB_OK;
    lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_SELECTIVE_SCAN);
    composite.inputs[LB_SCAN_EXPONENT] = lb_recogniser_arg(recogniser, sums[0], 0).value,
    composite.inputs[LB_SCAN_U] = u.value;
    composite.inputs[LB_SCAN_B] = b_in.value, composite.inputs[LB_SCAN_C] = c_in.value;
    if (n == 2) composite.inputs[LB_SCAN_DT] = leaves[1 - at].value;
    composite.outputs[LB_SCAN_Y] = lb_recogniser_result(recogniser, op);
    const lb_layout *le = lb_scan_layout(recogniser, composite.inputs[LB_SCAN_EXPONENT]),
                    *lu = lb_scan_layout(recogniser, u.value), *lb = lb_scan_layout(recogniser, b_in.value),
                    *lc = lb_scan_layout(recogniser, c_in.value);
    const int64_t time = last_of(le), batch = le->ndim == 3 ? le->shape[0] : 0;
    if (batch < 1 || lu->ndim != 3 || lu->shape[1] != time || lu->shape[0] != batch * le->shape[1] || lb->ndim != 4 ||
        !lb_layout_same_shape(lb, lc) || lb->shape[0] != batch || lb->shape[2] != time || le->shape[1] % lb->shape[1] ||
        (n == 2 && lb_layout_numel(lb_scan_layout(recogniser, composite.inputs[LB_SCAN_DT])) != lb_layout_numel(le)))
        return LB_OK;
    return lb_recogniser_add_between(recogniser, &composite, op, &added);
}

/* ---- in chunks --------------------------------------------------------------------------------------------------- */

/* What was padded at the end of time and cut in chunks: the value before, and the op that padded it. */
static lb_reading padded(const lb_recogniser *recogniser, lb_reading reading, uint32_t *pad)
{
    *pad = lb_scan_maker(recogniser, &reading);
    if (*pad == LB_NONE || !lb_recogniser_is(recogniser, *pad, "constant_pad_nd"))
        return (lb_reading){LB_NONE, LB_NONE};
    return lb_recogniser_arg(recogniser, *pad, 0);
}

/* exp(masked(cumsum(masked(spread e)))): the op that padded e. */
static uint32_t pad_of_segments(const lb_recogniser *recogniser, uint32_t exp)
{
    const uint32_t outer = lb_scan_maker_of_arg(recogniser, exp, 0);
    lb_reading reading = masked(recogniser, outer, -INFINITY);
    const uint32_t sum = reading.op == LB_NONE ? LB_NONE : lb_scan_maker(recogniser, &reading);
    if (sum == LB_NONE || !lb_recogniser_is(recogniser, sum, "cumsum") || !hides_the_future(recogniser, outer))
        return LB_NONE;
    reading = masked(recogniser, lb_scan_maker_of_arg(recogniser, sum, 0), 0);
    return reading.op == LB_NONE ? LB_NONE : lb_scan_maker(recogniser, &reading);
}

/* The states before each chunk are product(decays, cat(zeros, …)): nothing was handed in. */
static bool begins_at_zero(const lb_recogniser *recogniser, uint32_t from_state)
{
    static const char *const zeros[] = {"zeros_like", "zeros", "new_zeros", NULL};
    const uint32_t passed = lb_scan_maker_of_arg(recogniser, from_state, 1),
                   cat = lb_scan_is_product(recogniser, passed) ? lb_scan_maker_of_arg(recogniser, passed, 1) : LB_NONE;
    if (cat == LB_NONE || !lb_recogniser_is(recogniser, cat, "cat")) return false;
    lb_reading first = lb_recogniser_item(recogniser, cat, 0, 0);
    const uint32_t maker = lb_scan_maker(recogniser, &first);
    return maker != LB_NONE && lb_recogniser_is_any(recogniser, maker, zeros);
}

static lb_status chunks(lb_recogniser *recogniser, uint32_t add)
{
    lb_reading inside[2], before[2];
    uint32_t n = 0, other = 0, at, pads[6];
    bool added;
    if (!lb_recogniser_is(recogniser, add, "add") || lb_recogniser_arg(recogniser, add, 1).op == LB_NONE) return LB_OK;
    const uint32_t diagonal = lb_scan_maker_of_arg(recogniser, add, 0);
    if (!lb_scan_is_product(recogniser, diagonal) ||
        !lb_scan_factors(recogniser, lb_recogniser_arg(recogniser, diagonal, 0), inside, &n, 2) || n != 2 ||
        !lb_scan_factors(recogniser, lb_recogniser_arg(recogniser, add, 1), before, &other, 2) || other != 2)
        return LB_OK;
    const uint32_t cb = only_maker(recogniser, inside, n, lb_scan_is_product, &at),
                   segments = only_maker(recogniser, inside, n, lb_scan_is_exp, &at),
                   from_state = only_maker(recogniser, before, other, lb_scan_is_product, &at),
                   decay = only_maker(recogniser, before, other, lb_scan_is_exp, &at);
    if (cb == LB_NONE || segments == LB_NONE || from_state == LB_NONE || decay == LB_NONE) return LB_OK;
    const uint32_t sum = lb_scan_maker_of_arg(recogniser, decay, 0);
    if (!sums_along_last(recogniser, sum) || !begins_at_zero(recogniser, from_state)) return LB_OK;
    const lb_reading e = padded(recogniser, lb_recogniser_arg(recogniser, sum, 0), &pads[0]),
                     c_in = padded(recogniser, lb_recogniser_arg(recogniser, cb, 0), &pads[1]),
                     b_in = padded(recogniser, lb_recogniser_arg(recogniser, cb, 1), &pads[2]),
                     u = padded(recogniser, lb_recogniser_arg(recogniser, diagonal, 1), &pads[3]),
                     again = padded(recogniser, lb_recogniser_arg(recogniser, from_state, 0), &pads[4]);
    if (e.op == LB_NONE || c_in.op == LB_NONE || b_in.op == LB_NONE || u.op == LB_NONE || again.op == LB_NONE ||
        pads[4] != pads[1] || pad_of_segments(recogniser, segments) != pads[0])
        return LB_OK;
    lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_SELECTIVE_SCAN);
    composite.inputs[LB_SCAN_EXPONENT] = e.value, composite.inputs[LB_SCAN_U] = u.value,
    composite.inputs[LB_SCAN_B] = b_in.value, composite.inputs[LB_SCAN_C] = c_in.value;
    composite.outputs[LB_SCAN_Y] = lb_recogniser_result(recogniser, add);
    composite.numbers[LB_SCAN_CHUNK] =
        (double)last_of(lb_scan_layout(recogniser, lb_recogniser_arg(recogniser, sum, 0).value));
    composite.flags = LB_SCAN_TIME_FIRST;
    const lb_layout *le = lb_scan_layout(recogniser, e.value), *lu = lb_scan_layout(recogniser, u.value),
                    *lb = lb_scan_layout(recogniser, b_in.value), *lc = lb_scan_layout(recogniser, c_in.value);
    if (le->ndim != 3 || lu->ndim != 4 || lb->ndim != 4 || !lb_layout_same_shape(lb, lc)) return LB_OK;
    for (int d = 0; d < 3; d++)
        if (lu->shape[d] != le->shape[d] || lb->shape[d] != le->shape[d]) return LB_OK;
    return lb_recogniser_add_between(recogniser, &composite, add, &added);
}

lb_status lb_recogniser_scans(lb_recogniser *recogniser)
{
    for (uint32_t i = 0; i < recogniser->program->n_ops; i++) {
        if (!lb_recogniser_forward(recogniser, i)) continue;
        LB_TRY(pairs(recogniser, i));
        LB_TRY(factored(recogniser, i));
        LB_TRY(chunks(recogniser, i));
    }
    return LB_OK;
}
