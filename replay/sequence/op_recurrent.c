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

static lb_number_type type_of(const layer *l)
{
    return (lb_number_type){.wide = l->frame.wide, .once = 1};
}

static lb_number from(const layer *l, const void *x, int64_t i)
{
    return lb_number_from(type_of(l), x, i);
}

static lb_number add(const layer *l, lb_number a, lb_number b)
{
    return lb_number_add(type_of(l), a, b);
}

static lb_number mul(const layer *l, lb_number a, lb_number b)
{
    return lb_number_multiply(type_of(l), a, b);
}

static lb_number chain(const layer *l, lb_number a, lb_number b, lb_number c)
{
    return lb_number_chain(type_of(l), a, b, c);
}

static lb_number sigmoid(const layer *l, lb_number a)
{
    return lb_number_sigmoid(type_of(l), a);
}

static lb_number hyperbolic(const layer *l, lb_number a)
{
    return lb_number_tanh(type_of(l), a);
}

static lb_number one_minus(const layer *l, lb_number a)
{
    return lb_number_one_minus(type_of(l), a);
}

/* A gate or state, which oneDNN keeps in 16 bits for the backward of a 16-bit layer. */
static lb_number kept(const layer *l, lb_number a)
{
    return lb_number_kept(a, l->coarse);
}

/* What is left of a number that is stored in the layer's dtype. */
static lb_number stored(const layer *l, lb_number a)
{
    if (l->rounds && !l->frame.wide) lb_round_to_grid_f64(&a.v, 1, l->rounds, NULL);
    return lb_number_kept(a, l->coarse);
}

static lb_number *numbers(layer *l, int64_t n)
{
    lb_number *p = lb_frame_scratch(&l->frame, (size_t)n * sizeof *p);
    if (p) memset(p, 0, (size_t)n * sizeof *p);
    return p;
}

/* The step of the input that the k-th step of the recurrence reads. */
static int64_t at_time(const layer *l, int64_t k)
{
    return l->reverse ? l->time - 1 - k : k;
}

static void run_cell(layer *l, int64_t k, int64_t sample)
{
    const int64_t n = l->size, in = (at_time(l, k) * l->samples + sample) * l->inputs;
    const lb_number *h = l->outputs + (k * l->samples + sample) * n, *c = l->states + (k * l->samples + sample) * n;
    lb_number *z = l->gates + (k * l->samples + sample) * 4 * n;
    for (int64_t row = 0; row < 4 * n; row++) {
        lb_number sum = {0, 0};
        for (int64_t j = 0; j < l->inputs; j++)
            sum = chain(l, sum, from(l, l->w, row * l->inputs + j), from(l, l->x, in + j));
        for (int64_t j = 0; j < n; j++) sum = chain(l, sum, from(l, l->v, row * n + j), h[j]);
        if (l->b) sum = add(l, sum, add(l, from(l, l->b, row), from(l, l->d, row)));
        z[row] = kept(l, row / n == 2 ? hyperbolic(l, sum) : sigmoid(l, sum));
    }
    lb_number *next_c = l->states + ((k + 1) * l->samples + sample) * n,
              *next_h = l->outputs + ((k + 1) * l->samples + sample) * n;
    for (int64_t j = 0; j < n; j++) {
        next_c[j] = kept(l, add(l, mul(l, z[n + j], c[j]), mul(l, z[j], z[2 * n + j])));
        next_h[j] = stored(l, mul(l, z[3 * n + j], hyperbolic(l, next_c[j])));
    }
}

/* `first`: position of weight0 … weight3, hx, cx, which follow each other. */
static bool run_layer(layer *l, lb_call *call, uint32_t reverse, uint32_t mode, uint32_t biases)
{
    *l = (layer){.frame = lb_frame_begin(call), .reverse = lb_frame_arg_int(call, reverse, 0)};
    lb_frame *f = &l->frame;
    const lb_tensor *x = lb_frame_arg_tensor(call, 0), *v = lb_frame_arg_tensor(call, 2);
    if (lb_frame_arg_int(call, mode, 2) != 2 || x->layout.ndim != 3 || v->layout.ndim != 2) {
        lb_frame_fail(f, LB_ERR_UNSUPPORTED, "only LSTM layers over (time, batch, features) are computed");
        return false;
    }
    l->time = x->layout.shape[0], l->samples = x->layout.shape[1], l->inputs = x->layout.shape[2],
    l->size = v->layout.shape[1];
    if (lb_dtype_bits(x->dtype) == 16) l->rounds = x->dtype, l->coarse = lb_frame_twin_scale(call, 0);
    l->x = lb_frame_input(f, 0), l->w = lb_frame_input(f, 1), l->v = lb_frame_input(f, 2);
    if (lb_frame_arg_int(call, biases, 1)) l->b = lb_frame_input(f, 3), l->d = lb_frame_input(f, 4);
    l->h0 = lb_frame_input(f, 5), l->c0 = lb_frame_input(f, 6);
    const int64_t cells = l->samples * l->size;
    if (lb_frame_ok(f) &&
        (lb_tensor_numel(v) != 4 * l->size * l->size || lb_tensor_numel(lb_frame_arg_tensor(call, 5)) != cells ||
         lb_tensor_numel(lb_frame_arg_tensor(call, 6)) != cells))
        lb_frame_fail(f, LB_ERR_INVALID, "states and weights do not match");
    l->gates = numbers(l, l->time * 4 * cells);
    l->states = numbers(l, (l->time + 1) * cells), l->outputs = numbers(l, (l->time + 1) * cells);
    if (!lb_frame_ok(f)) return false;
    for (int64_t i = 0; i < cells; i++) l->outputs[i] = from(l, l->h0, i), l->states[i] = from(l, l->c0, i);
    for (int64_t k = 0; k < l->time; k++)
        for (int64_t s = 0; s < l->samples; s++) run_cell(l, k, s);
    return true;
}

static void put(const layer *l, void *y, int64_t i, lb_number a, bool twin)
{
    const double v = lb_number_shown(a, twin);
    if (l->frame.wide)
        ((double *)y)[i] = v;
    else
        ((float *)y)[i] = (float)v;
}

/* Args: input, weight0 … weight3, hx, cx, reverse, batch_sizes, mode, hidden_size, num_layers, has_biases, … */
static lb_status lstm_run(lb_call *call, bool twin)
{
    layer l;
    if (!run_layer(&l, call, 7, 9, 12)) return lb_frame_end(&l.frame);
    lb_frame *f = &l.frame;
    const int64_t cells = l.samples * l.size;
    void *y = lb_frame_output(f, 0, l.time * cells), *h = lb_frame_output(f, 1, cells),
         *c = lb_frame_output(f, 2, cells);
    for (int64_t i = 0; lb_frame_ok(f) && i < l.time * cells; i++)
        put(&l, y, at_time(&l, i / cells) * cells + i % cells, l.outputs[cells + i], twin);
    for (int64_t i = 0; lb_frame_ok(f) && i < cells; i++) {
        put(&l, h, i, l.outputs[l.time * cells + i], twin);
        put(&l, c, i, l.states[l.time * cells + i], twin);
    }
    return lb_frame_end(f);
}

LB_WITH_TWIN(lstm, lstm_run(call, twin))

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct gradients {
    lb_number *x, *w, *v, *b, *h, *c; /* h, c: of the state before the step that was last undone */
} gradients;

/* Undoes step k of one sample: gradients of its gates before the activations, and of the state it read. */
static void undo_cell(const layer *l, gradients *g, const void *dy, int64_t k, int64_t sample, lb_number *dz)
{
    const int64_t n = l->size, cell = (k * l->samples + sample) * n, from_y = (at_time(l, k) * l->samples + sample) * n;
    const lb_number *z = l->gates + 4 * cell, *before = l->states + cell;
    for (int64_t j = 0; j < n; j++) {
        lb_number *dh = &g->h[sample * n + j], *dc = &g->c[sample * n + j];
        const lb_number i = z[j], forget = z[n + j], cand = z[2 * n + j], o = z[3 * n + j];
        const lb_number t = hyperbolic(l, l->states[((k + 1) * l->samples + sample) * n + j]);
        if (dy) *dh = add(l, *dh, from(l, dy, from_y + j));
        *dc = add(l, *dc, mul(l, mul(l, *dh, o), one_minus(l, mul(l, t, t))));
        dz[j] = stored(l, mul(l, mul(l, *dc, cand), mul(l, i, one_minus(l, i))));
        dz[n + j] = stored(l, mul(l, mul(l, *dc, before[j]), mul(l, forget, one_minus(l, forget))));
        dz[2 * n + j] = stored(l, mul(l, mul(l, *dc, i), one_minus(l, mul(l, cand, cand))));
        dz[3 * n + j] = stored(l, mul(l, mul(l, *dh, t), mul(l, o, one_minus(l, o))));
        *dc = mul(l, *dc, forget);
    }
    for (int64_t j = 0; j < n; j++) {
        lb_number sum = {0, 0};
        for (int64_t row = 0; row < 4 * n; row++) sum = chain(l, sum, from(l, l->v, row * n + j), dz[row]);
        g->h[sample * n + j] = sum;
    }
}

static void collect(const layer *l, gradients *g, int64_t k, int64_t sample, const lb_number *dz)
{
    const int64_t n = l->size, in = (at_time(l, k) * l->samples + sample) * l->inputs;
    const lb_number *h = l->outputs + (k * l->samples + sample) * n;
    for (int64_t row = 0; row < 4 * n; row++) {
        for (int64_t j = 0; j < l->inputs; j++) {
            lb_number *w = &g->w[row * l->inputs + j];
            *w = chain(l, *w, dz[row], from(l, l->x, in + j));
            g->x[in + j] = chain(l, g->x[in + j], dz[row], from(l, l->w, row * l->inputs + j));
        }
        for (int64_t j = 0; j < n; j++) g->v[row * n + j] = chain(l, g->v[row * n + j], dz[row], h[j]);
        g->b[row] = chain(l, g->b[row], dz[row], (lb_number){1, 0});
    }
}

static void put_all(layer *l, uint32_t r, const lb_number *a, int64_t n, bool twin)
{
    const lb_call *call = l->frame.call;
    if (r >= call->n_results || !call->results[r].data || !lb_tensor_numel(&call->results[r])) return;
    void *y = lb_frame_output(&l->frame, r, n);
    for (int64_t i = 0; lb_frame_ok(&l->frame) && i < n; i++) put(l, y, i, a[i], twin);
}

/* Args: input, weight1 … weight4, hx, cx, output, hy, cy, grad_output, grad_hy, grad_cy, reverse, mode, hidden_size,
 * num_layers, has_biases, … Results: gradients of input, weights, biases, hx, cx. */
static lb_status lstm_backward_run(lb_call *call, bool twin)
{
    layer l;
    if (!run_layer(&l, call, 13, 14, 17)) return lb_frame_end(&l.frame);
    lb_frame *f = &l.frame;
    const int64_t n = l.size, cells = l.samples * n, w = 4 * n * l.inputs;
    const void *dy = lb_frame_input(f, 10), *dh = lb_frame_input(f, 11), *dc = lb_frame_input(f, 12);
    gradients g = {numbers(&l, l.time * l.samples * l.inputs),
                   numbers(&l, w),
                   numbers(&l, 4 * n * n),
                   numbers(&l, 4 * n),
                   numbers(&l, cells),
                   numbers(&l, cells)};
    lb_number *dz = numbers(&l, 4 * n);
    if (!lb_frame_ok(f)) return lb_frame_end(f);
    for (int64_t i = 0; i < cells; i++) {
        if (dh) g.h[i] = from(&l, dh, i);
        if (dc) g.c[i] = from(&l, dc, i);
    }
    for (int64_t k = l.time - 1; k >= 0; k--)
        for (int64_t s = 0; s < l.samples; s++) {
            undo_cell(&l, &g, dy, k, s, dz);
            collect(&l, &g, k, s, dz);
        }
    put_all(&l, 0, g.x, l.time * l.samples * l.inputs, twin);
    put_all(&l, 1, g.w, w, twin);
    put_all(&l, 2, g.v, 4 * n * n, twin);
    put_all(&l, 3, g.b, 4 * n, twin);
    put_all(&l, 4, g.b, 4 * n, twin);
    put_all(&l, 5, g.h, cells, twin);
    put_all(&l, 6, g.c, cells, twin);
    return lb_frame_end(f);
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
