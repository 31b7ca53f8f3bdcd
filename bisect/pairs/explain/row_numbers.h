/* Integers that count rows: arange(n) over a batch, and what is computed from it. They are no contents of a row: what
 * is number 5 in a batch of eight is number 0 alone. Where the larger side's op reads them, the smaller side's own
 * stand in.
 */
#ifndef LB_BISECT_ROW_NUMBERS_H
#define LB_BISECT_ROW_NUMBERS_H

#include "pair/align.h"
#include "pair/regenerated.h"

/* Per value of B: it holds such numbers. malloc'ed; NULL when out of memory. The alignment is one of batches of other
 * sizes. */
uint8_t *lb_row_numbers_find(const lb_alignment *alignment, const lb_regenerated *a, const lb_regenerated *b);

#endif
