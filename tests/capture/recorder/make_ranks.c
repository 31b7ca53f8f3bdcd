/* make_ranks FOLDER [NAME=VALUE ...]: the recording of a data-parallel training run at any size, computed here and
 * recorded as the program of each rank would record itself (lastbit/capture.h), so that many ranks need no machines.
 *
 *   ranks=16 layers=4 steps=2 rows=4 width=8
 *   first=0 last=-1     of the ranks, write these only; several processes may share the work. last=-1: the last one
 *   level=1             of lb_level
 *   order=ring          how the all-reduces add up, as `--order` spells it
 *   table=0             elements of a tensor in each layer that is zero but for its first `width`; the zeros are holes
 *                       on the disk, so that captures of large tensors take little of it
 *   poison=S:R:L        in step S the product of layer L on rank R gives another bit in its greatest element
 *   flip=S:L:HOP        in step S, when the gradient of layer L is added up over the ranks, the sum that addition HOP
 *                       made of the first element loses a bit on its way
 *   mismatch=S:R:L      in step S rank R gives the all-reduce of layer L half of the gradient; of the other half the
 *                       other ranks get the sum of what they gave
 *
 * Every rank holds the same weights. Of each layer
 *
 *      h = x W^T    a = relu(h [+ table])    y = x + a          and backwards    dW = (dy where a > 0)^T x
 *
 * dW is summed over the ranks, divided by their number and taken from W. All ranks are computed twice: first for what
 * they bring to the all-reduces, then, one after the other, to be recorded. Products are chains of fused multiply-adds
 * in order of k, as lastbit's own are: a replay gives every recorded bit again, but for those that a fault made, and
 * what follows from a fault follows. */
#define _GNU_SOURCE /* fallocate */
#include "orders/collective_sum.h"
#include "orders/schedule.h"

#include <lastbit/capture.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct fault {
    long step, rank, layer, hop; /* step -1: there is none */
} fault;

static struct {
    long ranks, layers, steps, rows, width, first, last, level, table;
    const char *order;
    fault poison, flip, mismatch;
} of = {.ranks = 16,
        .layers = 4,
        .steps = 2,
        .rows = 4,
        .width = 8,
        .last = -1,
        .level = LB_LEVEL_SOURCES,
        .order = "ring",
        .poison = {.step = -1},
        .flip = {.step = -1},
        .mismatch = {.step = -1}};

static void *room_for(size_t n, size_t size)
{
    void *bytes = calloc(n, size);
    if (!bytes) abort();
    return bytes;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* Multiples of 1/64 from -1 to 1, the same on every machine. */
static float number(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu;
    x = (x ^ (x >> 31)) * 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    return (float)((int64_t)(x % 129) - 64) / 64;
}

/* Weights and their updates shrink with the number of layers, so that deep runs stay finite: a power of two. */
static float share_of_layer(void)
{
    float share = 1;
    for (long n = 1; n < of.layers; n *= 2) share /= 2;
    return share;
}

static void flip_bit(float *x, int bit)
{
    uint32_t bits;
    memcpy(&bits, x, sizeof bits);
    bits ^= UINT32_C(1) << bit;
    memcpy(x, &bits, sizeof bits);
}

/* ---- a rank and the ops of its step ------------------------------------------------------------------------------ */

typedef struct matrix {
    float *data;
    int64_t rows, columns;
    bool transposed; /* a view: rows and columns are exchanged, the data is not */
} matrix;

typedef struct rank_run {
    long rank;
    lb_recorder *recorder; /* NULL: it is only computed */
    lb_place place;
    uint32_t *scopes;
    float *weights; /* [layers][width][width] */
    float *memory;  /* what a step computes lies in it, one after the other */
    size_t used, room;
    int64_t *storages; /* of these */
    uint32_t n_storages;
    lb_status status;
    lb_err err;
} rank_run;

static float *tables; /* [layers][table], of every rank; most of it was never written and has no memory */

static matrix make(rank_run *r, int64_t rows, int64_t columns)
{
    matrix m = {r->memory + r->used, rows, columns, false};
    const size_t n = ((size_t)(rows * columns) + 15) / 16 * 16;
    if ((r->used += n) > r->room) abort();
    r->storages[r->n_storages++] = (int64_t)(intptr_t)m.data;
    return m;
}

static float at(matrix m, int64_t i, int64_t j)
{
    return m.data[m.transposed ? j * m.rows + i : i * m.columns + j];
}

static lb_host_tensor seen(matrix m)
{
    lb_host_tensor s = lb_host_tensor_of(m.data, LB_F32, 2, (int64_t[]){m.rows, m.columns});
    if (m.transposed) s.layout.stride[0] = 1, s.layout.stride[1] = m.rows;
    return s;
}

static lb_recorded_operand tensor(const lb_host_tensor *s)
{
    return (lb_recorded_operand){.tag = LB_ARG_VALUE, .u.tensor = s};
}

static lb_recorded_operand whole_number(int64_t i)
{
    return (lb_recorded_operand){.tag = LB_ARG_INT, .u.i = i};
}

/* An op but for its tensors. */
typedef struct op {
    const char *name;
    lb_phase phase;
    uint32_t flags;
    const char *node;
} op;

static void failed(rank_run *r, lb_status status)
{
    if (r->status == LB_OK) r->status = status;
}

static lb_pending *begin(rank_run *r, op o, const lb_recorded_operand *args, uint32_t n)
{
    lb_recorded_call call = LB_CALL_INIT;
    lb_pending *pending = NULL;
    call.name = o.name, call.phase = (uint8_t)o.phase, call.flags = o.flags, call.node_name = o.node;
    call.place = r->place, call.args = args, call.n_args = n;
    failed(r, lb_recorder_op_begin(r->recorder, &call, &pending, &r->err));
    return pending;
}

/* One that writes no argument: it has run. */
static void record(rank_run *r, op o, const lb_recorded_operand *args, uint32_t n, const lb_host_tensor *result)
{
    const lb_recorded_operand results[] = {tensor(result)};
    failed(r, lb_recorder_op_end(r->recorder, begin(r, o, args, n), results, 1, NULL, &r->err));
}

#define ARGS(...)                                                                                                      \
    (lb_recorded_operand[]){__VA_ARGS__}, sizeof((lb_recorded_operand[]){__VA_ARGS__}) / sizeof(lb_recorded_operand)

static matrix transpose(rank_run *r, matrix m, lb_phase phase)
{
    const matrix t = {m.data, m.columns, m.rows, !m.transposed};
    if (!r->recorder) return t;
    const lb_host_tensor x = seen(m), y = seen(t);
    record(r, (op){"aten::t", phase, 0, NULL}, ARGS(tensor(&x)), &y);
    return t;
}

/* `poisoned`: its greatest result comes out with another bit. */
static matrix multiply(rank_run *r, matrix a, matrix b, lb_phase phase, bool poisoned)
{
    const matrix c = make(r, a.rows, b.columns);
    for (int64_t i = 0; i < a.rows; i++)
        for (int64_t j = 0; j < b.columns; j++) {
            float sum = 0;
            for (int64_t k = 0; k < a.columns; k++) sum = fmaf(at(a, i, k), at(b, k, j), sum);
            c.data[i * c.columns + j] = sum;
        }
    int64_t most = 0;
    for (int64_t i = 1; i < c.rows * c.columns; i++)
        if (c.data[i] > c.data[most]) most = i;
    if (poisoned) flip_bit(c.data + most, 22);
    if (!r->recorder) return c;
    const lb_host_tensor x = seen(a), y = seen(b), z = seen(c);
    record(r, (op){"aten::mm", phase, 0, phase == LB_PHASE_BACKWARD ? "MmBackward0" : NULL},
           ARGS(tensor(&x), tensor(&y)), &z);
    return c;
}

/* Element by element, of matrices that are not transposed. */
typedef enum element_op { RELU, ADD, SUBTRACT, MULTIPLY, RELU_BACKWARD } element_op;

static float element(element_op o, float x, float y)
{
    switch (o) {
    case RELU: return x > 0 ? x : 0;
    case ADD: return x + y;
    case SUBTRACT: return x - y;
    case MULTIPLY: return x * y;
    default: return y > 0 ? x : 0;
    }
}

static matrix elements(rank_run *r, element_op o, matrix a, matrix b, lb_phase phase)
{
    const matrix c = make(r, a.rows, a.columns);
    for (int64_t i = 0; i < a.rows * a.columns; i++) c.data[i] = element(o, a.data[i], b.data[i]);
    if (!r->recorder) return c;
    const lb_host_tensor x = seen(a), y = seen(b), z = seen(c);
    const lb_recorded_operand one = whole_number(1), zero = whole_number(0);
    if (o == RELU) record(r, (op){"aten::relu", phase, 0, NULL}, ARGS(tensor(&x)), &z);
    if (o == ADD) record(r, (op){"aten::add.Tensor", phase, 0, NULL}, ARGS(tensor(&x), tensor(&y), one), &z);
    if (o == SUBTRACT) record(r, (op){"aten::sub.Tensor", phase, 0, NULL}, ARGS(tensor(&x), tensor(&y), one), &z);
    if (o == MULTIPLY) record(r, (op){"aten::mul.Tensor", phase, 0, NULL}, ARGS(tensor(&x), tensor(&y)), &z);
    if (o == RELU_BACKWARD)
        record(r, (op){"aten::threshold_backward", phase, 0, "ReluBackward0"}, ARGS(tensor(&x), tensor(&y), zero), &z);
    return c;
}

/* h + the first elements of the layer's table, to each row. */
static matrix add_table(rank_run *r, matrix h, long layer)
{
    const matrix c = make(r, h.rows, h.columns);
    float *table = tables + layer * of.table;
    for (int64_t i = 0; i < h.rows * h.columns; i++) c.data[i] = h.data[i] + table[i % h.columns];
    if (!r->recorder) return c;
    const lb_host_tensor whole = lb_host_tensor_of(table, LB_F32, 1, (int64_t[]){of.table}), x = seen(h), z = seen(c);
    lb_host_tensor part = whole;
    part.layout.shape[0] = h.columns;
    record(r, (op){"aten::slice.Tensor", LB_PHASE_FORWARD, 0, NULL},
           ARGS(tensor(&whole), whole_number(0), whole_number(0), whole_number(h.columns), whole_number(1)), &part);
    record(r, (op){"aten::add.Tensor", LB_PHASE_FORWARD, 0, NULL}, ARGS(tensor(&x), tensor(&part), whole_number(1)),
           &z);
    return c;
}

/* m = m / by, and m = m + factor * other. */
static void divide(rank_run *r, matrix m, float by)
{
    const lb_host_tensor x = seen(m);
    lb_recorded_operand args[] = {tensor(&x), {.tag = LB_ARG_FLOAT, .u.f = by}};
    args[0].flags = LB_OPERAND_WRITTEN;
    lb_pending *pending =
        r->recorder ? begin(r, (op){"aten::div_.Tensor", LB_PHASE_COMMUNICATION, LB_OP_MUTABLE, NULL}, args, 2) : NULL;
    for (int64_t i = 0; i < m.rows * m.columns; i++) m.data[i] /= by;
    if (r->recorder) failed(r, lb_recorder_op_end(r->recorder, pending, args, 1, NULL, &r->err));
}

static void add_to(rank_run *r, matrix m, matrix other, double factor)
{
    const lb_host_tensor x = seen(m), y = seen(other);
    lb_recorded_operand args[] = {tensor(&x), tensor(&y), {.tag = LB_ARG_FLOAT, .u.f = factor}};
    args[0].flags = LB_OPERAND_WRITTEN;
    lb_pending *pending =
        r->recorder ? begin(r, (op){"aten::add_.Tensor", LB_PHASE_OPTIMIZER, LB_OP_MUTABLE, NULL}, args, 3) : NULL;
    for (int64_t i = 0; i < m.rows * m.columns; i++) m.data[i] = fmaf((float)factor, other.data[i], m.data[i]);
    if (r->recorder) failed(r, lb_recorder_op_end(r->recorder, pending, args, 1, NULL, &r->err));
}

/* ---- the all-reduces --------------------------------------------------------------------------------------------- */

static float *brought; /* [layers][ranks][width * width], of the step that is computed */
static float *summed;  /* [steps][layers][width * width] */

static size_t weights_of_layer(void)
{
    return (size_t)(of.width * of.width);
}

static float *brought_by(long layer, long rank)
{
    return brought + ((size_t)layer * (size_t)of.ranks + (size_t)rank) * weights_of_layer();
}

static float *sum_of(long step, long layer)
{
    return summed + ((size_t)step * (size_t)of.layers + (size_t)layer) * weights_of_layer();
}

static bool is_at(fault f, long step, long rank, long layer)
{
    return f.step == step && f.rank == rank && f.layer == layer;
}

/* Elements that a rank gives. */
static int64_t given(long step, long rank, long layer)
{
    return (int64_t)weights_of_layer() / (is_at(of.mismatch, step, rank, layer) ? 2 : 1);
}

static void sum_piece(const lb_collective_slice *piece, long step, long layer, float *terms)
{
    for (int64_t e = piece->first; e < piece->last; e++) {
        for (long rank = 0; rank < of.ranks; rank++)
            terms[rank] = e < given(step, rank, layer) ? brought_by(layer, rank)[e] : 0;
        for (long f = 0; f + 1 < of.ranks; f++) {
            terms[piece->folds[f].dst] += terms[piece->folds[f].src];
            if (e == 0 && of.flip.step == step && of.flip.layer == layer && of.flip.hop == f)
                flip_bit(&terms[piece->folds[f].dst], 18);
        }
        sum_of(step, layer)[e] = terms[piece->root];
    }
}

static lb_status sum_gradients(long step, lb_err *err)
{
    lb_collective_order order;
    lb_collective_pieces pieces;
    LB_TRY(lb_collective_order_parse(of.order, &order, err));
    LB_TRY(lb_collective_order_pieces(&order, (uint32_t)of.ranks, (int64_t)weights_of_layer(), 4, &pieces, err));
    float *terms = room_for((size_t)of.ranks, sizeof *terms);
    for (long layer = 0; layer < of.layers; layer++)
        for (uint32_t p = 0; p < pieces.n; p++) sum_piece(&pieces.pieces[p], step, layer, terms);
    free(terms);
    lb_collective_pieces_release(&pieces);
    return LB_OK;
}

/* What the others brought is there only when every rank was computed. */
static void all_reduce(rank_run *r, matrix m, long step, long layer, int32_t *ranks)
{
    const int64_t n = given(step, r->rank, layer);
    if (n < m.rows * m.columns) m.rows /= 2;
    const lb_host_tensor x = seen(m);
    lb_recorded_operand item = tensor(&x);
    item.flags = LB_OPERAND_WRITTEN;
    const lb_recorded_operand args[] = {{.tag = LB_ARG_LIST, .count = 1, .u.items = &item},
                                        {.tag = LB_ARG_STRING, .u.text = "<ScriptObject>"},
                                        {.tag = LB_ARG_STRING, .u.text = "<ScriptObject>"},
                                        {.tag = LB_ARG_NONE},
                                        {.tag = LB_ARG_BOOL, .u.i = 0},
                                        whole_number(-1)};
    const op o = {"c10d::allreduce_", LB_PHASE_COMMUNICATION, LB_OP_MUTABLE | LB_OP_COLLECTIVE, NULL};
    lb_pending *pending = r->recorder ? begin(r, o, args, 6) : NULL;
    memcpy(m.data, sum_of(step, layer), (size_t)n * sizeof *m.data);
    if (!r->recorder) return;
    uint32_t row;
    failed(r, lb_recorder_op_end(r->recorder, pending, &item, 1, &row, &r->err));
    failed(r, lb_recorder_collective(r->recorder, row, "0", "sum", of.order, (uint64_t)(step * of.layers + layer),
                                     ranks, (uint32_t)of.ranks, &r->err));
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static matrix weight_of(const rank_run *r, long layer)
{
    return (matrix){r->weights + (size_t)layer * weights_of_layer(), of.width, of.width, false};
}

static void role(rank_run *r, matrix m, lb_source_kind kind, uint32_t flags, const char *name)
{
    const lb_host_tensor s = seen(m);
    if (r->recorder) failed(r, lb_recorder_role(r->recorder, &s, kind, flags, name, &r->err));
}

static matrix make_batch(rank_run *r, long step, uint64_t which, const char *name)
{
    matrix m = make(r, of.rows, of.width);
    for (int64_t i = 0; i < of.rows * of.width; i++)
        m.data[i] = number((uint64_t)step * 2 + which, (uint64_t)r->rank, (uint64_t)i);
    role(r, m, LB_SOURCE_BATCH, LB_VALUE_INPUT, name);
    return m;
}

/* a of one layer; *x becomes its y. */
static matrix forward(rank_run *r, long step, long layer, matrix *x)
{
    const lb_host_tensor in = seen(*x);
    const matrix w = weight_of(r, layer);
    if (r->recorder) failed(r, lb_recorder_enter(r->recorder, r->scopes[layer], &in, 1, false, &r->place, &r->err));
    matrix h =
        multiply(r, *x, transpose(r, w, LB_PHASE_FORWARD), LB_PHASE_FORWARD, is_at(of.poison, step, r->rank, layer));
    if (of.table) h = add_table(r, h, layer);
    const matrix a = elements(r, RELU, h, h, LB_PHASE_FORWARD), y = elements(r, ADD, *x, a, LB_PHASE_FORWARD);
    const lb_host_tensor out = seen(y);
    if (r->recorder) failed(r, lb_recorder_leave(r->recorder, r->place, &out, 1, false, &r->err));
    *x = y;
    return a;
}

/* The gradient of the weight; *dy becomes that of the layer's input. */
static matrix backward(rank_run *r, long layer, matrix x, matrix a, matrix *dy)
{
    const lb_phase phase = LB_PHASE_BACKWARD;
    r->place = (lb_place){r->recorder ? r->scopes[layer] : 0, 0};
    const matrix dh = elements(r, RELU_BACKWARD, *dy, a, phase);
    const matrix dw = multiply(r, transpose(r, dh, phase), x, phase, false);
    char name[64];
    snprintf(name, sizeof name, "layers.%ld.weight", layer);
    if (r->recorder) {
        const lb_host_tensor s = seen(dw);
        record(r, (op){"aten::detach", phase, 0, "torch::autograd::AccumulateGrad"}, ARGS(tensor(&s)), &s);
    }
    role(r, dw, LB_SOURCE_OTHER, LB_VALUE_GRADIENT, name);
    *dy = elements(r, ADD, *dy, multiply(r, dh, weight_of(r, layer), phase, false), phase);
    return dw;
}

/* The gradient of the mean of squares. */
static matrix loss_gradient(rank_run *r, matrix y, matrix target, double *loss)
{
    const int64_t n = y.rows * y.columns;
    const matrix e = elements(r, SUBTRACT, y, target, LB_PHASE_FORWARD);
    const matrix squares = elements(r, MULTIPLY, e, e, LB_PHASE_FORWARD);
    const matrix mean = make(r, 1, 1), ones = make(r, 1, 1), share = make(r, y.rows, y.columns);
    const matrix twice = make(r, y.rows, y.columns);
    mean.data[0] = lb_schedule_sum_f32(NULL, squares.data, n, 0) / (float)n;
    ones.data[0] = 1;
    for (int64_t i = 0; i < n; i++) share.data[i] = 1 / (float)n, twice.data[i] = e.data[i] * 2;
    *loss = mean.data[0];
    if (r->recorder) {
        const lb_host_tensor s = seen(squares), d = seen(share), t = seen(twice), x = seen(e);
        const lb_host_tensor l = lb_host_tensor_of(mean.data, LB_F32, 0, NULL),
                             o = lb_host_tensor_of(ones.data, LB_F32, 0, NULL);
        lb_host_tensor spread = o;
        const lb_recorded_operand none = {.tag = LB_ARG_NONE}, no = {.tag = LB_ARG_BOOL};
        const lb_recorded_operand sizes[] = {whole_number(y.rows), whole_number(y.columns)};
        const lb_recorded_operand shape = {.tag = LB_ARG_LIST, .count = 2, .u.items = sizes};
        const lb_recorded_operand format = {.tag = LB_ARG_STRING, .u.text = "torch.preserve_format"};
        spread.layout.ndim = 2, spread.layout.shape[0] = y.rows, spread.layout.shape[1] = y.columns;
        record(r, (op){"aten::mean", LB_PHASE_FORWARD, 0, NULL}, ARGS(tensor(&s), none), &l);
        record(r, (op){"aten::ones_like", LB_PHASE_BACKWARD, 0, NULL}, ARGS(tensor(&l), none, none, none, no, format),
               &o);
        record(r, (op){"aten::expand", LB_PHASE_BACKWARD, 0, "MeanBackward0"}, ARGS(tensor(&o), shape, no), &spread);
        record(r, (op){"aten::div.Scalar", LB_PHASE_BACKWARD, 0, "MeanBackward0"},
               ARGS(tensor(&spread), whole_number(n)), &d);
        record(r, (op){"aten::mul.Scalar", LB_PHASE_BACKWARD, 0, "PowBackward0"}, ARGS(tensor(&x), whole_number(2)),
               &t);
    }
    return elements(r, MULTIPLY, share, twice, LB_PHASE_BACKWARD);
}

static void record_group(rank_run *r, uint32_t first_op, const matrix *gradients)
{
    lb_member *members = room_for((size_t)of.layers, sizeof *members);
    char(*names)[64] = room_for((size_t)of.layers, sizeof *names);
    for (long layer = 0; layer < of.layers; layer++) {
        snprintf(names[layer], sizeof *names, "layers.%ld.weight", layer);
        members[layer] = (lb_member){names[layer], (int64_t)(intptr_t)weight_of(r, layer).data,
                                     (int64_t)(intptr_t)gradients[layer].data};
    }
    failed(r, lb_recorder_group(r->recorder, "SGD", 0, first_op, members, (uint32_t)of.layers,
                                &(lb_option){"lr", share_of_layer() / 2}, 1, &r->err));
    free(names);
    free(members);
}

/* The forward and backward of a step; in the first pass it ends there. */
static void run_half(rank_run *r, long step, matrix *gradients, double *loss)
{
    matrix *x = room_for((size_t)of.layers + 1, sizeof *x), *a = room_for((size_t)of.layers, sizeof *a);
    x[0] = make_batch(r, step, 0, "input");
    const matrix target = make_batch(r, step, 1, "target");
    for (long layer = 0; layer < of.layers; layer++) {
        x[layer + 1] = x[layer];
        a[layer] = forward(r, step, layer, &x[layer + 1]);
    }
    r->place = (lb_place){0, 0};
    matrix dy = loss_gradient(r, x[of.layers], target, loss);
    for (long layer = of.layers; layer-- > 0;) gradients[layer] = backward(r, layer, x[layer], a[layer], &dy);
    r->place = (lb_place){0, 0};
    free(x);
    free(a);
}

static void update(rank_run *r, long step, const matrix *gradients, int32_t *ranks)
{
    for (long layer = of.layers; layer-- > 0;) {
        all_reduce(r, gradients[layer], step, layer, ranks);
        divide(r, gradients[layer], (float)of.ranks);
    }
    const uint32_t first_op = r->recorder ? lb_recorder_next_op(r->recorder) : 0;
    for (long layer = 0; layer < of.layers; layer++)
        add_to(r, weight_of(r, layer), gradients[layer], -share_of_layer() / 2);
    if (r->recorder) record_group(r, first_op, gradients);
}

static void drop(rank_run *r)
{
    for (uint32_t i = 0; i < r->n_storages && r->recorder; i++) lb_recorder_forget(r->recorder, r->storages[i]);
    r->n_storages = 0;
    r->used = 0;
}

/* ---- both passes ------------------------------------------------------------------------------------------------- */

static void set_out(rank_run *r, long rank, float *weights)
{
    memset(r, 0, sizeof *r);
    r->rank = rank;
    r->err = (lb_err)LB_ERR_INIT;
    r->weights = weights;
    r->room = ((size_t)of.layers * 9 + 16) * ((size_t)(of.rows * of.width) + weights_of_layer() + 16);
    r->memory = room_for(r->room, sizeof *r->memory);
    r->storages = room_for((size_t)of.layers * 9 + 16, sizeof *r->storages);
    for (size_t i = 0; i < (size_t)of.layers * weights_of_layer(); i++) weights[i] = number(7, 0, i) * share_of_layer();
}

static void arrive(rank_run *r)
{
    free(r->memory);
    free(r->storages);
    free(r->scopes);
}

/* What the ranks bring, step by step, and its sums. */
static lb_status compute(lb_err *err)
{
    const size_t n = (size_t)of.layers * weights_of_layer();
    rank_run *runs = room_for((size_t)of.ranks, sizeof *runs), one;
    float *weights = room_for((size_t)of.ranks * n, sizeof *weights);
    matrix *gradients = room_for((size_t)of.layers, sizeof *gradients);
    lb_status status = LB_OK;
    double loss;
    set_out(&one, 0, weights);
    for (long rank = 0; rank < of.ranks; rank++) {
        runs[rank] = one, runs[rank].rank = rank, runs[rank].weights = weights + (size_t)rank * n;
        memcpy(runs[rank].weights, weights, n * sizeof *weights);
    }
    for (long step = 0; step < of.steps && status == LB_OK; step++) {
        for (long rank = 0; rank < of.ranks; rank++) {
            run_half(&runs[rank], step, gradients, &loss);
            for (long layer = 0; layer < of.layers; layer++)
                memcpy(brought_by(layer, rank), gradients[layer].data, weights_of_layer() * sizeof *weights);
            drop(&runs[rank]);
        }
        status = sum_gradients(step, err);
        for (long rank = 0; rank < of.ranks && step + 1 < of.steps; rank++) {
            for (long layer = 0; layer < of.layers; layer++) {
                gradients[layer] = (matrix){brought_by(layer, rank), of.width, of.width, false};
            }
            update(&runs[rank], step, gradients, NULL);
        }
    }
    arrive(&one);
    free(gradients);
    free(weights);
    free(runs);
    return status;
}

static void begin_recording(rank_run *r, const char *folder)
{
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    options.level = (lb_level)of.level;
    options.rank = (int32_t)r->rank, options.world = (int32_t)of.ranks;
    options.sync = LB_OUTPUT_SYNC_NEVER;
    failed(r, lb_recorder_open(folder, &options, &r->recorder, &r->err));
    r->scopes = room_for((size_t)of.layers, sizeof *r->scopes);
    for (long layer = 0; layer < of.layers && r->recorder; layer++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%ld", layer);
        r->scopes[layer] = lb_recorder_scope(r->recorder, name, "Block", 0);
        snprintf(name, sizeof name, "layers.%ld.weight", layer);
        role(r, weight_of(r, layer), LB_SOURCE_PARAMETER, LB_VALUE_PARAMETER, name);
        snprintf(name, sizeof name, "layers.%ld.table", layer);
        if (of.table)
            role(r, (matrix){tables + layer * of.table, 1, of.table, false}, LB_SOURCE_STATE, LB_VALUE_STATE, name);
    }
}

/* Pages of zeros become holes. */
static lb_status dig_holes(const char *path, lb_err *err)
{
    enum { PAGE = 4096 };
    static const char zeros[PAGE];
    const int fd = open(path, O_RDWR);
    const off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    char *map = size > 0 ? mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    int result = map == MAP_FAILED ? -1 : 0;
    for (off_t at = 0, end; at < size && result == 0; at = end + PAGE) {
        for (end = at; end + PAGE <= size && memcmp(map + end, zeros, PAGE) == 0;) end += PAGE;
        if (end > at) result = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, end - at);
    }
    if (map != MAP_FAILED) munmap(map, (size_t)size);
    if (fd >= 0) close(fd);
    return result == 0 ? LB_OK : lb_fail(err, LB_ERR_IO, "%s: its zeros cannot be made holes", path);
}

static lb_status record_rank(const char *folder, long rank, float *weights, int32_t *ranks, lb_err *err)
{
    rank_run r;
    matrix *gradients = room_for((size_t)of.layers, sizeof *gradients);
    set_out(&r, rank, weights);
    begin_recording(&r, folder);
    for (long step = 0; step < of.steps && r.status == LB_OK; step++) {
        double loss = 0;
        failed(&r, lb_recorder_step_begin(r.recorder, step, NULL, &r.err));
        run_half(&r, step, gradients, &loss);
        lb_recorder_scalar(r.recorder, "loss", loss, NULL);
        update(&r, step, gradients, ranks);
        failed(&r, lb_recorder_step_end(r.recorder, true, &r.err));
        drop(&r);
    }
    char *path = r.recorder ? strdup(lb_recorder_path(r.recorder)) : NULL;
    failed(&r, lb_recorder_close(r.recorder, &r.err));
    if (r.status == LB_OK && of.table) failed(&r, dig_holes(path, &r.err));
    if (r.status != LB_OK) lb_fail(err, r.status, "%s", r.err.message);
    free(path);
    free(gradients);
    arrive(&r);
    return r.status;
}

static lb_status record_ranks(const char *folder, lb_err *err)
{
    float *weights = room_for((size_t)of.layers * weights_of_layer(), sizeof *weights);
    int32_t *ranks = room_for((size_t)of.ranks, sizeof *ranks);
    lb_status status = LB_OK;
    for (long rank = 0; rank < of.ranks; rank++) ranks[rank] = (int32_t)rank;
    const long last = of.last < 0 ? of.ranks - 1 : of.last;
    for (long rank = of.first; rank <= last && status == LB_OK; rank++)
        status = record_rank(folder, rank, weights, ranks, err);
    free(ranks);
    free(weights);
    return status;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static bool parse(const char *argument)
{
    const struct {
        const char *name;
        long *number;
    } numbers[] = {{"ranks", &of.ranks}, {"layers", &of.layers}, {"steps", &of.steps},
                   {"rows", &of.rows},   {"width", &of.width},   {"first", &of.first},
                   {"last", &of.last},   {"level", &of.level},   {"table", &of.table}};
    const char *value = strchr(argument, '=');
    const size_t n = value ? (size_t)(value++ - argument) : 0;
    for (size_t i = 0; n && i < sizeof numbers / sizeof *numbers; i++)
        if (strlen(numbers[i].name) == n && !strncmp(argument, numbers[i].name, n))
            return sscanf(value, "%ld", numbers[i].number) == 1;
    fault f = {.step = -1};
    if (!strncmp(argument, "order=", 6)) return (of.order = value) != NULL;
    if (!strncmp(argument, "poison=", 7) && sscanf(value, "%ld:%ld:%ld", &f.step, &f.rank, &f.layer) == 3)
        return of.poison = f, true;
    if (!strncmp(argument, "flip=", 5) && sscanf(value, "%ld:%ld:%ld", &f.step, &f.layer, &f.hop) == 3)
        return of.flip = f, true;
    if (!strncmp(argument, "mismatch=", 9) && sscanf(value, "%ld:%ld:%ld", &f.step, &f.rank, &f.layer) == 3)
        return of.mismatch = f, true;
    return false;
}

int main(int argc, char **argv)
{
    for (int i = 2; i < argc; i++)
        if (!parse(argv[i])) {
            fprintf(stderr, "make_ranks: '%s': what is that?\n", argv[i]);
            return 129;
        }
    if (argc < 2 || of.ranks < 1 || of.ranks > LB_COLLECTIVE_MAX_RANKS || of.layers < 1 || of.steps < 1 ||
        of.rows < 1 || of.width < 1 || (of.table && of.table < of.width)) {
        fprintf(stderr, "usage: make_ranks FOLDER [NAME=VALUE ...]\n");
        return 129;
    }
    lb_err err = LB_ERR_INIT;
    brought = room_for((size_t)of.layers * (size_t)of.ranks * weights_of_layer(), sizeof *brought);
    summed = room_for((size_t)of.steps * (size_t)of.layers * weights_of_layer(), sizeof *summed);
    tables = room_for((size_t)of.layers * (size_t)of.table + 1, sizeof *tables);
    for (long layer = 0; layer < of.layers && of.table; layer++)
        for (long i = 0; i < of.width; i++) tables[layer * of.table + i] = number(9, (uint64_t)layer, (uint64_t)i);
    lb_status status = compute(&err);
    if (status == LB_OK) status = record_ranks(argv[1], &err);
    if (status != LB_OK) fprintf(stderr, "make_ranks: %s\n", err.message);
    free(brought);
    free(summed);
    free(tables);
    return status == LB_OK ? 0 : 1;
}
