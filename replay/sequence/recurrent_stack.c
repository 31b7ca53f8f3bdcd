/* Reading and running stacks of recurrent layers: see recurrent_stack.h. */
#include "sequence/recurrent_stack.h"

#include <math.h>
#include <string.h>

static bool refuse(lb_stack *stack, const char *why)
{
    lb_frame_fail(&stack->frame, LB_ERR_UNSUPPORTED, why);
    return false;
}

lb_number *lb_stack_numbers(lb_stack *stack, int64_t n)
{
    lb_number *p = lb_frame_scratch(&stack->frame, (size_t)(n > 0 ? n : 1) * sizeof *p);
    if (p) memset(p, 0, (size_t)n * sizeof *p);
    return p;
}

/* One block cut into `count` pieces of `each` numbers: a frame has room for few blocks. */
static lb_number **pieces(lb_stack *stack, int64_t count, int64_t each)
{
    lb_number **p = lb_frame_scratch(&stack->frame, (size_t)(count + 1) * sizeof(lb_number *)),
              *all = lb_stack_numbers(stack, count * each);
    for (int64_t i = 0; p && all && i < count; i++) p[i] = all + i * each;
    return p;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* Elements of weight `k` of a layer: W, V, b, d. */
static int64_t weight_size(const lb_stack *stack, int64_t layer, uint32_t k)
{
    const int64_t rows = stack->kinds * stack->size;
    return k == 0 ? rows * lb_stack_width(stack, layer) : k == 1 ? rows * stack->size : rows;
}

static bool read_weights(lb_stack *stack, const lb_operand *list)
{
    const uint32_t n = list->tag == LB_OPERAND_TENSORS ? list->count : 0;
    const int64_t stacked = stack->layers * stack->directions;
    if (!n || (stack->per_layer != 2 && stack->per_layer != 4) || n != stack->per_layer * stacked)
        return refuse(stack, "weights that are not two or four per layer and direction");
    int64_t all = 0;
    for (uint32_t i = 0; i < n; i++) {
        const int64_t size = weight_size(stack, i / stack->per_layer / stack->directions, i % stack->per_layer);
        if (lb_tensor_numel(&list->tensors[i]) != size)
            return refuse(stack, "weights of another size than the layers have");
        all += size;
    }
    stack->weights = lb_frame_scratch(&stack->frame, n * sizeof(double *));
    double *to = lb_frame_scratch(&stack->frame, (size_t)all * 8);
    for (uint32_t i = 0; lb_frame_ok(&stack->frame) && i < n; i++) {
        const int64_t size = weight_size(stack, i / stack->per_layer / stack->directions, i % stack->per_layer);
        lb_frame part = lb_frame_begin(stack->frame.call);
        const void *w = lb_frame_tensor(&part, &list->tensors[i]);
        for (int64_t k = 0; w && k < size; k++) to[k] = lb_frame_get(&part, w, k);
        const lb_status status = lb_frame_end(&part);
        if (status != LB_OK) stack->frame.status = status;
        stack->weights[i] = to, to += size;
    }
    return lb_frame_ok(&stack->frame);
}

/* Steps, and which rows of the input belong to each. */
static bool read_steps(lb_stack *stack, const lb_tensor *x, const lb_operand *sizes)
{
    stack->packed = sizes && sizes->tag == LB_OPERAND_NUMBERS && sizes->count > 0;
    if (x->layout.ndim != (stack->packed ? 2 : 3)) return refuse(stack, "an input that is not a sequence of vectors");
    const int last = x->layout.ndim - 1;
    stack->inputs = x->layout.shape[last];
    if (stack->packed)
        stack->steps = sizes->count, stack->samples = sizes->ints[0], stack->rows = x->layout.shape[0];
    else
        stack->steps = x->layout.shape[stack->batch_first ? 1 : 0],
        stack->samples = x->layout.shape[stack->batch_first ? 0 : 1], stack->rows = stack->steps * stack->samples;
    stack->offset = lb_frame_scratch(&stack->frame, (size_t)(stack->steps + 1) * 8);
    stack->active = lb_frame_scratch(&stack->frame, (size_t)(stack->steps + 1) * 8);
    int64_t rows = 0;
    for (int64_t t = 0; lb_frame_ok(&stack->frame) && t < stack->steps; t++) {
        stack->offset[t] = rows, stack->active[t] = stack->packed ? sizes->ints[t] : stack->samples;
        if (stack->active[t] < 1 || stack->active[t] > (t ? stack->active[t - 1] : stack->samples))
            return refuse(stack, "batch sizes that do not descend");
        rows += stack->active[t];
    }
    if (rows != stack->rows) return refuse(stack, "batch sizes that do not add up to the rows of the input");
    return lb_frame_ok(&stack->frame);
}

/* (layers * directions, samples, size) */
static bool is_state(const lb_stack *stack, const lb_tensor *tensor)
{
    return tensor && tensor->layout.ndim == 3 && tensor->layout.shape[0] == stack->layers * stack->directions &&
           tensor->layout.shape[1] == stack->samples && tensor->layout.shape[2] == stack->size;
}

/* Bounds of what cuDNN may do otherwise, in units of what the row's bound multiplies with. */
static void read_precision(lb_stack *stack, const lb_call *call)
{
    const lb_dtype held = lb_frame_arg_tensor(call, 0)->dtype;
    const double factor = lb_number_factor(call);
    stack->type = (lb_number_type){stack->frame.wide, 4 / factor, factor * (held == LB_F64 ? 0x1p-52 : 0x1p-24)};
    stack->coarse = lb_frame_twin_rounding(call, 0);
    stack->product = held == LB_F32 ? LB_TF32_LOSS / stack->type.unit : 0;
}

bool lb_stack_begin(lb_stack *stack, lb_call *call, lb_stack_places at, bool twin)
{
    static const int64_t kinds[] = {1, 1, 4, 3};
    *stack = (lb_stack){.frame = lb_frame_begin(call), .twin = twin};
    const uint32_t m = at.mode;
    const int64_t mode = lb_frame_arg_int(call, m, 2);
    stack->size = lb_frame_arg_int(call, m + 1, 0), stack->layers = lb_frame_arg_int(call, m + 3, 1);
    stack->directions = lb_frame_arg_int(call, m + 7, 0) ? 2 : 1,
    stack->per_layer = (uint32_t)lb_frame_arg_int(call, 2, 0);
    stack->batch_first = lb_frame_arg_int(call, m + 4, 0);
    if (mode < LB_STACK_RELU || mode > LB_STACK_GRU || stack->size < 1 || stack->layers < 1 || stack->layers > 4096)
        return refuse(stack, "a kind of layer that is not known");
    stack->mode = (lb_stack_mode)mode, stack->kinds = kinds[mode];
    if (lb_frame_arg_int(call, m + 2, 0)) return refuse(stack, "layers with projections");
    if (lb_frame_arg_float(call, m + 5, 0) != 0 && lb_frame_arg_int(call, m + 6, 0) && stack->layers > 1)
        return refuse(stack, "dropout between layers, whose masks cuDNN keeps in a layout of its own");
    const lb_tensor *x = lb_frame_arg_tensor(call, 0), *hx = lb_frame_arg_tensor(call, at.hx),
                    *cx = lb_frame_arg_tensor(call, at.hx + 1);
    if (!read_steps(stack, x, m + 8 < call->n_args ? &call->args[m + 8] : NULL)) return false;
    if (!is_state(stack, hx) || (stack->mode == LB_STACK_LSTM && !is_state(stack, cx)))
        return refuse(stack, "states of another size than the layers have");
    if (!read_weights(stack, &call->args[1])) return false;
    read_precision(stack, call);
    stack->hx = lb_frame_tensor(&stack->frame, hx),
    stack->cx = stack->mode == LB_STACK_LSTM ? lb_frame_tensor(&stack->frame, cx) : NULL;
    const int64_t stacked = stack->layers * stack->directions, wide = stack->size * stack->directions;
    const void *in = lb_frame_tensor(&stack->frame, x);
    stack->sequence = pieces(stack, stack->layers + 1, stack->rows * (stack->inputs > wide ? stack->inputs : wide));
    stack->gates = pieces(stack, stacked, stack->rows * lb_stack_kept_kinds(stack) * stack->size);
    stack->states = pieces(stack, stack->mode == LB_STACK_LSTM ? stacked : 0, stack->rows * stack->size);
    for (int64_t i = 0; lb_frame_ok(&stack->frame) && i < stack->rows * stack->inputs; i++)
        stack->sequence[0][i] = lb_number_from(stack->type, in, i);
    return lb_frame_ok(&stack->frame);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

lb_stack_pass lb_stack_pass_of(lb_stack *stack, int64_t layer, int64_t direction)
{
    lb_stack_pass pass = {stack, layer, direction, layer * stack->directions + direction, NULL, NULL, NULL, NULL};
    double **w = stack->weights + pass.index * stack->per_layer;
    pass.w = w[0], pass.v = w[1];
    if (stack->per_layer == 4) pass.b = w[2], pass.d = w[3];
    return pass;
}

/* Its exponential may be off as that of lb_stack_tanh. */
static lb_number sigmoid(const lb_stack *stack, lb_number a)
{
    lb_number y = lb_number_sigmoid(stack->type, a);
    y.e += stack->type.once;
    return lb_stack_stored(stack, y);
}

lb_number lb_stack_dot(const lb_stack *stack, const double *w, int64_t step, const lb_number *x, int64_t n)
{
    double v = 0, e = 0;
    for (int64_t i = 0; i < n; i++) v += w[i * step] * x[i].v;
    for (int64_t i = 0; stack->twin && i < n; i++)
        e += fabs(w[i * step] * x[i].v) * (1 + stack->product) +
             fabs(w[i * step]) * x[i].e * (1 + stack->product * stack->type.unit);
    return lb_stack_stored(stack, (lb_number){lb_number_step(stack->type, v), e});
}

/* A sum of up to four, in any order. */
static lb_number total(const lb_stack *stack, const lb_number *terms, int n)
{
    lb_number sum = {0, 0};
    for (int i = 0; i < n; i++) {
        sum.v = lb_number_step(stack->type, sum.v + terms[i].v);
        sum.e += terms[i].e + stack->type.once * fabs(terms[i].v);
    }
    return lb_stack_stored(stack, sum);
}

static lb_number constant(const double *b, int64_t i)
{
    return (lb_number){b ? b[i] : 0, 0};
}

static lb_number plus(const lb_stack *stack, lb_number a, lb_number b)
{
    return lb_number_add(stack->type, a, b);
}

static lb_number times(const lb_stack *stack, lb_number a, lb_number b)
{
    return lb_number_multiply(stack->type, a, b);
}

/* W x + b and V h + d of one gate's unit. */
static lb_number of_input(const lb_stack_pass *pass, int64_t unit, const lb_number *x)
{
    const int64_t n = lb_stack_width(pass->stack, pass->layer);
    const lb_number terms[] = {lb_stack_dot(pass->stack, pass->w + unit * n, 1, x, n), constant(pass->b, unit)};
    return total(pass->stack, terms, 2);
}

static lb_number of_state(const lb_stack_pass *pass, int64_t unit, const lb_number *h)
{
    const int64_t n = pass->stack->size;
    const lb_number terms[] = {lb_stack_dot(pass->stack, pass->v + unit * n, 1, h, n), constant(pass->d, unit)};
    return total(pass->stack, terms, 2);
}

static lb_number whole(const lb_stack_pass *pass, int64_t unit, const lb_number *x, const lb_number *h)
{
    const lb_number terms[] = {of_input(pass, unit, x), of_state(pass, unit, h)};
    return total(pass->stack, terms, 2);
}

/* What one unit of a cell reads and gives. */
typedef struct unit {
    const lb_number *x, *h; /* vectors */
    lb_number before, c;    /* this unit's h and c before the step */
    lb_number *gates;       /* kinds, `size` apart */
} unit;

static lb_number run_unit(const lb_stack_pass *pass, int64_t j, const unit *unit, lb_number *c)
{
    const lb_stack *stack = pass->stack;
    const int64_t n = stack->size;
    lb_number *g = unit->gates;
    if (stack->mode == LB_STACK_RELU) {
        g[n] = whole(pass, j, unit->x, unit->h);
        return g[0] = (lb_number){g[n].v > 0 ? g[n].v : 0, g[n].e};
    }
    if (stack->mode == LB_STACK_TANH) return g[0] = lb_stack_tanh(stack, whole(pass, j, unit->x, unit->h));
    if (stack->mode == LB_STACK_GRU) {
        g[0] = sigmoid(stack, whole(pass, j, unit->x, unit->h)),
        g[n] = sigmoid(stack, whole(pass, j + n, unit->x, unit->h));
        g[3 * n] = of_state(pass, j + 2 * n, unit->h);
        const lb_number terms[] = {of_input(pass, j + 2 * n, unit->x), times(stack, g[0], g[3 * n])};
        g[2 * n] = lb_stack_tanh(stack, total(stack, terms, 2));
        return plus(stack, g[2 * n], times(stack, g[n], lb_number_subtract(stack->type, unit->before, g[2 * n])));
    }
    for (int k = 0; k < 4; k++) {
        const lb_number a = whole(pass, j + k * n, unit->x, unit->h);
        g[k * n] = k == 2 ? lb_stack_tanh(stack, a) : sigmoid(stack, a);
    }
    *c = lb_stack_stored(stack, plus(stack, times(stack, g[n], unit->c), times(stack, g[0], g[2 * n])));
    return times(stack, g[3 * n], lb_stack_tanh(stack, *c));
}

static lb_number held(const lb_stack_pass *pass, const void *initial, int64_t sample, int64_t j)
{
    const lb_stack *stack = pass->stack;
    return lb_number_from(stack->type, initial, (pass->index * stack->samples + sample) * stack->size + j);
}

int64_t lb_stack_row_before(const lb_stack_pass *pass, int64_t sample, int64_t k, int64_t length)
{
    return k ? lb_stack_row(pass->stack, lb_stack_step(pass, k - 1, length), sample) : -1;
}

void lb_stack_state_before(const lb_stack_pass *pass, int64_t sample, int64_t before, lb_number *h)
{
    const lb_stack *stack = pass->stack;
    const int64_t wide = stack->size * stack->directions;
    for (int64_t j = 0; j < stack->size; j++)
        h[j] = before < 0 ? held(pass, stack->hx, sample, j)
                          : stack->sequence[pass->layer + 1][before * wide + pass->direction * stack->size + j];
}

lb_number lb_stack_cell_before(const lb_stack_pass *pass, int64_t sample, int64_t before, int64_t j)
{
    const lb_stack *stack = pass->stack;
    if (stack->mode != LB_STACK_LSTM) return (lb_number){0, 0};
    return before < 0 ? held(pass, stack->cx, sample, j) : stack->states[pass->index][before * stack->size + j];
}

static void run_sample(const lb_stack_pass *pass, int64_t sample, lb_number *h)
{
    lb_stack *stack = pass->stack;
    const int64_t n = stack->size, wide = n * stack->directions, length = lb_stack_length(stack, sample);
    for (int64_t k = 0; k < length; k++) {
        const int64_t row = lb_stack_row(stack, lb_stack_step(pass, k, length), sample),
                      before = lb_stack_row_before(pass, sample, k, length);
        lb_stack_state_before(pass, sample, before, h);
        for (int64_t j = 0; j < n; j++) {
            lb_number c = {0, 0};
            const unit unit = {stack->sequence[pass->layer] + row * lb_stack_width(stack, pass->layer), h, h[j],
                               lb_stack_cell_before(pass, sample, before, j),
                               stack->gates[pass->index] + row * lb_stack_kept_kinds(stack) * n + j};
            stack->sequence[pass->layer + 1][row * wide + pass->direction * n + j] =
                lb_stack_stored(stack, run_unit(pass, j, &unit, &c));
            if (stack->mode == LB_STACK_LSTM) stack->states[pass->index][row * n + j] = c;
        }
    }
}

void lb_stack_run(lb_stack *stack)
{
    lb_number *h = lb_stack_numbers(stack, stack->samples * stack->size);
    for (int64_t layer = 0; lb_frame_ok(&stack->frame) && layer < stack->layers; layer++)
        for (int64_t direction = 0; direction < stack->directions; direction++) {
            const lb_stack_pass pass = lb_stack_pass_of(stack, layer, direction);
#pragma omp parallel for
            for (int64_t sample = 0; sample < stack->samples; sample++)
                run_sample(&pass, sample, h + sample * stack->size);
        }
}
