/* See noise_memory.h. */
#include "levels/noise_memory.h"

#include <math.h>
#include <string.h>

enum { FORGET = 4096 };

void lb_noise_memory_init(lb_noise_memory *s, uint32_t m)
{
    memset(s, 0, sizeof *s);
    s->m = m;
}

void lb_noise_memory_break(lb_noise_memory *s)
{
    memset(s->last, 0, sizeof s->last);
    s->sum = 0;
}

void lb_noise_memory_add(lb_noise_memory *s, double v)
{
    const double rate = fmax(1.0 / FORGET, 3.0 / (double)(s->n + 3));
    const double off = v - s->mean;
    float *slot = &s->last[s->n % s->m];
    s->sum += off - (double)*slot;
    *slot = (float)off;
    s->n++;
    s->mean += rate * off;
    s->square += rate * (off * off - s->square);
    if (s->n < s->m) return;
    const uint64_t k = s->n - s->m + 1;
    s->of_sums += fmax(1.0 / FORGET, 3.0 / (double)(k + 2)) * (s->sum * s->sum - s->of_sums);
}

double lb_noise_memory_of(const lb_noise_memory *s)
{
    const double seen = 0.6 * (double)(s->n < FORGET ? s->n : FORGET),
                 margin = 1 + LB_NOISE_MARGIN * sqrt(2.0 * s->m / fmax(seen, s->m));
    if (s->n < 2 * s->m || !(s->square > 0)) return margin;
    return fmax(1, s->of_sums / (s->m * s->square)) * margin;
}
