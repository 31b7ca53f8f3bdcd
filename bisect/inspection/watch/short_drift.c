/* See short_drift.h. */
#include "watch/short_drift.h"

#include <lastbit/dtype.h>

#include <math.h>
#include <stdlib.h>

enum { MOST = LB_SHORT_DRIFT_MOST, SIDE = 3 }; /* SIDE: fewest records on one side of a cut */

typedef double distances[MOST][MOST];

/* |roots of x - roots of y|, in ascending order of bins. */
static double between(const double *x, const double *y, double all_x, double all_y, uint32_t bins)
{
    double sum = 0;
    for (uint32_t i = 0; i < bins; i++) {
        const double d = sqrt(x[i] / all_x) - sqrt(y[i] / all_y);
        sum += d * d;
    }
    return sqrt(sum);
}

static void fill(distances distances, const double *counts, uint32_t n, uint32_t bins)
{
    double all[MOST] = {0};
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < bins; i++) all[r] += counts[(size_t)r * bins + i];
        if (all[r] == 0) all[r] = 1;
    }
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b <= a; b++)
            distances[a][b] = distances[b][a] =
                between(counts + (size_t)a * bins, counts + (size_t)b * bins, all[a], all[b], bins);
}

/* The largest energy of a cut of the records in this order, and where. */
static double largest(distances distances, const uint8_t *order, uint32_t n, uint32_t *cut)
{
    double within_before = 0, within_behind = 0, across = 0, most = -INFINITY;
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < a; b++) within_behind += distances[order[a]][order[b]];
    for (uint32_t k = 1; k + SIDE <= n; k++) { /* record k - 1 changes sides */
        double to_before = 0, to_behind = 0;
        for (uint32_t i = 0; i < k - 1; i++) to_before += distances[order[k - 1]][order[i]];
        for (uint32_t i = k; i < n; i++) to_behind += distances[order[k - 1]][order[i]];
        within_before += to_before, within_behind -= to_behind, across += to_behind - to_before;
        if (k < SIDE) continue;
        const double x = k, y = n - k;
        const double energy = 2 * across / (x * y) - 2 * within_before / (x * x) - 2 * within_behind / (y * y);
        if (energy * x * y / (x + y) > most) most = energy * x * y / (x + y), *cut = k;
    }
    return most;
}

/* Fisher and Yates, by words of Philox: the same orders in every run. */
static void shuffle(uint8_t *order, uint32_t n, uint32_t number)
{
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t words[4];
        lb_philox(number, i, 0, words);
        const uint32_t k = (uint32_t)((uint64_t)words[0] * (i + 1) >> 32);
        const uint8_t other = order[k];
        order[k] = order[i], order[i] = other;
    }
}

static double divergence(const double *counts, uint32_t n, uint32_t bins, uint32_t cut)
{
    double all[2] = {0.5 * bins, 0.5 * bins}, kl = 0;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < bins; i++) all[r < cut] += counts[(size_t)r * bins + i];
    for (uint32_t i = 0; i < bins; i++) {
        double sums[2] = {0.5, 0.5};
        for (uint32_t r = 0; r < n; r++) sums[r < cut] += counts[(size_t)r * bins + i];
        const double p = sums[0] / all[0], q = sums[1] / all[1];
        kl += p * log(p / q);
    }
    return kl;
}

lb_short_drift lb_short_drift_of(const double *counts, uint32_t n, uint32_t bins, double least)
{
    lb_short_drift found = {.cut = n / 2};
    distances *distances = n >= LB_SHORT_DRIFT_LEAST && n <= MOST ? malloc(sizeof *distances) : NULL;
    uint8_t order[MOST];
    uint32_t elsewhere;
    if (distances) {
        fill(*distances, counts, n, bins);
        for (uint32_t i = 0; i < n; i++) order[i] = (uint8_t)i;
        /* sums of different orders round otherwise */
        const double most = largest(*distances, order, n, &found.cut) * (1 - 1e-12);
        for (uint32_t k = 0; k < LB_SHORT_DRIFT_ORDERS; k++) {
            shuffle(order, n, k + 1);
            found.as_far += largest(*distances, order, n, &elsewhere) >= most;
        }
        found.judged = true;
    }
    free(distances);
    found.distance = divergence(counts, n, bins, found.cut);
    found.told = found.judged && found.as_far <= LB_SHORT_DRIFT_RARE && found.distance > least;
    return found;
}
