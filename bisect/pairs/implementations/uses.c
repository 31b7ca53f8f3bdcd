/* Sources told apart by their use: see uses.h. */
#include "implementations/uses.h"

#include "shadow/shadow_numbers.h"

#include <stdlib.h>
#include <string.h>

typedef struct settler {
    lb_implementations *x;
    lb_source_memory *memory;
    uint32_t settled;
} settler;

/* Is all of the tensor one number? */
static bool is_constant(const lb_tensor *t)
{
    double *numbers = t->data && lb_dtype_is_float(t->dtype) ? lb_shadow_numbers_copy(t) : NULL;
    bool same = numbers != NULL;
    for (int64_t i = 1; i < lb_layout_numel(&t->layout) && same; i++) same = numbers[i] == numbers[0];
    free(numbers);
    return same;
}

/* Does A hold B's numbers there? */
static bool holds(const lb_implementations *x, const lb_tensor *mine, const lb_content_run *runs, uint32_t n)
{
    double *b = mine->data && lb_dtype_is_float(mine->dtype) ? lb_shadow_numbers_copy(mine) : NULL, *a = NULL;
    uint32_t loaded = LB_NONE;
    bool alike = b != NULL;
    for (uint32_t i = 0; i < n && alike; i++) {
        const lb_tensor *t = &x->sources[0].tensors[runs[i].tensor].tensor;
        if (runs[i].tensor != loaded)
            free(a), a = t->data && lb_dtype_is_float(t->dtype) ? lb_shadow_numbers_copy(t) : NULL,
                     loaded = runs[i].tensor;
        alike = a != NULL;
        for (int64_t k = 0; k < runs[i].n && alike; k++) alike = a[runs[i].from + k] == b[runs[i].to + k];
    }
    free(a), free(b);
    return alike;
}

static bool is_run(const lb_content_run *a, const lb_content_run *b)
{
    return a->tensor == b->tensor && a->from == b->from && a->from_stride == b->from_stride && a->to == b->to &&
           a->to_stride == b->to_stride && a->n == b->n;
}

/* Is it so already? */
static bool stands_there(const lb_contents *contents, uint32_t row, const lb_content_run *runs, uint32_t n)
{
    const lb_content *c = &contents->list[row];
    bool same = c->relation != LB_CONTENT_NONE && c->n == n;
    for (uint32_t i = 0; i < n && same; i++) same = is_run(&contents->runs[c->first + i], &runs[i]);
    return same;
}

static lb_status settle(void *context, uint32_t row, const lb_content_run *runs, uint32_t n, lb_err *err)
{
    settler *s = context;
    lb_implementations *x = s->x;
    const lb_tensor *mine = &x->sources[1].tensors[row].tensor;
    if (stands_there(&x->contents, row, runs, n) || !holds(x, mine, runs, n)) return LB_OK;
    if (x->contents.list[row].relation != LB_CONTENT_NONE && !is_constant(mine)) return LB_OK;
    s->settled++;
    return lb_step_sources_settle(&x->sources[0], &x->sources[1], row, runs, n, s->memory, &x->contents, err);
}

static uint32_t source_row(const lb_implementations *x, int side, const lb_op *op, uint32_t position)
{
    const lb_arg *arg = &lb_op_args(x->sides[side].program, op)[position];
    if (arg->tag != LB_ARG_VALUE || arg->u.value == LB_NONE) return LB_NONE;
    const uint32_t source = lb_value_graph_source(&x->sides[side].graph, arg->u.value);
    return source == LB_NONE ? LB_NONE : x->sources[side].row_of[source];
}

/* The sources of one op of B beside those of the op of A that gives the same numbers. */
static lb_status settle_op(settler *s, uint32_t op, lb_err *err)
{
    lb_implementations *x = s->x;
    const lb_program *pa = x->sides[0].program, *pb = x->sides[1].program;
    const lb_op *b = &pb->ops[op];
    const uint32_t vb = lb_op_outcomes(b) ? lb_op_outcome(pb, b, 0) : LB_NONE,
                   va = vb == LB_NONE ? LB_NONE : x->met[1][vb];
    if (b->phase != LB_PHASE_FORWARD || va == LB_NONE || x->sides[0].graph.giver[va] == LB_NONE) return LB_OK;
    const lb_op *a = &pa->ops[x->sides[0].graph.giver[va]];
    if (strcmp(lb_op_name(pa, a), lb_op_name(pb, b))) return LB_OK;
    for (uint32_t k = 0; k < a->args && k < b->args; k++) {
        const uint32_t rows[] = {source_row(x, 0, a, k), source_row(x, 1, b, k)};
        if (rows[0] == LB_NONE || rows[1] == LB_NONE || !x->sources[1].list[rows[1]].learnt) continue;
        const int64_t n = lb_layout_numel(&x->sources[1].tensors[rows[1]].tensor.layout);
        if (lb_layout_numel(&x->sources[0].tensors[rows[0]].tensor.layout) != n) continue;
        const lb_content_run run = {rows[0], 0, 1, 0, 1, n};
        if (x->contents.list[rows[1]].tensor != rows[0]) LB_TRY(settle(s, rows[1], &run, 1, err));
    }
    return LB_OK;
}

lb_status lb_uses_settle(lb_implementations *x, const lb_products *products, lb_source_memory *memory,
                         uint32_t *settled, lb_err *err)
{
    settler s = {x, memory, 0};
    const lb_bias_sink sink = {{x->sources[0].row_of, x->sources[1].row_of}, settle, &s};
    lb_status status = lb_products_biases(products, &sink, err);
    for (uint32_t i = 0; i < x->sides[1].program->n_ops && status == LB_OK; i++)
        if (lb_value_graph_computes(x->sides[1].program, &x->sides[1].program->ops[i])) status = settle_op(&s, i, err);
    *settled = s.settled;
    return status;
}
