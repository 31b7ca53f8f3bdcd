/* Which workers reduce gradients over one group: memory and time linear in the ranks, for the members of a group are
 * kept once, however many ranks name it.
 *
 *     rank 0 ─┐
 *     rank 1 ─┼─▶ group {0, 1, 2, 3}        rank 4 ─▶ group {4, 5, 6, 7}, but for 6, to which it hands activations
 *     rank 2 ─┘
 *
 * Two ranks are a pair when either of them names a group that the other is a member of, and does not leave it out. */
#ifndef LB_BISECT_WORKER_PAIRS_H
#define LB_BISECT_WORKER_PAIRS_H

#include "base/hash.h"

#include <lastbit/error.h>

/* Ranks are rows of the capture's. */
typedef struct lb_worker_pairs {
    struct lb_worker_group *groups; /* each set of members once */
    uint32_t n_groups;
    lb_hash by_members;
    struct lb_worker_named *named; /* per rank: the groups that it named, each once with what it left out */
    bool *has;                     /* per rank: is it of any pair? */
    uint32_t n_ranks;
} lb_worker_pairs;

lb_status lb_worker_pairs_init(uint32_t n_ranks, lb_worker_pairs *pairs, lb_err *err);
/* Rank `a` names a group of `n` members, which are sorted in place, and leaves out those that `without` marks. Itself
 * it may be a member or not. Afterwards the members are in the table or, when out of memory, the table is as it was. */
lb_status lb_worker_pairs_add(lb_worker_pairs *pairs, uint32_t a, uint32_t *members, uint32_t n, const bool *without,
                              lb_err *err);
bool lb_worker_pairs_are(const lb_worker_pairs *pairs, uint32_t a, uint32_t b);
void lb_worker_pairs_release(lb_worker_pairs *pairs);

#endif
