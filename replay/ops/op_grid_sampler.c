/* Sampling an image at given places, in two or three dimensions, and its backward.
 *
 *      place = (c + 1) / 2 (size - 1), or ((c + 1) size - 1) / 2, of a coordinate c from -1 to 1; outside: zeros, the
 *      border, or mirrored
 *      y = Σ over 2^axes neighbours of Π w v, w = 1 - |place - neighbour|, or the nearest neighbour's v
 *
 * A place is off by some ulps of the image's size, and so are weights: the twins have, beside the magnitudes summed,
 * that many magnitudes of the values around. Where a rounded place decides (the nearest neighbour, the slope between
 * two pixels) nothing is said. Gradients of the image are added up in any order. Bicubic samples and 16 bits, in which
 * versions of torch compute differently, are left to others. Source: pytorch/pytorch
 * aten/src/ATen/native/cuda/GridSampler.cuh, cudnn/GridSampler.cpp. */
#include "kernel/frame.h"

#include <math.h>
#include <string.h>

enum { AXES = 3, ROUNDINGS = 8 };
enum { LINEAR, NEAREST };
enum { ZEROS, BORDER, MIRRORED };
#define UNDETERMINED 0x1p128

/* Where the args stand; `modes` 0: cuDNN's op, which knows one way. */
typedef struct form {
    uint8_t image, grid, grad, modes, mask;
} form;

typedef struct sampler {
    lb_frame frame;
    int axes;
    int64_t samples, channels, size[AXES], pixels, points; /* size: depth, height, width; points: of one sample */
    int64_t mode, outside;
    bool corners, twin;
    double unit;
    const void *x, *grid;
} sampler;

/* One coordinate of a point. */
typedef struct place {
    double at, slope; /* in pixels; d at / d coordinate */
    double doubt;     /* what it may be off by, in roundoffs times ROUNDINGS */
    bool lost;        /* no finite place near the image */
    bool border;      /* rounding may bring it to the other side of a pixel */
} place;

static bool sampler_begin(sampler *begun, lb_call *call, const form *at, bool twin)
{
    const lb_tensor *x = lb_frame_arg_tensor(call, at->image), *grid = lb_frame_arg_tensor(call, at->grid);
    const lb_layout *in = &x->layout, *to = &grid->layout;
    *begun = (sampler){
        .frame = lb_frame_begin(call), .axes = in->ndim - 2, .twin = twin, .corners = true, .size = {1, 1, 1}};
    if (at->modes) {
        begun->mode = lb_frame_arg_int(call, at->modes, 0), begun->outside = lb_frame_arg_int(call, at->modes + 1u, 0);
        begun->corners = lb_frame_arg_int(call, at->modes + 2u, 0);
    }
    if ((begun->axes != 2 && begun->axes != 3) || to->ndim != in->ndim || to->shape[to->ndim - 1] != begun->axes ||
        to->shape[0] != in->shape[0])
        lb_frame_fail(&begun->frame, LB_ERR_INVALID, "a grid that does not belong to the image");
    else if (begun->mode > NEAREST || begun->outside > MIRRORED || lb_dtype_bits(x->dtype) == 16)
        lb_frame_fail(&begun->frame, LB_ERR_UNSUPPORTED, "bicubic samples, or images of 16 bits");
    if (!lb_frame_ok(&begun->frame)) return false;
    begun->samples = in->shape[0], begun->channels = in->shape[1], begun->pixels = begun->points = 1;
    for (int d = 0; d < begun->axes; d++) {
        begun->size[d + AXES - begun->axes] = in->shape[d + 2];
        begun->pixels *= in->shape[d + 2], begun->points *= to->shape[d + 1];
    }
    begun->unit = x->dtype == LB_F64 ? 0x1p-52 : 0x1p-24;
    begun->x = lb_frame_tensor(&begun->frame, x), begun->grid = lb_frame_tensor(&begun->frame, grid);
    return lb_frame_ok(&begun->frame) && begun->pixels > 0;
}

/* Mirrored at low and high until it lies between them. */
static double mirrored(double at, double low, double high, double *slope)
{
    const double span = high - low, from = fabs(at - low), extra = fmod(from, span);
    if (span <= 0) {
        *slope = 0;
        return 0;
    }
    const bool turned = fmod(floor(from / span), 2) != 0;
    *slope *= (at < low ? -1 : 1) * (turned ? -1 : 1);
    return turned ? high - extra : low + extra;
}

static bool near_step(double at, double step, double off)
{
    return fabs(at / step - rint(at / step)) * step <= off;
}

static place place_of(const sampler *sampler, int axis, double coordinate)
{
    const double size = (double)sampler->size[axis];
    place p = {.slope = sampler->corners ? (size - 1) / 2 : size / 2, .doubt = (fabs(coordinate) + 1) * (size + 1)};
    p.at = sampler->corners ? (coordinate + 1) / 2 * (size - 1) : ((coordinate + 1) * size - 1) / 2;
    const double off = ROUNDINGS * sampler->unit * p.doubt;
    p.border = sampler->mode == NEAREST ? near_step(p.at - 0.5, 1, off)
                                        : near_step(p.at, sampler->outside == MIRRORED ? 0.5 : 1, off);
    p.lost = !(fabs(p.at) < 1e9);
    if (p.lost) p.at = -10;
    if (sampler->outside == MIRRORED && !p.lost)
        p.at = sampler->corners ? mirrored(p.at, 0, size - 1, &p.slope) : mirrored(p.at, -0.5, size - 0.5, &p.slope);
    if (sampler->outside != ZEROS && (p.at <= 0 || p.at >= size - 1)) p.slope = 0, p.at = p.at <= 0 ? 0 : size - 1;
    return p;
}

/* A point's places, its first neighbour and the part of the way to the next; axes that the image lacks stand still. */
typedef struct spot {
    place place[AXES];
    int64_t first[AXES];
    double part[AXES], doubt;
    int count[AXES]; /* of neighbours: 2, or 1 */
    bool lost, border;
} spot;

static spot spot_of(const sampler *sampler, int64_t sample, int64_t point)
{
    spot q = {.count = {1, 1, 1}};
    for (int d = AXES - sampler->axes; d < AXES; d++) {
        const double coordinate = lb_frame_get(&sampler->frame, sampler->grid,
                                               (sample * sampler->points + point) * sampler->axes + AXES - 1 - d);
        const place place = place_of(sampler, d, coordinate);
        q.place[d] = place, q.lost |= place.lost, q.border |= place.border, q.doubt += place.doubt;
        q.first[d] = (int64_t)(sampler->mode == NEAREST ? rint(place.at) : floor(place.at));
        q.part[d] = place.at - (double)q.first[d], q.count[d] = sampler->mode == NEAREST ? 1 : 2;
    }
    return q;
}

/* Index of a pixel, -1 outside. */
static int64_t pixel(const sampler *sampler, const int64_t *at)
{
    int64_t index = 0;
    for (int d = 0; d < AXES; d++) {
        if (at[d] < 0 || at[d] >= sampler->size[d]) return -1;
        index = index * sampler->size[d] + at[d];
    }
    return index;
}

/* Calls for every pixel that the point reads, with its weight, whose derivative along `along` it is where that is an
 * axis. */
typedef void (*visitor)(void *context, int64_t pixel, double weight);

static void each_neighbour(const sampler *sampler, const spot *spot, int along, visitor visit, void *context)
{
    for (int64_t k = 0; k < (int64_t)spot->count[0] * spot->count[1] * spot->count[2]; k++) {
        const int64_t step[AXES] = {k / (spot->count[1] * spot->count[2]), k / spot->count[2] % spot->count[1],
                                    k % spot->count[2]};
        int64_t at[AXES];
        double weight = 1;
        for (int d = 0; d < AXES; d++) {
            at[d] = spot->first[d] + step[d];
            if (spot->count[d] > 1)
                weight *= d == along ? (step[d] ? 1 : -1) : step[d] ? spot->part[d] : 1 - spot->part[d];
        }
        const int64_t index = pixel(sampler, at);
        if (index >= 0) visit(context, index, weight);
    }
}

/* The same for every pixel that it might read were its places a little off. */
static void each_around(const sampler *sampler, const spot *spot, visitor visit, void *context)
{
    int64_t width[AXES], at[AXES];
    for (int d = 0; d < AXES; d++) width[d] = d < AXES - sampler->axes ? 1 : spot->count[d] + 2;
    for (int64_t k = 0; k < width[0] * width[1] * width[2]; k++) {
        const int64_t step[AXES] = {k / (width[1] * width[2]), k / width[2] % width[1], k % width[2]};
        for (int d = 0; d < AXES; d++) at[d] = spot->first[d] + step[d] - (width[d] > 1);
        const int64_t index = pixel(sampler, at);
        if (index >= 0) visit(context, index, 1);
    }
}

/* Sum of weighted values of one plane, of magnitudes for a twin. */
typedef struct gathered {
    const sampler *sampler;
    int64_t from;
    double sum;
} gathered;

static void gather(void *context, int64_t at, double weight)
{
    gathered *gathered = context;
    const double v = lb_frame_get(&gathered->sampler->frame, gathered->sampler->x, gathered->from + at) * weight;
    gathered->sum += gathered->sampler->twin ? fabs(v) : v;
}

static double gathered_of(const sampler *sampler, const spot *spot, int along, int64_t plane)
{
    gathered gathered = {sampler, plane * sampler->pixels, 0}, around = gathered;
    each_neighbour(sampler, spot, along, gather, &gathered);
    if (!sampler->twin) return gathered.sum;
    if (sampler->mode == LINEAR) each_around(sampler, spot, gather, &around);
    return spot->lost ? UNDETERMINED : gathered.sum + spot->doubt * around.sum;
}

static lb_status forward_run(lb_call *call, const form *at, bool twin)
{
    sampler sampler;
    if (!sampler_begin(&sampler, call, at, twin)) return lb_frame_end(&sampler.frame);
    void *y = lb_frame_output(&sampler.frame, 0, sampler.samples * sampler.channels * sampler.points);
    for (int64_t i = 0; lb_frame_ok(&sampler.frame) && i < sampler.samples * sampler.points; i++) {
        const int64_t sample = i / sampler.points, point = i % sampler.points;
        const spot q = spot_of(&sampler, sample, point);
        for (int64_t c = 0; c < sampler.channels; c++) {
            const int64_t plane = sample * sampler.channels + c;
            const double value = gathered_of(&sampler, &q, -1, plane);
            const bool decided = !twin || sampler.mode == LINEAR || !q.border;
            lb_frame_set(&sampler.frame, y, plane * sampler.points + point, decided ? value : UNDETERMINED);
        }
    }
    return lb_frame_end(&sampler.frame);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Gradients of the image's plane that a point adds to: sums, in f64, and how many terms each has. */
typedef struct scattered {
    double *sum, *terms;
    double grad, count;
    bool twin;
} scattered;

static void scatter(void *context, int64_t at, double weight)
{
    scattered *to = context;
    to->sum[at] += to->twin ? fabs(weight) * fabs(to->grad) : weight * to->grad;
    to->terms[at] += to->count;
}

/* The gradient of the grid is computed on every device, also where the mask says that it is not wanted. */
static bool wanted(const lb_call *call, const form *at, uint32_t r)
{
    int64_t mask[2] = {1, 1};
    if (at->mask) lb_frame_arg_ints(call, at->mask, mask, 2);
    return (mask[r] || r == 1) && r < call->n_results && call->results[r].data;
}

static void image_gradient(const sampler *sampler, const void *dy, int64_t plane, scattered *to, void *dx)
{
    memset(to->sum, 0, (size_t)sampler->pixels * 8), memset(to->terms, 0, (size_t)sampler->pixels * 8);
    bool lost = false;
    for (int64_t point = 0; point < sampler->points; point++) {
        const spot q = spot_of(sampler, plane / sampler->channels, point);
        const double grad = lb_frame_get(&sampler->frame, dy, plane * sampler->points + point);
        lost |= q.lost;
        to->grad = grad, to->count = 1;
        each_neighbour(sampler, &q, -1, scatter, to);
        if (!sampler->twin) continue;
        to->grad = sampler->mode == LINEAR ? grad * q.doubt : q.border ? UNDETERMINED : 0, to->count = 0;
        each_around(sampler, &q, scatter, to);
    }
    for (int64_t i = 0; i < sampler->pixels; i++) {
        const double size = lost ? UNDETERMINED : to->sum[i] * (1 + to->terms[i] / ROUNDINGS);
        lb_frame_set(&sampler->frame, dx, plane * sampler->pixels + i, sampler->twin ? size : to->sum[i]);
    }
}

/* Of the coordinates: over channels and neighbours, with the slope of the place. */
static void grid_gradient(const sampler *sampler, const void *dy, int64_t sample, int64_t point, void *dgrid)
{
    const spot q = spot_of(sampler, sample, point);
    for (int d = AXES - sampler->axes; d < AXES; d++) {
        double sum = 0;
        for (int64_t c = 0; sampler->mode == LINEAR && c < sampler->channels; c++) {
            const int64_t plane = sample * sampler->channels + c;
            const double grad = lb_frame_get(&sampler->frame, dy, plane * sampler->points + point);
            sum += (sampler->twin ? fabs(grad) : grad) * gathered_of(sampler, &q, d, plane);
        }
        sum *= sampler->twin ? fabs(q.place[d].slope) : q.place[d].slope;
        if (sampler->twin) sum *= 1 + (double)(sampler->channels << sampler->axes) / ROUNDINGS;
        if (sampler->twin && sampler->mode == LINEAR && (q.border || q.lost)) sum = UNDETERMINED;
        lb_frame_set(&sampler->frame, dgrid, (sample * sampler->points + point) * sampler->axes + AXES - 1 - d, sum);
    }
}

/* Results: gradients of the image and of the grid. */
static lb_status backward_run(lb_call *call, const form *at, bool twin)
{
    sampler sampler;
    if (!sampler_begin(&sampler, call, at, twin)) return lb_frame_end(&sampler.frame);
    lb_frame *frame = &sampler.frame;
    const lb_tensor *grad = lb_frame_arg_tensor(call, at->grad);
    if (lb_tensor_numel(grad) != sampler.samples * sampler.channels * sampler.points)
        lb_frame_fail(frame, LB_ERR_INVALID, "a gradient of another size than the samples");
    const void *dy = lb_frame_tensor(frame, grad);
    void *dx =
        wanted(call, at, 0) ? lb_frame_output(frame, 0, sampler.samples * sampler.channels * sampler.pixels) : NULL;
    void *dgrid =
        wanted(call, at, 1) ? lb_frame_output(frame, 1, sampler.samples * sampler.points * sampler.axes) : NULL;
    scattered to = {lb_frame_scratch(frame, (size_t)sampler.pixels * 8),
                    lb_frame_scratch(frame, (size_t)sampler.pixels * 8), 0, 0, twin};
    for (int64_t plane = 0; dx && lb_frame_ok(frame) && plane < sampler.samples * sampler.channels; plane++)
        image_gradient(&sampler, dy, plane, &to, dx);
    for (int64_t i = 0; dgrid && lb_frame_ok(frame) && i < sampler.samples * sampler.points; i++)
        grid_gradient(&sampler, dy, i / sampler.points, i % sampler.points, dgrid);
    return lb_frame_end(frame);
}

#define SAMPLER(ID, WAY, ...)                                                                                          \
    static const form ID##_form = {__VA_ARGS__};                                                                       \
    LB_WITH_TWIN(ID, WAY##_run(call, &ID##_form, twin))
SAMPLER(sampled, forward, .image = 0, .grid = 1, .modes = 2)
SAMPLER(sampled_cudnn, forward, .image = 0, .grid = 1)
SAMPLER(sampled_backward, backward, .image = 1, .grid = 2, .grad = 0, .modes = 3, .mask = 6)
SAMPLER(sampled_cudnn_backward, backward, .image = 0, .grid = 1, .grad = 2)

#define ROW(NAME, ARGS, ID, SAMPLES)                                                                                   \
    {.name = "aten::" NAME, .args = ARGS, LB_COMPUTED_BY(ID), .roundings = ROUNDINGS, .samples = SAMPLES}
#define MODES "interpolation_mode padding_mode align_corners"
const lb_op_row lb_rows_grid_sampler[] = {
    ROW("grid_sampler_2d", "input! grid! " MODES, sampled, "grid_sampler axes=2"),
    ROW("grid_sampler_3d", "input! grid! " MODES, sampled, "grid_sampler axes=3"),
    ROW("cudnn_grid_sampler", "self! grid!", sampled_cudnn, "grid_sampler axes=2 cudnn"),
    ROW("grid_sampler_2d_backward", "grad_output! input! grid! " MODES " output_mask", sampled_backward,
        "grid_sampler axes=2 backward"),
    ROW("grid_sampler_3d_backward", "grad_output! input! grid! " MODES " output_mask", sampled_backward,
        "grid_sampler axes=3 backward"),
    ROW("cudnn_grid_sampler_backward", "self! grid! grad_output!", sampled_cudnn_backward,
        "grid_sampler axes=2 cudnn backward"),
    {NULL},
};
