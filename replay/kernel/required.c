/* Which args of a row are tensors that must be there: see required.h.
 *
 * It follows from an arg's name and the row's: torch's schemas call the same thing by the same name, and where one name stands for a
 * tensor here and for a number or an optional tensor there, the table says in which rows. A test compares it with torch's schemas.
 * Tensors that a schema demands and autograd leaves undefined nevertheless (the states of random generators, sequence lengths, the bias
 * of an attention's backward) are not listed: kernels take them as optional. */
#include "required.h"

#include <string.h>

typedef enum presence { REQUIRED, REQUIRED_LIST, OPTIONAL_LIST } presence;

/* `rows` without "aten::", one '*' each at most; NULL: everywhere. `except`: everywhere but there. */
static const struct rule {
    const char *arg;
    presence presence;
    bool except;
    const char *rows;
} rules[] = {
    {"self", REQUIRED_LIST, false, "_amp_foreach_non_finite_check_and_unscale_ _fused_ad* _fused_sgd_"},
    {"self", REQUIRED, true, "pow.Scalar remainder.Scalar_Tensor xlogy.Scalar_Self"},
    {"other", REQUIRED, true, "*.Scalar *.Scalar_mode *.Tensor_Scalar *.Scalar_Other"},
    {"weight", REQUIRED, false,
     "*conv* *embedding* *prelu* linear batch_norm_backward cudnn_batch_norm* lerp.Tensor _C::* sgl_kernel::* "
     "flashinfer::* "
     "trtllm::* tex_ts::* DaoAILab::*"},
    {"value", REQUIRED, false, "*attention* flash_attn::* fill.Tensor masked_fill.Tensor"},
    {"end", REQUIRED, false, "lerp.*"},
    {"v", REQUIRED, false, "_weight_norm_interface"},
    {"g", REQUIRED, false, "_weight_norm_interface"},
    {"grad_w", REQUIRED, false, "_weight_norm_interface_backward"},
    {"saved_v", REQUIRED, false, "_weight_norm_interface_backward"},
    {"saved_g", REQUIRED, false, "_weight_norm_interface_backward"},
    {"saved_norms", REQUIRED, false, "_weight_norm_interface_backward"},
    {"exponent", REQUIRED, true, "*.Tensor_Scalar"},
    {"found_inf", REQUIRED, false, "_amp_*"},
    {"grad_output", REQUIRED, true, "mkldnn_rnn_layer_backward"},
    {"index", REQUIRED, true, "select_*"},
    {"key", REQUIRED, true, "*rotary_embedding *apply_rope*"},
    {"scale", REQUIRED, false, "_C::static_scaled_*"},
    {"indices", REQUIRED, false, "*embedding* *pool*"},
    {"indices", OPTIONAL_LIST, false, "*index*"},
    {"max", REQUIRED, false, "clamp_max.Tensor"},
    {"min", REQUIRED, false, "clamp_min.Tensor"},
    {"repeats", REQUIRED, false, "repeat_interleave.Tensor"},
    {"running_mean", REQUIRED, false,
     "_batch_norm_with_update* _native_batch_norm_legit _native_batch_norm_legit_functional "
     "_native_batch_norm_legit_no_training"},
    {"running_var", REQUIRED, false,
     "_batch_norm_with_update* _native_batch_norm_legit _native_batch_norm_legit_functional "
     "_native_batch_norm_legit_no_training"},
    {"A", REQUIRED, false, "custom_ops::*"},
    {"C", REQUIRED, false, "custom_ops::*"},
};

/* Names that mean one thing in every row. */
static const char required[] = " B abs angle bag_size batch1 batch2 boundaries buffer condition cx_ cx_tmp cy_ "
                               "elements grad grad_out grad_out_ growth_tracker hx_ hy_ imag "
                               "input inv_scale logsumexp mask mat mat1 mat2 maximum_indices mean "
                               "offset2bag offsets out output query real rstd scale_a scale_b "
                               "self_or_result sorted_sequence source src target tensor tensor1 tensor2 "
                               "test_elements total_weight values vec weight0 weight1 weight2 "
                               "weight3 weight4 ";
static const char required_of_custom_ops[] =
    " a all_gather_output conv_state cos_sin_cache delta dout g gating_output hidden k ka o positions "
    "prefix_lse prefix_output r r_k residual "
    "a_scales b b_scales cu_seqlens_k cu_seqlens_q mat_a mat_b q s_a s_b scales_a scales_b softmax_lse suffix_lse suffix_output topk_indices topk_weights u v v_a v_b x x_a x_k x_r x_v x_w ";
static const char required_lists[] = " exp_avg_sqs exp_avgs grads state_steps state_sums tensors ",
                  optional_lists[] = " max_exp_avg_sqs momentum_buffer_list list ";

static bool is_in(const char *names, const char *name, size_t length)
{
    for (const char *p = names; (p = strchr(p, ' ')) != NULL; p++)
        if (!strncmp(p + 1, name, length) && p[1 + length] == ' ') return true;
    return false;
}

static bool matches(const char *pattern, size_t length, const char *name)
{
    const char *star = memchr(pattern, '*', length),
               *second = star ? memchr(star + 1, '*', length - (size_t)(star - pattern) - 1) : NULL;
    const size_t n = strlen(name);
    if (!star) return n == length && !memcmp(pattern, name, length);
    if (second) { /* *part* */
        const size_t part = (size_t)(second - star - 1);
        for (size_t i = 0; i + part <= n; i++)
            if (!memcmp(name + i, star + 1, part)) return true;
        return false;
    }
    const size_t before = (size_t)(star - pattern), after = length - before - 1;
    return n >= before + after && !memcmp(pattern, name, before) && !memcmp(star + 1, name + n - after, after);
}

static bool is_listed(const char *rows, const char *row)
{
    for (const char *p = rows; p && *p; p += strcspn(p, " "), p += *p == ' ')
        if (matches(p, strcspn(p, " "), row)) return true;
    return !rows;
}

/* False: nothing is known of it; it may be anything. */
static bool presence_of(const char *row, const char *arg, size_t length, presence *presence)
{
    if (!strncmp(row, "fused::", 7)) return false; /* made by a pass */
    const bool custom = strncmp(row, "aten::", 6) != 0;
    if (!custom) row += 6;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const struct rule *r = &rules[i];
        if (strncmp(r->arg, arg, length) || r->arg[length] || is_listed(r->rows, row) == r->except) continue;
        *presence = r->presence;
        return true;
    }
    *presence = is_in(required, arg, length) || (custom && is_in(required_of_custom_ops, arg, length))
                    ? REQUIRED
                : is_in(required_lists, arg, length) ? REQUIRED_LIST
                                                     : OPTIONAL_LIST;
    return *presence != OPTIONAL_LIST || is_in(optional_lists, arg, length);
}

static bool all_there(const lb_operand *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (!list->tensors[i].data) return false;
    return true;
}

/* What the recorder writes for a tensor that it can say nothing about. */
static bool stands_for_tensor(const lb_operand *arg)
{
    return arg->tag == LB_OPERAND_STRING && arg->string && !strncmp(arg->string, "tensor ", 7);
}

/* NULL: as it should be. */
static const char *wrong_with(const lb_call *call, const lb_operand *arg, bool known, presence presence)
{
    if (stands_for_tensor(arg)) return "was recorded without its bytes";
    const bool lists = known && presence != REQUIRED;
    if (arg->tag == LB_OPERAND_TENSORS && !lists && strncmp(call->row->name, "fused::", 7))
        return "is a sparse tensor, of which its parts were recorded";
    if (!known || presence == OPTIONAL_LIST) return NULL;
    if (presence == REQUIRED_LIST) {
        const bool empty = arg->tag == LB_OPERAND_NUMBERS && !arg->count;
        return empty || (arg->tag == LB_OPERAND_TENSORS && all_there(arg)) ? NULL
                                                                           : "is no list of dense tensors";
    }
    /* torch hands Python's numbers on where a tensor may stand for one. */
    const bool number =
        arg->tag == LB_OPERAND_INT || arg->tag == LB_OPERAND_FLOAT || arg->tag == LB_OPERAND_BOOL;
    if (arg->tag == LB_OPERAND_TENSOR || (number && call->row->flags & LB_ROW_ELEMENTWISE)) return NULL;
    return arg->tag == LB_OPERAND_NONE ? "is missing" : "is no tensor";
}

lb_status lb_call_complete(const lb_call *call)
{
    static const lb_operand none = {.tag = LB_OPERAND_NONE};
    uint32_t i = 0;
    if (!call->n_results && !(call->row->flags & LB_ROW_HOST))
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: no dense result was recorded", call->row->name);
    for (const char *p = call->row->args; p && *p; p += strcspn(p, " "), p += *p == ' ', i++) {
        const size_t length = strcspn(p, " ");
        presence presence = OPTIONAL_LIST;
        const bool known = presence_of(call->row->name, p, length, &presence);
        const char *wrong = wrong_with(call, i < call->n_args ? &call->args[i] : &none, known, presence);
        if (wrong)
            return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: its argument %.*s %s", call->row->name,
                           (int)length, p, wrong);
    }
    return LB_OK;
}
