/* Names one summation order for all places of the same op, where a single order explains all of them.
 *
 * Results of few bits fit several orders, and each place names one that fits it. Where a single order gives the bits of
 * all places at which the same op differs, it is what ran, and it is named at all of them. */
#ifndef LB_BISECT_ORDER_CONSENSUS_H
#define LB_BISECT_ORDER_CONSENSUS_H

#include "explain/attribution.h"

/* What was found of a matched region. */
typedef struct lb_answer {
    const lb_matched_region *region; /* NULL: nothing to tell */
    lb_attribution_found found;
} lb_answer;

/* LB_ERR_NOMEM is the only failure. */
lb_status lb_order_consensus_reach(const lb_matched_region_source *source, lb_answer *answers, uint32_t n,
                                   lb_candidate_digests *digests, lb_err *err);

#endif
