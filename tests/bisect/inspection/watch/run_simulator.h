/* Training runs that never ran: what is usual in them (noise of many laws, trends, schedules, restarts, digits), and
 * twenty kinds of trouble. A run is a function of its seed; the same on every machine. */
#ifndef LB_RUN_SIMULATOR_H
#define LB_RUN_SIMULATOR_H

#include "run_noise.h"

#include <stdbool.h>
#include <string.h>

enum { RUN_STEPS = 2000, RUN_RECORDS = 2600 };

/* X(name, steps from its begin within which an alarm is about it): kinds of trouble. `size` is drawn per run; of the
 * loss at least a fifth and eight deviations of its noise. */
#define RUN_TROUBLES(X)                                                                                                \
    X(loss_spike_of_one_step, 20)                                                                                      \
    X(loss_spike_of_a_few_steps, 30)                                                                                   \
    X(loss_step_by_half, 200)                                                                                          \
    X(loss_step_by_a_fifth, 200)                                                                                       \
    X(loss_four_times_over_100_steps, 200)                                                                             \
    X(loss_four_times_over_500_steps, 500)                                                                             \
    X(loss_half_as_much_again_over_400_steps, 500)                                                                     \
    X(loss_double_over_800_steps, 800)                                                                                 \
    X(loss_transient, 600)                                                                                             \
    X(loss_collapse_to_chance, 200)                                                                                    \
    X(loss_noise_four_times, 200)                                                                                      \
    X(loss_stuck, 200)                                                                                                 \
    X(loss_not_finite, 20)                                                                                             \
    X(norm_spike_of_one_step, 20)                                                                                      \
    X(norm_spike_of_a_few_steps, 20)                                                                                   \
    X(norm_step_three_times, 200)                                                                                      \
    X(norm_ten_times_over_200_steps, 300)                                                                              \
    X(norm_ten_times_over_800_steps, 800)                                                                              \
    X(norm_gone, 200)                                                                                                  \
    X(norm_stuck, 200)
#define RUN_TROUBLE_ENUM(name, steps) TROUBLE_##name,
enum { RUN_TROUBLES(RUN_TROUBLE_ENUM) RUN_TROUBLE_KINDS, TROUBLE_NONE };
#undef RUN_TROUBLE_ENUM

static inline const char *run_trouble_name(int trouble)
{
#define RUN_TROUBLE_NAME(name, steps) #name,
    static const char *const names[] = {RUN_TROUBLES(RUN_TROUBLE_NAME)};
#undef RUN_TROUBLE_NAME
    return names[trouble];
}

static inline int run_trouble_steps(int trouble)
{
#define RUN_TROUBLE_STEPS(name, steps) steps,
    static const int all[] = {RUN_TROUBLES(RUN_TROUBLE_STEPS)};
#undef RUN_TROUBLE_STEPS
    return all[trouble];
}

typedef struct simulated_run {
    double loss[RUN_RECORDS], norm[RUN_RECORDS], rate[RUN_RECORDS];
    int64_t step[RUN_RECORDS];
    int n, onset; /* onset: the record in which trouble begins */
    int noise, norm_noise, curve, schedule, restarts, digits;
    double sigma, norm_sigma;
} simulated_run;

static inline double between(run_noise *g, double low, double high)
{
    return low + (high - low) * noise_uniform(g);
}
static inline double between_logs(run_noise *g, double low, double high)
{
    return exp(between(g, log(low), log(high)));
}
static inline int one_of(run_noise *g, int n)
{
    return (int)(n * noise_uniform(g));
}

/* Laws a clean run is drawn from; of those that wander or have far tails the deviation is smaller. */
static const struct {
    int shape;
    double scale;
} SIMULATED_NOISES[] = {{NOISE_lognormal, 1},      {NOISE_laplace, 0.7},     {NOISE_student_4, 0.6},
                        {NOISE_student_3, 0.4},    {NOISE_exponential, 0.6}, {NOISE_correlated_09, 1},
                        {NOISE_correlated_05, 1},  {NOISE_bursts, 0.6},      {NOISE_correlated_and_white, 1},
                        {NOISE_correlated_099, 1}, {NOISE_volatile, 0.8}};
enum { SIMULATED_LAWS = sizeof SIMULATED_NOISES / sizeof *SIMULATED_NOISES };

/* The multiplier of the learning rate: warm-up, then cosine, linear, warm-up-stable-decay, constant. */
static inline double schedule_at(int kind, int step)
{
    const double warm = 60, t = step / (double)RUN_STEPS;
    if (step < warm) return (step + 1) / warm;
    switch (kind) {
    case 0: return 0.1 + 0.45 * (1 + cos(3.14159265358979 * t));
    case 1: return 1 - 0.9 * t;
    case 2: return t < 0.8 ? 1 : fmax(0.02, (1 - t) / 0.2);
    default: return 1;
    }
}

/* Where the loss would be without noise. */
static inline double curve_at(const simulated_run *simulated_run, double begin, double end, double pace, int step)
{
    const double rate = schedule_at(simulated_run->schedule, step), anneal = 1 - 0.08 * (1 - rate) * (step >= 60);
    switch (simulated_run->curve) {
    case 0: return anneal * (end + (begin - end) * pow(1 + step / 12.0, -pace));
    case 1: return anneal * (end + (begin - end) * exp(-step / (60 + 400 * pace)));
    case 2: return anneal * end * pow(1 + step / 30.0, -0.3 * pace);
    default: return end * (1 + 0.1 * exp(-step / 900.0));
    }
}

static inline double rounded_to(double x, int digits)
{
    const double scale = pow(10, digits);
    return digits ? round(x * scale) / scale : x;
}

/* Far tails end: at a deviation of 0.1 a power law on the logarithm would soon give losses that no data has. */
static inline double bounded(double z)
{
    return fmax(-12, fmin(12, z));
}

/* Numbers that follow each other give runs that have nothing to do with each other: the generator counts up by steps of
 * one size, so that without this the run of the next seed would be the same draws, one later. */
static inline uint64_t apart(uint64_t seed)
{
    run_noise g = {.seed = seed};
    const uint64_t high = (uint64_t)(noise_uniform(&g) * 0x1p32), low = (uint64_t)(noise_uniform(&g) * 0x1p32);
    return high << 32 | low;
}

static inline void simulate_clean(simulated_run *simulated_run, uint64_t seed)
{
    run_noise g = {.seed = apart(seed)};
    memset(simulated_run, 0, sizeof *simulated_run);
    const int law = one_of(&g, SIMULATED_LAWS), norm_law = one_of(&g, SIMULATED_LAWS);
    simulated_run->noise = SIMULATED_NOISES[law].shape, simulated_run->norm_noise = SIMULATED_NOISES[norm_law].shape;
    simulated_run->curve = one_of(&g, 4), simulated_run->schedule = one_of(&g, 4),
    simulated_run->restarts = noise_uniform(&g) < 0.25;
    simulated_run->digits = one_of(&g, 3) ? 4 : 2 * one_of(&g, 2);
    simulated_run->sigma = between_logs(&g, 0.004, 0.1) * SIMULATED_NOISES[law].scale;
    simulated_run->norm_sigma =
        between_logs(&g, 0.04, 0.3) * SIMULATED_NOISES[norm_law].scale * SIMULATED_NOISES[norm_law].scale;
    const double begin = between(&g, 6, 12), end = between_logs(&g, 0.4, 4), pace = between(&g, 0.3, 1);
    const double norm = between_logs(&g, 0.1, 3), first_norm = between_logs(&g, 1, 20);
    const double trend = between(&g, -0.7, 0.7), settles = between_logs(&g, 10, 150);
    const int restart_at = simulated_run->restarts ? 300 + one_of(&g, 1500) : -1, back = 20 + one_of(&g, 500);
    run_noise of_loss = {.seed = apart(g.seed ^ 1)}, of_norm = {.seed = apart(g.seed ^ 2)};
    for (int step = 0; step < RUN_STEPS && simulated_run->n < RUN_RECORDS; step++) {
        const int i = simulated_run->n++;
        simulated_run->step[i] = step;
        const double level = curve_at(simulated_run, begin, end, pace, step);
        const double up = norm * (1 + (first_norm - 1) * exp(-step / settles)) * exp(trend * step / RUN_STEPS);
        simulated_run->loss[i] =
            rounded_to(level * exp(simulated_run->sigma * bounded(noise_next(&of_loss, simulated_run->noise))),
                       simulated_run->digits);
        simulated_run->norm[i] = rounded_to(
            up * exp(simulated_run->norm_sigma * bounded(noise_next(&of_norm, SIMULATED_NOISES[norm_law].shape))),
            simulated_run->digits);
        simulated_run->rate[i] = 254000 * exp(0.01 * noise_gauss(&g)) * (step % 250 == 249 ? 0.2 : 1);
        if (i == restart_at) step -= back < step ? back : step;
    }
    simulated_run->onset = simulated_run->n;
}

/* A factor on the logarithm at t steps behind the onset. */
static inline double ramp(int t, int steps)
{
    return fmin(1, (t + 1.0) / steps);
}

static inline void simulate_trouble(simulated_run *simulated_run, uint64_t seed, int trouble)
{
    simulate_clean(simulated_run, seed);
    run_noise g = {.seed = apart(seed ^ 0x5bd1e995u)};
    simulated_run->onset = 300 + one_of(&g, simulated_run->n - 900);
    const double size = fmax(between_logs(&g, 0.2, 1.5), 8 * simulated_run->sigma), part = between(&g, 0.8, 1.2);
    const double stuck_loss = simulated_run->loss[simulated_run->onset],
                 stuck_norm = simulated_run->norm[simulated_run->onset], chance = log(50257);
    for (int i = simulated_run->onset; i < simulated_run->n; i++) {
        const int t = i - simulated_run->onset;
        double *loss = &simulated_run->loss[i], *norm = &simulated_run->norm[i];
        switch (trouble) {
        case TROUBLE_loss_spike_of_one_step: *loss *= t < 1 ? exp(fmax(size, 30 * simulated_run->sigma)) : 1; break;
        case TROUBLE_loss_spike_of_a_few_steps: *loss *= t < 3 + 7 * part ? exp(size) : 1; break;
        case TROUBLE_loss_step_by_half: *loss *= 1.5; break;
        case TROUBLE_loss_step_by_a_fifth: *loss *= 1.2; break;
        case TROUBLE_loss_four_times_over_100_steps: *loss *= pow(4, part * ramp(t, 100)); break;
        case TROUBLE_loss_four_times_over_500_steps: *loss *= pow(4, part * ramp(t, 500)); break;
        case TROUBLE_loss_half_as_much_again_over_400_steps: *loss *= pow(1.5, part * ramp(t, 400)); break;
        case TROUBLE_loss_double_over_800_steps: *loss *= pow(2, part * ramp(t, 800)); break;
        case TROUBLE_loss_transient: *loss *= 1 + 3.25 * ramp(t, 60) * fmax(0, fmin(1, (850 - t) / 250.0)); break;
        case TROUBLE_loss_collapse_to_chance: *loss = chance * exp(simulated_run->sigma * noise_gauss(&g)); break;
        case TROUBLE_loss_noise_four_times: *loss *= exp(4 * fmax(simulated_run->sigma, 0.03) * noise_gauss(&g)); break;
        case TROUBLE_loss_stuck: *loss = stuck_loss; break;
        case TROUBLE_loss_not_finite: *loss = NAN; break;
        case TROUBLE_norm_spike_of_one_step: *norm *= t < 1 ? 30 * part : 1; break;
        case TROUBLE_norm_spike_of_a_few_steps: *norm *= t < 3 ? 8 * part : 1; break;
        case TROUBLE_norm_step_three_times: *norm *= 3 * part; break;
        case TROUBLE_norm_ten_times_over_200_steps: *norm *= pow(10, part * ramp(t, 200)); break;
        case TROUBLE_norm_ten_times_over_800_steps: *norm *= pow(10, part * ramp(t, 800)); break;
        case TROUBLE_norm_gone: *norm *= 0.02 * part; break;
        case TROUBLE_norm_stuck: *norm = stuck_norm; break;
        }
    }
}

#endif
