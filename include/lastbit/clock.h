/* How long something takes.
 *
 * Simplest use:
 *
 *     double begun = lb_clock_seconds();
 *     printf("%.3f s\n", lb_clock_seconds() - begun);
 */
#ifndef LASTBIT_CLOCK_H
#define LASTBIT_CLOCK_H

#include <lastbit/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Seconds since some moment, by a clock that never goes back: for differences. */
LB_API double lb_clock_seconds(void);

#ifdef __cplusplus
}
#endif
#endif
