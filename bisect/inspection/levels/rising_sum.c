/* See rising_sum.h. */
#include "levels/rising_sum.h"

#include <math.h>
#include <string.h>

enum { OCTAVE = 4, LOWEST = -2, LEAST_EXCESSES = 12, LATELY = 32 };
#define SHARE 0.1 /* of the excursions, the highest */
#define SAFETY 1.25
#define SAFETY_OF_FEW 1.4 /* of sums that few numbers make: their tail is what was seen least of */
#define HIGHEST_FADES 0.9998

void lb_rising_sum_init(lb_rising_sum *sum, double kappa)
{
    memset(sum, 0, sizeof *sum);
    sum->kappa = kappa;
}

static double border(int bin)
{
    return exp2(LOWEST + bin / (double)OCTAVE);
}

static void end_excursion(lb_rising_sum *sum)
{
    const int bin = (int)floor((log2(sum->peak) - LOWEST) * OCTAVE);
    sum->heights[bin < 0 ? 0 : bin >= LB_SUM_HEIGHTS ? LB_SUM_HEIGHTS - 1 : bin] += 1;
    sum->n_heights += 1;
    sum->highest = fmax(sum->highest, sum->peak);
    lb_rising_sum_drop(sum);
}

void lb_rising_sum_drop(lb_rising_sum *sum)
{
    sum->g = sum->peak = sum->told = sum->from = 0, sum->length = 0;
}

void lb_rising_sum_take(lb_rising_sum *sum, double term, double number, double level)
{
    sum->highest *= HIGHEST_FADES;
    const double g = sum->g + term - sum->kappa;
    if (g <= 0) {
        if (sum->peak > 0) end_excursion(sum);
        sum->g = 0;
        return;
    }
    if (!sum->length++) sum->from = level, sum->told = 0;
    sum->told += (number - sum->told) / (sum->length < LATELY ? sum->length : LATELY);
    sum->g = g;
    sum->peak = fmax(sum->peak, g);
}

/* By how much the highest excursions exceed the border of their bin, in their mean: 1 / theta. 0: too few were seen. */
static double mean_excess(const lb_rising_sum *s)
{
    double k = 0, sum = 0;
    int bin = LB_SUM_HEIGHTS;
    while (bin > 0 && k < SHARE * s->n_heights) k += s->heights[--bin];
    if (k < LEAST_EXCESSES) return 0;
    for (int i = bin; i < LB_SUM_HEIGHTS; i++) sum += s->heights[i] * (0.5 * (border(i) + border(i + 1)) - border(bin));
    return sum / k * (1 + 1.5 / sqrt(k));
}

void lb_rising_sum_fit(lb_rising_sum *sum, const lb_noise_law *law, double memory)
{
    const double excess = mean_excess(sum), theta = lb_noise_law_exponent(law, sum->kappa) / memory;
    sum->exponent = excess > 0 ? fmin(theta, 1 / excess) : theta;
}

double lb_rising_sum_threshold(const lb_rising_sum *sum, double logp)
{
    return sum->exponent > 0
               ? fmax((sum->kappa < 2 ? SAFETY : SAFETY_OF_FEW) * logp / sum->exponent, 1.5 * sum->highest)
               : INFINITY;
}

double lb_rising_sum_rise(const lb_rising_sum *sum)
{
    return sum->length ? sum->told - sum->from : 0;
}
