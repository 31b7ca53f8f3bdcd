/* Order statistics: the k-th value, the median, the most frequent value.
 *
 * Values are the same everywhere. Which of equal elements the index names is as was recorded (tied_choice.h), else as
 * torch's CPU kernels have it: for kthvalue what Sedgewick's quick select leaves (aten/src/ATen/native/Sorting.cpp,
 * quick_select_template), for a median the first in a stable order (median_with_indices_impl), for a mode the last that
 * a sort leaves (cpu/TensorCompareKernel.cpp, mode_kernel_impl). */
#include "kernel/fold.h"
#include "kernel/tied_choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct item {
    double real;
    int64_t integer, index;
} item;

typedef struct statistic {
    lb_frame frame;
    lb_fold fold;
    bool integer;
    const void *x;
    void *y;
    int64_t *at;
    item *row;
} statistic;

/* Args: self and, at `dim_arg`, the dimension; 0: all elements are one row, and there is no index. */
static bool statistic_begin(statistic *s, lb_call *call, uint32_t dim_arg)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    int64_t dim =
        dim_arg && self->layout.ndim ? lb_frame_wrap_dim(lb_frame_arg_int(call, dim_arg, -1), self->layout.ndim) : 0;
    s->frame = lb_frame_begin(call);
    if (dim < 0) {
        lb_frame_fail(&s->frame, LB_ERR_INVALID, "no such dimension");
        return false;
    }
    s->fold = lb_fold_of(self, dim_arg && self->layout.ndim ? 1u << dim : (1u << self->layout.ndim) - 1);
    s->integer = lb_dtype_is_integer(self->dtype);
    s->x = s->integer ? (const void *)lb_frame_integers(&s->frame, &s->fold.view)
                      : lb_frame_tensor(&s->frame, &s->fold.view);
    s->y = s->integer ? (void *)lb_frame_output_integers(&s->frame, 0, s->fold.results)
                      : lb_frame_output(&s->frame, 0, s->fold.results);
    s->at = dim_arg ? lb_frame_output_integers(&s->frame, 1, s->fold.results)
                    : lb_frame_scratch(&s->frame, (size_t)s->fold.results * sizeof *s->at + 1);
    s->row = lb_frame_scratch(&s->frame, (size_t)s->fold.size * sizeof *s->row + 1);
    if (s->fold.size == 0 && s->fold.results > 0) lb_frame_fail(&s->frame, LB_ERR_INVALID, "a statistic of nothing");
    return lb_frame_ok(&s->frame);
}

static int64_t place(const statistic *s, int64_t row, int64_t index)
{
    return (row / s->fold.inner * s->fold.size + index) * s->fold.inner + row % s->fold.inner;
}

static void load(statistic *s, int64_t row)
{
    for (int64_t i = 0; i < s->fold.size; i++) {
        const int64_t from = place(s, row, i);
        s->row[i] = (item){s->integer ? 0 : lb_frame_get(&s->frame, s->x, from),
                           s->integer ? ((const int64_t *)s->x)[from] : 0, i};
    }
}

/* The recorded positions where they are as good, and the values there. `has_index`: result 1 holds them. */
static lb_status statistic_end(statistic *s, bool has_index)
{
    const lb_tied_choice choice = {.frame = &s->frame,
                                   .integer = s->integer,
                                   .rows = s->fold.results,
                                   .n = s->fold.size,
                                   .inner = s->fold.inner,
                                   .k = 1,
                                   .x = s->x,
                                   .at = s->at};
    if (lb_frame_ok(&s->frame) && has_index) lb_tied_choice_follow(&choice, 1, -1);
    for (int64_t r = 0; lb_frame_ok(&s->frame) && r < s->fold.results; r++) {
        const int64_t from = place(s, r, s->at[r]);
        if (s->integer)
            ((int64_t *)s->y)[r] = ((const int64_t *)s->x)[from];
        else
            lb_frame_set(&s->frame, s->y, r, lb_frame_get(&s->frame, s->x, from));
    }
    return lb_frame_end(&s->frame);
}

/* NaN is the greatest. */
static bool greater(const item *a, const item *b)
{
    if (a->integer != b->integer) return a->integer > b->integer;
    return (isnan(a->real) && !isnan(b->real)) || a->real > b->real;
}

/* ---- kthvalue ---------------------------------------------------------------------------------------------------- */

static void exchange(item *x, int64_t i, int64_t j)
{
    const item t = x[i];
    x[i] = x[j], x[j] = t;
}

/* Afterwards x[k] is the k-th in ascending order. A median of three is the pivot, and stops the inner loops at both
 * ends. */
static void quick_select(item *x, int64_t n, int64_t k)
{
    int64_t low = 0, high = n - 1;
    while (high > low + 1) {
        exchange(x, (low + high) / 2, low + 1);
        if (greater(&x[low + 1], &x[high])) exchange(x, low + 1, high);
        if (greater(&x[low], &x[high])) exchange(x, low, high);
        if (greater(&x[low + 1], &x[low])) exchange(x, low + 1, low);
        const item pivot = x[low];
        int64_t i = low + 1, j = high;
        while (true) {
            do i++;
            while (greater(&pivot, &x[i]));
            do j--;
            while (greater(&x[j], &pivot));
            if (j < i) break;
            exchange(x, i, j);
        }
        exchange(x, low, j);
        if (j <= k) low = i;
        if (j >= k) high = j - 1;
    }
    if (high == low + 1 && greater(&x[low], &x[high])) exchange(x, low, high);
}

/* Args: self, k, dim, keepdim. */
static lb_status kthvalue(lb_call *call)
{
    statistic s;
    const int64_t k = lb_frame_arg_int(call, 1, 1);
    if (!statistic_begin(&s, call, 2)) return lb_frame_end(&s.frame);
    if (s.fold.results && (k < 1 || k > s.fold.size)) lb_frame_fail(&s.frame, LB_ERR_INVALID, "k is out of range");
    for (int64_t r = 0; lb_frame_ok(&s.frame) && r < s.fold.results; r++) {
        load(&s, r);
        quick_select(s.row, s.fold.size, k - 1);
        s.at[r] = s.row[k - 1].index;
    }
    return statistic_end(&s, true);
}

/* ---- medians ----------------------------------------------------------------------------------------------------- */

static int stable(const void *first, const void *second)
{
    const item *a = first, *b = second;
    if (greater(a, b)) return 1;
    if (greater(b, a)) return -1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* The lower of two in the middle. A NaN is the median, the first of them, unless they are left out. */
static lb_status median_run(lb_call *call, uint32_t dim_arg, bool without_nan)
{
    statistic s;
    if (!statistic_begin(&s, call, dim_arg)) return lb_frame_end(&s.frame);
    for (int64_t r = 0; r < s.fold.results; r++) {
        const int64_t n = s.fold.size;
        int64_t nans = 0;
        load(&s, r);
        for (int64_t i = 0; i < n; i++) nans += isnan(s.row[i].real);
        qsort(s.row, (size_t)n, sizeof *s.row, stable);
        if (nans && !without_nan)
            s.at[r] = s.row[n - nans].index;
        else
            s.at[r] = s.row[nans == n ? 0 : (n - nans - 1) / 2].index;
    }
    return statistic_end(&s, dim_arg != 0);
}

static lb_status median(lb_call *call)
{
    return median_run(call, 0, false);
}
static lb_status median_dim(lb_call *call)
{
    return median_run(call, 1, false);
}
static lb_status nanmedian(lb_call *call)
{
    return median_run(call, 0, true);
}
static lb_status nanmedian_dim(lb_call *call)
{
    return median_run(call, 1, true);
}

/* ---- mode -------------------------------------------------------------------------------------------------------- */

/* Args: self, dim, keepdim. The least of the most frequent values. NaN equals nothing there, itself neither, and what a
 * sort by < does with it is undefined. */
static lb_status mode(lb_call *call)
{
    statistic s;
    if (!statistic_begin(&s, call, 1)) return lb_frame_end(&s.frame);
    for (int64_t r = 0; lb_frame_ok(&s.frame) && r < s.fold.results; r++) {
        int64_t most = 0;
        load(&s, r);
        for (int64_t i = 0; i < s.fold.size; i++)
            if (isnan(s.row[i].real)) lb_frame_fail(&s.frame, LB_ERR_UNSUPPORTED, "the mode of a row with NaN");
        qsort(s.row, (size_t)s.fold.size, sizeof *s.row, stable);
        for (int64_t i = 0, from = 0; i < s.fold.size; i++) {
            const bool last = i + 1 == s.fold.size || greater(&s.row[i + 1], &s.row[i]);
            if (!last) continue;
            if (i + 1 - from > most) most = i + 1 - from, s.at[r] = s.row[i].index;
            from = i + 1;
        }
    }
    return statistic_end(&s, true);
}

#define STATISTIC(NAME, ARGS, KERNEL, FLAGS, SAMPLES)                                                                  \
    {.name = "aten::" NAME, .args = ARGS, .kernel = KERNEL, .flags = LB_ROW_EXACT | (FLAGS), .samples = SAMPLES}
#define CHOICE (LB_ROW_DISCONTINUOUS | LB_ROW_CHOOSES)
const lb_op_row lb_rows_order_statistic[] = {
    STATISTIC("kthvalue", "self! k dim keepdim", kthvalue, CHOICE, "kthvalue"),
    STATISTIC("median", "self!", median, 0, "median"),
    STATISTIC("median.dim", "self! dim keepdim", median_dim, CHOICE, "extreme_dim"),
    STATISTIC("nanmedian", "self!", nanmedian, 0, "median"),
    STATISTIC("nanmedian.dim", "self! dim keepdim", nanmedian_dim, CHOICE, "extreme_dim"),
    STATISTIC("mode", "self! dim keepdim", mode, CHOICE, "mode"),
    {NULL},
};
