/* What was usual at which step, for a run that is restarted from before: it should go on from there as it went on the
 * first time. */
#ifndef LB_LEVEL_HISTORY_H
#define LB_LEVEL_HISTORY_H

#include <stdint.h>

enum { LB_HISTORY_POINTS = 2048 };

typedef struct lb_level_point {
    int64_t step;
    double loss, norm; /* 0: not known */
} lb_level_point;

typedef struct lb_level_history {
    lb_level_point points[LB_HISTORY_POINTS];
    uint32_t n;
    uint64_t each, since; /* steps to a point; steps since the last one */
} lb_level_history;

void lb_level_history_add(lb_level_history *history, lb_level_point point);
/* The last point at or before `step`; what was known behind it is forgotten. All 0 where there is none. */
lb_level_point lb_level_history_back(lb_level_history *history, int64_t step);

#endif
