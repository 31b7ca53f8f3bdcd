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
static bool convolution_begin(convolution *c, lb_call *call, const lb_tensor *small, const lb_tensor *big,
                              const lb_tensor *weight, uint32_t first)
{
    c->frame = lb_frame_begin(call);
    int dims = weight->layout.ndim - 2;
    if (dims < 1 || dims > SPACE || small->layout.ndim != dims + 2 || big->layout.ndim != dims + 2) {
        lb_frame_fail(&c->frame, LB_ERR_UNSUPPORTED, "a convolution of other than one to three dimensions");
        return false;
    }
    space_arg(call, first, dims, 1, c->stride);
    space_arg(call, first + 1, dims, 0, c->padding);
    space_arg(call, first + 2, dims, 1, c->dilation);
    c->groups = lb_frame_arg_int(call, first + 5, 1);
    c->samples = small->layout.shape[0];
    c->taps = c->positions = c->pixels = 1;
    for (int d = 0; d < SPACE; d++) {
        int own = d - (SPACE - dims) + 2;
        c->kernel[d] = own < 2 ? 1 : weight->layout.shape[own];
        c->small_size[d] = own < 2 ? 1 : small->layout.shape[own];
        c->big_size[d] = own < 2 ? 1 : big->layout.shape[own];
        c->taps *= c->kernel[d], c->positions *= c->small_size[d], c->pixels *= c->big_size[d];
    }
    if (c->groups < 1 || small->layout.shape[1] % c->groups || big->layout.shape[1] % c->groups ||
        weight->layout.shape[0] != small->layout.shape[1] ||
        weight->layout.shape[1] != big->layout.shape[1] / c->groups)
        lb_frame_fail(&c->frame, LB_ERR_INVALID, "channels and groups do not match");
    if (!lb_frame_ok(&c->frame)) return false;
    c->small = small->layout.shape[1] / c->groups, c->big = big->layout.shape[1] / c->groups;
    return true;
}

/* Calls for each run of positions along the last dimension: col elements at..at+n belong to pixels from, from + stride,
 * …; what lies in the padding is skipped. */
typedef void (*run_visitor)(void *context, int64_t at, int64_t pixel, int64_t stride, int64_t n);

static void each_run(const convolution *c, run_visitor visit, void *context)
{
    const int64_t *k = c->kernel, *s = c->small_size, *b = c->big_size;
    for (int64_t tap = 0; tap < c->taps; tap++) {
        int64_t t[SPACE] = {tap / (k[1] * k[2]), tap / k[2] % k[1], tap % k[2]}, shift[SPACE];
        for (int d = 0; d < SPACE; d++) shift[d] = t[d] * c->dilation[d] - c->padding[d];
        int64_t first = shift[2] < 0 ? (-shift[2] + c->stride[2] - 1) / c->stride[2] : 0;
        int64_t last = b[2] - 1 - shift[2] < 0 ? -1 : (b[2] - 1 - shift[2]) / c->stride[2];
        if (last >= s[2]) last = s[2] - 1;
        for (int64_t row = 0; first <= last && row < s[0] * s[1]; row++) {
            int64_t x = row / s[1] * c->stride[0] + shift[0], y = row % s[1] * c->stride[1] + shift[1];
            if (x < 0 || x >= b[0] || y < 0 || y >= b[1]) continue;
            visit(context, tap * c->positions + row * s[2] + first,
                  (x * b[1] + y) * b[2] + first * c->stride[2] + shift[2], c->stride[2], last - first + 1);
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
    mover *m = context;
    for (int64_t i = 0; i < n; i++) {
        if (m->wide)
            ((double *)m->to)[at + i] = ((const double *)m->from)[pixel + i * stride];
        else
            ((float *)m->to)[at + i] = ((const float *)m->from)[pixel + i * stride];
    }
}

static void add_run(void *context, int64_t at, int64_t pixel, int64_t stride, int64_t n)
{
    mover *m = context;
    for (int64_t i = 0; i < n; i++) {
        if (m->wide)
            ((double *)m->to)[pixel + i * stride] += ((const double *)m->from)[at + i];
        else
            ((float *)m->to)[pixel + i * stride] += ((const float *)m->from)[at + i];
    }
}

static void columns_of(const convolution *c, const char *big, char *col)
{
    int64_t size = c->frame.wide ? 8 : 4, rows = c->taps * c->positions;
    memset(col, 0, (size_t)(c->big * rows * size));
    for (int64_t k = 0; k < c->big; k++) {
        mover m = {c->frame.wide, big + k * c->pixels * size, col + k * rows * size};
        each_run(c, fill_run, &m);
    }
}

static void image_of(const convolution *c, const char *col, char *big)
{
    int64_t size = c->frame.wide ? 8 : 4, rows = c->taps * c->positions;
    memset(big, 0, (size_t)(c->big * c->pixels * size));
    for (int64_t k = 0; k < c->big; k++) {
        mover m = {c->frame.wide, col + k * rows * size, big + k * c->pixels * size};
        each_run(c, add_run, &m);
    }
}

typedef struct images {
    char *small, *big, *weight, *part; /* part: room for one weight of a group */
    char *col;
} images;

static void product(convolution *c, lb_product s, const void *a, const void *b, void *out)
{
    if (lb_product_run(&s, c->frame.type, &c->frame.call->method, a, b, out) != LB_OK)
        lb_frame_fail(&c->frame, LB_ERR_NOMEM, "no memory for a product");
}

typedef enum task { GATHER, SCATTER, WEIGHT } task;

/* Group g of sample n. */
static void convolve(convolution *c, task what, const images *x, int64_t n, int64_t g)
{
    int64_t size = c->frame.wide ? 8 : 4, block = n * c->groups + g, inner = c->big * c->taps;
    char *small = x->small + block * c->small * c->positions * size, *big = x->big + block * c->big * c->pixels * size;
    char *weight = x->weight + g * c->small * inner * size;
    if (what == GATHER) {
        columns_of(c, big, x->col);
        product(c, (lb_product){.m = c->small, .n = c->positions, .k = inner}, weight, x->col, small);
    } else if (what == SCATTER) {
        product(c,
                (lb_product){.m = inner,
                             .n = c->positions,
                             .k = c->small,
                             .a_row = 1,
                             .a_column = inner,
                             .b_row = c->positions,
                             .b_column = 1},
                weight, small, x->col);
        image_of(c, x->col, big);
    } else {
        columns_of(c, big, x->col);
        product(c,
                (lb_product){.m = c->small,
                             .n = inner,
                             .k = c->positions,
                             .a_row = c->positions,
                             .a_column = 1,
                             .b_row = 1,
                             .b_column = c->positions},
                small, x->col, x->part);
        for (int64_t i = 0; i < c->small * inner; i++) {
            if (c->frame.wide)
                ((double *)weight)[i] += ((double *)x->part)[i];
            else
                ((float *)weight)[i] += ((float *)x->part)[i];
        }
    }
}

static void run(convolution *c, task what, images *x)
{
    x->col = lb_frame_reals(&c->frame, c->big * c->taps * c->positions);
    x->part = what == WEIGHT ? lb_frame_reals(&c->frame, c->small * c->big * c->taps) : NULL;
    for (int64_t n = 0; n < c->samples; n++)
        for (int64_t g = 0; lb_frame_ok(&c->frame) && g < c->groups; g++) convolve(c, what, x, n, g);
}

/* As reals, magnitudes for a twin. */
static char *reals(lb_frame *f, const lb_tensor *tensor, bool twin)
{
    const void *x = lb_frame_tensor(f, tensor);
    if (!twin || !x) return (char *)x;
    int64_t n = lb_tensor_numel(tensor);
    double *y = lb_frame_reals(f, n);
    for (int64_t i = 0; y && i < n; i++) y[i] = fabs(((const double *)x)[i]);
    return (char *)y;
}

/* Args: input, weight, bias, stride, padding, dilation, transposed, output_padding, groups. */
static lb_status forward(lb_call *call, bool twin)
{
    const lb_tensor *in = lb_frame_arg_tensor(call, 0), *weight = lb_frame_arg_tensor(call, 1),
                    *out = &call->results[0];
    bool transposed = lb_frame_arg_int(call, 6, 0);
    convolution c;
    if (!convolution_begin(&c, call, transposed ? in : out, transposed ? out : in, weight, 3))
        return lb_frame_end(&c.frame);
    lb_frame *f = &c.frame;
    images x = {.weight = reals(f, weight, twin)};
    char *from = reals(f, in, twin), *to = lb_frame_output(f, 0, lb_tensor_numel(out));
    const void *bias = lb_frame_arg_tensor(call, 2) ? reals(f, lb_frame_arg_tensor(call, 2), twin) : NULL;
    x.small = transposed ? from : to, x.big = transposed ? to : from;
    run(&c, transposed ? SCATTER : GATHER, &x);
    int64_t channels = out->layout.shape[1], size = transposed ? c.pixels : c.positions;
    for (int64_t i = 0; bias && lb_frame_ok(f) && i < c.samples * channels * size; i++) {
        if (f->wide)
            ((double *)to)[i] += ((const double *)bias)[i / size % channels];
        else
            ((float *)to)[i] += ((const float *)bias)[i / size % channels];
    }
    return lb_frame_end(f);
}

LB_WITH_TWIN(convolution_forward, forward(call, twin))

/* Some of torch's kernels fill gradients that output_mask does not ask for: what there is memory for is computed. */
static bool wanted(const lb_call *call, uint32_t r)
{
    return r < call->n_results && call->results[r].data && lb_tensor_numel(&call->results[r]) > 0;
}

/* The bias's gradient: over samples and positions of each channel, in the order of `schedule` per sample. */
static void bias_gradient(convolution *c, const char *dy, int64_t channels, int64_t positions, void *out)
{
    const lb_method *method = &c->frame.call->method;
    for (int64_t k = 0; k < channels; k++) {
        double wide = 0;
        float narrow = 0;
        for (int64_t n = 0; n < c->samples; n++) {
            int64_t at = (n * channels + k) * positions;
            if (c->frame.wide)
                wide += lb_schedule_sum_f64(method->schedule, (const double *)dy + at, positions, method->accumulate);
            else
                narrow += lb_schedule_sum_f32(method->schedule, (const float *)dy + at, positions, method->accumulate);
        }
        if (c->frame.wide)
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
    convolution c;
    if (!convolution_begin(&c, call, transposed ? in : grad, transposed ? grad : in, weight, 4))
        return lb_frame_end(&c.frame);
    lb_frame *f = &c.frame;
    if (!wanted(call, 0) && !wanted(call, 1) && !wanted(call, 2)) return lb_frame_end(f);
    char *dy = reals(f, grad, twin);
    if (wanted(call, 0)) {
        char *dx = lb_frame_output(f, 0, lb_tensor_numel(in));
        images x = {.weight = reals(f, weight, twin), .small = transposed ? dx : dy, .big = transposed ? dy : dx};
        run(&c, transposed ? GATHER : SCATTER, &x);
    }
    if (wanted(call, 1)) {
        char *input = reals(f, in, twin), *dw = lb_frame_output(f, 1, lb_tensor_numel(weight));
        images x = {.weight = dw, .small = transposed ? input : dy, .big = transposed ? dy : input};
        if (lb_frame_ok(f)) memset(dw, 0, (size_t)lb_tensor_numel(weight) * (f->wide ? 8 : 4));
        run(&c, WEIGHT, &x);
    }
    if (wanted(call, 2)) {
        int64_t channels = grad->layout.shape[1];
        void *db = lb_frame_output(f, 2, channels);
        if (lb_frame_ok(f)) bias_gradient(&c, dy, channels, transposed ? c.pixels : c.positions, db);
    }
    return lb_frame_end(f);
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
