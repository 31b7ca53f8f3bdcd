/* The error bound of one kernel call, evaluated with its data.
 *
 * The call runs again in f64 (every result f64, method all zero), and its twin gives the sum of absolute terms. Per
 * result element, with y the f64 value, T the result dtype and u the unit roundoff of the compute type,
 *
 *      bound = 1/2 ulp_T(y) + u * (roundings + roundings_per_term * terms) * twin + underflow
 *
 * (ops.h). The compute type is f32, or f64 when an input or a result is f64. Underflow allows one smallest subnormal of
 * the compute type per rounding; in products of bf16 the least normal number, times 1 + the largest factor. Half an ulp
 * of bf16 is at least the least normal number. Where the recorded run may have read factors of f32 as TF32 (call.tf32),
 * 2^-9 of the twin comes besides. Of a row that adds up squares nothing is said of the elements that an input reaches
 * whose square overflows in f32; every other element keeps its bound. The f64 evaluation's own error is added as the
 * same formula with u = 2^-53.
 */
#ifndef LB_REPLAY_BOUND_H
#define LB_REPLAY_BOUND_H

#include "kernel/value_memory.h"
#include "kernel/ops.h"

struct lb_statistics;

typedef struct lb_bound {
    uint32_t n_results;
    lb_tensor *exact; /* f64, layout dense in the order of the result; data NULL: that result has no bound */
    lb_tensor *twin;
    double factor; /* u * (roundings + …), the f64 error included */
    double tiny;
    lb_memory *memory;
} lb_bound;

/* The f64 evaluation alone, which is no bound yet. LB_ERR_UNSUPPORTED as below; release in any case. */
lb_status lb_bound_exact(lb_bound *bound, lb_memory *memory, const lb_call *call, lb_err *err);
/* LB_ERR_UNSUPPORTED when the row cannot be evaluated in f64. Release in any case. */
lb_status lb_bound_init(lb_bound *bound, lb_memory *memory, const lb_call *call, lb_err *err);
void lb_bound_release(lb_bound *bound);
/* Worst |value - exact| / bound over the elements of result `i`; 0 when all are exact, infinity when a finite value
 * stands where exactly none can be, or the reverse. */
double lb_bound_ratio(const lb_bound *bound, uint32_t i, const lb_tensor *value);

/* Could a result `i` of that dtype, of which nothing but its statistics is known, lie within the bound? False when it
 * has a NaN or an infinity where no element may be one, or none where one must be, or a least or greatest number that
 * no element may have. True where nothing bounds it. */
bool lb_bound_allows(const lb_bound *bound, uint32_t i, lb_dtype dtype, const struct lb_statistics *recorded);

/* Distance from |x| to the next larger number of that type; the smallest subnormal at 0. */
double lb_bound_ulp(lb_dtype dtype, double x);

#endif
