/* Systems whose matrix is a triangle: the lower or upper one of a square matrix, the rest of which is not read. `unit`:
 * its diagonal counts as ones and is not read either. x has as many elements as the matrix has rows. */
#ifndef LB_REPLAY_TRIANGLE_H
#define LB_REPLAY_TRIANGLE_H

#include "algebra/matrix_batch.h"

/* x := T⁻¹ x */
void lb_triangle_solve(lb_matrix_columns a, bool upper, bool unit, double *x);
/* x := T⁻ᵀ x */
void lb_triangle_solve_transposed(lb_matrix_columns a, bool upper, bool unit, double *x);
/* Has its diagonal a zero? */
bool lb_triangle_is_singular(lb_matrix_columns a);

#endif
