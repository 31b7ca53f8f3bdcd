/* See local_level.h. */
#include "levels/local_level.h"

#include <math.h>

enum { LEAST_TRUST = 12 }; /* a level that was moved follows as one of so many numbers would */

double lb_local_level_expected(const lb_local_level *level)
{
    return level->level + 0.5 * level->slope;
}

void lb_local_level_follow(lb_local_level *level, double innovation, double limit, double ease)
{
    const double n = (double)level->n++;
    const double rate = fmax(1 / level->span, 3.0 / (n + 3)), slope_rate = fmax(0.5 / level->span, 1.0 / (n + 3));
    const double e = fmax(-limit, fmin(limit, innovation)) * (innovation > 0 ? ease * level->up : 1);
    const double before = level->level;
    level->level = lb_local_level_expected(level) + rate * e;
    if (n > 0) level->slope = fmin(0, level->slope + slope_rate * (level->level - before - level->slope));
}

void lb_local_level_move(lb_local_level *l, double level)
{
    l->level = level, l->slope = 0;
    if (l->n > LEAST_TRUST) l->n = LEAST_TRUST;
}
