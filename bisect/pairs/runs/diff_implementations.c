/* The report on two implementations: see diff_implementations.h. */
#include "sources/odd_sources.h"
#include "runs/diff_implementations.h"
#include "runs/difference_steps.h"

#include "runs/implementation_lines.h"

#include "diff/diff_arguments.h"
#include "diff/diff_place.h"
#include "implementations/implementations.h"
#include "smallest/smallest_set.h"
#include "joined/joined_calls.h"
#include "joined/joined_ranks.h"
#include "joined/joined_steps.h"
#include "joined/spelled_out.h"
#include "exact/kept_table.h"
#include "exact/modules.h"
#include "implementations/region_op.h"
#include "pair/side_replay.h"
#include "sources/strangers.h"
#include "program/input_name.h"

#include "base/hash.h"
#include <lastbit/text_stream.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows ---- */

typedef struct writer {
    const lb_implementations *x;
    const uint8_t *spared; /* per region; NULL: not asked */
    lb_diff_report *report;
    const lb_program *p[2];
    uint8_t *state[2];   /* per op: ROW_… */
    lb_hash by_digest;   /* the second side's values */
    uint32_t *beside[2]; /* per scope of either side: the other's (modules.h); NULL where no place differs */
    lb_odd_source *odd;  /* tensors of B that are made of others than their siblings are */
    uint32_t n_odd;
} writer;

enum { ROW_PLAIN, ROW_IN_REGION, ROW_NAMED };

static uint32_t first_value(const lb_program *program, uint32_t op)
{
    for (uint32_t i = 0; i < lb_op_outcomes(&program->ops[op]); i++)
        if (lb_op_outcome(program, &program->ops[op], i) != LB_NONE)
            return lb_op_outcome(program, &program->ops[op], i);
    return LB_NONE;
}

/* What was recorded of the op: the program of the lowest rank of a side that runs it, or of its step. */
static const lb_program *recorded_of(const writer *writer, int side, uint32_t op)
{
    const lb_program_view *view = writer->x->sides[side].view;
    return op == LB_NONE ? writer->p[side] : view->parts[lb_program_view_part_of(view, op)].program;
}

/* Ranks of the parts that have a bit; steps of one rank are parts, too. */
static uint64_t ranks_of(const writer *writer, int side, uint64_t parts)
{
    const lb_program_view *view = writer->x->sides[side].view;
    uint64_t ranks = 0;
    for (uint32_t k = 0; k < view->n_parts; k++)
        if (parts & lb_program_view_rank_bit(k))
            ranks |= lb_program_view_rank_bit((uint32_t)view->parts[k].program->rank);
    return ranks;
}

/* The op as its rank, or its step, recorded it: what `show` is asked for. */
static uint32_t recorded_op(const writer *writer, int side, uint32_t op)
{
    const lb_program_view *view = writer->x->sides[side].view;
    if (op == LB_NONE || !view->op_of) return op;
    const lb_program_view_part *part = &view->parts[lb_program_view_part_of(view, op)];
    uint32_t last = op;
    for (uint32_t i = 0; i < part->program->n_ops; i++) {
        if (view->op_of[part->first_op + i] == op) return i;
        if (view->op_of[part->first_op + i] <= op) last = i; /* one of those that a fused op was spelled out as */
    }
    return last;
}

static lb_diff_row row_at(const writer *writer, uint32_t a, uint32_t b)
{
    const lb_program *program = a != LB_NONE ? writer->p[0] : writer->p[1];
    const lb_op *op = &program->ops[a != LB_NONE ? a : b];
    const lb_program *here = a == LB_NONE && writer->x->sides[0].view->n_parts == 1
                                 ? writer->p[0]
                                 : recorded_of(writer, a == LB_NONE, a == LB_NONE ? b : a);
    lb_diff_row row = {.step = here->step,
                       .rank = here->rank,
                       .phase = (lb_phase)op->phase,
                       .layer = lb_report_keep(writer->report, lb_op_layer(program, op)),
                       .op = lb_report_keep(writer->report, lb_joined_ranks_op_name(program, op)),
                       .index = recorded_op(writer, 0, a),
                       .other = recorded_op(writer, 1, b),
                       .other_rank = recorded_of(writer, 1, b)->rank,
                       .other_step = recorded_of(writer, 1, b)->step,
                       .order = a != LB_NONE ? a : b,
                       .verdict = LB_VERDICT_IDENTICAL,
                       .local = LB_VERDICT_IDENTICAL,
                       .inherited = LB_VERDICT_IDENTICAL,
                       .why = "",
                       .bound_ratio = NAN};
    return row;
}

static bool list_digests(writer *writer)
{
    for (uint32_t v = 0; v < writer->p[1]->n_values; v++)
        if (!lb_digest_is_none(writer->p[1]->values[v].logical) && writer->x->sides[1].quantities[v].tells &&
            !lb_hash_add(&writer->by_digest, writer->p[1]->values[v].logical.lo, v))
            return false;
    return true;
}

/* The value of B that is the same quantity in the same bits, LB_NONE. Several of B's values may be that quantity (half
 * a rotary table, the whole of it), and the one that A's has met need not be the one that was made as A's was. */
static uint32_t same_bits(const writer *writer, uint32_t va, uint32_t met)
{
    const lb_value *x = &writer->p[0]->values[va], *y = &writer->p[1]->values[met];
    if (lb_digest_is_none(x->logical)) return LB_NONE;
    if (x->dtype == y->dtype && lb_layout_same_shape(&x->layout, &y->layout) &&
        !lb_program_view_values_differ(writer->x->sides[0].view, va, writer->x->sides[1].view, met))
        return met;
    LB_HASH_EACH(vb, &writer->by_digest, x->logical.lo)
    {
        y = &writer->p[1]->values[vb];
        if (x->dtype == y->dtype && lb_digest_equal(x->logical, y->logical) &&
            lb_quantities_agree(&writer->x->sides[0].quantities[va], &writer->x->sides[1].quantities[vb]))
            return vb;
    }
    return LB_NONE;
}

/* An op of A whose result is a quantity of B: the same bits where B has it in one order and with one digest, else
 * rounding. */
static void add_met_row(writer *writer, uint32_t a, uint32_t va, uint32_t vb, bool led)
{
    const uint32_t same = same_bits(writer, va, vb), b = writer->x->sides[1].graph.giver[same == LB_NONE ? vb : same];
    const bool equal = same != LB_NONE;
    lb_diff_row row = row_at(writer, a, b);
    writer->report->ops++, writer->report->identical += equal;
    if (led)
        row.inherited = row.verdict = LB_VERDICT_DIVERGED, row.why = "follows from a difference before it";
    else if (!equal)
        row.local = row.verdict = LB_VERDICT_ROUNDING,
        row.why = "both sides compute this quantity, in different bits or another order";
    lb_report_layer(writer->report, &row);
    if (!led && !equal && !writer->report->has_earliest)
        writer->report->earliest = row, writer->report->has_earliest = true;
    if (!led && !equal && !writer->x->regions.n) lb_report_row(writer->report, &row);
}

/* The first op of forward of a side that reads a source, or what is a view, a copy or a cast of it; LB_NONE. */
static uint32_t first_reader(const writer *writer, int side, uint32_t source)
{
    const lb_value_graph *g = &writer->x->sides[side].graph;
    const uint32_t value = writer->x->sources[side].list[source].value;
    uint32_t first = LB_NONE;
    for (uint32_t v = 0; v < writer->p[side]->n_values; v++)
        if (g->first_use[v] < g->first_use[v + 1] && g->uses[g->first_use[v]] < first &&
            (v == value || lb_value_graph_source(g, v) == value))
            first = g->uses[g->first_use[v]];
    return first != LB_NONE && writer->p[side]->ops[first].phase == LB_PHASE_FORWARD ? first : LB_NONE;
}

/* Where an adapter that one side has merged begins to tell: a merged weight is the sum of base and adapter but for its
 * rounding, so that what reads it is not a quantity of the other side, and only what they all give out is compared. */
static void add_merged_row(writer *writer, const lb_merged_adapter *adapter)
{
    const uint32_t of[2] = {adapter->online ? adapter->whole : adapter->base,
                            adapter->online ? adapter->base : adapter->whole};
    const uint32_t a = first_reader(writer, 0, of[0]), b = first_reader(writer, 1, of[1]);
    const uint32_t reader = adapter->online ? a : b,
                   v = reader == LB_NONE ? LB_NONE : first_value(writer->p[!adapter->online], reader);
    if (a == LB_NONE || b == LB_NONE || v == LB_NONE || writer->x->met[!adapter->online][v] != LB_NONE) return;
    const lb_step_source *online = writer->x->sources[adapter->online].list;
    char text[700];
    snprintf(text, sizeof text, "the %s side has %.400s + %.4g lora_B lora_A in one tensor, rounded when it was merged",
             adapter->online ? "first" : "second", online[adapter->base].name, adapter->scale);
    lb_diff_row row = row_at(writer, a, b);
    row.local = row.verdict = LB_VERDICT_ROUNDING, row.why = lb_report_keep(writer->report, text);
    lb_diff_row *earliest = &writer->report->earliest;
    if (writer->report->has_earliest && row.step == earliest->step && row.rank == earliest->rank &&
        row.order < earliest->order)
        *earliest = row;
    lb_report_row(writer->report, &row);
}

static void add_merged_rows(writer *writer)
{
    for (uint32_t i = 0; i < writer->x->n_merged && !writer->x->regions.n; i++)
        add_merged_row(writer, &writer->x->merged[i]);
}

static void add_rows(writer *writer)
{
    bool led = false;
    for (uint32_t i = 0; i < writer->p[0]->n_ops; i++) {
        const uint32_t v =
            lb_value_graph_computes(writer->p[0], &writer->p[0]->ops[i]) ? first_value(writer->p[0], i) : LB_NONE;
        if (v == LB_NONE) continue;
        led |= writer->state[0][i] != ROW_PLAIN;
        if (writer->state[0][i] == ROW_PLAIN && writer->x->met[0][v] != LB_NONE)
            add_met_row(writer, i, v, writer->x->met[0][v], led);
    }
}

/* ---- differences ---- */

/* What the ops were called with, what a lone one is for, and the lines of code that called them. */
static void describe(writer *writer, const lb_region *region, lb_diff_row *row)
{
    uint32_t ops[2];
    char text[160] = "";
    lb_implementation_lines_ops(writer->x, region, ops);
    for (int k = 0; k < 2; k++) {
        if (ops[k] == LB_NONE) continue;
        const lb_code_line line = lb_op_line(writer->p[k], &writer->p[k]->ops[ops[k]]);
        row->lines[k] = lb_report_keep_line(writer->report, &line);
    }
    if (region->reason == LB_REGION_ARGUMENTS || region->reason == LB_REGION_MASK || region->reason == LB_REGION_PART)
        lb_arguments_describe(writer->report, writer->p, region->op, row);
    if (region->reason != LB_REGION_MISSING && region->reason != LB_REGION_OPS) return;
    const uint32_t *all = writer->x->regions.ops;
    const lb_arguments_span span = {{all + region->first[0], all + region->first[1]}, {region->n[0], region->n[1]}};
    if (ops[0] != LB_NONE && ops[1] != LB_NONE) lb_arguments_options(writer->report, writer->p, ops, &span, row);
    if (region->reason != LB_REGION_MISSING) return;
    const int lone = region->op[0] == LB_NONE;
    uint32_t *partner = malloc((writer->p[lone]->n_ops + 1) * sizeof *partner);
    if (partner) memset(partner, 0xFF, (writer->p[lone]->n_ops + 1) * sizeof *partner);
    if (partner) lb_arguments_meaning(writer->p[lone], &region->op[lone], 1, partner, text, sizeof text);
    if (*text) row->means = lb_report_keep(writer->report, text);
    free(partner);
}

/* The innermost module that holds the first op of one side's part of a region and what gives its inputs: there the
 * other side's op would stand. */
static uint32_t scope_around(const writer *writer, const lb_region *region, int side)
{
    const lb_program *program = writer->p[side];
    const lb_value_graph *g = &writer->x->sides[side].graph;
    const lb_op *first = region->n[side] ? &program->ops[writer->x->regions.ops[region->first[side]]] : NULL;
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
static uint32_t module_without(const writer *writer, const lb_region *region, int side, uint32_t module)
{
    const uint32_t around = scope_around(writer, region, side);
    return around != LB_NONE && lb_modules_is_in(writer->p[side], around, module) ? around : module;
}

/* The layer of B beside the place: of the op that is named there, unless several layers share that one; else the module
 * beside A's, or where B's part of the region begins, if the line that is shown lies in it, too. */
static const char *layer_beside(const writer *writer, const lb_region *region)
{
    const lb_program *program = writer->p[1];
    const uint32_t module =
                       region->op[0] == LB_NONE ? LB_NONE : writer->beside[0][writer->p[0]->ops[region->op[0]].scope],
                   scope = region->op[1] == LB_NONE ? LB_NONE : program->ops[region->op[1]].scope;
    const bool known = module != LB_NONE && module;
    if (scope != LB_NONE && (!known || lb_modules_is_in(program, scope, module)))
        return lb_op_layer(program, &program->ops[region->op[1]]);
    if (known)
        return lb_program_text(
            program, program->scopes[scope == LB_NONE ? module_without(writer, region, 1, module) : module].path);
    if (!region->n[1]) return NULL;
    uint32_t first = writer->x->regions.ops[region->first[1]], shown[2];
    lb_implementation_lines_ops(writer->x, region, shown);
    if (shown[1] != LB_NONE && !lb_modules_is_in(program, program->ops[shown[1]].scope, program->ops[first].scope))
        first = shown[1];
    return lb_op_layer(program, &program->ops[first]);
}

/* The tensors of A that one of B is made of, each once, joined by " + "; malloc'ed. */
static char *names_of(const lb_implementations *x, const lb_content *content)
{
    char *text = NULL;
    size_t size = 0;
    uint8_t *told = calloc(x->sources[0].n + 1u, 1);
    FILE *out = told ? lb_text_stream_open(&text, &size) : NULL;
    for (uint32_t k = 0; out && k < content->n; k++) {
        const uint32_t t = x->contents.runs[content->first + k].tensor;
        if (!told[t]) fprintf(out, "%s%s", k ? " + " : "", x->sources[0].list[t].name);
        told[t] = 1;
    }
    free(told);
    if (out && fclose(out) != 0) free(text), text = NULL;
    return text;
}

/* How many steps back of the second side's ops a tensor stands that the region begins with; UINT32_MAX: farther than
 * any that an op reads through views, casts, products and sums. */
static uint32_t steps_from(const writer *writer, const lb_region *region, uint32_t source)
{
    enum { MOST = 64 };
    const lb_value_graph *g = &writer->x->sides[1].graph;
    uint32_t list[MOST], depth[MOST], n = 0;
    for (uint32_t k = 0; k < region->n[1] && n < MOST / 2; k++) {
        const lb_op *op = &writer->p[1]->ops[writer->x->regions.ops[region->first[1] + k]];
        if (lb_op_outcomes(op)) list[n] = lb_op_outcome(writer->p[1], op, 0), depth[n++] = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (list[i] == source || lb_value_graph_source(g, list[i]) == source) return depth[i];
        for (uint32_t k = g->first_pred[list[i]]; k < g->first_pred[list[i] + 1] && n < MOST; k++)
            list[n] = g->preds[k], depth[n] = depth[i] + 1, n++;
    }
    return UINT32_MAX;
}

/* Of the places that a tensor leads to the nearest is its. */
static bool is_nearest(const writer *writer, const lb_region *region, uint32_t source)
{
    const uint32_t own = steps_from(writer, region, source);
    for (uint32_t i = 0; i < writer->x->regions.n && own != UINT32_MAX; i++)
        if (steps_from(writer, &writer->x->regions.list[i], source) < own) return false;
    return own != UINT32_MAX;
}

/* A tensor that is made of others than its siblings are is why the place differs. */
static void name_odd_source(writer *writer, const lb_region *region, lb_diff_row *row)
{
    const lb_step_sources *a = &writer->x->sources[0], *b = &writer->x->sources[1];
    for (uint32_t i = 0; i < writer->n_odd; i++) {
        char text[700];
        if (row->phase != LB_PHASE_FORWARD || !is_nearest(writer, region, b->list[writer->odd[i].row].value)) continue;
        char *names = names_of(writer->x, &writer->x->contents.list[writer->odd[i].row]);
        lb_odd_source_text(&writer->odd[i], a, b, &writer->x->contents, text);
        if (names) row->tensor_of = lb_report_keep(writer->report, names);
        writer->report->out_of_memory |= !names;
        free(names);
        row->tensor = lb_report_keep(writer->report, b->list[writer->odd[i].row].name);
        row->why = lb_report_keep(writer->report, text);
        return;
    }
}

static void add_difference(writer *writer, const lb_region *region)
{
    lb_diff_difference difference = {
        .effect = region->effect,
        .times = region->times,
        .steps = 1,
        .spared = writer->spared && writer->spared[region - writer->x->regions.list],
        .cancels = writer->spared && writer->spared[region - writer->x->regions.list] == LB_SPARED_CANCELS,
        .ranks = {ranks_of(writer, 0, region->ranks[0]), ranks_of(writer, 1, region->ranks[1])}};
    if (region->op[0] == LB_NONE && region->op[1] == LB_NONE) return;
    difference.row = row_at(writer, region->op[0], region->op[1]);
    if (region->op[0] == LB_NONE) { /* the layer is the first side's, where it has one */
        const uint32_t module = writer->beside[1][writer->p[1]->ops[region->op[1]].scope];
        if (module && module != LB_NONE)
            difference.row.layer = lb_report_keep(
                writer->report,
                lb_program_text(writer->p[0], writer->p[0]->scopes[module_without(writer, region, 0, module)].path));
    }
    difference.row.verdict = difference.row.local = LB_VERDICT_DIVERGED;
    difference.row.lone = region->n[0] + region->n[1];
    const lb_counterpart *c = &writer->x->counterparts.list[region->counterpart];
    if (c->name && difference.row.phase == LB_PHASE_OPTIMIZER)
        difference.row.parameter = lb_report_keep(writer->report, c->name);
    const char *layer = layer_beside(writer, region);
    if (layer) difference.layer_b = lb_report_keep(writer->report, layer);
    if (region->op[1] != LB_NONE) {
        difference.op_b =
            lb_report_keep(writer->report, lb_joined_ranks_op_name(writer->p[1], &writer->p[1]->ops[region->op[1]]));
    }
    describe(writer, region, &difference.row);
    lb_implementation_lines_list(writer->x, region, difference.row.lines, difference.lines);
    char text[700];
    lb_region_op_text(writer->x, region, text, sizeof text);
    difference.row.why = lb_report_keep(writer->report, text);
    name_odd_source(writer, region, &difference.row);
    const int side = region->op[0] == LB_NONE;
    lb_place_neighbours(writer->report, writer->p[side], region->op[side], &difference.row);
    lb_report_row(writer->report, &difference.row);
    LB_DIFF_APPEND(writer->report, differences, n_differences, difference);
}

/* ---- tensors ---- */

/* "base + s B A" of the second side's merged weight, or the first side's merged weight of what the second holds of an
 * adapter. False: the source is neither. */
static bool is_merged(const lb_implementations *x, uint32_t row, char *text, size_t size)
{
    for (uint32_t i = 0; i < x->n_merged; i++) {
        const lb_merged_adapter *adapter = &x->merged[i];
        const lb_step_source *online = x->sources[adapter->online].list, *whole = x->sources[!adapter->online].list;
        if (!adapter->online && adapter->whole == row) {
            snprintf(text, size, "%.400s + %.4g lora_B lora_A", online[adapter->base].name, adapter->scale);
            return true;
        }
        if (adapter->online && (adapter->base == row || adapter->down == row || adapter->up == row)) {
            snprintf(text, size, "%.500s", whole[adapter->whole].name);
            return true;
        }
    }
    return false;
}

static void add_map(writer *writer)
{
    const lb_implementations *x = writer->x;
    for (uint32_t i = 0; i < x->contents.n; i++) {
        const lb_content *content = &x->contents.list[i];
        const char *second = x->sources[1].list[i].name;
        char first[600] = "";
        writer->report->sources += *second != 0,
            writer->report->sources_identical +=
            *second && content->relation != LB_CONTENT_NONE && content->found == content->all;
        if (content->relation == LB_CONTENT_SAME || !*second) continue;
        if (content->relation == LB_CONTENT_NONE && is_merged(x, i, first, sizeof first)) {
            const lb_diff_map row = {lb_report_keep(writer->report, first), lb_report_keep(writer->report, second),
                                     "merged"};
            LB_DIFF_APPEND(writer->report, map, n_map, row);
            continue;
        }
        char *names = names_of(x, content);
        writer->report->out_of_memory |= !names;
        if (!names) return;
        const lb_diff_map row = {lb_report_keep(writer->report, names), lb_report_keep(writer->report, second),
                                 content->cast && content->relation == LB_CONTENT_RENAMED
                                     ? "cast"
                                     : lb_content_relation_name(content->relation)};
        LB_DIFF_APPEND(writer->report, map, n_map, row);
        free(names);
    }
}

/* What leaves may have different bits although all values that met have the same: `identical` is said of all that
 * leaves. */
static void add_leaving(writer *writer)
{
    for (uint32_t i = 0; i < writer->x->counterparts.n && !writer->x->regions.n; i++) {
        const lb_counterpart *c = &writer->x->counterparts.list[i];
        const uint32_t va = writer->x->counterparts.pieces[c->first].tensor, a = writer->x->sides[0].graph.giver[va],
                       b = writer->x->sides[1].graph.giver[c->b];
        if (c->kind != LB_COUNTERPART_EXIT && c->kind != LB_COUNTERPART_FINAL) continue;
        const lb_value *x = &writer->p[0]->values[va], *y = &writer->p[1]->values[c->b];
        const bool equal = c->n == 1 && x->dtype == y->dtype && lb_layout_same_shape(&x->layout, &y->layout) &&
                           !lb_digest_is_none(x->logical) && !lb_digest_is_none(y->logical) &&
                           !lb_program_view_values_differ(writer->x->sides[0].view, va, writer->x->sides[1].view, c->b);
        if (equal || a == LB_NONE || b == LB_NONE) continue;
        lb_diff_row row = row_at(writer, a, b);
        row.local = row.verdict = LB_VERDICT_ROUNDING,
        row.why = "both sides leave this quantity, in different bits or another layout";
        lb_report_row(writer->report, &row);
    }
}

static void say_moved(writer *writer)
{
    char text[300];
    if (!writer->x->moved) return;
    snprintf(text, sizeof text,
             "step %lld: %u parameters hold other numbers on the two sides as the window begins: that came before it; "
             "the step was judged by itself, from the "
             "first side's numbers",
             (long long)writer->p[0]->step, writer->x->moved);
    lb_report_finding(writer->report, text);
}

static void say_scaled(writer *writer)
{
    const double ratio = writer->x->loss.ratio;
    char text[400];
    if (ratio == 0) return;
    snprintf(text, sizeof text, "step %lld: the loss that the %s side goes back from is %.9g times that of the other%s",
             (long long)writer->p[0]->step, ratio > 1 ? "second" : "first", ratio > 1 ? ratio : 1 / ratio,
             writer->x->same ? ", and what the step leaves is the same: gradients are scaled back"
             : writer->x->loss.alone
                 ? ", and nothing takes that back: from losses of one size both sides leave the same; "
                   "the factor is missing somewhere from the loss to the update"
                 : ": backward was compared as if it were the same");
    lb_report_finding(writer->report, text);
}

/* A rounding that is none of a function's, and yet of another size than the rest: where, and what it does. */
static void say_coarse(writer *writer)
{
    const lb_coarse *coarse = &writer->x->coarse;
    if (!coarse->times) return;
    const uint32_t op = writer->x->sides[coarse->side].graph.giver[coarse->value];
    const lb_program *program = writer->p[coarse->side];
    const char *layer = lb_op_layer(program, &program->ops[op]);
    const lb_code_line line = lb_op_line(program, &program->ops[op]);
    char text[600], usual[200] = "", where[400];
    if (coarse->usual > 0)
        snprintf(usual, sizeof usual, ", %.0f times as far as all the rounding of the other side does",
                 coarse->effect / coarse->usual);
    if (lb_op_is_source(program, &program->ops[op]))
        snprintf(where, sizeof where, "holds %.200s in %s",
                 lb_program_text(program, program->values[coarse->value].name),
                 lb_dtype_name(program->values[coarse->value].dtype));
    else
        snprintf(where, sizeof where, "rounds to %s in %.120s (%s%s%.120s)",
                 lb_dtype_name(program->values[coarse->value].dtype), *layer ? layer : "the outermost module",
                 lb_joined_ranks_op_name(program, &program->ops[op]), line.number ? ", " : "", line.file);
    if (line.number && !lb_op_is_source(program, &program->ops[op]))
        snprintf(where + strlen(where) - 1, sizeof where - strlen(where), ":%u)", line.number);
    snprintf(
        text, sizeof text,
        "step %lld: rounding of precision, and large: the %s side alone %s%s; that alone moves what leaves the step by "
        "%.1g of its size%s",
        (long long)program->step, coarse->side ? "second" : "first", where,
        coarse->times > 1 ? ", and other values like it" : "", coarse->effect, usual);
    lb_report_finding(writer->report, text);
    lb_diff_row row = row_at(writer, coarse->side ? LB_NONE : op, coarse->side ? op : LB_NONE);
    row.local = row.verdict = LB_VERDICT_ROUNDING,
    row.why = lb_report_keep(writer->report, "this side alone rounds to a coarser dtype here");
    writer->report->earliest = row, writer->report->has_earliest = true;
}

/* What one side alone was given: a text is scored to its end, and the server that wrote it never reads its last
 * token. */
static void say_lone_tokens(writer *writer)
{
    const lb_token_map *m = writer->x->tokens;
    const uint32_t n[] = {m ? lb_token_map_lone(m, 0) : 0, m ? lb_token_map_lone(m, 1) : 0};
    char text[200];
    for (int k = 0; k < 2; k++) {
        if (!n[k]) continue;
        snprintf(text, sizeof text,
                 "%u of the %u tokens that the %s side is given are none of the other side's: what "
                 "only these give was not compared",
                 n[k], m->n[k], k ? "second" : "first");
        lb_report_finding(writer->report, text);
    }
}

/* ---- each side against its own recording ---- */

typedef struct own_check {
    writer *writer;
    int side;
} own_check;

/* Bits that the op cannot have given from its recorded inputs: bad hardware, or a write that was not seen. */
static bool note_own(void *context, const lb_event *event)
{
    const own_check *c = context;
    writer *writer = c->writer;
    const uint32_t op = lb_program_view_op(writer->x->sides[c->side].view, event->program, event->op);
    if (event->verdict != LB_VERDICT_DIVERGED || op == LB_NONE) return true;
    char text[200];
    lb_diff_difference difference = {
        .row = row_at(writer, c->side ? LB_NONE : op, c->side ? op : LB_NONE), .effect = NAN, .times = 1, .steps = 1};
    snprintf(text, sizeof text,
             "the bits recorded of the %s side lie outside this op's own error bound, from its recorded inputs",
             c->side ? "second" : "first");
    difference.row.verdict = difference.row.local = LB_VERDICT_DIVERGED,
    difference.row.why = lb_report_keep(writer->report, text), difference.row.bound_ratio = event->bound_ratio;
    lb_report_row(writer->report, &difference.row);
    LB_DIFF_APPEND(writer->report, differences, n_differences, difference);
    return true;
}

static lb_status check_own(writer *writer, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        own_check c = {writer, k};
        const lb_observer observer = {.context = &c, .op = note_own};
        lb_replay_summary summary = {0};
        LB_TRY(lb_side_replay(writer->x->sides[k].view, (lb_plan)LB_PLAN_INIT, &observer, &summary, err));
    }
    return LB_OK;
}

/* ---- a step ---- */

static void mark_regions(writer *writer)
{
    for (uint32_t i = 0; i < writer->x->regions.n; i++) {
        const lb_region *region = &writer->x->regions.list[i];
        for (int k = 0; k < 2; k++) {
            for (uint32_t j = 0; j < region->n[k]; j++)
                writer->state[k][writer->x->regions.ops[region->first[k] + j]] = ROW_IN_REGION;
            for (uint32_t j = 0; j < region->n_unheld[k]; j++)
                writer->state[k]
                             [writer->x->sides[k].graph.giver[writer->x->regions.unheld[region->first_unheld[k] + j]]] =
                    ROW_IN_REGION;
            if (region->op[k] != LB_NONE) writer->state[k][region->op[k]] = ROW_NAMED;
        }
    }
}

/* ---- the place that the walk over aligned ops has named ---- */

/* Where an op of the only rank of a side stands in its view. */
static uint32_t recorded_start(const writer *writer, int side, uint32_t op)
{
    const uint32_t *op_of = writer->x->sides[side].view->op_of;
    return op_of ? op_of[op] : op;
}

/* Does the op lie in a region that differs? One that is spelled out does where any of its parts does. */
static bool is_in_region(const writer *writer, int side, uint32_t op)
{
    const uint32_t *op_of = writer->x->sides[side].view->op_of;
    const uint32_t n = writer->x->sides[side].view->parts[0].program->n_ops;
    const uint32_t end = !op_of ? op + 1 : op + 1 < n ? op_of[op + 1] : writer->p[side]->n_ops;
    if (op >= n) return true;
    for (uint32_t i = recorded_start(writer, side, op); i < end; i++)
        if (writer->state[side][i] != ROW_PLAIN) return true;
    return false;
}

/* Does B's input hold numbers of A, in A's order, whatever their shapes are? */
static bool keeps_order(const lb_implementations *x, uint32_t value)
{
    for (uint32_t row = 0; row < x->sources[1].n; row++) {
        const lb_content *content = &x->contents.list[row];
        if (x->sources[1].list[row].value != value || !lb_input_name_is(x->sources[1].list[row].name)) continue;
        int64_t from = -1, to = -1;
        for (uint32_t k = 0; k < content->n; k++) {
            const lb_content_run *r = &x->contents.runs[content->first + k];
            if (r->from <= from || r->to <= to || (r->n > 1 && (r->from_stride < 1 || r->to_stride < 1))) return false;
            from = r->from + (r->n - 1) * r->from_stride, to = r->to + (r->n - 1) * r->to_stride;
        }
        return content->n > 0;
    }
    return false;
}

static bool runs_by_name(const writer *writer, int side, uint32_t op, const char *name)
{
    const lb_program *program = writer->x->sides[side].view->parts[0].program;
    return op < program->n_ops && !strcmp(lb_op_name(program, &program->ops[op]), name);
}

/* Every way from values that meet to one that differs lies in a region. An op outside of all gives what the other side
 * has, in another order or by other ops, and a source holds the other side's numbers. Rows of a batch that are given in
 * another order are another batch. Of ops that one side alone runs the first is known, and not its like. */
static bool is_cleared(const writer *writer, const lb_diff_row *place)
{
    const uint32_t ops[] = {place->index, place->other};
    if (writer->x->sides[0].view->n_parts != 1 || writer->x->sides[1].view->n_parts != 1 ||
        place->step != writer->p[0]->step)
        return false;
    for (int k = 0; k < 2 && place->lone; k++)
        if (runs_by_name(writer, k, ops[k], place->op)) return !is_in_region(writer, k, ops[k]);
    for (int k = 0; k < 2; k++)
        if (ops[k] == LB_NONE || is_in_region(writer, k, ops[k])) return false;
    const uint32_t b = recorded_start(writer, 1, place->other);
    return !lb_op_is_source(writer->p[1], &writer->p[1]->ops[b]) ||
           keeps_order(writer->x, lb_op_results(writer->p[1], &writer->p[1]->ops[b])[0]);
}

/* What the rounding of tensors that one side alone holds hides. */
static void say_resolution(writer *writer)
{
    const double resolution = writer->x->counterparts.resolution;
    char text[300];
    if (!(resolution > 0)) return;
    snprintf(text, sizeof text,
             "step %lld: the sides hold weights in different roundings: a difference that moves what a layer gives by "
             "less than %.1g of its size is not told from these",
             (long long)writer->p[0]->step, resolution);
    lb_report_finding(writer->report, text);
}

static lb_status report_step(const lb_implementations *x, const uint8_t *spared, const lb_diff_row *place,
                             lb_diff_report *report, bool first, bool *cleared, lb_err *err)
{
    writer writer = {.x = x, .spared = spared, .report = report, .p = {x->sides[0].program, x->sides[1].program}};
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    for (int k = 0; k < 2; k++) writer.state[k] = calloc(writer.p[k]->n_ops + 1, 1);
    if (x->regions.n &&
        lb_odd_sources_find(&x->sources[0], &x->sources[1], &x->contents, &writer.odd, &writer.n_odd, NULL) != LB_OK)
        report->out_of_memory = true;
    const bool room = writer.state[0] && writer.state[1] && list_digests(&writer) &&
                      (!x->regions.n || lb_modules_beside(sides, x->met, writer.beside));
    if (room) {
        mark_regions(&writer);
        *cleared |= place && is_cleared(&writer, place);
        if (first) add_map(&writer);
        for (uint32_t i = 0; i < x->regions.n; i++)
            if (!x->regions.list[i].vague) add_difference(&writer, &x->regions.list[i]);
        add_rows(&writer);
        add_merged_rows(&writer);
        add_leaving(&writer);
        say_moved(&writer);
        say_lone_tokens(&writer);
        if (!x->regions.n) say_coarse(&writer);
        say_scaled(&writer);
        say_resolution(&writer);
    }
    lb_status status = room ? check_own(&writer, err) : LB_OK;
    for (int k = 0; k < 2; k++) free(writer.state[k]), free(writer.beside[k]);
    lb_hash_release(&writer.by_digest);
    free(writer.odd);
    if (status != LB_OK) return status;
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", writer.p[0]->n_ops);
}

/* A cache that an earlier step left, and that the other side does not hold in the same numbers: the rounding of that
 * step is in it, and exact arithmetic of this step cannot tell it from another one. */
static bool begins_with_carried(const lb_implementations *x, lb_capture *const captures[2])
{
    bool found = false;
    for (int side = 0; side < 2 && !found; side++) {
        uint8_t *held = lb_step_sources_held(&x->contents, side, x->sources[side].n, true);
        found = !held;
        for (uint32_t i = 0; i < x->sources[side].n && !found; i++) {
            const lb_value *v = &x->sides[side].program->values[x->sources[side].list[i].value];
            const lb_program *program = x->sides[side].program;
            found = lb_joined_steps_is_cache(v) && !held[i] &&
                    !lb_kept_table(captures[side], program->rank, program->step, v);
        }
        free(held);
    }
    return found;
}

/* All ranks of both sides in one step, or all steps of one rank. */
typedef struct step_pair {
    lb_capture *captures[2];
    const lb_program **programs[2];
    uint32_t n[2];
    int64_t step;
    bool of_steps;
    const lb_diff_row *place; /* that is asked about; NULL */
    lb_exact_progress progress;
    bool smallest; /* lb_diff_options */
} step_pair;

static bool has_place(const lb_implementations *x)
{
    bool place = false;
    for (uint32_t i = 0; i < x->regions.n; i++) place |= !x->regions.list[i].vague;
    return place;
}

static lb_status open_side(const step_pair *pair, int side, lb_program_view *view, lb_err *err)
{
    if (!pair->of_steps && pair->n[0] == 1 && pair->n[1] == 1)
        return lb_spelled_out_view(pair->captures[side], pair->programs[side][0], pair->programs[!side][0], view, err);
    return pair->of_steps ? lb_joined_steps_view(pair->captures[side], pair->programs[side], pair->n[side], view, err)
                          : lb_joined_ranks_view(pair->captures[side], pair->programs[side], pair->n[side], view, err);
}

static void count_runs(const lb_exact_side *s, lb_diff_report *report)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->program->n_ops; i++) n += lb_op_computes(s->program, &s->program->ops[i]);
    report->cost.runs += s->runs, report->cost.ops += s->ops_run;
    report->exact_runs += s->runs, report->recorded_ops += n;
}

/* The step of a side's only rank behind this one; NULL: none was recorded. */
static const lb_program *step_after(const step_pair *pair, int side)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(pair->captures[side], &steps);
    const lb_program *after;
    if (pair->of_steps || pair->n[side] != 1) return NULL;
    for (uint32_t i = 0; i + 1 < n; i++)
        if (steps[i] == pair->step && lb_capture_program(pair->captures[side], pair->programs[side][0]->rank,
                                                         steps[i + 1], &after, NULL) == LB_OK)
            return after;
    return NULL;
}

static const char *why_not_judged(const lb_implementations *x, bool placed, bool carried, bool flipped)
{
    if (*x->missing) return x->missing;
    if (x->regions.n && !placed)
        return "what leaves the step differs in exact arithmetic, but hardly any value in between is the same on both "
               "sides, so that no place can be named";
    if (x->same && x->left_apart)
        return "memory that an earlier step made (an average of weights) holds other numbers on the two sides";
    if (carried)
        return "memory that an earlier step left (states of an optimizer, a cache) holds other numbers on the two "
               "sides, and what follows from it was not judged";
    if (flipped)
        return "a choice of experts fell differently on the two sides from the same numbers, and what follows from it "
               "was not judged";
    return "what leaves the step differs, and no place was found";
}

/* What one step proves of the set, beside what the steps before it did. */
static void join_set(lb_diff_report *report, const lb_smallest_set *set, const lb_run_cost *cost)
{
    lb_diff_set *to = &report->set;
    const bool first = !to->asked;
    to->asked = true;
    to->whole = (first || to->whole) && set->whole, to->each = (first || to->each) && set->each;
    to->smallest = (first || to->smallest) && set->smallest;
    to->runs += cost->runs, to->ops += cost->ops;
    if (!to->why || !*to->why) to->why = lb_report_keep(report, set->why);
}

/* Are its differences the smallest set? */
static lb_status find_set(const step_pair *pair, lb_implementations *x, bool first, lb_diff_report *report,
                          lb_smallest_set *set, lb_err *err)
{
    lb_run_cost cost = {0};
    if (!pair->smallest || !x->regions.n) return LB_OK;
    for (int k = 0; k < 2; k++) cost.runs -= x->sides[k].runs, cost.ops -= x->sides[k].ops_run;
    LB_TRY(lb_smallest_set_find(x, first, set, err));
    for (int k = 0; k < 2; k++) cost.runs += x->sides[k].runs, cost.ops += x->sides[k].ops_run;
    join_set(report, set, &cost);
    return LB_OK;
}

/* `why`: the sentence on what was not judged. */
static lb_status judge_views(const step_pair *pair, const lb_program_view views[2], lb_source_memory *memory,
                             lb_diff_report *report, bool first, lb_diff_implementations_answer *answer, char why[400],
                             lb_err *err)
{
    lb_implementations x;
    for (int k = 0; k < 2; k++) memory->after[k] = step_after(pair, k);
    LB_TRY(lb_implementations_judge(&views[0], &views[1], memory, pair->progress, &x, err));
    const bool flipped = x.regions.n && x.regions.list[0].chosen, placed = has_place(&x);
    /* Equal but for what the rounding of tensors may do that one side alone holds: of a cache in 16 bits that is no
     * proof. */
    const bool same = x.same && !x.left_apart, proven = same && !x.alone;
    const bool told = x.judged && (same || (placed && !flipped)),
               carried = told && !proven && begins_with_carried(&x, pair->captures);
    answer->judged = proven || (told && !carried), answer->proven = proven;
    if (answer->judged) report->untold |= !x.tokens;
    answer->padded |= x.tokens && pair->n[0] == 1 && pair->n[1] == 1;
    lb_smallest_set set = {0};
    lb_status status = answer->judged ? find_set(pair, &x, first, report, &set, err) : LB_OK;
    if (status == LB_OK && answer->judged)
        status = report_step(&x, set.spared, pair->place, report, first, &answer->cleared, err);
    lb_smallest_set_release(&set);
    for (int k = 0; k < 2; k++) count_runs(&x.sides[k], report);
    snprintf(why, 400, "step %lld: %s", (long long)pair->step, why_not_judged(&x, placed, carried, flipped));
    lb_implementations_release(&x);
    return status;
}

/* First by the calls of the model, where the sides cut what they are given into different ones. */
static lb_status judge_step(const step_pair *pair, lb_source_memory *memory, lb_diff_report *report, bool first,
                            lb_diff_implementations_answer *answer, lb_err *err)
{
    lb_status status = LB_OK;
    bool by_calls = !pair->of_steps && pair->n[0] == 1 && pair->n[1] == 1, again;
    char why[400];
    do {
        lb_program_view views[2] = {{0}, {0}}, *const both[] = {&views[0], &views[1]};
        for (int k = 0; k < 2 && status == LB_OK; k++) status = open_side(pair, k, &views[k], err);
        if (status == LB_OK && by_calls) status = lb_joined_calls_cut(both, &by_calls, err);
        if (status == LB_OK) status = judge_views(pair, views, memory, report, first, answer, why, err);
        for (int k = 0; k < 2; k++) lb_program_view_release(&views[k]);
        again = status == LB_OK && by_calls && !answer->judged, by_calls = false;
    } while (again);
    if (status == LB_OK && !answer->judged) lb_report_missing(report, why);
    return status;
}

/* Not `*there`: a rank has no such step. */
static lb_status load_ranks(step_pair *pair, int side, bool *there, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    const int32_t *ranks;
    const uint32_t n = lb_capture_ranks(pair->captures[side], &ranks);
    pair->programs[side] = calloc(n + 1, sizeof *pair->programs[side]), pair->n[side] = n;
    lb_status status = LB_OK;
    if (!pair->programs[side]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n);
    for (uint32_t i = 0; i < n && status == LB_OK; i++)
        status = lb_capture_program(pair->captures[side], ranks[i], pair->step, &pair->programs[side][i], &why);
    *there = status == LB_OK;
    return lb_is_refusal(status) ? lb_fail(err, status, "%s", why.message) : LB_OK;
}

/* All steps of either side are one program. */
static lb_status judge_all_steps(const lb_diff_implementations_question *question, lb_source_memory *memory,
                                 lb_diff_report *report, lb_diff_implementations_answer *answer, lb_err *err)
{
    const lb_diff_options *options = question->options;
    step_pair pair = {.captures = {question->captures[0], question->captures[1]},
                      .of_steps = true,
                      .progress = options->progress,
                      .smallest = options->smallest};
    lb_status status = LB_OK;
    for (int k = 0; k < 2 && status == LB_OK; k++)
        status = lb_strangers_steps(pair.captures[k], options->first_step, options->last_step, &pair.programs[k],
                                    &pair.n[k], err);
    if (status == LB_OK && pair.programs[0] && pair.programs[1]) {
        pair.step = pair.programs[0][0]->step;
        if (options->progress) options->progress("comparing implementations", 0, 1);
        status = judge_step(&pair, memory, report, true, answer, err);
    }
    free(pair.programs[0]), free(pair.programs[1]);
    return status;
}

/* Sides that only infer, of which a step begins with a cache that the step before left in different bits or in another
 * layout: where steps one by one say nothing. */
static lb_status judge_steps_as_one(const lb_diff_implementations_question *question, lb_source_memory *memory,
                                    lb_diff_report *report, lb_diff_implementations_answer *answer, lb_err *err)
{
    lb_diff_implementations_answer of_one = {.judged = false};
    lb_diff_report *as_one = calloc(1, sizeof *as_one);
    if (!as_one) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    const lb_status status = judge_all_steps(question, memory, as_one, &of_one, err);
    lb_diff_report_share_cost(report, as_one), report->out_of_memory |= as_one->out_of_memory;
    if (status == LB_OK && of_one.judged && (of_one.proven || as_one->n_differences)) {
        const lb_diff_report alone = *report;
        *report = *as_one, *as_one = alone, *answer = of_one;
    }
    lb_diff_report_free(as_one);
    return status;
}

/* Step by step, with all ranks of either side. */
static lb_status judge_steps(const lb_diff_implementations_question *question, lb_source_memory *memory,
                             lb_diff_report *report, lb_diff_implementations_answer *answer, lb_err *err)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(question->captures[0], &steps);
    lb_status status = LB_OK;
    bool any = false, all = true;
    for (uint32_t i = 0; i < n && status == LB_OK && all; i++) {
        step_pair pair = {.captures = {question->captures[0], question->captures[1]},
                          .step = steps[i],
                          .place = question->place,
                          .progress = question->options->progress,
                          .smallest = question->options->smallest};
        if (steps[i] < question->options->first_step || steps[i] > question->options->last_step) continue;
        if (question->options->progress) question->options->progress("comparing implementations", i, n);
        status = load_ranks(&pair, 0, &all, err);
        if (status == LB_OK && all) status = load_ranks(&pair, 1, &all, err);
        if (status == LB_OK && all)
            status = judge_step(&pair, memory, report, !any, answer, err), any = true, all = answer->judged;
        free(pair.programs[0]), free(pair.programs[1]);
    }
    answer->judged = any && all;
    return status;
}

lb_status lb_diff_implementations(const lb_diff_implementations_question *question, lb_diff_report *report,
                                  lb_diff_implementations_answer *answer, lb_err *err)
{
    lb_source_memory memory = {.map = question->map};
    *answer = (lb_diff_implementations_answer){.judged = false};
    lb_status status = question->cut ? judge_all_steps(question, &memory, report, answer, err)
                                     : judge_steps(question, &memory, report, answer, err);
    if (status == LB_OK && question->as_one && !question->cut && !answer->judged && !report->n_differences)
        status = judge_steps_as_one(question, &memory, report, answer, err);
    for (uint32_t i = 0; i < memory.n_said; i++) lb_report_finding(report, memory.said[i]);
    lb_source_memory_release(&memory);
    /* A place that differs stands, whatever a later step says. */
    answer->judged |= report->n_differences > 0;
    report->implementations = true;
    lb_difference_steps_join(report);
    /* Rows are told where no part of the step differs by itself; that bits differ is so in any case. */
    if (report->verdict == LB_VERDICT_IDENTICAL && report->identical < report->ops)
        report->verdict = LB_VERDICT_ROUNDING;
    if (report->n_differences) report->verdict = LB_VERDICT_DIVERGED;
    return status;
}
