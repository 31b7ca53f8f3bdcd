/* What `x[i, :, mask, …]` addresses: the elements of a dense tensor that a list of index tensors selects, in the order
 * of the result. torch's rules: a bool index counts as the coordinates of its true elements; index tensors broadcast
 * against each other; their dimensions stand where the first index stood if the indices are neighbours, else in front.
 *
 *      element (a, b, c) of the result is element  before[a] + at[b] + after[c]  of the tensor */
#ifndef LB_REPLAY_INDEX_PLAN_H
#define LB_REPLAY_INDEX_PLAN_H

#include "kernel/frame.h"

typedef struct lb_index_plan {
    int64_t n_before, n_at, n_after;
    const int64_t *before, *at, *after;
    bool run; /* after[c] == c: the innermost elements are neighbours */
    int ndim; /* shape of the result */
    int64_t shape[LB_MAX_DIMS];
} lb_index_plan;

/* `indices` may hold None elements (data NULL, dtype 0) and be shorter than the number of dimensions. Fails the frame
 * with LB_ERR_INVALID when an index is out of range or shapes do not broadcast. Arrays belong to the frame. */
bool lb_index_plan_make(lb_frame *frame, const lb_layout *self, const lb_tensor *indices, uint32_t count,
                        lb_index_plan *plan);

#endif
