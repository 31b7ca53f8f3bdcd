/* The reproducer: the smallest capture that still fails in the same way, by the same culprit, and replays by itself. */
#ifndef LB_REDUCE_H
#define LB_REDUCE_H

#include "trials/trial.h"

/* Writes options->reproducer and sets the report's path and sizes. That it could not be made smaller, or at all, is a
 * note in the report; only trouble with the environment fails. */
lb_status lb_reduce_reproducer(lb_bisect_session *session, lb_err *err);

#endif
