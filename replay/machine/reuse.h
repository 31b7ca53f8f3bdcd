/* Ops that need not run because they give what they gave in an earlier run of the same program.
 *
 * Only an exact shadow that runs by itself asks (plan.shadow_only): its observer says which ops these are
 * (observer.reuses). Their results are not put anywhere until an op that does run touches the same storage; most of
 * them never are. */
#ifndef LB_REPLAY_REUSE_H
#define LB_REPLAY_REUSE_H

#include <lastbit/replay.h>

struct lb_machine;

/* What is to be put into storages before they are touched, in the order in which it was written there. */
typedef struct lb_reuse {
    struct lb_reuse_result {
        uint32_t op, value, next; /* next: of the same storage; LB_NONE */
    } *list;
    uint32_t n;
    uint32_t *first, *last; /* per row of prepared->storages; LB_NONE: nothing is to be put there */
} lb_reuse;

/* Behind lb_machine_begin's own work: nothing is to be put anywhere. */
lb_status lb_reuse_begin(struct lb_machine *machine);
void lb_reuse_release(lb_reuse *reuse);
/* Before the op at hand: `*reused` where it is not to run. Where it is, the storages that it touches are brought to
 * what they hold by then. */
lb_status lb_reuse_before(struct lb_machine *machine, bool *reused);
/* The storage is not touched any more. */
void lb_reuse_drop(struct lb_machine *machine, uint32_t storage);

#endif
