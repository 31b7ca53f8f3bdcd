/* Stacks of recurrent layers that cuDNN runs as one op, and their backward.
 *
 *      relu, tanh   h' = f(W x + b + V h + d)
 *      LSTM         i, f, g, o = W x + b + V h + d        c' = σ(f) c + σ(i) tanh(g)        h' = σ(o) tanh(c')
 *      GRU          r, z as above, n = tanh(W x + b + σ(r) (V h + d))                       h' = n + σ(z) (h - n)
 *
 * The weights are those of the list, layer by layer and direction by direction, as nn.LSTM has them; the flat buffer
 * beside it holds the same ones. A second direction reads the sequence from its end; what both give stands side by
 * side. Sequences of other lengths come packed (batch_sizes). Dropout between layers and projections are not computed:
 * cuDNN keeps its masks in the reserve, whose layout is its own.
 *
 * cuDNN does not say how it computes: f32 may be multiplied as TF32, 16-bit layers may hold any sum, gate or state in
 * 16 bits, and its exponentials are its own. The running errors allow for all of that. Source of arguments, modes and
 * order of weights: pytorch/pytorch aten/src/ATen/native/cudnn/RNN.cpp and aten/src/ATen/native/RNN.cpp. */
#include "sequence/recurrent_stack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static lb_number plus(const lb_stack *stack, lb_number a, lb_number b)
{
    return lb_number_add(stack->type, a, b);
}

static lb_number times(const lb_stack *stack, lb_number a, lb_number b)
{
    return lb_number_multiply(stack->type, a, b);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static bool is_wanted(const lb_call *call, uint32_t result)
{
    return result < call->n_results && call->results[result].data && lb_tensor_numel(&call->results[result]) > 0;
}

/* Result `r`, in a frame of its own, of which a call may have as many as it has results. */
static void put(lb_stack *stack, uint32_t result, const lb_number *a, int64_t n)
{
    lb_call *call = stack->frame.call;
    if (!lb_frame_ok(&stack->frame) || !is_wanted(call, result)) return;
    lb_frame part = lb_frame_begin(call);
    void *y = lb_frame_output(&part, result, n);
    for (int64_t i = 0; y && i < n; i++) lb_frame_set(&part, y, i, lb_number_shown(a[i], stack->twin));
    const lb_status status = lb_frame_end(&part);
    if (status != LB_OK) stack->frame.status = status;
}

/* The last state of every sample: h, or c. */
static void put_last(lb_stack *stack, uint32_t result, bool cell)
{
    const int64_t n = stack->size, all = stack->layers * stack->directions * stack->samples * n;
    lb_number *last = lb_stack_numbers(stack, all);
    for (int64_t i = 0; lb_frame_ok(&stack->frame) && i < stack->layers * stack->directions; i++) {
        const lb_stack_pass pass = lb_stack_pass_of(stack, i / stack->directions, i % stack->directions);
        for (int64_t sample = 0; sample < stack->samples; sample++) {
            const int64_t length = lb_stack_length(stack, sample),
                          row = lb_stack_row_before(&pass, sample, length, length);
            lb_number *to = last + (i * stack->samples + sample) * n;
            if (!cell) lb_stack_state_before(&pass, sample, row, to);
            for (int64_t j = 0; cell && j < n; j++) to[j] = lb_stack_cell_before(&pass, sample, row, j);
        }
    }
    if (lb_frame_ok(&stack->frame)) put(stack, result, last, all);
}

/* Results: output, h, c, and as recorded the reserve and the flat buffer. */
static lb_status layers_run(lb_call *call, bool twin)
{
    lb_stack stack;
    if (!lb_stack_begin(&stack, call, (lb_stack_places){4, 6}, twin)) return lb_frame_end(&stack.frame);
    lb_stack_run(&stack);
    put(&stack, 0, stack.sequence[stack.layers], stack.rows * stack.size * stack.directions);
    put_last(&stack, 1, false);
    if (stack.mode == LB_STACK_LSTM) put_last(&stack, 2, true);
    return lb_frame_end(&stack.frame);
}

LB_WITH_TWIN(layers, layers_run(call, twin))

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Gradients of one pass: of its gates before their functions, of what V h + d gives to them, and of h and c as they
 * came in. */
typedef struct gradients {
    lb_number *of_input, *of_state; /* (rows, kinds, size); they differ in a GRU's n */
    lb_number *h, *c;               /* (samples, size) */
} gradients;

static lb_number slope(const lb_stack *stack, lb_number a)
{
    return times(stack, lb_number_one_minus(stack->type, a), a);
}

static lb_number tanh_slope(const lb_stack *stack, lb_number a)
{
    return lb_number_one_minus(stack->type, times(stack, a, a));
}

/* Where relu's argument may have been on either side of 0, all of dh may be there or not. */
static lb_number undo_relu(const lb_stack *stack, lb_number a, lb_number dh)
{
    const double doubt = fabs(a.v) <= a.e * stack->type.unit ? fabs(dh.v) / stack->type.unit : 0;
    return a.v > 0 ? (lb_number){dh.v, dh.e + doubt} : (lb_number){0, doubt};
}

/* What one step of a unit reads: h and c before it and behind it, and its gates, `size` apart. */
typedef struct undone {
    lb_number before, c_before, c_after;
    const lb_number *gates;
} undone;

/* Undoes one unit: dh is the gradient of its h, *dc of its c, which becomes that of the c before. The result is what
 * passes on to the h before without V. */
static lb_number undo_unit(const lb_stack *stack, const undone *undone, lb_number *x, lb_number *v, lb_number dh,
                           lb_number *dc)
{
    const int64_t n = stack->size;
    const lb_number *g = undone->gates;
    lb_number past = {0, 0};
    if (stack->mode == LB_STACK_RELU) {
        x[0] = undo_relu(stack, g[n], dh);
    } else if (stack->mode == LB_STACK_TANH) {
        x[0] = times(stack, dh, tanh_slope(stack, g[0]));
    } else if (stack->mode == LB_STACK_GRU) {
        x[2 * n] = times(stack, times(stack, dh, lb_number_one_minus(stack->type, g[n])), tanh_slope(stack, g[2 * n]));
        x[0] = times(stack, times(stack, x[2 * n], g[3 * n]), slope(stack, g[0]));
        x[n] = times(stack, times(stack, dh, lb_number_subtract(stack->type, undone->before, g[2 * n])),
                     slope(stack, g[n]));
        past = times(stack, dh, g[n]);
    } else {
        const lb_number t = lb_stack_tanh(stack, undone->c_after);
        const lb_number d = plus(stack, *dc, times(stack, times(stack, dh, g[3 * n]), tanh_slope(stack, t)));
        x[0] = times(stack, times(stack, d, g[2 * n]), slope(stack, g[0]));
        x[n] = times(stack, times(stack, d, undone->c_before), slope(stack, g[n]));
        x[2 * n] = times(stack, times(stack, d, g[0]), tanh_slope(stack, g[2 * n]));
        x[3 * n] = times(stack, times(stack, dh, t), slope(stack, g[3 * n]));
        *dc = lb_stack_stored(stack, times(stack, d, g[n]));
    }
    for (int64_t k = 0; k < stack->kinds; k++) {
        x[k * n] = lb_stack_stored(stack, x[k * n]);
        v[k * n] =
            stack->mode == LB_STACK_GRU && k == 2 ? lb_stack_stored(stack, times(stack, x[2 * n], g[0])) : x[k * n];
    }
    return past;
}

/* dy: of what the layer gives, (rows, size * directions). h: scratch for two vectors. */
static void undo_sample(const lb_stack_pass *pass, const gradients *gradients, const lb_number *dy, int64_t sample,
                        lb_number *h)
{
    lb_stack *stack = pass->stack;
    const int64_t n = stack->size, wide = n * stack->directions, gates = stack->kinds * n,
                  length = lb_stack_length(stack, sample);
    lb_number *dh = gradients->h + sample * n, *dc = gradients->c + sample * n, *past = h + n;
    for (int64_t k = length - 1; k >= 0; k--) {
        const int64_t row = lb_stack_row(stack, lb_stack_step(pass, k, length), sample),
                      before = lb_stack_row_before(pass, sample, k, length);
        lb_stack_state_before(pass, sample, before, h);
        for (int64_t j = 0; j < n; j++) {
            const undone undone = {h[j], lb_stack_cell_before(pass, sample, before, j),
                                   lb_stack_cell_before(pass, sample, row, j),
                                   stack->gates[pass->index] + row * lb_stack_kept_kinds(stack) * n + j};
            const lb_number whole_dh =
                lb_stack_stored(stack, plus(stack, dh[j], dy[row * wide + pass->direction * n + j]));
            past[j] = undo_unit(stack, &undone, gradients->of_input + row * gates + j,
                                gradients->of_state + row * gates + j, whole_dh, &dc[j]);
        }
        for (int64_t j = 0; j < n; j++)
            dh[j] = lb_stack_stored(
                stack,
                plus(stack, past[j], lb_stack_dot(stack, pass->v + j, n, gradients->of_state + row * gates, gates)));
    }
}

/* Sums over all rows of products of a gate's gradient with what it was multiplied with; y(row) NULL: with 1. */
static lb_number product_over_rows(const lb_stack *stack, const lb_number *a, int64_t a_step, const lb_number *y,
                                   int64_t y_step)
{
    static const lb_number one = {1, 0};
    lb_number sum = {0, 0};
    for (int64_t row = 0; row < stack->rows; row++) {
        const lb_number x = a[row * a_step], z = y ? y[row * y_step] : one;
        sum.v += x.v * z.v;
        if (stack->twin)
            sum.e += fabs(x.v * z.v) * (1 + (y ? stack->product : 0)) + fabs(x.v) * z.e + fabs(z.v) * x.e +
                     x.e * z.e * stack->type.unit;
    }
    sum.v = lb_number_step(stack->type, sum.v);
    return sum;
}

/* Result `r`: (gates, width) of gradients of gates, (rows, gates), and of what they read, (rows, width); `y` NULL: a
 * bias. */
static void put_weight(lb_stack *stack, uint32_t result, const lb_number *of_gates, const lb_number *y, int64_t width)
{
    const int64_t gates = stack->kinds * stack->size;
    if (!is_wanted(stack->frame.call, result) || !lb_frame_ok(&stack->frame)) return;
    lb_number *sums =
        malloc((size_t)(gates * width) * sizeof *sums); /* of one weight: a frame's memory stays until its end */
    if (!sums) lb_frame_fail(&stack->frame, LB_ERR_NOMEM, "no memory for a gradient");
    if (!sums) return;
#pragma omp parallel for
    for (int64_t g = 0; g < gates; g++)
        for (int64_t i = 0; i < width; i++)
            sums[g * width + i] = product_over_rows(stack, of_gates + g, gates, y ? y + i : NULL, width);
    put(stack, result, sums, gates * width);
    free(sums);
}

/* What each row's gates read as h: (rows, size). */
static void states_before(const lb_stack_pass *pass, lb_number *h)
{
    const lb_stack *stack = pass->stack;
    for (int64_t sample = 0; sample < stack->samples; sample++) {
        const int64_t length = lb_stack_length(stack, sample);
        for (int64_t k = 0; k < length; k++) {
            const int64_t row = lb_stack_row(stack, lb_stack_step(pass, k, length), sample);
            lb_stack_state_before(pass, sample, lb_stack_row_before(pass, sample, k, length), h + row * stack->size);
        }
    }
}

/* Working memory of a backward, used anew by every pass. */
typedef struct workplace {
    gradients g;
    lb_number *dy, *dx, *before, *vectors;
} workplace;

static void undo_pass(const lb_stack_pass *pass, workplace *to)
{
    lb_stack *stack = pass->stack;
    const int64_t n = stack->size, gates = stack->kinds * n, width = lb_stack_width(stack, pass->layer);
    const gradients gradients = {to->g.of_input, to->g.of_state, to->g.h + pass->index * stack->samples * n,
                                 to->g.c + pass->index * stack->samples * n};
#pragma omp parallel for
    for (int64_t sample = 0; sample < stack->samples; sample++)
        undo_sample(pass, &gradients, to->dy, sample, to->vectors + sample * 2 * n);
#pragma omp parallel for
    for (int64_t row = 0; row < stack->rows; row++)
        for (int64_t i = 0; i < width; i++) {
            lb_number *dx = &to->dx[row * width + i];
            *dx = lb_stack_stored(
                stack,
                plus(stack, *dx, lb_stack_dot(stack, pass->w + i, width, gradients.of_input + row * gates, gates)));
        }
    states_before(pass, to->before);
    const uint32_t result = 3 + (uint32_t)pass->index * stack->per_layer;
    put_weight(stack, result, gradients.of_input, stack->sequence[pass->layer], width);
    put_weight(stack, result + 1, gradients.of_state, to->before, n);
    if (stack->per_layer == 4)
        put_weight(stack, result + 2, gradients.of_input, NULL, 1),
            put_weight(stack, result + 3, gradients.of_state, NULL, 1);
}

/* Arg `i`, a gradient that may be absent, into `to`. */
static void read_gradient(lb_stack *stack, uint32_t i, lb_number *to, int64_t n)
{
    const lb_tensor *tensor = lb_frame_arg_tensor(stack->frame.call, i);
    if (tensor && lb_tensor_numel(tensor) != n)
        lb_frame_fail(&stack->frame, LB_ERR_UNSUPPORTED, "a gradient of another size");
    const void *x = lb_frame_tensor(&stack->frame, tensor);
    for (int64_t k = 0; x && lb_frame_ok(&stack->frame) && k < n; k++) to[k] = lb_number_from(stack->type, x, k);
}

/* Results: gradients of input, hx, cx, and of the weights in their order. */
static lb_status layers_backward_run(lb_call *call, bool twin)
{
    lb_stack stack;
    if (!lb_stack_begin(&stack, call, (lb_stack_places){4, 10}, twin)) return lb_frame_end(&stack.frame);
    lb_stack_run(&stack);
    const int64_t n = stack.size, wide = n * stack.directions,
                  states = stack.layers * stack.directions * stack.samples * n,
                  most = stack.rows * (stack.inputs > wide ? stack.inputs : wide);
    workplace to = {.g = {lb_stack_numbers(&stack, stack.rows * stack.kinds * n),
                          lb_stack_numbers(&stack, stack.rows * stack.kinds * n), lb_stack_numbers(&stack, states),
                          lb_stack_numbers(&stack, states)},
                    .dy = lb_stack_numbers(&stack, most),
                    .dx = lb_stack_numbers(&stack, most),
                    .before = lb_stack_numbers(&stack, stack.rows * n),
                    .vectors = lb_stack_numbers(&stack, 2 * stack.samples * n)};
    if (!lb_frame_ok(&stack.frame)) return lb_frame_end(&stack.frame);
    read_gradient(&stack, 7, to.dy, stack.rows * wide);
    read_gradient(&stack, 8, to.g.h, states);
    if (stack.mode == LB_STACK_LSTM) read_gradient(&stack, 9, to.g.c, states);
    for (int64_t layer = stack.layers - 1; lb_frame_ok(&stack.frame) && layer >= 0; layer--) {
        memset(to.dx, 0, (size_t)most * sizeof *to.dx);
        for (int64_t direction = 0; direction < stack.directions; direction++) {
            const lb_stack_pass pass = lb_stack_pass_of(&stack, layer, direction);
            undo_pass(&pass, &to);
        }
        lb_number *done = to.dy;
        to.dy = to.dx, to.dx = done;
    }
    put(&stack, 0, to.dy, stack.rows * stack.inputs);
    put(&stack, 1, to.g.h, states);
    if (stack.mode == LB_STACK_LSTM) put(&stack, 2, to.g.c, states);
    return lb_frame_end(&stack.frame);
}

LB_WITH_TWIN(layers_backward, layers_backward_run(call, twin))

#define LAYERS "input! weight[] weight_stride0 "
#define KIND "mode hidden_size proj_size num_layers batch_first dropout train bidirectional batch_sizes dropout_state"
const lb_op_row lb_rows_recurrent_layers[] = {
    {.name = "aten::_cudnn_rnn",
     .args = LAYERS "weight_buf hx! cx " KIND,
     LB_COMPUTED_BY(layers),
     LB_SUMS(8, LB_TERMS(LAYERS, 0)),
     .flags = LB_ROW_REDUCTION | LB_ROW_GIVEN(3, 2),
     .samples = "recurrent_layers"},
    {.name = "aten::_cudnn_rnn_backward",
     .args = LAYERS "weight_buf! hx! cx output! grad_output grad_hy grad_cy " KIND " reserve output_mask",
     LB_COMPUTED_BY(layers_backward),
     LB_SUMS(8, LB_TERMS(LAYERS, 0)),
     .flags = LB_ROW_REDUCTION,
     .samples = "recurrent_layers backward"},
    {NULL},
};
