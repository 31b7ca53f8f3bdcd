/* Signals cut into frames: windows, overlapping frames added up again, distances.
 *
 *      hann, hamming    a - b cos(2πk / (n - 1)), a periodic one as of n + 1 points without the last
 *      unfold_backward  y[i] = Σ over the frames f that hold i, ascending, of g[f][i - f step]
 *      dist             (Σ |a - b|^p)^(1/p), infinity and 0 as norms have them
 *      cdist            the same of each pair of rows, p = 2 also by |a|² + |b|² - 2 a·b, which loses what cancels:
 *                       twins have the root of it
 */
#include "functions/elementary.h"
#include "kernel/frame.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* torch computes in the result's dtype, the angle too: off by some roundoffs of 2π. */
static lb_status window(lb_call *call, bool periodic, double a, double b, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const int64_t n = lb_frame_arg_int(call, 0, 0);
    if (call->results[0].layout.ndim != 1 || call->results[0].layout.shape[0] != n)
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "a window of another length");
    if (lb_dtype_bits(call->results[0].dtype) == 16) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "a window of 16 bits");
    void *y = lb_frame_output(&frame, 0, n);
    const double steps = (double)(periodic ? n : n - 1);
    for (int64_t k = 0; lb_frame_ok(&frame) && k < n; k++)
        lb_frame_set(&frame, y, k,
                     twin     ? fabs(a) + (1 + 2 * PI) * fabs(b)
                     : n == 1 ? 1
                              : a - b * lb_cos(2 * PI * (double)k / steps));
    return lb_frame_end(&frame);
}

#define PERIODIC(I) (lb_frame_arg_int(call, I, 1) != 0)
LB_WITH_TWIN(hann, window(call, true, 0.5, 0.5, twin))
LB_WITH_TWIN(hann_periodic, window(call, PERIODIC(1), 0.5, 0.5, twin))
LB_WITH_TWIN(hamming, window(call, true, 0.54, 0.46, twin))
LB_WITH_TWIN(hamming_periodic, window(call, PERIODIC(1), 0.54, 0.46, twin))
LB_WITH_TWIN(hamming_alpha, window(call, PERIODIC(1), lb_frame_arg_float(call, 2, 0.54), 0.46, twin))
LB_WITH_TWIN(hamming_beta,
             window(call, PERIODIC(1), lb_frame_arg_float(call, 2, 0.54), lb_frame_arg_float(call, 3, 0.46), twin))

/* ---- frames ------------------------------------------------------------------------------------------------------ */

/* grad_in, input_sizes, dim, size, step: the frames' dimension stands where `dim` is, what lies in a frame last. */
static lb_status unfold_backward_run(lb_call *call, bool twin)
{
    const lb_tensor *grad = lb_frame_arg_tensor(call, 0), *out = &call->results[0];
    const int dim = lb_frame_wrap_dim(lb_frame_arg_int(call, 2, 0), out->layout.ndim);
    const int64_t size = lb_frame_arg_int(call, 3, 1), step = lb_frame_arg_int(call, 4, 1);
    lb_frame frame = lb_frame_begin(call);
    if (dim < 0 || size < 0 || step < 1 || grad->layout.ndim != out->layout.ndim + 1 || !out->layout.ndim)
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "frames of another shape");
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    const lb_around whole = lb_frame_shape_around(&out->layout, dim);
    const int64_t frames = grad->layout.shape[dim];
    if (grad->layout.shape[grad->layout.ndim - 1] != size ||
        lb_tensor_numel(grad) != whole.outer * frames * whole.inner * size || (frames - 1) * step + size > whole.size)
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "frames of another shape");
    const void *g = lb_frame_tensor(&frame, grad);
    const int64_t n = lb_tensor_numel(out);
    void *y = lb_frame_output(&frame, 0, n);
    double *sum = lb_frame_scratch(&frame, (size_t)(n + 1) * sizeof *sum);
    if (lb_frame_ok(&frame)) memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t o = 0; lb_frame_ok(&frame) && o < whole.outer; o++)
        for (int64_t k = 0; k < frames; k++)
            for (int64_t i = 0; i < whole.inner; i++)
                for (int64_t s = 0; s < size; s++) {
                    const double x = lb_frame_get(&frame, g, ((o * frames + k) * whole.inner + i) * size + s);
                    double *to = &sum[(o * whole.size + k * step + s) * whole.inner + i];
                    *to = twin ? *to + fabs(x) : frame.wide ? *to + x : (double)(float)(*to + x);
                }
    const double most = twin ? (double)(size / step + 2) * lb_frame_twin_scale(call, 0) : 1;
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) lb_frame_set(&frame, y, i, sum[i] * most);
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(unfold_backward, unfold_backward_run(call, twin))

/* ---- distances --------------------------------------------------------------------------------------------------- */

/* The p-norm of differences that come one after the other. */
typedef struct distance {
    double p, sum;
} distance;

static void add(distance *distance, double difference)
{
    const double x = fabs(difference);
    if (x != x)
        distance->sum = x;
    else if (distance->p == 0)
        distance->sum += x != 0;
    else if (distance->p == INFINITY)
        distance->sum = x > distance->sum ? x : distance->sum;
    else if (distance->p == -INFINITY)
        distance->sum = x < distance->sum ? x : distance->sum;
    else
        distance->sum += distance->p == 2 ? x * x : distance->p == 1 ? x : lb_pow(x, distance->p);
}

static distance begin(double power)
{
    return (distance){power, power == -INFINITY ? INFINITY : 0};
}

static double end(distance distance)
{
    if (distance.p == 0 || isinf(distance.p) || distance.p == 1) return distance.sum;
    return distance.p == 2 ? __builtin_sqrt(distance.sum) : lb_pow(distance.sum, 1 / distance.p);
}

/* self, other, p */
static lb_status dist_run(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *a = lb_frame_arg_tensor(call, 0), *b = lb_frame_arg_tensor(call, 1);
    const int64_t n = lb_tensor_numel(a);
    if (!lb_layout_same_shape(&a->layout, &b->layout))
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "tensors of other shapes");
    const void *x = lb_frame_tensor(&frame, a), *y = lb_frame_tensor(&frame, b);
    void *to = lb_frame_output(&frame, 0, 1);
    distance distance = begin(lb_frame_arg_float(call, 2, 2));
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        const double difference = lb_frame_get(&frame, x, i) - lb_frame_get(&frame, y, i);
        add(&distance, frame.wide ? difference : (double)(float)difference);
    }
    /* 16 bits: each difference is rounded to them, and powers are f32. */
    if (lb_frame_ok(&frame)) lb_frame_set(&frame, to, 0, end(distance) * (twin ? lb_frame_twin_scale(call, 0) : 1));
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(dist, dist_run(call, twin))

/* Rows of a (…, m, k) and b (…, n, k), whose leading dimensions are alike. `product`: by the product of matrices, or
 * not known. */
static lb_status pairs_run(lb_call *call, double power, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *a = lb_frame_arg_tensor(call, 0), *b = lb_frame_arg_tensor(call, 1);
    const int da = a->layout.ndim, db = b->layout.ndim;
    if (da < 2 || da != db || a->layout.shape[da - 1] != b->layout.shape[db - 1])
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "rows of other lengths");
    for (int distance = 0; lb_frame_ok(&frame) && distance < da - 2; distance++)
        if (a->layout.shape[distance] != b->layout.shape[distance])
            lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "batches that differ");
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    const int64_t k = a->layout.shape[da - 1], m = a->layout.shape[da - 2], n = b->layout.shape[db - 2],
                  batch = m ? lb_tensor_numel(&call->results[0]) / (n ? m * n : 1) : 0;
    const void *x = lb_frame_tensor(&frame, a), *y = lb_frame_tensor(&frame, b);
    void *to = lb_frame_output(&frame, 0, batch * m * n);
    const double unit = frame.wide ? 0x1p-53 : 0x1p-24;
    if (lb_tensor_numel(&call->results[0]) != batch * m * n)
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "a result of another size");
    for (int64_t row = 0; lb_frame_ok(&frame) && row < batch * m * n; row++) {
        const int64_t i = row / n, j = row / (m * n) * n + row % n;
        distance distance = begin(power);
        double squares = 0;
        for (int64_t c = 0; c < k; c++) {
            const double u = lb_frame_get(&frame, x, i * k + c), v = lb_frame_get(&frame, y, j * k + c);
            add(&distance, u - v);
            squares += (fabs(u) + fabs(v)) * (fabs(u) + fabs(v));
        }
        double value = end(distance);
        if (twin && power == 2) { /* of d² that much may be off: of d half of it by d, or the root */
            const double lost = (double)(k + 4) * squares, root = __builtin_sqrt(lost / unit);
            value += value > 0 && lost / value < root ? lost / value : root;
        } else if (twin) {
            value *= (double)(k + 4);
        }
        lb_frame_set(&frame, to, row, value);
    }
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(cdist, pairs_run(call, lb_frame_arg_float(call, 2, 2), twin))
LB_WITH_TWIN(euclidean, pairs_run(call, 2, twin))

#define WINDOW(NAME, ARGS, ID, SAMPLES)                                                                                \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS " dtype layout device pin_memory",                                                                   \
     LB_COMPUTED_BY(ID),                                                                                               \
     .roundings = 4,                                                                                                   \
     .samples = "window " SAMPLES},

/* clang-format off */
const lb_op_row lb_rows_signal[] = {
    WINDOW("hann_window", "window_length", hann, "")
    WINDOW("hann_window.periodic", "window_length periodic", hann_periodic, "periodic")
    WINDOW("hamming_window", "window_length", hamming, "")
    WINDOW("hamming_window.periodic", "window_length periodic", hamming_periodic, "periodic")
    WINDOW("hamming_window.periodic_alpha", "window_length periodic alpha", hamming_alpha, "periodic numbers=1")
    WINDOW("hamming_window.periodic_alpha_beta", "window_length periodic alpha beta", hamming_beta, "periodic numbers=2")
    {.name = "aten::unfold_backward", .args = "grad_in! input_sizes dim size step", LB_COMPUTED_BY(unfold_backward),
     .roundings = 1, .samples = "unfold_backward"},
    {.name = "aten::dist", .args = "self! other! p", LB_COMPUTED_BY(dist), LB_SUMS(8, LB_TERMS(ELEMENTS, 0)),
     .samples = "distances one"},
    {.name = "aten::_cdist_forward", .args = "x1! x2! p compute_mode", LB_COMPUTED_BY(cdist), .roundings = 2,
     .samples = "distances"},
    {.name = "aten::_euclidean_dist", .args = "x1! x2!", LB_COMPUTED_BY(euclidean), .roundings = 2,
     .samples = "distances euclidean"},
    {NULL}
};
