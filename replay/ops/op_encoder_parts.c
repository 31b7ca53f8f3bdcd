/* What torch's fused attention is made of besides products: heads with their biases, and softmax of what a mask leaves
 * over.
 *
 *      _transform_bias_rescale_qkv   (batch, tokens, 3 heads size) to three of (batch, heads, tokens, size);  q = (q +
 *                                    bias) / sqrt(size)
 *      _masked_softmax               softmax of what is not under the mask, 0 under it, NaN where all of a row is
 *      _masked_softmax_backward      dx = y (dy - sum y dy) over what is not under the mask, 0 under it
 *
 * With 16 bits torch rounds on its way: differences from the maximum, exponentials and the reciprocal of their sum, and
 * in early versions q behind the bias, the scale and their product, which the twin admits. Sums are taken one after the
 * other, of f32 in f64. Source: pytorch/pytorch aten/src/ATen/native/transformers/attention.cpp,
 * aten/src/ATen/native/SoftMax.cpp. */
#include "functions/elementary.h"
#include "kernel/frame.h"

#include <math.h>

/* ---- heads ------------------------------------------------------------------------------------------------------- */

/* 1 / sqrt(size) as torch's CPU kernel has it; exact in f64. */
static double rescale_of(int64_t size, const lb_frame *frame)
{
    return frame->wide ? 1 / sqrt((double)size) : (float)(1 / (double)sqrtf((float)size));
}

/* One of the three: result `part` of (batch, heads, tokens, size). */
static void put_heads(lb_frame *frame, const lb_layout *in, int64_t heads, uint32_t part, bool twin)
{
    const int64_t batch = in->shape[0], tokens = in->shape[1], width = in->shape[2] / 3, size = width / heads;
    const void *x = lb_frame_input(frame, 0), *bias = lb_frame_input(frame, 1);
    void *y = lb_frame_output(frame, part, batch * tokens * width);
    const double scale = part ? 1 : rescale_of(size, frame), roundings = part ? 1 : 4;
    const double slack = twin ? 1 + roundings * lb_frame_twin_rounding(frame->call, 0) : 1;
    for (int64_t i = 0; lb_frame_ok(frame) && i < batch * tokens * width; i++) {
        const int64_t token = i / size % tokens, head = i / size / tokens % heads, b = i / size / tokens / heads;
        const int64_t column = (int64_t)part * width + head * size + i % size;
        const double a = lb_frame_get(frame, x, (b * tokens + token) * 3 * width + column),
                     c = lb_frame_get(frame, bias, column);
        lb_frame_set(frame, y, i, (twin ? (fabs(a) + fabs(c)) * slack : frame->wide ? a + c : (float)(a + c)) * scale);
    }
}

/* Args: qkv, qkv_bias, num_heads. */
static lb_status transform(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_layout *in = &lb_frame_arg_tensor(call, 0)->layout;
    const int64_t heads = lb_frame_arg_int(call, 2, 1);
    if (in->ndim != 3 || heads < 1 || in->shape[2] % (3 * heads) || call->n_results != 3 ||
        lb_tensor_numel(lb_frame_arg_tensor(call, 1)) != in->shape[2])
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "an input that is not (batch, tokens, 3 heads size)");
    for (uint32_t part = 0; lb_frame_ok(&frame) && part < 3; part++) put_heads(&frame, in, heads, part, twin);
    return lb_frame_end(&frame);
}

/* ---- softmax under a mask ---------------------------------------------------------------------------------------- */

enum mask_type { OF_TOKENS, OF_KEYS, OF_SCORES };

/* The mask as a view of the input's shape. (queries, keys) of type 0 and (batch, keys) of type 1 are for (batch, heads,
 * queries, keys). */
static bool mask_as(lb_tensor *seen, const lb_tensor *mask, const lb_layout *in, int64_t type)
{
    const lb_layout *layout = &mask->layout;
    *seen = *mask;
    seen->layout = *in;
    bool same = layout->ndim == in->ndim;
    for (int d = 0; same && d < layout->ndim; d++) same = layout->shape[d] == in->shape[d];
    if (same) {
        seen->layout = *layout;
        return true;
    }
    if (layout->ndim != 2 || in->ndim != 4 || type == OF_SCORES) return false;
    const int rows = type == OF_KEYS ? 0 : 2;
    for (int d = 0; d < 4; d++) seen->layout.stride[d] = d == rows ? layout->stride[0] : d == 3 ? layout->stride[1] : 0;
    seen->layout.offset = layout->offset;
    return layout->shape[0] == in->shape[rows] && layout->shape[1] == in->shape[3];
}

typedef struct masked_rows {
    lb_frame frame;
    lb_tensor result; /* with the dimension moved to the end */
    int64_t count, size;
    const void *a, *b, *hidden; /* b: NULL but in the backward */
    void *y;
    lb_dtype rounds; /* the 16-bit dtype in which torch computes, or none */
    double slack;    /* a twin's, per rounding to it */
    double least;    /* … of a number below its normal ones */
    double unit;     /* what 1 of a twin stands for */
} masked_rows;

/* Args: where a, b, the mask, its type and the dimension stand. */
typedef struct masked_form {
    uint32_t mask, dim;
    int type; /* negative: there is none, the mask is as the input */
    bool two;
} masked_form;

static bool open_masked(masked_rows *rows, lb_call *call, const masked_form *form)
{
    const lb_tensor *in = lb_frame_arg_tensor(call, 0), *mask = lb_frame_arg_tensor(call, form->mask);
    const lb_dtype dtype = call->results[0].dtype;
    *rows = (masked_rows){.frame = lb_frame_begin(call), .slack = lb_frame_twin_rounding(call, 0)};
    rows->unit = ((double)call->row->roundings + (double)call->row->roundings_per_term * lb_call_terms(call)) *
                 (in->dtype == LB_F64 ? 0x1p-53 : 0x1p-24);
    if (rows->slack > 0)
        rows->least = rows->slack / lb_frame_twin_scale(call, 0) * 0x1p24 *
                      lb_dtype_min_subnormal(lb_frame_arg_tensor(call, 0)->dtype);
    rows->rounds = dtype == LB_BF16 || dtype == LB_F16 ? dtype : LB_NO_DTYPE;
    const int dim = lb_frame_wrap_dim(lb_frame_arg_int(call, form->dim, -1), in->layout.ndim);
    const int64_t type = form->type < 0 ? OF_SCORES : lb_frame_arg_int(call, (uint32_t)form->type, OF_SCORES);
    lb_tensor seen;
    if (!form->two && !call->cuda && !lb_layout_is_contiguous(&in->layout)) {
        lb_frame_fail(&rows->frame, LB_ERR_UNSUPPORTED,
                      "scores that are not contiguous: a CPU reads them as if they were");
        return false;
    }
    if (dim < 0 || !in->layout.ndim || !mask_as(&seen, mask, &in->layout, type)) {
        lb_frame_fail(&rows->frame, LB_ERR_UNSUPPORTED,
                      "a mask that is not as the scores, their queries or their keys");
        return false;
    }
    if (form->two && lb_tensor_numel(lb_frame_arg_tensor(call, 1)) != lb_tensor_numel(in)) {
        lb_frame_fail(&rows->frame, LB_ERR_INVALID, "a softmax of another size");
        return false;
    }
    const lb_tensor a = lb_frame_dim_last(in, dim), hidden = lb_frame_dim_last(&seen, dim);
    rows->size = in->layout.shape[dim], rows->count = rows->size ? lb_tensor_numel(in) / rows->size : 0;
    rows->a = lb_frame_tensor(&rows->frame, &a), rows->hidden = lb_frame_tensor(&rows->frame, &hidden);
    if (form->two) {
        const lb_tensor b = lb_frame_dim_last(lb_frame_arg_tensor(call, 1), dim);
        rows->b = lb_frame_tensor(&rows->frame, &b);
    }
    rows->result = lb_frame_dim_last(&call->results[0], dim);
    rows->y = lb_frame_output_view(&rows->frame, &rows->result, rows->count * rows->size);
    return lb_frame_ok(&rows->frame);
}

/* As torch holds it between two operations. */
static double held(const masked_rows *masked_rows, double x)
{
    if (masked_rows->frame.wide) return x;
    float narrow = (float)x;
    lb_frame_round(&masked_rows->frame, &narrow, 1, masked_rows->rounds);
    return narrow;
}

/* v: room for a row. */
static void softmax_row(const masked_rows *masked_rows, double *row, int64_t first)
{
    const lb_frame *frame = &masked_rows->frame;
    double top = 0, sum = 0;
    bool any = false;
    for (int64_t k = 0; k < masked_rows->size; k++) {
        const double x = lb_frame_get(frame, masked_rows->a, first + k);
        if (lb_frame_get(frame, masked_rows->hidden, first + k) != 0) continue;
        top = any ? (top < x ? x : top) : x; /* as std::max(top, x) treats NaN */
        any = true;
    }
    for (int64_t k = 0; k < masked_rows->size; k++) {
        const bool seen = lb_frame_get(frame, masked_rows->hidden, first + k) == 0;
        row[k] =
            seen ? held(masked_rows, lb_exp(held(masked_rows, lb_frame_get(frame, masked_rows->a, first + k) - top)))
                 : 0;
        sum = masked_rows->rounds ? (float)(sum + row[k]) : sum + row[k];
    }
    const double factor = masked_rows->rounds ? held(masked_rows, 1 / sum) : 1 / sum;
    for (int64_t k = 0; k < masked_rows->size; k++) lb_frame_set(frame, masked_rows->y, first + k, row[k] * factor);
}

/* The exponent is off by that of x - top: the twin has it per element, and on average from the sum. */
static void softmax_row_twin(const masked_rows *masked_rows, double *row, int64_t first)
{
    const lb_frame *frame = &masked_rows->frame;
    double *y = (double *)masked_rows->y + first, top = -INFINITY, weighted = 0;
    softmax_row(masked_rows, row, first);
    for (int64_t k = 0; k < masked_rows->size; k++)
        if (y[k] > 0) top = fmax(top, lb_frame_get(frame, masked_rows->a, first + k));
    for (int64_t k = 0; k < masked_rows->size; k++) {
        row[k] =
            y[k] > 0 ? (1 + fabs(lb_frame_get(frame, masked_rows->a, first + k) - top)) * (1 + masked_rows->slack) : 0;
        weighted += y[k] * row[k];
    }
    for (int64_t k = 0; k < masked_rows->size; k++)
        y[k] =
            y[k] * (1 + expm1(masked_rows->unit * (row[k] + weighted)) / masked_rows->unit + 2 * masked_rows->slack) +
            (row[k] > 0 ? masked_rows->least : 0);
}

static lb_status masked(lb_call *call, bool twin)
{
    static const masked_form form = {.mask = 1, .dim = 2, .type = 3};
    masked_rows masked_rows;
    if (!open_masked(&masked_rows, call, &form)) return lb_frame_end(&masked_rows.frame);
    double *row = lb_frame_scratch(&masked_rows.frame, (size_t)masked_rows.size * sizeof *row);
    for (int64_t i = 0; lb_frame_ok(&masked_rows.frame) && i < masked_rows.count; i++)
        (twin ? softmax_row_twin : softmax_row)(&masked_rows, row, i * masked_rows.size);
    return lb_frame_end(&masked_rows.frame);
}

/* Args: grad_output, output, mask, dim. */
static lb_status masked_backward(lb_call *call, bool twin)
{
    static const masked_form form = {.mask = 2, .dim = 3, .type = -1, .two = true};
    masked_rows masked_rows;
    if (!open_masked(&masked_rows, call, &form)) return lb_frame_end(&masked_rows.frame);
    const lb_frame *frame = &masked_rows.frame;
    for (int64_t i = 0; lb_frame_ok(frame) && i < masked_rows.count * masked_rows.size; i += masked_rows.size) {
        double sum = 0;
        for (int64_t k = i; k < i + masked_rows.size; k++) {
            if (lb_frame_get(frame, masked_rows.hidden, k) != 0) continue;
            const double term = lb_frame_get(frame, masked_rows.a, k) * lb_frame_get(frame, masked_rows.b, k);
            sum += twin ? fabs(term) * (1 + masked_rows.slack) : held(&masked_rows, term);
        }
        for (int64_t k = i; k < i + masked_rows.size; k++) {
            const double y = lb_frame_get(frame, masked_rows.b, k), dy = lb_frame_get(frame, masked_rows.a, k);
            const double dx = twin ? fabs(y) * (fabs(dy) + fabs(sum)) * (1 + 3 * masked_rows.slack) : y * (dy - sum);
            lb_frame_set(frame, masked_rows.y, k, lb_frame_get(frame, masked_rows.hidden, k) != 0 ? 0 : dx);
        }
    }
    return lb_frame_end(&masked_rows.frame);
}

LB_WITH_TWIN(transform, transform(call, twin))
LB_WITH_TWIN(masked, masked(call, twin))
LB_WITH_TWIN(masked_backward, masked_backward(call, twin))

const lb_op_row lb_rows_encoder_parts[] = {
    {.name = "aten::_transform_bias_rescale_qkv",
     .args = "qkv! qkv_bias! num_heads",
     LB_COMPUTED_BY(transform),
     .roundings = 4,
     .samples = "transform_qkv"},
    {.name = "aten::_masked_softmax",
     .args = "self! mask! dim mask_type",
     LB_COMPUTED_BY(masked),
     LB_SUMS(6, LB_TERMS(DIMENSION, 2)),
     .samples = "masked_softmax"},
    {.name = "aten::_masked_softmax_backward",
     .args = "grad_output! output! mask! dim",
     LB_COMPUTED_BY(masked_backward),
     LB_SUMS(6, LB_TERMS(DIMENSION, 3)),
     .samples = "masked_softmax backward"},
    {NULL},
};
