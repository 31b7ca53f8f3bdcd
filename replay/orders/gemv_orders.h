/* Products in the orders of kernels for one row: folded lanes, and eights (schedule.h). Plain loops over columns side
 * by side; every row of a product is done so, whatever their number. */
#ifndef LB_REPLAY_GEMV_ORDERS_H
#define LB_REPLAY_GEMV_ORDERS_H

#include "orders/schedule.h"

/* out[j] = the sum of the products x[i] y[i * columns + j] over i < n, for j < columns; every fma or addition is
 * rounded to `accumulate`, unless that is 0. */
void lb_gemv_row_product_f32(const lb_schedule *schedule, const float *x, const float *y, int64_t n, int64_t columns,
                             float *out, lb_dtype accumulate);
void lb_gemv_row_product_f64(const lb_schedule *schedule, const double *x, const double *y, int64_t n, int64_t columns,
                             double *out, lb_dtype accumulate);

#endif
