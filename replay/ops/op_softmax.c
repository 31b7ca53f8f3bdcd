/* Softmax, log-softmax, their backwards, and the negative log likelihood loss.
 *
 * A row is: maximum, exp(x - maximum), sum (`schedule` applies; default torch's cascade), quotient. The twins carry
 * what the rounding of x - maximum does: |x - max| ulps of relative error in the exponential. */
#include "functions/elementary.h"
#include "kernel/frame.h"
#include "orders/schedule.h"

#include <math.h>
#include <string.h>

/* What torch does besides on a CPU with 16-bit rows: along the last dimension the sum and the logarithm of a
 * log-softmax are rounded to the dtype, across it the exponentials of a softmax are. */
typedef struct row_kind {
    lb_method method;
    bool safe;       /* rows of -inf give 0 */
    bool across;     /* the dimension is not the last */
    lb_dtype rounds; /* LB_BF16 or LB_F16 */
    double scale;    /* of the twin, for these roundings */
    double grain;    /* a number below which they lose more */
} row_kind;

#define REAL_TEMPLATE "ops/softmax_real.h"
#include "functions/real_template.h"

#define PARALLEL_ELEMENTS 32768

typedef struct rows {
    int64_t count, size;
    bool across;
    lb_tensor result; /* with the dimension moved to the end */
    const void *a, *b;
    void *y;
} rows;

/* Args 0 (and 1, if `two`) and result 0 as dense rows along `dim`. */
static bool rows_of(lb_frame *frame, int64_t dim, bool two, rows *rows)
{
    lb_call *call = frame->call;
    const lb_tensor *in = lb_frame_arg_tensor(call, 0);
    int d = in ? lb_frame_wrap_dim(dim, in->layout.ndim) : -1;
    if (d < 0 || call->results[0].layout.ndim != in->layout.ndim) {
        lb_frame_fail(frame, LB_ERR_INVALID, "no such dimension");
        return false;
    }
    int64_t n = lb_tensor_numel(in);
    rows->size = in->layout.ndim ? in->layout.shape[d] : 1;
    rows->count = rows->size ? n / rows->size : 0;
    rows->across = d != in->layout.ndim - 1;
    lb_tensor a = lb_frame_dim_last(in, d);
    rows->a = lb_frame_tensor(frame, &a);
    if (two) {
        lb_tensor b = lb_frame_dim_last(lb_frame_arg_tensor(call, 1), d);
        rows->b = lb_frame_tensor(frame, &b);
    }
    rows->result = lb_frame_dim_last(&call->results[0], d);
    rows->y = lb_frame_output_view(frame, &rows->result, n);
    return lb_frame_ok(frame);
}

typedef void (*row_f32)(const row_kind *, const float *, float *, int64_t);
typedef void (*row_f64)(const row_kind *, const double *, double *, int64_t);
typedef void (*row2_f32)(const row_kind *, const float *, const float *, float *, int64_t);
typedef void (*row2_f64)(const row_kind *, const double *, const double *, double *, int64_t);

static lb_status each_row(lb_call *call, row_f32 narrow, row_f64 wide, bool safe)
{
    lb_frame frame = lb_frame_begin(call);
    rows rows;
    if (rows_of(&frame, lb_frame_arg_int(call, 1, -1), false, &rows)) {
        lb_dtype dtype = call->results[0].dtype;
        row_kind kind = {call->method, safe, rows.across, dtype == LB_BF16 || dtype == LB_F16 ? dtype : LB_NO_DTYPE,
                         lb_frame_twin_scale(call, 0)};
        int64_t n = rows.size;
#pragma omp parallel for schedule(static) if (rows.count * n > PARALLEL_ELEMENTS)
        for (int64_t i = 0; i < rows.count; i++) {
            if (frame.wide)
                wide(&kind, (const double *)rows.a + i * n, (double *)rows.y + i * n, n);
            else
                narrow(&kind, (const float *)rows.a + i * n, (float *)rows.y + i * n, n);
        }
    }
    return lb_frame_end(&frame);
}

static lb_status each_row_backward(lb_call *call, row2_f32 narrow, row2_f64 wide)
{
    lb_frame frame = lb_frame_begin(call);
    rows rows;
    if (rows_of(&frame, lb_frame_arg_int(call, 2, -1), true, &rows)) {
        const lb_dtype dtype = lb_frame_arg_tensor(call, 0)->dtype;
        const bool narrow_products = call->cuda && lb_dtype_bits(dtype) == 16;
        const row_kind kind = {.method = call->method,
                               .rounds = narrow_products && call->results[0].dtype == dtype ? dtype : LB_NO_DTYPE,
                               .scale = narrow_products ? lb_frame_twin_rounding(call, 0) : 0,
                               .grain =
                                   narrow_products ? lb_dtype_min_subnormal(dtype) / lb_dtype_unit_roundoff(dtype) : 0};
        int64_t n = rows.size;
#pragma omp parallel for schedule(static) if (rows.count * n > PARALLEL_ELEMENTS)
        for (int64_t i = 0; i < rows.count; i++) {
            if (frame.wide)
                wide(&kind, (const double *)rows.a + i * n, (const double *)rows.b + i * n, (double *)rows.y + i * n,
                     n);
            else
                narrow(&kind, (const float *)rows.a + i * n, (const float *)rows.b + i * n, (float *)rows.y + i * n, n);
        }
    }
    return lb_frame_end(&frame);
}

/* ---- twins ------------------------------------------------------------------------------------------------------- */

/* y_i (1 + |x_i - max|) + y_i sum_k y_k (1 + |x_k - max|) */
static void twin_softmax(const row_kind *kind, const double *x, double *y, int64_t n)
{
    double top = row_max_f64(x, n), weighted = 0;
    row_softmax_f64(kind, x, y, n);
    for (int64_t i = 0; i < n; i++)
        if (y[i] > 0) weighted += y[i] * (1 + fabs(x[i] - top));
    double scale = kind->across ? kind->scale : 1;
    for (int64_t i = 0; i < n; i++) y[i] = y[i] > 0 ? y[i] * (1 + fabs(x[i] - top) + weighted) * scale : y[i];
}

/* |x_i - max| + log sum + the relative error of the sum */
static void twin_log_softmax(const row_kind *kind, const double *x, double *y, int64_t n)
{
    double top = row_max_f64(x, n), sum = row_exp_f64(&kind->method, x, y, n, top), weighted = 0;
    for (int64_t i = 0; i < n; i++)
        if (y[i] > 0) weighted += y[i] * (1 + fabs(x[i] - top));
    double rest = (1 + fabs(log(sum))) * (kind->across ? 1 : kind->scale) + weighted / sum;
    for (int64_t i = 0; i < n; i++) y[i] = fabs(x[i] - top) + rest;
}

/* `scale` more of each product where that is rounded to 16 bits. */
static void twin_softmax_backward(const row_kind *kind, const double *g, const double *y, double *d, int64_t n)
{
    double sum = 0, rounded = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += fabs(g[i] * y[i]);
        rounded += kind->scale * (fabs(g[i] * y[i]) + kind->grain);
    }
    for (int64_t i = 0; i < n; i++)
        d[i] = fabs(y[i]) * (fabs(g[i]) * (1 + kind->scale) + sum + rounded) + kind->scale * kind->grain;
}

static void twin_log_softmax_backward(const row_kind *kind, const double *g, const double *y, double *d, int64_t n)
{
    double sum = 0;
    (void)kind;
    for (int64_t i = 0; i < n; i++) sum += fabs(g[i]);
    for (int64_t i = 0; i < n; i++) d[i] = fabs(g[i]) + exp(y[i]) * sum;
}

/* A twin always runs in f64. */
#define ROWS(ID, LOOP, SAFE)                                                                                           \
    LB_WITH_TWIN(ID, each_row(call, row_##LOOP##_f32, twin ? twin_##LOOP : row_##LOOP##_f64, SAFE))
#define ROWS_BACKWARD(ID) LB_WITH_TWIN(ID, each_row_backward(call, row_##ID##_f32, twin ? twin_##ID : row_##ID##_f64))
ROWS(softmax, softmax, false)
ROWS(safe_softmax, softmax, true)
ROWS(log_softmax, log_softmax, false)
ROWS_BACKWARD(softmax_backward)
ROWS_BACKWARD(log_softmax_backward)

/* ---- negative log likelihood ------------------------------------------------------------------------------------- */

enum reduction { REDUCE_NONE = 0, REDUCE_MEAN = 1, REDUCE_SUM = 2 };

/* (N, C, S): S is the product of spatial sizes, 1 for nll_loss. */
typedef struct loss_shape {
    int64_t samples, classes, spatial;
} loss_shape;

static loss_shape loss_shape_of(const lb_tensor *scores)
{
    const lb_layout *layout = &scores->layout;
    loss_shape loss_shape = {1, 1, 1};
    if (layout->ndim == 1) loss_shape.classes = layout->shape[0];
    if (layout->ndim >= 2) loss_shape.samples = layout->shape[0], loss_shape.classes = layout->shape[1];
    for (int dim = 2; dim < layout->ndim; dim++) loss_shape.spatial *= layout->shape[dim];
    return loss_shape;
}

/* One operation's rounding: to the frame's type, and to the loss's own dtype where that has 16 bits. */
static double rounded(const lb_frame *frame, double x, lb_dtype dtype)
{
    if (!frame->wide) x = (float)x;
    if (dtype != LB_BF16 && dtype != LB_F16) return x;
    lb_round_to_grid_f64(&x, 1, dtype, NULL);
    return x;
}

/* torch's eight levels of partial sums (LossNLL.cpp); both sums in the dtype of the scores. */
#define LEVELS 8
typedef struct partial_sums {
    double loss[LEVELS], weight[LEVELS];
} partial_sums;

static int level_power(int64_t n)
{
    int log2 = n <= 2 ? 1 : 64 - __builtin_clzll((uint64_t)(n - 1));
    return log2 / LEVELS > 4 ? log2 / LEVELS : 4;
}

static void flush(const lb_frame *frame, partial_sums *partial_sums, int64_t i, int power, lb_dtype dtype)
{
    int64_t mask = ((int64_t)1 << power) - 1;
    for (int j = 0; j + 1 < LEVELS && !(i & mask << (j * power)); j++) {
        partial_sums->weight[j + 1] = rounded(frame, partial_sums->weight[j + 1] + partial_sums->weight[j], dtype);
        partial_sums->loss[j + 1] = rounded(frame, partial_sums->loss[j + 1] + partial_sums->loss[j], dtype);
        partial_sums->weight[j] = partial_sums->loss[j] = 0;
    }
}

static double total(const lb_frame *frame, const double *levels, lb_dtype dtype)
{
    double sum = 0;
    for (int j = 0; j < LEVELS; j++) sum = rounded(frame, sum + levels[j], dtype);
    return sum;
}

/* Args: self, target, weight, reduction, ignore_index. `twin`: absolute values, so that the sum is that of |terms|. */
static lb_status nll_forward(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *scores = lb_frame_arg_tensor(call, 0);
    loss_shape loss_shape = loss_shape_of(scores);
    const void *x = lb_frame_input(&frame, 0), *weight = lb_frame_input(&frame, 2);
    const int64_t *target = lb_frame_integers(&frame, lb_frame_arg_tensor(call, 1));
    int64_t reduction = lb_frame_arg_int(call, 3, REDUCE_MEAN), ignore = lb_frame_arg_int(call, 4, -100), ignored = 0;
    int64_t n = loss_shape.samples * loss_shape.spatial;
    bool each = reduction == REDUCE_NONE && scores->layout.ndim > 1;
    void *loss = lb_frame_output(&frame, 0, each ? n : 1), *sum = lb_frame_output(&frame, 1, 1);
    lb_dtype dtype = call->results[0].dtype;
    partial_sums partial_sums = {{0}, {0}};
    int power = level_power(n);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        int64_t t = target[i];
        if (each) lb_frame_set(&frame, loss, i, 0);
        if (t == ignore) {
            ignored++;
            continue;
        }
        if (t < 0 || t >= loss_shape.classes) {
            lb_frame_fail(&frame, LB_ERR_INVALID, "a target is not a class");
            break;
        }
        double w = weight ? lb_frame_get(&frame, weight, t) : 1;
        double score = lb_frame_get(
            &frame, x, (i / loss_shape.spatial * loss_shape.classes + t) * loss_shape.spatial + i % loss_shape.spatial);
        double term = weight ? rounded(&frame, score * w, dtype) : score;
        if (twin) term = -fabs(term);
        if (each) {
            lb_frame_set(&frame, loss, i, -term);
            continue;
        }
        partial_sums.loss[0] = rounded(&frame, partial_sums.loss[0] - term, dtype);
        if (weight) partial_sums.weight[0] = rounded(&frame, partial_sums.weight[0] + w, dtype);
        flush(&frame, &partial_sums, i, power, dtype);
    }
    if (lb_frame_ok(&frame)) {
        double weights =
            weight ? total(&frame, partial_sums.weight, dtype) : rounded(&frame, (double)(n - ignored), dtype);
        double value = total(&frame, partial_sums.loss, dtype);
        if (reduction == REDUCE_MEAN) value = rounded(&frame, value / weights, dtype);
        if (twin) value *= lb_frame_twin_scale(call, 0), weights *= lb_frame_twin_scale(call, 0);
        if (!each) lb_frame_set(&frame, loss, 0, value);
        lb_frame_set(&frame, sum, 0, each ? 0 : weights);
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(nll_loss_forward, nll_forward(call, twin))

/* Args: grad_output, self, target, weight, reduction, ignore_index, total_weight. */
static lb_status nll_backward(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *scores = lb_frame_arg_tensor(call, 1);
    loss_shape loss_shape = loss_shape_of(scores);
    const void *g = lb_frame_input(&frame, 0), *weight = lb_frame_input(&frame, 3), *sum = lb_frame_input(&frame, 6);
    const int64_t *target = lb_frame_integers(&frame, lb_frame_arg_tensor(call, 2));
    int64_t reduction = lb_frame_arg_int(call, 4, REDUCE_MEAN), ignore = lb_frame_arg_int(call, 5, -100);
    int64_t n = loss_shape.samples * loss_shape.spatial, elements = n * loss_shape.classes;
    bool each = reduction == REDUCE_NONE && scores->layout.ndim > 1;
    lb_dtype dtype = call->results[0].dtype;
    void *d = lb_frame_output(&frame, 0, elements);
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    memset(d, 0, (size_t)elements * (frame.wide ? 8 : 4));
    for (int64_t i = 0; i < n; i++) {
        int64_t t = target[i];
        if (t == ignore || t < 0 || t >= loss_shape.classes) continue;
        double grad = lb_frame_get(&frame, g, each ? i : 0);
        if (reduction == REDUCE_MEAN) grad = rounded(&frame, grad / lb_frame_get(&frame, sum, 0), dtype);
        if (weight) grad = rounded(&frame, grad * lb_frame_get(&frame, weight, t), dtype);
        if (twin) { /* the quotient is rounded to 16 bits, f16 also to its subnormals */
            grad = fabs(grad) * lb_frame_twin_scale(call, 1);
            if (scores->dtype == LB_F16) grad += weight ? fabs(lb_frame_get(&frame, weight, t)) : 1;
        }
        lb_frame_set(&frame, d,
                     (i / loss_shape.spatial * loss_shape.classes + t) * loss_shape.spatial + i % loss_shape.spatial,
                     twin ? grad : -grad);
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(nll_loss_backward, nll_backward(call, twin))

#define SUM LB_ROW_REDUCTION
#define SOFTMAX_ARGS "self! dim half_to_float"
#define NLL_ARGS "self! target! weight reduction ignore_index"
#define NLL_BACKWARD_ARGS "grad_output! self! target! weight reduction ignore_index total_weight!"
const lb_op_row lb_rows_softmax[] = {
    /* exp within an ulp (2 roundings), quotient; torch's exp_u20 and Sleef are within 1 ulp, too */
    {.name = "aten::_softmax",
     .args = SOFTMAX_ARGS,
     LB_COMPUTED_BY(softmax),
     LB_SUMS(5, LB_TERMS(DIMENSION, 1)),
     .flags = SUM,
     .samples = "softmax"},
    {.name = "aten::_safe_softmax",
     .args = "self! dim dtype",
     LB_COMPUTED_BY(safe_softmax),
     LB_SUMS(5, LB_TERMS(DIMENSION, 1)),
     .flags = SUM,
     .samples = "safe_softmax"},
    {.name = "aten::_log_softmax",
     .args = SOFTMAX_ARGS,
     LB_COMPUTED_BY(log_softmax),
     LB_SUMS(5, LB_TERMS(DIMENSION, 1)),
     .flags = SUM,
     .samples = "softmax"},
    {.name = "aten::_softmax_backward_data",
     .args = "grad_output! output! dim input_dtype",
     LB_COMPUTED_BY(softmax_backward),
     LB_SUMS(4, LB_TERMS(DIMENSION, 2)),
     .flags = SUM,
     .samples = "softmax_backward"},
    {.name = "aten::_log_softmax_backward_data",
     .args = "grad_output! output! dim input_dtype",
     LB_COMPUTED_BY(log_softmax_backward),
     LB_SUMS(5, LB_TERMS(DIMENSION, 2)),
     .flags = SUM,
     .samples = "log_softmax_backward"},
    {.name = "aten::nll_loss_forward",
     .args = NLL_ARGS,
     LB_COMPUTED_BY(nll_loss_forward),
     LB_SUMS(4, LB_TERMS(ELEMENTS, 1)),
     .flags = SUM,
     .samples = "nll_loss"},
    {.name = "aten::nll_loss2d_forward",
     .args = NLL_ARGS,
     LB_COMPUTED_BY(nll_loss_forward),
     LB_SUMS(4, LB_TERMS(ELEMENTS, 1)),
     .flags = SUM,
     .samples = "nll_loss2d"},
    {.name = "aten::nll_loss_backward",
     .args = NLL_BACKWARD_ARGS,
     LB_COMPUTED_BY(nll_loss_backward),
     .roundings = 3,
     .samples = "nll_loss_backward"},
    {.name = "aten::nll_loss2d_backward",
     .args = NLL_BACKWARD_ARGS,
     LB_COMPUTED_BY(nll_loss_backward),
     .roundings = 3,
     .samples = "nll_loss2d_backward"},
    {NULL},
};
