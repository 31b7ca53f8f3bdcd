/* See level_history.h. A full list keeps every second point. */
#include "levels/level_history.h"

void lb_level_history_add(lb_level_history *h, lb_level_point point)
{
    if (!h->each) h->each = 1;
    if (h->n && ++h->since < h->each) return;
    h->since = 0;
    if (h->n == LB_HISTORY_POINTS) {
        for (uint32_t i = 0; i < h->n / 2; i++) h->points[i] = h->points[2 * i];
        h->n /= 2, h->each *= 2;
    }
    h->points[h->n++] = point;
}

lb_level_point lb_level_history_back(lb_level_history *h, int64_t step)
{
    while (h->n && h->points[h->n - 1].step > step) h->n--;
    return h->n ? h->points[h->n - 1] : (lb_level_point){0};
}
