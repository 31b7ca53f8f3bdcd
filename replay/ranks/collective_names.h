/* Which collectives an exchange can run, for whoever runs none: see collective_run.h. */
#ifndef LB_REPLAY_COLLECTIVE_NAMES_H
#define LB_REPLAY_COLLECTIVE_NAMES_H

#include <lastbit/program.h>

typedef enum lb_exchange_kind {
    LB_EXCHANGE_ALL_REDUCE,
    LB_EXCHANGE_REDUCE,
    LB_EXCHANGE_BROADCAST,
    LB_EXCHANGE_ALL_GATHER,
    LB_EXCHANGE_GATHER,
    LB_EXCHANGE_SCATTER,
    LB_EXCHANGE_REDUCE_SCATTER,
    LB_EXCHANGE_ALL_TO_ALL,
    LB_EXCHANGE_NOTHING /* a barrier; also of names that are not known */
} lb_exchange_kind;

/* True when this collective can be run given all its members; false: recorded outputs stand in (send, recv, unknown). */
bool lb_collective_run_knows(const char *op_name);
/* Does member `who` of the group receive anything? A gather and a reduction to one root leave something defined there alone. */
bool lb_collective_run_receives(const lb_program *program, const lb_op *op, uint32_t who);

/* What it moves. */
lb_exchange_kind lb_collective_run_kind(const char *op_name);
/* The argument that this member gives: a value, a list of them, or none; NULL where the op has no such argument. */
const lb_arg *lb_collective_run_input(const lb_program *program, const lb_op *op);
/* The place of the root in the group; 0 where there is none. */
uint32_t lb_collective_run_root(const lb_program *program, const lb_op *op);

#endif
