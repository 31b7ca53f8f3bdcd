/* Losses, parameters and gradients of a step: see trained.h. */
#include "moved/trained.h"

#include "moved/masters.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

/* ---- losses ---- */

/* Autograd begins at a scalar with ones that look like it, while none of its nodes runs. */
static bool is_seed(const lb_program *program, uint32_t op, uint32_t *loss)
{
    const lb_op *o = &program->ops[op];
    if (o->phase != LB_PHASE_BACKWARD || o->node_name != LB_NONE || !o->args || !o->results) return false;
    if (strcmp(lb_op_name(program, o), "aten::ones_like") != 0 || lb_op_args(program, o)[0].tag != LB_ARG_VALUE)
        return false;
    *loss = lb_op_args(program, o)[0].u.value;
    return lb_op_results(program, o)[0] != LB_NONE && lb_layout_numel(&program->values[*loss].layout) == 1 &&
           lb_dtype_is_float(program->values[*loss].dtype);
}

static void list_roots(lb_moved_run *run)
{
    const lb_program *program = run->program;
    uint32_t loss;
    for (uint32_t i = 0; i < program->n_ops && run->n_roots < LB_MOVED_RUN_MAX_ROOTS; i++)
        if (is_seed(program, i, &loss))
            run->roots[run->n_roots++] =
                (lb_root){.value = loss, .seed = lb_op_results(program, &program->ops[i])[0], .op = i};
}

/* ---- what follows from what ---- */

uint64_t lb_trained_from(const lb_moved_run *run, const lb_trained *trained, uint32_t value)
{
    const lb_value_graph *graph = &run->graph;
    uint64_t from = trained->from[value];
    for (uint32_t k = graph->first_pred[value]; !graph->given[value] && k < graph->first_pred[value + 1]; k++)
        from |= trained->from[graph->preds[k]];
    return from;
}

bool lb_trained_moves(const lb_moved_run *run, const lb_trained *trained, uint32_t value)
{
    const lb_value_graph *graph = &run->graph;
    bool moves = trained->moved[value];
    for (uint32_t k = graph->first_pred[value]; !graph->given[value] && k < graph->first_pred[value + 1]; k++)
        moves |= trained->moved[graph->preds[k]];
    return moves;
}

static bool is_early(const lb_moved_run *run, const lb_trained *trained, uint32_t v)
{
    const lb_value_graph *graph = &run->graph;
    bool early = trained->early[v];
    for (uint32_t k = graph->first_pred[v]; !graph->given[v] && k < graph->first_pred[v + 1]; k++)
        early |= trained->early[graph->preds[k]];
    return early;
}

/* The oldest node of autograd that the step's forward may have made: an op of forward has the number that is given
 * next. Of the main thread alone, since each thread counts its own. */
static int64_t oldest_node(const lb_program *program)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].phase == LB_PHASE_FORWARD && program->ops[i].node > 0 && program->ops[i].thread == 0)
            return program->ops[i].node - 1;
    return 0;
}

static void follow(const lb_moved_run *run, lb_trained *trained)
{
    const lb_program *program = run->program;
    const lb_value_graph *graph = &run->graph;
    const int64_t oldest = oldest_node(program);
    for (uint32_t r = 0; r < run->n_roots; r++) trained->from[run->roots[r].seed] |= (uint64_t)1 << r;
    for (uint32_t i = 0; i < trained->n; i++)
        trained->moved[trained->rows[i].source] = trained->moved[trained->rows[i].held] = 1;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        for (uint32_t k = 0; k < lb_op_outcomes(op); k++) {
            const uint32_t value = lb_op_outcome(program, op, k);
            if (value == LB_NONE || !graph->given[value] || graph->giver[value] != i) continue;
            trained->early[value] |=
                op->phase == LB_PHASE_BACKWARD && op->thread == 0 && op->node >= 0 && op->node < oldest;
            for (uint32_t e = graph->first_pred[value]; e < graph->first_pred[value + 1]; e++) {
                trained->from[value] |= lb_trained_from(run, trained, graph->preds[e]);
                trained->moved[value] |= lb_trained_moves(run, trained, graph->preds[e]);
                trained->early[value] |= is_early(run, trained, graph->preds[e]);
            }
        }
    }
}

/* ---- parameters ---- */

/* The last value in a storage, of that many elements, that an op before `end` gave; of backward alone where `phase`
 * says so. */
static uint32_t last_in(const lb_moved_run *run, int64_t storage, const lb_layout *like, uint32_t end, bool backward)
{
    const lb_program *program = run->program;
    uint32_t found = LB_NONE;
    for (uint32_t v = 0; v < program->n_values; v++) {
        const lb_value *value = &program->values[v];
        const uint32_t giver = run->graph.giver[v];
        if (value->storage != storage || giver == LB_NONE || giver >= end || !lb_dtype_is_float(value->dtype)) continue;
        if (backward && program->ops[giver].phase != LB_PHASE_BACKWARD) continue;
        if (!lb_masters_has_form(&value->layout, like)) continue;
        if (found == LB_NONE || value->version > program->values[found].version) found = v;
    }
    return found;
}

/* The same where gradients of several parameters are views of one buffer: the recorder says whose each is. `before`
 * clipping, or as the optimizer found it. */
static uint32_t last_named(const lb_moved_run *run, const lb_group_param *param, const lb_layout *like, uint32_t end,
                           bool before)
{
    const lb_program *program = run->program;
    uint32_t found = LB_NONE;
    for (uint32_t v = 0; v < program->n_values; v++) {
        const lb_value *value = &program->values[v];
        const uint32_t giver = run->graph.giver[v];
        if (value->storage != param->gradient || !(value->flags & LB_VALUE_GRADIENT) || value->name != param->name)
            continue;
        if (giver == LB_NONE || giver >= end || !lb_masters_has_form(&value->layout, like)) continue;
        if (before && program->ops[giver].phase == LB_PHASE_OPTIMIZER) continue;
        if (found == LB_NONE || value->version > program->values[found].version) found = v;
    }
    return found;
}

static bool shares_buffer(const lb_program *program, const lb_group_param *param)
{
    for (uint32_t i = 0; i < program->n_group_params; i++)
        if (program->group_params[i].gradient == param->gradient && program->group_params[i].storage != param->storage)
            return true;
    return false;
}

/* A gradient that is not zero when the step begins: of an accumulation that began before, or of a step whose gradients
 * stayed. */
static uint32_t left_in(const lb_moved_run *run, int64_t storage, const lb_layout *like)
{
    const uint32_t value = lb_masters_source(run, storage);
    if (value == LB_NONE || lb_layout_numel(&run->program->values[value].layout) != lb_layout_numel(like))
        return LB_NONE;
    lb_tensor tensor;
    double *x = lb_moved_run_recorded(run, value, &tensor);
    bool zero = x != NULL;
    for (int64_t i = 0; zero && i < lb_layout_numel(&tensor.layout); i++) zero = x[i] == 0;
    free(x);
    return zero ? LB_NONE : value;
}

/* A reader sees the parameter itself or a window on it. One behind the op that gave the gradient is none: the gradient
 * is of a forward that ran in an earlier step, and what reads the parameter here (a checkpoint, the next forward) leads
 * to no loss of it. Nor is one behind the last loss. */
static uint32_t first_reader(const lb_moved_run *run, int64_t storage, uint32_t gradient)
{
    const lb_program *program = run->program;
    const uint32_t giver = gradient == LB_NONE ? LB_NONE : run->graph.giver[gradient];
    const uint32_t end = run->n_roots ? run->roots[run->n_roots - 1].op : program->n_ops;
    for (uint32_t i = 0; i < program->n_ops && i < giver && i < end; i++)
        if (program->ops[i].phase == LB_PHASE_FORWARD && !lb_op_is_source(program, &program->ops[i]) &&
            lb_op_reads(program, &program->ops[i], storage) != LB_NONE)
            return i;
    return LB_NONE;
}

/* ---- rows ---- */

static int64_t padding_of(const lb_moved_run *run, int64_t storage)
{
    const lb_program *program = run->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (op->phase != LB_PHASE_FORWARD || op->args < 3 || strcmp(lb_op_name(program, op), "aten::embedding") != 0)
            continue;
        if (lb_op_reads(program, op, storage) != LB_NONE && lb_op_args(program, op)[2].tag == LB_ARG_INT)
            return lb_op_args(program, op)[2].u.i;
    }
    return -1;
}

/* Whose gradient it is by name, and what forward reads: of a master its copy. */
static void find_copy(const lb_moved_run *run, const lb_group *group, const lb_group_param *param, lb_trained_row *row)
{
    const lb_program *program = run->program;
    row->reader = first_reader(run, param->storage, row->gradient);
    if (row->reader != LB_NONE && lb_masters_leads(run, row->reader)) return;
    row->copy = lb_masters_copy(run, group, param, row->held, row->read);
    if (row->copy == LB_NONE) return;
    uint32_t of;
    const uint32_t own = lb_masters_gradient(run, row->held, row->read, &of);
    if (own != LB_NONE && of == row->copy) { /* what lies between the two was copied, unscaled and clipped */
        row->gradient = own;
        row->start = left_in(run, program->values[own].storage, &program->values[row->held].layout);
    }
    row->source = row->copy, row->reader = first_reader(run, program->values[row->copy].storage, row->gradient);
    if (strcmp(row->name, "?") == 0 && program->values[row->copy].name != LB_NONE)
        row->name = lb_program_text(program, program->values[row->copy].name);
}

static bool add_row(const lb_moved_run *run, lb_trained *trained, const lb_group *group, const lb_group_param *param)
{
    const lb_program *program = run->program;
    const uint32_t held = lb_masters_held(run, group, param->storage);
    const bool made = held != LB_NONE && !lb_op_is_source(program, &program->ops[run->graph.giver[held]]);
    const uint32_t end = group->ops ? group->first_op : program->n_ops;
    lb_trained_row row = {.name = lb_program_text(program, param->name),
                          .held = held,
                          .source = held,
                          .copy = LB_NONE,
                          .gradient = LB_NONE,
                          .read = LB_NONE,
                          .start = LB_NONE,
                          .has_gradient = param->gradient >= 0};
    if (held != LB_NONE && row.has_gradient) {
        const lb_layout *like = &program->values[held].layout;
        const bool shares = shares_buffer(program, param);
        row.gradient =
            shares ? last_named(run, param, like, end, true) : last_in(run, param->gradient, like, end, true);
        row.read = shares ? last_named(run, param, like, end, false) : last_in(run, param->gradient, like, end, false);
        row.start = left_in(run, param->gradient, like);
    }
    if (row.gradient == LB_NONE) row.gradient = row.read;
    if (held != LB_NONE) find_copy(run, group, param, &row);
    if (held == LB_NONE || (made && row.copy == LB_NONE)) {
        trained->unseen += row.has_gradient; /* without a gradient it takes no part */
        return true;
    }
    row.padding = padding_of(run, program->values[row.source].storage);
    lb_trained_row *rows = lb_array_grow(trained->rows, trained->n, sizeof *rows);
    if (!rows) return false;
    trained->rows = rows, trained->rows[trained->n++] = row;
    return true;
}

static bool is_listed(const lb_trained *trained, uint32_t source)
{
    for (uint32_t i = 0; i < trained->n; i++)
        if (trained->rows[i].held == source) return true;
    return false;
}

static bool list_parameters(const lb_moved_run *run, lb_trained *trained)
{
    const lb_program *program = run->program;
    for (uint32_t i = 0; i < program->n_groups; i++)
        for (uint32_t k = 0; k < program->groups[i].params; k++) {
            const lb_group_param *param = &program->group_params[program->groups[i].first_param + k];
            if (is_listed(trained, lb_masters_held(run, &program->groups[i], param->storage))) continue;
            if (!add_row(run, trained, &program->groups[i], param)) return false;
        }
    return true;
}

/* ---- all of it ---- */

/* Losses that a value leads to, by all that follows from it. */
static void note_order(const lb_moved_run *run, lb_trained *trained)
{
    const lb_program *program = run->program;
    uint32_t last = 0;
    for (uint32_t r = 0; r < run->n_roots; r++) {
        trained->nested |= lb_trained_from(run, trained, run->roots[r].value) != 0;
        last = run->roots[r].op;
    }
    for (uint32_t i = 0; i < last; i++)
        trained->updated |= program->ops[i].phase == LB_PHASE_OPTIMIZER &&
                            lb_op_writes_flagged(program, &program->ops[i], LB_VALUE_PARAMETER);
}

lb_status lb_trained_list(lb_moved_run *run, lb_trained *trained, lb_err *err)
{
    *trained = (lb_trained){0};
    const size_t n = (size_t)run->program->n_values + 1;
    list_roots(run);
    trained->from = calloc(n, sizeof *trained->from), trained->moved = calloc(n, 1), trained->early = calloc(n, 1);
    if (!trained->from || !trained->moved || !trained->early || !list_parameters(run, trained))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %zu values", n);
    follow(run, trained);
    for (uint32_t i = 0; i < trained->n; i++) {
        lb_trained_row *row = &trained->rows[i];
        if (row->gradient == LB_NONE) continue;
        if (is_early(run, trained, row->gradient))
            row->reader = LB_NONE; /* what reads it is of another forward */
        else
            row->roots = lb_trained_from(run, trained, row->gradient);
    }
    note_order(run, trained);
    return LB_OK;
}

void lb_trained_release(lb_trained *trained)
{
    free(trained->rows), free(trained->from), free(trained->moved), free(trained->early);
    *trained = (lb_trained){0};
}
