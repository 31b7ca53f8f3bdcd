/* Tells whether two tensors hold the same rows in a different order, and whether a larger batch contains every row of a
 * smaller one (of floats: up to a factor). A dispatch to experts reorders rows: it sorts tokens by expert before it
 * multiplies them, and puts them back afterwards. */
#ifndef LB_BISECT_MOVED_ROWS_H
#define LB_BISECT_MOVED_ROWS_H

#include <lastbit/tensor.h>

/* Do two tensors of one shape hold the same rows (along the last dimension) in a different order, within a relative
 * distance of `near`? False where they are that near in the order in which they stand, and when out of memory. */
bool lb_rows_moved(const lb_tensor *a, const lb_tensor *b, double near);
/* Does `many`, a larger batch, hold for each row of `few` one of the same direction, within a relative distance of
 * `near`? Integers have to be equal. False for tensors whose rows are single floats. */
bool lb_rows_among(const lb_tensor *few, const lb_tensor *many, double near);

#endif
