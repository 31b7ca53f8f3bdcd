/* Ops of a joined program: see join.h. */
#include "joined/join.h"

#include "pair/op_kind.h"

#include "base/array.h"
#include <string.h>

/* Above every storage of a rank. */
#define FRESH_STORAGES ((int64_t)1 << 61)
#define NODES_PER_RANK ((int64_t)1 << 40)

uint32_t lb_join_end_of(const lb_join *j, uint32_t part)
{
    return part + 1 < j->view->n_parts ? j->view->parts[part + 1].first_op : j->p->n_ops;
}

/* ---- writing ops ---- */

void lb_join_append(lb_join *j, lb_op op)
{
    lb_op *ops = lb_array_grow(j->ops, j->n_ops, sizeof *ops);
    if (ops) j->ops = ops;
    uint32_t *parts = ops ? lb_array_grow(j->part_of, j->n_ops, sizeof *parts) : NULL;
    if (parts) j->part_of = parts;
    uint64_t *ranks = parts ? lb_array_grow(j->ranks, j->n_ops, sizeof *ranks) : NULL;
    j->failed |= !ranks;
    if (!ranks) return;
    j->ranks = ranks;
    j->ranks[j->n_ops] = j->standing ? j->standing : lb_program_view_rank_bit(j->part);
    j->part_of[j->n_ops] = j->part, j->ops[j->n_ops++] = op;
}

uint32_t lb_join_add_value(lb_join *j, const lb_value *value)
{
    const uint32_t v = lb_program_add_value(j->p, value);
    j->failed |= v == LB_NONE;
    return v;
}

/* A value of its own storage, contiguous. */
uint32_t lb_join_fresh(lb_join *j, lb_dtype dtype, const lb_layout *shape)
{
    const lb_value value = {.storage = FRESH_STORAGES + j->n_fresh++,
                            .version = 1,
                            .layout = lb_layout_contiguous(shape->ndim, shape->shape),
                            .dtype = dtype,
                            .name = LB_NONE,
                            .statistics = LB_NONE};
    return lb_join_add_value(j, &value);
}

lb_arg lb_join_value_arg(uint32_t v)
{
    return (lb_arg){.tag = LB_ARG_VALUE, .u.value = v};
}

lb_arg lb_join_int_arg(int64_t i)
{
    return (lb_arg){.tag = LB_ARG_INT, .u.i = i};
}

/* An op with one result. */
void lb_join_write_op(lb_join *j, const char *name, const lb_arg *args, uint32_t n, uint32_t result)
{
    lb_op op = j->like;
    op.name = lb_program_string(j->p, name), op.flags = 0;
    if (j->called != LB_NONE) op.node_name = j->called;
    op.first_arg = lb_program_add_args(j->p, args, n), op.args = n;
    op.first_result = lb_program_add_refs(j->p, &result, 1), op.results = 1;
    op.first_written = op.first_result, op.written = 0;
    j->failed |= op.name == LB_NONE || op.first_arg == LB_NONE || op.first_result == LB_NONE;
    if (!j->failed) lb_join_append(j, op);
}

void lb_join_write_clone(lb_join *j, uint32_t from, uint32_t to)
{
    const lb_arg args[] = {lb_join_value_arg(from), {.tag = LB_ARG_NONE}};
    lb_join_write_op(j, "aten::clone", args, 2, to);
}

static void write_source(lb_join *j, uint32_t v)
{
    lb_op op = j->like;
    op.name = lb_program_string(j->p, "lb::source"), op.flags = 0, op.args = 0;
    op.first_result = lb_program_add_refs(j->p, &v, 1), op.results = 1;
    op.first_written = op.first_result, op.written = 0;
    j->failed |= op.name == LB_NONE || op.first_result == LB_NONE;
    if (j->failed) return;
    if (!j->p->values[v].source) j->p->values[v].source = LB_SOURCE_COLLECTIVE;
    j->p->values[v].flags |= LB_VALUE_SOURCE;
    lb_join_append(j, op);
}

/* ---- windows ---- */

int64_t lb_join_numel(const lb_join *j, uint32_t v)
{
    return lb_layout_numel(&j->p->values[v].layout);
}

/* The same elements in row-major order, seen in another shape. `v` is contiguous. */
uint32_t lb_join_reshaped(lb_join *j, uint32_t v, const lb_layout *shape, int64_t first)
{
    lb_value window = j->p->values[v];
    if (!first && lb_layout_same_shape(&window.layout, shape) && lb_layout_is_contiguous(&window.layout)) return v;
    const int64_t offset = window.layout.offset + first;
    window.layout = lb_layout_contiguous(shape->ndim, shape->shape), window.layout.offset = offset;
    window.name = LB_NONE, window.flags &= LB_VALUE_LAZY;
    window.logical = window.blob = (lb_digest){0}, window.source = LB_SOURCE_NOT;
    return lb_join_add_value(j, &window);
}

/* Contiguous: the value, or a copy of it. */
uint32_t lb_join_dense(lb_join *j, uint32_t v)
{
    const lb_value *value = &j->p->values[v];
    if (lb_layout_is_contiguous(&value->layout) && !(value->flags & LB_VALUE_LAZY)) return v;
    const lb_layout shape = value->layout;
    const uint32_t copy = lb_join_fresh(j, value->dtype, &shape);
    if (!j->failed) lb_join_write_clone(j, v, copy);
    return copy;
}

/* ---- where ops stand ---- */

static uint32_t outputs_of(const lb_op *op)
{
    return op->written ? op->written : op->results;
}

void lb_join_write_recorded(lb_join *j, uint32_t op)
{
    const lb_op o = j->p->ops[op];
    for (uint32_t i = 0; i < outputs_of(&o); i++) {
        const uint32_t v = (o.written ? lb_op_written(j->p, &o) : lb_op_results(j->p, &o))[i];
        if (v != LB_NONE) write_source(j, v);
    }
}

/* The phase of what the rank does around it, which says what is communicated. */
static uint8_t phase_around(const lb_join *j, uint32_t op, uint32_t part)
{
    for (uint32_t i = op; i-- > j->view->parts[part].first_op;)
        if (j->p->ops[i].phase != LB_PHASE_COMMUNICATION && !lb_op_is_source(j->p, &j->p->ops[i]))
            return j->p->ops[i].phase;
    for (uint32_t i = op; i < lb_join_end_of(j, part); i++)
        if (j->p->ops[i].phase != LB_PHASE_COMMUNICATION) return j->p->ops[i].phase;
    return LB_PHASE_FORWARD;
}

/* Is it a gradient that ranks add up, or one that is divided by their number? It belongs to backward, whenever the
 * program does it. */
static bool gives_gradient(const lb_join *j, const lb_op *op)
{
    static const char *const scalings[] = {"aten::div_", "aten::mul_", "aten::div", "aten::mul"};
    const bool communicates = op->flags & LB_OP_COLLECTIVE, scales = lb_op_name_among(j->p, op, scalings, 4) >= 0 &&
                                                                     op->args > 1 &&
                                                                     lb_op_args(j->p, op)[1].tag != LB_ARG_VALUE;
    for (uint32_t i = 0; i < lb_op_outcomes(op) && (communicates || scales); i++) {
        const uint32_t v = lb_op_outcome(j->p, op, i);
        if (v != LB_NONE && j->p->values[v].flags & LB_VALUE_GRADIENT) return true;
    }
    return false;
}

/* What is written next stands where this op stood. */
void lb_join_stand_at(lb_join *j, uint32_t op, uint32_t part)
{
    j->part = part, j->like = j->p->ops[op];
    if (gives_gradient(j, &j->like))
        j->like.phase = LB_PHASE_BACKWARD;
    else if (j->like.phase == LB_PHASE_COMMUNICATION)
        j->like.phase = phase_around(j, op, part);
    if (j->like.node >= 0) j->like.node += (int64_t)part * NODES_PER_RANK;
}

/* ---- the whole ---- */

/* Boundaries name the op behind them. */
static void move_boundaries(lb_join *j)
{
    uint32_t row = 0;
    for (uint32_t k = 0; k < j->view->n_parts; k++) {
        const lb_program *recorded = j->view->parts[k].program;
        for (uint32_t i = 0; i < recorded->n_boundaries && row < j->p->n_boundaries; i++, row++) {
            lb_boundary *b = &j->p->boundaries[row];
            b->op = b->op < lb_join_end_of(j, k) ? j->new_of[b->op] : j->n_ops;
        }
    }
}

static void take_ops(lb_join *j)
{
    lb_program *p = j->p;
    const uint32_t before = p->n_ops;
    move_boundaries(j);
    for (uint32_t i = before; i < j->n_ops && !j->failed; i++) j->failed |= lb_program_add_op(p, &j->ops[i]) == LB_NONE;
    if (j->failed) return;
    if (j->n_ops) memcpy(p->ops, j->ops, j->n_ops * sizeof *p->ops);
    p->n_ops = j->n_ops;
}

void lb_join_hand_over(lb_join *j)
{
    take_ops(j);
    if (j->failed) return;
    lb_program_view_reorder(j->view, j->new_of, j->part_of, j->ranks);
    j->new_of = j->part_of = NULL, j->ranks = NULL;
}
