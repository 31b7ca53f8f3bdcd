/* How many terms go into one result element: what roundings_per_term of a row is multiplied with.
 *
 * By the row's flags where that is enough: 1 for elementwise, the reduced elements for reductions. For all others
 * the row says what is counted. Ops that add at given places may add every index to one element: they count their
 * indices. */
#include "kernel/frame.h"

#include <math.h>
#include <string.h>

static double numel(const lb_call *call, uint32_t i)
{
    const lb_tensor *tensor = lb_frame_arg_tensor(call, i);
    return tensor ? (double)lb_tensor_numel(tensor) : 1;
}

static double size_of(const lb_call *call, uint32_t i, int64_t dim)
{
    const lb_tensor *tensor = lb_frame_arg_tensor(call, i);
    int d = tensor ? lb_frame_wrap_dim(dim, tensor->layout.ndim) : -1;
    return d >= 0 && tensor->layout.ndim ? (double)tensor->layout.shape[d] : 1;
}

/* Of an encoder layer with that feed-forward weight; of a nested input all that it has, which are no fewer. */
static double fed_tokens(const lb_call *call, uint32_t weight)
{
    const lb_operand *src = &call->args[0];
    if (src->tag != LB_OPERAND_TENSORS || src->count != 4) return size_of(call, 0, 1);
    return (double)lb_tensor_numel(&src->tensors[3]) / fmax(size_of(call, weight, 1), 1);
}

static double product_of(const lb_call *call, uint32_t i)
{
    int64_t numbers[LB_MAX_DIMS];
    double product = 1;
    for (int k = 0, n = lb_frame_arg_ints(call, i, numbers, LB_MAX_DIMS); k < n; k++) product *= (double)numbers[k];
    return product;
}

static double positions_of(const lb_call *call, uint32_t i)
{
    int64_t shape[LB_MAX_DIMS] = {0};
    double product = 1;
    if (i >= call->n_args || call->args[i].tag != LB_OPERAND_TENSORS) return 1;
    for (uint32_t k = 0; k < call->args[i].count; k++) {
        const lb_layout *layout = &call->args[i].tensors[k].layout;
        for (int d = 0; call->args[i].tensors[k].data && d < layout->ndim; d++) {
            const int64_t size = layout->shape[layout->ndim - 1 - d];
            if (size > shape[d]) shape[d] = size;
        }
        if (lb_dtype_bits(call->args[i].tensors[k].dtype) == 8) return numel(call, 0); /* a mask */
    }
    for (int d = 0; d < LB_MAX_DIMS; d++) product *= shape[d] > 1 ? (double)shape[d] : 1;
    return product;
}

static double per_channel(const lb_call *call, uint32_t i)
{
    return numel(call, i) / (size_of(call, i, 1) > 0 ? size_of(call, i, 1) : 1);
}

/* Of a convolution with this weight; a gradient of the weight also sums over the outputs that it meets. */
static double of_kernel(const lb_call *call, uint32_t weight)
{
    double outputs = size_of(call, weight, 0), meets = weight == 2 ? numel(call, 0) / (outputs > 0 ? outputs : 1) : 0;
    return (outputs > 0 ? numel(call, weight) / outputs : 1) + meets;
}

/* Where oneDNN has no convolution of a 16-bit type for the processor, torch's own takes its place, and rounds to that
 * type on the way: a sample's product before the bias is added; the other way round every position of the kernel
 * (col2im) and every sample's part of a weight's gradient. Each counts as many terms as f32 roundings are one of that
 * type. Source: torch's ConvolutionMM2d.cpp, NaiveConvolutionTranspose2d.cpp. */
static double narrow_terms(const lb_call *call)
{
    const lb_tensor *narrow = NULL, *weight = NULL;
    int64_t samples = 1, positions = 1;
    for (uint32_t i = 0; i < call->n_args; i++) {
        const lb_tensor *tensor = lb_frame_arg_tensor(call, i);
        if (!tensor || tensor->layout.ndim < 2) continue;
        if (!weight) samples = tensor->layout.shape[0];
        if (lb_dtype_bits(tensor->dtype) == 16) narrow = tensor;
        weight = tensor; /* the last one */
    }
    if (!narrow) return 0;
    for (int d = 2; d < weight->layout.ndim; d++) positions *= weight->layout.shape[d];
    return (double)(2 + positions + samples) * (narrow->dtype == LB_BF16 ? 0x1p16 : 0x1p13);
}

static double terms_from(const lb_call *call, lb_terms_source from, uint32_t a)
{
    switch (from) {
    case LB_TERMS_INNER: return size_of(call, a, -1);
    case LB_TERMS_FIRST: return size_of(call, a, 0);
    case LB_TERMS_ELEMENTS: return numel(call, a);
    case LB_TERMS_DIMENSION: return size_of(call, 0, lb_frame_arg_int(call, a, -1));
    case LB_TERMS_POSITIONS: return positions_of(call, a);
    case LB_TERMS_INDICES: return size_of(call, a, lb_frame_arg_int(call, 1, 0));
    case LB_TERMS_SIZES: return product_of(call, a);
    case LB_TERMS_ROWS: {
        double rows = call->n_results > 1 ? (double)lb_tensor_numel(&call->results[1]) : 1;
        return rows > 0 ? numel(call, a) / rows : 1;
    }
    case LB_TERMS_GROUPS: {
        double groups = size_of(call, a, 0) * (double)lb_frame_arg_int(call, 1, 1);
        return groups > 0 ? numel(call, a) / groups : 1;
    }
    case LB_TERMS_PER_CHANNEL: return per_channel(call, a);
    case LB_TERMS_PAIRS: return 2 * size_of(call, a, -1);
    case LB_TERMS_WEIGHED: return numel(call, 0) / (numel(call, a) > 0 ? numel(call, a) : 1);
    case LB_TERMS_STEPS: return size_of(call, a, 1);
    case LB_TERMS_SCANNED: return per_channel(call, a) + size_of(call, a, 1);
    case LB_TERMS_KERNEL: return of_kernel(call, a) + narrow_terms(call);
    case LB_TERMS_TRANSPOSED: return per_channel(call, a) + narrow_terms(call);
    case LB_TERMS_CONVOLUTION:
        return terms_from(call, lb_frame_arg_int(call, 6, 0) ? LB_TERMS_TRANSPOSED : LB_TERMS_KERNEL, a);
    case LB_TERMS_KEYS: return size_of(call, a + 1, -2) + size_of(call, a, -2) + size_of(call, a, -1);
    case LB_TERMS_CELLS:
        return size_of(call, a, -1) + size_of(call, a + 1, 0) + size_of(call, a, 0) * size_of(call, a, 1);
    case LB_TERMS_LAYERS: {
        const double inputs = size_of(call, a, -1), gates = 4 * size_of(call, a + 4, -1);
        return inputs + 3 * gates + (inputs > 0 ? numel(call, a) / inputs : 0);
    }
    case LB_TERMS_FED: return fed_tokens(call, a) + size_of(call, a, 0) + size_of(call, a, 1);
    case LB_TERMS_TOKENS: {
        double queries = size_of(call, a, -3), keys = size_of(call, a + 1, -3);
        if (size_of(call, a, -2) > queries) queries = size_of(call, a, -2);
        if (size_of(call, a + 1, -2) > keys) keys = size_of(call, a + 1, -2);
        return queries + keys + size_of(call, a, -1);
    }
    case LB_TERMS_USUAL: break;
    }
    return 1;
}

double lb_call_terms(const lb_call *call)
{
    const lb_op_row *row = call->row;
    double terms = 1;
    if (row->flags & LB_ROW_ELEMENTWISE) return 1;
    if (row->terms)
        terms = terms_from(call, LB_TERMS_SOURCE(row->terms), LB_TERMS_ARG(row->terms));
    else if (row->flags & LB_ROW_REDUCTION && call->n_results) {
        double results = (double)lb_tensor_numel(&call->results[0]);
        if (results > 0) terms = numel(call, 0) / results;
    }
    return terms > 1 ? terms : 1;
}
