/* In which order a walk meets the ops of a side: as recorded, and of several ranks each up to its next collective,
 * which comes when all its members have arrived, one member's op behind the other. So what any of them brings is known
 * before anything is taken from it. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_ORDER_H
#define LB_BISECT_DIFF_ORDER_H

#include "pair/collective_match.h"

/* A permutation of the side's ops; malloc'ed, NULL when out of memory. Ranks that wait for each other go on in order of
 * ranks. */
uint32_t *lb_diff_order(const lb_program_view *side, const lb_collective_matches *collective_matches);

#endif
