/* Nested tensors of sequences, each (its tokens, width): as parts sizes (sequences, 2), strides (sequences, 2), where
 * each begins, and all numbers side by side. */
#include "kernel/frame.h"

typedef struct nested {
    const int64_t *size, *begins;
    int64_t sequences, width, numbers;
    const void *x;
} nested;

/* Arg 0; false, and the frame has failed: it is no nested tensor of sequences without holes. */
static bool take(lb_frame *frame, nested *taken)
{
    const lb_operand *arg = &frame->call->args[0];
    *taken = (nested){0};
    const lb_tensor *part = arg->tensors;
    const bool plain = arg->tag == LB_OPERAND_TENSORS && arg->count == 4 && part[0].layout.ndim == 2 &&
                       part[0].layout.shape[1] == 2 && lb_tensor_numel(&part[2]) == part[0].layout.shape[0] &&
                       lb_dtype_is_float(part[3].dtype);
    if (!plain) {
        lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "no nested tensor of sequences");
        return false;
    }
    taken->sequences = part[0].layout.shape[0], taken->numbers = lb_tensor_numel(&part[3]);
    taken->size = lb_frame_integers(frame, &part[0]), taken->begins = lb_frame_integers(frame, &part[2]);
    const int64_t *stride = lb_frame_integers(frame, &part[1]);
    taken->x = lb_frame_tensor(frame, &part[3]);
    if (lb_frame_ok(frame) && taken->sequences) taken->width = taken->size[1];
    int64_t at = 0;
    for (int64_t i = 0; lb_frame_ok(frame) && i < taken->sequences; i++) {
        const int64_t *size = taken->size + 2 * i;
        if (size[0] < 0 || size[1] != taken->width || taken->begins[i] != at || stride[2 * i] != size[1] ||
            stride[2 * i + 1] != 1)
            lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "sequences of other widths, or with holes");
        at += size[0] * taken->width;
    }
    if (at > taken->numbers) lb_frame_fail(frame, LB_ERR_UNSUPPORTED, "fewer numbers than sizes say");
    return lb_frame_ok(frame);
}

/* self, padding, output_size */
static lb_status pad(lb_call *call)
{
    lb_frame frame = lb_frame_begin(call);
    nested nested;
    const lb_layout *to = &call->results[0].layout;
    if (!take(&frame, &nested)) return lb_frame_end(&frame);
    if (call->n_results != 1 || to->ndim != 3 || to->shape[0] != nested.sequences || to->shape[2] < nested.width)
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "a result of another shape");
    const double padding = lb_frame_arg_float(call, 1, 0);
    void *y = lb_frame_output(&frame, 0, lb_layout_numel(to));
    for (int64_t i = 0; lb_frame_ok(&frame) && i < nested.sequences; i++)
        for (int64_t j = 0; j < to->shape[1] * to->shape[2]; j++) {
            const int64_t row = j / to->shape[2], column = j % to->shape[2];
            const bool inside = row < nested.size[2 * i] && column < nested.width;
            lb_frame_set(&frame, y, i * to->shape[1] * to->shape[2] + j,
                         inside ? lb_frame_get(&frame, nested.x, nested.begins[i] + row * nested.width + column)
                                : padding);
        }
    return lb_frame_end(&frame);
}

static void write_shape(int64_t *size, int64_t *stride, int64_t kept, int64_t width)
{
    size[0] = kept, size[1] = width;
    stride[0] = width, stride[1] = 1;
}

/* tensor (sequences, tokens, width), mask, mask_check: of each sequence as many tokens as its mask has, from the first
 * on */
static lb_status from_mask(lb_call *call)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *tensor = lb_frame_arg_tensor(call, 0), *mask = lb_frame_arg_tensor(call, 1);
    const lb_layout *layout = &tensor->layout;
    if (call->n_results != 4 || layout->ndim != 3 || mask->layout.ndim != 2 ||
        mask->layout.shape[0] != layout->shape[0] || mask->layout.shape[1] != layout->shape[1] ||
        !lb_dtype_is_float(tensor->dtype)) {
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "no sequences and a mask of them");
        return lb_frame_end(&frame);
    }
    const int64_t n = layout->shape[0], tokens = layout->shape[1], width = layout->shape[2];
    const int64_t *keep = lb_frame_integers(&frame, mask);
    const void *x = lb_frame_tensor(&frame, tensor);
    int64_t kept = 0;
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n * tokens; i++) kept += keep[i] != 0;
    if (lb_frame_ok(&frame) && call->results[3].data && lb_tensor_numel(&call->results[3]) != kept * width)
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "a result of another size");
    int64_t *size = lb_frame_output_integers(&frame, 0, 2 * n), *stride = lb_frame_output_integers(&frame, 1, 2 * n),
            *begins = lb_frame_output_integers(&frame, 2, n), at = 0;
    void *y = lb_frame_output(&frame, 3, kept * width);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        int64_t own = 0;
        for (int64_t k = 0; k < tokens; k++) own += keep[i * tokens + k] != 0;
        write_shape(size + 2 * i, stride + 2 * i, own, width);
        begins[i] = at;
        for (int64_t j = 0; j < own * width; j++)
            lb_frame_set(&frame, y, at + j, lb_frame_get(&frame, x, i * tokens * width + j));
        at += own * width;
    }
    return lb_frame_end(&frame);
}

const lb_op_row lb_rows_nested[] = {
    {.name = "parts::to_padded_tensor",
     .args = "self% padding output_size",
     .kernel = pad,
     .flags = LB_ROW_EXACT,
     .samples = "nested"},
    {.name = "parts::_nested_tensor_from_mask",
     .args = "t! mask! mask_check",
     .kernel = from_mask,
     .flags = LB_ROW_EXACT,
     .samples = "nested"},
    {NULL},
};
