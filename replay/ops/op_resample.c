/* Average pools, interpolation and borders that mirror or repeat, with their backwards: products of axes (resample.h).
 *
 * Elements are read along the last axis first, each sum in order of its taps in f32 (f64). The backward visits outputs
 * in order and adds what each sends to its inputs. Twins count every tap, so that no term count is needed. */
#include "kernel/resample.h"
#include "kernel/twin_grain.h"

#include <math.h>
#include <string.h>

/* Where the arguments stand, plus one; 0: there is none. */
typedef struct form {
    lb_resample_axis_kind kind;
    uint8_t axes;
    bool backward;
    uint8_t input;   /* backward: a tensor with the input's sizes… */
    uint8_t sizes;   /* … or a list of them */
    uint8_t corners; /* align_corners */
    uint8_t factors; /* the first of one scale per axis, or with `list` a list of all */
    bool list;
    uint8_t window;  /* pools: kernel_size, then stride, padding, ceil_mode, count_include_pad, divisor_override */
    uint8_t padding; /* of borders: begin and end of the last axis, then of the one before */
} form;

typedef struct resampling {
    lb_frame frame;
    const form *form;
    lb_resample_axis axis[LB_AXES]; /* the last is the innermost; missing ones in front have size 1 */
    int64_t planes;
    double divisor; /* divisor_override */
} resampling;

static const lb_resample_axis_plan single = {.kind = LB_AXIS_REPLICATE, .in = 1, .out = 1};

static int64_t list_at(const lb_call *call, uint32_t arg, int k, int n, int64_t otherwise)
{
    int64_t numbers[LB_MAX_DIMS];
    int count = lb_frame_arg_ints(call, arg, numbers, LB_MAX_DIMS);
    return count == 0 ? otherwise : numbers[count == n ? k : 0];
}

/* The scale factor of axis k of n. */
static double factor_of(const lb_call *call, const form *form, int k)
{
    if (!form->factors) return 0;
    if (!form->list) return lb_frame_arg_float(call, (uint32_t)(form->factors - 1 + k), 0);
    const lb_operand *arg = form->factors - 1u < call->n_args ? &call->args[form->factors - 1] : NULL;
    return arg && arg->tag == LB_OPERAND_NUMBERS && (uint32_t)k < arg->count ? arg->floats[k] : 0;
}

static void plan_window(const lb_call *call, const form *form, int k, lb_resample_axis_plan *plan)
{
    const uint32_t at = form->window - 1u;
    const int n = form->axes;
    plan->kernel = list_at(call, at, k, n, 1);
    plan->stride = list_at(call, at + 1, k, n, plan->kernel);
    plan->padding = list_at(call, at + 2, k, n, 0);
    plan->ceil_mode = lb_frame_arg_int(call, at + 3, 0);
    plan->count_padding = lb_frame_arg_int(call, at + 4, 1);
    plan->divisor = lb_frame_arg_float(call, at + 5, 0);
}

/* `in` and `out` are the sizes of the input's and the output's trailing dimensions. */
static bool make_axes(resampling *resampling, const int64_t *in, const int64_t *out, bool wide)
{
    const form *form = resampling->form;
    const lb_call *call = resampling->frame.call;
    for (int k = 0; k < LB_AXES; k++) {
        const int own = k - (LB_AXES - form->axes);
        lb_resample_axis_plan plan = single;
        if (own >= 0) {
            plan = (lb_resample_axis_plan){.kind = form->kind, .in = in[own], .out = out[own], .wide = wide};
            plan.align_corners = form->corners && lb_frame_arg_int(call, form->corners - 1u, 0);
            plan.factor = factor_of(call, form, own);
            if (form->window) plan_window(call, form, own, &plan);
            if (form->padding)
                plan.padding = list_at(call, form->padding - 1u, 2 * (form->axes - 1 - own), 2 * form->axes, 0);
        }
        if (!lb_resample_axis_make(&resampling->frame, &plan, &resampling->axis[k])) return false;
        resampling->divisor = plan.divisor != 0 ? plan.divisor : resampling->divisor;
    }
    return true;
}

static bool begin(resampling *begun, lb_call *call, const form *form)
{
    *begun = (resampling){.frame = lb_frame_begin(call), .form = form, .divisor = 1};
    const lb_tensor *from = lb_frame_arg_tensor(call, 0), *to = &call->results[0];
    const lb_layout *outside = form->backward ? &from->layout : &to->layout,
                    *inside = form->backward ? &to->layout : &from->layout;
    const int n = form->axes;
    if (outside->ndim <= n || inside->ndim != outside->ndim) {
        lb_frame_fail(&begun->frame, LB_ERR_INVALID, "fewer dimensions than axes");
        return false;
    }
    begun->planes = 1;
    for (int dim = 0; dim < outside->ndim - n; dim++) begun->planes *= outside->shape[dim];
    return make_axes(begun, inside->shape + inside->ndim - n, outside->shape + outside->ndim - n,
                     from->dtype == LB_F64);
}

/* What is added up: the values; their magnitudes; their magnitudes times what a rounded position does to a weight; and
 * that which torch keeps in 16 bits does: the distance from a neighbour is rounded before it is taken from 1, so that a
 * weight near 0 is off by half an ulp of 1, of which an eighth of the bound's four roundings is enough, and a cubic's
 * by twice that. */
typedef enum sum_kind { VALUES, MAGNITUDES, SPREADS, NARROW } sum_kind;

static double weight_at(const lb_resample_axis *axis, int64_t o, int64_t k, sum_kind kind)
{
    const int64_t at = o * axis->most + k;
    const double narrow = kind == NARROW && axis->count[o] > 1 ? 0.25 : 0;
    return kind == VALUES ? axis->weight[at] : kind == SPREADS ? axis->spread[at] : fabs(axis->weight[at]) + narrow;
}

static double value(const lb_frame *frame, const void *x, int64_t i, sum_kind kind)
{
    const double v = lb_frame_get(frame, x, i);
    return kind == VALUES ? v : fabs(v);
}

static double step(const lb_frame *frame, double x)
{
    return frame->wide ? x : (float)x;
}

static bool is_chain(const form *form)
{
    return form->window || form->kind == LB_AXIS_ADAPTIVE;
}

/* What output `o` is made of, and in which kind of sum. */
typedef struct gathered {
    const void *x;
    const int64_t *o;
    sum_kind kind;
} gathered;

/* The sum over the taps of axis d and those behind it, from element `base` on. Averages add up all taps in one
 * chain. */
static double gather(const resampling *resampling, const gathered *gathered, int dim, int64_t base, double sum)
{
    const int64_t *o = gathered->o;
    const sum_kind kind = gathered->kind;
    const lb_resample_axis *axis = &resampling->axis[dim];
    const bool chain = is_chain(resampling->form);
    double here = chain ? sum : 0;
    for (int64_t k = 0; k < axis->count[o[dim]]; k++) {
        const int64_t at = base * axis->in + axis->at[o[dim] * axis->most + k];
        const double w = weight_at(axis, o[dim], k, kind);
        if (dim < LB_AXES - 1) {
            const double inner = gather(resampling, gathered, dim + 1, at, here);
            here = chain ? inner : step(&resampling->frame, here + step(&resampling->frame, w * inner));
        } else {
            const double v = value(&resampling->frame, gathered->x, at, kind);
            here = step(&resampling->frame, here + (chain ? v : step(&resampling->frame, w * v)));
        }
    }
    return here;
}

static double divisor_at(const resampling *resampling, const int64_t *o)
{
    double divisor = resampling->divisor;
    for (int dim = 0; dim < LB_AXES; dim++) divisor *= resampling->axis[dim].divisor[o[dim]];
    return divisor;
}

/* Terms that an element of the output passes through: of one chain over all axes, or of one sum inside another. */
static double taps_at(const resampling *resampling, const int64_t *o)
{
    double chain = 1, nested = 0;
    for (int dim = 0; dim < LB_AXES; dim++)
        chain *= (double)resampling->axis[dim].count[o[dim]], nested += (double)resampling->axis[dim].count[o[dim]];
    return is_chain(resampling->form) ? chain : nested;
}

static lb_status forward(lb_call *call, const form *form, bool twin)
{
    resampling resampling;
    if (!begin(&resampling, call, form)) return lb_frame_end(&resampling.frame);
    lb_frame *frame = &resampling.frame;
    const lb_resample_axis *axis = resampling.axis;
    const int64_t out = axis[0].out * axis[1].out * axis[2].out;
    const void *x = lb_frame_input(frame, 0);
    void *y = lb_frame_output(frame, 0, resampling.planes * out);
    const double coarse = lb_frame_twin_scale(call, 0) - 1; /* torch may round every step to 16 bits, but no position */
#pragma omp parallel for schedule(static) if (resampling.planes * out > 16384)
    for (int64_t i = 0; i < resampling.planes * out; i++) {
        if (!lb_frame_ok(frame)) continue;
        const int64_t o[LB_AXES] = {i % out / (axis[1].out * axis[2].out),
                                    i % (axis[1].out * axis[2].out) / axis[2].out, i % axis[2].out};
        const double divisor = divisor_at(&resampling, o);
        double sum = gather(&resampling, &(gathered){x, o, twin ? SPREADS : VALUES}, 0, i / out, 0);
        if (twin && coarse > 0)
            sum += coarse * gather(&resampling, &(gathered){x, o, is_chain(form) ? MAGNITUDES : NARROW}, 0, i / out, 0);
        if (divisor != 1) sum /= twin ? fabs(divisor) : divisor;
        lb_frame_set(frame, y, i, twin ? (sum + lb_twin_grain(call, 0)) * (1 + taps_at(&resampling, o)) : sum);
    }
    return lb_frame_end(frame);
}

/* Where the gradients of a plane's inputs are added up. Twins count in `meets` how many terms meet in an input. */
typedef struct scattered {
    void *dx;
    double *meets;
    int64_t plane;
} scattered;

/* What output `o` of a plane sends to the inputs; `g` its gradient. */
static void scatter(const resampling *resampling, const scattered *to, const int64_t *o, double g, sum_kind kind)
{
    void *dx = to->dx;
    double *meets = to->meets;
    const int64_t plane = to->plane;
    const lb_resample_axis *axis = resampling->axis;
    const lb_frame *frame = &resampling->frame;
    for (int64_t p = 0; p < axis[0].count[o[0]]; p++)
        for (int64_t q = 0; q < axis[1].count[o[1]]; q++)
            for (int64_t k = 0; k < axis[2].count[o[2]]; k++) {
                const int64_t row = plane * axis[0].in + axis[0].at[o[0] * axis[0].most + p];
                const int64_t at = (row * axis[1].in + axis[1].at[o[1] * axis[1].most + q]) * axis[2].in +
                                   axis[2].at[o[2] * axis[2].most + k];
                const double w = step(frame, weight_at(&axis[0], o[0], p, kind) * weight_at(&axis[1], o[1], q, kind));
                const double term = step(frame, step(frame, w * weight_at(&axis[2], o[2], k, kind)) * g);
                lb_frame_set(frame, dx, at, value(frame, dx, at, VALUES) + term);
                if (meets) meets[at]++;
            }
}

static lb_status backward(lb_call *call, const form *form, bool twin)
{
    resampling resampling;
    if (!begin(&resampling, call, form)) return lb_frame_end(&resampling.frame);
    lb_frame *frame = &resampling.frame;
    const lb_resample_axis *axis = resampling.axis;
    const int64_t out = axis[0].out * axis[1].out * axis[2].out, in = axis[0].in * axis[1].in * axis[2].in;
    const void *dy = lb_frame_input(frame, 0);
    void *dx = lb_frame_output(frame, 0, resampling.planes * in);
    double *meets = twin ? lb_frame_scratch(frame, (size_t)(resampling.planes * in) * 8) : NULL;
    if (!lb_frame_ok(frame)) return lb_frame_end(frame);
    memset(dx, 0, (size_t)(resampling.planes * in) * (frame->wide ? 8 : 4));
    if (meets) memset(meets, 0, (size_t)(resampling.planes * in) * 8);
    const double coarse = lb_frame_twin_scale(call, 0) - 1;
#pragma omp parallel for schedule(static) if (resampling.planes * out > 16384)
    for (int64_t plane = 0; plane < resampling.planes; plane++)
        for (int64_t i = 0; i < out; i++) {
            const int64_t o[LB_AXES] = {i / (axis[1].out * axis[2].out), i % (axis[1].out * axis[2].out) / axis[2].out,
                                        i % axis[2].out};
            const double divisor = divisor_at(&resampling, o),
                         g = value(frame, dy, plane * out + i, twin ? MAGNITUDES : VALUES);
            const double part = step(frame, g / (twin ? fabs(divisor) : divisor));
            scatter(&resampling, &(scattered){dx, meets, plane}, o, part, twin ? SPREADS : VALUES);
            if (twin && coarse > 0)
                scatter(&resampling, &(scattered){dx, NULL, plane}, o, coarse * part,
                        is_chain(form) ? MAGNITUDES : NARROW);
        }
    for (int64_t i = 0; twin && i < resampling.planes * in; i++)
        ((double *)dx)[i] = (((double *)dx)[i] + lb_twin_grain(call, 0)) * (1 + meets[i]);
    return lb_frame_end(frame);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

#define AT(n) ((n) + 1)
#define RESAMPLE(DIRECTION, ID, ...)                                                                                   \
    static const form ID = {.backward = #DIRECTION[0] == 'b', __VA_ARGS__};                                            \
    static lb_status ID##_kernel(lb_call *call)                                                                        \
    {                                                                                                                  \
        return DIRECTION(call, &ID, false);                                                                            \
    }                                                                                                                  \
    static __attribute__((unused)) lb_status ID##_twin(lb_call *call)                                                  \
    {                                                                                                                  \
        return DIRECTION(call, &ID, true);                                                                             \
    }
/* Forward, forward with a list of factors, backward of one kind of interpolation over n axes; C: the position of
 * align_corners in the forward, 0 if there is none. */
#define INTERPOLATE(ID, KIND, N, C)                                                                                    \
    RESAMPLE(forward, ID, .kind = KIND, .axes = N, .corners = C, .factors = C ? AT(3) : AT(2))                         \
    RESAMPLE(forward, ID##_vec, .kind = KIND, .axes = N, .corners = C, .factors = C ? AT(3) : AT(2), .list = true)     \
    RESAMPLE(backward, ID##_backward, .kind = KIND, .axes = N, .corners = C ? AT(3) : 0, .factors = C ? AT(4) : AT(3))
INTERPOLATE(nearest1, LB_AXIS_NEAREST, 1, 0)
INTERPOLATE(nearest2, LB_AXIS_NEAREST, 2, 0)
INTERPOLATE(nearest3, LB_AXIS_NEAREST, 3, 0)
INTERPOLATE(exact1, LB_AXIS_NEAREST_EXACT, 1, 0)
INTERPOLATE(exact2, LB_AXIS_NEAREST_EXACT, 2, 0)
INTERPOLATE(exact3, LB_AXIS_NEAREST_EXACT, 3, 0)
INTERPOLATE(linear1, LB_AXIS_LINEAR, 1, AT(2))
INTERPOLATE(linear2, LB_AXIS_LINEAR, 2, AT(2))
INTERPOLATE(linear3, LB_AXIS_LINEAR, 3, AT(2))
INTERPOLATE(cubic2, LB_AXIS_CUBIC, 2, AT(2))
INTERPOLATE(smooth_linear2, LB_AXIS_SMOOTH_LINEAR, 2, AT(2))
INTERPOLATE(smooth_cubic2, LB_AXIS_SMOOTH_CUBIC, 2, AT(2))
INTERPOLATE(smooth_lanczos2, LB_AXIS_SMOOTH_LANCZOS, 2, AT(2))
RESAMPLE(forward, average1, .kind = LB_AXIS_AVERAGE, .axes = 1, .window = AT(1))
RESAMPLE(forward, average2, .kind = LB_AXIS_AVERAGE, .axes = 2, .window = AT(1))
RESAMPLE(forward, average3, .kind = LB_AXIS_AVERAGE, .axes = 3, .window = AT(1))
RESAMPLE(backward, average2_backward, .kind = LB_AXIS_AVERAGE, .axes = 2, .window = AT(2))
RESAMPLE(backward, average3_backward, .kind = LB_AXIS_AVERAGE, .axes = 3, .window = AT(2))
RESAMPLE(forward, adaptive1, .kind = LB_AXIS_ADAPTIVE, .axes = 1)
RESAMPLE(forward, adaptive2, .kind = LB_AXIS_ADAPTIVE, .axes = 2)
RESAMPLE(forward, adaptive3, .kind = LB_AXIS_ADAPTIVE, .axes = 3)
RESAMPLE(backward, adaptive2_backward, .kind = LB_AXIS_ADAPTIVE, .axes = 2)
RESAMPLE(backward, adaptive3_backward, .kind = LB_AXIS_ADAPTIVE, .axes = 3)
#define BORDER(ID, KIND, N)                                                                                            \
    RESAMPLE(forward, ID, .kind = KIND, .axes = N, .padding = AT(1))                                                   \
    RESAMPLE(backward, ID##_backward, .kind = KIND, .axes = N, .padding = AT(2))
BORDER(reflect1, LB_AXIS_REFLECT, 1)
BORDER(reflect2, LB_AXIS_REFLECT, 2)
BORDER(reflect3, LB_AXIS_REFLECT, 3)
BORDER(replicate1, LB_AXIS_REPLICATE, 1)
BORDER(replicate2, LB_AXIS_REPLICATE, 2)
BORDER(replicate3, LB_AXIS_REPLICATE, 3)

#define ROW(NAME, ARGS, ID, ROUNDINGS, FLAGS, SAMPLES)                                                                 \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(ID),                                                                                               \
     .roundings = ROUNDINGS,                                                                                           \
     .flags = FLAGS,                                                                                                   \
     .samples = SAMPLES},
#define UPSAMPLE(NAME, ID, CORNERS, SCALES, ROUNDINGS, SAMPLES)                                                        \
    ROW(NAME, "self! output_size " CORNERS SCALES, ID, ROUNDINGS, 0, SAMPLES)                                          \
    ROW(NAME ".vec", "input! output_size " CORNERS "scale_factors", ID##_vec, ROUNDINGS, 0, SAMPLES " vec")            \
    ROW(NAME "_backward", "grad_output! output_size input_size " CORNERS SCALES, ID##_backward, ROUNDINGS + 2, 0,      \
        SAMPLES " backward")
#define HW "scales_h scales_w"
#define DHW "scales_d " HW
#define POOL "kernel_size stride padding ceil_mode count_include_pad"
#define PADDED(NAME, ID, N)                                                                                            \
    {.name = "aten::" NAME,                                                                                            \
     .args = "self! padding",                                                                                          \
     .kernel = ID##_kernel,                                                                                            \
     .flags = LB_ROW_EXACT,                                                                                            \
     .samples = "border axes=" #N},                                                                                    \
        ROW(NAME "_backward", "grad_output! self! padding", ID##_backward, 1, 0, "border axes=" #N " backward")

/* clang-format off */
const lb_op_row lb_rows_resample[] = {
    UPSAMPLE("upsample_nearest1d", nearest1, "", "scales", 1, "upsample axes=1")
    UPSAMPLE("upsample_nearest2d", nearest2, "", HW, 1, "upsample axes=2")
    UPSAMPLE("upsample_nearest3d", nearest3, "", DHW, 1, "upsample axes=3")
    UPSAMPLE("_upsample_nearest_exact1d", exact1, "", "scales", 1, "upsample axes=1")
    UPSAMPLE("_upsample_nearest_exact2d", exact2, "", HW, 1, "upsample axes=2")
    UPSAMPLE("_upsample_nearest_exact3d", exact3, "", DHW, 1, "upsample axes=3")
    UPSAMPLE("upsample_linear1d", linear1, "align_corners ", "scales", 4, "upsample axes=1 corners")
    UPSAMPLE("upsample_bilinear2d", linear2, "align_corners ", HW, 6, "upsample axes=2 corners")
    UPSAMPLE("upsample_trilinear3d", linear3, "align_corners ", DHW, 8, "upsample axes=3 corners")
    UPSAMPLE("upsample_bicubic2d", cubic2, "align_corners ", HW, 8, "upsample axes=2 corners")
    UPSAMPLE("_upsample_bilinear2d_aa", smooth_linear2, "align_corners ", HW, 8, "upsample axes=2 smooth")
    UPSAMPLE("_upsample_bicubic2d_aa", smooth_cubic2, "align_corners ", HW, 8, "upsample axes=2 smooth")
    UPSAMPLE("_upsample_lanczos2d_aa", smooth_lanczos2, "align_corners ", HW, 8, "upsample axes=2 smooth")
    ROW("avg_pool1d", "self! " POOL, average1, 2, 0, "pool axes=1 average")
    ROW("avg_pool2d", "self! " POOL " divisor_override", average2, 2, 0, "pool axes=2 average divisor")
    ROW("avg_pool3d", "self! " POOL " divisor_override", average3, 2, 0, "pool axes=3 average divisor")
    ROW("avg_pool2d_backward", "grad_output! self! " POOL " divisor_override", average2_backward, 2, 0, "pool axes=2 average divisor backward")
    ROW("avg_pool3d_backward", "grad_output! self! " POOL " divisor_override", average3_backward, 2, 0, "pool axes=3 average divisor backward")
    ROW("adaptive_avg_pool1d", "self! output_size", adaptive1, 2, 0, "pool axes=1 adaptive")
    ROW("adaptive_avg_pool2d", "self! output_size", adaptive2, 2, 0, "pool axes=2 adaptive")
    ROW("adaptive_avg_pool3d", "self! output_size", adaptive3, 2, 0, "pool axes=3 adaptive")
    ROW("_adaptive_avg_pool2d", "self! output_size", adaptive2, 2, 0, "pool axes=2 adaptive")
    ROW("_adaptive_avg_pool3d", "self! output_size", adaptive3, 2, 0, "pool axes=3 adaptive")
    ROW("_adaptive_avg_pool2d_backward", "grad_output! self!", adaptive2_backward, 2, 0, "pool axes=2 adaptive backward")
    ROW("_adaptive_avg_pool3d_backward", "grad_output! self!", adaptive3_backward, 2, 0, "pool axes=3 adaptive backward")
    PADDED("reflection_pad1d", reflect1, 1)
    PADDED("reflection_pad2d", reflect2, 2)
    PADDED("reflection_pad3d", reflect3, 3)
    PADDED("replication_pad1d", replicate1, 1)
    PADDED("replication_pad2d", replicate2, 2)
    PADDED("replication_pad3d", replicate3, 3)
    {NULL}
};
