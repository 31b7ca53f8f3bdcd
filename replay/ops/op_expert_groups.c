/* Routers of serving stacks that choose groups of experts first, or score experts by a sigmoid: as DeepSeek-V3 does.
 *
 *      s = sigmoid(logit), or as given;  experts are chosen by s + bias, weighed by s
 *      a group counts as much as its two best experts; only those of the best groups are chosen from
 *      weights are divided by their sum where that is asked for, and multiplied with a factor
 *
 * Schemas: vllm-project/vllm csrc/moe/torch_bindings.cpp; sgl-project/sglang sgl-kernel/csrc/common_extension.cc;
 * NVIDIA/TensorRT-LLM cpp/tensorrt_llm/thop/noAuxTcOp.cpp. Definitions: csrc/moe/grouped_topk_kernels.cu,
 * sgl-kernel/csrc/moe/moe_fused_gate.cu. Scores of 16 bits are rounded in other places from version to version, which
 * changes what is chosen: f32 alone is computed. */
#include "functions/elementary.h"
#include "kernel/expert_choice.h"
#include "kernel/frame.h"

#include <math.h>

/* Where things stand in the schema, plus one; 0: nowhere. */
typedef struct group_form {
    uint8_t scores, bias, groups, chosen_groups, scoring, renormalize, factor, on_output, shared;
    bool sigmoid, renormalizes, written; /* written: results are weights, ids and slots that args hold */
    double floor;                        /* added to the sum */
} group_form;

typedef struct gate {
    lb_frame frame;
    int64_t tokens, experts, k, groups, chosen_groups;
    const void *scores, *bias;
    bool sigmoid;
} gate;

static const lb_tensor *tensor_at(const lb_call *call, uint8_t position)
{
    return position ? lb_frame_arg_tensor(call, position - 1u) : NULL;
}
static int64_t int_at(const lb_call *call, uint8_t position, int64_t otherwise)
{
    return position ? lb_frame_arg_int(call, position - 1u, otherwise) : otherwise;
}

/* s of each expert of a token, and what it is chosen by: -inf outside the best groups. */
static void score(const gate *gate, int64_t token, double *scores, double *by, double *of_group, int64_t *best)
{
    const int64_t each = gate->experts / gate->groups;
    for (int64_t e = 0; e < gate->experts; e++) {
        const double x = lb_frame_get(&gate->frame, gate->scores, token * gate->experts + e);
        scores[e] = gate->sigmoid ? lb_sigmoid(x) : x;
        if (!gate->frame.wide) scores[e] = (float)scores[e];
        by[e] = scores[e] + (gate->bias ? lb_frame_get(&gate->frame, gate->bias, e) : 0);
        if (!gate->frame.wide) by[e] = (float)by[e];
    }
    if (gate->groups == 1) return;
    for (int64_t i = 0; i < gate->groups; i++) {
        double first = -INFINITY, second = -INFINITY;
        for (int64_t e = i * each; e < (i + 1) * each; e++) {
            second = fmax(second, fmin(first, by[e]));
            first = fmax(first, by[e]);
        }
        of_group[i] = each > 1 ? first + second : first;
        if (!gate->frame.wide) of_group[i] = (float)of_group[i];
    }
    lb_first_best(of_group, gate->groups, gate->chosen_groups, best);
    for (int64_t e = 0; e < gate->experts; e++) {
        bool in = false;
        for (int64_t i = 0; i < gate->chosen_groups; i++) in |= best[i] == e / each;
        if (!in) by[e] = -INFINITY;
    }
}

static lb_status open_gate(gate *opened, lb_call *call, const group_form *group_form)
{
    const lb_tensor *in = tensor_at(call, group_form->scores), *bias = tensor_at(call, group_form->bias);
    *opened = (gate){.frame = lb_frame_begin(call)};
    if (!in || in->layout.ndim != 2 || call->n_results < 2 || (in->dtype != LB_F32 && in->dtype != LB_F64))
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: scores that are not (tokens, experts) in f32",
                       call->row->name);
    opened->tokens = in->layout.shape[0], opened->experts = in->layout.shape[1];
    opened->k = opened->tokens ? lb_tensor_numel(&call->results[0]) / opened->tokens : 0;
    if (group_form->groups && tensor_at(call, group_form->groups)) /* an older schema: biased scores stand there */
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: biased scores in place of a bias", call->row->name);
    opened->groups = int_at(call, group_form->groups, 1),
    opened->chosen_groups = int_at(call, group_form->chosen_groups, 1);
    opened->sigmoid = group_form->scoring ? int_at(call, group_form->scoring, 0) == 1 : group_form->sigmoid;
    if (opened->groups < 1 || opened->experts % opened->groups || opened->chosen_groups < 1 ||
        opened->chosen_groups > opened->groups || int_at(call, group_form->shared, 0) ||
        int_at(call, group_form->scoring, 0) > 1 ||
        opened->k > opened->experts / opened->groups * opened->chosen_groups ||
        (bias && lb_tensor_numel(bias) != opened->experts))
        return lb_fail(call->err, LB_ERR_UNSUPPORTED,
                       "%s: groups that do not divide the experts, shared experts, or other scores than a sigmoid's",
                       call->row->name);
    opened->scores = lb_frame_tensor(&opened->frame, in), opened->bias = lb_frame_tensor(&opened->frame, bias);
    return LB_OK;
}

static lb_status choose(lb_call *call, const group_form *group_form)
{
    gate gate;
    LB_TRY(open_gate(&gate, call, group_form));
    void *weights = lb_frame_output(&gate.frame, 0, gate.tokens * gate.k);
    int64_t *ids = lb_frame_output_integers(&gate.frame, 1, gate.tokens * gate.k),
            *slots = group_form->written && call->n_results > 2
                         ? lb_frame_output_integers(&gate.frame, 2, gate.tokens * gate.k)
                         : NULL;
    double *scores = lb_frame_scratch(&gate.frame, (size_t)(2 * gate.experts + gate.groups) * sizeof *scores);
    int64_t *best = lb_frame_scratch(&gate.frame, (size_t)gate.groups * sizeof *best);
    const bool divides = group_form->renormalizes || int_at(call, group_form->renormalize, 0);
    const double factor = group_form->factor && (!group_form->on_output || int_at(call, group_form->on_output, 0))
                              ? lb_frame_arg_float(call, group_form->factor - 1u, 1)
                              : 1;
    for (int64_t t = 0; lb_frame_ok(&gate.frame) && t < gate.tokens; t++) {
        double total = group_form->floor;
        score(&gate, t, scores, scores + gate.experts, scores + 2 * gate.experts, best);
        lb_first_best(scores + gate.experts, gate.experts, gate.k, ids + t * gate.k);
        for (int64_t j = 0; j < gate.k; j++) total += scores[ids[t * gate.k + j]];
        for (int64_t j = 0; j < gate.k; j++) {
            lb_frame_set(&gate.frame, weights, t * gate.k + j,
                         scores[ids[t * gate.k + j]] / (divides && total > 0 ? total : 1) * factor);
            if (slots) slots[t * gate.k + j] = j * gate.tokens + t;
        }
    }
    return lb_frame_end(&gate.frame);
}

#define AT(n) ((n) + 1)
#define ROUTER(ID, ...)                                                                                                \
    static lb_status ID(lb_call *call)                                                                                 \
    {                                                                                                                  \
        static const group_form form = {__VA_ARGS__};                                                                  \
        return choose(call, &form);                                                                                    \
    }
ROUTER(grouped, .scores = AT(0), .groups = AT(1), .chosen_groups = AT(2), .renormalize = AT(4), .factor = AT(5),
       .bias = AT(6), .scoring = AT(7), .floor = 1e-20)
ROUTER(tensorrt, .scores = AT(0), .bias = AT(1), .groups = AT(2), .chosen_groups = AT(3), .factor = AT(5),
       .sigmoid = true, .renormalizes = true, .floor = 1e-20)
ROUTER(fused_gate, .scores = AT(0), .bias = AT(1), .groups = AT(2), .chosen_groups = AT(3), .shared = AT(5),
       .factor = AT(6), .on_output = AT(7), .sigmoid = true, .renormalizes = true)
ROUTER(sigmoid, .scores = AT(3), .renormalize = AT(4), .bias = AT(5), .factor = AT(6), .sigmoid = true, .written = true)

const lb_op_row lb_rows_expert_groups[] = {
    {.name = "_moe_C::grouped_topk",
     .args = "scores n_group topk_group topk renormalize routed_scaling_factor bias scoring_func",
     .kernel = grouped,
     .roundings = 12,
     .samples = "custom"},
    {.name = "_moe_C::topk_sigmoid",
     .args = "topk_weights! topk_indices! token_expert_indices gating_output! renormalize bias routed_scaling_factor",
     .kernel = sigmoid,
     .roundings = 12,
     .flags = LB_ROW_WRITES,
     .samples = "custom"},
    {.name = "sgl_kernel::moe_fused_gate",
     .args = "input! bias num_expert_group topk_group topk num_fused_shared_experts routed_scaling_factor "
             "apply_routed_scaling_factor_on_output",
     .kernel = fused_gate,
     .roundings = 12,
     .samples = "custom"},
    {.name = "trtllm::noaux_tc_op",
     .args = "scores bias n_group topk_group topk routed_scaling_factor",
     .kernel = tensorrt,
     .roundings = 12,
     .samples = "custom"},
    {NULL},
};
