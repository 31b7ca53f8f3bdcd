/* What became of each rank's contribution to a collective, where no legal order gives the recorded bits.
 *
 * A sum over ranks (all_reduce, also of several tensors, reduce_scatter, or what was gathered and added up by hand) is
 * arithmetic on its members' inputs alone. So faults can be tried that no kernel has: a contribution that is missing,
 * was added twice or came in another precision; a sum that was divided once too often, or not at all. As with legal
 * orders, one element that misses excludes a fault. */
#ifndef LB_BISECT_RANK_TERMS_H
#define LB_BISECT_RANK_TERMS_H

#include "explain/attribution.h"

/* Adds to `found->why` which fault gives the bits, where one does, and of a place of several ranks also which of them
 * brought different numbers. LB_ERR_NOMEM. */
lb_status lb_rank_terms_tell(const lb_match_site *site, lb_attribution_found *found, lb_err *err);

#endif
