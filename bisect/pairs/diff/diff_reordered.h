/* Gives a pair the verdict `reordered` where its two sides add the same terms in different summation orders and both
 * orders are known by name. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_REORDERED_H
#define LB_BISECT_DIFF_REORDERED_H

#include "diff/diff_evidence.h"
#include "diff/diff_walk.h"

/* Both make the row `reordered` where they can name both orders, and leave it alone elsewhere. How many elements bear
 * it out is said, for a single one may do so by chance. */

/* Both sides' bits come from the same inputs in an order that was found by trial (shadow/reorder.h). */
void lb_diff_reordered_found(lb_diff_walk *walk, uint32_t ia, lb_diff_row *row);
/* Each side's recording says in which order its members' terms were added, or an order was found that gives its bits:
 * in that order they come out again. */
void lb_diff_reordered_told(lb_diff_walk *walk, uint32_t ia, const lb_evidence *evidence, lb_diff_row *row);

#endif
