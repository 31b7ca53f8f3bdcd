/* A log's learning rate against its schedule: see schedule_check.h. */
#include "watch/schedule_check.h"

#include <math.h>

void lb_schedule_check_init(lb_schedule_check *check, const lb_watch_schedule *schedule)
{
    *check = (lb_schedule_check){.schedule = *schedule, .stands = -1};
    for (int v = 0; v < LB_SCHEDULE_VARIANTS; v++) check->fits[v] = true;
}

static double expected_of(const lb_schedule_check *check, int variant, int64_t it)
{
    lb_watch_schedule schedule = check->schedule;
    schedule.behind_warmup = variant == 1;
    return lb_schedule_multiplier(&schedule, it < 0 ? 0 : it);
}

/* The log's multiplier: as it stands there, or its rate divided by the one that the first rate stands for. */
static double multiplier_of(lb_schedule_check *check, const lb_watch_record *record, int variant, double *rounding)
{
    *rounding = record->lr_rounding;
    if (lb_watch_has(record, LB_WATCH_lrm)) return record->number[LB_WATCH_lrm];
    if (check->base[variant] == 0) {
        const double expected = expected_of(check, variant, record->step);
        if (!(expected > 0) || !(record->number[LB_WATCH_lr] > 0)) return NAN;
        check->base[variant] = record->number[LB_WATCH_lr] / expected;
    }
    *rounding = 2 * record->lr_rounding / check->base[variant];
    return record->number[LB_WATCH_lr] / check->base[variant];
}

static bool agrees(double found, double expected, double rounding)
{
    return fabs(found - expected) <= rounding * (1 + 1e-9) + 1e-6 * fmax(fabs(expected), 1e-3);
}

enum { WENT_ON = 1, STOOD = 2 };

/* Which of the two iterations a variant fits: the one that it has come to, or after skipped steps the one that these
 * left it at. */
static unsigned variant_fits(lb_schedule_check *check, const lb_watch_record *record, int variant)
{
    double rounding;
    const double found = multiplier_of(check, record, variant, &rounding);
    const int64_t it = record->step - check->stood;
    if (isnan(found)) return WENT_ON | STOOD;
    const bool went_on = agrees(found, expected_of(check, variant, it), rounding);
    const bool stood = check->pending && agrees(found, expected_of(check, variant, it - check->pending), rounding);
    return (went_on ? WENT_ON : 0) | (stood ? STOOD : 0);
}

static void decide(lb_schedule_check *check, bool stood)
{
    check->stands = stood;
    if (stood) check->stood += check->pending;
    check->pending = 0;
}

/* Without a schedule: the rate of the step behind a skipped one is that of the skipped one, where it was not before. */
static void look_at_neighbours(lb_schedule_check *check, double rate, double rounding)
{
    const double moves = fabs(check->before[1] - check->before[0]);
    if (check->pending == 1 && check->seen >= 2 && moves > 2 * rounding && check->skipped_at == check->seen) {
        const double moved = fabs(rate - check->before[1]);
        decide(check, moved <= 0.5 * moves);
    }
    check->before[0] = check->before[1], check->before[1] = rate;
    check->seen++;
}

bool lb_schedule_check_take(lb_schedule_check *check, const lb_watch_record *record, double *expected, double *found)
{
    const lb_watch_field field = lb_watch_has(record, LB_WATCH_lrm) ? LB_WATCH_lrm : LB_WATCH_lr;
    unsigned fits[LB_SCHEDULE_VARIANTS], all = 0;
    int last = 0;
    if (check->left || !lb_watch_has(record, field) || !isfinite(record->number[field])) return false;
    if (check->schedule.kind == LB_SCHEDULE_NONE) {
        look_at_neighbours(check, record->number[field], record->lr_rounding);
        return false;
    }
    for (int v = 0; v < LB_SCHEDULE_VARIANTS; v++) {
        if (check->fits[v]) last = v;
        all |= fits[v] = check->fits[v] ? variant_fits(check, record, v) : 0;
    }
    if (!all) {
        double rounding;
        check->left = true;
        *expected = expected_of(check, last, record->step - check->stood);
        *found = multiplier_of(check, record, last, &rounding);
        return true;
    }
    for (int v = 0; v < LB_SCHEDULE_VARIANTS; v++) check->fits[v] = fits[v] != 0;
    if (check->pending && all != (WENT_ON | STOOD)) decide(check, all == STOOD);
    return false;
}

void lb_schedule_check_skipped(lb_schedule_check *check)
{
    check->pending++;
    check->skipped_at = check->seen;
}
