/* Bisecting a difference: `lastbit bisect RUN --against REF`. */
#ifndef LB_BISECT_AGAINST_H
#define LB_BISECT_AGAINST_H

#include "trials/trial.h"

/* Fills the report: the first place where the run departs from the reference for a reason that is not rounding; or,
 * where all of it is rounding, the place that rounds differently. */
lb_status lb_against_run(lb_bisect_session *session, lb_err *err);

#endif
