/* The names of attention: torch's CPU, flash, memory-efficient, cuDNN and math implementations, forward and backward.
 *
 * Each is the one computation of attention.c under its own order of arguments. What a name returns besides the output
 * and the log-sum-exps (generator states, lengths, a debug mask) is taken as recorded. */
#include "sequence/attention.h"

#define AT(n) ((n) + 1)
#define ATTENTION(DIRECTION, ID, ...)                                                                                  \
    static const lb_attention_form ID = {__VA_ARGS__};                                                                 \
    LB_WITH_TWIN(ID, lb_attention_##DIRECTION(call, &ID, twin))

ATTENTION(forward, cpu, .of_cpu = true, .query = AT(0), .dropout = AT(3), .causal = AT(4), .mask = AT(5),
          .scale = AT(6))
ATTENTION(forward, flash, .query = AT(0), .dropout = AT(3), .causal = AT(4), .scale = AT(6), .lse_plus_inf = true)
ATTENTION(forward, efficient, .query = AT(0), .mask = AT(3), .dropout = AT(5), .causal = AT(6), .scale = AT(7),
          .lse_plus_inf = true)
ATTENTION(forward, cudnn, .query = AT(0), .mask = AT(3), .dropout = AT(5), .causal = AT(6), .scale = AT(8),
          .lse_plus_inf = true)
ATTENTION(forward, overrideable, .query = AT(0), .mask = AT(3), .dropout = AT(4), .causal = AT(5), .scale = AT(7),
          .lse_plus_inf = true)
ATTENTION(forward, whole, .query = AT(0), .mask = AT(3), .dropout = AT(4), .causal = AT(5), .scale = AT(6))
ATTENTION(forward, math, .query = AT(0), .mask = AT(3), .dropout = AT(4), .causal = AT(5), .scale = AT(7),
          .weights = true, .wide = true, .added_bools = true)
ATTENTION(forward, raw_flash, .query = AT(0), .borders = AT(3), .dropout = AT(7), .causal = AT(8), .scale = AT(10),
          .left = AT(11), .right = AT(12), .refused = {AT(13), AT(14), AT(15)}, .corner = LB_BOTTOM_RIGHT,
          .tokens_first = true, .lse_plus_inf = true, .ragged_lse_by_head = true)
ATTENTION(forward, raw_efficient, .query = AT(0), .mask = AT(3), .borders = AT(4), .dropout = AT(8), .mask_type = AT(9),
          .scale = AT(11), .refused = {AT(12)}, .left = AT(13), .tokens_first = true, .lse_plus_inf = true)
ATTENTION(forward, raw_cudnn, .query = AT(0), .mask = AT(3), .borders = AT(4), .dropout = AT(9), .causal = AT(10),
          .scale = AT(12), .lse_plus_inf = true)
ATTENTION(backward, cpu_backward, .of_cpu = true, .query = AT(1), .out = AT(4), .lse = AT(5), .dropout = AT(6),
          .causal = AT(7), .mask = AT(8), .scale = AT(9))
ATTENTION(backward, flash_backward, .query = AT(1), .out = AT(4), .lse = AT(5), .dropout = AT(10), .causal = AT(11),
          .scale = AT(14), .lse_plus_inf = true)
ATTENTION(backward, efficient_backward, .query = AT(1), .mask = AT(4), .out = AT(5), .lse = AT(6), .dropout = AT(9),
          .causal = AT(11), .scale = AT(12), .lse_plus_inf = true)
ATTENTION(backward, cudnn_backward, .query = AT(1), .out = AT(4), .lse = AT(5), .mask = AT(8), .dropout = AT(13),
          .causal = AT(14), .scale = AT(15), .lse_plus_inf = true)
ATTENTION(backward, overrideable_backward, .query = AT(1), .mask = AT(4), .out = AT(6), .lse = AT(7), .dropout = AT(12),
          .causal = AT(13), .scale = AT(16), .lse_plus_inf = true)
ATTENTION(backward, raw_flash_backward, .query = AT(1), .out = AT(4), .lse = AT(5), .borders = AT(6), .dropout = AT(10),
          .causal = AT(11), .scale = AT(14), .left = AT(15), .right = AT(16), .corner = LB_BOTTOM_RIGHT,
          .tokens_first = true, .lse_plus_inf = true, .ragged_lse_by_head = true)
ATTENTION(backward, raw_efficient_backward, .query = AT(1), .mask = AT(4), .out = AT(5), .borders = AT(6),
          .lse = AT(10), .dropout = AT(11), .mask_type = AT(14), .scale = AT(16), .left = AT(18), .tokens_first = true,
          .lse_plus_inf = true)

/* Dao-AILab/flash-attention flash_attn/flash_attn_interface.py. A backward returns a sum of products that nothing
 * reads. */
ATTENTION(forward, dao, .query = AT(0), .dropout = AT(3), .scale = AT(4), .causal = AT(5), .left = AT(6),
          .right = AT(7), .cap = AT(8), .refused = {AT(9)}, .corner = LB_BOTTOM_RIGHT, .tokens_first = true,
          .lse_plus_inf = true)
ATTENTION(forward, dao_ragged, .query = AT(0), .borders = AT(3), .dropout = AT(7), .scale = AT(8), .causal = AT(9),
          .left = AT(10), .right = AT(11), .cap = AT(12), .refused = {AT(13), AT(15), AT(16), AT(17)},
          .corner = LB_BOTTOM_RIGHT, .tokens_first = true, .lse_plus_inf = true, .ragged_lse_by_head = true)
ATTENTION(backward, dao_backward, .query = AT(1), .out = AT(4), .lse = AT(5), .dropout = AT(9), .scale = AT(10),
          .causal = AT(11), .left = AT(12), .right = AT(13), .cap = AT(14), .refused = {AT(15)}, .first = 1,
          .corner = LB_BOTTOM_RIGHT, .tokens_first = true, .lse_plus_inf = true)
ATTENTION(backward, dao_ragged_backward, .query = AT(1), .out = AT(4), .lse = AT(5), .borders = AT(9),
          .dropout = AT(13), .scale = AT(14), .causal = AT(15), .left = AT(16), .right = AT(17), .cap = AT(18),
          .refused = {AT(19)}, .first = 1, .corner = LB_BOTTOM_RIGHT, .tokens_first = true, .lse_plus_inf = true,
          .ragged_lse_by_head = true)

#define NAMED(NAME, ARGS, ID, ROUNDINGS, FLAGS, TERMS, SAMPLES)                                                        \
    {.name = NAME,                                                                                                     \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(ID),                                                                                               \
     LB_SUMS(ROUNDINGS, TERMS),                                                                                        \
     .flags = LB_ROW_REDUCTION | (FLAGS),                                                                              \
     .kernels = "openblas",                                                                                            \
     .samples = SAMPLES}
#define ROW(NAME, ...) NAMED("aten::" NAME, __VA_ARGS__)
#define DOT "_scaled_dot_product_"
#define GIVEN LB_ROW_GIVEN(2, 7)
#define QKV "query! key! value! "
#define DAO(NAME, ARGS, ID, ROUNDINGS, TERMS, FLAGS)                                                                   \
    NAMED("flash_attn::_flash_attn_" NAME, ARGS, ID, ROUNDINGS, FLAGS, TERMS, "custom")
#define WINDOW "dropout_p softmax_scale causal window_size_left window_size_right softcap alibi_slopes "
#define BORDERS "cu_seqlens_q! cu_seqlens_k! max_seqlen_q max_seqlen_k "
const lb_op_row lb_rows_attention[] = {
    ROW(DOT "flash_attention_for_cpu", QKV "dropout_p is_causal attn_mask scale", cpu, 8, 0, LB_TERMS(KEYS, 0),
        "attention"),
    ROW(DOT "flash_attention", QKV "dropout_p is_causal return_debug_mask scale", flash, 8, GIVEN, LB_TERMS(KEYS, 0),
        "attention flash"),
    ROW(DOT "efficient_attention", QKV "attn_bias compute_log_sumexp dropout_p is_causal scale", efficient, 8, GIVEN,
        LB_TERMS(KEYS, 0), "attention efficient"),
    ROW(DOT "cudnn_attention", QKV "attn_bias compute_log_sumexp dropout_p is_causal return_debug_mask scale", cudnn, 8,
        GIVEN, LB_TERMS(KEYS, 0), "attention cudnn"),
    ROW(DOT "fused_attention_overrideable", QKV "attn_bias dropout_p is_causal return_debug_mask scale", overrideable,
        8, GIVEN, LB_TERMS(KEYS, 0), "attention overrideable"),
    ROW("scaled_dot_product_attention", QKV "attn_mask dropout_p is_causal scale enable_gqa", whole, 8, 0,
        LB_TERMS(KEYS, 0), "attention whole"),
    ROW(DOT "attention_math", QKV "attn_mask dropout_p is_causal dropout_mask scale enable_gqa", math, 12, 0,
        LB_TERMS(KEYS, 0), "attention whole"),
    ROW("_flash_attention_forward",
        QKV "cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask scale "
            "window_size_left window_size_right seqused_k alibi_slopes block_table num_splits",
        raw_flash, 8, GIVEN, LB_TERMS(TOKENS, 0), "raw_attention flash"),
    ROW("_efficient_attention_forward",
        QKV "bias cu_seqlens_q cu_seqlens_k max_seqlen_q "
            "max_seqlen_k dropout_p custom_mask_type "
            "compute_log_sumexp scale seqlen_k window_size",
        raw_efficient, 8, GIVEN, LB_TERMS(TOKENS, 0), "raw_attention efficient"),
    ROW("_cudnn_attention_forward",
        QKV "attn_bias cum_seq_q cum_seq_k max_q max_k compute_log_sumexp dropout_p is_causal "
            "return_debug_mask scale",
        raw_cudnn, 8, GIVEN, LB_TERMS(TOKENS, 0), "raw_attention cudnn"),
    ROW(DOT "flash_attention_for_cpu_backward", "grad_out! " QKV "out! logsumexp! dropout_p is_causal attn_mask scale",
        cpu_backward, 10, 0, LB_TERMS(KEYS, 1), "attention_backward"),
    ROW(DOT "flash_attention_backward",
        "grad_out! " QKV "out! logsumexp! cum_seq_q cum_seq_k max_q max_k dropout_p is_causal "
        "philox_seed philox_offset scale",
        flash_backward, 10, 0, LB_TERMS(KEYS, 1), "attention_backward flash"),
    ROW(DOT "efficient_attention_backward",
        "grad_out_! " QKV "attn_bias out! logsumexp! philox_seed philox_offset dropout_p "
        "grad_input_mask is_causal scale",
        efficient_backward, 10, 0, LB_TERMS(KEYS, 1), "attention_backward efficient"),
    ROW(DOT "cudnn_attention_backward",
        "grad_out! " QKV "out! logsumexp! philox_seed philox_offset "
        "attn_bias cum_seq_q cum_seq_k "
        "max_q max_k dropout_p is_causal scale",
        cudnn_backward, 10, 0, LB_TERMS(KEYS, 1), "attention_backward cudnn"),
    ROW(DOT "fused_attention_overrideable_backward",
        "grad_out! " QKV "attn_bias grad_input_mask out! logsumexp! cum_seq_q cum_seq_k "
        "max_q max_k dropout_p is_causal philox_seed philox_offset scale",
        overrideable_backward, 10, 0, LB_TERMS(KEYS, 1), "attention_backward overrideable"),
    ROW("_flash_attention_backward",
        "grad_out! " QKV "out! logsumexp! cum_seq_q cum_seq_k max_q max_k dropout_p is_causal rng_state "
        "unused scale window_size_left window_size_right",
        raw_flash_backward, 10, 0, LB_TERMS(TOKENS, 1), "raw_attention_backward flash"),
    ROW("_efficient_attention_backward",
        "grad_out_! " QKV "bias out! cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k logsumexp! "
        "dropout_p philox_seed philox_offset custom_mask_type bias_requires_grad "
        "scale num_splits_key window_size "
        "shared_storage_dqdkdv",
        raw_efficient_backward, 10, 0, LB_TERMS(TOKENS, 1), "raw_attention_backward efficient"),
    ROW("_cudnn_attention_backward",
        "grad_out! " QKV "out! logsumexp! philox_seed philox_offset attn_bias "
        "cum_seq_q cum_seq_k "
        "max_q max_k dropout_p is_causal scale",
        cudnn_backward, 10, 0, LB_TERMS(TOKENS, 1), "attention_backward cudnn"),
    DAO("forward", QKV WINDOW "return_softmax", dao, 8, LB_TERMS(TOKENS, 0), LB_ROW_GIVEN(2, 2)),
    DAO("varlen_forward", QKV BORDERS WINDOW "return_softmax block_table leftpad_k seqused_k zero_tensors", dao_ragged,
        8, LB_TERMS(TOKENS, 0), LB_ROW_GIVEN(2, 2)),
    DAO("backward", "dout! " QKV "out! softmax_lse! dq dk dv " WINDOW "deterministic rng_state", dao_backward, 10,
        LB_TERMS(TOKENS, 1), LB_ROW_WRITES | LB_ROW_GIVEN(0, 1)),
    DAO("varlen_backward",
        "dout! " QKV "out! softmax_lse! dq dk dv " BORDERS WINDOW "deterministic rng_state zero_tensors",
        dao_ragged_backward, 10, LB_TERMS(TOKENS, 1), LB_ROW_WRITES | LB_ROW_GIVEN(0, 1)),
    {NULL},
};
