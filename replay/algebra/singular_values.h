/* Singular values and vectors of one matrix of a batch, where nothing was recorded of them: what a pseudoinverse and a
 * least-squares solution are made of. */
#ifndef LB_REPLAY_SINGULAR_VALUES_H
#define LB_REPLAY_SINGULAR_VALUES_H

#include "algebra/matrix_batch.h"

/* a = u diag(values) v', the values descending. */
typedef struct lb_singular {
    lb_matrix_columns u, values, v;
} lb_singular;

/* Of a matrix with at least as many rows as columns, whose numbers are finite. False: it was refused. */
bool lb_singular_values_take(lb_matrix_batch *batch, lb_matrix_columns a, lb_singular *s);

#endif
