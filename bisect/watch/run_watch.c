/* One run watched step by step: see lastbit/watch.h. Every detector is a machine of its own; here their answers become alarms, holds
 * and findings.
 *
 *                  ┌─▶ norm rule, norm model ─┐
 *      record ─────┼─▶ loss rule, loss model ─┼─▶ excursion (begins, gets worse, is over) ─▶ alarm, hold
 *                  ├─▶ not finite, skipped ───┤
 *                  └─▶ rate rule, schedule, data
 */
#include "checkpoint_hold.h"
#include "data_suspect.h"
#include "level_model.h"
#include "run_rules.h"
#include "schedule_check.h"
#include "spike_pattern.h"
#include "token_drift.h"

#include <inttypes.h>
#include <lastbit/watch.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_RISE_OF_LOSS 0.05 /* nats: a twentieth */
#define LEAST_RISE_OF_NORM 0.4  /* half as much again */
#define HELD_NORM 3.0           /* times the average from before the excursion: the norm is out still */
enum { QUIET = 10, SAME_SEED_STEPS = 20, LONGEST_HELD = 2000, DRIP = 5 };

typedef enum slot { NORM_RULE, NORM_MODEL, LOSS_RULE, LOSS_MODEL, NONFINITE, RATE_RULE, SLOTS } slot;

typedef struct excursion {
    bool on;
    lb_alarm_level level;
    uint32_t quiet;
    int64_t from, last;
    uint32_t alarm; /* row, UINT32_MAX: there was no room */
    lb_data_place place;
} excursion;

struct lb_watch {
    lb_watch_options options;
    lb_norm_rule norm;
    lb_loss_rule loss;
    lb_rate_rule rate;
    lb_ema_column ema;
    lb_level_model norm_model, loss_model;
    lb_schedule_check schedule;
    lb_data_place place;
    lb_rank_tokens tokens;
    lb_token_drift drift;
    excursion excursions[SLOTS];
    lb_hold_state hold;
    double held_norm; /* the average that the norm left; 0: it is not out */
    bool norm_out;    /* of the last norm */
    lb_known_checkpoints known;
    uint32_t seen; /* fields of the step at hand */
    int32_t rank;
    bool ranked, shared_tokens, said_loss, said_hindsight, said_counts;
    uint64_t records, nonfinite, skipped, skip_places;
    int64_t first_step, last_step, model_since, first_nonfinite, last_skip;
    double early[LB_EARLY_RECORDS];
    int64_t early_step[LB_EARLY_RECORDS];
    uint32_t n_early;
    bool early_spike, late_loss;
    double first_losses[SAME_SEED_STEPS];
    int64_t first_loss_steps[SAME_SEED_STEPS];
    uint32_t n_first;
    lb_watch_alarm *alarms;
    int64_t *visits; /* of each alarm: when its shard began */
    lb_watch_hold *holds;
    bool *serious; /* of each hold: loss or a number that is not finite was out */
    lb_watch_finding *findings;
    lb_watch_checkpoint *inside;
    uint32_t n_alarms, n_holds, n_findings, room_alarms, room_holds, room_findings;
    uint64_t dropped;
};

/* ---- names ---------------------------------------------------------------------------------------------------------- */

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
    static const char *const names[] = {"rule", "model", "hindsight"};
    return (unsigned)detector <= LB_DETECTOR_HINDSIGHT ? names[detector] : "";
}

/* ---- what is kept --------------------------------------------------------------------------------------------------- */

/* Room for one more row of `size` bytes; false: there is none, and the row is counted as dropped. */
static bool grow(lb_watch *w, void **rows, uint32_t n, uint32_t *room, size_t size)
{
    if (n < *room) return true;
    const uint32_t wanted = *room ? *room * 2 : 16;
    void *grown = n < LB_WATCH_ALARMS ? realloc(*rows, wanted * size) : NULL;
    if (!grown) return w->dropped++, false;
    *rows = grown, *room = wanted;
    return true;
}

static void find(lb_watch *w, const char *kind, int64_t step, const char *format, ...) LB_PRINTF(4, 5);
static void find(lb_watch *w, const char *kind, int64_t step, const char *format, ...)
{
    va_list args;
    if (!grow(w, (void **)&w->findings, w->n_findings, &w->room_findings, sizeof *w->findings)) return;
    lb_watch_finding *f = &w->findings[w->n_findings++];
    snprintf(f->kind, sizeof f->kind, "%s", kind);
    f->step = step;
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
}

/* Adds an alarm and says so; its row, UINT32_MAX without room. */
static uint32_t raise_alarm(lb_watch *w, lb_watch_alarm *alarm)
{
    uint32_t room = w->room_alarms;
    snprintf(alarm->shard, sizeof alarm->shard, "%s", w->place.shard);
    alarm->until = alarm->step;
    uint32_t row = UINT32_MAX;
    if (grow(w, (void **)&w->visits, w->n_alarms, &room, sizeof *w->visits) &&
        grow(w, (void **)&w->alarms, w->n_alarms, &w->room_alarms, sizeof *w->alarms)) {
        row = w->n_alarms++;
        w->alarms[row] = *alarm;
        w->visits[row] = w->place.shard_since;
    }
    if (w->options.alarm) w->options.alarm(w->options.context, alarm);
    return row;
}

static bool is_about_values(const lb_watch_alarm *a)
{
    return a->kind == LB_ALARM_GRAD_NORM || a->kind == LB_ALARM_LOSS || a->kind == LB_ALARM_NONFINITE;
}

/* A shard that was read before, and was out then, too. */
static void look_for_bad_shard(lb_watch *w, uint32_t row)
{
    if (row == UINT32_MAX || !*w->alarms[row].shard || !is_about_values(&w->alarms[row])) return;
    const lb_watch_alarm now = w->alarms[row];
    int64_t first = -1;
    uint32_t others = 0;
    for (uint32_t i = 0; i < row; i++) {
        const lb_watch_alarm *a = &w->alarms[i];
        if (!is_about_values(a) || w->visits[i] == w->visits[row]) continue;
        if (a->kind == LB_ALARM_DATA && !strcmp(a->shard, now.shard)) return;
        if (!strcmp(a->shard, now.shard))
            first = first < 0 ? a->step : first;
        else
            others++;
    }
    for (uint32_t i = 0; i < row; i++)
        if (w->alarms[i].kind == LB_ALARM_DATA && !strcmp(w->alarms[i].shard, now.shard)) return;
    if (first < 0 || others > w->place.borders / 4) return;
    lb_watch_alarm alarm = {.step = now.step,
                            .kind = LB_ALARM_DATA,
                            .level = LB_ALARM_WARNING,
                            .value = now.value,
                            .reference = now.reference,
                            .ratio = now.ratio};
    snprintf(alarm.why, sizeof alarm.why,
             "the shard %.60s was read at step %" PRId64 ", too, and the run was out there as here", now.shard, first);
    raise_alarm(w, &alarm);
}

/* ---- excursions ----------------------------------------------------------------------------------------------------- */

static void end_excursion(lb_watch *w, slot which)
{
    excursion *e = &w->excursions[which];
    if (!e->on) return;
    e->on = false;
    const char *border = which == RATE_RULE || which == NONFINITE ? NULL : lb_data_border(&e->place, e->from, e->last);
    for (uint32_t i = 0; border && i < w->n_findings; i++)
        if (w->findings[i].step == e->from || !strcmp(w->findings[i].kind, border)) border = NULL;
    if (border && *border == 'b')
        find(w, border, e->from,
             "the run was out for %" PRId64 " steps from where the shard %.60s began: a border between shards",
             e->last - e->from + 1, e->place.shard);
    else if (border)
        find(w, border, e->from, "the run was out from where the curriculum changed to %.60s", e->place.curriculum);
}

static void be_out(lb_watch *w, slot which, lb_watch_alarm *alarm)
{
    excursion *e = &w->excursions[which];
    if (!e->on || alarm->level > e->level) {
        if (!e->on) e->from = alarm->step, e->place = w->place;
        e->level = alarm->level, e->on = true;
        e->alarm = raise_alarm(w, alarm);
        look_for_bad_shard(w, e->alarm);
    }
    e->quiet = 0, e->last = alarm->step;
    if (e->alarm != UINT32_MAX) w->alarms[e->alarm].until = alarm->step;
}

static void be_quiet(lb_watch *w, slot which)
{
    excursion *e = &w->excursions[which];
    if (e->on && ++e->quiet >= QUIET) end_excursion(w, which);
}

/* ---- detectors ------------------------------------------------------------------------------------------------------ */

static void take_norm_rule(lb_watch *w, int64_t step, double norm)
{
    lb_watch_alarm alarm = {.step = step, .kind = LB_ALARM_GRAD_NORM, .detector = LB_DETECTOR_RULE, .value = norm};
    alarm.ratio = lb_norm_rule_take(&w->norm, norm, &alarm.reference);
    if (alarm.ratio > LB_NORM_WARNING) {
        alarm.level = alarm.ratio > LB_NORM_CRITICAL ? LB_ALARM_CRITICAL : LB_ALARM_WARNING;
        snprintf(alarm.why, sizeof alarm.why, "gradient norm %.4g is %.1f times its average of %.4g before this step",
                 norm, alarm.ratio, alarm.reference);
        if (w->held_norm == 0) w->held_norm = alarm.reference;
        be_out(w, NORM_RULE, &alarm);
    } else {
        be_quiet(w, NORM_RULE);
    }
    /* The average follows what is out, and the ratio ends before the excursion does. */
    w->norm_out = alarm.ratio > LB_NORM_WARNING || (w->held_norm > 0 && norm > HELD_NORM * w->held_norm);
}

static void take_model(lb_watch *w, slot which, lb_level_model *model, int64_t step, double number)
{
    const bool norm = which == NORM_MODEL;
    const double usual = lb_level_usual(model);
    switch (lb_level_take(model, number)) {
    case LB_LEVEL_RISES:
    case LB_LEVEL_OUT: {
        lb_watch_alarm alarm = {.step = step,
                                .kind = norm ? LB_ALARM_GRAD_NORM : LB_ALARM_LOSS,
                                .level = LB_ALARM_WARNING,
                                .detector = LB_DETECTOR_MODEL,
                                .value = number,
                                .reference = usual,
                                .ratio = number / usual};
        if (!w->excursions[which].on)
            snprintf(
                alarm.why, sizeof alarm.why,
                "%s of %s is %.0f %% above the usual %.4g; chance alone reaches %.0f %% once in %.0f million steps",
                lb_level_statistic(model->statistic), norm ? "the gradient norm" : "the loss",
                100 * expm1(model->height), usual, 100 * expm1(model->threshold), 0.1 / LB_WATCH_FALSE_ALARMS);
        if (model->quiet == 0) be_out(w, which, &alarm);
        break;
    }
    case LB_LEVEL_BACK: end_excursion(w, which); break;
    case LB_LEVEL_QUIET: break;
    }
    if (w->model_since < 0 && lb_level_is_ready(model)) w->model_since = step;
}

static void take_loss_rule(lb_watch *w, int64_t step, double loss)
{
    if (!lb_loss_rule_take(&w->loss, loss)) {
        be_quiet(w, LOSS_RULE);
        return;
    }
    lb_watch_alarm alarm = {.step = step,
                            .kind = LB_ALARM_LOSS,
                            .level = LB_ALARM_CRITICAL,
                            .detector = LB_DETECTOR_RULE,
                            .value = w->loss.value,
                            .reference = w->loss.reference,
                            .ratio = w->loss.value / w->loss.reference};
    snprintf(alarm.why, sizeof alarm.why,
             "the mean of the last %d losses, %.4g, is %.1f times that of the %d before, %.4g", LB_LOSS_SMOOTH,
             alarm.value, alarm.ratio, LB_LOSS_RECENT, alarm.reference);
    be_out(w, LOSS_RULE, &alarm);
}

static void take_rate(lb_watch *w, int64_t step, double rate)
{
    const double usual = w->rate.usual;
    if (!lb_rate_rule_take(&w->rate, rate)) {
        be_quiet(w, RATE_RULE);
        return;
    }
    lb_watch_alarm alarm = {.step = step,
                            .kind = LB_ALARM_THROUGHPUT,
                            .level = LB_ALARM_WARNING,
                            .detector = LB_DETECTOR_RULE,
                            .value = w->rate.value,
                            .reference = usual,
                            .ratio = w->rate.value / usual};
    snprintf(alarm.why, sizeof alarm.why,
             "throughput fell to %.2f of the usual for six of eight steps: it often goes before a loss event",
             alarm.ratio);
    be_out(w, RATE_RULE, &alarm);
}

/* ---- numbers that are not finite ------------------------------------------------------------------------------------ */

static void take_nonfinite(lb_watch *w, const lb_watch_record *r, const char *what, double value, bool skipped)
{
    const bool loss = !strcmp(what, "loss");
    lb_watch_alarm alarm = {.step = r->step,
                            .kind = LB_ALARM_NONFINITE,
                            .detector = LB_DETECTOR_RULE,
                            .value = value,
                            .reference = loss ? w->loss.value : w->norm.ema,
                            .ratio = NAN,
                            .level = skipped ? LB_ALARM_WARNING : LB_ALARM_CRITICAL};
    if (loss && w->n_first && !(w->loss.value > 0)) alarm.reference = w->first_losses[w->n_first - 1];
    char rank[32] = "";
    if (w->ranked && r->rank != w->rank) snprintf(rank, sizeof rank, " on rank %" PRId32, r->rank);
    if (!strcmp(what, "skip"))
        snprintf(alarm.why, sizeof alarm.why, "the optimizer's step was skipped%s", rank);
    else
        snprintf(alarm.why, sizeof alarm.why, "the %s is %s%s%s", loss ? "loss" : "gradient norm",
                 isnan(value) ? "NaN" : "infinite", rank, skipped ? "; the optimizer's step was skipped" : "");
    be_out(w, NONFINITE, &alarm);
}

/* The guard: what is not finite in a step, and whether its update was skipped. True when the step is out. */
static bool guard(lb_watch *w, const lb_watch_record *r)
{
    static const struct {
        lb_watch_field field;
        const char *what;
    } watched[] = {{LB_WATCH_loss, "loss"}, {LB_WATCH_gnorm, "gradient norm"}};
    const bool skipped = lb_watch_has(r, LB_WATCH_skipped) && r->skipped;
    bool bad = false;
    for (int i = 0; i < 2 && !bad; i++) {
        if (!lb_watch_has(r, watched[i].field) || isfinite(r->number[watched[i].field])) continue;
        bad = true;
        take_nonfinite(w, r, watched[i].what, r->number[watched[i].field], skipped);
    }
    if (!bad && skipped) take_nonfinite(w, r, "skip", NAN, true);
    if (bad || skipped) {
        w->nonfinite += bad;
        w->skipped += skipped;
        if (bad && w->first_nonfinite < 0) w->first_nonfinite = (int64_t)w->records;
        if (w->last_skip + 1 < r->step) w->skip_places++;
        w->last_skip = r->step;
    } else if (lb_watch_has(r, LB_WATCH_loss) || lb_watch_has(r, LB_WATCH_gnorm)) {
        be_quiet(w, NONFINITE);
    }
    return bad || skipped;
}

/* ---- one step ------------------------------------------------------------------------------------------------------- */

/* A run that was restarted goes over steps again: what was out there is over. */
static void restart(lb_watch *w, int64_t step)
{
    find(w, "restart", step, "the log had gone to step %" PRId64 " and goes on at step %" PRId64 ": a restarted run",
         w->last_step, step);
    for (slot i = 0; i < SLOTS; i++) end_excursion(w, i);
    lb_level_restart(&w->norm_model);
    lb_level_restart(&w->loss_model);
    if (w->loss.out) w->loss = (lb_loss_rule){0};
    w->norm_out = false, w->held_norm = 0;
    w->last_skip = INT64_MIN / 2;
    if (w->hold.on && w->n_holds) {
        w->holds[w->n_holds - 1].open = w->hold.on = false;
        if (w->options.hold) w->options.hold(w->options.context, &w->holds[w->n_holds - 1]);
    }
}

static void keep_first(lb_watch *w, const lb_watch_record *r)
{
    if (lb_watch_has(r, LB_WATCH_loss) && w->n_first < SAME_SEED_STEPS) {
        w->first_loss_steps[w->n_first] = r->step;
        w->first_losses[w->n_first++] = r->number[LB_WATCH_loss];
    }
    if (lb_watch_has(r, LB_WATCH_gnorm) && w->n_early < LB_EARLY_RECORDS) {
        w->early_step[w->n_early] = r->step;
        w->early[w->n_early++] = r->number[LB_WATCH_gnorm];
    }
}

static void take_values(lb_watch *w, const lb_watch_record *r)
{
    const double norm = r->number[LB_WATCH_gnorm], loss = r->number[LB_WATCH_loss];
    if (lb_watch_has(r, LB_WATCH_gnorm) && isfinite(norm) && norm >= 0) {
        take_norm_rule(w, r->step, norm);
        if (norm > 0) take_model(w, NORM_MODEL, &w->norm_model, r->step, norm);
        if (lb_watch_has(r, LB_WATCH_ema) && isfinite(r->number[LB_WATCH_ema]))
            lb_ema_column_take(&w->ema, norm, r->number[LB_WATCH_ema]);
    }
    if (lb_watch_has(r, LB_WATCH_loss) && isfinite(loss)) {
        take_loss_rule(w, r->step, loss);
        if (loss > 0)
            take_model(w, LOSS_MODEL, &w->loss_model, r->step, loss);
        else if (!w->said_loss)
            w->said_loss = true,
            find(w, "loss", r->step, "a loss of %.4g is not above 0: ratios say nothing of it", loss);
    }
    const bool late = w->excursions[LOSS_RULE].on || w->excursions[LOSS_MODEL].on;
    if (late && (w->records > LB_EARLY_RECORDS || r->step - w->first_step >= LB_EARLY_STEPS)) w->late_loss = true;
    if (lb_watch_has(r, LB_WATCH_tok_sec) && r->number[LB_WATCH_tok_sec] > 0 && isfinite(r->number[LB_WATCH_tok_sec]))
        take_rate(w, r->step, r->number[LB_WATCH_tok_sec]);
    else if (lb_watch_has(r, LB_WATCH_dt) && r->number[LB_WATCH_dt] > 0 && isfinite(r->number[LB_WATCH_dt]))
        take_rate(w, r->step, 1e3 / r->number[LB_WATCH_dt]);
}

static void take_schedule(lb_watch *w, const lb_watch_record *r)
{
    if (w->schedule.schedule.iterations == 0) w->schedule.schedule.iterations = r->steps; /* "step 50/30000" */
    if (w->schedule.schedule.iterations == 0 && w->schedule.schedule.kind != LB_SCHEDULE_NONE) return;
    lb_watch_alarm alarm = {.step = r->step, .kind = LB_ALARM_SCHEDULE, .level = LB_ALARM_WARNING};
    if (!lb_schedule_check_take(&w->schedule, r, &alarm.reference, &alarm.value)) return;
    alarm.ratio = alarm.value / alarm.reference;
    snprintf(alarm.why, sizeof alarm.why, "the schedule's multiplier is %.6g here, and its formula gives %.6g",
             alarm.value, alarm.reference);
    raise_alarm(w, &alarm);
}

static bool is_out(const lb_watch *w, bool nonfinite)
{
    const lb_level_model *norm = &w->norm_model, *loss = &w->loss_model;
    return nonfinite || w->norm_out || w->loss.out || (norm->out && !norm->quiet) || (loss->out && !loss->quiet);
}

static void take_hold(lb_watch *w, int64_t step, bool nonfinite)
{
    const bool serious = nonfinite || w->excursions[LOSS_RULE].on || w->excursions[LOSS_MODEL].on;
    const bool too_long = w->hold.on && step - w->hold.from > LONGEST_HELD && !serious;
    const lb_hold_answer answer = lb_hold_take(&w->hold, step, is_out(w, nonfinite) && !too_long);
    if (!w->hold.on) w->held_norm = 0;
    lb_watch_hold *h = w->n_holds ? &w->holds[w->n_holds - 1] : NULL;
    if (answer == LB_HOLD_BEGINS) {
        uint32_t room = w->room_holds;
        if (!grow(w, (void **)&w->serious, w->n_holds, &room, sizeof *w->serious) ||
            !grow(w, (void **)&w->holds, w->n_holds, &w->room_holds, sizeof *w->holds))
            return;
        h = &w->holds[w->n_holds++];
        *h = (lb_watch_hold){step, step, true};
        w->serious[w->n_holds - 1] = serious;
    } else if (answer == LB_HOLD_NONE || !h) {
        return;
    }
    h->to = w->hold.last_out;
    if (serious) w->serious[w->n_holds - 1] = true;
    h->open = answer != LB_HOLD_ENDS;
    if (answer != LB_HOLD_LASTS && w->options.hold) w->options.hold(w->options.context, h);
}

static void take_data(lb_watch *w, const lb_watch_record *r)
{
    int32_t other;
    if (w->shared_tokens || !lb_rank_tokens_take(&w->tokens, r, &other)) return;
    w->shared_tokens = true;
    lb_watch_alarm alarm = {.step = r->step,
                            .kind = LB_ALARM_DATA,
                            .level = LB_ALARM_CRITICAL,
                            .value = r->rank,
                            .reference = other,
                            .ratio = 1};
    snprintf(alarm.why, sizeof alarm.why,
             "ranks %" PRId32 " and %" PRId32 " read the same tokens: a loader is seeded by (seed, rank, epoch)", other,
             r->rank);
    raise_alarm(w, &alarm);
}

static void take_drift(lb_watch *w, const lb_watch_record *r)
{
    if (!lb_watch_has(r, LB_WATCH_counts)) return;
    const bool was = w->drift.out;
    const lb_drift_answer answer = lb_token_drift_take(&w->drift, r->word[LB_WATCH_counts - LB_WATCH_shard]);
    if (answer == LB_DRIFT_UNREADABLE && !w->said_counts)
        w->said_counts = true,
        find(w, "drift", r->step, "token counts are no list of numbers, or one of another length");
    if (answer != LB_DRIFT_OUT || was) return;
    lb_watch_alarm alarm = {.step = r->step,
                            .kind = LB_ALARM_DATA,
                            .level = LB_ALARM_WARNING,
                            .value = w->drift.distance,
                            .reference = w->drift.usual,
                            .ratio = w->drift.distance / w->drift.usual};
    snprintf(alarm.why, sizeof alarm.why,
             "token frequencies of the last %d records lie %.3f nats (KL) from the first, usual are %.3f: mostly the "
             "tokenizer",
             LB_DRIFT_RECORDS, alarm.value, alarm.reference);
    raise_alarm(w, &alarm);
}

static void look_back_at_start(lb_watch *w)
{
    lb_early_spike spike;
    if (w->said_hindsight || !lb_early_spike_find(w->early, w->n_early, &spike)) return;
    const int64_t step = w->early_step[spike.peak];
    if (step - w->first_step >= LB_EARLY_STEPS) return;
    w->said_hindsight = w->early_spike = true;
    for (uint32_t i = 0; i < w->n_alarms; i++)
        if (w->alarms[i].kind == LB_ALARM_GRAD_NORM && w->alarms[i].step <= step) return; /* it was seen as it came */
    lb_watch_alarm alarm = {.step = step,
                            .kind = LB_ALARM_GRAD_NORM,
                            .level = LB_ALARM_WARNING,
                            .detector = LB_DETECTOR_HINDSIGHT,
                            .value = w->early[spike.peak],
                            .reference = spike.settled,
                            .ratio = spike.ratio};
    snprintf(alarm.why, sizeof alarm.why,
             "gradient norm %.4g was %.1f times the %.4g that the run settled at afterwards", alarm.value, alarm.ratio,
             alarm.reference);
    raise_alarm(w, &alarm);
}

/* Fields that the step had already, from another line, do not count twice. */
static bool begin_step(lb_watch *w, lb_watch_record *r)
{
    const uint32_t always = 1u << LB_WATCH_step | 1u << LB_WATCH_rank;
    const bool again = w->records && r->step == w->last_step;
    if (again) {
        r->has &= ~w->seen | always;
        w->seen |= r->has;
        return (r->has & ~always) != 0;
    }
    if (w->records && r->step < w->last_step) restart(w, r->step);
    if (!w->records) w->first_step = r->step;
    const int64_t every = w->options.checkpoint_every;
    if (every > 0 && r->step > 0 && r->step / every > (w->records ? w->last_step / every : (r->step - 1) / every))
        lb_checkpoint_add(&w->known, r->step / every * every, NULL);
    w->seen = r->has;
    w->last_step = r->step;
    w->records++;
    return true;
}

void lb_watch_take(lb_watch *w, const lb_watch_record *record)
{
    lb_watch_record r = *record;
    take_data(w, &r);
    if (lb_watch_has(&r, LB_WATCH_rank)) {
        if (!w->ranked) w->ranked = true, w->rank = r.rank;
        if (r.rank != w->rank) { /* the run's own numbers are those of the rank that came first */
            if (lb_watch_has(&r, LB_WATCH_loss) && !isfinite(r.number[LB_WATCH_loss])) guard(w, &r);
            return;
        }
    }
    if (!begin_step(w, &r)) return;
    lb_data_place_take(&w->place, &r);
    const bool nonfinite = guard(w, &r);
    take_values(w, &r);
    keep_first(w, &r);
    take_schedule(w, &r);
    take_drift(w, &r);
    if (nonfinite) lb_schedule_check_skipped(&w->schedule);
    take_hold(w, r.step, nonfinite);
    if (lb_watch_has(&r, LB_WATCH_checkpoint)) {
        const lb_watch_word word = r.word[LB_WATCH_checkpoint - LB_WATCH_shard];
        char text[160];
        snprintf(text, sizeof text, "%.*s", (int)(word.n < sizeof text ? word.n : sizeof text - 1), word.text);
        lb_checkpoint_add(&w->known, r.step, strcmp(text, "1") && strcmp(text, "true") ? text : NULL);
    }
    if (w->n_early == LB_EARLY_RECORDS && !w->said_hindsight) look_back_at_start(w), w->said_hindsight = true;
}

void lb_watch_checkpoint_written(lb_watch *w, int64_t step, const char *text)
{
    lb_checkpoint_add(&w->known, step, text);
}

/* ---- life-cycle, and what is known --------------------------------------------------------------------------------- */

lb_watch *lb_watch_new(const lb_watch_options *options)
{
    lb_watch *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->options = *options;
    w->inside = calloc(LB_KNOWN_CHECKPOINTS, sizeof *w->inside);
    lb_level_init(&w->norm_model, LEAST_RISE_OF_NORM);
    lb_level_init(&w->loss_model, LEAST_RISE_OF_LOSS);
    lb_schedule_check_init(&w->schedule, &options->schedule);
    lb_data_place_init(&w->place);
    w->model_since = w->first_nonfinite = -1;
    w->last_skip = INT64_MIN / 2;
    w->tokens.step = INT64_MIN;
    for (uint32_t i = 0; i < options->n_checkpoints; i++) lb_checkpoint_add(&w->known, options->checkpoints[i], NULL);
    if (!w->inside) return lb_watch_free(w), NULL;
    return w;
}

void lb_watch_free(lb_watch *w)
{
    if (!w) return;
    lb_token_drift_release(&w->drift);
    free(w->alarms), free(w->visits), free(w->holds), free(w->serious), free(w->findings), free(w->inside);
    free(w);
}

/* Findings that counts decide stand behind those that steps gave; they are made anew for each report. */
static void find_from_counts(lb_watch *w)
{
    if (w->schedule.schedule.kind != LB_SCHEDULE_NONE && w->schedule.schedule.iterations == 0)
        find(w, "schedule", INT64_MIN,
             "the schedule was not checked: neither the log nor --iterations says how long it is");
    if (lb_ema_column_is_updated_first(&w->ema))
        find(w, "ema", INT64_MIN,
             "the log's own average has each step's norm in it before the two are compared: norm / average stays below "
             "100, "
             "and critical is never reached; compare with the average of the step before");
    if (w->skip_places >= DRIP)
        find(w, "skips", INT64_MIN,
             "%" PRIu64 " of %" PRIu64 " steps were skipped or not finite, in %" PRIu64
             " places: a steady drip means that the precision policy is wrong, not the data",
             w->skipped > w->nonfinite ? w->skipped : w->nonfinite, w->records, w->skip_places);
}

/* Whether a step lies among the first records, of which a few follow it. */
static bool is_early(const lb_watch *w, int64_t step)
{
    const uint32_t last = w->n_early < LB_PEAK_RECORDS ? w->n_early : LB_PEAK_RECORDS;
    return w->n_early > LB_AT_ONCE && step <= w->early_step[last - 1] && step - w->first_step < LB_EARLY_STEPS;
}

lb_watch_report lb_watch_now(lb_watch *w)
{
    const uint32_t settled = w->n_findings;
    look_back_at_start(w);
    find_from_counts(w);
    bool early = w->early_spike;
    for (uint32_t i = 0; i < w->n_alarms && !w->excursions[NORM_RULE].on; i++)
        early = early || (w->alarms[i].kind == LB_ALARM_GRAD_NORM && is_early(w, w->alarms[i].step));
    const lb_run_shape shape = {w->records, w->first_nonfinite < 0 ? -1 : w->first_nonfinite - 1, w->nonfinite, early,
                                w->late_loss && !w->excursions[NONFINITE].on};
    lb_watch_report report = {.alarms = w->alarms,
                              .n_alarms = w->n_alarms,
                              .holds = w->holds,
                              .n_holds = w->n_holds,
                              .checkpoints = w->inside,
                              .findings = w->findings,
                              .n_findings = w->n_findings,
                              .dropped = w->dropped,
                              .pattern = lb_run_pattern(&shape),
                              .records = w->records,
                              .first_step = w->first_step,
                              .last_step = w->last_step,
                              .restart_from = -1,
                              .nonfinite = w->nonfinite,
                              .skipped = w->skipped,
                              .schedule_stood = w->schedule.stands,
                              .model_since = w->model_since};
    report.n_checkpoints = lb_checkpoints_inside(&w->known, w->holds, w->n_holds, w->inside, LB_KNOWN_CHECKPOINTS);
    for (uint32_t i = 0; i < w->n_holds && report.restart_from < 0; i++)
        if (w->serious[i]) report.restart_from = lb_checkpoint_before(&w->known, w->holds[i].from);
    w->n_findings = settled;
    return report;
}

/* ---- reruns --------------------------------------------------------------------------------------------------------- */

static const lb_watch_alarm *alarm_in_shard(const lb_watch *w, const char *shard)
{
    for (uint32_t i = 0; i < w->n_alarms; i++)
        if (is_about_values(&w->alarms[i]) && !strcmp(w->alarms[i].shard, shard)) return &w->alarms[i];
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
                         " (%.9g, %.9g): with one seed and one order the first %d agree, so that "
                         "the loader, the sharding or a kernel is not deterministic",
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
        const lb_watch_alarm *a = &runs[0]->alarms[i];
        bool known = !*a->shard || !is_about_values(a) || alarm_in_shard(runs[0], a->shard) != a;
        uint32_t times = 1, same_step = 1;
        for (uint32_t k = 1; k < n && !known; k++) {
            const lb_watch_alarm *b = alarm_in_shard(runs[k], a->shard);
            times += b != NULL;
            same_step += b && b->step == a->step;
        }
        if (known || times < 2) continue;
        alarms[found] = *a;
        alarms[found].kind = LB_ALARM_DATA, alarms[found].level = LB_ALARM_WARNING;
        alarms[found].detector = LB_DETECTOR_RULE;
        snprintf(alarms[found++].why, sizeof alarms->why,
                 "%" PRIu32 " of %" PRIu32 " runs were out in the shard %.60s%s", times, n, a->shard,
                 same_step == times ? ", at one step: another order tells the file from the step"
                                    : ", at different steps");
    }
    return found;
}
