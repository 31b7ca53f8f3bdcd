/* In which order a walk goes through the ops of a side. One rank's ops keep their recorded order. Of several ranks,
 * each goes up to its next collective; the collective follows when all its members have got there, one member's op
 * behind the other. So everything that members bring is known before anything is taken from it. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_ORDER_H
#define LB_BISECT_DIFF_ORDER_H

#include "pair/collective_match.h"

/* A permutation of the side's ops; malloc'ed, NULL when out of memory. Ranks that wait for each other go on in order of
 * ranks. */
uint32_t *lb_diff_order(const lb_program_view *side, const lb_collective_matches *collective_matches);

#endif
