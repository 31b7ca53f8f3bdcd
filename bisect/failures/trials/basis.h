/* What a verdict about a window can rest on. A window of which nothing could be judged is not called clean: a file of
 * weights has no step that could fail, damaged bytes are not those that were recorded, and what was not kept cannot be
 * run again. Each of these ends undecided, with the reason. */
#ifndef LB_BISECT_BASIS_H
#define LB_BISECT_BASIS_H

#include "trials/trial.h"

/* Before anything is run: is there a step in the window at all? Where there are tensors only, the reason names those
 * that hold NaN or infinity. */
bool lb_basis_has_steps(lb_bisect_session *session);
/* Sets the reason of the report, once: the first stays. */
void lb_basis_lacks(lb_bisect_session *session, const char *format, ...) LB_PRINTF(2, 3);
/* After everything was run, with the status that it ended in: a verdict that rests on damaged bytes becomes undecided,
 * and the reason names the first damage by entry and offset. One that rests on the failure itself, seen again in a
 * replay and cured by a change, stays, with a note. Gives the status that is left. */
lb_status lb_basis_settle(lb_bisect_session *session, lb_status status, lb_err *err);

#endif
