/* The rules of practice, at their own figures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "watch/loss_rules.h"

static void the_norm_is_compared_with_the_average_before_it(void **state)
{
    (void)state;
    lb_norm_rule rule = {0};
    double reference;
    assert_float_equal(lb_norm_rule_take(&rule, 2, &reference), 0, 0);
    assert_float_equal(lb_norm_rule_take(&rule, 20, &reference), 10, 0);
    assert_float_equal(reference, 2, 0);
    assert_float_equal(rule.ema, 0.01 * 20 + 0.99 * 2, 1e-15);
    assert_float_equal(lb_norm_rule_take(&rule, 2180, &reference), 1000, 1e-9);
}

static void the_mean_of_ten_losses_is_compared_with_the_hundred_before(void **state)
{
    (void)state;
    lb_loss_rule rule = {0};
    for (int i = 0; i < 200; i++) assert_false(lb_loss_rule_take(&rule, 1));
    /* n losses of 4 among the ten: 1 + 3 n / 10; more than 2 (1 + …) from the fourth on */
    for (int n = 1; n <= 10; n++) assert_int_equal(lb_loss_rule_take(&rule, 4), n >= 4);
    assert_float_equal(rule.reference, 1, 1e-12);
    for (int i = 0; i < 9; i++) assert_true(lb_loss_rule_take(&rule, 1));
    assert_false(lb_loss_rule_take(&rule, 1));
}

static void a_loss_that_falls_or_one_that_spikes_once_is_quiet(void **state)
{
    (void)state;
    lb_loss_rule rule = {0};
    for (int i = 0; i < 1000; i++) assert_false(lb_loss_rule_take(&rule, i == 500 ? 9 : 11.0 / (1 + i / 300.0)));
}

static void six_slow_steps_of_eight_are_a_fall_and_one_is_none(void **state)
{
    (void)state;
    lb_rate_rule rule = {0};
    for (int i = 0; i < 395; i++) assert_false(lb_rate_rule_take(&rule, i % 100 == 99 ? 10 : 100));
    for (int n = 1; n <= 6; n++) assert_int_equal(lb_rate_rule_take(&rule, 50), n == 6);
    assert_float_equal(rule.value, 50, 1e-9);
    for (int n = 1; n <= 6; n++) assert_int_equal(lb_rate_rule_take(&rule, 100), n < 6);
}

static void an_average_that_has_the_norm_in_it_already_is_recognised(void **state)
{
    (void)state;
    lb_loss_rules_column after = {0}, before = {0};
    double ema = 1, kept = 1;
    for (int i = 0; i < 100; i++) {
        const double norm = 1 + 0.5 * (i * 37 % 11);
        lb_loss_rules_column_take(&before, norm, ema);
        ema = 0.01 * norm + 0.99 * ema;
        kept = 0.01 * norm + 0.99 * kept;
        lb_loss_rules_column_take(&after, norm, kept);
    }
    assert_true(lb_loss_rules_column_is_updated_first(&after));
    assert_false(lb_loss_rules_column_is_updated_first(&before));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_norm_is_compared_with_the_average_before_it),
        cmocka_unit_test(the_mean_of_ten_losses_is_compared_with_the_hundred_before),
        cmocka_unit_test(a_loss_that_falls_or_one_that_spikes_once_is_quiet),
        cmocka_unit_test(six_slow_steps_of_eight_are_a_fall_and_one_is_none),
        cmocka_unit_test(an_average_that_has_the_norm_in_it_already_is_recognised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
