/* Where a series stands, on the scale of logarithms: a level, and a slope that may fall and never rises.
 *
 * Innovations are clipped at three mean deviations (Huber's psi). Half of the slope alone is used for the next number:
 * the loss of a run falls ever more slowly, and a whole slope, always a little out of date, would make each number look
 * too high. A series that rises is followed by the level alone, and late: that is what shows the rise. */
#ifndef LB_LOCAL_LEVEL_H
#define LB_LOCAL_LEVEL_H

#include <stdint.h>

typedef struct lb_local_level {
    double span; /* steps that the level looks back */
    double up;   /* 1, or less: how readily it follows upwards, against downwards */
    double level, slope;
    uint64_t n; /* numbers that it has followed */
} lb_local_level;

/* What the next number is expected to be. */
double lb_local_level_expected(const lb_local_level *level);
/* A number was `innovation` above what was expected; `limit`: where it is clipped. `ease`: 1, or less while something
 * seems to rise, and the level should not follow it upwards. */
void lb_local_level_follow(lb_local_level *level, double innovation, double limit, double ease);
/* The series goes on from another level. */
void lb_local_level_move(lb_local_level *l, double level);

#endif
