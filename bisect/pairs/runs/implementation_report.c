/* One step of two implementations as a report: see implementation_report.h. */
#include "runs/implementation_report.h"
#include "runs/implementation_differences.h"
#include "runs/implementation_rows.h"

#include "joined/joined_ranks.h"
#include "pair/side_replay.h"
#include "program/input_name.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void add_map(lb_implementation_rows *rows)
{
    const lb_implementations *x = rows->x;
    for (uint32_t i = 0; i < x->contents.n; i++) {
        const lb_content *content = &x->contents.list[i];
        const char *second = x->sources[1].list[i].name;
        char first[600] = "";
        rows->report->sources += *second != 0,
            rows->report->sources_identical +=
            *second && content->relation != LB_CONTENT_NONE && content->found == content->all;
        if (content->relation == LB_CONTENT_SAME || !*second) continue;
        if (content->relation == LB_CONTENT_NONE && is_merged(x, i, first, sizeof first)) {
            const lb_diff_map row = {lb_report_keep(rows->report, first), lb_report_keep(rows->report, second),
                                     "merged"};
            LB_DIFF_APPEND(rows->report, map, n_map, row);
            continue;
        }
        char *names = lb_implementation_rows_tensors(x, content);
        rows->report->out_of_memory |= !names;
        if (!names) return;
        const lb_diff_map row = {lb_report_keep(rows->report, names), lb_report_keep(rows->report, second),
                                 content->cast && content->relation == LB_CONTENT_RENAMED
                                     ? "cast"
                                     : lb_content_relation_name(content->relation)};
        LB_DIFF_APPEND(rows->report, map, n_map, row);
        free(names);
    }
}

/* ---- sentences ---- */

static void say_apart(void *context, const char *what)
{
    const lb_implementation_rows *rows = context;
    char text[700];
    snprintf(text, sizeof text,
             "step %lld begins with different numbers on the two sides, which came before the window: %.500s",
             (long long)rows->p[0]->step, what);
    lb_report_finding(rows->report, text);
}

static void say_moved(lb_implementation_rows *rows)
{
    char text[200];
    if (!rows->x->moved.n) return;
    snprintf(text, sizeof text, "step %lld was judged by itself, from the first side's weights and states",
             (long long)rows->p[0]->step);
    lb_report_finding(rows->report, text);
    lb_apart_sources_text(&rows->x->moved, rows, say_apart);
}

static void say_scaled(lb_implementation_rows *rows)
{
    const double ratio = rows->x->loss.ratio;
    char text[400];
    if (ratio == 0) return;
    snprintf(text, sizeof text, "step %lld: the loss that the %s side goes back from is %.9g times that of the other%s",
             (long long)rows->p[0]->step, ratio > 1 ? "second" : "first", ratio > 1 ? ratio : 1 / ratio,
             rows->x->same ? ", and what the step leaves is the same: gradients are scaled back"
             : rows->x->loss.alone
                 ? ", and nothing takes that back: from losses of one size both sides leave the same; "
                   "the factor is missing somewhere from the loss to the update"
                 : ": backward was compared as if it were the same");
    lb_report_finding(rows->report, text);
}

/* A rounding that is none of a function's, and yet of another size than the rest: where, and what it does. */
static void say_coarse(lb_implementation_rows *rows)
{
    const lb_coarse *coarse = &rows->x->coarse;
    if (!coarse->times) return;
    const uint32_t op = rows->x->sides[coarse->side].graph.giver[coarse->value];
    const lb_program *program = rows->p[coarse->side];
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
    lb_report_finding(rows->report, text);
    lb_diff_row row = lb_implementation_rows_at(rows, coarse->side ? LB_NONE : op, coarse->side ? op : LB_NONE);
    row.local = row.verdict = LB_VERDICT_ROUNDING,
    row.why = lb_report_keep(rows->report, "this side alone rounds to a coarser dtype here");
    rows->report->earliest = row, rows->report->has_earliest = true;
}

/* What one side alone was given: a text is scored to its end, and the server that wrote it never reads its last
 * token. */
static void say_lone_tokens(lb_implementation_rows *rows)
{
    const lb_token_map *m = rows->x->tokens;
    const uint32_t n[] = {m ? lb_token_map_lone(m, 0) : 0, m ? lb_token_map_lone(m, 1) : 0};
    char text[200];
    for (int k = 0; k < 2; k++) {
        if (!n[k]) continue;
        snprintf(text, sizeof text,
                 "%u of the %u tokens that the %s side is given are none of the other side's: what "
                 "only these give was not compared",
                 n[k], m->n[k], k ? "second" : "first");
        lb_report_finding(rows->report, text);
    }
}

/* What the rounding of tensors that one side alone holds hides. */
static void say_resolution(lb_implementation_rows *rows)
{
    const double resolution = rows->x->counterparts.resolution;
    char text[300];
    if (!(resolution > 0)) return;
    snprintf(text, sizeof text,
             "step %lld: the sides hold weights in different roundings: a difference that moves what a layer gives by "
             "less than %.1g of its size is not told from these",
             (long long)rows->p[0]->step, resolution);
    lb_report_finding(rows->report, text);
}

/* ---- each side against its own recording ---- */

typedef struct own_check {
    lb_implementation_rows *rows;
    int side;
} own_check;

/* Bits that the op cannot have given from its recorded inputs: bad hardware, or a write that was not seen. */
static bool note_own(void *context, const lb_event *event)
{
    const own_check *check = context;
    lb_implementation_rows *rows = check->rows;
    const uint32_t op = lb_program_view_op(rows->x->sides[check->side].view, event->program, event->op);
    if (event->verdict != LB_VERDICT_DIVERGED || op == LB_NONE) return true;
    char text[200];
    lb_diff_difference difference = {
        .row = lb_implementation_rows_at(rows, check->side ? LB_NONE : op, check->side ? op : LB_NONE),
        .effect = NAN,
        .times = 1,
        .steps = 1};
    snprintf(text, sizeof text,
             "the bits recorded of the %s side lie outside this op's own error bound, from its recorded inputs",
             check->side ? "second" : "first");
    difference.row.verdict = difference.row.local = LB_VERDICT_DIVERGED,
    difference.row.why = lb_report_keep(rows->report, text), difference.row.bound_ratio = event->bound_ratio;
    lb_report_row(rows->report, &difference.row);
    LB_DIFF_APPEND(rows->report, differences, n_differences, difference);
    return true;
}

static lb_status check_own(lb_implementation_rows *rows, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        own_check c = {rows, k};
        const lb_observer observer = {.context = &c, .op = note_own};
        lb_replay_summary summary = {0};
        LB_TRY(lb_side_replay(rows->x->sides[k].view, (lb_plan)LB_PLAN_INIT, &observer, &summary, err));
    }
    return LB_OK;
}

/* ---- the place that the walk over aligned ops has named ---- */

/* Where an op of the only rank of a side stands in its view. */
static uint32_t recorded_start(const lb_implementation_rows *rows, int side, uint32_t op)
{
    const uint32_t *op_of = rows->x->sides[side].view->op_of;
    return op_of ? op_of[op] : op;
}

/* Does the op lie in a region that differs? One that is spelled out does where any of its parts does. */
static bool is_in_region(const lb_implementation_rows *rows, int side, uint32_t op)
{
    const uint32_t *op_of = rows->x->sides[side].view->op_of;
    const uint32_t n = rows->x->sides[side].view->parts[0].program->n_ops;
    const uint32_t end = !op_of ? op + 1 : op + 1 < n ? op_of[op + 1] : rows->p[side]->n_ops;
    if (op >= n) return true;
    for (uint32_t i = recorded_start(rows, side, op); i < end; i++)
        if (rows->state[side][i] != LB_ROW_PLAIN) return true;
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

static bool runs_by_name(const lb_implementation_rows *rows, int side, uint32_t op, const char *name)
{
    const lb_program *program = rows->x->sides[side].view->parts[0].program;
    return op < program->n_ops && !strcmp(lb_op_name(program, &program->ops[op]), name);
}

/* Every way from values that meet to one that differs lies in a region. An op outside of all gives what the other side
 * has, in another order or by other ops, and a source holds the other side's numbers. Rows of a batch that are given in
 * another order are another batch. Of ops that one side alone runs the first is known, and not its like. */
static bool is_cleared(const lb_implementation_rows *rows, const lb_diff_row *place)
{
    const uint32_t ops[] = {place->index, place->other};
    if (rows->x->sides[0].view->n_parts != 1 || rows->x->sides[1].view->n_parts != 1 || place->step != rows->p[0]->step)
        return false;
    for (int k = 0; k < 2 && place->lone; k++)
        if (runs_by_name(rows, k, ops[k], place->op)) return !is_in_region(rows, k, ops[k]);
    for (int k = 0; k < 2; k++)
        if (ops[k] == LB_NONE || is_in_region(rows, k, ops[k])) return false;
    const uint32_t b = recorded_start(rows, 1, place->other);
    return !lb_op_is_source(rows->p[1], &rows->p[1]->ops[b]) ||
           keeps_order(rows->x, lb_op_results(rows->p[1], &rows->p[1]->ops[b])[0]);
}

/* ---- a step ---- */

lb_status lb_implementation_report_step(const lb_implementation_report_of *of, lb_diff_report *report, bool *cleared,
                                        lb_err *err)
{
    lb_implementation_rows rows;
    lb_status status = LB_OK;
    if (lb_implementation_rows_open(&rows, of->x, of->spared, report)) {
        *cleared |= of->place && is_cleared(&rows, of->place);
        if (of->first) add_map(&rows);
        lb_implementation_differences_add(&rows);
        lb_implementation_rows_add(&rows);
        say_moved(&rows);
        say_lone_tokens(&rows);
        if (!of->x->regions.n) say_coarse(&rows);
        say_scaled(&rows);
        say_resolution(&rows);
        status = check_own(&rows, err);
    } else {
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", rows.p[0]->n_ops);
    }
    lb_implementation_rows_close(&rows);
    return status;
}
