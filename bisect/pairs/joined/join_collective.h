/* A collective of several ranks as ordinary ops: sums of what all members bring, concatenations, copies. See
 * joined_ranks.h.
 *
 * A reduction is cut where parts of what it adds up were written by themselves, as a bucket of gradients was: what
 * reads one of them follows from that alone. The ops have the collective's name as that of their autograd node, so that
 * reports can say what ran. */
#ifndef LB_BISECT_JOIN_COLLECTIVE_H
#define LB_BISECT_JOIN_COLLECTIVE_H

#include "joined/join.h"

/* What all members of a meeting (row of join->collective_matches) give each other; what replay does not know, or no
 * recorded op wrote, as it was recorded. */
void lb_join_collective_write(lb_join *join, uint32_t row);

#endif
