/* Fused attention: how keys are cut in blocks, how their parts of the softmax are put together, and what is rounded to
 * 16 bits.
 *
 *      unfused      the scores as ops one by one leave them: rounded to T after the product, the scale, the cap and the
 *                   mask
 *      math         torch's math form: q and k scaled by sqrt(scale) each, all in f32
 *      flash[:B]    one pass over blocks of B keys (512; 0: all). A new maximum m rescales what was summed:
 *                      a = e^(m_old - m)   l = l a + sum p   o = o a + p v   at the end y = o / l
 *      splitkv:N    N slices of whole blocks of keys, each a softmax of its own with y_i and lse_i; y = sum y_i
 *                   e^(lse_i - lse)
 *
 * A sink, one more score per row without a value, is one more element of an unfused row; flash adds it to the sum at
 * the end (FlashAttention's `learnable_sink`) or begins with it (sink:first: m = sink, l = 1, vLLM's Triton kernel); to
 * splitkv it is a slice.
 *
 * Products are chains of fma in f32, or in the order gemm: says. Blocks of 512 keys, whose rows of p are added as
 * vectors, rounded to T before they meet v, and y times 1 / l is torch's CPU kernel (FlashAttentionKernel.cpp; with
 * exp:fast and gemm:torch:1 its bits come out as long as MKL takes a product in one tile, some 64 rows); exp:2 with the
 * scale folded into the base is FlashAttention's (softmax.h `scale_apply_exp2`), splitkv its decoding
 * (flash_fwd_kernel.h `combine_attn_seqk_parallel`). */
#include "functions/elementary.h"
#include "fused/fused_head.h"

#include <math.h>
#include <string.h>

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static const lb_composite_kernel kernels[] = {
    {"eager", "eager", "the recorded ops, one by one"},
    {"flash", "flash[:KEYS]",
     "online softmax over blocks of keys (512) in f32, p rounded to the type: torch's CPU kernel, "
     "FlashAttention"},
    {"flash-cpu", "flash-cpu",
     "torch's CPU kernel: flash:512,exp:fast,end:reciprocal,gemm:torch:1 (AVX-512, MKL, one thread)"},
    {"unfused", "unfused",
     "Hugging Face's eager: scores rounded to the type after every op, softmax in f32, p rounded"},
    {"math", "math",
     "torch's math form: all in f32, q and k each scaled by the root of the scale, one rounding at the end"},
    {"splitkv", "splitkv:SLICES", "slices of keys apart, then weighed by their log-sum-exps in f32: decoding kernels"},
    {NULL, NULL, NULL}};

#define OPTIONS                                                                                                        \
    "p:t|f32 (what meets v), exp:e|2|fast (2: base 2, the scale folded in; fast: torch's vector code for "             \
    "AVX-512), end:divide|reciprocal, sum:ORDER (of p in a block), "                                                   \
    "gemm:ORDER (of both products), block:KEYS (of a slice), sink:end|first (of flash, where there is one)"

static bool read_kernel(const lb_fused_text *text, void *out)
{
    static const lb_fused_text flash_cpu = {.name = "flash",
                                            .parameters = "512",
                                            .options = {{"exp", "fast"}, {"end", "reciprocal"}, {"gemm", "torch:1"}},
                                            .n_options = 3};
    lb_fused_attention_kernel *kernel = out;
    int64_t number = 0;
    *kernel = (lb_fused_attention_kernel){.p_narrow = true};
    if (!strcmp(text->name, "flash-cpu") && !*text->parameters && !text->n_options) text = &flash_cpu;
    const char *const names[] = {"unfused", "math", "flash", "splitkv"};
    int form = -1;
    for (int i = 0; i < 4; i++)
        if (!strcmp(text->name, names[i])) form = i;
    const bool whole = !strcmp(text->parameters, "0");
    const int n = whole ? 1 : lb_fused_text_numbers(text->parameters, &number, form >= LB_HEAD_FLASH);
    const int p = lb_fused_text_choice(text, "p", "t|f32", form == LB_HEAD_MATH),
              base = lb_fused_text_choice(text, "exp", "e|2|fast", 0),
              end = lb_fused_text_choice(text, "end", "divide|reciprocal", form == LB_HEAD_FLASH),
              sink = lb_fused_text_choice(text, "sink", "end|first", 0);
    bool ok = form >= 0 && n >= 0 && (form != LB_HEAD_SPLITKV || (n == 1 && number > 0)) && p >= 0 && base >= 0 &&
              end >= 0 && sink >= 0 && (!sink || form == LB_HEAD_FLASH) &&
              lb_fused_text_keys(text, "p exp end sum gemm block sink") &&
              lb_fused_text_order(text, "sum", &kernel->sum, &kernel->has_sum) &&
              lb_fused_text_order(text, "gemm", &kernel->gemm, &kernel->has_gemm);
    kernel->form = (lb_head_form)form, kernel->p_narrow = !p, kernel->base_two = base == 1, kernel->fast = base == 2,
    kernel->reciprocal = end, kernel->sink_first = sink;
    kernel->block = form == LB_HEAD_FLASH ? (n == 1 ? number : 512) : 0;
    kernel->slices = form == LB_HEAD_SPLITKV ? number : 1;
    for (uint32_t i = 0; ok && i < text->n_options; i++)
        if (!strcmp(text->options[i].key, "block"))
            ok = form == LB_HEAD_SPLITKV && lb_fused_text_numbers(text->options[i].value, &kernel->block, 1) == 1;
    return ok;
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

static int64_t dim(const lb_tensor *tensor, int from_end)
{
    return tensor->layout.ndim >= from_end ? tensor->layout.shape[tensor->layout.ndim - from_end] : 1;
}
static int64_t leading(const lb_tensor *tensor)
{
    const int64_t matrix = dim(tensor, 1) * dim(tensor, 2);
    return matrix ? lb_tensor_numel(tensor) / matrix : 0;
}

/* As (batches, heads, queries, keys) of f64; bools hide where they are false. */
static const double *read_mask(lb_fused_heads *heads, const lb_tensor *mask)
{
    const int64_t shape[4] = {heads->batch_heads > 0 ? heads->heads / (int64_t)heads->batch_heads : 0,
                              (int64_t)heads->batch_heads, heads->queries, heads->keys};
    lb_tensor wide = *mask;
    wide.layout.ndim = 4;
    for (int d = 0; d < 4; d++) {
        const int own = d - (4 - mask->layout.ndim);
        const int64_t size = own >= 0 ? mask->layout.shape[own] : 1;
        if (size != 1 && size != shape[d]) {
            lb_frame_fail(&heads->frame, LB_ERR_INVALID, "a mask of another shape");
            return NULL;
        }
        wide.layout.shape[d] = shape[d], wide.layout.stride[d] = own >= 0 && size > 1 ? mask->layout.stride[own] : 0;
    }
    const int64_t n = lb_tensor_numel(&wide);
    double *out = lb_frame_scratch(&heads->frame, (size_t)(n > 0 ? n : 1) * sizeof *out);
    const size_t bytes = lb_dtype_bits(mask->dtype) / 8;
    int64_t at = 0;
    for (lb_rows r = lb_rows_of(&wide.layout); out && lb_rows_next(&r); at += r.count)
        for (int64_t j = 0; j < r.count; j++) {
            const double x =
                lb_to_f64(mask->dtype, (const char *)mask->data + (r.offset + j * r.stride) * (int64_t)bytes);
            out[at + j] = mask->dtype != LB_BOOL ? x : (x != 0) != heads->hides ? 0 : -INFINITY;
        }
    return out;
}

/* One number per head of each batch: sinks are the same for all queries. */
static const double *read_sinks(lb_fused_heads *w, const lb_tensor *sinks)
{
    const int64_t heads = (int64_t)w->batch_heads;
    const lb_layout *layout = &sinks->layout;
    double *out = lb_frame_scratch(&w->frame, (size_t)(w->heads + 1) * sizeof *out);
    if (layout->ndim != 4 || layout->shape[1] != heads ||
        (layout->shape[0] != 1 && layout->shape[0] * heads != w->heads) || layout->shape[3] != 1) {
        lb_frame_fail(&w->frame, LB_ERR_INVALID, "sinks are (batches, heads, queries, 1)");
        return NULL;
    }
    for (int64_t h = 0; out && h < w->heads; h++) {
        const int64_t batch = layout->shape[0] == 1 ? 0 : h / heads;
        const int64_t at = batch * layout->stride[0] + h % heads * layout->stride[1];
        out[h] = lb_to_f64(sinks->dtype, (const char *)sinks->data + at * (int64_t)(lb_dtype_bits(sinks->dtype) / 8));
    }
    return out;
}

static bool begin(lb_fused_heads *heads, lb_call *call)
{
    const lb_tensor *q = lb_fused_input(call, LB_ATTENTION_Q), *k = lb_fused_input(call, LB_ATTENTION_K),
                    *v = lb_fused_input(call, LB_ATTENTION_V);
    const lb_tensor *mask = lb_fused_input(call, LB_ATTENTION_MASK), *y = &call->results[0];
    if (!k || !v || q->layout.ndim < 2 || k->layout.ndim < 2 || v->layout.ndim < 2 || (mask && mask->layout.ndim > 4)) {
        lb_frame_fail(&heads->frame, LB_ERR_INVALID, "q, k and v are (..., tokens, size)");
        return false;
    }
    heads->causal = lb_fused_flags(call) & LB_ATTENTION_CAUSAL,
    heads->turned = lb_fused_flags(call) & LB_ATTENTION_TURNED;
    heads->hides = lb_fused_flags(call) & LB_ATTENTION_HIDDEN;
    heads->queries = dim(q, 2), heads->size = dim(q, 1), heads->keys = dim(v, 2), heads->values = dim(v, 1),
    heads->heads = leading(q);
    heads->scale = lb_fused_number(call, LB_ATTENTION_SCALE), heads->cap = lb_fused_number(call, LB_ATTENTION_CAP);
    heads->batch_heads = lb_fused_number(call, LB_ATTENTION_HEADS);
    const int64_t kv = leading(v);
    if (dim(k, heads->turned ? 1 : 2) != heads->keys || dim(k, heads->turned ? 2 : 1) != heads->size ||
        leading(k) != kv || !kv || heads->heads % kv ||
        lb_tensor_numel(y) != heads->heads * heads->queries * heads->values || heads->batch_heads < 1 ||
        heads->heads % (int64_t)heads->batch_heads)
        lb_frame_fail(&heads->frame, LB_ERR_INVALID, "query, key, value and result do not match");
    if (!lb_frame_ok(&heads->frame)) return false;
    heads->groups = heads->heads / kv;
    heads->narrow = lb_fused_narrow(&heads->frame, q);
    if (heads->kernel.has_gemm && heads->kernel.gemm.kind == LB_SCHEDULE_TENSOR_CORE)
        heads->method.compute = heads->narrow;
    heads->q = lb_frame_tensor(&heads->frame, q), heads->k = lb_frame_tensor(&heads->frame, k),
    heads->v = lb_frame_tensor(&heads->frame, v);
    heads->mask = mask ? read_mask(heads, mask) : NULL;
    const lb_tensor *sinks = lb_fused_input(call, LB_ATTENTION_SINKS);
    heads->sinks = sinks ? read_sinks(heads, sinks) : NULL;
    heads->y = lb_frame_output(&heads->frame, LB_ATTENTION_Y, heads->heads * heads->queries * heads->values);
    heads->lse = lb_fused_wants(call, LB_ATTENTION_LSE)
                     ? lb_frame_output(&heads->frame, LB_ATTENTION_LSE, heads->heads * heads->queries)
                     : NULL;
    const size_t square = (size_t)(heads->queries * heads->keys + 1) * sizeof(float),
                 rows = (size_t)(heads->queries * heads->values + 1) * sizeof(float);
    heads->s = lb_frame_scratch(&heads->frame, square), heads->p = lb_frame_scratch(&heads->frame, square);
    heads->o = lb_frame_scratch(&heads->frame, rows), heads->part = lb_frame_scratch(&heads->frame, rows);
    heads->top = lb_frame_scratch(&heads->frame, rows + square),
    heads->sum = lb_frame_scratch(&heads->frame, rows + square);
    heads->row = lb_frame_scratch(&heads->frame, (size_t)(heads->keys + 2) * sizeof *heads->row);
    heads->wide = lb_frame_scratch(&heads->frame, (size_t)(2 * heads->keys + 2) * sizeof *heads->wide);
    return lb_frame_ok(&heads->frame);
}

/* The math form scales what it multiplies. */
static const float *scaled(lb_fused_heads *heads, const char *x, int64_t n)
{
    if (heads->kernel.form != LB_HEAD_MATH) return (const float *)x;
    const float root = (float)sqrt(fabs(heads->scale)), sign = heads->scale < 0 ? -1 : 1;
    float *y = lb_frame_scratch(&heads->frame, (size_t)(n + 1) * sizeof *y);
    for (int64_t i = 0; y && i < n; i++) y[i] = ((const float *)x)[i] * root * (x == heads->q ? sign : 1);
    return y;
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    lb_fused_heads heads = {.frame = lb_frame_begin(call)};
    LB_TRY(lb_fused_kernel_of(call, kind, &heads.kernel));
    if (heads.kernel.has_gemm) heads.method.schedule = &heads.kernel.gemm;
    if (!begin(&heads, call)) return lb_frame_end(&heads.frame);
    const int64_t q_step = heads.queries * heads.size, k_step = heads.keys * heads.size,
                  v_step = heads.keys * heads.values, y_step = heads.queries * heads.values;
    const double scale16 = lb_frame_twin_scale(call, LB_FUSED_INPUTS);
    const float *q = heads.frame.wide ? NULL : scaled(&heads, heads.q, heads.heads * q_step),
                *k = heads.frame.wide ? NULL : scaled(&heads, heads.k, heads.heads / heads.groups * k_step);
    const uint32_t buffers = heads.frame.n_buffers;
    for (int64_t h = 0; h < heads.heads && lb_frame_ok(&heads.frame); h++) {
        const int64_t g = h / heads.groups;
        if (heads.frame.wide) {
            const lb_fused_head_numbers numbers = {.q = (const double *)heads.q + h * q_step,
                                                   .k = (const double *)heads.k + g * k_step,
                                                   .v = (const double *)heads.v + g * v_step,
                                                   .y = (double *)heads.y + h * y_step,
                                                   .lse = heads.lse ? (double *)heads.lse + h * heads.queries : NULL};
            lb_fused_head_f64(&heads, h, &numbers, twin, scale16);
        } else {
            const lb_fused_head_floats floats = {.q = q + h * q_step,
                                                 .k = k + g * k_step,
                                                 .v = (const float *)heads.v + g * v_step,
                                                 .y = (float *)heads.y + h * y_step,
                                                 .lse = heads.lse ? (float *)heads.lse + h * heads.queries : NULL};
            lb_fused_head_f32(&heads, h, &floats);
        }
        while (heads.frame.n_buffers > buffers)
            __builtin_free(heads.frame.buffers[--heads.frame.n_buffers]); /* of the slices */
    }
    return lb_frame_end(&heads.frame);
}

/* ---- candidates -------------------------------------------------------------------------------------------------- */

static uint32_t candidates(const lb_composite *composite, char (*texts)[LB_COMPOSITE_TEXT], uint32_t room)
{
    const lb_layout *layout = &composite->program->values[composite->inputs[LB_ATTENTION_V]].layout;
    const int64_t keys = layout->ndim >= 2 ? layout->shape[layout->ndim - 2] : 1;
    const bool narrow = lb_dtype_bits(composite->program->values[composite->inputs[LB_ATTENTION_Q]].dtype) == 16;
    uint32_t n = lb_fused_candidate_add_all(texts, room, 0, "eager flash-cpu flash:512 unfused math");
    for (int wide = 0; wide < (narrow ? 2 : 1); wide++)
        for (int two = 0; two < 2; two++)
            for (int end = 0; end < 2; end++) {
                const char *options[] = {wide ? ",p:f32" : "", two ? ",exp:2" : "", end ? ",end:divide" : ""};
                for (int64_t block = 512; block >= 16; block /= 2)
                    if (block < keys || block == 512)
                        n = lb_fused_candidate_add(texts, room, n, "flash:%d%s%s%s", (int)block, options[0], options[1],
                                                   options[2]);
                for (int64_t slices = 2; slices <= 16 && slices <= keys && !end; slices *= 2)
                    n = lb_fused_candidate_add(texts, room, n, "splitkv:%d%s%s", (int)slices, options[0], options[1]);
            }
    for (int64_t block = 512; block >= 16 && composite->inputs[LB_ATTENTION_SINKS] != LB_NONE; block /= 2)
        if (block < keys || block == 512) n = lb_fused_candidate_add(texts, room, n, "flash:%d,sink:first", (int)block);
    if (narrow) n = lb_fused_candidate_add(texts, room, n, "unfused,p:f32");
    return n;
}

const lb_fused_kind lb_fused_attention = {
    .row = "fused::attention",
    .kernels = kernels,
    .options = OPTIONS,
    .usual = "flash",
    .run = run,
    .read = read_kernel,
    .kernel_size = sizeof(lb_fused_attention_kernel),
    .candidates = candidates,
};
