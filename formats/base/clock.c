/* Seconds by the monotonic clock: see lastbit/clock.h. */
#include <lastbit/clock.h>

#include <time.h>

double lb_clock_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
