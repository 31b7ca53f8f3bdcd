/* Orders of sums that the sides write by other ops: see diff_orders.h. */
#include "diff_orders.h"

#include <lastbit/explain.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PLACES = 256 };           /* more are two programs, or two precisions: the search would prove nothing */
static const double REPLAYS = 1; /* of what a diff costs, the search may have so much */

static bool is_proven_order(const lb_explain_finding *f)
{
    return f->cause == LB_CAUSE_ORDER && f->proof == LB_PROOF_BITS && f->matched == f->elements && f->elements > 0 &&
           *f->schedule;
}

/* The first finding; NULL unless all that is not inherited is an order. */
static const lb_explain_finding *order_of(const lb_explain_report *explained)
{
    const lb_explain_finding *first = NULL;
    for (uint32_t i = 0; i < explained->n_findings; i++) {
        const lb_explain_finding *f = &explained->findings[i];
        if (f->cause == LB_CAUSE_INPUT) continue;
        if (!is_proven_order(f)) return NULL;
        if (!first) first = f;
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

static void name_order(lb_diff_report *report, const lb_explain_finding *f)
{
    char why[400];
    snprintf(why, sizeof why,
             "the same terms in another order: %s as %s, on the other side by %s as %s (%lld element%s)", f->op,
             *f->first ? f->first : "its own", *f->other_op ? f->other_op : f->op, f->schedule, (long long)f->elements,
             f->elements == 1 ? "" : "s");
    report->verdict = LB_VERDICT_REORDERED;
    for (uint32_t i = 0; i < report->n_layers; i++) rename_row(&report->layers[i]);
    lb_diff_row *const rows[] = {report->has_first ? &report->first : NULL,
                                 report->has_earliest ? &report->earliest : NULL};
    for (int k = 0; k < 2; k++) {
        if (!rows[k]) continue;
        rename_row(rows[k]);
        if (!strcmp(rows[k]->layer, f->layer) && rows[k]->local == LB_VERDICT_REORDERED)
            rows[k]->why = lb_report_keep(report, why);
    }
}

void lb_diff_name_orders(lb_diff_report *report, lb_capture *a, lb_capture *b, const lb_diff_options *options,
                         bool swapped)
{
    lb_explain_options o = LB_EXPLAIN_OPTIONS_INIT;
    lb_explain_report *explained = NULL;
    if (report->verdict != LB_VERDICT_ROUNDING || !report->rewritten || report->rewritten > PLACES ||
        options->digests_only)
        return;
    if (options->n_maps && swapped) return; /* the rules rename one side's layers only */
    o.maps = options->maps, o.n_maps = options->n_maps;
    o.first_step = options->first_step, o.last_step = options->last_step;
    o.progress = options->progress, o.only_orders = true, o.most_replays = REPLAYS;
    if (lb_explain_run(swapped ? b : a, swapped ? a : b, &o, &explained, NULL) != LB_OK) return;
    report->cost.runs += explained->cost.runs, report->cost.ops += explained->cost.ops;
    const lb_explain_finding *f = order_of(explained);
    if (f) name_order(report, f);
    lb_explain_report_free(explained);
}
