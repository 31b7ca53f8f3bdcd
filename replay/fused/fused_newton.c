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

static void round_to(const work *work, void *x, int64_t n)
{
    if (!work->frame.wide && work->narrow && !work->kernel.wide) lb_round_to_grid_f32(x, (size_t)n, work->narrow, NULL);
}

/* out (m, n) = a (m, k) b (k, n); `turned`: b lies (n, k). */
static void multiply(work *work, lb_product shape, const void *a, const void *b, bool turned, void *out)
{
    const lb_matrix_pair operands = {.a = {a, work->frame.type, shape.k, 1},
                                     .b = {b, work->frame.type, turned ? 1 : shape.n, turned ? shape.k : 1}};
    if (lb_frame_ok(&work->frame) &&
        lb_product_matrices(&shape, work->frame.type, &work->method, &operands, out) != LB_OK)
        lb_frame_fail(&work->frame, LB_ERR_UNSUPPORTED, "this order of the products");
}

typedef struct term {
    double factor;
    const void *x;
    bool scaled; /* x has been multiplied with it already, but for the real function */
} term;

/* out = p x + q y, all rounded on the way where every op is. */
static void combine(const work *work, term p, term q, void *out, int64_t n)
{
    if (work->frame.wide) {
        for (int64_t i = 0; i < n; i++)
            ((double *)out)[i] = (work->twin ? fabs(p.factor) : p.factor) * ((const double *)p.x)[i] +
                                 (work->twin ? fabs(q.factor) : q.factor) * ((const double *)q.x)[i];
        return;
    }
    const bool each = work->kernel.separate && work->narrow;
    for (int64_t i = 0; i < n; i++) {
        float first = (float)p.factor * ((const float *)p.x)[i],
              second = q.scaled ? ((const float *)q.x)[i] : (float)q.factor * ((const float *)q.x)[i];
        if (each)
            lb_round_to_grid_f32(&first, 1, work->narrow, NULL), lb_round_to_grid_f32(&second, 1, work->narrow, NULL);
        ((float *)out)[i] = first + second;
    }
    round_to(work, out, n);
}

static void step(work *work, const double abc[3])
{
    const int64_t m = work->m, n = work->n;
    multiply(work, (lb_product){.m = m, .n = m, .k = n}, work->x, work->x, true, work->gram);
    round_to(work, work->gram, m * m);
    const bool first = work->kernel.scale_first && !work->frame.wide;
    const float c = (float)abc[2];
    for (int64_t i = 0; first && i < m * m; i++) ((float *)work->update)[i] = c * ((float *)work->gram)[i];
    if (first) round_to(work, work->update, m * m);
    multiply(work, (lb_product){.m = m, .n = m, .k = m}, first ? work->update : work->gram, work->gram, false,
             work->square);
    if (work->kernel.separate) round_to(work, work->square, m * m);
    combine(work, (term){abc[1], work->gram, false}, (term){abc[2], work->square, first}, work->update, m * m);
    multiply(work, (lb_product){.m = m, .n = n, .k = m}, work->update, work->x, false, work->product);
    if (work->kernel.separate) round_to(work, work->product, m * n);
    combine(work, (term){abc[0], work->x, false}, (term){1, work->product, true}, work->x, m * n);
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    work work = {.frame = lb_frame_begin(call), .twin = twin};
    LB_TRY(lb_fused_kernel_of(call, kind, &work.kernel));
    if (work.kernel.has_gemm) work.method.schedule = &work.kernel.gemm;
    const lb_tensor *in = lb_fused_input(call, LB_NEWTON_X);
    const int64_t steps = (int64_t)lb_fused_number(call, LB_NEWTON_STEPS);
    if (in->layout.ndim != 2 || steps < 1 || 3 * steps >= LB_COMPOSITE_NUMBERS ||
        lb_tensor_numel(in) != lb_tensor_numel(&call->results[0])) {
        lb_frame_fail(&work.frame, LB_ERR_INVALID, "a matrix, coefficients and a result of its shape are needed");
        return lb_frame_end(&work.frame);
    }
    work.m = in->layout.shape[0], work.n = in->layout.shape[1], work.narrow = lb_fused_narrow(&work.frame, in);
    const int64_t e = work.frame.wide ? 8 : 4;
    const void *x = lb_frame_tensor(&work.frame, in);
    void *y = lb_frame_output(&work.frame, LB_NEWTON_Y, work.m * work.n);
    work.x = lb_frame_reals(&work.frame, work.m * work.n + 1),
    work.product = lb_frame_reals(&work.frame, work.m * work.n + 1);
    work.gram = lb_frame_reals(&work.frame, work.m * work.m + 1),
    work.square = lb_frame_reals(&work.frame, work.m * work.m + 1),
    work.update = lb_frame_reals(&work.frame, work.m * work.m + 1);
    if (lb_frame_ok(&work.frame)) memcpy(work.x, x, (size_t)(work.m * work.n * e));
    for (int64_t i = 0; twin && lb_frame_ok(&work.frame) && i < work.m * work.n; i++)
        ((double *)work.x)[i] = fabs(((double *)work.x)[i]);
    for (int64_t s = 0; lb_frame_ok(&work.frame) && s < steps; s++)
        step(&work, call->args[LB_FUSED_NUMBERS].floats + 1 + 3 * s);
    if (lb_frame_ok(&work.frame)) memcpy(y, work.x, (size_t)(work.m * work.n * e));
    const double scale =
        (double)steps * (16 + 2 * (double)work.n + 2 * (double)work.m + 8 * lb_frame_twin_scale(call, LB_FUSED_INPUTS));
    for (int64_t i = 0; twin && lb_frame_ok(&work.frame) && i < work.m * work.n; i++) ((double *)y)[i] *= scale;
    return lb_frame_end(&work.frame);
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
