/* Multi-head attention and a whole encoder layer, which nn.MultiheadAttention and nn.TransformerEncoderLayer run as one
 * op in evaluation.
 *
 *      attention   q, k, v = x W + b, q / sqrt(size);  p = softmax(q k') under the mask;  y = (p v) W + b, and p by
 *                  head or on average
 *      layer       x + attention(x) and then x + f(x W + b) W + b, f gelu or relu, with a layer norm behind either sum
 *                  or in front
 *
 * Each is a chain of rows, whose results are held in the result's dtype as torch's CPU kernels hold them; in f64 it is
 * the exact value. The twin runs the chain in f64 with the error of every number beside it: in parts of what the row's
 * bound multiplies its twin with, to first order, but for softmax, where errors are those of exponents. CUDA may leave
 * roundings to 16 bits out, and takes gelu's tanh form. Source: pytorch/pytorch
 * aten/src/ATen/native/transformers/attention.cpp, transformer.cpp, aten/src/ATen/native/cuda/Blas.cpp. */
#include "ops/row_chain.h"
#include "kernel/value_memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- attention --------------------------------------------------------------------------------------------------- */

typedef struct attention {
    const lb_tensor *qkv_weight, *qkv_bias, *weight, *bias;
    lb_operand mask, mask_type;
    int64_t batch, tokens, heads, size;
} attention;

static bool is_matrix(const lb_tensor *tensor, int64_t rows, int64_t columns)
{
    return tensor && tensor->layout.ndim == 2 && tensor->layout.shape[0] == rows && tensor->layout.shape[1] == columns;
}

static bool is_vector(const lb_tensor *tensor, int64_t size)
{
    return tensor && tensor->layout.ndim == 1 && tensor->layout.shape[0] == size;
}

/* From arg `first` on: embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias; the mask and its type stand
 * apart. */
static bool attention_of(attention *a, const lb_call *call, uint32_t first, uint32_t mask, uint32_t mask_type)
{
    const lb_tensor *x = lb_frame_arg_tensor(call, 0);
    *a = (attention){.qkv_weight = lb_frame_arg_tensor(call, first + 2),
                     .qkv_bias = lb_frame_arg_tensor(call, first + 3),
                     .weight = lb_frame_arg_tensor(call, first + 4),
                     .bias = lb_frame_arg_tensor(call, first + 5),
                     .mask = lb_operand_arg(call, mask),
                     .mask_type = lb_operand_arg(call, mask_type),
                     .heads = lb_frame_arg_int(call, first + 1, 1)};
    if (x->layout.ndim != 3 || a->heads < 1 || x->layout.shape[2] % a->heads) return false;
    const int64_t width = x->layout.shape[2];
    a->batch = x->layout.shape[0], a->tokens = x->layout.shape[1], a->size = width / a->heads;
    return is_matrix(a->qkv_weight, 3 * width, width) && is_vector(a->qkv_bias, 3 * width) &&
           is_matrix(a->weight, width, width) && is_vector(a->bias, width);
}

/* x W of query, key and value side by side: (batch, tokens, 3 heads size). */
static lb_row_chain_number projected(lb_row_chain *chain, const attention *attention, const lb_row_chain_number *x)
{
    const int64_t width = attention->heads * attention->size,
                  wide[3] = {attention->batch, attention->tokens, 3 * width};
    lb_row_chain_number y = lb_row_chain_number_of(chain, 3, wide);
    for (int64_t part = 0; part < 3; part++) {
        const lb_tensor weight = lb_row_chain_part_of(attention->qkv_weight, part, 3);
        lb_layout third = y.value.layout;
        third.shape[2] = width;
        lb_row_chain_number to = {lb_row_chain_seen_as(y.value, &third, part * width),
                                  lb_row_chain_seen_as(y.error, &third, part * width)};
        lb_row_chain_linear_into(chain, &x[part], &weight, NULL, &to);
    }
    lb_row_chain_hold(chain, &y, 1);
    return y;
}

/* q, k and v of (batch, heads, tokens, size). */
static void split_heads(lb_row_chain *chain, const attention *attention, const lb_row_chain_number *qkv,
                        lb_row_chain_number *heads)
{
    const int64_t shape[4] = {attention->batch, attention->heads, attention->tokens, attention->size};
    for (int i = 0; i < 3; i++) heads[i] = lb_row_chain_number_of(chain, 4, shape);
    lb_row_call call = {.row = "aten::_transform_bias_rescale_qkv",
                        .args = {lb_operand_tensor(&qkv->value), lb_operand_tensor(attention->qkv_bias),
                                 lb_operand_int(attention->heads)},
                        .n_args = 3,
                        .results = {heads[0].value, heads[1].value, heads[2].value},
                        .n_results = 3};
    lb_row_chain_run(chain, &chain->apart, &call, false);
    if (!chain->twin) return;
    const lb_tensor none = lb_row_chain_fresh(chain, LB_F64, 1, &attention->qkv_bias->layout.shape[0]);
    if (lb_row_chain_ok(chain)) memset(none.data, 0, (size_t)lb_tensor_numel(&none) * sizeof(double));
    call.args[0] = lb_operand_tensor(&qkv->error), call.args[1] = lb_operand_tensor(&none);
    for (int i = 0; i < 3; i++) call.results[i] = heads[i].error;
    lb_row_chain_run(chain, &chain->apart, &call, true);
    for (int i = 0; i < 3; i++) {
        lb_row_chain_add_magnitudes(chain, &heads[i].error, &heads[i].value, lb_row_chain_roundings(chain, 4));
        lb_row_chain_hold(chain, &heads[i], i ? 1 : 4);
    }
}

/* How far p = exp(log_p) can move when its exponent is off by d, and all are by `mean` on average. Where they are off
 * by much, the sum can also grow to `grown`, by keys that p all but leaves out. */
static double softmax_error(double p, double log_p, double d, double mean, double grown)
{
    const double up = d + mean < 1 ? p * expm1(d + mean) : exp(fmin(0, log_p + d + mean));
    return grown > 1 ? fmax(up, p * (1 - exp(-d) / grown)) : up;
}

static void softmax_errors(lb_row_chain *chain, const lb_row_chain_number *x, lb_row_chain_number *p)
{
    const int64_t size = x->value.layout.shape[3], n = lb_tensor_numel(&x->value);
    const double own = lb_row_chain_roundings(chain, 4);
    lb_tensor room = lb_row_chain_fresh(chain, LB_F64, 1, &size);
    double *errors = room.data;
    for (int64_t i = 0; lb_row_chain_ok(chain) && i < n; i += size) {
        const double *v = (const double *)x->value.data + i, *e = (const double *)x->error.data + i;
        double *y = (double *)p->value.data + i, *error = (double *)p->error.data + i;
        double top = -INFINITY, mean = 0, most = 0, worst = 0, grown = 0;
        for (int64_t k = 0; k < size; k++)
            if (y[k] > most) most = y[k], top = v[k];
        for (int64_t k = 0; k < size; k++) {
            errors[k] = chain->unit * (e[k] + (1 + fabs(v[k] - top)) * (own + chain->coarse));
            if (y[k] > 0) mean += y[k] * errors[k];
            grown += exp(v[k] - top + log(most) + errors[k]);
            worst = fmax(worst, errors[k]);
        }
        if (worst < 0x1p-7) grown = 0;
        for (int64_t k = 0; k < size; k++) {
            error[k] = softmax_error(y[k], v[k] - top + log(most), errors[k], mean, grown) / chain->unit;
            error[k] += y[k] * (lb_row_chain_roundings_of_sum(chain, size) + own + chain->coarse);
            if (isinf(worst)) error[k] = LB_ROW_CHAIN_UNKNOWN;
        }
    }
}

/* Arg 1 of the row that stands without a mask: the dimension. */
static lb_row_chain_number weights(lb_row_chain *chain, const attention *attention, const lb_row_chain_number *scores)
{
    lb_row_chain_number y = lb_row_chain_number_of(chain, 4, scores->value.layout.shape);
    lb_row_call call = {.row = "aten::_softmax",
                        .args = {lb_operand_tensor(&scores->value), lb_operand_int(-1), lb_operand_flag(false)},
                        .n_args = 3,
                        .results = {y.value},
                        .n_results = 1};
    if (attention->mask.tag == LB_OPERAND_TENSOR) {
        call.row = "aten::_masked_softmax", call.n_args = 4;
        call.args[1] = attention->mask, call.args[2] = lb_operand_int(-1), call.args[3] = attention->mask_type;
    }
    lb_row_chain_run(chain, &chain->apart, &call, false);
    if (chain->twin) softmax_errors(chain, scores, &y);
    lb_row_chain_hold(chain, &y, 1);
    return y;
}

/* Of the inputs x, which are one in self-attention. *p: the weights. */
static lb_row_chain_number attend(lb_row_chain *chain, const attention *attention, const lb_row_chain_number *x,
                                  lb_row_chain_number *p)
{
    const int64_t square[4] = {attention->batch, attention->heads, attention->tokens, attention->tokens},
                  joined[3] = {attention->batch, attention->tokens, attention->heads * attention->size};
    const lb_layout by_head = {.ndim = 4,
                               .shape = {attention->batch, attention->heads, attention->tokens, attention->size},
                               .stride = {attention->tokens * joined[2], attention->size, joined[2], 1}};
    const lb_row_chain_number qkv = projected(chain, attention, x);
    lb_row_chain_number heads[3], scores = lb_row_chain_number_of(chain, 4, square),
                                  all = lb_row_chain_number_of(chain, 3, joined);
    split_heads(chain, attention, &qkv, heads);
    lb_row_chain_product(chain, &heads[0], &heads[1], true, &scores);
    *p = weights(chain, attention, &scores);
    lb_row_chain_number context = lb_row_chain_number_seen_as(all, &by_head);
    lb_row_chain_product(chain, p, &heads[2], false, &context);
    return lb_row_chain_linear(chain, &all, attention->weight, attention->bias);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static bool is_wanted(const lb_call *call, uint32_t result)
{
    return result < call->n_results && call->results[result].data;
}

/* Result `r`: the value, or of a twin the error with the magnitude. */
static void put(lb_row_chain *chain, uint32_t result, const lb_row_chain_number *x)
{
    if (!lb_row_chain_ok(chain) || !is_wanted(chain->call, result)) return;
    const lb_tensor *to = &chain->call->results[result];
    if (lb_tensor_numel(to) != lb_tensor_numel(&x->value)) {
        chain->status =
            lb_fail(chain->call->err, LB_ERR_INVALID, "%s: a result of another size", chain->call->row->name);
        return;
    }
    lb_tensor from = chain->twin ? lb_row_chain_mixed(chain, x, lb_row_chain_roundings(chain, 1), 1) : x->value;
    from.layout = lb_layout_contiguous(to->layout.ndim, to->layout.shape);
    if (lb_row_chain_ok(chain)) lb_memory_tensor_copy(to, &from, NULL);
}

/* p summed over heads, divided by their number. */
static lb_row_chain_number averaged(lb_row_chain *chain, const attention *attention, const lb_row_chain_number *p)
{
    const int64_t shape[3] = {attention->batch, attention->tokens, attention->tokens}, dim = 1;
    const double dim_as_real = 1;
    lb_row_chain_number total = lb_row_chain_number_of(chain, 3, shape), y = lb_row_chain_number_of(chain, 3, shape);
    lb_row_call add = {.row = "aten::sum.dim_IntList",
                       .args = {lb_operand_tensor(&p->value), lb_operand_numbers(&dim, &dim_as_real, 1),
                                lb_operand_flag(false), lb_operand_none()},
                       .n_args = 4,
                       .results = {total.value},
                       .n_results = 1};
    lb_row_call divide = {.row = "aten::div.Scalar",
                          .args = {lb_operand_tensor(&total.value), lb_operand_int(attention->heads)},
                          .n_args = 2,
                          .results = {y.value},
                          .n_results = 1};
    lb_row_chain_run(chain, &chain->apart, &add, false), lb_row_chain_run(chain, &chain->apart, &divide, false);
    if (!chain->twin) return y;
    add.args[0] = lb_operand_tensor(&p->error), add.results[0] = total.error;
    divide.args[0] = lb_operand_tensor(&total.error), divide.results[0] = y.error;
    lb_row_chain_run(chain, &chain->apart, &add, false), lb_row_chain_run(chain, &chain->apart, &divide, false);
    lb_row_chain_add_magnitudes(chain, &y.error, &y.value, lb_row_chain_roundings_of_sum(chain, attention->heads));
    lb_row_chain_hold(chain, &y, 2);
    return y;
}

static bool same_shape(const lb_tensor *a, const lb_tensor *b)
{
    bool same = a->layout.ndim == b->layout.ndim;
    for (int d = 0; same && d < a->layout.ndim; d++) same = a->layout.shape[d] == b->layout.shape[d];
    return same;
}

/* Args: query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, need_weights,
 * average_attn_weights, mask_type. */
static lb_status attention_run(lb_call *call, bool twin)
{
    lb_row_chain chain = lb_row_chain_begin(call, twin);
    attention attention;
    const lb_tensor *x = lb_frame_arg_tensor(call, 0);
    if (!attention_of(&attention, call, 3, 9, 12) || !same_shape(x, lb_frame_arg_tensor(call, 1)) ||
        !same_shape(x, lb_frame_arg_tensor(call, 2)))
        return lb_row_chain_refuse(&chain, "query, key, value and weights that do not fit each other");
    lb_row_chain_number in[3], p;
    for (uint32_t i = 0; i < 3; i++) in[i] = lb_row_chain_number_from(&chain, lb_frame_arg_tensor(call, i));
    const lb_row_chain_number y = attend(&chain, &attention, in, &p);
    put(&chain, 0, &y);
    if (lb_frame_arg_int(call, 10, 1) && lb_frame_arg_int(call, 11, 1) && is_wanted(call, 1))
        p = averaged(&chain, &attention, &p);
    put(&chain, 1, &p);
    return lb_row_chain_end(&chain);
}

/* ---- an encoder layer -------------------------------------------------------------------------------------------- */

enum encoder_args { GELU = 7, NORM_FIRST = 8, EPS = 9, NORM_1 = 10, NORM_2 = 12, FEED_1 = 14, FEED_2 = 16 };

static lb_row_chain_number norm_at(lb_row_chain *chain, const lb_row_chain_number *x, uint32_t weight)
{
    return lb_row_chain_norm(chain, x, lb_frame_arg_tensor(chain->call, weight),
                             lb_frame_arg_tensor(chain->call, weight + 1), lb_frame_arg_float(chain->call, EPS, 1e-5));
}

static lb_row_chain_number feed_forward(lb_row_chain *chain, const lb_row_chain_number *x)
{
    lb_row_chain_number y = lb_row_chain_linear(chain, x, lb_frame_arg_tensor(chain->call, FEED_1),
                                                lb_frame_arg_tensor(chain->call, FEED_1 + 1));
    y = lb_row_chain_activated(chain, &y, lb_frame_arg_int(chain->call, GELU, 0));
    return lb_row_chain_linear(chain, &y, lb_frame_arg_tensor(chain->call, FEED_2),
                               lb_frame_arg_tensor(chain->call, FEED_2 + 1));
}

static bool layer_fits(const lb_call *call, int64_t width)
{
    const lb_tensor *up = lb_frame_arg_tensor(call, FEED_1);
    const int64_t inner = up && up->layout.ndim == 2 ? up->layout.shape[0] : 0;
    return is_matrix(up, inner, width) && is_vector(lb_frame_arg_tensor(call, FEED_1 + 1), inner) &&
           is_matrix(lb_frame_arg_tensor(call, FEED_2), width, inner) &&
           is_vector(lb_frame_arg_tensor(call, FEED_2 + 1), width) &&
           is_vector(lb_frame_arg_tensor(call, NORM_1), width) &&
           is_vector(lb_frame_arg_tensor(call, NORM_1 + 1), width) &&
           is_vector(lb_frame_arg_tensor(call, NORM_2), width) &&
           is_vector(lb_frame_arg_tensor(call, NORM_2 + 1), width);
}

/* Args: src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, and as above; mask, mask_type. */
static lb_status layer_run(lb_call *call, bool twin)
{
    lb_row_chain chain = lb_row_chain_begin(call, twin);
    attention attention;
    if (!attention_of(&attention, call, 1, 18, 19) || !layer_fits(call, attention.heads * attention.size))
        return lb_row_chain_refuse(&chain, "an input and weights that do not fit each other");
    const bool first = lb_frame_arg_int(call, NORM_FIRST, 0);
    const lb_row_chain_number src = lb_row_chain_number_from(&chain, lb_frame_arg_tensor(call, 0));
    const lb_row_chain_number in = first ? norm_at(&chain, &src, NORM_1) : src;
    lb_row_chain_number p, y = attend(&chain, &attention, (lb_row_chain_number[]){in, in, in}, &p);
    y = lb_row_chain_sum(&chain, &y, &src);
    if (!first) y = norm_at(&chain, &y, NORM_1);
    const lb_row_chain_number between = first ? norm_at(&chain, &y, NORM_2) : y;
    lb_row_chain_number out = feed_forward(&chain, &between);
    out = lb_row_chain_sum(&chain, &out, &y);
    if (!first) out = norm_at(&chain, &out, NORM_2);
    put(&chain, 0, &out);
    return lb_row_chain_end(&chain);
}

/* The same of a nested src (sizes, strides, offsets, numbers): one sequence after the other, without padding. */
static lb_status sequences_run(lb_call *call, bool twin)
{
    const lb_tensor *parts = call->args[0].tensors, *to = call->results;
    const int64_t n = parts[0].layout.ndim == 2 ? parts[0].layout.shape[0] : -1, width = lb_frame_arg_int(call, 1, 0);
    const bool whole = call->args[0].count == 4 && call->n_results == 4 && n >= 0 && to[3].data && !to[3].layout.offset;
    if (!whole || parts[0].layout.shape[1] != 2 || lb_frame_arg_given(call, 18) ||
        lb_tensor_numel(&parts[3]) != lb_tensor_numel(&to[3]) || width < 1)
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: no sequences under no mask", call->row->name);
    for (uint32_t result = 0; result < 3; result++)
        if (to[result].data && to[result].data != parts[result].data)
            lb_memory_tensor_copy(&to[result], &parts[result], NULL);
    lb_operand args[20];
    memset(args, 0, sizeof args);
    memcpy(args, call->args, (call->n_args < 20 ? call->n_args : 20) * sizeof *args);
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t *size = (const int64_t *)parts[0].data + 2 * i, one[3] = {1, size[0], width};
        if (size[0] < 0 || size[1] != width || ((const int64_t *)parts[2].data)[i] != at ||
            (at += size[0] * width) > lb_tensor_numel(&parts[3]))
            return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: sequences that have holes", call->row->name);
        const lb_layout layout = lb_layout_contiguous(3, one);
        lb_tensor y = {(char *)to[3].data + lb_dtype_bytes(to[3].dtype, (size_t)(at - size[0] * width)), to[3].dtype,
                       layout};
        lb_call part = *call;
        args[0] = (lb_operand){
            .tag = LB_OPERAND_TENSOR,
            .tensor = {(char *)parts[3].data + lb_dtype_bytes(parts[3].dtype, (size_t)(at - size[0] * width)),
                       parts[3].dtype, layout}};
        part.args = args, part.n_args = 20, part.results = &y, part.n_results = 1;
        if (size[0]) LB_TRY(layer_run(&part, twin));
    }
    return LB_OK;
}

LB_WITH_TWIN(attention, attention_run(call, twin))
LB_WITH_TWIN(layer, layer_run(call, twin))
LB_WITH_TWIN(sequences, sequences_run(call, twin))

#define PROJECTIONS "qkv_weight! qkv_bias! proj_weight! proj_bias! "
const lb_op_row lb_rows_encoder[] = {
    {.name = "aten::_native_multi_head_attention",
     .args = "query! key! value! embed_dim num_head " PROJECTIONS "mask need_weights average_attn_weights mask_type",
     LB_COMPUTED_BY(attention),
     LB_SUMS(12, LB_TERMS(KEYS, 0)),
     .flags = LB_ROW_MATMUL | LB_ROW_REDUCTION,
     .kernels = "openblas",
     .samples = "encoder attention"},
    {.name = "aten::_transformer_encoder_layer_fwd",
     .args = "src! embed_dim num_heads " PROJECTIONS
             "use_gelu norm_first eps norm_weight_1! norm_bias_1! norm_weight_2! norm_bias_2! "
             "ffn_weight_1! ffn_bias_1! ffn_weight_2! ffn_bias_2! mask mask_type",
     LB_COMPUTED_BY(layer),
     LB_SUMS(12, LB_TERMS(FED, 14)),
     .flags = LB_ROW_MATMUL | LB_ROW_REDUCTION | LB_ROW_SQUARES,
     .kernels = "openblas",
     .samples = "encoder layer"},
    {.name = "parts::_transformer_encoder_layer_fwd",
     .args = "src% embed_dim num_heads " PROJECTIONS
             "use_gelu norm_first eps norm_weight_1! norm_bias_1! norm_weight_2! norm_bias_2! "
             "ffn_weight_1! ffn_bias_1! ffn_weight_2! ffn_bias_2! mask mask_type",
     LB_COMPUTED_BY(sequences),
     LB_SUMS(12, LB_TERMS(FED, 14)),
     .flags = LB_ROW_SQUARES,
     .samples = "nested"},
    {NULL},
};
