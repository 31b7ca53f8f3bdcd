/* Maximum pools with the indices they choose, their backwards, and rearrangements of image patches.
 *
 * A maximum starts at -inf and the window's first element; a later one must be greater, any NaN wins, the last of
 * several. Indices count elements of a plane, row-major. What several windows send back to one element is added in
 * order of the windows; twins count them, so that no term count is needed. */
#include "kernel/elements.h"
#include "kernel/frame.h"

#include <math.h>
#include <string.h>

#define SPACE 3

/* The last `dims` dimensions of input and output; missing ones in front have size 1. */
typedef struct window {
    int64_t in[SPACE], out[SPACE], kernel[SPACE], stride[SPACE], padding[SPACE], dilation[SPACE];
    bool adaptive;
    int64_t planes, pixels, places; /* of all leading dimensions; elements of a plane before and after */
} window;

static int64_t number_at(const lb_call *call, uint32_t arg, int own, int dims, int64_t otherwise)
{
    int64_t numbers[LB_MAX_DIMS];
    int n = lb_frame_arg_ints(call, arg, numbers, LB_MAX_DIMS);
    return own < 0 || n == 0 ? otherwise : numbers[n == dims ? own : 0];
}

/* Does every window of this dimension begin, padding left out, with an element of the input? Torch makes no others. */
static bool meets_elements(const window *window, int d)
{
    int64_t reach, last;
    if (window->in[d] < 1 || window->adaptive) return window->in[d] >= 1;
    if (window->kernel[d] < 1 || window->stride[d] < 1 || window->dilation[d] < 1 || window->padding[d] < 0)
        return false;
    if (__builtin_mul_overflow(window->kernel[d] - 1, window->dilation[d], &reach) ||
        __builtin_mul_overflow(window->out[d] - 1, window->stride[d], &last))
        return false;
    return reach >= window->padding[d] && last - window->padding[d] < window->in[d];
}

static bool same_planes(const lb_layout *in, const lb_layout *out, int dims)
{
    if (in->ndim < dims || out->ndim != in->ndim) return false;
    for (int d = 0; d < in->ndim - dims; d++)
        if (in->shape[d] != out->shape[d]) return false;
    return true;
}

/* `first`: position of kernel_size, stride, padding, dilation; 0: adaptive. */
static bool window_of(lb_frame *frame, const lb_layout *in, const lb_layout *out, int dims, uint32_t first,
                      window *begun)
{
    *begun = (window){.adaptive = !first, .planes = 1, .pixels = 1, .places = 1};
    if (!same_planes(in, out, dims)) {
        lb_frame_fail(frame, LB_ERR_INVALID,
                      "fewer dimensions than the pool has, or other planes before it than behind it");
        return false;
    }
    for (int d = 0; d < in->ndim - dims; d++) begun->planes *= in->shape[d];
    for (int d = 0; d < SPACE; d++) {
        int own = d - (SPACE - dims);
        begun->in[d] = own < 0 ? 1 : in->shape[in->ndim - dims + own],
        begun->out[d] = own < 0 ? 1 : out->shape[in->ndim - dims + own];
        begun->kernel[d] = first ? number_at(frame->call, first, own, dims, 1) : 1;
        begun->stride[d] = first ? number_at(frame->call, first + 1, own, dims, begun->kernel[d]) : 1;
        begun->padding[d] = first ? number_at(frame->call, first + 2, own, dims, 0) : 0;
        begun->dilation[d] = first ? number_at(frame->call, first + 3, own, dims, 1) : 1;
        begun->pixels *= begun->in[d], begun->places *= begun->out[d];
        if (begun->out[d] && begun->planes && !meets_elements(begun, d))
            lb_frame_fail(frame, LB_ERR_INVALID, "a window of the pool has no element of its input");
    }
    return lb_frame_ok(frame);
}

/* Positions along dimension d that output o looks at: from, from + dilation, … below end. */
static void span(const window *window, int d, int64_t o, int64_t *from, int64_t *end)
{
    if (window->adaptive) {
        *from = o * window->in[d] / window->out[d],
        *end = ((o + 1) * window->in[d] + window->out[d] - 1) / window->out[d];
        return;
    }
    *from = o * window->stride[d] - window->padding[d],
    *end = *from + (window->kernel[d] - 1) * window->dilation[d] + 1;
    if (*end > window->in[d]) *end = window->in[d];
    while (*from < 0) *from += window->dilation[d];
}

/* The element of a plane (which starts at `base`) that output `o` takes. */
static int64_t choose(const lb_frame *frame, const window *window, const void *x, int64_t base, int64_t o)
{
    int64_t at[SPACE] = {o / (window->out[1] * window->out[2]), o / window->out[2] % window->out[1],
                         o % window->out[2]},
            from[SPACE], end[SPACE];
    for (int d = 0; d < SPACE; d++) span(window, d, at[d], &from[d], &end[d]);
    int64_t best = (from[0] * window->in[1] + from[1]) * window->in[2] + from[2];
    double top = -INFINITY;
    for (int64_t p = from[0]; p < end[0]; p += window->dilation[0])
        for (int64_t q = from[1]; q < end[1]; q += window->dilation[1])
            for (int64_t r = from[2]; r < end[2]; r += window->dilation[2]) {
                int64_t i = (p * window->in[1] + q) * window->in[2] + r;
                double v = lb_frame_get(frame, x, base + i);
                if (v > top || v != v) top = v, best = i;
            }
    return best;
}

static lb_status maximum(lb_call *call, int dims, uint32_t first)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *in = lb_frame_arg_tensor(call, 0), *out = &call->results[0];
    window window;
    if (!window_of(&frame, &in->layout, &out->layout, dims, first, &window)) return lb_frame_end(&frame);
    const void *x = lb_frame_tensor(&frame, in), *raw = lb_frame_bytes(&frame, in);
    int64_t n = window.planes * window.places;
    void *y = lb_frame_output_bytes(&frame, 0);
    int64_t *indices = lb_frame_output_integers(&frame, 1, n);
    const lb_elements move = lb_elements_of(out->dtype, in->dtype, call->method.cast);
    bool wanted = out->data != NULL;
#pragma omp parallel for schedule(static) if (n > 16384)
    for (int64_t i = 0; i < n; i++) {
        if (!lb_frame_ok(&frame)) continue;
        int64_t base = i / window.places * window.pixels, best = choose(&frame, &window, x, base, i % window.places);
        if (wanted) lb_elements_move(&move, y, i, raw, base + best, 1);
        indices[i] = best;
    }
    return lb_frame_end(&frame);
}

#define MAXIMUM(ID, DIMS, FIRST)                                                                                       \
    static lb_status ID(lb_call *call)                                                                                 \
    {                                                                                                                  \
        return maximum(call, DIMS, FIRST);                                                                             \
    }
MAXIMUM(max_pool1, 1, 1)
MAXIMUM(max_pool2, 2, 1)
MAXIMUM(max_pool3, 3, 1)
MAXIMUM(adaptive_max_pool1, 1, 0)
MAXIMUM(adaptive_max_pool2, 2, 0)
MAXIMUM(adaptive_max_pool3, 3, 0)

/* Args: grad_output, self, …; the indices stand at `indices`. */
static lb_status maximum_backward(lb_call *call, int dims, uint32_t indices, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *grad = lb_frame_arg_tensor(call, 0), *in = lb_frame_arg_tensor(call, 1);
    window window;
    if (!window_of(&frame, &in->layout, &grad->layout, dims, 0, &window)) return lb_frame_end(&frame);
    const void *dy = lb_frame_tensor(&frame, grad);
    const int64_t *index = lb_frame_integers(&frame, lb_frame_arg_tensor(call, indices));
    void *dx = lb_frame_output(&frame, 0, window.planes * window.pixels);
    double *meets = twin ? lb_frame_scratch(&frame, (size_t)(window.planes * window.pixels) * 8) : NULL;
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    memset(dx, 0, (size_t)(window.planes * window.pixels) * (frame.wide ? 8 : 4));
    if (meets) memset(meets, 0, (size_t)(window.planes * window.pixels) * 8);
    for (int64_t i = 0; i < window.planes * window.places; i++) {
        if (index[i] < 0 || index[i] >= window.pixels) {
            lb_frame_fail(&frame, LB_ERR_INVALID, "an index outside its plane");
            return lb_frame_end(&frame);
        }
        int64_t to = i / window.places * window.pixels + index[i];
        double g = lb_frame_get(&frame, dy, i);
        lb_frame_set(&frame, dx, to, lb_frame_get(&frame, dx, to) + (twin ? fabs(g) : g));
        if (!twin) lb_frame_round(&frame, (char *)dx + to * (frame.wide ? 8 : 4), 1, call->results[0].dtype);
        if (meets) meets[to]++;
    }
    for (int64_t i = 0; twin && i < window.planes * window.pixels; i++)
        ((double *)dx)[i] *= meets[i] * lb_frame_twin_scale(call, 0);
    return lb_frame_end(&frame);
}

#define BACKWARD(ID, DIMS, INDICES) LB_WITH_TWIN(ID, maximum_backward(call, DIMS, INDICES, twin))
BACKWARD(max_pool2_backward, 2, 7)
BACKWARD(max_pool3_backward, 3, 7)
BACKWARD(adaptive_backward2, 2, 2)
BACKWARD(adaptive_backward3, 3, 2)

/* ---- patches ----------------------------------------------------------------------------------------------------- */

typedef struct patches {
    int64_t samples, channels, size[2], kernel[2], dilation[2], padding[2], stride[2], count[2];
} patches;

/* Args from `first`: kernel_size, dilation, padding, stride. */
static bool patches_of(lb_frame *frame, const lb_layout *image, uint32_t first, patches *patches)
{
    int batched = image->ndim == 4;
    if (image->ndim != 3 && !batched) {
        lb_frame_fail(frame, LB_ERR_INVALID, "patches of other than images");
        return false;
    }
    patches->samples = batched ? image->shape[0] : 1, patches->channels = image->shape[batched];
    for (int d = 0; d < 2; d++) {
        patches->size[d] = image->shape[batched + 1 + d];
        patches->kernel[d] = number_at(frame->call, first, d, 2, 1),
        patches->dilation[d] = number_at(frame->call, first + 1, d, 2, 1);
        patches->padding[d] = number_at(frame->call, first + 2, d, 2, 0),
        patches->stride[d] = number_at(frame->call, first + 3, d, 2, 1);
        int64_t room = patches->size[d] + 2 * patches->padding[d] - patches->dilation[d] * (patches->kernel[d] - 1) - 1;
        if (patches->stride[d] < 1 || patches->kernel[d] < 1 || room < 0)
            lb_frame_fail(frame, LB_ERR_INVALID, "windows that do not fit");
        patches->count[d] = lb_frame_ok(frame) ? room / patches->stride[d] + 1 : 0;
    }
    return lb_frame_ok(frame);
}

/* Element `i` of the column tensor (samples, channels * kernel, places) as an element of the image, -1 in the
 * padding. */
static int64_t image_at(const patches *patches, int64_t i)
{
    int64_t places = patches->count[0] * patches->count[1], place = i % places, row = i / places;
    int64_t tap = row % (patches->kernel[0] * patches->kernel[1]),
            plane = row / (patches->kernel[0] * patches->kernel[1]);
    int64_t y = place / patches->count[1] * patches->stride[0] + tap / patches->kernel[1] * patches->dilation[0] -
                patches->padding[0];
    int64_t x = place % patches->count[1] * patches->stride[1] + tap % patches->kernel[1] * patches->dilation[1] -
                patches->padding[1];
    if (y < 0 || y >= patches->size[0] || x < 0 || x >= patches->size[1]) return -1;
    return (plane * patches->size[0] + y) * patches->size[1] + x;
}

static lb_status im2col(lb_call *call)
{
    lb_frame frame = lb_frame_begin(call);
    patches patches;
    if (!patches_of(&frame, &lb_frame_arg_tensor(call, 0)->layout, 1, &patches)) return lb_frame_end(&frame);
    const void *x = lb_frame_input(&frame, 0);
    int64_t n = patches.samples * patches.channels * patches.kernel[0] * patches.kernel[1] * patches.count[0] *
                patches.count[1];
    void *y = lb_frame_output(&frame, 0, n);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        int64_t from = image_at(&patches, i);
        lb_frame_set(&frame, y, i, from < 0 ? 0 : lb_frame_get(&frame, x, from));
    }
    return lb_frame_end(&frame);
}

/* Args: self, output_size, kernel_size, dilation, padding, stride. */
static lb_status col2im_run(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    patches patches;
    if (!patches_of(&frame, &call->results[0].layout, 2, &patches)) return lb_frame_end(&frame);
    const void *x = lb_frame_input(&frame, 0);
    int64_t n = patches.samples * patches.channels * patches.kernel[0] * patches.kernel[1] * patches.count[0] *
                patches.count[1];
    int64_t pixels = patches.samples * patches.channels * patches.size[0] * patches.size[1];
    void *y = lb_frame_output(&frame, 0, pixels);
    if (lb_frame_ok(&frame) && lb_tensor_numel(lb_frame_arg_tensor(call, 0)) != n)
        lb_frame_fail(&frame, LB_ERR_INVALID, "columns of another image");
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    memset(y, 0, (size_t)pixels * (frame.wide ? 8 : 4));
    for (int64_t i = 0; i < n; i++) {
        int64_t to = image_at(&patches, i);
        if (to < 0) continue;
        double v = lb_frame_get(&frame, x, i);
        lb_frame_set(
            &frame, y, to,
            lb_frame_get(&frame, y, to) +
                (twin ? fabs(v) * (double)(patches.kernel[0] * patches.kernel[1]) * lb_frame_twin_scale(call, 0) : v));
        if (!twin) lb_frame_round(&frame, (char *)y + to * (frame.wide ? 8 : 4), 1, call->results[0].dtype);
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(col2im, col2im_run(call, twin))

/* (…, C r², H, W) <-> (…, C, H r, W r): element i of the larger image comes from (goes to)… */
static lb_status shuffle(lb_call *call, bool apart)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *in = lb_frame_arg_tensor(call, 0), *out = &call->results[0];
    const lb_layout *large = apart ? &in->layout : &out->layout;
    int64_t r = lb_frame_arg_int(call, 1, 1), n = lb_tensor_numel(out);
    if (large->ndim < 3 || lb_tensor_numel(in) != n) lb_frame_fail(&frame, LB_ERR_INVALID, "no image");
    int64_t height = large->shape[large->ndim - 2], width = large->shape[large->ndim - 1];
    const void *x = lb_frame_bytes(&frame, in);
    void *y = lb_frame_output_bytes(&frame, 0);
    const lb_elements move = lb_elements_of(out->dtype, in->dtype, call->method.cast);
    for (int64_t i = 0; lb_frame_ok(&frame) && y && i < n; i++) {
        int64_t c = i / (height * width), h = i / width % height, w = i % width;
        int64_t small = (((c * r + h % r) * r + w % r) * (height / r) + h / r) * (width / r) + w / r;
        if (apart)
            lb_elements_move(&move, y, small, x, i, 1);
        else
            lb_elements_move(&move, y, i, x, small, 1);
    }
    return lb_frame_end(&frame);
}

static lb_status pixel_shuffle(lb_call *call)
{
    return shuffle(call, false);
}
static lb_status pixel_unshuffle(lb_call *call)
{
    return shuffle(call, true);
}

/* (N, g C/g, …) with the channels of the groups interleaved. */
static lb_status channel_shuffle(lb_call *call)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *in = lb_frame_arg_tensor(call, 0), *out = &call->results[0];
    int64_t groups = lb_frame_arg_int(call, 1, 1), channels = in->layout.ndim > 1 ? in->layout.shape[1] : 0, rest = 1;
    for (int d = 2; d < in->layout.ndim; d++) rest *= in->layout.shape[d];
    if (!channels || groups < 1 || channels % groups)
        lb_frame_fail(&frame, LB_ERR_INVALID, "groups do not divide the channels");
    const void *x = lb_frame_bytes(&frame, in);
    void *y = lb_frame_output_bytes(&frame, 0);
    const lb_elements move = lb_elements_of(out->dtype, in->dtype, call->method.cast);
    for (int64_t c = 0; lb_frame_ok(&frame) && y && rest && c < lb_tensor_numel(in) / rest; c++) {
        int64_t own = c % channels, from = own % groups * (channels / groups) + own / groups;
        lb_elements_move(&move, y, c * rest, x, (c - own + from) * rest, rest);
    }
    return lb_frame_end(&frame);
}

#define POOL "kernel_size stride padding dilation ceil_mode"
#define CHOSEN(NAME, ARGS, KERNEL, SAMPLES)                                                                            \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     .kernel = KERNEL,                                                                                                 \
     .flags = LB_ROW_EXACT | LB_ROW_DISCONTINUOUS,                                                                     \
     .samples = SAMPLES},
#define MOVED(NAME, ARGS, KERNEL, SAMPLES)                                                                             \
    {.name = "aten::" NAME, .args = ARGS, .kernel = KERNEL, .flags = LB_ROW_EXACT, .samples = SAMPLES},
#define ADDED(NAME, ARGS, KERNEL, SAMPLES)                                                                             \
    {.name = "aten::" NAME, .args = ARGS, LB_COMPUTED_BY(KERNEL), .roundings = 1, .samples = SAMPLES},

/* clang-format off */
const lb_op_row lb_rows_pool[] = {
    CHOSEN("max_pool2d_with_indices", "self! " POOL, max_pool2, "max_pool axes=2")
    CHOSEN("max_pool3d_with_indices", "self! " POOL, max_pool3, "max_pool axes=3")
    CHOSEN("max_pool1d_with_indices", "self! " POOL, max_pool1, "max_pool axes=1")
    MOVED("max_pool1d", "self! " POOL, max_pool1, "max_pool axes=1")
    MOVED("max_pool2d", "self! " POOL, max_pool2, "max_pool axes=2")
    MOVED("max_pool3d", "self! " POOL, max_pool3, "max_pool axes=3")
    CHOSEN("adaptive_max_pool1d", "self! output_size", adaptive_max_pool1, "max_pool axes=1 adaptive")
    CHOSEN("adaptive_max_pool2d", "self! output_size", adaptive_max_pool2, "max_pool axes=2 adaptive")
    CHOSEN("adaptive_max_pool3d", "self! output_size", adaptive_max_pool3, "max_pool axes=3 adaptive")
    ADDED("max_pool2d_with_indices_backward", "grad_output! self! " POOL " indices!", max_pool2_backward, "max_pool axes=2 backward")
    ADDED("max_pool3d_with_indices_backward", "grad_output! self! " POOL " indices!", max_pool3_backward, "max_pool axes=3 backward")
    ADDED("adaptive_max_pool2d_backward", "grad_output! self! indices!", adaptive_backward2, "max_pool axes=2 adaptive backward")
    ADDED("adaptive_max_pool3d_backward", "grad_output! self! indices!", adaptive_backward3, "max_pool axes=3 adaptive backward")
    MOVED("im2col", "self! kernel_size dilation padding stride", im2col, "im2col")
    ADDED("col2im", "self! output_size kernel_size dilation padding stride", col2im, "im2col back")
    MOVED("pixel_shuffle", "self! upscale_factor", pixel_shuffle, "pixel_shuffle")
    MOVED("pixel_unshuffle", "self! downscale_factor", pixel_unshuffle, "pixel_shuffle apart")
    MOVED("channel_shuffle", "self! groups", channel_shuffle, "channel_shuffle")
    MOVED("native_channel_shuffle", "self! groups", channel_shuffle, "channel_shuffle")
    {NULL}
};
