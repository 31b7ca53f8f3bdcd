/* Extremes, their positions, products, any and all.
 *
 * Extremes do not depend on an order: a NaN wins, of equal elements the first (as torch on a CPU, for positions, too),
 * or the one whose position was recorded (tied_choice.h). */
#include "kernel/fold.h"
#include "kernel/tied_choice.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define IS_NAN(x) ((x) != (x))
#define REAL_TEMPLATE "ops/extremum_real.h"
#include "functions/real_template.h"
#undef IS_NAN
#define REAL int64_t
#define NAME(x) x##_i64
#define IS_NAN(x) false
#include "ops/extremum_real.h"
#undef REAL
#undef NAME

#define NO_DIMS 99 /* no such arg: all dimensions */
#define PARALLEL_ELEMENTS 65536

/* The dimensions that an int arg names; all when it is None. */
static lb_fold fold_of(const lb_call *call, uint32_t dims_arg)
{
    const lb_tensor *in = lb_frame_arg_tensor(call, 0);
    return lb_fold_of(in, lb_fold_dims(call, dims_arg, in->layout.ndim));
}

typedef enum element { F32, F64, I64 } element;

/* Input and outputs of a fold in the type that compares them exactly. */
typedef struct extremes {
    lb_frame frame;
    lb_fold fold;
    element type;
    const void *x;
} extremes;

static bool extremes_begin(extremes *extremes, lb_call *call, uint32_t dims_arg)
{
    extremes->frame = lb_frame_begin(call);
    extremes->fold = fold_of(call, dims_arg);
    bool integer = lb_dtype_is_integer(lb_frame_arg_tensor(call, 0)->dtype);
    extremes->type = integer ? I64 : extremes->frame.wide ? F64 : F32;
    extremes->x = integer ? (const void *)lb_frame_integers(&extremes->frame, &extremes->fold.view)
                          : lb_frame_tensor(&extremes->frame, &extremes->fold.view);
    if (extremes->fold.size == 0 && extremes->fold.results > 0)
        lb_frame_fail(&extremes->frame, LB_ERR_INVALID, "extreme of nothing");
    return lb_frame_ok(&extremes->frame);
}

static void *values_output(extremes *extremes, uint32_t r)
{
    return extremes->type == I64 ? (void *)lb_frame_output_integers(&extremes->frame, r, extremes->fold.results)
                                 : lb_frame_output(&extremes->frame, r, extremes->fold.results);
}

#define COLUMNS 256
static void columns(const extremes *extremes, int64_t from, int64_t to, int64_t width, bool largest, void *y,
                    int64_t *at)
{
    int64_t n = extremes->fold.size, inner = extremes->fold.inner;
    if (extremes->type == F32)
        extremum_columns_f32((const float *)extremes->x + from, n, inner, width, largest, (float *)y + to, at + to);
    else if (extremes->type == F64)
        extremum_columns_f64((const double *)extremes->x + from, n, inner, width, largest, (double *)y + to, at + to);
    else
        extremum_columns_i64((const int64_t *)extremes->x + from, n, inner, width, largest, (int64_t *)y + to, at + to);
}

static void one(const extremes *extremes, int64_t from, int64_t to, bool largest, void *y, int64_t *at)
{
    int64_t n = extremes->fold.size;
    if (extremes->type == F32) {
        const float *x = (const float *)extremes->x + from;
        ((float *)y)[to] = x[at[to] = extremum_f32(x, n, 1, largest)];
    } else if (extremes->type == F64) {
        const double *x = (const double *)extremes->x + from;
        ((double *)y)[to] = x[at[to] = extremum_f64(x, n, 1, largest)];
    } else {
        const int64_t *x = (const int64_t *)extremes->x + from;
        ((int64_t *)y)[to] = x[at[to] = extremum_i64(x, n, 1, largest)];
    }
}

/* All extremes and their positions. */
static void find(const extremes *extremes, bool largest, void *y, int64_t *at)
{
    int64_t inner = extremes->fold.inner, n = extremes->fold.size, pieces = (inner + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for schedule(static) if (extremes->fold.results * n > PARALLEL_ELEMENTS)
    for (int64_t task = 0; task < extremes->fold.outer * pieces; task++) {
        int64_t o = task / pieces, j = task % pieces * COLUMNS;
        int64_t width = inner - j < COLUMNS ? inner - j : COLUMNS;
        if (inner == 1)
            one(extremes, o * n, o, largest, y, at);
        else
            columns(extremes, o * n * inner + j, o * inner + j, width, largest, y, at);
    }
}

/* The positions that were recorded, where they are as good, and the values there. */
static void follow(extremes *extremes, uint32_t at_result, void *y, int64_t *at)
{
    const lb_tied_choice choice = {.frame = &extremes->frame,
                                   .integer = extremes->type == I64,
                                   .rows = extremes->fold.results,
                                   .n = extremes->fold.size,
                                   .inner = extremes->fold.inner,
                                   .k = 1,
                                   .x = extremes->x,
                                   .at = at};
    lb_tied_choice_follow(&choice, at_result, -1);
    for (int64_t r = 0; lb_frame_ok(&extremes->frame) && r < extremes->fold.results; r++) {
        const int64_t from =
            (r / extremes->fold.inner * extremes->fold.size + at[r]) * extremes->fold.inner + r % extremes->fold.inner;
        if (extremes->type == I64)
            ((int64_t *)y)[r] = ((const int64_t *)extremes->x)[from];
        else
            lb_frame_set(&extremes->frame, y, r, lb_frame_get(&extremes->frame, extremes->x, from));
    }
}

/* Results: values in `value_result`, positions in `at_result`; -1: not asked for. */
static lb_status extremum(lb_call *call, uint32_t dims_arg, bool largest, int value_result, int at_result)
{
    extremes extremes;
    if (extremes_begin(&extremes, call, dims_arg)) {
        void *y = value_result >= 0 ? values_output(&extremes, (uint32_t)value_result)
                                    : lb_frame_scratch(&extremes.frame, (size_t)extremes.fold.results * 8);
        int64_t *at = at_result >= 0
                          ? lb_frame_output_integers(&extremes.frame, (uint32_t)at_result, extremes.fold.results)
                          : lb_frame_scratch(&extremes.frame, (size_t)extremes.fold.results * 8);
        if (lb_frame_ok(&extremes.frame)) find(&extremes, largest, y, at);
        if (lb_frame_ok(&extremes.frame) && at_result >= 0) follow(&extremes, (uint32_t)at_result, y, at);
    }
    return lb_frame_end(&extremes.frame);
}

static lb_status max(lb_call *call)
{
    return extremum(call, NO_DIMS, true, 0, -1);
}
static lb_status min(lb_call *call)
{
    return extremum(call, NO_DIMS, false, 0, -1);
}
static lb_status amax(lb_call *call)
{
    return extremum(call, 1, true, 0, -1);
}
static lb_status amin(lb_call *call)
{
    return extremum(call, 1, false, 0, -1);
}
static lb_status max_dim(lb_call *call)
{
    return extremum(call, 1, true, 0, 1);
}
static lb_status min_dim(lb_call *call)
{
    return extremum(call, 1, false, 0, 1);
}
static lb_status argmax(lb_call *call)
{
    return extremum(call, 1, true, -1, 0);
}
static lb_status argmin(lb_call *call)
{
    return extremum(call, 1, false, -1, 0);
}

static lb_status aminmax(lb_call *call)
{
    LB_TRY(extremum(call, 1, false, 0, -1));
    return extremum(call, 1, true, 1, -1);
}

/* ---- any, all ---------------------------------------------------------------------------------------------------- */

static bool is_true(const extremes *extremes, int64_t i)
{
    return extremes->type == I64   ? ((const int64_t *)extremes->x)[i] != 0
           : extremes->type == F64 ? ((const double *)extremes->x)[i] != 0
                                   : ((const float *)extremes->x)[i] != 0;
}

static lb_status quantify(lb_call *call, uint32_t dims_arg, bool every)
{
    extremes extremes = {.frame = lb_frame_begin(call), .fold = fold_of(call, dims_arg)};
    bool integer = lb_dtype_is_integer(lb_frame_arg_tensor(call, 0)->dtype);
    extremes.type = integer ? I64 : extremes.frame.wide ? F64 : F32;
    extremes.x = integer ? (const void *)lb_frame_integers(&extremes.frame, &extremes.fold.view)
                         : lb_frame_tensor(&extremes.frame, &extremes.fold.view);
    int64_t *y = lb_frame_output_integers(&extremes.frame, 0, extremes.fold.results);
    for (int64_t i = 0; lb_frame_ok(&extremes.frame) && i < extremes.fold.results; i++) {
        int64_t from = i / extremes.fold.inner * extremes.fold.size * extremes.fold.inner + i % extremes.fold.inner;
        bool found = false;
        for (int64_t k = 0; k < extremes.fold.size && !found; k++)
            found = is_true(&extremes, from + k * extremes.fold.inner) != every;
        y[i] = found != every;
    }
    return lb_frame_end(&extremes.frame);
}

static lb_status any(lb_call *call)
{
    return quantify(call, NO_DIMS, false);
}
static lb_status all(lb_call *call)
{
    return quantify(call, NO_DIMS, true);
}
static lb_status any_dim(lb_call *call)
{
    return quantify(call, 1, false);
}
static lb_status all_dim(lb_call *call)
{
    return quantify(call, 1, true);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* One factor after the other; products of 16-bit floats are rounded to them each time, as in torch. */
static lb_status product(lb_call *call, uint32_t dims_arg)
{
    lb_frame frame = lb_frame_begin(call);
    lb_fold fold = fold_of(call, dims_arg);
    bool integer = lb_dtype_is_integer(call->results[0].dtype);
    const void *x = integer ? (const void *)lb_frame_integers(&frame, &fold.view) : lb_frame_tensor(&frame, &fold.view);
    void *y =
        integer ? (void *)lb_frame_output_integers(&frame, 0, fold.results) : lb_frame_output(&frame, 0, fold.results);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < fold.results; i++) {
        int64_t from = i / fold.inner * fold.size * fold.inner + i % fold.inner;
        uint64_t integers = 1;
        double wide = 1;
        float narrow = 1;
        for (int64_t k = 0; k < fold.size; k++, from += fold.inner) {
            if (integer)
                integers *= (uint64_t)((const int64_t *)x)[from];
            else if (frame.wide)
                wide *= ((const double *)x)[from];
            else {
                narrow *= ((const float *)x)[from];
                lb_frame_round(&frame, &narrow, 1, call->results[0].dtype);
            }
        }
        if (integer)
            ((int64_t *)y)[i] = (int64_t)integers;
        else if (frame.wide)
            ((double *)y)[i] = wide;
        else
            ((float *)y)[i] = narrow;
    }
    return lb_frame_end(&frame);
}

/* |y|: relative errors of factors add up, and there is no cancellation. But a product on the way may underflow, in
 * whatever order it is taken, and what it loses is magnified by the other factors; or overflow, and then nothing is
 * said. */
static lb_status product_twin(lb_call *call, uint32_t dims_arg)
{
    lb_frame frame = lb_frame_begin(call);
    lb_fold fold = fold_of(call, dims_arg);
    const lb_dtype dtype = fold.view.dtype, wide = dtype == LB_F64 ? LB_F64 : LB_F32;
    const double *x = lb_frame_tensor(&frame, &fold.view), scale = lb_frame_twin_scale(call, 0);
    double *y = lb_frame_output(&frame, 0, fold.results);
    const double step = lb_dtype_is_float(dtype) ? lb_dtype_min_subnormal(dtype) : 0,
                 limit = lb_dtype_is_float(dtype) ? lb_dtype_max_finite(dtype) : FLT_MAX;
    for (int64_t i = 0; lb_frame_ok(&frame) && i < fold.results; i++) {
        int64_t from = i / fold.inner * fold.size * fold.inner + i % fold.inner;
        double magnitude = 1, larger = 1;
        for (int64_t k = 0; k < fold.size; k++, from += fold.inner) {
            magnitude *= fabs(x[from]);
            if (!(fabs(x[from]) <= 1)) larger *= fabs(x[from]); /* the largest product of some of the factors */
        }
        const bool overflows = larger > limit && !isinf(magnitude) && !isnan(magnitude);
        y[i] = overflows ? (wide == LB_F64 ? DBL_MAX : 0x1p128)
                         : magnitude * scale + larger * step / lb_dtype_unit_roundoff(wide);
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(prod, twin ? product_twin(call, NO_DIMS) : product(call, NO_DIMS))
LB_WITH_TWIN(prod_dim, twin ? product_twin(call, 1) : product(call, 1))

#define VALUE LB_ROW_EXACT
#define CHOICE (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS)
#define POSITION (CHOICE | LB_ROW_CHOOSES)
const lb_op_row lb_rows_extremum[] = {
    {.name = "aten::max", .args = "self!", .kernel = max, .flags = VALUE, .samples = "extreme"},
    {.name = "aten::min", .args = "self!", .kernel = min, .flags = VALUE, .samples = "extreme"},
    {.name = "aten::amax", .args = "self! dim keepdim", .kernel = amax, .flags = VALUE, .samples = "extreme_dims"},
    {.name = "aten::amin", .args = "self! dim keepdim", .kernel = amin, .flags = VALUE, .samples = "extreme_dims"},
    {.name = "aten::max.dim",
     .args = "self! dim keepdim",
     .kernel = max_dim,
     .flags = POSITION,
     .samples = "extreme_dim"},
    {.name = "aten::min.dim",
     .args = "self! dim keepdim",
     .kernel = min_dim,
     .flags = POSITION,
     .samples = "extreme_dim"},
    {.name = "aten::argmax",
     .args = "self! dim keepdim",
     .kernel = argmax,
     .flags = POSITION,
     .samples = "extreme_dim none"},
    {.name = "aten::argmin",
     .args = "self! dim keepdim",
     .kernel = argmin,
     .flags = POSITION,
     .samples = "extreme_dim none"},
    {.name = "aten::aminmax", .args = "self! dim keepdim", .kernel = aminmax, .flags = VALUE, .samples = "aminmax"},
    {.name = "aten::any", .args = "self!", .kernel = any, .flags = CHOICE, .samples = "truth"},
    {.name = "aten::any.dim", .args = "self! dim keepdim", .kernel = any_dim, .flags = CHOICE, .samples = "truth dim"},
    {.name = "aten::any.dims",
     .args = "self! dim keepdim",
     .kernel = any_dim,
     .flags = CHOICE,
     .samples = "truth dims"},
    {.name = "aten::all", .args = "self!", .kernel = all, .flags = CHOICE, .samples = "truth"},
    {.name = "aten::all.dim", .args = "self! dim keepdim", .kernel = all_dim, .flags = CHOICE, .samples = "truth dim"},
    {.name = "aten::all.dims",
     .args = "self! dim keepdim",
     .kernel = all_dim,
     .flags = CHOICE,
     .samples = "truth dims"},
    {.name = "aten::_is_all_true", .args = "self!", .kernel = all, .flags = CHOICE, .samples = "truth bool"},
    {.name = "aten::_is_any_true", .args = "self!", .kernel = any, .flags = CHOICE, .samples = "truth bool"},
    {.name = "aten::prod",
     .args = "self! dtype",
     LB_COMPUTED_BY(prod),
     .roundings = 1,
     .roundings_per_term = 1,
     .flags = LB_ROW_REDUCTION,
     .samples = "prod"},
    {.name = "aten::prod.dim_int",
     .args = "self! dim keepdim dtype",
     LB_COMPUTED_BY(prod_dim),
     .roundings = 1,
     .roundings_per_term = 1,
     .flags = LB_ROW_REDUCTION,
     .samples = "prod_dim"},
    {NULL},
};
