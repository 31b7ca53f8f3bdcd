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
    const lb_recogniser *t;
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
static bool is_slice(const lb_recogniser *t, uint32_t part, uint32_t whole, int axis, int64_t i)
{
    const lb_value *p = lb_recogniser_value(t, part), *w = lb_recogniser_value(t, whole);
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
static uint32_t whole_of(const recurrence *r, uint32_t part, int64_t width)
{
    const int64_t storage = lb_recogniser_value(r->t, part)->storage;
    for (uint32_t v = 0; v < r->t->program->n_values; v++) {
        const lb_layout *l = lb_scan_layout(r->t, v);
        if (lb_recogniser_value(r->t, v)->storage == storage && l->ndim == 3 && l->shape[0] == r->batch &&
            l->shape[1] == r->time && l->shape[2] == width && is_slice(r->t, part, v, 1, 0))
            return v;
    }
    return LB_NONE;
}

/* Slice `i` of an input; at first the input is found. */
static bool is_next(recurrence *r, int role, lb_reading part, int64_t width, int64_t i)
{
    part = lb_recogniser_peel(r->t, part);
    if (part.op == LB_NONE) return false;
    if (i == 0) r->composite.inputs[role] = whole_of(r, part.value, width);
    const uint32_t whole = r->composite.inputs[role];
    return whole != LB_NONE && is_slice(r->t, part.value, whole, 1, i);
}

static bool has_shape(const recurrence *r, lb_reading part, int64_t channels, int64_t states)
{
    const lb_layout *l = lb_scan_layout(r->t, part.value);
    return l->ndim == 3 && l->shape[0] == r->batch && l->shape[1] == channels && l->shape[2] == states;
}

/* ---- reading a step ---------------------------------------------------------------------------------------------- */

/* h and C of the sum over states of h C: operands of a product of matrices, or of elements. */
static bool read_sum(const lb_recogniser *t, uint32_t op, lb_reading *h, lb_reading *c, uint32_t before)
{
    if (op == LB_NONE) return false;
    if (lb_scan_is_product(t, op)) {
        *h = lb_recogniser_arg(t, op, 0), *c = lb_recogniser_arg(t, op, 1);
        return h->op != LB_NONE && c->op != LB_NONE;
    }
    const lb_reading of = lb_recogniser_arg(t, op, 0);
    if (!lb_recogniser_is(t, op, "sum") || of.op == LB_NONE || !lb_recogniser_last_dim(t, op, 1, 3)) return false;
    const uint32_t mul = lb_scan_maker_of_arg(t, op, 0);
    if (mul == LB_NONE || !lb_recogniser_is(t, mul, "mul") || lb_scan_layout(t, of.value)->ndim != 3) return false;
    for (uint32_t k = 0; k < 2; k++) {
        lb_reading r = lb_recogniser_arg(t, mul, k);
        const uint32_t maker = lb_scan_maker(t, &r);
        *h = lb_recogniser_arg(t, mul, k), *c = lb_recogniser_arg(t, mul, 1 - k);
        if (maker != LB_NONE && maker != before && lb_recogniser_is(t, maker, "add")) return c->op != LB_NONE;
    }
    return false;
}

/* h_i = decay h_{i-1} + drive; `before`: the op that gave h_{i-1}, LB_NONE: zeros. */
static bool read_state(const lb_recogniser *t, lb_reading h, uint32_t before, step *s)
{
    static const char *const zeros[] = {"zeros_like", "zeros", "new_zeros", NULL};
    double alpha = 1;
    s->state = lb_scan_maker(t, &h);
    if (s->state == LB_NONE || !lb_recogniser_is(t, s->state, "add") ||
        (lb_recogniser_number(t, s->state, 2, &alpha) && alpha != 1))
        return false;
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t mul = lb_scan_maker_of_arg(t, s->state, k / 2);
        s->drive = lb_recogniser_arg(t, s->state, 1 - k / 2);
        if (mul == LB_NONE || !lb_recogniser_is(t, mul, "mul") || s->drive.op == LB_NONE) continue;
        const uint32_t maker = lb_scan_maker_of_arg(t, mul, k % 2);
        s->decay = lb_recogniser_arg(t, mul, 1 - k % 2);
        if (maker == LB_NONE || s->decay.op == LB_NONE) continue;
        if (before == LB_NONE ? lb_recogniser_is_any(t, maker, zeros) : maker == before) return true;
    }
    return false;
}

static bool read_output(const lb_recogniser *t, lb_reading y, uint32_t before, step *s)
{
    lb_reading h;
    const uint32_t op = lb_scan_maker(t, &y);
    s->skip = s->u = nothing;
    if (read_sum(t, op, &h, &s->c, before)) return read_state(t, h, before, s);
    for (uint32_t k = 0; op != LB_NONE && lb_recogniser_is(t, op, "add") && k < 2; k++) {
        const uint32_t mul = lb_scan_maker_of_arg(t, op, 1 - k);
        if (mul == LB_NONE || !lb_recogniser_is(t, mul, "mul") ||
            !read_sum(t, lb_scan_maker_of_arg(t, op, k), &h, &s->c, before))
            continue;
        s->skip = lb_recogniser_arg(t, mul, 0), s->u = lb_recogniser_arg(t, mul, 1);
        return s->skip.op != LB_NONE && s->u.op != LB_NONE && read_state(t, h, before, s);
    }
    return false;
}

/* C_i, where the step reads one. */
static bool reads_next(recurrence *r, const step *s, int64_t i)
{
    return s->c.op == LB_NONE || is_next(r, LB_SCAN_C, s->c, r->states, i);
}

/* ---- whole ------------------------------------------------------------------------------------------------------- */

/* E and D of the first step: results with time among their dimensions. */
static bool begins_whole(recurrence *r, const step *s)
{
    lb_reading decay = s->decay;
    const uint32_t exp = lb_scan_maker(r->t, &decay), drive = lb_recogniser_maker(r->t, s->drive);
    if (exp == LB_NONE || drive == LB_NONE || !lb_scan_is_exp(r->t, exp)) return false;
    r->decays = lb_recogniser_result(r->t, exp);
    const uint32_t driven = lb_recogniser_result(r->t, drive);
    const lb_layout *l = lb_scan_layout(r->t, r->decays);
    if (l->ndim != 4 || l->shape[r->axis] != r->time || !lb_layout_same_shape(l, lb_scan_layout(r->t, driven)))
        return false;
    r->batch = l->shape[0], r->channels = l->shape[3 - r->axis], r->states = l->shape[3];
    r->composite.inputs[LB_SCAN_EXPONENT] = lb_recogniser_arg(r->t, exp, 0).value;
    r->composite.inputs[LB_SCAN_U] = driven;
    r->composite.flags = LB_SCAN_DRIVEN | (r->axis == 1 ? LB_SCAN_TIME_FIRST : 0);
    return true;
}

static bool goes_on_whole(recurrence *r, const step *s, int64_t i)
{
    return s->skip.op == LB_NONE && is_slice(r->t, s->decay.value, r->decays, r->axis, i) &&
           is_slice(r->t, s->drive.value, r->composite.inputs[LB_SCAN_U], r->axis, i) && reads_next(r, s, i);
}

/* ---- in the loop ------------------------------------------------------------------------------------------------- */

static bool begins_inside(recurrence *r, const step *s)
{
    const lb_layout *l = lb_scan_layout(r->t, lb_recogniser_result(r->t, s->state));
    if (l->ndim != 3 || r->axis != 1 || l->shape[1] < 2 || l->shape[2] < 2) return false;
    r->batch = l->shape[0], r->channels = l->shape[1], r->states = l->shape[2];
    r->composite.flags = LB_SCAN_TIME_FIRST;
    return true;
}

/* The same parameter in every step, of so many elements, row after row. */
static bool is_constant(recurrence *r, int role, lb_reading *first, lb_reading x, int64_t elements, int64_t i)
{
    if (i == 0) *first = x, r->composite.inputs[role] = x.value;
    return lb_layout_numel(lb_scan_layout(r->t, x.value)) == elements &&
           lb_layout_is_contiguous(lb_scan_layout(r->t, x.value)) && lb_recogniser_same(r->t, *first, x);
}

static bool goes_on_inside(recurrence *r, const step *s, int64_t i)
{
    const lb_recogniser *t = r->t;
    const int64_t d = r->channels, n = r->states;
    lb_reading exponent[2], drive[3], decay = s->decay, dt = nothing;
    uint32_t n_exponent = 0, n_drive = 0, roles = 0;
    const uint32_t exp = lb_scan_maker(t, &decay);
    if (exp == LB_NONE || !lb_scan_is_exp(t, exp) || !has_shape(r, s->decay, d, n)) return false;
    if (!lb_scan_factors(t, lb_recogniser_arg(t, exp, 0), exponent, &n_exponent, 2) || n_exponent != 2 ||
        !lb_scan_factors(t, s->drive, drive, &n_drive, 3) || n_drive != 3)
        return false;
    for (int k = 0; k < 2; k++)
        if (has_shape(r, exponent[k], d, 1) && is_constant(r, LB_SCAN_A, &r->a, exponent[1 - k], d * n, i))
            dt = exponent[k];
    if (dt.op == LB_NONE || !is_next(r, LB_SCAN_DT, dt, d, i)) return false;
    r->composite.inputs[LB_SCAN_EXPONENT] = r->composite.inputs[LB_SCAN_DT];
    for (int k = 0; k < 3; k++) { /* each once: B, dt, u */
        if (has_shape(r, drive[k], 1, n))
            roles |= is_next(r, LB_SCAN_B, drive[k], n, i) ? 1 : 0;
        else if (has_shape(r, drive[k], d, 1) && !(roles & 2) && lb_recogniser_same(t, drive[k], dt))
            roles |= 2;
        else if (has_shape(r, drive[k], d, 1))
            roles |= is_next(r, LB_SCAN_U, drive[k], d, i) ? 4 : 0;
    }
    return roles == 7 && reads_next(r, s, i);
}

/* S u_i, in every step or in none. */
static bool skips_on(recurrence *r, const step *s, int64_t i)
{
    const bool skips = s->skip.op != LB_NONE;
    if (i && skips != (r->composite.inputs[LB_SCAN_SKIP] != LB_NONE)) return false;
    if (!skips) return true;
    const lb_reading operands[] = {s->skip, s->u};
    for (int k = 0; k < 2; k++) {
        const lb_reading u = lb_recogniser_peel(r->t, operands[1 - k]);
        if (is_slice(r->t, u.value, r->composite.inputs[LB_SCAN_U], 1, i))
            return is_constant(r, LB_SCAN_SKIP, &r->skip, operands[k], r->channels, i);
    }
    return false;
}

/* ---- all steps --------------------------------------------------------------------------------------------------- */

static int stacked_along(const lb_recogniser *t, uint32_t stack)
{
    double axis = 0;
    lb_recogniser_number(t, stack, 1, &axis);
    return (int)(axis < 0 ? axis + 3 : axis);
}

/* Steps whose outputs were stacked, or whose states: `states`. */
static bool read_steps(recurrence *r, uint32_t stack, bool states)
{
    bool whole = false;
    step s = {.state = LB_NONE};
    for (int64_t i = 0; i < r->time; i++) {
        const lb_reading item = lb_recogniser_item(r->t, stack, 0, (uint32_t)i);
        const uint32_t before = s.state;
        if (states) s.c = s.skip = s.u = nothing;
        if (states ? !read_state(r->t, item, before, &s) : !read_output(r->t, item, before, &s)) return false;
        if (i == 0) whole = begins_whole(r, &s);
        if (i == 0 && !whole && !begins_inside(r, &s)) return false;
        if (whole ? !goes_on_whole(r, &s, i) : !goes_on_inside(r, &s, i) || !skips_on(r, &s, i)) return false;
    }
    return true;
}

static lb_status outputs_stacked(lb_recogniser *t, recurrence *r, uint32_t stack)
{
    bool added;
    if (lb_scan_layout(t, lb_recogniser_result(t, stack))->ndim != 3 || !read_steps(r, stack, false)) return LB_OK;
    r->composite.outputs[LB_SCAN_Y] = lb_recogniser_result(t, stack);
    return lb_recogniser_add_between(t, &r->composite, stack, &added);
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
static bool reads_whole(recurrence *r, lb_reading c)
{
    lb_scan_maker(r->t, &c);
    const lb_value *read = lb_recogniser_value(r->t, c.value);
    for (uint32_t v = 0; v < r->t->program->n_values; v++) {
        const lb_value *whole = lb_recogniser_value(r->t, v);
        const lb_layout *l = &whole->layout;
        if (whole->storage != read->storage || whole->version != read->version || l->ndim != 3 ||
            l->shape[0] != r->batch || l->shape[1] != r->time || l->shape[2] != r->states ||
            !same_order(&read->layout, l))
            continue;
        r->composite.inputs[LB_SCAN_C] = v;
        return true;
    }
    return false;
}

/* The op that sums over states what was stacked times C; LB_NONE. */
static uint32_t sum_over_states(const lb_recogniser *t, uint32_t stack, lb_reading *c)
{
    uint32_t users[4], sums[2];
    const uint32_t n = lb_recogniser_users(t, stack, users, 4);
    for (uint32_t u = 0; u < n && u < 4; u++) {
        const bool product = lb_scan_is_product(t, users[u]);
        const uint32_t k = lb_scan_maker_of_arg(t, users[u], 0) == stack ? 0 : 1;
        *c = lb_recogniser_arg(t, users[u], 1 - k);
        if (c->op == LB_NONE || lb_scan_maker_of_arg(t, users[u], k) != stack) continue;
        if (product && k == 0) return users[u];
        if (lb_recogniser_is(t, users[u], "mul") && lb_recogniser_users(t, users[u], sums, 2) == 1 &&
            lb_recogniser_is(t, sums[0], "sum") && lb_recogniser_last_dim(t, sums[0], 1, 4))
            return sums[0];
    }
    return LB_NONE;
}

static lb_status states_stacked(lb_recogniser *t, recurrence *r, uint32_t stack)
{
    bool added;
    lb_reading c;
    const lb_layout *l = lb_scan_layout(t, lb_recogniser_result(t, stack));
    if (l->ndim != 4 || r->axis != 1 || !read_steps(r, stack, true)) return LB_OK;
    const uint32_t sum = sum_over_states(t, stack, &c);
    if (sum == LB_NONE || !reads_whole(r, c)) return LB_OK;
    r->composite.outputs[LB_SCAN_Y] = lb_recogniser_result(t, sum);
    if (lb_layout_numel(lb_scan_layout(t, r->composite.outputs[LB_SCAN_Y])) != r->batch * r->time * r->channels)
        return LB_OK;
    return lb_recogniser_add_between(t, &r->composite, sum, &added);
}

lb_status lb_recogniser_recurrences(lb_recogniser *t)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        if (!lb_recogniser_forward(t, i) || !lb_recogniser_is(t, i, "stack")) continue;
        const lb_arg *list = &lb_op_args(t->program, &t->program->ops[i])[0];
        const recurrence begun = {.t = t,
                                  .axis = stacked_along(t, i),
                                  .time = list->tag == LB_ARG_LIST ? list->count : 0,
                                  .composite = lb_recogniser_composite(t, LB_COMPOSITE_SELECTIVE_SCAN)};
        recurrence outputs = begun, states = begun;
        if (begun.time < 2 || (begun.axis != 1 && begun.axis != 2)) continue;
        LB_TRY(outputs_stacked(t, &outputs, i));
        LB_TRY(states_stacked(t, &states, i));
    }
    return LB_OK;
}
