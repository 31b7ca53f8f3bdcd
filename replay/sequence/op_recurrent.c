/* The LSTM layer that torch runs as one op on a CPU, and its backward.
 *
 *      i, f, g, o = W x_t + b + V h + d        c = σ(f) c + σ(i) tanh(g)        h = σ(o) tanh(c)
 *
 * Numbers are evaluated in f64 and rounded to f32 after every operation of an f32 layer; dot products are chains in
 * order of the columns, first of W, then of V. 16-bit layers round h to their dtype where it is stored, c stays in f32.
 *
 * Running errors: every number carries the bound of its own error in units of u times the row's factor, so that what
 * the recurrence makes of early roundings is in the bound. That is the twin; numbers and errors come from one pass. */
#include "kernel/frame.h"
#include "sequence/running_error.h"

#include <math.h>
#include <string.h>

typedef struct layer {
    lb_frame frame;
    int64_t time, samples, inputs, size;
    bool reverse;
    lb_dtype rounds; /* 16-bit dtype of h, or none */
    double coarse;   /* error of storing h, in units of f32's */
    const void *x, *w, *v, *b, *d, *h0, *c0;
    /* (time, samples, 4, size); (time + 1, samples, size) each, index 0 what came in */
    lb_number *gates, *states, *outputs;
} layer;

static lb_number_type type_of(const layer *layer)
{
    return (lb_number_type){.wide = layer->frame.wide, .once = 1};
}

static lb_number from(const layer *layer, const void *x, int64_t i)
{
    return lb_number_from(type_of(layer), x, i);
}

static lb_number add(const layer *layer, lb_number a, lb_number b)
{
    return lb_number_add(type_of(layer), a, b);
}

static lb_number mul(const layer *layer, lb_number a, lb_number b)
{
    return lb_number_multiply(type_of(layer), a, b);
}

static lb_number chain(const layer *layer, lb_number a, lb_number b, lb_number c)
{
    return lb_number_chain(type_of(layer), a, b, c);
}

static lb_number sigmoid(const layer *layer, lb_number a)
{
    return lb_number_sigmoid(type_of(layer), a);
}

static lb_number hyperbolic(const layer *layer, lb_number a)
{
    return lb_number_tanh(type_of(layer), a);
}

static lb_number one_minus(const layer *layer, lb_number a)
{
    return lb_number_one_minus(type_of(layer), a);
}

/* A gate or state, which oneDNN keeps in 16 bits for the backward of a 16-bit layer. */
static lb_number kept(const layer *layer, lb_number a)
{
    return lb_number_kept(a, layer->coarse);
}

/* What is left of a number that is stored in the layer's dtype. */
static lb_number stored(const layer *layer, lb_number a)
{
    if (layer->rounds && !layer->frame.wide) lb_round_to_grid_f64(&a.v, 1, layer->rounds, NULL);
    return lb_number_kept(a, layer->coarse);
}

static lb_number *numbers(layer *layer, int64_t n)
{
    lb_number *p = lb_frame_scratch(&layer->frame, (size_t)n * sizeof *p);
    if (p) memset(p, 0, (size_t)n * sizeof *p);
    return p;
}

/* The step of the input that the k-th step of the recurrence reads. */
static int64_t at_time(const layer *layer, int64_t k)
{
    return layer->reverse ? layer->time - 1 - k : k;
}

static void run_cell(layer *layer, int64_t k, int64_t sample)
{
    const int64_t n = layer->size, in = (at_time(layer, k) * layer->samples + sample) * layer->inputs;
    const lb_number *h = layer->outputs + (k * layer->samples + sample) * n,
                    *c = layer->states + (k * layer->samples + sample) * n;
    lb_number *z = layer->gates + (k * layer->samples + sample) * 4 * n;
    for (int64_t row = 0; row < 4 * n; row++) {
        lb_number sum = {0, 0};
        for (int64_t j = 0; j < layer->inputs; j++)
            sum = chain(layer, sum, from(layer, layer->w, row * layer->inputs + j), from(layer, layer->x, in + j));
        for (int64_t j = 0; j < n; j++) sum = chain(layer, sum, from(layer, layer->v, row * n + j), h[j]);
        if (layer->b) sum = add(layer, sum, add(layer, from(layer, layer->b, row), from(layer, layer->d, row)));
        z[row] = kept(layer, row / n == 2 ? hyperbolic(layer, sum) : sigmoid(layer, sum));
    }
    lb_number *next_c = layer->states + ((k + 1) * layer->samples + sample) * n,
              *next_h = layer->outputs + ((k + 1) * layer->samples + sample) * n;
    for (int64_t j = 0; j < n; j++) {
        next_c[j] = kept(layer, add(layer, mul(layer, z[n + j], c[j]), mul(layer, z[j], z[2 * n + j])));
        next_h[j] = stored(layer, mul(layer, z[3 * n + j], hyperbolic(layer, next_c[j])));
    }
}

/* `first`: position of weight0 … weight3, hx, cx, which follow each other. */
static bool run_layer(layer *l, lb_call *call, uint32_t reverse, uint32_t mode, uint32_t biases)
{
    *l = (layer){.frame = lb_frame_begin(call), .reverse = lb_frame_arg_int(call, reverse, 0)};
    lb_frame *frame = &l->frame;
    const lb_tensor *x = lb_frame_arg_tensor(call, 0), *v = lb_frame_arg_tensor(call, 2);
    if (lb_frame_arg_int(call, mode, 2) != 2 || x->layout.ndim != 3 || v->layout.ndim != 2) {
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "only LSTM layers over (time, batch, features) are computed");
        return false;
    }
    l->time = x->layout.shape[0], l->samples = x->layout.shape[1], l->inputs = x->layout.shape[2],
    l->size = v->layout.shape[1];
    if (lb_dtype_bits(x->dtype) == 16) l->rounds = x->dtype, l->coarse = lb_frame_twin_scale(call, 0);
    l->x = lb_frame_input(frame, 0), l->w = lb_frame_input(frame, 1), l->v = lb_frame_input(frame, 2);
    if (lb_frame_arg_int(call, biases, 1)) l->b = lb_frame_input(frame, 3), l->d = lb_frame_input(frame, 4);
    l->h0 = lb_frame_input(frame, 5), l->c0 = lb_frame_input(frame, 6);
    const int64_t cells = l->samples * l->size;
    if (lb_frame_ok(frame) &&
        (lb_tensor_numel(v) != 4 * l->size * l->size || lb_tensor_numel(lb_frame_arg_tensor(call, 5)) != cells ||
         lb_tensor_numel(lb_frame_arg_tensor(call, 6)) != cells))
        lb_frame_fail(frame, LB_ERR_INVALID, "states and weights do not match");
    l->gates = numbers(l, l->time * 4 * cells);
    l->states = numbers(l, (l->time + 1) * cells), l->outputs = numbers(l, (l->time + 1) * cells);
    if (!lb_frame_ok(frame)) return false;
    for (int64_t i = 0; i < cells; i++) l->outputs[i] = from(l, l->h0, i), l->states[i] = from(l, l->c0, i);
    for (int64_t k = 0; k < l->time; k++)
        for (int64_t s = 0; s < l->samples; s++) run_cell(l, k, s);
    return true;
}

static void put(const layer *layer, void *y, int64_t i, lb_number a, bool twin)
{
    const double v = lb_number_shown(a, twin);
    if (layer->frame.wide)
        ((double *)y)[i] = v;
    else
        ((float *)y)[i] = (float)v;
}

/* Args: input, weight0 … weight3, hx, cx, reverse, batch_sizes, mode, hidden_size, num_layers, has_biases, … */
static lb_status lstm_run(lb_call *call, bool twin)
{
    layer layer;
    if (!run_layer(&layer, call, 7, 9, 12)) return lb_frame_end(&layer.frame);
    lb_frame *frame = &layer.frame;
    const int64_t cells = layer.samples * layer.size;
    void *y = lb_frame_output(frame, 0, layer.time * cells), *h = lb_frame_output(frame, 1, cells),
         *c = lb_frame_output(frame, 2, cells);
    for (int64_t i = 0; lb_frame_ok(frame) && i < layer.time * cells; i++)
        put(&layer, y, at_time(&layer, i / cells) * cells + i % cells, layer.outputs[cells + i], twin);
    for (int64_t i = 0; lb_frame_ok(frame) && i < cells; i++) {
        put(&layer, h, i, layer.outputs[layer.time * cells + i], twin);
        put(&layer, c, i, layer.states[layer.time * cells + i], twin);
    }
    return lb_frame_end(frame);
}

LB_WITH_TWIN(lstm, lstm_run(call, twin))

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct gradients {
    lb_number *x, *w, *v, *b, *h, *c; /* h, c: of the state before the step that was last undone */
} gradients;

/* Undoes step k of one sample: gradients of its gates before the activations, and of the state it read. */
static void undo_cell(const layer *layer, gradients *gradients, const void *dy, int64_t k, int64_t sample,
                      lb_number *dz)
{
    const int64_t n = layer->size, cell = (k * layer->samples + sample) * n,
                  from_y = (at_time(layer, k) * layer->samples + sample) * n;
    const lb_number *z = layer->gates + 4 * cell, *before = layer->states + cell;
    for (int64_t j = 0; j < n; j++) {
        lb_number *dh = &gradients->h[sample * n + j], *dc = &gradients->c[sample * n + j];
        const lb_number i = z[j], forget = z[n + j], cand = z[2 * n + j], o = z[3 * n + j];
        const lb_number t = hyperbolic(layer, layer->states[((k + 1) * layer->samples + sample) * n + j]);
        if (dy) *dh = add(layer, *dh, from(layer, dy, from_y + j));
        *dc = add(layer, *dc, mul(layer, mul(layer, *dh, o), one_minus(layer, mul(layer, t, t))));
        dz[j] = stored(layer, mul(layer, mul(layer, *dc, cand), mul(layer, i, one_minus(layer, i))));
        dz[n + j] = stored(layer, mul(layer, mul(layer, *dc, before[j]), mul(layer, forget, one_minus(layer, forget))));
        dz[2 * n + j] = stored(layer, mul(layer, mul(layer, *dc, i), one_minus(layer, mul(layer, cand, cand))));
        dz[3 * n + j] = stored(layer, mul(layer, mul(layer, *dh, t), mul(layer, o, one_minus(layer, o))));
        *dc = mul(layer, *dc, forget);
    }
    for (int64_t j = 0; j < n; j++) {
        lb_number sum = {0, 0};
        for (int64_t row = 0; row < 4 * n; row++) sum = chain(layer, sum, from(layer, layer->v, row * n + j), dz[row]);
        gradients->h[sample * n + j] = sum;
    }
}

static void collect(const layer *layer, gradients *gradients, int64_t k, int64_t sample, const lb_number *dz)
{
    const int64_t n = layer->size, in = (at_time(layer, k) * layer->samples + sample) * layer->inputs;
    const lb_number *h = layer->outputs + (k * layer->samples + sample) * n;
    for (int64_t row = 0; row < 4 * n; row++) {
        for (int64_t j = 0; j < layer->inputs; j++) {
            lb_number *w = &gradients->w[row * layer->inputs + j];
            *w = chain(layer, *w, dz[row], from(layer, layer->x, in + j));
            gradients->x[in + j] =
                chain(layer, gradients->x[in + j], dz[row], from(layer, layer->w, row * layer->inputs + j));
        }
        for (int64_t j = 0; j < n; j++)
            gradients->v[row * n + j] = chain(layer, gradients->v[row * n + j], dz[row], h[j]);
        gradients->b[row] = chain(layer, gradients->b[row], dz[row], (lb_number){1, 0});
    }
}

static void put_all(layer *layer, uint32_t r, const lb_number *a, int64_t n, bool twin)
{
    const lb_call *call = layer->frame.call;
    if (r >= call->n_results || !call->results[r].data || !lb_tensor_numel(&call->results[r])) return;
    void *y = lb_frame_output(&layer->frame, r, n);
    for (int64_t i = 0; lb_frame_ok(&layer->frame) && i < n; i++) put(layer, y, i, a[i], twin);
}

/* Args: input, weight1 … weight4, hx, cx, output, hy, cy, grad_output, grad_hy, grad_cy, reverse, mode, hidden_size,
 * num_layers, has_biases, … Results: gradients of input, weights, biases, hx, cx. */
static lb_status lstm_backward_run(lb_call *call, bool twin)
{
    layer layer;
    if (!run_layer(&layer, call, 13, 14, 17)) return lb_frame_end(&layer.frame);
    lb_frame *frame = &layer.frame;
    const int64_t n = layer.size, cells = layer.samples * n, w = 4 * n * layer.inputs;
    const void *dy = lb_frame_input(frame, 10), *dh = lb_frame_input(frame, 11), *dc = lb_frame_input(frame, 12);
    gradients gradients = {numbers(&layer, layer.time * layer.samples * layer.inputs),
                           numbers(&layer, w),
                           numbers(&layer, 4 * n * n),
                           numbers(&layer, 4 * n),
                           numbers(&layer, cells),
                           numbers(&layer, cells)};
    lb_number *dz = numbers(&layer, 4 * n);
    if (!lb_frame_ok(frame)) return lb_frame_end(frame);
    for (int64_t i = 0; i < cells; i++) {
        if (dh) gradients.h[i] = from(&layer, dh, i);
        if (dc) gradients.c[i] = from(&layer, dc, i);
    }
    for (int64_t k = layer.time - 1; k >= 0; k--)
        for (int64_t s = 0; s < layer.samples; s++) {
            undo_cell(&layer, &gradients, dy, k, s, dz);
            collect(&layer, &gradients, k, s, dz);
        }
    put_all(&layer, 0, gradients.x, layer.time * layer.samples * layer.inputs, twin);
    put_all(&layer, 1, gradients.w, w, twin);
    put_all(&layer, 2, gradients.v, 4 * n * n, twin);
    put_all(&layer, 3, gradients.b, 4 * n, twin);
    put_all(&layer, 4, gradients.b, 4 * n, twin);
    put_all(&layer, 5, gradients.h, cells, twin);
    put_all(&layer, 6, gradients.c, cells, twin);
    return lb_frame_end(frame);
}

LB_WITH_TWIN(lstm_backward, lstm_backward_run(call, twin))

#define KIND "mode hidden_size num_layers has_biases"
const lb_op_row lb_rows_recurrent[] = {
    {.name = "aten::mkldnn_rnn_layer",
     .args = "input! weight0! weight1! weight2! weight3! hx_! cx_! reverse batch_sizes " KIND
             " bidirectional batch_first train",
     LB_COMPUTED_BY(lstm),
     LB_SUMS(4, LB_TERMS(CELLS, 0)),
     .flags = LB_ROW_REDUCTION | LB_ROW_GIVEN(3, 1),
     .samples = "lstm"},
    {.name = "aten::mkldnn_rnn_layer_backward",
     .args = "input! weight1! weight2! weight3! weight4! hx_! cx_tmp! output! hy_! cy_! grad_output grad_hy grad_cy "
             "reverse " KIND " train bidirectional batch_sizes batch_first workspace",
     LB_COMPUTED_BY(lstm_backward),
     LB_SUMS(8, LB_TERMS(CELLS, 0)),
     .flags = LB_ROW_REDUCTION,
     .samples = "lstm_backward"},
    {NULL},
};
