/* Advanced indexing, see index_plan.h. */
#include "kernel/index_plan.h"

#include <string.h>

typedef struct index_list {
    int dim[LB_MAX_DIMS];              /* dimension of self that it indexes */
    lb_tensor tensor[LB_MAX_DIMS];     /* integer indices */
    const int64_t *value[LB_MAX_DIMS]; /* broadcast to the common shape */
    int n, ndim;
    int64_t shape[LB_MAX_DIMS], numel;
} index_list;

/* A mask over dimensions d, d+1, … becomes one list of coordinates for each of them. */
static bool add_mask(lb_frame *frame, index_list *list, const lb_tensor *mask, int dim)
{
    const int64_t *m = lb_frame_integers(frame, mask);
    int64_t n = lb_tensor_numel(mask), count = 0;
    int ndim = mask->layout.ndim;
    if (!m) return false;
    for (int64_t i = 0; i < n; i++) count += m[i] != 0;
    for (int d = ndim - 1; d >= 0; d--) {
        int64_t *at = lb_frame_scratch(frame, (size_t)count * 8), stride = 1, k = 0;
        if (!at) return false;
        for (int e = d + 1; e < ndim; e++) stride *= mask->layout.shape[e];
        for (int64_t i = 0; i < n; i++)
            if (m[i]) at[k++] = i / stride % mask->layout.shape[d];
        int slot = list->n + d;
        list->dim[slot] = dim + d;
        list->tensor[slot] = (lb_tensor){at, LB_I64, lb_layout_contiguous(1, &count)};
    }
    list->n += ndim;
    return true;
}

static bool collect(lb_frame *frame, const lb_layout *self, const lb_tensor *indices, uint32_t count, index_list *list)
{
    int dim = 0;
    list->n = 0;
    for (uint32_t i = 0; i < count; i++) {
        const lb_tensor *index = &indices[i];
        bool mask = index->dtype == LB_BOOL || index->dtype == LB_U8;
        int takes = index->dtype && mask ? index->layout.ndim : 1;
        if (dim + takes > self->ndim) {
            lb_frame_fail(frame, LB_ERR_INVALID, "more indices than dimensions");
            return false;
        }
        if (index->dtype && mask) {
            for (int d = 0; d < takes; d++)
                if (index->layout.shape[d] != self->shape[dim + d]) {
                    lb_frame_fail(frame, LB_ERR_INVALID, "a mask of another shape");
                    return false;
                }
            if (!add_mask(frame, list, index, dim)) return false;
        } else if (index->dtype) {
            list->dim[list->n] = dim;
            list->tensor[list->n++] = *index;
        }
        dim += takes;
    }
    return true;
}

/* Broadcasts all index tensors and makes them dense. */
static bool broadcast(lb_frame *frame, index_list *list)
{
    list->ndim = 0;
    for (int k = 0; k < list->n; k++)
        if (list->tensor[k].layout.ndim > list->ndim) list->ndim = list->tensor[k].layout.ndim;
    for (int d = 0; d < list->ndim; d++) {
        list->shape[d] = 1;
        for (int k = 0; k < list->n; k++) {
            const lb_layout *layout = &list->tensor[k].layout;
            int own = d - (list->ndim - layout->ndim);
            if (own >= 0 && layout->shape[own] != 1) list->shape[d] = layout->shape[own];
        }
    }
    list->numel = 1;
    for (int d = 0; d < list->ndim; d++) list->numel *= list->shape[d];
    for (int k = 0; k < list->n; k++) {
        lb_tensor wide = list->tensor[k];
        const lb_layout *layout = &list->tensor[k].layout;
        wide.layout.ndim = list->ndim;
        for (int d = 0; d < list->ndim; d++) {
            int own = d - (list->ndim - layout->ndim);
            int64_t size = own >= 0 ? layout->shape[own] : 1;
            if (size != list->shape[d] && size != 1) {
                lb_frame_fail(frame, LB_ERR_INVALID, "indices do not broadcast");
                return false;
            }
            wide.layout.shape[d] = list->shape[d];
            wide.layout.stride[d] = size == 1 ? 0 : layout->stride[own];
        }
        if (list->numel && !(list->value[k] = lb_frame_integers(frame, &wide))) return false;
    }
    return true;
}

/* Offsets of all elements of the given dimensions of a dense tensor, row-major. */
static const int64_t *offsets(lb_frame *frame, const lb_layout *self, const int64_t *stride, const int *dims, int n,
                              int64_t *count)
{
    *count = 1;
    for (int k = 0; k < n; k++) *count *= self->shape[dims[k]];
    int64_t *at = lb_frame_scratch(frame, (size_t)*count * 8);
    for (int64_t i = 0; at && i < *count; i++) {
        int64_t rest = i;
        at[i] = 0;
        for (int k = n - 1; k >= 0; k--) {
            at[i] += rest % self->shape[dims[k]] * stride[dims[k]];
            rest /= self->shape[dims[k]];
        }
    }
    return at;
}

static const int64_t *addresses(lb_frame *frame, const lb_layout *self, const int64_t *stride, const index_list *list)
{
    int64_t *at = lb_frame_scratch(frame, (size_t)list->numel * 8);
    for (int64_t i = 0; at && i < list->numel; i++) {
        at[i] = 0;
        for (int k = 0; k < list->n; k++) {
            int64_t size = self->shape[list->dim[k]], index = list->value[k][i];
            if (index < 0) index += size;
            if (index < 0 || index >= size) {
                lb_frame_fail(frame, LB_ERR_INVALID, "an index is out of range");
                return NULL;
            }
            at[i] += index * stride[list->dim[k]];
        }
    }
    return at;
}

bool lb_index_plan_make(lb_frame *frame, const lb_layout *self, const lb_tensor *indices, uint32_t count,
                        lb_index_plan *plan)
{
    index_list list;
    if (!collect(frame, self, indices, count, &list) || !broadcast(frame, &list)) return false;
    lb_layout dense = lb_layout_contiguous(self->ndim, self->shape);
    bool indexed[LB_MAX_DIMS] = {false}, neighbours = true;
    for (int k = 0; k < list.n; k++) indexed[list.dim[k]] = true;
    for (int k = 1; k < list.n; k++) neighbours &= list.dim[k] == list.dim[k - 1] + 1;
    int first = list.n ? list.dim[0] : 0, before[LB_MAX_DIMS], after[LB_MAX_DIMS], n_before = 0, n_after = 0;
    for (int d = 0; d < self->ndim; d++) {
        if (indexed[d]) continue;
        if (neighbours && d < first)
            before[n_before++] = d;
        else
            after[n_after++] = d;
    }
    plan->run = true;
    for (int k = 0; k < n_after; k++) plan->run &= after[k] == self->ndim - n_after + k;
    plan->ndim = 0;
    for (int k = 0; k < n_before; k++) plan->shape[plan->ndim++] = self->shape[before[k]];
    if (plan->ndim + list.ndim + n_after > LB_MAX_DIMS) {
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "too many dimensions");
        return false;
    }
    for (int d = 0; d < list.ndim; d++) plan->shape[plan->ndim++] = list.shape[d];
    for (int k = 0; k < n_after; k++) plan->shape[plan->ndim++] = self->shape[after[k]];
    plan->before = offsets(frame, self, dense.stride, before, n_before, &plan->n_before);
    plan->after = offsets(frame, self, dense.stride, after, n_after, &plan->n_after);
    plan->at = addresses(frame, self, dense.stride, &list);
    plan->n_at = list.numel;
    return lb_frame_ok(frame);
}
