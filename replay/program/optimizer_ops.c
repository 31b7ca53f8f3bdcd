/* The ops that are an optimizer's: see optimizer_ops.h. */
#include "program/optimizer_ops.h"

#include <stdlib.h>

typedef struct search {
    const lb_slice_flow *flow;
    uint8_t *marks;     /* per op: an optimizer's */
    uint8_t *made;      /* per op: what it gives was made of a gradient */
    uint8_t *gradient;  /* per dense storage: of a parameter's gradient */
    uint8_t *of_step;   /* per dense storage: written in a recorded step */
    uint8_t *by_hand;   /* per dense storage: written by an op that a gradient enters, in no recorded step */
    uint32_t op;        /* whose inputs are read */
    bool enters, other; /* a gradient does; by a tensor that the op does not write */
} search;

static bool outside(const lb_op *op)
{
    return op->phase == LB_PHASE_OPTIMIZER || op->phase == LB_PHASE_COMMUNICATION ||
           (!op->scope && op->phase == LB_PHASE_OTHER);
}

/* What was written to a parameter is a parameter, whatever it was made of. */
static bool is_of_gradient(const search *s, uint32_t value)
{
    const lb_program *p = s->flow->program;
    uint32_t defs[8];
    if (p->values[value].flags & LB_VALUE_PARAMETER) return false;
    if (p->values[value].flags & LB_VALUE_GRADIENT || s->gradient[s->flow->storage_of[value]]) return true;
    const uint32_t n = lb_slice_flow_defs_of(s->flow, s->op, value, defs, 8);
    for (uint32_t i = 0; i < n && i < 8; i++)
        if (s->made[defs[i]] || p->ops[defs[i]].phase == LB_PHASE_BACKWARD) return true;
    return false;
}

static void read_input(void *context, uint32_t value)
{
    search *s = context;
    const lb_program *p = s->flow->program;
    if (value == LB_NONE || !lb_dtype_is_float(p->values[value].dtype) || !is_of_gradient(s, value)) return;
    s->enters = true;
    s->other |= lb_op_writes(p, &p->ops[s->op], p->values[value].storage) == LB_NONE;
}

static void note_written(search *s, uint32_t op, uint8_t *storages)
{
    const lb_op *row = &s->flow->program->ops[op];
    for (uint32_t w = 0; w < row->written; w++) {
        const uint32_t v = lb_op_written(s->flow->program, row)[w];
        if (v != LB_NONE) storages[s->flow->storage_of[v]] = 1;
    }
}

static void mark_gradients(search *s)
{
    const lb_program *p = s->flow->program;
    for (uint32_t i = 0; i < p->n_group_params; i++) {
        const uint32_t storage =
            p->group_params[i].gradient < 0 ? LB_NONE : lb_slice_flow_storage(s->flow, p->group_params[i].gradient);
        if (storage != LB_NONE) s->gradient[storage] = 1;
    }
}

static void mark_steps(search *s)
{
    const lb_program *p = s->flow->program;
    for (uint32_t g = 0; g < p->n_groups; g++)
        for (uint32_t i = p->groups[g].first_op; i < p->n_ops && i - p->groups[g].first_op < p->groups[g].ops; i++)
            if (p->ops[i].phase == LB_PHASE_OPTIMIZER && !s->marks[i]) {
                s->marks[i] = 1;
                note_written(s, i, s->of_step);
            }
}

static void follow_gradients(search *s)
{
    const lb_program *p = s->flow->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (!outside(op) || !lb_slice_op_defines(p, op)) continue;
        s->op = i, s->enters = s->other = false;
        lb_op_each_input(p, op, read_input, s);
        s->made[i] = s->enters;
        if (op->phase != LB_PHASE_OPTIMIZER || s->marks[i] || !(s->other || (s->enters && !op->written))) continue;
        s->marks[i] = 1;
        note_written(s, i, s->by_hand);
    }
}

static bool joins_update_by_hand(const search *s, const lb_op *op)
{
    for (uint32_t w = 0; w < op->written; w++) {
        const uint32_t v = lb_op_written(s->flow->program, op)[w], storage = v == LB_NONE ? 0 : s->flow->storage_of[v];
        if (v != LB_NONE && s->by_hand[storage] && !s->of_step[storage]) return true;
    }
    return false;
}

uint8_t *lb_optimizer_ops(const lb_slice_flow *flow)
{
    const lb_program *p = flow->program;
    search s = {.flow = flow,
                .marks = calloc((size_t)p->n_ops + 1, 1),
                .made = calloc((size_t)p->n_ops + 1, 1),
                .gradient = calloc((size_t)flow->n_storages + 1, 1),
                .of_step = calloc((size_t)flow->n_storages + 1, 1),
                .by_hand = calloc((size_t)flow->n_storages + 1, 1)};
    const bool room = s.marks && s.made && s.gradient && s.of_step && s.by_hand;
    if (room) {
        mark_gradients(&s);
        mark_steps(&s);
        follow_gradients(&s);
        for (uint32_t i = 0; i < p->n_ops; i++)
            s.marks[i] |= p->ops[i].phase == LB_PHASE_OPTIMIZER && joins_update_by_hand(&s, &p->ops[i]);
    }
    free(s.made);
    free(s.gradient);
    free(s.of_step);
    free(s.by_hand);
    if (room) return s.marks;
    free(s.marks);
    return NULL;
}
