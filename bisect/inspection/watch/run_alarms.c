/* Alarms, findings and excursions of a run: see run_state.h. */
#include "watch/run_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUIET = 10 };

/* ---- names ------------------------------------------------------------------------------------------------------- */

const char *lb_alarm_kind_name(lb_alarm_kind kind)
{
    static const char *const names[] = {"grad_norm", "nonfinite", "loss", "throughput", "schedule", "data"};
    return (unsigned)kind < LB_ALARM_KINDS ? names[kind] : "";
}
const char *lb_alarm_level_name(lb_alarm_level level)
{
    return level == LB_ALARM_CRITICAL ? "critical" : "warning";
}
const char *lb_alarm_detector_name(lb_alarm_detector detector)
{
    static const char *const names[] = {"rule", "model", "afterwards"};
    return (unsigned)detector <= LB_DETECTOR_HINDSIGHT ? names[detector] : "";
}

/* ---- what is kept ------------------------------------------------------------------------------------------------ */

bool lb_run_grow(lb_watch *watch, void **rows, uint32_t n, uint32_t *room, size_t size)
{
    if (n < *room) return true;
    const uint32_t wanted = *room ? *room * 2 : 16;
    void *grown = n < LB_WATCH_ALARMS ? realloc(*rows, wanted * size) : NULL;
    if (!grown) return watch->dropped++, false;
    *rows = grown, *room = wanted;
    return true;
}

void lb_run_find(lb_watch *watch, const char *kind, int64_t step, const char *format, ...)
{
    va_list args;
    if (!lb_run_grow(watch, (void **)&watch->findings, watch->n_findings, &watch->room_findings,
                     sizeof *watch->findings))
        return;
    lb_watch_finding *finding = &watch->findings[watch->n_findings++];
    snprintf(finding->kind, sizeof finding->kind, "%s", kind);
    finding->step = step;
    va_start(args, format);
    vsnprintf(finding->text, sizeof finding->text, format, args);
    va_end(args);
}

uint32_t lb_run_alarm(lb_watch *watch, lb_watch_alarm *alarm)
{
    uint32_t room = watch->room_alarms;
    snprintf(alarm->shard, sizeof alarm->shard, "%s", watch->place.shard);
    alarm->until = alarm->step;
    uint32_t row = UINT32_MAX;
    if (alarm->level < watch->options.least[alarm->kind]) {
        lb_run_find(watch, "below-level", alarm->step, "%s, %s: %s", lb_alarm_kind_name(alarm->kind),
                    lb_alarm_level_name(alarm->level), alarm->why);
        return row;
    }
    if (lb_run_grow(watch, (void **)&watch->visits, watch->n_alarms, &room, sizeof *watch->visits) &&
        lb_run_grow(watch, (void **)&watch->alarms, watch->n_alarms, &watch->room_alarms, sizeof *watch->alarms)) {
        row = watch->n_alarms++;
        watch->alarms[row] = *alarm;
        watch->visits[row] = watch->place.shard_since;
    }
    if (watch->options.alarm) watch->options.alarm(watch->options.context, alarm);
    return row;
}

bool lb_alarm_is_about_values(const lb_watch_alarm *alarm)
{
    return alarm->kind == LB_ALARM_GRAD_NORM || alarm->kind == LB_ALARM_LOSS || alarm->kind == LB_ALARM_NONFINITE;
}

/* A shard that was read before, and was out then, too. */
static void look_for_bad_shard(lb_watch *watch, uint32_t row)
{
    if (row == UINT32_MAX || !*watch->alarms[row].shard || !lb_alarm_is_about_values(&watch->alarms[row])) return;
    const lb_watch_alarm now = watch->alarms[row];
    int64_t first = -1;
    uint32_t others = 0;
    for (uint32_t i = 0; i < row; i++) {
        const lb_watch_alarm *a = &watch->alarms[i];
        if (!lb_alarm_is_about_values(a) || watch->visits[i] == watch->visits[row]) continue;
        if (a->kind == LB_ALARM_DATA && !strcmp(a->shard, now.shard)) return;
        if (!strcmp(a->shard, now.shard))
            first = first < 0 ? a->step : first;
        else
            others++;
    }
    for (uint32_t i = 0; i < row; i++)
        if (watch->alarms[i].kind == LB_ALARM_DATA && !strcmp(watch->alarms[i].shard, now.shard)) return;
    if (first < 0 || others > watch->place.borders / 4) return;
    lb_watch_alarm alarm = {.step = now.step,
                            .kind = LB_ALARM_DATA,
                            .level = LB_ALARM_WARNING,
                            .value = now.value,
                            .reference = now.reference,
                            .ratio = now.ratio};
    snprintf(alarm.why, sizeof alarm.why,
             "the shard %.60s was read at step %" PRId64 ", too, and loss or norm left its usual range there as here",
             now.shard, first);
    lb_run_alarm(watch, &alarm);
}

/* ---- excursions -------------------------------------------------------------------------------------------------- */

void lb_run_over(lb_watch *watch, lb_run_slot which)
{
    lb_run_excursion *excursion = &watch->excursions[which];
    if (!excursion->on) return;
    excursion->on = false;
    const char *border = which == RATE_RULE || which == NONFINITE
                             ? NULL
                             : lb_data_border(&excursion->place, excursion->from, excursion->last);
    for (uint32_t i = 0; border && i < watch->n_findings; i++)
        if (watch->findings[i].step == excursion->from || !strcmp(watch->findings[i].kind, border)) border = NULL;
    if (border && *border == 'b')
        lb_run_find(watch, border, excursion->from,
                    "out of the usual range for %" PRId64
                    " steps from where the shard %.60s began: a border between shards",
                    excursion->last - excursion->from + 1, excursion->place.shard);
    else if (border)
        lb_run_find(watch, border, excursion->from, "out of the usual range from where the curriculum changed to %.60s",
                    excursion->place.curriculum);
}

void lb_run_out(lb_watch *watch, lb_run_slot which, lb_watch_alarm *alarm)
{
    lb_run_excursion *excursion = &watch->excursions[which];
    if (!excursion->on || alarm->level > excursion->level) {
        if (!excursion->on) excursion->from = alarm->step, excursion->place = watch->place;
        excursion->level = alarm->level, excursion->on = true;
        excursion->alarm = lb_run_alarm(watch, alarm);
        look_for_bad_shard(watch, excursion->alarm);
    }
    excursion->quiet = 0, excursion->last = alarm->step;
    if (excursion->alarm != UINT32_MAX) watch->alarms[excursion->alarm].until = alarm->step;
}

void lb_run_quiet(lb_watch *watch, lb_run_slot which)
{
    lb_run_excursion *excursion = &watch->excursions[which];
    if (excursion->on && ++excursion->quiet >= QUIET) lb_run_over(watch, which);
}
