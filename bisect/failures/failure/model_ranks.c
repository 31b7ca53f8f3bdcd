/* Ranks that compute one model: see model_ranks.h. */
#include "failure/model_ranks.h"

#include "exchanges/rank_steps.h"

#include <string.h>

enum { PEER = 2 };

typedef struct payload {
    const lb_program *program;
    int64_t most;
    bool floats, parameters;
} payload;

static void weigh(void *context, uint32_t value)
{
    payload *payload = context;
    if (value == LB_NONE) return;
    const lb_value *v = &payload->program->values[value];
    const int64_t n = lb_layout_numel(&v->layout);
    if (n > payload->most) payload->most = n;
    payload->floats |= lb_dtype_is_float(v->dtype);
    payload->parameters |= (v->flags & LB_VALUE_PARAMETER) != 0; /* weights that are averaged now and then */
}

/* A collective's own phase is communication: it stands in the phase of what ran last before it. LB_PHASE_OTHER: it
 * begins the step. */
static uint8_t phase_before(const lb_program *program, uint32_t op)
{
    for (uint32_t i = op; i-- > 0;) {
        const uint8_t phase = program->ops[i].phase;
        if (phase == LB_PHASE_FORWARD || phase == LB_PHASE_BACKWARD || phase == LB_PHASE_OPTIMIZER) return phase;
    }
    return LB_PHASE_OTHER;
}

bool lb_model_ranks_meet(const lb_program *program, const lb_collective *collective)
{
    const lb_op *op = &program->ops[collective->op];
    payload payload = {.program = program};
    if (op->flags & LB_OP_FAILED || phase_before(program, collective->op) != LB_PHASE_FORWARD) return false;
    switch (lb_collective_run_kind(lb_op_name(program, op))) {
    case LB_EXCHANGE_ALL_REDUCE:
    case LB_EXCHANGE_ALL_GATHER:
    case LB_EXCHANGE_REDUCE_SCATTER:
    case LB_EXCHANGE_ALL_TO_ALL:
        lb_op_each_input(program, op, weigh, &payload);
        return payload.floats && payload.most > 1 && !payload.parameters;
    default: return false;
    }
}

int32_t lb_model_ranks_peer(const lb_program *program, const lb_collective *collective)
{
    const lb_op *op = &program->ops[collective->op];
    const char *name = lb_op_name(program, op), *after = strstr(name, "::"), *base = after ? after + 2 : name;
    if (strncmp(base, "send", 4) != 0 && strncmp(base, "recv", 4) != 0) return -1;
    const lb_arg *arg = op->args > PEER ? &lb_op_args(program, op)[PEER] : NULL;
    if (!arg || arg->tag != LB_ARG_INT || arg->u.i < 0 || arg->u.i >= collective->ranks) return -1;
    return (int32_t)program->refs[collective->first_rank + (uint32_t)arg->u.i];
}

/* Of the shape of a parameter, as its gradient is. */
static void compare_shapes(void *context, uint32_t value)
{
    payload *payload = context;
    if (value == LB_NONE) return;
    for (uint32_t i = 0; i < payload->program->n_values; i++)
        payload->parameters |=
            payload->program->values[i].flags & LB_VALUE_PARAMETER &&
            lb_layout_same_shape(&payload->program->values[i].layout, &payload->program->values[value].layout);
}

bool lb_model_ranks_hand_on(const lb_program *program, const lb_collective *collective)
{
    const uint8_t phase = phase_before(program, collective->op);
    payload payload = {.program = program};
    if (phase != LB_PHASE_BACKWARD && phase != LB_PHASE_OPTIMIZER) return true;
    lb_op_each_input(program, &program->ops[collective->op], compare_shapes, &payload);
    if (!payload.parameters) return true;
    for (uint32_t i = collective->op + 1; i < program->n_ops; i++)
        if (program->ops[i].phase == LB_PHASE_OPTIMIZER) return false;
    return true;
}

void lb_model_ranks_mark_written(const lb_program *program, const int32_t *ranks, uint32_t n, bool *marked)
{
    for (uint32_t i = 0; i < program->n_collectives; i++) {
        const uint32_t row = lb_rank_steps_row(ranks, n, lb_model_ranks_peer(program, &program->collectives[i]));
        if (row != LB_NONE && !marked[row]) marked[row] = lb_model_ranks_hand_on(program, &program->collectives[i]);
    }
}
