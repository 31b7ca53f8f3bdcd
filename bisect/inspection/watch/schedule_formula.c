/* The formulas of schedules: see lb_watch_schedule in lastbit/watch.h. */
#include "watch/schedule_check.h"

#include <math.h>
#include <string.h>

bool lb_watch_schedule_parse(const char *text, lb_watch_schedule_kind *kind)
{
    static const char *const names[] = {"none", "cosine", "wsd", "linear", "constant"};
    for (int i = 1; i < (int)(sizeof names / sizeof *names); i++)
        if (!strcmp(names[i], text)) return *kind = (lb_watch_schedule_kind)i, true;
    return false;
}

/* How much of the fall lies behind iteration `it`, 0 to 1. */
static double progress(const lb_watch_schedule *schedule, int64_t it, int64_t warmup)
{
    const int64_t from = schedule->behind_warmup ? warmup : 0, range = schedule->iterations - from;
    const double done = (double)(it - from) / (double)(range > 1 ? range : 1);
    return done < 0 ? 0 : done > 1 ? 1 : done;
}

double lb_schedule_multiplier(const lb_watch_schedule *schedule, int64_t it)
{
    static const double PI = 3.14159265358979323846;
    const int64_t warmup = llround(schedule->warmup_ratio * (double)schedule->iterations);
    const int64_t decay = llround(schedule->decay_ratio * (double)schedule->iterations);
    double height = 1; /* between the floor and 1 */
    if (it < warmup) return (double)(it + 1) / (double)(warmup > 1 ? warmup : 1);
    if (schedule->kind == LB_SCHEDULE_COSINE) height = 0.5 * (1 + cos(PI * progress(schedule, it, warmup)));
    if (schedule->kind == LB_SCHEDULE_LINEAR) height = 1 - progress(schedule, it, warmup);
    if (schedule->kind == LB_SCHEDULE_WSD && it > schedule->iterations - decay)
        height = fmax(0, (double)(schedule->iterations - it) / (double)decay);
    return schedule->final_frac + (1 - schedule->final_frac) * height;
}
