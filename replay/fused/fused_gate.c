/* Fused gated activations, alone and behind their two products.
 *
 *      rounded    act(gate) is rounded to T before it meets up: ops one by one
 *      fused      all in f32, one rounding: `silu_and_mul` of serving stacks, torch.compile
 *      epilogue   gate_up alone: also gate and up stay in the f32 accumulators of their products
 *
 * gate_up computes both products as one with the weights side by side would: the order of each (gemm:) does not see the
 * other columns, but a library may choose another order for a wider product, which is what to try here. */
#include "functions/elementary.h"
#include "fused/fused.h"
#include "kernel/product.h"
#include "orders/schedule.h"

#include <math.h>
#include <string.h>

typedef struct kernel {
    bool rounds, epilogue, has_gemm;
    lb_schedule gemm;
} kernel;

static const lb_composite_kernel alone[] = {
    {"eager", "eager", "the recorded ops"},
    {"rounded", "rounded", "act(gate) rounded to the type before the product"},
    {"fused", "fused", "in f32, one rounding: silu_and_mul of vLLM, SGLang, FlashInfer"},
    {NULL, NULL, NULL}};
static const lb_composite_kernel products[] = {
    {"eager", "eager", "the recorded ops, one product for the gate and one for up"},
    {"rounded", "rounded", "gate and up rounded to the type, act(gate) too"},
    {"fused", "fused",
     "gate and up rounded to the type, then in f32 with one rounding: weights side by side, silu_and_mul"},
    {"epilogue", "epilogue", "from the f32 accumulators of one product to the result with one rounding"},
    {NULL, NULL, NULL}};

static bool read_kernel(const lb_fused_text *text, void *out)
{
    kernel *k = out;
    *k = (kernel){0};
    k->rounds = !strcmp(text->name, "rounded"),
    k->epilogue = text->kind == LB_COMPOSITE_GATE_UP && !strcmp(text->name, "epilogue");
    const bool known = (k->rounds || k->epilogue || !strcmp(text->name, "fused")) && !*text->parameters;
    return known && lb_fused_text_keys(text, text->kind == LB_COMPOSITE_GATE_UP ? "gemm" : "") &&
           lb_fused_text_order(text, "gemm", &k->gemm, &k->has_gemm);
}
static double activated(int act, double x)
{
    if (act == LB_GATE_SILU) return x * lb_sigmoid(x);
    if (act == LB_GATE_GELU) return 0.5 * x * (1 + lb_erf(x * 0.70710678118654752440));
    return 0.5 * x * (1 + lb_tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

typedef struct work {
    lb_frame frame;
    kernel kernel;
    int act;
    lb_dtype narrow;
    bool twin;
    double scale; /* of a twin */
} work;

/* y may be g. */
static void gated(const work *work, const void *g, const void *u, void *y, int64_t n)
{
    if (work->frame.wide) {
        const double *gate = g, *up = u;
        for (int64_t i = 0; i < n; i++)
            ((double *)y)[i] = work->twin ? fabs(gate[i] * up[i]) * work->scale : activated(work->act, gate[i]) * up[i];
        return;
    }
    for (int64_t i = 0; i < n; i++) ((float *)y)[i] = (float)activated(work->act, ((const float *)g)[i]);
    if (work->kernel.rounds) lb_fused_round(y, n, work->narrow);
    for (int64_t i = 0; i < n; i++) ((float *)y)[i] *= ((const float *)u)[i];
}

/* As far as both ops are alike. `x`: the operand whose dtype the kernel rounds to. */
static lb_status begin(work *w, lb_call *call, lb_composite_kind kind, const lb_tensor *x, bool twin)
{
    *w = (work){.frame = lb_frame_begin(call), .twin = twin};
    LB_TRY(lb_fused_kernel_of(call, kind, &w->kernel));
    w->act = (int)lb_fused_number(call, LB_GATE_ACT);
    w->narrow = lb_fused_narrow(&w->frame, x);
    return LB_OK;
}

/* Gate and up in two tensors, or side by side in the rows of one. */
static lb_status swiglu(lb_call *call, lb_composite_kind kind, bool twin)
{
    work work;
    const lb_tensor *in = lb_fused_input(call, LB_GATE_X), *other = lb_fused_input(call, LB_GATE_U);
    LB_TRY(begin(&work, call, kind, in, twin));
    const int64_t last = in->layout.ndim ? in->layout.shape[in->layout.ndim - 1] : 1, width = other ? last : last / 2;
    const int64_t rows = last ? lb_tensor_numel(in) / last : 0, n = rows * width, e = work.frame.wide ? 8 : 4;
    if ((other && lb_tensor_numel(other) != n) || lb_tensor_numel(&call->results[0]) != n || (!other && last % 2))
        lb_frame_fail(&work.frame, LB_ERR_INVALID, "gate, up and result do not match");
    const char *g = lb_frame_tensor(&work.frame, in), *u = other ? lb_frame_tensor(&work.frame, other) : NULL;
    char *y = lb_frame_output(&work.frame, LB_GATE_Y, n);
    work.scale = 12 + 4 * lb_frame_twin_scale(call, LB_FUSED_INPUTS);
    for (int64_t i = 0; lb_frame_ok(&work.frame) && i < rows; i++)
        gated(&work, g + i * last * e, u ? u + i * width * e : g + (i * last + width) * e, y + i * width * e, width);
    return lb_frame_end(&work.frame);
}

/* out (m, n) = x (m, k) weight (k, n), of magnitudes for a twin. */
static bool run_product(work *work, const lb_tensor *x, const lb_tensor *weight, void *out)
{
    const lb_product shape = {.m = x->layout.shape[0], .n = weight->layout.shape[1], .k = x->layout.shape[1]};
    const lb_matrix_pair operands = {
        .a = {x->data, x->dtype, x->layout.stride[0], x->layout.stride[1]},
        .b = {weight->data, weight->dtype, weight->layout.stride[0], weight->layout.stride[1]},
        .absolute = work->twin};
    const lb_method method = {.schedule = work->kernel.has_gemm ? &work->kernel.gemm : NULL};
    if (lb_product_matrices(&shape, work->frame.type, &method, &operands, out) == LB_OK) return true;
    lb_frame_fail(&work->frame, LB_ERR_UNSUPPORTED, "this order of the products");
    return false;
}

static lb_status gate_up(lb_call *call, lb_composite_kind kind, bool twin)
{
    work work;
    const lb_tensor *x = lb_fused_input(call, LB_GATE_X), *g = lb_fused_input(call, LB_GATE_U),
                    *u = lb_fused_input(call, LB_GATE_W);
    LB_TRY(begin(&work, call, kind, x, twin));
    if (!g || !u || x->layout.ndim != 2 || g->layout.ndim != 2 || u->layout.ndim != 2 ||
        !lb_layout_same_shape(&g->layout, &u->layout) || x->layout.shape[1] != g->layout.shape[0] ||
        lb_tensor_numel(&call->results[0]) != x->layout.shape[0] * g->layout.shape[1]) {
        lb_frame_fail(&work.frame, LB_ERR_INVALID, "x, weights and result do not match");
        return lb_frame_end(&work.frame);
    }
    const int64_t n = x->layout.shape[0] * g->layout.shape[1];
    void *y = lb_frame_output(&work.frame, LB_GATE_Y, n), *gate = lb_frame_reals(&work.frame, n + 1),
         *up = lb_frame_reals(&work.frame, n + 1);
    work.scale = 12 + 2 * (double)x->layout.shape[1] + 6 * lb_frame_twin_scale(call, LB_FUSED_INPUTS);
    if (lb_frame_ok(&work.frame) && run_product(&work, x, g, gate) && run_product(&work, x, u, up)) {
        if (!work.frame.wide && !work.kernel.epilogue)
            lb_fused_round(gate, n, work.narrow), lb_fused_round(up, n, work.narrow);
        gated(&work, gate, up, y, n);
    }
    return lb_frame_end(&work.frame);
}

static uint32_t products_candidates(const lb_composite *composite, char (*texts)[LB_COMPOSITE_TEXT], uint32_t room)
{
    static const char *const forms[] = {"fused", "rounded", "epilogue"};
    static const char *const orders[] = {
        "", ",gemm:torch", ",gemm:splitk:2", ",gemm:splitk:4", ",gemm:tensorcore:h100", ",gemm:tensorcore:a100"};
    const bool narrow = lb_dtype_bits(composite->program->values[composite->inputs[LB_GATE_X]].dtype) == 16;
    uint32_t n = lb_fused_candidate_add(texts, room, 0, "eager");
    for (size_t o = 0; o < (narrow ? 6 : 4); o++)
        for (size_t f = 0; f < 3; f++) n = lb_fused_candidate_add(texts, room, n, "%s%s", forms[f], orders[o]);
    return n;
}

const lb_fused_kind lb_fused_swiglu = {
    .row = "fused::swiglu",
    .kernels = alone,
    .options = "",
    .usual = "fused",
    .run = swiglu,
    .read = read_kernel,
    .kernel_size = sizeof(kernel),
    .fixed = "eager fused rounded",
};
const lb_fused_kind lb_fused_gate_up = {
    .row = "fused::gate_up",
    .kernels = products,
    .options = "gemm:ORDER (of both products)",
    .usual = "fused",
    .run = gate_up,
    .read = read_kernel,
    .kernel_size = sizeof(kernel),
    .candidates = products_candidates,
};
