/* Sums of products of three tensors, each seen with dimensions of size 1 put in: what nn.Bilinear is made of, and its
 * backward.
 *
 *      bilinear      y[b, o] = sum over i, j of x[b, i] W[o, i, j] z[b, j]
 *
 * Sums are taken in f64, in row-major order of what is summed, and rounded once; torch's CPU kernel multiplies two of
 * the three slice by slice and adds the slices in the dtype, which in 16 bits is not computed here. Definition:
 * aten/src/ATen/native/Linear.cpp, _trilinear.
 */
#include "kernel/frame.h"

#include <math.h>

enum { MOST_DIMS = LB_MAX_DIMS, FACTORS = 3 };

/* Every dimension of the product: its size, and how far each factor moves along it; 0: it is the same there. */
typedef struct product_dims {
    int n;
    int64_t size[MOST_DIMS], stride[FACTORS][MOST_DIMS];
    bool summed[MOST_DIMS];
} product_dims;

/* A set of dimensions that an argument names. False: it names none of the product's. */
static bool mark_dims(const lb_call *call, uint32_t arg, int n, bool *marked)
{
    int64_t dims[MOST_DIMS];
    const int count = lb_frame_arg_ints(call, arg, dims, MOST_DIMS);
    for (int i = 0; i < count; i++) {
        const int dim = lb_frame_wrap_dim(dims[i], n);
        if (dim < 0) return false;
        marked[dim] = true;
    }
    return count >= 0;
}

/* A factor's own dimensions stand in their order between those that are put in. */
static bool place_factor(const lb_call *call, uint32_t factor, product_dims *dims)
{
    bool put_in[MOST_DIMS] = {false};
    const lb_layout *layout = &lb_frame_arg_tensor(call, factor)->layout;
    int64_t stride = 1;
    int own = layout->ndim;
    if (!mark_dims(call, FACTORS + factor, dims->n, put_in)) return false;
    for (int d = dims->n; d-- > 0;) {
        if (put_in[d]) continue;
        if (own-- == 0) return false;
        const int64_t size = layout->shape[own];
        if (size != 1 && dims->size[d] != 1 && dims->size[d] != size) return false;
        if (size != 1) dims->size[d] = size, dims->stride[factor][d] = stride;
        stride *= size;
    }
    return own == 0;
}

static bool place_all(lb_frame *frame, product_dims *dims)
{
    int64_t put_in[MOST_DIMS];
    const lb_tensor *first = lb_frame_arg_tensor(frame->call, 0);
    const int more = lb_frame_arg_ints(frame->call, FACTORS, put_in, MOST_DIMS);
    *dims = (product_dims){.n = first && more >= 0 ? first->layout.ndim + more : 0};
    for (int d = 0; d < dims->n && dims->n <= MOST_DIMS; d++) dims->size[d] = 1;
    bool fits = dims->n > 0 && dims->n <= MOST_DIMS;
    for (uint32_t k = 0; k < FACTORS && fits; k++)
        fits = lb_frame_arg_tensor(frame->call, k) && place_factor(frame->call, k, dims);
    fits = fits && mark_dims(frame->call, 2 * FACTORS, dims->n, dims->summed);
    if (!fits) lb_frame_fail(frame, LB_ERR_INVALID, "three tensors whose dimensions fit each other are needed");
    return fits;
}

static int64_t count(const product_dims *dims, bool summed)
{
    int64_t n = 1;
    for (int d = 0; d < dims->n; d++) n *= dims->summed[d] == summed ? dims->size[d] : 1;
    return n;
}

/* Where each factor stands at the i-th index of the dimensions that are summed, or of the others. */
static void move_to(const product_dims *dims, bool summed, int64_t i, int64_t at[FACTORS])
{
    for (int d = dims->n; d-- > 0;) {
        if (dims->summed[d] != summed) continue;
        for (int k = 0; k < FACTORS; k++) at[k] += i % dims->size[d] * dims->stride[k][d];
        i /= dims->size[d];
    }
}

/* Args: i1 i2 i3 expand1 expand2 expand3 sumdim. Result: what is left, in the order of dimensions. */
static lb_status trilinear(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    product_dims dims;
    if (call->n_results && lb_dtype_bits(call->results[0].dtype) < 32) {
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "in 16 bits torch rounds the sum behind every slice");
        return lb_frame_end(&frame);
    }
    if (!place_all(&frame, &dims)) return lb_frame_end(&frame);
    const int64_t kept = count(&dims, false), terms = count(&dims, true);
    const void *factors[FACTORS];
    for (uint32_t k = 0; k < FACTORS; k++) factors[k] = lb_frame_input(&frame, k);
    void *y = lb_frame_output(&frame, 0, kept);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < kept; i++) {
        double sum = 0;
        for (int64_t j = 0; j < terms; j++) {
            int64_t at[FACTORS] = {0};
            move_to(&dims, false, i, at), move_to(&dims, true, j, at);
            double term = 1;
            for (int k = 0; k < FACTORS; k++) term *= lb_frame_get(&frame, factors[k], at[k]);
            sum += twin ? fabs(term) : term;
        }
        lb_frame_set(&frame, y, i, sum);
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(trilinear, trilinear(call, twin))

const lb_op_row lb_rows_trilinear[] = {
    {.name = "aten::_trilinear",
     .args = "i1! i2! i3! expand1 expand2 expand3 sumdim unroll_dim",
     LB_COMPUTED_BY(trilinear),
     LB_SUMS(6, LB_TERMS(ELEMENTS, 1)),
     .flags = LB_ROW_REDUCTION,
     .samples = "trilinear"},
    {NULL},
};
