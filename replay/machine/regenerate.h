/* Regenerating: where the recorded bytes of a result were not kept, the order of additions that gives their digest is
 * looked for.
 *
 * Our product or sum of the same inputs has different bits than the library's that was recorded, and what reads it
 * would be compared with nothing: the chain ends. An order under which the digest comes out right shows that the op
 * computes what was recorded, and gives the very bits that were. Nothing else counts: with no such order the bits stay
 * ours, and what follows from them is not judged. */
#ifndef LB_REPLAY_REGENERATE_H
#define LB_REPLAY_REGENERATE_H

#include "machine/event.h"

typedef struct lb_regeneration lb_regeneration; /* which orders served so far, of a run; one machine at a time */

/* NULL when out of memory: then nothing is looked for. */
lb_regeneration *lb_regeneration_new(void);
void lb_regeneration_free(lb_regeneration *regeneration);
/* True when this op, as it ran in an isolated replay without swaps, left results that are not those of the recording,
 * and only digests of these were kept. */
bool lb_regenerate_is_possible(lb_machine *machine, const lb_execution *execution);
/* Tries orders; execution->order is the one that serves, NULL when none does. */
lb_status lb_regenerate(lb_machine *machine, lb_execution *execution);

#endif
