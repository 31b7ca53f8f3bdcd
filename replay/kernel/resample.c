/* Axes of resampling ops; see resample.h. Positions follow torch's definitions: pixel centres unless corners are
 * aligned, in the precision of the elements (f32 for all but f64), so that nearest neighbours are the same ones. */
#include "kernel/resample.h"

#include <math.h>

/* Rounds to f32 unless positions are computed in f64. */
static double step(const lb_resample_axis_plan *p, double x)
{
    return p->wide ? x : (float)x;
}

/* Input pixels per output pixel. */
static double scale_of(const lb_resample_axis_plan *p)
{
    if (p->align_corners) return p->out > 1 ? step(p, (double)(p->in - 1) / (double)(p->out - 1)) : 0;
    return step(p, p->factor > 0 ? 1 / p->factor : p->out ? (double)p->in / (double)p->out : 0);
}

static int64_t clamp(int64_t i, int64_t size)
{
    return i < 0 ? 0 : i >= size ? size - 1 : i;
}

/* Where output `o` lies in the input. */
static double source(const lb_resample_axis_plan *p, double scale, int64_t o, bool cubic)
{
    if (p->align_corners) return step(p, scale * (double)o);
    double x = step(p, step(p, scale * ((double)o + 0.5)) - 0.5);
    return x < 0 && !cubic ? 0 : x;
}

static void tap(lb_resample_axis *a, int64_t o, int64_t at, double weight, double spread)
{
    int64_t k = o * a->most + a->count[o]++;
    a->at[k] = at, a->weight[k] = weight, a->spread[k] = spread;
}

static void one_tap(lb_resample_axis *a, int64_t o, int64_t at)
{
    tap(a, o, clamp(at, a->in), 1, 1);
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

static void average(const lb_resample_axis_plan *p, lb_resample_axis *a, int64_t o)
{
    int64_t first = o * p->stride - p->padding, last = first + p->kernel;
    int64_t room = p->in + p->padding; /* the kernel may hang over its end in ceil mode */
    int64_t counted = (last < room ? last : room) - first;
    if (first < 0) first = 0;
    if (last > p->in) last = p->in;
    if (!p->count_padding) counted = last - first;
    for (int64_t i = first; i < last; i++) tap(a, o, i, 1, 1);
    a->divisor[o] = p->divisor != 0 ? 1 : (double)counted;
}

static void adaptive(const lb_resample_axis_plan *p, lb_resample_axis *a, int64_t o)
{
    int64_t first = o * p->in / p->out, last = ((o + 1) * p->in + p->out - 1) / p->out;
    for (int64_t i = first; i < last; i++) tap(a, o, i, 1, 1);
    a->divisor[o] = (double)(last - first);
}

/* ---- interpolation ----------------------------------------------------------------------------------------------- */

static void nearest(const lb_resample_axis_plan *p, lb_resample_axis *a, int64_t o, double scale, bool exact)
{
    one_tap(a, o, (int64_t)floor(step(p, ((double)o + (exact ? 0.5 : 0)) * scale)));
}

static void linear(const lb_resample_axis_plan *p, lb_resample_axis *a, int64_t o, double scale)
{
    if (p->in == p->out) {
        one_tap(a, o, o);
        return;
    }
    double x = source(p, scale, o, false), room = 1 + x;
    int64_t i = clamp((int64_t)floor(x), p->in);
    double part = step(p, x - (double)i);
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    tap(a, o, i, step(p, 1 - part), 1 - part + room);
    tap(a, o, clamp(i + 1, p->in), part, part + room);
}

/* Keys' kernel at distance x. */
static double cubic_kernel(double x, double a)
{
    x = fabs(x);
    if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static void cubic(const lb_resample_axis_plan *p, lb_resample_axis *a, int64_t o, double scale)
{
    double x = source(p, scale, o, true), floored = floor(x), part = x - floored, room = 2 + 2 * fabs(x);
    for (int k = -1; k <= 2; k++) {
        double w = cubic_kernel(part - k, -0.75);
        tap(a, o, clamp((int64_t)floored + k, p->in), w, fabs(w) + room);
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

static void smooth(const lb_resample_axis_plan *p, lb_resample_axis *a, int64_t o, double scale)
{
    double shrink = scale >= 1 ? scale : 1, support = support_of(p->kind) * shrink, center = scale * ((double)o + 0.5),
           sum = 0;
    int64_t first = (int64_t)(center - support + 0.5), last = (int64_t)(center + support + 0.5);
    if (first < 0) first = 0;
    if (last > p->in) last = p->in;
    for (int64_t i = first; i < last && i < first + a->most; i++) {
        double w = filter(p->kind, ((double)i - center + 0.5) / shrink);
        tap(a, o, i, w, 2 + 2 * fabs(center) / shrink);
        sum += w;
    }
    for (int64_t k = o * a->most; sum != 0 && k < o * a->most + a->count[o]; k++) {
        a->weight[k] = step(p, a->weight[k] / sum);
        a->spread[k] = a->spread[k] / fabs(sum) + fabs(a->weight[k]) * (1 + (double)a->count[o]);
    }
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static int64_t most_taps(const lb_resample_axis_plan *p, double scale)
{
    switch (p->kind) {
    case LB_AXIS_AVERAGE: return p->kernel > 0 ? p->kernel : 1;
    case LB_AXIS_ADAPTIVE: return p->out ? p->in / p->out + 2 : 1;
    case LB_AXIS_LINEAR: return 2;
    case LB_AXIS_CUBIC: return 4;
    case LB_AXIS_SMOOTH_LINEAR:
    case LB_AXIS_SMOOTH_CUBIC:
    case LB_AXIS_SMOOTH_LANCZOS: return 2 * (int64_t)ceil(support_of(p->kind) * (scale >= 1 ? scale : 1)) + 2;
    default: return 1;
    }
}

static int64_t reflected(int64_t i, int64_t size)
{
    if (i < 0) i = -i;
    return i >= size ? 2 * (size - 1) - i : i;
}

static void fill(const lb_resample_axis_plan *p, lb_resample_axis *a, int64_t o, double scale)
{
    switch (p->kind) {
    case LB_AXIS_AVERAGE: average(p, a, o); break;
    case LB_AXIS_ADAPTIVE: adaptive(p, a, o); break;
    case LB_AXIS_NEAREST: nearest(p, a, o, scale, false); break;
    case LB_AXIS_NEAREST_EXACT: nearest(p, a, o, scale, true); break;
    case LB_AXIS_LINEAR: linear(p, a, o, scale); break;
    case LB_AXIS_CUBIC: cubic(p, a, o, scale); break;
    case LB_AXIS_SMOOTH_LINEAR:
    case LB_AXIS_SMOOTH_CUBIC:
    case LB_AXIS_SMOOTH_LANCZOS: smooth(p, a, o, scale); break;
    case LB_AXIS_REFLECT: one_tap(a, o, reflected(o - p->padding, p->in)); break;
    case LB_AXIS_REPLICATE: one_tap(a, o, o - p->padding); break;
    }
}

bool lb_resample_axis_make(lb_frame *frame, const lb_resample_axis_plan *p, lb_resample_axis *a)
{
    double scale = scale_of(p);
    *a = (lb_resample_axis){.in = p->in, .out = p->out, .most = most_taps(p, scale)};
    if (p->in < 1 || p->out < 0 || a->most > (1 << 28) / (p->out + 1)) {
        lb_frame_fail(frame, LB_ERR_INVALID, "sizes that no window fits");
        return false;
    }
    size_t taps = (size_t)(p->out * a->most);
    a->count = lb_frame_scratch(frame, (size_t)p->out * 8);
    a->divisor = lb_frame_scratch(frame, (size_t)p->out * 8);
    a->at = lb_frame_scratch(frame, taps * 8);
    a->weight = lb_frame_scratch(frame, taps * 8);
    a->spread = lb_frame_scratch(frame, taps * 8);
    for (int64_t o = 0; lb_frame_ok(frame) && o < p->out; o++) {
        a->count[o] = 0, a->divisor[o] = 1;
        fill(p, a, o, scale);
    }
    return lb_frame_ok(frame);
}
