/* Folding dimensions; see fold.h. Threads take whole results, so their number cannot change a bit. */
#include "kernel/fold.h"

#include <string.h>

#define PARALLEL_ELEMENTS 65536
#define COLUMNS 64

uint32_t lb_fold_dims(const lb_call *call, uint32_t i, int ndim)
{
    int64_t dims[LB_MAX_DIMS];
    int n = lb_frame_arg_ints(call, i, dims, LB_MAX_DIMS);
    uint32_t all = ndim ? (uint32_t)((1ull << ndim) - 1) : 0, bits = 0;
    if (!n) return all;
    for (int k = 0; k < n; k++) {
        int d = lb_frame_wrap_dim(dims[k], ndim);
        if (d >= 0) bits |= 1u << d;
    }
    return bits & all;
}

lb_fold lb_fold_of(const lb_tensor *in, uint32_t reduced)
{
    lb_fold fold = {.view = *in, .reduced = reduced, .outer = 1, .size = 1, .inner = 1};
    const lb_layout *layout = &in->layout;
    int first = -1, last = -1;
    bool split = false;
    for (int d = 0; d < layout->ndim; d++) {
        if (layout->shape[d] == 1) continue;
        if (!(reduced >> d & 1)) continue;
        if (first < 0) first = d;
        last = d;
    }
    for (int d = first; first >= 0 && d <= last; d++) split |= layout->shape[d] != 1 && !(reduced >> d & 1);
    for (int d = 0; d < layout->ndim; d++) {
        bool sum = reduced >> d & 1;
        if (sum)
            fold.size *= layout->shape[d];
        else if (split || first < 0 || d < first)
            fold.outer *= layout->shape[d];
        else
            fold.inner *= layout->shape[d];
    }
    fold.results = fold.outer * fold.inner;
    if (!split) return fold;
    int n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d < layout->ndim; d++) {
            if ((reduced >> d & 1) != (uint32_t)pass) continue;
            fold.view.layout.shape[n] = layout->shape[d];
            fold.view.layout.stride[n++] = layout->stride[d];
        }
    return fold;
}

void lb_fold_strides(const lb_fold *fold, const lb_tensor *in, const lb_tensor *result, int64_t *stride)
{
    bool kept = result->layout.ndim == in->layout.ndim;
    for (int d = 0, r = 0; d < in->layout.ndim; d++) {
        bool sum = fold->reduced >> d & 1;
        stride[d] = sum ? 0 : result->layout.stride[kept ? d : r];
        r += !sum;
    }
}

#define DEFINE_FOLD_SUM(REAL, SUFFIX)                                                                                  \
    void lb_fold_sum_##SUFFIX(const lb_fold *fold, const REAL *x, const lb_schedule *schedule, lb_dtype accumulate,    \
                              REAL *out)                                                                               \
    {                                                                                                                  \
        int64_t n = fold->size, inner = fold->inner, pieces = (inner + COLUMNS - 1) / COLUMNS;                         \
        _Pragma("omp parallel for schedule(static) if (fold->results * n > PARALLEL_ELEMENTS)") for (int64_t task = 0; \
                                                                                                     task <            \
                                                                                                     fold->outer *     \
                                                                                                         pieces;       \
                                                                                                     task++)           \
        {                                                                                                              \
            int64_t o = task / pieces, j = task % pieces * COLUMNS;                                                    \
            int64_t width = inner - j < COLUMNS ? inner - j : COLUMNS;                                                 \
            const REAL *from = x + o * n * inner + j;                                                                  \
            if (inner == 1)                                                                                            \
                out[o] = lb_schedule_sum_##SUFFIX(schedule, from, n, accumulate);                                      \
            else                                                                                                       \
                lb_schedule_sum_columns_##SUFFIX(schedule, from, inner, n, width, out + o * inner + j, accumulate);    \
        }                                                                                                              \
    }
DEFINE_FOLD_SUM(float, f32)
DEFINE_FOLD_SUM(double, f64)
