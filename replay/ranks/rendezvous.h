/* Where ranks meet: finds the ranks that stand at the same collective, and runs it. This is decided here alone: a
 * replay of a capture (session.h's runs) and a few ops run by themselves (rank_run.h) differ only in what a rank does
 * between two collectives.
 *
 * A message has two ends that need not wait for each other: a send happens at once, with its machine as the only
 * member, and a receive as soon as its message is there. Where all ranks wait, one that waits for a message goes on
 * without it (lb_rendezvous_postpone). */
#ifndef LB_REPLAY_RENDEZVOUS_H
#define LB_REPLAY_RENDEZVOUS_H

#include "ranks/collective_run.h"
#include "ranks/messages.h"

typedef enum lb_rendezvous {
    LB_RENDEZVOUS_COMPLETE,  /* all members stand at it */
    LB_RENDEZVOUS_WAITS,     /* some are on their way */
    LB_RENDEZVOUS_IMPOSSIBLE /* some are not in the run or have ended, or replay does not know how to run it */
} lb_rendezvous;

typedef struct lb_rank_seat {
    lb_machine *machine;
    int32_t rank;
    bool waits; /* it stands at a collective */
    bool done;  /* it will come to none */
} lb_rank_seat;

/* The members of the collective at which seat `first` stands, as rows of `seats` in group order. `members`: room for
 * n. */
lb_rendezvous lb_rendezvous_gather(const lb_rank_seat *seats, uint32_t n, uint32_t first, const lb_messages *messages,
                                   uint32_t *members, uint32_t *n_members);
/* Runs it: first among the members' shadows, where they have any. */
lb_status lb_rendezvous_run(const lb_rank_seat *seats, const uint32_t *members, uint32_t n_members,
                            lb_messages *messages, lb_err *err);
/* The seat waits for a message, and can go on until an op needs it: it has. False: it waits for something else, or
 * needs it now. */
bool lb_rendezvous_postpone(const lb_rank_seat *seat, lb_status *status, lb_err *err);

#endif
