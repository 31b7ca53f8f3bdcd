/* Weight norm: w = v g / |v|, with one norm for each index of a dimension, and its backward.
 *
 * Sums of squares are taken in f64, one element after the other in memory, and everything is rounded once; torch's CPU
 * kernel adds in f32. */
#include "kernel/frame.h"

#include <math.h>

/* Sum over all elements of index s of x times y. */
static double inner(const lb_frame *frame, const lb_around *around, int64_t s, const void *x, const void *y,
                    bool magnitudes)
{
    double sum = 0;
    for (int64_t o = 0; o < around->outer; o++)
        for (int64_t i = 0; i < around->inner; i++) {
            const int64_t at = (o * around->size + s) * around->inner + i;
            const double term = lb_frame_get(frame, x, at) * lb_frame_get(frame, y, at);
            sum += magnitudes ? fabs(term) : term;
        }
    return sum;
}

/* Which elements share a norm. False: the call says so wrongly. */
static bool around_of(lb_frame *frame, uint32_t v, uint32_t g, uint32_t dim_arg, lb_around *around)
{
    const lb_tensor *tensor = lb_frame_arg_tensor(frame->call, v), *scale = lb_frame_arg_tensor(frame->call, g);
    const int dim = tensor ? lb_frame_wrap_dim(lb_frame_arg_int(frame->call, dim_arg, 0), tensor->layout.ndim) : -1;
    if (dim < 0 || !scale || tensor->layout.ndim == 0 || lb_tensor_numel(scale) != tensor->layout.shape[dim]) {
        lb_frame_fail(frame, LB_ERR_INVALID, "a norm for each index of a dimension is needed");
        return false;
    }
    *around = lb_frame_shape_around(&tensor->layout, dim);
    return true;
}

/* Args: v g dim. Results: w, norms. */
static lb_status forward(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    lb_around around;
    if (!around_of(&frame, 0, 1, 2, &around)) return lb_frame_end(&frame);
    const void *v = lb_frame_input(&frame, 0), *g = lb_frame_input(&frame, 1);
    void *w = lb_frame_output(&frame, 0, around.outer * around.size * around.inner),
         *norms = lb_frame_output(&frame, 1, around.size);
    for (int64_t s = 0; lb_frame_ok(&frame) && s < around.size; s++) {
        const double norm = sqrt(inner(&frame, &around, s, v, v, false)), scale = lb_frame_get(&frame, g, s) / norm;
        lb_frame_set(&frame, norms, s, norm);
        for (int64_t k = 0; k < around.outer * around.inner; k++) {
            const int64_t at = (k / around.inner * around.size + s) * around.inner + k % around.inner;
            const double y = lb_frame_get(&frame, v, at) * scale;
            lb_frame_set(&frame, w, at, twin ? fabs(y) : y);
        }
    }
    return lb_frame_end(&frame);
}

/* Args: grad_w saved_v saved_g saved_norms dim. Results: the gradients of v and g. */
static lb_status backward(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    lb_around around;
    if (!around_of(&frame, 1, 2, 4, &around)) return lb_frame_end(&frame);
    const lb_tensor *saved = lb_frame_arg_tensor(call, 3), *grad = lb_frame_arg_tensor(call, 0);
    const int64_t n = around.outer * around.size * around.inner;
    if (!saved || !grad || lb_tensor_numel(saved) != around.size || lb_tensor_numel(grad) != n)
        lb_frame_fail(&frame, LB_ERR_INVALID, "gradients and norms of other sizes");
    const void *dw = lb_frame_input(&frame, 0), *v = lb_frame_input(&frame, 1), *g = lb_frame_input(&frame, 2),
               *norms = lb_frame_input(&frame, 3);
    void *dv = lb_frame_output(&frame, 0, n), *dg = lb_frame_output(&frame, 1, around.size);
    for (int64_t s = 0; lb_frame_ok(&frame) && s < around.size; s++) {
        const double norm = lb_frame_get(&frame, norms, s), scale = lb_frame_get(&frame, g, s) / norm,
                     sum = inner(&frame, &around, s, dw, v, twin);
        lb_frame_set(&frame, dg, s, twin ? sum / fabs(norm) : sum / norm);
        for (int64_t k = 0; k < around.outer * around.inner; k++) {
            const int64_t at = (k / around.inner * around.size + s) * around.inner + k % around.inner;
            const double a = lb_frame_get(&frame, dw, at), b = lb_frame_get(&frame, v, at) * (sum / (norm * norm));
            lb_frame_set(&frame, dv, at, twin ? fabs(scale) * (fabs(a) + fabs(b)) : scale * (a - b));
        }
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(weight_norm, forward(call, twin))
LB_WITH_TWIN(weight_norm_backward, backward(call, twin))

const lb_op_row lb_rows_weight_norm[] = {
    {.name = "aten::_weight_norm_interface",
     .args = "v! g! dim",
     LB_COMPUTED_BY(weight_norm),
     LB_SUMS(6, LB_TERMS(WEIGHED, 1)),
     .flags = LB_ROW_REDUCTION | LB_ROW_SQUARES,
     .samples = "weight_norm"},
    {.name = "aten::_weight_norm_interface_backward",
     .args = "grad_w! saved_v! saved_g! saved_norms! dim",
     LB_COMPUTED_BY(weight_norm_backward),
     .roundings = 10,
     .roundings_per_term = 2,
     .terms = LB_TERMS(WEIGHED, 2),
     .flags = LB_ROW_REDUCTION | LB_ROW_SQUARES,
     .samples = "weight_norm backward"},
    {NULL},
};
