/* Multipliers against their closed forms, and logs that leave them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "watch/schedule_check.h"

#include <math.h>

static lb_watch_record rate(int64_t step, double lrm, double rounding)
{
    lb_watch_record record = {.step = step, .lr_rounding = rounding, .has = 1u << LB_WATCH_lrm | 1u << LB_WATCH_step};
    record.number[LB_WATCH_lrm] = lrm;
    return record;
}

static void warm_up_rises_by_equal_steps_from_the_first_iteration(void **state)
{
    (void)state;
    const lb_watch_schedule s = {LB_SCHEDULE_COSINE, 1000, 0.03, 0.1, 0.2, false};
    assert_float_equal(lb_schedule_multiplier(&s, 0), 1.0 / 30, 1e-15);
    assert_float_equal(lb_schedule_multiplier(&s, 29), 1, 1e-15);
    assert_float_equal(lb_schedule_multiplier(&s, 500), 0.1 + 0.9 * 0.5, 1e-12);
    assert_float_equal(lb_schedule_multiplier(&s, 1000), 0.1, 1e-12);
    const lb_watch_schedule none = {LB_SCHEDULE_LINEAR, 1000, 0, 0, 0.2, false};
    assert_float_equal(lb_schedule_multiplier(&none, 0), 1, 0);
    assert_float_equal(lb_schedule_multiplier(&none, 250), 0.75, 1e-15);
}

static void stable_decay_is_flat_and_then_falls_to_the_floor(void **state)
{
    (void)state;
    const lb_watch_schedule s = {LB_SCHEDULE_WSD, 1000, 0.03, 0.1, 0.2, false};
    assert_float_equal(lb_schedule_multiplier(&s, 800), 1, 0);
    assert_float_equal(lb_schedule_multiplier(&s, 900), 0.1 + 0.9 * 0.5, 1e-12);
    assert_float_equal(lb_schedule_multiplier(&s, 1000), 0.1, 1e-12);
}

/* Both variants, in digits as a log shows them; the first step that leaves is the one that was changed. */
static void the_first_step_that_leaves_is_named(void **state)
{
    (void)state;
    for (int behind = 0; behind < 2; behind++)
        for (int shown = 0; shown < 2; shown++) {
            const lb_watch_schedule s = {LB_SCHEDULE_COSINE, 1000, 0.03, 0.05, 0.2, behind};
            lb_schedule_check check;
            double expected, found;
            lb_schedule_check_init(&check, &s);
            for (int64_t it = 0; it < 1000; it++) {
                double lrm = lb_schedule_multiplier(&s, it < 700 ? it : it - 40);
                if (shown) lrm = nearbyint(lrm * 100) / 100;
                const lb_watch_record record = rate(it, lrm, shown ? 0.005 : 0);
                const bool left = lb_schedule_check_take(&check, &record, &expected, &found);
                assert_int_equal(left, it == 700);
                if (left) assert_float_equal(found, lrm, 0);
            }
        }
}

static void skipped_steps_may_leave_the_schedule_where_it_was(void **state)
{
    (void)state;
    for (int stands = 0; stands < 2; stands++)
        for (int known = 0; known < 2; known++) {
            const lb_watch_schedule s = {known ? LB_SCHEDULE_LINEAR : LB_SCHEDULE_NONE, 1000, 0.03, 0, 0.2, false};
            const lb_watch_schedule truth = {LB_SCHEDULE_LINEAR, 1000, 0.03, 0, 0.2, false};
            lb_schedule_check check;
            double expected, found;
            int64_t behind = 0;
            lb_schedule_check_init(&check, &s);
            for (int64_t it = 0; it < 500; it++) {
                const lb_watch_record record = rate(it, lb_schedule_multiplier(&truth, it - behind), 0);
                assert_false(lb_schedule_check_take(&check, &record, &expected, &found));
                if (it % 100 != 50) continue;
                lb_schedule_check_skipped(&check);
                behind += stands;
            }
            assert_int_equal(check.stands, stands);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_up_rises_by_equal_steps_from_the_first_iteration),
        cmocka_unit_test(stable_decay_is_flat_and_then_falls_to_the_floor),
        cmocka_unit_test(the_first_step_that_leaves_is_named),
        cmocka_unit_test(skipped_steps_may_leave_the_schedule_where_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
