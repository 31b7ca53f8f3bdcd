/* The report on two implementations: see diff_implementations.h. */
#include "sources/odd_sources.h"
#include "runs/diff_implementations.h"
#include "runs/difference_steps.h"

#include "runs/implementation_lines.h"

#include "diff/diff_arguments.h"
#include "diff/diff_place.h"
#include "implementations/implementations.h"
#include "smallest/smallest_set.h"
#include "joined/additional_passes.h"
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

static uint32_t first_value(const lb_program *p, uint32_t op)
{
    for (uint32_t i = 0; i < lb_op_outcomes(&p->ops[op]); i++)
        if (lb_op_outcome(p, &p->ops[op], i) != LB_NONE) return lb_op_outcome(p, &p->ops[op], i);
    return LB_NONE;
}

/* What was recorded of the op: the program of the lowest rank of a side that runs it, or of its step. */
static const lb_program *recorded_of(const writer *w, int side, uint32_t op)
{
    const lb_program_view *view = w->x->sides[side].view;
    return op == LB_NONE ? w->p[side] : view->parts[lb_program_view_part_of(view, op)].program;
}

/* Ranks of the parts that have a bit; steps of one rank are parts, too. */
static uint64_t ranks_of(const writer *w, int side, uint64_t parts)
{
    const lb_program_view *view = w->x->sides[side].view;
    uint64_t ranks = 0;
    for (uint32_t k = 0; k < view->n_parts; k++)
        if (parts & lb_program_view_rank_bit(k))
            ranks |= lb_program_view_rank_bit((uint32_t)view->parts[k].program->rank);
    return ranks;
}

/* The op as its rank, or its step, recorded it: what `show` is asked for. */
static uint32_t recorded_op(const writer *w, int side, uint32_t op)
{
    const lb_program_view *view = w->x->sides[side].view;
    if (op == LB_NONE || !view->op_of) return op;
    const lb_program_view_part *part = &view->parts[lb_program_view_part_of(view, op)];
    uint32_t last = op;
    for (uint32_t i = 0; i < part->program->n_ops; i++) {
        if (view->op_of[part->first_op + i] == op) return i;
        if (view->op_of[part->first_op + i] <= op) last = i; /* one of those that a fused op was spelled out as */
    }
    return last;
}

static lb_diff_row row_at(const writer *w, uint32_t a, uint32_t b)
{
    const lb_program *p = a != LB_NONE ? w->p[0] : w->p[1];
    const lb_op *op = &p->ops[a != LB_NONE ? a : b];
    const lb_program *here = a == LB_NONE && w->x->sides[0].view->n_parts == 1
                                 ? w->p[0]
                                 : recorded_of(w, a == LB_NONE, a == LB_NONE ? b : a);
    lb_diff_row row = {.step = here->step,
                       .rank = here->rank,
                       .phase = (lb_phase)op->phase,
                       .layer = lb_report_keep(w->report, lb_op_layer(p, op)),
                       .op = lb_report_keep(w->report, lb_joined_ranks_op_name(p, op)),
                       .index = recorded_op(w, 0, a),
                       .other = recorded_op(w, 1, b),
                       .other_rank = recorded_of(w, 1, b)->rank,
                       .other_step = recorded_of(w, 1, b)->step,
                       .order = a != LB_NONE ? a : b,
                       .verdict = LB_VERDICT_IDENTICAL,
                       .local = LB_VERDICT_IDENTICAL,
                       .inherited = LB_VERDICT_IDENTICAL,
                       .why = "",
                       .bound_ratio = NAN};
    return row;
}

static bool list_digests(writer *w)
{
    for (uint32_t v = 0; v < w->p[1]->n_values; v++)
        if (!lb_digest_is_none(w->p[1]->values[v].logical) && w->x->sides[1].quantities[v].tells &&
            !lb_hash_add(&w->by_digest, w->p[1]->values[v].logical.lo, v))
            return false;
    return true;
}

/* The value of B that is the same quantity in the same bits, LB_NONE. Several of B's values may be that quantity (half
 * a rotary table, the whole of it), and the one that A's has met need not be the one that was made as A's was. */
static uint32_t same_bits(const writer *w, uint32_t va, uint32_t met)
{
    const lb_value *x = &w->p[0]->values[va], *y = &w->p[1]->values[met];
    if (lb_digest_is_none(x->logical)) return LB_NONE;
    if (x->dtype == y->dtype && lb_layout_same_shape(&x->layout, &y->layout) &&
        !lb_program_view_values_differ(w->x->sides[0].view, va, w->x->sides[1].view, met))
        return met;
    LB_HASH_EACH(vb, &w->by_digest, x->logical.lo)
    {
        y = &w->p[1]->values[vb];
        if (x->dtype == y->dtype && lb_digest_equal(x->logical, y->logical) &&
            lb_quantities_agree(&w->x->sides[0].quantities[va], &w->x->sides[1].quantities[vb]))
            return vb;
    }
    return LB_NONE;
}

/* An op of A whose result is a quantity of B: the same bits where B has it in one order and with one digest, else
 * rounding. */
static void add_met_row(writer *w, uint32_t a, uint32_t va, uint32_t vb, bool led)
{
    const uint32_t same = same_bits(w, va, vb), b = w->x->sides[1].graph.giver[same == LB_NONE ? vb : same];
    const bool equal = same != LB_NONE;
    lb_diff_row row = row_at(w, a, b);
    w->report->ops++, w->report->identical += equal;
    if (led)
        row.inherited = row.verdict = LB_VERDICT_DIVERGED, row.why = "follows from a difference before it";
    else if (!equal)
        row.local = row.verdict = LB_VERDICT_ROUNDING,
        row.why = "both sides compute this quantity, in different bits or another order";
    lb_report_layer(w->report, &row);
    if (!led && !equal && !w->report->has_earliest) w->report->earliest = row, w->report->has_earliest = true;
    if (!led && !equal && !w->x->regions.n) lb_report_row(w->report, &row);
}

/* The first op of forward of a side that reads a source, or what is a view, a copy or a cast of it; LB_NONE. */
static uint32_t first_reader(const writer *w, int side, uint32_t source)
{
    const lb_value_graph *g = &w->x->sides[side].graph;
    const uint32_t value = w->x->sources[side].list[source].value;
    uint32_t first = LB_NONE;
    for (uint32_t v = 0; v < w->p[side]->n_values; v++)
        if (g->first_use[v] < g->first_use[v + 1] && g->uses[g->first_use[v]] < first &&
            (v == value || lb_value_graph_source(g, v) == value))
            first = g->uses[g->first_use[v]];
    return first != LB_NONE && w->p[side]->ops[first].phase == LB_PHASE_FORWARD ? first : LB_NONE;
}

/* Where an adapter that one side has merged begins to tell: a merged weight is the sum of base and adapter but for its
 * rounding, so that what reads it is not a quantity of the other side, and only what they all give out is compared. */
static void add_merged_row(writer *w, const lb_merged_adapter *m)
{
    const uint32_t of[2] = {m->online ? m->whole : m->base, m->online ? m->base : m->whole};
    const uint32_t a = first_reader(w, 0, of[0]), b = first_reader(w, 1, of[1]);
    const uint32_t reader = m->online ? a : b, v = reader == LB_NONE ? LB_NONE : first_value(w->p[!m->online], reader);
    if (a == LB_NONE || b == LB_NONE || v == LB_NONE || w->x->met[!m->online][v] != LB_NONE) return;
    const lb_step_source *online = w->x->sources[m->online].list;
    char text[700];
    snprintf(text, sizeof text, "the %s side has %.400s + %.4g lora_B lora_A in one tensor, rounded when it was merged",
             m->online ? "first" : "second", online[m->base].name, m->scale);
    lb_diff_row row = row_at(w, a, b);
    row.local = row.verdict = LB_VERDICT_ROUNDING, row.why = lb_report_keep(w->report, text);
    lb_diff_row *earliest = &w->report->earliest;
    if (w->report->has_earliest && row.step == earliest->step && row.rank == earliest->rank &&
        row.order < earliest->order)
        *earliest = row;
    lb_report_row(w->report, &row);
}

static void add_merged_rows(writer *w)
{
    for (uint32_t i = 0; i < w->x->n_merged && !w->x->regions.n; i++) add_merged_row(w, &w->x->merged[i]);
}

static void add_rows(writer *w)
{
    bool led = false;
    for (uint32_t i = 0; i < w->p[0]->n_ops; i++) {
        const uint32_t v = lb_value_graph_computes(w->p[0], &w->p[0]->ops[i]) ? first_value(w->p[0], i) : LB_NONE;
        if (v == LB_NONE) continue;
        led |= w->state[0][i] != ROW_PLAIN;
        if (w->state[0][i] == ROW_PLAIN && w->x->met[0][v] != LB_NONE) add_met_row(w, i, v, w->x->met[0][v], led);
    }
}

/* ---- differences ---- */

/* What the ops were called with, what a lone one is for, and the lines of code that called them. */
static void describe(writer *w, const lb_region *r, lb_diff_row *row)
{
    uint32_t ops[2];
    char text[160] = "";
    lb_implementation_lines_ops(w->x, r, ops);
    for (int k = 0; k < 2; k++) {
        if (ops[k] == LB_NONE) continue;
        const lb_code_line line = lb_op_line(w->p[k], &w->p[k]->ops[ops[k]]);
        row->lines[k] = lb_report_keep_line(w->report, &line);
    }
    if (r->reason == LB_REGION_ARGUMENTS || r->reason == LB_REGION_MASK || r->reason == LB_REGION_PART)
        lb_arguments_describe(w->report, w->p, r->op, row);
    if (r->reason != LB_REGION_MISSING && r->reason != LB_REGION_OPS) return;
    const uint32_t *all = w->x->regions.ops;
    const lb_arguments_span span = {{all + r->first[0], all + r->first[1]}, {r->n[0], r->n[1]}};
    if (ops[0] != LB_NONE && ops[1] != LB_NONE) lb_arguments_options(w->report, w->p, ops, &span, row);
    if (r->reason != LB_REGION_MISSING) return;
    const int lone = r->op[0] == LB_NONE;
    uint32_t *partner = malloc((w->p[lone]->n_ops + 1) * sizeof *partner);
    if (partner) memset(partner, 0xFF, (w->p[lone]->n_ops + 1) * sizeof *partner);
    if (partner) lb_arguments_meaning(w->p[lone], &r->op[lone], 1, partner, text, sizeof text);
    if (*text) row->means = lb_report_keep(w->report, text);
    free(partner);
}

/* The innermost module that holds the first op of one side's part of a region and what gives its inputs: there the
 * other side's op would stand. */
static uint32_t scope_around(const writer *w, const lb_region *r, int side)
{
    const lb_program *p = w->p[side];
    const lb_value_graph *g = &w->x->sides[side].graph;
    const lb_op *first = r->n[side] ? &p->ops[w->x->regions.ops[r->first[side]]] : NULL;
    if (!first || !lb_op_outcomes(first) || lb_op_outcome(p, first, 0) == LB_NONE) return LB_NONE;
    const uint32_t v = lb_op_outcome(p, first, 0);
    uint32_t scope = first->scope;
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++) {
        const uint32_t giver = g->giver[g->preds[k]];
        if (giver == LB_NONE || lb_op_is_source(p, &p->ops[giver])) continue;
        while (scope && !lb_modules_is_in(p, p->ops[giver].scope, scope)) scope = lb_modules_parent(p, scope);
    }
    return scope;
}

/* The module of a side that runs no such op: the one beside the other side's, or what lies around the place in it. */
static uint32_t module_without(const writer *w, const lb_region *r, int side, uint32_t module)
{
    const uint32_t around = scope_around(w, r, side);
    return around != LB_NONE && lb_modules_is_in(w->p[side], around, module) ? around : module;
}

/* The layer of B beside the place: of the op that is named there, unless several layers share that one; else the module
 * beside A's, or where B's part of the region begins, if the line that is shown lies in it, too. */
static const char *layer_beside(const writer *w, const lb_region *r)
{
    const lb_program *p = w->p[1];
    const uint32_t module = r->op[0] == LB_NONE ? LB_NONE : w->beside[0][w->p[0]->ops[r->op[0]].scope],
                   scope = r->op[1] == LB_NONE ? LB_NONE : p->ops[r->op[1]].scope;
    const bool known = module != LB_NONE && module;
    if (scope != LB_NONE && (!known || lb_modules_is_in(p, scope, module))) return lb_op_layer(p, &p->ops[r->op[1]]);
    if (known) return lb_program_text(p, p->scopes[scope == LB_NONE ? module_without(w, r, 1, module) : module].path);
    if (!r->n[1]) return NULL;
    uint32_t first = w->x->regions.ops[r->first[1]], shown[2];
    lb_implementation_lines_ops(w->x, r, shown);
    if (shown[1] != LB_NONE && !lb_modules_is_in(p, p->ops[shown[1]].scope, p->ops[first].scope)) first = shown[1];
    return lb_op_layer(p, &p->ops[first]);
}

/* The tensors of A that one of B is made of, each once, joined by " + "; malloc'ed. */
static char *names_of(const lb_implementations *x, const lb_content *c)
{
    char *text = NULL;
    size_t size = 0;
    uint8_t *told = calloc(x->sources[0].n + 1u, 1);
    FILE *out = told ? lb_text_stream_open(&text, &size) : NULL;
    for (uint32_t k = 0; out && k < c->n; k++) {
        const uint32_t t = x->contents.runs[c->first + k].tensor;
        if (!told[t]) fprintf(out, "%s%s", k ? " + " : "", x->sources[0].list[t].name);
        told[t] = 1;
    }
    free(told);
    if (out && fclose(out) != 0) free(text), text = NULL;
    return text;
}

/* How many steps back of the second side's ops a tensor stands that the region begins with; UINT32_MAX: farther than
 * any that an op reads through views, casts, products and sums. */
static uint32_t steps_from(const writer *w, const lb_region *r, uint32_t source)
{
    enum { MOST = 64 };
    const lb_value_graph *g = &w->x->sides[1].graph;
    uint32_t list[MOST], depth[MOST], n = 0;
    for (uint32_t k = 0; k < r->n[1] && n < MOST / 2; k++) {
        const lb_op *op = &w->p[1]->ops[w->x->regions.ops[r->first[1] + k]];
        if (lb_op_outcomes(op)) list[n] = lb_op_outcome(w->p[1], op, 0), depth[n++] = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (list[i] == source || lb_value_graph_source(g, list[i]) == source) return depth[i];
        for (uint32_t k = g->first_pred[list[i]]; k < g->first_pred[list[i] + 1] && n < MOST; k++)
            list[n] = g->preds[k], depth[n] = depth[i] + 1, n++;
    }
    return UINT32_MAX;
}

/* Of the places that a tensor leads to the nearest is its. */
static bool is_nearest(const writer *w, const lb_region *r, uint32_t source)
{
    const uint32_t own = steps_from(w, r, source);
    for (uint32_t i = 0; i < w->x->regions.n && own != UINT32_MAX; i++)
        if (steps_from(w, &w->x->regions.list[i], source) < own) return false;
    return own != UINT32_MAX;
}

/* A tensor that is made of others than its siblings are is why the place differs. */
static void name_odd_source(writer *w, const lb_region *r, lb_diff_row *row)
{
    const lb_step_sources *a = &w->x->sources[0], *b = &w->x->sources[1];
    for (uint32_t i = 0; i < w->n_odd; i++) {
        char text[700];
        if (row->phase != LB_PHASE_FORWARD || !is_nearest(w, r, b->list[w->odd[i].row].value)) continue;
        char *names = names_of(w->x, &w->x->contents.list[w->odd[i].row]);
        lb_odd_source_text(&w->odd[i], a, b, &w->x->contents, text);
        if (names) row->tensor_of = lb_report_keep(w->report, names);
        w->report->out_of_memory |= !names;
        free(names);
        row->tensor = lb_report_keep(w->report, b->list[w->odd[i].row].name);
        row->why = lb_report_keep(w->report, text);
        return;
    }
}

static void add_difference(writer *w, const lb_region *r)
{
    lb_diff_difference d = {.effect = r->effect,
                            .times = r->times,
                            .steps = 1,
                            .spared = w->spared && w->spared[r - w->x->regions.list],
                            .cancels = w->spared && w->spared[r - w->x->regions.list] == LB_SPARED_CANCELS,
                            .ranks = {ranks_of(w, 0, r->ranks[0]), ranks_of(w, 1, r->ranks[1])}};
    if (r->op[0] == LB_NONE && r->op[1] == LB_NONE) return;
    d.row = row_at(w, r->op[0], r->op[1]);
    if (r->op[0] == LB_NONE) { /* the layer is the first side's, where it has one */
        const uint32_t module = w->beside[1][w->p[1]->ops[r->op[1]].scope];
        if (module && module != LB_NONE)
            d.row.layer = lb_report_keep(
                w->report, lb_program_text(w->p[0], w->p[0]->scopes[module_without(w, r, 0, module)].path));
    }
    d.row.verdict = d.row.local = LB_VERDICT_DIVERGED;
    d.row.lone = r->n[0] + r->n[1];
    const lb_counterpart *c = &w->x->counterparts.list[r->counterpart];
    if (c->name && d.row.phase == LB_PHASE_OPTIMIZER) d.row.parameter = lb_report_keep(w->report, c->name);
    const char *layer = layer_beside(w, r);
    if (layer) d.layer_b = lb_report_keep(w->report, layer);
    if (r->op[1] != LB_NONE) {
        d.op_b = lb_report_keep(w->report, lb_joined_ranks_op_name(w->p[1], &w->p[1]->ops[r->op[1]]));
    }
    describe(w, r, &d.row);
    lb_implementation_lines_list(w->x, r, d.row.lines, d.lines);
    char text[700];
    lb_region_op_text(w->x, r, text, sizeof text);
    d.row.why = lb_report_keep(w->report, text);
    name_odd_source(w, r, &d.row);
    const int side = r->op[0] == LB_NONE;
    lb_place_neighbours(w->report, w->p[side], r->op[side], &d.row);
    lb_report_row(w->report, &d.row);
    LB_DIFF_APPEND(w->report, differences, n_differences, d);
}

/* ---- tensors ---- */

/* "base + s B A" of the second side's merged weight, or the first side's merged weight of what the second holds of an
 * adapter. False: the source is neither. */
static bool is_merged(const lb_implementations *x, uint32_t row, char *text, size_t size)
{
    for (uint32_t i = 0; i < x->n_merged; i++) {
        const lb_merged_adapter *m = &x->merged[i];
        const lb_step_source *online = x->sources[m->online].list, *whole = x->sources[!m->online].list;
        if (!m->online && m->whole == row) {
            snprintf(text, size, "%.400s + %.4g lora_B lora_A", online[m->base].name, m->scale);
            return true;
        }
        if (m->online && (m->base == row || m->down == row || m->up == row)) {
            snprintf(text, size, "%.500s", whole[m->whole].name);
            return true;
        }
    }
    return false;
}

static void add_map(writer *w)
{
    const lb_implementations *x = w->x;
    for (uint32_t i = 0; i < x->contents.n; i++) {
        const lb_content *c = &x->contents.list[i];
        const char *second = x->sources[1].list[i].name;
        char first[600] = "";
        w->report->sources += *second != 0,
            w->report->sources_identical += *second && c->relation != LB_CONTENT_NONE && c->found == c->all;
        if (c->relation == LB_CONTENT_SAME || !*second) continue;
        if (c->relation == LB_CONTENT_NONE && is_merged(x, i, first, sizeof first)) {
            const lb_diff_map row = {lb_report_keep(w->report, first), lb_report_keep(w->report, second), "merged"};
            LB_DIFF_APPEND(w->report, map, n_map, row);
            continue;
        }
        char *names = names_of(x, c);
        w->report->out_of_memory |= !names;
        if (!names) return;
        const lb_diff_map row = {lb_report_keep(w->report, names), lb_report_keep(w->report, second),
                                 c->cast && c->relation == LB_CONTENT_RENAMED ? "cast"
                                                                              : lb_content_relation_name(c->relation)};
        LB_DIFF_APPEND(w->report, map, n_map, row);
        free(names);
    }
}

/* What leaves may have different bits although all values that met have the same: `identical` is said of all that
 * leaves. */
static void add_leaving(writer *w)
{
    for (uint32_t i = 0; i < w->x->counterparts.n && !w->x->regions.n; i++) {
        const lb_counterpart *c = &w->x->counterparts.list[i];
        const uint32_t va = w->x->counterparts.pieces[c->first].tensor, a = w->x->sides[0].graph.giver[va],
                       b = w->x->sides[1].graph.giver[c->b];
        if (c->kind != LB_COUNTERPART_EXIT && c->kind != LB_COUNTERPART_FINAL) continue;
        const lb_value *x = &w->p[0]->values[va], *y = &w->p[1]->values[c->b];
        const bool equal = c->n == 1 && x->dtype == y->dtype && lb_layout_same_shape(&x->layout, &y->layout) &&
                           !lb_digest_is_none(x->logical) && !lb_digest_is_none(y->logical) &&
                           !lb_program_view_values_differ(w->x->sides[0].view, va, w->x->sides[1].view, c->b);
        if (equal || a == LB_NONE || b == LB_NONE) continue;
        lb_diff_row row = row_at(w, a, b);
        row.local = row.verdict = LB_VERDICT_ROUNDING,
        row.why = "both sides leave this quantity, in different bits or another layout";
        lb_report_row(w->report, &row);
    }
}

static void say_apart(void *context, const char *what)
{
    const writer *w = context;
    char text[700];
    snprintf(text, sizeof text,
             "step %lld begins with different numbers on the two sides, which came before the window: %.500s",
             (long long)w->p[0]->step, what);
    lb_report_finding(w->report, text);
}

static void say_moved(writer *w)
{
    char text[200];
    if (!w->x->moved.n) return;
    snprintf(text, sizeof text, "step %lld was judged by itself, from the first side's weights and states",
             (long long)w->p[0]->step);
    lb_report_finding(w->report, text);
    lb_apart_sources_text(&w->x->moved, w, say_apart);
}

static void say_scaled(writer *w)
{
    const double ratio = w->x->loss.ratio;
    char text[400];
    if (ratio == 0) return;
    snprintf(text, sizeof text, "step %lld: the loss that the %s side goes back from is %.9g times that of the other%s",
             (long long)w->p[0]->step, ratio > 1 ? "second" : "first", ratio > 1 ? ratio : 1 / ratio,
             w->x->same         ? ", and what the step leaves is the same: gradients are scaled back"
             : w->x->loss.alone ? ", and nothing takes that back: from losses of one size both sides leave the same; "
                                  "the factor is missing somewhere from the loss to the update"
                                : ": backward was compared as if it were the same");
    lb_report_finding(w->report, text);
}

/* A rounding that is none of a function's, and yet of another size than the rest: where, and what it does. */
static void say_coarse(writer *w)
{
    const lb_coarse *c = &w->x->coarse;
    if (!c->times) return;
    const uint32_t op = w->x->sides[c->side].graph.giver[c->value];
    const lb_program *p = w->p[c->side];
    const char *layer = lb_op_layer(p, &p->ops[op]);
    const lb_code_line line = lb_op_line(p, &p->ops[op]);
    char text[600], usual[200] = "", where[400];
    if (c->usual > 0)
        snprintf(usual, sizeof usual, ", %.0f times as far as all the rounding of the other side does",
                 c->effect / c->usual);
    if (lb_op_is_source(p, &p->ops[op]))
        snprintf(where, sizeof where, "holds %.200s in %s", lb_program_text(p, p->values[c->value].name),
                 lb_dtype_name(p->values[c->value].dtype));
    else
        snprintf(where, sizeof where, "rounds to %s in %.120s (%s%s%.120s)", lb_dtype_name(p->values[c->value].dtype),
                 *layer ? layer : "the outermost module", lb_joined_ranks_op_name(p, &p->ops[op]),
                 line.number ? ", " : "", line.file);
    if (line.number && !lb_op_is_source(p, &p->ops[op]))
        snprintf(where + strlen(where) - 1, sizeof where - strlen(where), ":%u)", line.number);
    snprintf(
        text, sizeof text,
        "step %lld: rounding of precision, and large: the %s side alone %s%s; that alone moves what leaves the step by "
        "%.1g of its size%s",
        (long long)p->step, c->side ? "second" : "first", where, c->times > 1 ? ", and other values like it" : "",
        c->effect, usual);
    lb_report_finding(w->report, text);
    lb_diff_row row = row_at(w, c->side ? LB_NONE : op, c->side ? op : LB_NONE);
    row.local = row.verdict = LB_VERDICT_ROUNDING,
    row.why = lb_report_keep(w->report, "this side alone rounds to a coarser dtype here");
    w->report->earliest = row, w->report->has_earliest = true;
}

/* What one side alone was given: a text is scored to its end, and the server that wrote it never reads its last
 * token. */
static void say_lone_tokens(writer *w)
{
    const lb_token_map *m = w->x->tokens;
    const uint32_t n[] = {m ? lb_token_map_lone(m, 0) : 0, m ? lb_token_map_lone(m, 1) : 0};
    char text[200];
    for (int k = 0; k < 2; k++) {
        if (!n[k]) continue;
        snprintf(text, sizeof text,
                 "%u of the %u tokens that the %s side is given are none of the other side's: what "
                 "only these give was not compared",
                 n[k], m->n[k], k ? "second" : "first");
        lb_report_finding(w->report, text);
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
    writer *w = c->writer;
    const uint32_t op = lb_program_view_op(w->x->sides[c->side].view, event->program, event->op);
    if (event->verdict != LB_VERDICT_DIVERGED || op == LB_NONE) return true;
    char text[200];
    lb_diff_difference d = {
        .row = row_at(w, c->side ? LB_NONE : op, c->side ? op : LB_NONE), .effect = NAN, .times = 1, .steps = 1};
    snprintf(text, sizeof text,
             "the bits recorded of the %s side lie outside this op's own error bound, from its recorded inputs",
             c->side ? "second" : "first");
    d.row.verdict = d.row.local = LB_VERDICT_DIVERGED, d.row.why = lb_report_keep(w->report, text),
    d.row.bound_ratio = event->bound_ratio;
    lb_report_row(w->report, &d.row);
    LB_DIFF_APPEND(w->report, differences, n_differences, d);
    return true;
}

static lb_status check_own(writer *w, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        own_check c = {w, k};
        const lb_observer observer = {.context = &c, .op = note_own};
        lb_replay_summary summary = {0};
        LB_TRY(lb_side_replay(w->x->sides[k].view, (lb_plan)LB_PLAN_INIT, &observer, &summary, err));
    }
    return LB_OK;
}

/* ---- a step ---- */

static void mark_regions(writer *w)
{
    for (uint32_t i = 0; i < w->x->regions.n; i++) {
        const lb_region *r = &w->x->regions.list[i];
        for (int k = 0; k < 2; k++) {
            for (uint32_t j = 0; j < r->n[k]; j++) w->state[k][w->x->regions.ops[r->first[k] + j]] = ROW_IN_REGION;
            for (uint32_t j = 0; j < r->n_unheld[k]; j++)
                w->state[k][w->x->sides[k].graph.giver[w->x->regions.unheld[r->first_unheld[k] + j]]] = ROW_IN_REGION;
            if (r->op[k] != LB_NONE) w->state[k][r->op[k]] = ROW_NAMED;
        }
    }
}

/* ---- the place that the walk over aligned ops has named ---- */

/* Where an op of the only rank of a side stands in its view. */
static uint32_t recorded_start(const writer *w, int side, uint32_t op)
{
    const uint32_t *op_of = w->x->sides[side].view->op_of;
    return op_of ? op_of[op] : op;
}

/* Does the op lie in a region that differs? One that is spelled out does where any of its parts does. */
static bool is_in_region(const writer *w, int side, uint32_t op)
{
    const uint32_t *op_of = w->x->sides[side].view->op_of;
    const uint32_t n = w->x->sides[side].view->parts[0].program->n_ops;
    const uint32_t end = !op_of ? op + 1 : op + 1 < n ? op_of[op + 1] : w->p[side]->n_ops;
    if (op >= n) return true;
    for (uint32_t i = recorded_start(w, side, op); i < end; i++)
        if (w->state[side][i] != ROW_PLAIN) return true;
    return false;
}

/* Does B's input hold numbers of A, in A's order, whatever their shapes are? */
static bool keeps_order(const lb_implementations *x, uint32_t value)
{
    for (uint32_t row = 0; row < x->sources[1].n; row++) {
        const lb_content *c = &x->contents.list[row];
        if (x->sources[1].list[row].value != value || !lb_input_name_is(x->sources[1].list[row].name)) continue;
        int64_t from = -1, to = -1;
        for (uint32_t k = 0; k < c->n; k++) {
            const lb_content_run *r = &x->contents.runs[c->first + k];
            if (r->from <= from || r->to <= to || (r->n > 1 && (r->from_stride < 1 || r->to_stride < 1))) return false;
            from = r->from + (r->n - 1) * r->from_stride, to = r->to + (r->n - 1) * r->to_stride;
        }
        return c->n > 0;
    }
    return false;
}

static bool runs_by_name(const writer *w, int side, uint32_t op, const char *name)
{
    const lb_program *p = w->x->sides[side].view->parts[0].program;
    return op < p->n_ops && !strcmp(lb_op_name(p, &p->ops[op]), name);
}

/* Every way from values that meet to one that differs lies in a region. An op outside of all gives what the other side
 * has, in another order or by other ops, and a source holds the other side's numbers. Rows of a batch that are given in
 * another order are another batch. Of ops that one side alone runs the first is known, and not its like. */
static bool is_cleared(const writer *w, const lb_diff_row *place)
{
    const uint32_t ops[] = {place->index, place->other};
    if (w->x->sides[0].view->n_parts != 1 || w->x->sides[1].view->n_parts != 1 || place->step != w->p[0]->step)
        return false;
    for (int k = 0; k < 2 && place->lone; k++)
        if (runs_by_name(w, k, ops[k], place->op)) return !is_in_region(w, k, ops[k]);
    for (int k = 0; k < 2; k++)
        if (ops[k] == LB_NONE || is_in_region(w, k, ops[k])) return false;
    const uint32_t b = recorded_start(w, 1, place->other);
    return !lb_op_is_source(w->p[1], &w->p[1]->ops[b]) ||
           keeps_order(w->x, lb_op_results(w->p[1], &w->p[1]->ops[b])[0]);
}

/* What the rounding of tensors that one side alone holds hides. */
static void say_resolution(writer *w)
{
    const double resolution = w->x->counterparts.resolution;
    char text[300];
    if (!(resolution > 0)) return;
    snprintf(text, sizeof text,
             "step %lld: the sides hold weights in different roundings: a difference that moves what a layer gives by "
             "less than %.1g of its size is not told from these",
             (long long)w->p[0]->step, resolution);
    lb_report_finding(w->report, text);
}

static lb_status report_step(const lb_implementations *x, const uint8_t *spared, const lb_diff_row *place,
                             lb_diff_report *report, bool first, bool *cleared, lb_err *err)
{
    writer w = {.x = x, .spared = spared, .report = report, .p = {x->sides[0].program, x->sides[1].program}};
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    for (int k = 0; k < 2; k++) w.state[k] = calloc(w.p[k]->n_ops + 1, 1);
    if (x->regions.n &&
        lb_odd_sources_find(&x->sources[0], &x->sources[1], &x->contents, &w.odd, &w.n_odd, NULL) != LB_OK)
        report->out_of_memory = true;
    const bool room =
        w.state[0] && w.state[1] && list_digests(&w) && (!x->regions.n || lb_modules_beside(sides, x->met, w.beside));
    if (room) {
        mark_regions(&w);
        *cleared |= place && is_cleared(&w, place);
        if (first) add_map(&w);
        for (uint32_t i = 0; i < x->regions.n; i++)
            if (!x->regions.list[i].vague) add_difference(&w, &x->regions.list[i]);
        add_rows(&w);
        add_merged_rows(&w);
        add_leaving(&w);
        say_moved(&w);
        say_lone_tokens(&w);
        if (!x->regions.n) say_coarse(&w);
        say_scaled(&w);
        say_resolution(&w);
    }
    lb_status status = room ? check_own(&w, err) : LB_OK;
    for (int k = 0; k < 2; k++) free(w.state[k]), free(w.beside[k]);
    lb_hash_release(&w.by_digest);
    free(w.odd);
    if (status != LB_OK) return status;
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", w.p[0]->n_ops);
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
            const lb_program *p = x->sides[side].program;
            found = lb_joined_steps_is_cache(v) && !held[i] && !lb_kept_table(captures[side], p->rank, p->step, v);
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
    bool smallest;               /* lb_diff_options */
    lb_additional_passes passes; /* of one program on each side */
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
        return lb_spelled_out_view(pair->captures[side], pair->programs[side][0], pair->programs[!side][0],
                                   pair->passes.left_out[side], view, err);
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

/* An evaluation that one side runs besides is told, and left out. */
static lb_status leave_out_passes(step_pair *pair, lb_diff_report *report, lb_err *err)
{
    lb_program_view views[2] = {{0}, {0}};
    lb_status status = LB_OK;
    for (int k = 0; k < 2 && status == LB_OK; k++)
        status = lb_program_view_init(pair->captures[k], pair->programs[k], 1, &views[k], err);
    if (status == LB_OK) status = lb_additional_passes_find(&views[0], &views[1], &pair->passes, err);
    for (int k = 0; k < 2; k++) lb_program_view_release(&views[k]);
    for (uint32_t i = 0; i < pair->passes.n_sentences && status == LB_OK; i++) {
        const char *what = strstr(pair->passes.sentences[i], ": ");
        bool known = false; /* of an earlier step */
        for (uint32_t k = 0; k < report->n_findings && !known; k++) known = what && strstr(report->findings[k], what);
        if (!known) lb_report_finding(report, pair->passes.sentences[i]);
    }
    return status;
}

/* First by the calls of the model, where the sides cut what they are given into different ones. */
static lb_status judge_opened(const step_pair *pair, lb_source_memory *memory, lb_diff_report *report, bool first,
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

static lb_status judge_step(step_pair *pair, lb_source_memory *memory, lb_diff_report *report, bool first,
                            lb_diff_implementations_answer *answer, lb_err *err)
{
    const bool of_one = !pair->of_steps && pair->n[0] == 1 && pair->n[1] == 1;
    lb_status status = of_one ? leave_out_passes(pair, report, err) : LB_OK;
    if (status == LB_OK) status = judge_opened(pair, memory, report, first, answer, err);
    lb_additional_passes_release(&pair->passes);
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
static lb_status judge_all_steps(const lb_diff_implementations_question *q, lb_source_memory *memory,
                                 lb_diff_report *report, lb_diff_implementations_answer *answer, lb_err *err)
{
    const lb_diff_options *options = q->options;
    step_pair pair = {.captures = {q->captures[0], q->captures[1]},
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
static lb_status judge_steps_as_one(const lb_diff_implementations_question *q, lb_source_memory *memory,
                                    lb_diff_report *report, lb_diff_implementations_answer *answer, lb_err *err)
{
    lb_diff_implementations_answer of_one = {.judged = false};
    lb_diff_report *as_one = calloc(1, sizeof *as_one);
    if (!as_one) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    const lb_status status = judge_all_steps(q, memory, as_one, &of_one, err);
    lb_diff_report_share_cost(report, as_one), report->out_of_memory |= as_one->out_of_memory;
    if (status == LB_OK && of_one.judged && (of_one.proven || as_one->n_differences)) {
        const lb_diff_report alone = *report;
        *report = *as_one, *as_one = alone, *answer = of_one;
    }
    lb_diff_report_free(as_one);
    return status;
}

/* Step by step, with all ranks of either side. */
static lb_status judge_steps(const lb_diff_implementations_question *q, lb_source_memory *memory,
                             lb_diff_report *report, lb_diff_implementations_answer *answer, lb_err *err)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(q->captures[0], &steps);
    lb_status status = LB_OK;
    bool any = false, all = true;
    for (uint32_t i = 0; i < n && status == LB_OK && all; i++) {
        step_pair pair = {.captures = {q->captures[0], q->captures[1]},
                          .step = steps[i],
                          .place = q->place,
                          .progress = q->options->progress,
                          .smallest = q->options->smallest};
        if (steps[i] < q->options->first_step || steps[i] > q->options->last_step) continue;
        if (q->options->progress) q->options->progress("comparing implementations", i, n);
        status = load_ranks(&pair, 0, &all, err);
        if (status == LB_OK && all) status = load_ranks(&pair, 1, &all, err);
        if (status == LB_OK && all)
            status = judge_step(&pair, memory, report, !any, answer, err), any = true, all = answer->judged;
        free(pair.programs[0]), free(pair.programs[1]);
    }
    answer->judged = any && all;
    return status;
}

lb_status lb_diff_implementations(const lb_diff_implementations_question *q, lb_diff_report *report,
                                  lb_diff_implementations_answer *answer, lb_err *err)
{
    lb_source_memory memory = {.map = q->map};
    *answer = (lb_diff_implementations_answer){.judged = false};
    lb_status status =
        q->cut ? judge_all_steps(q, &memory, report, answer, err) : judge_steps(q, &memory, report, answer, err);
    if (status == LB_OK && q->as_one && !q->cut && !answer->judged && !report->n_differences)
        status = judge_steps_as_one(q, &memory, report, answer, err);
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
