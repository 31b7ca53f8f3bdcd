/* The fused Adagrad step, in the order of operations of torch's vectorised CPU kernel, found by comparing bits. It
 * takes lists; per tensor it is one elementwise loop over (param, grad, sum). */
#include "kernel/pointwise.h"

#include <math.h>
#include <string.h>

static lb_operand number_operand(double value)
{
    return (lb_operand){.tag = LB_OPERAND_FLOAT, .f = value, .i = (int64_t)value};
}

enum { DECAY, STEP_SIZE, EPS, SIGN, SCALE };

/* in: param grad sum; out in the same order. */
#define ADAGRAD(NAME, TYPE)                                                                                            \
    LB_INLINE void NAME##_body(const lb_lanes *l)                                                                      \
    {                                                                                                                  \
        typedef TYPE T;                                                                                                \
        const T *params = l->in[0], *grads = l->in[1], *sums = l->in[2];                                               \
        T *new_params = l->out[0], *new_grads = l->out[1], *new_sums = l->out[2];                                      \
        const T decay = (T)l->s[DECAY], rate = (T)l->s[STEP_SIZE], eps = (T)l->s[EPS], sign = (T)l->s[SIGN],           \
                scale = (T)l->s[SCALE];                                                                                \
        const bool scaled = l->given_s[SCALE];                                                                         \
        const size_t n = l->n;                                                                                         \
        LB_INDEPENDENT                                                                                                 \
        for (size_t i = 0; i < n; i++) {                                                                               \
            const T param = params[i], kept = scaled ? grads[i] / scale : grads[i];                                    \
            T grad = kept * sign;                                                                                      \
            grad = decay != 0 ? LB_FMA(param, decay, grad) : grad;                                                     \
            const T sum = LB_FMA(grad, grad, sums[i]);                                                                 \
            new_params[i] = param - grad * rate / (LB_SQRT(sum) + eps);                                                \
            new_grads[i] = kept;                                                                                       \
            new_sums[i] = sum;                                                                                         \
        }                                                                                                              \
    }                                                                                                                  \
    LB_PER_ISA(NAME, NAME##_body, (const lb_lanes *l), (l))
ADAGRAD(adagrad_f32, float)
ADAGRAD(adagrad_f64, double)

static void adagrad_twin_loop(const lb_lanes *lanes)
{
    const double *params = lanes->in[0], *grads = lanes->in[1], *sums = lanes->in[2];
    double *out_param = lanes->out[0], *out_grad = lanes->out[1], *out_sum = lanes->out[2];
    for (size_t i = 0; i < lanes->n; i++) {
        const double kept = fabs(lanes->given_s[SCALE] ? grads[i] / lanes->s[SCALE] : grads[i]);
        const double size = kept + fabs(lanes->s[DECAY] * params[i]);
        const double grad = (lanes->given_s[SCALE] ? grads[i] / lanes->s[SCALE] : grads[i]) * lanes->s[SIGN] +
                            lanes->s[DECAY] * params[i];
        const double sum = sums[i] + grad * grad, terms = fabs(sums[i]) + 3 * size * size,
                     root = sqrt(sum) + lanes->s[EPS];
        out_param[i] = fabs(params[i]) + fabs(lanes->s[STEP_SIZE]) * size / root * (2 + (sum > 0 ? terms / sum : 1));
        out_grad[i] = kept;
        out_sum[i] = terms;
    }
}
static const lb_pointwise adagrad_op = {"xxxnnnnn", adagrad_f32, adagrad_f64, NULL, adagrad_twin_loop, 0};

/* Tensor k of a list as an operand. */
static lb_operand element(const lb_operand *list, uint32_t k)
{
    if (list->tag != LB_OPERAND_TENSORS || k >= list->count || !list->tensors[k].data)
        return (lb_operand){.tag = LB_OPERAND_NONE};
    return (lb_operand){.tag = LB_OPERAND_TENSOR, .tensor = list->tensors[k]};
}

/* self grads state_sums state_steps lr lr_decay weight_decay eps maximize grad_scale found_inf */
static lb_status adagrad_run(lb_call *call, bool twin)
{
    const lb_operand *operand = call->args;
    if (call->n_args < 11 || operand[0].tag != LB_OPERAND_TENSORS)
        return lb_fail(call->err, LB_ERR_INVALID, "%s: no lists", call->row->name);
    const uint32_t n = operand[0].count;
    const bool skip = operand[10].tag == LB_OPERAND_TENSOR && lb_operand_number(&operand[10]) == 1,
               scaled = operand[9].tag == LB_OPERAND_TENSOR;
    for (uint32_t k = 0; k < n; k++) {
        const lb_operand step = element(&operand[3], k);
        lb_operand args[8] = {
            element(&operand[0], k),
            element(&operand[1], k),
            element(&operand[2], k),
            operand[6],
            number_operand(lb_operand_number(&operand[4]) / (1 + (lb_operand_number(&step) - 1) * operand[5].f)),
            operand[7],
            number_operand(operand[8].i ? -1 : 1),
            scaled ? number_operand(lb_operand_number(&operand[9])) : (lb_operand){.tag = LB_OPERAND_NONE}};
        lb_tensor results[3] = {{0}, {0}, {0}};
        for (uint32_t r = 0; r < 3; r++)
            if (r * n + k < call->n_results) results[r] = call->results[r * n + k];
        for (uint32_t r = 0; skip && r < 3; r++) { /* a scaler found an infinity: nothing changes */
            const lb_operand zero = number_operand(0);
            if (!results[r].data) continue;
            if (twin)
                LB_TRY(lb_pointwise_fill(call, &results[r], &zero));
            else if (results[r].data != args[r].tensor.data)
                LB_TRY(lb_pointwise_copy(call, &results[r], &args[r].tensor));
        }
        if (skip) continue;
        lb_call one = *call;
        one.args = args, one.n_args = 8, one.results = results, one.n_results = 3;
        LB_TRY(twin ? lb_pointwise_twin(&one, &adagrad_op) : lb_pointwise_run(&one, &adagrad_op));
    }
    for (uint32_t r = 3 * n; r < call->n_results && r < 4 * n; r++) /* the step counts, which stay */
        if (call->results[r].data && call->results[r].data != operand[3].tensors[r - 3 * n].data)
            LB_TRY(lb_pointwise_copy(call, &call->results[r], &operand[3].tensors[r - 3 * n]));
    return LB_OK;
}

LB_WITH_TWIN(adagrad, adagrad_run(call, twin))

/* clang-format off */
const lb_op_row lb_rows_adagrad[] = {
    {.name = "aten::_fused_adagrad_",
     .args = "self[] grads[] state_sums[] state_steps[] lr lr_decay weight_decay eps maximize grad_scale found_inf", LB_COMPUTED_BY(adagrad), .roundings = 12, .samples = "fused_adagrad"},
    {NULL}
};
