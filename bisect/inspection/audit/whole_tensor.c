/* See whole_tensor.h. */
#include "audit/whole_tensor.h"

#include <stdlib.h>
#include <string.h>

static lb_status put(const lb_checkpoint_piece *piece, const int64_t *start, lb_tensor *whole, lb_err *err)
{
    int64_t at = 0;
    lb_tensor view = *whole;
    for (int d = 0; d < whole->layout.ndim; d++) {
        int64_t size = piece->tensor.layout.shape[d];
        if (start[d] < 0 || size > whole->layout.shape[d] || start[d] > whole->layout.shape[d] - size)
            return lb_fail(err, LB_ERR_CORRUPT, "tensor '%.100s': a part leaves the whole", piece->name);
        at += start[d] * whole->layout.stride[d];
        view.layout.shape[d] = size;
    }
    view.data = (char *)whole->data + at * (int64_t)lb_dtype_bits(whole->dtype) / 8;
    size_t bytes = lb_dtype_bytes(piece->tensor.dtype, (size_t)lb_layout_numel(&piece->tensor.layout));
    void *dense = malloc(bytes + 1);
    if (!dense) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_status status = lb_tensor_gather(&piece->tensor, dense, err);
    if (status == LB_OK) status = lb_tensor_scatter(&view, dense, err);
    free(dense);
    return status;
}

lb_status lb_whole_init(const lb_inventory *inventory, const lb_inventory_name *name, int dim, lb_whole *whole,
                        lb_err *err)
{
    const lb_checkpoint_piece *parts = &inventory->checkpoint->pieces[name->first];
    lb_layout layout = lb_layout_contiguous(parts->whole.ndim, parts->whole.shape);
    *whole = (lb_whole){parts->tensor, NULL};
    if (parts->placed ? lb_layout_same_shape(&parts->whole, &parts->tensor.layout) : name->n == 1 || dim < 0)
        return LB_OK;
    if (!parts->placed) {
        if (dim >= layout.ndim)
            return lb_fail(err, LB_ERR_CORRUPT, "tensor '%.100s': has too few dimensions", name->name);
        for (uint32_t i = 1; i < name->n; i++) layout.shape[dim] += parts[i].tensor.layout.shape[dim];
        layout = lb_layout_contiguous(layout.ndim, layout.shape);
    }
    int64_t n = lb_layout_numel(&layout), held = 0;
    for (uint32_t i = 0; i < name->n; i++) held += lb_layout_numel(&parts[i].tensor.layout);
    if (n < 0 || n > held || lb_dtype_bits(parts->tensor.dtype) < 8)
        return lb_fail(err, LB_ERR_CORRUPT, "tensor '%.100s': its parts do not make it up", name->name);
    whole->owned = calloc(lb_dtype_bytes(parts->tensor.dtype, (size_t)n) + 1, 1);
    if (!whole->owned) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    whole->tensor = (lb_tensor){whole->owned, parts->tensor.dtype, layout};
    int64_t start[LB_MAX_DIMS] = {0};
    for (uint32_t i = 0; i < name->n; i++) {
        lb_status status = LB_OK;
        if (parts[i].tensor.dtype != parts->tensor.dtype || parts[i].tensor.layout.ndim != layout.ndim)
            status =
                lb_fail(err, LB_ERR_CORRUPT, "tensor '%.100s': its parts have several dtypes or shapes", name->name);
        for (int d = 0; d < layout.ndim && status == LB_OK && !parts->placed; d++)
            if (d != dim && parts[i].tensor.layout.shape[d] != layout.shape[d])
                status = lb_fail(err, LB_ERR_CORRUPT, "tensor '%.100s': its shards do not fit", name->name);
        if (status == LB_OK) status = put(&parts[i], parts->placed ? parts[i].start : start, &whole->tensor, err);
        if (status != LB_OK) {
            lb_whole_release(whole);
            return status;
        }
        if (!parts->placed) start[dim] += parts[i].tensor.layout.shape[dim];
    }
    return LB_OK;
}

float *lb_whole_numbers(const lb_whole *whole, lb_err *err)
{
    const lb_tensor *tensor = &whole->tensor;
    int64_t n = lb_layout_numel(&tensor->layout), at = 0;
    float *numbers = (float *)malloc(((size_t)n + 1) * sizeof *numbers);
    if (!numbers) return lb_fail(err, LB_ERR_NOMEM, "out of memory"), NULL;
    for (lb_rows r = lb_rows_of(&tensor->layout); lb_rows_next(&r); at += r.count)
        lb_load_f32_strided(numbers + at, tensor->dtype,
                            (const char *)tensor->data + r.offset * (int64_t)lb_dtype_bits(tensor->dtype) / 8,
                            (ptrdiff_t)r.stride, (size_t)r.count);
    return numbers;
}

void lb_whole_release(lb_whole *whole)
{
    free(whole->owned);
    whole->owned = NULL;
}
