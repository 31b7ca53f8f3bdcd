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

static double get(const conv *conv, const void *x, int64_t i)
{
    return lb_frame_get(&conv->frame, x, i);
}
static void put(const conv *conv, void *x, int64_t i, double value)
{
    lb_frame_set(&conv->frame, x, i, value);
}

/* The element of row `r` (a channel of a sample) at time t; before its start the initial state (batch, channels, taps -
 * 1), or 0. */
static double at(const conv *conv, int64_t row, int64_t t)
{
    if (t >= 0) return get(conv, conv->x, row * conv->length + t);
    return conv->initial ? get(conv, conv->initial, row * (conv->taps - 1) + conv->taps - 1 + t) : 0;
}

/* The element `lag` before time t, as the convolution at t sees it. */
static double seen(const conv *conv, int64_t row, int64_t t, int64_t lag)
{
    const int64_t *document = conv->documents ? conv->documents + row / conv->channels * conv->length + t : NULL;
    if (document && (t < lag || document[-lag] != *document)) return 0;
    return at(conv, row, t - lag);
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
static void read_documents(conv *conv, uint32_t i)
{
    const lb_tensor *tensor = lb_frame_arg_tensor(conv->frame.call, i);
    if (!tensor) return;
    conv->documents = lb_frame_integers(&conv->frame, tensor);
    if (lb_tensor_numel(tensor) != conv->batch * conv->length)
        lb_frame_fail(&conv->frame, LB_ERR_INVALID, "seq_idx of another size");
    for (int64_t k = 0; lb_frame_ok(&conv->frame) && k < conv->batch * conv->length; k++)
        if (conv->documents[k] < 0) lb_frame_fail(&conv->frame, LB_ERR_UNSUPPORTED, "padding in seq_idx");
}

static void row(const conv *conv, int64_t row, double slack)
{
    const int64_t channel = row % conv->channels;
    for (int64_t t = 0; t < conv->length; t++) {
        double sum = conv->bias ? get(conv, conv->bias, channel) : 0;
        if (conv->twin) sum = fabs(sum);
        for (int64_t k = 0; k < conv->taps; k++) {
            const double term =
                get(conv, conv->weight, channel * conv->taps + k) * seen(conv, row, t, conv->taps - 1 - k);
            sum += conv->twin ? fabs(term) : term;
        }
        if (conv->silu && !conv->twin) sum *= lb_sigmoid(sum);
        put(conv, conv->y, row * conv->length + t, conv->twin ? sum * slack : sum);
    }
    for (int64_t k = 0; conv->last && k < conv->taps - 1; k++) {
        const double x = at(conv, row, conv->length - (conv->taps - 1) + k);
        put(conv, conv->last, row * (conv->taps - 1) + k, conv->twin ? fabs(x) : x);
    }
}

/* Results are what is written: out, then final_states_out where it is given. */
static lb_status causal_conv(lb_call *call, bool twin)
{
    conv conv = {.frame = lb_frame_begin(call), .twin = twin};
    const lb_tensor *x = lb_frame_arg_tensor(call, X), *weight = lb_frame_arg_tensor(call, WEIGHT),
                    *bias = lb_frame_arg_tensor(call, BIAS), *initial = lb_frame_arg_tensor(call, INITIAL);
    if (!fits(x, weight, bias) || x->layout.ndim != 3)
        lb_frame_fail(&conv.frame, LB_ERR_UNSUPPORTED, "(batch, channels, length) by (channels, taps)");
    if (!lb_frame_ok(&conv.frame)) return lb_frame_end(&conv.frame);
    conv.batch = x->layout.shape[0], conv.channels = x->layout.shape[1], conv.length = x->layout.shape[2],
    conv.taps = weight->layout.shape[1];
    const int64_t rows = conv.batch * conv.channels;
    if (initial && lb_tensor_numel(initial) != rows * (conv.taps - 1))
        lb_frame_fail(&conv.frame, LB_ERR_INVALID, "initial states of another shape");
    conv.x = lb_frame_tensor(&conv.frame, x), conv.weight = lb_frame_tensor(&conv.frame, weight),
    conv.bias = lb_frame_tensor(&conv.frame, bias);
    conv.initial = lb_frame_tensor(&conv.frame, initial);
    read_documents(&conv, SEQ_IDX);
    conv.y = lb_frame_output(&conv.frame, 0, rows * conv.length);
    const bool keeps = call->n_results > 1 && call->results[1].data;
    conv.last = keeps ? lb_frame_output(&conv.frame, 1, rows * (conv.taps - 1)) : NULL;
    conv.silu = lb_frame_arg_int(call, SILU, 0) != 0;
    const double slack = 1 + lb_frame_twin_rounding(call, X);
    for (int64_t r = 0; lb_frame_ok(&conv.frame) && r < rows; r++) row(&conv, r, slack);
    return lb_frame_end(&conv.frame);
}
LB_WITH_TWIN(conv, causal_conv(call, twin))

/* ---- one more token, or a few ------------------------------------------------------------------------------------ */

enum { U_X, U_STATE, U_WEIGHT, U_BIAS, U_OUT, U_SILU, U_SEQLENS, U_INDICES };

/* x (batch, channels[, tokens]) behind conv_state (batch, channels, at least taps - 1). Results: conv_state, which
 * forgets as many elements as there are tokens, and out. */
static lb_status conv_update(lb_call *call, bool twin)
{
    conv conv = {.frame = lb_frame_begin(call), .twin = twin};
    const lb_tensor *x = lb_frame_arg_tensor(call, U_X), *state = lb_frame_arg_tensor(call, U_STATE),
                    *weight = lb_frame_arg_tensor(call, U_WEIGHT);
    if (!fits(x, weight, lb_frame_arg_tensor(call, U_BIAS)) || !state || state->layout.ndim != 3 ||
        state->layout.shape[0] != x->layout.shape[0] || state->layout.shape[1] != x->layout.shape[1] ||
        state->layout.shape[2] < weight->layout.shape[1] - 1 || lb_frame_arg_given(call, U_SEQLENS) ||
        lb_frame_arg_given(call, U_INDICES))
        lb_frame_fail(&conv.frame, LB_ERR_UNSUPPORTED, "states in the order of the batch, without lengths in a ring");
    if (!lb_frame_ok(&conv.frame)) return lb_frame_end(&conv.frame);
    const int64_t held = state->layout.shape[2], rows = x->layout.shape[0] * x->layout.shape[1];
    conv.channels = x->layout.shape[1], conv.length = rows ? lb_tensor_numel(x) / rows : 0;
    conv.taps = weight->layout.shape[1];
    conv.x = lb_frame_tensor(&conv.frame, x), conv.weight = lb_frame_tensor(&conv.frame, weight),
    conv.bias = lb_frame_tensor(&conv.frame, lb_frame_arg_tensor(call, U_BIAS));
    const void *before = lb_frame_tensor(&conv.frame, state);
    void *initial = lb_frame_reals(&conv.frame, rows * (conv.taps - 1)),
         *after = lb_frame_output(&conv.frame, 0, rows * held);
    conv.y = lb_frame_output(&conv.frame, 1, rows * conv.length);
    conv.silu = lb_frame_arg_int(call, U_SILU, 0) != 0;
    const double slack = 1 + lb_frame_twin_rounding(call, U_X);
    for (int64_t r = 0; lb_frame_ok(&conv.frame) && r < rows; r++) {
        for (int64_t k = 0; k < conv.taps - 1; k++)
            put(&conv, initial, r * (conv.taps - 1) + k, get(&conv, before, r * held + held - (conv.taps - 1) + k));
        conv.initial = initial;
        row(&conv, r, slack);
        for (int64_t k = 0; k < held; k++) {
            const int64_t t = k + conv.length - held; /* in x; before its start, in what was held */
            const double kept =
                t >= 0 ? get(&conv, conv.x, r * conv.length + t) : get(&conv, before, r * held + k + conv.length);
            put(&conv, after, r * held + k, twin ? fabs(kept) : kept);
        }
    }
    return lb_frame_end(&conv.frame);
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
static double inner_gradient(const conv_backward *conv_backward, int64_t row, int64_t t)
{
    const conv *conv = &conv_backward->c;
    const int64_t channel = row % conv->channels;
    double sum = conv->bias ? get(conv, conv->bias, channel) : 0, magnitude = fabs(sum);
    for (int64_t k = 0; k < conv->taps; k++) {
        const double term = get(conv, conv->weight, channel * conv->taps + k) * seen(conv, row, t, conv->taps - 1 - k);
        sum += term, magnitude += fabs(term);
    }
    const double d = get(conv, conv_backward->dout, row * conv->length + t), s = lb_sigmoid(sum);
    if (conv->twin) return fabs(d) * (conv->silu ? 1.1 + 0.5 * magnitude : 1);
    return conv->silu ? d * s * (1 + sum * (1 - s)) : d;
}

/* Gradient of the element at time t, which may be before the start: of what it was multiplied into, and of the final
 * state. */
static double outer_gradient(const conv_backward *conv_backward, int64_t row, int64_t t)
{
    const conv *conv = &conv_backward->c;
    const int64_t channel = row % conv->channels, kept = conv->taps - 1,
                  *document = conv->documents ? conv->documents + row / conv->channels * conv->length : NULL;
    const int64_t held = t - (conv->length - kept);
    double sum = conv_backward->dfinal && held >= 0 ? get(conv, conv_backward->dfinal, row * kept + held) : 0;
    if (conv->twin) sum = fabs(sum);
    for (int64_t k = 0; k < conv->taps; k++) {
        const int64_t to = t + kept - k;
        const double w = get(conv, conv->weight, channel * conv->taps + k);
        if (to >= 0 && to < conv->length && (!document || (t >= 0 && document[to] == document[t])))
            sum += (conv->twin ? fabs(w) : w) * conv_backward->g[to];
    }
    return sum;
}

static void backward_row(conv_backward *conv_backward, int64_t row, double slack)
{
    const conv *conv = &conv_backward->c;
    const int64_t channel = row % conv->channels, kept = conv->taps - 1;
    if (!conv->twin) slack = 1;
    for (int64_t t = 0; t < conv->length; t++) conv_backward->g[t] = inner_gradient(conv_backward, row, t);
    for (int64_t t = 0; t < conv->length; t++) {
        for (int64_t k = 0; k < conv->taps; k++) {
            const double x = seen(conv, row, t, kept - k);
            conv_backward->dweight[channel * conv->taps + k] += conv_backward->g[t] * (conv->twin ? fabs(x) : x);
        }
        if (conv_backward->dbias) conv_backward->dbias[channel] += conv_backward->g[t];
        put(conv, conv_backward->dx, row * conv->length + t, outer_gradient(conv_backward, row, t) * slack);
    }
    for (int64_t k = 0; conv_backward->dinitial && k < kept; k++)
        put(conv, conv_backward->dinitial, row * kept + k, outer_gradient(conv_backward, row, k - kept) * slack);
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
    const lb_tensor *tensor = lb_frame_arg_tensor(call, i);
    return tensor && lb_tensor_numel(tensor) == n;
}

/* dweight and dbias are added to; dfinal_states stays as it is. */
static lb_status conv_backward_run(lb_call *call, bool twin)
{
    conv_backward conv_backward = {.c = {.frame = lb_frame_begin(call), .twin = twin}};
    conv *conv = &conv_backward.c;
    const lb_tensor *x = lb_frame_arg_tensor(call, B_X), *weight = lb_frame_arg_tensor(call, B_WEIGHT),
                    *bias = lb_frame_arg_tensor(call, B_BIAS);
    const lb_tensor *initial = lb_frame_arg_tensor(call, B_INITIAL), *dfinal = lb_frame_arg_tensor(call, B_DFINAL);
    if (!fits(x, weight, bias) || x->layout.ndim != 3)
        lb_frame_fail(&conv->frame, LB_ERR_UNSUPPORTED, "(batch, channels, length) by (channels, taps)");
    if (!lb_frame_ok(&conv->frame)) return lb_frame_end(&conv->frame);
    conv->batch = x->layout.shape[0], conv->channels = x->layout.shape[1], conv->length = x->layout.shape[2],
    conv->taps = weight->layout.shape[1];
    const int64_t rows = conv->batch * conv->channels, states = rows * (conv->taps - 1);
    if ((initial && lb_tensor_numel(initial) != states) || (dfinal && lb_tensor_numel(dfinal) != states))
        lb_frame_fail(&conv->frame, LB_ERR_INVALID, "states of another shape");
    if (!has(call, B_DOUT, lb_tensor_numel(x)) || !has(call, B_DWEIGHT, lb_tensor_numel(weight)) ||
        (lb_frame_arg_given(call, B_DBIAS) && !has(call, B_DBIAS, conv->channels)))
        lb_frame_fail(&conv->frame, LB_ERR_INVALID, "gradients of another shape");
    conv->initial = lb_frame_tensor(&conv->frame, initial),
    conv_backward.dfinal = lb_frame_tensor(&conv->frame, dfinal);
    read_documents(conv, B_SEQ_IDX);
    conv->x = lb_frame_tensor(&conv->frame, x), conv->weight = lb_frame_tensor(&conv->frame, weight),
    conv->bias = lb_frame_tensor(&conv->frame, bias), conv_backward.dout = lb_frame_input(&conv->frame, B_DOUT);
    conv->silu = lb_frame_arg_int(call, B_SILU, 0) != 0;
    const void *dweight = lb_frame_input(&conv->frame, B_DWEIGHT), *dbias = lb_frame_input(&conv->frame, B_DBIAS);
    conv_backward.dx = lb_frame_output(&conv->frame, result_of(call, B_DX), rows * conv->length);
    void *dw = lb_frame_output(&conv->frame, result_of(call, B_DWEIGHT), conv->channels * conv->taps),
         *db = dbias ? lb_frame_output(&conv->frame, result_of(call, B_DBIAS), conv->channels) : NULL,
         *same = dfinal ? lb_frame_output(&conv->frame, result_of(call, B_DFINAL), states) : NULL;
    if (lb_frame_arg_given(call, B_DINITIAL))
        conv_backward.dinitial = lb_frame_output(&conv->frame, result_of(call, B_DINITIAL), states);
    conv_backward.g = lb_frame_scratch(&conv->frame, (size_t)conv->length * sizeof *conv_backward.g);
    conv_backward.dweight =
        lb_frame_scratch(&conv->frame, (size_t)(conv->channels * conv->taps) * sizeof *conv_backward.dweight);
    conv_backward.dbias =
        dbias ? lb_frame_scratch(&conv->frame, (size_t)conv->channels * sizeof *conv_backward.dbias) : NULL;
    if (!lb_frame_ok(&conv->frame)) return lb_frame_end(&conv->frame);
    for (int64_t i = 0; i < conv->channels * conv->taps; i++)
        conv_backward.dweight[i] = twin ? fabs(get(conv, dweight, i)) : get(conv, dweight, i);
    for (int64_t i = 0; dbias && i < conv->channels; i++)
        conv_backward.dbias[i] = twin ? fabs(get(conv, dbias, i)) : get(conv, dbias, i);
    for (int64_t row = 0; row < rows; row++) backward_row(&conv_backward, row, 1 + lb_frame_twin_rounding(call, B_X));
    for (int64_t i = 0; same && i < states; i++) put(conv, same, i, get(conv, conv_backward.dfinal, i));
    for (int64_t i = 0; i < conv->channels * conv->taps; i++) put(conv, dw, i, conv_backward.dweight[i]);
    for (int64_t i = 0; dbias && i < conv->channels; i++) put(conv, db, i, conv_backward.dbias[i]);
    return lb_frame_end(&conv->frame);
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
