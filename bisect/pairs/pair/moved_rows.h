/* Rows in other places: what a dispatch to experts does, which sorts tokens before it multiplies them and puts them
 * back behind. */
#ifndef LB_BISECT_MOVED_ROWS_H
#define LB_BISECT_MOVED_ROWS_H

#include <lastbit/tensor.h>

/* Do two tensors of one shape hold the same rows (of the last dimension) in another order, but for a relative distance
 * of `near`? False where they are that near as they stand, and where memory runs out. */
bool lb_rows_moved(const lb_tensor *a, const lb_tensor *b, double near);
/* Of a batch of more rows: are there, for all rows of `few`, rows of the same direction in `many`, but for a relative
 * distance of `near`? Integers are the same or not; for single floats the answer is false. */
bool lb_rows_among(const lb_tensor *few, const lb_tensor *many, double near);

#endif
