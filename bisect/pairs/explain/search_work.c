/* Counting operations: see search_work.h. */
#include "explain/search_work.h"

#include "kernel/ops.h"

#include <math.h>
#include <string.h>

/* A call is gathered, dispatched and told in the time of so many elements; vector units multiply so many at a time. */
static const double CALL = 4096, MULTIPLIED_AT_ONCE = 16;

typedef struct sizes {
    const lb_program *p;
    double all, product; /* elements; of the first three tensors multiplied, results last */
    uint32_t factors;
} sizes;

static void note_size(void *context, uint32_t value)
{
    sizes *sizes = context;
    if (value == LB_NONE) return;
    const double n = (double)lb_layout_numel(&sizes->p->values[value].layout);
    sizes->all += n;
    if (sizes->factors < 2) sizes->product *= n, sizes->factors++;
}

/* A product of (m, k) and (k, n) takes the root of mk x kn x mn multiplications. */
double lb_work_of_op(const lb_program *program, const lb_op *op)
{
    lb_op_form form;
    sizes sizes = {.p = program, .product = 1};
    if (op->flags & LB_OP_VIEW || lb_op_is_source(program, op)) return CALL;
    const lb_op_row *row = lb_op_find(lb_op_name(program, op), &form);
    lb_op_each_input(program, op, note_size, &sizes);
    const uint32_t first = lb_op_outcomes(op) ? lb_op_outcome(program, op, 0) : LB_NONE;
    const double out = first == LB_NONE ? 0 : (double)lb_layout_numel(&program->values[first].layout);
    if (row && row->flags & (LB_ROW_MATMUL | LB_ROW_CONVOLUTION) && sizes.factors == 2)
        return CALL + sizes.all + out + sqrt(sizes.product * out) / MULTIPLIED_AT_ONCE;
    return CALL + sizes.all + out;
}

double lb_work_of_ops(const lb_program *program, const uint32_t *ops, uint32_t n_ops)
{
    double work = 0;
    for (uint32_t i = 0; i < (ops ? n_ops : program->n_ops); i++)
        work += lb_work_of_op(program, &program->ops[ops ? ops[i] : i]);
    return work;
}

double lb_work_slowness(const lb_candidate *candidate)
{
    double times = 1;
    for (uint32_t i = 0; i < candidate->n_swaps; i++) {
        if (candidate->swaps[i].kind == LB_SWAP_ORDER)
            times = fmax(times, strcmp(candidate->arguments[i], "exact") ? 6 : 24);
        if (candidate->swaps[i].kind != LB_SWAP_ORDER) times = fmax(times, 3);
    }
    return times;
}

/* ---- places of one kind ---- */

static void mix(uint64_t *key, uint64_t x)
{
    *key = (*key ^ x) * UINT64_C(0x9E3779B97F4A7C15);
    *key ^= *key >> 29;
}

static void mix_text(uint64_t *key, const char *text)
{
    for (; *text; text++) mix(key, (uint8_t)*text);
}

static void mix_value(uint64_t *key, const lb_program *program, uint32_t value)
{
    if (value == LB_NONE) return;
    const lb_value *v = &program->values[value];
    mix(key, (uint64_t)v->dtype), mix(key, (uint64_t)v->layout.ndim);
    for (int d = 0; d < v->layout.ndim; d++)
        mix(key, (uint64_t)v->layout.shape[d]), mix(key, (uint64_t)v->layout.stride[d]);
}

static void mix_args(uint64_t *key, const lb_program *program, const lb_arg *args, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        mix(key, (uint64_t)args[i].tag);
        if (args[i].tag == LB_ARG_VALUE)
            mix_value(key, program, args[i].u.value);
        else if (args[i].tag == LB_ARG_LIST || args[i].tag == LB_ARG_COMPLEX)
            mix_args(key, program, program->args + args[i].u.first, args[i].tag == LB_ARG_LIST ? args[i].count : 2);
        else if (args[i].tag == LB_ARG_STRING)
            mix_text(key, lb_program_text(program, args[i].u.string));
        else if (args[i].tag != LB_ARG_NONE)
            mix(key, (uint64_t)args[i].u.i);
    }
}

uint64_t lb_work_key(const lb_program *program, const uint32_t *ops, uint32_t n_ops)
{
    uint64_t key = n_ops;
    for (uint32_t i = 0; i < n_ops; i++) {
        const lb_op *op = &program->ops[ops[i]];
        mix_text(&key, lb_op_name(program, op));
        mix_args(&key, program, lb_op_args(program, op), op->args);
        for (uint32_t k = 0; k < lb_op_outcomes(op); k++) mix_value(&key, program, lb_op_outcome(program, op, k));
    }
    return key;
}

static uint64_t op_kind(const lb_program *program, const lb_op *op)
{
    uint64_t key = 1;
    const lb_arg *args = lb_op_args(program, op);
    mix_text(&key, lb_op_name(program, op));
    for (uint32_t i = 0; i < op->args; i++)
        if (args[i].tag == LB_ARG_FLOAT) mix(&key, (uint64_t)args[i].u.i);
    for (uint32_t k = 0; k < lb_op_outcomes(op); k++) {
        const uint32_t v = lb_op_outcome(program, op, k);
        mix(&key, v == LB_NONE ? 0 : (uint64_t)program->values[v].dtype);
    }
    return key;
}

uint64_t lb_work_kind(const lb_program *program, const uint32_t *ops, uint32_t n_ops)
{
    uint64_t kind = 0;
    for (uint32_t i = 0; i < n_ops; i++) {
        const lb_op *op = &program->ops[ops[i]];
        if (op->flags & LB_OP_VIEW) continue;
        const uint64_t mine = op_kind(program, op);
        bool seen = false;
        for (uint32_t k = 0; k < i && !seen; k++)
            seen = !(program->ops[ops[k]].flags & LB_OP_VIEW) && op_kind(program, &program->ops[ops[k]]) == mine;
        if (!seen) kind += mine; /* a sum, in which their order is nothing */
    }
    return kind;
}
