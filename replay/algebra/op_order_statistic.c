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
static bool statistic_begin(statistic *statistic, lb_call *call, uint32_t dim_arg)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    int64_t dim =
        dim_arg && self->layout.ndim ? lb_frame_wrap_dim(lb_frame_arg_int(call, dim_arg, -1), self->layout.ndim) : 0;
    statistic->frame = lb_frame_begin(call);
    if (dim < 0) {
        lb_frame_fail(&statistic->frame, LB_ERR_INVALID, "no such dimension");
        return false;
    }
    statistic->fold = lb_fold_of(self, dim_arg && self->layout.ndim ? 1u << dim : (1u << self->layout.ndim) - 1);
    statistic->integer = lb_dtype_is_integer(self->dtype);
    statistic->x = statistic->integer ? (const void *)lb_frame_integers(&statistic->frame, &statistic->fold.view)
                                      : lb_frame_tensor(&statistic->frame, &statistic->fold.view);
    statistic->y = statistic->integer ? (void *)lb_frame_output_integers(&statistic->frame, 0, statistic->fold.results)
                                      : lb_frame_output(&statistic->frame, 0, statistic->fold.results);
    statistic->at =
        dim_arg ? lb_frame_output_integers(&statistic->frame, 1, statistic->fold.results)
                : lb_frame_scratch(&statistic->frame, (size_t)statistic->fold.results * sizeof *statistic->at + 1);
    statistic->row = lb_frame_scratch(&statistic->frame, (size_t)statistic->fold.size * sizeof *statistic->row + 1);
    if (statistic->fold.size == 0 && statistic->fold.results > 0)
        lb_frame_fail(&statistic->frame, LB_ERR_INVALID, "a statistic of nothing");
    return lb_frame_ok(&statistic->frame);
}

static int64_t place(const statistic *statistic, int64_t row, int64_t index)
{
    return (row / statistic->fold.inner * statistic->fold.size + index) * statistic->fold.inner +
           row % statistic->fold.inner;
}

static void load(statistic *statistic, int64_t row)
{
    for (int64_t i = 0; i < statistic->fold.size; i++) {
        const int64_t from = place(statistic, row, i);
        statistic->row[i] = (item){statistic->integer ? 0 : lb_frame_get(&statistic->frame, statistic->x, from),
                                   statistic->integer ? ((const int64_t *)statistic->x)[from] : 0, i};
    }
}

/* The recorded positions where they are as good, and the values there. `has_index`: result 1 holds them. */
static lb_status statistic_end(statistic *statistic, bool has_index)
{
    const lb_tied_choice choice = {.frame = &statistic->frame,
                                   .integer = statistic->integer,
                                   .rows = statistic->fold.results,
                                   .n = statistic->fold.size,
                                   .inner = statistic->fold.inner,
                                   .k = 1,
                                   .x = statistic->x,
                                   .at = statistic->at};
    if (lb_frame_ok(&statistic->frame) && has_index) lb_tied_choice_follow(&choice, 1, -1);
    for (int64_t r = 0; lb_frame_ok(&statistic->frame) && r < statistic->fold.results; r++) {
        const int64_t from = place(statistic, r, statistic->at[r]);
        if (statistic->integer)
            ((int64_t *)statistic->y)[r] = ((const int64_t *)statistic->x)[from];
        else
            lb_frame_set(&statistic->frame, statistic->y, r, lb_frame_get(&statistic->frame, statistic->x, from));
    }
    return lb_frame_end(&statistic->frame);
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
    statistic statistic;
    const int64_t k = lb_frame_arg_int(call, 1, 1);
    if (!statistic_begin(&statistic, call, 2)) return lb_frame_end(&statistic.frame);
    if (statistic.fold.results && (k < 1 || k > statistic.fold.size))
        lb_frame_fail(&statistic.frame, LB_ERR_INVALID, "k is out of range");
    for (int64_t r = 0; lb_frame_ok(&statistic.frame) && r < statistic.fold.results; r++) {
        load(&statistic, r);
        quick_select(statistic.row, statistic.fold.size, k - 1);
        statistic.at[r] = statistic.row[k - 1].index;
    }
    return statistic_end(&statistic, true);
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
    statistic statistic;
    if (!statistic_begin(&statistic, call, dim_arg)) return lb_frame_end(&statistic.frame);
    for (int64_t r = 0; r < statistic.fold.results; r++) {
        const int64_t n = statistic.fold.size;
        int64_t nans = 0;
        load(&statistic, r);
        for (int64_t i = 0; i < n; i++) nans += isnan(statistic.row[i].real);
        qsort(statistic.row, (size_t)n, sizeof *statistic.row, stable);
        if (nans && !without_nan)
            statistic.at[r] = statistic.row[n - nans].index;
        else
            statistic.at[r] = statistic.row[nans == n ? 0 : (n - nans - 1) / 2].index;
    }
    return statistic_end(&statistic, dim_arg != 0);
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
    statistic statistic;
    if (!statistic_begin(&statistic, call, 1)) return lb_frame_end(&statistic.frame);
    for (int64_t r = 0; lb_frame_ok(&statistic.frame) && r < statistic.fold.results; r++) {
        int64_t most = 0;
        load(&statistic, r);
        for (int64_t i = 0; i < statistic.fold.size; i++)
            if (isnan(statistic.row[i].real))
                lb_frame_fail(&statistic.frame, LB_ERR_UNSUPPORTED, "the mode of a row with NaN");
        qsort(statistic.row, (size_t)statistic.fold.size, sizeof *statistic.row, stable);
        for (int64_t i = 0, from = 0; i < statistic.fold.size; i++) {
            const bool last = i + 1 == statistic.fold.size || greater(&statistic.row[i + 1], &statistic.row[i]);
            if (!last) continue;
            if (i + 1 - from > most) most = i + 1 - from, statistic.at[r] = statistic.row[i].index;
            from = i + 1;
        }
    }
    return statistic_end(&statistic, true);
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
