/* See noise_memory.h. */
#include "levels/noise_memory.h"

#include <math.h>
#include <string.h>

enum { FORGET = 4096 };

void lb_noise_memory_init(lb_noise_memory *memory, uint32_t m)
{
    memset(memory, 0, sizeof *memory);
    memory->m = m;
}

void lb_noise_memory_break(lb_noise_memory *memory)
{
    memset(memory->last, 0, sizeof memory->last);
    memory->sum = 0;
}

void lb_noise_memory_add(lb_noise_memory *memory, double number)
{
    const double rate = fmax(1.0 / FORGET, 3.0 / (double)(memory->n + 3));
    const double off = number - memory->mean;
    float *slot = &memory->last[memory->n % memory->m];
    memory->sum += off - (double)*slot;
    *slot = (float)off;
    memory->n++;
    memory->mean += rate * off;
    memory->square += rate * (off * off - memory->square);
    if (memory->n < memory->m) return;
    const uint64_t k = memory->n - memory->m + 1;
    memory->of_sums += fmax(1.0 / FORGET, 3.0 / (double)(k + 2)) * (memory->sum * memory->sum - memory->of_sums);
}

double lb_noise_memory_of(const lb_noise_memory *memory)
{
    const double seen = 0.6 * (double)(memory->n < FORGET ? memory->n : FORGET),
                 margin = 1 + LB_NOISE_MARGIN * sqrt(2.0 * memory->m / fmax(seen, memory->m));
    if (memory->n < 2 * memory->m || !(memory->square > 0)) return margin;
    return fmax(1, memory->of_sums / (memory->m * memory->square)) * margin;
}
