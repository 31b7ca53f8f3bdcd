/* Muon with its iteration in f32: what lives only inside the chosen slices, and is narrower, becomes f32. See
 * muon.h. */
#include "program/muon.h"

#include "program/rewrite.h"

#include <stdlib.h>
#include <string.h>

static bool narrow(lb_dtype dtype)
{
    return lb_dtype_is_float(dtype) && lb_dtype_bits(dtype) < 32;
}

/* Storages that chosen slices alone define, and that are no parameter's, gradient's or state's (those have a
 * source). */
static uint8_t *internal_storages(const lb_program *program, const lb_slice_flow *flow, const uint8_t *marks,
                                  lb_err *err)
{
    uint8_t *inside = calloc(flow->n_storages + 1, 1), *outside = calloc(flow->n_storages + 1, 1);
    if (!inside || !outside) {
        free(inside);
        free(outside);
        lb_fail(err, LB_ERR_NOMEM, "out of memory");
        return NULL;
    }
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (!lb_slice_op_defines(program, op)) continue;
        for (uint32_t r = 0; r < op->results + op->written; r++) {
            uint32_t value = lb_op_outcome(program, op, r);
            if (value != LB_NONE) (marks[i] & 1 ? inside : outside)[flow->storage_of[value]] = 1;
        }
    }
    for (uint32_t s = 0; s < flow->n_storages; s++) inside[s] &= !outside[s];
    for (uint32_t v = 0; v < program->n_values;
         v++) /* a view that reads before any write: contents from an earlier step */
        if (program->values[v].flags & (LB_VALUE_PARAMETER | LB_VALUE_GRADIENT | LB_VALUE_STATE))
            inside[flow->storage_of[v]] = 0;
    free(outside);
    return inside;
}

static void write_wide_op(lb_rewrite *rw, uint32_t i)
{
    lb_op op = rw->in->ops[i];
    lb_arg *args = malloc((op.args + 1) * sizeof *args);
    if (!args) {
        rw->failed = true;
        return;
    }
    memcpy(args, lb_op_args(rw->in, &op), op.args * sizeof *args);
    bool changed = false;
    for (uint32_t a = 0; a < op.args; a++)
        if (args[a].tag == LB_ARG_DTYPE && narrow((lb_dtype)args[a].u.i)) args[a].u.i = LB_F32, changed = true;
    if (changed) op.first_arg = lb_program_add_args(rw->out, args, op.args);
    free(args);
    lb_rewrite_op(rw, &op, i);
}

lb_status lb_muon_pass_wide(const lb_program *in, const lb_slice_flow *flow, const lb_muon *muon, const bool *chosen,
                            lb_passed *out, lb_err *err)
{
    lb_rewrite rw = {0};
    uint8_t *marks = lb_muon_mark(in, muon, chosen, err), *inside = NULL;
    lb_status status = marks ? LB_OK : LB_ERR_NOMEM;
    if (status == LB_OK) status = (inside = internal_storages(in, flow, marks, err)) ? LB_OK : LB_ERR_NOMEM;
    if (status == LB_OK) status = lb_rewrite_init(&rw, in, err);
    if (status == LB_OK) {
        for (uint32_t v = 0; v < in->n_values; v++) {
            lb_value *value = &rw.out->values[v];
            if (!inside[flow->storage_of[v]] || !narrow(value->dtype)) continue;
            value->dtype = LB_F32;
            value->flags &= ~(uint32_t)LB_VALUE_KEPT;
            value->statistics = LB_NONE;
            value->logical = value->blob = (lb_digest){0, 0};
        }
        for (uint32_t i = 0; i < in->n_ops; i++) {
            const lb_op *op = &in->ops[i];
            uint32_t first = op->results ? lb_op_results(in, op)[0] : LB_NONE;
            lb_rewrite_begin(&rw, i);
            if (marks[i] & 1 && first != LB_NONE && inside[flow->storage_of[first]])
                write_wide_op(&rw, i);
            else
                lb_rewrite_keep(&rw, i);
        }
        status = lb_rewrite_finish(&rw, &out->program, &out->origin, err);
    }
    free(marks);
    free(inside);
    return status;
}
