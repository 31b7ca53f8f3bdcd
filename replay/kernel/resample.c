/* Axes of resampling ops; see resample.h. Positions follow torch's definitions: pixel centres unless corners are
 * aligned, in the precision of the elements (f32 for all but f64), so that nearest neighbours are the same ones. */
#include "kernel/resample.h"

#include <math.h>

/* Rounds to f32 unless positions are computed in f64. */
static double step(const lb_resample_axis_plan *plan, double x)
{
    return plan->wide ? x : (float)x;
}

/* Input pixels per output pixel. */
static double scale_of(const lb_resample_axis_plan *plan)
{
    if (plan->align_corners) return plan->out > 1 ? step(plan, (double)(plan->in - 1) / (double)(plan->out - 1)) : 0;
    return step(plan, plan->factor > 0 ? 1 / plan->factor : plan->out ? (double)plan->in / (double)plan->out : 0);
}

static int64_t clamp(int64_t i, int64_t size)
{
    return i < 0 ? 0 : i >= size ? size - 1 : i;
}

/* Where output `o` lies in the input. */
static double source(const lb_resample_axis_plan *plan, double scale, int64_t place, bool cubic)
{
    if (plan->align_corners) return step(plan, scale * (double)place);
    double x = step(plan, step(plan, scale * ((double)place + 0.5)) - 0.5);
    return x < 0 && !cubic ? 0 : x;
}

static void tap(lb_resample_axis *axis, int64_t place, int64_t at, double weight, double spread)
{
    int64_t k = place * axis->most + axis->count[place]++;
    axis->at[k] = at, axis->weight[k] = weight, axis->spread[k] = spread;
}

static void one_tap(lb_resample_axis *axis, int64_t place, int64_t at)
{
    tap(axis, place, clamp(at, axis->in), 1, 1);
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

static void average(const lb_resample_axis_plan *plan, lb_resample_axis *axis, int64_t place)
{
    int64_t first = place * plan->stride - plan->padding, last = first + plan->kernel;
    int64_t room = plan->in + plan->padding; /* the kernel may hang over its end in ceil mode */
    int64_t counted = (last < room ? last : room) - first;
    if (first < 0) first = 0;
    if (last > plan->in) last = plan->in;
    if (!plan->count_padding) counted = last - first;
    for (int64_t i = first; i < last; i++) tap(axis, place, i, 1, 1);
    axis->divisor[place] = plan->divisor != 0 ? 1 : (double)counted;
}

static void adaptive(const lb_resample_axis_plan *plan, lb_resample_axis *axis, int64_t place)
{
    int64_t first = place * plan->in / plan->out, last = ((place + 1) * plan->in + plan->out - 1) / plan->out;
    for (int64_t i = first; i < last; i++) tap(axis, place, i, 1, 1);
    axis->divisor[place] = (double)(last - first);
}

/* ---- interpolation ----------------------------------------------------------------------------------------------- */

static void nearest(const lb_resample_axis_plan *plan, lb_resample_axis *axis, int64_t place, double scale, bool exact)
{
    one_tap(axis, place, (int64_t)floor(step(plan, ((double)place + (exact ? 0.5 : 0)) * scale)));
}

static void linear(const lb_resample_axis_plan *plan, lb_resample_axis *axis, int64_t place, double scale)
{
    if (plan->in == plan->out) {
        one_tap(axis, place, place);
        return;
    }
    double x = source(plan, scale, place, false), room = 1 + x;
    int64_t i = clamp((int64_t)floor(x), plan->in);
    double part = step(plan, x - (double)i);
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    tap(axis, place, i, step(plan, 1 - part), 1 - part + room);
    tap(axis, place, clamp(i + 1, plan->in), part, part + room);
}

/* Keys' kernel at distance x. */
static double cubic_kernel(double x, double a)
{
    x = fabs(x);
    if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static void cubic(const lb_resample_axis_plan *plan, lb_resample_axis *axis, int64_t place, double scale)
{
    double x = source(plan, scale, place, true), floored = floor(x), part = x - floored, room = 2 + 2 * fabs(x);
    for (int k = -1; k <= 2; k++) {
        double w = cubic_kernel(part - k, -0.75);
        tap(axis, place, clamp((int64_t)floored + k, plan->in), w, fabs(w) + room);
    }
}

static double filter(lb_resample_axis_kind kind, double x)
{
    double pi = 3.14159265358979323846;
    if (kind == LB_AXIS_SMOOTH_LINEAR) return fabs(x) < 1 ? 1 - fabs(x) : 0;
    if (kind == LB_AXIS_SMOOTH_CUBIC) return cubic_kernel(x, -0.5);
    if (fabs(x) >= 3) return 0;
    return x == 0 ? 1 : sin(pi * x) * sin(pi * x / 3) * 3 / (pi * pi * x * x);
}

/* Half the filter's width in input pixels when nothing is shrunk. */
static double support_of(lb_resample_axis_kind kind)
{
    return kind == LB_AXIS_SMOOTH_LINEAR ? 1 : kind == LB_AXIS_SMOOTH_CUBIC ? 2 : 3;
}

static void smooth(const lb_resample_axis_plan *plan, lb_resample_axis *axis, int64_t place, double scale)
{
    double shrink = scale >= 1 ? scale : 1, support = support_of(plan->kind) * shrink,
           center = scale * ((double)place + 0.5), sum = 0;
    int64_t first = (int64_t)(center - support + 0.5), last = (int64_t)(center + support + 0.5);
    if (first < 0) first = 0;
    if (last > plan->in) last = plan->in;
    for (int64_t i = first; i < last && i < first + axis->most; i++) {
        double w = filter(plan->kind, ((double)i - center + 0.5) / shrink);
        tap(axis, place, i, w, 2 + 2 * fabs(center) / shrink);
        sum += w;
    }
    for (int64_t k = place * axis->most; sum != 0 && k < place * axis->most + axis->count[place]; k++) {
        axis->weight[k] = step(plan, axis->weight[k] / sum);
        axis->spread[k] = axis->spread[k] / fabs(sum) + fabs(axis->weight[k]) * (1 + (double)axis->count[place]);
    }
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static int64_t most_taps(const lb_resample_axis_plan *plan, double scale)
{
    switch (plan->kind) {
    case LB_AXIS_AVERAGE: return plan->kernel > 0 ? plan->kernel : 1;
    case LB_AXIS_ADAPTIVE: return plan->out ? plan->in / plan->out + 2 : 1;
    case LB_AXIS_LINEAR: return 2;
    case LB_AXIS_CUBIC: return 4;
    case LB_AXIS_SMOOTH_LINEAR:
    case LB_AXIS_SMOOTH_CUBIC:
    case LB_AXIS_SMOOTH_LANCZOS: return 2 * (int64_t)ceil(support_of(plan->kind) * (scale >= 1 ? scale : 1)) + 2;
    default: return 1;
    }
}

static int64_t reflected(int64_t i, int64_t size)
{
    if (i < 0) i = -i;
    return i >= size ? 2 * (size - 1) - i : i;
}

static void fill(const lb_resample_axis_plan *plan, lb_resample_axis *axis, int64_t place, double scale)
{
    switch (plan->kind) {
    case LB_AXIS_AVERAGE: average(plan, axis, place); break;
    case LB_AXIS_ADAPTIVE: adaptive(plan, axis, place); break;
    case LB_AXIS_NEAREST: nearest(plan, axis, place, scale, false); break;
    case LB_AXIS_NEAREST_EXACT: nearest(plan, axis, place, scale, true); break;
    case LB_AXIS_LINEAR: linear(plan, axis, place, scale); break;
    case LB_AXIS_CUBIC: cubic(plan, axis, place, scale); break;
    case LB_AXIS_SMOOTH_LINEAR:
    case LB_AXIS_SMOOTH_CUBIC:
    case LB_AXIS_SMOOTH_LANCZOS: smooth(plan, axis, place, scale); break;
    case LB_AXIS_REFLECT: one_tap(axis, place, reflected(place - plan->padding, plan->in)); break;
    case LB_AXIS_REPLICATE: one_tap(axis, place, place - plan->padding); break;
    }
}

bool lb_resample_axis_make(lb_frame *frame, const lb_resample_axis_plan *plan, lb_resample_axis *axis)
{
    double scale = scale_of(plan);
    *axis = (lb_resample_axis){.in = plan->in, .out = plan->out, .most = most_taps(plan, scale)};
    if (plan->in < 1 || plan->out < 0 || axis->most > (1 << 28) / (plan->out + 1)) {
        lb_frame_fail(frame, LB_ERR_INVALID, "sizes that no window fits");
        return false;
    }
    size_t taps = (size_t)(plan->out * axis->most);
    axis->count = lb_frame_scratch(frame, (size_t)plan->out * 8);
    axis->divisor = lb_frame_scratch(frame, (size_t)plan->out * 8);
    axis->at = lb_frame_scratch(frame, taps * 8);
    axis->weight = lb_frame_scratch(frame, taps * 8);
    axis->spread = lb_frame_scratch(frame, taps * 8);
    for (int64_t place = 0; lb_frame_ok(frame) && place < plan->out; place++) {
        axis->count[place] = 0, axis->divisor[place] = 1;
        fill(plan, axis, place, scale);
    }
    return lb_frame_ok(frame);
}
