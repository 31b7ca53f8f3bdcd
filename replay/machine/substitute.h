/* What a source swap puts in the place of a source's recorded bytes. */
#ifndef LB_REPLAY_SUBSTITUTE_H
#define LB_REPLAY_SUBSTITUTE_H

#include "machine/machine.h"

/* "own": what this run itself left in that storage, where a chain left anything: an unseen write did not happen.
 * "finite": the recorded bytes, with 0 for every element that is NaN or infinite.
 * "step:N": the bytes of the same source in step N of that rank: same name, dtype and shape, nameless ones in the same
 *           place among those that look alike. */
bool lb_substitute_parse(const char *text, lb_choice *choice);

/* `*done` false: the recorded bytes are to be loaded. LB_ERR_UNSUPPORTED when step N has no such source. */
lb_status lb_substitute_source(lb_machine *machine, uint32_t value, const lb_choice *choice, bool *done);

#endif
