/* Fused gated activations, alone and behind their two products.
 *
 *      rounded    act(gate) is rounded to T before it meets up: ops one by one
 *      fused      all in f32, one rounding: `silu_and_mul` of serving stacks, torch.compile
 *      epilogue   gate_up alone: also gate and up stay in the f32 accumulators of their products
 *
 * gate_up computes both products as one with the weights side by side would: the order of each (gemm:) does not see the other columns, but
 * a library may choose another order for a wider product, which is what to try here. */
#include "elementary.h"
#include "fused.h"
#include "product.h"
#include "schedule.h"

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

static bool read_kernel(const lb_kernel_text *text, void *out)
{
    kernel *k = out;
    *k = (kernel){0};
    k->rounds = !strcmp(text->name, "rounded"),
    k->epilogue = text->kind == LB_COMPOSITE_GATE_UP && !strcmp(text->name, "epilogue");
    const bool known = (k->rounds || k->epilogue || !strcmp(text->name, "fused")) && !*text->parameters;
    return known && lb_kernel_text_keys(text, text->kind == LB_COMPOSITE_GATE_UP ? "gemm" : "") &&
           lb_kernel_text_order(text, "gemm", &k->gemm, &k->has_gemm);
}
static double activated(int act, double x)
{
    if (act == LB_GATE_SILU) return x * lb_sigmoid(x);
    if (act == LB_GATE_GELU) return 0.5 * x * (1 + lb_erf(x * 0.70710678118654752440));
    return 0.5 * x * (1 + lb_tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

/* y may be g. */
static void gated(const lb_frame *f, const kernel *k, int act, lb_dtype narrow, const void *g, const void *u,
                  void *y, int64_t n, bool twin, double scale)
{
    if (f->wide) {
        const double *gate = g, *up = u;
        for (int64_t i = 0; i < n; i++)
            ((double *)y)[i] = twin ? fabs(gate[i] * up[i]) * scale : activated(act, gate[i]) * up[i];
        return;
    }
    for (int64_t i = 0; i < n; i++) ((float *)y)[i] = (float)activated(act, ((const float *)g)[i]);
    if (k->rounds) lb_fused_round(y, n, narrow);
    for (int64_t i = 0; i < n; i++) ((float *)y)[i] *= ((const float *)u)[i];
}

/* Gate and up in two tensors, or side by side in the rows of one. */
static lb_status swiglu(lb_call *call, lb_composite_kind kind, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    kernel k;
    LB_TRY(lb_fused_kernel_of(call, kind, &k));
    const lb_tensor *in = lb_fused_input(call, LB_GATE_X), *other = lb_fused_input(call, LB_GATE_U);
    const int64_t last = in->layout.ndim ? in->layout.shape[in->layout.ndim - 1] : 1,
                  width = other ? last : last / 2;
    const int64_t rows = last ? lb_tensor_numel(in) / last : 0, n = rows * width, e = frame.wide ? 8 : 4;
    if ((other && lb_tensor_numel(other) != n) || lb_tensor_numel(&call->results[0]) != n ||
        (!other && last % 2))
        lb_frame_fail(&frame, LB_ERR_INVALID, "gate, up and result do not match");
    const char *g = lb_frame_tensor(&frame, in), *u = other ? lb_frame_tensor(&frame, other) : NULL;
    char *y = lb_frame_output(&frame, LB_GATE_Y, n);
    const double scale = 12 + 4 * lb_twin_scale(call, LB_FUSED_INPUTS);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < rows; i++)
        gated(&frame, &k, (int)lb_fused_number(call, LB_GATE_ACT), lb_fused_narrow(&frame, in),
              g + i * last * e, u ? u + i * width * e : g + (i * last + width) * e, y + i * width * e, width,
              twin, scale);
    return lb_frame_end(&frame);
}

static bool run_product(lb_frame *f, const lb_method *method, const lb_tensor *x, const lb_tensor *w,
                        bool absolute, int64_t m, int64_t n, int64_t k, void *out)
{
    const lb_product shape = {.m = m, .n = n, .k = k};
    const lb_matmul_batch one = {.batch = 1};
    const lb_matrix a = {x->data, x->dtype, x->layout.stride[0], x->layout.stride[1]},
                    b = {w->data, w->dtype, w->layout.stride[0], w->layout.stride[1]};
    if (lb_product_matrices(&shape, f->type, method, &one, &a, &b, absolute, out) == LB_OK) return true;
    lb_frame_fail(f, LB_ERR_UNSUPPORTED, "this order of the products");
    return false;
}

static lb_status gate_up(lb_call *call, lb_composite_kind kind, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    kernel k;
    LB_TRY(lb_fused_kernel_of(call, kind, &k));
    const lb_tensor *x = lb_fused_input(call, LB_GATE_X), *g = lb_fused_input(call, LB_GATE_U),
                    *u = lb_fused_input(call, LB_GATE_W);
    if (!g || !u || x->layout.ndim != 2 || g->layout.ndim != 2 || u->layout.ndim != 2 ||
        !lb_layout_same_shape(&g->layout, &u->layout) || x->layout.shape[1] != g->layout.shape[0] ||
        lb_tensor_numel(&call->results[0]) != x->layout.shape[0] * g->layout.shape[1]) {
        lb_frame_fail(&frame, LB_ERR_INVALID, "x, weights and result do not match");
        return lb_frame_end(&frame);
    }
    const int64_t m = x->layout.shape[0], n = g->layout.shape[1], size = x->layout.shape[1];
    lb_method method = {0};
    if (k.has_gemm) method.schedule = &k.gemm;
    const lb_dtype narrow = lb_fused_narrow(&frame, x);
    void *y = lb_frame_output(&frame, LB_GATE_Y, m * n), *gate = lb_frame_reals(&frame, m * n + 1),
         *up = lb_frame_reals(&frame, m * n + 1);
    const double scale = 12 + 2 * (double)size + 6 * lb_twin_scale(call, LB_FUSED_INPUTS);
    if (lb_frame_ok(&frame) && run_product(&frame, &method, x, g, twin, m, n, size, gate) &&
        run_product(&frame, &method, x, u, twin, m, n, size, up)) {
        if (!frame.wide && !k.epilogue) lb_fused_round(gate, m * n, narrow), lb_fused_round(up, m * n, narrow);
        gated(&frame, &k, (int)lb_fused_number(call, LB_GATE_ACT), narrow, gate, up, y, m * n, twin, scale);
    }
    return lb_frame_end(&frame);
}

static uint32_t products_candidates(const lb_composite *c, char (*texts)[LB_COMPOSITE_TEXT], uint32_t room)
{
    static const char *const forms[] = {"fused", "rounded", "epilogue"};
    static const char *const orders[] = {"",
                                         ",gemm:torch",
                                         ",gemm:splitk:2",
                                         ",gemm:splitk:4",
                                         ",gemm:tensorcore:h100",
                                         ",gemm:tensorcore:a100"};
    const bool narrow = lb_dtype_bits(c->program->values[c->inputs[LB_GATE_X]].dtype) == 16;
    uint32_t n = lb_candidate_add(texts, room, 0, "eager");
    for (size_t o = 0; o < (narrow ? 6 : 4); o++)
        for (size_t f = 0; f < 3; f++) n = lb_candidate_add(texts, room, n, "%s%s", forms[f], orders[o]);
    return n;
}

const lb_fused_kind lb_fused_swiglu = {
    .row = "fused::swiglu",
    .kernels = alone,
    .options = "",
    .usual = "fused",
    .row_axis = 1,
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
    .row_axis = 1,
    .run = gate_up,
    .read = read_kernel,
    .kernel_size = sizeof(kernel),
    .candidates = products_candidates,
};
