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

static bool extremes_begin(extremes *e, lb_call *call, uint32_t dims_arg)
{
    e->frame = lb_frame_begin(call);
    e->fold = fold_of(call, dims_arg);
    bool integer = lb_dtype_is_integer(lb_frame_arg_tensor(call, 0)->dtype);
    e->type = integer ? I64 : e->frame.wide ? F64 : F32;
    e->x =
        integer ? (const void *)lb_frame_integers(&e->frame, &e->fold.view) : lb_frame_tensor(&e->frame, &e->fold.view);
    if (e->fold.size == 0 && e->fold.results > 0) lb_frame_fail(&e->frame, LB_ERR_INVALID, "extreme of nothing");
    return lb_frame_ok(&e->frame);
}

static void *values_output(extremes *e, uint32_t r)
{
    return e->type == I64 ? (void *)lb_frame_output_integers(&e->frame, r, e->fold.results)
                          : lb_frame_output(&e->frame, r, e->fold.results);
}

#define COLUMNS 256
static void columns(const extremes *e, int64_t from, int64_t to, int64_t width, bool largest, void *y, int64_t *at)
{
    int64_t n = e->fold.size, inner = e->fold.inner;
    if (e->type == F32)
        extremum_columns_f32((const float *)e->x + from, n, inner, width, largest, (float *)y + to, at + to);
    else if (e->type == F64)
        extremum_columns_f64((const double *)e->x + from, n, inner, width, largest, (double *)y + to, at + to);
    else
        extremum_columns_i64((const int64_t *)e->x + from, n, inner, width, largest, (int64_t *)y + to, at + to);
}

static void one(const extremes *e, int64_t from, int64_t to, bool largest, void *y, int64_t *at)
{
    int64_t n = e->fold.size;
    if (e->type == F32) {
        const float *x = (const float *)e->x + from;
        ((float *)y)[to] = x[at[to] = extremum_f32(x, n, 1, largest)];
    } else if (e->type == F64) {
        const double *x = (const double *)e->x + from;
        ((double *)y)[to] = x[at[to] = extremum_f64(x, n, 1, largest)];
    } else {
        const int64_t *x = (const int64_t *)e->x + from;
        ((int64_t *)y)[to] = x[at[to] = extremum_i64(x, n, 1, largest)];
    }
}

/* All extremes and their positions. */
static void find(const extremes *e, bool largest, void *y, int64_t *at)
{
    int64_t inner = e->fold.inner, n = e->fold.size, pieces = (inner + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for schedule(static) if (e->fold.results * n > PARALLEL_ELEMENTS)
    for (int64_t task = 0; task < e->fold.outer * pieces; task++) {
        int64_t o = task / pieces, j = task % pieces * COLUMNS;
        int64_t width = inner - j < COLUMNS ? inner - j : COLUMNS;
        if (inner == 1)
            one(e, o * n, o, largest, y, at);
        else
            columns(e, o * n * inner + j, o * inner + j, width, largest, y, at);
    }
}

/* The positions that were recorded, where they are as good, and the values there. */
static void follow(extremes *e, uint32_t at_result, void *y, int64_t *at)
{
    const lb_tied_choice choice = {.frame = &e->frame,
                                   .integer = e->type == I64,
                                   .rows = e->fold.results,
                                   .n = e->fold.size,
                                   .inner = e->fold.inner,
                                   .k = 1,
                                   .x = e->x,
                                   .at = at};
    lb_tied_choice_follow(&choice, at_result, -1);
    for (int64_t r = 0; lb_frame_ok(&e->frame) && r < e->fold.results; r++) {
        const int64_t from = (r / e->fold.inner * e->fold.size + at[r]) * e->fold.inner + r % e->fold.inner;
        if (e->type == I64)
            ((int64_t *)y)[r] = ((const int64_t *)e->x)[from];
        else
            lb_frame_set(&e->frame, y, r, lb_frame_get(&e->frame, e->x, from));
    }
}

/* Results: values in `value_result`, positions in `at_result`; -1: not asked for. */
static lb_status extremum(lb_call *call, uint32_t dims_arg, bool largest, int value_result, int at_result)
{
    extremes e;
    if (extremes_begin(&e, call, dims_arg)) {
        void *y = value_result >= 0 ? values_output(&e, (uint32_t)value_result)
                                    : lb_frame_scratch(&e.frame, (size_t)e.fold.results * 8);
        int64_t *at = at_result >= 0 ? lb_frame_output_integers(&e.frame, (uint32_t)at_result, e.fold.results)
                                     : lb_frame_scratch(&e.frame, (size_t)e.fold.results * 8);
        if (lb_frame_ok(&e.frame)) find(&e, largest, y, at);
        if (lb_frame_ok(&e.frame) && at_result >= 0) follow(&e, (uint32_t)at_result, y, at);
    }
    return lb_frame_end(&e.frame);
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

static bool is_true(const extremes *e, int64_t i)
{
    return e->type == I64   ? ((const int64_t *)e->x)[i] != 0
           : e->type == F64 ? ((const double *)e->x)[i] != 0
                            : ((const float *)e->x)[i] != 0;
}

static lb_status quantify(lb_call *call, uint32_t dims_arg, bool every)
{
    extremes e = {.frame = lb_frame_begin(call), .fold = fold_of(call, dims_arg)};
    bool integer = lb_dtype_is_integer(lb_frame_arg_tensor(call, 0)->dtype);
    e.type = integer ? I64 : e.frame.wide ? F64 : F32;
    e.x = integer ? (const void *)lb_frame_integers(&e.frame, &e.fold.view) : lb_frame_tensor(&e.frame, &e.fold.view);
    int64_t *y = lb_frame_output_integers(&e.frame, 0, e.fold.results);
    for (int64_t i = 0; lb_frame_ok(&e.frame) && i < e.fold.results; i++) {
        int64_t from = i / e.fold.inner * e.fold.size * e.fold.inner + i % e.fold.inner;
        bool found = false;
        for (int64_t k = 0; k < e.fold.size && !found; k++) found = is_true(&e, from + k * e.fold.inner) != every;
        y[i] = found != every;
    }
    return lb_frame_end(&e.frame);
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
    lb_frame f = lb_frame_begin(call);
    lb_fold fold = fold_of(call, dims_arg);
    bool integer = lb_dtype_is_integer(call->results[0].dtype);
    const void *x = integer ? (const void *)lb_frame_integers(&f, &fold.view) : lb_frame_tensor(&f, &fold.view);
    void *y = integer ? (void *)lb_frame_output_integers(&f, 0, fold.results) : lb_frame_output(&f, 0, fold.results);
    for (int64_t i = 0; lb_frame_ok(&f) && i < fold.results; i++) {
        int64_t from = i / fold.inner * fold.size * fold.inner + i % fold.inner;
        uint64_t integers = 1;
        double wide = 1;
        float narrow = 1;
        for (int64_t k = 0; k < fold.size; k++, from += fold.inner) {
            if (integer)
                integers *= (uint64_t)((const int64_t *)x)[from];
            else if (f.wide)
                wide *= ((const double *)x)[from];
            else {
                narrow *= ((const float *)x)[from];
                lb_frame_round(&f, &narrow, 1, call->results[0].dtype);
            }
        }
        if (integer)
            ((int64_t *)y)[i] = (int64_t)integers;
        else if (f.wide)
            ((double *)y)[i] = wide;
        else
            ((float *)y)[i] = narrow;
    }
    return lb_frame_end(&f);
}

/* |y|: relative errors of factors add up, and there is no cancellation. But a product on the way may underflow, in
 * whatever order it is taken, and what it loses is magnified by the other factors; or overflow, and then nothing is
 * said. */
static lb_status product_twin(lb_call *call, uint32_t dims_arg)
{
    lb_frame f = lb_frame_begin(call);
    lb_fold fold = fold_of(call, dims_arg);
    const lb_dtype dtype = fold.view.dtype, wide = dtype == LB_F64 ? LB_F64 : LB_F32;
    const double *x = lb_frame_tensor(&f, &fold.view), scale = lb_frame_twin_scale(call, 0);
    double *y = lb_frame_output(&f, 0, fold.results);
    const double step = lb_dtype_is_float(dtype) ? lb_dtype_min_subnormal(dtype) : 0,
                 limit = lb_dtype_is_float(dtype) ? lb_dtype_max_finite(dtype) : FLT_MAX;
    for (int64_t i = 0; lb_frame_ok(&f) && i < fold.results; i++) {
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
    return lb_frame_end(&f);
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
