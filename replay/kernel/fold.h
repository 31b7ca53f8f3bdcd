/* A tensor around the dimensions that an op reduces: outer * size * inner, `size` being what is folded into one.
 *
 * Where the reduced dimensions are neighbours this is the tensor itself; otherwise a view with the reduced dimensions
 * moved to the end. Results then lie as outer * inner, which is row-major over the dimensions that stay. */
#ifndef LB_REPLAY_FOLD_H
#define LB_REPLAY_FOLD_H

#include "kernel/frame.h"
#include "orders/schedule.h"

typedef struct lb_fold {
    lb_tensor view;
    uint32_t reduced;           /* bit d: dimension d of the input is reduced */
    int64_t outer, size, inner; /* of the dense view */
    int64_t results;            /* outer * inner */
} lb_fold;

/* The dimensions named by arg `i` (an int or a list; None and [] mean all) as bits. A 0-dim tensor has none. */
uint32_t lb_fold_dims(const lb_call *call, uint32_t i, int ndim);
lb_fold lb_fold_of(const lb_tensor *in, uint32_t reduced);
/* The stride in `result` (with or without the reduced dimensions kept) of each kept dimension of the input. */
void lb_fold_strides(const lb_fold *fold, const lb_tensor *in, const lb_tensor *result, int64_t *stride);

/* out[results] = sums of x in the order of `schedule` (NULL: torch's cascade). */
void lb_fold_sum_f32(const lb_fold *fold, const float *x, const lb_schedule *schedule, lb_dtype accumulate, float *out);
void lb_fold_sum_f64(const lb_fold *fold, const double *x, const lb_schedule *schedule, lb_dtype accumulate,
                     double *out);

#endif
