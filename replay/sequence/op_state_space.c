/* Custom ops of state-space models: the short causal convolution in front of a selective scan (op_selective_scan.c).
 *
 * Names and schemas as registered in Dao-AILab/causal-conv1d causal_conv1d/cpp_functions.py
 * (`DaoAILab::_causal_conv1d_…_cpp`), which state-spaces/mamba and fla-org/flash-linear-attention call; the definition
 * is csrc/causal_conv1d_fwd.cu's: oldest tap first, then SiLU. */
#include "functions/elementary.h"
#include "kernel/frame.h"

#include <math.h>

enum { X, WEIGHT, BIAS, SEQ_IDX, INITIAL, OUT, FINAL, SILU };

typedef struct conv {
    lb_frame frame;
    int64_t batch, channels, length, taps;
    const void *x, *weight, *bias, *initial;
    const int64_t *documents; /* (batch, length): a tap does not reach into another number; NULL: all one */
    void *y, *last;
    bool silu, twin;
} conv;

static double get(const conv *c, const void *x, int64_t i)
{
    return lb_frame_get(&c->frame, x, i);
}
static void put(const conv *c, void *x, int64_t i, double value)
{
    lb_frame_set(&c->frame, x, i, value);
}

/* The element of row `r` (a channel of a sample) at time t; before its start the initial state (batch, channels, taps -
 * 1), or 0. */
static double at(const conv *c, int64_t r, int64_t t)
{
    if (t >= 0) return get(c, c->x, r * c->length + t);
    return c->initial ? get(c, c->initial, r * (c->taps - 1) + c->taps - 1 + t) : 0;
}

/* The element `lag` before time t, as the convolution at t sees it. */
static double seen(const conv *c, int64_t r, int64_t t, int64_t lag)
{
    const int64_t *document = c->documents ? c->documents + r / c->channels * c->length + t : NULL;
    if (document && (t < lag || document[-lag] != *document)) return 0;
    return at(c, r, t - lag);
}

/* x (batch, channels, length), or of any dimensions from two on, by weight (channels, taps) and a bias that belongs to
 * them. */
static bool fits(const lb_tensor *x, const lb_tensor *weight, const lb_tensor *bias)
{
    return x && weight && x->layout.ndim >= 2 && weight->layout.ndim == 2 &&
           weight->layout.shape[0] == x->layout.shape[1] && weight->layout.shape[1] > 0 &&
           (!bias || lb_tensor_numel(bias) == weight->layout.shape[0]);
}

/* seq_idx at arg `i`; a negative number, which is padding, is not computed. */
static void read_documents(conv *c, uint32_t i)
{
    const lb_tensor *t = lb_frame_arg_tensor(c->frame.call, i);
    if (!t) return;
    c->documents = lb_frame_integers(&c->frame, t);
    if (lb_tensor_numel(t) != c->batch * c->length) lb_frame_fail(&c->frame, LB_ERR_INVALID, "seq_idx of another size");
    for (int64_t k = 0; lb_frame_ok(&c->frame) && k < c->batch * c->length; k++)
        if (c->documents[k] < 0) lb_frame_fail(&c->frame, LB_ERR_UNSUPPORTED, "padding in seq_idx");
}

static void row(const conv *c, int64_t r, double slack)
{
    const int64_t channel = r % c->channels;
    for (int64_t t = 0; t < c->length; t++) {
        double sum = c->bias ? get(c, c->bias, channel) : 0;
        if (c->twin) sum = fabs(sum);
        for (int64_t k = 0; k < c->taps; k++) {
            const double term = get(c, c->weight, channel * c->taps + k) * seen(c, r, t, c->taps - 1 - k);
            sum += c->twin ? fabs(term) : term;
        }
        if (c->silu && !c->twin) sum *= lb_sigmoid(sum);
        put(c, c->y, r * c->length + t, c->twin ? sum * slack : sum);
    }
    for (int64_t k = 0; c->last && k < c->taps - 1; k++) {
        const double x = at(c, r, c->length - (c->taps - 1) + k);
        put(c, c->last, r * (c->taps - 1) + k, c->twin ? fabs(x) : x);
    }
}

/* Results are what is written: out, then final_states_out where it is given. */
static lb_status causal_conv(lb_call *call, bool twin)
{
    conv c = {.frame = lb_frame_begin(call), .twin = twin};
    const lb_tensor *x = lb_frame_arg_tensor(call, X), *weight = lb_frame_arg_tensor(call, WEIGHT),
                    *bias = lb_frame_arg_tensor(call, BIAS), *initial = lb_frame_arg_tensor(call, INITIAL);
    if (!fits(x, weight, bias) || x->layout.ndim != 3)
        lb_frame_fail(&c.frame, LB_ERR_UNSUPPORTED, "(batch, channels, length) by (channels, taps)");
    if (!lb_frame_ok(&c.frame)) return lb_frame_end(&c.frame);
    c.batch = x->layout.shape[0], c.channels = x->layout.shape[1], c.length = x->layout.shape[2],
    c.taps = weight->layout.shape[1];
    const int64_t rows = c.batch * c.channels;
    if (initial && lb_tensor_numel(initial) != rows * (c.taps - 1))
        lb_frame_fail(&c.frame, LB_ERR_INVALID, "initial states of another shape");
    c.x = lb_frame_tensor(&c.frame, x), c.weight = lb_frame_tensor(&c.frame, weight),
    c.bias = lb_frame_tensor(&c.frame, bias);
    c.initial = lb_frame_tensor(&c.frame, initial);
    read_documents(&c, SEQ_IDX);
    c.y = lb_frame_output(&c.frame, 0, rows * c.length);
    const bool keeps = call->n_results > 1 && call->results[1].data;
    c.last = keeps ? lb_frame_output(&c.frame, 1, rows * (c.taps - 1)) : NULL;
    c.silu = lb_frame_arg_int(call, SILU, 0) != 0;
    const double slack = 1 + lb_frame_twin_rounding(call, X);
    for (int64_t r = 0; lb_frame_ok(&c.frame) && r < rows; r++) row(&c, r, slack);
    return lb_frame_end(&c.frame);
}
LB_WITH_TWIN(conv, causal_conv(call, twin))

/* ---- one more token, or a few ------------------------------------------------------------------------------------ */

enum { U_X, U_STATE, U_WEIGHT, U_BIAS, U_OUT, U_SILU, U_SEQLENS, U_INDICES };

/* x (batch, channels[, tokens]) behind conv_state (batch, channels, at least taps - 1). Results: conv_state, which
 * forgets as many elements as there are tokens, and out. */
static lb_status conv_update(lb_call *call, bool twin)
{
    conv c = {.frame = lb_frame_begin(call), .twin = twin};
    const lb_tensor *x = lb_frame_arg_tensor(call, U_X), *state = lb_frame_arg_tensor(call, U_STATE),
                    *weight = lb_frame_arg_tensor(call, U_WEIGHT);
    if (!fits(x, weight, lb_frame_arg_tensor(call, U_BIAS)) || !state || state->layout.ndim != 3 ||
        state->layout.shape[0] != x->layout.shape[0] || state->layout.shape[1] != x->layout.shape[1] ||
        state->layout.shape[2] < weight->layout.shape[1] - 1 || lb_frame_arg_given(call, U_SEQLENS) ||
        lb_frame_arg_given(call, U_INDICES))
        lb_frame_fail(&c.frame, LB_ERR_UNSUPPORTED, "states in the order of the batch, without lengths in a ring");
    if (!lb_frame_ok(&c.frame)) return lb_frame_end(&c.frame);
    const int64_t held = state->layout.shape[2], rows = x->layout.shape[0] * x->layout.shape[1];
    c.channels = x->layout.shape[1], c.length = rows ? lb_tensor_numel(x) / rows : 0;
    c.taps = weight->layout.shape[1];
    c.x = lb_frame_tensor(&c.frame, x), c.weight = lb_frame_tensor(&c.frame, weight),
    c.bias = lb_frame_tensor(&c.frame, lb_frame_arg_tensor(call, U_BIAS));
    const void *before = lb_frame_tensor(&c.frame, state);
    void *initial = lb_frame_reals(&c.frame, rows * (c.taps - 1)), *after = lb_frame_output(&c.frame, 0, rows * held);
    c.y = lb_frame_output(&c.frame, 1, rows * c.length);
    c.silu = lb_frame_arg_int(call, U_SILU, 0) != 0;
    const double slack = 1 + lb_frame_twin_rounding(call, U_X);
    for (int64_t r = 0; lb_frame_ok(&c.frame) && r < rows; r++) {
        for (int64_t k = 0; k < c.taps - 1; k++)
            put(&c, initial, r * (c.taps - 1) + k, get(&c, before, r * held + held - (c.taps - 1) + k));
        c.initial = initial;
        row(&c, r, slack);
        for (int64_t k = 0; k < held; k++) {
            const int64_t t = k + c.length - held; /* in x; before its start, in what was held */
            const double kept = t >= 0 ? get(&c, c.x, r * c.length + t) : get(&c, before, r * held + k + c.length);
            put(&c, after, r * held + k, twin ? fabs(kept) : kept);
        }
    }
    return lb_frame_end(&c.frame);
}
LB_WITH_TWIN(update, conv_update(call, twin))

/* ---- backward ---------------------------------------------------------------------------------------------------- */

enum { B_X, B_WEIGHT, B_BIAS, B_DOUT, B_SEQ_IDX, B_INITIAL, B_DFINAL, B_DX, B_DWEIGHT, B_DBIAS, B_DINITIAL, B_SILU };

typedef struct conv_backward {
    conv c;
    const void *dout, *dfinal;
    double *dweight, *dbias; /* sums; NULL: not wanted */
    double *g;               /* of one row: gradient of what SiLU was applied to */
    void *dx, *dinitial;
} conv_backward;

/* Gradient of the sum before SiLU. The twin: the derivative is below 1.1 and changes by at most half of what the sum
 * does. */
static double inner_gradient(const conv_backward *b, int64_t r, int64_t t)
{
    const conv *c = &b->c;
    const int64_t channel = r % c->channels;
    double sum = c->bias ? get(c, c->bias, channel) : 0, magnitude = fabs(sum);
    for (int64_t k = 0; k < c->taps; k++) {
        const double term = get(c, c->weight, channel * c->taps + k) * seen(c, r, t, c->taps - 1 - k);
        sum += term, magnitude += fabs(term);
    }
    const double d = get(c, b->dout, r * c->length + t), s = lb_sigmoid(sum);
    if (c->twin) return fabs(d) * (c->silu ? 1.1 + 0.5 * magnitude : 1);
    return c->silu ? d * s * (1 + sum * (1 - s)) : d;
}

/* Gradient of the element at time t, which may be before the start: of what it was multiplied into, and of the final
 * state. */
static double outer_gradient(const conv_backward *b, int64_t r, int64_t t)
{
    const conv *c = &b->c;
    const int64_t channel = r % c->channels, kept = c->taps - 1,
                  *document = c->documents ? c->documents + r / c->channels * c->length : NULL;
    const int64_t held = t - (c->length - kept);
    double sum = b->dfinal && held >= 0 ? get(c, b->dfinal, r * kept + held) : 0;
    if (c->twin) sum = fabs(sum);
    for (int64_t k = 0; k < c->taps; k++) {
        const int64_t to = t + kept - k;
        const double w = get(c, c->weight, channel * c->taps + k);
        if (to >= 0 && to < c->length && (!document || (t >= 0 && document[to] == document[t])))
            sum += (c->twin ? fabs(w) : w) * b->g[to];
    }
    return sum;
}

static void backward_row(conv_backward *b, int64_t r, double slack)
{
    const conv *c = &b->c;
    const int64_t channel = r % c->channels, kept = c->taps - 1;
    if (!c->twin) slack = 1;
    for (int64_t t = 0; t < c->length; t++) b->g[t] = inner_gradient(b, r, t);
    for (int64_t t = 0; t < c->length; t++) {
        for (int64_t k = 0; k < c->taps; k++) {
            const double x = seen(c, r, t, kept - k);
            b->dweight[channel * c->taps + k] += b->g[t] * (c->twin ? fabs(x) : x);
        }
        if (b->dbias) b->dbias[channel] += b->g[t];
        put(c, b->dx, r * c->length + t, outer_gradient(b, r, t) * slack);
    }
    for (int64_t k = 0; b->dinitial && k < kept; k++)
        put(c, b->dinitial, r * kept + k, outer_gradient(b, r, k - kept) * slack);
}

/* Results are what is written, in the order of the schema; absent ones may have a place. */
static uint32_t result_of(const lb_call *call, uint32_t arg)
{
    static const uint32_t written[] = {B_DFINAL, B_DX, B_DWEIGHT, B_DBIAS, B_DINITIAL};
    uint32_t place = 0, given = 0;
    for (uint32_t i = 0; i < 5; i++) given += lb_frame_arg_given(call, written[i]);
    for (uint32_t i = 0; i < 5 && written[i] != arg; i++)
        place += call->n_results > given || lb_frame_arg_given(call, written[i]);
    return place;
}

static bool has(const lb_call *call, uint32_t i, int64_t n)
{
    const lb_tensor *t = lb_frame_arg_tensor(call, i);
    return t && lb_tensor_numel(t) == n;
}

/* dweight and dbias are added to; dfinal_states stays as it is. */
static lb_status conv_backward_run(lb_call *call, bool twin)
{
    conv_backward b = {.c = {.frame = lb_frame_begin(call), .twin = twin}};
    conv *c = &b.c;
    const lb_tensor *x = lb_frame_arg_tensor(call, B_X), *weight = lb_frame_arg_tensor(call, B_WEIGHT),
                    *bias = lb_frame_arg_tensor(call, B_BIAS);
    const lb_tensor *initial = lb_frame_arg_tensor(call, B_INITIAL), *dfinal = lb_frame_arg_tensor(call, B_DFINAL);
    if (!fits(x, weight, bias) || x->layout.ndim != 3)
        lb_frame_fail(&c->frame, LB_ERR_UNSUPPORTED, "(batch, channels, length) by (channels, taps)");
    if (!lb_frame_ok(&c->frame)) return lb_frame_end(&c->frame);
    c->batch = x->layout.shape[0], c->channels = x->layout.shape[1], c->length = x->layout.shape[2],
    c->taps = weight->layout.shape[1];
    const int64_t rows = c->batch * c->channels, states = rows * (c->taps - 1);
    if ((initial && lb_tensor_numel(initial) != states) || (dfinal && lb_tensor_numel(dfinal) != states))
        lb_frame_fail(&c->frame, LB_ERR_INVALID, "states of another shape");
    if (!has(call, B_DOUT, lb_tensor_numel(x)) || !has(call, B_DWEIGHT, lb_tensor_numel(weight)) ||
        (lb_frame_arg_given(call, B_DBIAS) && !has(call, B_DBIAS, c->channels)))
        lb_frame_fail(&c->frame, LB_ERR_INVALID, "gradients of another shape");
    c->initial = lb_frame_tensor(&c->frame, initial), b.dfinal = lb_frame_tensor(&c->frame, dfinal);
    read_documents(c, B_SEQ_IDX);
    c->x = lb_frame_tensor(&c->frame, x), c->weight = lb_frame_tensor(&c->frame, weight),
    c->bias = lb_frame_tensor(&c->frame, bias), b.dout = lb_frame_input(&c->frame, B_DOUT);
    c->silu = lb_frame_arg_int(call, B_SILU, 0) != 0;
    const void *dweight = lb_frame_input(&c->frame, B_DWEIGHT), *dbias = lb_frame_input(&c->frame, B_DBIAS);
    b.dx = lb_frame_output(&c->frame, result_of(call, B_DX), rows * c->length);
    void *dw = lb_frame_output(&c->frame, result_of(call, B_DWEIGHT), c->channels * c->taps),
         *db = dbias ? lb_frame_output(&c->frame, result_of(call, B_DBIAS), c->channels) : NULL,
         *same = dfinal ? lb_frame_output(&c->frame, result_of(call, B_DFINAL), states) : NULL;
    if (lb_frame_arg_given(call, B_DINITIAL))
        b.dinitial = lb_frame_output(&c->frame, result_of(call, B_DINITIAL), states);
    b.g = lb_frame_scratch(&c->frame, (size_t)c->length * sizeof *b.g);
    b.dweight = lb_frame_scratch(&c->frame, (size_t)(c->channels * c->taps) * sizeof *b.dweight);
    b.dbias = dbias ? lb_frame_scratch(&c->frame, (size_t)c->channels * sizeof *b.dbias) : NULL;
    if (!lb_frame_ok(&c->frame)) return lb_frame_end(&c->frame);
    for (int64_t i = 0; i < c->channels * c->taps; i++)
        b.dweight[i] = twin ? fabs(get(c, dweight, i)) : get(c, dweight, i);
    for (int64_t i = 0; dbias && i < c->channels; i++) b.dbias[i] = twin ? fabs(get(c, dbias, i)) : get(c, dbias, i);
    for (int64_t r = 0; r < rows; r++) backward_row(&b, r, 1 + lb_frame_twin_rounding(call, B_X));
    for (int64_t i = 0; same && i < states; i++) put(c, same, i, get(c, b.dfinal, i));
    for (int64_t i = 0; i < c->channels * c->taps; i++) put(c, dw, i, b.dweight[i]);
    for (int64_t i = 0; dbias && i < c->channels; i++) put(c, db, i, b.dbias[i]);
    return lb_frame_end(&c->frame);
}
LB_WITH_TWIN(backward, conv_backward_run(call, twin))

const lb_op_row lb_rows_state_space[] = {
    {.name = "DaoAILab::_causal_conv1d_fwd_cpp",
     .args = "x! weight! bias seq_idx initial_states out! final_states_out silu_activation",
     LB_COMPUTED_BY(conv),
     .roundings = 16,
     .flags = LB_ROW_WRITES,
     .samples = "custom"},
    {.name = "DaoAILab::_causal_conv1d_bwd_cpp",
     .args =
         "x! weight! bias dout! seq_idx initial_states dfinal_states dx dweight dbias dinitial_states silu_activation",
     LB_COMPUTED_BY(backward),
     LB_SUMS(16, LB_TERMS(PER_CHANNEL, 0)),
     .flags = LB_ROW_WRITES,
     .samples = "custom"},
    {.name = "DaoAILab::_causal_conv1d_update_cpp",
     .args = "x! conv_state! weight! bias out! silu_activation cache_seqlens conv_state_indices",
     LB_COMPUTED_BY(update),
     .roundings = 16,
     .flags = LB_ROW_WRITES,
     .samples = "custom"},
    {NULL}};
