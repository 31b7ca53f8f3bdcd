"""Further models of transformers, and the language models among them as ibm-fms, torchtext and litgpt have them.

Published names are those of transformers 5, but for experts, which are named one by one."""

import re

import absent_packages
import language_models
import moved_weights
import named_weights
import ported_language_models
import torch

WORDS = dict(vocab_size=96, hidden_size=64, num_hidden_layers=3, num_attention_heads=4)
ENDS = dict(bos_token_id=0, eos_token_id=1, pad_token_id=None)
ROOT = dict(WORDS, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False, max_position_embeddings=64, use_cache=False, **ENDS)
ENCODER = dict(WORDS, intermediate_size=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, hidden_act="gelu")
STILL = dict(attention_dropout=0.0, hidden_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0)
GEMMA3_LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]

# family: class in transformers, its settings
FAMILIES = {
    "roberta": ("RobertaForMaskedLM", dict(ENCODER, max_position_embeddings=34, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1)),
    "mpnet": ("MPNetModel", dict(ENCODER, max_position_embeddings=34, layer_norm_eps=1e-12, pad_token_id=1)),
    "esm": (
        "EsmForMaskedLM",
        dict(ENCODER, vocab_size=33, intermediate_size=256, max_position_embeddings=66, pad_token_id=1, mask_token_id=32, token_dropout=True)
        | dict(position_embedding_type="rotary", emb_layer_norm_before=False, layer_norm_eps=1e-5),
    ),
    "bigcode": (
        "GPTBigCodeForCausalLM",
        dict(vocab_size=96, n_embd=64, n_layer=3, n_head=4, n_positions=64, n_inner=256, use_cache=False, **ENDS)
        | dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, activation_function="gelu_pytorch_tanh"),
    ),
    "t5": (
        "T5ForConditionalGeneration",
        dict(vocab_size=96, d_model=64, d_kv=16, d_ff=128, num_layers=3, num_heads=4, decoder_start_token_id=0, dropout_rate=0.0)
        | dict(use_cache=False, relative_attention_num_buckets=8, relative_attention_max_distance=10, tie_word_embeddings=True),
    ),
    "wav2vec2": (
        "Wav2Vec2Model",
        dict(WORDS, intermediate_size=128, conv_dim=[32] * 3, conv_kernel=[10, 3, 2], conv_stride=[5, 2, 2], num_conv_pos_embeddings=16)
        | dict(STILL, num_conv_pos_embedding_groups=4, mask_time_prob=0.0, mask_feature_prob=0.0, final_dropout=0.0),
    ),
    "encodec": (
        "EncodecModel",
        dict(num_filters=8, hidden_size=16, upsampling_ratios=[4, 2], codebook_size=32, codebook_dim=16, num_lstm_layers=1),
    ),
    "deepseek": (
        "DeepseekV3ForCausalLM",
        dict(ROOT, intermediate_size=112, moe_intermediate_size=32, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3)
        | dict(q_lora_rank=24, kv_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, first_k_dense_replace=1)
        | dict(num_key_value_heads=4, n_shared_experts=1, routed_scaling_factor=2.5, norm_topk_prob=True, head_dim=8),
    ),
    "qwen2moe": (
        "Qwen2MoeForCausalLM",
        dict(ROOT, intermediate_size=112, moe_intermediate_size=32, shared_expert_intermediate_size=48, num_experts=4, num_experts_per_tok=2),
    ),
    "gptoss": (
        "GptOssForCausalLM",
        dict(ROOT, head_dim=16, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=4)
        | dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        dict(vocab_size=96, hidden_size=64, num_hidden_layers=3, num_heads=8, head_dim=16, state_size=8, expand=2, n_groups=2, chunk_size=4)
        | dict(conv_kernel=4, use_cache=False, layer_norm_epsilon=1e-5, tie_word_embeddings=False, **ENDS),
    ),
    "falcon": (
        "FalconForCausalLM",
        dict(WORDS, bias=False, multi_query=True, parallel_attn=True, new_decoder_architecture=False, alibi=False, use_cache=False, **ENDS)
        | dict(attention_dropout=0.0, hidden_dropout=0.0, tie_word_embeddings=False),
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        dict(ROOT, intermediate_size=112, head_dim=16, rms_norm_eps=1e-6, sliding_window=4, query_pre_attn_scalar=16, layer_types=GEMMA3_LAYERS)
        | dict(rope_theta=1000000.0, rope_local_base_freq=10000.0),
    ),
    "phi3": ("Phi3ForCausalLM", dict(ROOT, intermediate_size=112, resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0, sliding_window=None)),
}


def weight(family, name, shape):
    if re.search(r"A_log|dt_bias|\.D$|sinks", name):
        drawn = named_weights.weight(name + ".weight", shape)
        if "A_log" in name:
            return drawn.abs().log() + 1.0
        return drawn - 2.0 if "dt_bias" in name else drawn
    if "token_type" in name:
        return torch.zeros(shape)
    if family == "gemma3" and len(shape) == 1:
        return named_weights.weight(name, shape, offset_norm=True)
    if len(shape) == 1 or not re.search(r"(shared|embed\w*|relative_attention_bias|wpe|wte)\.weight", name):
        return named_weights.weight(name, shape)
    return named_weights.weight("embed." + name, shape)


def config_of(family, changes, attention):
    import transformers

    kind, settings = FAMILIES[family]
    prefix = re.sub(r"(ForCausalLM|ForMaskedLM|ForConditionalGeneration|Model)$", "", kind)
    settings = {**settings, **changes}
    if family == "gemma3" and transformers.__version__.startswith("5"):
        bases = {
            name: dict(rope_type="default", rope_theta=settings.pop(key))
            for name, key in (("full_attention", "rope_theta"), ("sliding_attention", "rope_local_base_freq"))
        }
        settings["rope_parameters"] = bases
    if family == "gptoss":
        new = transformers.__version__.startswith("5")
        settings |= dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)) if new else dict(rope_scaling=None, rope_theta=10000.0)
        attention = "eager"
    config = getattr(transformers, {"Gemma3": "Gemma3Text"}.get(prefix, prefix) + "Config")(**settings)
    if family not in ("mpnet", "encodec", "mamba2", "t5"):  # which know of one attention alone
        config._attn_implementation = attention
    if torch.get_default_dtype() == torch.float64:
        config._experts_implementation = "eager"  # grouped products have no float64
    return config, getattr(transformers, kind)


def expert_names(name):
    """Of a stacked tensor of experts: which published tensors of one expert it holds."""
    parts = ("gate_proj", "up_proj") if "gate_up" in name else ("down_proj",)
    return [re.sub(r"experts\.\w+$", r"experts.{}." + part + ".weight", name) for part in parts]


def filled(family, model):
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 3 and family in ("deepseek", "qwen2moe") and ".experts." in name:
                for e in range(p.shape[0]):
                    names = expert_names(name)
                    shape = (p.shape[1] // len(names), p.shape[2])
                    p[e].copy_(torch.cat([weight(family, n.format(e), shape) for n in names]))
            elif p.dim() == 3 and "original0" in name:
                p.copy_(named_weights.weight(name + ".weight", (p.numel(),)).reshape(p.shape).abs())
            else:
                p.copy_(weight(family, name, p.shape))
        for name, b in model.named_buffers():
            if "e_score_correction_bias" in name:
                b.copy_(named_weights.weight(name, b.shape))
    return model


def build_transformers(family, changes, attention):
    config, kind = config_of(family, changes, attention)
    model = filled(family, kind(config))
    if family == "t5":
        model.scores_of = lambda tokens: model(input_ids=tokens, decoder_input_ids=tokens.flip(1)).logits
    elif family == "mpnet":
        model.scores_of = lambda tokens: (
            model(tokens, position_ids=torch.arange(2, 14)[None]).last_hidden_state @ model.embeddings.word_embeddings.weight.T
        )
        freeze(model, "pooler")
    elif family == "roberta":
        freeze(model, "token_type")  # others have no types
    return model


def freeze(model, *words):
    for name, p in model.named_parameters():
        if any(word in name for word in words):
            p.requires_grad_(False)


def published(family, attention="eager"):
    config, kind = config_of(family, {}, attention)
    return moved_weights.contents(filled(family, kind(config)), ("e_score",))


LLAMA_TO_FMS = [
    (r"^model\.embed_tokens", "base_model.embedding"),
    (r"^model\.norm", "base_model.dec_norm"),
    (r"^model\.layers", "base_model.layers"),
    (r"lm_head", "head"),
    (r"input_layernorm", "ln"),
    (r"post_attention_layernorm", "ff_ln"),
    (r"self_attn\.([qkv])_proj\.(\w+)$", lambda found: f"attn.in_proj.qkv_fused.{found[2]}#{'qkv'.index(found[1])}"),
    (r"self_attn\.o_proj", "attn.dense"),
    (r"self_attn\.sinks", "attn.sinks"),
    (r"mlp\.gate_proj\.weight", "ff_sub_layer.wg1_fused.weight#0"),
    (r"mlp\.up_proj\.weight", "ff_sub_layer.wg1_fused.weight#1"),
    (r"mlp\.down_proj", "ff_sub_layer.w2"),
]
BERT_TO_FMS = [
    (r"^(?:roberta\.)?encoder\.layer\.", "base_model.layers."),
    (r"^(?:roberta\.)?embeddings\.LayerNorm", "base_model.enc_norm"),
    (r"roberta\.embeddings\.word_embeddings", "base_model.embedding"),
    (r"^embeddings\.word_embeddings", "base_model.word_embedding"),
    (r"^embeddings\.position_embeddings", "base_model.position_embeddings"),
    (r"roberta\.embeddings\.token_type_embeddings", "base_model.token_type_embeddings"),
    (r"attention\.(?:self|attn)\.(q|k|v)(?:uery|ey|alue)?\.(\w+)$", lambda found: f"attn.in_proj.qkv_fused.{found[2]}#{'qkv'.index(found[1])}"),
    (r"attention\.output\.dense|attention\.attn\.o", "attn.dense"),
    (r"attention\.(?:output\.)?LayerNorm", "ln"),
    (r"intermediate\.dense", "ff_sub_layer.w1"),
    (r"output\.dense", "ff_sub_layer.w2"),
    (r"output\.LayerNorm", "ff_ln"),
    (r"^encoder\.relative", "base_model.relative"),
    (r"^pooler\.dense", "den"),
    (r"lm_head\.dense", "classification_head.dense"),
    (r"lm_head\.layer_norm", "classification_head.ln"),
    (r"lm_head\.bias", "classification_head.head.bias"),
]
BIGCODE_TO_FMS = [
    (r"transformer\.wte", "base_model.embedding"),
    (r"transformer\.wpe", "base_model.position_embedding"),
    (r"transformer\.ln_f", "base_model.dec_norm"),
    (r"transformer\.h", "base_model.layers"),
    (r"ln_1", "ln"),
    (r"ln_2", "ff_ln"),
    (r"attn\.c_attn", "attn.in_proj.qkv_fused"),
    (r"attn\.c_proj", "attn.dense"),
    (r"mlp\.c_fc", "ff_sub_layer.w1"),
    (r"mlp\.c_proj", "ff_sub_layer.w2"),
]


def in_pairs(given):
    """Rows of queries and keys in the order in which neighbours are turned."""
    turned = ported_language_models.turned_in_pairs
    return {name: turned(value) if re.search(r"[qk]_proj\.(weight|bias)", name) else value for name, value in given.items()}


def build_fms(family, changes, attention):
    with absent_packages.absent("fire", "sentencepiece"):
        from fms.models import gpt_bigcode, llama, mixtral, mpnet, roberta

    common = dict(src_vocab_size=96, emb_dim=64, nheads=4, nlayers=3)
    if family == "llama":
        own = dict(common, kvheads=2, hidden_grow_factor=1.75, multiple_of=1, max_expected_seq_len=64)
        model = llama.LLaMA(llama.LLaMAConfig(**{**own, **changes}))
        given, rules = in_pairs(language_models.published("llama")), LLAMA_TO_FMS
    elif family == "mixtral":
        own = dict(src_vocab_size=96, dim=64, nheads=4, kvheads=2, nlayers=3, hidden_dim=112, num_experts=4, top_k_experts=2)
        model = mixtral.Mixtral(mixtral.MixtralConfig(**{**own, "rope_base": 1000000.0, "p_dropout": 0.0, "max_expected_seq_len": 64, **changes}))
        given, rules = in_pairs(language_models.published("mixtral")), LLAMA_TO_FMS
        given = stacked(given, r"block_sparse_moe\.experts\.(\d+)\.(w\d)\.weight", dict(w1="w13", w3="w13", w2="w2"), "ff_sub_layer.cond_ffn.")
        rules = [*rules, (r"block_sparse_moe\.gate", "ff_sub_layer.gate")]
    elif family == "roberta":
        own = dict(common, hidden_grow_factor=2.0, max_pos=32, norm_eps=1e-5, p_dropout=0.0, tie_heads=True)
        model = roberta.RoBERTa(roberta.RoBERTaConfig(**{**own, **changes}))
        given, rules = published("roberta"), BERT_TO_FMS
        freeze(model, "token_type")
        given["base_model.position_embedding.weight"] = given.pop("roberta.embeddings.position_embeddings.weight")[2:]
    elif family == "mpnet":
        own = dict(common, hidden_grow_factor=2.0, max_expected_seq_len=34, p_dropout=0.0, hidden_dropout_prob=0.0)
        model = mpnet.Mpnet(mpnet.MpnetConfig(**{**own, **changes}))
        given, rules = published("mpnet"), BERT_TO_FMS
        model.scores_of = lambda tokens: model(tokens, position_ids=torch.arange(2, 14)[None])[0] @ model.base_model.word_embedding.weight.T
        freeze(model, "den.")
    else:
        own = dict(common, max_expected_seq_len=64, pad_id=None, hidden_grow_factor=4.0, p_dropout=0.0, emb_dropout=0.0, ln_eps=1e-5)
        own |= dict(activation_fn="gelu-tanh", multiquery_attn=True, tie_heads=True)
        model = gpt_bigcode.GPTBigCode(gpt_bigcode.GPTBigCodeConfig(**{**own, **changes}))
        given, rules = published("bigcode"), BIGCODE_TO_FMS
        model.head.weight = model.base_model.embedding.weight
    return moved_weights.moved(given, rules, model)


def one_by_one(given):
    """Experts apart, as releases of transformers before 5 have them."""
    apart = {}
    for name, value in given.items():
        if value.dim() == 3 and ".experts." in name:
            names = expert_names(name)
            for e in range(value.shape[0]):
                apart.update({n.format(e): part for n, part in zip(names, value[e].chunk(len(names)))})
        else:
            apart[name] = value
    return apart


def stacked(given, pattern, parts, prefix):
    """Experts that are given one by one as tensors of all experts; two parts of one tensor lie one after the other in each expert."""
    pieces, rest = {}, {}
    for name, value in given.items():
        found = re.search(pattern, name)
        if found:
            key = name[: found.start()] + prefix + parts[found[2]]
            pieces.setdefault(key, {}).setdefault(int(found[1]), {})[found[2]] = value
        else:
            rest[name] = value
    for key, experts in pieces.items():
        rest[key] = torch.stack([torch.cat([experts[e][part] for part in sorted(experts[e])]) for e in sorted(experts)])
    return rest


def without_extension(*packages):
    """torchtext and torchaudio without their compiled parts, which belong to another torch."""
    for package in packages:
        absent_packages.bare(package)


def build_torchtext(family, changes, attention):
    without_extension("torchtext", "torchtext.models", "torchtext.models.t5", "torchtext.models.roberta")
    if family == "roberta":
        from torchtext.models.roberta import model as source

        own = dict(vocab_size=96, embedding_dim=64, ffn_dimension=128, padding_idx=1, max_seq_len=34, num_attention_heads=4, num_encoder_layers=3)
        encoder = source.RobertaEncoder(**{**own, "dropout": 0.0, **changes})
        model = LanguageHead(encoder)
        model.scores_of = lambda tokens: model(encoder(tokens))
        given, rules = published("roberta"), TORCHTEXT_ROBERTA
        given["encoder.transformer.positional_embedding.embedding.weight"] = given.pop("roberta.embeddings.position_embeddings.weight")
    else:
        from torchtext.models.t5 import model as source

        conf = source.T5Conf(
            **{
                **dict(
                    embedding_dim=64,
                    qkv_dim=16,
                    num_attention_heads=4,
                    num_encoder_layers=3,
                    num_decoder_layers=3,
                    ffn_dimension=128,
                    dropout=0.0,
                    vocab_size=96,
                    linear_head=True,
                    relative_attention_num_buckets=8,
                    relative_attention_max_distance=10,
                ),
                **changes,
            }
        )
        model = source.T5Model(conf)
        model.scores_of = lambda tokens: model(tokens, tokens.flip(1))["decoder_output"]
        given, rules = published("t5"), TORCHTEXT_T5
        model.lm_head.weight = model.token_embeddings.weight
    return moved_weights.moved(given, rules, model)


class LanguageHead(torch.nn.Module):
    """RoBERTa's head for masked words, as a user of torchtext's encoder writes it."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.dense, self.norm = torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)
        self.bias = torch.nn.Parameter(torch.zeros(96))

    def forward(self, x):
        x = self.norm(torch.nn.functional.gelu(self.dense(x)))
        return x @ self.encoder.transformer.token_embedding.weight.T + self.bias


TORCHTEXT_ROBERTA = [
    (r"roberta\.embeddings\.word_embeddings", "encoder.transformer.token_embedding"),
    (r"roberta\.embeddings\.LayerNorm", "encoder.transformer.embedding_layer_norm"),
    (r"roberta\.encoder\.layer\.", "encoder.transformer.layers.layers."),
    (r"attention\.self\.(q|k|v)\w+\.(\w+)$", lambda found: f"self_attn.in_proj_{found[2]}#{'qkv'.index(found[1])}"),
    (r"attention\.output\.dense", "self_attn.out_proj"),
    (r"attention\.output\.LayerNorm", "norm1"),
    (r"intermediate\.dense", "linear1"),
    (r"output\.dense", "linear2"),
    (r"output\.LayerNorm", "norm2"),
    (r"lm_head\.layer_norm", "norm"),
    (r"lm_head\.", ""),
]
TORCHTEXT_T5 = [
    (r"^shared", "token_embeddings"),
    (r"block\.(\d+)\.layer\.0\.SelfAttention\.relative", r"layers.\1.self_attn.relative"),
    (r"block\.(\d+)\.layer\.0\.SelfAttention\.([qkv])\.weight", r"layers.\1.self_attn.\2_proj_weight"),
    (r"block\.(\d+)\.layer\.0\.SelfAttention\.o", r"layers.\1.self_attn.out_proj"),
    (r"block\.(\d+)\.layer\.1\.EncDecAttention\.([qkv])\.weight", r"layers.\1.cross_attn.\2_proj_weight"),
    (r"block\.(\d+)\.layer\.1\.EncDecAttention\.o", r"layers.\1.cross_attn.out_proj"),
    (r"block\.(\d+)\.layer\.\d\.DenseReluDense\.wi", r"layers.\1.linear1"),
    (r"block\.(\d+)\.layer\.\d\.DenseReluDense\.wo", r"layers.\1.linear2"),
    (r"block\.(\d+)\.layer\.0\.layer_norm", r"layers.\1.norm1"),
    (r"^encoder\.block\.(\d+)\.layer\.1\.layer_norm", r"encoder.layers.\1.norm2"),
    (r"^decoder\.block\.(\d+)\.layer\.1\.layer_norm", r"decoder.layers.\1.norm3"),
    (r"^decoder\.block\.(\d+)\.layer\.2\.layer_norm", r"decoder.layers.\1.norm2"),
    (r"final_layer_norm", "norm"),
]


def build_litgpt(family, changes, attention):
    import litgpt.model
    import litgpt.scripts.convert_hf_checkpoint as scripts

    own = dict(n_layer=3, n_embd=64, n_head=4, block_size=64, vocab_size=96, padded_vocab_size=96, rotary_percentage=1.0, bias=False)
    if family == "falcon":
        own |= dict(name="falcon-7b-small", n_query_groups=1, shared_attention_norm=True, parallel_residual=True)
    elif family == "gemma3":
        own |= dict(name="Gemma-3-small", n_query_groups=2, head_size=16, intermediate_size=112, norm_eps=1e-6, parallel_residual=False)
        own |= dict(norm_class_name="RMSNorm", mlp_class_name="GemmaMLP", gelu_approximate="tanh", scale_embeddings=True, norm_qk=True)
        own |= dict(post_attention_norm=True, post_mlp_norm=True, attention_scores_scalar=16, sliding_window_size=4, sliding_window_indices=[1, 1, 0])
        own |= dict(rope_base=1000000, rope_local_base_freq=10000, rope_indices=[1, 1, 0])
    config = litgpt.Config(**{**own, **changes})
    model, state, given = litgpt.model.GPT(config), {}, published(family)
    if family == "falcon":
        scripts.copy_weights_falcon(config, state, given)
    else:
        scripts.copy_weights_gemma_3({}, state, given, config=config)
    state.setdefault("lm_head.weight", given.get("lm_head.weight"))
    model.load_state_dict(state)
    return model


BUILDERS = {
    **{(family, "transformers"): build_transformers for family in FAMILIES if family not in ("wav2vec2", "encodec", "esm")},
    **{(family, "fms"): build_fms for family in ("llama", "mixtral", "roberta", "mpnet", "bigcode")},
    **{(family, "torchtext"): build_torchtext for family in ("roberta", "t5")},
    **{(family, "litgpt"): build_litgpt for family in ("falcon", "gemma3")},
}
