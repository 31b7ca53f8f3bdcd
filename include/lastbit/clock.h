/* How long something takes. */
#ifndef LASTBIT_CLOCK_H
#define LASTBIT_CLOCK_H

#include <lastbit/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Seconds since some moment, by a clock that never goes back: for differences. */
LB_API double lb_clock_seconds(void);

#ifdef __cplusplus
}
#endif
#endif
