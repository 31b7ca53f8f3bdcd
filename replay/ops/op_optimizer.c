/* Optimizer arithmetic: lerp, addcmul, addcdiv and the fused Adam, AdamW, SGD and Adagrad steps.
 *
 * The order of operations and the fused multiply-adds are those of torch's vectorised CPU kernels
 * (aten/src/ATen/native/cpu/ {Lerp,PointwiseOps,FusedAdam,FusedSGD,FusedAdagrad}Kernel.cpp), found by comparing bits.
 * Hyper-parameters are Python doubles, combined in f64 and rounded to the compute type where the tensors meet them.
 *
 * The fused ops take lists. Per tensor they are one elementwise loop over (param, grad, state …) with as many
 * results. */
#include "functions/elementary.h"
#include "kernel/pointwise.h"

#include <lastbit/dtype.h>
#include <math.h>
#include <string.h>

/* lerp: a + w (b − a) from the nearer end. */
#define SMALL(w) (LB_ABS(w) < (T)0.5)
#define LERP(a, b, w) LB_FMA(SMALL(w) ? (w) : (w) - 1, (b) - (a), SMALL(w) ? (a) : (b))
#define LERP_TWIN(a, b, w) (LB_ABS(SMALL(w) ? (a) : (b)) + LB_ABS(SMALL(w) ? (w) : (w) - 1) * (LB_ABS(a) + LB_ABS(b)))
/* torch fuses in f32 and f64 but not in its 16-bit loops. */
#define FUSES (l->common == LB_F32 || l->common == LB_F64)
#define ADDCMUL(a, b, c, v) (FUSES ? LB_FMA((v) * (b), c, a) : (a) + (v) * (b) * (c))

/* What the first product or quotient loses when it underflows, magnified by the other factor. */
#define UNDERFLOWN ((l->common == LB_F64 ? 0x1p-1021 : 0x1p-125) + l->grain)
/* clang-format off */
LB_POINTWISE_FT(lerp, "xxs", 0, LERP(a[i], b[i], s0),
    LB_UNLESS_STEP_OVERFLOWS(2 * (LB_ABS(a[i]) + LB_ABS(b[i])) * (1 + LB_ABS(s0)), LERP_TWIN(a[i], b[i], s0)))
LB_POINTWISE_FT(lerp_tensor, "xxx", 0, LERP(a[i], b[i], c[i]),
    LB_UNLESS_STEP_OVERFLOWS(2 * (LB_ABS(a[i]) + LB_ABS(b[i])) * (1 + LB_ABS(c[i])), LERP_TWIN(a[i], b[i], c[i]) * (1 + l->coarse / 4)))
LB_POINTWISE_FIT(addcmul, "xxx1", 0, ADDCMUL(a[i], b[i], c[i], s0), LB_WADD(a[i], LB_WMUL(s0, LB_WMUL(b[i], c[i]))),
    LB_UNLESS_STEP_OVERFLOWS(2 * (LB_ABS(b[i] * c[i]) + LB_ABS(s0 * b[i])),
        LB_ABS(a[i]) + LB_ABS(s0 * b[i] * c[i]) * (1 + l->coarse / 4) + UNDERFLOWN * (LB_ABS(c[i]) + LB_ABS(s0))))
LB_POINTWISE_FT(addcdiv, "xxx1", 0, a[i] + s0 * b[i] / c[i],
    LB_UNLESS_STEP_OVERFLOWS(2 * (LB_ABS(b[i] / c[i]) + LB_ABS(s0 * b[i])),
        LB_ABS(a[i]) + LB_ABS(s0 * b[i] / c[i]) * (1 + l->coarse / 4) + UNDERFLOWN * (1 / LB_ABS(c[i]) + LB_ABS(s0))))
/* clang-format on */

/* ---- Adam and AdamW ---------------------------------------------------------------------------------------------- */

enum {
    WEIGHT_DECAY,
    BETA1_REST,
    BETA2,
    BETA2_REST,
    STEP_SIZE,
    CORRECTION2_SQRT,
    EPS,
    SIGN,
    GRAD_SCALE,
    DECAY_FACTOR,
    AMSGRAD,
    NARROW_BETAS
};

/* in: param grad exp_avg exp_avg_sq max_exp_avg_sq (last: absent = zeros); out in the same order. */
#define ADAM(NAME, TYPE, DECOUPLED)                                                                                    \
    LB_INLINE void NAME##_body(const lb_lanes *l)                                                                      \
    {                                                                                                                  \
        typedef TYPE T;                                                                                                \
        const T *params = l->in[0], *grads = l->in[1], *avgs = l->in[2], *squares = l->in[3], *maxima = l->in[4];      \
        T *new_params = l->out[0], *new_grads = l->out[1], *new_avgs = l->out[2], *new_squares = l->out[3],            \
          *new_maxima = l->out[4];                                                                                     \
        const T decay = (T)l->s[WEIGHT_DECAY], rest1 = (T)l->s[BETA1_REST], beta2 = (T)l->s[BETA2],                    \
                rest2 = (T)l->s[BETA2_REST], step = (T) - l->s[STEP_SIZE], correction = (T)l->s[CORRECTION2_SQRT],     \
                eps = (T)l->s[EPS], sign = (T)l->s[SIGN], scale = (T)l->s[GRAD_SCALE], factor = (T)l->s[DECAY_FACTOR]; \
        const bool scaled = l->given_s[GRAD_SCALE], amsgrad = l->i[AMSGRAD] != 0;                                      \
        const size_t n = l->n;                                                                                         \
        LB_INDEPENDENT                                                                                                 \
        for (size_t i = 0; i < n; i++) {                                                                               \
            T param = params[i], grad = grads[i], avg = avgs[i], square = squares[i], largest = maxima[i];             \
            grad = scaled ? grad / scale : grad;                                                                       \
            const T kept = grad;                                                                                       \
            grad = grad * sign;                                                                                        \
            if (DECOUPLED)                                                                                             \
                param = param * factor;                                                                                \
            else                                                                                                       \
                grad = decay != 0 ? LB_FMA(param, decay, grad) : grad;                                                 \
            avg = LERP(avg, grad, rest1);                                                                              \
            square = LB_FMA(rest2 * grad, grad, square * beta2);                                                       \
            largest = largest != largest || largest > square ? largest : square;                                       \
            const T denominator = LB_SQRT(amsgrad ? largest : square) / correction + eps;                              \
            new_params[i] = param + step * avg / denominator;                                                          \
            new_grads[i] = kept;                                                                                       \
            new_avgs[i] = avg;                                                                                         \
            new_squares[i] = square;                                                                                   \
            new_maxima[i] = largest;                                                                                   \
        }                                                                                                              \
    }                                                                                                                  \
    LB_PER_ISA(NAME, NAME##_body, (const lb_lanes *l), (l))
ADAM(adam_f32, float, false)
ADAM(adam_f64, double, false)
ADAM(adamw_f32, float, true)
ADAM(adamw_f64, double, true)

/* On CUDA the betas are numbers of the compute type (torch's fused_adam_utils.cuh): 1 - beta is off by a rounding of
 * beta, of which the twin has a gradient's whole size, and the corrections of the bias, 1 - beta^step, are off by those
 * of the power. What that is for a relative error of the update; 0: the betas are f64, as on a CPU. */
static double narrow_betas(const lb_call *call, double beta1, double beta2, double step)
{
    const double power1 = lb_pow(beta1, step), power2 = lb_pow(beta2, step);
    if (!call->cuda) return 0;
    return 1 + (step + 4) * (power1 / (1 - power1) + 0.5 * power2 / (1 - power2));
}

/* Sums of absolute terms; the relative error of exp_avg_sq carries over to the update through the denominator. */
static void adam_twin_loop(const lb_lanes *l)
{
    const double *params = l->in[0], *grads = l->in[1], *avgs = l->in[2], *squares = l->in[3], *maxima = l->in[4];
    double *out_param = l->out[0], *out_grad = l->out[1], *out_avg = l->out[2], *out_square = l->out[3],
           *out_max = l->out[4];
    const double rest1 = l->s[BETA1_REST], beta2 = l->s[BETA2], rest2 = l->s[BETA2_REST];
    for (size_t i = 0; i < l->n; i++) {
        const double grad0 = l->given_s[GRAD_SCALE] ? grads[i] / l->s[GRAD_SCALE] : grads[i];
        const double grad = grad0 * l->s[SIGN] + l->s[WEIGHT_DECAY] * params[i];
        const double size = fabs(grad0) + fabs(l->s[WEIGHT_DECAY] * params[i]);
        const double spread = l->s[NARROW_BETAS], whole = spread > 0 ? 1 : 0;
        const double avg = (1 - fabs(rest1)) * fabs(avgs[i]) + (fabs(rest1) + whole) * size + fabs(avgs[i]);
        const double square = beta2 * squares[i] + rest2 * grad * grad,
                     terms = beta2 * squares[i] + (rest2 + whole) * size * size;
        const double largest = fmax(maxima[i], square), used = l->i[AMSGRAD] ? largest : square;
        const double denominator = sqrt(used) / l->s[CORRECTION2_SQRT] + l->s[EPS];
        out_param[i] = fabs(params[i]) * (1 + fabs(l->s[DECAY_FACTOR])) +
                       fabs(l->s[STEP_SIZE]) * avg / denominator * (1 + spread + (used > 0 ? terms / used : 1));
        out_grad[i] = fabs(grad0);
        out_avg[i] = avg;
        out_square[i] = 2 * terms;
        out_max[i] = 2 * fmax(maxima[i], terms);
    }
}

#define FUSED_PATTERN "xxxxxnnnnnnnnnnnn"
static const lb_pointwise adam_op = {FUSED_PATTERN, adam_f32, adam_f64, NULL, adam_twin_loop, 0};
static const lb_pointwise adamw_op = {FUSED_PATTERN, adamw_f32, adamw_f64, NULL, adam_twin_loop, 0};

/* ---- SGD --------------------------------------------------------------------------------------------------------- */

enum { SGD_DECAY, SGD_MOMENTUM, SGD_LR, SGD_DAMPENING_REST, SGD_NESTEROV, SGD_SIGN, SGD_FIRST, SGD_SCALE };

/* in: param grad momentum_buffer; out in the same order. */
#define SGD(NAME, TYPE)                                                                                                \
    LB_INLINE void NAME##_body(const lb_lanes *l)                                                                      \
    {                                                                                                                  \
        typedef TYPE T;                                                                                                \
        const T *params = l->in[0], *grads = l->in[1], *buffers = l->in[2];                                            \
        T *new_params = l->out[0], *new_grads = l->out[1], *new_buffers = l->out[2];                                   \
        const T decay = (T)l->s[SGD_DECAY], momentum = (T)l->s[SGD_MOMENTUM], lr = (T) - l->s[SGD_LR],                 \
                rest = (T)l->s[SGD_DAMPENING_REST], sign = (T)l->s[SGD_SIGN], scale = (T)l->s[SGD_SCALE];              \
        const bool scaled = l->given_s[SGD_SCALE], first = l->i[SGD_FIRST] != 0, nesterov = l->i[SGD_NESTEROV] != 0;   \
        const size_t n = l->n;                                                                                         \
        LB_INDEPENDENT                                                                                                 \
        for (size_t i = 0; i < n; i++) {                                                                               \
            const T param = params[i], old = buffers[i];                                                               \
            T grad = grads[i];                                                                                         \
            grad = scaled ? grad / scale : grad;                                                                       \
            const T kept = grad;                                                                                       \
            grad = grad * sign;                                                                                        \
            grad = decay != 0 ? LB_FMA(param, decay, grad) : grad;                                                     \
            const T buffer = first ? grad : LB_FMA(grad, rest, old * momentum);                                        \
            const T update = momentum == 0 ? grad : nesterov ? LB_FMA(buffer, momentum, grad) : buffer;                \
            new_params[i] = LB_FMA(update, lr, param);                                                                 \
            new_grads[i] = kept;                                                                                       \
            new_buffers[i] = buffer;                                                                                   \
        }                                                                                                              \
    }                                                                                                                  \
    LB_PER_ISA(NAME, NAME##_body, (const lb_lanes *l), (l))
SGD(sgd_f32, float)
SGD(sgd_f64, double)

static void sgd_twin_loop(const lb_lanes *l)
{
    const double *params = l->in[0], *grads = l->in[1], *buffers = l->in[2];
    double *out_param = l->out[0], *out_grad = l->out[1], *out_buffer = l->out[2];
    const double momentum = fabs(l->s[SGD_MOMENTUM]);
    for (size_t i = 0; i < l->n; i++) {
        const double grad0 = fabs(l->given_s[SGD_SCALE] ? grads[i] / l->s[SGD_SCALE] : grads[i]);
        const double grad = grad0 + fabs(l->s[SGD_DECAY] * params[i]);
        const double buffer =
            l->i[SGD_FIRST] ? grad : momentum * fabs(buffers[i]) + grad * fabs(l->s[SGD_DAMPENING_REST]);
        out_param[i] =
            fabs(params[i]) + fabs(l->s[SGD_LR]) * (momentum == 0 ? grad : grad + buffer + momentum * buffer);
        out_grad[i] = grad0;
        out_buffer[i] = buffer;
    }
}
static const lb_pointwise sgd_op = {"xxxnnnnnnnn", sgd_f32, sgd_f64, NULL, sgd_twin_loop, 0};

/* ---- lists ------------------------------------------------------------------------------------------------------- */

typedef lb_status (*fused_runner)(lb_call *call, const lb_pointwise *op);

static lb_operand number_operand(double value)
{
    const lb_operand operand = {.tag = LB_OPERAND_FLOAT, .f = value, .i = value != 0};
    return operand;
}
/* Element k of a list, or None. */
static lb_operand element(const lb_operand *list, uint32_t k)
{
    lb_operand operand = {.tag = LB_OPERAND_NONE};
    if (list->tag == LB_OPERAND_TENSORS && k < list->count && list->tensors[k].data) {
        operand.tag = LB_OPERAND_TENSOR;
        operand.tensor = list->tensors[k];
    }
    return operand;
}
static uint32_t length(const lb_operand *list)
{
    return list->tag == LB_OPERAND_TENSORS ? list->count : 0;
}

/* A scaler that found an infinity: the step changes nothing, results are the old contents and the twin is 0. */
static lb_status skip_step(lb_call *call, const lb_operand *lists, uint32_t n_lists, bool twin)
{
    const lb_operand zero = {.tag = LB_OPERAND_FLOAT};
    uint32_t at = 0;
    for (uint32_t k = 0; k < n_lists; k++)
        for (uint32_t t = 0; t < length(&lists[k]); t++, at++) {
            if (at >= call->n_results || !call->results[at].data) continue;
            if (twin)
                LB_TRY(lb_pointwise_fill(call, &call->results[at], &zero));
            else if (call->results[at].data != lists[k].tensors[t].data)
                LB_TRY(lb_pointwise_copy(call, &call->results[at], &lists[k].tensors[t]));
        }
    return LB_OK;
}

/* What a fused optimizer runs for each tensor of its lists; `scalars` follow the tensors in the pattern. */
typedef struct fused_step {
    const lb_pointwise *op;
    fused_runner run;
    uint32_t n_lists, n_scalars;
    const lb_operand *scalars;
    bool grads_change;
} fused_step;

static lb_status run_element(lb_call *call, const fused_step *fused_step, uint32_t t)
{
    const uint32_t n_lists = fused_step->n_lists;
    lb_operand args[LB_LANES_INPUTS + LB_LANES_SCALARS];
    lb_tensor results[LB_LANES_OUTPUTS];
    memset(results, 0, sizeof results);
    const lb_operand zero = {.tag = LB_OPERAND_FLOAT};
    uint32_t first = 0;
    for (uint32_t k = 0; k < n_lists; k++) {
        const lb_operand *list = &call->args[k];
        args[k] = element(list, t);
        if (args[k].tag == LB_OPERAND_NONE)
            args[k] = zero; /* max_exp_avg_sqs without amsgrad, no momentum buffer */
        else if (first + t < call->n_results)
            results[k] = call->results[first + t];
        first += length(list);
    }
    if (!fused_step->grads_change && results[1].data == args[1].tensor.data)
        results[1].data = NULL; /* written back as it was */
    memcpy(args + n_lists, fused_step->scalars, fused_step->n_scalars * sizeof *fused_step->scalars);
    lb_call inner = *call;
    inner.args = args;
    inner.n_args = n_lists + fused_step->n_scalars;
    inner.results = results;
    inner.n_results = n_lists;
    return fused_step->run(&inner, fused_step->op);
}

/* _fused_adam_(self grads exp_avgs exp_avg_sqs max_exp_avg_sqs state_steps lr beta1 beta2 weight_decay eps amsgrad
 * maximize grad_scale found_inf) */
static lb_status fused_adam(lb_call *call, const lb_pointwise *op, fused_runner run)
{
    const lb_operand *operand = call->args;
    if (call->n_args < 15)
        return lb_fail(call->err, LB_ERR_INVALID, "%s: has %u arguments", call->row->name, call->n_args);
    if (operand[14].tag == LB_OPERAND_TENSOR && lb_operand_number(&operand[14]) == 1)
        return skip_step(call, operand, 5, run == lb_pointwise_twin);
    const double lr = lb_operand_number(&operand[6]), beta1 = operand[7].f, beta2 = operand[8].f, decay = operand[9].f;
    const bool scaled = operand[13].tag == LB_OPERAND_TENSOR, decoupled = op == &adamw_op;
    for (uint32_t t = 0; t < length(&operand[0]); t++) {
        const lb_operand step_tensor = element(&operand[5], t);
        const double step = lb_operand_number(&step_tensor);
        lb_operand s[12];
        s[WEIGHT_DECAY] = number_operand(decoupled ? 0 : decay);
        s[BETA1_REST] = number_operand(1 - beta1);
        s[BETA2] = number_operand(beta2);
        s[BETA2_REST] = number_operand(1 - beta2);
        s[STEP_SIZE] = number_operand(lr / (1 - lb_pow(beta1, step)));
        s[CORRECTION2_SQRT] = number_operand(sqrt(1 - lb_pow(beta2, step)));
        s[EPS] = operand[10];
        s[AMSGRAD] = number_operand(operand[11].i != 0);
        s[SIGN] = number_operand(operand[12].i ? -1 : 1);
        s[GRAD_SCALE] = number_operand(scaled ? lb_operand_number(&operand[13]) : 1);
        if (!scaled) s[GRAD_SCALE].tag = LB_OPERAND_NONE;
        s[DECAY_FACTOR] = number_operand(decoupled && decay != 0 ? 1 - lr * decay : 1);
        s[NARROW_BETAS] = number_operand(narrow_betas(call, beta1, beta2, step));
        LB_TRY(run_element(call, &(fused_step){op, run, 5, 12, s, scaled}, t));
    }
    return LB_OK;
}

/* _fused_sgd_(self grads momentum_buffer_list weight_decay momentum lr dampening nesterov maximize is_first_step
 * grad_scale found_inf) */
static lb_status fused_sgd(lb_call *call, const lb_pointwise *op, fused_runner run)
{
    const lb_operand *operand = call->args;
    if (call->n_args < 12)
        return lb_fail(call->err, LB_ERR_INVALID, "%s: has %u arguments", call->row->name, call->n_args);
    /* torch 2.13 on the CPU does not store 16-bit parameters (all but the last few elements stay as they were). */
    if (length(&operand[0]) && lb_dtype_bits(operand[0].tensors[0].dtype) < 32)
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: 16-bit parameters", call->row->name);
    if (operand[11].tag == LB_OPERAND_TENSOR && lb_operand_number(&operand[11]) == 1)
        return skip_step(call, operand, 3, run == lb_pointwise_twin);
    const bool scaled = operand[10].tag == LB_OPERAND_TENSOR;
    lb_operand s[8];
    s[SGD_DECAY] = operand[3];
    s[SGD_MOMENTUM] = operand[4];
    s[SGD_LR] = number_operand(lb_operand_number(&operand[5]));
    s[SGD_DAMPENING_REST] = number_operand(1 - operand[6].f);
    s[SGD_NESTEROV] = number_operand(operand[7].i != 0);
    s[SGD_SIGN] = number_operand(operand[8].i ? -1 : 1);
    s[SGD_FIRST] = number_operand(operand[9].i != 0);
    s[SGD_SCALE] = number_operand(scaled ? lb_operand_number(&operand[10]) : 1);
    if (!scaled) s[SGD_SCALE].tag = LB_OPERAND_NONE;
    const fused_step each = {op, run, 3, 8, s, scaled};
    for (uint32_t t = 0; t < length(&operand[0]); t++) LB_TRY(run_element(call, &each, t));
    return LB_OK;
}

LB_WITH_TWIN(adam, fused_adam(call, &adam_op, twin ? lb_pointwise_twin : lb_pointwise_run))
LB_WITH_TWIN(adamw, fused_adam(call, &adamw_op, twin ? lb_pointwise_twin : lb_pointwise_run))
LB_WITH_TWIN(sgd, fused_sgd(call, &sgd_op, twin ? lb_pointwise_twin : lb_pointwise_run))

#define ADAM_ARGS                                                                                                      \
    "self[] grads[] exp_avgs[] exp_avg_sqs[] max_exp_avg_sqs?[] state_steps[] lr beta1 beta2 weight_decay eps "        \
    "amsgrad maximize "                                                                                                \
    "grad_scale found_inf"
#define SGD_ARGS                                                                                                       \
    "self[] grads[] momentum_buffer_list?[] weight_decay momentum lr dampening nesterov maximize is_first_step "       \
    "grad_scale "                                                                                                      \
    "found_inf"
/* clang-format off */
#define FUSED(NAME, ARGS, ID, SAMPLES)                                                                       \
    {.name = "aten::" NAME, .args = ARGS, LB_COMPUTED_BY(ID), .roundings = 12,         \
     .samples = SAMPLES},

const lb_op_row lb_rows_optimizer[] = {
    {.name = "aten::lerp.Scalar", .args = "self! end! weight", LB_COMPUTED_BY(lerp), .roundings = 4,
     .flags = LB_ROW_ELEMENTWISE, .samples = "lerp scalar"},
    {.name = "aten::lerp.Tensor", .args = "self! end! weight!", LB_COMPUTED_BY(lerp_tensor), .roundings = 4,
     .flags = LB_ROW_ELEMENTWISE, .samples = "lerp"},
    {.name = "aten::addcmul", .args = "self! tensor1! tensor2! value", LB_COMPUTED_BY(addcmul), .roundings = 4,
     .flags = LB_ROW_ELEMENTWISE, .samples = "addc"},
    {.name = "aten::addcdiv", .args = "self! tensor1! tensor2! value", LB_COMPUTED_BY(addcdiv), .roundings = 4,
     .flags = LB_ROW_ELEMENTWISE, .samples = "addc float"},
    FUSED("_fused_adam_", ADAM_ARGS, adam, "fused_adam")
    FUSED("_fused_adamw_", ADAM_ARGS, adamw, "fused_adam")
    FUSED("_fused_sgd_", SGD_ARGS, sgd, "fused_sgd")
    {NULL}
};
