/* Reading and running stacks of recurrent layers: see recurrent_stack.h. */
#include "sequence/recurrent_stack.h"

#include <math.h>
#include <string.h>

static bool refuse(lb_stack *s, const char *why)
{
    lb_frame_fail(&s->frame, LB_ERR_UNSUPPORTED, why);
    return false;
}

lb_number *lb_stack_numbers(lb_stack *s, int64_t n)
{
    lb_number *p = lb_frame_scratch(&s->frame, (size_t)(n > 0 ? n : 1) * sizeof *p);
    if (p) memset(p, 0, (size_t)n * sizeof *p);
    return p;
}

/* One block cut into `count` pieces of `each` numbers: a frame has room for few blocks. */
static lb_number **pieces(lb_stack *s, int64_t count, int64_t each)
{
    lb_number **p = lb_frame_scratch(&s->frame, (size_t)(count + 1) * sizeof(lb_number *)),
              *all = lb_stack_numbers(s, count * each);
    for (int64_t i = 0; p && all && i < count; i++) p[i] = all + i * each;
    return p;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* Elements of weight `k` of a layer: W, V, b, d. */
static int64_t weight_size(const lb_stack *s, int64_t layer, uint32_t k)
{
    const int64_t rows = s->kinds * s->size;
    return k == 0 ? rows * lb_stack_width(s, layer) : k == 1 ? rows * s->size : rows;
}

static bool read_weights(lb_stack *s, const lb_operand *list)
{
    const uint32_t n = list->tag == LB_OPERAND_TENSORS ? list->count : 0;
    const int64_t stacked = s->layers * s->directions;
    if (!n || (s->per_layer != 2 && s->per_layer != 4) || n != s->per_layer * stacked)
        return refuse(s, "weights that are not two or four per layer and direction");
    int64_t all = 0;
    for (uint32_t i = 0; i < n; i++) {
        const int64_t size = weight_size(s, i / s->per_layer / s->directions, i % s->per_layer);
        if (lb_tensor_numel(&list->tensors[i]) != size)
            return refuse(s, "weights of another size than the layers have");
        all += size;
    }
    s->weights = lb_frame_scratch(&s->frame, n * sizeof(double *));
    double *to = lb_frame_scratch(&s->frame, (size_t)all * 8);
    for (uint32_t i = 0; lb_frame_ok(&s->frame) && i < n; i++) {
        const int64_t size = weight_size(s, i / s->per_layer / s->directions, i % s->per_layer);
        lb_frame part = lb_frame_begin(s->frame.call);
        const void *w = lb_frame_tensor(&part, &list->tensors[i]);
        for (int64_t k = 0; w && k < size; k++) to[k] = lb_frame_get(&part, w, k);
        const lb_status status = lb_frame_end(&part);
        if (status != LB_OK) s->frame.status = status;
        s->weights[i] = to, to += size;
    }
    return lb_frame_ok(&s->frame);
}

/* Steps, and which rows of the input belong to each. */
static bool read_steps(lb_stack *s, const lb_tensor *x, const lb_operand *sizes)
{
    s->packed = sizes && sizes->tag == LB_OPERAND_NUMBERS && sizes->count > 0;
    if (x->layout.ndim != (s->packed ? 2 : 3)) return refuse(s, "an input that is not a sequence of vectors");
    const int last = x->layout.ndim - 1;
    s->inputs = x->layout.shape[last];
    if (s->packed)
        s->steps = sizes->count, s->samples = sizes->ints[0], s->rows = x->layout.shape[0];
    else
        s->steps = x->layout.shape[s->batch_first ? 1 : 0], s->samples = x->layout.shape[s->batch_first ? 0 : 1],
        s->rows = s->steps * s->samples;
    s->offset = lb_frame_scratch(&s->frame, (size_t)(s->steps + 1) * 8);
    s->active = lb_frame_scratch(&s->frame, (size_t)(s->steps + 1) * 8);
    int64_t rows = 0;
    for (int64_t t = 0; lb_frame_ok(&s->frame) && t < s->steps; t++) {
        s->offset[t] = rows, s->active[t] = s->packed ? sizes->ints[t] : s->samples;
        if (s->active[t] < 1 || s->active[t] > (t ? s->active[t - 1] : s->samples))
            return refuse(s, "batch sizes that do not descend");
        rows += s->active[t];
    }
    if (rows != s->rows) return refuse(s, "batch sizes that do not add up to the rows of the input");
    return lb_frame_ok(&s->frame);
}

/* (layers * directions, samples, size) */
static bool is_state(const lb_stack *s, const lb_tensor *t)
{
    return t && t->layout.ndim == 3 && t->layout.shape[0] == s->layers * s->directions &&
           t->layout.shape[1] == s->samples && t->layout.shape[2] == s->size;
}

/* Bounds of what cuDNN may do otherwise, in units of what the row's bound multiplies with. */
static void read_precision(lb_stack *s, const lb_call *call)
{
    const lb_dtype held = lb_frame_arg_tensor(call, 0)->dtype;
    const double factor = lb_number_factor(call);
    s->type = (lb_number_type){s->frame.wide, 4 / factor, factor * (held == LB_F64 ? 0x1p-52 : 0x1p-24)};
    s->coarse = lb_frame_twin_rounding(call, 0);
    s->product = held == LB_F32 ? LB_TF32_LOSS / s->type.unit : 0;
}

bool lb_stack_begin(lb_stack *s, lb_call *call, lb_stack_places at, bool twin)
{
    static const int64_t kinds[] = {1, 1, 4, 3};
    *s = (lb_stack){.frame = lb_frame_begin(call), .twin = twin};
    const uint32_t m = at.mode;
    const int64_t mode = lb_frame_arg_int(call, m, 2);
    s->size = lb_frame_arg_int(call, m + 1, 0), s->layers = lb_frame_arg_int(call, m + 3, 1);
    s->directions = lb_frame_arg_int(call, m + 7, 0) ? 2 : 1, s->per_layer = (uint32_t)lb_frame_arg_int(call, 2, 0);
    s->batch_first = lb_frame_arg_int(call, m + 4, 0);
    if (mode < LB_STACK_RELU || mode > LB_STACK_GRU || s->size < 1 || s->layers < 1 || s->layers > 4096)
        return refuse(s, "a kind of layer that is not known");
    s->mode = (lb_stack_mode)mode, s->kinds = kinds[mode];
    if (lb_frame_arg_int(call, m + 2, 0)) return refuse(s, "layers with projections");
    if (lb_frame_arg_float(call, m + 5, 0) != 0 && lb_frame_arg_int(call, m + 6, 0) && s->layers > 1)
        return refuse(s, "dropout between layers, whose masks cuDNN keeps in a layout of its own");
    const lb_tensor *x = lb_frame_arg_tensor(call, 0), *hx = lb_frame_arg_tensor(call, at.hx),
                    *cx = lb_frame_arg_tensor(call, at.hx + 1);
    if (!read_steps(s, x, m + 8 < call->n_args ? &call->args[m + 8] : NULL)) return false;
    if (!is_state(s, hx) || (s->mode == LB_STACK_LSTM && !is_state(s, cx)))
        return refuse(s, "states of another size than the layers have");
    if (!read_weights(s, &call->args[1])) return false;
    read_precision(s, call);
    s->hx = lb_frame_tensor(&s->frame, hx), s->cx = s->mode == LB_STACK_LSTM ? lb_frame_tensor(&s->frame, cx) : NULL;
    const int64_t stacked = s->layers * s->directions, wide = s->size * s->directions;
    const void *in = lb_frame_tensor(&s->frame, x);
    s->sequence = pieces(s, s->layers + 1, s->rows * (s->inputs > wide ? s->inputs : wide));
    s->gates = pieces(s, stacked, s->rows * lb_stack_kept_kinds(s) * s->size);
    s->states = pieces(s, s->mode == LB_STACK_LSTM ? stacked : 0, s->rows * s->size);
    for (int64_t i = 0; lb_frame_ok(&s->frame) && i < s->rows * s->inputs; i++)
        s->sequence[0][i] = lb_number_from(s->type, in, i);
    return lb_frame_ok(&s->frame);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

lb_stack_pass lb_stack_pass_of(lb_stack *s, int64_t layer, int64_t direction)
{
    lb_stack_pass p = {s, layer, direction, layer * s->directions + direction, NULL, NULL, NULL, NULL};
    double **w = s->weights + p.index * s->per_layer;
    p.w = w[0], p.v = w[1];
    if (s->per_layer == 4) p.b = w[2], p.d = w[3];
    return p;
}

/* Its exponential may be off as that of lb_stack_tanh. */
static lb_number sigmoid(const lb_stack *s, lb_number a)
{
    lb_number y = lb_number_sigmoid(s->type, a);
    y.e += s->type.once;
    return lb_stack_stored(s, y);
}

lb_number lb_stack_dot(const lb_stack *s, const double *w, int64_t step, const lb_number *x, int64_t n)
{
    double v = 0, e = 0;
    for (int64_t i = 0; i < n; i++) v += w[i * step] * x[i].v;
    for (int64_t i = 0; s->twin && i < n; i++)
        e += fabs(w[i * step] * x[i].v) * (1 + s->product) +
             fabs(w[i * step]) * x[i].e * (1 + s->product * s->type.unit);
    return lb_stack_stored(s, (lb_number){lb_number_step(s->type, v), e});
}

/* A sum of up to four, in any order. */
static lb_number total(const lb_stack *s, const lb_number *terms, int n)
{
    lb_number sum = {0, 0};
    for (int i = 0; i < n; i++) {
        sum.v = lb_number_step(s->type, sum.v + terms[i].v);
        sum.e += terms[i].e + s->type.once * fabs(terms[i].v);
    }
    return lb_stack_stored(s, sum);
}

static lb_number constant(const double *b, int64_t i)
{
    return (lb_number){b ? b[i] : 0, 0};
}

static lb_number plus(const lb_stack *s, lb_number a, lb_number b)
{
    return lb_number_add(s->type, a, b);
}

static lb_number times(const lb_stack *s, lb_number a, lb_number b)
{
    return lb_number_multiply(s->type, a, b);
}

/* W x + b and V h + d of one gate's unit. */
static lb_number of_input(const lb_stack_pass *p, int64_t unit, const lb_number *x)
{
    const int64_t n = lb_stack_width(p->s, p->layer);
    const lb_number terms[] = {lb_stack_dot(p->s, p->w + unit * n, 1, x, n), constant(p->b, unit)};
    return total(p->s, terms, 2);
}

static lb_number of_state(const lb_stack_pass *p, int64_t unit, const lb_number *h)
{
    const int64_t n = p->s->size;
    const lb_number terms[] = {lb_stack_dot(p->s, p->v + unit * n, 1, h, n), constant(p->d, unit)};
    return total(p->s, terms, 2);
}

static lb_number whole(const lb_stack_pass *p, int64_t unit, const lb_number *x, const lb_number *h)
{
    const lb_number terms[] = {of_input(p, unit, x), of_state(p, unit, h)};
    return total(p->s, terms, 2);
}

/* What one unit of a cell reads and gives. */
typedef struct unit {
    const lb_number *x, *h; /* vectors */
    lb_number before, c;    /* this unit's h and c before the step */
    lb_number *gates;       /* kinds, `size` apart */
} unit;

static lb_number run_unit(const lb_stack_pass *p, int64_t j, const unit *u, lb_number *c)
{
    const lb_stack *s = p->s;
    const int64_t n = s->size;
    lb_number *g = u->gates;
    if (s->mode == LB_STACK_RELU) {
        g[n] = whole(p, j, u->x, u->h);
        return g[0] = (lb_number){g[n].v > 0 ? g[n].v : 0, g[n].e};
    }
    if (s->mode == LB_STACK_TANH) return g[0] = lb_stack_tanh(s, whole(p, j, u->x, u->h));
    if (s->mode == LB_STACK_GRU) {
        g[0] = sigmoid(s, whole(p, j, u->x, u->h)), g[n] = sigmoid(s, whole(p, j + n, u->x, u->h));
        g[3 * n] = of_state(p, j + 2 * n, u->h);
        const lb_number terms[] = {of_input(p, j + 2 * n, u->x), times(s, g[0], g[3 * n])};
        g[2 * n] = lb_stack_tanh(s, total(s, terms, 2));
        return plus(s, g[2 * n], times(s, g[n], lb_number_subtract(s->type, u->before, g[2 * n])));
    }
    for (int k = 0; k < 4; k++) {
        const lb_number a = whole(p, j + k * n, u->x, u->h);
        g[k * n] = k == 2 ? lb_stack_tanh(s, a) : sigmoid(s, a);
    }
    *c = lb_stack_stored(s, plus(s, times(s, g[n], u->c), times(s, g[0], g[2 * n])));
    return times(s, g[3 * n], lb_stack_tanh(s, *c));
}

static lb_number held(const lb_stack_pass *p, const void *initial, int64_t sample, int64_t j)
{
    const lb_stack *s = p->s;
    return lb_number_from(s->type, initial, (p->index * s->samples + sample) * s->size + j);
}

int64_t lb_stack_row_before(const lb_stack_pass *p, int64_t sample, int64_t k, int64_t length)
{
    return k ? lb_stack_row(p->s, lb_stack_step(p, k - 1, length), sample) : -1;
}

void lb_stack_state_before(const lb_stack_pass *p, int64_t sample, int64_t before, lb_number *h)
{
    const lb_stack *s = p->s;
    const int64_t wide = s->size * s->directions;
    for (int64_t j = 0; j < s->size; j++)
        h[j] = before < 0 ? held(p, s->hx, sample, j)
                          : s->sequence[p->layer + 1][before * wide + p->direction * s->size + j];
}

lb_number lb_stack_cell_before(const lb_stack_pass *p, int64_t sample, int64_t before, int64_t j)
{
    const lb_stack *s = p->s;
    if (s->mode != LB_STACK_LSTM) return (lb_number){0, 0};
    return before < 0 ? held(p, s->cx, sample, j) : s->states[p->index][before * s->size + j];
}

static void run_sample(const lb_stack_pass *p, int64_t sample, lb_number *h)
{
    lb_stack *s = p->s;
    const int64_t n = s->size, wide = n * s->directions, length = lb_stack_length(s, sample);
    for (int64_t k = 0; k < length; k++) {
        const int64_t row = lb_stack_row(s, lb_stack_step(p, k, length), sample),
                      before = lb_stack_row_before(p, sample, k, length);
        lb_stack_state_before(p, sample, before, h);
        for (int64_t j = 0; j < n; j++) {
            lb_number c = {0, 0};
            const unit u = {s->sequence[p->layer] + row * lb_stack_width(s, p->layer), h, h[j],
                            lb_stack_cell_before(p, sample, before, j),
                            s->gates[p->index] + row * lb_stack_kept_kinds(s) * n + j};
            s->sequence[p->layer + 1][row * wide + p->direction * n + j] = lb_stack_stored(s, run_unit(p, j, &u, &c));
            if (s->mode == LB_STACK_LSTM) s->states[p->index][row * n + j] = c;
        }
    }
}

void lb_stack_run(lb_stack *s)
{
    lb_number *h = lb_stack_numbers(s, s->samples * s->size);
    for (int64_t layer = 0; lb_frame_ok(&s->frame) && layer < s->layers; layer++)
        for (int64_t direction = 0; direction < s->directions; direction++) {
            const lb_stack_pass p = lb_stack_pass_of(s, layer, direction);
#pragma omp parallel for
            for (int64_t sample = 0; sample < s->samples; sample++) run_sample(&p, sample, h + sample * s->size);
        }
}
