/* Checkpoints should not be written while a run is out of its usual range: whether it is, and which were written. */
#ifndef LB_CHECKPOINT_HOLD_H
#define LB_CHECKPOINT_HOLD_H

#include <lastbit/watch.h>

enum { LB_HOLD_QUIET = 10, LB_KNOWN_CHECKPOINTS = 1024 };

/* Feeds the holds: from the first step that is out to the last one before ten quiet ones. */
typedef struct lb_hold_state {
    bool on;
    int64_t from, last_out;
    uint32_t quiet;
} lb_hold_state;
typedef enum lb_hold_answer { LB_HOLD_NONE, LB_HOLD_BEGINS, LB_HOLD_LASTS, LB_HOLD_ENDS } lb_hold_answer;
/* ENDS: it was [from, last_out]. */
lb_hold_answer lb_hold_take(lb_hold_state *state, int64_t step, bool out);

/* Checkpoints that the log, the options or the disk speak of; the oldest are forgotten first. */
typedef struct lb_known_checkpoints {
    lb_watch_checkpoint row[LB_KNOWN_CHECKPOINTS];
    uint64_t n;
} lb_known_checkpoints;
void lb_checkpoint_add(lb_known_checkpoints *known, int64_t step, const char *text);
/* Which of them lie in a hold; writes at most `room`, in the order in which they became known. */
uint32_t lb_checkpoints_inside(const lb_known_checkpoints *known, const lb_watch_hold *holds, uint32_t n_holds,
                               lb_watch_checkpoint *inside, uint32_t room);
/* The last one below `step`; -1: none. */
int64_t lb_checkpoint_before(const lb_known_checkpoints *known, int64_t step);

#endif
