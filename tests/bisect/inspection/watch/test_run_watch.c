/* One run as a whole: the three patterns raise exactly their alarms, clean runs none; holds, checkpoints, restarts,
 * data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "run_noise.h"

#include <lastbit/watch.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void put(lb_watch_record *record, lb_watch_field field, double x)
{
    record->number[field] = x;
    record->has |= 1u << field;
}
static void put_word(lb_watch_record *record, lb_watch_field field, const char *text)
{
    record->word[field - LB_WATCH_shard] = (lb_watch_word){text, (uint32_t)strlen(text)};
    record->has |= 1u << field;
}
static lb_watch_record at(int64_t step, double loss, double gnorm)
{
    lb_watch_record record = {.step = step, .has = 1u << LB_WATCH_step};
    put(&record, LB_WATCH_loss, loss);
    put(&record, LB_WATCH_gnorm, gnorm);
    return record;
}

static lb_watch *start(int64_t every)
{
    lb_watch_options options = LB_WATCH_OPTIONS_INIT;
    options.checkpoint_every = every;
    lb_watch *watch = lb_watch_new(&options);
    assert_non_null(watch);
    return watch;
}

static void expect(const lb_watch_alarm *alarm, int64_t step, lb_alarm_kind kind, lb_alarm_level level,
                   lb_alarm_detector detector)
{
    assert_int_equal(alarm->step, step);
    assert_int_equal(alarm->kind, kind);
    assert_int_equal(alarm->level, level);
    assert_int_equal(alarm->detector, detector);
}

/* Numbers of a run that goes well. */
typedef struct calm {
    run_noise loss, norm;
    int shape;
} calm;
static lb_watch_record next(calm *c, int64_t step)
{
    /* Of heavy tails less: a norm at ten times its average is no clean one. */
    const double width = c->shape == NOISE_student_4 ? 0.08 : 0.2;
    return at(step, 0.8 * exp(0.03 * noise_next(&c->loss, c->shape)),
              0.4 * exp(width * noise_next(&c->norm, c->shape)));
}

static void clean_runs_of_100000_steps_raise_nothing(void **state)
{
    (void)state;
    static const int shapes[] = {NOISE_lognormal,     NOISE_laplace,    NOISE_student_4,
                                 NOISE_correlated_09, NOISE_slow_decay, NOISE_exponential};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        for (uint64_t seed = 1; seed <= 4; seed++) {
            calm c = {{.seed = seed * 31}, {.seed = seed * 37 + 1}, shapes[k]};
            lb_watch *watch = start(1000);
            for (int64_t step = 0; step < 100000; step++) {
                lb_watch_record record = next(&c, step);
                put(&record, LB_WATCH_tok_sec, 254000 * (step % 500 == 0 ? 0.1 : exp(0.02 * noise_gauss(&c.loss))));
                lb_watch_take(watch, &record);
            }
            const lb_watch_report report = lb_watch_now(watch);
            if (report.n_alarms) fail_msg("%s, seed %d: %s", noise_name(shapes[k]), (int)seed, report.alarms[0].why);
            assert_int_equal(report.n_holds, 0);
            assert_int_equal(report.pattern, LB_SPIKE_NONE);
            assert_true(report.loss_since > 0 && report.loss_since < 100 && report.norm_since < 100);
            lb_watch_free(watch);
        }
}

static void nan_at_once_is_one_alarm(void **state)
{
    (void)state;
    lb_watch *watch = start(0);
    for (int64_t step = 0; step < 50; step++) {
        const lb_watch_record record = at(step, step ? NAN : 14.79, step ? NAN : 300);
        lb_watch_take(watch, &record);
    }
    const lb_watch_report report = lb_watch_now(watch);
    assert_int_equal(report.n_alarms, 1);
    expect(&report.alarms[0], 1, LB_ALARM_NONFINITE, LB_ALARM_CRITICAL, LB_DETECTOR_RULE);
    assert_true(isnan(report.alarms[0].value));
    assert_float_equal(report.alarms[0].reference, 14.79, 0);
    assert_int_equal(report.alarms[0].until, 49);
    assert_int_equal(report.pattern, LB_SPIKE_IMMEDIATE_NAN);
    assert_int_equal(report.nonfinite, 49);
    lb_watch_free(watch);
}

static void a_start_that_is_finite_and_climbs_is_none_of_the_patterns(void **state)
{
    (void)state;
    static const double losses[] = {14.70, 25.9, 33.6, 39.2};
    lb_watch *watch = start(0);
    for (int64_t step = 0; step < 4; step++) {
        const lb_watch_record record = at(step, losses[step], 1);
        lb_watch_take(watch, &record);
    }
    assert_int_equal(lb_watch_now(watch).pattern, LB_SPIKE_NONE);
    lb_watch_free(watch);
}

static lb_watch_report started(lb_watch *watch, int64_t begin, int lasts)
{
    static const double norms[] = {1160, 3648, 7200};
    calm c = {{.seed = 5}, {.seed = 6}, NOISE_lognormal};
    for (int64_t step = 0; step < 3000; step++) {
        lb_watch_record record = next(&c, step);
        if (step >= begin && step < begin + lasts)
            put(&record, LB_WATCH_gnorm, norms[step - begin < 3 ? step - begin : 2]);
        lb_watch_take(watch, &record);
    }
    return lb_watch_now(watch);
}

/* From the very first step no average can judge it, five steps later one does: either way it settles, and is no
 * alarm. */
static void an_early_spike_that_settles_is_a_note(void **state)
{
    (void)state;
    for (int64_t begin = 0; begin <= 5; begin += 5) {
        lb_watch *watch = start(0);
        const lb_watch_report report = started(watch, begin, 3);
        assert_int_equal(report.n_alarms, 0);
        assert_int_equal(report.n_findings, 1);
        assert_string_equal(report.findings[0].kind, "early-spike");
        assert_non_null(strstr(report.findings[0].text, "7200"));
        assert_int_equal(report.pattern, LB_SPIKE_EARLY);
        assert_int_equal(report.n_holds, begin ? 1 : 0);
        if (begin) assert_true(report.holds[0].from == 5 && report.holds[0].to == 7 && !report.holds[0].open);
        lb_watch_free(watch);
    }
}

static void an_early_spike_that_lasts_is_an_alarm(void **state)
{
    (void)state;
    lb_watch *watch = start(0);
    const lb_watch_report report = started(watch, 5, 60);
    assert_true(report.n_alarms >= 1);
    expect(&report.alarms[0], 5, LB_ALARM_GRAD_NORM, LB_ALARM_CRITICAL, LB_DETECTOR_RULE);
    lb_watch_free(watch);
}

/* A metric that is no longer computed. */
static void a_loss_that_stays_the_same_digit_by_digit_is_stuck(void **state)
{
    (void)state;
    calm c = {{.seed = 5}, {.seed = 6}, NOISE_lognormal};
    lb_watch *watch = start(0);
    for (int64_t step = 0; step < 400; step++) {
        lb_watch_record record = next(&c, step);
        if (step >= 300) put(&record, LB_WATCH_loss, 0.8);
        lb_watch_take(watch, &record);
    }
    const lb_watch_report report = lb_watch_now(watch);
    assert_int_equal(report.n_alarms, 1);
    expect(&report.alarms[0], 315, LB_ALARM_LOSS, LB_ALARM_WARNING, LB_DETECTOR_MODEL);
    assert_non_null(strstr(report.alarms[0].why, "has been 0.8 for 16 steps"));
    lb_watch_free(watch);
}

static lb_watch_report late_transient(lb_watch *watch, int ramp)
{
    calm c = {{.seed = 7}, {.seed = 8}, NOISE_lognormal};
    for (int64_t step = 0; step < 30000; step++) {
        lb_watch_record record = next(&c, step);
        const double t = (double)(step - 24850);
        if (t >= 0) {
            const double up = fmin(1, (t + 1) / ramp), down = fmax(0, fmin(1, (850 - t) / 250));
            record.number[LB_WATCH_loss] *= 1 + 3.25 * up * down + 0.0625 * (1 - down);
            record.number[LB_WATCH_gnorm] *= 1 + 40 * up * down;
        }
        lb_watch_take(watch, &record);
    }
    return lb_watch_now(watch);
}

static void a_late_transient_is_seen_and_its_checkpoint_named(void **state)
{
    (void)state;
    static const int ramps[] = {1, 60};
    for (int k = 0; k < 2; k++) {
        lb_watch *watch = start(5000);
        const lb_watch_report report = late_transient(watch, ramps[k]);
        int64_t loss_rule = -1, loss_model = -1;
        for (uint32_t i = 0; i < report.n_alarms; i++) {
            const lb_watch_alarm *alarm = &report.alarms[i];
            assert_true(alarm->kind == LB_ALARM_LOSS || alarm->kind == LB_ALARM_GRAD_NORM);
            assert_in_range(alarm->step, 24850, 24900);
            if (alarm->kind == LB_ALARM_LOSS)
                *(alarm->detector == LB_DETECTOR_MODEL ? &loss_model : &loss_rule) = alarm->step;
        }
        assert_true(loss_model >= 24850 && loss_model < loss_rule);
        assert_int_equal(report.n_alarms,
                         ramps[k] == 1 ? 4 : 3); /* the average follows a slow ramp: its rule is silent */
        assert_int_equal(report.pattern, LB_SPIKE_LATE_TRANSIENT);
        assert_int_equal(report.n_holds, 1);
        assert_in_range(report.holds[0].from, 24850, 24860);
        assert_in_range(report.holds[0].to, 25600, 25720);
        assert_int_equal(report.n_checkpoints, 1);
        assert_int_equal(report.checkpoints[0].step, 25000);
        assert_int_equal(report.restart_from, 20000);
        lb_watch_free(watch);
    }
}

static void a_norm_that_gets_worse_is_critical_then(void **state)
{
    (void)state;
    lb_watch *watch = start(0);
    for (int64_t step = 0; step < 200; step++) {
        lb_watch_record record = at(step, 1, step == 150 ? 20 : step == 151 ? 900 : 1);
        lb_watch_take(watch, &record);
    }
    const lb_watch_report report = lb_watch_now(watch);
    assert_int_equal(report.n_alarms, 2);
    expect(&report.alarms[0], 150, LB_ALARM_GRAD_NORM, LB_ALARM_WARNING, LB_DETECTOR_RULE);
    expect(&report.alarms[1], 151, LB_ALARM_GRAD_NORM, LB_ALARM_CRITICAL, LB_DETECTOR_RULE);
    assert_float_equal(report.alarms[0].ratio, 20, 1e-9);
    assert_float_equal(report.alarms[1].ratio, 900 / 1.19, 1e-9);
    lb_watch_free(watch);
}

static void a_drip_of_skipped_steps_points_at_the_precision(void **state)
{
    (void)state;
    lb_watch *watch = start(0);
    for (int64_t step = 0; step < 1000; step++) {
        lb_watch_record record = at(step, 1, 1);
        put(&record, LB_WATCH_lr, 1e-3 * (double)(1000 - step + step / 100));
        if (step % 100 == 99) record.skipped = true, record.has |= 1u << LB_WATCH_skipped;
        lb_watch_take(watch, &record);
    }
    const lb_watch_report report = lb_watch_now(watch);
    assert_int_equal(report.skipped, 10);
    assert_int_equal(report.n_alarms, 10);
    expect(&report.alarms[0], 99, LB_ALARM_NONFINITE, LB_ALARM_WARNING, LB_DETECTOR_RULE);
    assert_int_equal(report.schedule_stood, 1);
    assert_string_equal(report.findings[0].kind, "skips");
    lb_watch_free(watch);
}

static void a_restarted_run_goes_on_where_it_was(void **state)
{
    (void)state;
    calm c = {{.seed = 7}, {.seed = 8}, NOISE_lognormal};
    lb_watch *watch = start(1000);
    for (int64_t step = 0; step < 5000; step++) {
        const lb_watch_record record = next(&c, step);
        lb_watch_take(watch, &record);
    }
    for (int64_t step = 4000; step < 9000; step++) {
        const lb_watch_record record = next(&c, step);
        lb_watch_take(watch, &record);
        lb_watch_take(watch, &record); /* the same line by two handlers */
    }
    const lb_watch_report report = lb_watch_now(watch);
    assert_int_equal(report.n_alarms, 0);
    assert_int_equal(report.records, 10000);
    assert_int_equal(report.n_findings, 1);
    assert_string_equal(report.findings[0].kind, "restart");
    lb_watch_free(watch);
}

static void a_restart_from_before_an_excursion_ends_it(void **state)
{
    (void)state;
    calm c = {{.seed = 7}, {.seed = 8}, NOISE_lognormal};
    lb_watch *watch = start(1000);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t step = pass ? 4000 : 0; step < (pass ? 9000 : 4500); step++) {
            lb_watch_record record = next(&c, step);
            if (!pass && step >= 4400) record.number[LB_WATCH_loss] *= 4, record.number[LB_WATCH_gnorm] *= 30;
            lb_watch_take(watch, &record);
        }
    const lb_watch_report report = lb_watch_now(watch);
    assert_int_equal(report.n_alarms, 4); /* both detectors of both */
    for (uint32_t i = 0; i < 4; i++) assert_in_range(report.alarms[i].step, 4400, 4410);
    assert_int_equal(report.n_holds, 1);
    assert_true(report.holds[0].from == 4400 && report.holds[0].to == 4499 && !report.holds[0].open);
    assert_int_equal(report.restart_from, 4000);
    lb_watch_free(watch);
}

static void throughput_falls_before_the_loss(void **state)
{
    (void)state;
    lb_watch *watch = start(0);
    for (int64_t step = 0; step < 2000; step++) {
        lb_watch_record record = at(step, 1, 1);
        put(&record, LB_WATCH_dt, step < 1500 ? 400 : 900);
        lb_watch_take(watch, &record);
    }
    const lb_watch_report report = lb_watch_now(watch);
    assert_int_equal(report.n_alarms, 1);
    expect(&report.alarms[0], 1505, LB_ALARM_THROUGHPUT, LB_ALARM_WARNING, LB_DETECTOR_RULE);
    assert_float_equal(report.alarms[0].ratio, 400.0 / 900, 0.05);
    assert_int_equal(report.n_holds, 0);
    lb_watch_free(watch);
}

/* A run over 20 shards, 100 steps each; `bad` has a spike 40 steps in, at every visit. */
static void read_shards(lb_watch *watch, const int *order, int n, int bad, int64_t when, uint64_t seed)
{
    calm c = {{.seed = seed}, {.seed = seed + 1}, NOISE_lognormal};
    char name[16];
    for (int k = 0; k < n; k++)
        for (int64_t i = 0; i < 100; i++) {
            lb_watch_record record = next(&c, k * 100 + i);
            snprintf(name, sizeof name, "shard-%02d", order[k]);
            put_word(&record, LB_WATCH_shard, name);
            if (order[k] == bad && i >= when && i < when + 5) record.number[LB_WATCH_gnorm] *= 60;
            lb_watch_take(watch, &record);
        }
}

static void a_shard_that_brings_a_spike_back_is_suspected(void **state)
{
    (void)state;
    int order[40];
    for (int k = 0; k < 40; k++) order[k] = k < 20 ? k : 39 - k;
    lb_watch *watch = start(0);
    read_shards(watch, order, 40, 13, 40, 3);
    const lb_watch_report report = lb_watch_now(watch);
    uint32_t data = 0;
    for (uint32_t i = 0; i < report.n_alarms; i++) {
        assert_string_equal(report.alarms[i].shard, "shard-13");
        if (report.alarms[i].kind == LB_ALARM_DATA) data++, assert_int_equal(report.alarms[i].step, 2640);
    }
    assert_int_equal(data, 1);
    lb_watch_free(watch);
}

static void reruns_in_another_order_name_the_shard(void **state)
{
    (void)state;
    lb_watch *runs[3];
    for (int k = 0; k < 3; k++) {
        int order[20];
        for (int i = 0; i < 20; i++) order[i] = (i + 6 * k) % 20;
        runs[k] = start(0);
        read_shards(runs[k], order, 20, 13, 40, 3 + (uint64_t)k);
    }
    lb_watch_alarm alarms[8];
    lb_watch_finding finding;
    assert_int_equal(lb_watch_reruns(runs, 3, false, alarms, 8, &finding), 1);
    assert_string_equal(alarms[0].shard, "shard-13");
    assert_int_equal(alarms[0].kind, LB_ALARM_DATA);
    assert_non_null(strstr(alarms[0].why, "3 of 3 runs"));
    assert_string_equal(finding.kind, "determinism");
    assert_int_equal(finding.step, 0);
    assert_int_equal(lb_watch_reruns(runs, 3, true, alarms, 8, &finding), 2);
    lb_watch *same[2] = {runs[0], runs[0]};
    lb_watch_reruns(same, 2, false, alarms, 8, &finding);
    assert_non_null(strstr(finding.text, "first 20 steps agree"));
    for (int k = 0; k < 3; k++) lb_watch_free(runs[k]);
}

static void a_bump_at_a_border_is_called_one(void **state)
{
    (void)state;
    int order[20];
    for (int k = 0; k < 20; k++) order[k] = k;
    lb_watch *watch = start(0);
    read_shards(watch, order, 20, 9, 2, 3);
    const lb_watch_report report = lb_watch_now(watch);
    assert_true(report.n_alarms >= 1 && report.n_findings == 1);
    assert_string_equal(report.findings[0].kind, "boundary");
    assert_in_range(report.findings[0].step, 900, 905);
    lb_watch_free(watch);
}

static void ranks_that_read_the_same_tokens_are_named(void **state)
{
    (void)state;
    static const char *const hashes[] = {"a1", "b2", "c3", "b2"};
    for (int ranks = 3; ranks <= 4; ranks++) {
        lb_watch *watch = start(0);
        for (int64_t step = 0; step < 30; step++)
            for (int rank = 0; rank < ranks; rank++) {
                lb_watch_record record = at(step, 1, 1);
                record.rank = rank, record.has |= 1u << LB_WATCH_rank;
                put_word(&record, LB_WATCH_tokens, hashes[rank]);
                lb_watch_take(watch, &record);
            }
        const lb_watch_report report = lb_watch_now(watch);
        assert_int_equal(report.n_alarms, ranks == 4);
        assert_int_equal(report.records, 30);
        if (ranks == 4) {
            expect(&report.alarms[0], 0, LB_ALARM_DATA, LB_ALARM_CRITICAL, LB_DETECTOR_RULE);
            assert_non_null(strstr(report.alarms[0].why, "ranks 1 and 3"));
        }
        lb_watch_free(watch);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clean_runs_of_100000_steps_raise_nothing),
        cmocka_unit_test(nan_at_once_is_one_alarm),
        cmocka_unit_test(a_start_that_is_finite_and_climbs_is_none_of_the_patterns),
        cmocka_unit_test(an_early_spike_that_settles_is_a_note),
        cmocka_unit_test(an_early_spike_that_lasts_is_an_alarm),
        cmocka_unit_test(a_loss_that_stays_the_same_digit_by_digit_is_stuck),
        cmocka_unit_test(a_late_transient_is_seen_and_its_checkpoint_named),
        cmocka_unit_test(a_norm_that_gets_worse_is_critical_then),
        cmocka_unit_test(a_drip_of_skipped_steps_points_at_the_precision),
        cmocka_unit_test(a_restarted_run_goes_on_where_it_was),
        cmocka_unit_test(a_restart_from_before_an_excursion_ends_it),
        cmocka_unit_test(throughput_falls_before_the_loss),
        cmocka_unit_test(a_shard_that_brings_a_spike_back_is_suspected),
        cmocka_unit_test(reruns_in_another_order_name_the_shard),
        cmocka_unit_test(a_bump_at_a_border_is_called_one),
        cmocka_unit_test(ranks_that_read_the_same_tokens_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
