/* See noise_law.h. */
#include "levels/noise_law.h"

#include <math.h>
#include <string.h>

#define PRIOR_DRAWS 20.0
#define FORGET 16384.0 /* numbers after which old ones count half */
#define LARGEST 20.0
#define WIDTH (2 * LB_NOISE_CLIP / LB_NOISE_BINS)

/* Student's t with 4 degrees of freedom, in units in which a normal number of the same mean deviation has deviation
 * 1. */
static double prior_below(double v)
{
    const double t = v * 1.2533141373155, u = 1 + t * t / 4;
    return 0.5 + 0.375 * t / sqrt(u) * (1 - t * t / (12 * u));
}

static double border(int bin)
{
    return -LB_NOISE_CLIP + bin * WIDTH;
}

void lb_noise_law_init(lb_noise_law *law, bool folded)
{
    memset(law, 0, sizeof *law);
    for (int i = 0; i < LB_NOISE_BINS; i++) {
        const double low = i ? prior_below(border(i)) : 0,
                     high = i + 1 < LB_NOISE_BINS ? prior_below(border(i + 1)) : 1;
        law->prior[folded && i < LB_NOISE_BINS / 2 ? LB_NOISE_BINS - 1 - i : i] += PRIOR_DRAWS * (high - low);
    }
}

void lb_noise_law_add(lb_noise_law *law, double v)
{
    const int bin = (int)floor((v + LB_NOISE_CLIP) / WIDTH);
    law->weight[bin < 0 ? 0 : bin >= LB_NOISE_BINS ? LB_NOISE_BINS - 1 : bin] += 1;
    law->total += 1;
    if (law->total < FORGET) return;
    for (int i = 0; i < LB_NOISE_BINS; i++) law->weight[i] *= 0.5;
    law->total *= 0.5;
}

/* log E exp(theta (v - kappa)). Of a bin its upper border counts, so that the histogram errs to the safe side; powers
 * of one factor replace an exponential per bin. */
static double growth(const lb_noise_law *law, double theta, double kappa)
{
    const double step = exp(theta * WIDTH);
    double power = exp(theta * (border(1) - LB_NOISE_CLIP)), sum = 0;
    for (int i = 0; i < LB_NOISE_BINS; i++, power *= step) sum += (law->weight[i] + law->prior[i]) * power;
    return log(sum / (law->total + PRIOR_DRAWS)) + theta * (LB_NOISE_CLIP - kappa);
}

double lb_noise_law_exponent(const lb_noise_law *law, double kappa)
{
    double low = 0, high = LARGEST;
    if (growth(law, 1e-3, kappa) >= 0) return 0;
    if (growth(law, high, kappa) <= 0) return high;
    for (int i = 0; i < 24; i++) {
        const double middle = 0.5 * (low + high);
        *(growth(law, middle, kappa) > 0 ? &high : &low) = middle;
    }
    return low;
}
