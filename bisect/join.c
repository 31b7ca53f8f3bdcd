/* Putting parts together: see join.h. */
#include "join.h"

#include <stdlib.h>
#include <string.h>

void lb_joins_release(lb_joins *joins)
{
    free(joins->list), free(joins->part_ops);
    memset(joins, 0, sizeof *joins);
}

bool lb_join_values(const lb_joins *joins, const lb_join *join, const lb_program *pb, uint32_t outcome,
                    uint32_t *values)
{
    for (uint32_t k = 0; k < join->parts; k++) {
        const lb_op *op = &pb->ops[joins->part_ops[join->first + k]];
        if (outcome >= op->results + op->written) return false;
        values[k] = outcome < op->results ? lb_op_results(pb, op)[outcome]
                                          : lb_op_written(pb, op)[outcome - op->results];
        if (values[k] == LB_NONE) return false;
    }
    return true;
}

static bool same_but_for(const lb_layout *a, const lb_layout *b, int dim)
{
    for (int d = 0; d < a->ndim; d++)
        if (d != dim && a->shape[d] != b->shape[d]) return false;
    return true;
}

int lb_join_dim(const lb_program *pa, uint32_t whole, const lb_program *pb, const uint32_t *values, uint32_t n)
{
    const lb_layout *w = &pa->values[whole].layout, *first = &pb->values[values[0]].layout;
    int dim = LB_JOIN_SAME;
    if (first->ndim != w->ndim) return LB_JOIN_NONE;
    for (int d = 0; d < w->ndim && dim == LB_JOIN_SAME; d++)
        if (w->shape[d] != first->shape[d]) dim = d;
    int64_t size = 0;
    for (uint32_t k = 0; k < n; k++) {
        const lb_layout *part = &pb->values[values[k]].layout;
        if (part->ndim != w->ndim || !same_but_for(w, part, dim)) return LB_JOIN_NONE;
        size += dim >= 0 ? part->shape[dim] : 0;
    }
    return dim < 0 || size == w->shape[dim] ? dim : LB_JOIN_NONE;
}

int lb_join_outcome_dim(const lb_joins *joins, const lb_join *join, const lb_program *pa, const lb_program *pb,
                        uint32_t outcome, uint32_t place, int64_t *at)
{
    const lb_op *whole = &pa->ops[join->whole];
    uint32_t v = outcome < whole->results ? lb_op_results(pa, whole)[outcome]
                                          : lb_op_written(pa, whole)[outcome - whole->results];
    uint32_t *values = malloc((join->parts + 1) * sizeof *values);
    int dim = LB_JOIN_NONE;
    if (values && v != LB_NONE && lb_join_values(joins, join, pb, outcome, values))
        dim = lb_join_dim(pa, v, pb, values, join->parts);
    *at = 0;
    for (uint32_t k = 0; k < place && dim >= 0; k++) *at += pb->values[values[k]].layout.shape[dim];
    free(values);
    return dim;
}

void lb_join_place(const lb_layout *whole, int dim, int64_t at, const lb_layout *part, size_t element,
                   const void *numbers, void *out)
{
    int64_t outer = 1, inner = 1;
    for (int d = 0; d < dim; d++) outer *= whole->shape[d];
    for (int d = dim + 1; d < whole->ndim; d++) inner *= whole->shape[d];
    size_t run = (size_t)(part->shape[dim] * inner) * element;
    for (int64_t o = 0; o < outer; o++)
        memcpy((char *)out + (size_t)((o * whole->shape[dim] + at) * inner) * element,
               (const char *)numbers + (size_t)o * run, run);
}

bool lb_join_assemble(const lb_side *b, const lb_layout *whole, int dim, const uint32_t *values, uint32_t n,
                      lb_tensor *tensor)
{
    lb_tensor part;
    int64_t at = 0;
    if (dim < 0 || lb_side_value(b, values[0], &part, NULL) != LB_OK || lb_dtype_bits(part.dtype) < 8)
        return false;
    size_t element = lb_dtype_bits(part.dtype) / 8;
    *tensor = (lb_tensor){NULL, part.dtype, lb_layout_contiguous(whole->ndim, whole->shape)};
    tensor->data = malloc((size_t)lb_layout_numel(whole) * element + 1);
    bool done = tensor->data != NULL;
    for (uint32_t k = 0; k < n && done; k++) {
        done = lb_side_value(b, values[k], &part, NULL) == LB_OK && part.dtype == tensor->dtype;
        void *dense = done ? malloc((size_t)lb_layout_numel(&part.layout) * element + 1) : NULL;
        done = dense && lb_tensor_gather(&part, dense, NULL) == LB_OK;
        if (done) lb_join_place(whole, dim, at, &part.layout, element, dense, tensor->data);
        free(dense);
        if (done) at += part.layout.shape[dim];
    }
    if (!done) free(tensor->data), tensor->data = NULL;
    return done;
}
