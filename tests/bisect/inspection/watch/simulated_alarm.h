/* What sees a simulated run first: all of `lastbit watch`, or a rolling median with its absolute deviation, which is
 * what a practitioner writes in a few lines. */
#ifndef LB_SIMULATED_ALARM_H
#define LB_SIMULATED_ALARM_H

#include "run_simulator.h"

#include <lastbit/watch.h>

#include <stdlib.h>

/* The record in which the first alarm was raised, -1: none; *text: why. */
static inline int first_alarm(const simulated_run *r, char text[300])
{
    lb_watch_options options = LB_WATCH_OPTIONS_INIT;
    lb_watch *w = lb_watch_new(&options);
    int first = -1;
    for (int i = 0; i < r->n && first < 0; i++) {
        lb_watch_record record = {.step = r->step[i],
                                  .has = 1u << LB_WATCH_step | 1u << LB_WATCH_loss | 1u << LB_WATCH_gnorm};
        record.number[LB_WATCH_loss] = r->loss[i], record.number[LB_WATCH_gnorm] = r->norm[i];
        record.number[LB_WATCH_tok_sec] = r->rate[i], record.has |= 1u << LB_WATCH_tok_sec;
        lb_watch_take(w, &record);
        const lb_watch_report report = lb_watch_now(w);
        if (!report.n_alarms) continue;
        first = i;
        strcpy(text, report.alarms[0].why);
    }
    lb_watch_free(w);
    return first;
}

enum { MAD_WINDOW = 100, MAD_LEAST = 40 };
typedef struct rolling_mad {
    double window[MAD_WINDOW];
    int n;
} rolling_mad;

static inline int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double median_of(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

/* A logarithm more than k deviations (by their median, as of a normal law) and more than `least` above the median of
 * the last 100. */
static inline bool rolling_mad_take(rolling_mad *m, double x, double k, double least)
{
    const int n = m->n < MAD_WINDOW ? m->n : MAD_WINDOW;
    bool out = false;
    if (n >= MAD_LEAST) {
        double sorted[MAD_WINDOW];
        memcpy(sorted, m->window, (size_t)n * sizeof *sorted);
        const double middle = median_of(sorted, n);
        for (int i = 0; i < n; i++) sorted[i] = fabs(m->window[i] - middle);
        out = x - middle > fmax(k * 1.4826 * median_of(sorted, n), least);
    }
    m->window[m->n++ % MAD_WINDOW] = x;
    return out;
}

static inline int first_of_mad(const simulated_run *r, double k)
{
    rolling_mad loss = {0}, norm = {0};
    for (int i = 0; i < r->n; i++) {
        if (!isfinite(r->loss[i]) || !isfinite(r->norm[i])) return i;
        const bool by_loss = r->loss[i] > 0 && rolling_mad_take(&loss, log(r->loss[i]), k, 0.05);
        const bool by_norm = r->norm[i] > 0 && rolling_mad_take(&norm, log(r->norm[i]), k, 0.4);
        if (by_loss || by_norm) return i;
    }
    return -1;
}

#endif
