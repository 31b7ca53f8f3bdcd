/* Recognises selective scans that are written step by step, a loop over time whose outputs, or states, are stacked.
 *
 *   whole       h = E[:, i] h + D[:, i]                               E = exp(e) and D for all of time: Mamba in
 *               Hugging Face, its slow
 *                                                                    path, mamba-minimal, selective_scan_ref
 *   in the loop h = exp(dt_i A) h + dt_i B_i u_i                     dt, B and u for all of time, the rest for a step
 *   both        y_i = sum of h C_i over states, a product of matrices or of elements; in the loop also plus S u_i. Or
 *               states are stacked, and the sum is one for all steps (mamba.py)
 *
 * Every step has to be the same formula on the next slices, from a state of zeros on. */
#include "composites/scan_parts.h"

static const lb_reading nothing = {LB_NONE, LB_NONE};

typedef struct recurrence {
    const lb_recogniser *recogniser;
    int axis; /* of time, in what has channels */
    int64_t batch, channels, time, states;
    lb_composite composite;
    uint32_t decays; /* whole: the result of exp */
    lb_reading a, skip;
} recurrence;

/* One step as it was read: the state before and after, and what they were made of. */
typedef struct step {
    uint32_t state; /* the op that gave h_i */
    lb_reading decay, drive, c, skip, u;
} step;

/* ---- slices ------------------------------------------------------------------------------------------------------ */

/* `part` is whole[…, i, …] along dimension `axis`. */
static bool is_slice(const lb_recogniser *recogniser, uint32_t part, uint32_t whole, int axis, int64_t i)
{
    const lb_value *p = lb_recogniser_value(recogniser, part), *w = lb_recogniser_value(recogniser, whole);
    const lb_layout *x = &p->layout, *y = &w->layout;
    int from = 0;
    if (p->storage != w->storage || p->version != w->version || axis >= y->ndim ||
        x->offset != y->offset + i * y->stride[axis])
        return false;
    for (int d = 0; d < y->ndim; d++) {
        if (d == axis) continue;
        while (from < x->ndim && x->shape[from] == 1 && y->shape[d] != 1) from++;
        if (from >= x->ndim || x->shape[from] != y->shape[d] || (y->shape[d] > 1 && x->stride[from] != y->stride[d]))
            return false;
        from++;
    }
    return true;
}

/* The value (batch, time, width) of which `part` is the first slice. */
static uint32_t whole_of(const recurrence *recurrence, uint32_t part, int64_t width)
{
    const int64_t storage = lb_recogniser_value(recurrence->recogniser, part)->storage;
    for (uint32_t v = 0; v < recurrence->recogniser->program->n_values; v++) {
        const lb_layout *layout = lb_scan_layout(recurrence->recogniser, v);
        if (lb_recogniser_value(recurrence->recogniser, v)->storage == storage && layout->ndim == 3 &&
            layout->shape[0] == recurrence->batch && layout->shape[1] == recurrence->time &&
            layout->shape[2] == width && is_slice(recurrence->recogniser, part, v, 1, 0))
            return v;
    }
    return LB_NONE;
}

/* Slice `i` of an input; at first the input is found. */
static bool is_next(recurrence *recurrence, int role, lb_reading part, int64_t width, int64_t i)
{
    part = lb_recogniser_peel(recurrence->recogniser, part);
    if (part.op == LB_NONE) return false;
    if (i == 0) recurrence->composite.inputs[role] = whole_of(recurrence, part.value, width);
    const uint32_t whole = recurrence->composite.inputs[role];
    return whole != LB_NONE && is_slice(recurrence->recogniser, part.value, whole, 1, i);
}

static bool has_shape(const recurrence *recurrence, lb_reading part, int64_t channels, int64_t states)
{
    const lb_layout *layout = lb_scan_layout(recurrence->recogniser, part.value);
    return layout->ndim == 3 && layout->shape[0] == recurrence->batch && layout->shape[1] == channels &&
           layout->shape[2] == states;
}

/* ---- reading a step ---------------------------------------------------------------------------------------------- */

/* h and C of the sum over states of h C: operands of a product of matrices, or of elements. */
static bool read_sum(const lb_recogniser *recogniser, uint32_t op, lb_reading *h, lb_reading *c, uint32_t before)
{
    if (op == LB_NONE) return false;
    if (lb_scan_is_product(recogniser, op)) {
        *h = lb_recogniser_arg(recogniser, op, 0), *c = lb_recogniser_arg(recogniser, op, 1);
        return h->op != LB_NONE && c->op != LB_NONE;
    }
    const lb_reading of = lb_recogniser_arg(recogniser, op, 0);
    if (!lb_recogniser_is(recogniser, op, "sum") || of.op == LB_NONE || !lb_recogniser_last_dim(recogniser, op, 1, 3))
        return false;
    const uint32_t mul = lb_scan_maker_of_arg(recogniser, op, 0);
    if (mul == LB_NONE || !lb_recogniser_is(recogniser, mul, "mul") || lb_scan_layout(recogniser, of.value)->ndim != 3)
        return false;
    for (uint32_t k = 0; k < 2; k++) {
        lb_reading r = lb_recogniser_arg(recogniser, mul, k);
        const uint32_t maker = lb_scan_maker(recogniser, &r);
        *h = lb_recogniser_arg(recogniser, mul, k), *c = lb_recogniser_arg(recogniser, mul, 1 - k);
        if (maker != LB_NONE && maker != before && lb_recogniser_is(recogniser, maker, "add")) return c->op != LB_NONE;
    }
    return false;
}

/* h_i = decay h_{i-1} + drive; `before`: the op that gave h_{i-1}, LB_NONE: zeros. */
static bool read_state(const lb_recogniser *recogniser, lb_reading h, uint32_t before, step *step)
{
    static const char *const zeros[] = {"zeros_like", "zeros", "new_zeros", NULL};
    double alpha = 1;
    step->state = lb_scan_maker(recogniser, &h);
    if (step->state == LB_NONE || !lb_recogniser_is(recogniser, step->state, "add") ||
        (lb_recogniser_number(recogniser, step->state, 2, &alpha) && alpha != 1))
        return false;
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t mul = lb_scan_maker_of_arg(recogniser, step->state, k / 2);
        step->drive = lb_recogniser_arg(recogniser, step->state, 1 - k / 2);
        if (mul == LB_NONE || !lb_recogniser_is(recogniser, mul, "mul") || step->drive.op == LB_NONE) continue;
        const uint32_t maker = lb_scan_maker_of_arg(recogniser, mul, k % 2);
        step->decay = lb_recogniser_arg(recogniser, mul, 1 - k % 2);
        if (maker == LB_NONE || step->decay.op == LB_NONE) continue;
        if (before == LB_NONE ? lb_recogniser_is_any(recogniser, maker, zeros) : maker == before) return true;
    }
    return false;
}

static bool read_output(const lb_recogniser *recogniser, lb_reading y, uint32_t before, step *step)
{
    lb_reading h;
    const uint32_t op = lb_scan_maker(recogniser, &y);
    step->skip = step->u = nothing;
    if (read_sum(recogniser, op, &h, &step->c, before)) return read_state(recogniser, h, before, step);
    for (uint32_t k = 0; op != LB_NONE && lb_recogniser_is(recogniser, op, "add") && k < 2; k++) {
        const uint32_t mul = lb_scan_maker_of_arg(recogniser, op, 1 - k);
        if (mul == LB_NONE || !lb_recogniser_is(recogniser, mul, "mul") ||
            !read_sum(recogniser, lb_scan_maker_of_arg(recogniser, op, k), &h, &step->c, before))
            continue;
        step->skip = lb_recogniser_arg(recogniser, mul, 0), step->u = lb_recogniser_arg(recogniser, mul, 1);
        return step->skip.op != LB_NONE && step->u.op != LB_NONE && read_state(recogniser, h, before, step);
    }
    return false;
}

/* C_i, where the step reads one. */
static bool reads_next(recurrence *recurrence, const step *step, int64_t i)
{
    return step->c.op == LB_NONE || is_next(recurrence, LB_SCAN_C, step->c, recurrence->states, i);
}

/* ---- whole ------------------------------------------------------------------------------------------------------- */

/* E and D of the first step: results with time among their dimensions. */
static bool begins_whole(recurrence *recurrence, const step *step)
{
    lb_reading decay = step->decay;
    const uint32_t exp = lb_scan_maker(recurrence->recogniser, &decay),
                   drive = lb_recogniser_maker(recurrence->recogniser, step->drive);
    if (exp == LB_NONE || drive == LB_NONE || !lb_scan_is_exp(recurrence->recogniser, exp)) return false;
    recurrence->decays = lb_recogniser_result(recurrence->recogniser, exp);
    const uint32_t driven = lb_recogniser_result(recurrence->recogniser, drive);
    const lb_layout *layout = lb_scan_layout(recurrence->recogniser, recurrence->decays);
    if (layout->ndim != 4 || layout->shape[recurrence->axis] != recurrence->time ||
        !lb_layout_same_shape(layout, lb_scan_layout(recurrence->recogniser, driven)))
        return false;
    recurrence->batch = layout->shape[0], recurrence->channels = layout->shape[3 - recurrence->axis],
    recurrence->states = layout->shape[3];
    recurrence->composite.inputs[LB_SCAN_EXPONENT] = lb_recogniser_arg(recurrence->recogniser, exp, 0).value;
    recurrence->composite.inputs[LB_SCAN_U] = driven;
    recurrence->composite.flags = LB_SCAN_DRIVEN | (recurrence->axis == 1 ? LB_SCAN_TIME_FIRST : 0);
    return true;
}

static bool goes_on_whole(recurrence *recurrence, const step *step, int64_t i)
{
    return step->skip.op == LB_NONE &&
           is_slice(recurrence->recogniser, step->decay.value, recurrence->decays, recurrence->axis, i) &&
           is_slice(recurrence->recogniser, step->drive.value, recurrence->composite.inputs[LB_SCAN_U],
                    recurrence->axis, i) &&
           reads_next(recurrence, step, i);
}

/* ---- in the loop ------------------------------------------------------------------------------------------------- */

static bool begins_inside(recurrence *recurrence, const step *step)
{
    const lb_layout *layout =
        lb_scan_layout(recurrence->recogniser, lb_recogniser_result(recurrence->recogniser, step->state));
    if (layout->ndim != 3 || recurrence->axis != 1 || layout->shape[1] < 2 || layout->shape[2] < 2) return false;
    recurrence->batch = layout->shape[0], recurrence->channels = layout->shape[1],
    recurrence->states = layout->shape[2];
    recurrence->composite.flags = LB_SCAN_TIME_FIRST;
    return true;
}

/* The same parameter in every step, of so many elements, row after row. */
static bool is_constant(recurrence *recurrence, int role, lb_reading *first, lb_reading x, int64_t elements, int64_t i)
{
    if (i == 0) *first = x, recurrence->composite.inputs[role] = x.value;
    return lb_layout_numel(lb_scan_layout(recurrence->recogniser, x.value)) == elements &&
           lb_layout_is_contiguous(lb_scan_layout(recurrence->recogniser, x.value)) &&
           lb_recogniser_same(recurrence->recogniser, *first, x);
}

static bool goes_on_inside(recurrence *recurrence, const step *step, int64_t i)
{
    const lb_recogniser *recogniser = recurrence->recogniser;
    const int64_t d = recurrence->channels, n = recurrence->states;
    lb_reading exponent[2], drive[3], decay = step->decay, dt = nothing;
    uint32_t n_exponent = 0, n_drive = 0, roles = 0;
    const uint32_t exp = lb_scan_maker(recogniser, &decay);
    if (exp == LB_NONE || !lb_scan_is_exp(recogniser, exp) || !has_shape(recurrence, step->decay, d, n)) return false;
    if (!lb_scan_factors(recogniser, lb_recogniser_arg(recogniser, exp, 0), exponent, &n_exponent, 2) ||
        n_exponent != 2 || !lb_scan_factors(recogniser, step->drive, drive, &n_drive, 3) || n_drive != 3)
        return false;
    for (int k = 0; k < 2; k++)
        if (has_shape(recurrence, exponent[k], d, 1) &&
            is_constant(recurrence, LB_SCAN_A, &recurrence->a, exponent[1 - k], d * n, i))
            dt = exponent[k];
    if (dt.op == LB_NONE || !is_next(recurrence, LB_SCAN_DT, dt, d, i)) return false;
    recurrence->composite.inputs[LB_SCAN_EXPONENT] = recurrence->composite.inputs[LB_SCAN_DT];
    for (int k = 0; k < 3; k++) { /* each once: B, dt, u */
        if (has_shape(recurrence, drive[k], 1, n))
            roles |= is_next(recurrence, LB_SCAN_B, drive[k], n, i) ? 1 : 0;
        else if (has_shape(recurrence, drive[k], d, 1) && !(roles & 2) && lb_recogniser_same(recogniser, drive[k], dt))
            roles |= 2;
        else if (has_shape(recurrence, drive[k], d, 1))
            roles |= is_next(recurrence, LB_SCAN_U, drive[k], d, i) ? 4 : 0;
    }
    return roles == 7 && reads_next(recurrence, step, i);
}

/* S u_i, in every step or in none. */
static bool skips_on(recurrence *recurrence, const step *step, int64_t i)
{
    const bool skips = step->skip.op != LB_NONE;
    if (i && skips != (recurrence->composite.inputs[LB_SCAN_SKIP] != LB_NONE)) return false;
    if (!skips) return true;
    const lb_reading operands[] = {step->skip, step->u};
    for (int k = 0; k < 2; k++) {
        const lb_reading u = lb_recogniser_peel(recurrence->recogniser, operands[1 - k]);
        if (is_slice(recurrence->recogniser, u.value, recurrence->composite.inputs[LB_SCAN_U], 1, i))
            return is_constant(recurrence, LB_SCAN_SKIP, &recurrence->skip, operands[k], recurrence->channels, i);
    }
    return false;
}

/* ---- all steps --------------------------------------------------------------------------------------------------- */

static int stacked_along(const lb_recogniser *recogniser, uint32_t stack)
{
    double axis = 0;
    lb_recogniser_number(recogniser, stack, 1, &axis);
    return (int)(axis < 0 ? axis + 3 : axis);
}

/* Steps whose outputs were stacked, or whose states: `states`. */
static bool read_steps(recurrence *recurrence, uint32_t stack, bool states)
{
    bool whole = false;
    step step = {.state = LB_NONE};
    for (int64_t i = 0; i < recurrence->time; i++) {
        const lb_reading item = lb_recogniser_item(recurrence->recogniser, stack, 0, (uint32_t)i);
        const uint32_t before = step.state;
        if (states) step.c = step.skip = step.u = nothing;
        if (states ? !read_state(recurrence->recogniser, item, before, &step)
                   : !read_output(recurrence->recogniser, item, before, &step))
            return false;
        if (i == 0) whole = begins_whole(recurrence, &step);
        if (i == 0 && !whole && !begins_inside(recurrence, &step)) return false;
        if (whole ? !goes_on_whole(recurrence, &step, i)
                  : !goes_on_inside(recurrence, &step, i) || !skips_on(recurrence, &step, i))
            return false;
    }
    return true;
}

static lb_status outputs_stacked(lb_recogniser *recogniser, recurrence *recurrence, uint32_t stack)
{
    bool added;
    if (lb_scan_layout(recogniser, lb_recogniser_result(recogniser, stack))->ndim != 3 ||
        !read_steps(recurrence, stack, false))
        return LB_OK;
    recurrence->composite.outputs[LB_SCAN_Y] = lb_recogniser_result(recogniser, stack);
    return lb_recogniser_add_between(recogniser, &recurrence->composite, stack, &added);
}

/* ---- stacked states ---------------------------------------------------------------------------------------------- */

/* Whether x shows the elements of y in their order, y (batch, time, states): both dense, or in the same places but for
 * dimensions of one. */
static bool same_order(const lb_layout *x, const lb_layout *y)
{
    int from = 0;
    if (x->offset != y->offset || lb_layout_numel(x) != lb_layout_numel(y)) return false;
    if (lb_layout_is_contiguous(x) && lb_layout_is_contiguous(y)) return true;
    for (int d = 0; d < x->ndim; d++) {
        if (x->shape[d] == 1) continue;
        while (from < y->ndim && y->shape[from] == 1) from++;
        if (from == y->ndim || x->shape[d] != y->shape[from] || x->stride[d] != y->stride[from]) return false;
        from++;
    }
    return true;
}

/* C of all steps, as the sum over states reads it. */
static bool reads_whole(recurrence *recurrence, lb_reading c)
{
    lb_scan_maker(recurrence->recogniser, &c);
    const lb_value *read = lb_recogniser_value(recurrence->recogniser, c.value);
    for (uint32_t value = 0; value < recurrence->recogniser->program->n_values; value++) {
        const lb_value *whole = lb_recogniser_value(recurrence->recogniser, value);
        const lb_layout *layout = &whole->layout;
        if (whole->storage != read->storage || whole->version != read->version || layout->ndim != 3 ||
            layout->shape[0] != recurrence->batch || layout->shape[1] != recurrence->time ||
            layout->shape[2] != recurrence->states || !same_order(&read->layout, layout))
            continue;
        recurrence->composite.inputs[LB_SCAN_C] = value;
        return true;
    }
    return false;
}

/* The op that sums over states what was stacked times C; LB_NONE. */
static uint32_t sum_over_states(const lb_recogniser *recogniser, uint32_t stack, lb_reading *c)
{
    uint32_t users[4], sums[2];
    const uint32_t n = lb_recogniser_users(recogniser, stack, users, 4);
    for (uint32_t u = 0; u < n && u < 4; u++) {
        const bool product = lb_scan_is_product(recogniser, users[u]);
        const uint32_t k = lb_scan_maker_of_arg(recogniser, users[u], 0) == stack ? 0 : 1;
        *c = lb_recogniser_arg(recogniser, users[u], 1 - k);
        if (c->op == LB_NONE || lb_scan_maker_of_arg(recogniser, users[u], k) != stack) continue;
        if (product && k == 0) return users[u];
        if (lb_recogniser_is(recogniser, users[u], "mul") && lb_recogniser_users(recogniser, users[u], sums, 2) == 1 &&
            lb_recogniser_is(recogniser, sums[0], "sum") && lb_recogniser_last_dim(recogniser, sums[0], 1, 4))
            return sums[0];
    }
    return LB_NONE;
}

static lb_status states_stacked(lb_recogniser *recogniser, recurrence *recurrence, uint32_t stack)
{
    bool added;
    lb_reading c;
    const lb_layout *layout = lb_scan_layout(recogniser, lb_recogniser_result(recogniser, stack));
    if (layout->ndim != 4 || recurrence->axis != 1 || !read_steps(recurrence, stack, true)) return LB_OK;
    const uint32_t sum = sum_over_states(recogniser, stack, &c);
    if (sum == LB_NONE || !reads_whole(recurrence, c)) return LB_OK;
    recurrence->composite.outputs[LB_SCAN_Y] = lb_recogniser_result(recogniser, sum);
    if (lb_layout_numel(lb_scan_layout(recogniser, recurrence->composite.outputs[LB_SCAN_Y])) !=
        recurrence->batch * recurrence->time * recurrence->channels)
        return LB_OK;
    return lb_recogniser_add_between(recogniser, &recurrence->composite, sum, &added);
}

lb_status lb_recogniser_recurrences(lb_recogniser *recogniser)
{
    for (uint32_t i = 0; i < recogniser->program->n_ops; i++) {
        if (!lb_recogniser_forward(recogniser, i) || !lb_recogniser_is(recogniser, i, "stack")) continue;
        const lb_arg *list = &lb_op_args(recogniser->program, &recogniser->program->ops[i])[0];
        const recurrence begun = {.recogniser = recogniser,
                                  .axis = stacked_along(recogniser, i),
                                  .time = list->tag == LB_ARG_LIST ? list->count : 0,
                                  .composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_SELECTIVE_SCAN)};
        recurrence outputs = begun, states = begun;
        if (begun.time < 2 || (begun.axis != 1 && begun.axis != 2)) continue;
        LB_TRY(outputs_stacked(recogniser, &outputs, i));
        LB_TRY(states_stacked(recogniser, &states, i));
    }
    return LB_OK;
}
