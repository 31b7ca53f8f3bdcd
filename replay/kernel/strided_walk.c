/* Walks of tensors in the result's order, see strided_walk.h. */
#include "kernel/strided_walk.h"

lb_strided_walk lb_strided_walk_of(const lb_layout *result)
{
    lb_strided_walk walk = {.n = 1, .result = result};
    for (int d = 0; d < result->ndim; d++) {
        walk.n *= result->shape[d];
        if (result->shape[d] == 1) continue;
        int at = walk.ndim++;
        /* insertion by stride; equal strides keep the order of dimensions */
        while (at > 0 && result->stride[walk.dim[at - 1]] < result->stride[d]) {
            walk.dim[at] = walk.dim[at - 1];
            at--;
        }
        walk.dim[at] = d;
    }
    for (int k = 0; k < walk.ndim; k++) walk.shape[k] = result->shape[walk.dim[k]];
    return walk;
}

bool lb_walker_of(lb_walker *walker, const lb_strided_walk *w, const lb_tensor *tensor)
{
    const int shift = w->result->ndim - tensor->layout.ndim;
    walker->data = tensor->data;
    walker->dtype = tensor->dtype;
    walker->element = lb_dtype_bits(tensor->dtype) / 8;
    walker->ndim = 0;
    walker->single = true;
    if (shift < 0) return false;
    for (int d = 0; d < tensor->layout.ndim; d++)
        if (tensor->layout.shape[d] != 1 && tensor->layout.shape[d] != w->result->shape[d + shift]) return false;
    for (int k = 0; k < w->ndim; k++) {
        const int d = w->dim[k] - shift;
        const int64_t stride = d < 0 || tensor->layout.shape[d] == 1 ? 0 : tensor->layout.stride[d];
        const int last = walker->ndim - 1;
        if (stride != 0) walker->single = false;
        if (last >= 0 && walker->stride[last] == stride * w->shape[k]) {
            walker->shape[last] *= w->shape[k];
            walker->stride[last] = stride;
        } else {
            walker->shape[walker->ndim] = w->shape[k];
            walker->stride[walker->ndim++] = stride;
        }
    }
    if (walker->ndim == 0) {
        walker->ndim = 1;
        walker->shape[0] = 1;
        walker->stride[0] = 1;
    }
    return true;
}
