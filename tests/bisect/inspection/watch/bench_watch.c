/* lastbit watch: lines a second, false alarms on clean runs, what is found of twenty kinds of trouble and how soon,
 * beside a rolling median with its absolute deviation (MAD) and the playbook's average (EMA).
 *
 *     bench_watch [CLEAN [RUNS [SEED]]]      10,000 clean runs of 2,000 steps, 60 runs of each kind of trouble
 *
 * An alarm that the same run has at the same record without its trouble is chance, and finds nothing.
 *
 * cc -O2 -I include -I bisect/inspection tests/bisect/inspection/watch/bench_watch.c
 * build/release/liblb_bisect.a ... (as tests/CMakeLists.txt links its programs) */
#include "simulated_alarm.h"

#include <stdio.h>
#include <time.h>

#define MAD_DEVIATIONS 8.0

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int first_of_watch(const simulated_run *r)
{
    char why[300];
    return first_alarm(r, why);
}
static int first_of_deviation(const simulated_run *r)
{
    return first_of_mad(r, MAD_DEVIATIONS);
}
static int first_of_norm(const simulated_run *r)
{
    return first_of_average(r, false);
}
static int first_of_norm_or_loss(const simulated_run *r)
{
    return first_of_average(r, true);
}

static const struct {
    const char *name;
    int (*first)(const simulated_run *r);
} DETECTORS[] = {
    {"watch", first_of_watch}, {"MAD", first_of_deviation}, {"EMA", first_of_norm}, {"EMA, 2x", first_of_norm_or_loss}};
enum { WATCH, MAD, N_DETECTORS = sizeof DETECTORS / sizeof *DETECTORS };

static void clean_runs(uint64_t runs, uint64_t first)
{
    static simulated_run r;
    char why[300];
    int alarms[N_DETECTORS] = {0};
    for (uint64_t seed = 1; seed <= runs; seed++) {
        simulate_clean(&r, first + seed + 1000000);
        const int at = first_alarm(&r, why);
        if (at >= 0) printf("  seed %d, %s: record %d: %s\n", (int)seed, noise_name(r.noise), at, why);
        alarms[WATCH] += at >= 0;
        for (int d = MAD; d < N_DETECTORS; d++) alarms[d] += DETECTORS[d].first(&r) >= 0;
    }
    printf("clean runs of %d steps: %d, with an alarm:", RUN_STEPS, (int)runs);
    for (int d = 0; d < N_DETECTORS; d++)
        printf(" %s %d%s", DETECTORS[d].name, alarms[d], d + 1 < N_DETECTORS ? "," : "\n");
}

/* Runs in which the first alarm came where the trouble is, and is not chance; mean steps to it, and with `limit` for
 * those that were missed. */
typedef struct tally {
    int found, chance;
    double steps, limited;
} tally;

static bool add(tally *tally, int detector, const simulated_run *r, uint64_t seed, int limit)
{
    static simulated_run clean;
    const int at = DETECTORS[detector].first(r), late = at - r->onset;
    bool found = at >= 0 && late >= 0 && late <= limit;
    if (found) simulate_clean(&clean, seed);
    const bool chance = found && DETECTORS[detector].first(&clean) == at;
    found = found && !chance;
    tally->chance += chance, tally->found += found, tally->steps += found ? late : 0,
        tally->limited += found ? late : limit;
    return found;
}

/* What was found of all kinds: of detector d alone, and of what either it or `watch` found. */
typedef struct summary {
    tally all[N_DETECTORS];
    int both[N_DETECTORS];
} summary;

static void trouble_of_kind(int trouble, int runs, uint64_t first, summary *summary)
{
    static simulated_run r;
    const int limit = run_trouble_steps(trouble);
    tally tally[N_DETECTORS] = {{0}};
    for (int k = 0; k < runs; k++) {
        const uint64_t seed = first + 2000000 + (uint64_t)k * 31 + (uint64_t)trouble * 100003;
        simulate_trouble(&r, seed, trouble);
        const bool ours = add(&tally[WATCH], WATCH, &r, seed, limit);
        for (int d = MAD; d < N_DETECTORS; d++) summary->both[d] += add(&tally[d], d, &r, seed, limit) && ours;
    }
    printf("%-42s", run_trouble_name(trouble));
    for (int d = 0; d < N_DETECTORS; d++) {
        printf("%10d", tally[d].found);
        tally[d].found ? printf("%10.1f", tally[d].steps / tally[d].found) : printf("%10s", "-");
        summary->all[d].found += tally[d].found, summary->all[d].limited += tally[d].limited,
            summary->all[d].chance += tally[d].chance;
    }
    puts("");
}

static void troubles(int runs, uint64_t first)
{
    summary summary = {0};
    const double n = (double)runs * RUN_TROUBLE_KINDS;
    printf("%-42s", "found, steps to the alarm");
    for (int d = 0; d < N_DETECTORS; d++) printf("%10s%10s", DETECTORS[d].name, "");
    puts("");
    for (int trouble = 0; trouble < RUN_TROUBLE_KINDS; trouble++) trouble_of_kind(trouble, runs, first, &summary);
    for (int d = 0; d < N_DETECTORS; d++) {
        const tally *tally = &summary.all[d];
        printf("%s: of %.0f found %d (by chance %d), steps to the alarm, the limit where there was none: %.1f\n",
               DETECTORS[d].name, n, tally->found, tally->chance, tally->limited / n);
        if (d == WATCH) continue;
        const int either = summary.all[WATCH].found + tally->found - summary.both[d];
        printf("    watch found %.1f %% of what it found, %.1f %% of what either found\n",
               100.0 * summary.both[d] / tally->found, 100.0 * summary.all[WATCH].found / either);
    }
}

static void count_alarm(void *context, const lb_watch_alarm *alarm)
{
    (void)alarm;
    ++*(int *)context;
}
static void take(void *context, const lb_watch_record *record)
{
    lb_watch_take((lb_watch *)context, record);
}

static void speed(void)
{
    enum { LINES = 1000000 };
    static char text[LINES * 160];
    size_t n = 0;
    run_noise g = {.seed = 3};
    for (int i = 0; i < LINES; i++)
        n += (size_t)sprintf(text + n,
                             "step %07d/1000000 (%.2f%%) | loss: %.4f | lrm: 0.55 | dt: 412.10ms | tok/sec: 254,128 | "
                             "mfu: 17.8 | gnorm: %.4f | total time: 0.34m\n",
                             i, i / 1e4, 2.5 * exp(0.03 * noise_gauss(&g)), 1.4 * exp(0.2 * noise_gauss(&g)));
    for (int round = 0; round < 3; round++) {
        int alarms = 0;
        lb_watch_options options = LB_WATCH_OPTIONS_INIT;
        lb_watch_log_options log_options = LB_WATCH_LOG_OPTIONS_INIT;
        options.alarm = count_alarm, options.context = &alarms;
        lb_watch *watch = lb_watch_new(&options);
        const lb_watch_sink sink = {watch, take, NULL, NULL};
        lb_watch_log *log;
        if (!watch || lb_watch_log_new(&log_options, &sink, &log, NULL) != LB_OK) return;
        const double begin = now();
        for (size_t at = 0; at < n; at += 262144)
            lb_watch_log_bytes(log, text + at, n - at < 262144 ? n - at : 262144, NULL);
        lb_watch_log_end(log, NULL);
        const double seconds = now() - begin;
        printf("line format, parsed and judged on one thread: %.2f million lines/s (%.0f MB/s), %d alarms\n",
               LINES / seconds / 1e6, (double)n / seconds / 1e6, alarms);
        lb_watch_log_free(log);
        lb_watch_free(watch);
    }
}

int main(int argc, char **argv)
{
    speed();
    const uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    clean_runs(argc > 1 ? strtoull(argv[1], NULL, 10) : 10000, first);
    troubles(argc > 2 ? atoi(argv[2]) : 60, first);
    return 0;
}
