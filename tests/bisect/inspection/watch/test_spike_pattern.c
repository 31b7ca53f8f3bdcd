/* Small machines: early spikes, patterns, holds, checkpoints, borders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "watch/checkpoint_hold.h"
#include "watch/data_suspect.h"
#include "watch/spike_pattern.h"

#include <string.h>

static bool spike(double first, double peak, double settled, lb_early_spike *out)
{
    double norms[60];
    for (int i = 0; i < 60; i++) norms[i] = settled;
    norms[0] = first, norms[1] = (first + peak) / 2, norms[2] = peak;
    return lb_early_spike_find(norms, 60, out);
}

static void a_spike_rises_and_settles(void **state)
{
    (void)state;
    lb_early_spike s;
    assert_true(spike(1160, 7200, 1.2, &s));
    assert_int_equal(s.peak, 2);
    assert_float_equal(s.ratio, 6000, 1e-9);
    assert_false(spike(20, 9, 1, &s));   /* falls from the start: no rise */
    assert_false(spike(3, 10, 1.1, &s)); /* to less than ten times */
    assert_false(spike(2, 7, 7, &s));    /* stays there */
    const double few[] = {1, 50, 1, 1};
    assert_false(lb_early_spike_find(few, 4, &s));
}

static void patterns_are_told_apart(void **state)
{
    (void)state;
    static const struct {
        lb_run_shape shape;
        lb_watch_pattern pattern;
    } rows[] = {
        {{1000, -1, 0, false, false}, LB_SPIKE_NONE},    {{1000, 1, 999, false, false}, LB_SPIKE_IMMEDIATE_NAN},
        {{1000, 1, 3, false, false}, LB_SPIKE_NONE},     /* skipped, and on it went */
        {{1000, 500, 500, false, false}, LB_SPIKE_NONE}, /* not at once */
        {{1000, -1, 0, true, false}, LB_SPIKE_EARLY},    {{1000, -1, 0, true, true}, LB_SPIKE_LATE_TRANSIENT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(lb_spike_pattern_of(&rows[i].shape), rows[i].pattern);
}

static void a_hold_ends_ten_quiet_steps_after_its_last(void **state)
{
    (void)state;
    lb_hold_state s = {0};
    assert_int_equal(lb_hold_take(&s, 1, false), LB_HOLD_NONE);
    assert_int_equal(lb_hold_take(&s, 2, true), LB_HOLD_BEGINS);
    for (int64_t step = 3; step < 8; step++) assert_int_equal(lb_hold_take(&s, step, false), LB_HOLD_LASTS);
    assert_int_equal(lb_hold_take(&s, 8, true), LB_HOLD_LASTS);
    for (int64_t step = 9; step < 18; step++) assert_int_equal(lb_hold_take(&s, step, false), LB_HOLD_LASTS);
    assert_int_equal(lb_hold_take(&s, 18, false), LB_HOLD_ENDS);
    assert_true(s.from == 2 && s.last_out == 8);
}

static void checkpoints_are_found_in_holds_and_before_them(void **state)
{
    (void)state;
    static lb_known_checkpoints known;
    const lb_watch_hold holds[] = {{95, 105, false}, {299, 300, false}};
    lb_watch_checkpoint inside[8];
    for (int64_t step = 0; step <= 400; step += 50) {
        lb_checkpoint_add(&known, step, "x");
        lb_checkpoint_add(&known, step, "of another rank");
    }
    assert_int_equal(known.n, 9);
    assert_int_equal(lb_checkpoints_inside(&known, holds, 2, inside, 8), 2);
    assert_true(inside[0].step == 100 && inside[0].from == 95 && inside[1].step == 300);
    assert_int_equal(lb_checkpoint_before(&known, 95), 50);
    assert_int_equal(lb_checkpoint_before(&known, 0), -1);
}

static lb_watch_record in_shard(int64_t step, const char *shard)
{
    lb_watch_record record = {.step = step, .has = 1u << LB_WATCH_shard};
    record.word[0] = (lb_watch_word){shard, (uint32_t)strlen(shard)};
    return record;
}

static void borders_own_what_begins_behind_them(void **state)
{
    (void)state;
    lb_data_place place;
    lb_data_place_init(&place);
    const lb_watch_record a = in_shard(0, "a"), b = in_shard(100, "b");
    lb_data_place_take(&place, &a);
    assert_null(lb_data_border(&place, 5, 6)); /* the log begins in it: no border */
    lb_data_place_take(&place, &b);
    assert_string_equal(lb_data_border(&place, 110, 150), "boundary");
    assert_null(lb_data_border(&place, 110, 400));
    assert_null(lb_data_border(&place, 150, 160));
    assert_int_equal(place.borders, 1);
    lb_watch_record harder = {.step = 140, .has = 1u << LB_WATCH_curriculum};
    harder.word[LB_WATCH_curriculum - LB_WATCH_shard] = (lb_watch_word){"easy", 4};
    lb_data_place_take(&place, &harder);
    assert_null(lb_data_border(&place, 145, 400)); /* the first that the log names */
    harder.step = 200, harder.word[LB_WATCH_curriculum - LB_WATCH_shard] = (lb_watch_word){"hard", 4};
    lb_data_place_take(&place, &harder);
    assert_string_equal(lb_data_border(&place, 205, 900), "curriculum");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_spike_rises_and_settles),
        cmocka_unit_test(patterns_are_told_apart),
        cmocka_unit_test(a_hold_ends_ten_quiet_steps_after_its_last),
        cmocka_unit_test(checkpoints_are_found_in_holds_and_before_them),
        cmocka_unit_test(borders_own_what_begins_behind_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
