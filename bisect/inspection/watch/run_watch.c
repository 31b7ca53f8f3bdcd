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
static bool is_at_start(const lb_watch *w, int64_t step)
{
    return w->records <= LB_PEAK_RECORDS && step - w->first_step < LB_EARLY_STEPS;
}

static void raise_start(lb_watch *w)
{
    lb_watch_alarm alarm = w->at_start;
    if (alarm.step < 0) return;
    w->at_start.step = -1;
    lb_run_out(w, NORM_RULE, &alarm);
}

static void settle_start(lb_watch *w)
{
    if (w->at_start.step < 0) return;
    if (w->norm_out) {
        w->start_quiet = 0;
        if (w->records > w->start_records + LONGEST_START) raise_start(w);
        return;
    }
    if (++w->start_quiet < START_QUIET) return;
    lb_run_find(w, "early-spike", w->at_start.step,
                "gradient norm %.4g was %.1f times the %.4g before: a spike of the first steps, which has settled",
                w->at_start.value, w->at_start.ratio, w->at_start.reference);
    w->at_start.step = -1, w->early_spike = w->said_hindsight = true;
}

/* The first step that is out, with the highest norm since. */
static void out_at_start(lb_watch *w, const lb_watch_alarm *alarm)
{
    if (w->at_start.step < 0) w->at_start = *alarm, w->start_records = w->records;
    if (alarm->level > w->at_start.level) w->at_start.level = alarm->level;
    w->at_start.value = fmax(alarm->value, w->at_start.value);
    w->at_start.ratio = w->at_start.value / w->at_start.reference;
}

static void take_norm_rule(lb_watch *w, int64_t step, double norm)
{
    lb_watch_alarm alarm = {.step = step, .kind = LB_ALARM_GRAD_NORM, .detector = LB_DETECTOR_RULE, .value = norm};
    alarm.ratio = lb_norm_rule_take(&w->norm, norm, &alarm.reference);
    if (alarm.ratio > LB_NORM_WARNING) {
        alarm.level = alarm.ratio > LB_NORM_CRITICAL ? LB_ALARM_CRITICAL : LB_ALARM_WARNING;
        snprintf(alarm.why, sizeof alarm.why, "gradient norm %.4g is %.1f times its average of %.4g before this step",
                 norm, alarm.ratio, alarm.reference);
        if (w->held_norm == 0) w->held_norm = alarm.reference;
        if (is_at_start(w, step) || w->at_start.step >= 0)
            out_at_start(w, &alarm);
        else
            lb_run_out(w, NORM_RULE, &alarm);
    } else {
        lb_run_quiet(w, NORM_RULE);
    }
    /* The average follows what is out, and the ratio ends before the excursion does. */
    w->norm_out = alarm.ratio > LB_NORM_WARNING || (w->held_norm > 0 && norm > HELD_NORM * w->held_norm);
    settle_start(w);
}

/* What rose, in words. */
static void explain(const lb_level_model *m, bool norm, double usual, char *why, size_t room)
{
    const char *what = norm ? "the gradient norm" : "the loss";
    const double percent = 100 * expm1(m->height);
    if (m->statistic == LB_LEVEL_SPREAD)
        snprintf(why, room,
                 "the noise of %s got wider: for %" PRIu32 " steps numbers were %.2g of it apart, usual is %.2g", what,
                 m->length, m->height + m->near.deviation, m->near.deviation);
    else if (m->statistic >= LB_LEVEL_DRIFT_03)
        snprintf(why, room, "%s has risen for %" PRIu32 " steps, by %.0f %% above the %.4g that it left", what,
                 m->length, percent, usual);
    else
        snprintf(why, room,
                 "%s is %.0f %% above the usual %.4g for %" PRIu32 " step%s, which its noise so far does not explain",
                 what, percent, usual, m->length, m->length == 1 ? "" : "s");
}

static void take_model(lb_watch *w, lb_run_slot which, lb_level_model *model, int64_t step, double number)
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
        if (!w->excursions[which].on) explain(model, norm, usual, alarm.why, sizeof alarm.why);
        if (model->quiet == 0) lb_run_out(w, which, &alarm);
        break;
    }
    case LB_LEVEL_BACK: lb_run_over(w, which); break;
    case LB_LEVEL_QUIET: break;
    }
    int64_t *since = norm ? &w->norm_since : &w->loss_since;
    if (*since < 0 && lb_level_is_ready(model)) *since = step;
}

static void take_repeats(lb_watch *w, lb_run_slot which, lb_repeated_value *value, int64_t step, double number)
{
    if (!lb_repeated_value_take(value, number)) {
        lb_run_quiet(w, which);
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
    lb_run_out(w, which, &alarm);
}

static void take_loss_rule(lb_watch *w, int64_t step, double loss)
{
    if (!lb_loss_rule_take(&w->loss, loss)) {
        lb_run_quiet(w, LOSS_RULE);
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
    lb_run_out(w, LOSS_RULE, &alarm);
}

static void take_rate(lb_watch *w, int64_t step, double rate)
{
    const double usual = w->rate.usual;
    if (!lb_rate_rule_take(&w->rate, rate)) {
        lb_run_quiet(w, RATE_RULE);
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
    lb_run_out(w, RATE_RULE, &alarm);
}

/* ---- numbers that are not finite --------------------------------------------------------------------------------- */

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
    lb_run_out(w, NONFINITE, &alarm);
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
        lb_run_quiet(w, NONFINITE);
    }
    return bad || skipped;
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

/* A run that was restarted goes over steps again: what was out there is over. */
static void restart(lb_watch *w, int64_t step)
{
    lb_run_find(w, "restart", step,
                "the log had gone to step %" PRId64 " and goes on at step %" PRId64 ": a restarted run", w->last_step,
                step);
    for (lb_run_slot i = 0; i < SLOTS; i++) lb_run_over(w, i);
    const lb_level_point then = lb_level_history_back(&w->history, step);
    lb_level_restart(&w->norm_model, then.norm, (uint64_t)(w->last_step - step));
    lb_level_restart(&w->loss_model, then.loss, (uint64_t)(w->last_step - step));
    w->loss = (lb_loss_rule){0};
    if (then.norm > 0) w->norm.ema = then.norm;
    w->norm_out = false, w->held_norm = 0, w->at_start.step = -1;
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
        take_repeats(w, NORM_STUCK, &w->norm_value, r->step, norm);
        if (lb_watch_has(r, LB_WATCH_ema) && isfinite(r->number[LB_WATCH_ema]))
            lb_loss_rules_column_take(&w->ema, norm, r->number[LB_WATCH_ema]);
    }
    if (lb_watch_has(r, LB_WATCH_loss) && isfinite(loss)) {
        take_loss_rule(w, r->step, loss);
        take_repeats(w, LOSS_STUCK, &w->loss_value, r->step, loss);
        if (loss > 0)
            take_model(w, LOSS_MODEL, &w->loss_model, r->step, loss);
        else if (!w->said_loss)
            w->said_loss = true,
            lb_run_find(w, "loss", r->step, "a loss of %.4g is not above 0: ratios say nothing of it", loss);
    }
    const lb_level_point now = {r->step, w->loss_model.n ? lb_level_usual(&w->loss_model) : 0,
                                w->norm_model.n ? lb_level_usual(&w->norm_model) : 0};
    lb_level_history_add(&w->history, now);
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
    lb_run_alarm(w, &alarm);
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
        if (!lb_run_grow(w, (void **)&w->serious, w->n_holds, &room, sizeof *w->serious) ||
            !lb_run_grow(w, (void **)&w->holds, w->n_holds, &w->room_holds, sizeof *w->holds))
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
    if (w->shared_tokens || !lb_data_suspect_take_tokens(&w->tokens, r, &other)) return;
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
    lb_run_alarm(w, &alarm);
}

static void take_drift(lb_watch *w, const lb_watch_record *r)
{
    if (!lb_watch_has(r, LB_WATCH_counts)) return;
    const bool was = w->drift.out;
    const lb_drift_answer answer = lb_token_drift_take(&w->drift, r->step, r->word[LB_WATCH_counts - LB_WATCH_shard]);
    if (answer == LB_DRIFT_UNREADABLE && !w->said_counts)
        w->said_counts = true,
        lb_run_find(w, "drift", r->step, "token counts are no list of numbers, or one of another length");
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
    lb_run_alarm(w, &alarm);
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
    lb_run_find(
        w, "early-spike", step,
        "gradient norm %.4g was %.1f times the %.4g that the run settled at afterwards: a spike of the first steps",
        w->early[spike.peak], spike.ratio, spike.settled);
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
    for (int field = 0; field < LB_WATCH_FIELDS; field++) w->rows[field] += lb_watch_has(&r, (lb_watch_field)field);
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

/* ---- life-cycle, and what is known ------------------------------------------------------------------------------- */

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
    w->norm_since = w->loss_since = w->first_nonfinite = -1;
    w->last_skip = INT64_MIN / 2;
    w->tokens.step = INT64_MIN;
    w->at_start.step = -1;
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

static void find_early_drift(lb_watch *w)
{
    const lb_short_drift *d = lb_token_drift_early(&w->drift);
    if (!d) return;
    const uint32_t n = (uint32_t)w->drift.n;
    if (!d->judged)
        lb_run_find(
            w, "drift", INT64_MIN,
            "token frequencies of %u records: those of the second half lie %.3f nats (KL) from the first half's; "
            "fewer than %d records do not tell whether that is scatter",
            n, d->distance, LB_SHORT_DRIFT_LEAST);
    else if (d->told)
        lb_run_find(
            w, "drift", w->drift.steps[d->cut],
            "token frequencies from here on lie %.3f nats (KL) from those before, and of %d other orders of these "
            "%u records %u part as far: their order matters; an alarm takes %d records",
            d->distance, LB_SHORT_DRIFT_ORDERS, n, d->as_far, LB_DRIFT_KEPT);
}

/* Findings that counts decide stand behind those that steps gave; they are made anew for each report. */
static void find_from_counts(lb_watch *w)
{
    find_early_drift(w);
    if (w->schedule.schedule.kind != LB_SCHEDULE_NONE && w->schedule.schedule.iterations == 0)
        lb_run_find(w, "schedule", INT64_MIN,
                    "the schedule was not checked: neither the log nor --iterations says how long it is");
    if (lb_loss_rules_column_is_updated_first(&w->ema))
        lb_run_find(
            w, "ema", INT64_MIN,
            "the log's own average has each step's norm in it before the two are compared: norm / average stays below "
            "100, "
            "and critical is never reached; compare with the average of the step before");
    if (w->skip_places >= DRIP)
        lb_run_find(w, "skips", INT64_MIN,
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
    look_back_at_start(w);
    raise_start(w); /* nothing has shown that it settles */
    const uint32_t settled = w->n_findings;
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
                              .pattern = lb_spike_pattern_of(&shape),
                              .records = w->records,
                              .first_step = w->first_step,
                              .last_step = w->last_step,
                              .restart_from = -1,
                              .nonfinite = w->nonfinite,
                              .skipped = w->skipped,
                              .schedule_stood = w->schedule.stands,
                              .loss_since = w->loss_since,
                              .norm_since = w->norm_since,
                              .rows = w->rows};
    report.n_checkpoints = lb_checkpoints_inside(&w->known, w->holds, w->n_holds, w->inside, LB_KNOWN_CHECKPOINTS);
    for (uint32_t i = 0; i < w->n_holds && report.restart_from < 0; i++)
        if (w->serious[i]) report.restart_from = lb_checkpoint_before(&w->known, w->holds[i].from);
    w->n_findings = settled;
    return report;
}
