/* Ops by layer and call: see layer_ops.h. */
#include "pair/layer_ops.h"

#include "pair/op_kind.h"
#include "program/owner.h"

#include <stdlib.h>
#include <string.h>

/* ---- order ---- */

int lb_layer_compare(const lb_layer_op *a, const lb_layer_op *b)
{
    if (a->phase != b->phase) return a->phase < b->phase ? -1 : 1;
    int order = strcmp(a->path, b->path);
    return order || a->share == b->share ? order : a->share < b->share ? -1 : 1;
}

int lb_layer_call_compare(const lb_layer_op *a, const lb_layer_op *b)
{
    if (a->part != b->part) return a->part < b->part ? -1 : 1;
    return a->call == b->call ? 0 : a->call < b->call ? -1 : 1;
}

static int compare_ops(const void *x, const void *y)
{
    const lb_layer_op *a = x, *b = y;
    int order = lb_layer_compare(a, b);
    if (!order) order = lb_layer_call_compare(a, b);
    return order ? order : a->op < b->op ? -1 : a->op > b->op;
}

/* ---- runs ---- */

static uint32_t run_of(const lb_layer_op *list, uint32_t count,
                       int (*compare)(const lb_layer_op *, const lb_layer_op *))
{
    uint32_t n = 1;
    while (n < count && compare(&list[0], &list[n]) == 0) n++;
    return n;
}

lb_layer_run lb_layer_run_first(const lb_layer_op *rest, uint32_t n)
{
    return (lb_layer_run){rest, run_of(rest, n, lb_layer_compare)};
}

lb_layer_run *lb_layer_calls(lb_layer_run layer, uint32_t *n_calls)
{
    lb_layer_run *calls = malloc((layer.n + 1) * sizeof *calls);
    *n_calls = 0;
    for (uint32_t i = 0, n; calls && i < layer.n; i += n) {
        n = run_of(layer.first + i, layer.n - i, lb_layer_call_compare);
        calls[(*n_calls)++] = (lb_layer_run){layer.first + i, n};
    }
    return calls;
}

uint32_t lb_layer_forward_calls(const lb_layer_ops *ops, const lb_layer_op *of)
{
    uint32_t calls = 0;
    const lb_layer_op *last = NULL;
    for (uint32_t i = 0; i < ops->n; i++) {
        const lb_layer_op *op = &ops->list[i];
        if (op->phase != LB_PHASE_FORWARD || strcmp(op->path, of->path)) continue;
        calls += !last || lb_layer_call_compare(last, op) != 0;
        last = op;
    }
    return calls;
}

/* ---- parameters as layers ---- */

/* An optimizer, and what ranks do with gradients, go through the parameters in an order that says nothing: a parameter
 * is to such ops what a layer is to others. */
static bool is_parameters(const lb_program *program, const lb_op *op)
{
    const bool outside = op->phase == LB_PHASE_OPTIMIZER || op->phase == LB_PHASE_COMMUNICATION;
    return outside && lb_op_computes(program, op) && !*lb_op_layer(program, op);
}

static lb_status list_served(const lb_layer_names_map *rules, lb_layer_ops *out, lb_err *err)
{
    const lb_program *program = out->program;
    lb_slice_flow *flow = NULL;
    lb_owners *owners = NULL;
    bool any = false;
    for (uint32_t i = 0; i < program->n_ops && !any; i++) any = is_parameters(program, &program->ops[i]);
    if (!any) return LB_OK;
    lb_status status = lb_slice_flow_new(program, &flow, err);
    if (status == LB_OK) status = lb_owners_new(flow, NULL, &owners, err);
    for (uint32_t i = 0; i < program->n_ops && status == LB_OK; i++) {
        if (!is_parameters(program, &program->ops[i]) || lb_owner_count(owners, i, LB_OWNER_WHOLE) != 1) continue;
        out->served[i] = lb_layer_names_map_apply(rules, lb_owner_of(owners, i, LB_OWNER_WHOLE));
        if (!out->served[i]) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for names");
    }
    lb_owners_free(owners);
    lb_slice_flow_free(flow);
    return status;
}

/* ---- the list ---- */

static bool list_paths(const lb_layer_names_map *rules, lb_layer_ops *out)
{
    const lb_program *program = out->program;
    out->paths = calloc(program->n_scopes + 1, sizeof *out->paths);
    for (uint32_t i = 0; out->paths && i < program->n_scopes; i++) {
        out->paths[i] = lb_layer_names_map_apply(rules, lb_program_text(program, program->scopes[i].path));
        if (!out->paths[i]) out->paths[i] = strdup("");
    }
    return out->paths != NULL;
}

static bool list_ops(const lb_program_view *side, const lb_program_view *other, const uint32_t *calls,
                     lb_layer_ops *out)
{
    const lb_program *program = side->program;
    out->list = malloc((program->n_ops ? program->n_ops : 1) * sizeof *out->list);
    for (uint32_t i = 0; out->list && i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (!lb_op_computes(program, op)) continue;
        const uint32_t part = lb_program_view_part_of(side, i), share = lb_program_view_group(side, other, part);
        if (share == LB_NONE) continue;
        /* In an update the write of a parameter is another op than that of its moments, whatever both are called:
         * weight decay multiplies the one in place, a decay of averages the other. */
        const bool writes = out->served[i] && lb_op_writes_flagged(program, op, LB_VALUE_PARAMETER);
        const uint64_t role = (uint64_t)writes + 2 * (uint64_t)lb_op_gives_complex(program, op);
        out->list[out->n++] = (lb_layer_op){.path = out->served[i] ? out->served[i] : out->paths[op->scope],
                                            .kind = lb_op_kind(program, op, role),
                                            .name = lb_op_name_kind(program, op, role),
                                            .phase = op->phase,
                                            .share = share,
                                            .part = part,
                                            .call = calls ? calls[i] : op->call,
                                            .op = i};
    }
    if (out->list) qsort(out->list, out->n, sizeof *out->list, compare_ops);
    return out->list != NULL;
}

lb_status lb_layer_ops_list(const lb_program_view *const sides[2], const lb_layer_names_map *const rules[2],
                            const uint32_t *const calls[2], bool by_parameter, lb_layer_ops out[2], lb_err *err)
{
    bool room = true;
    for (int k = 0; k < 2; k++) {
        const lb_program *program = sides[k]->program;
        out[k] = (lb_layer_ops){.program = program, .served = calloc(program->n_ops + 1, sizeof *out[k].served)};
        room &= list_paths(rules[k], &out[k]) && out[k].served;
    }
    for (int k = 0; k < 2 && room && by_parameter; k++) LB_TRY(list_served(rules[k], &out[k], err));
    if (room)
        LB_TRY(
            lb_layer_names_meet(out[0].paths, out[0].program->n_scopes, out[1].paths, out[1].program->n_scopes, err));
    for (int k = 0; k < 2 && room; k++) room = list_ops(sides[k], sides[!k], calls[k], &out[k]);
    return room ? LB_OK
                : lb_fail(err, LB_ERR_NOMEM, "out of memory while aligning %u with %u ops", out[0].program->n_ops,
                          out[1].program->n_ops);
}

void lb_layer_ops_release(lb_layer_ops *ops)
{
    for (uint32_t i = 0; ops->paths && i < ops->program->n_scopes; i++) free(ops->paths[i]);
    for (uint32_t i = 0; ops->served && i < ops->program->n_ops; i++) free(ops->served[i]);
    free(ops->paths), free(ops->served), free(ops->list);
    *ops = (lb_layer_ops){0};
}
