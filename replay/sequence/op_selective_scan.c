/* Custom ops of state-space models: selective scans and their gradients, under the names of mamba_ssm, vLLM and lingua.
 *
 *      h = exp(dt A) h + dt B u,  y = C h + D u,  out = y silu(z)       one state h of `states` numbers for each row
 *
 * One engine serves all of them: a row is one head's one part in one sequence, and an operand says by its steps where
 * it has the number of a row at a time for a state. Mamba's channels are heads of one part with an A for each state;
 * Mamba-2 has heads of many parts that share A and dt.
 *
 *      custom_ops::    state-spaces/mamba mamba_ssm/ops/"selective_scan_interface_ compilable.py"; defined by
 *                      selective_scan_ref of selective_scan_interface.py, with real A
 *      _C::            vllm-project/vllm csrc/libtorch_stable/torch_bindings.cpp,
 *                      csrc/mamba/mamba_ssm/selective_scan_fwd.cu: y takes the place of delta, the gated one that of z
 *      mamba_ssm::     facebookresearch/lingua apps/mamba/core_mamba.py, around mamba_chunk_scan_combined; defined by
 *                      ssd_combined.py, ssd_chunk_state.py and ssd_chunk_scan.py of mamba_ssm/ops/triton
 *
 * mamba_ssm's other kernels (mamba_chunk_scan_combined by itself, selective_state_update) are autograd functions around
 * Triton and no registered ops, so nothing of theirs is recorded but casts and copies. */
#include "functions/elementary.h"
#include "kernel/frame.h"

#include <math.h>
#include <string.h>

/* Above this softplus is the identity. */
#define SOFTPLUS_ENDS 20

/* Steps: by how many elements it is further on. */
typedef struct operand {
    const void *x; /* NULL: there is none */
    double *gradient;
    int64_t batch, time, head, part, state, sharers, n; /* sharers: neighbouring heads that have one between them */
} operand;

enum { U, DT, A, B, C, D, Z, BIAS, INITIAL, OPERANDS };

typedef struct scan {
    lb_frame frame;
    operand of[OPERANDS];
    int64_t batch, heads, parts, length, states;
    const int64_t *documents; /* (batch, length): another number, another sequence; NULL: one */
    double least_dt, most_dt;
    bool softplus, twin;
    double slack; /* of a twin */
    void *final, *out;
    const void *dout, *y; /* backward: y as forward left it */
} scan;

/* `length` steps from `first` on. */
typedef struct row {
    int64_t batch, head, part, first, length;
} row;

static double get(const scan *s, const void *x, int64_t i)
{
    return lb_frame_get(&s->frame, x, i);
}

static void put(const scan *s, void *x, int64_t i, double value)
{
    if (x) lb_frame_set(&s->frame, x, i, value);
}

static int64_t place(const operand *o, const row *r, int64_t t, int64_t n)
{
    return r->batch * o->batch + (r->first + t) * o->time + r->head / o->sharers * o->head + r->part * o->part +
           n * o->state;
}

static double value(const scan *s, int which, const row *r, int64_t t, int64_t n)
{
    const operand *o = &s->of[which];
    return o->x ? get(s, o->x, place(o, r, t, n)) : 0;
}

/* dt of step t, and by how much it grows with what was recorded. */
static double step_size(const scan *s, const row *r, int64_t t, double *slope)
{
    double dt = value(s, DT, r, t, 0) + value(s, BIAS, r, t, 0), grows = 1;
    if (s->softplus && dt <= SOFTPLUS_ENDS) grows = lb_sigmoid(dt), dt = lb_log1p(lb_exp(dt));
    if (dt < s->least_dt || dt > s->most_dt) grows = 0, dt = dt < s->least_dt ? s->least_dt : s->most_dt;
    if (slope) *slope = grows;
    return dt;
}

static bool begins(const scan *s, const row *r, int64_t t)
{
    const int64_t *at = s->documents ? s->documents + r->batch * s->length + r->first + t : NULL;
    return at && t && at[0] != at[-1];
}

/* The state after step t in place of that before it. An error of exp grows with |dt A|: *steepest is the largest. */
static void step(const scan *s, const row *r, int64_t t, double *h, double *steepest)
{
    const double dt = step_size(s, r, t, NULL), u = value(s, U, r, t, 0);
    const bool fresh = begins(s, r, t);
    for (int64_t n = 0; n < s->states; n++) {
        const double exponent = dt * value(s, A, r, t, n), add = dt * value(s, B, r, t, n) * u;
        *steepest = fmax(*steepest, fabs(exponent));
        h[n] = (fresh ? 0 : lb_exp(exponent) * h[n]) + (s->twin ? fabs(add) : add);
    }
}

static void forward_row(const scan *s, const row *r, double *h)
{
    double steepest = 0;
    for (int64_t n = 0; s->twin && n < s->states; n++) h[n] = fabs(h[n]);
    for (int64_t t = 0; t < r->length; t++) {
        double y = value(s, D, r, t, 0) * value(s, U, r, t, 0);
        if (s->twin) y = fabs(y);
        step(s, r, t, h, &steepest);
        for (int64_t n = 0; n < s->states; n++) {
            const double c = value(s, C, r, t, n);
            y += s->twin ? fabs(c) * h[n] : c * h[n];
        }
        if (s->twin) y *= (1 + steepest) * s->slack;
        const double z = value(s, Z, r, t, 0);
        put(s, s->out, place(&s->of[U], r, t, 0), y);
        put(s, s->final, place(&s->of[U], r, t, 0), !s->of[Z].x ? y : s->twin ? y * fabs(z) : y * z * lb_sigmoid(z));
    }
    for (int64_t n = 0; s->twin && n < s->states; n++) h[n] *= 1 + steepest;
}

static void load_state(const scan *s, const row *r, double *h)
{
    for (int64_t n = 0; n < s->states; n++) h[n] = value(s, INITIAL, r, 0, n);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static void add_to(const scan *s, int which, const row *r, int64_t t, int64_t n, double gradient)
{
    const operand *o = &s->of[which];
    if (o->gradient) o->gradient[place(o, r, t, n)] += s->twin ? fabs(gradient) : gradient;
}

/* Of y: what comes back through the gate, whose own gradient is taken along. */
static double through_gate(const scan *s, const row *r, int64_t t)
{
    const int64_t i = place(&s->of[U], r, t, 0);
    const double dout = get(s, s->dout, i);
    if (!s->of[Z].x) return dout;
    const double z = value(s, Z, r, t, 0), sigmoid = lb_sigmoid(z), y = get(s, s->y, i);
    /* The derivative of silu is below 1.1; its terms are below 1 + |z|. */
    add_to(s, Z, r, t, 0, s->twin ? dout * y * (1 + fabs(z)) * s->slack : dout * y * sigmoid * (1 + z * (1 - sigmoid)));
    return s->twin ? dout * z : dout * z * sigmoid;
}

/* `h`: states before step 0, 1, …; `g`: the gradient of one. */
static void backward_row(const scan *s, const row *r, double *h, double *g)
{
    const int64_t states = s->states;
    double steepest = 0;
    load_state(s, r, h);
    for (int64_t n = 0; n < states; n++) g[n] = 0, h[n] = s->twin ? fabs(h[n]) : h[n];
    for (int64_t t = 0; t < r->length; t++) {
        memcpy(h + (t + 1) * states, h + t * states, (size_t)states * sizeof *h);
        step(s, r, t, h + (t + 1) * states, &steepest);
    }
    for (int64_t t = r->length; t-- > 0;) {
        double slope, dy = through_gate(s, r, t), ddt = 0;
        const double dt = step_size(s, r, t, &slope), u = value(s, U, r, t, 0);
        const double *before = h + t * states, *after = before + states;
        if (s->twin) dy = fabs(dy) * (1 + 3 * steepest) * s->slack; /* an error of exp in h, in g and where they meet */
        double du = dy * value(s, D, r, t, 0);
        if (s->twin) du = fabs(du);
        add_to(s, D, r, t, 0, dy * u);
        for (int64_t n = 0; n < states; n++) {
            const double a = value(s, A, r, t, n), b = value(s, B, r, t, n), c = value(s, C, r, t, n);
            const double decay = begins(s, r, t) ? 0 : lb_exp(dt * a), carried = decay * before[n];
            g[n] += s->twin ? fabs(c) * dy : c * dy;
            add_to(s, C, r, t, n, dy * after[n]);
            add_to(s, B, r, t, n, g[n] * dt * u);
            add_to(s, A, r, t, n, g[n] * dt * carried);
            du += s->twin ? g[n] * fabs(dt * b) : g[n] * dt * b;
            ddt += s->twin ? g[n] * (fabs(b * u) + fabs(a) * carried) : g[n] * (b * u + a * carried);
            g[n] *= decay;
        }
        add_to(s, U, r, t, 0, du);
        add_to(s, DT, r, t, 0, ddt * slope);
        add_to(s, BIAS, r, t, 0, ddt * slope);
    }
    for (int64_t n = 0; n < states; n++) add_to(s, INITIAL, r, 0, n, g[n]);
}

/* Result `i` is the gradient of each in `order`; what there is none of has an empty one. */
static lb_status backward(scan *s, const int *order, int n_results)
{
    int64_t total = 0, at = 0;
    for (int i = 0; i < n_results; i++) total += s->of[order[i]].n;
    double *gradients = lb_frame_scratch(&s->frame, (size_t)total * sizeof *gradients);
    for (int64_t k = 0; gradients && k < total; k++) gradients[k] = 0;
    for (int i = 0; i < n_results; at += s->of[order[i++]].n)
        if (gradients && s->of[order[i]].n) s->of[order[i]].gradient = gradients + at;
    double *h = lb_frame_scratch(&s->frame, (size_t)((s->length + 1) * s->states) * sizeof *h),
           *g = lb_frame_scratch(&s->frame, (size_t)s->states * sizeof *g);
    row r = {.length = s->length};
    for (r.batch = 0; r.batch < s->batch; r.batch++)
        for (r.head = 0; r.head < s->heads; r.head++)
            for (r.part = 0; lb_frame_ok(&s->frame) && r.part < s->parts; r.part++) backward_row(s, &r, h, g);
    for (int i = 0; lb_frame_ok(&s->frame) && i < n_results; i++) {
        const operand *o = &s->of[order[i]];
        void *to = o->gradient ? lb_frame_output(&s->frame, (uint32_t)i, o->n) : NULL;
        for (int64_t k = 0; to && k < o->n; k++) put(s, to, k, o->gradient[k]);
    }
    return lb_frame_end(&s->frame);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static scan begin(lb_call *call, bool twin)
{
    return (scan){.frame = lb_frame_begin(call), .twin = twin, .most_dt = INFINITY, .least_dt = -INFINITY, .slack = 1};
}

static lb_status refuse(scan *s, const char *why)
{
    lb_frame_fail(&s->frame, LB_ERR_UNSUPPORTED, why);
    return lb_frame_end(&s->frame);
}

/* `steps`: of batch, time, head, part, state. */
static void set(scan *s, int which, const lb_tensor *t, int64_t sharers, const int64_t steps[5])
{
    s->of[which] = (operand){.x = lb_frame_tensor(&s->frame, t),
                             .sharers = sharers,
                             .n = t ? lb_tensor_numel(t) : 0,
                             .batch = steps[0],
                             .time = steps[1],
                             .head = steps[2],
                             .part = steps[3],
                             .state = steps[4]};
}
#define SET(WHICH, TENSOR, SHARERS, ...) set(s, WHICH, TENSOR, SHARERS, (const int64_t[5]){__VA_ARGS__})

/* There is none, or it has n elements. */
static bool has(const scan *s, int which, int64_t n)
{
    return !s->of[which].x || s->of[which].n == n;
}

/* The gradient of the result stands first, y at `y`. */
static bool read_gradient(scan *s, uint32_t y)
{
    const lb_tensor *dout = lb_frame_arg_tensor(s->frame.call, 0), *out = lb_frame_arg_tensor(s->frame.call, y);
    s->dout = lb_frame_tensor(&s->frame, dout), s->y = lb_frame_tensor(&s->frame, out);
    return dout && out && lb_tensor_numel(dout) == s->of[U].n && lb_tensor_numel(out) == s->of[U].n;
}

/* Mamba's B or C: (channels, states), or (batch, [groups,] states, length); (groups, states, length) of sequences end
 * to end. */
static bool set_varying(scan *s, int which, const lb_tensor *t, bool ragged)
{
    const int lead = t->layout.ndim - 2; /* dimensions before (states, length) */
    if (lb_dtype_is_complex(t->dtype)) return false;
    if (!lead && lb_tensor_numel(t) == s->heads * s->states) {
        SET(which, t, 1, 0, 0, s->states, 0, 1);
        return true;
    }
    const int64_t groups = ragged      ? t->layout.shape[0]
                           : lead == 2 ? t->layout.shape[1]
                                       : 1,
                  each = s->states * s->length;
    if (lead < 1 || lead > 2 || groups < 1 || s->heads % groups || lb_tensor_numel(t) != s->batch * groups * each)
        return false;
    SET(which, t, s->heads / groups, groups * each, 1, each, 0, s->length);
    return true;
}

/* Mamba's operands at these positions; u (batch, channels, length), or (channels, length) of sequences end to end. */
typedef struct positions {
    uint8_t u, delta, a, b, c, d, z, bias, softplus;
} positions;

static bool open_channels(scan *s, const positions *at, bool ragged)
{
    const lb_call *call = s->frame.call;
    const lb_tensor *u = lb_frame_arg_tensor(call, at->u), *a = lb_frame_arg_tensor(call, at->a),
                    *b = lb_frame_arg_tensor(call, at->b), *c = lb_frame_arg_tensor(call, at->c),
                    *z = lb_frame_arg_tensor(call, at->z);
    if (!u || !a || !b || !c || a->layout.ndim != 2 || lb_dtype_is_complex(a->dtype) ||
        u->layout.ndim != (ragged ? 2 : 3))
        return false;
    s->batch = ragged ? 1 : u->layout.shape[0], s->heads = a->layout.shape[0], s->parts = 1;
    s->length = u->layout.shape[u->layout.ndim - 1], s->states = a->layout.shape[1];
    if (lb_tensor_numel(u) != s->batch * s->heads * s->length) return false;
    const int64_t of_batch = s->heads * s->length;
    SET(U, u, 1, of_batch, 1, s->length, 0, 0);
    SET(DT, lb_frame_arg_tensor(call, at->delta), 1, of_batch, 1, s->length, 0, 0);
    SET(A, a, 1, 0, 0, s->states, 0, 1);
    SET(D, lb_frame_arg_tensor(call, at->d), 1, 0, 0, 1, 0, 0);
    SET(Z, z, 1, of_batch, 1, s->length, 0, 0);
    SET(BIAS, lb_frame_arg_tensor(call, at->bias), 1, 0, 0, 1, 0, 0);
    s->softplus = lb_frame_arg_int(call, at->softplus, 0) != 0;
    s->slack = 1 + 2 * lb_frame_twin_rounding(call, at->u);
    return set_varying(s, B, b, ragged) && set_varying(s, C, c, ragged) && has(s, DT, s->of[U].n) &&
           has(s, Z, s->of[U].n) && has(s, D, s->heads) && has(s, BIAS, s->heads);
}
#define ODD_SHAPES "(batch, channels, length) by real (channels, states), with B and C that belong to them"

/* ---- mamba_ssm --------------------------------------------------------------------------------------------------- */

/* Results: final_out, last_state (empty when not asked for), out, and x: states between chunks, taken as recorded. */
static lb_status mamba_forward(lb_call *call, bool twin)
{
    static const positions at = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    scan s = begin(call, twin);
    if (!open_channels(&s, &at, false)) return refuse(&s, ODD_SHAPES);
    const int64_t rows = s.batch * s.heads, n = rows * s.length;
    s.final = lb_frame_output(&s.frame, 0, n);
    const bool keeps = call->n_results > 1 && lb_frame_arg_int(call, 9, 0) && call->results[1].data;
    void *last = keeps ? lb_frame_output(&s.frame, 1, rows * s.states) : NULL;
    s.out = call->n_results > 2 ? lb_frame_output(&s.frame, 2, n) : NULL;
    double *h = lb_frame_scratch(&s.frame, (size_t)s.states * sizeof *h);
    for (int64_t i = 0; lb_frame_ok(&s.frame) && i < rows; i++) {
        const row r = {.batch = i / s.heads, .head = i % s.heads, .length = s.length};
        load_state(&s, &r, h);
        forward_row(&s, &r, h);
        for (int64_t k = 0; k < s.states; k++) put(&s, last, i * s.states + k, h[k]);
    }
    return lb_frame_end(&s.frame);
}
LB_WITH_TWIN(mamba_forward, mamba_forward(call, twin))

/* Results: gradients of u, delta, A, B, C, D, z, delta_bias. */
static lb_status mamba_backward(lb_call *call, bool twin)
{
    static const positions at = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const int order[] = {U, DT, A, B, C, D, Z, BIAS};
    scan s = begin(call, twin);
    if (!open_channels(&s, &at, false)) return refuse(&s, ODD_SHAPES);
    return read_gradient(&s, 10) ? backward(&s, order, 8) : refuse(&s, ODD_SHAPES);
}
LB_WITH_TWIN(mamba_backward, mamba_backward(call, twin))

/* ---- vLLM -------------------------------------------------------------------------------------------------------- */

enum {
    V_D = 5,
    V_Z,
    V_BIAS,
    V_SOFTPLUS,
    V_BORDERS,
    V_SLOTS,
    V_HAS_STATE,
    V_STATES,
    V_NULL_SLOT,
    V_BLOCK_SIZE,
    V_FIRST_BLOCK
};

/* Results are what the schema says is written: u, delta, A, B, C, z where it is given, ssm_states. u, A, B and C stay
 * as they are. */
static lb_status vllm_scan(lb_call *call, bool twin)
{
    static const positions at = {0, 1, 2, 3, 4, V_D, V_Z, V_BIAS, V_SOFTPLUS};
    scan s = begin(call, twin);
    const lb_tensor *states = lb_frame_arg_tensor(call, V_STATES), *borders = lb_frame_arg_tensor(call, V_BORDERS),
                    *slots = lb_frame_arg_tensor(call, V_SLOTS), *begun = lb_frame_arg_tensor(call, V_HAS_STATE);
    for (uint32_t i = V_FIRST_BLOCK; i < call->n_args; i++)
        if (lb_frame_arg_given(call, i)) return refuse(&s, "states kept block by block are not computed");
    if (!states || call->n_results < 6 || !open_channels(&s, &at, borders != NULL)) return refuse(&s, ODD_SHAPES);
    const int64_t sequences = borders ? lb_tensor_numel(borders) - 1 : s.batch, each = s.heads * s.states,
                  held = lb_tensor_numel(states), null_slot = lb_frame_arg_int(call, V_NULL_SLOT, -1);
    if ((slots && lb_tensor_numel(slots) != sequences) || (begun && lb_tensor_numel(begun) != sequences))
        return refuse(&s, "slots or states that do not belong to the sequences");
    const int64_t *from = lb_frame_integers(&s.frame, borders), *slot = lb_frame_integers(&s.frame, slots),
                  *has = lb_frame_integers(&s.frame, begun);
    const void *before = lb_frame_tensor(&s.frame, states);
    const uint32_t last = call->n_results - 1;
    void *after = lb_frame_output(&s.frame, last, held), *copies[5];
    const int copied[] = {U, DT, A, B, C};
    for (uint32_t i = 0; i < 5; i++) copies[i] = lb_frame_output(&s.frame, i, s.of[copied[i]].n);
    s.out = copies[1], s.final = s.of[Z].x ? lb_frame_output(&s.frame, 5, s.of[Z].n) : NULL;
    double *h = lb_frame_scratch(&s.frame, (size_t)s.states * sizeof *h);
    if (!lb_frame_ok(&s.frame)) return lb_frame_end(&s.frame);
    for (uint32_t i = 0; i < 5; i++)
        for (int64_t k = 0; k < s.of[copied[i]].n; k++) put(&s, copies[i], k, get(&s, s.of[copied[i]].x, k));
    for (int64_t k = 0; s.final && k < s.of[Z].n; k++) put(&s, s.final, k, get(&s, s.of[Z].x, k));
    for (int64_t k = 0; k < held; k++) put(&s, after, k, get(&s, before, k));
    for (int64_t i = 0; i < sequences * s.heads; i++) {
        const int64_t q = i / s.heads, first = from ? from[q] : 0, end = from ? from[q + 1] : s.length,
                      at_slot = slot ? slot[q] : q;
        if (slot && slot[q] == null_slot) continue; /* padding */
        if (at_slot < 0 || (each && at_slot >= held / each) || first < 0 || first > end || end > s.length)
            return refuse(&s, "a slot or a border outside what there is");
        const int64_t kept = at_slot * each + i % s.heads * s.states;
        const row r = {.batch = from ? 0 : q, .head = i % s.heads, .first = first, .length = end - first};
        for (int64_t n = 0; n < s.states; n++) h[n] = has && has[q] ? get(&s, before, kept + n) : 0;
        forward_row(&s, &r, h);
        for (int64_t n = 0; n < s.states; n++) put(&s, after, kept + n, h[n]);
    }
    return lb_frame_end(&s.frame);
}
LB_WITH_TWIN(vllm, vllm_scan(call, twin))

/* ---- Mamba-2 ----------------------------------------------------------------------------------------------------- */

/* From x on, which stands at `x`: x (batch, length, heads, parts), dt (batch, length, heads), A (heads), B, C (batch,
 * length, groups, states); `rest`: D (heads[, parts]), z as x, dt_bias (heads), initial_states (batch, heads, parts,
 * states), seq_idx. */
static bool open_heads(scan *s, uint32_t x_at, uint32_t rest, uint32_t softplus)
{
    const lb_call *call = s->frame.call;
    const lb_tensor *x = lb_frame_arg_tensor(call, x_at), *dt = lb_frame_arg_tensor(call, x_at + 1),
                    *a = lb_frame_arg_tensor(call, x_at + 2), *b = lb_frame_arg_tensor(call, x_at + 3),
                    *c = lb_frame_arg_tensor(call, x_at + 4), *d = lb_frame_arg_tensor(call, rest);
    if (!x || !dt || !a || !b || !c || x->layout.ndim != 4 || b->layout.ndim != 4 ||
        lb_tensor_numel(b) != lb_tensor_numel(c))
        return false;
    const int64_t *shape = x->layout.shape, groups = b->layout.shape[2];
    s->batch = shape[0], s->length = shape[1], s->heads = shape[2], s->parts = shape[3], s->states = b->layout.shape[3];
    const int64_t wide = s->heads * s->parts, narrow = groups * s->states, sharers = groups ? s->heads / groups : 0;
    if (!groups || s->heads % groups || lb_tensor_numel(a) != s->heads ||
        lb_tensor_numel(dt) * s->parts != lb_tensor_numel(x) || lb_tensor_numel(b) != s->batch * s->length * narrow)
        return false;
    SET(U, x, 1, s->length * wide, wide, s->parts, 1, 0);
    SET(DT, dt, 1, s->length * s->heads, s->heads, 1, 0, 0);
    SET(A, a, 1, 0, 0, 1, 0, 0);
    SET(B, b, sharers, s->length * narrow, narrow, s->states, 0, 1);
    SET(C, c, sharers, s->length * narrow, narrow, s->states, 0, 1);
    const bool by_part = d && lb_tensor_numel(d) == wide && d->layout.ndim == 2;
    SET(D, d, 1, 0, 0, by_part ? s->parts : 1, by_part, 0);
    SET(Z, lb_frame_arg_tensor(call, rest + 1), 1, s->length * wide, wide, s->parts, 1, 0);
    SET(BIAS, lb_frame_arg_tensor(call, rest + 2), 1, 0, 0, 1, 0, 0);
    SET(INITIAL, lb_frame_arg_tensor(call, rest + 3), 1, wide * s->states, 0, s->parts * s->states, s->states, 1);
    s->documents = lb_frame_integers(&s->frame, lb_frame_arg_tensor(call, rest + 4));
    s->softplus = lb_frame_arg_int(call, softplus, 0) != 0;
    const lb_operand *limits = softplus + 1 < call->n_args ? &call->args[softplus + 1] : NULL;
    s->least_dt = 0;
    if (limits && limits->tag == LB_OPERAND_NUMBERS && limits->count == 2)
        s->least_dt = limits->floats[0], s->most_dt = limits->floats[1];
    s->slack = 1 + 4 * lb_frame_twin_rounding(call, x_at); /* states, and what is multiplied with them, have 16 bits */
    return has(s, D, by_part ? wide : s->heads) && has(s, Z, s->of[U].n) && has(s, BIAS, s->heads) &&
           has(s, INITIAL, s->batch * wide * s->states) &&
           (!s->documents || lb_tensor_numel(lb_frame_arg_tensor(call, rest + 4)) == s->batch * s->length);
}
#define ODD_HEADS "(batch, length, heads, parts) with B and C (batch, length, groups, states)"

/* Results: out; what it was before the gate, empty without one; the states that sequences end in where cu_seqlens is
 * given. */
static lb_status heads_forward(lb_call *call, bool twin)
{
    scan s = begin(call, twin);
    const lb_tensor *borders = lb_frame_arg_tensor(call, 11);
    if (!open_heads(&s, 0, 6, 12)) return refuse(&s, ODD_HEADS);
    const int64_t n = s.of[U].n, each = s.heads * s.parts * s.states, ends = borders ? lb_tensor_numel(borders) - 1 : 0;
    const int64_t *border = lb_frame_integers(&s.frame, borders);
    if (borders && (s.batch != 1 || !s.documents || ends < 1))
        return refuse(&s, "sequences end to end that no seq_idx tells apart");
    s.final = lb_frame_output(&s.frame, 0, n), s.out = s.of[Z].x ? lb_frame_output(&s.frame, 1, n) : NULL;
    void *final_states = ends ? lb_frame_output(&s.frame, 2, ends * each) : NULL;
    double *h = lb_frame_scratch(&s.frame, (size_t)s.states * sizeof *h);
    row r = {0};
    for (int64_t i = 0; lb_frame_ok(&s.frame) && i < s.batch * s.heads * s.parts; i++) {
        r.part = i % s.parts, r.head = i / s.parts % s.heads, r.batch = i / s.parts / s.heads;
        load_state(&s, &r, h);
        for (int64_t e = 0; e < (ends ? ends : 1); e++) {
            const int64_t end = border ? border[e + 1] : s.length;
            r.first = border ? border[e] : 0;
            if (r.first < 0 || r.first > end || end > s.length) return refuse(&s, "a border outside the sequence");
            r.length = end - r.first;
            for (int64_t k = 0; e && k < s.states; k++) h[k] = 0;
            forward_row(&s, &r, h);
            for (int64_t k = 0; k < s.states; k++) put(&s, final_states, e * each + i * s.states + k, h[k]);
        }
    }
    return lb_frame_end(&s.frame);
}
LB_WITH_TWIN(heads_forward, heads_forward(call, twin))

/* Results: gradients of x, dt, A, B, C, D, z, dt_bias, initial_states. */
static lb_status heads_backward(lb_call *call, bool twin)
{
    static const int order[] = {U, DT, A, B, C, D, Z, BIAS, INITIAL};
    scan s = begin(call, twin);
    if (!open_heads(&s, 1, 8, 13)) return refuse(&s, ODD_HEADS);
    return read_gradient(&s, 6) ? backward(&s, order, 9) : refuse(&s, ODD_HEADS);
}
LB_WITH_TWIN(heads_backward, heads_backward(call, twin))

#define ROW(NAME, ARGS, ID, TERMS, FLAGS)                                                                              \
    {.name = NAME,                                                                                                     \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(ID),                                                                                               \
     .roundings = 16,                                                                                                  \
     .roundings_per_term = 4,                                                                                          \
     .terms = TERMS,                                                                                                   \
     .flags = FLAGS,                                                                                                   \
     .samples = "custom"},
/* clang-format off */
const lb_op_row lb_rows_selective_scan[] = {
    ROW("custom_ops::selective_scan_fwd", "u! delta! A! B! C! D z delta_bias delta_softplus return_last_state", mamba_forward,
        LB_TERMS(INNER, 0), LB_ROW_GIVEN(3, 1))
    ROW("custom_ops::selective_scan_bwd", "dout! u! delta! A! B! C! D z delta_bias delta_softplus out! x! squeeze_B squeeze_C", mamba_backward,
        LB_TERMS(SCANNED, 1), 0)
    ROW("_C::selective_scan_fwd", "u! delta! A B! C D_ z_ delta_bias_ delta_softplus query_start_loc cache_indices has_initial_state ssm_states "
        "null_block_id block_size block_idx_first_scheduled_token block_idx_last_scheduled_token initial_state_idx cu_chunk_seqlen "
        "last_chunk_indices", vllm, LB_TERMS(INNER, 0), LB_ROW_WRITES)
    ROW("mamba_ssm::ssm_chunk_scan_combined_fwd", "x! dt A B! C chunk_size D z dt_bias initial_states seq_idx cu_seqlens dt_softplus dt_limit",
        heads_forward, LB_TERMS(STEPS, 0), 0)
    ROW("mamba_ssm::ssm_chunk_scan_combined_bwd", "dout! x! dt A B! C out! chunk_size D z dt_bias initial_states seq_idx dt_softplus dt_limit",
        heads_backward, LB_TERMS(ELEMENTS, 2), 0)
    {NULL}};
