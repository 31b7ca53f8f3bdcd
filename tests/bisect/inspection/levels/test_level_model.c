/* Clean runs raise nothing, rises are seen before the rule sees them, and what an alarm teaches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "levels/level_model.h"
#include "../watch/run_noise.h"
#include "watch/loss_rules.h"

enum { STEPS = 100000 };

/* Every shape but rare bursts of four times the noise, at which the model is known to be wrong once in a million
 * steps. */
static void clean_runs_of_any_noise_raise_nothing(void **state)
{
    (void)state;
    for (int shape = 0; shape < NOISE_bursts; shape++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            static lb_level_model model;
            run_noise g = {.seed = seed * 101};
            lb_level_init(&model, 0.05);
            for (int i = 0; i < STEPS; i++) {
                const double number = exp(0.05 * noise_next(&g, shape));
                if (lb_level_take(&model, number) == LB_LEVEL_RISES)
                    fail_msg("%s, seed %d: alarm at step %d", noise_name(shape), (int)seed, i);
            }
            assert_true(lb_level_is_ready(&model));
        }
}

static void a_rise_is_seen_before_the_mean_of_losses_has_doubled(void **state)
{
    (void)state;
    static const int ramps[] = {1, 20, 60};
    for (int k = 0; k < 3; k++)
        for (uint64_t seed = 1; seed <= 5; seed++) {
            static lb_level_model model;
            lb_loss_rule rule = {0};
            run_noise g = {.seed = seed};
            int model_at = -1, rule_at = -1;
            lb_level_init(&model, 0.05);
            for (int i = 0; i < 10200; i++) {
                const int t = i - 10000;
                const double base = t < 0 ? 0.8 : 0.8 + 2.6 * fmin(1, (t + 1.0) / ramps[k]);
                const double loss = base * exp(0.05 * noise_gauss(&g));
                if (lb_level_take(&model, loss) == LB_LEVEL_RISES) assert_int_equal(model_at, -1), model_at = t;
                if (lb_loss_rule_take(&rule, loss) && rule_at < 0) rule_at = t;
            }
            assert_true(model_at >= 0 && rule_at >= 0 && model_at < rule_at);
        }
}

static void nothing_is_judged_before_there_is_a_past(void **state)
{
    (void)state;
    static lb_level_model model;
    run_noise g = {.seed = 9};
    lb_level_init(&model, 0.05);
    for (int i = 0; i < LB_LEVEL_BEGIN - 1; i++) {
        assert_int_equal(lb_level_take(&model, exp(0.05 * noise_gauss(&g))), LB_LEVEL_QUIET);
        assert_false(lb_level_is_ready(&model));
    }
    for (int i = 0; i < 500; i++) lb_level_take(&model, exp(0.05 * noise_gauss(&g)));
    assert_true(lb_level_is_ready(&model));
}

static void one_excursion_is_one_alarm_and_ends_where_it_comes_back(void **state)
{
    (void)state;
    static lb_level_model model;
    run_noise g = {.seed = 4};
    int rises = 0, back = -1;
    lb_level_init(&model, 0.05);
    for (int i = 0; i < 12000; i++) {
        const double base = i >= 10000 && i < 10800 ? 4 : 1;
        const lb_level_answer answer = lb_level_take(&model, base * exp(0.03 * noise_gauss(&g)));
        rises += answer == LB_LEVEL_RISES;
        if (answer == LB_LEVEL_BACK) back = i;
    }
    assert_int_equal(rises, 1);
    assert_in_range(back, 10810, 10850);
}

static void a_level_that_stays_is_the_usual_one_after_two_thousand_steps(void **state)
{
    (void)state;
    static lb_level_model model;
    run_noise g = {.seed = 4};
    int rises = 0;
    lb_level_init(&model, 0.05);
    for (int i = 0; i < 20000; i++)
        rises += lb_level_take(&model, (i < 10000 ? 1 : 1.5) * exp(0.03 * noise_gauss(&g))) == LB_LEVEL_RISES;
    assert_int_equal(rises, 1);
    assert_float_equal(lb_level_usual(&model), 1.5, 0.02);
}

static void numbers_without_noise_are_judged_by_the_least_rise(void **state)
{
    (void)state;
    static lb_level_model model;
    lb_level_init(&model, 0.05);
    for (int i = 0; i < 2000; i++) assert_int_equal(lb_level_take(&model, 3 * exp(-i / 400000.0)), LB_LEVEL_QUIET);
    assert_int_equal(lb_level_take(&model, 3.1), LB_LEVEL_QUIET);
    assert_int_equal(lb_level_take(&model, 3.6), LB_LEVEL_RISES);
}

/* Forty deviations for one step are an alarm, until the run has shown that it does this now and then. */
static void outliers_that_come_back_are_how_the_run_is(void **state)
{
    (void)state;
    static lb_level_model model;
    run_noise g = {.seed = 4};
    int early = 0, late = 0;
    lb_level_init(&model, 0.05);
    for (int i = 0; i < 40000; i++) {
        const double number = (i % 500 == 499 ? 3 : 1) * exp(0.03 * noise_gauss(&g));
        if (lb_level_take(&model, number) == LB_LEVEL_RISES) *(i < 20000 ? &early : &late) += 1;
    }
    assert_in_range(early, 1, 30);
    assert_int_equal(late, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clean_runs_of_any_noise_raise_nothing),
        cmocka_unit_test(a_rise_is_seen_before_the_mean_of_losses_has_doubled),
        cmocka_unit_test(nothing_is_judged_before_there_is_a_past),
        cmocka_unit_test(one_excursion_is_one_alarm_and_ends_where_it_comes_back),
        cmocka_unit_test(a_level_that_stays_is_the_usual_one_after_two_thousand_steps),
        cmocka_unit_test(numbers_without_noise_are_judged_by_the_least_rise),
        cmocka_unit_test(outliers_that_come_back_are_how_the_run_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
