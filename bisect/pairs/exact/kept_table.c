/* Tables that a program keeps from step to step: see kept_table.h. */
#include "exact/kept_table.h"

#include "exact/value_graph.h"
#include "program/state_name.h"

#include <stdlib.h>
#include <string.h>

typedef struct origin {
    const lb_program *program;
    lb_value_graph graph;
    uint8_t *known; /* per value: 0 not asked, 1 constant, 2 it is not, or is being asked */
} origin;

/* A buffer of a module that the step leaves as it is. */
static bool is_unwritten_buffer(const lb_program *p, const lb_value *v)
{
    if (!(v->flags & LB_VALUE_STATE) || v->flags & LB_VALUE_INPUT || v->name == LB_NONE) return false;
    if (lb_state_name_is(lb_program_text(p, v->name))) return false;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (!lb_op_is_source(p, &p->ops[i]) && lb_op_writes(p, &p->ops[i], v->storage) != LB_NONE) return false;
    return true;
}

static bool is_constant(origin *o, uint32_t value)
{
    const lb_value_graph *g = &o->graph;
    if (o->known[value]) return o->known[value] == 1;
    o->known[value] = 2;
    if (g->giver[value] == LB_NONE) return false;
    const lb_op *op = &o->program->ops[g->giver[value]];
    bool constant = !(op->flags & LB_OP_RANDOM);
    if (constant && lb_op_is_source(o->program, op))
        constant = is_unwritten_buffer(o->program, &o->program->values[value]);
    for (uint32_t k = g->first_pred[value]; k < g->first_pred[value + 1] && constant; k++)
        constant = is_constant(o, g->preds[k]);
    o->known[value] = constant ? 1 : 2;
    return constant;
}

static bool are_one(const lb_value *x, const lb_value *y)
{
    return x->dtype == y->dtype && lb_layout_numel(&x->layout) == lb_layout_numel(&y->layout) &&
           !memcmp(&x->logical, &y->logical, sizeof x->logical);
}

typedef enum found { NOWHERE, AS_SOURCE, CONSTANT, NOT_CONSTANT } found;

/* How one step holds the tensor. */
static found look_in(const lb_program *p, const lb_value *value)
{
    origin o = {.program = p, .known = calloc(p->n_values + 1, 1)};
    found how = NOWHERE;
    if (!o.known || lb_value_graph_make(p, &o.graph, NULL) != LB_OK) {
        free(o.known);
        return NOT_CONSTANT;
    }
    for (uint32_t v = 0; v < p->n_values && how != NOT_CONSTANT; v++) {
        if (!are_one(&p->values[v], value)) continue;
        if (p->values[v].source == LB_SOURCE_CARRIED)
            how = how == NOWHERE ? AS_SOURCE : how;
        else if (p->values[v].source ==
                 LB_SOURCE_OTHER) /* was there before the recording began, for all that step knows */
            how = CONSTANT;
        else if (p->values[v].flags & LB_VALUE_SOURCE)
            how = NOT_CONSTANT;
        else if (o.graph.giver[v] != LB_NONE)
            how = is_constant(&o, v) ? CONSTANT : NOT_CONSTANT;
    }
    lb_value_graph_release(&o.graph);
    free(o.known);
    return how;
}

bool lb_kept_table(lb_capture *capture, int32_t rank, int64_t step, const lb_value *value)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(capture, &steps);
    for (uint32_t i = n; i-- > 0;) {
        const lb_program *p;
        if (steps[i] >= step) continue;
        if (lb_capture_program(capture, rank, steps[i], &p, NULL) != LB_OK) return false;
        const found how = look_in(p, value);
        if (how == CONSTANT || how == NOT_CONSTANT) return how == CONSTANT;
    }
    return false;
}
