/* A few hundred simulated runs through all detectors: clean ones raise nothing, and trouble of every kind is found.
 * bench_watch does the same with ten thousand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "simulated_alarm.h"

static bool is_full(void)
{
    const char *full = getenv("LASTBIT_FULL");
    return full && *full == '1';
}

static void clean_runs_raise_nothing(void **state)
{
    (void)state;
    static simulated_run r;
    char why[300];
    const uint64_t runs = is_full() ? 2000 : 120;
    for (uint64_t seed = 1; seed <= runs; seed++) {
        simulate_clean(&r, seed);
        const int at = first_alarm(&r, why);
        if (at >= 0) fail_msg("seed %d, %s: record %d: %s", (int)seed, noise_name(r.noise), at, why);
    }
}

/* Runs that once had an alarm: three high numbers in a row of noise that wanders (four) or whose width does (one), two
 * of a far tail (two), rises of rounded numbers (three), noise whose width wanders (two), numbers that stand still
 * while it is calm (one), a drift of what diffuses (two), a width that wanders further than few widths had shown
 * (two). */
static void runs_that_were_once_taken_for_trouble_raise_nothing(void **state)
{
    (void)state;
    static const uint64_t seeds[] = {4000001261, 4000002229, 4000003942, 4000005003, 4000005293, 4000007846,
                                     4000011622, 4000017307, 4000018510, 5000000413, 5000022231, 5000035363,
                                     6000001632, 7000010444, 901007766,  902001005,  903007539};
    static simulated_run r;
    char why[300];
    for (size_t k = 0; k < sizeof seeds / sizeof *seeds; k++) {
        simulate_clean(&r, seeds[k]);
        const int at = first_alarm(&r, why);
        if (at >= 0) fail_msg("seed %llu: record %d: %s", (unsigned long long)seeds[k], at, why);
    }
}

static void trouble_of_every_kind_is_found(void **state)
{
    (void)state;
    enum { RUNS = 32 };
    static simulated_run r;
    char why[300];
    int all = 0;
    for (int trouble = 0; trouble < RUN_TROUBLE_KINDS; trouble++) {
        int found = 0;
        for (uint64_t seed = 0; seed < RUNS; seed++) {
            simulate_trouble(&r, 5000 + seed * 31 + (uint64_t)trouble * 1009, trouble);
            const int late = first_alarm(&r, why) - r.onset;
            found += late >= 0 && late <= run_trouble_steps(trouble);
        }
        if (found < RUNS / 3) fail_msg("%s: %d of %d", run_trouble_name(trouble), found, RUNS);
        all += found;
    }
    assert_true(all >= RUNS * RUN_TROUBLE_KINDS * 17 / 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clean_runs_raise_nothing),
        cmocka_unit_test(runs_that_were_once_taken_for_trouble_raise_nothing),
        cmocka_unit_test(trouble_of_every_kind_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
