/* Noise of several shapes, the same on every machine: what a clean run's numbers may look like. */
#ifndef LB_RUN_NOISE_H
#define LB_RUN_NOISE_H

#include <math.h>
#include <stdint.h>

typedef struct run_noise {
    uint64_t seed;
    double state, slow;
    uint64_t n;
} run_noise;

static inline double noise_uniform(run_noise *g)
{
    g->seed += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t z = g->seed;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53 + 0x1p-54;
}

static inline double noise_gauss(run_noise *g)
{
    const double a = sqrt(-2 * log(noise_uniform(g))), b = 2 * 3.14159265358979323846 * noise_uniform(g);
    return a * cos(b);
}

/* X(name, standardised noise on the logarithm) */
#define RUN_NOISES(X)                                                                                                  \
    X(lognormal, noise_gauss(g))                                                                                       \
    X(laplace, (noise_uniform(g) < 0.5 ? 1 : -1) * log(noise_uniform(g)) / sqrt(2))                                    \
    X(student_4, noise_student(g, 4) / sqrt(2))                                                                        \
    X(student_3, noise_student(g, 3) / sqrt(3))                                                                        \
    X(exponential, -log(noise_uniform(g)) - 1)                                                                         \
    X(correlated_09, noise_correlated(g, 0.9))                                                                         \
    X(correlated_099, noise_correlated(g, 0.99))                                                                       \
    X(correlated_and_white, 0.7 * noise_correlated(g, 0.95) + 0.7 * noise_gauss(g))                                    \
    X(correlated_05, noise_correlated(g, 0.5))                                                                         \
    X(volatile, noise_volatile(g))                                                                                     \
    X(calmer, noise_gauss(g) * (g->n < 50000 ? 1 : 0.3))                                                               \
    X(wave, 0.9 * noise_gauss(g) + 0.6 * sin((double)g->n / 160))                                                      \
    X(decay, noise_gauss(g) + 40 * exp(-(double)g->n / 700))                                                           \
    X(slow_decay, noise_gauss(g) + 25 * exp(-(double)g->n / 20000))                                                    \
    X(slow_rise, noise_gauss(g) + (double)g->n / 20000)                                                                \
    X(bursts, noise_gauss(g) * (noise_uniform(g) < 0.01 ? 4 : 1))

static inline double noise_student(run_noise *g, int degrees)
{
    double sum = 0;
    const double z = noise_gauss(g);
    for (int i = 0; i < degrees; i++) {
        const double x = noise_gauss(g);
        sum += x * x;
    }
    return z / sqrt(sum / degrees);
}

static inline double noise_correlated(run_noise *g, double phi)
{
    g->state = phi * g->state + sqrt(1 - phi * phi) * noise_gauss(g);
    return g->state;
}

/* Whose deviation wanders itself, between a half and twice of what is usual. */
static inline double noise_volatile(run_noise *g)
{
    g->slow = 0.99 * g->slow + sqrt(1 - 0.99 * 0.99) * noise_gauss(g);
    return exp(0.35 * g->slow) * noise_gauss(g);
}

#define RUN_NOISE_ENUM(name, formula) NOISE_##name,
enum { RUN_NOISES(RUN_NOISE_ENUM) NOISE_SHAPES };
#undef RUN_NOISE_ENUM

static inline const char *noise_name(int shape)
{
#define RUN_NOISE_NAME(name, formula) #name,
    static const char *const names[] = {RUN_NOISES(RUN_NOISE_NAME)};
#undef RUN_NOISE_NAME
    return names[shape];
}

static inline double noise_next(run_noise *g, int shape)
{
    double z = 0;
    switch (shape) {
#define RUN_NOISE_CASE(name, formula)                                                                                  \
    case NOISE_##name: z = formula; break;
        RUN_NOISES(RUN_NOISE_CASE)
#undef RUN_NOISE_CASE
    }
    g->n++;
    return z;
}

#endif
