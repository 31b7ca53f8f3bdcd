/* The ops of several ranks' programs that together are one collective.
 *
 *      rank 0:  … all_reduce ─▶        one collective: the same group, the same sequence number in it,
 *      rank 1:  … all_reduce ─▶        and every member of the group is among the parts of the side
 *
 * What one member gives depends on what all members brought, so that a search that follows contents back has to go on
 * at all of them. A send and the receive that takes its message are matched in the same way. */
#ifndef LB_BISECT_COLLECTIVE_MATCH_H
#define LB_BISECT_COLLECTIVE_MATCH_H

#include "pair/program_view.h"

typedef struct lb_collective_match {
    uint32_t first, n; /* rows of lb_collective_matches.ops: its members' ops, in group order */
    bool message;      /* a send, and the receive behind it: the send does not wait */
} lb_collective_match;

typedef struct lb_collective_matches {
    lb_collective_match *list;
    uint32_t n;
    uint32_t *ops; /* ops of the side's program */
    /* per op of the side: row of list, LB_NONE: it is no collective, or its members are not all there */
    uint32_t *of_op;
} lb_collective_matches;

/* All collectives of the side that replay can run, and all messages. LB_ERR_NOMEM is the only failure. */
lb_status lb_collective_matches_find(const lb_program_view *side, lb_collective_matches *collective_matches,
                                     lb_err *err);
void lb_collective_matches_release(lb_collective_matches *collective_matches);
/* The collective that this op of the side is, and the recorded program that its texts and refs belong to; NULL for an
 * op that is none. */
const lb_collective *lb_collective_of_side(const lb_program_view *side, uint32_t op, const lb_program **recorded);

#endif
