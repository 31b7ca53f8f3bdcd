/* Distinct elements, or slices along a dimension: unique, sorted or of what stands side by side.
 *
 * NaN counts as the greatest value and equals nothing, itself neither; -0 equals +0, and the first of equals is kept.
 * Results have as many elements as were recorded: another number is refused. */
#include "kernel/frame.h"

#include <math.h>
#include <string.h>

/* `slices` of `size` elements each: element e of slice s is x[e * slices + s]. */
typedef struct distinct {
    lb_frame frame;
    bool integer;
    int64_t slices, size, kept;
    const void *x;
    lb_tensor values;
    void *y;
    int64_t *inverse, *counts; /* NULL: not asked for */
} distinct;

/* Which arguments say what; NONE: it has none. */
typedef struct distinct_args {
    uint32_t dim;
    bool sorts, by_slices;
} distinct_args;
enum { NONE = 99 };

static int64_t *wanted(distinct *distinct, uint32_t result, int64_t most)
{
    const lb_call *call = distinct->frame.call;
    if (result >= call->n_results || !call->results[result].data || !lb_tensor_numel(&call->results[result]))
        return NULL;
    const int64_t room = lb_tensor_numel(&call->results[result]);
    if (room > most || room < (result == 1 ? most : 0)) {
        lb_frame_fail(&distinct->frame, LB_ERR_INVALID, "a recorded result has another number of elements");
        return NULL;
    }
    return lb_frame_output_integers(&distinct->frame, result, room);
}

static bool distinct_begin(distinct *begun, lb_call *call, const distinct_args *at)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    const bool along = at->by_slices && at->dim != NONE && lb_frame_arg_given(call, at->dim);
    const int dim = along ? lb_frame_wrap_dim(lb_frame_arg_int(call, at->dim, 0), self->layout.ndim) : -1;
    *begun = (distinct){.frame = lb_frame_begin(call), .integer = lb_dtype_is_integer(self->dtype)};
    if (along && (dim < 0 || self->layout.ndim < 1 || call->results[0].layout.ndim != self->layout.ndim)) {
        lb_frame_fail(&begun->frame, LB_ERR_INVALID, "no such dimension");
        return false;
    }
    const lb_tensor moved = along ? lb_frame_dim_last(self, dim) : *self;
    begun->values = along ? lb_frame_dim_last(&call->results[0], dim) : call->results[0];
    begun->slices = along ? self->layout.shape[dim] : lb_tensor_numel(self);
    begun->size = !along ? 1 : begun->slices ? lb_tensor_numel(self) / begun->slices : 0;
    begun->kept = along ? call->results[0].layout.shape[dim] : lb_tensor_numel(&call->results[0]);
    begun->x = begun->integer ? (const void *)lb_frame_integers(&begun->frame, &moved)
                              : lb_frame_tensor(&begun->frame, &moved);
    if (begun->kept > begun->slices)
        lb_frame_fail(&begun->frame, LB_ERR_INVALID, "a recorded result has another number of elements");
    if (!lb_frame_ok(&begun->frame)) return false;
    begun->y = begun->integer
                   ? (void *)lb_frame_output_view_integers(&begun->frame, &begun->values, begun->kept * begun->size)
                   : lb_frame_output_view(&begun->frame, &begun->values, begun->kept * begun->size);
    begun->inverse = wanted(begun, 1, begun->slices);
    begun->counts = wanted(begun, 2, begun->kept);
    return lb_frame_ok(&begun->frame);
}

/* -1, 0, 1 as the slices are ordered; `same`: whether they are equal, which NaN is not. */
static int compare(const distinct *distinct, int64_t a, int64_t b, bool *same)
{
    *same = true;
    for (int64_t e = 0; e < distinct->size; e++) {
        const int64_t i = e * distinct->slices + a, k = e * distinct->slices + b;
        if (distinct->integer) {
            const int64_t x = ((const int64_t *)distinct->x)[i], y = ((const int64_t *)distinct->x)[k];
            if (x == y) continue;
            *same = false;
            return x < y ? -1 : 1;
        }
        const double x = lb_frame_get(&distinct->frame, distinct->x, i),
                     y = lb_frame_get(&distinct->frame, distinct->x, k);
        if (x == y) continue;
        *same = false;
        if (isnan(x) || isnan(y)) {
            if (isnan(x) && isnan(y)) continue;
            return isnan(y) ? -1 : 1;
        }
        return x < y ? -1 : 1;
    }
    return 0;
}

static bool is_before(const distinct *distinct, int64_t a, int64_t b)
{
    bool same;
    return compare(distinct, a, b, &same) < 0;
}

/* Stable, so that the first of equals is the first in memory. */
static int64_t *sort_slices(distinct *distinct)
{
    const size_t bytes = (size_t)distinct->slices * sizeof(int64_t);
    int64_t *from = lb_frame_scratch(&distinct->frame, bytes + 1), *to = lb_frame_scratch(&distinct->frame, bytes + 1);
    if (!lb_frame_ok(&distinct->frame)) return NULL;
    for (int64_t i = 0; i < distinct->slices; i++) from[i] = i;
    for (int64_t width = 1; width < distinct->slices; width *= 2) {
        for (int64_t low = 0; low < distinct->slices; low += 2 * width) {
            const int64_t middle = low + width < distinct->slices ? low + width : distinct->slices,
                          high = low + 2 * width < distinct->slices ? low + 2 * width : distinct->slices;
            int64_t a = low, b = middle;
            for (int64_t i = low; i < high; i++)
                to[i] = b >= high || (a < middle && !is_before(distinct, from[b], from[a])) ? from[a++] : from[b++];
        }
        int64_t *swap = from;
        from = to, to = swap;
    }
    return from;
}

static void keep_slice(distinct *distinct, int64_t place, int64_t slice)
{
    for (int64_t e = 0; e < distinct->size; e++) {
        const int64_t to = e * distinct->kept + place, from = e * distinct->slices + slice;
        if (distinct->integer)
            ((int64_t *)distinct->y)[to] = ((const int64_t *)distinct->x)[from];
        else
            lb_frame_set(&distinct->frame, distinct->y, to, lb_frame_get(&distinct->frame, distinct->x, from));
    }
}

static lb_status run(lb_call *call, distinct_args at)
{
    distinct distinct;
    if (!distinct_begin(&distinct, call, &at)) return lb_frame_end(&distinct.frame);
    const int64_t *order = at.sorts ? sort_slices(&distinct) : NULL;
    int64_t found = 0;
    for (int64_t i = 0; lb_frame_ok(&distinct.frame) && i < distinct.slices; i++) {
        const int64_t slice = order ? order[i] : i;
        bool same = false;
        if (i) compare(&distinct, order ? order[i - 1] : i - 1, slice, &same);
        if (!same && found++ < distinct.kept) {
            keep_slice(&distinct, found - 1, slice);
            if (distinct.counts && found <= lb_tensor_numel(&call->results[2])) distinct.counts[found - 1] = 0;
        }
        if (found > distinct.kept) break;
        if (distinct.inverse) distinct.inverse[slice] = found - 1;
        if (distinct.counts && found <= lb_tensor_numel(&call->results[2])) distinct.counts[found - 1]++;
    }
    if (lb_frame_ok(&distinct.frame) && found != distinct.kept)
        lb_frame_fail(&distinct.frame, LB_ERR_INVALID, "a recorded result has another number of elements");
    return lb_frame_end(&distinct.frame);
}

static lb_status unique(lb_call *call)
{
    return run(call, (distinct_args){.dim = NONE, .sorts = true});
}
static lb_status unique_consecutive(lb_call *call)
{
    return run(call, (distinct_args){.dim = 3, .by_slices = true});
}
static lb_status unique_dim(lb_call *call)
{
    return run(call, (distinct_args){.dim = 1, .sorts = true, .by_slices = true});
}
static lb_status unique_dim_consecutive(lb_call *call)
{
    return run(call, (distinct_args){.dim = 1, .by_slices = true});
}

#define DECISION (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS | LB_ROW_DECISION)
const lb_op_row lb_rows_distinct[] = {
    {.name = "aten::_unique",
     .args = "self! sorted return_inverse",
     .kernel = unique,
     .flags = DECISION,
     .samples = "distinct"},
    {.name = "aten::_unique2",
     .args = "self! sorted return_inverse return_counts",
     .kernel = unique,
     .flags = DECISION,
     .samples = "distinct counts"},
    {.name = "aten::unique_consecutive",
     .args = "self! return_inverse return_counts dim",
     .kernel = unique_consecutive,
     .flags = DECISION,
     .samples = "distinct consecutive"},
    {.name = "aten::unique_dim",
     .args = "self! dim sorted return_inverse return_counts",
     .kernel = unique_dim,
     .flags = DECISION,
     .samples = "distinct along"},
    {.name = "aten::unique_dim_consecutive",
     .args = "self! dim return_inverse return_counts",
     .kernel = unique_dim_consecutive,
     .flags = DECISION,
     .samples = "distinct along consecutive"},
    {NULL},
};
