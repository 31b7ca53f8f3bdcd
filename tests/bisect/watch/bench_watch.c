/* lastbit watch: lines a second, false alarms of the model by shape of noise, and how soon both detectors see a rise.
 *
 *     bench_watch [SEEDS]      100,000 steps each; 20 by default */
#include "level_model.h"
#include "run_noise.h"
#include "run_rules.h"

#include <lastbit/watch.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 100000 };
static const struct {
    const char *name;
    double sigma, least;
} SIGNALS[] = {{"loss, 3 %", 0.03, 0.05}, {"loss, 10 %", 0.1, 0.05}, {"norm, 25 %", 0.25, 0.4}};
enum { N_SIGNALS = sizeof SIGNALS / sizeof *SIGNALS };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void false_alarms(int seeds)
{
    printf("false alarms in %d x %d steps, of the model (stated: %.2g for both signals together in 100,000)\n%-24s",
           seeds, STEPS, LB_WATCH_FALSE_ALARMS, "");
    for (int s = 0; s < N_SIGNALS; s++) printf("%12s", SIGNALS[s].name);
    printf("\n");
    for (int shape = 0; shape < NOISE_SHAPES; shape++) {
        printf("%-24s", noise_name(shape));
        for (int s = 0; s < N_SIGNALS; s++) {
            int alarms = 0, by[3] = {0};
            for (int seed = 1; seed <= seeds; seed++) {
                static lb_level_model m;
                run_noise g = {.seed = (uint64_t)seed * 1000003};
                lb_level_init(&m, SIGNALS[s].least);
                for (int i = 0; i < STEPS; i++)
                    if (lb_level_take(&m, exp(SIGNALS[s].sigma * noise_next(&g, shape))) == LB_LEVEL_RISES)
                        alarms++, by[m.statistic]++;
            }
            if (alarms)
                printf("%4d %2d/%2d/%2d", alarms, by[0], by[1], by[2]);
            else
                printf("%12d", 0);
        }
        printf("\n");
    }
}

/* Steps from the begin of a rise by `factor`, linear over `ramp` steps, to the alarm; -1: none in 500. */
static void delays(double sigma, double factor, int ramp, int shape)
{
    enum { BEGIN = 20000, SEEDS = 20 };
    int model[SEEDS], rule[SEEDS], model_seen = 0, rule_seen = 0;
    double model_sum = 0, rule_sum = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        static lb_level_model m;
        lb_loss_rule r = {0};
        run_noise g = {.seed = (uint64_t)seed * 7919 + 5};
        lb_level_init(&m, 0.05);
        model[seed] = rule[seed] = -1;
        for (int i = 0; i < BEGIN + 500; i++) {
            const int t = i - BEGIN;
            const double rise = t < 0 ? 1 : 1 + (factor - 1) * fmin(1, (t + 1.0) / ramp);
            const double loss = 0.8 * rise * exp(sigma * noise_next(&g, shape));
            if (lb_level_take(&m, loss) == LB_LEVEL_RISES && t >= 0 && model[seed] < 0) model[seed] = t;
            if (lb_loss_rule_take(&r, loss) && t >= 0 && rule[seed] < 0) rule[seed] = t;
        }
        if (model[seed] >= 0) model_sum += model[seed], model_seen++;
        if (rule[seed] >= 0) rule_sum += rule[seed], rule_seen++;
    }
    printf("%-22s %4.0f %%  x %.2f over %4d steps   model %6.1f (%d of %d)   2x rule %6.1f (%d of %d)\n",
           noise_name(shape), 100 * sigma, factor, ramp, model_seen ? model_sum / model_seen : NAN, model_seen, SEEDS,
           rule_seen ? rule_sum / rule_seen : NAN, rule_seen, SEEDS);
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
    const int seeds = argc > 1 ? atoi(argv[1]) : 20;
    speed();
    false_alarms(seeds);
    printf("steps until a rise is seen, mean over 20 seeds\n");
    for (int shape = 0; shape <= NOISE_student_4; shape += 2) {
        delays(0.03, 4.25, 1, shape);
        delays(0.03, 4.25, 60, shape);
        delays(0.03, 4.25, 300, shape);
        delays(0.03, 1.2, 1, shape);
        delays(0.1, 4.25, 60, shape);
    }
    delays(0.03, 4.25, 60, NOISE_correlated_09);
    delays(0.1, 1.5, 1, NOISE_lognormal);
    return 0;
}
