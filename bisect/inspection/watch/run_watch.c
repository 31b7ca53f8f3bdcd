/* One run watched step by step: see lastbit/watch.h. Every detector is a machine of its own; here their answers become
 * alarms, holds and findings.
 *
 *                  ┌─▶ norm rule, norm model ─┐
 *      record ─────┼─▶ loss rule, loss model ─┼─▶ excursion (begins, gets worse, is over) ─▶ alarm, hold
 *                  ├─▶ not finite, skipped ───┤
 *                  └─▶ rate rule, schedule, data
 */
#include "watch/run_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_RISE_OF_LOSS 0.05 /* nats: a twentieth */
#define LEAST_RISE_OF_NORM 0.4  /* half as much again */
#define HELD_NORM 3.0           /* times the average from before the excursion: the norm is out still */
enum { LONGEST_HELD = 2000, DRIP = 5, LONGEST_START = 30, START_QUIET = 10 };

/* ---- detectors --------------------------------------------------------------------------------------------------- */

/* Among the first records a norm that is out may be the spike of a start, which settles: it is an alarm only when it
 * lasts. */
static bool is_at_start(const lb_watch *watch, int64_t step)
{
    return watch->records <= LB_PEAK_RECORDS && step - watch->first_step < LB_EARLY_STEPS;
}

static void raise_start(lb_watch *watch)
{
    lb_watch_alarm alarm = watch->at_start;
    if (alarm.step < 0) return;
    watch->at_start.step = -1;
    lb_run_out(watch, NORM_RULE, &alarm);
}

static void settle_start(lb_watch *watch)
{
    if (watch->at_start.step < 0) return;
    if (watch->norm_out) {
        watch->start_quiet = 0;
        if (watch->records > watch->start_records + LONGEST_START) raise_start(watch);
        return;
    }
    if (++watch->start_quiet < START_QUIET) return;
    lb_run_find(watch, "early-spike", watch->at_start.step,
                "gradient norm %.4g was %.1f times the %.4g before: a spike of the first steps, which has settled",
                watch->at_start.value, watch->at_start.ratio, watch->at_start.reference);
    watch->at_start.step = -1, watch->early_spike = watch->said_hindsight = true;
}

/* The first step that is out, with the highest norm since. */
static void out_at_start(lb_watch *watch, const lb_watch_alarm *alarm)
{
    if (watch->at_start.step < 0) watch->at_start = *alarm, watch->start_records = watch->records;
    if (alarm->level > watch->at_start.level) watch->at_start.level = alarm->level;
    watch->at_start.value = fmax(alarm->value, watch->at_start.value);
    watch->at_start.ratio = watch->at_start.value / watch->at_start.reference;
}

static void take_norm_rule(lb_watch *watch, int64_t step, double norm)
{
    lb_watch_alarm alarm = {.step = step, .kind = LB_ALARM_GRAD_NORM, .detector = LB_DETECTOR_RULE, .value = norm};
    alarm.ratio = lb_norm_rule_take(&watch->norm, norm, &alarm.reference);
    if (alarm.ratio > LB_NORM_WARNING) {
        alarm.level = alarm.ratio > LB_NORM_CRITICAL ? LB_ALARM_CRITICAL : LB_ALARM_WARNING;
        snprintf(alarm.why, sizeof alarm.why, "gradient norm %.4g is %.1f times its average of %.4g before this step",
                 norm, alarm.ratio, alarm.reference);
        if (watch->held_norm == 0) watch->held_norm = alarm.reference;
        if (is_at_start(watch, step) || watch->at_start.step >= 0)
            out_at_start(watch, &alarm);
        else
            lb_run_out(watch, NORM_RULE, &alarm);
    } else {
        lb_run_quiet(watch, NORM_RULE);
    }
    /* The average follows what is out, and the ratio ends before the excursion does. */
    watch->norm_out = alarm.ratio > LB_NORM_WARNING || (watch->held_norm > 0 && norm > HELD_NORM * watch->held_norm);
    settle_start(watch);
}

/* What rose, in words. */
static void explain(const lb_level_model *model, bool norm, double usual, char *why, size_t room)
{
    const char *what = norm ? "the gradient norm" : "the loss";
    const double percent = 100 * expm1(model->height);
    if (model->statistic == LB_LEVEL_SPREAD)
        snprintf(why, room,
                 "the noise of %s got wider: for %" PRIu32 " steps numbers were %.2g of it apart, usual is %.2g", what,
                 model->length, model->height + model->near.deviation, model->near.deviation);
    else if (model->statistic >= LB_LEVEL_DRIFT_03)
        snprintf(why, room, "%s has risen for %" PRIu32 " steps, by %.0f %% above the %.4g that it left", what,
                 model->length, percent, usual);
    else
        snprintf(why, room,
                 "%s is %.0f %% above the usual %.4g for %" PRIu32 " step%s, which its noise so far does not explain",
                 what, percent, usual, model->length, model->length == 1 ? "" : "s");
}

static void take_model(lb_watch *watch, lb_run_slot which, lb_level_model *model, int64_t step, double number)
{
    const bool norm = which == NORM_MODEL;
    switch (lb_level_take(model, number)) {
    case LB_LEVEL_RISES:
    case LB_LEVEL_OUT: {
        const double usual = lb_level_usual(model);
        lb_watch_alarm alarm = {.step = step,
                                .kind = norm ? LB_ALARM_GRAD_NORM : LB_ALARM_LOSS,
                                .level = LB_ALARM_WARNING,
                                .detector = LB_DETECTOR_MODEL,
                                .value = number,
                                .reference = usual,
                                .ratio = number / usual};
        if (!watch->excursions[which].on) explain(model, norm, usual, alarm.why, sizeof alarm.why);
        if (model->quiet == 0) lb_run_out(watch, which, &alarm);
        break;
    }
    case LB_LEVEL_BACK: lb_run_over(watch, which); break;
    case LB_LEVEL_QUIET: break;
    }
    int64_t *since = norm ? &watch->norm_since : &watch->loss_since;
    if (*since < 0 && lb_level_is_ready(model)) *since = step;
}

static void take_repeats(lb_watch *watch, lb_run_slot which, lb_repeated_value *value, int64_t step, double number)
{
    if (!lb_repeated_value_take(value, number)) {
        lb_run_quiet(watch, which);
        return;
    }
    const bool norm = which == NORM_STUCK;
    lb_watch_alarm alarm = {.step = step,
                            .kind = norm ? LB_ALARM_GRAD_NORM : LB_ALARM_LOSS,
                            .level = LB_ALARM_WARNING,
                            .detector = LB_DETECTOR_MODEL,
                            .value = number,
                            .reference = number,
                            .ratio = 1};
    snprintf(alarm.why, sizeof alarm.why,
             "the %s has been %.6g for %" PRIu64 " steps, and never before stayed the same for more than %" PRIu64,
             norm ? "gradient norm" : "loss", number, value->row + 1, value->longest + 1);
    lb_run_out(watch, which, &alarm);
}

static void take_loss_rule(lb_watch *watch, int64_t step, double loss)
{
    if (!lb_loss_rule_take(&watch->loss, loss)) {
        lb_run_quiet(watch, LOSS_RULE);
        return;
    }
    lb_watch_alarm alarm = {.step = step,
                            .kind = LB_ALARM_LOSS,
                            .level = LB_ALARM_CRITICAL,
                            .detector = LB_DETECTOR_RULE,
                            .value = watch->loss.value,
                            .reference = watch->loss.reference,
                            .ratio = watch->loss.value / watch->loss.reference};
    snprintf(alarm.why, sizeof alarm.why,
             "the mean of the last %d losses, %.4g, is %.1f times that of the %d before, %.4g", LB_LOSS_SMOOTH,
             alarm.value, alarm.ratio, LB_LOSS_RECENT, alarm.reference);
    lb_run_out(watch, LOSS_RULE, &alarm);
}

static void take_rate(lb_watch *watch, int64_t step, double rate)
{
    const double usual = watch->rate.usual;
    if (!lb_rate_rule_take(&watch->rate, rate)) {
        lb_run_quiet(watch, RATE_RULE);
        return;
    }
    lb_watch_alarm alarm = {.step = step,
                            .kind = LB_ALARM_THROUGHPUT,
                            .level = LB_ALARM_WARNING,
                            .detector = LB_DETECTOR_RULE,
                            .value = watch->rate.value,
                            .reference = usual,
                            .ratio = watch->rate.value / usual};
    snprintf(alarm.why, sizeof alarm.why,
             "throughput fell to %.2f of the usual for six of eight steps: it often goes before a loss event",
             alarm.ratio);
    lb_run_out(watch, RATE_RULE, &alarm);
}

/* ---- numbers that are not finite --------------------------------------------------------------------------------- */

static void take_nonfinite(lb_watch *watch, const lb_watch_record *record, const char *what, double value, bool skipped)
{
    const bool loss = !strcmp(what, "loss");
    lb_watch_alarm alarm = {.step = record->step,
                            .kind = LB_ALARM_NONFINITE,
                            .detector = LB_DETECTOR_RULE,
                            .value = value,
                            .reference = loss ? watch->loss.value : watch->norm.ema,
                            .ratio = NAN,
                            .level = skipped ? LB_ALARM_WARNING : LB_ALARM_CRITICAL};
    if (loss && watch->n_first && !(watch->loss.value > 0)) alarm.reference = watch->first_losses[watch->n_first - 1];
    char rank[32] = "";
    if (watch->ranked && record->rank != watch->rank) snprintf(rank, sizeof rank, " on rank %" PRId32, record->rank);
    if (!strcmp(what, "skip"))
        snprintf(alarm.why, sizeof alarm.why, "the optimizer's step was skipped%s", rank);
    else
        snprintf(alarm.why, sizeof alarm.why, "the %s is %s%s%s", loss ? "loss" : "gradient norm",
                 isnan(value) ? "NaN" : "infinite", rank, skipped ? "; the optimizer's step was skipped" : "");
    lb_run_out(watch, NONFINITE, &alarm);
}

/* The guard: what is not finite in a step, and whether its update was skipped. True when the step is out. */
static bool guard(lb_watch *watch, const lb_watch_record *record)
{
    static const struct {
        lb_watch_field field;
        const char *what;
    } watched[] = {{LB_WATCH_loss, "loss"}, {LB_WATCH_gnorm, "gradient norm"}};
    const bool skipped = lb_watch_has(record, LB_WATCH_skipped) && record->skipped;
    bool bad = false;
    for (int i = 0; i < 2 && !bad; i++) {
        if (!lb_watch_has(record, watched[i].field) || isfinite(record->number[watched[i].field])) continue;
        bad = true;
        take_nonfinite(watch, record, watched[i].what, record->number[watched[i].field], skipped);
    }
    if (!bad && skipped) take_nonfinite(watch, record, "skip", NAN, true);
    if (bad || skipped) {
        watch->nonfinite += bad;
        watch->skipped += skipped;
        if (bad && watch->first_nonfinite < 0) watch->first_nonfinite = (int64_t)watch->records;
        if (watch->last_skip + 1 < record->step) watch->skip_places++;
        watch->last_skip = record->step;
    } else if (lb_watch_has(record, LB_WATCH_loss) || lb_watch_has(record, LB_WATCH_gnorm)) {
        lb_run_quiet(watch, NONFINITE);
    }
    return bad || skipped;
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

/* A run that was restarted goes over steps again: what was out there is over. */
static void restart(lb_watch *watch, int64_t step)
{
    lb_run_find(watch, "restart", step,
                "the log had gone to step %" PRId64 " and goes on at step %" PRId64 ": a restarted run",
                watch->last_step, step);
    for (lb_run_slot slot = 0; slot < SLOTS; slot++) lb_run_over(watch, slot);
    const lb_level_point then = lb_level_history_back(&watch->history, step);
    lb_level_restart(&watch->norm_model, then.norm, (uint64_t)(watch->last_step - step));
    lb_level_restart(&watch->loss_model, then.loss, (uint64_t)(watch->last_step - step));
    watch->loss = (lb_loss_rule){0};
    if (then.norm > 0) watch->norm.ema = then.norm;
    watch->norm_out = false, watch->held_norm = 0, watch->at_start.step = -1;
    watch->last_skip = INT64_MIN / 2;
    if (watch->hold.on && watch->n_holds) {
        watch->holds[watch->n_holds - 1].open = watch->hold.on = false;
        if (watch->options.hold) watch->options.hold(watch->options.context, &watch->holds[watch->n_holds - 1]);
    }
}

static void keep_first(lb_watch *watch, const lb_watch_record *record)
{
    if (lb_watch_has(record, LB_WATCH_loss) && watch->n_first < SAME_SEED_STEPS) {
        watch->first_loss_steps[watch->n_first] = record->step;
        watch->first_losses[watch->n_first++] = record->number[LB_WATCH_loss];
    }
    if (lb_watch_has(record, LB_WATCH_gnorm) && watch->n_early < LB_EARLY_RECORDS) {
        watch->early_step[watch->n_early] = record->step;
        watch->early[watch->n_early++] = record->number[LB_WATCH_gnorm];
    }
}

static void take_values(lb_watch *watch, const lb_watch_record *record)
{
    const double norm = record->number[LB_WATCH_gnorm], loss = record->number[LB_WATCH_loss];
    if (lb_watch_has(record, LB_WATCH_gnorm) && isfinite(norm) && norm >= 0) {
        take_norm_rule(watch, record->step, norm);
        if (norm > 0) take_model(watch, NORM_MODEL, &watch->norm_model, record->step, norm);
        take_repeats(watch, NORM_STUCK, &watch->norm_value, record->step, norm);
        if (lb_watch_has(record, LB_WATCH_ema) && isfinite(record->number[LB_WATCH_ema]))
            lb_loss_rules_column_take(&watch->ema, norm, record->number[LB_WATCH_ema]);
    }
    if (lb_watch_has(record, LB_WATCH_loss) && isfinite(loss)) {
        take_loss_rule(watch, record->step, loss);
        take_repeats(watch, LOSS_STUCK, &watch->loss_value, record->step, loss);
        if (loss > 0)
            take_model(watch, LOSS_MODEL, &watch->loss_model, record->step, loss);
        else if (!watch->said_loss)
            watch->said_loss = true,
            lb_run_find(watch, "loss", record->step, "a loss of %.4g is not above 0: ratios say nothing of it", loss);
    }
    const lb_level_point now = {record->step, watch->loss_model.n ? lb_level_usual(&watch->loss_model) : 0,
                                watch->norm_model.n ? lb_level_usual(&watch->norm_model) : 0};
    lb_level_history_add(&watch->history, now);
    const bool late = watch->excursions[LOSS_RULE].on || watch->excursions[LOSS_MODEL].on;
    if (late && (watch->records > LB_EARLY_RECORDS || record->step - watch->first_step >= LB_EARLY_STEPS))
        watch->late_loss = true;
    if (lb_watch_has(record, LB_WATCH_tok_sec) && record->number[LB_WATCH_tok_sec] > 0 &&
        isfinite(record->number[LB_WATCH_tok_sec]))
        take_rate(watch, record->step, record->number[LB_WATCH_tok_sec]);
    else if (lb_watch_has(record, LB_WATCH_dt) && record->number[LB_WATCH_dt] > 0 &&
             isfinite(record->number[LB_WATCH_dt]))
        take_rate(watch, record->step, 1e3 / record->number[LB_WATCH_dt]);
}

static void take_schedule(lb_watch *watch, const lb_watch_record *record)
{
    if (watch->schedule.schedule.iterations == 0)
        watch->schedule.schedule.iterations = record->steps; /* "step 50/30000" */
    if (watch->schedule.schedule.iterations == 0 && watch->schedule.schedule.kind != LB_SCHEDULE_NONE) return;
    lb_watch_alarm alarm = {.step = record->step, .kind = LB_ALARM_SCHEDULE, .level = LB_ALARM_WARNING};
    if (!lb_schedule_check_take(&watch->schedule, record, &alarm.reference, &alarm.value)) return;
    alarm.ratio = alarm.value / alarm.reference;
    snprintf(alarm.why, sizeof alarm.why, "the schedule's multiplier is %.6g here, and its formula gives %.6g",
             alarm.value, alarm.reference);
    lb_run_alarm(watch, &alarm);
}

static bool is_out(const lb_watch *watch, bool nonfinite)
{
    const lb_level_model *norm = &watch->norm_model, *loss = &watch->loss_model;
    return nonfinite || watch->norm_out || watch->loss.out || (norm->out && !norm->quiet) ||
           (loss->out && !loss->quiet);
}

static void take_hold(lb_watch *watch, int64_t step, bool nonfinite)
{
    const bool serious = nonfinite || watch->excursions[LOSS_RULE].on || watch->excursions[LOSS_MODEL].on;
    const bool too_long = watch->hold.on && step - watch->hold.from > LONGEST_HELD && !serious;
    const lb_hold_answer answer = lb_hold_take(&watch->hold, step, is_out(watch, nonfinite) && !too_long);
    if (!watch->hold.on) watch->held_norm = 0;
    lb_watch_hold *hold = watch->n_holds ? &watch->holds[watch->n_holds - 1] : NULL;
    if (answer == LB_HOLD_BEGINS) {
        uint32_t room = watch->room_holds;
        if (!lb_run_grow(watch, (void **)&watch->serious, watch->n_holds, &room, sizeof *watch->serious) ||
            !lb_run_grow(watch, (void **)&watch->holds, watch->n_holds, &watch->room_holds, sizeof *watch->holds))
            return;
        hold = &watch->holds[watch->n_holds++];
        *hold = (lb_watch_hold){step, step, true};
        watch->serious[watch->n_holds - 1] = serious;
    } else if (answer == LB_HOLD_NONE || !hold) {
        return;
    }
    hold->to = watch->hold.last_out;
    if (serious) watch->serious[watch->n_holds - 1] = true;
    hold->open = answer != LB_HOLD_ENDS;
    if (answer != LB_HOLD_LASTS && watch->options.hold) watch->options.hold(watch->options.context, hold);
}

static void take_data(lb_watch *watch, const lb_watch_record *record)
{
    int32_t other;
    if (watch->shared_tokens || !lb_data_suspect_take_tokens(&watch->tokens, record, &other)) return;
    watch->shared_tokens = true;
    lb_watch_alarm alarm = {.step = record->step,
                            .kind = LB_ALARM_DATA,
                            .level = LB_ALARM_CRITICAL,
                            .value = record->rank,
                            .reference = other,
                            .ratio = 1};
    snprintf(alarm.why, sizeof alarm.why,
             "ranks %" PRId32 " and %" PRId32 " read the same tokens: a loader is seeded by (seed, rank, epoch)", other,
             record->rank);
    lb_run_alarm(watch, &alarm);
}

static void take_drift(lb_watch *watch, const lb_watch_record *record)
{
    if (!lb_watch_has(record, LB_WATCH_counts)) return;
    const bool was = watch->drift.out;
    const lb_drift_answer answer =
        lb_token_drift_take(&watch->drift, record->step, record->word[LB_WATCH_counts - LB_WATCH_shard]);
    if (answer == LB_DRIFT_UNREADABLE && !watch->said_counts)
        watch->said_counts = true,
        lb_run_find(watch, "drift", record->step, "token counts are no list of numbers, or one of another length");
    if (answer != LB_DRIFT_OUT || was) return;
    lb_watch_alarm alarm = {.step = record->step,
                            .kind = LB_ALARM_DATA,
                            .level = LB_ALARM_WARNING,
                            .value = watch->drift.distance,
                            .reference = watch->drift.usual,
                            .ratio = watch->drift.distance / watch->drift.usual};
    snprintf(alarm.why, sizeof alarm.why,
             "token frequencies of the last %d records lie %.3f nats (KL) from the first, usual are %.3f: "
             "mostly the tokenizer",
             LB_DRIFT_RECORDS, alarm.value, alarm.reference);
    lb_run_alarm(watch, &alarm);
}

static void look_back_at_start(lb_watch *watch)
{
    lb_early_spike spike;
    if (watch->said_hindsight || !lb_early_spike_find(watch->early, watch->n_early, &spike)) return;
    const int64_t step = watch->early_step[spike.peak];
    if (step - watch->first_step >= LB_EARLY_STEPS) return;
    watch->said_hindsight = watch->early_spike = true;
    for (uint32_t i = 0; i < watch->n_alarms; i++)
        if (watch->alarms[i].kind == LB_ALARM_GRAD_NORM && watch->alarms[i].step <= step)
            return; /* it was seen as it came */
    lb_run_find(
        watch, "early-spike", step,
        "gradient norm %.4g was %.1f times the %.4g that the run settled at afterwards: a spike of the first steps",
        watch->early[spike.peak], spike.ratio, spike.settled);
}

/* Fields that the step had already, from another line, do not count twice. */
static bool begin_step(lb_watch *watch, lb_watch_record *record)
{
    const uint32_t always = 1u << LB_WATCH_step | 1u << LB_WATCH_rank;
    const bool again = watch->records && record->step == watch->last_step;
    if (again) {
        record->has &= ~watch->seen | always;
        watch->seen |= record->has;
        return (record->has & ~always) != 0;
    }
    if (watch->records && record->step < watch->last_step) restart(watch, record->step);
    if (!watch->records) watch->first_step = record->step;
    const int64_t every = watch->options.checkpoint_every;
    if (every > 0 && record->step > 0 &&
        record->step / every > (watch->records ? watch->last_step / every : (record->step - 1) / every))
        lb_checkpoint_add(&watch->known, record->step / every * every, NULL);
    watch->seen = record->has;
    watch->last_step = record->step;
    watch->records++;
    return true;
}

void lb_watch_take(lb_watch *watch, const lb_watch_record *record)
{
    lb_watch_record taken = *record;
    take_data(watch, &taken);
    if (lb_watch_has(&taken, LB_WATCH_rank)) {
        if (!watch->ranked) watch->ranked = true, watch->rank = taken.rank;
        if (taken.rank != watch->rank) { /* the run's own numbers are those of the rank that came first */
            if (lb_watch_has(&taken, LB_WATCH_loss) && !isfinite(taken.number[LB_WATCH_loss])) guard(watch, &taken);
            return;
        }
    }
    if (!begin_step(watch, &taken)) return;
    for (int field = 0; field < LB_WATCH_FIELDS; field++)
        watch->rows[field] += lb_watch_has(&taken, (lb_watch_field)field);
    lb_data_place_take(&watch->place, &taken);
    const bool nonfinite = guard(watch, &taken);
    take_values(watch, &taken);
    keep_first(watch, &taken);
    take_schedule(watch, &taken);
    take_drift(watch, &taken);
    if (nonfinite) lb_schedule_check_skipped(&watch->schedule);
    take_hold(watch, taken.step, nonfinite);
    if (lb_watch_has(&taken, LB_WATCH_checkpoint)) {
        const lb_watch_word word = taken.word[LB_WATCH_checkpoint - LB_WATCH_shard];
        char text[160];
        snprintf(text, sizeof text, "%.*s", (int)(word.n < sizeof text ? word.n : sizeof text - 1), word.text);
        lb_checkpoint_add(&watch->known, taken.step, strcmp(text, "1") && strcmp(text, "true") ? text : NULL);
    }
    if (watch->n_early == LB_EARLY_RECORDS && !watch->said_hindsight)
        look_back_at_start(watch), watch->said_hindsight = true;
}

void lb_watch_checkpoint_written(lb_watch *watch, int64_t step, const char *text)
{
    lb_checkpoint_add(&watch->known, step, text);
}

/* ---- life-cycle, and what is known ------------------------------------------------------------------------------- */

lb_watch *lb_watch_new(const lb_watch_options *options)
{
    lb_watch *watch = calloc(1, sizeof *watch);
    if (!watch) return NULL;
    watch->options = *options;
    watch->inside = calloc(LB_KNOWN_CHECKPOINTS, sizeof *watch->inside);
    lb_level_init(&watch->norm_model, LEAST_RISE_OF_NORM);
    lb_level_init(&watch->loss_model, LEAST_RISE_OF_LOSS);
    lb_schedule_check_init(&watch->schedule, &options->schedule);
    lb_data_place_init(&watch->place);
    watch->norm_since = watch->loss_since = watch->first_nonfinite = -1;
    watch->last_skip = INT64_MIN / 2;
    watch->tokens.step = INT64_MIN;
    watch->at_start.step = -1;
    for (uint32_t i = 0; i < options->n_checkpoints; i++)
        lb_checkpoint_add(&watch->known, options->checkpoints[i], NULL);
    if (!watch->inside) return lb_watch_free(watch), NULL;
    return watch;
}

void lb_watch_free(lb_watch *watch)
{
    if (!watch) return;
    lb_token_drift_release(&watch->drift);
    free(watch->alarms), free(watch->visits), free(watch->holds), free(watch->serious), free(watch->findings),
        free(watch->inside);
    free(watch);
}

static void find_early_drift(lb_watch *watch)
{
    const lb_short_drift *drift = lb_token_drift_early(&watch->drift);
    if (!drift) return;
    const uint32_t n = (uint32_t)watch->drift.n;
    if (!drift->judged)
        lb_run_find(
            watch, "drift", INT64_MIN,
            "token frequencies of %u records: those of the second half lie %.3f nats (KL) from the first half's; "
            "fewer than %d records do not tell whether that is scatter",
            n, drift->distance, LB_SHORT_DRIFT_LEAST);
    else if (drift->told)
        lb_run_find(watch, "drift", watch->drift.steps[drift->cut],
                    "token frequencies from here on lie %.3f nats (KL) from those before, "
                    "and of %d other orders of these %u records %u part as far: their order matters; "
                    "an alarm takes %d records",
                    drift->distance, LB_SHORT_DRIFT_ORDERS, n, drift->as_far, LB_DRIFT_KEPT);
}

/* Findings that counts decide stand behind those that steps gave; they are made anew for each report. */
static void find_from_counts(lb_watch *watch)
{
    find_early_drift(watch);
    if (watch->schedule.schedule.kind != LB_SCHEDULE_NONE && watch->schedule.schedule.iterations == 0)
        lb_run_find(watch, "schedule", INT64_MIN,
                    "the schedule was not checked: neither the log nor --iterations says how long it is");
    if (lb_loss_rules_column_is_updated_first(&watch->ema))
        lb_run_find(watch, "ema", INT64_MIN,
                    "the log's own average has each step's norm in it before the two are compared: "
                    "norm / average stays below 100, and critical is never reached; "
                    "compare with the average of the step before");
    if (watch->skip_places >= DRIP)
        lb_run_find(watch, "skips", INT64_MIN,
                    "%" PRIu64 " of %" PRIu64 " steps were skipped or not finite, in %" PRIu64
                    " places: a steady drip means that the precision policy is wrong, not the data",
                    watch->skipped > watch->nonfinite ? watch->skipped : watch->nonfinite, watch->records,
                    watch->skip_places);
}

/* Whether a step lies among the first records, of which a few follow it. */
static bool is_early(const lb_watch *watch, int64_t step)
{
    const uint32_t last = watch->n_early < LB_PEAK_RECORDS ? watch->n_early : LB_PEAK_RECORDS;
    return watch->n_early > LB_AT_ONCE && step <= watch->early_step[last - 1] &&
           step - watch->first_step < LB_EARLY_STEPS;
}

lb_watch_report lb_watch_now(lb_watch *watch)
{
    look_back_at_start(watch);
    raise_start(watch); /* nothing has shown that it settles */
    const uint32_t settled = watch->n_findings;
    find_from_counts(watch);
    bool early = watch->early_spike;
    for (uint32_t i = 0; i < watch->n_alarms && !watch->excursions[NORM_RULE].on; i++)
        early = early || (watch->alarms[i].kind == LB_ALARM_GRAD_NORM && is_early(watch, watch->alarms[i].step));
    const lb_run_shape shape = {watch->records, watch->first_nonfinite < 0 ? -1 : watch->first_nonfinite - 1,
                                watch->nonfinite, early, watch->late_loss && !watch->excursions[NONFINITE].on};
    lb_watch_report report = {.alarms = watch->alarms,
                              .n_alarms = watch->n_alarms,
                              .holds = watch->holds,
                              .n_holds = watch->n_holds,
                              .checkpoints = watch->inside,
                              .findings = watch->findings,
                              .n_findings = watch->n_findings,
                              .dropped = watch->dropped,
                              .pattern = lb_spike_pattern_of(&shape),
                              .records = watch->records,
                              .first_step = watch->first_step,
                              .last_step = watch->last_step,
                              .restart_from = -1,
                              .nonfinite = watch->nonfinite,
                              .skipped = watch->skipped,
                              .schedule_stood = watch->schedule.stands,
                              .loss_since = watch->loss_since,
                              .norm_since = watch->norm_since,
                              .rows = watch->rows};
    report.n_checkpoints =
        lb_checkpoints_inside(&watch->known, watch->holds, watch->n_holds, watch->inside, LB_KNOWN_CHECKPOINTS);
    for (uint32_t i = 0; i < watch->n_holds && report.restart_from < 0; i++)
        if (watch->serious[i]) report.restart_from = lb_checkpoint_before(&watch->known, watch->holds[i].from);
    watch->n_findings = settled;
    return report;
}
