/* Dependency slices: the ops between a culprit and the failure that it leads to, over steps and ranks.
 *
 *      [culprit] ─▶ op ─▶ op ─▶ … ─▶ [what is judged]      kept: reached from the culprit and reaching the failure
 *                    ▲     ▲
 *                    sources: what kept ops read besides; their bytes are what the failing replay had there
 *
 * A residual add between the two may be passed: the branch that it adds is left out, the stream goes on.
 */
#ifndef LB_BISECT_DEPENDENCY_SLICE_H
#define LB_BISECT_DEPENDENCY_SLICE_H

#include "reproduce/program_subset.h"
#include "trials/trial.h"

/* An op that writes a storage. */
typedef struct lb_dependency_slice_writer {
    int64_t storage;
    uint32_t op;
} lb_dependency_slice_writer;

/* One step of one rank. */
typedef struct lb_dependency_slice_part {
    const lb_program *program;
    struct lb_slice_flow *flow;
    lb_dependency_slice_writer *writers; /* by storage, then by op */
    uint32_t n_writers;
    uint8_t *seeded;  /* per op: of the culprit and what its cure changes */
    uint8_t *reached; /* per op: it follows from them */
    uint8_t *pass;    /* per op: 0, or 1 + the argument that goes on alone */
    uint8_t *fates;   /* lb_program_subset_fate */
    bool used;        /* something of it is kept */
    uint32_t anchor;  /* an op that is kept whatever leads to it, or LB_NONE */
    int64_t wanted;   /* storage whose contents a later step wants from here, or -1 */
} lb_dependency_slice_part;

typedef struct lb_dependency_slice {
    lb_bisect_session *session;
    lb_dependency_slice_part *parts; /* by step, then by rank */
    uint32_t n;
} lb_dependency_slice;

/* An add that may be passed. */
typedef struct lb_dependency_slice_add {
    uint32_t part, op;
    uint8_t pass;
} lb_dependency_slice_add;

/* Parts from first_step to the failing one. The dependency slice is released whatever the status. */
lb_status lb_dependency_slice_init(lb_dependency_slice *slice, lb_bisect_session *session, int64_t first_step,
                                   lb_err *err);
void lb_dependency_slice_release(lb_dependency_slice *slice);

/* Marks what the culprit and its cure change, and all that follows from it. `whole_block`: of its block, not its layer
 * alone. */
lb_status lb_dependency_slice_reach(lb_dependency_slice *slice, const lb_culprit *culprits, uint32_t n,
                                    bool whole_block, lb_err *err);
/* Chooses the failure that leaves the fewest ops between, sets the fates; false when the culprit reaches none. */
bool lb_dependency_slice_select(lb_dependency_slice *slice);
/* For the parts of a rank's fault: a rank without it, in the same ops, so that it can be told from a fault of all.
 * False when no other rank runs them. */
bool lb_dependency_slice_add_peer(lb_dependency_slice *slice, const lb_culprit *culprit);
uint64_t lb_dependency_slice_kept(const lb_dependency_slice *slice);

/* Adds outside the culprit's block through which what is kept could go on alone; malloc'ed. */
lb_status lb_dependency_slice_adds(const lb_dependency_slice *slice, const lb_culprit *culprit,
                                   lb_dependency_slice_add **adds, uint32_t *n, lb_err *err);

#endif
