"""Causal language models that a second project published, with the weights of transformers' model by the project's own conversion where it has one."""

import re

import absent_packages
import language_models
import named_weights
import torch


def fill_from(model, name_of):
    """Gives each parameter the weight of the published name that `name_of` says."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(named_weights.weight(name_of(name), p.shape))
    return model


TORCHTUNE = ("torchao", "torchdata", "datasets", "kagglehub", "omegaconf", "tiktoken", "blobfile", "sentencepiece", "PIL", "torchvision")


def build_torchtune(family, changes, attention):
    state = language_models.published(family)
    absent_packages.bare("torchtune")
    with absent_packages.absent(*TORCHTUNE):
        import torchtune.models.convert_weights as llama
        from torchtune.models.gemma._component_builders import gemma
        from torchtune.models.llama2._component_builders import llama2
        from torchtune.models.qwen2._component_builders import qwen2
        from torchtune.models.qwen2._convert_weights import qwen2_hf_to_tune

    sizes = dict(vocab_size=96, num_layers=3, num_heads=4, num_kv_heads=2, embed_dim=64, max_seq_len=64, intermediate_dim=112, norm_eps=1e-5)
    kind, convert, own = {
        "llama": (llama2, llama.hf_to_tune, {}),
        "qwen2": (qwen2, qwen2_hf_to_tune, dict(rope_base=10000.0)),
        "gemma": (gemma, llama.hf_to_tune, dict(norm_eps=1e-6, head_dim=16)),
    }[family]
    model = kind(**{**sizes, **own, **changes})
    model.load_state_dict(convert(state, num_heads=4, num_kv_heads=2, dim=64, head_dim=16))
    return model


def build_lens(family, changes, attention):
    """`fold_ln` (a setting): the weights of norms are multiplied into the matrices behind them, as the project does by default."""
    with absent_packages.absent("datasets", "wandb", "pandas", "sentencepiece", "plotly", "transformers_stream_generator"):
        import transformer_lens
        from transformer_lens.pretrained import weight_conversions

    changes = dict(changes)
    folded = changes.pop("fold_ln", False)
    settings = dict(n_layers=3, d_model=64, n_ctx=64, d_head=16, n_heads=4, d_vocab=96, eps=1e-5, device="cpu", dtype=torch.get_default_dtype())
    if family == "gpt2":
        settings.update(d_mlp=256, act_fn="gelu_new", normalization_type="LN")
    else:
        settings.update(
            d_mlp=112,
            act_fn="silu",
            normalization_type="RMS",
            n_key_value_heads=2,
            gated_mlp=True,
            final_rms=True,
            positional_embedding_type="rotary",
            rotary_adjacent_pairs=False,
            rotary_dim=16,
            original_architecture="LlamaForCausalLM",
        )
    tied = {"tie_word_embeddings": changes.pop("tie_word_embeddings")} if "tie_word_embeddings" in changes else {}
    config = transformer_lens.HookedTransformerConfig(**{**settings, **changes})
    given = language_models.build_transformers(family, tied, "eager")
    model = transformer_lens.HookedTransformer(config)
    convert = weight_conversions.convert_gpt2_weights if family == "gpt2" else weight_conversions.convert_llama_weights
    state = {name: value.detach().clone() for name, value in convert(given, config).items()}
    model.load_and_process_state_dict(
        state, fold_ln=folded, center_writing_weights=False, center_unembed=False, fold_value_biases=False, refactor_factored_attn_matrices=False
    )
    model.unembed.b_U.requires_grad_(False)  # a bias that the published model does not have
    return model


MAMBA = dict(state_size=8, expand=2, conv_kernel=4, time_step_rank=4, use_mambapy=False, tie_word_embeddings=False, layer_norm_epsilon=1e-5)


def mamba_weight(name, shape):
    if name.endswith("A_log"):
        return torch.log(torch.arange(1, shape[1] + 1).to(torch.get_default_dtype())).repeat(shape[0], 1)
    if name.endswith(".D"):
        return named_weights.weight(name + ".weight", shape)
    if name.endswith("dt_proj.bias"):
        return named_weights.weight(name, shape) - 2.0
    return named_weights.weight(name, shape)


def build_transformers_mamba(family, changes, attention):
    import transformers

    sizes = {k: v for k, v in language_models.SIZES.items() if k not in ("num_attention_heads", "max_position_embeddings")}
    model = transformers.MambaForCausalLM(transformers.MambaConfig(**{**sizes, **language_models.SMALL, **MAMBA, **changes}))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(mamba_weight(name.replace("backbone.", ""), p.shape))
    return model


def build_mambapy(family, changes, attention):
    with absent_packages.absent("einops", "mamba_ssm"):  # for Mamba 2 alone
        from mambapy.lm import LM
        from mambapy.mamba import MambaConfig

    model = LM(MambaConfig(**{**dict(d_model=64, n_layers=3, d_state=8, dt_rank=4), **changes}), 96)
    with torch.no_grad():
        for name, p in model.named_parameters():
            name = re.sub(r"^mamba\.", "", name)
            name = name.replace("embedding.weight", "embeddings.weight")
            p.copy_(mamba_weight(name, p.shape))
    return model


BUILDERS = {
    **{(family, "torchtune"): build_torchtune for family in ("llama", "qwen2", "gemma")},
    **{(family, "lens"): build_lens for family in ("llama", "gpt2")},
    ("mamba", "transformers"): build_transformers_mamba,
    ("mamba", "mambapy"): build_mambapy,
}
