/* How many terms go into one result element: what roundings_per_term of a row is multiplied with.
 *
 * By the row's flags where that is enough: 1 for elementwise, the reduced elements for reductions, k for matmuls. Ops that add at
 * given places may add every index to one element: they count their indices. The rest is listed. */
#include "frame.h"

#include <string.h>

static double numel(const lb_call *call, uint32_t i)
{
    const lb_tensor *tensor = lb_call_tensor(call, i);
    return tensor ? (double)lb_tensor_numel(tensor) : 1;
}

static double size_of(const lb_call *call, uint32_t i, int64_t dim)
{
    const lb_tensor *tensor = lb_call_tensor(call, i);
    int d = tensor ? lb_wrap_dim(dim, tensor->layout.ndim) : -1;
    return d >= 0 && tensor->layout.ndim ? (double)tensor->layout.shape[d] : 1;
}

static double product_of(const lb_call *call, uint32_t i)
{
    int64_t numbers[LB_MAX_DIMS];
    double product = 1;
    for (int k = 0, n = lb_call_ints(call, i, numbers, LB_MAX_DIMS); k < n; k++) product *= (double)numbers[k];
    return product;
}

/* Where the number comes from, by name (without "aten::") or beginning of a name ("…*"). */
typedef enum source {
    INNER,       /* last dimension of arg `a` */
    ELEMENTS,    /* of arg `a` */
    DIMENSION,   /* of arg 0 that arg `a` names */
    POSITIONS,   /* that the index tensors of list `a` name, broadcast with each other: all may be one */
    INDICES,     /* of index tensor `a` along its dimension, at most its elements */
    SIZES,       /* product of int list `a` */
    ROWS,        /* elements of arg `a` per element of result 1 (saved mean) */
    GROUPS,      /* group_norm: elements of arg `a` / (its dim 0 * arg 1) */
    PER_CHANNEL, /* elements of arg `a` / size of its dim 1 */
    PAIRS,       /* twice the last dimension of arg `a` */
    WEIGHED,     /* elements of arg 0 per element of arg `a`, a weight */
    STEPS,       /* size of dim 1 of arg `a` */
    SCANNED,     /* the same and that size: gradients of a scan are sums along it, or over channels */
    KERNEL,      /* elements of weight `a` / its dim 0, and the outputs that one weight meets */
    TRANSPOSED,  /* the same of a transposed convolution: / its dim 1 */
    KEYS,        /* attention: queries + keys + head size; `a` is the query */
    TOKENS,      /* the same where tokens may stand before heads */
    CELLS        /* recurrent layers: inputs and hidden size, steps times samples; `a` is the input, the weights follow */
} source;

static const struct {
    const char *name;
    source from;
    uint32_t a;
} listed[] = {
    {"mm", INNER, 0}, {"bmm", INNER, 0}, {"addmm", INNER, 1}, {"baddbmm", INNER, 1}, {"addbmm", ELEMENTS, 1},
    {"addmv", INNER, 1}, {"mv", INNER, 0}, {"dot", ELEMENTS, 0}, {"vdot", ELEMENTS, 0}, {"linear", INNER, 0},
    {"matmul", INNER, 0}, {"_scaled_mm", INNER, 0}, {"_grouped_mm", ELEMENTS, 0},
    {"linalg_solve_triangular", INNER, 0}, {"cumsum", DIMENSION, 1}, {"cumprod", DIMENSION, 1},
    {"_softmax", DIMENSION, 1}, {"_log_softmax", DIMENSION, 1}, {"_safe_softmax", DIMENSION, 1},
    {"_softmax_backward_data", DIMENSION, 2}, {"_log_softmax_backward_data", DIMENSION, 2},
    {"nll_loss_forward", ELEMENTS, 1}, {"nll_loss2d_forward", ELEMENTS, 1},
    {"index_put", POSITIONS, 1}, {"_unsafe_index_put", POSITIONS, 1}, {"_index_put_impl", POSITIONS, 1},
    {"index_add", ELEMENTS, 2}, {"embedding_dense_backward", ELEMENTS, 1}, {"put", ELEMENTS, 1},
    {"scatter*", INDICES, 2}, {"bincount", ELEMENTS, 0},
    {"native_layer_norm", SIZES, 1}, {"native_layer_norm_backward", ELEMENTS, 1}, {"_fused_rms_norm", SIZES, 1},
    {"_fused_rms_norm_backward", ELEMENTS, 1}, {"native_group_norm", ROWS, 0}, {"native_group_norm_backward", ELEMENTS, 1},
    {"native_batch_norm", PER_CHANNEL, 0}, {"_native_batch_norm*", PER_CHANNEL, 0}, {"native_batch_norm_backward", PER_CHANNEL, 1},
    {"_batch_norm*", PER_CHANNEL, 0}, {"cudnn_batch_norm", PER_CHANNEL, 0}, {"cudnn_batch_norm_backward", PER_CHANNEL, 0},
    {"batch_norm_backward", PER_CHANNEL, 1},
    {"convolution", KERNEL, 1}, {"_convolution", KERNEL, 1}, {"convolution_backward", KERNEL, 2},
    {"_scaled_dot_product*_backward", KEYS, 1}, {"_scaled_dot_product*", KEYS, 0}, {"scaled_dot_product_attention", KEYS, 0},
    {"layer_norm", SIZES, 1}, {"rms_norm", SIZES, 1}, {"batch_norm", PER_CHANNEL, 0}, {"group_norm", GROUPS, 0},
    {"softmax.int", DIMENSION, 1}, {"log_softmax.int", DIMENSION, 1}, {"special_softmax", DIMENSION, 1}, {"special_log_softmax", DIMENSION, 1},
    {"nll_loss", ELEMENTS, 1}, {"nll_loss2d", ELEMENTS, 1}, {"nll_loss_nd", ELEMENTS, 1}, {"cross_entropy_loss", ELEMENTS, 0},
    {"DaoAILab::_causal_conv1d_bwd_cpp", PER_CHANNEL, 0}, {"custom_ops::selective_scan_fwd", INNER, 0},
    {"custom_ops::selective_scan_bwd", SCANNED, 1}, {"_C::selective_scan_fwd", INNER, 0},
    {"mamba_ssm::ssm_chunk_scan_combined_fwd", STEPS, 0}, {"mamba_ssm::ssm_chunk_scan_combined_bwd", ELEMENTS, 2},
    {"fla::fused_k_rwkv7_bwd", WEIGHED, 3}, {"fla::fused_addcmul_rwkv7_bwd", WEIGHED, 6},
    {"fla::gate_output_correction_rwkv7_bwd", WEIGHED, 4}, {"fla::kk_pre_rwkv7_bwd", WEIGHED, 5},
    {"transformer_engine*", INNER, 0}, {"fla::chunk_dplr*", STEPS, 2}, {"fla::fused_recurrent_rwkv7", STEPS, 2},
    {"flash_attn::*backward", TOKENS, 1}, {"flash_attn::*", TOKENS, 0},
    {"_C::cutlass_scaled_mm", INNER, 1}, {"sgl_kernel::fp8_*", INNER, 0}, {"sgl_kernel::int8_scaled_mm", INNER, 0}, {"*::cutlass_scaled_fp4_mm", PAIRS, 1},
    {"_weight_norm_interface", WEIGHED, 1}, {"_weight_norm_interface_backward", WEIGHED, 2},
    {"_addmm_activation", INNER, 1}, {"conv_transpose*", TRANSPOSED, 1},
    {"cudnn_convolution_transpose", TRANSPOSED, 1}, {"conv1d*", KERNEL, 1}, {"conv2d*", KERNEL, 1}, {"conv3d*", KERNEL, 1},
    {"cudnn_convolution*", KERNEL, 1}, {"miopen_convolution", KERNEL, 1},
    {"mkldnn_convolution", KERNEL, 1}, {"thnn_conv2d", KERNEL, 1}, {"_slow_conv2d_forward", KERNEL, 1}, {"slow_conv*", KERNEL, 1},
    {"_conv_depthwise2d", KERNEL, 1},
    {"_embedding_bag_per_sample_weights_backward", INNER, 1}, {"_embedding_bag*", ELEMENTS, 1}, {"embedding_renorm_", INNER, 0},
    {"mkldnn_rnn_layer*", CELLS, 0}, {"_flash_attention_backward", TOKENS, 1}, {"_efficient_attention_backward", TOKENS, 1}, {"_cudnn_attention_backward", TOKENS, 1},
    {"_flash_attention_forward", TOKENS, 0}, {"_efficient_attention_forward", TOKENS, 0}, {"_cudnn_attention_forward", TOKENS, 0},
};

/* One '*' at most. */
static bool matches(const char *pattern, const char *name)
{
    const char *star = strchr(pattern, '*');
    if (!star) return !strcmp(pattern, name);
    size_t before = (size_t)(star - pattern), after = strlen(star + 1), length = strlen(name);
    return length >= before + after && !strncmp(pattern, name, before) && !strcmp(star + 1, name + length - after);
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

static double terms_from(const lb_call *call, source from, uint32_t a)
{
    switch (from) {
    case INNER: return size_of(call, a, -1);
    case ELEMENTS: return numel(call, a);
    case DIMENSION: return size_of(call, 0, lb_call_int(call, a, -1));
    case POSITIONS: return positions_of(call, a);
    case INDICES: return size_of(call, a, lb_call_int(call, 1, 0));
    case SIZES: return product_of(call, a);
    case ROWS: {
        double rows = call->n_results > 1 ? (double)lb_tensor_numel(&call->results[1]) : 1;
        return rows > 0 ? numel(call, a) / rows : 1;
    }
    case GROUPS: {
        double groups = size_of(call, a, 0) * (double)lb_call_int(call, 1, 1);
        return groups > 0 ? numel(call, a) / groups : 1;
    }
    case PER_CHANNEL: return numel(call, a) / (size_of(call, a, 1) > 0 ? size_of(call, a, 1) : 1);
    case PAIRS: return 2 * size_of(call, a, -1);
    case WEIGHED: return numel(call, 0) / (numel(call, a) > 0 ? numel(call, a) : 1);
    case STEPS: return size_of(call, a, 1);
    case SCANNED: return terms_from(call, PER_CHANNEL, a) + size_of(call, a, 1);
    case KERNEL: {
        if (a == 1 && (!strcmp(call->row->name, "aten::convolution") || !strcmp(call->row->name, "aten::_convolution")) && lb_call_int(call, 6, 0)) return terms_from(call, TRANSPOSED, a);
        double outputs = size_of(call, a, 0), meets = a == 2 ? numel(call, 0) / (outputs > 0 ? outputs : 1) : 0;
        return (outputs > 0 ? numel(call, a) / outputs : 1) + meets;
    }
    case TRANSPOSED: return numel(call, a) / (size_of(call, a, 1) > 0 ? size_of(call, a, 1) : 1);
    case KEYS: return size_of(call, a + 1, -2) + size_of(call, a, -2) + size_of(call, a, -1);
    case CELLS: return size_of(call, a, -1) + size_of(call, a + 1, 0) + size_of(call, a, 0) * size_of(call, a, 1);
    case TOKENS: {
        double queries = size_of(call, a, -3), keys = size_of(call, a + 1, -3);
        if (size_of(call, a, -2) > queries) queries = size_of(call, a, -2);
        if (size_of(call, a + 1, -2) > keys) keys = size_of(call, a + 1, -2);
        return queries + keys + size_of(call, a, -1);
    }
    }
    return 1;
}

/* Where oneDNN has no convolution of a 16-bit type for the processor, torch's own takes its place, and rounds to that type on the
 * way: a sample's product before the bias is added; the other way round every position of the kernel (col2im) and every sample's
 * part of a weight's gradient. Each counts as many terms as f32 roundings are one of that type. Source: torch's
 * ConvolutionMM2d.cpp, NaiveConvolutionTranspose2d.cpp. */
static double narrow_terms(const lb_call *call)
{
    const lb_tensor *narrow = NULL, *weight = NULL;
    int64_t samples = 1, positions = 1;
    if (strncmp(call->row->name, "aten::", 6) || !strstr(call->row->name, "conv")) return 0;
    for (uint32_t i = 0; i < call->n_args; i++) {
        const lb_tensor *tensor = lb_call_tensor(call, i);
        if (!tensor || tensor->layout.ndim < 2) continue;
        if (!weight) samples = tensor->layout.shape[0];
        if (lb_dtype_bits(tensor->dtype) == 16) narrow = tensor;
        weight = tensor; /* the last one */
    }
    if (!narrow) return 0;
    for (int d = 2; d < weight->layout.ndim; d++) positions *= weight->layout.shape[d];
    return (double)(2 + positions + samples) * (narrow->dtype == LB_BF16 ? 0x1p16 : 0x1p13);
}

double lb_call_terms(const lb_call *call)
{
    const lb_op_row *row = call->row;
    const char *name = strncmp(row->name, "aten::", 6) ? row->name : row->name + 6;
    double terms = 1;
    if (row->flags & LB_ROW_ELEMENTWISE) return 1;
    for (size_t i = 0; i < sizeof listed / sizeof *listed; i++)
        if (matches(listed[i].name, name)) {
            terms = terms_from(call, listed[i].from, listed[i].a) + narrow_terms(call);
            return terms > 1 ? terms : 1;
        }
    if (row->flags & LB_ROW_REDUCTION && call->n_results) {
        double results = (double)lb_tensor_numel(&call->results[0]);
        if (results > 0) terms = numel(call, 0) / results;
    }
    return terms > 1 ? terms : 1;
}
