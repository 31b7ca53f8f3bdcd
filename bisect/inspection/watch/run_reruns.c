/* Runs of one job side by side: see lastbit/watch.h. With one seed the first losses agree, and a shard in which several
 * runs are out is a suspect. */
#include "watch/run_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const lb_watch_alarm *alarm_in_shard(const lb_watch *watch, const char *shard)
{
    for (uint32_t i = 0; i < watch->n_alarms; i++)
        if (lb_alarm_is_about_values(&watch->alarms[i]) && !strcmp(watch->alarms[i].shard, shard))
            return &watch->alarms[i];
    return NULL;
}

static void compare_starts(lb_watch *const *runs, uint32_t n, lb_watch_finding *finding, bool *same)
{
    *same = true;
    *finding = (lb_watch_finding){.step = INT64_MIN};
    uint32_t compared = 0;
    for (uint32_t k = 1; k < n && *same; k++) {
        const lb_watch *a = runs[0], *b = runs[k];
        compared = 0;
        for (uint32_t i = 0; i < a->n_first && *same; i++)
            for (uint32_t j = 0; j < b->n_first && *same; j++) {
                if (a->first_loss_steps[i] != b->first_loss_steps[j]) continue;
                compared++;
                const double x = a->first_losses[i], y = b->first_losses[j];
                if (x == y || (isnan(x) && isnan(y))) continue;
                *same = false;
                finding->step = a->first_loss_steps[i];
                snprintf(finding->text, sizeof finding->text,
                         "losses part at step %" PRId64
                         " (%.9g, %.9g): with one seed and one order the first %d agree, so that the loader, "
                         "the sharding or a kernel is not deterministic",
                         finding->step, x, y, SAME_SEED_STEPS);
            }
    }
    snprintf(finding->kind, sizeof finding->kind, "%s", compared ? "determinism" : "");
    if (*same && compared)
        snprintf(finding->text, sizeof finding->text, "the losses of the first %" PRIu32 " steps agree", compared);
}

uint32_t lb_watch_reruns(lb_watch *const *runs, uint32_t n, bool same_seed, lb_watch_alarm *alarms, uint32_t room,
                         lb_watch_finding *finding)
{
    uint32_t found = 0;
    bool same;
    compare_starts(runs, n, finding, &same);
    if (same_seed && !same && room) {
        alarms[found] = (lb_watch_alarm){.step = finding->step,
                                         .until = finding->step,
                                         .kind = LB_ALARM_DATA,
                                         .level = LB_ALARM_WARNING,
                                         .ratio = NAN,
                                         .value = NAN,
                                         .reference = NAN};
        snprintf(alarms[found++].why, sizeof alarms->why, "%.199s", finding->text);
    }
    for (uint32_t i = 0; i < runs[0]->n_alarms && found < room; i++) {
        const lb_watch_alarm *alarm = &runs[0]->alarms[i];
        bool known =
            !*alarm->shard || !lb_alarm_is_about_values(alarm) || alarm_in_shard(runs[0], alarm->shard) != alarm;
        uint32_t times = 1, same_step = 1;
        for (uint32_t k = 1; k < n && !known; k++) {
            const lb_watch_alarm *b = alarm_in_shard(runs[k], alarm->shard);
            times += b != NULL;
            same_step += b && b->step == alarm->step;
        }
        if (known || times < 2) continue;
        alarms[found] = *alarm;
        alarms[found].kind = LB_ALARM_DATA, alarms[found].level = LB_ALARM_WARNING;
        alarms[found].detector = LB_DETECTOR_RULE;
        snprintf(alarms[found++].why, sizeof alarms->why,
                 "%" PRIu32 " of %" PRIu32 " runs left their usual range in the shard %.60s%s", times, n, alarm->shard,
                 same_step == times ? ", at one step: another order tells the file from the step"
                                    : ", at different steps");
    }
    return found;
}
