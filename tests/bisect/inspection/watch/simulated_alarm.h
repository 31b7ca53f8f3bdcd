/* What sees a simulated run first: all of `lastbit watch`, or what a practitioner writes in a few lines: a rolling
 * median with its absolute deviation (MAD), an average that forgets (EMA). */
#ifndef LB_SIMULATED_ALARM_H
#define LB_SIMULATED_ALARM_H

#include "run_simulator.h"

#include <lastbit/watch.h>

#include <stdlib.h>

/* The record in which the first alarm was raised, -1: none; *text: why. */
static inline int first_alarm(const simulated_run *r, char text[300])
{
    lb_watch_options options = LB_WATCH_OPTIONS_INIT;
    lb_watch *watch = lb_watch_new(&options);
    int first = -1;
    for (int i = 0; i < r->n && first < 0; i++) {
        lb_watch_record record = {.step = r->step[i],
                                  .has = 1u << LB_WATCH_step | 1u << LB_WATCH_loss | 1u << LB_WATCH_gnorm};
        record.number[LB_WATCH_loss] = r->loss[i], record.number[LB_WATCH_gnorm] = r->norm[i];
        record.number[LB_WATCH_tok_sec] = r->rate[i], record.has |= 1u << LB_WATCH_tok_sec;
        lb_watch_take(watch, &record);
        const lb_watch_report report = lb_watch_now(watch);
        if (!report.n_alarms) continue;
        first = i;
        strcpy(text, report.alarms[0].why);
    }
    lb_watch_free(watch);
    return first;
}

enum { MAD_WINDOW = 100, MAD_LEAST = 40 };
typedef struct rolling_mad {
    double window[MAD_WINDOW], sorted[MAD_WINDOW]; /* the last ones in their order, and in that of their size */
    int n;
} rolling_mad;

/* Where x stands among n sorted numbers, or would. */
static inline int place_of(const double *sorted, int n, double x)
{
    int low = 0;
    while (low < n && sorted[low] < x) low++;
    return low;
}

static inline void rolling_mad_keep(rolling_mad *m, double x)
{
    int n = m->n < MAD_WINDOW ? m->n : MAD_WINDOW;
    double *s = m->sorted, *oldest = &m->window[m->n++ % MAD_WINDOW];
    if (n == MAD_WINDOW) {
        const int at = place_of(s, n--, *oldest);
        memmove(s + at, s + at + 1, (size_t)(n - at) * sizeof *s);
    }
    const int at = place_of(s, n, x);
    memmove(s + at + 1, s + at, (size_t)(n - at) * sizeof *s);
    s[at] = *oldest = x;
}

static inline double median_of(const double *sorted, int n)
{
    return n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

/* The median of the distances from `middle`: those of either side of it are sorted, and merged. */
static inline double deviation_about(const double *sorted, int n, double middle)
{
    double near[MAD_WINDOW];
    int above = place_of(sorted, n, middle), below = above - 1;
    for (int i = 0; i <= n / 2; i++)
        near[i] = below < 0 || (above < n && sorted[above] - middle < middle - sorted[below])
                      ? sorted[above++] - middle
                      : middle - sorted[below--];
    return n % 2 ? near[n / 2] : 0.5 * (near[n / 2 - 1] + near[n / 2]);
}

/* A logarithm more than k deviations (by their median, as of a normal law) and more than `least` above the median of
 * the last 100. */
static inline bool rolling_mad_take(rolling_mad *m, double x, double k, double least)
{
    const int n = m->n < MAD_WINDOW ? m->n : MAD_WINDOW;
    bool out = false;
    if (n >= MAD_LEAST) {
        const double middle = median_of(m->sorted, n);
        out = x - middle > least && x - middle > k * 1.4826 * deviation_about(m->sorted, n, middle);
    }
    rolling_mad_keep(m, x);
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

/* The playbook's average, which a number is compared with before it goes into it. */
typedef struct rolling_average {
    double mean;
    bool begun;
} rolling_average;

static inline bool rolling_average_take(rolling_average *a, double x, double times)
{
    const bool out = a->begun && x > times * a->mean;
    a->mean = a->begun ? a->mean + 0.01 * (x - a->mean) : x;
    a->begun = true;
    return out;
}

/* A norm above ten times its average; and, where `twice`, a loss above twice its own. */
static inline int first_of_average(const simulated_run *r, bool twice)
{
    rolling_average loss = {0}, norm = {0};
    for (int i = 0; i < r->n; i++) {
        if (!isfinite(r->loss[i]) || !isfinite(r->norm[i])) return i;
        const bool by_norm = rolling_average_take(&norm, r->norm[i], 10);
        if ((rolling_average_take(&loss, r->loss[i], 2) && twice) || by_norm) return i;
    }
    return -1;
}

#endif
