/* Operands of matrix products: see matrices.h. */
#include "ops/matrices.h"

const void *lb_matrices_reals(lb_frame *frame, const lb_tensor *tensor, bool twin)
{
    const void *x = lb_frame_tensor(frame, tensor);
    if (!twin || !x) return x;
    int64_t n = lb_tensor_numel(tensor);
    void *y = lb_frame_reals(frame, n);
    if (y) lb_frame_absolute(frame, x, y, n);
    return y;
}

bool lb_matrices_begin(lb_matrices *matrices, lb_call *call, const lb_tensor *a, const lb_tensor *b, bool twin)
{
    matrices->frame = lb_frame_begin(call);
    matrices->twin = twin;
    const lb_layout *la = &a->layout, *lb = &b->layout;
    int na = la->ndim, nb = lb->ndim;
    if (na < 2 || nb != na || la->shape[na - 1] != lb->shape[nb - 2] || (na > 2 && la->shape[0] != lb->shape[0])) {
        lb_frame_fail(&matrices->frame, LB_ERR_INVALID, "shapes do not match");
        return false;
    }
    matrices->shape = (lb_product){.m = la->shape[na - 2], .n = lb->shape[nb - 1], .k = la->shape[na - 1]};
    matrices->batch = 1;
    for (int d = 0; d < na - 2; d++) matrices->batch *= la->shape[d];
    matrices->a = *a, matrices->b = *b;
    lb_tensor *both[2] = {&matrices->a, &matrices->b};
    for (int i = 0; i < 2; i++) { /* packed types are widened first */
        if (lb_dtype_bits(both[i]->dtype) >= 8) continue;
        both[i]->data = (void *)(uintptr_t)lb_frame_tensor(&matrices->frame, both[i]);
        both[i]->dtype = matrices->frame.type;
        both[i]->layout = lb_layout_contiguous(na, both[i]->layout.shape);
    }
    return lb_frame_ok(&matrices->frame);
}

lb_matrix lb_matrix_at(const lb_tensor *tensor, int kept, int64_t outer)
{
    const lb_layout *layout = &tensor->layout;
    int64_t offset = 0;
    for (int d = layout->ndim - kept - 1; d >= 0; outer /= layout->shape[d--])
        offset += outer % layout->shape[d] * layout->stride[d];
    const char *data = (const char *)tensor->data + offset * (int64_t)(lb_dtype_bits(tensor->dtype) / 8);
    return (lb_matrix){data, tensor->dtype, (ptrdiff_t)layout->stride[layout->ndim - 2],
                       (ptrdiff_t)layout->stride[layout->ndim - 1]};
}

void lb_matrices_failed(lb_frame *frame, lb_status status)
{
    const bool unit = status == LB_ERR_UNSUPPORTED;
    lb_frame_fail(frame, status,
                  unit ? "this matrix unit does not multiply operands of this dtype" : "no memory for a product");
}

void lb_matrices_multiply(lb_matrices *matrices, void *c)
{
    const lb_product *product = &matrices->shape;
    const int ndim = matrices->a.layout.ndim, kept = ndim > 2 ? 3 : 2;
    const int64_t inner = ndim > 2 ? matrices->a.layout.shape[ndim - 3] : 1, size = matrices->frame.wide ? 8 : 4;
    lb_matmul_batch batch = {(size_t)inner, 0, 0, (ptrdiff_t)(product->m * product->n)};
    if (ndim > 2) batch.a_step = (ptrdiff_t)matrices->a.layout.stride[ndim - 3];
    if (ndim > 2) batch.b_step = (ptrdiff_t)matrices->b.layout.stride[ndim - 3];
    for (int64_t outer = 0; lb_frame_ok(&matrices->frame) && inner && outer < matrices->batch / inner; outer++) {
        const lb_matrix_pair operands = {lb_matrix_at(&matrices->a, kept, outer),
                                         lb_matrix_at(&matrices->b, kept, outer), matrices->twin, &batch};
        const lb_status status =
            lb_product_matrices(product, matrices->frame.type, &matrices->frame.call->method, &operands,
                                (char *)c + outer * inner * product->m * product->n * size);
        if (status != LB_OK) lb_matrices_failed(&matrices->frame, status);
    }
}
