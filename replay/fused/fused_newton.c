/* Newton–Schulz iterations: X ← a X + (b A + c A A) X with A = X X', and what is rounded to T in between.
 *
 *      addmm      three roundings a step: the Gram matrix, b A + c A A, a X + B X, each from f32 (torch.optim.Muon)
 *      separate   every product, factor and sum is rounded: op by op; scale:first takes (c A) A
 *      f32        nothing is rounded until the end
 *
 * Products are chains of fma, or in the order gemm: says. The twin iterates magnitudes, which says little after many
 * steps. */
#include "fused/fused.h"
#include "kernel/product.h"
#include "orders/schedule.h"

#include <math.h>
#include <string.h>

typedef struct kernel {
    bool separate, wide, scale_first, has_gemm;
    lb_schedule gemm;
} kernel;

static const lb_composite_kernel kernels[] = {{"eager", "eager", "the recorded ops"},
                                              {"addmm", "addmm", "rounded three times a step, as torch.optim.Muon"},
                                              {"separate", "separate", "rounded after every product, factor and sum"},
                                              {"f32", "f32", "all steps in f32, rounded once at the end"},
                                              {NULL, NULL, NULL}};
#define OPTIONS "scale:last|first (first: (c A) A), gemm:ORDER"

static bool read_kernel(const lb_fused_text *text, void *out)
{
    kernel *k = out;
    const int scale = lb_fused_text_choice(text, "scale", "last|first", 0);
    *k = (kernel){
        .separate = !strcmp(text->name, "separate"), .wide = !strcmp(text->name, "f32"), .scale_first = scale == 1};
    const bool known = (k->separate || k->wide || !strcmp(text->name, "addmm")) && !*text->parameters && scale >= 0 &&
                       !(scale && !k->separate);
    return known && lb_fused_text_keys(text, "scale gemm") && lb_fused_text_order(text, "gemm", &k->gemm, &k->has_gemm);
}
typedef struct work {
    lb_frame frame;
    kernel kernel;
    lb_method method;
    lb_dtype narrow;
    bool twin;
    int64_t m, n;
    void *x, *gram, *square, *update, *product;
} work;

static void round_to(const work *w, void *x, int64_t n)
{
    if (!w->frame.wide && w->narrow && !w->kernel.wide) lb_round_to_grid_f32(x, (size_t)n, w->narrow, NULL);
}

/* out (m, n) = a (m, k) b (k, n); `turned`: b lies (n, k). */
static void multiply(work *w, lb_product shape, const void *a, const void *b, bool turned, void *out)
{
    const lb_matrix_pair operands = {.a = {a, w->frame.type, shape.k, 1},
                                     .b = {b, w->frame.type, turned ? 1 : shape.n, turned ? shape.k : 1}};
    if (lb_frame_ok(&w->frame) && lb_product_matrices(&shape, w->frame.type, &w->method, &operands, out) != LB_OK)
        lb_frame_fail(&w->frame, LB_ERR_UNSUPPORTED, "this order of the products");
}

typedef struct term {
    double factor;
    const void *x;
    bool scaled; /* x has been multiplied with it already, but for the real function */
} term;

/* out = p x + q y, all rounded on the way where every op is. */
static void combine(const work *w, term p, term q, void *out, int64_t n)
{
    if (w->frame.wide) {
        for (int64_t i = 0; i < n; i++)
            ((double *)out)[i] = (w->twin ? fabs(p.factor) : p.factor) * ((const double *)p.x)[i] +
                                 (w->twin ? fabs(q.factor) : q.factor) * ((const double *)q.x)[i];
        return;
    }
    const bool each = w->kernel.separate && w->narrow;
    for (int64_t i = 0; i < n; i++) {
        float first = (float)p.factor * ((const float *)p.x)[i],
              second = q.scaled ? ((const float *)q.x)[i] : (float)q.factor * ((const float *)q.x)[i];
        if (each) lb_round_to_grid_f32(&first, 1, w->narrow, NULL), lb_round_to_grid_f32(&second, 1, w->narrow, NULL);
        ((float *)out)[i] = first + second;
    }
    round_to(w, out, n);
}

static void step(work *w, const double abc[3])
{
    const int64_t m = w->m, n = w->n;
    multiply(w, (lb_product){.m = m, .n = m, .k = n}, w->x, w->x, true, w->gram);
    round_to(w, w->gram, m * m);
    const bool first = w->kernel.scale_first && !w->frame.wide;
    const float c = (float)abc[2];
    for (int64_t i = 0; first && i < m * m; i++) ((float *)w->update)[i] = c * ((float *)w->gram)[i];
    if (first) round_to(w, w->update, m * m);
    multiply(w, (lb_product){.m = m, .n = m, .k = m}, first ? w->update : w->gram, w->gram, false, w->square);
    if (w->kernel.separate) round_to(w, w->square, m * m);
    combine(w, (term){abc[1], w->gram, false}, (term){abc[2], w->square, first}, w->update, m * m);
    multiply(w, (lb_product){.m = m, .n = n, .k = m}, w->update, w->x, false, w->product);
    if (w->kernel.separate) round_to(w, w->product, m * n);
    combine(w, (term){abc[0], w->x, false}, (term){1, w->product, true}, w->x, m * n);
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    work w = {.frame = lb_frame_begin(call), .twin = twin};
    LB_TRY(lb_fused_kernel_of(call, kind, &w.kernel));
    if (w.kernel.has_gemm) w.method.schedule = &w.kernel.gemm;
    const lb_tensor *in = lb_fused_input(call, LB_NEWTON_X);
    const int64_t steps = (int64_t)lb_fused_number(call, LB_NEWTON_STEPS);
    if (in->layout.ndim != 2 || steps < 1 || 3 * steps >= LB_COMPOSITE_NUMBERS ||
        lb_tensor_numel(in) != lb_tensor_numel(&call->results[0])) {
        lb_frame_fail(&w.frame, LB_ERR_INVALID, "a matrix, coefficients and a result of its shape are needed");
        return lb_frame_end(&w.frame);
    }
    w.m = in->layout.shape[0], w.n = in->layout.shape[1], w.narrow = lb_fused_narrow(&w.frame, in);
    const int64_t e = w.frame.wide ? 8 : 4;
    const void *x = lb_frame_tensor(&w.frame, in);
    void *y = lb_frame_output(&w.frame, LB_NEWTON_Y, w.m * w.n);
    w.x = lb_frame_reals(&w.frame, w.m * w.n + 1), w.product = lb_frame_reals(&w.frame, w.m * w.n + 1);
    w.gram = lb_frame_reals(&w.frame, w.m * w.m + 1), w.square = lb_frame_reals(&w.frame, w.m * w.m + 1),
    w.update = lb_frame_reals(&w.frame, w.m * w.m + 1);
    if (lb_frame_ok(&w.frame)) memcpy(w.x, x, (size_t)(w.m * w.n * e));
    for (int64_t i = 0; twin && lb_frame_ok(&w.frame) && i < w.m * w.n; i++)
        ((double *)w.x)[i] = fabs(((double *)w.x)[i]);
    for (int64_t s = 0; lb_frame_ok(&w.frame) && s < steps; s++)
        step(&w, call->args[LB_FUSED_NUMBERS].floats + 1 + 3 * s);
    if (lb_frame_ok(&w.frame)) memcpy(y, w.x, (size_t)(w.m * w.n * e));
    const double scale =
        (double)steps * (16 + 2 * (double)w.n + 2 * (double)w.m + 8 * lb_frame_twin_scale(call, LB_FUSED_INPUTS));
    for (int64_t i = 0; twin && lb_frame_ok(&w.frame) && i < w.m * w.n; i++) ((double *)y)[i] *= scale;
    return lb_frame_end(&w.frame);
}

const lb_fused_kind lb_fused_newton_schulz = {
    .row = "fused::newton_schulz",
    .kernels = kernels,
    .options = OPTIONS,
    .usual = "f32",
    .run = run,
    .read = read_kernel,
    .kernel_size = sizeof(kernel),
    .fixed = "eager addmm separate separate,scale:first f32 addmm,gemm:torch separate,gemm:torch "
             "addmm,gemm:splitk:2 f32,gemm:torch f32,gemm:splitk:2",
};
