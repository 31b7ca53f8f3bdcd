/* Drift of token frequencies: see token_drift.h. */
#include "watch/token_drift.h"

#include "watch/log_number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void lb_token_drift_release(lb_token_drift *drift)
{
    free(drift->begin), free(drift->sum), free(drift->ring);
    *drift = (lb_token_drift){0};
}

/* Numbers of a list into `out`, at most `room`; how many there are, 0 when one is no count. */
static uint32_t read_counts(lb_watch_word list, double *out, uint32_t room)
{
    uint32_t n = 0;
    for (uint32_t at = 0; at < list.n;) {
        /* Commas stand between the counts here, never inside one. */
        uint32_t end = at;
        while (end < list.n && !strchr("[], \t;", list.text[end])) end++;
        if (end > at) {
            lb_log_number read;
            if (lb_log_number_read(list.text + at, end - at, &read) != end - at) return 0;
            if (!(read.number >= 0 && read.number < 1e15) || n == LB_DRIFT_BINS) return 0;
            if (n < room) out[n] = read.number;
            n++;
        }
        at = end + 1;
    }
    return n;
}

static bool begin(lb_token_drift *drift, lb_watch_word counts)
{
    drift->bins = read_counts(counts, NULL, 0);
    if (drift->bins < 2) return drift->bins = 0, false;
    drift->begin = calloc(drift->bins, sizeof *drift->begin);
    drift->sum = calloc(drift->bins, sizeof *drift->sum);
    drift->ring = calloc((size_t)drift->bins * LB_DRIFT_KEPT, sizeof *drift->ring);
    if (drift->begin && drift->sum && drift->ring) return true;
    lb_token_drift_release(drift);
    return false;
}

/* KL(sum || begin), bins in ascending order. */
static double distance(const lb_token_drift *drift)
{
    double all_now = 0.5 * drift->bins, all_begin = all_now, kl = 0;
    for (uint32_t i = 0; i < drift->bins; i++) all_now += drift->sum[i], all_begin += drift->begin[i];
    for (uint32_t i = 0; i < drift->bins; i++) {
        const double p = (drift->sum[i] + 0.5) / all_now, q = (drift->begin[i] + 0.5) / all_begin;
        kl += p * log(p / q);
    }
    return kl;
}

lb_drift_answer lb_token_drift_take(lb_token_drift *drift, int64_t step, lb_watch_word counts)
{
    if (!drift->bins && !begin(drift, counts)) return LB_DRIFT_UNREADABLE;
    if (read_counts(counts, NULL, 0) != drift->bins) return LB_DRIFT_UNREADABLE;
    double *slot = drift->ring + (size_t)(drift->n % LB_DRIFT_KEPT) * drift->bins;
    const double *leaves =
        drift->ring + (size_t)((drift->n + LB_DRIFT_KEPT - LB_DRIFT_RECORDS) % LB_DRIFT_KEPT) * drift->bins;
    if (drift->n >= LB_DRIFT_RECORDS)
        for (uint32_t i = 0; i < drift->bins; i++) drift->sum[i] -= leaves[i]; /* exact: counts are integers */
    read_counts(counts, slot, drift->bins);
    drift->steps[drift->n % LB_DRIFT_KEPT] = step;
    for (uint32_t i = 0; i < drift->bins; i++) drift->sum[i] += slot[i];
    drift->n++;
    if (drift->n == LB_DRIFT_RECORDS) memcpy(drift->begin, drift->sum, drift->bins * sizeof *drift->sum);
    if (drift->n < 2 * LB_DRIFT_RECORDS) return LB_DRIFT_QUIET; /* both would share records */
    drift->distance = distance(drift);
    if (drift->n < 3 * LB_DRIFT_RECORDS) {
        drift->usual = fmax(drift->usual, drift->distance);
        return LB_DRIFT_QUIET;
    }
    drift->out = drift->distance > LB_DRIFT_LEAST && drift->distance > LB_DRIFT_TIMES * drift->usual;
    return drift->out ? LB_DRIFT_OUT : LB_DRIFT_QUIET;
}

const lb_short_drift *lb_token_drift_early(lb_token_drift *drift)
{
    if (drift->n < 2 || drift->n >= LB_DRIFT_KEPT) return NULL;
    if (drift->early_n != drift->n)
        drift->early = lb_short_drift_of(drift->ring, (uint32_t)drift->n, drift->bins, LB_DRIFT_LEAST),
        drift->early_n = drift->n;
    return &drift->early;
}
