/* A pair of which one side's program ended before the other's: what died, and where. */
#ifndef LB_BISECT_AGAINST_END_H
#define LB_BISECT_AGAINST_END_H

#include "trials/trial.h"

/* A sentence without its stop, malloc'ed: which side ended first, in which step, behind which op and line, and what the
 * other goes on with. NULL: both are whole as far as the window goes. */
lb_status lb_against_end_tell(const lb_bisect_session *session, char **sentence, lb_err *err);

#endif
