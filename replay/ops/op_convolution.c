/* Convolutions in one to three dimensions, transposed ones too, and their backwards.
 *
 * Every form is one of three products between a small image S (whose positions the kernel visits), a big image B (which
 * the kernel covers) and the weight W (S channels, B channels of the group, kernel):
 *
 *      gather   S = W col(B)          forward; backward of a transposed one to its input
 *      scatter  B = image(W' S)       transposed forward; backward to the input
 *      weight   W = S col(B)'         backward to the weight, summed over samples
 *
 * col(B) has a row for each (channel, kernel element) and a column for each position. Sums are fma chains over
 * (channel, kernel element), over positions for the weight; image() adds kernel elements in order. The bias is added
 * last. */
#include "kernel/frame.h"
#include "kernel/product.h"
#include "orders/schedule.h"

#include <math.h>
#include <string.h>

#define SPACE 3

typedef struct convolution {
    lb_frame frame;
    int64_t samples, groups, small, big; /* channels per group */
    int64_t kernel[SPACE], stride[SPACE], padding[SPACE], dilation[SPACE], small_size[SPACE], big_size[SPACE];
    int64_t taps, positions, pixels; /* kernel elements; elements of one channel of S and of B */
} convolution;

/* List arg `i` of one number per dimension, or one for all; missing dimensions in front are `otherwise`. */
static void space_arg(const lb_call *call, uint32_t i, int dims, int64_t otherwise, int64_t *out)
{
    int64_t numbers[SPACE];
    int n = lb_frame_arg_ints(call, i, numbers, SPACE);
    for (int d = 0; d < SPACE; d++) {
        int own = d - (SPACE - dims);
        out[d] = own < 0 || !n ? otherwise : numbers[n == 1 ? 0 : own < n ? own : n - 1];
    }
}

/* Args from `first`: stride, padding, dilation, transposed, output_padding, groups. */
static bool convolution_begin(convolution *convolution, lb_call *call, const lb_tensor *small, const lb_tensor *big,
                              const lb_tensor *weight, uint32_t first)
{
    convolution->frame = lb_frame_begin(call);
    int dims = weight->layout.ndim - 2;
    if (dims < 1 || dims > SPACE || small->layout.ndim != dims + 2 || big->layout.ndim != dims + 2) {
        lb_frame_fail(&convolution->frame, LB_ERR_UNSUPPORTED, "a convolution of other than one to three dimensions");
        return false;
    }
    space_arg(call, first, dims, 1, convolution->stride);
    space_arg(call, first + 1, dims, 0, convolution->padding);
    space_arg(call, first + 2, dims, 1, convolution->dilation);
    convolution->groups = lb_frame_arg_int(call, first + 5, 1);
    convolution->samples = small->layout.shape[0];
    convolution->taps = convolution->positions = convolution->pixels = 1;
    for (int d = 0; d < SPACE; d++) {
        int own = d - (SPACE - dims) + 2;
        convolution->kernel[d] = own < 2 ? 1 : weight->layout.shape[own];
        convolution->small_size[d] = own < 2 ? 1 : small->layout.shape[own];
        convolution->big_size[d] = own < 2 ? 1 : big->layout.shape[own];
        convolution->taps *= convolution->kernel[d], convolution->positions *= convolution->small_size[d],
            convolution->pixels *= convolution->big_size[d];
    }
    if (convolution->groups < 1 || small->layout.shape[1] % convolution->groups ||
        big->layout.shape[1] % convolution->groups || weight->layout.shape[0] != small->layout.shape[1] ||
        weight->layout.shape[1] != big->layout.shape[1] / convolution->groups)
        lb_frame_fail(&convolution->frame, LB_ERR_INVALID, "channels and groups do not match");
    if (!lb_frame_ok(&convolution->frame)) return false;
    convolution->small = small->layout.shape[1] / convolution->groups,
    convolution->big = big->layout.shape[1] / convolution->groups;
    return true;
}

/* Calls for each run of positions along the last dimension: col elements at..at+n belong to pixels from, from + stride,
 * …; what lies in the padding is skipped. */
typedef void (*run_visitor)(void *context, int64_t at, int64_t pixel, int64_t stride, int64_t n);

static void each_run(const convolution *convolution, run_visitor visit, void *context)
{
    const int64_t *k = convolution->kernel, *small = convolution->small_size, *b = convolution->big_size;
    for (int64_t tap = 0; tap < convolution->taps; tap++) {
        int64_t t[SPACE] = {tap / (k[1] * k[2]), tap / k[2] % k[1], tap % k[2]}, shift[SPACE];
        for (int d = 0; d < SPACE; d++) shift[d] = t[d] * convolution->dilation[d] - convolution->padding[d];
        int64_t first = shift[2] < 0 ? (-shift[2] + convolution->stride[2] - 1) / convolution->stride[2] : 0;
        int64_t last = b[2] - 1 - shift[2] < 0 ? -1 : (b[2] - 1 - shift[2]) / convolution->stride[2];
        if (last >= small[2]) last = small[2] - 1;
        for (int64_t row = 0; first <= last && row < small[0] * small[1]; row++) {
            int64_t x = row / small[1] * convolution->stride[0] + shift[0],
                    y = row % small[1] * convolution->stride[1] + shift[1];
            if (x < 0 || x >= b[0] || y < 0 || y >= b[1]) continue;
            visit(context, tap * convolution->positions + row * small[2] + first,
                  (x * b[1] + y) * b[2] + first * convolution->stride[2] + shift[2], convolution->stride[2],
                  last - first + 1);
        }
    }
}

typedef struct mover {
    bool wide;
    const void *from;
    void *to;
} mover;

static void fill_run(void *context, int64_t at, int64_t pixel, int64_t stride, int64_t n)
{
    mover *mover = context;
    for (int64_t i = 0; i < n; i++) {
        if (mover->wide)
            ((double *)mover->to)[at + i] = ((const double *)mover->from)[pixel + i * stride];
        else
            ((float *)mover->to)[at + i] = ((const float *)mover->from)[pixel + i * stride];
    }
}

static void add_run(void *context, int64_t at, int64_t pixel, int64_t stride, int64_t n)
{
    mover *mover = context;
    for (int64_t i = 0; i < n; i++) {
        if (mover->wide)
            ((double *)mover->to)[pixel + i * stride] += ((const double *)mover->from)[at + i];
        else
            ((float *)mover->to)[pixel + i * stride] += ((const float *)mover->from)[at + i];
    }
}

static void columns_of(const convolution *convolution, const char *big, char *col)
{
    int64_t size = convolution->frame.wide ? 8 : 4, rows = convolution->taps * convolution->positions;
    memset(col, 0, (size_t)(convolution->big * rows * size));
    for (int64_t k = 0; k < convolution->big; k++) {
        mover mover = {convolution->frame.wide, big + k * convolution->pixels * size, col + k * rows * size};
        each_run(convolution, fill_run, &mover);
    }
}

static void image_of(const convolution *convolution, const char *col, char *big)
{
    int64_t size = convolution->frame.wide ? 8 : 4, rows = convolution->taps * convolution->positions;
    memset(big, 0, (size_t)(convolution->big * convolution->pixels * size));
    for (int64_t k = 0; k < convolution->big; k++) {
        mover mover = {convolution->frame.wide, col + k * rows * size, big + k * convolution->pixels * size};
        each_run(convolution, add_run, &mover);
    }
}

typedef struct images {
    char *small, *big, *weight, *part; /* part: room for one weight of a group */
    char *col;
} images;

static void product(convolution *convolution, lb_product product, const void *a, const void *b, void *out)
{
    if (lb_product_run(&product, convolution->frame.type, &convolution->frame.call->method, a, b, out) != LB_OK)
        lb_frame_fail(&convolution->frame, LB_ERR_NOMEM, "no memory for a product");
}

typedef enum task { GATHER, SCATTER, WEIGHT } task;

/* Group g of sample n. */
static void convolve(convolution *convolution, task what, const images *images, int64_t n, int64_t group)
{
    int64_t size = convolution->frame.wide ? 8 : 4, block = n * convolution->groups + group,
            inner = convolution->big * convolution->taps;
    char *small = images->small + block * convolution->small * convolution->positions * size,
         *big = images->big + block * convolution->big * convolution->pixels * size;
    char *weight = images->weight + group * convolution->small * inner * size;
    if (what == GATHER) {
        columns_of(convolution, big, images->col);
        product(convolution, (lb_product){.m = convolution->small, .n = convolution->positions, .k = inner}, weight,
                images->col, small);
    } else if (what == SCATTER) {
        product(convolution,
                (lb_product){.m = inner,
                             .n = convolution->positions,
                             .k = convolution->small,
                             .a_row = 1,
                             .a_column = inner,
                             .b_row = convolution->positions,
                             .b_column = 1},
                weight, small, images->col);
        image_of(convolution, images->col, big);
    } else {
        columns_of(convolution, big, images->col);
        product(convolution,
                (lb_product){.m = convolution->small,
                             .n = inner,
                             .k = convolution->positions,
                             .a_row = convolution->positions,
                             .a_column = 1,
                             .b_row = 1,
                             .b_column = convolution->positions},
                small, images->col, images->part);
        for (int64_t i = 0; i < convolution->small * inner; i++) {
            if (convolution->frame.wide)
                ((double *)weight)[i] += ((double *)images->part)[i];
            else
                ((float *)weight)[i] += ((float *)images->part)[i];
        }
    }
}

static void run(convolution *convolution, task what, images *images)
{
    images->col = lb_frame_reals(&convolution->frame, convolution->big * convolution->taps * convolution->positions);
    images->part = what == WEIGHT
                       ? lb_frame_reals(&convolution->frame, convolution->small * convolution->big * convolution->taps)
                       : NULL;
    for (int64_t n = 0; n < convolution->samples; n++)
        for (int64_t group = 0; lb_frame_ok(&convolution->frame) && group < convolution->groups; group++)
            convolve(convolution, what, images, n, group);
}

/* As reals, magnitudes for a twin. */
static char *reals(lb_frame *frame, const lb_tensor *tensor, bool twin)
{
    const void *x = lb_frame_tensor(frame, tensor);
    if (!twin || !x) return (char *)x;
    int64_t n = lb_tensor_numel(tensor);
    double *y = lb_frame_reals(frame, n);
    for (int64_t i = 0; y && i < n; i++) y[i] = fabs(((const double *)x)[i]);
    return (char *)y;
}

/* Args: input, weight, bias, stride, padding, dilation, transposed, output_padding, groups. */
static lb_status forward(lb_call *call, bool twin)
{
    const lb_tensor *in = lb_frame_arg_tensor(call, 0), *weight = lb_frame_arg_tensor(call, 1),
                    *out = &call->results[0];
    bool transposed = lb_frame_arg_int(call, 6, 0);
    convolution convolution;
    if (!convolution_begin(&convolution, call, transposed ? in : out, transposed ? out : in, weight, 3))
        return lb_frame_end(&convolution.frame);
    lb_frame *frame = &convolution.frame;
    images images = {.weight = reals(frame, weight, twin)};
    char *from = reals(frame, in, twin), *to = lb_frame_output(frame, 0, lb_tensor_numel(out));
    const void *bias = lb_frame_arg_tensor(call, 2) ? reals(frame, lb_frame_arg_tensor(call, 2), twin) : NULL;
    images.small = transposed ? from : to, images.big = transposed ? to : from;
    run(&convolution, transposed ? SCATTER : GATHER, &images);
    int64_t channels = out->layout.shape[1], size = transposed ? convolution.pixels : convolution.positions;
    for (int64_t i = 0; bias && lb_frame_ok(frame) && i < convolution.samples * channels * size; i++) {
        if (frame->wide)
            ((double *)to)[i] += ((const double *)bias)[i / size % channels];
        else
            ((float *)to)[i] += ((const float *)bias)[i / size % channels];
    }
    return lb_frame_end(frame);
}

LB_WITH_TWIN(convolution_forward, forward(call, twin))

/* Some of torch's kernels fill gradients that output_mask does not ask for: what there is memory for is computed. */
static bool wanted(const lb_call *call, uint32_t r)
{
    return r < call->n_results && call->results[r].data && lb_tensor_numel(&call->results[r]) > 0;
}

/* The bias's gradient: over samples and positions of each channel, in the order of `schedule` per sample. */
static void bias_gradient(convolution *convolution, const char *dy, int64_t channels, int64_t positions, void *out)
{
    const lb_method *method = &convolution->frame.call->method;
    for (int64_t k = 0; k < channels; k++) {
        double wide = 0;
        float narrow = 0;
        for (int64_t n = 0; n < convolution->samples; n++) {
            int64_t at = (n * channels + k) * positions;
            if (convolution->frame.wide)
                wide += lb_schedule_sum_f64(method->schedule, (const double *)dy + at, positions, method->accumulate);
            else
                narrow += lb_schedule_sum_f32(method->schedule, (const float *)dy + at, positions, method->accumulate);
        }
        if (convolution->frame.wide)
            ((double *)out)[k] = wide;
        else
            ((float *)out)[k] = narrow;
    }
}

/* Args: grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
 * output_mask. */
static lb_status backward(lb_call *call, bool twin)
{
    const lb_tensor *grad = lb_frame_arg_tensor(call, 0), *in = lb_frame_arg_tensor(call, 1),
                    *weight = lb_frame_arg_tensor(call, 2);
    bool transposed = lb_frame_arg_int(call, 7, 0);
    convolution convolution;
    if (!convolution_begin(&convolution, call, transposed ? in : grad, transposed ? grad : in, weight, 4))
        return lb_frame_end(&convolution.frame);
    lb_frame *frame = &convolution.frame;
    if (!wanted(call, 0) && !wanted(call, 1) && !wanted(call, 2)) return lb_frame_end(frame);
    char *dy = reals(frame, grad, twin);
    if (wanted(call, 0)) {
        char *dx = lb_frame_output(frame, 0, lb_tensor_numel(in));
        images images = {
            .weight = reals(frame, weight, twin), .small = transposed ? dx : dy, .big = transposed ? dy : dx};
        run(&convolution, transposed ? GATHER : SCATTER, &images);
    }
    if (wanted(call, 1)) {
        char *input = reals(frame, in, twin), *dw = lb_frame_output(frame, 1, lb_tensor_numel(weight));
        images images = {.weight = dw, .small = transposed ? input : dy, .big = transposed ? dy : input};
        if (lb_frame_ok(frame)) memset(dw, 0, (size_t)lb_tensor_numel(weight) * (frame->wide ? 8 : 4));
        run(&convolution, WEIGHT, &images);
    }
    if (wanted(call, 2)) {
        int64_t channels = grad->layout.shape[1];
        void *db = lb_frame_output(frame, 2, channels);
        if (lb_frame_ok(frame))
            bias_gradient(&convolution, dy, channels, transposed ? convolution.pixels : convolution.positions, db);
    }
    return lb_frame_end(frame);
}

LB_WITH_TWIN(convolution_backward, backward(call, twin))

#define PLACES "stride padding dilation transposed output_padding groups"
#define CONV(NAME, ARGS, KERNEL, ROUNDINGS, TERMS, SAMPLES)                                                            \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(KERNEL),                                                                                           \
     LB_SUMS(ROUNDINGS, TERMS),                                                                                        \
     .flags = LB_ROW_REDUCTION | LB_ROW_CONVOLUTION,                                                                   \
     .kernels = "openblas",                                                                                            \
     .samples = SAMPLES}
const lb_op_row lb_rows_convolution[] = {
    CONV("convolution", "input! weight! bias " PLACES, convolution_forward, 2, LB_TERMS(CONVOLUTION, 1), "convolution"),
    CONV("_convolution", "input! weight! bias " PLACES " benchmark deterministic cudnn_enabled allow_tf32",
         convolution_forward, 2, LB_TERMS(CONVOLUTION, 1), "convolution whole"),
    CONV("convolution_backward", "grad_output! input! weight! bias_sizes " PLACES " output_mask", convolution_backward,
         4, LB_TERMS(KERNEL, 2), "convolution_backward"),
    {NULL},
};
