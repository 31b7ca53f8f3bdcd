/* Finding the loss and the outermost output: see step_end.h. */
#include "session/step_end.h"

#include <string.h>

/* Backward starts from ones like the loss, made outside of any autograd node. The last such loss counts. */
lb_step_end lb_step_end_loss(const lb_program *program)
{
    lb_step_end end = {LB_NONE, LB_NONE};
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (op->phase != LB_PHASE_BACKWARD || *lb_program_text(program, op->node_name) || !op->args) continue;
        if (strncmp(lb_op_name(program, op), "aten::ones_like", 15) || lb_op_args(program, op)[0].tag != LB_ARG_VALUE)
            continue;
        end = (lb_step_end){lb_op_args(program, op)[0].u.value, i};
    }
    return end;
}

static bool counts(const lb_program *program, const lb_boundary *boundary)
{
    if (!boundary->output || boundary->recompute || boundary->value == LB_NONE) return false;
    const lb_value *value = &program->values[boundary->value];
    return lb_dtype_is_float(value->dtype) && lb_layout_numel(&value->layout) > 1;
}

lb_step_end lb_step_end_output(const lb_program *program, uint32_t *scope)
{
    lb_step_end end = {LB_NONE, LB_NONE};
    const lb_boundary *last = NULL;
    for (uint32_t i = program->n_boundaries; i-- > 0;) {
        const lb_boundary *boundary = &program->boundaries[i];
        if (!counts(program, boundary)) continue;
        if (last && (boundary->scope != last->scope || boundary->call != last->call)) break;
        if (last && lb_layout_numel(&program->values[boundary->value].layout) <=
                        lb_layout_numel(&program->values[end.value].layout))
            continue;
        last = boundary, end = (lb_step_end){boundary->value, boundary->op}, *scope = boundary->scope;
    }
    return end;
}
