/* Writing a program anew: see rewrite.h. */
#include "program/rewrite.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

lb_status lb_rewrite_init(lb_rewrite *rw, const lb_program *in, lb_err *err)
{
    *rw = (lb_rewrite){.in = in};
    rw->out = lb_program_copy(in);
    rw->position = malloc(((size_t)in->n_ops + 1) * sizeof *rw->position);
    if (rw->out && rw->position) {
        rw->out->n_ops = 0;
        return LB_OK;
    }
    lb_rewrite_release(rw);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for a changed copy of %u ops", in->n_ops);
}

void lb_rewrite_release(lb_rewrite *rw)
{
    lb_program_free(rw->out);
    free(rw->position);
    free(rw->origin);
    *rw = (lb_rewrite){0};
}

void lb_rewrite_begin(lb_rewrite *rw, uint32_t op)
{
    rw->position[op] = rw->out->n_ops;
}

void lb_rewrite_op(lb_rewrite *rw, const lb_op *op, uint32_t origin)
{
    uint32_t row = rw->out->n_ops;
    uint32_t *more = lb_array_fit(rw->origin, &rw->room, row + 1, sizeof *more);
    if (!more) {
        rw->failed = true;
        return;
    }
    rw->origin = more;
    if (lb_program_add_op(rw->out, op) == LB_NONE) {
        rw->failed = true;
        return;
    }
    rw->origin[row] = origin;
}

void lb_rewrite_keep(lb_rewrite *rw, uint32_t op)
{
    lb_rewrite_op(rw, &rw->in->ops[op], op);
}

void lb_rewrite_new(lb_rewrite *rw, const lb_new_op *n)
{
    lb_op op = {.name = lb_program_string(rw->out, n->name),
                .scope = n->like->scope,
                .call = n->like->call,
                .args = n->n_args,
                .results = n->n_results,
                .written = n->n_written,
                .node_name = n->like->node_name,
                .node = n->like->node,
                .phase = n->like->phase,
                .thread = n->like->thread};
    if (n->n_written) op.flags |= LB_OP_MUTABLE;
    op.first_arg = lb_program_add_args(rw->out, n->args, n->n_args);
    op.first_result = lb_program_add_refs(rw->out, n->results, n->n_results);
    op.first_written = lb_program_add_refs(rw->out, n->written, n->n_written);
    if (op.name == LB_NONE || op.first_arg == LB_NONE || op.first_result == LB_NONE || op.first_written == LB_NONE)
        rw->failed = true;
    else
        lb_rewrite_op(rw, &op, n->origin);
}

void lb_rewrite_fill(lb_rewrite *rw, const char *name, uint32_t origin, uint32_t result)
{
    lb_rewrite_new(
        rw,
        &(lb_new_op){.name = name, .like = &rw->in->ops[origin], .origin = origin, .results = &result, .n_results = 1});
}

void lb_rewrite_copy(lb_rewrite *rw, uint32_t origin, uint32_t from, uint32_t result)
{
    lb_arg arg = {.tag = LB_ARG_VALUE, .u.value = from};
    lb_rewrite_new(rw, &(lb_new_op){.name = "lb::copy",
                                    .like = &rw->in->ops[origin],
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
        lb_group *g = &out->groups[i];
        uint32_t last = position[g->first_op + g->ops];
        g->first_op = position[g->first_op];
        g->ops = last - g->first_op;
    }
    for (uint32_t i = 0; i < out->n_notices; i++) {
        lb_notice *n = &out->notices[i];
        if (n->op == LB_NONE) continue;
        n->op = position[n->op] < out->n_ops ? position[n->op] : LB_NONE;
    }
}

lb_status lb_rewrite_finish(lb_rewrite *rw, lb_program **out, uint32_t **origin, lb_err *err)
{
    if (rw->failed) {
        lb_rewrite_release(rw);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a changed copy of a program");
    }
    rw->position[rw->in->n_ops] = rw->out->n_ops;
    renumber(rw);
    lb_err why = LB_ERR_INIT;
    lb_status status = lb_program_validate(rw->out, &why);
    LB_CHECK(status == LB_OK || status == LB_ERR_NOMEM);
    if (!rw->origin) rw->origin = calloc(1, sizeof *rw->origin);
    if (status != LB_OK || !rw->origin) {
        lb_rewrite_release(rw);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a changed copy of a program");
    }
    *out = rw->out;
    *origin = rw->origin;
    rw->out = NULL, rw->origin = NULL;
    lb_rewrite_release(rw);
    return LB_OK;
}
