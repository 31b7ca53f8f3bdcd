/* Fused rotary embedding: rounded to T after every op, or in f32 with one rounding.
 *
 *      y1 = x1 cos1 - x2 sin1      y2 = x2 cos2 + x1 sin2      (fma:on: the product with cos is fused with the sum) */
#include "fused/fused.h"

#include <math.h>
#include <string.h>

typedef struct kernel {
    bool rounds, fma, table_t;
} kernel;

static const lb_composite_kernel kernels[] = {
    {"eager", "eager", "the recorded ops"},
    {"rounded", "rounded", "both products and the sum rounded to the type, as ops one by one"},
    {"fused", "fused", "in f32, one rounding"},
    {NULL, NULL, NULL}};
#define OPTIONS "fma:off|on, table:f32|t (t: cosines and sines rounded to the type)"

static bool read_kernel(const lb_fused_text *text, void *out)
{
    kernel *k = out;
    const int fma = lb_fused_text_choice(text, "fma", "off|on", 0),
              table = lb_fused_text_choice(text, "table", "f32|t", 0);
    *k = (kernel){!strcmp(text->name, "rounded"), fma == 1, table == 1};
    const bool known = (k->rounds || !strcmp(text->name, "fused")) && !*text->parameters && fma >= 0 && table >= 0 &&
                       !(k->rounds && fma);
    return known && lb_fused_text_keys(text, "fma table");
}
/* `t` as if it had the shape of x. False when it does not broadcast to it. */
static bool expanded(const lb_tensor *x, const lb_tensor *table, lb_tensor *out)
{
    *out = *table;
    out->layout.ndim = x->layout.ndim;
    if (table->layout.ndim > x->layout.ndim) return false;
    for (int d = 0; d < x->layout.ndim; d++) {
        const int own = d - (x->layout.ndim - table->layout.ndim);
        const int64_t size = own >= 0 ? table->layout.shape[own] : 1;
        if (size != 1 && size != x->layout.shape[d]) return false;
        out->layout.shape[d] = x->layout.shape[d], out->layout.stride[d] = size == 1 ? 0 : table->layout.stride[own];
    }
    return true;
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    kernel kernel;
    LB_TRY(lb_fused_kernel_of(call, kind, &kernel));
    const lb_tensor *in = lb_fused_input(call, LB_ROPE_X), *cosine = lb_fused_input(call, LB_ROPE_COS),
                    *sine = lb_fused_input(call, LB_ROPE_SIN);
    const int64_t n = lb_tensor_numel(in), size = in->layout.ndim ? in->layout.shape[in->layout.ndim - 1] : 1,
                  half = size / 2;
    lb_tensor wide_cosine, wide_sine;
    if (!cosine || !sine || size % 2 || lb_tensor_numel(&call->results[0]) != n ||
        !expanded(in, cosine, &wide_cosine) || !expanded(in, sine, &wide_sine)) {
        lb_frame_fail(&frame, LB_ERR_INVALID, "x, cosines, sines and result do not match");
        return lb_frame_end(&frame);
    }
    const void *x = lb_frame_tensor(&frame, in), *c = lb_frame_tensor(&frame, &wide_cosine),
               *s = lb_frame_tensor(&frame, &wide_sine);
    void *y = lb_frame_output(&frame, LB_ROPE_Y, n);
    const lb_dtype narrow = lb_fused_narrow(&frame, in), table = kernel.table_t ? narrow : LB_NO_DTYPE,
                   each = kernel.rounds ? narrow : LB_NO_DTYPE;
    const double scale = 4 + 4 * lb_frame_twin_scale(call, LB_FUSED_INPUTS);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        const int64_t d = i % size, other = d < half ? i + half : i - half;
        if (frame.wide) {
            const double a = ((const double *)x)[i] * ((const double *)c)[i],
                         b = ((const double *)x)[other] * ((const double *)s)[i] * (d < half ? -1 : 1);
            ((double *)y)[i] = twin ? (fabs(a) + fabs(b)) * scale : a + b;
            continue;
        }
        const float xi = ((const float *)x)[i], cos_i = lb_fused_rounded(((const float *)c)[i], table),
                    sin_i = lb_fused_rounded(((const float *)s)[i], table);
        const float turned = d < half ? -((const float *)x)[other] : ((const float *)x)[other],
                    b = lb_fused_rounded(turned * sin_i, each);
        ((float *)y)[i] = kernel.fma ? fmaf(xi, cos_i, b) : lb_fused_rounded(xi * cos_i, each) + b;
    }
    return lb_frame_end(&frame);
}

const lb_fused_kind lb_fused_rope = {
    .row = "fused::rope",
    .kernels = kernels,
    .options = OPTIONS,
    .usual = "fused",
    .run = run,
    .read = read_kernel,
    .kernel_size = sizeof(kernel),
    .fixed = "eager fused rounded fused,fma:on fused,table:t rounded,table:t fused,fma:on,table:t",
};
