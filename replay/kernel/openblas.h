/* OpenBLAS, loaded when the first product is asked of it.
 *
 * Linked in, it would start a thread per core in every command, `ls` among them: that costs milliseconds and, under a
 * limit on address space, it never ends. So the build needs no OpenBLAS at all, and a user who asks for its kernel by
 * name has it loaded by its soname. Its bits depend on the machine; no default does. */
#ifndef LB_OPENBLAS_H
#define LB_OPENBLAS_H

#include <lastbit/error.h>

/* Loads it at the first call. LB_ERR_UNSUPPORTED where it is not installed, with the loader's reason. Any thread may
 * call. */
lb_status lb_openblas_load(lb_err *err);

/* c = a b, all dense and row-major: a is (m, k), b (k, n), c (m, n). False, with c untouched: it is not loaded. */
bool lb_openblas_product_f32(int m, int n, int k, const float *a, const float *b, float *c);
bool lb_openblas_product_f64(int m, int n, int k, const double *a, const double *b, double *c);

#endif
