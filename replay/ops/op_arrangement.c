/* Ops that lay elements out anew: cat, stack, pad, tril, flip, repeat, roll, and the backwards of slices and
 * selections.
 *
 * Nearly all are a fill of the result and copies between views of it and of the inputs, so that strides and dtypes are
 * lb_pointwise_copy's business. */
#include "kernel/complex_rows.h"
#include "kernel/frame.h"
#include "kernel/pointwise.h"

#include <string.h>

static const lb_operand zero = {.tag = LB_OPERAND_INT};

/* ---- views ------------------------------------------------------------------------------------------------------- */

static void move_data(lb_tensor *view, int64_t elements)
{
    view->data = (char *)view->data + elements * (int64_t)(lb_dtype_bits(view->dtype) / 8);
}

/* Elements start, start + step, … of `dim`, `count` of them. */
static lb_tensor sliced(const lb_tensor *tensor, int dim, int64_t start, int64_t count, int64_t step)
{
    lb_tensor view = *tensor;
    if (count > 0) move_data(&view, start * view.layout.stride[dim]);
    view.layout.shape[dim] = count;
    view.layout.stride[dim] *= step;
    return view;
}

static lb_tensor selected(const lb_tensor *tensor, int dim, int64_t index)
{
    lb_tensor view = sliced(tensor, dim, index, 1, 1);
    view.layout.ndim--;
    for (int d = dim; d < view.layout.ndim; d++) {
        view.layout.shape[d] = view.layout.shape[d + 1];
        view.layout.stride[d] = view.layout.stride[d + 1];
    }
    return view;
}

/* The diagonal of dims a and b as the last dimension, as torch.diagonal. */
static lb_tensor diagonal_of(const lb_tensor *tensor, int64_t offset, int a, int b)
{
    lb_tensor view = *tensor;
    const lb_layout *layout = &tensor->layout;
    int64_t rows = layout->shape[a], columns = layout->shape[b];
    int64_t first_row = offset < 0 ? -offset : 0, first_column = offset > 0 ? offset : 0;
    int64_t n = rows - first_row < columns - first_column ? rows - first_row : columns - first_column;
    if (n < 0) n = 0;
    int k = 0;
    for (int d = 0; d < layout->ndim; d++) {
        if (d == a || d == b) continue;
        view.layout.shape[k] = layout->shape[d];
        view.layout.stride[k++] = layout->stride[d];
    }
    if (n) move_data(&view, first_row * layout->stride[a] + first_column * layout->stride[b]);
    view.layout.shape[k] = n;
    view.layout.stride[k++] = layout->stride[a] + layout->stride[b];
    view.layout.ndim = k;
    return view;
}

static lb_status wrong(lb_call *call, const char *what)
{
    return lb_fail(call->err, LB_ERR_INVALID, "%s: %s", call->row->name, what);
}

static lb_status copy(lb_call *call, const lb_tensor *to, const lb_tensor *from)
{
    if (lb_tensor_numel(to) == 0) return LB_OK;
    return lb_pointwise_copy(call, to, from);
}

/* The result starts as `self` unless it is the same memory. */
static lb_status copy_self(lb_call *call)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    return call->results[0].data == self->data ? LB_OK : copy(call, &call->results[0], self);
}

/* [start, end) of a dimension as torch clamps them. */
static void clamp_range(int64_t size, int64_t *start, int64_t *end)
{
    if (*start < 0) *start += size;
    if (*end < 0) *end += size;
    if (*start < 0) *start = 0;
    if (*start > size) *start = size;
    if (*end < *start) *end = *start;
    if (*end > size) *end = size;
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static lb_status cat(lb_call *call)
{
    const lb_tensor *out = &call->results[0];
    int dim = lb_frame_wrap_dim(lb_frame_arg_int(call, 1, 0), out->layout.ndim);
    int64_t at = 0;
    if (dim < 0) return wrong(call, "no such dimension");
    for (uint32_t i = 0; i < call->args[0].count; i++) {
        const lb_tensor *part = &call->args[0].tensors[i];
        if (part->layout.ndim == 1 && part->layout.shape[0] == 0)
            continue; /* torch passes over it whatever the others are */
        if (part->layout.ndim != out->layout.ndim || at + part->layout.shape[dim] > out->layout.shape[dim])
            return wrong(call, "parts do not fit the recorded result");
        lb_tensor view = sliced(out, dim, at, part->layout.shape[dim], 1);
        LB_TRY(copy(call, &view, part));
        at += part->layout.shape[dim];
    }
    return at == out->layout.shape[dim] ? LB_OK : wrong(call, "parts do not fill the recorded result");
}

static lb_status stack(lb_call *call)
{
    const lb_tensor *out = &call->results[0];
    int dim = lb_frame_wrap_dim(lb_frame_arg_int(call, 1, 0), out->layout.ndim);
    if (dim < 0 || out->layout.shape[dim] != (int64_t)call->args[0].count) return wrong(call, "no such dimension");
    for (uint32_t i = 0; i < call->args[0].count; i++) {
        lb_tensor view = selected(out, dim, i);
        LB_TRY(copy(call, &view, &call->args[0].tensors[i]));
    }
    return LB_OK;
}

static lb_status constant_pad(lb_call *call)
{
    lb_tensor out = call->results[0], in = *lb_frame_arg_tensor(call, 0);
    int64_t pad[2 * LB_MAX_DIMS];
    int n = lb_frame_arg_ints(call, 1, pad, 2 * LB_MAX_DIMS);
    LB_TRY(lb_pointwise_fill(call, &out, lb_frame_arg_given(call, 2) ? &call->args[2] : &zero));
    for (int k = 0; k + 1 < n; k += 2) {
        int dim = in.layout.ndim - 1 - k / 2;
        int64_t low = pad[k], high = pad[k + 1];
        if (dim < 0) return wrong(call, "more paddings than dimensions");
        if (low > 0) out = sliced(&out, dim, low, out.layout.shape[dim] - low, 1);
        if (low < 0) in = sliced(&in, dim, -low, in.layout.shape[dim] + low, 1);
        if (high > 0) out = sliced(&out, dim, 0, out.layout.shape[dim] - high, 1);
        if (high < 0) in = sliced(&in, dim, 0, in.layout.shape[dim] + high, 1);
        if (in.layout.shape[dim] < 0 || out.layout.shape[dim] < 0) return LB_OK; /* only padding is left */
    }
    return copy(call, &out, &in);
}

/* ---- triangles --------------------------------------------------------------------------------------------------- */

/* Keeps columns <= row + diagonal (lower) or >= (upper) of every matrix. Row by row, since a triangle is no view. */
static lb_status triangle(lb_call *call, bool upper)
{
    LB_TRY(copy_self(call));
    const lb_tensor *out = &call->results[0];
    int ndim = out->layout.ndim;
    if (ndim < 2) return wrong(call, "no matrix");
    int64_t rows = out->layout.shape[ndim - 2], columns = out->layout.shape[ndim - 1],
            diagonal = lb_frame_arg_int(call, 1, 0);
    if (lb_tensor_numel(out) == 0) return LB_OK;
    for (int64_t r = 0; r < rows; r++) {
        int64_t first = upper ? 0 : r + diagonal + 1, last = upper ? r + diagonal : columns;
        if (first < 0) first = 0;
        if (last > columns) last = columns;
        if (last <= first) continue;
        lb_tensor row = selected(out, ndim - 2, r);
        row = sliced(&row, ndim - 2, first, last - first, 1);
        LB_TRY(lb_pointwise_fill(call, &row, &zero));
    }
    return LB_OK;
}

static lb_status tril(lb_call *call)
{
    return triangle(call, false);
}
static lb_status triu(lb_call *call)
{
    return triangle(call, true);
}

/* ---- repeating and turning --------------------------------------------------------------------------------------- */

static lb_status flip(lb_call *call)
{
    lb_tensor in = *lb_frame_arg_tensor(call, 0);
    int64_t dims[LB_MAX_DIMS];
    int n = lb_frame_arg_ints(call, 1, dims, LB_MAX_DIMS);
    for (int k = 0; k < n; k++) {
        int d = lb_frame_wrap_dim(dims[k], in.layout.ndim);
        if (d < 0) return wrong(call, "no such dimension");
        if (in.layout.ndim && in.layout.shape[d] > 0)
            in = sliced(&in, d, in.layout.shape[d] - 1, in.layout.shape[d], -1);
    }
    return copy(call, &call->results[0], &in);
}

/* Every dimension of the result is (times, size): a view with twice the dimensions, onto which the input broadcasts. */
static lb_status repeat(lb_call *call)
{
    lb_tensor in = *lb_frame_arg_tensor(call, 0), from = in, to = call->results[0];
    const lb_layout *out = &call->results[0].layout;
    int added = out->ndim - in.layout.ndim;
    if (2 * out->ndim > LB_MAX_DIMS) return lb_fail(call->err, LB_ERR_UNSUPPORTED, "repeat: too many dimensions");
    from.layout.ndim = to.layout.ndim = 2 * out->ndim;
    for (int d = 0; d < out->ndim; d++) {
        int64_t size = d < added ? 1 : in.layout.shape[d - added], times = size ? out->shape[d] / size : 0;
        from.layout.shape[2 * d] = to.layout.shape[2 * d] = times;
        from.layout.shape[2 * d + 1] = to.layout.shape[2 * d + 1] = size;
        from.layout.stride[2 * d] = 0;
        from.layout.stride[2 * d + 1] = d < added ? 0 : in.layout.stride[d - added];
        to.layout.stride[2 * d] = size * out->stride[d];
        to.layout.stride[2 * d + 1] = out->stride[d];
    }
    return copy(call, &to, &from);
}

/* One shift at a time would need copies of copies; the 2^n blocks of n shifted dimensions are copied one by one. */
static lb_status roll(lb_call *call)
{
    lb_tensor in = *lb_frame_arg_tensor(call, 0), out = call->results[0];
    int64_t shifts[LB_MAX_DIMS], dims[LB_MAX_DIMS];
    int n = lb_frame_arg_ints(call, 1, shifts, LB_MAX_DIMS), n_dims = lb_frame_arg_ints(call, 2, dims, LB_MAX_DIMS);
    if (n_dims == 0) { /* over the flattened tensor */
        int64_t numel = lb_tensor_numel(&in);
        if (!lb_layout_is_contiguous(&in.layout) || !lb_layout_is_contiguous(&out.layout))
            return lb_fail(call->err, LB_ERR_UNSUPPORTED, "roll: a flattened tensor that is not dense");
        in.layout = out.layout = lb_layout_contiguous(1, &numel);
        dims[0] = 0;
        n = 1;
    } else if (n != n_dims) {
        return wrong(call, "as many shifts as dimensions are needed");
    }
    for (int k = 0; k < n; k++) dims[k] = lb_frame_wrap_dim(dims[k], in.layout.ndim);
    for (int k = 0; k < n; k++)
        for (int j = k + 1; j < n; j++)
            if (dims[j] == dims[k]) { /* named twice: rolled twice */
                const int64_t size = dims[k] >= 0 ? in.layout.shape[dims[k]] : 0;
                shifts[k] = size ? shifts[k] % size + shifts[j] % size : 0;
                dims[j] = dims[--n], shifts[j--] = shifts[n];
            }
    for (unsigned block = 0; block < 1u << n; block++) {
        lb_tensor from = in, to = out;
        for (int k = 0; k < n; k++) {
            const int d = (int)dims[k];
            if (d < 0) return wrong(call, "no such dimension");
            int64_t size = from.layout.shape[d], shift = size ? (shifts[k] % size + size) % size : 0;
            int64_t count = block >> k & 1 ? shift : size - shift;
            from = sliced(&from, d, block >> k & 1 ? size - shift : 0, count, 1);
            to = sliced(&to, d, block >> k & 1 ? 0 : shift, count, 1);
        }
        LB_TRY(copy(call, &to, &from));
    }
    return LB_OK;
}

/* Index i, repeats[i] times. */
static lb_status repeat_interleave(lb_call *call)
{
    const lb_tensor *repeats = lb_frame_arg_tensor(call, 0);
    lb_frame frame = lb_frame_begin(call);
    const int64_t *times = lb_frame_integers(&frame, repeats);
    int64_t room = lb_tensor_numel(&call->results[0]), k = 0;
    int64_t *y = lb_frame_output_integers(&frame, 0, room);
    for (int64_t i = 0, n = lb_tensor_numel(repeats); lb_frame_ok(&frame) && i < n; i++)
        for (int64_t t = 0; t < times[i]; t++, k++)
            if (k < room) y[k] = i;
    if (lb_frame_ok(&frame) && k != room)
        lb_frame_fail(&frame, LB_ERR_INVALID, "a recorded result has another number of elements");
    return lb_frame_end(&frame);
}

/* ---- backwards and scatters of views ----------------------------------------------------------------------------- */

/* Args: grad_output, input_sizes, dim, start, end, step. */
static lb_status slice_backward(lb_call *call)
{
    const lb_tensor *out = &call->results[0], *grad = lb_frame_arg_tensor(call, 0);
    int dim = lb_frame_wrap_dim(lb_frame_arg_int(call, 2, 0), out->layout.ndim);
    if (dim < 0) return wrong(call, "no such dimension");
    int64_t start = lb_frame_arg_int(call, 3, 0), end = lb_frame_arg_int(call, 4, INT64_MAX),
            step = lb_frame_arg_int(call, 5, 1);
    clamp_range(out->layout.shape[dim], &start, &end);
    if (step < 1 || (end - start + step - 1) / step != grad->layout.shape[dim])
        return wrong(call, "the gradient has another size");
    lb_tensor view = sliced(out, dim, start, grad->layout.shape[dim], step);
    LB_TRY(lb_pointwise_fill(call, out, &zero));
    return copy(call, &view, grad);
}

static lb_status into_selection(lb_call *call, const lb_tensor *source, int64_t dim_arg, int64_t index)
{
    const lb_tensor *out = &call->results[0];
    int dim = lb_frame_wrap_dim(dim_arg, out->layout.ndim);
    if (dim < 0 || !out->layout.ndim) return wrong(call, "no such dimension");
    if (index < 0) index += out->layout.shape[dim];
    if (index < 0 || index >= out->layout.shape[dim]) return wrong(call, "an index is out of range");
    lb_tensor view = selected(out, dim, index);
    return copy(call, &view, source);
}

/* Args: grad_output, input_sizes, dim, index. */
static lb_status select_backward(lb_call *call)
{
    LB_TRY(lb_pointwise_fill(call, &call->results[0], &zero));
    return into_selection(call, lb_frame_arg_tensor(call, 0), lb_frame_arg_int(call, 2, 0),
                          lb_frame_arg_int(call, 3, 0));
}

static lb_status select_scatter(lb_call *call)
{
    LB_TRY(copy_self(call));
    return into_selection(call, lb_frame_arg_tensor(call, 1), lb_frame_arg_int(call, 2, 0),
                          lb_frame_arg_int(call, 3, 0));
}

static lb_status slice_scatter(lb_call *call)
{
    const lb_tensor *out = &call->results[0], *source = lb_frame_arg_tensor(call, 1);
    int dim = lb_frame_wrap_dim(lb_frame_arg_int(call, 2, 0), out->layout.ndim);
    if (dim < 0) return wrong(call, "no such dimension");
    int64_t start = lb_frame_arg_int(call, 3, 0), end = lb_frame_arg_int(call, 4, INT64_MAX),
            step = lb_frame_arg_int(call, 5, 1);
    clamp_range(out->layout.shape[dim], &start, &end);
    LB_TRY(copy_self(call));
    if (step < 1 || (end - start + step - 1) / step != source->layout.shape[dim])
        return wrong(call, "the source has another size");
    lb_tensor view = sliced(out, dim, start, source->layout.shape[dim], step);
    return copy(call, &view, source);
}

static lb_status into_diagonal(lb_call *call, const lb_tensor *source, uint32_t first_arg)
{
    const lb_tensor *out = &call->results[0];
    int a = lb_frame_wrap_dim(lb_frame_arg_int(call, first_arg + 1, 0), out->layout.ndim);
    int b = lb_frame_wrap_dim(lb_frame_arg_int(call, first_arg + 2, 1), out->layout.ndim);
    if (a < 0 || b < 0 || a == b) return wrong(call, "no such dimension");
    lb_tensor view = diagonal_of(out, lb_frame_arg_int(call, first_arg, 0), a, b);
    return copy(call, &view, source);
}

static lb_status diagonal_backward(lb_call *call)
{
    LB_TRY(lb_pointwise_fill(call, &call->results[0], &zero));
    return into_diagonal(call, lb_frame_arg_tensor(call, 0), 2);
}

/* Args: self, offset, dim1, dim2. */
static lb_status diag_embed(lb_call *call)
{
    LB_TRY(lb_pointwise_fill(call, &call->results[0], &zero));
    return into_diagonal(call, lb_frame_arg_tensor(call, 0), 1);
}

static lb_status diagonal_copy(lb_call *call)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    const int a = lb_frame_wrap_dim(lb_frame_arg_int(call, 2, 0), self->layout.ndim),
              b = lb_frame_wrap_dim(lb_frame_arg_int(call, 3, 1), self->layout.ndim);
    if (a < 0 || b < 0 || a == b) return wrong(call, "no such dimension");
    const lb_tensor view = diagonal_of(self, lb_frame_arg_int(call, 1, 0), a, b);
    return copy(call, &call->results[0], &view);
}

static lb_status diagonal_scatter(lb_call *call)
{
    LB_TRY(copy_self(call));
    return into_diagonal(call, lb_frame_arg_tensor(call, 1), 2);
}

/* ---- packed sequences -------------------------------------------------------------------------------------------- */

/* Args: input, lengths in descending order, batch_first. Results: of each step the samples that are so long, one behind
 * the other, and how many these are. */
static lb_status pack_padded(lb_call *call)
{
    const lb_tensor *in = lb_frame_arg_tensor(call, 0), *lengths = lb_frame_arg_tensor(call, 1);
    const int time = lb_frame_arg_int(call, 2, 0) ? 1 : 0;
    lb_frame frame = lb_frame_begin(call);
    const int64_t samples = lb_tensor_numel(lengths), *length = lb_frame_integers(&frame, lengths);
    const int64_t rows = call->results[0].layout.ndim ? call->results[0].layout.shape[0] : 0;
    const int64_t steps = lb_frame_ok(&frame) && samples ? length[0] : 0;
    if (in->layout.ndim < 2 || in->layout.shape[1 - time] != samples || in->layout.shape[time] < steps ||
        call->results[0].layout.ndim != in->layout.ndim - 1)
        lb_frame_fail(&frame, LB_ERR_INVALID, "lengths that are not those of the samples");
    int64_t *sizes = lb_frame_output_integers(&frame, 1, steps), row = 0, active = samples;
    for (int64_t t = 0; lb_frame_ok(&frame) && t < steps; t++) {
        while (active && length[active - 1] <= t) active--;
        sizes[t] = active;
        if (row + active > rows) lb_frame_fail(&frame, LB_ERR_INVALID, "lengths that do not descend");
        if (!lb_frame_ok(&frame)) break;
        const lb_tensor step = selected(in, time, t), from = sliced(&step, 0, 0, active, 1),
                        to = sliced(&call->results[0], 0, row, active, 1);
        const lb_status status = lb_pointwise_copy(call, &to, &from);
        if (status != LB_OK) frame.status = status;
        row += active;
    }
    return lb_frame_end(&frame);
}

#define MOVED(NAME, ARGS, KERNEL, SAMPLES)                                                                             \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     .kernel = KERNEL,                                                                                                 \
     .flags = LB_ROW_EXACT,                                                                                            \
     .samples = SAMPLES,                                                                                               \
     .complex = &lb_complex_moved},
#define JOINED(NAME, KERNEL)                                                                                           \
    {.name = "aten::" NAME,                                                                                            \
     .args = "tensors[] dim",                                                                                          \
     .kernel = KERNEL,                                                                                                 \
     .flags = LB_ROW_EXACT,                                                                                            \
     .samples = NAME,                                                                                                  \
     .complex = &lb_complex_moved},
const lb_op_row lb_rows_arrangement[] = {
    JOINED("cat", cat) JOINED("stack", stack)
        MOVED("constant_pad_nd", "self! pad value", constant_pad, "constant_pad_nd")
            MOVED("tril", "self! diagonal", tril, "triangle") MOVED("triu", "self! diagonal", triu, "triangle")
                MOVED("flip", "self! dims", flip, "flip") MOVED("repeat", "self! repeats", repeat, "repeat")
                    MOVED("roll", "self! shifts dims", roll,
                          "roll"){.name = "aten::repeat_interleave.Tensor",
                                  .args = "repeats! output_size",
                                  .kernel = repeat_interleave,
                                  .flags = LB_ROW_EXACT | LB_ROW_DISCONTINUOUS | LB_ROW_DECISION,
                                  .samples = "repeat_interleave"},
    MOVED("slice_backward", "grad_output! input_sizes dim start end step", slice_backward, "slice_backward")
        MOVED("select_backward", "grad_output! input_sizes dim index", select_backward, "select_backward") MOVED(
            "diagonal_backward", "grad_output! input_sizes offset dim1 dim2", diagonal_backward,
            "diagonal_backward") MOVED("slice_scatter", "self! src! dim start end step", slice_scatter, "slice_scatter")
            MOVED("select_scatter", "self! src! dim index", select_scatter, "select_scatter")
                MOVED("diagonal_scatter", "self! src! offset dim1 dim2", diagonal_scatter,
                      "diagonal_scatter") MOVED("diag_embed", "self! offset dim1 dim2", diag_embed, "diag_embed")
                    MOVED("diagonal_copy", "self! offset dim1 dim2", diagonal_copy, "diagonal_copy")
                        MOVED("_pack_padded_sequence", "input! lengths! batch_first", pack_padded, "pack_padded"){NULL},
};
