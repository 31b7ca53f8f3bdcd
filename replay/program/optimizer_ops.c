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
static bool is_of_gradient(const search *search, uint32_t value)
{
    const lb_program *program = search->flow->program;
    uint32_t defs[8];
    if (program->values[value].flags & LB_VALUE_PARAMETER) return false;
    if (program->values[value].flags & LB_VALUE_GRADIENT || search->gradient[search->flow->storage_of[value]])
        return true;
    const uint32_t n = lb_slice_flow_defs_of(search->flow, search->op, value, defs, 8);
    for (uint32_t i = 0; i < n && i < 8; i++)
        if (search->made[defs[i]] || program->ops[defs[i]].phase == LB_PHASE_BACKWARD) return true;
    return false;
}

static void read_input(void *context, uint32_t value)
{
    search *search = context;
    const lb_program *program = search->flow->program;
    if (value == LB_NONE || !lb_dtype_is_float(program->values[value].dtype) || !is_of_gradient(search, value)) return;
    search->enters = true;
    search->other |= lb_op_writes(program, &program->ops[search->op], program->values[value].storage) == LB_NONE;
}

static void note_written(search *search, uint32_t op, uint8_t *storages)
{
    const lb_op *row = &search->flow->program->ops[op];
    for (uint32_t w = 0; w < row->written; w++) {
        const uint32_t v = lb_op_written(search->flow->program, row)[w];
        if (v != LB_NONE) storages[search->flow->storage_of[v]] = 1;
    }
}

static void mark_gradients(search *search)
{
    const lb_program *program = search->flow->program;
    for (uint32_t i = 0; i < program->n_group_params; i++) {
        const uint32_t storage = program->group_params[i].gradient < 0
                                     ? LB_NONE
                                     : lb_slice_flow_storage(search->flow, program->group_params[i].gradient);
        if (storage != LB_NONE) search->gradient[storage] = 1;
    }
}

static void mark_steps(search *search)
{
    const lb_program *program = search->flow->program;
    for (uint32_t g = 0; g < program->n_groups; g++)
        for (uint32_t i = program->groups[g].first_op;
             i < program->n_ops && i - program->groups[g].first_op < program->groups[g].ops; i++)
            if (program->ops[i].phase == LB_PHASE_OPTIMIZER && !search->marks[i]) {
                search->marks[i] = 1;
                note_written(search, i, search->of_step);
            }
}

static void follow_gradients(search *search)
{
    const lb_program *program = search->flow->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (!outside(op) || !lb_slice_op_defines(program, op)) continue;
        search->op = i, search->enters = search->other = false;
        lb_op_each_input(program, op, read_input, search);
        search->made[i] = search->enters;
        if (op->phase != LB_PHASE_OPTIMIZER || search->marks[i] || !(search->other || (search->enters && !op->written)))
            continue;
        search->marks[i] = 1;
        note_written(search, i, search->by_hand);
    }
}

static bool joins_update_by_hand(const search *search, const lb_op *op)
{
    for (uint32_t w = 0; w < op->written; w++) {
        const uint32_t v = lb_op_written(search->flow->program, op)[w],
                       storage = v == LB_NONE ? 0 : search->flow->storage_of[v];
        if (v != LB_NONE && search->by_hand[storage] && !search->of_step[storage]) return true;
    }
    return false;
}

uint8_t *lb_optimizer_ops(const lb_slice_flow *flow)
{
    const lb_program *program = flow->program;
    search search = {.flow = flow,
                     .marks = calloc((size_t)program->n_ops + 1, 1),
                     .made = calloc((size_t)program->n_ops + 1, 1),
                     .gradient = calloc((size_t)flow->n_storages + 1, 1),
                     .of_step = calloc((size_t)flow->n_storages + 1, 1),
                     .by_hand = calloc((size_t)flow->n_storages + 1, 1)};
    const bool room = search.marks && search.made && search.gradient && search.of_step && search.by_hand;
    if (room) {
        mark_gradients(&search);
        mark_steps(&search);
        follow_gradients(&search);
        for (uint32_t i = 0; i < program->n_ops; i++)
            search.marks[i] |=
                program->ops[i].phase == LB_PHASE_OPTIMIZER && joins_update_by_hand(&search, &program->ops[i]);
    }
    free(search.made);
    free(search.gradient);
    free(search.of_step);
    free(search.by_hand);
    if (room) return search.marks;
    free(search.marks);
    return NULL;
}
