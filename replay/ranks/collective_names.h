/* Which collectives an exchange can run, for code that runs none: see collective_run.h. */
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

/* One row of the table. Positions of args in the schema; -1: none. */
typedef struct lb_collective_name {
    const char *name;
    lb_exchange_kind kind;
    int8_t inputs, root;
    int8_t splits;      /* output splits; input splits follow */
    bool coalesced;     /* inputs are reduced as one stream */
    int8_t dim;         /* tensors are cut and joined along the dimension that this arg names; 0: along the first */
    bool shared_memory; /* each rank reads the others' inputs: in one stage, or in two where there is much */
    bool nccl;          /* NCCL's own call: a ring where nothing else is known; arg LB_NCCL_SCALAR of a PreMulSum */
} lb_collective_name;
enum { LB_NCCL_SCALAR = 5 };

/* NULL: not a collective that can be run. */
const lb_collective_name *lb_collective_name_find(const char *op_name);
/* The place of the root in the group; 0 where there is none. */
uint32_t lb_collective_name_root(const lb_collective_name *name, const lb_program *program, const lb_op *op);
bool lb_collective_name_is_received(const lb_collective_name *name, uint32_t root, uint32_t who);

/* True when this collective can be run given all its members; false: recorded outputs stand in (send, recv,
 * unknown). */
bool lb_collective_run_knows(const char *op_name);
/* Does member `who` of the group receive anything? A gather and a reduction to one root leave something defined there
 * alone. */
bool lb_collective_run_receives(const lb_program *program, const lb_op *op, uint32_t who);

/* What it moves. */
lb_exchange_kind lb_collective_run_kind(const char *op_name);
/* The argument that this member gives: a value, a list of them, or none; NULL where the op has no such argument. */
const lb_arg *lb_collective_run_input(const lb_program *program, const lb_op *op);
/* The place of the root in the group; 0 where there is none. */
uint32_t lb_collective_run_root(const lb_program *program, const lb_op *op);

/* What a member of a collective brings and is given, told and not run. Its inputs end to end are its stream; what it is
 * given, in the order of its outputs, is made of ranges of such streams. */
typedef struct lb_collective_move {
    uint32_t member;  /* whose stream; LB_NONE: the reduction of all, element by element */
    int64_t first, n; /* elements of it */
} lb_collective_move;
typedef struct lb_collective_told {
    uint32_t *inputs, n_inputs;   /* values of the member's program */
    uint32_t *outputs, n_outputs; /* as recorded: written values, or results */
    lb_collective_move *moves;
    uint32_t n_moves; /* 0: it is given nothing */
} lb_collective_told;
/* `ops`: those of the members' programs, in group order. LB_ERR_UNSUPPORTED: replay does not know it, it cuts along
 * another dimension than the first, or its sizes do not fit. */
lb_status lb_collective_run_tell(const lb_program *const *programs, const uint32_t *ops, uint32_t n,
                                 lb_collective_told *told, lb_err *err);
void lb_collective_told_release(lb_collective_told *told, uint32_t n);

#endif
