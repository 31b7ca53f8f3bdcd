/* See far_tail.h. */
#include "levels/far_tail.h"

#include <math.h>
#include <string.h>

#define QUANTILE 0.05  /* what counts as tail */
#define RARE 0.01      /* and as its far part */
#define FORGET 16384.0 /* samples after which old ones count half */
#define LEAST_SAMPLES 128.0
#define LEAST_TAIL 4.0 /* independent samples in the tail */
#define LARGEST_SHAPE 0.4
#define SHAPE_PRIOR 10.0 /* samples of shape 0: four in the far part would else give any shape */
enum { OCTAVE = 16, LOWEST = -24 };

static int bin_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int exponent = (int)(bits >> 52 & 2047) - 1023, part = (int)(bits >> 48 & 15);
    const int bin = (exponent - LOWEST) * OCTAVE + part;
    return bin < 0 ? 0 : bin >= LB_TAIL_BINS ? LB_TAIL_BINS - 1 : bin;
}

static double middle_of(int bin)
{
    return ldexp(1 + (bin % OCTAVE + 0.5) / OCTAVE, bin / OCTAVE + LOWEST);
}

void lb_far_tail_add(lb_far_tail *tail, double s)
{
    tail->total += 1;
    if (s > 0) tail->weight[bin_of(s)] += 1;
    if (tail->total < FORGET) return;
    for (int i = 0; i < LB_TAIL_BINS; i++) tail->weight[i] *= 0.5;
    tail->total *= 0.5;
}

/* Lower border of the bins that hold the highest `share` of all. */
static int tail_begin(const lb_far_tail *tail, double share, double *weight)
{
    int bin = LB_TAIL_BINS;
    *weight = 0;
    while (bin > 0 && *weight < share * tail->total) *weight += tail->weight[--bin];
    return bin;
}

static double height_above(const lb_far_tail *tail, double share, double width, double logp)
{
    double k, sum = 0, squares = 0;
    const int begin = tail_begin(tail, share, &k);
    const double independent = k / width, above = ldexp(1 + begin % OCTAVE / (double)OCTAVE, begin / OCTAVE + LOWEST);
    if (tail->total < LEAST_SAMPLES || independent < LEAST_TAIL) return INFINITY;
    for (int i = begin; i < LB_TAIL_BINS; i++) {
        const double excess = middle_of(i) - above;
        sum += tail->weight[i] * excess, squares += tail->weight[i] * excess * excess;
    }
    const double mean = sum / k, variance = squares / k - mean * mean;
    double shape = variance > 0 ? 0.5 * (1 - mean * mean / variance) : 0;
    shape = shape < 0 ? 0 : shape > LARGEST_SHAPE ? LARGEST_SHAPE : shape;
    shape *= independent / (independent + SHAPE_PRIOR);
    const double scale = mean * (1 - shape) * (1 + 1 / sqrt(independent)), far = log(k / tail->total) + logp;
    return above + scale * (shape > 1e-3 ? expm1(shape * far) / shape : far);
}

double lb_far_tail_height(const lb_far_tail *tail, double width, double logp)
{
    const double near = height_above(tail, QUANTILE, width, logp), far = height_above(tail, RARE, width, logp);
    return isfinite(far) ? fmax(near, far) : near;
}
