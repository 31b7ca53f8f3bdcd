/* Ops of a joined program: see join.h. */
#include "joined/join.h"

#include "pair/op_kind.h"

#include "base/array.h"
#include <string.h>

/* Above every storage of a rank. */
#define FRESH_STORAGES ((int64_t)1 << 61)
#define NODES_PER_RANK ((int64_t)1 << 40)

uint32_t lb_join_end_of(const lb_join *join, uint32_t part)
{
    return part + 1 < join->view->n_parts ? join->view->parts[part + 1].first_op : join->p->n_ops;
}

/* ---- writing ops ---- */

void lb_join_append(lb_join *join, lb_op op)
{
    lb_op *ops = lb_array_grow(join->ops, join->n_ops, sizeof *ops);
    if (ops) join->ops = ops;
    uint32_t *parts = ops ? lb_array_grow(join->part_of, join->n_ops, sizeof *parts) : NULL;
    if (parts) join->part_of = parts;
    uint64_t *ranks = parts ? lb_array_grow(join->ranks, join->n_ops, sizeof *ranks) : NULL;
    join->failed |= !ranks;
    if (!ranks) return;
    join->ranks = ranks;
    join->ranks[join->n_ops] = join->standing ? join->standing : lb_program_view_rank_bit(join->part);
    join->part_of[join->n_ops] = join->part, join->ops[join->n_ops++] = op;
}

uint32_t lb_join_add_value(lb_join *join, const lb_value *value)
{
    const uint32_t v = lb_program_add_value(join->p, value);
    join->failed |= v == LB_NONE;
    return v;
}

/* A value of its own storage, contiguous. */
uint32_t lb_join_fresh(lb_join *join, lb_dtype dtype, const lb_layout *shape)
{
    const lb_value value = {.storage = FRESH_STORAGES + join->n_fresh++,
                            .version = 1,
                            .layout = lb_layout_contiguous(shape->ndim, shape->shape),
                            .dtype = dtype,
                            .name = LB_NONE,
                            .statistics = LB_NONE};
    return lb_join_add_value(join, &value);
}

lb_arg lb_join_value_arg(uint32_t value)
{
    return (lb_arg){.tag = LB_ARG_VALUE, .u.value = value};
}

lb_arg lb_join_int_arg(int64_t i)
{
    return (lb_arg){.tag = LB_ARG_INT, .u.i = i};
}

/* An op with one result. */
void lb_join_write_op(lb_join *join, const char *name, const lb_arg *args, uint32_t n, uint32_t result)
{
    lb_op op = join->like;
    op.name = lb_program_string(join->p, name), op.flags = 0;
    if (join->called != LB_NONE) op.node_name = join->called;
    op.first_arg = lb_program_add_args(join->p, args, n), op.args = n;
    op.first_result = lb_program_add_refs(join->p, &result, 1), op.results = 1;
    op.first_written = op.first_result, op.written = 0;
    join->failed |= op.name == LB_NONE || op.first_arg == LB_NONE || op.first_result == LB_NONE;
    if (!join->failed) lb_join_append(join, op);
}

void lb_join_write_clone(lb_join *join, uint32_t from, uint32_t to)
{
    const lb_arg args[] = {lb_join_value_arg(from), {.tag = LB_ARG_NONE}};
    lb_join_write_op(join, "aten::clone", args, 2, to);
}

static void write_source(lb_join *join, uint32_t v)
{
    lb_op op = join->like;
    op.name = lb_program_string(join->p, "lb::source"), op.flags = 0, op.args = 0;
    op.first_result = lb_program_add_refs(join->p, &v, 1), op.results = 1;
    op.first_written = op.first_result, op.written = 0;
    join->failed |= op.name == LB_NONE || op.first_result == LB_NONE;
    if (join->failed) return;
    if (!join->p->values[v].source) join->p->values[v].source = LB_SOURCE_COLLECTIVE;
    join->p->values[v].flags |= LB_VALUE_SOURCE;
    lb_join_append(join, op);
}

/* ---- windows ---- */

int64_t lb_join_numel(const lb_join *join, uint32_t value)
{
    return lb_layout_numel(&join->p->values[value].layout);
}

/* The same elements in row-major order, seen in another shape. `v` is contiguous. */
uint32_t lb_join_reshaped(lb_join *join, uint32_t value, const lb_layout *shape, int64_t first)
{
    lb_value window = join->p->values[value];
    if (!first && lb_layout_same_shape(&window.layout, shape) && lb_layout_is_contiguous(&window.layout)) return value;
    const int64_t offset = window.layout.offset + first;
    window.layout = lb_layout_contiguous(shape->ndim, shape->shape), window.layout.offset = offset;
    window.name = LB_NONE, window.flags &= LB_VALUE_LAZY;
    window.logical = window.blob = (lb_digest){0}, window.source = LB_SOURCE_NOT;
    return lb_join_add_value(join, &window);
}

/* Contiguous: the value, or a copy of it. */
uint32_t lb_join_dense(lb_join *join, uint32_t value)
{
    const lb_value *held = &join->p->values[value];
    if (lb_layout_is_contiguous(&held->layout) && !(held->flags & LB_VALUE_LAZY)) return value;
    const lb_layout shape = held->layout;
    const uint32_t copy = lb_join_fresh(join, held->dtype, &shape);
    if (!join->failed) lb_join_write_clone(join, value, copy);
    return copy;
}

/* ---- where ops stand ---- */

static uint32_t outputs_of(const lb_op *op)
{
    return op->written ? op->written : op->results;
}

void lb_join_write_recorded(lb_join *join, uint32_t op)
{
    const lb_op o = join->p->ops[op];
    for (uint32_t i = 0; i < outputs_of(&o); i++) {
        const uint32_t v = (o.written ? lb_op_written(join->p, &o) : lb_op_results(join->p, &o))[i];
        if (v != LB_NONE) write_source(join, v);
    }
}

/* The phase of what the rank does around it, which says what is communicated. */
static uint8_t phase_around(const lb_join *join, uint32_t op, uint32_t part)
{
    for (uint32_t i = op; i-- > join->view->parts[part].first_op;)
        if (join->p->ops[i].phase != LB_PHASE_COMMUNICATION && !lb_op_is_source(join->p, &join->p->ops[i]))
            return join->p->ops[i].phase;
    for (uint32_t i = op; i < lb_join_end_of(join, part); i++)
        if (join->p->ops[i].phase != LB_PHASE_COMMUNICATION) return join->p->ops[i].phase;
    return LB_PHASE_FORWARD;
}

/* Is it a gradient that ranks add up, or one that is divided by their number? It belongs to backward, whenever the
 * program does it. */
static bool gives_gradient(const lb_join *join, const lb_op *op)
{
    static const char *const scalings[] = {"aten::div_", "aten::mul_", "aten::div", "aten::mul"};
    const bool communicates = op->flags & LB_OP_COLLECTIVE, scales = lb_op_name_among(join->p, op, scalings, 4) >= 0 &&
                                                                     op->args > 1 &&
                                                                     lb_op_args(join->p, op)[1].tag != LB_ARG_VALUE;
    for (uint32_t i = 0; i < lb_op_outcomes(op) && (communicates || scales); i++) {
        const uint32_t v = lb_op_outcome(join->p, op, i);
        if (v != LB_NONE && join->p->values[v].flags & LB_VALUE_GRADIENT) return true;
    }
    return false;
}

/* What is written next stands where this op stood. */
void lb_join_stand_at(lb_join *join, uint32_t op, uint32_t part)
{
    join->part = part, join->like = join->p->ops[op];
    if (gives_gradient(join, &join->like))
        join->like.phase = LB_PHASE_BACKWARD;
    else if (join->like.phase == LB_PHASE_COMMUNICATION)
        join->like.phase = phase_around(join, op, part);
    if (join->like.node >= 0) join->like.node += (int64_t)part * NODES_PER_RANK;
}

/* ---- the whole ---- */

/* Boundaries name the op behind them. */
static void move_boundaries(lb_join *join)
{
    uint32_t row = 0;
    for (uint32_t k = 0; k < join->view->n_parts; k++) {
        const lb_program *recorded = join->view->parts[k].program;
        for (uint32_t i = 0; i < recorded->n_boundaries && row < join->p->n_boundaries; i++, row++) {
            lb_boundary *boundary = &join->p->boundaries[row];
            boundary->op = boundary->op < lb_join_end_of(join, k) ? join->new_of[boundary->op] : join->n_ops;
        }
    }
}

static void take_ops(lb_join *join)
{
    lb_program *program = join->p;
    const uint32_t before = program->n_ops;
    move_boundaries(join);
    for (uint32_t i = before; i < join->n_ops && !join->failed; i++)
        join->failed |= lb_program_add_op(program, &join->ops[i]) == LB_NONE;
    if (join->failed) return;
    if (join->n_ops) memcpy(program->ops, join->ops, join->n_ops * sizeof *program->ops);
    program->n_ops = join->n_ops;
}

void lb_join_hand_over(lb_join *join)
{
    take_ops(join);
    if (join->failed) return;
    lb_program_view_reorder(join->view, join->new_of, join->part_of, join->ranks);
    join->new_of = join->part_of = NULL, join->ranks = NULL;
}
