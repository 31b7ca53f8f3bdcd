/* Exact runs of one step in which some of its whole numbers are changed: token ids. Decisions are computed anew, draws
 * stay what they were. What such a run gives is compared with a run in which nothing is changed. */
#ifndef LB_BISECT_CHANGED_RUN_H
#define LB_BISECT_CHANGED_RUN_H

#include "moved/moved_run.h"

#include <lastbit/replay.h>

typedef struct lb_changed_value {
    uint32_t value;
    const int64_t *numbers; /* row-major; borrowed */
} lb_changed_value;

typedef struct lb_changed_run {
    const lb_changed_value *changes;
    uint32_t n_changes;
    bool holds;       /* decisions stay what was recorded */
    bool holds_whole; /* and at least those that are made of whole numbers alone: which token is padding */
    bool *chose;      /* becomes true where a decision that follows from numbers was made anew; may be NULL */
    uint32_t last;    /* the run ends behind this op; LB_NONE: the step's end */
    /* Told of each op that has run; false stops the run. */
    bool (*look)(void *context, const lb_event *event);
    /* The same of ops of the other ranks that run together; NULL. */
    bool (*look_beside)(void *context, const lb_moved_run *run, const lb_event *event);
    const lb_moved_run *home; /* whose values the changes are; NULL: of the run that is asked for */
    void *context;
} lb_changed_run;

/* Ranks that run together (moved_run.h) do so here: what is changed on this one is changed on those that were given the
 * same. */
lb_status lb_changed_run_run(lb_moved_run *run, const lb_changed_run *changed, lb_err *err);

#endif
