/* Factorisations, inverses and solutions of matrices, judged by what they promise.
 *
 * The bits of a QR, an eigendecomposition or a singular value decomposition are their library's own: signs of vectors
 * are free, any basis of the space of equal eigenvalues is as good as another, and algorithms differ. Replay computes
 * them in the branch that was recorded (replay/algebra/op_factorisation.c), and no difference of bits says anything.
 * What can be said is whether results are right for their inputs: residuals and orthogonality,
 *
 *      QR            |A - QR|_1 / |A|_1           |QᵀQ - I|_1         R upper triangular
 *      eigh          |AV - VΛ|_1 / |A|_1          |VᵀV - I|_1         Λ ascending
 *      SVD           |A - USVᵀ|_1 / |A|_1         |UᵀU - I|_1 …       S descending, not negative
 *      Cholesky      |A - LLᵀ|_1 / |A|_1          LU: |PA - LU|_1 / (|L|_1 |U|_1)
 *      determinant   the product of its LU's diagonal with the sign of the exchanges
 *      inverse       min(|AX - I|_1, |XA - I|_1) / (|A|_1 |X|_1)
 *      pseudoinverse |XAX - X|_1 / (|X|_1 |A|_1 |X|_1)  AX, XA symmetric    |AXA - A|_1 at most what may be left out
 *      solution      |AX - B|_1 / (|A|_1 |X|_1 + |B|_1)
 *
 * each at most 50 n ulp with n the larger size and ulp = 2u: LAPACK's own criterion for its routines and those of its
 * vendors (LAPACK Working Note 41, Installation Guide, thresholds 30 for factorisations and 50 for eigenvalues and
 * singular values). Backward stability promises as much: Higham, Accuracy and Stability of Numerical Algorithms,
 * theorems 9.3, 10.3, 14.1 and 19.4. */
#ifndef LB_REPLAY_FACTORISATION_H
#define LB_REPLAY_FACTORISATION_H

#include "kernel/ops.h"

/* Whether an op of that name is judged so. */
bool lb_factorisation_known(const char *name);
/* The worst residual of results of `name` per what it may be: above 1 they are wrong for these args. Results without
 * data are not looked at. NaN: nothing can be said (other dtypes, numbers that are not finite, nothing kept, a matrix
 * that was found singular). */
double lb_factorisation_ratio(const char *name, const lb_operand *args, uint32_t n_args, const lb_tensor *results,
                              uint32_t n_results);

#endif
