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
static uint32_t only_maker(const lb_recogniser *t, lb_reading *leaves, uint32_t n,
                           bool (*is)(const lb_recogniser *, uint32_t), uint32_t *at)
{
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; i < n; i++) {
        lb_reading r = leaves[i];
        const uint32_t maker = lb_scan_maker(t, &r);
        if (maker == LB_NONE || !is(t, maker)) continue;
        if (found != LB_NONE) return LB_NONE;
        found = maker, *at = i;
    }
    return found;
}

/* masked_fill(x, mask, fill): what was filled is what `x` was before. */
static lb_reading masked(const lb_recogniser *t, uint32_t op, double fill)
{
    double number;
    if (op == LB_NONE || !lb_recogniser_is(t, op, "masked_fill") || !lb_recogniser_number(t, op, 2, &number) ||
        number != fill)
        return (lb_reading){LB_NONE, LB_NONE};
    return lb_recogniser_arg(t, op, 0);
}

/* True above the diagonal: triu(…, 1), or not tril(…, 0). */
static bool hides_the_future(const lb_recogniser *t, uint32_t masked_fill)
{
    const uint32_t mask = lb_scan_maker_of_arg(t, masked_fill, 1);
    double diagonal = 0;
    if (mask == LB_NONE) return false;
    if (lb_recogniser_is(t, mask, "triu")) return lb_recogniser_number(t, mask, 1, &diagonal) && diagonal == 1;
    const uint32_t inner = lb_recogniser_is(t, mask, "bitwise_not") ? lb_scan_maker_of_arg(t, mask, 0) : LB_NONE;
    return inner != LB_NONE && lb_recogniser_is(t, inner, "tril") &&
           (!lb_recogniser_number(t, inner, 1, &diagonal) || diagonal == 0);
}

static bool sums_along_last(const lb_recogniser *t, uint32_t op)
{
    if (op == LB_NONE || !lb_recogniser_is(t, op, "cumsum")) return false;
    return lb_recogniser_last_dim(t, op, 1, lb_scan_layout(t, lb_recogniser_arg(t, op, 0).value)->ndim);
}

static int64_t last_of(const lb_layout *l)
{
    return l->ndim ? l->shape[l->ndim - 1] : 1;
}

/* ---- pair by pair ------------------------------------------------------------------------------------------------ */

/* exp(masked(c[:, None] - c[None, :])) with c = cumsum(e): e. */
static lb_reading exponent_of_pairs(const lb_recogniser *t, uint32_t exp)
{
    const lb_reading none = {LB_NONE, LB_NONE};
    const uint32_t fill = lb_scan_maker_of_arg(t, exp, 0);
    lb_reading difference = masked(t, fill, -INFINITY);
    const uint32_t sub = difference.op == LB_NONE ? LB_NONE : lb_scan_maker(t, &difference);
    double alpha = 1;
    if (sub == LB_NONE || !lb_recogniser_is(t, sub, "sub") || !hides_the_future(t, fill)) return none;
    const lb_reading late = lb_recogniser_arg(t, sub, 0), early = lb_recogniser_arg(t, sub, 1);
    if (late.op == LB_NONE || early.op == LB_NONE || (lb_recogniser_number(t, sub, 2, &alpha) && alpha != 1))
        return none;
    const uint32_t sum = lb_recogniser_maker(t, late);
    const lb_layout *x = lb_scan_layout(t, late.value), *y = lb_scan_layout(t, early.value);
    if (sum == LB_NONE || sum != lb_recogniser_maker(t, early) || !sums_along_last(t, sum) || x->ndim < 2 ||
        y->ndim < 2 || x->shape[x->ndim - 1] != 1 || y->shape[y->ndim - 2] != 1)
        return none;
    return lb_recogniser_arg(t, sum, 0);
}

static lb_status pairs(lb_recogniser *t, uint32_t op)
{
    lb_reading leaves[3];
    uint32_t n = 0, at_product = 0, at_exp = 0;
    bool added;
    if (!lb_scan_is_product(t, op) || !lb_scan_factors(t, lb_recogniser_arg(t, op, 0), leaves, &n, 3) || n < 2)
        return LB_OK;
    const uint32_t cb = only_maker(t, leaves, n, lb_scan_is_product, &at_product),
                   exp = only_maker(t, leaves, n, lb_scan_is_exp, &at_exp);
    if (cb == LB_NONE || exp == LB_NONE) return LB_OK;
    const lb_reading e = exponent_of_pairs(t, exp), u = lb_recogniser_arg(t, op, 1);
    if (e.op == LB_NONE || u.op == LB_NONE) return LB_OK;
    lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_SELECTIVE_SCAN);
    c.inputs[LB_SCAN_EXPONENT] = e.value, c.inputs[LB_SCAN_U] = u.value;
    c.inputs[LB_SCAN_C] = lb_recogniser_arg(t, cb, 0).value, c.inputs[LB_SCAN_B] = lb_recogniser_arg(t, cb, 1).value;
    if (n == 3) c.inputs[LB_SCAN_DT] = leaves[3 - at_product - at_exp].value;
    c.outputs[LB_SCAN_Y] = lb_recogniser_result(t, op);
    c.flags = LB_SCAN_TURNED;
    const lb_layout *le = lb_scan_layout(t, e.value), *lu = lb_scan_layout(t, u.value),
                    *lc = lb_scan_layout(t, c.inputs[LB_SCAN_C]), *lb = lb_scan_layout(t, c.inputs[LB_SCAN_B]);
    const int64_t time = last_of(le), states = last_of(lc), batch = le->ndim == 3 ? le->shape[0] : 0;
    if (batch < 1 || lu->ndim != 3 || lu->shape[1] != time || lu->shape[0] != batch * le->shape[1] || lc->ndim != 3 ||
        lc->shape[1] != time || lb->ndim != 3 || lb->shape[1] != states || lb->shape[2] != time ||
        lc->shape[0] != lb->shape[0] || lc->shape[0] % batch || (batch * le->shape[1]) % lc->shape[0] ||
        (n == 3 && lb_layout_numel(lb_scan_layout(t, c.inputs[LB_SCAN_DT])) != lb_layout_numel(le)))
        return LB_OK;
    return lb_recogniser_add_between(t, &c, op, &added);
}

/* exp(c) or exp(-c) times something: that, and the op that summed c. */
static lb_reading scaled(const lb_recogniser *t, uint32_t product, uint32_t operand, bool negative, uint32_t *sum)
{
    lb_reading leaves[2];
    uint32_t n = 0, at = 0;
    *sum = LB_NONE;
    if (!lb_scan_factors(t, lb_recogniser_arg(t, product, operand), leaves, &n, 2) || n != 2)
        return (lb_reading){LB_NONE, LB_NONE};
    const uint32_t exp = only_maker(t, leaves, n, lb_scan_is_exp, &at);
    uint32_t inner = exp == LB_NONE ? LB_NONE : lb_scan_maker_of_arg(t, exp, 0);
    if (negative)
        inner = inner != LB_NONE && lb_recogniser_is(t, inner, "neg") ? lb_scan_maker_of_arg(t, inner, 0) : LB_NONE;
    *sum = inner;
    return leaves[1 - at];
}

static bool is_lower(const lb_recogniser *t, uint32_t op)
{
    double diagonal = 0;
    return lb_recogniser_is(t, op, "tril") && (!lb_recogniser_number(t, op, 1, &diagonal) || diagonal == 0);
}

static lb_status factored(lb_recogniser *t, uint32_t op)
{
    lb_reading leaves[2];
    uint32_t n = 0, at = 0, sums[2];
    bool added;
    if (!lb_scan_is_product(t, op) || !lb_scan_factors(t, lb_recogniser_arg(t, op, 0), leaves, &n, 2)) return LB_OK;
    const uint32_t lower = only_maker(t, leaves, n, is_lower, &at),
                   product = lower == LB_NONE ? LB_NONE : lb_scan_maker_of_arg(t, lower, 0);
    if (product == LB_NONE || !lb_scan_is_product(t, product)) return LB_OK;
    const lb_reading c_in = scaled(t, product, 0, false, &sums[0]), b_in = scaled(t, product, 1, true, &sums[1]),
                     u = lb_recogniser_arg(t, op, 1);
    if (c_in.op == LB_NONE || b_in.op == LB_NONE || u.op == LB_NONE || sums[0] != sums[1] ||
        !sums_along_last(t, sums[0]))
        return LB_OK;
    lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_SELECTIVE_SCAN);
    c.inputs[LB_SCAN_EXPONENT] = lb_recogniser_arg(t, sums[0], 0).value, c.inputs[LB_SCAN_U] = u.value;
    c.inputs[LB_SCAN_B] = b_in.value, c.inputs[LB_SCAN_C] = c_in.value;
    if (n == 2) c.inputs[LB_SCAN_DT] = leaves[1 - at].value;
    c.outputs[LB_SCAN_Y] = lb_recogniser_result(t, op);
    const lb_layout *le = lb_scan_layout(t, c.inputs[LB_SCAN_EXPONENT]), *lu = lb_scan_layout(t, u.value),
                    *lb = lb_scan_layout(t, b_in.value), *lc = lb_scan_layout(t, c_in.value);
    const int64_t time = last_of(le), batch = le->ndim == 3 ? le->shape[0] : 0;
    if (batch < 1 || lu->ndim != 3 || lu->shape[1] != time || lu->shape[0] != batch * le->shape[1] || lb->ndim != 4 ||
        !lb_layout_same_shape(lb, lc) || lb->shape[0] != batch || lb->shape[2] != time || le->shape[1] % lb->shape[1] ||
        (n == 2 && lb_layout_numel(lb_scan_layout(t, c.inputs[LB_SCAN_DT])) != lb_layout_numel(le)))
        return LB_OK;
    return lb_recogniser_add_between(t, &c, op, &added);
}

/* ---- in chunks --------------------------------------------------------------------------------------------------- */

/* What was padded at the end of time and cut in chunks: the value before, and the op that padded it. */
static lb_reading padded(const lb_recogniser *t, lb_reading r, uint32_t *pad)
{
    *pad = lb_scan_maker(t, &r);
    if (*pad == LB_NONE || !lb_recogniser_is(t, *pad, "constant_pad_nd")) return (lb_reading){LB_NONE, LB_NONE};
    return lb_recogniser_arg(t, *pad, 0);
}

/* exp(masked(cumsum(masked(spread e)))): the op that padded e. */
static uint32_t pad_of_segments(const lb_recogniser *t, uint32_t exp)
{
    const uint32_t outer = lb_scan_maker_of_arg(t, exp, 0);
    lb_reading r = masked(t, outer, -INFINITY);
    const uint32_t sum = r.op == LB_NONE ? LB_NONE : lb_scan_maker(t, &r);
    if (sum == LB_NONE || !lb_recogniser_is(t, sum, "cumsum") || !hides_the_future(t, outer)) return LB_NONE;
    r = masked(t, lb_scan_maker_of_arg(t, sum, 0), 0);
    return r.op == LB_NONE ? LB_NONE : lb_scan_maker(t, &r);
}

/* The states before each chunk are product(decays, cat(zeros, …)): nothing was handed in. */
static bool begins_at_zero(const lb_recogniser *t, uint32_t from_state)
{
    static const char *const zeros[] = {"zeros_like", "zeros", "new_zeros", NULL};
    const uint32_t passed = lb_scan_maker_of_arg(t, from_state, 1),
                   cat = lb_scan_is_product(t, passed) ? lb_scan_maker_of_arg(t, passed, 1) : LB_NONE;
    if (cat == LB_NONE || !lb_recogniser_is(t, cat, "cat")) return false;
    lb_reading first = lb_recogniser_item(t, cat, 0, 0);
    const uint32_t maker = lb_scan_maker(t, &first);
    return maker != LB_NONE && lb_recogniser_is_any(t, maker, zeros);
}

static lb_status chunks(lb_recogniser *t, uint32_t add)
{
    lb_reading inside[2], before[2];
    uint32_t n = 0, m = 0, at, pads[6];
    bool added;
    if (!lb_recogniser_is(t, add, "add") || lb_recogniser_arg(t, add, 1).op == LB_NONE) return LB_OK;
    const uint32_t diagonal = lb_scan_maker_of_arg(t, add, 0);
    if (!lb_scan_is_product(t, diagonal) || !lb_scan_factors(t, lb_recogniser_arg(t, diagonal, 0), inside, &n, 2) ||
        n != 2 || !lb_scan_factors(t, lb_recogniser_arg(t, add, 1), before, &m, 2) || m != 2)
        return LB_OK;
    const uint32_t cb = only_maker(t, inside, n, lb_scan_is_product, &at),
                   segments = only_maker(t, inside, n, lb_scan_is_exp, &at),
                   from_state = only_maker(t, before, m, lb_scan_is_product, &at),
                   decay = only_maker(t, before, m, lb_scan_is_exp, &at);
    if (cb == LB_NONE || segments == LB_NONE || from_state == LB_NONE || decay == LB_NONE) return LB_OK;
    const uint32_t sum = lb_scan_maker_of_arg(t, decay, 0);
    if (!sums_along_last(t, sum) || !begins_at_zero(t, from_state)) return LB_OK;
    const lb_reading e = padded(t, lb_recogniser_arg(t, sum, 0), &pads[0]),
                     c_in = padded(t, lb_recogniser_arg(t, cb, 0), &pads[1]),
                     b_in = padded(t, lb_recogniser_arg(t, cb, 1), &pads[2]),
                     u = padded(t, lb_recogniser_arg(t, diagonal, 1), &pads[3]),
                     again = padded(t, lb_recogniser_arg(t, from_state, 0), &pads[4]);
    if (e.op == LB_NONE || c_in.op == LB_NONE || b_in.op == LB_NONE || u.op == LB_NONE || again.op == LB_NONE ||
        pads[4] != pads[1] || pad_of_segments(t, segments) != pads[0])
        return LB_OK;
    lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_SELECTIVE_SCAN);
    c.inputs[LB_SCAN_EXPONENT] = e.value, c.inputs[LB_SCAN_U] = u.value, c.inputs[LB_SCAN_B] = b_in.value,
    c.inputs[LB_SCAN_C] = c_in.value;
    c.outputs[LB_SCAN_Y] = lb_recogniser_result(t, add);
    c.numbers[LB_SCAN_CHUNK] = (double)last_of(lb_scan_layout(t, lb_recogniser_arg(t, sum, 0).value));
    c.flags = LB_SCAN_TIME_FIRST;
    const lb_layout *le = lb_scan_layout(t, e.value), *lu = lb_scan_layout(t, u.value),
                    *lb = lb_scan_layout(t, b_in.value), *lc = lb_scan_layout(t, c_in.value);
    if (le->ndim != 3 || lu->ndim != 4 || lb->ndim != 4 || !lb_layout_same_shape(lb, lc)) return LB_OK;
    for (int d = 0; d < 3; d++)
        if (lu->shape[d] != le->shape[d] || lb->shape[d] != le->shape[d]) return LB_OK;
    return lb_recogniser_add_between(t, &c, add, &added);
}

lb_status lb_recogniser_scans(lb_recogniser *t)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        if (!lb_recogniser_forward(t, i)) continue;
        LB_TRY(pairs(t, i));
        LB_TRY(factored(t, i));
        LB_TRY(chunks(t, i));
    }
    return LB_OK;
}
