/* Residual adds through which what is kept could go on alone: the branch is left out, the stream stays. */
#include "reproduce/dependency_parts.h"

#include "base/array.h"
#include <string.h>

static bool same_window(const lb_program *program, const lb_arg *arg, uint32_t result)
{
    return arg->tag == LB_ARG_VALUE && program->values[arg->u.value].dtype == program->values[result].dtype &&
           lb_layout_same_shape(&program->values[arg->u.value].layout, &program->values[result].layout);
}

/* The argument that comes from furthest back among those that the culprit reaches: the stream.
 * In x + f(x) the stream x was there before the branch computed anything. An argument that the
 * culprit does not reach may not go on alone: the fault would be cut off together with the branch. */
static uint8_t stream_of(const lb_dependency_slice_part *part, uint32_t i)
{
    const lb_program *program = part->program;
    const lb_op *op = &program->ops[i];
    uint8_t pass = 0;
    uint32_t furthest = LB_NONE;
    if (strcmp(lb_op_name(program, op), "aten::add.Tensor") || op->args < 2 || op->results != 1 || op->written)
        return 0;
    for (uint8_t a = 0; a < 2; a++) {
        const lb_arg *arg = &lb_op_args(program, op)[a];
        uint32_t defs[16];
        /* A broadcast or a cast could not be replaced by one of its arguments without changing what
         * readers get. */
        if (!same_window(program, arg, lb_op_results(program, op)[0])) return 0;
        uint32_t n = lb_slice_flow_defs_of(part->flow, i, arg->u.value, defs, 16);
        if (n != 1 || !part->reached[defs[0]] || defs[0] >= furthest) continue;
        furthest = defs[0], pass = 1 + a;
    }
    return pass;
}

lb_status lb_dependency_slice_adds(const lb_dependency_slice *slice, const lb_culprit *culprit,
                                   lb_dependency_slice_add **adds, uint32_t *n, lb_err *err)
{
    *adds = NULL, *n = 0;
    for (uint32_t k = 0; k < slice->n; k++) {
        const lb_dependency_slice_part *part = &slice->parts[k];
        char block[160];
        LB_TRY(lb_dependency_slice_block_around(part, culprit->layer, block, sizeof block, err));
        for (uint32_t i = 0; i < part->program->n_ops; i++) {
            if (part->fates[i] != LB_PROGRAM_SUBSET_KEEP || part->seeded[i] ||
                lb_dependency_layer_is_within(lb_op_layer(part->program, &part->program->ops[i]), block))
                continue;
            uint8_t pass = stream_of(part, i);
            if (!pass) continue;
            /* Adds in the culprit's own block are left alone: its branch is where the fault is, and
             * the cure may be to skip that block. */
            lb_dependency_slice_add *more = lb_array_grow(*adds, *n, sizeof *more);
            if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
            *adds = more;
            (*adds)[(*n)++] = (lb_dependency_slice_add){k, i, pass};
        }
    }
    return LB_OK;
}
