/* Patterns: see spike_pattern.h. */
#include "watch/spike_pattern.h"

#include "base/array.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RISE_STEPS = 10, LEAST_SETTLED = 10 };
#define RISE 3.0
#define HEIGHT 10.0
#define NAN_SHARE 0.9

const char *lb_watch_pattern_name(lb_watch_pattern pattern)
{
    static const char *const names[] = {"none", "immediate-nan", "early-spike", "late-transient"};
    return names[pattern];
}

static double median(const double *numbers, uint32_t n)
{
    double sorted[LB_EARLY_RECORDS];
    memcpy(sorted, numbers, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, lb_by_f64);
    return n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

bool lb_early_spike_find(const double *norms, uint32_t n, lb_early_spike *spike)
{
    uint32_t peak = 0;
    if (n > LB_EARLY_RECORDS) n = LB_EARLY_RECORDS;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(norms[i])) return false;
        if (i < LB_PEAK_RECORDS && norms[i] > norms[peak]) peak = i;
    }
    double lowest = INFINITY;
    for (uint32_t i = peak > RISE_STEPS ? peak - RISE_STEPS : 0; i < peak; i++) lowest = fmin(lowest, norms[i]);
    const uint32_t settles = peak + RISE_STEPS;
    if (n < settles + LEAST_SETTLED || !(norms[peak] >= RISE * lowest)) return false;
    spike->peak = peak;
    spike->settled = median(norms + settles, n - settles);
    spike->ratio = norms[peak] / spike->settled;
    return norms[peak] >= HEIGHT * spike->settled;
}

lb_watch_pattern lb_spike_pattern_of(const lb_run_shape *shape)
{
    if (shape->first_nonfinite >= 0 && shape->first_nonfinite < LB_AT_ONCE &&
        (double)shape->nonfinite >= NAN_SHARE * (double)(shape->records - (uint64_t)shape->first_nonfinite))
        return LB_SPIKE_IMMEDIATE_NAN;
    if (shape->late_loss) return LB_SPIKE_LATE_TRANSIENT;
    return shape->early_spike ? LB_SPIKE_EARLY : LB_SPIKE_NONE;
}
