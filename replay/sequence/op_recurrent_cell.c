/* One step of an LSTM or a GRU from its gates on, which CUDA has as one op, and the backward of it.
 *
 *      LSTM    i, f, g, o = gates of the input + of the hidden state (+ both biases)     c' = σ(f) c + σ(i) tanh(g)
 *              h' = σ(o) tanh(c')
 *      GRU     r, z, n: n' = tanh(n_input + σ(r) n_hidden), h' = n' + σ(z) (h - n')
 *
 * Everything is computed in f32 (f64 of f64). The workspace has what the backward reads: the LSTM's gates, or σ(r),
 * σ(z), n', h and n_hidden with its bias. Source: pytorch/pytorch aten/src/ATen/native/cuda/RNN.cu. */
#include "kernel/frame.h"
#include "sequence/running_error.h"

#include <math.h>

/* (samples, size) of a state; its gates are (samples, kinds, size). */
typedef struct cell {
    lb_frame frame;
    lb_number_type type;
    int64_t samples, size;
    bool twin;
} cell;

static bool cell_begin(cell *c, lb_call *call, const lb_tensor *state, bool twin)
{
    *c = (cell){.frame = lb_frame_begin(call), .twin = twin};
    c->type = (lb_number_type){.wide = c->frame.wide, .once = 4 / lb_number_factor(call)};
    if (state->layout.ndim != 2) {
        lb_frame_fail(&c->frame, LB_ERR_UNSUPPORTED, "a state that is not by sample and unit");
        return false;
    }
    c->samples = state->layout.shape[0], c->size = state->layout.shape[1];
    return true;
}

/* Arg `i`, which may be absent, of `kinds` numbers per unit and sample; of `kinds` per unit with `samples` 1. */
static const void *input(cell *cell, uint32_t i, int64_t kinds, int64_t samples)
{
    const lb_tensor *tensor = lb_frame_arg_tensor(cell->frame.call, i);
    if (tensor && lb_tensor_numel(tensor) != samples * kinds * cell->size)
        lb_frame_fail(&cell->frame, LB_ERR_INVALID, "gates, states and biases do not match");
    return lb_frame_tensor(&cell->frame, tensor);
}

/* The gates that the forward kept, arg `i`. */
static const void *workspace(cell *cell, uint32_t i, int64_t kinds)
{
    if (!lb_frame_arg_tensor(cell->frame.call, i))
        lb_frame_fail(&cell->frame, LB_ERR_UNSUPPORTED, "its workspace is missing");
    return input(cell, i, kinds, cell->samples);
}

static lb_number get(const cell *cell, const void *x, int64_t i)
{
    return x ? lb_number_from(cell->type, x, i) : (lb_number){0, 0};
}

static void put(const cell *cell, void *y, int64_t i, lb_number a)
{
    if (y) lb_frame_set(&cell->frame, y, i, lb_number_shown(a, cell->twin));
}

static lb_number plus(const cell *cell, lb_number a, lb_number b)
{
    return lb_number_add(cell->type, a, b);
}

static lb_number times(const cell *cell, lb_number a, lb_number b)
{
    return lb_number_multiply(cell->type, a, b);
}

/* a (1 - a), by which a sigmoid's gradient is multiplied. */
static lb_number slope(const cell *cell, lb_number a)
{
    return times(cell, lb_number_one_minus(cell->type, a), a);
}

/* 1 - a^2, the same of tanh. */
static lb_number tanh_slope(const cell *cell, lb_number a)
{
    return lb_number_one_minus(cell->type, times(cell, a, a));
}

/* ---- LSTM -------------------------------------------------------------------------------------------------------- */

/* Args of a forward: gates of the input, of the hidden state, the state, their biases. */
typedef struct gates {
    const void *input, *hidden, *state, *input_bias, *hidden_bias;
} gates;

static gates gates_of(cell *cell, int64_t kinds)
{
    return (gates){input(cell, 0, kinds, cell->samples), input(cell, 1, kinds, cell->samples),
                   input(cell, 2, 1, cell->samples), input(cell, 3, kinds, 1), input(cell, 4, kinds, 1)};
}

/* A sum, whose order may be any. */
static lb_number sum_of(const cell *cell, const lb_number *terms, int n)
{
    lb_number sum = terms[0];
    double size = cell->type.once * fabs(sum.v) + sum.e;
    for (int i = 1; i < n; i++)
        sum = plus(cell, sum, terms[i]), size += cell->type.once * fabs(terms[i].v) + terms[i].e;
    return (lb_number){sum.v, size};
}

/* `at`: in the gates, `unit`: in the biases. */
static lb_number gate(const cell *cell, const gates *gates, int64_t at, int64_t unit)
{
    const lb_number terms[] = {get(cell, gates->input, at), get(cell, gates->hidden, at),
                               get(cell, gates->input_bias, unit), get(cell, gates->hidden_bias, unit)};
    return sum_of(cell, terms, 4);
}

/* Results: h', c', workspace. */
static lb_status lstm_run(lb_call *call, bool twin)
{
    cell cell;
    if (!cell_begin(&cell, call, lb_frame_arg_tensor(call, 2), twin)) return lb_frame_end(&cell.frame);
    const int64_t n = cell.size, all = cell.samples * n;
    const gates gates = gates_of(&cell, 4);
    void *hy = lb_frame_output(&cell.frame, 0, all), *cy = lb_frame_output(&cell.frame, 1, all),
         *kept = lb_frame_output(&cell.frame, 2, 4 * all);
    for (int64_t k = 0; lb_frame_ok(&cell.frame) && k < all; k++) {
        const int64_t unit = k % n, at = k / n * 4 * n + unit;
        const lb_number i = lb_number_sigmoid(cell.type, gate(&cell, &gates, at, unit)),
                        f = lb_number_sigmoid(cell.type, gate(&cell, &gates, at + n, unit + n)),
                        candidate = lb_number_tanh(cell.type, gate(&cell, &gates, at + 2 * n, unit + 2 * n)),
                        o = lb_number_sigmoid(cell.type, gate(&cell, &gates, at + 3 * n, unit + 3 * n)),
                        next = plus(&cell, times(&cell, f, get(&cell, gates.state, k)), times(&cell, i, candidate));
        put(&cell, cy, k, next);
        put(&cell, hy, k, times(&cell, o, lb_number_tanh(cell.type, next)));
        put(&cell, kept, at, i), put(&cell, kept, at + n, f);
        put(&cell, kept, at + 2 * n, candidate), put(&cell, kept, at + 3 * n, o);
    }
    return lb_frame_end(&cell.frame);
}

LB_WITH_TWIN(lstm, lstm_run(call, twin))

/* Where what one unit of one sample gives is added up over samples, if it is wanted. */
static void *bias_of(cell *cell, uint32_t r, int64_t kinds)
{
    const lb_call *call = cell->frame.call;
    return r < call->n_results && call->results[r].data ? lb_frame_output(&cell->frame, r, kinds * cell->size) : NULL;
}

/* Sums over samples of gradients of gates as the op gives them, in the dtype of arg `arg`. */
static void add_up(const cell *cell, void *bias, const lb_number *of_gates, int64_t kinds, uint32_t arg)
{
    const int64_t row = kinds * cell->size;
    const double coarse = lb_frame_twin_rounding(cell->frame.call, arg);
    for (int64_t unit = 0; bias && unit < row; unit++) {
        lb_number sum = {0, 0};
        for (int64_t s = 0; s < cell->samples; s++) {
            const lb_number one = lb_number_kept(of_gates[s * row + unit], coarse);
            sum = lb_number_chain(cell->type, sum, one, (lb_number){1, 0});
        }
        put(cell, bias, unit, sum);
    }
}

/* Args: grad_hy, grad_cy, cx, cy, workspace, has_bias. Results: gradients of the gates and of c, or of both gates, c,
 * and both biases. */
static lb_status lstm_backward_of(lb_call *call, bool biases, bool twin)
{
    cell cell;
    if (!cell_begin(&cell, call, lb_frame_arg_tensor(call, 2), twin)) return lb_frame_end(&cell.frame);
    const int64_t n = cell.size, all = cell.samples * n;
    const void *dh = input(&cell, 0, 1, cell.samples), *dc = input(&cell, 1, 1, cell.samples),
               *before = input(&cell, 2, 1, cell.samples), *after = input(&cell, 3, 1, cell.samples),
               *kept = workspace(&cell, 4, 4);
    lb_number *gates = lb_frame_scratch(&cell.frame, (size_t)(4 * all) * sizeof *gates);
    void *dz[2] = {lb_frame_output(&cell.frame, 0, 4 * all), biases ? lb_frame_output(&cell.frame, 1, 4 * all) : NULL};
    void *dcx = lb_frame_output(&cell.frame, biases ? 2 : 1, all), *db = biases ? NULL : bias_of(&cell, 2, 4);
    void *both[2] = {biases ? bias_of(&cell, 3, 4) : NULL, biases ? bias_of(&cell, 4, 4) : NULL};
    for (int64_t k = 0; lb_frame_ok(&cell.frame) && k < all; k++) {
        const int64_t at = k / n * 4 * n + k % n;
        const lb_number i = get(&cell, kept, at), f = get(&cell, kept, at + n),
                        candidate = get(&cell, kept, at + 2 * n), o = get(&cell, kept, at + 3 * n),
                        t = lb_number_tanh(cell.type, get(&cell, after, k)),
                        d = plus(&cell, times(&cell, times(&cell, get(&cell, dh, k), o), tanh_slope(&cell, t)),
                                 get(&cell, dc, k));
        gates[at] = times(&cell, times(&cell, d, candidate), slope(&cell, i));
        gates[at + n] = times(&cell, times(&cell, d, get(&cell, before, k)), slope(&cell, f));
        gates[at + 2 * n] = times(&cell, times(&cell, d, i), tanh_slope(&cell, candidate));
        gates[at + 3 * n] = times(&cell, times(&cell, get(&cell, dh, k), t), slope(&cell, o));
        put(&cell, dcx, k, times(&cell, d, f));
    }
    for (int64_t k = 0; lb_frame_ok(&cell.frame) && k < 4 * all; k++)
        put(&cell, dz[0], k, gates[k]), put(&cell, dz[1], k, gates[k]);
    if (lb_frame_ok(&cell.frame)) {
        add_up(&cell, db, gates, 4, 4);
        add_up(&cell, both[0], gates, 4, 4), add_up(&cell, both[1], gates, 4, 4);
    }
    return lb_frame_end(&cell.frame);
}

LB_WITH_TWIN(lstm_backward, lstm_backward_of(call, true, twin))
LB_WITH_TWIN(lstm_backward_impl, lstm_backward_of(call, false, twin))

/* ---- GRU --------------------------------------------------------------------------------------------------------- */

/* Results: h', workspace. */
static lb_status gru_run(lb_call *call, bool twin)
{
    cell cell;
    if (!cell_begin(&cell, call, lb_frame_arg_tensor(call, 2), twin)) return lb_frame_end(&cell.frame);
    const int64_t n = cell.size, all = cell.samples * n;
    const gates gates = gates_of(&cell, 3);
    void *hy = lb_frame_output(&cell.frame, 0, all), *kept = lb_frame_output(&cell.frame, 1, 5 * all);
    for (int64_t k = 0; lb_frame_ok(&cell.frame) && k < all; k++) {
        const int64_t unit = k % n, at = k / n * 3 * n + unit, to = k / n * 5 * n + unit;
        const lb_number r = lb_number_sigmoid(cell.type, gate(&cell, &gates, at, unit)),
                        z = lb_number_sigmoid(cell.type, gate(&cell, &gates, at + n, unit + n)),
                        hidden = plus(&cell, get(&cell, gates.hidden, at + 2 * n),
                                      get(&cell, gates.hidden_bias, unit + 2 * n)),
                        h = get(&cell, gates.state, k);
        const lb_number terms[] = {get(&cell, gates.input, at + 2 * n), get(&cell, gates.input_bias, unit + 2 * n),
                                   times(&cell, r, hidden)};
        const lb_number candidate = lb_number_tanh(cell.type, sum_of(&cell, terms, 3));
        put(&cell, hy, k, plus(&cell, candidate, times(&cell, z, lb_number_subtract(cell.type, h, candidate))));
        put(&cell, kept, to, r), put(&cell, kept, to + n, z), put(&cell, kept, to + 2 * n, candidate);
        put(&cell, kept, to + 3 * n, h), put(&cell, kept, to + 4 * n, hidden);
    }
    return lb_frame_end(&cell.frame);
}

LB_WITH_TWIN(gru, gru_run(call, twin))

/* Args: grad_hy, workspace, has_bias. Results: gradients of the gates of the input and of the hidden state, of h, and
 * of both biases. */
static lb_status gru_backward_run(lb_call *call, bool twin)
{
    cell cell;
    if (!cell_begin(&cell, call, lb_frame_arg_tensor(call, 0), twin)) return lb_frame_end(&cell.frame);
    const int64_t n = cell.size, all = cell.samples * n;
    const void *dh = input(&cell, 0, 1, cell.samples), *kept = workspace(&cell, 1, 5);
    lb_number *of_input = lb_frame_scratch(&cell.frame, (size_t)(3 * all) * sizeof *of_input),
              *of_hidden = lb_frame_scratch(&cell.frame, (size_t)(3 * all) * sizeof *of_hidden);
    void *dx = lb_frame_output(&cell.frame, 0, 3 * all), *dz = lb_frame_output(&cell.frame, 1, 3 * all),
         *dhx = lb_frame_output(&cell.frame, 2, all), *db = bias_of(&cell, 3, 3), *dd = bias_of(&cell, 4, 3);
    for (int64_t k = 0; lb_frame_ok(&cell.frame) && k < all; k++) {
        const int64_t at = k / n * 3 * n + k % n, from = k / n * 5 * n + k % n;
        const lb_number d = get(&cell, dh, k), r = get(&cell, kept, from), z = get(&cell, kept, from + n),
                        candidate = get(&cell, kept, from + 2 * n), h = get(&cell, kept, from + 3 * n),
                        hidden = get(&cell, kept, from + 4 * n),
                        inner = times(&cell, times(&cell, d, lb_number_one_minus(cell.type, z)),
                                      tanh_slope(&cell, candidate));
        of_input[at] = times(&cell, times(&cell, inner, hidden), slope(&cell, r));
        of_input[at + n] = times(&cell, times(&cell, d, lb_number_subtract(cell.type, h, candidate)), slope(&cell, z));
        of_input[at + 2 * n] = inner;
        of_hidden[at] = of_input[at], of_hidden[at + n] = of_input[at + n];
        of_hidden[at + 2 * n] = times(&cell, inner, r);
        put(&cell, dhx, k, times(&cell, d, z));
    }
    for (int64_t k = 0; lb_frame_ok(&cell.frame) && k < 3 * all; k++)
        put(&cell, dx, k, of_input[k]), put(&cell, dz, k, of_hidden[k]);
    if (lb_frame_ok(&cell.frame)) add_up(&cell, db, of_input, 3, 1), add_up(&cell, dd, of_hidden, 3, 1);
    return lb_frame_end(&cell.frame);
}

LB_WITH_TWIN(gru_backward, gru_backward_run(call, twin))

/* Sums over samples, of which there are as many as rows of arg A, make a bias's gradient. */
#define CELL(NAME, ARGS, KERNEL, SAMPLES)                                                                              \
    {.name = "aten::" NAME, .args = ARGS, LB_COMPUTED_BY(KERNEL), .roundings = 4, .samples = SAMPLES}
#define CELL_BACKWARD(NAME, ARGS, KERNEL, A, SAMPLES)                                                                  \
    {.name = "aten::" NAME, .args = ARGS, LB_COMPUTED_BY(KERNEL), LB_SUMS(4, LB_TERMS(FIRST, A)), .samples = SAMPLES}
#define GATES "input_gates! hidden_gates! "
#define BIASES " input_bias hidden_bias"
#define GRADIENTS "grad_hy grad_cy cx! cy! workspace has_bias"
const lb_op_row lb_rows_recurrent_cell[] = {
    CELL("_thnn_fused_lstm_cell", GATES "cx!" BIASES, lstm, "recurrent_cell lstm"),
    CELL("_thnn_fused_gru_cell", GATES "hx!" BIASES, gru, "recurrent_cell gru"),
    CELL_BACKWARD("_thnn_fused_lstm_cell_backward", GRADIENTS, lstm_backward, 2, "recurrent_cell lstm backward"),
    CELL_BACKWARD("_thnn_fused_lstm_cell_backward_impl", GRADIENTS, lstm_backward_impl, 2,
                  "recurrent_cell lstm backward impl"),
    CELL_BACKWARD("_thnn_fused_gru_cell_backward", "grad_hy! workspace has_bias", gru_backward, 0,
                  "recurrent_cell gru backward"),
    {NULL},
};
