/* Opaque ops behind a change: their recorded results stand in, and so hide what the change does to all that follows
 * from them. */
#ifndef LB_BISECT_STAND_INS_H
#define LB_BISECT_STAND_INS_H

#include "trials/trial.h"

/* The first opaque op of the window that reads what one of the changes given (options->changes) makes different, by the
 * flow of data through the recorded programs, from step to step and over collectives. False: there is none. A change
 * whose selector selects no recorded op, and one that needs block classes, counts as one of everything. */
bool lb_stand_in_behind_changes(const lb_bisect_session *session, char *text, size_t size);

#endif
