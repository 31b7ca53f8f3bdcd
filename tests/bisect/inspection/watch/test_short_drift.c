/* Whether the order of few records matters: how often it errs on records without an order, and what it finds in those
 * with one. */
#include "cmocka_first.h"

#include "watch/short_drift.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BINS = 12, MOST = LB_SHORT_DRIFT_MOST };

static uint64_t seed = 11;

static double uniform(void)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-53;
}

/* Counts of 300 tokens whose frequencies fall by `slope`; a record's own theme gets a fifth of them, so that records
 * scatter more than draws do. */
static void draw(double *record, double slope)
{
    const int theme = (int)(uniform() * BINS);
    memset(record, 0, BINS * sizeof *record);
    for (int i = 0; i < 300; i++) {
        const int bin = uniform() < 0.2 ? theme : (int)(-log(1 - uniform() * (1 - exp(-slope))) / slope * BINS);
        record[bin < BINS ? bin : BINS - 1]++;
    }
}

static void records_without_an_order_are_seldom_told(void **state)
{
    (void)state;
    enum { RUNS = 300 };
    const uint32_t lengths[] = {LB_SHORT_DRIFT_LEAST, 20, MOST};
    uint32_t told = 0;
    for (int run = 0; run < RUNS; run++) {
        double counts[MOST * BINS];
        const uint32_t n = lengths[run % 3];
        for (uint32_t r = 0; r < n; r++) draw(counts + r * BINS, 2);
        const lb_short_drift d = lb_short_drift_of(counts, n, BINS, 0);
        assert_true(d.judged && d.cut >= 3 && d.cut + 3 <= n);
        told += d.told;
    }
    /* At most one in 200: more than 7 of 300 come by chance once in 4,000. */
    assert_in_range(told, 0, 7);
}

/* KL of what stands behind against what stands before, as the header writes it, in long double. */
static double plain_divergence(const double *counts, uint32_t n, uint32_t cut)
{
    long double before[BINS], behind[BINS], all_before = 0, all_behind = 0, kl = 0;
    for (int i = 0; i < BINS; i++) {
        before[i] = behind[i] = 0.5L;
        for (uint32_t r = 0; r < n; r++) *(r < cut ? &before[i] : &behind[i]) += counts[r * BINS + i];
        all_before += before[i], all_behind += behind[i];
    }
    for (int i = 0; i < BINS; i++) kl += behind[i] / all_behind * logl(behind[i] / all_behind * all_before / before[i]);
    return (double)kl;
}

static void a_change_is_found_where_it_is(void **state)
{
    (void)state;
    for (uint32_t n = LB_SHORT_DRIFT_LEAST; n <= MOST; n++) {
        double counts[MOST * BINS];
        const uint32_t cut = n / 2;
        for (uint32_t r = 0; r < n; r++) draw(counts + r * BINS, r < cut ? 2 : 12);
        const lb_short_drift d = lb_short_drift_of(counts, n, BINS, 0.05);
        if (!d.told) fail_msg("%u records: %u orders part as far, %g nats", n, d.as_far, d.distance);
        assert_int_equal(d.cut, cut);
        assert_true(fabs(d.distance - plain_divergence(counts, n, cut)) < 1e-12);
        assert_false(lb_short_drift_of(counts, n, BINS, d.distance + 1).told); /* too small to matter */
    }
}

/* The same records, those of either kind by turns: nothing drifts. */
static void kinds_by_turns_are_no_drift(void **state)
{
    (void)state;
    double counts[20 * BINS];
    for (uint32_t r = 0; r < 20; r++) draw(counts + r * BINS, r % 2 ? 12 : 2);
    const lb_short_drift d = lb_short_drift_of(counts, 20, BINS, 0);
    assert_true(d.judged && !d.told && d.as_far > LB_SHORT_DRIFT_RARE);
}

static void too_few_records_are_measured_and_not_judged(void **state)
{
    (void)state;
    double counts[11 * BINS];
    for (uint32_t r = 0; r < 11; r++) draw(counts + r * BINS, r < 5 ? 2 : 12);
    const lb_short_drift d = lb_short_drift_of(counts, 11, BINS, 0);
    assert_true(!d.judged && !d.told && d.cut == 5);
    assert_true(fabs(d.distance - plain_divergence(counts, 11, 5)) < 1e-12);
}

static void records_of_nothing_and_records_alike_are_no_drift(void **state)
{
    (void)state;
    double counts[20 * BINS] = {0};
    assert_false(lb_short_drift_of(counts, 20, BINS, 0).told);
    for (int i = 0; i < 20 * BINS; i++) counts[i] = i % BINS;
    const lb_short_drift d = lb_short_drift_of(counts, 20, BINS, 0);
    assert_true(!d.told && d.as_far == LB_SHORT_DRIFT_ORDERS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_without_an_order_are_seldom_told),
        cmocka_unit_test(a_change_is_found_where_it_is),
        cmocka_unit_test(kinds_by_turns_are_no_drift),
        cmocka_unit_test(too_few_records_are_measured_and_not_judged),
        cmocka_unit_test(records_of_nothing_and_records_alike_are_no_drift),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
