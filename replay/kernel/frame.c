/* Dense working copies of a call's tensors; see frame.h. The one hard idea: borrow whenever dtype and layout allow, so
 * that the usual f32 step copies nothing. */
#include "kernel/frame.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LB_PARALLEL_ELEMENTS 65536 /* below this a thread costs more than it brings */

static bool is_wide(const lb_tensor *tensor)
{
    return tensor->dtype == LB_F64 || tensor->dtype == LB_C128;
}

lb_frame lb_frame_begin(lb_call *call)
{
    lb_frame frame;
    frame.call = call;
    frame.wide = false;
    frame.status = LB_OK;
    frame.n_buffers = frame.n_outputs = 0;
    for (uint32_t i = 0; i < call->n_args; i++) {
        const lb_operand *arg = &call->args[i];
        if (arg->tag == LB_OPERAND_TENSOR) frame.wide |= is_wide(&arg->tensor);
        if (arg->tag == LB_OPERAND_TENSORS)
            for (uint32_t j = 0; j < arg->count; j++) frame.wide |= is_wide(&arg->tensors[j]);
    }
    for (uint32_t r = 0; r < call->n_results; r++)
        if (call->results[r].data) frame.wide |= is_wide(&call->results[r]);
    frame.type = frame.wide ? LB_F64 : LB_F32;
    return frame;
}

void(lb_frame_fail)(lb_frame *frame, lb_status status, const char *message)
{
    if (frame->status == LB_OK)
        frame->status = lb_fail(frame->call->err, status, "%s: %s", frame->call->row->name, message);
}

void *lb_frame_scratch(lb_frame *frame, size_t bytes)
{
    if (frame->status != LB_OK) return NULL;
    void *buffer = NULL;
    if (frame->n_buffers < LB_FRAME_BUFFERS && bytes < SIZE_MAX - 64)
        buffer = aligned_alloc(64, (bytes + 64) & ~(size_t)63);
    if (!buffer) {
        lb_frame_fail(frame, LB_ERR_NOMEM, "no memory for a working copy");
        return NULL;
    }
    frame->buffers[frame->n_buffers++] = buffer;
    return buffer;
}

void *lb_frame_reals(lb_frame *frame, int64_t elements)
{
    return lb_frame_scratch(frame, (size_t)elements * (frame->wide ? 8 : 4));
}

static void round_to_compute(const lb_frame *frame, void *data, size_t n)
{
    lb_dtype compute = frame->call->method.compute;
    if (!compute || compute == frame->type) return;
    if (frame->wide)
        lb_round_to_grid_f64(data, n, compute, NULL);
    else
        lb_round_to_grid_f32(data, n, compute, NULL);
}

/* Converts `n` elements from `src` on; the only place where a frame reads foreign dtypes. */
static void load(const lb_frame *frame, char *dst, lb_dtype dtype, const void *src, int64_t stride, size_t n)
{
    if (stride == 1 && frame->wide)
        lb_load_f64((double *)dst, dtype, src, n);
    else if (stride == 1)
        lb_load_f32((float *)dst, dtype, src, n);
    else if (frame->wide)
        lb_load_f64_strided((double *)dst, dtype, src, (ptrdiff_t)stride, n);
    else
        lb_load_f32_strided((float *)dst, dtype, src, (ptrdiff_t)stride, n);
    round_to_compute(frame, dst, n);
}

static const char *element(const lb_tensor *tensor, int64_t offset)
{
    return (const char *)tensor->data + offset * (int64_t)(lb_dtype_bits(tensor->dtype) / 8);
}

static void load_parallel(const lb_frame *frame, char *dst, lb_dtype dtype, const char *src, int64_t n)
{
    int64_t size = frame->wide ? 8 : 4, bits = (int64_t)lb_dtype_bits(dtype);
    int64_t step = LB_PARALLEL_ELEMENTS / 4;
#pragma omp parallel for if (n > LB_PARALLEL_ELEMENTS)
    for (int64_t i = 0; i < n; i += step)
        load(frame, dst + i * size, dtype, src + i * bits / 8, 1, (size_t)(n - i < step ? n - i : step));
}

const void *lb_frame_tensor(lb_frame *frame, const lb_tensor *tensor)
{
    if (!tensor || !tensor->dtype || frame->status != LB_OK) return NULL;
    lb_dtype compute = frame->call->method.compute;
    bool dense = lb_layout_is_contiguous(&tensor->layout);
    if (dense && tensor->dtype == frame->type && (!compute || compute == frame->type) && tensor->data)
        return tensor->data;
    int64_t n = lb_tensor_numel(tensor), done = 0;
    char *dst = lb_frame_reals(frame, n);
    if (!dst) return NULL;
    if (dense) {
        load_parallel(frame, dst, tensor->dtype, tensor->data, n);
        return dst;
    }
    if (lb_dtype_bits(tensor->dtype) < 8) {
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "strided elements below one byte");
        return NULL;
    }
    for (lb_rows r = lb_rows_of(&tensor->layout); lb_rows_next(&r); done += r.count)
        load(frame, dst + done * (frame->wide ? 8 : 4), tensor->dtype, element(tensor, r.offset), r.stride,
             (size_t)r.count);
    return dst;
}

const void *lb_frame_input(lb_frame *frame, uint32_t i)
{
    return lb_frame_tensor(frame, lb_frame_arg_tensor(frame->call, i));
}

const int64_t *lb_frame_integers(lb_frame *frame, const lb_tensor *tensor)
{
    if (!tensor || !tensor->dtype || frame->status != LB_OK) return NULL;
    if (tensor->dtype == LB_I64 && lb_layout_is_contiguous(&tensor->layout) && tensor->data) return tensor->data;
    int64_t *dst = lb_frame_scratch(frame, (size_t)lb_tensor_numel(tensor) * 8), done = 0;
    if (!dst) return NULL;
    for (lb_rows r = lb_rows_of(&tensor->layout); lb_rows_next(&r); done += r.count)
        lb_convert_strided(LB_I64, dst + done, 1, tensor->dtype, element(tensor, r.offset), (ptrdiff_t)r.stride,
                           (size_t)r.count, NULL);
    return dst;
}

const void *lb_frame_bytes(lb_frame *frame, const lb_tensor *tensor)
{
    if (!tensor || !tensor->dtype || frame->status != LB_OK) return NULL;
    if (lb_layout_is_contiguous(&tensor->layout) && tensor->data) return tensor->data;
    void *dst = lb_frame_scratch(frame, lb_dtype_bytes(tensor->dtype, (size_t)lb_tensor_numel(tensor)));
    if (dst && lb_tensor_gather(tensor, dst, frame->call->err) != LB_OK)
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "elements cannot be gathered");
    return frame->status == LB_OK ? dst : NULL;
}

/* In-place forms pass the very memory of an input as result; such a result is computed aside. */
static bool is_input(const lb_call *call, const void *data)
{
    for (uint32_t i = 0; i < call->n_args; i++) {
        const lb_operand *arg = &call->args[i];
        if (arg->tag == LB_OPERAND_TENSOR && arg->tensor.data == data) return true;
        if (arg->tag == LB_OPERAND_TENSORS)
            for (uint32_t j = 0; j < arg->count; j++)
                if (arg->tensors[j].data == data) return true;
    }
    return false;
}

static void *output(lb_frame *frame, const lb_tensor *target, lb_dtype type, int64_t elements)
{
    if (frame->status != LB_OK) return NULL;
    size_t size = lb_dtype_bits(type) / 8;
    if (!target || !target->data) return lb_frame_scratch(frame, (size_t)elements * size);
    if (lb_tensor_numel(target) != elements) {
        lb_frame_fail(frame, LB_ERR_INVALID, "a recorded result has another number of elements");
        return NULL;
    }
    if (target->dtype == type && lb_layout_is_contiguous(&target->layout) && !is_input(frame->call, target->data))
        return target->data;
    LB_CHECK(frame->n_outputs < 16);
    void *data = lb_frame_scratch(frame, (size_t)elements * size);
    if (data) {
        struct lb_frame_output_row *row = &frame->outputs[frame->n_outputs++];
        row->target = target, row->data = data, row->type = type;
    }
    return data;
}

static const lb_tensor *result(const lb_frame *frame, uint32_t r)
{
    return r < frame->call->n_results ? &frame->call->results[r] : NULL;
}

void *lb_frame_output(lb_frame *frame, uint32_t r, int64_t elements)
{
    return output(frame, result(frame, r), frame->type, elements);
}

int64_t *lb_frame_output_integers(lb_frame *frame, uint32_t r, int64_t elements)
{
    return output(frame, result(frame, r), LB_I64, elements);
}

void *lb_frame_output_bytes(lb_frame *frame, uint32_t r)
{
    const lb_tensor *target = result(frame, r);
    if (!target || !target->data) return NULL;
    return output(frame, target, target->dtype, lb_tensor_numel(target));
}

void *lb_frame_output_view(lb_frame *frame, const lb_tensor *target, int64_t elements)
{
    return output(frame, target, frame->type, elements);
}

int64_t *lb_frame_output_view_integers(lb_frame *frame, const lb_tensor *target, int64_t elements)
{
    return output(frame, target, LB_I64, elements);
}

/* Where `n` elements go in a tensor's memory, `stride` apart. */
typedef struct run {
    int64_t offset, stride, n;
} run;

/* Elements done..done+n of the result; stochastic rounding numbers its draws by element. */
static void store_run(const lb_frame *frame, const struct lb_frame_output_row *row, run to, int64_t done)
{
    const lb_tensor *target = row->target;
    const lb_dtype type = row->type;
    const int64_t stride = to.stride, n = to.n;
    const char *src = (const char *)row->data + done * (int64_t)lb_dtype_bits(type) / 8;
    lb_cast moved, *cast = frame->call->method.cast;
    if (cast) moved = *cast, moved.counter += (uint64_t)done, cast = &moved;
    char *dst = (char *)target->data + to.offset * (int64_t)lb_dtype_bits(target->dtype) / 8;
    if (type == LB_F32 && stride == 1)
        lb_store_f32(target->dtype, dst, (const float *)src, (size_t)n, cast);
    else if (type == LB_F32)
        lb_store_f32_strided(target->dtype, dst, (ptrdiff_t)stride, (const float *)src, (size_t)n, cast);
    else if (type == LB_F64 && stride == 1)
        lb_store_f64(target->dtype, dst, (const double *)src, (size_t)n, cast);
    else if (type == LB_F64)
        lb_store_f64_strided(target->dtype, dst, (ptrdiff_t)stride, (const double *)src, (size_t)n, cast);
    else
        lb_convert_strided(target->dtype, dst, (ptrdiff_t)stride, type, src, 1, (size_t)n, cast);
}

static void store(const lb_frame *frame, const struct lb_frame_output_row *row)
{
    const lb_tensor *target = row->target;
    int64_t done = 0;
    if (target->dtype == row->type && lb_dtype_bits(target->dtype) >= 8) {
        (void)lb_tensor_scatter(target, row->data, NULL);
        return;
    }
    int64_t n = lb_tensor_numel(target), step = LB_PARALLEL_ELEMENTS / 4;
    if (lb_layout_is_contiguous(&target->layout) && n > LB_PARALLEL_ELEMENTS) {
#pragma omp parallel for
        for (int64_t i = 0; i < n; i += step) store_run(frame, row, (run){i, 1, n - i < step ? n - i : step}, i);
        return;
    }
    for (lb_rows r = lb_rows_of(&target->layout); lb_rows_next(&r); done += r.count)
        store_run(frame, row, (run){r.offset, r.stride, r.count}, done);
}

lb_status lb_frame_end(lb_frame *frame)
{
    if (frame->status == LB_OK)
        for (uint32_t i = 0; i < frame->n_outputs; i++) store(frame, &frame->outputs[i]);
    for (uint32_t i = 0; i < frame->n_buffers; i++) free(frame->buffers[i]);
    frame->n_buffers = frame->n_outputs = 0;
    return frame->status;
}

const lb_tensor *lb_frame_arg_tensor(const lb_call *call, uint32_t i)
{
    return i < call->n_args && call->args[i].tag == LB_OPERAND_TENSOR ? &call->args[i].tensor : NULL;
}

bool lb_frame_arg_given(const lb_call *call, uint32_t i)
{
    return i < call->n_args && call->args[i].tag != LB_OPERAND_NONE;
}

int64_t lb_frame_arg_int(const lb_call *call, uint32_t i, int64_t otherwise)
{
    return lb_frame_arg_given(call, i) ? call->args[i].i : otherwise;
}

double lb_frame_arg_float(const lb_call *call, uint32_t i, double otherwise)
{
    return lb_frame_arg_given(call, i) ? call->args[i].f : otherwise;
}

int lb_frame_arg_ints(const lb_call *call, uint32_t i, int64_t *numbers, int max)
{
    if (!lb_frame_arg_given(call, i) || max < 1) return 0;
    const lb_operand *arg = &call->args[i];
    if (arg->tag == LB_OPERAND_INT || arg->tag == LB_OPERAND_BOOL) {
        numbers[0] = arg->i;
        return 1;
    }
    if (arg->tag != LB_OPERAND_NUMBERS) return 0;
    int count = arg->count < (uint32_t)max ? (int)arg->count : max;
    for (int j = 0; j < count; j++) numbers[j] = arg->ints[j];
    return count;
}

int lb_frame_wrap_dim(int64_t dim, int ndim)
{
    int n = ndim ? ndim : 1;
    if (dim < 0) dim += n;
    return dim < 0 || dim >= n ? -1 : (int)dim;
}

lb_around lb_frame_shape_around(const lb_layout *layout, int dim)
{
    lb_around around = {1, 1, 1};
    for (int d = 0; d < layout->ndim; d++) {
        if (d < dim) around.outer *= layout->shape[d];
        if (d == dim) around.size = layout->shape[d];
        if (d > dim) around.inner *= layout->shape[d];
    }
    return around;
}

lb_tensor lb_frame_dim_last(const lb_tensor *tensor, int dim)
{
    lb_tensor moved = *tensor;
    lb_layout *layout = &moved.layout;
    for (int d = dim; d + 1 < layout->ndim; d++) {
        layout->shape[d] = tensor->layout.shape[d + 1];
        layout->stride[d] = tensor->layout.stride[d + 1];
    }
    if (layout->ndim) {
        layout->shape[layout->ndim - 1] = tensor->layout.shape[dim];
        layout->stride[layout->ndim - 1] = tensor->layout.stride[dim];
    }
    return moved;
}

void lb_frame_absolute(const lb_frame *frame, const void *x, void *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (frame->wide)
            ((double *)y)[i] = fabs(((const double *)x)[i]);
        else
            ((float *)y)[i] = fabsf(((const float *)x)[i]);
    }
}

void lb_frame_round(const lb_frame *frame, void *x, int64_t n, lb_dtype dtype)
{
    if (dtype != LB_BF16 && dtype != LB_F16) return;
    if (frame->wide)
        lb_round_to_grid_f64(x, (size_t)n, dtype, NULL);
    else
        lb_round_to_grid_f32(x, (size_t)n, dtype, NULL);
}

double lb_frame_twin_scale(const lb_call *call, uint32_t i)
{
    const lb_tensor *tensor = lb_frame_arg_tensor(call, i);
    if (!tensor || lb_dtype_bits(tensor->dtype) != 16) return 1;
    return tensor->dtype == LB_BF16 ? 0x1p16 : 0x1p13;
}

double lb_frame_twin_rounding(const lb_call *call, uint32_t i)
{
    double scale = lb_frame_twin_scale(call, i),
           factor = (double)call->row->roundings + (double)call->row->roundings_per_term * lb_call_terms(call);
    return scale > 1 && factor > 0 ? scale / factor : 0;
}
