/* Custom ops of state-space models: the short causal convolution in front of a selective scan.
 *
 * Names and schemas as registered in Dao-AILab/causal-conv1d causal_conv1d/cpp_functions.py (`DaoAILab::_causal_conv1d_fwd_cpp`), which
 * state-spaces/mamba and fla-org/flash-linear-attention call; the definition is csrc/causal_conv1d_fwd.cu's: oldest tap first, then SiLU. */
#include "elementary.h"
#include "frame.h"

#include <math.h>

enum { X, WEIGHT, BIAS, SEQ_IDX, INITIAL, OUT, FINAL, SILU };

typedef struct conv {
    lb_frame frame;
    int64_t batch, channels, length, taps;
    const void *x, *weight, *bias, *initial;
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

/* The element of row `r` (a channel of a sample) at time t; before its start the initial state (batch, channels, taps - 1), or 0. */
static double at(const conv *c, int64_t r, int64_t t)
{
    if (t >= 0) return get(c, c->x, r * c->length + t);
    return c->initial ? get(c, c->initial, r * (c->taps - 1) + c->taps - 1 + t) : 0;
}

static void row(const conv *c, int64_t r, double slack)
{
    const int64_t channel = r % c->channels;
    for (int64_t t = 0; t < c->length; t++) {
        double sum = c->bias ? get(c, c->bias, channel) : 0;
        if (c->twin) sum = fabs(sum);
        for (int64_t k = 0; k < c->taps; k++) {
            const double term = get(c, c->weight, channel * c->taps + k) * at(c, r, t - (c->taps - 1 - k));
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
    const lb_tensor *x = lb_call_tensor(call, X), *weight = lb_call_tensor(call, WEIGHT),
                    *bias = lb_call_tensor(call, BIAS), *initial = lb_call_tensor(call, INITIAL);
    if (!x || !weight || x->layout.ndim != 3 || weight->layout.ndim != 2 ||
        weight->layout.shape[0] != x->layout.shape[1] || lb_call_given(call, SEQ_IDX))
        lb_frame_fail(&c.frame, LB_ERR_UNSUPPORTED,
                      "(batch, channels, length) by (channels, taps), one sequence each");
    if (!lb_frame_ok(&c.frame)) return lb_frame_end(&c.frame);
    c.batch = x->layout.shape[0], c.channels = x->layout.shape[1], c.length = x->layout.shape[2],
    c.taps = weight->layout.shape[1];
    const int64_t rows = c.batch * c.channels;
    if (initial && lb_tensor_numel(initial) != rows * (c.taps - 1))
        lb_frame_fail(&c.frame, LB_ERR_INVALID, "initial states of another shape");
    c.x = lb_frame_tensor(&c.frame, x), c.weight = lb_frame_tensor(&c.frame, weight),
    c.bias = lb_frame_tensor(&c.frame, bias);
    c.initial = lb_frame_tensor(&c.frame, initial);
    c.y = lb_frame_output(&c.frame, 0, rows * c.length);
    const bool keeps = call->n_results > 1 && call->results[1].data;
    c.last = keeps ? lb_frame_output(&c.frame, 1, rows * (c.taps - 1)) : NULL;
    c.silu = lb_call_int(call, SILU, 0) != 0;
    const double slack = 1 + lb_twin_rounding(call, X);
    for (int64_t r = 0; lb_frame_ok(&c.frame) && r < rows; r++) row(&c, r, slack);
    return lb_frame_end(&c.frame);
}
static lb_status conv_kernel(lb_call *call)
{
    return causal_conv(call, false);
}
static lb_status conv_twin(lb_call *call)
{
    return causal_conv(call, true);
}

const lb_op_row lb_rows_state_space[] = {
    {"DaoAILab::_causal_conv1d_fwd_cpp",
     "x weight bias seq_idx initial_states out final_states_out silu_activation", conv_kernel, conv_twin, 16, 0,
     LB_ROW_WRITES, NULL, "custom"},
    {NULL}};
