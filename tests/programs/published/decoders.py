"""Decoder language models: transformers of several releases, and litgpt. The family is part of the side: llama/transformers-5, llama/litgpt."""

import harness
import torch

WIDTH, LAYERS, HEADS, GROUPS, INNER, VOCABULARY = 64, 3, 4, 2, 96, 96

COMMON = dict(
    hidden_size=WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    intermediate_size=INNER,
    vocab_size=VOCABULARY,
    max_position_embeddings=64,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
)
# What transformers calls a family: module, class and what its configuration needs besides.
FAMILIES = {
    "llama": ("Llama", dict(num_key_value_heads=GROUPS, tie_word_embeddings=False, rms_norm_eps=1e-5)),
    "mistral": ("Mistral", dict(num_key_value_heads=GROUPS, tie_word_embeddings=False, sliding_window=None, rms_norm_eps=1e-5)),
    "qwen2": ("Qwen2", dict(num_key_value_heads=GROUPS, tie_word_embeddings=False)),
    "qwen3": ("Qwen3", dict(num_key_value_heads=GROUPS, tie_word_embeddings=False, head_dim=16)),
    "gemma": ("Gemma", dict(num_key_value_heads=GROUPS, head_dim=16, hidden_activation="gelu", hidden_act="gelu")),
    "gemma-default": ("Gemma", dict(num_key_value_heads=GROUPS, head_dim=16)),
    "gemma2": ("Gemma2", dict(num_key_value_heads=GROUPS, head_dim=16, sliding_window=64, query_pre_attn_scalar=16)),
    "phi": ("Phi", dict(partial_rotary_factor=0.5, tie_word_embeddings=False)),
    "gpt_neox": ("GPTNeoX", dict(rotary_pct=0.25, tie_word_embeddings=False)),
    "gpt2": ("GPT2", dict(n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=INNER, n_positions=64)),
    "falcon": ("Falcon", dict(multi_query=True, parallel_attn=True, bias=False, new_decoder_architecture=False, alibi=False)),
    "stablelm": ("StableLm", dict(num_key_value_heads=GROUPS, tie_word_embeddings=False)),
    "starcoder2": ("Starcoder2", dict(num_key_value_heads=GROUPS, use_bias=True)),
    "olmo": ("Olmo", dict(tie_word_embeddings=False)),
    "olmo2": ("Olmo2", dict(num_key_value_heads=GROUPS, tie_word_embeddings=False)),
    "gptj": ("GPTJ", dict(n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=INNER, n_positions=64, rotary_dim=8, tie_word_embeddings=False)),
    "opt": ("OPT", dict(ffn_dim=INNER, word_embed_proj_dim=WIDTH, do_layer_norm_before=True)),
    "bloom": ("Bloom", dict(n_layer=LAYERS, n_head=HEADS)),
    "mpt": ("Mpt", dict(d_model=WIDTH, n_layers=LAYERS, n_heads=HEADS, expansion_ratio=2)),
    "cohere": ("Cohere", dict(num_key_value_heads=GROUPS)),
    "granite": (
        "Granite",
        dict(num_key_value_heads=GROUPS, tie_word_embeddings=False, attention_multiplier=0.3, residual_multiplier=0.5, logits_scaling=2.0),
    ),
    "mixtral": (
        "Mixtral",
        dict(num_key_value_heads=GROUPS, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False, sliding_window=None),
    ),
}


def eager(faults):
    return "sdpa" if "sdpa" in faults else "eager"


def transformers_model(family, faults):
    import transformers

    prefix, special = FAMILIES[family]
    config = getattr(transformers, f"{prefix}Config")(**{**COMMON, **special})
    config._attn_implementation = eager(faults)
    kind = getattr(transformers, "GPT2LMHeadModel" if prefix == "GPT2" else f"{prefix}ForCausalLM")
    try:
        return kind(config)
    except ValueError:  # this release has no choice of attention for the family
        config._attn_implementation = None
        return kind(config)


def old_name(name):
    """Names of release 4 for what release 5 renamed."""
    return name.replace("mlp.gate.weight", "block_sparse_moe.gate.weight").replace("embed_out.", "lm_head.")


def tied_name(name):
    """A head that is the embedding has its numbers."""
    return {"lm_head.weight": "model.embed_tokens.weight"}.get(old_name(name), old_name(name))


def fill_transformers(model, family):
    if family != "mixtral":
        tied = getattr(model.config, "tie_word_embeddings", False)
        return harness.fill(model, lambda name: tied_name(name) if tied else old_name(name))
    harness.fill(model, old_name)
    with torch.no_grad():
        for layer, block in enumerate(model.model.layers):
            experts = getattr(getattr(block, "mlp", None), "experts", None)
            for e in range(4) if experts is not None else ():
                prefix = f"model.layers.{layer}.block_sparse_moe.experts.{e}"
                w1, w3 = (harness.numbers(f"{prefix}.{w}.weight", (INNER, WIDTH)) for w in ("w1", "w3"))
                experts.gate_up_proj[e].copy_(torch.cat([w1, w3]))
                experts.down_proj[e].copy_(harness.numbers(f"{prefix}.w2.weight", (WIDTH, INNER)))
    return model


LITGPT = {
    "llama": dict(
        n_query_groups=GROUPS,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=INNER,
        norm_eps=1e-5,
    ),
    "gpt_neox": dict(
        n_query_groups=HEADS,
        rotary_percentage=0.25,
        parallel_residual=True,
        bias=True,
        norm_class_name="LayerNorm",
        mlp_class_name="GptNeoxMLP",
        intermediate_size=INNER,
        norm_eps=1e-5,
    ),
    "gemma-default": dict(
        n_query_groups=GROUPS,
        head_size=16,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="GemmaMLP",
        gelu_approximate="tanh",
        scale_embeddings=True,
        intermediate_size=INNER,
        norm_eps=1e-6,
    ),
    "phi": dict(
        n_query_groups=HEADS,
        rotary_percentage=0.5,
        parallel_residual=True,
        shared_attention_norm=True,
        bias=True,
        lm_head_bias=True,
        norm_class_name="LayerNorm",
        mlp_class_name="GptNeoxMLP",
        gelu_approximate="tanh",
        intermediate_size=INNER,
        norm_eps=1e-5,
    ),
    "mixtral": dict(
        n_query_groups=GROUPS,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMoE",
        n_expert=4,
        n_expert_per_token=2,
        intermediate_size=INNER,
        moe_intermediate_size=INNER,
        norm_eps=1e-5,
    ),
    "qwen2": dict(
        n_query_groups=GROUPS,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        attn_bias=True,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=INNER,
        norm_eps=1e-6,
    ),
    "qwen3": dict(
        n_query_groups=GROUPS,
        head_size=16,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=INNER,
        norm_eps=1e-6,
        norm_qk=True,
    ),
}


def litgpt_model(family, faults):
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.scripts import convert_hf_checkpoint as convert

    settings = dict(
        name={"gemma-default": "Gemma"}.get(family, family),
        block_size=64,
        vocab_size=VOCABULARY,
        padded_vocab_size=VOCABULARY,
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=WIDTH,
        rope_base=10000,
    )
    settings.update(LITGPT[family])
    if family == "mixtral":
        settings["rope_base"] = 1000000
    if "rope-base" in faults:
        settings["rope_base"] = 50000
    if "norm-eps" in faults:
        settings["norm_eps"] = 1e-2
    if "gelu" in faults:
        settings["gelu_approximate"] = "none" if settings.get("gelu_approximate") == "tanh" else "tanh"
    if "rotary-share" in faults:
        settings["rotary_percentage"] = 0.5
    if "attention-scale" in faults:
        settings["attention_scores_scalar"] = 20
    if "softcap" in faults:
        settings["final_logit_softcapping"] = 3.0
    if "attention-softcap" in faults:
        settings["attention_logit_softcapping"] = 1.0
    if "window" in faults:
        settings.update(sliding_window_size=4, sliding_window_indices=[1] * LAYERS)
    if "parallel" in faults:
        settings["parallel_residual"] = not settings["parallel_residual"]
    config = Config(**settings)
    model = GPT(config)
    source = fill_transformers(transformers_model(family, []), family)
    names = {
        "gpt_neox": convert.copy_weights_gpt_neox,
        "phi": convert.copy_weights_phi,
        "qwen2": convert.copy_weights_qwen_2_5,
        "qwen3": convert.copy_weights_qwen_3,
    }
    state, held = {}, {name: tensor.detach().clone() for name, tensor in source.state_dict().items()}
    if family == "mixtral":
        held = mixtral_4(held)
    if family in ("llama", "mixtral", "gemma-default"):
        convert.copy_weights_hf_llama(config, {}, state, held)
    elif family == "gpt_neox":
        held["embed_out.weight"] = held.pop("lm_head.weight", held.get("embed_out.weight"))
        convert.copy_weights_gpt_neox(config, state, held)
    else:
        names[family](config, {}, state, held)
    if "lm_head.weight" not in state:
        state["lm_head.weight"] = state["transformer.wte.weight"]
    model.load_state_dict(state, strict=True)
    return model


def mixtral_4(held):
    out = {}
    for name, tensor in held.items():
        if "experts.gate_up_proj" in name:
            for e in range(tensor.shape[0]):
                prefix = name.replace("mlp.experts.gate_up_proj", f"block_sparse_moe.experts.{e}")
                out[f"{prefix}.w1.weight"], out[f"{prefix}.w3.weight"] = tensor[e].chunk(2)
        elif "experts.down_proj" in name:
            for e in range(tensor.shape[0]):
                out[name.replace("mlp.experts.down_proj", f"block_sparse_moe.experts.{e}.w2.weight")] = tensor[e]
        else:
            out[old_name(name)] = tensor
    return out


# ---- faults that are planted into transformers from outside


def plant(model, family, faults):
    """By changing modules of the built model, as a wrong port would have them."""
    core = getattr(model, "model", None) or getattr(model, "gpt_neox", None) or getattr(model, "transformer", None)
    for module_name, module in model.named_modules():
        kind = type(module).__name__
        if "norm-eps" in faults and ("Norm" in kind) and "layers.1." in module_name and "post" in module_name:
            setattr(module, "variance_epsilon" if hasattr(module, "variance_epsilon") else "eps", 1e-2)
        if "act" in faults and module_name.endswith("layers.1.mlp"):
            module.act_fn = torch.nn.GELU(approximate="tanh" if isinstance(getattr(module, "act_fn", None), torch.nn.GELU) else "none")
        if "attention-scale" in faults and module_name.endswith("layers.1.self_attn") and hasattr(module, "scaling"):
            module.scaling = module.scaling * 1.3
        if "rope-base" in faults and "rotary_emb" in module_name and hasattr(module, "inv_freq"):
            n = module.inv_freq.numel()
            module.inv_freq.copy_(1.0 / 50000 ** (torch.arange(n).float() / n))
    if "swapped" in faults:
        mlp = core.layers[1].mlp
        mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj
    if "dropped-bias" in faults:
        core.layers[1].self_attn.v_proj.bias.data.zero_()
    if "untied-row" in faults:
        with torch.no_grad():
            model.lm_head.weight[5].mul_(1.5)
    if "residual" in faults:
        core.layers[1].mlp.register_forward_hook(lambda m, args, out: out * 0.5)
    if "no-final-norm" in faults:
        core.norm.register_forward_hook(lambda m, args, out: args[0])
    return model


def build(side, faults):
    family, implementation = side.split("/")
    if implementation.startswith("transformers"):
        model = plant(fill_transformers(transformers_model(family, faults), family), family, faults)
        ids = harness.tokens(VOCABULARY)
        return model, (lambda m, x: m(input_ids=x, use_cache=False).logits), ids, ids
    model = litgpt_model(family, faults)
    ids = harness.tokens(VOCABULARY)
    return model, (lambda m, x: m(x)), ids, ids


if __name__ == "__main__":
    harness.run(build)
