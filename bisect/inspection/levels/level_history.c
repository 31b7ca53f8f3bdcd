/* See level_history.h. A full list keeps every second point. */
#include "levels/level_history.h"

void lb_level_history_add(lb_level_history *history, lb_level_point point)
{
    if (!history->each) history->each = 1;
    if (history->n && ++history->since < history->each) return;
    history->since = 0;
    if (history->n == LB_HISTORY_POINTS) {
        for (uint32_t i = 0; i < history->n / 2; i++) history->points[i] = history->points[2 * i];
        history->n /= 2, history->each *= 2;
    }
    history->points[history->n++] = point;
}

lb_level_point lb_level_history_back(lb_level_history *history, int64_t step)
{
    while (history->n && history->points[history->n - 1].step > step) history->n--;
    return history->n ? history->points[history->n - 1] : (lb_level_point){0};
}
