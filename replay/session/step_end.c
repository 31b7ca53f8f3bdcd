/* Finding the loss and the outermost output: see step_end.h. */
#include "session/step_end.h"

#include <string.h>

/* Backward starts from ones like the loss, made outside of any autograd node. The last such loss counts. */
lb_step_end lb_step_end_loss(const lb_program *p)
{
    lb_step_end end = {LB_NONE, LB_NONE};
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (op->phase != LB_PHASE_BACKWARD || *lb_program_text(p, op->node_name) || !op->args) continue;
        if (strncmp(lb_op_name(p, op), "aten::ones_like", 15) || lb_op_args(p, op)[0].tag != LB_ARG_VALUE) continue;
        end = (lb_step_end){lb_op_args(p, op)[0].u.value, i};
    }
    return end;
}

static bool counts(const lb_program *p, const lb_boundary *b)
{
    if (!b->output || b->recompute || b->value == LB_NONE) return false;
    const lb_value *v = &p->values[b->value];
    return lb_dtype_is_float(v->dtype) && lb_layout_numel(&v->layout) > 1;
}

lb_step_end lb_step_end_output(const lb_program *p, uint32_t *scope)
{
    lb_step_end end = {LB_NONE, LB_NONE};
    const lb_boundary *last = NULL;
    for (uint32_t i = p->n_boundaries; i-- > 0;) {
        const lb_boundary *b = &p->boundaries[i];
        if (!counts(p, b)) continue;
        if (last && (b->scope != last->scope || b->call != last->call)) break;
        if (last && lb_layout_numel(&p->values[b->value].layout) <= lb_layout_numel(&p->values[end.value].layout))
            continue;
        last = b, end = (lb_step_end){b->value, b->op}, *scope = b->scope;
    }
    return end;
}
