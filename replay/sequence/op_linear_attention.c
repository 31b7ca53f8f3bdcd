/* Custom ops of fla-org/flash-linear-attention: the pointwise parts of RWKV-7 that its TileLang backend fuses, and
 * their gradients.
 *
 * Names, schemas and definitions as in the modules that register them with torch.library (`fla::fused_k_rwkv7`,
 * `fla::fused_addcmul_rwkv7`, `fla::gate_output_correction_rwkv7`, `fla::kk_pre_rwkv7`, each with a `_bwd`). Its
 * chunked and recurrent attention kernels (GLA, retention, DeltaNet, the gated delta rule) are autograd functions
 * around Triton and no registered ops, but for RWKV-7's: see op_delta_rule.c. One rounding to the result's dtype, but
 * that addcmul computes in the dtype of its inputs. Gradients come one behind the other in one result. */
#include "kernel/frame.h"

#include <math.h>

static double get(const lb_frame *frame, const void *x, int64_t i)
{
    return lb_frame_get(frame, x, i);
}

static void put(const lb_frame *frame, void *y, int64_t i, double value)
{
    lb_frame_set(frame, y, i, value);
}

static int64_t elements(const lb_call *call, uint32_t i)
{
    const lb_tensor *tensor = lb_frame_arg_tensor(call, i);
    return tensor ? lb_tensor_numel(tensor) : 0;
}

/* k (1 + (a - 1) ka): k, a (…, channels), ka of as many elements as there are channels. */
static lb_status update_k(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const int64_t n = elements(call, 0), channels = elements(call, 2);
    if (!channels || elements(call, 1) != n) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "inputs of other sizes");
    const void *x = lb_frame_input(&frame, 0), *a = lb_frame_input(&frame, 1), *w = lb_frame_input(&frame, 2);
    void *y = lb_frame_output(&frame, 0, n);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        const double v = get(&frame, x, i), s = get(&frame, a, i), g = get(&frame, w, i % channels);
        put(&frame, y, i, twin ? fabs(v) * (1 + (fabs(s) + 1) * fabs(g)) : v * (1 + (s - 1) * g));
    }
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(update_k, update_k(call, twin))

/* hidden + delta x, for x of r, w, k, v, a and, where it is given, g (else 0): six results, or one with them
 * stacked. */
static lb_status addcmul(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const int64_t n = elements(call, 0);
    const bool stacked = call->n_results == 1;
    const double slack = twin ? 1 + 2 * lb_frame_twin_rounding(call, 0) : 1;
    const void *h = lb_frame_input(&frame, 0), *d = lb_frame_input(&frame, 1);
    if (elements(call, 1) != n) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "inputs of other sizes");
    void *all = stacked ? lb_frame_output(&frame, 0, 6 * n) : NULL;
    for (uint32_t k = 0; k < 6; k++) {
        const void *x = lb_frame_input(&frame, 2 + k);
        const int64_t channels = x ? elements(call, 2 + k) : 1, first = stacked ? k * n : 0;
        if (!channels) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "a factor without elements");
        void *y = stacked ? all : lb_frame_output(&frame, k, n);
        for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
            const double product = x ? get(&frame, d, i) * get(&frame, x, i % channels) : 0,
                         base = x ? get(&frame, h, i) : 0;
            put(&frame, y, first + i, twin ? (fabs(base) + fabs(product)) * slack : base + product);
        }
    }
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(addcmul, addcmul(call, twin))

/* (o + (sum over a head of r k r_k) v) g: o, g (…, heads size), r, k, v (…, heads, size), r_k (heads, size). */
static lb_status gate_output(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *rk = lb_frame_arg_tensor(call, 3);
    const int64_t n = elements(call, 0), width = elements(call, 3),
                  size = width && rk->layout.ndim == 2 ? rk->layout.shape[1] : 0;
    if (!size || n % width) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "weights that are not (heads, size)");
    for (uint32_t i = 1; i < 6; i++)
        if (i != 3 && elements(call, i) != n) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "inputs of other sizes");
    const void *out = lb_frame_input(&frame, 0), *r = lb_frame_input(&frame, 1), *k = lb_frame_input(&frame, 2),
               *weight = lb_frame_tensor(&frame, rk), *v = lb_frame_input(&frame, 4), *g = lb_frame_input(&frame, 5);
    void *y = lb_frame_output(&frame, 0, n);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i += size) {
        double sum = 0;
        for (int64_t j = i; j < i + size; j++) {
            const double term = get(&frame, r, j) * get(&frame, k, j) * get(&frame, weight, j % width);
            sum += twin ? fabs(term) : term;
        }
        for (int64_t j = i; j < i + size; j++) {
            const double add = sum * get(&frame, v, j), base = get(&frame, out, j), by = get(&frame, g, j);
            put(&frame, y, j, twin ? (fabs(base) + fabs(add)) * fabs(by) : (base + add) * by);
        }
    }
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(gate_output, gate_output(call, twin))

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Sums over rows have f64 places of their own until the end. */
static double *sums(lb_frame *frame, int64_t n)
{
    double *s = lb_frame_scratch(frame, (size_t)n * sizeof *s);
    for (int64_t i = 0; s && i < n; i++) s[i] = 0;
    return s;
}

static void put_sums(const lb_frame *frame, void *y, int64_t first, const double *s, int64_t n)
{
    for (int64_t i = 0; lb_frame_ok(frame) && i < n; i++) put(frame, y, first + i, s[i]);
}

static double magnitude(bool twin, double x)
{
    return twin ? fabs(x) : x;
}

/* Args: dy k a ka. Gradients of k, a, ka. */
static lb_status update_k_backward(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const int64_t n = elements(call, 1), channels = elements(call, 3);
    if (!channels || n % channels || elements(call, 0) != n || elements(call, 2) != n)
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "inputs of other sizes");
    const void *dy = lb_frame_input(&frame, 0), *k = lb_frame_input(&frame, 1), *a = lb_frame_input(&frame, 2),
               *ka = lb_frame_input(&frame, 3);
    void *y = lb_frame_output(&frame, 0, 2 * n + channels);
    double *of_ka = sums(&frame, channels);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        const double d = get(&frame, dy, i), v = get(&frame, k, i), s = get(&frame, a, i),
                     g = get(&frame, ka, i % channels);
        put(&frame, y, i, twin ? fabs(d) * (1 + (fabs(s) + 1) * fabs(g)) : d * (1 + (s - 1) * g));
        put(&frame, y, n + i, magnitude(twin, d * v * g));
        of_ka[i % channels] += twin ? fabs(d * v) * (fabs(s) + 1) : d * v * (s - 1);
    }
    put_sums(&frame, y, 2 * n, of_ka, channels);
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(update_k_backward, update_k_backward(call, twin))

/* Args: six gradients, six factors x, delta, and whether the last of either counts. Results: gradients of hidden, delta
 * and each x. */
static lb_status addcmul_backward(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const int64_t n = elements(call, 12), channels = elements(call, 6);
    const uint32_t used = lb_frame_arg_int(call, 13, 1) ? 6 : 5;
    if (!channels || n % channels || call->n_results != 8)
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "inputs of other sizes");
    for (uint32_t x = 0; x < used; x++)
        if (elements(call, x) != n || elements(call, 6 + x) != channels)
            lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "inputs of other sizes");
    const void *delta = lb_frame_input(&frame, 12), *d[6], *factor[6];
    for (uint32_t x = 0; x < used; x++) d[x] = lb_frame_input(&frame, x), factor[x] = lb_frame_input(&frame, 6 + x);
    void *of_hidden = lb_frame_output(&frame, 0, n), *of_delta = lb_frame_output(&frame, 1, n);
    double *of_x = sums(&frame, 6 * channels);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        double hidden = 0, change = 0;
        for (uint32_t x = 0; x < used; x++) {
            const double g = get(&frame, d[x], i);
            hidden += magnitude(twin, g), change += magnitude(twin, g * get(&frame, factor[x], i % channels));
            of_x[x * channels + i % channels] += magnitude(twin, g * get(&frame, delta, i));
        }
        put(&frame, of_hidden, i, hidden), put(&frame, of_delta, i, change);
    }
    for (uint32_t x = 0; x < 6; x++)
        put_sums(&frame, lb_frame_output(&frame, 2 + x, channels), 0, of_x + x * channels, channels);
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(addcmul_backward, addcmul_backward(call, twin))

/* Args: dy o r k r_k v g. Gradients of o, r, k, r_k, v, g. */
static lb_status gate_output_backward(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *rk = lb_frame_arg_tensor(call, 4);
    const int64_t n = elements(call, 1), width = elements(call, 4),
                  size = rk && rk->layout.ndim == 2 ? rk->layout.shape[1] : 0;
    if (!size || !width || n % width) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "weights that are not (heads, size)");
    for (uint32_t i = 0; i < 7; i++)
        if (i != 4 && elements(call, i) != n) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "inputs of other sizes");
    const void *in[7];
    for (uint32_t i = 0; i < 7; i++) in[i] = lb_frame_input(&frame, i);
    void *y = lb_frame_output(&frame, 0, 5 * n + width);
    double *of_weight = sums(&frame, width);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i += size) {
        double correction = 0, back = 0; /* what v is multiplied with; its gradient */
        for (int64_t j = i; j < i + size; j++) {
            correction +=
                magnitude(twin, get(&frame, in[2], j) * get(&frame, in[3], j) * get(&frame, in[4], j % width));
            back += magnitude(twin, get(&frame, in[0], j) * get(&frame, in[6], j) * get(&frame, in[5], j));
        }
        for (int64_t j = i; j < i + size; j++) {
            const double dy = get(&frame, in[0], j), o = get(&frame, in[1], j), r = get(&frame, in[2], j),
                         k = get(&frame, in[3], j), w = get(&frame, in[4], j % width), v = get(&frame, in[5], j),
                         g = get(&frame, in[6], j);
            put(&frame, y, j, magnitude(twin, dy * g));
            put(&frame, y, n + j, magnitude(twin, back * k * w));
            put(&frame, y, 2 * n + j, magnitude(twin, back * r * w));
            of_weight[j % width] += magnitude(twin, back * r * k);
            put(&frame, y, 3 * n + width + j, magnitude(twin, dy * g * correction));
            put(&frame, y, 4 * n + width + j,
                twin ? fabs(dy) * (fabs(o) + fabs(correction * v)) : dy * (o + correction * v));
        }
    }
    put_sums(&frame, y, 3 * n, of_weight, width);
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(gate_output_backward, gate_output_backward(call, twin))

/* ---- keys normalised --------------------------------------------------------------------------------------------- */

#define LEAST_NORM 1e-12 /* a shorter vector is divided by this */

/* 1 / |k k_k| of the head from element i on. */
static double inverse_norm(const lb_frame *frame, const void *k, const void *weight, int64_t i, int64_t size,
                           int64_t width)
{
    double squares = 0;
    for (int64_t j = i; j < i + size; j++) {
        const double x = get(frame, k, j) * get(frame, weight, j % width);
        squares += x * x;
    }
    return squares > LEAST_NORM * LEAST_NORM ? 1 / sqrt(squares) : 1 / LEAST_NORM;
}

static bool has_heads(const lb_call *call, uint32_t k, int64_t size)
{
    const int64_t n = elements(call, k), width = elements(call, k + 2);
    return size > 0 && width > 0 && width % size == 0 && n % width == 0 && elements(call, k + 1) == n &&
           elements(call, k + 3) == width;
}

/* Args: k a k_k k_a head_dim. The result has k (1 + (a - 1) k_a), minus kk = k k_k normalised by heads, and kk a. */
static lb_status prepare_keys(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const int64_t n = elements(call, 0), width = elements(call, 2), size = lb_frame_arg_int(call, 4, 64);
    if (!has_heads(call, 0, size)) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "weights that do not belong to the heads");
    const void *k = lb_frame_input(&frame, 0), *a = lb_frame_input(&frame, 1), *kk = lb_frame_input(&frame, 2),
               *ka = lb_frame_input(&frame, 3);
    void *y = lb_frame_output(&frame, 0, 3 * n);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i += size) {
        const double scale = inverse_norm(&frame, k, kk, i, size, width);
        for (int64_t j = i; j < i + size; j++) {
            const double v = get(&frame, k, j), s = get(&frame, a, j), g = get(&frame, ka, j % width),
                         unit = v * get(&frame, kk, j % width) * scale;
            put(&frame, y, j, twin ? fabs(v) * (1 + (fabs(s) + 1) * fabs(g)) : v * (1 + (s - 1) * g));
            put(&frame, y, n + j, twin ? fabs(unit) : -unit);
            put(&frame, y, 2 * n + j, magnitude(twin, unit * s));
        }
    }
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(prepare_keys, prepare_keys(call, twin))

/* Args: the gradients of the three, k a k_k k_a head_dim, and which of them there are. Gradients of k, a, k_k, k_a. */
static lb_status prepare_keys_backward(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const int64_t n = elements(call, 3), width = elements(call, 5), size = lb_frame_arg_int(call, 7, 64);
    if (!has_heads(call, 3, size)) lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "weights that do not belong to the heads");
    const void *d[3], *k = lb_frame_input(&frame, 3), *a = lb_frame_input(&frame, 4), *kk = lb_frame_input(&frame, 5),
                      *ka = lb_frame_input(&frame, 6);
    for (uint32_t i = 0; i < 3; i++)
        d[i] = lb_frame_arg_int(call, 8 + i, 1) && elements(call, i) == n ? lb_frame_input(&frame, i) : NULL;
    void *y = lb_frame_output(&frame, 0, 2 * n + 2 * width);
    double *of_kk = sums(&frame, width), *of_ka = sums(&frame, width);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i += size) {
        const double scale = inverse_norm(&frame, k, kk, i, size, width);
        double along = 0; /* the part of the gradient that the norm takes away */
        for (int64_t j = i; j < i + size; j++) {
            const double unit = get(&frame, k, j) * get(&frame, kk, j % width) * scale,
                         down = d[1] ? get(&frame, d[1], j) : 0,
                         by_a = (d[2] ? get(&frame, d[2], j) : 0) * get(&frame, a, j);
            along += twin ? (fabs(down) + fabs(by_a)) * fabs(unit) : (by_a - down) * unit;
        }
        for (int64_t j = i; j < i + size; j++) {
            const double v = get(&frame, k, j), s = get(&frame, a, j), w = get(&frame, kk, j % width),
                         g = get(&frame, ka, j % width), dy = d[0] ? get(&frame, d[0], j) : 0,
                         down = d[1] ? get(&frame, d[1], j) : 0, dm = d[2] ? get(&frame, d[2], j) : 0,
                         unit = v * w * scale;
            const double of_scaled = twin ? (fabs(down) + fabs(dm * s) + fabs(unit) * along) * scale
                                          : (dm * s - down - unit * along) * scale;
            put(&frame, y, j,
                twin ? fabs(dy) * (1 + (fabs(s) + 1) * fabs(g)) + of_scaled * fabs(w)
                     : dy * (1 + (s - 1) * g) + of_scaled * w);
            put(&frame, y, n + j, twin ? fabs(dy * v * g) + fabs(dm * unit) : dy * v * g + dm * unit);
            of_kk[j % width] += magnitude(twin, of_scaled * v);
            of_ka[j % width] += twin ? fabs(dy * v) * (fabs(s) + 1) : dy * v * (s - 1);
        }
    }
    put_sums(&frame, y, 2 * n, of_kk, width);
    put_sums(&frame, y, 2 * n + width, of_ka, width);
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(prepare_keys_backward, prepare_keys_backward(call, twin))

const lb_op_row lb_rows_linear_attention[] = {
    {.name = "fla::fused_k_rwkv7", .args = "k! a! ka!", LB_COMPUTED_BY(update_k), .roundings = 6, .samples = "custom"},
    {.name = "fla::fused_addcmul_rwkv7",
     .args = "hidden! delta! x_r! x_w! x_k! x_v! x_a! x_g",
     LB_COMPUTED_BY(addcmul),
     .roundings = 4,
     .samples = "custom"},
    /* sums of a head are of at most a few hundred terms, in trees */
    {.name = "fla::gate_output_correction_rwkv7",
     .args = "o! r! k! r_k! v! g!",
     LB_COMPUTED_BY(gate_output),
     .roundings = 24,
     .samples = "custom"},
    {.name = "fla::kk_pre_rwkv7",
     .args = "k! a! k_k k_a head_dim",
     LB_COMPUTED_BY(prepare_keys),
     .roundings = 24,
     .samples = "custom"},
    /* gradients of weights are sums over all rows */
    {.name = "fla::fused_k_rwkv7_bwd",
     .args = "dy k! a! ka!",
     LB_COMPUTED_BY(update_k_backward),
     LB_SUMS(6, LB_TERMS(WEIGHED, 3)),
     .samples = "custom"},
    {.name = "fla::fused_addcmul_rwkv7_bwd",
     .args = "dxr dxw dxk dxv dxa dxg x_r! x_w! x_k! x_v! x_a! x_g delta! use_xg",
     LB_COMPUTED_BY(addcmul_backward),
     LB_SUMS(10, LB_TERMS(WEIGHED, 6)),
     .samples = "custom"},
    {.name = "fla::gate_output_correction_rwkv7_bwd",
     .args = "dy o! r! k! r_k! v! g!",
     LB_COMPUTED_BY(gate_output_backward),
     LB_SUMS(32, LB_TERMS(WEIGHED, 4)),
     .samples = "custom"},
    {.name = "fla::kk_pre_rwkv7_bwd",
     .args = "dk_new dneg_kk dkka k! a! k_k k_a head_dim has_dk_new has_dneg_kk has_dkka",
     LB_COMPUTED_BY(prepare_keys_backward),
     LB_SUMS(48, LB_TERMS(WEIGHED, 5)),
     .samples = "custom"},
    {NULL}};
