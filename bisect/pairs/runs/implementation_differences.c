/* Places at which two implementations differ: see implementation_differences.h. */
#include "runs/implementation_differences.h"
#include "runs/implementation_lines.h"

#include "diff/diff_arguments.h"
#include "diff/diff_place.h"
#include "exact/modules.h"
#include "implementations/region_op.h"
#include "joined/joined_ranks.h"
#include "smallest/smallest_set.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is said of a place ---- */

/* What the ops were called with, what a lone one is for, and the lines of code that called them. */
static void describe(lb_implementation_rows *rows, const lb_region *region, lb_diff_row *row)
{
    uint32_t ops[2];
    char text[160] = "";
    lb_implementation_lines_ops(rows->x, region, ops);
    for (int k = 0; k < 2; k++) {
        if (ops[k] == LB_NONE) continue;
        const lb_code_line line = lb_op_line(rows->p[k], &rows->p[k]->ops[ops[k]]);
        row->lines[k] = lb_report_keep_line(rows->report, &line);
    }
    if (region->reason == LB_REGION_ARGUMENTS || region->reason == LB_REGION_MASK || region->reason == LB_REGION_PART)
        lb_arguments_describe(rows->report, rows->p, region->op, row);
    if (region->reason != LB_REGION_MISSING && region->reason != LB_REGION_OPS) return;
    const uint32_t *all = rows->x->regions.ops;
    const lb_arguments_span span = {{all + region->first[0], all + region->first[1]}, {region->n[0], region->n[1]}};
    if (ops[0] != LB_NONE && ops[1] != LB_NONE) lb_arguments_options(rows->report, rows->p, ops, &span, row);
    if (region->reason != LB_REGION_MISSING) return;
    const int lone = region->op[0] == LB_NONE;
    uint32_t *partner = malloc((rows->p[lone]->n_ops + 1) * sizeof *partner);
    if (partner) memset(partner, 0xFF, (rows->p[lone]->n_ops + 1) * sizeof *partner);
    if (partner) lb_arguments_meaning(rows->p[lone], &region->op[lone], 1, partner, text, sizeof text);
    if (*text) row->means = lb_report_keep(rows->report, text);
    free(partner);
}

/* The innermost module that holds the first op of one side's part of a region and what gives its inputs: there the
 * other side's op would stand. */
static uint32_t scope_around(const lb_implementation_rows *rows, const lb_region *region, int side)
{
    const lb_program *program = rows->p[side];
    const lb_value_graph *g = &rows->x->sides[side].graph;
    const lb_op *first = region->n[side] ? &program->ops[rows->x->regions.ops[region->first[side]]] : NULL;
    if (!first || !lb_op_outcomes(first) || lb_op_outcome(program, first, 0) == LB_NONE) return LB_NONE;
    const uint32_t v = lb_op_outcome(program, first, 0);
    uint32_t scope = first->scope;
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++) {
        const uint32_t giver = g->giver[g->preds[k]];
        if (giver == LB_NONE || lb_op_is_source(program, &program->ops[giver])) continue;
        while (scope && !lb_modules_is_in(program, program->ops[giver].scope, scope))
            scope = lb_modules_parent(program, scope);
    }
    return scope;
}

/* The module of a side that runs no such op: the one beside the other side's, or what lies around the place in it. */
static uint32_t module_without(const lb_implementation_rows *rows, const lb_region *region, int side, uint32_t module)
{
    const uint32_t around = scope_around(rows, region, side);
    return around != LB_NONE && lb_modules_is_in(rows->p[side], around, module) ? around : module;
}

/* The layer of B beside the place: of the op that is named there, unless several layers share that one; else the module
 * beside A's, or where B's part of the region begins, if the line that is shown lies in it, too. */
static const char *layer_beside(const lb_implementation_rows *rows, const lb_region *region)
{
    const lb_program *program = rows->p[1];
    const uint32_t module = region->op[0] == LB_NONE ? LB_NONE : rows->beside[0][rows->p[0]->ops[region->op[0]].scope],
                   scope = region->op[1] == LB_NONE ? LB_NONE : program->ops[region->op[1]].scope;
    const bool known = module != LB_NONE && module;
    if (scope != LB_NONE && (!known || lb_modules_is_in(program, scope, module)))
        return lb_op_layer(program, &program->ops[region->op[1]]);
    if (known)
        return lb_program_text(
            program, program->scopes[scope == LB_NONE ? module_without(rows, region, 1, module) : module].path);
    if (!region->n[1]) return NULL;
    uint32_t first = rows->x->regions.ops[region->first[1]], shown[2];
    lb_implementation_lines_ops(rows->x, region, shown);
    if (shown[1] != LB_NONE && !lb_modules_is_in(program, program->ops[shown[1]].scope, program->ops[first].scope))
        first = shown[1];
    return lb_op_layer(program, &program->ops[first]);
}

/* ---- a tensor that is made of others than its siblings ---- */

/* How many steps back of the second side's ops a tensor stands that the region begins with; UINT32_MAX: farther than
 * any that an op reads through views, casts, products and sums. */
static uint32_t steps_from(const lb_implementation_rows *rows, const lb_region *region, uint32_t source)
{
    enum { MOST = 64 };
    const lb_value_graph *g = &rows->x->sides[1].graph;
    uint32_t list[MOST], depth[MOST], n = 0;
    for (uint32_t k = 0; k < region->n[1] && n < MOST / 2; k++) {
        const lb_op *op = &rows->p[1]->ops[rows->x->regions.ops[region->first[1] + k]];
        if (lb_op_outcomes(op)) list[n] = lb_op_outcome(rows->p[1], op, 0), depth[n++] = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (list[i] == source || lb_value_graph_source(g, list[i]) == source) return depth[i];
        for (uint32_t k = g->first_pred[list[i]]; k < g->first_pred[list[i] + 1] && n < MOST; k++)
            list[n] = g->preds[k], depth[n] = depth[i] + 1, n++;
    }
    return UINT32_MAX;
}

/* Of the places that a tensor leads to the nearest is its. */
static bool is_nearest(const lb_implementation_rows *rows, const lb_region *region, uint32_t source)
{
    const uint32_t own = steps_from(rows, region, source);
    for (uint32_t i = 0; i < rows->x->regions.n && own != UINT32_MAX; i++)
        if (steps_from(rows, &rows->x->regions.list[i], source) < own) return false;
    return own != UINT32_MAX;
}

/* A tensor that is made of others than its siblings are is why the place differs. */
static void name_odd_source(lb_implementation_rows *rows, const lb_region *region, lb_diff_row *row)
{
    const lb_step_sources *a = &rows->x->sources[0], *b = &rows->x->sources[1];
    for (uint32_t i = 0; i < rows->n_odd; i++) {
        char text[700];
        if (row->phase != LB_PHASE_FORWARD || !is_nearest(rows, region, b->list[rows->odd[i].row].value)) continue;
        char *names = lb_implementation_rows_tensors(rows->x, &rows->x->contents.list[rows->odd[i].row]);
        lb_odd_source_text(&rows->odd[i], a, b, &rows->x->contents, text);
        if (names) row->tensor_of = lb_report_keep(rows->report, names);
        rows->report->out_of_memory |= !names;
        free(names);
        row->tensor = lb_report_keep(rows->report, b->list[rows->odd[i].row].name);
        row->why = lb_report_keep(rows->report, text);
        return;
    }
}

/* ---- a difference ---- */

static void add_difference(lb_implementation_rows *rows, const lb_region *region)
{
    lb_diff_difference difference = {.effect = region->effect,
                                     .times = region->times,
                                     .steps = 1,
                                     .spared = rows->spared && rows->spared[region - rows->x->regions.list],
                                     .cancels = rows->spared &&
                                                rows->spared[region - rows->x->regions.list] == LB_SPARED_CANCELS,
                                     .ranks = {lb_implementation_rows_ranks(rows, 0, region->ranks[0]),
                                               lb_implementation_rows_ranks(rows, 1, region->ranks[1])}};
    if (region->op[0] == LB_NONE && region->op[1] == LB_NONE) return;
    difference.row = lb_implementation_rows_at(rows, region->op[0], region->op[1]);
    if (region->op[0] == LB_NONE) { /* the layer is the first side's, where it has one */
        const uint32_t module = rows->beside[1][rows->p[1]->ops[region->op[1]].scope];
        if (module && module != LB_NONE)
            difference.row.layer = lb_report_keep(
                rows->report,
                lb_program_text(rows->p[0], rows->p[0]->scopes[module_without(rows, region, 0, module)].path));
    }
    difference.row.verdict = difference.row.local = LB_VERDICT_DIVERGED;
    difference.row.lone = region->n[0] + region->n[1];
    const lb_counterpart *c = &rows->x->counterparts.list[region->counterpart];
    if (c->name && difference.row.phase == LB_PHASE_OPTIMIZER)
        difference.row.parameter = lb_report_keep(rows->report, c->name);
    const char *layer = layer_beside(rows, region);
    if (layer) difference.layer_b = lb_report_keep(rows->report, layer);
    if (region->op[1] != LB_NONE) {
        difference.op_b =
            lb_report_keep(rows->report, lb_joined_ranks_op_name(rows->p[1], &rows->p[1]->ops[region->op[1]]));
    }
    describe(rows, region, &difference.row);
    lb_implementation_lines_list(rows->x, region, difference.row.lines, difference.lines);
    char text[700];
    lb_region_op_text(rows->x, region, text, sizeof text);
    difference.row.why = lb_report_keep(rows->report, text);
    name_odd_source(rows, region, &difference.row);
    const int side = region->op[0] == LB_NONE;
    lb_place_neighbours(rows->report, rows->p[side], region->op[side], &difference.row);
    lb_report_row(rows->report, &difference.row);
    LB_DIFF_APPEND(rows->report, differences, n_differences, difference);
}

void lb_implementation_differences_add(lb_implementation_rows *rows)
{
    for (uint32_t i = 0; i < rows->x->regions.n; i++)
        if (!rows->x->regions.list[i].vague) add_difference(rows, &rows->x->regions.list[i]);
}
