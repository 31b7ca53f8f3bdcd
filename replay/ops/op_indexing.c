/* Ops that read elements at given places: embedding, index, gather, index_select, take, masked_select, nonzero,
 * lookups.
 *
 * Elements are moved bit by bit; indices out of range are LB_ERR_INVALID, as is a result whose number of elements is no
 * longer the recorded one (the decision changed). Ops that write at given places are in op_scatter.c. */
#include "kernel/elements.h"
#include "kernel/frame.h"
#include "kernel/index_plan.h"

static bool wrap(int64_t *index, int64_t size)
{
    if (*index < 0) *index += size;
    return *index >= 0 && *index < size;
}

static lb_elements mover(const lb_call *call, const lb_tensor *from)
{
    return lb_elements_of(call->results[0].dtype, from->dtype, call->method.cast);
}

/* result[o, k, :] = self[o, index[k], :] around `dim`. */
static lb_status select_rows(lb_call *call, const lb_tensor *self, int dim, const lb_tensor *index_tensor)
{
    lb_frame frame = lb_frame_begin(call);
    lb_around around = lb_frame_shape_around(&self->layout, dim);
    const int64_t *index = lb_frame_integers(&frame, index_tensor);
    const void *x = lb_frame_bytes(&frame, self);
    int64_t n = lb_tensor_numel(index_tensor);
    if (lb_frame_ok(&frame) && lb_tensor_numel(&call->results[0]) != around.outer * n * around.inner)
        lb_frame_fail(&frame, LB_ERR_INVALID, "a recorded result has another number of elements");
    for (int64_t k = 0; lb_frame_ok(&frame) && k < n; k++) {
        int64_t at = index[k];
        if (!wrap(&at, around.size)) lb_frame_fail(&frame, LB_ERR_INVALID, "an index is out of range");
    }
    void *y = lb_frame_output_bytes(&frame, 0);
    lb_elements elements = mover(call, self);
    if (lb_frame_ok(&frame) && y) {
#pragma omp parallel for collapse(2) if (around.outer * n * around.inner > 65536)
        for (int64_t o = 0; o < around.outer; o++)
            for (int64_t k = 0; k < n; k++) {
                int64_t at = index[k];
                wrap(&at, around.size);
                lb_elements_move(&elements, y, (o * n + k) * around.inner, x, (o * around.size + at) * around.inner,
                                 around.inner);
            }
    }
    return lb_frame_end(&frame);
}

static lb_status embedding(lb_call *call)
{
    return select_rows(call, lb_frame_arg_tensor(call, 0), 0, lb_frame_arg_tensor(call, 1));
}

static lb_status index_select(lb_call *call)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    int dim = lb_frame_wrap_dim(lb_frame_arg_int(call, 1, 0), self->layout.ndim);
    if (dim < 0) return lb_fail(call->err, LB_ERR_INVALID, "%s: no such dimension", call->row->name);
    return select_rows(call, self, dim, lb_frame_arg_tensor(call, 2));
}

static lb_status take(lb_call *call)
{
    lb_tensor flat = *lb_frame_arg_tensor(call, 0);
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *index_tensor = lb_frame_arg_tensor(call, 1);
    const int64_t *index = lb_frame_integers(&frame, index_tensor);
    const void *x = lb_frame_bytes(&frame, &flat);
    void *y = lb_frame_output_bytes(&frame, 0);
    lb_elements elements = mover(call, &flat);
    for (int64_t i = 0, n = lb_tensor_numel(index_tensor), size = lb_tensor_numel(&flat); y && i < n; i++) {
        int64_t at = index[i];
        if (!wrap(&at, size)) {
            lb_frame_fail(&frame, LB_ERR_INVALID, "an index is out of range");
            break;
        }
        lb_elements_move(&elements, y, i, x, at, 1);
    }
    return lb_frame_end(&frame);
}

static lb_status index_tensor(lb_call *call)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    lb_frame frame = lb_frame_begin(call);
    lb_index_plan plan;
    const void *x = lb_frame_bytes(&frame, self);
    if (lb_frame_ok(&frame) &&
        lb_index_plan_make(&frame, &self->layout, call->args[1].tensors, call->args[1].count, &plan) &&
        lb_tensor_numel(&call->results[0]) != plan.n_before * plan.n_at * plan.n_after)
        lb_frame_fail(&frame, LB_ERR_INVALID, "a recorded result has another number of elements");
    void *y = lb_frame_output_bytes(&frame, 0);
    lb_elements elements = mover(call, self);
    for (int64_t a = 0, i = 0; y && a < plan.n_before; a++)
        for (int64_t b = 0; b < plan.n_at; b++) {
            int64_t from = plan.before[a] + plan.at[b];
            if (plan.run) {
                lb_elements_move(&elements, y, i, x, from, plan.n_after);
                i += plan.n_after;
            } else {
                for (int64_t c = 0; c < plan.n_after; c++)
                    lb_elements_move(&elements, y, i++, x, from + plan.after[c], 1);
            }
        }
    return lb_frame_end(&frame);
}

/* result[.., i, ..] = self[.., index[.., i, ..], ..] along dim; index may be smaller than self elsewhere. */
static lb_status gather(lb_call *call)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0), *index_tensor = lb_frame_arg_tensor(call, 2);
    lb_frame frame = lb_frame_begin(call);
    int dim = lb_frame_wrap_dim(lb_frame_arg_int(call, 1, 0), self->layout.ndim);
    const lb_layout *layout = &index_tensor->layout;
    lb_layout dense = lb_layout_contiguous(self->layout.ndim, self->layout.shape);
    const int64_t *index = lb_frame_integers(&frame, index_tensor);
    const void *x = lb_frame_bytes(&frame, self);
    void *y = lb_frame_output_bytes(&frame, 0);
    lb_elements elements = mover(call, self);
    int64_t n = lb_tensor_numel(index_tensor), size = self->layout.ndim ? self->layout.shape[dim] : 1;
    for (int64_t i = 0; y && i < n; i++) {
        int64_t at = index[i], rest = i, from = 0;
        if (!wrap(&at, size)) {
            lb_frame_fail(&frame, LB_ERR_INVALID, "an index is out of range");
            break;
        }
        for (int d = layout->ndim - 1; d >= 0; d--) {
            from += (d == dim ? at : rest % layout->shape[d]) * dense.stride[d];
            rest /= layout->shape[d];
        }
        lb_elements_move(&elements, y, i, x, from, 1);
    }
    return lb_frame_end(&frame);
}

/* Expands `mask` to the shape of `like` (right-aligned). */
static bool expand(lb_tensor *mask, const lb_layout *like)
{
    lb_layout wide = *like;
    for (int d = 0; d < like->ndim; d++) {
        int own = d - (like->ndim - mask->layout.ndim);
        int64_t size = own >= 0 ? mask->layout.shape[own] : 1;
        if (size != 1 && size != like->shape[d]) return false;
        wide.stride[d] = size == 1 ? 0 : mask->layout.stride[own];
    }
    mask->layout = wide;
    return like->ndim >= 0;
}

/* The selected elements, row-major; `pad`: what is left of the result is zero (masked_scatter_backward). */
static lb_status select_masked(lb_call *call, bool pad)
{
    lb_tensor self = *lb_frame_arg_tensor(call, 0), mask = *lb_frame_arg_tensor(call, 1);
    lb_frame frame = lb_frame_begin(call);
    if (mask.layout.ndim > self.layout.ndim ? !expand(&self, &mask.layout) : !expand(&mask, &self.layout))
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "mask and tensor expand each other");
    const int64_t *m = lb_frame_integers(&frame, &mask);
    const void *x = lb_frame_bytes(&frame, &self);
    void *y = lb_frame_output_bytes(&frame, 0);
    lb_elements elements = mover(call, &self);
    int64_t room = lb_tensor_numel(&call->results[0]), k = 0;
    for (int64_t i = 0, n = lb_tensor_numel(&self); y && i < n; i++) {
        if (!m[i]) continue;
        if (k < room) lb_elements_move(&elements, y, k, x, i, 1);
        k++;
    }
    if (y && (k > room || (!pad && k != room)))
        lb_frame_fail(&frame, LB_ERR_INVALID, "a recorded result has another number of elements");
    if (y && lb_frame_ok(&frame))
        memset((char *)y + k * elements.to_bytes, 0, (size_t)((room - k) * elements.to_bytes));
    return lb_frame_end(&frame);
}

static lb_status masked_select(lb_call *call)
{
    return select_masked(call, false);
}
static lb_status masked_scatter_backward(lb_call *call)
{
    return select_masked(call, true);
}

static lb_status nonzero(lb_call *call)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    const lb_layout *layout = &self->layout;
    lb_frame frame = lb_frame_begin(call);
    const int64_t *x = NULL;
    const void *reals = NULL;
    if (lb_dtype_is_float(self->dtype))
        reals = lb_frame_tensor(&frame, self);
    else
        x = lb_frame_integers(&frame, self);
    int64_t room = lb_tensor_numel(&call->results[0]), k = 0, n = lb_tensor_numel(self);
    int64_t *y = lb_frame_output_integers(&frame, 0, room);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        bool set = x ? x[i] != 0 : frame.wide ? ((const double *)reals)[i] != 0 : ((const float *)reals)[i] != 0;
        if (!set) continue;
        int64_t rest = i;
        for (int d = layout->ndim - 1; d >= 0; d--) {
            if (k + d < room) y[k + d] = rest % layout->shape[d];
            rest /= layout->shape[d];
        }
        k += layout->ndim;
    }
    if (lb_frame_ok(&frame) && k != room)
        lb_frame_fail(&frame, LB_ERR_INVALID, "a recorded result has another number of elements");
    return lb_frame_end(&frame);
}

/* ---- look-ups ---------------------------------------------------------------------------------------------------- */

/* Integers and floats as doubles are enough to compare token ids; i64 beyond 2^53 are compared as integers. */
static lb_status isin(lb_call *call)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0), *test = lb_frame_arg_tensor(call, 1);
    lb_frame frame = lb_frame_begin(call);
    bool integers = (!self || lb_dtype_is_integer(self->dtype)) && (!test || lb_dtype_is_integer(test->dtype));
    bool invert = lb_frame_arg_int(call, 3, 0);
    int64_t n = self ? lb_tensor_numel(self) : 1, m = test ? lb_tensor_numel(test) : 1;
    const int64_t *x = integers && self ? lb_frame_integers(&frame, self) : NULL;
    const int64_t *t = integers && test ? lb_frame_integers(&frame, test) : NULL;
    frame.wide = true, frame.type = LB_F64;
    const double *xr = !integers && self ? lb_frame_tensor(&frame, self) : NULL;
    const double *tr = !integers && test ? lb_frame_tensor(&frame, test) : NULL;
    int64_t *y = lb_frame_output_integers(&frame, 0, n);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        bool found = false;
        for (int64_t k = 0; k < m && !found; k++)
            found = integers ? (x ? x[i] : call->args[0].i) == (t ? t[k] : call->args[1].i)
                             : (xr ? xr[i] : call->args[0].f) == (tr ? tr[k] : call->args[1].f);
        y[i] = found != invert;
    }
    return lb_frame_end(&frame);
}

/* First (or with `right`, one past the last) place in a sorted row where the value can be inserted. */
static int64_t place(const double *row, int64_t n, double value, bool right)
{
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (right ? !(row[middle] > value) : !(row[middle] >= value))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static lb_status search(lb_call *call, const lb_tensor *sorted, const lb_tensor *values, bool right)
{
    lb_frame frame = lb_frame_begin(call);
    frame.wide = true, frame.type = LB_F64;
    const double *rows = lb_frame_tensor(&frame, sorted), *x = lb_frame_tensor(&frame, values);
    int64_t n = sorted->layout.ndim ? sorted->layout.shape[sorted->layout.ndim - 1] : 1,
            count = lb_tensor_numel(values);
    int64_t per_row = sorted->layout.ndim > 1 ? values->layout.shape[values->layout.ndim - 1] : count;
    int64_t *y = lb_frame_output_integers(&frame, 0, count);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < count; i++) y[i] = place(rows + i / per_row * n, n, x[i], right);
    return lb_frame_end(&frame);
}

static lb_status searchsorted(lb_call *call)
{
    bool right = lb_frame_arg_int(call, 3, 0);
    if (lb_frame_arg_given(call, 4) && call->args[4].string) right = strcmp(call->args[4].string, "right") == 0;
    if (lb_frame_arg_given(call, 5))
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "searchsorted: a sorter is not supported");
    return search(call, lb_frame_arg_tensor(call, 0), lb_frame_arg_tensor(call, 1), right);
}

static lb_status bucketize(lb_call *call)
{
    return search(call, lb_frame_arg_tensor(call, 1), lb_frame_arg_tensor(call, 0), lb_frame_arg_int(call, 3, 0));
}

#define EXACT LB_ROW_EXACT
#define INTEGER (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS)
#define DECISION (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS | LB_ROW_DECISION)
const lb_op_row lb_rows_indexing[] = {
    {.name = "aten::embedding",
     .args = "weight! indices! padding_idx scale_grad_by_freq sparse",
     .kernel = embedding,
     .flags = EXACT,
     .samples = "embedding"},
    {.name = "aten::index_select",
     .args = "self! dim index!",
     .kernel = index_select,
     .flags = EXACT,
     .samples = "index_select"},
    {.name = "aten::index.Tensor",
     .args = "self! indices?[]",
     .kernel = index_tensor,
     .flags = EXACT,
     .samples = "index"},
    {.name = "aten::_unsafe_index.Tensor",
     .args = "self! indices?[]",
     .kernel = index_tensor,
     .flags = EXACT,
     .samples = "index"},
    {.name = "aten::gather",
     .args = "self! dim index! sparse_grad",
     .kernel = gather,
     .flags = EXACT,
     .samples = "gather"},
    {.name = "aten::take", .args = "self! index!", .kernel = take, .flags = EXACT, .samples = "take"},
    {.name = "aten::masked_select",
     .args = "self! mask!",
     .kernel = masked_select,
     .flags = EXACT,
     .samples = "masked_select"},
    {.name = "aten::masked_scatter_backward",
     .args = "grad_output! mask! sizes",
     .kernel = masked_scatter_backward,
     .flags = EXACT,
     .samples = "masked_scatter_backward"},
    {.name = "aten::nonzero", .args = "self!", .kernel = nonzero, .flags = DECISION, .samples = "nonzero"},
    {.name = "aten::isin.Tensor_Tensor",
     .args = "elements! test_elements! assume_unique invert",
     .kernel = isin,
     .flags = INTEGER,
     .samples = "isin"},
    {.name = "aten::isin.Tensor_Scalar",
     .args = "elements! test_element assume_unique invert",
     .kernel = isin,
     .flags = INTEGER,
     .samples = "isin_scalar"},
    {.name = "aten::isin.Scalar_Tensor",
     .args = "element test_elements! assume_unique invert",
     .kernel = isin,
     .flags = INTEGER,
     .samples = "scalar_isin"},
    {.name = "aten::searchsorted.Tensor",
     .args = "sorted_sequence! self! out_int32 right side sorter",
     .kernel = searchsorted,
     .flags = INTEGER,
     .samples = "searchsorted"},
    {.name = "aten::bucketize.Tensor",
     .args = "self! boundaries! out_int32 right",
     .kernel = bucketize,
     .flags = INTEGER,
     .samples = "bucketize"},
    {NULL},
};
