/* A stack of recurrent layers as one op has it: its arguments read, its forward run, and what a backward needs of that.
 *
 * What is computed stands in op_recurrent_layers.c. */
#ifndef LB_REPLAY_RECURRENT_STACK_H
#define LB_REPLAY_RECURRENT_STACK_H

#include "kernel/frame.h"
#include "sequence/running_error.h"

typedef enum lb_stack_mode { LB_STACK_RELU, LB_STACK_TANH, LB_STACK_LSTM, LB_STACK_GRU } lb_stack_mode;

/* Where the args stand behind the first seven, and what differs between forward and backward. */
typedef struct lb_stack_places {
    uint32_t hx, mode;
} lb_stack_places;

typedef struct lb_stack {
    lb_frame frame;
    lb_number_type type;
    lb_stack_mode mode;
    int64_t size, layers, directions, inputs, kinds; /* kinds: gates of a unit */
    int64_t samples, steps, rows;                    /* rows: of all steps of all samples */
    int64_t *offset, *active;                        /* of a step: its first row, how many samples it has */
    bool batch_first, packed, twin;
    double coarse, product; /* what storing in 16 bits may add; what one product may, beside its rounding */
    uint32_t per_layer;     /* weights of a layer: 2 or 4 */
    double **weights;       /* of the list, in f64 */
    lb_number **sequence;   /* layers + 1: (rows, width), the input and what each layer gives */
    lb_number **gates;      /* layers * directions: (rows, kept kinds, size) */
    lb_number **states;     /* the same of an LSTM: c, (rows, size) */
    const void *hx, *cx;
} lb_stack;

/* Reads the arguments of a call; results are not touched. False: it has failed, or this stack is not computed. */
bool lb_stack_begin(lb_stack *stack, lb_call *call, lb_stack_places at, bool twin);
/* The forward: fills sequence, gates and states. */
void lb_stack_run(lb_stack *stack);
/* Zeros, which the frame frees. */
lb_number *lb_stack_numbers(lb_stack *stack, int64_t n);

static inline int64_t lb_stack_width(const lb_stack *stack, int64_t layer)
{
    return layer ? stack->size * stack->directions : stack->inputs;
}

/* What a unit keeps for the backward: its gates after their functions, of a GRU also V h + d of n, of relu its
 * argument. */
static inline int64_t lb_stack_kept_kinds(const lb_stack *stack)
{
    return stack->mode == LB_STACK_RELU ? 2 : stack->mode == LB_STACK_GRU ? 4 : stack->kinds;
}

static inline int64_t lb_stack_row(const lb_stack *stack, int64_t t, int64_t sample)
{
    return stack->batch_first && !stack->packed ? sample * stack->steps + t : stack->offset[t] + sample;
}

static inline int64_t lb_stack_length(const lb_stack *stack, int64_t sample)
{
    int64_t t = 0;
    while (t < stack->steps && stack->active[t] > sample) t++;
    return t;
}

/* A layer in one direction. */
typedef struct lb_stack_pass {
    lb_stack *stack;
    int64_t layer, direction, index; /* index: of both in lists and states */
    const double *w, *v, *b, *d;
} lb_stack_pass;

lb_stack_pass lb_stack_pass_of(lb_stack *stack, int64_t layer, int64_t direction);

/* The step that the k-th of a sequence of `length` reads. */
static inline int64_t lb_stack_step(const lb_stack_pass *pass, int64_t k, int64_t length)
{
    return pass->direction ? length - 1 - k : k;
}

/* Row of the step before the k-th of a sample, or -1. */
int64_t lb_stack_row_before(const lb_stack_pass *pass, int64_t sample, int64_t k, int64_t length);
/* h and c behind row `before`, or where that is -1 as they came in. */
void lb_stack_state_before(const lb_stack_pass *pass, int64_t sample, int64_t before, lb_number *h);
lb_number lb_stack_cell_before(const lb_stack_pass *pass, int64_t sample, int64_t before, int64_t j);

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

static inline lb_number lb_stack_stored(const lb_stack *stack, lb_number a)
{
    return lb_number_kept(a, stack->coarse);
}

/* Sum of w[i * step] x[i]. */
lb_number lb_stack_dot(const lb_stack *stack, const double *w, int64_t step, const lb_number *x, int64_t n);

/* cuDNN's exponentials may be off by some roundings of 1. */
static inline lb_number lb_stack_tanh(const lb_stack *stack, lb_number a)
{
    lb_number y = lb_number_tanh(stack->type, a);
    y.e += 2 * stack->type.once;
    return lb_stack_stored(stack, y);
}

#endif
