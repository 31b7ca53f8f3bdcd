/* Which collectives an exchange can run, for whoever runs none: see collective_run.h. */
#ifndef LB_REPLAY_COLLECTIVE_NAMES_H
#define LB_REPLAY_COLLECTIVE_NAMES_H

#include <lastbit/program.h>

/* True when this collective can be run given all its members; false: recorded outputs stand in (send, recv, unknown). */
bool lb_collective_run_knows(const char *op_name);
/* Does member `who` of the group receive anything? A gather and a reduction to one root leave something defined there alone. */
bool lb_collective_run_receives(const lb_program *program, const lb_op *op, uint32_t who);

#endif
