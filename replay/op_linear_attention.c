/* Custom ops of fla-org/flash-linear-attention: the pointwise parts of RWKV-7 that its TileLang backend fuses.
 *
 * Names, schemas and definitions as in the modules that register them with torch.library (`fla::fused_k_rwkv7`,
 * `fla::fused_addcmul_rwkv7`, `fla::gate_output_correction_rwkv7`). Its chunked and recurrent attention kernels are autograd functions
 * around Triton and no registered ops. One rounding to the result's dtype, but that addcmul computes in the dtype of its inputs. */
#include "frame.h"

#include <math.h>

static double get(const lb_frame *f, const void *x, int64_t i)
{
    return lb_frame_get(f, x, i);
}

static void put(const lb_frame *f, void *y, int64_t i, double value)
{
    lb_frame_set(f, y, i, value);
}

/* k (1 + (a - 1) ka): k, a (…, channels), ka of as many elements as there are channels. */
static lb_status update_k(lb_call *call, bool twin)
{
    lb_frame f = lb_frame_begin(call);
    const lb_tensor *k = lb_call_tensor(call, 0), *ka = lb_call_tensor(call, 2);
    const int64_t n = lb_tensor_numel(k), channels = lb_tensor_numel(ka);
    const void *x = lb_frame_tensor(&f, k), *a = lb_frame_input(&f, 1), *w = lb_frame_tensor(&f, ka);
    void *y = lb_frame_output(&f, 0, n);
    for (int64_t i = 0; lb_frame_ok(&f) && i < n; i++) {
        const double v = get(&f, x, i), s = get(&f, a, i), g = get(&f, w, i % channels);
        put(&f, y, i, twin ? fabs(v) * (1 + (fabs(s) + 1) * fabs(g)) : v * (1 + (s - 1) * g));
    }
    return lb_frame_end(&f);
}
static lb_status update_k_kernel(lb_call *call)
{
    return update_k(call, false);
}
static lb_status update_k_twin(lb_call *call)
{
    return update_k(call, true);
}

/* hidden + delta x, for x of r, w, k, v, a and, where it is given, g (else 0): six results, or one with them stacked. */
static lb_status addcmul(lb_call *call, bool twin)
{
    lb_frame f = lb_frame_begin(call);
    const lb_tensor *hidden = lb_call_tensor(call, 0);
    const int64_t n = lb_tensor_numel(hidden);
    const bool stacked = call->n_results == 1;
    const double slack = twin ? 1 + 2 * lb_twin_rounding(call, 0) : 1;
    const void *h = lb_frame_tensor(&f, hidden), *d = lb_frame_input(&f, 1);
    void *all = stacked ? lb_frame_output(&f, 0, 6 * n) : NULL;
    for (uint32_t k = 0; k < 6; k++) {
        const void *x = lb_frame_input(&f, 2 + k);
        const int64_t channels = x ? lb_tensor_numel(lb_call_tensor(call, 2 + k)) : 1,
                      first = stacked ? k * n : 0;
        void *y = stacked ? all : lb_frame_output(&f, k, n);
        for (int64_t i = 0; lb_frame_ok(&f) && i < n; i++) {
            const double product = x ? get(&f, d, i) * get(&f, x, i % channels) : 0,
                         base = x ? get(&f, h, i) : 0;
            put(&f, y, first + i, twin ? (fabs(base) + fabs(product)) * slack : base + product);
        }
    }
    return lb_frame_end(&f);
}
static lb_status addcmul_kernel(lb_call *call)
{
    return addcmul(call, false);
}
static lb_status addcmul_twin(lb_call *call)
{
    return addcmul(call, true);
}

/* (o + (sum over a head of r k r_k) v) g: o, g (…, heads size), r, k, v (…, heads, size), r_k (heads, size). */
static lb_status gate_output(lb_call *call, bool twin)
{
    lb_frame f = lb_frame_begin(call);
    const lb_tensor *o = lb_call_tensor(call, 0), *rk = lb_call_tensor(call, 3);
    if (rk->layout.ndim != 2) lb_frame_fail(&f, LB_ERR_UNSUPPORTED, "weights that are not (heads, size)");
    if (!lb_frame_ok(&f)) return lb_frame_end(&f);
    const int64_t n = lb_tensor_numel(o), size = rk->layout.shape[1], width = lb_tensor_numel(rk);
    const void *out = lb_frame_tensor(&f, o), *r = lb_frame_input(&f, 1), *k = lb_frame_input(&f, 2),
               *weight = lb_frame_tensor(&f, rk), *v = lb_frame_input(&f, 4), *g = lb_frame_input(&f, 5);
    void *y = lb_frame_output(&f, 0, n);
    for (int64_t i = 0; lb_frame_ok(&f) && i < n; i += size) {
        double sum = 0;
        for (int64_t j = i; j < i + size; j++) {
            const double term = get(&f, r, j) * get(&f, k, j) * get(&f, weight, j % width);
            sum += twin ? fabs(term) : term;
        }
        for (int64_t j = i; j < i + size; j++) {
            const double add = sum * get(&f, v, j), base = get(&f, out, j), by = get(&f, g, j);
            put(&f, y, j, twin ? (fabs(base) + fabs(add)) * fabs(by) : (base + add) * by);
        }
    }
    return lb_frame_end(&f);
}
static lb_status gate_output_kernel(lb_call *call)
{
    return gate_output(call, false);
}
static lb_status gate_output_twin(lb_call *call)
{
    return gate_output(call, true);
}

const lb_op_row lb_rows_linear_attention[] = {
    {"fla::fused_k_rwkv7", "k a ka", update_k_kernel, update_k_twin, 6, 0, 0, NULL, "custom"},
    {"fla::fused_addcmul_rwkv7", "hidden delta x_r x_w x_k x_v x_a x_g", addcmul_kernel, addcmul_twin, 4, 0, 0,
     NULL, "custom"},
    /* sums of a head are of at most a few hundred terms, in trees */
    {"fla::gate_output_correction_rwkv7", "o r k r_k v g", gate_output_kernel, gate_output_twin, 24, 0, 0, NULL,
     "custom"},
    {NULL}};
