/* Ops of two implementations as rows of a report: see implementation_rows.h. */
#include "runs/implementation_rows.h"

#include "exact/modules.h"
#include "joined/joined_ranks.h"

#include <lastbit/text_stream.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint32_t first_value(const lb_program *program, uint32_t op)
{
    for (uint32_t i = 0; i < lb_op_outcomes(&program->ops[op]); i++)
        if (lb_op_outcome(program, &program->ops[op], i) != LB_NONE)
            return lb_op_outcome(program, &program->ops[op], i);
    return LB_NONE;
}

/* What was recorded of the op: the program of the lowest rank of a side that runs it, or of its step. */
static const lb_program *recorded_of(const lb_implementation_rows *rows, int side, uint32_t op)
{
    const lb_program_view *view = rows->x->sides[side].view;
    return op == LB_NONE ? rows->p[side] : view->parts[lb_program_view_part_of(view, op)].program;
}

uint64_t lb_implementation_rows_ranks(const lb_implementation_rows *rows, int side, uint64_t parts)
{
    const lb_program_view *view = rows->x->sides[side].view;
    uint64_t ranks = 0;
    for (uint32_t k = 0; k < view->n_parts; k++)
        if (parts & lb_program_view_rank_bit(k))
            ranks |= lb_program_view_rank_bit((uint32_t)view->parts[k].program->rank);
    return ranks;
}

/* The op as its rank, or its step, recorded it: what `show` is asked for. */
static uint32_t recorded_op(const lb_implementation_rows *rows, int side, uint32_t op)
{
    const lb_program_view *view = rows->x->sides[side].view;
    if (op == LB_NONE || !view->op_of) return op;
    const lb_program_view_part *part = &view->parts[lb_program_view_part_of(view, op)];
    uint32_t last = op;
    for (uint32_t i = 0; i < part->program->n_ops; i++) {
        if (view->op_of[part->first_op + i] == op) return i;
        if (view->op_of[part->first_op + i] <= op) last = i; /* one of those that a fused op was spelled out as */
    }
    return last;
}

lb_diff_row lb_implementation_rows_at(const lb_implementation_rows *rows, uint32_t a, uint32_t b)
{
    const lb_program *program = a != LB_NONE ? rows->p[0] : rows->p[1];
    const lb_op *op = &program->ops[a != LB_NONE ? a : b];
    const lb_program *here = a == LB_NONE && rows->x->sides[0].view->n_parts == 1
                                 ? rows->p[0]
                                 : recorded_of(rows, a == LB_NONE, a == LB_NONE ? b : a);
    lb_diff_row row = {.step = here->step,
                       .rank = here->rank,
                       .phase = (lb_phase)op->phase,
                       .layer = lb_report_keep(rows->report, lb_op_layer(program, op)),
                       .op = lb_report_keep(rows->report, lb_joined_ranks_op_name(program, op)),
                       .index = recorded_op(rows, 0, a),
                       .other = recorded_op(rows, 1, b),
                       .other_rank = recorded_of(rows, 1, b)->rank,
                       .other_step = recorded_of(rows, 1, b)->step,
                       .order = a != LB_NONE ? a : b,
                       .verdict = LB_VERDICT_IDENTICAL,
                       .local = LB_VERDICT_IDENTICAL,
                       .inherited = LB_VERDICT_IDENTICAL,
                       .why = "",
                       .bound_ratio = NAN};
    return row;
}

char *lb_implementation_rows_tensors(const lb_implementations *x, const lb_content *content)
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

/* ---- life-cycle ---- */

static bool list_digests(lb_implementation_rows *rows)
{
    for (uint32_t v = 0; v < rows->p[1]->n_values; v++)
        if (!lb_digest_is_none(rows->p[1]->values[v].logical) && rows->x->sides[1].quantities[v].tells &&
            !lb_hash_add(&rows->by_digest, rows->p[1]->values[v].logical.lo, v))
            return false;
    return true;
}

static void mark_regions(lb_implementation_rows *rows)
{
    for (uint32_t i = 0; i < rows->x->regions.n; i++) {
        const lb_region *region = &rows->x->regions.list[i];
        for (int k = 0; k < 2; k++) {
            for (uint32_t j = 0; j < region->n[k]; j++)
                rows->state[k][rows->x->regions.ops[region->first[k] + j]] = LB_ROW_IN_REGION;
            for (uint32_t j = 0; j < region->n_unheld[k]; j++)
                rows->state[k][rows->x->sides[k].graph.giver[rows->x->regions.unheld[region->first_unheld[k] + j]]] =
                    LB_ROW_IN_REGION;
            if (region->op[k] != LB_NONE) rows->state[k][region->op[k]] = LB_ROW_NAMED;
        }
    }
}

bool lb_implementation_rows_open(lb_implementation_rows *rows, const lb_implementations *x, const uint8_t *spared,
                                 lb_diff_report *report)
{
    const lb_exact_side *const sides[] = {&x->sides[0], &x->sides[1]};
    *rows = (lb_implementation_rows){
        .x = x, .spared = spared, .report = report, .p = {x->sides[0].program, x->sides[1].program}};
    for (int k = 0; k < 2; k++) rows->state[k] = calloc(rows->p[k]->n_ops + 1, 1);
    if (x->regions.n &&
        lb_odd_sources_find(&x->sources[0], &x->sources[1], &x->contents, &rows->odd, &rows->n_odd, NULL) != LB_OK)
        report->out_of_memory = true;
    if (!rows->state[0] || !rows->state[1] || !list_digests(rows)) return false;
    if (x->regions.n && !lb_modules_beside(sides, x->met, rows->beside)) return false;
    mark_regions(rows);
    return true;
}

void lb_implementation_rows_close(lb_implementation_rows *rows)
{
    for (int k = 0; k < 2; k++) free(rows->state[k]), free(rows->beside[k]);
    lb_hash_release(&rows->by_digest);
    free(rows->odd);
}

/* ---- what met ---- */

/* The value of B that is the same quantity in the same bits, LB_NONE. Several of B's values may be that quantity (half
 * a rotary table, the whole of it), and the one that A's has met need not be the one that was made as A's was. */
static uint32_t same_bits(const lb_implementation_rows *rows, uint32_t va, uint32_t met)
{
    const lb_value *x = &rows->p[0]->values[va], *y = &rows->p[1]->values[met];
    if (lb_digest_is_none(x->logical)) return LB_NONE;
    if (x->dtype == y->dtype && lb_layout_same_shape(&x->layout, &y->layout) &&
        !lb_program_view_values_differ(rows->x->sides[0].view, va, rows->x->sides[1].view, met))
        return met;
    LB_HASH_EACH(vb, &rows->by_digest, x->logical.lo)
    {
        y = &rows->p[1]->values[vb];
        if (x->dtype == y->dtype && lb_digest_equal(x->logical, y->logical) &&
            lb_quantities_agree(&rows->x->sides[0].quantities[va], &rows->x->sides[1].quantities[vb]))
            return vb;
    }
    return LB_NONE;
}

/* An op of A whose result is a quantity of B: the same bits where B has it in one order and with one digest, else
 * rounding. */
static void add_met_row(lb_implementation_rows *rows, uint32_t a, uint32_t va, uint32_t vb, bool led)
{
    const uint32_t same = same_bits(rows, va, vb), b = rows->x->sides[1].graph.giver[same == LB_NONE ? vb : same];
    const bool equal = same != LB_NONE;
    lb_diff_row row = lb_implementation_rows_at(rows, a, b);
    rows->report->ops++, rows->report->identical += equal;
    if (led)
        row.inherited = row.verdict = LB_VERDICT_DIVERGED, row.why = "follows from a difference before it";
    else if (!equal)
        row.local = row.verdict = LB_VERDICT_ROUNDING,
        row.why = "both sides compute this quantity, in different bits or another order";
    lb_report_layer(rows->report, &row);
    if (!led && !equal && !rows->report->has_earliest) rows->report->earliest = row, rows->report->has_earliest = true;
    if (!led && !equal && !rows->x->regions.n) lb_report_row(rows->report, &row);
}

static void add_rows(lb_implementation_rows *rows)
{
    bool led = false;
    for (uint32_t i = 0; i < rows->p[0]->n_ops; i++) {
        const uint32_t v =
            lb_value_graph_computes(rows->p[0], &rows->p[0]->ops[i]) ? first_value(rows->p[0], i) : LB_NONE;
        if (v == LB_NONE) continue;
        led |= rows->state[0][i] != LB_ROW_PLAIN;
        if (rows->state[0][i] == LB_ROW_PLAIN && rows->x->met[0][v] != LB_NONE)
            add_met_row(rows, i, v, rows->x->met[0][v], led);
    }
}

/* ---- merged adapters ---- */

/* The first op of forward of a side that reads a source, or what is a view, a copy or a cast of it; LB_NONE. */
static uint32_t first_reader(const lb_implementation_rows *rows, int side, uint32_t source)
{
    const lb_value_graph *g = &rows->x->sides[side].graph;
    const uint32_t value = rows->x->sources[side].list[source].value;
    uint32_t first = LB_NONE;
    for (uint32_t v = 0; v < rows->p[side]->n_values; v++)
        if (g->first_use[v] < g->first_use[v + 1] && g->uses[g->first_use[v]] < first &&
            (v == value || lb_value_graph_source(g, v) == value))
            first = g->uses[g->first_use[v]];
    return first != LB_NONE && rows->p[side]->ops[first].phase == LB_PHASE_FORWARD ? first : LB_NONE;
}

/* Where an adapter that one side has merged begins to tell: a merged weight is the sum of base and adapter but for its
 * rounding, so that what reads it is not a quantity of the other side, and only what they all give out is compared. */
static void add_merged_row(lb_implementation_rows *rows, const lb_merged_adapter *adapter)
{
    const uint32_t of[2] = {adapter->online ? adapter->whole : adapter->base,
                            adapter->online ? adapter->base : adapter->whole};
    const uint32_t a = first_reader(rows, 0, of[0]), b = first_reader(rows, 1, of[1]);
    const uint32_t reader = adapter->online ? a : b,
                   v = reader == LB_NONE ? LB_NONE : first_value(rows->p[!adapter->online], reader);
    if (a == LB_NONE || b == LB_NONE || v == LB_NONE || rows->x->met[!adapter->online][v] != LB_NONE) return;
    const lb_step_source *online = rows->x->sources[adapter->online].list;
    char text[700];
    snprintf(text, sizeof text, "the %s side has %.400s + %.4g lora_B lora_A in one tensor, rounded when it was merged",
             adapter->online ? "first" : "second", online[adapter->base].name, adapter->scale);
    lb_diff_row row = lb_implementation_rows_at(rows, a, b);
    row.local = row.verdict = LB_VERDICT_ROUNDING, row.why = lb_report_keep(rows->report, text);
    lb_diff_row *earliest = &rows->report->earliest;
    if (rows->report->has_earliest && row.step == earliest->step && row.rank == earliest->rank &&
        row.order < earliest->order)
        *earliest = row;
    lb_report_row(rows->report, &row);
}

static void add_merged_rows(lb_implementation_rows *rows)
{
    for (uint32_t i = 0; i < rows->x->n_merged && !rows->x->regions.n; i++) add_merged_row(rows, &rows->x->merged[i]);
}

/* ---- what leaves the step ---- */

/* What leaves may have different bits although all values that met have the same: `identical` is said of all that
 * leaves. */
static void add_leaving(lb_implementation_rows *rows)
{
    for (uint32_t i = 0; i < rows->x->counterparts.n && !rows->x->regions.n; i++) {
        const lb_counterpart *c = &rows->x->counterparts.list[i];
        const uint32_t va = rows->x->counterparts.pieces[c->first].tensor, a = rows->x->sides[0].graph.giver[va],
                       b = rows->x->sides[1].graph.giver[c->b];
        if (c->kind != LB_COUNTERPART_EXIT && c->kind != LB_COUNTERPART_FINAL) continue;
        const lb_value *x = &rows->p[0]->values[va], *y = &rows->p[1]->values[c->b];
        const bool equal = c->n == 1 && x->dtype == y->dtype && lb_layout_same_shape(&x->layout, &y->layout) &&
                           !lb_digest_is_none(x->logical) && !lb_digest_is_none(y->logical) &&
                           !lb_program_view_values_differ(rows->x->sides[0].view, va, rows->x->sides[1].view, c->b);
        if (equal || a == LB_NONE || b == LB_NONE) continue;
        lb_diff_row row = lb_implementation_rows_at(rows, a, b);
        row.local = row.verdict = LB_VERDICT_ROUNDING,
        row.why = "both sides leave this quantity, in different bits or another layout";
        lb_report_row(rows->report, &row);
    }
}

void lb_implementation_rows_add(lb_implementation_rows *rows)
{
    add_rows(rows);
    add_merged_rows(rows);
    add_leaving(rows);
}
