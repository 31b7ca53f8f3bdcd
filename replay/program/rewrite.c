/* Writing a program anew: see rewrite.h. */
#include "program/rewrite.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

lb_status lb_rewrite_init(lb_rewrite *rewrite, const lb_program *in, lb_err *err)
{
    *rewrite = (lb_rewrite){.in = in};
    rewrite->out = lb_program_copy(in);
    rewrite->position = malloc(((size_t)in->n_ops + 1) * sizeof *rewrite->position);
    if (rewrite->out && rewrite->position) {
        rewrite->out->n_ops = 0;
        return LB_OK;
    }
    lb_rewrite_release(rewrite);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for a changed copy of %u ops", in->n_ops);
}

void lb_rewrite_release(lb_rewrite *rewrite)
{
    lb_program_free(rewrite->out);
    free(rewrite->position);
    free(rewrite->origin);
    *rewrite = (lb_rewrite){0};
}

void lb_rewrite_begin(lb_rewrite *rewrite, uint32_t op)
{
    rewrite->position[op] = rewrite->out->n_ops;
}

void lb_rewrite_op(lb_rewrite *rewrite, const lb_op *op, uint32_t origin)
{
    uint32_t row = rewrite->out->n_ops;
    uint32_t *more = lb_array_fit(rewrite->origin, &rewrite->room, row + 1, sizeof *more);
    if (!more) {
        rewrite->failed = true;
        return;
    }
    rewrite->origin = more;
    if (lb_program_add_op(rewrite->out, op) == LB_NONE) {
        rewrite->failed = true;
        return;
    }
    rewrite->origin[row] = origin;
}

void lb_rewrite_keep(lb_rewrite *rewrite, uint32_t op)
{
    lb_rewrite_op(rewrite, &rewrite->in->ops[op], op);
}

void lb_rewrite_new(lb_rewrite *rewrite, const lb_new_op *op)
{
    lb_op record = {.name = lb_program_string(rewrite->out, op->name),
                    .scope = op->like->scope,
                    .call = op->like->call,
                    .args = op->n_args,
                    .results = op->n_results,
                    .written = op->n_written,
                    .node_name = op->like->node_name,
                    .node = op->like->node,
                    .phase = op->like->phase,
                    .thread = op->like->thread};
    if (op->n_written) record.flags |= LB_OP_MUTABLE;
    record.first_arg = lb_program_add_args(rewrite->out, op->args, op->n_args);
    record.first_result = lb_program_add_refs(rewrite->out, op->results, op->n_results);
    record.first_written = lb_program_add_refs(rewrite->out, op->written, op->n_written);
    if (record.name == LB_NONE || record.first_arg == LB_NONE || record.first_result == LB_NONE ||
        record.first_written == LB_NONE)
        rewrite->failed = true;
    else
        lb_rewrite_op(rewrite, &record, op->origin);
}

void lb_rewrite_fill(lb_rewrite *rewrite, const char *name, uint32_t origin, uint32_t result)
{
    lb_rewrite_new(
        rewrite,
        &(lb_new_op){
            .name = name, .like = &rewrite->in->ops[origin], .origin = origin, .results = &result, .n_results = 1});
}

void lb_rewrite_copy(lb_rewrite *rewrite, uint32_t origin, uint32_t from, uint32_t result)
{
    lb_arg arg = {.tag = LB_ARG_VALUE, .u.value = from};
    lb_rewrite_new(rewrite, &(lb_new_op){.name = "lb::copy",
                                         .like = &rewrite->in->ops[origin],
                                         .origin = origin,
                                         .args = &arg,
                                         .n_args = 1,
                                         .results = &result,
                                         .n_results = 1});
}

/* A table may name an op that went: it then names the place where the op stood. A collective never goes. */
static void renumber(lb_rewrite *rw)
{
    lb_program *out = rw->out;
    const uint32_t *position = rw->position;
    for (uint32_t i = 0; i < out->n_collectives; i++)
        for (uint32_t k = position[out->collectives[i].op]; k < out->n_ops; k++)
            if (rw->origin[k] == rw->in->collectives[i].op) {
                out->collectives[i].op = k;
                break;
            }
    for (uint32_t i = 0; i < out->n_boundaries; i++) out->boundaries[i].op = position[out->boundaries[i].op];
    for (uint32_t i = 0; i < out->n_scalars; i++) out->scalars[i].op = position[out->scalars[i].op];
    for (uint32_t i = 0; i < out->n_groups; i++) {
        lb_group *group = &out->groups[i];
        uint32_t last = position[group->first_op + group->ops];
        group->first_op = position[group->first_op];
        group->ops = last - group->first_op;
    }
    for (uint32_t i = 0; i < out->n_notices; i++) {
        lb_notice *notice = &out->notices[i];
        if (notice->op == LB_NONE) continue;
        notice->op = position[notice->op] < out->n_ops ? position[notice->op] : LB_NONE;
    }
}

lb_status lb_rewrite_finish(lb_rewrite *rewrite, lb_program **out, uint32_t **origin, lb_err *err)
{
    if (rewrite->failed) {
        lb_rewrite_release(rewrite);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a changed copy of a program");
    }
    rewrite->position[rewrite->in->n_ops] = rewrite->out->n_ops;
    renumber(rewrite);
    lb_err why = LB_ERR_INIT;
    lb_status status = lb_program_validate(rewrite->out, &why);
    LB_CHECK(status == LB_OK || status == LB_ERR_NOMEM);
    if (!rewrite->origin) rewrite->origin = calloc(1, sizeof *rewrite->origin);
    if (status != LB_OK || !rewrite->origin) {
        lb_rewrite_release(rewrite);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a changed copy of a program");
    }
    *out = rewrite->out;
    *origin = rewrite->origin;
    rewrite->out = NULL, rewrite->origin = NULL;
    lb_rewrite_release(rewrite);
    return LB_OK;
}
