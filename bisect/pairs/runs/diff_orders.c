/* Orders of sums that the sides write by different ops: see diff_orders.h. */
#include "runs/diff_orders.h"

#include "exchanges/collective_results.h"

#include <lastbit/explain.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PLACES = 256 };           /* more are two programs, or two precisions: the search would prove nothing */
static const double REPLAYS = 1; /* of what a diff costs, the search may have so much */

static bool is_proven_order(const lb_explain_finding *finding)
{
    return finding->cause == LB_CAUSE_ORDER && finding->proof == LB_PROOF_BITS &&
           finding->matched == finding->elements && finding->elements > 0 && *finding->schedule;
}

/* The first finding; NULL unless all that is not inherited is an order. */
static const lb_explain_finding *order_of(const lb_explain_report *explained)
{
    const lb_explain_finding *first = NULL;
    for (uint32_t i = 0; i < explained->n_findings; i++) {
        const lb_explain_finding *finding = &explained->findings[i];
        if (finding->cause == LB_CAUSE_INPUT) continue;
        if (!is_proven_order(finding)) return NULL;
        if (!first) first = finding;
    }
    return explained->n_missing ? NULL : first;
}

static void rename_verdict(lb_verdict *verdict)
{
    if (*verdict == LB_VERDICT_ROUNDING) *verdict = LB_VERDICT_REORDERED;
}

static void rename_row(lb_diff_row *row)
{
    rename_verdict(&row->verdict), rename_verdict(&row->local), rename_verdict(&row->inherited);
}

static void name_order(lb_diff_report *report, const lb_explain_finding *finding)
{
    char why[400];
    snprintf(why, sizeof why,
             "the same terms in another order: %s as %s, on the other side by %s as %s (%lld element%s)", finding->op,
             *finding->first ? finding->first : "its own", *finding->other_op ? finding->other_op : finding->op,
             finding->schedule, (long long)finding->elements, finding->elements == 1 ? "" : "s");
    report->verdict = LB_VERDICT_REORDERED;
    for (uint32_t i = 0; i < report->n_layers; i++) rename_row(&report->layers[i]);
    lb_diff_row *const rows[] = {report->has_first ? &report->first : NULL,
                                 report->has_earliest ? &report->earliest : NULL};
    for (int k = 0; k < 2; k++) {
        if (!rows[k]) continue;
        rename_row(rows[k]);
        if (!strcmp(rows[k]->layer, finding->layer) && rows[k]->local == LB_VERDICT_REORDERED)
            rows[k]->why = lb_report_keep(report, why);
    }
}

lb_status lb_diff_name_orders(lb_diff_report *report, lb_capture *a, lb_capture *b, const lb_diff_options *options,
                              bool swapped, lb_err *err)
{
    lb_explain_options o = LB_EXPLAIN_OPTIONS_INIT;
    lb_explain_report *explained = NULL;
    if (report->verdict != LB_VERDICT_ROUNDING || !report->rewritten || report->rewritten > PLACES ||
        options->digests_only)
        return LB_OK;
    if (options->n_maps && swapped) return LB_OK; /* the rules rename one side's layers only */
    o.maps = options->maps, o.n_maps = options->n_maps;
    o.first_step = options->first_step, o.last_step = options->last_step;
    o.progress = options->progress, o.only_orders = true, o.most_replays = REPLAYS;
    lb_err why = LB_ERR_INIT;
    const lb_status status = lb_explain_run(swapped ? b : a, swapped ? a : b, &o, &explained, &why);
    if (status == LB_ERR_NOMEM || status == LB_ERR_IO) return lb_fail(err, status, "%s", why.message);
    if (status != LB_OK) return LB_OK; /* rounding it is, then */
    report->cost.runs += explained->cost.runs, report->cost.ops += explained->cost.ops;
    const lb_explain_finding *finding = order_of(explained);
    if (finding) name_order(report, finding);
    lb_explain_report_free(explained);
    return LB_OK;
}

/* ---- results of collectives ---- */

/* What the sides' collectives of one step gave that their members' inputs do not. */
typedef struct step_results {
    lb_capture *captures[2];
    lb_collective_results sides[2];
    int64_t step;
    bool known;
} step_results;

static void release_results(step_results *results)
{
    for (int k = 0; k < 2; k++) lb_collective_results_release(&results->sides[k]);
    results->known = false;
}

static lb_status read_step(step_results *results, int64_t step, lb_err *err)
{
    if (results->known && results->step == step) return LB_OK;
    release_results(results);
    for (int k = 0; k < 2; k++)
        LB_TRY(lb_collective_results_check_step(results->captures[k], step, &results->sides[k], err));
    results->step = step, results->known = true;
    return LB_OK;
}

static bool is_of(const lb_collective_finding *f, int32_t rank, uint32_t op)
{
    bool among = false;
    for (uint32_t i = 0; i < f->n_ranks; i++) among |= f->ranks[i] == rank;
    return f->kind == LB_COLLECTIVE_RESULT && among && f->op == op;
}

static lb_status name_exchange(lb_diff_report *report, step_results *results, lb_diff_row *row, lb_err *err)
{
    if (!row->op || row->local != LB_VERDICT_DIVERGED || row->index == LB_NONE || row->other == LB_NONE) return LB_OK;
    if (strncmp(row->op, "c10d::", 6) && strncmp(row->op, "nccl::", 6) && strncmp(row->op, "_c10d_functional::", 18))
        return LB_OK;
    LB_TRY(read_step(results, row->step, err));
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < results->sides[k].n; i++) {
            const lb_collective_finding *f = &results->sides[k].list[i];
            if (!is_of(f, row->rank, k ? row->other : row->index)) continue;
            char *text = malloc(strlen(f->message) + 40);
            if (!text) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
            sprintf(text, "on the %s side %s", k ? "second" : "first", f->message);
            row->why = lb_report_keep(report, text);
            row->hop_from = f->from, row->hop_to = f->to;
            free(text);
        }
    return LB_OK;
}

lb_status lb_diff_name_exchanges(lb_diff_report *report, lb_capture *a, lb_capture *b, lb_err *err)
{
    step_results r = {.captures = {a, b}};
    lb_status status = report->has_first ? name_exchange(report, &r, &report->first, err) : LB_OK;
    if (status == LB_OK && report->has_earliest) status = name_exchange(report, &r, &report->earliest, err);
    for (uint32_t i = 0; i < report->n_differences && status == LB_OK; i++)
        status = name_exchange(report, &r, &report->differences[i].row, err);
    release_results(&r);
    return status;
}
