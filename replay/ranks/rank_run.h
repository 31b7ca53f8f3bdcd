/* Programs of several ranks run once, by themselves: what is recorded beside them is not asked for, and bytes come from
 * the caller. At a collective a program waits for the others, as ranks do. Code that makes programs
 * of its own, and does not replay recorded ones, runs them by this function. */
#ifndef LB_REPLAY_RANK_RUN_H
#define LB_REPLAY_RANK_RUN_H

#include "kernel/value_memory.h"
#include "program/prepared.h"

#include <lastbit/replay.h>

enum { LB_RANK_RUN_SWAPS = 4 };

typedef struct lb_rank_run {
    const lb_prepared *const *programs; /* one per rank, prepared */
    uint32_t n_programs;
    const lb_plan *plan; /* mode, compare and swaps count; at most LB_RANK_RUN_SWAPS */
    const lb_observer *observer;
    void *context; /* of `value` */
    lb_status (*value)(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor,
                       /* bytes of a source, or of what a result is compared with; LB_ERR_NOT_CAPTURED: none */
                       lb_err *err);
    lb_memory *spare;                    /* buffers that runs one after the other hand on; NULL */
    uint64_t touched[LB_RANK_RUN_SWAPS]; /* filled: ops that each swap concerns */
} lb_rank_run;

/* LB_ERR_UNSUPPORTED: a collective lacks some of its ranks; two fusions at a time, or one on several ranks. A fusion
 * hands its own program to the observer, of the same values. */
lb_status lb_rank_run_all(lb_rank_run *run, lb_err *err);

#endif
