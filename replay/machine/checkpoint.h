/* Checkpoints: where the machines of a chained replay stood at the beginning of a step.
 *
 *      run that keeps     ──step 0──┬──step 1──┬──step 2── …
 *                                   ▼          ▼
 *                              checkpoint  checkpoint          contents shared, not copied: who writes copies first
 *                                              │
 *      run that resumes                        └──step 2, changed── …
 *
 * A run may begin at a checkpoint when it would have come to that state by itself: none of its further swaps concerns
 * an op before, and every storage it will touch is either there, as wide as it wants it, or untouched so far. The
 * caller checks the first, lb_checkpoint_fits the second. Nothing that is kept depends on what runs afterwards, so
 * neither do the bits.
 */
#ifndef LB_REPLAY_CHECKPOINT_H
#define LB_REPLAY_CHECKPOINT_H

#include "machine/machine.h"

typedef struct lb_kept_machine {
    int32_t rank;
    uint32_t done; /* programs that have run */
    lb_memory_storage *rows;
    uint32_t n_rows;
    uint64_t serial;
    bool conditional;
} lb_kept_machine;

typedef struct lb_machine_checkpoint {
    uint32_t id; /* ascending */
    lb_kept_machine *machines;
    uint32_t n_machines;
    lb_replay_summary summary;
    uint64_t bytes;
} lb_machine_checkpoint;

struct lb_checkpoints {
    uint64_t limit, bytes;
    int64_t first_step; /* of the run that keeps */
    bool compare, force_decisions;
    uint32_t next_id;
    lb_machine_checkpoint *rows; /* in order of time */
    uint32_t n;
};

/* Drops what is there; what follows comes from a run of this plan. */
void lb_checkpoints_begin(lb_checkpoints *checkpoints, const lb_plan *plan);
/* Could a run of this plan have made them, its further swaps aside? */
bool lb_checkpoints_serve(const lb_checkpoints *checkpoints, const lb_plan *plan);
/* Adds the state of the machines, which stand between two steps; done[i] programs of machine i have run. Where
 * it does not fit nothing is added. */
lb_status lb_checkpoints_add(lb_checkpoints *checkpoints, lb_machine *const *machines, const uint32_t *done, uint32_t n,
                             const lb_replay_summary *summary, lb_err *err);
/* `machine` has been told all programs of its run, and has run none. */
bool lb_checkpoint_fits(const lb_kept_machine *kept, const lb_machine *machine);
/* Puts the machine there; `last` is the program that it ran last (NULL: none). */
void lb_checkpoint_resume(const lb_kept_machine *kept, lb_machine *machine, const lb_prepared *last);

#endif
