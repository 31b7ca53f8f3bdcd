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

static double get(const scan *scan, const void *x, int64_t i)
{
    return lb_frame_get(&scan->frame, x, i);
}

static void put(const scan *scan, void *x, int64_t i, double value)
{
    if (x) lb_frame_set(&scan->frame, x, i, value);
}

static int64_t place(const operand *operand, const row *row, int64_t t, int64_t n)
{
    return row->batch * operand->batch + (row->first + t) * operand->time +
           row->head / operand->sharers * operand->head + row->part * operand->part + n * operand->state;
}

static double value(const scan *scan, int which, const row *row, int64_t t, int64_t n)
{
    const operand *operand = &scan->of[which];
    return operand->x ? get(scan, operand->x, place(operand, row, t, n)) : 0;
}

/* dt of step t, and by how much it grows with what was recorded. */
static double step_size(const scan *scan, const row *row, int64_t t, double *slope)
{
    double dt = value(scan, DT, row, t, 0) + value(scan, BIAS, row, t, 0), grows = 1;
    if (scan->softplus && dt <= SOFTPLUS_ENDS) grows = lb_sigmoid(dt), dt = lb_log1p(lb_exp(dt));
    if (dt < scan->least_dt || dt > scan->most_dt) grows = 0, dt = dt < scan->least_dt ? scan->least_dt : scan->most_dt;
    if (slope) *slope = grows;
    return dt;
}

static bool begins(const scan *scan, const row *row, int64_t t)
{
    const int64_t *at = scan->documents ? scan->documents + row->batch * scan->length + row->first + t : NULL;
    return at && t && at[0] != at[-1];
}

/* The state after step t in place of that before it. An error of exp grows with |dt A|: *steepest is the largest. */
static void step(const scan *scan, const row *row, int64_t t, double *h, double *steepest)
{
    const double dt = step_size(scan, row, t, NULL), u = value(scan, U, row, t, 0);
    const bool fresh = begins(scan, row, t);
    for (int64_t n = 0; n < scan->states; n++) {
        const double exponent = dt * value(scan, A, row, t, n), add = dt * value(scan, B, row, t, n) * u;
        *steepest = fmax(*steepest, fabs(exponent));
        h[n] = (fresh ? 0 : lb_exp(exponent) * h[n]) + (scan->twin ? fabs(add) : add);
    }
}

static void forward_row(const scan *scan, const row *row, double *h)
{
    double steepest = 0;
    for (int64_t n = 0; scan->twin && n < scan->states; n++) h[n] = fabs(h[n]);
    for (int64_t t = 0; t < row->length; t++) {
        double y = value(scan, D, row, t, 0) * value(scan, U, row, t, 0);
        if (scan->twin) y = fabs(y);
        step(scan, row, t, h, &steepest);
        for (int64_t n = 0; n < scan->states; n++) {
            const double c = value(scan, C, row, t, n);
            y += scan->twin ? fabs(c) * h[n] : c * h[n];
        }
        if (scan->twin) y *= (1 + steepest) * scan->slack;
        const double z = value(scan, Z, row, t, 0);
        put(scan, scan->out, place(&scan->of[U], row, t, 0), y);
        put(scan, scan->final, place(&scan->of[U], row, t, 0),
            !scan->of[Z].x ? y
            : scan->twin   ? y * fabs(z)
                           : y * z * lb_sigmoid(z));
    }
    for (int64_t n = 0; scan->twin && n < scan->states; n++) h[n] *= 1 + steepest;
}

static void load_state(const scan *scan, const row *row, double *h)
{
    for (int64_t n = 0; n < scan->states; n++) h[n] = value(scan, INITIAL, row, 0, n);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static void add_to(const scan *scan, int which, const row *row, int64_t t, int64_t n, double gradient)
{
    const operand *operand = &scan->of[which];
    if (operand->gradient) operand->gradient[place(operand, row, t, n)] += scan->twin ? fabs(gradient) : gradient;
}

/* Of y: what comes back through the gate, whose own gradient is taken along. */
static double through_gate(const scan *scan, const row *row, int64_t t)
{
    const int64_t i = place(&scan->of[U], row, t, 0);
    const double dout = get(scan, scan->dout, i);
    if (!scan->of[Z].x) return dout;
    const double z = value(scan, Z, row, t, 0), sigmoid = lb_sigmoid(z), y = get(scan, scan->y, i);
    /* The derivative of silu is below 1.1; its terms are below 1 + |z|. */
    add_to(scan, Z, row, t, 0,
           scan->twin ? dout * y * (1 + fabs(z)) * scan->slack : dout * y * sigmoid * (1 + z * (1 - sigmoid)));
    return scan->twin ? dout * z : dout * z * sigmoid;
}

/* `h`: states before step 0, 1, …; `g`: the gradient of one. */
static void backward_row(const scan *scan, const row *row, double *h, double *g)
{
    const int64_t states = scan->states;
    double steepest = 0;
    load_state(scan, row, h);
    for (int64_t n = 0; n < states; n++) g[n] = 0, h[n] = scan->twin ? fabs(h[n]) : h[n];
    for (int64_t t = 0; t < row->length; t++) {
        memcpy(h + (t + 1) * states, h + t * states, (size_t)states * sizeof *h);
        step(scan, row, t, h + (t + 1) * states, &steepest);
    }
    for (int64_t t = row->length; t-- > 0;) {
        double slope, dy = through_gate(scan, row, t), ddt = 0;
        const double dt = step_size(scan, row, t, &slope), u = value(scan, U, row, t, 0);
        const double *before = h + t * states, *after = before + states;
        if (scan->twin)
            dy = fabs(dy) * (1 + 3 * steepest) * scan->slack; /* an error of exp in h, in g and where they meet */
        double du = dy * value(scan, D, row, t, 0);
        if (scan->twin) du = fabs(du);
        add_to(scan, D, row, t, 0, dy * u);
        for (int64_t n = 0; n < states; n++) {
            const double a = value(scan, A, row, t, n), b = value(scan, B, row, t, n), c = value(scan, C, row, t, n);
            const double decay = begins(scan, row, t) ? 0 : lb_exp(dt * a), carried = decay * before[n];
            g[n] += scan->twin ? fabs(c) * dy : c * dy;
            add_to(scan, C, row, t, n, dy * after[n]);
            add_to(scan, B, row, t, n, g[n] * dt * u);
            add_to(scan, A, row, t, n, g[n] * dt * carried);
            du += scan->twin ? g[n] * fabs(dt * b) : g[n] * dt * b;
            ddt += scan->twin ? g[n] * (fabs(b * u) + fabs(a) * carried) : g[n] * (b * u + a * carried);
            g[n] *= decay;
        }
        add_to(scan, U, row, t, 0, du);
        add_to(scan, DT, row, t, 0, ddt * slope);
        add_to(scan, BIAS, row, t, 0, ddt * slope);
    }
    for (int64_t n = 0; n < states; n++) add_to(scan, INITIAL, row, 0, n, g[n]);
}

/* Result `i` is the gradient of each in `order`; what there is none of has an empty one. */
static lb_status backward(scan *scan, const int *order, int n_results)
{
    int64_t total = 0, at = 0;
    for (int i = 0; i < n_results; i++) total += scan->of[order[i]].n;
    double *gradients = lb_frame_scratch(&scan->frame, (size_t)total * sizeof *gradients);
    for (int64_t k = 0; gradients && k < total; k++) gradients[k] = 0;
    for (int i = 0; i < n_results; at += scan->of[order[i++]].n)
        if (gradients && scan->of[order[i]].n) scan->of[order[i]].gradient = gradients + at;
    double *h = lb_frame_scratch(&scan->frame, (size_t)((scan->length + 1) * scan->states) * sizeof *h),
           *g = lb_frame_scratch(&scan->frame, (size_t)scan->states * sizeof *g);
    row row = {.length = scan->length};
    for (row.batch = 0; row.batch < scan->batch; row.batch++)
        for (row.head = 0; row.head < scan->heads; row.head++)
            for (row.part = 0; lb_frame_ok(&scan->frame) && row.part < scan->parts; row.part++)
                backward_row(scan, &row, h, g);
    for (int i = 0; lb_frame_ok(&scan->frame) && i < n_results; i++) {
        const operand *operand = &scan->of[order[i]];
        void *to = operand->gradient ? lb_frame_output(&scan->frame, (uint32_t)i, operand->n) : NULL;
        for (int64_t k = 0; to && k < operand->n; k++) put(scan, to, k, operand->gradient[k]);
    }
    return lb_frame_end(&scan->frame);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static scan begin(lb_call *call, bool twin)
{
    return (scan){.frame = lb_frame_begin(call), .twin = twin, .most_dt = INFINITY, .least_dt = -INFINITY, .slack = 1};
}

static lb_status refuse(scan *scan, const char *why)
{
    lb_frame_fail(&scan->frame, LB_ERR_UNSUPPORTED, why);
    return lb_frame_end(&scan->frame);
}

/* `steps`: of batch, time, head, part, state. */
static void set(scan *scan, int which, const lb_tensor *tensor, int64_t sharers, const int64_t steps[5])
{
    scan->of[which] = (operand){.x = lb_frame_tensor(&scan->frame, tensor),
                                .sharers = sharers,
                                .n = tensor ? lb_tensor_numel(tensor) : 0,
                                .batch = steps[0],
                                .time = steps[1],
                                .head = steps[2],
                                .part = steps[3],
                                .state = steps[4]};
}
#define SET(WHICH, TENSOR, SHARERS, ...) set(scan, WHICH, TENSOR, SHARERS, (const int64_t[5]){__VA_ARGS__})

/* There is none, or it has n elements. */
static bool has(const scan *scan, int which, int64_t n)
{
    return !scan->of[which].x || scan->of[which].n == n;
}

/* The gradient of the result stands first, y at `y`. */
static bool read_gradient(scan *scan, uint32_t y)
{
    const lb_tensor *dout = lb_frame_arg_tensor(scan->frame.call, 0), *out = lb_frame_arg_tensor(scan->frame.call, y);
    scan->dout = lb_frame_tensor(&scan->frame, dout), scan->y = lb_frame_tensor(&scan->frame, out);
    return dout && out && lb_tensor_numel(dout) == scan->of[U].n && lb_tensor_numel(out) == scan->of[U].n;
}

/* Mamba's B or C: (channels, states), or (batch, [groups,] states, length); (groups, states, length) of sequences end
 * to end. */
static bool set_varying(scan *scan, int which, const lb_tensor *tensor, bool ragged)
{
    const int lead = tensor->layout.ndim - 2; /* dimensions before (states, length) */
    if (lb_dtype_is_complex(tensor->dtype)) return false;
    if (!lead && lb_tensor_numel(tensor) == scan->heads * scan->states) {
        SET(which, tensor, 1, 0, 0, scan->states, 0, 1);
        return true;
    }
    const int64_t groups = ragged      ? tensor->layout.shape[0]
                           : lead == 2 ? tensor->layout.shape[1]
                                       : 1,
                  each = scan->states * scan->length;
    if (lead < 1 || lead > 2 || groups < 1 || scan->heads % groups ||
        lb_tensor_numel(tensor) != scan->batch * groups * each)
        return false;
    SET(which, tensor, scan->heads / groups, groups * each, 1, each, 0, scan->length);
    return true;
}

/* Mamba's operands at these positions; u (batch, channels, length), or (channels, length) of sequences end to end. */
typedef struct positions {
    uint8_t u, delta, a, b, c, d, z, bias, softplus;
} positions;

static bool open_channels(scan *scan, const positions *at, bool ragged)
{
    const lb_call *call = scan->frame.call;
    const lb_tensor *u = lb_frame_arg_tensor(call, at->u), *a = lb_frame_arg_tensor(call, at->a),
                    *b = lb_frame_arg_tensor(call, at->b), *c = lb_frame_arg_tensor(call, at->c),
                    *z = lb_frame_arg_tensor(call, at->z);
    if (!u || !a || !b || !c || a->layout.ndim != 2 || lb_dtype_is_complex(a->dtype) ||
        u->layout.ndim != (ragged ? 2 : 3))
        return false;
    scan->batch = ragged ? 1 : u->layout.shape[0], scan->heads = a->layout.shape[0], scan->parts = 1;
    scan->length = u->layout.shape[u->layout.ndim - 1], scan->states = a->layout.shape[1];
    if (lb_tensor_numel(u) != scan->batch * scan->heads * scan->length) return false;
    const int64_t of_batch = scan->heads * scan->length;
    SET(U, u, 1, of_batch, 1, scan->length, 0, 0);
    SET(DT, lb_frame_arg_tensor(call, at->delta), 1, of_batch, 1, scan->length, 0, 0);
    SET(A, a, 1, 0, 0, scan->states, 0, 1);
    SET(D, lb_frame_arg_tensor(call, at->d), 1, 0, 0, 1, 0, 0);
    SET(Z, z, 1, of_batch, 1, scan->length, 0, 0);
    SET(BIAS, lb_frame_arg_tensor(call, at->bias), 1, 0, 0, 1, 0, 0);
    scan->softplus = lb_frame_arg_int(call, at->softplus, 0) != 0;
    scan->slack = 1 + 2 * lb_frame_twin_rounding(call, at->u);
    return set_varying(scan, B, b, ragged) && set_varying(scan, C, c, ragged) && has(scan, DT, scan->of[U].n) &&
           has(scan, Z, scan->of[U].n) && has(scan, D, scan->heads) && has(scan, BIAS, scan->heads);
}
#define ODD_SHAPES "(batch, channels, length) by real (channels, states), with B and C that belong to them"

/* ---- mamba_ssm --------------------------------------------------------------------------------------------------- */

/* Results: final_out, last_state (empty when not asked for), out, and x: states between chunks, taken as recorded. */
static lb_status mamba_forward(lb_call *call, bool twin)
{
    static const positions at = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    scan scan = begin(call, twin);
    if (!open_channels(&scan, &at, false)) return refuse(&scan, ODD_SHAPES);
    const int64_t rows = scan.batch * scan.heads, n = rows * scan.length;
    scan.final = lb_frame_output(&scan.frame, 0, n);
    const bool keeps = call->n_results > 1 && lb_frame_arg_int(call, 9, 0) && call->results[1].data;
    void *last = keeps ? lb_frame_output(&scan.frame, 1, rows * scan.states) : NULL;
    scan.out = call->n_results > 2 ? lb_frame_output(&scan.frame, 2, n) : NULL;
    double *h = lb_frame_scratch(&scan.frame, (size_t)scan.states * sizeof *h);
    for (int64_t i = 0; lb_frame_ok(&scan.frame) && i < rows; i++) {
        const row row = {.batch = i / scan.heads, .head = i % scan.heads, .length = scan.length};
        load_state(&scan, &row, h);
        forward_row(&scan, &row, h);
        for (int64_t k = 0; k < scan.states; k++) put(&scan, last, i * scan.states + k, h[k]);
    }
    return lb_frame_end(&scan.frame);
}
LB_WITH_TWIN(mamba_forward, mamba_forward(call, twin))

/* Results: gradients of u, delta, A, B, C, D, z, delta_bias. */
static lb_status mamba_backward(lb_call *call, bool twin)
{
    static const positions at = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const int order[] = {U, DT, A, B, C, D, Z, BIAS};
    scan scan = begin(call, twin);
    if (!open_channels(&scan, &at, false)) return refuse(&scan, ODD_SHAPES);
    return read_gradient(&scan, 10) ? backward(&scan, order, 8) : refuse(&scan, ODD_SHAPES);
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
    scan scan = begin(call, twin);
    const lb_tensor *states = lb_frame_arg_tensor(call, V_STATES), *borders = lb_frame_arg_tensor(call, V_BORDERS),
                    *slots = lb_frame_arg_tensor(call, V_SLOTS), *begun = lb_frame_arg_tensor(call, V_HAS_STATE);
    for (uint32_t i = V_FIRST_BLOCK; i < call->n_args; i++)
        if (lb_frame_arg_given(call, i)) return refuse(&scan, "states kept block by block are not computed");
    if (!states || call->n_results < 6 || !open_channels(&scan, &at, borders != NULL)) return refuse(&scan, ODD_SHAPES);
    const int64_t sequences = borders ? lb_tensor_numel(borders) - 1 : scan.batch, each = scan.heads * scan.states,
                  held = lb_tensor_numel(states), null_slot = lb_frame_arg_int(call, V_NULL_SLOT, -1);
    if ((slots && lb_tensor_numel(slots) != sequences) || (begun && lb_tensor_numel(begun) != sequences))
        return refuse(&scan, "slots or states that do not belong to the sequences");
    const int64_t *from = lb_frame_integers(&scan.frame, borders), *slot = lb_frame_integers(&scan.frame, slots),
                  *has = lb_frame_integers(&scan.frame, begun);
    const void *before = lb_frame_tensor(&scan.frame, states);
    const uint32_t last = call->n_results - 1;
    void *after = lb_frame_output(&scan.frame, last, held), *copies[5];
    const int copied[] = {U, DT, A, B, C};
    for (uint32_t i = 0; i < 5; i++) copies[i] = lb_frame_output(&scan.frame, i, scan.of[copied[i]].n);
    scan.out = copies[1], scan.final = scan.of[Z].x ? lb_frame_output(&scan.frame, 5, scan.of[Z].n) : NULL;
    double *h = lb_frame_scratch(&scan.frame, (size_t)scan.states * sizeof *h);
    if (!lb_frame_ok(&scan.frame)) return lb_frame_end(&scan.frame);
    for (uint32_t i = 0; i < 5; i++)
        for (int64_t k = 0; k < scan.of[copied[i]].n; k++)
            put(&scan, copies[i], k, get(&scan, scan.of[copied[i]].x, k));
    for (int64_t k = 0; scan.final && k < scan.of[Z].n; k++) put(&scan, scan.final, k, get(&scan, scan.of[Z].x, k));
    for (int64_t k = 0; k < held; k++) put(&scan, after, k, get(&scan, before, k));
    for (int64_t i = 0; i < sequences * scan.heads; i++) {
        const int64_t q = i / scan.heads, first = from ? from[q] : 0, end = from ? from[q + 1] : scan.length,
                      at_slot = slot ? slot[q] : q;
        if (slot && slot[q] == null_slot) continue; /* padding */
        if (at_slot < 0 || (each && at_slot >= held / each) || first < 0 || first > end || end > scan.length)
            return refuse(&scan, "a slot or a border outside what there is");
        const int64_t kept = at_slot * each + i % scan.heads * scan.states;
        const row row = {.batch = from ? 0 : q, .head = i % scan.heads, .first = first, .length = end - first};
        for (int64_t n = 0; n < scan.states; n++) h[n] = has && has[q] ? get(&scan, before, kept + n) : 0;
        forward_row(&scan, &row, h);
        for (int64_t n = 0; n < scan.states; n++) put(&scan, after, kept + n, h[n]);
    }
    return lb_frame_end(&scan.frame);
}
LB_WITH_TWIN(vllm, vllm_scan(call, twin))

/* ---- Mamba-2 ----------------------------------------------------------------------------------------------------- */

/* From x on, which stands at `x`: x (batch, length, heads, parts), dt (batch, length, heads), A (heads), B, C (batch,
 * length, groups, states); `rest`: D (heads[, parts]), z as x, dt_bias (heads), initial_states (batch, heads, parts,
 * states), seq_idx. */
static bool open_heads(scan *scan, uint32_t x_at, uint32_t rest, uint32_t softplus)
{
    const lb_call *call = scan->frame.call;
    const lb_tensor *x = lb_frame_arg_tensor(call, x_at), *dt = lb_frame_arg_tensor(call, x_at + 1),
                    *a = lb_frame_arg_tensor(call, x_at + 2), *b = lb_frame_arg_tensor(call, x_at + 3),
                    *c = lb_frame_arg_tensor(call, x_at + 4), *d = lb_frame_arg_tensor(call, rest);
    if (!x || !dt || !a || !b || !c || x->layout.ndim != 4 || b->layout.ndim != 4 ||
        lb_tensor_numel(b) != lb_tensor_numel(c))
        return false;
    const int64_t *shape = x->layout.shape, groups = b->layout.shape[2];
    scan->batch = shape[0], scan->length = shape[1], scan->heads = shape[2], scan->parts = shape[3],
    scan->states = b->layout.shape[3];
    const int64_t wide = scan->heads * scan->parts, narrow = groups * scan->states,
                  sharers = groups ? scan->heads / groups : 0;
    if (!groups || scan->heads % groups || lb_tensor_numel(a) != scan->heads ||
        lb_tensor_numel(dt) * scan->parts != lb_tensor_numel(x) ||
        lb_tensor_numel(b) != scan->batch * scan->length * narrow)
        return false;
    SET(U, x, 1, scan->length * wide, wide, scan->parts, 1, 0);
    SET(DT, dt, 1, scan->length * scan->heads, scan->heads, 1, 0, 0);
    SET(A, a, 1, 0, 0, 1, 0, 0);
    SET(B, b, sharers, scan->length * narrow, narrow, scan->states, 0, 1);
    SET(C, c, sharers, scan->length * narrow, narrow, scan->states, 0, 1);
    const bool by_part = d && lb_tensor_numel(d) == wide && d->layout.ndim == 2;
    SET(D, d, 1, 0, 0, by_part ? scan->parts : 1, by_part, 0);
    SET(Z, lb_frame_arg_tensor(call, rest + 1), 1, scan->length * wide, wide, scan->parts, 1, 0);
    SET(BIAS, lb_frame_arg_tensor(call, rest + 2), 1, 0, 0, 1, 0, 0);
    SET(INITIAL, lb_frame_arg_tensor(call, rest + 3), 1, wide * scan->states, 0, scan->parts * scan->states,
        scan->states, 1);
    scan->documents = lb_frame_integers(&scan->frame, lb_frame_arg_tensor(call, rest + 4));
    scan->softplus = lb_frame_arg_int(call, softplus, 0) != 0;
    const lb_operand *limits = softplus + 1 < call->n_args ? &call->args[softplus + 1] : NULL;
    scan->least_dt = 0;
    if (limits && limits->tag == LB_OPERAND_NUMBERS && limits->count == 2)
        scan->least_dt = limits->floats[0], scan->most_dt = limits->floats[1];
    scan->slack =
        1 + 4 * lb_frame_twin_rounding(call, x_at); /* states, and what is multiplied with them, have 16 bits */
    return has(scan, D, by_part ? wide : scan->heads) && has(scan, Z, scan->of[U].n) && has(scan, BIAS, scan->heads) &&
           has(scan, INITIAL, scan->batch * wide * scan->states) &&
           (!scan->documents || lb_tensor_numel(lb_frame_arg_tensor(call, rest + 4)) == scan->batch * scan->length);
}
#define ODD_HEADS "(batch, length, heads, parts) with B and C (batch, length, groups, states)"

/* Results: out; what it was before the gate, empty without one; the states that sequences end in where cu_seqlens is
 * given. */
static lb_status heads_forward(lb_call *call, bool twin)
{
    scan scan = begin(call, twin);
    const lb_tensor *borders = lb_frame_arg_tensor(call, 11);
    if (!open_heads(&scan, 0, 6, 12)) return refuse(&scan, ODD_HEADS);
    const int64_t n = scan.of[U].n, each = scan.heads * scan.parts * scan.states,
                  ends = borders ? lb_tensor_numel(borders) - 1 : 0;
    const int64_t *border = lb_frame_integers(&scan.frame, borders);
    if (borders && (scan.batch != 1 || !scan.documents || ends < 1))
        return refuse(&scan, "sequences end to end that no seq_idx tells apart");
    scan.final = lb_frame_output(&scan.frame, 0, n),
    scan.out = scan.of[Z].x ? lb_frame_output(&scan.frame, 1, n) : NULL;
    void *final_states = ends ? lb_frame_output(&scan.frame, 2, ends * each) : NULL;
    double *h = lb_frame_scratch(&scan.frame, (size_t)scan.states * sizeof *h);
    row row = {0};
    for (int64_t i = 0; lb_frame_ok(&scan.frame) && i < scan.batch * scan.heads * scan.parts; i++) {
        row.part = i % scan.parts, row.head = i / scan.parts % scan.heads, row.batch = i / scan.parts / scan.heads;
        load_state(&scan, &row, h);
        for (int64_t e = 0; e < (ends ? ends : 1); e++) {
            const int64_t end = border ? border[e + 1] : scan.length;
            row.first = border ? border[e] : 0;
            if (row.first < 0 || row.first > end || end > scan.length)
                return refuse(&scan, "a border outside the sequence");
            row.length = end - row.first;
            for (int64_t k = 0; e && k < scan.states; k++) h[k] = 0;
            forward_row(&scan, &row, h);
            for (int64_t k = 0; k < scan.states; k++) put(&scan, final_states, e * each + i * scan.states + k, h[k]);
        }
    }
    return lb_frame_end(&scan.frame);
}
LB_WITH_TWIN(heads_forward, heads_forward(call, twin))

/* Results: gradients of x, dt, A, B, C, D, z, dt_bias, initial_states. */
static lb_status heads_backward(lb_call *call, bool twin)
{
    static const int order[] = {U, DT, A, B, C, D, Z, BIAS, INITIAL};
    scan scan = begin(call, twin);
    if (!open_heads(&scan, 1, 8, 13)) return refuse(&scan, ODD_HEADS);
    return read_gradient(&scan, 6) ? backward(&scan, order, 9) : refuse(&scan, ODD_HEADS);
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
