"""Causal language models that others published: releases of transformers, and litgpt with the weights converted by its own scripts.

The published names are those of transformers 4. `build(family, implementation)` gives a model that holds `named_weights`."""

import re

import named_weights
import torch

SIZES = dict(vocab_size=96, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=64)
SMALL = dict(bos_token_id=0, eos_token_id=1, pad_token_id=None, use_cache=False)
GROUPED = dict(num_key_value_heads=2, intermediate_size=112)

# family: class prefix in transformers, its settings, litgpt's settings (None: litgpt has no such model)
FAMILIES = {
    "llama": ("Llama", dict(GROUPED, rms_norm_eps=1e-5, tie_word_embeddings=False), dict()),
    "qwen2": ("Qwen2", dict(GROUPED, rms_norm_eps=1e-5, tie_word_embeddings=False), dict(attn_bias=True)),
    "qwen3": ("Qwen3", dict(GROUPED, head_dim=16, rms_norm_eps=1e-5, tie_word_embeddings=False), dict(norm_qk=True)),
    "mixtral": (
        "Mixtral",
        dict(GROUPED, num_local_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=None),
        dict(mlp_class_name="LLaMAMoE", n_expert=4, n_expert_per_token=2, rope_base=1000000),
    ),
    "gemma": (
        "Gemma",
        dict(GROUPED, head_dim=16, rms_norm_eps=1e-6, hidden_act="gelu"),
        dict(name="Gemma-small", norm_eps=1e-6, mlp_class_name="GemmaMLP", gelu_approximate="tanh", scale_embeddings=True, head_size=16),
    ),
    "gemma2": (
        "Gemma2",
        dict(
            GROUPED,
            head_dim=16,
            rms_norm_eps=1e-6,
            query_pre_attn_scalar=16,
            sliding_window=6,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=3.0,
        ),
        dict(
            name="Gemma-2-small",
            norm_eps=1e-6,
            mlp_class_name="GemmaMLP",
            gelu_approximate="tanh",
            scale_embeddings=True,
            head_size=16,
            post_attention_norm=True,
            post_mlp_norm=True,
            attention_scores_scalar=16,
            attention_logit_softcapping=5.0,
            final_logit_softcapping=3.0,
            sliding_window_size=6,
            sliding_window_indices=[1, 0, 1],
        ),
    ),
    "neox": (
        "GPTNeoX",
        dict(intermediate_size=256, rotary_pct=0.25, attention_dropout=0.0, hidden_dropout=0.0),
        dict(
            rotary_percentage=0.25,
            parallel_residual=True,
            bias=True,
            attn_bias=True,
            norm_class_name="LayerNorm",
            mlp_class_name="GptNeoxMLP",
            intermediate_size=256,
        ),
    ),
    "phi": (
        "Phi",
        dict(intermediate_size=256, partial_rotary_factor=0.5, hidden_act="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0),
        dict(
            rotary_percentage=0.5,
            parallel_residual=True,
            shared_attention_norm=True,
            bias=True,
            attn_bias=True,
            lm_head_bias=True,
            gelu_approximate="tanh",
            norm_class_name="LayerNorm",
            mlp_class_name="GptNeoxMLP",
            intermediate_size=256,
            n_query_groups=4,
        ),
    ),
    "gpt2": ("GPT2", dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), None),
    "opt": ("OPT", dict(ffn_dim=128, word_embed_proj_dim=64, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, layerdrop=0.0), None),
    "mistral": ("Mistral", dict(GROUPED, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=None), None),
}


def transformers_config(family, changes, attention="sdpa"):
    import transformers

    prefix, extra, _ = FAMILIES[family]
    config = getattr(transformers, prefix + "Config")(**{**SIZES, **SMALL, **extra, **changes})
    config._attn_implementation = attention
    if torch.get_default_dtype() == torch.float64:
        config._experts_implementation = "eager"  # grouped products have no float64
    return config, getattr(transformers, prefix + ("LMHeadModel" if prefix == "GPT2" else "ForCausalLM"))


def offset(family):
    return family.startswith("gemma")


def build_transformers(family, changes, attention):
    config, kind = transformers_config(family, changes, attention)
    model = kind._from_config(config) if hasattr(kind, "_from_config") else kind(config)
    stacked = any(name.endswith("experts.gate_up_proj") for name, _ in model.named_parameters())
    with torch.no_grad():
        for name, p in model.named_parameters():
            if stacked and "experts" in name:
                layer = re.sub(r"mlp\.experts.*", "block_sparse_moe.experts.", name)
                p.copy_(torch.stack([expert(layer, e, name, p[e].shape) for e in range(p.shape[0])]))
                continue
            p.copy_(named_weights.weight(old_name(family, name), p.shape, offset(family)))
    return model


def old_name(family, name):
    """What transformers 4 calls a parameter of transformers 5."""
    if family == "mixtral":
        return name.replace("mlp.gate.weight", "block_sparse_moe.gate.weight")
    return name.replace("lm_head", "embed_out") if family == "neox" else name


def expert(layer, number, name, shape):
    if name.endswith("down_proj"):
        return named_weights.weight(f"{layer}{number}.w2.weight", shape)
    half = (shape[0] // 2, shape[1])
    return torch.cat([named_weights.weight(f"{layer}{number}.{w}.weight", half) for w in ("w1", "w3")])


def published(family):
    """The state of transformers 4's model, made beside another implementation: names and shapes come from an empty model."""
    config, kind = transformers_config(family, {}, "eager")
    with torch.device("meta"):
        empty = kind(config)
    state = {}
    for name, p in empty.named_parameters():
        if family == "mixtral" and name.endswith("gate_up_proj"):
            layer = re.sub(r"mlp\.experts.*", "block_sparse_moe.experts.", name)
            for e in range(p.shape[0]):
                for w in ("w1", "w3"):
                    state[f"{layer}{e}.{w}.weight"] = named_weights.weight(f"{layer}{e}.{w}.weight", (p.shape[1] // 2, p.shape[2]))
        elif family == "mixtral" and name.endswith("experts.down_proj"):
            layer = re.sub(r"mlp\.experts.*", "block_sparse_moe.experts.", name)
            for e in range(p.shape[0]):
                state[f"{layer}{e}.w2.weight"] = named_weights.weight(f"{layer}{e}.w2.weight", p.shape[1:])
        else:
            old = old_name(family, name)
            state[old] = named_weights.weight(old, p.shape, offset(family))
    return state


def build_litgpt(family, changes):
    import litgpt.model
    import litgpt.scripts.convert_hf_checkpoint as scripts

    settings = dict(
        n_layer=3,
        n_embd=64,
        n_head=4,
        n_query_groups=4 if family in ("neox", "phi") else 2,
        block_size=64,
        vocab_size=96,
        padded_vocab_size=96,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        norm_eps=1e-5,
        mlp_class_name="LLaMAMLP",
        intermediate_size=112,
    )
    config = litgpt.Config(**{**settings, **FAMILIES[family][2], **changes})
    model = litgpt.model.GPT(config)
    state, given, fused, norms = {}, published(family), {}, {}
    for name in [n for n in given if "q_norm" in n or "k_norm" in n]:  # the script of this release leaves Qwen3's out
        which, layer = re.search(r"([qk])_norm", name).group(1), re.search(r"layers\.(\d+)", name).group(1)
        norms[f"transformer.h.{layer}.attn.norm_{which}.weight"] = given.pop(name)
    if family == "neox":
        scripts.copy_weights_gpt_neox(config, state, given)
    elif family == "phi":
        scripts.copy_weights_phi(config, fused, state, given)
    elif family == "gemma2":
        scripts.copy_weights_gemma_2(fused, state, given)
    elif family.startswith("qwen"):
        scripts.copy_weights_qwen_2_5(config, fused, state, given)
    else:
        scripts.copy_weights_hf_llama(config, fused, state, given)
    state.update(norms)
    tied = "lm_head.weight" not in state
    if tied:
        state["lm_head.weight"] = state["transformer.wte.weight"]
    model.load_state_dict(state)
    if tied:
        model.lm_head.weight = model.transformer.wte.weight
    return model


def logits(model, tokens):
    out = model(tokens)
    return out if isinstance(out, torch.Tensor) else out.logits
