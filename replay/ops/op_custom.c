/* Custom ops of serving and training stacks, as their public definitions compute them: norms, gated activations, rotary
 * embedding, merged attention states, routers, and FSDP2's copies.
 *
 * Such ops come under many names, with their arguments in many orders, some returning their result, most writing it. A
 * form says for one name where each ingredient stands (positions plus one); one function per computation does the rest.
 * Results are what the op returns, then what it writes, in the order of its schema. All is evaluated in f64 and rounded
 * once per result. The originals round intermediate values to 16 bits in places that differ from version to version:
 * twins admit two such roundings.
 *
 * Names and schemas as registered in
 *      _C::, _moe_C::   vllm-project/vllm csrc/torch_bindings.cpp, csrc/moe/torch_bindings.cpp
 *      sgl_kernel::     sgl-project/sglang sgl-kernel/csrc/common_extension.cc
 *      flashinfer::     flashinfer-ai/flashinfer flashinfer/norm.py, activation.py, cascade.py
 *      trtllm::         NVIDIA/TensorRT-LLM tensorrt_llm/_torch/custom_ops/flashinfer_custom_ops.py
 *      tex_ts::         NVIDIA/TransformerEngine transformer_engine/pytorch/csrc/ts_fp8_op.cpp
 *      fsdp::           pytorch/pytorch torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py
 */
#include "functions/elementary.h"
#include "kernel/expert_choice.h"
#include "kernel/frame.h"
#include "kernel/value_memory.h"

#include <math.h>
#include <string.h>

typedef enum gate { SILU, GELU, GELU_TANH, GELU_QUICK, RELU, RELU_SQUARED, SWIGLU_OAI } gate;

typedef struct form {
    uint8_t x, residual, weight, eps, bias, flag, lse;
    double one; /* added to every weight */
    gate gate;
    bool second; /* the second half is gated; the first kind of a choice */
} form;

typedef struct work {
    lb_frame frame;
    bool twin;
    double slack; /* of a twin, relative: two roundings to 16 bits */
} work;

static work begin(lb_call *call, uint8_t x, bool twin)
{
    work work = {.frame = lb_frame_begin(call), .twin = twin};
    work.slack = twin ? 1 + 2 * lb_frame_twin_rounding(call, x - 1u) : 1;
    return work;
}
static const lb_tensor *at(const lb_call *call, uint8_t position)
{
    return position ? lb_frame_arg_tensor(call, position - 1u) : NULL;
}
static double get(const work *work, const void *x, int64_t i)
{
    return lb_frame_get(&work->frame, x, i);
}
static void put(const work *work, void *y, int64_t i, double value)
{
    if (work->twin) value = fabs(value) * work->slack;
    lb_frame_set(&work->frame, y, i, value);
}
static int64_t last(const lb_tensor *tensor)
{
    return tensor->layout.ndim ? tensor->layout.shape[tensor->layout.ndim - 1] : 1;
}
static lb_status refuse(work *work, const char *why)
{
    lb_frame_fail(&work->frame, LB_ERR_UNSUPPORTED, why);
    return lb_frame_end(&work->frame);
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

/* y = h rsqrt(mean h² + eps) (one + weight), h = x + residual; result 1 is h where there is a residual. The mean is of
 * h before it is rounded to the residual's dtype in some versions, after it in others: with 16 bits the twin admits
 * both. */
static lb_status norm(lb_call *call, const form *form, bool twin)
{
    work work = begin(call, form->x, twin);
    const lb_tensor *in = at(call, form->x), *gamma = at(call, form->weight);
    const int64_t n = lb_tensor_numel(in), size = last(in);
    const lb_tensor *added = at(call, form->residual);
    if ((gamma && lb_tensor_numel(gamma) != size) || (form->residual && (!added || lb_tensor_numel(added) != n)))
        return refuse(&work, "a weight or a residual of another size");
    const void *x = lb_frame_tensor(&work.frame, in);
    const void *r = lb_frame_tensor(&work.frame, added), *g = lb_frame_tensor(&work.frame, gamma);
    void *y = lb_frame_output(&work.frame, 0, n), *sum = form->residual ? lb_frame_output(&work.frame, 1, n) : NULL;
    double *h = lb_frame_scratch(&work.frame, (size_t)size * sizeof *h);
    const double eps = lb_frame_arg_float(call, form->eps - 1u, 1e-6),
                 one = form->flag && lb_frame_arg_int(call, form->flag - 1u, 0) ? 1 : form->one;
    for (int64_t i = 0; lb_frame_ok(&work.frame) && i < n; i += size) {
        double squares = 0;
        for (int64_t k = 0; k < size; k++) {
            h[k] = get(&work, x, i + k) + (r ? get(&work, r, i + k) : 0);
            if (sum) put(&work, sum, i + k, twin ? fabs(get(&work, x, i + k)) + fabs(get(&work, r, i + k)) : h[k]);
            squares += h[k] * h[k];
        }
        const double scale = 1 / sqrt(squares / (double)size + eps);
        for (int64_t k = 0; k < size; k++) {
            const double weight = g ? get(&work, g, k) : 1 - one;
            double term = twin && r ? fabs(get(&work, x, i + k)) + fabs(get(&work, r, i + k)) : h[k];
            put(&work, y, i + k, term * scale * (twin ? one + fabs(weight) : one + weight));
        }
    }
    return lb_frame_end(&work.frame);
}

/* y = (x - mean) rstd (one + weight) + bias; residual: the bias. */
static lb_status layer(lb_call *call, const form *form, bool twin)
{
    work work = begin(call, form->x, twin);
    const lb_tensor *in = at(call, form->x), *gamma = at(call, form->weight), *bias = at(call, form->residual);
    const int64_t n = lb_tensor_numel(in), size = last(in);
    if (!bias || lb_tensor_numel(gamma) != size || lb_tensor_numel(bias) != size)
        return refuse(&work, "a weight or a bias of another size than the last dimension");
    const void *x = lb_frame_tensor(&work.frame, in), *g = lb_frame_tensor(&work.frame, gamma),
               *b = lb_frame_tensor(&work.frame, bias);
    void *y = lb_frame_output(&work.frame, 0, n);
    const double eps = lb_frame_arg_float(call, form->eps - 1u, 1e-5),
                 one = form->flag && lb_frame_arg_int(call, form->flag - 1u, 0) ? 1 : 0;
    for (int64_t i = 0; lb_frame_ok(&work.frame) && i < n; i += size) {
        double mean = 0, magnitude = 0, variance = 0, mixed = 0;
        for (int64_t k = i; k < i + size; k++)
            mean += get(&work, x, k) / (double)size, magnitude += fabs(get(&work, x, k)) / (double)size;
        for (int64_t k = i; k < i + size; k++) {
            const double d = fabs(get(&work, x, k) - mean);
            variance += d * d / (double)size, mixed += d * (fabs(get(&work, x, k)) + magnitude) / (double)size;
        }
        const double scale = 1 / sqrt(variance + eps), kappa = mixed / (variance + eps);
        for (int64_t k = 0; k < size; k++) {
            const double v = get(&work, x, i + k), weight = one + get(&work, g, k), shift = get(&work, b, k);
            put(&work, y, i + k,
                twin ? (fabs(v) + magnitude + fabs(v - mean) * (1 + kappa)) * scale * (one + fabs(get(&work, g, k))) +
                           fabs(shift)
                     : (v - mean) * scale * weight + shift);
        }
    }
    return lb_frame_end(&work.frame);
}

/* ---- gated activations ------------------------------------------------------------------------------------------- */

/* Without cancellation for the twin: |x| times the largest that the factor can be. */
static double activated(gate kind, double x, bool twin)
{
    if (twin) return kind == RELU_SQUARED ? x * x : fabs(x);
    switch (kind) {
    case SILU: return x * lb_sigmoid(x);
    case GELU: return 0.5 * x * (1 + lb_erf(x * 0.70710678118654752440));
    case GELU_TANH: return 0.5 * x * (1 + lb_tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case GELU_QUICK: return x * lb_sigmoid(1.702 * x);
    case RELU: return x > 0 ? x : 0 * x; /* NaN stays */
    case RELU_SQUARED: return x > 0 ? x * x : 0 * x;
    case SWIGLU_OAI: break;
    }
    return x;
}

/* GPT-OSS: gate and up are interleaved; min(g, limit) sigmoid(alpha g) (clamp(u, ±limit) + 1). Args: out, input, alpha,
 * limit. */
static double gated_oai(const lb_call *call, double g, double u, bool twin)
{
    const double alpha = lb_frame_arg_float(call, 2, 1.702), limit = lb_frame_arg_float(call, 3, 7);
    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    return twin ? fabs(g) * (fabs(u) + 1) : g * lb_sigmoid(alpha * g) * (u + 1);
}

static lb_status gated(lb_call *call, const form *form, bool twin)
{
    work work = begin(call, form->x, twin);
    const lb_tensor *in = at(call, form->x);
    if (!lb_dtype_is_float(call->results[0].dtype)) return refuse(&work, "a result that is quantised");
    const int64_t width = last(in) / 2, rows = width ? lb_tensor_numel(in) / (2 * width) : 0;
    const void *x = lb_frame_tensor(&work.frame, in);
    void *y = lb_frame_output(&work.frame, 0, rows * width);
    for (int64_t i = 0; lb_frame_ok(&work.frame) && i < rows; i++)
        for (int64_t k = 0; k < width; k++) {
            const int64_t base = 2 * i * width;
            if (form->gate == SWIGLU_OAI) {
                put(&work, y, i * width + k,
                    gated_oai(call, get(&work, x, base + 2 * k), get(&work, x, base + 2 * k + 1), twin));
                continue;
            }
            const double a = get(&work, x, base + k), b = get(&work, x, base + width + k);
            put(&work, y, i * width + k,
                form->second ? a * activated(form->gate, b, twin) : activated(form->gate, a, twin) * b);
        }
    return lb_frame_end(&work.frame);
}

static lb_status activation(lb_call *call, const form *form, bool twin)
{
    work work = begin(call, form->x, twin);
    if (!lb_dtype_is_float(call->results[0].dtype)) return refuse(&work, "a result that is quantised");
    const int64_t n = lb_tensor_numel(at(call, form->x));
    const void *x = lb_frame_tensor(&work.frame, at(call, form->x));
    void *y = lb_frame_output(&work.frame, 0, n);
    for (int64_t i = 0; lb_frame_ok(&work.frame) && i < n; i++)
        put(&work, y, i, activated(form->gate, get(&work, x, i), twin));
    return lb_frame_end(&work.frame);
}

/* ---- rotary embedding -------------------------------------------------------------------------------------------- */

typedef struct rotation {
    const int64_t *positions;
    const void *cache; /* (positions, size): cosines, then sines */
    int64_t tokens, head, size;
    bool neox; /* halves are rotated against each other, else neighbours */
} rotation;

static void rotate(const work *work, const rotation *rotation, const void *x, void *y, int64_t n)
{
    const int64_t width = rotation->tokens ? n / rotation->tokens : 0, half = rotation->size / 2;
    for (int64_t t = 0; t < rotation->tokens; t++)
        for (int64_t h = 0; h < width; h += rotation->head) {
            const int64_t base = t * width + h;
            for (int64_t k = 0; k < half; k++) {
                const double c = get(work, rotation->cache, rotation->positions[t] * rotation->size + k),
                             s = get(work, rotation->cache, rotation->positions[t] * rotation->size + half + k);
                const int64_t i = base + (rotation->neox ? k : 2 * k),
                              j = base + (rotation->neox ? k + half : 2 * k + 1);
                const double a = get(work, x, i), b = get(work, x, j);
                put(work, y, i, work->twin ? fabs(a * c) + fabs(b * s) : a * c - b * s);
                put(work, y, j, work->twin ? fabs(b * c) + fabs(a * s) : b * c + a * s);
            }
            for (int64_t k = rotation->size; k < rotation->head; k++) put(work, y, base + k, get(work, x, base + k));
        }
}

/* positions, query, key, head_size, cos_sin_cache, is_neox[, rope_dim_offset, inverse]; query and key are written. */
static lb_status rotary(lb_call *call, const form *form, bool twin)
{
    work work = begin(call, form->x, twin);
    const lb_tensor *q = at(call, 2), *k = at(call, 3), *cache = at(call, 5), *positions = at(call, 1);
    rotation rotation = {.tokens = lb_tensor_numel(positions),
                         .head = lb_frame_arg_int(call, 3, 0),
                         .size = last(cache),
                         .neox = lb_frame_arg_int(call, 5, 1) != 0};
    const int64_t n = lb_tensor_numel(q), n_key = k ? lb_tensor_numel(k) : 0;
    if (lb_frame_arg_int(call, 6, 0) || lb_frame_arg_int(call, 7, 0))
        return refuse(&work, "offsets and inverse rotations are not computed");
    if (rotation.head < rotation.size || rotation.head < 1 || rotation.size % 2 || !rotation.tokens ||
        n % (rotation.tokens * rotation.head) || n_key % (rotation.tokens * rotation.head))
        return refuse(&work, "heads that are smaller than what is rotated");
    rotation.positions = lb_frame_integers(&work.frame, positions);
    rotation.cache = lb_frame_tensor(&work.frame, cache);
    for (int64_t t = 0; lb_frame_ok(&work.frame) && t < rotation.tokens; t++)
        if (rotation.positions[t] < 0 ||
            rotation.positions[t] >= lb_tensor_numel(cache) / (rotation.size ? rotation.size : 1))
            return refuse(&work, "a position outside the table");
    const void *x = lb_frame_tensor(&work.frame, q), *x_key = k ? lb_frame_tensor(&work.frame, k) : NULL;
    void *y = lb_frame_output(&work.frame, 0, n), *y_key = k ? lb_frame_output(&work.frame, 1, n_key) : NULL;
    if (!lb_frame_ok(&work.frame)) return lb_frame_end(&work.frame);
    rotate(&work, &rotation, x, y, n);
    if (k) rotate(&work, &rotation, x_key, y_key, n_key);
    return lb_frame_end(&work.frame);
}

/* ---- attention states -------------------------------------------------------------------------------------------- */

/* Two parts of one softmax(…) v, weighed by e^lse, or 2^lse where `flag` is set: values (tokens, heads, size), their
 * log-sum-exps (tokens, heads), or (heads, tokens) where `second` is set. x, residual: values; weight, lse: their
 * log-sum-exps. */
static lb_status merge(lb_call *call, const form *form, bool twin)
{
    work work = begin(call, form->x, twin);
    const lb_tensor *va = at(call, form->x), *vb = at(call, form->residual), *sa = at(call, form->weight),
                    *sb = at(call, form->lse);
    if (va->layout.ndim != 3 || lb_tensor_numel(vb) != lb_tensor_numel(va))
        return refuse(&work, "values that are not (tokens, heads, size)");
    const int64_t states = va->layout.shape[0] * va->layout.shape[1];
    if (lb_tensor_numel(sa) != states || lb_tensor_numel(sb) != states)
        return refuse(&work, "log-sum-exps that are not one for a head of a token");
    for (uint32_t i = (uint32_t)form->lse; form->second && i < call->n_args; i++)
        if (lb_frame_arg_given(call, i)) return refuse(&work, "scales and borders are not computed");
    const int64_t tokens = va->layout.shape[0], heads = va->layout.shape[1], size = va->layout.shape[2];
    const void *a = lb_frame_tensor(&work.frame, va), *b = lb_frame_tensor(&work.frame, vb);
    const void *la = lb_frame_tensor(&work.frame, sa), *lb = lb_frame_tensor(&work.frame, sb);
    void *y = lb_frame_output(&work.frame, 0, tokens * heads * size),
         *lse = lb_frame_output(&work.frame, 1, tokens * heads);
    for (int64_t i = 0; lb_frame_ok(&work.frame) && i < tokens * heads; i++) {
        const int64_t at_lse = form->second ? i % heads * tokens + i / heads : i;
        const double p = get(&work, la, at_lse), q = get(&work, lb, at_lse), top = p > q ? p : q;
        const double wa = top == -INFINITY ? 0 : form->flag ? lb_exp2(p - top) : lb_exp(p - top);
        const double wb = top == -INFINITY ? 0 : form->flag ? lb_exp2(q - top) : lb_exp(q - top);
        const double total = wa + wb, part = total > 0 ? wa / total : 0, other = total > 0 ? wb / total : 0;
        const double spread = twin ? 1 + fabs(p - top) + fabs(q - top) : 1;
        put(&work, lse, at_lse,
            twin ? fabs(top) + 1 + fabs(lb_log(total > 0 ? total : 1))
                 : top + (form->flag ? lb_log2(total) : lb_log(total)));
        for (int64_t k = i * size; k < (i + 1) * size; k++)
            put(&work, y, k,
                twin
                    ? (part * fabs(get(&work, a, k)) + other * fabs(get(&work, b, k))) * (isfinite(spread) ? spread : 1)
                    : (part ? part * get(&work, a, k) : 0) + (other ? other * get(&work, b, k) : 0));
    }
    return lb_frame_end(&work.frame);
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

/* Results: weights, experts and (where `second`) the slots k * tokens + token. x: logits, flag: renormalize. */
static lb_status router(lb_call *call, const form *form, bool twin)
{
    work work = begin(call, form->x, twin);
    const lb_tensor *in = at(call, form->x);
    const int64_t experts = last(in), tokens = experts ? lb_tensor_numel(in) / experts : 0, k = last(&call->results[0]);
    for (uint32_t i = form->flag; form->flag && i < call->n_args; i++) /* a soft cap, a bias */
        if (lb_frame_arg_given(call, i) &&
            (call->args[i].tag == LB_OPERAND_TENSOR || lb_frame_arg_float(call, i, 0) != 0))
            return refuse(&work, "soft caps and biases are not computed");
    if (k > experts || in->layout.ndim != 2) return refuse(&work, "more experts are chosen than there are");
    const bool renormalize = form->flag && lb_frame_arg_int(call, form->flag - 1u, 0);
    const void *x = lb_frame_tensor(&work.frame, in);
    void *weights = lb_frame_output(&work.frame, 0, tokens * k);
    int64_t *ids = lb_frame_output_integers(&work.frame, 1, tokens * k);
    int64_t *slots = form->second ? lb_frame_output_integers(&work.frame, 2, tokens * k) : NULL;
    double *p = lb_frame_scratch(&work.frame, (size_t)experts * sizeof *p);
    for (int64_t t = 0; lb_frame_ok(&work.frame) && t < tokens; t++) {
        double top = -INFINITY, total = 0, chosen = 0;
        for (int64_t e = 0; e < experts; e++)
            top = get(&work, x, t * experts + e) > top ? get(&work, x, t * experts + e) : top;
        for (int64_t e = 0; e < experts; e++) total += p[e] = lb_exp(get(&work, x, t * experts + e) - top);
        lb_first_best(p, experts, k, ids + t * k);
        for (int64_t j = 0; j < k; j++) chosen += p[ids[t * k + j]];
        for (int64_t j = 0; j < k; j++) {
            const double far = twin ? 1 + fabs(get(&work, x, t * experts + ids[t * k + j]) - top) : 1;
            put(&work, weights, t * k + j, p[ids[t * k + j]] / (renormalize ? chosen : total) * far);
            if (slots) slots[t * k + j] = j * tokens + t;
        }
    }
    return lb_frame_end(&work.frame);
}

/* (tokens, k, size) summed over k in order. */
static lb_status expert_sum(lb_call *call, const form *form, bool twin)
{
    work work = begin(call, form->x, twin);
    const lb_tensor *in = at(call, form->x);
    if (in->layout.ndim != 3) return refuse(&work, "an input that is not (tokens, experts, size)");
    const int64_t tokens = in->layout.shape[0], k = in->layout.shape[1], size = in->layout.shape[2];
    const void *x = lb_frame_tensor(&work.frame, in);
    void *y = lb_frame_output(&work.frame, 0, tokens * size);
    for (int64_t i = 0; lb_frame_ok(&work.frame) && i < tokens * size; i++) {
        double sum = 0;
        for (int64_t j = 0; j < k; j++) {
            const double term = get(&work, x, (i / size * k + j) * size + i % size);
            sum += twin ? fabs(term) * (double)k : term;
        }
        put(&work, y, i, sum);
    }
    return lb_frame_end(&work.frame);
}

/* ---- FSDP2 ------------------------------------------------------------------------------------------------------- */

/* all_gather_output, sizes, dim; result i is piece i. */
static lb_status split_copy(lb_call *call)
{
    const lb_tensor *in = lb_frame_arg_tensor(call, 0);
    int64_t sizes[1024], first = 0;
    const int n = lb_frame_arg_ints(call, 1, sizes, 1024),
              dim = lb_frame_wrap_dim(lb_frame_arg_int(call, 2, 0), in->layout.ndim);
    if (n != (int)call->n_results || dim < 0 || !in->layout.ndim)
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: more pieces than are counted", call->row->name);
    for (int i = 0; i < n; first += sizes[i++]) {
        lb_tensor piece = *in, *out = &call->results[i];
        piece.layout.shape[dim] = sizes[i];
        piece.data = (char *)in->data + lb_dtype_bytes(in->dtype, (size_t)(first * in->layout.stride[dim]));
        if (sizes[i] < 0 || sizes[i] > in->layout.shape[dim] - first)
            return lb_fail(call->err, LB_ERR_INVALID, "%s: pieces beyond the end", call->row->name);
        if (lb_tensor_numel(&piece) != lb_tensor_numel(out))
            return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: a piece of another size", call->row->name);
        if (out->data) lb_memory_tensor_copy(out, &piece, call->method.cast);
    }
    return LB_OK;
}

/* How many elements of a row one tensor's chunks take; more than there can be for one without dimensions. */
static int64_t width_of_chunk(const lb_tensor *in, int64_t chunks)
{
    if (!in->layout.ndim) return INT32_MAX;
    const int64_t rows = in->layout.shape[0];
    return rows ? (rows + chunks - 1) / chunks * (lb_tensor_numel(in) / rows) : 0;
}

/* tensors, dim, num_chunks: each is cut along dim 0 into equal chunks, the last padded with zeros; row c of the result
 * is all chunks c, one behind the other. */
static lb_status chunk_cat(lb_call *call)
{
    lb_tensor *out = &call->results[0];
    const int64_t chunks = lb_frame_arg_int(call, 2, 1);
    const lb_operand *list = &call->args[0];
    if (lb_frame_arg_int(call, 1, 0) || list->tag != LB_OPERAND_TENSORS || out->layout.ndim != 2 || chunks < 1 ||
        out->layout.shape[0] != chunks || out->layout.stride[1] != 1)
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: chunks along another dimension than 0", call->row->name);
    int64_t column = 0, width_of_all = 0;
    for (uint32_t i = 0; i < list->count; i++) width_of_all += width_of_chunk(&list->tensors[i], chunks);
    if (width_of_all != out->layout.shape[1])
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: rows of another size than the chunks", call->row->name);
    for (uint32_t i = 0; out->data && i < list->count; i++) {
        const lb_tensor *in = &list->tensors[i];
        const int64_t rows = in->layout.shape[0], each = (rows + chunks - 1) / chunks,
                      width = rows ? lb_tensor_numel(in) / rows : 0;
        for (int64_t c = 0; c < chunks; c++) {
            const int64_t first = c * each < rows ? c * each : rows, count = rows - first < each ? rows - first : each;
            lb_tensor from = *in, to = {.dtype = out->dtype, .data = out->data};
            from.layout.shape[0] = count;
            from.data = (char *)in->data + lb_dtype_bytes(in->dtype, (size_t)(first * in->layout.stride[0]));
            to.layout = lb_layout_contiguous(from.layout.ndim, from.layout.shape);
            to.data = (char *)out->data + lb_dtype_bytes(out->dtype, (size_t)(c * out->layout.stride[0] + column));
            if (count) lb_memory_tensor_copy(&to, &from, call->method.cast);
            const size_t size = lb_dtype_bytes(out->dtype, 1);
            memset((char *)to.data + (size_t)(count * width) * size, 0, (size_t)((each - count) * width) * size);
        }
        column += each * width;
    }
    return LB_OK;
}

/* ---- the names --------------------------------------------------------------------------------------------------- */

#define AT(n) ((n) + 1)
#define OP(RUN, ID, ...)                                                                                               \
    static const form ID = {__VA_ARGS__};                                                                              \
    LB_WITH_TWIN(ID, RUN(call, &ID, twin))

OP(norm, rms_out, .x = AT(1), .weight = AT(2), .eps = AT(3))
OP(norm, rms_out_gemma, .x = AT(1), .weight = AT(2), .eps = AT(3), .one = 1)
OP(norm, rms_add, .x = AT(0), .residual = AT(1), .weight = AT(2), .eps = AT(3))
OP(norm, rms_add_gemma, .x = AT(0), .residual = AT(1), .weight = AT(2), .eps = AT(3), .one = 1)
OP(norm, rms_given, .x = AT(0), .weight = AT(1), .eps = AT(2))
OP(norm, rms_given_gemma, .x = AT(0), .weight = AT(1), .eps = AT(2), .one = 1)
OP(norm, rms_te, .x = AT(0), .weight = AT(1), .eps = AT(2), .flag = AT(4))
OP(layer, layer_te, .x = AT(0), .weight = AT(1), .residual = AT(2), .eps = AT(3), .flag = AT(5))
OP(gated, silu_mul_given, .x = AT(0), .gate = SILU)
OP(gated, silu_mul, .x = AT(1), .gate = SILU)
OP(gated, mul_silu, .x = AT(1), .gate = SILU, .second = true)
OP(gated, gelu_mul, .x = AT(1), .gate = GELU)
OP(gated, gelu_tanh_mul, .x = AT(1), .gate = GELU_TANH)
OP(gated, swiglu_oai, .x = AT(1), .gate = SWIGLU_OAI)
OP(activation, gelu_tanh_only, .x = AT(1), .gate = GELU_TANH)
OP(activation, gelu_quick, .x = AT(1), .gate = GELU_QUICK)
OP(gated, gelu_tanh_mul_given, .x = AT(0), .gate = GELU_TANH)
OP(gated, relu_mul_given, .x = AT(0), .gate = RELU)
OP(activation, gelu_tanh_given, .x = AT(0), .gate = GELU_TANH)
OP(activation, gelu_quick_given, .x = AT(0), .gate = GELU_QUICK)
OP(activation, relu_given, .x = AT(0), .gate = RELU)
OP(activation, relu_squared_given, .x = AT(0), .gate = RELU_SQUARED)
OP(rotary, rotary_write, .x = AT(1))
OP(merge, merge_vllm, .x = AT(2), .weight = AT(3), .residual = AT(4), .lse = AT(5), .second = true)
OP(merge, merge_flashinfer, .x = AT(0), .weight = AT(1), .residual = AT(2), .lse = AT(3), .flag = 1)
OP(router, topk_vllm, .x = AT(3), .flag = AT(4), .second = true)
OP(router, topk_sgl, .x = AT(2), .flag = AT(3))
OP(expert_sum, moe_sum, .x = AT(0))

#define ROW(NAME, ARGS, ID, ROUNDINGS)                                                                                 \
    {.name = NAME,                                                                                                     \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(ID),                                                                                               \
     .roundings = ROUNDINGS,                                                                                           \
     .flags = LB_ROW_WRITES,                                                                                           \
     .samples = "custom"},
#define GIVES(NAME, ARGS, ID, ROUNDINGS)                                                                               \
    {.name = NAME, .args = ARGS, LB_COMPUTED_BY(ID), .roundings = ROUNDINGS, .samples = "custom"},
/* Squares are summed in trees, whose depth counts, and half of that error enters. */
#define NORM(NAME, ARGS, ID)                                                                                           \
    {.name = NAME,                                                                                                     \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(ID),                                                                                               \
     .roundings = 16,                                                                                                  \
     .flags = LB_ROW_WRITES | LB_ROW_SQUARES,                                                                          \
     .samples = "custom"},
#define NORM_GIVES(NAME, ARGS, ID)                                                                                     \
    {.name = NAME, .args = ARGS, LB_COMPUTED_BY(ID), .roundings = 16, .flags = LB_ROW_SQUARES, .samples = "custom"},
#define TE_ARGS "input! scale amax scale_inv fp8_tensor otype" /* scales are empty but for fp8 */
                                                               /* clang-format off */
const lb_op_row lb_rows_custom[] = {
    NORM("_C::rms_norm", "result input! weight! epsilon", rms_out)
    NORM("_C::fused_add_rms_norm", "input! residual! weight! epsilon", rms_add)
    NORM("sgl_kernel::rmsnorm", "output! input! weight! eps enable_pdl", rms_out)
    NORM("sgl_kernel::gemma_rmsnorm", "output! input! weight! eps enable_pdl", rms_out_gemma)
    NORM("sgl_kernel::fused_add_rmsnorm", "input! residual! weight! eps enable_pdl", rms_add)
    NORM("sgl_kernel::gemma_fused_add_rmsnorm", "input! residual! weight! eps enable_pdl", rms_add_gemma)
    NORM("flashinfer::rmsnorm", "out! input! weight! eps enable_pdl", rms_out)
    NORM("flashinfer::gemma_rmsnorm", "out! input! weight! eps enable_pdl", rms_out_gemma)
    NORM("flashinfer::fused_add_rmsnorm", "input! residual! weight! eps enable_pdl", rms_add)
    NORM("flashinfer::gemma_fused_add_rmsnorm", "input! residual! weight! eps enable_pdl", rms_add_gemma)
    ROW("_C::silu_and_mul", "result input!", silu_mul, 8)
    ROW("_C::mul_and_silu", "out! input!", mul_silu, 8)
    ROW("_C::gelu_and_mul", "out! input!", gelu_mul, 8)
    ROW("_C::gelu_tanh_and_mul", "out! input!", gelu_tanh_mul, 8)
    ROW("_C::swigluoai_and_mul", "out! input! alpha limit", swiglu_oai, 10)
    ROW("_C::gelu_new", "out! input!", gelu_tanh_only, 8)
    ROW("_C::gelu_fast", "out! input!", gelu_tanh_only, 8)
    ROW("_C::gelu_quick", "out! input!", gelu_quick, 8)
    ROW("sgl_kernel::silu_and_mul", "out! input!", silu_mul, 8)
    ROW("sgl_kernel::gelu_and_mul", "out! input!", gelu_mul, 8)
    ROW("sgl_kernel::gelu_tanh_and_mul", "out! input!", gelu_tanh_mul, 8)
    ROW("flashinfer::silu_and_mul", "out! input! enable_pdl", silu_mul, 8)
    ROW("flashinfer::gelu_and_mul", "out! input! enable_pdl", gelu_mul, 8)
    ROW("flashinfer::gelu_tanh_and_mul", "out! input! enable_pdl", gelu_tanh_mul, 8)
    ROW("_C::rotary_embedding", "positions! query! key head_size cos_sin_cache! is_neox rope_dim_offset inverse", rotary_write, 4)
    ROW("sgl_kernel::rotary_embedding", "positions! query! key head_size cos_sin_cache! is_neox", rotary_write, 4)
    ROW("_C::merge_attn_states", "output! output_lse prefix_output! prefix_lse! suffix_output! suffix_lse!", merge_vllm, 8)
    {.name = "flashinfer::merge_state", .args = "v_a! s_a! v_b! s_b!", LB_COMPUTED_BY(merge_flashinfer), .roundings = 8, .samples = "custom"},
    ROW("_moe_C::topk_softmax", "topk_weights! topk_indices! token_expert_indices gating_output! renormalize bias", topk_vllm, 10)
    ROW("sgl_kernel::topk_softmax", "topk_weights! topk_indices! gating_output! renormalize moe_softcapping correction_bias", topk_sgl, 10)
    ROW("_moe_C::moe_sum", "input! output!", moe_sum, 2)
    ROW("sgl_kernel::moe_sum", "input! output!", moe_sum, 2)
    NORM_GIVES("trtllm::flashinfer_rmsnorm", "input! weight! eps", rms_given)
    NORM_GIVES("trtllm::flashinfer_gemma_rmsnorm", "input! weight! eps", rms_given_gemma)
    NORM("trtllm::flashinfer_fused_add_rmsnorm", "input! residual! weight! eps", rms_add)
    NORM("trtllm::flashinfer_gemma_fused_add_rmsnorm", "input! residual! weight! eps", rms_add_gemma)
    GIVES("trtllm::flashinfer_silu_and_mul", "x!", silu_mul_given, 8)
    ROW("trtllm::flashinfer_apply_rope_with_cos_sin_cache_inplace", "positions! query! key head_size cos_sin_cache! is_neox", rotary_write, 4)
    NORM_GIVES("tex_ts::rmsnorm_fwd_inf_ts", "input! weight! eps sm_margin zero_centered_gamma", rms_te)
    NORM_GIVES("tex_ts::layernorm_fwd_inf_ts", "input! weight! bias eps sm_margin zero_centered_gamma", layer_te)
    GIVES("tex_ts::gelu_ts", TE_ARGS, gelu_tanh_given, 8)
    GIVES("tex_ts::relu_ts", TE_ARGS, relu_given, 2)
    GIVES("tex_ts::srelu_ts", TE_ARGS, relu_squared_given, 2)
    GIVES("tex_ts::qgelu_ts", TE_ARGS, gelu_quick_given, 8)
    GIVES("tex_ts::geglu_ts", TE_ARGS, gelu_tanh_mul_given, 8)
    GIVES("tex_ts::reglu_ts", TE_ARGS, relu_mul_given, 4)
    GIVES("tex_ts::swiglu_ts", TE_ARGS, silu_mul_given, 8)
    {.name = "fsdp::split_with_sizes_copy", .args = "all_gather_output! all_gather_input_split_sizes dim", .kernel = split_copy,
     .flags = LB_ROW_EXACT | LB_ROW_OUT, .samples = "custom"},
    {.name = "fsdp::chunk_cat", .args = "tensors[] dim num_chunks", .kernel = chunk_cat, .flags = LB_ROW_EXACT | LB_ROW_OUT,
     .samples = "custom"},
    {.name = "fsdp::chunk_cat_mixed_dtype", .args = "tensors[] dim num_chunks", .kernel = chunk_cat,
     .flags = LB_ROW_EXACT | LB_ROW_OUT, .samples = "custom"}, /* PyTorch 2.15's name: tensors of several dtypes, cast to the result's */
    {NULL}};
