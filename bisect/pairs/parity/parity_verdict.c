/* See parity_verdict.h. Limits and where they come from: lastbit/parity.h. */
#include "parity/parity_verdict.h"

#include <math.h>
#include <stdio.h>

static const double LEAST_LOSS = 1e-7; /* log p next to 0 is a multiple of 2^-23 or 2^-24 in f32 */
static const double LEAST_GAP = 1e-6;  /* losses closer than this may be apart by f32's rounding alone */

double lb_parity_loss_factor(double loss_a, double loss_b)
{
    const double a = loss_a > LEAST_LOSS ? loss_a : LEAST_LOSS, b = loss_b > LEAST_LOSS ? loss_b : LEAST_LOSS;
    return isnan(loss_a) || isnan(loss_b) ? NAN : a > b ? a / b : b / a;
}

double lb_parity_verdict_k3_limit(const lb_parity_row *row, double threshold)
{
    return 2 * row->noise > threshold ? 2 * row->noise : threshold;
}

double lb_parity_verdict_loss_limit(const lb_parity_row *row)
{
    const double noise = row->noise_loss * row->noise_loss;
    return noise > LB_PARITY_LOSS_FACTOR ? noise : LB_PARITY_LOSS_FACTOR;
}

/* ---- numbers that were printed with few digits ---- */

static bool is_multiple(double x, double step)
{
    const double n = x / step;
    return fabs(n - nearbyint(n)) < 1e-6 * fmax(1, fabs(n));
}

/* 1e-4 where every number of a side is a whole multiple of it, as four digits behind the point leave them; 0: none of
 * 0.1 … 1e-6, or too few numbers to say. */
static double printed_step(const lb_parity_report *report, bool second)
{
    for (double step = 0.1; step > 0.5e-6; step /= 10) {
        uint64_t told = 0;
        bool all = true;
        for (uint32_t i = 0; all && i < report->n_pairs; i++)
            for (uint32_t k = 0; all && k < report->pairs[i].n; k++) {
                const double x = second ? report->pairs[i].tokens[k].log_q : report->pairs[i].tokens[k].log_p;
                all = !isfinite(x) || is_multiple(x, step);
                told += isfinite(x) && x != 0;
            }
        if (all) return told >= 4 ? step : 0;
    }
    return 0;
}

/* ---- rows ---- */

static lb_parity_reason reason_of(const lb_parity_row *row, double threshold, double least_gap)
{
    if (row->nonfinite) return LB_PARITY_BY_IMPOSSIBLE;
    const bool apart = fabs(row->loss_a - row->loss_b) > least_gap &&
                       lb_parity_loss_factor(row->loss_a, row->loss_b) > lb_parity_verdict_loss_limit(row);
    if (!(row->k3 < lb_parity_verdict_k3_limit(row, threshold))) return LB_PARITY_BY_K3;
    if (apart) return LB_PARITY_BY_LOSS;
    return row->k3 < threshold ? LB_PARITY_BY_WITHIN : LB_PARITY_BY_NOISE;
}

/* The losses say more where a text was memorised: there they are apart by the larger factor of their limit. */
static bool losses_say_more(const lb_parity_row *row, double threshold)
{
    const double factor = lb_parity_loss_factor(row->loss_a, row->loss_b) / lb_parity_verdict_loss_limit(row);
    return row->reason == LB_PARITY_BY_LOSS ||
           (factor > 1 && factor > row->k3 / lb_parity_verdict_k3_limit(row, threshold));
}

static void say_row(lb_parity_report *report, const lb_parity_row *row, double threshold)
{
    char of[60] = "";
    if (report->n_kinds > 1) snprintf(of, sizeof of, " of kind %.40s", row->name);
    const double factor = lb_parity_loss_factor(row->loss_a, row->loss_b);
    if (row->reason == LB_PARITY_BY_IMPOSSIBLE)
        snprintf(report->decided, sizeof report->decided, "%llu token%s%s ha%s the probability 0 on one side",
                 (unsigned long long)row->nonfinite, row->nonfinite > 1 ? "s" : "", of,
                 row->nonfinite > 1 ? "ve" : "s");
    else if (row->reason == LB_PARITY_BY_NOISE)
        snprintf(report->decided, sizeof report->decided,
                 "k3 %.4g%s is above %g, but two runs of the first side differ by as much (%.4g)", row->k3, of,
                 threshold, row->noise);
    else if (losses_say_more(row, threshold))
        snprintf(
            report->decided, sizeof report->decided, "the %s side's loss%s is %.4g times the %s side's (%.4g, %.4g)",
            row->loss_b > row->loss_a ? "second" : "first", of, factor, row->loss_b > row->loss_a ? "first" : "second",
            fmax(row->loss_a, row->loss_b), fmin(row->loss_a, row->loss_b));
    else
        snprintf(report->decided, sizeof report->decided, "k3 %.4g%s, not below %.4g", row->k3, of,
                 lb_parity_verdict_k3_limit(row, threshold));
}

/* ---- findings ---- */

/* The sides did not say the same thing, whatever the numbers of the rest. */
static bool fails(lb_parity_finding_kind kind)
{
    switch (kind) {
    case LB_PARITY_SEQUENCE:
    case LB_PARITY_TEMPLATE:
    case LB_PARITY_DROPPED:
    case LB_PARITY_REPEATED:
    case LB_PARITY_TEXT:
    case LB_PARITY_NAN:
    case LB_PARITY_LABELS:
    case LB_PARITY_TEMPERATURE: return true;
    default: return false;
    }
}

static bool decide_by_findings(lb_parity_report *report)
{
    for (uint32_t i = 0; i < report->n_findings; i++) {
        if (!fails(report->findings[i].kind)) continue;
        report->verdict = LB_PARITY_FAIL;
        snprintf(report->decided, sizeof report->decided, "%s on one side (found, below)",
                 lb_parity_finding_name(report->findings[i].kind));
        return true;
    }
    return false;
}

static void judge(lb_parity_row *row, double threshold, double least_gap)
{
    row->k3_limit = lb_parity_verdict_k3_limit(row, threshold);
    row->loss_limit = lb_parity_verdict_loss_limit(row);
    row->reason = reason_of(row, threshold, least_gap);
}

void lb_parity_verdict_decide(lb_parity_report *report, double threshold)
{
    const double steps[] = {LEAST_GAP, printed_step(report, false), printed_step(report, true)};
    const double gap = fmax(steps[0], fmax(steps[1], steps[2]));
    const lb_parity_row *worst = NULL;
    judge(&report->all, threshold, gap);
    for (uint32_t i = 0; i < report->n_positions; i++) judge(&report->positions[i], threshold, gap);
    for (uint32_t i = 0; i < report->n_kinds; i++) {
        lb_parity_row *row = &report->kinds[i];
        judge(row, threshold, gap);
        if (row->reason == LB_PARITY_BY_WITHIN) continue;
        if (!worst || (worst->reason == LB_PARITY_BY_NOISE && row->reason != LB_PARITY_BY_NOISE) ||
            (row->reason != LB_PARITY_BY_NOISE && row->k3 > worst->k3))
            worst = row;
    }
    report->verdict = !report->all.count ? LB_PARITY_UNDECIDED : LB_PARITY_PASS;
    if (!report->all.count)
        snprintf(report->decided, sizeof report->decided, "no token has a log-probability on both sides");
    if (worst) {
        report->verdict = worst->reason == LB_PARITY_BY_NOISE ? LB_PARITY_UNDECIDED : LB_PARITY_FAIL;
        say_row(report, worst, threshold);
    }
    if (report->verdict != LB_PARITY_FAIL) decide_by_findings(report);
}
