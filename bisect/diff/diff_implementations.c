/* The report on two implementations: see diff_implementations.h. */
#include "diff_implementations.h"

#include "diff_arguments.h"
#include "diff_place.h"
#include "implementations.h"
#include "joined_ranks.h"
#include "modules.h"
#include "side_replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- who is asked ---- */

/* Of the first rank; NULL: not all ranks of the run were recorded, and what they handed each other is not known. */
static const lb_program *first_step(lb_capture *capture)
{
    const int32_t *ranks;
    const int64_t *steps;
    const lb_program *p;
    const uint32_t n = lb_capture_ranks(capture, &ranks);
    if (!n || !lb_capture_steps(capture, &steps)) return NULL;
    if (lb_capture_program(capture, ranks[0], steps[0], &p, NULL) != LB_OK) return NULL;
    return n == 1 && p->n_collectives == 0 ? p : (uint32_t)(p->world > 0 ? p->world : 1) == n ? p : NULL;
}

static bool has_one_rank(lb_capture *capture)
{
    const int32_t *ranks;
    return lb_capture_ranks(capture, &ranks) == 1;
}

static bool has_ops(const lb_program *p)
{
    for (uint32_t i = 0; p && i < p->n_ops; i++)
        if (lb_op_computes(p, &p->ops[i])) return true;
    return false;
}

/* Regions are found in the order of execution: of passes in another order they would be those of different data. */
static bool passes_shift(lb_capture *a, const lb_program *x, lb_capture *b, const lb_program *y)
{
    lb_program_view views[2] = {{0}, {0}};
    lb_forwards passes = {.used = false};
    bool shift = false;
    if (lb_program_view_init(a, &x, 1, &views[0], NULL) == LB_OK &&
        lb_program_view_init(b, &y, 1, &views[1], NULL) == LB_OK)
        shift = lb_forwards_find(&views[0], &views[1], &passes, NULL) == LB_OK && lb_forwards_shift(&passes);
    lb_forwards_release(&passes);
    lb_program_view_release(&views[0]), lb_program_view_release(&views[1]);
    return shift;
}

bool lb_diff_may_be_implementations(lb_capture *a, lb_capture *b)
{
    const lb_program *x = first_step(a), *y = first_step(b);
    return has_ops(x) && has_ops(y) && !(has_one_rank(a) && has_one_rank(b) && passes_shift(a, x, b, y));
}

/* Parameters that a program begins with; `*shared`: of these, those that the other has by the same name. */
static uint32_t count_parameters(const lb_program *p, const lb_program *other, uint32_t *shared)
{
    uint32_t all = 0;
    *shared = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const uint32_t v = lb_op_is_source(p, &p->ops[i]) ? lb_op_results(p, &p->ops[i])[0] : LB_NONE;
        if (v == LB_NONE || !(p->values[v].flags & LB_VALUE_PARAMETER)) continue;
        bool found = false;
        for (uint32_t w = 0; w < other->n_values && !found; w++)
            found = other->values[w].flags & LB_VALUE_PARAMETER &&
                    !strcmp(lb_program_text(p, p->values[v].name), lb_program_text(other, other->values[w].name));
        all++, *shared += found;
    }
    return all;
}

bool lb_diff_are_strangers(lb_capture *a, lb_capture *b)
{
    const lb_program *x = first_step(a), *y = first_step(b);
    uint32_t shared[2];
    if (!lb_diff_may_be_implementations(a, b)) return false;
    const uint32_t all[] = {count_parameters(x, y, &shared[0]), count_parameters(y, x, &shared[1])};
    return all[0] && all[1] && 4 * shared[0] < all[0] && 4 * shared[1] < all[1];
}

/* 1 where the other side has an adapter in its weights, in the first step; 0 else. */
static uint32_t count_merged(lb_capture *a, const lb_program *x, lb_capture *b, const lb_program *y)
{
    lb_program_view views[2] = {{0}, {0}};
    lb_step_sources sources[2] = {{0}, {0}};
    lb_merged_adapter *list = NULL;
    uint32_t n = 0;
    lb_status status = lb_program_view_init(a, &x, 1, &views[0], NULL);
    if (status == LB_OK) status = lb_program_view_init(b, &y, 1, &views[1], NULL);
    for (int k = 0; k < 2 && status == LB_OK; k++) status = lb_step_sources_list(&views[k], &sources[k], NULL);
    if (status == LB_OK) status = lb_merged_adapters_find(&sources[0], &sources[1], 1, &list, &n, NULL);
    free(list);
    for (int k = 0; k < 2; k++) lb_step_sources_release(&sources[k]), lb_program_view_release(&views[k]);
    return status == LB_OK ? n : 0;
}

bool lb_diff_has_merged_adapters(lb_capture *a, lb_capture *b)
{
    const lb_program *x = first_step(a), *y = first_step(b);
    return lb_diff_may_be_implementations(a, b) && count_merged(a, x, b, y) > 0;
}

/* ---- rows ---- */

typedef struct writer {
    const lb_implementations *x;
    lb_diff_report *report;
    const lb_program *p[2];
    uint8_t *state[2];   /* per op: ROW_… */
    uint32_t *beside[2]; /* per scope of either side: the other's (modules.h); NULL where no place differs */
} writer;

enum { ROW_PLAIN, ROW_IN_REGION, ROW_NAMED };

static uint32_t first_value(const lb_program *p, uint32_t op)
{
    for (uint32_t i = 0; i < lb_op_outcomes(&p->ops[op]); i++)
        if (lb_op_outcome(p, &p->ops[op], i) != LB_NONE) return lb_op_outcome(p, &p->ops[op], i);
    return LB_NONE;
}

/* The lowest rank of a side that runs the op. */
static int32_t rank_of(const writer *w, int side, uint32_t op)
{
    const lb_program_view *view = w->x->sides[side].view;
    return op == LB_NONE ? w->p[side]->rank : view->parts[lb_program_view_part_of(view, op)].program->rank;
}

static lb_diff_row row_at(const writer *w, uint32_t a, uint32_t b)
{
    const lb_program *p = a != LB_NONE ? w->p[0] : w->p[1];
    const lb_op *op = &p->ops[a != LB_NONE ? a : b];
    lb_diff_row row = {.step = w->p[0]->step,
                       .rank = a == LB_NONE && w->x->sides[0].view->n_parts == 1
                                   ? w->p[0]->rank
                                   : rank_of(w, a == LB_NONE, a == LB_NONE ? b : a),
                       .phase = (lb_phase)op->phase,
                       .layer = lb_report_keep(w->report, lb_op_layer(p, op)),
                       .op = lb_report_keep(w->report, lb_joined_ranks_op_name(p, op)),
                       .index = a,
                       .other = b,
                       .other_rank = rank_of(w, 1, b),
                       .order = a != LB_NONE ? a : b,
                       .verdict = LB_VERDICT_IDENTICAL,
                       .local = LB_VERDICT_IDENTICAL,
                       .inherited = LB_VERDICT_IDENTICAL,
                       .why = "",
                       .bound_ratio = NAN};
    return row;
}

/* An op of A whose result is a quantity of B: the same bits where both lie in one order and have one digest, else rounding. */
static void add_met_row(writer *w, uint32_t a, uint32_t va, uint32_t vb, bool led)
{
    const uint32_t b = w->x->sides[1].graph.giver[vb];
    lb_diff_row row = row_at(w, a, b);
    const lb_value *x = &w->p[0]->values[va], *y = &w->p[1]->values[vb];
    const bool alike = x->dtype == y->dtype && lb_layout_same_shape(&x->layout, &y->layout);
    const bool equal = alike && !lb_digest_is_none(x->logical) &&
                       !lb_program_view_values_differ(w->x->sides[0].view, va, w->x->sides[1].view, vb);
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

static const char *short_name(const lb_program *p, uint32_t op)
{
    const char *name = lb_joined_ranks_op_name(p, &p->ops[op]);
    return strncmp(name, "aten::", 6) ? name : name + 6;
}

static const char *source_name(const lb_program *p, uint32_t v)
{
    return p->values[v].name == LB_NONE || !*lb_program_text(p, p->values[v].name)
               ? "a constant"
               : lb_program_text(p, p->values[v].name);
}

static void list_ops(const writer *w, const lb_region *r, int side, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < r->n[side] && i < 6 && at < size; i++) {
        const int n = snprintf(text + at, size - at, "%s%s", i ? ", " : "",
                               short_name(w->p[side], w->x->regions.ops[r->first[side] + i]));
        at += n > 0 ? (size_t)n : 0;
    }
    if (r->n[side] > 6 && at < size) snprintf(text + at, size - at, " and %u more", r->n[side] - 6);
}

static const char *reason_of(writer *w, const lb_region *r)
{
    char text[700], ops[2][240];
    const lb_counterpart *c = &w->x->counterparts.list[r->counterpart];
    list_ops(w, r, 0, ops[0], sizeof ops[0]), list_ops(w, r, 1, ops[1], sizeof ops[1]);
    switch (r->reason) {
    case LB_REGION_ARGUMENTS:
        snprintf(text, sizeof text, "called with other arguments, from the same inputs: this is not the same function");
        break;
    case LB_REGION_ORDER:
        snprintf(
            text, sizeof text,
            "it reads the same numbers in another order on the second side: heads, halves or channels are put together "
            "differently");
        break;
    case LB_REGION_MASK:
        snprintf(text, sizeof text,
                 "from the same inputs with another mask, or other arguments beside it: this is not the same function");
        break;
    case LB_REGION_SOURCE:
        snprintf(text, sizeof text, "this reads %s%s%s%s, whose numbers the other side does not hold",
                 r->source[0] != LB_NONE ? source_name(w->p[0], r->source[0]) : "",
                 r->source[0] != LB_NONE ? " (first side)" : "",
                 r->source[0] != LB_NONE && r->source[1] != LB_NONE ? " and " : "",
                 r->source[1] != LB_NONE ? source_name(w->p[1], r->source[1]) : "");
        break;
    case LB_REGION_MISSING:
        snprintf(text, sizeof text, "only the %s side runs %s here%s%s", r->op[0] != LB_NONE ? "first" : "second",
                 r->op[0] != LB_NONE   ? short_name(w->p[0], r->op[0])
                 : r->op[1] != LB_NONE ? short_name(w->p[1], r->op[1])
                                       : "an op",
                 c->name ? ", for " : "", c->name ? c->name : "");
        break;
    case LB_REGION_OPS:
        snprintf(text, sizeof text,
                 "from the same inputs the first side computes %s, the second %s, which is not the same function",
                 ops[0], ops[1]);
        break;
    }
    return lb_report_keep(w->report, text);
}

/* What the ops were called with, what a lone one is for, and the lines of code that called them. Where one side has no such op, its region's first
 * op says where it goes on. */
static void describe(writer *w, const lb_region *r, lb_diff_row *row)
{
    uint32_t ops[2];
    char text[160] = "";
    for (int k = 0; k < 2; k++) {
        ops[k] = r->op[k] != LB_NONE ? r->op[k] : r->n[k] ? w->x->regions.ops[r->first[k]] : LB_NONE;
        if (ops[k] == LB_NONE) continue;
        const lb_code_line line = lb_op_line(w->p[k], &w->p[k]->ops[ops[k]]);
        row->lines[k] = lb_report_keep_line(w->report, &line);
    }
    if (r->reason == LB_REGION_ARGUMENTS || r->reason == LB_REGION_MASK)
        lb_arguments_describe(w->report, w->p, r->op, row);
    if (r->reason != LB_REGION_MISSING) return;
    const int lone = r->op[0] == LB_NONE;
    if (ops[0] != LB_NONE && ops[1] != LB_NONE) lb_arguments_options(w->report, w->p, ops, row);
    uint32_t *partner = malloc((w->p[lone]->n_ops + 1) * sizeof *partner);
    if (partner) memset(partner, 0xFF, (w->p[lone]->n_ops + 1) * sizeof *partner);
    if (partner) lb_arguments_meaning(w->p[lone], &r->op[lone], 1, partner, text, sizeof text);
    if (*text) row->means = lb_report_keep(w->report, text);
    free(partner);
}

/* The innermost module that holds the first op of one side's part of a region and what gives its inputs: there the other side's op would stand. */
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
        while (scope && !lb_modules_is_in(p, p->ops[giver].scope, scope))
            scope = p->scopes[scope].parent == LB_NONE ? 0 : p->scopes[scope].parent;
    }
    return scope;
}

/* The module of a side that runs no such op: the one beside the other side's, or what lies around the place in it. */
static uint32_t module_without(const writer *w, const lb_region *r, int side, uint32_t module)
{
    const uint32_t around = scope_around(w, r, side);
    return around != LB_NONE && lb_modules_is_in(w->p[side], around, module) ? around : module;
}

/* The layer of B beside the place: of the op that is named there, unless several layers share that one; else the module beside A's, or where B's part of
 * the region begins. */
static const char *layer_beside(const writer *w, const lb_region *r)
{
    const lb_program *p = w->p[1];
    const uint32_t module = r->op[0] == LB_NONE ? LB_NONE : w->beside[0][w->p[0]->ops[r->op[0]].scope],
                   scope = r->op[1] == LB_NONE ? LB_NONE : p->ops[r->op[1]].scope;
    const bool known = module != LB_NONE && module;
    if (scope != LB_NONE && (!known || (w->beside[1][scope] != LB_NONE && lb_modules_is_in(p, scope, module))))
        return lb_op_layer(p, &p->ops[r->op[1]]);
    if (known) return lb_program_text(p, p->scopes[scope == LB_NONE ? module_without(w, r, 1, module) : module].path);
    return r->n[1] ? lb_op_layer(p, &p->ops[w->x->regions.ops[r->first[1]]]) : NULL;
}

static void add_difference(writer *w, const lb_region *r)
{
    lb_diff_difference d = {.effect = r->effect, .times = r->times, .steps = 1, .ranks = {r->ranks[0], r->ranks[1]}};
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
    d.row.why = reason_of(w, r);
    const int side = r->op[0] == LB_NONE;
    lb_place_neighbours(w->report, w->p[side], r->op[side], &d.row);
    lb_report_row(w->report, &d.row);
    APPEND(w->report->differences, w->report->n_differences, d);
}

static int by_effect(const void *x, const void *y)
{
    const lb_diff_difference *a = x, *b = y;
    if (a->row.step != b->row.step) return (a->row.step > b->row.step) - (a->row.step < b->row.step);
    const double e = a->effect == a->effect ? a->effect : -1, f = b->effect == b->effect ? b->effect : -1;
    return e != f ? (e < f) - (e > f) : (a->row.order > b->row.order) - (a->row.order < b->row.order);
}

static bool is_again(const lb_diff_difference *x, const lb_diff_difference *y)
{
    if (x->row.step == y->row.step || x->row.phase != y->row.phase || !x->op_b != !y->op_b) return false;
    if (strcmp(x->row.layer, y->row.layer) || strcmp(x->row.op, y->row.op) || strcmp(x->row.why, y->row.why))
        return false;
    return !x->op_b || (!strcmp(x->op_b, y->op_b) && !strcmp(x->layer_b, y->layer_b));
}

/* A place that differs in each step is one place; its effect is that of the first step. */
static void join_steps(lb_diff_report *report)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < report->n_differences; i++) {
        uint32_t j = 0;
        while (j < kept && !is_again(&report->differences[j], &report->differences[i])) j++;
        if (j == kept)
            report->differences[kept++] = report->differences[i];
        else
            report->differences[j].steps++;
    }
    report->n_differences = kept;
}

/* ---- tensors ---- */

/* "base + s B A" of the second side's merged weight, or the first side's merged weight of what the second holds of an adapter. False: the source is
 * neither. */
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
        size_t at = 0;
        w->report->sources += *second != 0,
            w->report->sources_identical += *second && c->relation != LB_CONTENT_NONE && c->found == c->all;
        if (c->relation == LB_CONTENT_SAME || !*second) continue;
        if (c->relation == LB_CONTENT_NONE && is_merged(x, i, first, sizeof first)) {
            const lb_diff_map row = {lb_report_keep(w->report, first), lb_report_keep(w->report, second), "merged"};
            APPEND(w->report->map, w->report->n_map, row);
            continue;
        }
        uint32_t last = LB_NONE;
        for (uint32_t k = 0; k < c->n && at < sizeof first - 80; k++) {
            const uint32_t t = x->contents.runs[c->first + k].tensor;
            if (t == last) continue;
            at += (size_t)snprintf(first + at, sizeof first - at, "%s%.200s", last == LB_NONE ? "" : " + ",
                                   x->sources[0].list[t].name);
            last = t;
        }
        const lb_diff_map row = {lb_report_keep(w->report, first), lb_report_keep(w->report, second),
                                 c->cast && c->relation == LB_CONTENT_RENAMED ? "cast"
                                                                              : lb_content_relation_name(c->relation)};
        APPEND(w->report->map, w->report->n_map, row);
    }
}

/* What leaves may have other bits although all values that met have the same: `identical` is said of all that leaves. */
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

static void say_moved(writer *w)
{
    char text[300];
    if (!w->x->moved) return;
    snprintf(text, sizeof text,
             "step %lld: %u parameters hold other numbers on the two sides as the window begins: that came before it; "
             "the step was judged by itself, from the "
             "first side's numbers",
             (long long)w->p[0]->step, w->x->moved);
    lb_report_finding(w->report, text);
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
    APPEND(w->report->differences, w->report->n_differences, d);
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
            if (r->op[k] != LB_NONE) w->state[k][r->op[k]] = ROW_NAMED;
        }
    }
}

static lb_status report_step(const lb_implementations *x, lb_diff_report *report, bool first, lb_err *err)
{
    writer w = {.x = x, .report = report, .p = {x->sides[0].program, x->sides[1].program}};
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    for (int k = 0; k < 2; k++) w.state[k] = calloc(w.p[k]->n_ops + 1, 1);
    const bool room = w.state[0] && w.state[1] && (!x->regions.n || lb_modules_beside(sides, x->met, w.beside));
    if (room) {
        mark_regions(&w);
        if (first) add_map(&w);
        for (uint32_t i = 0; i < x->regions.n; i++) add_difference(&w, &x->regions.list[i]);
        add_rows(&w);
        add_leaving(&w);
        say_moved(&w);
    }
    lb_status status = room ? check_own(&w, err) : LB_OK;
    for (int k = 0; k < 2; k++) free(w.state[k]), free(w.beside[k]);
    if (status != LB_OK) return status;
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", w.p[0]->n_ops);
}

/* A cache that an earlier step left, and that the other side does not hold in the same numbers: the rounding of that step is in it, and exact
 * arithmetic of this step cannot tell it from another one. */
static bool begins_with_carried(const lb_implementations *x)
{
    bool found = false;
    for (int side = 0; side < 2 && !found; side++) {
        uint8_t *held = lb_step_sources_held(&x->contents, side, x->sources[side].n, true);
        found = !held;
        for (uint32_t i = 0; i < x->sources[side].n && !found; i++) {
            const lb_value *v = &x->sides[side].program->values[x->sources[side].list[i].value];
            const bool cache = v->source == LB_SOURCE_CARRIED &&
                               !(v->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE | LB_VALUE_GRADIENT)) &&
                               lb_dtype_is_float(v->dtype) && lb_layout_numel(&v->layout) > 1;
            found = cache && !held[i];
        }
        free(held);
    }
    return found;
}

/* All ranks of both sides in one step. */
typedef struct step_pair {
    lb_capture *captures[2];
    const lb_program **programs[2];
    uint32_t n[2];
    int64_t step;
} step_pair;

static lb_status judge_step(const step_pair *pair, lb_source_memory *memory, lb_diff_report *report, bool first,
                            bool *judged, lb_err *err)
{
    lb_program_view views[2] = {{0}, {0}};
    lb_implementations x;
    LB_TRY(lb_joined_ranks_view(pair->captures[0], pair->programs[0], pair->n[0], &views[0], err));
    lb_status status = lb_joined_ranks_view(pair->captures[1], pair->programs[1], pair->n[1], &views[1], err);
    if (status == LB_OK) status = lb_implementations_judge(&views[0], &views[1], memory, &x, err);
    if (status == LB_OK) {
        char text[400];
        const bool flipped = x.regions.n && x.regions.list[0].chosen;
        *judged = x.judged && (x.same || (x.regions.n && !flipped && !begins_with_carried(&x)));
        status = *judged ? report_step(&x, report, first, err) : LB_OK;
        snprintf(text, sizeof text, "step %lld: %s", (long long)pair->step,
                 *x.missing ? x.missing
                 : flipped  ? "a choice of experts fell differently on the two sides from the same numbers, and what "
                              "follows from it was not judged"
                            : "what leaves the step differs, and no place was found");
        if (!*judged) lb_report_missing(report, text);
        lb_implementations_release(&x);
    }
    lb_program_view_release(&views[0]), lb_program_view_release(&views[1]);
    return status;
}

/* False: a rank has no such step. */
static bool load_ranks(step_pair *pair, int side)
{
    const int32_t *ranks;
    const uint32_t n = lb_capture_ranks(pair->captures[side], &ranks);
    pair->programs[side] = calloc(n + 1, sizeof *pair->programs[side]), pair->n[side] = n;
    for (uint32_t i = 0; i < n && pair->programs[side]; i++)
        if (lb_capture_program(pair->captures[side], ranks[i], pair->step, &pair->programs[side][i], NULL) != LB_OK)
            return false;
    return pair->programs[side] != NULL;
}

lb_status lb_diff_implementations(lb_capture *a, lb_capture *b, const lb_diff_options *options, lb_diff_report *report,
                                  bool *judged, lb_err *err)
{
    const int64_t *steps;
    lb_source_memory memory = {.n_names = options->n_names};
    lb_source_name *names = calloc(options->n_names + 1, sizeof *names);
    if (!names) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u names", options->n_names);
    for (uint32_t i = 0; i < options->n_names; i++)
        names[i] = (lb_source_name){options->names[i].first, options->names[i].second};
    memory.names = names;
    const uint32_t n = lb_capture_steps(a, &steps);
    lb_status status = LB_OK;
    bool any = false, all = true;
    for (uint32_t i = 0; i < n && status == LB_OK && all; i++) {
        step_pair pair = {.captures = {a, b}, .step = steps[i]};
        if (steps[i] < options->first_step || steps[i] > options->last_step) continue;
        if (options->progress) options->progress("comparing implementations", i, n);
        all = load_ranks(&pair, 0) && load_ranks(&pair, 1);
        if (all) status = judge_step(&pair, &memory, report, !any, &all, err), any = true;
        free(pair.programs[0]), free(pair.programs[1]);
    }
    lb_source_memory_release(&memory);
    free(names);
    /* A place that differs stands, whatever a later step says. */
    *judged = any && (all || report->n_differences);
    report->implementations = true;
    join_steps(report);
    if (report->n_differences)
        qsort(report->differences, report->n_differences, sizeof *report->differences, by_effect);
    if (report->n_differences) report->verdict = LB_VERDICT_DIVERGED;
    return status;
}
