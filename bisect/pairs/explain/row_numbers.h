/* Integers that count the rows of a batch: arange(n), and what is computed from it. They do not belong to a row's
 * contents: the row that is number 5 in a batch of eight is number 0 alone. Where the larger side's op reads such
 * integers, the smaller side's own take their place. */
#ifndef LB_BISECT_ROW_NUMBERS_H
#define LB_BISECT_ROW_NUMBERS_H

#include "pair/align.h"
#include "pair/regenerated.h"

/* Per value of B: it holds such numbers. malloc'ed; NULL when out of memory. For alignments of batches of different
 * sizes. */
uint8_t *lb_row_numbers_find(const lb_alignment *alignment, const lb_regenerated *a, const lb_regenerated *b);

#endif
