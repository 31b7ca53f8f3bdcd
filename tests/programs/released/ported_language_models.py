"""Causal language models that a second project published, with the weights of transformers' model by the project's own conversion where it has one."""

import os
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


def turned_in_pairs(rows, size=16):
    """Rows of heads whose halves are turned, in the order in which neighbours are."""
    return rows.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).flatten(0, 2)


REPEATED = [0, 2, 1, 3]  # this project repeats all heads of keys one after another, transformers each head


def build_x_transformers(family, changes, attention):
    """Its norm has no eps, and its layers are attention and feed-forward in turn."""
    import x_transformers

    own = dict(dim=64, depth=3, heads=4, attn_dim_head=16, attn_kv_heads=2, rotary_pos_emb=True, rotary_emb_dim=16, use_rmsnorm=True)
    own.update(norm_add_unit_offset=False, ff_glu=True, ff_swish=True, ff_no_bias=True, ff_mult=1.75, attn_flash=attention == "sdpa")
    layers = x_transformers.Decoder(**{**own, **changes})
    model = x_transformers.TransformerWrapper(num_tokens=96, max_seq_len=64, use_abs_pos_emb=False, attn_layers=layers)
    given = language_models.published("llama")
    state = {
        "token_emb.emb.weight": "model.embed_tokens.weight",
        "attn_layers.final_norm.g": "model.norm.weight",
        "to_logits.weight": "lm_head.weight",
    }
    state = {name: given[old] for name, old in state.items()}
    for n in range(3):
        old, first, second = f"model.layers.{n}.", f"attn_layers.layers.{2 * n}.", f"attn_layers.layers.{2 * n + 1}."
        state[first + "0.0.g"], state[second + "0.0.g"] = given[old + "input_layernorm.weight"], given[old + "post_attention_layernorm.weight"]
        q, k, v, o = (given[f"{old}self_attn.{w}_proj.weight"] for w in "qkvo")
        state[first + "1.to_q.weight"] = turned_in_pairs(q).unflatten(0, (4, 16))[REPEATED].flatten(0, 1)
        state[first + "1.to_k.weight"], state[first + "1.to_v.weight"] = turned_in_pairs(k), v
        state[first + "1.to_out.weight"] = o.unflatten(1, (4, 16))[:, REPEATED].flatten(1, 2)
        state[second + "1.ff.0.proj.weight"] = torch.cat([given[old + "mlp.up_proj.weight"], given[old + "mlp.gate_proj.weight"]])
        state[second + "1.ff.0.proj.bias"] = torch.zeros(224)  # not in the published model
        state[second + "1.ff.2.weight"] = given[old + "mlp.down_proj.weight"]
    model.load_state_dict(state, strict=False)
    for name, p in model.named_parameters():
        p.requires_grad_(name in state and not name.endswith("proj.bias"))
    return model


def build_transformers_rwkv(family, changes, attention):
    import transformers

    own = dict(context_length=64, attention_hidden_size=64, intermediate_size=256, rescale_every=0, tie_word_embeddings=False)
    sizes = dict(vocab_size=96, hidden_size=64, num_hidden_layers=3, bos_token_id=0, eos_token_id=1, use_cache=False)
    return fill_from(transformers.RwkvForCausalLM(transformers.RwkvConfig(**{**sizes, **own, **changes})), str)


RWKV_PLACES = [
    (r"^rwkv\.", ""),
    (r"embeddings\.", "emb."),
    (r"pre_ln", "ln0"),
    (r"feed_forward", "ffn"),
    (r"attention", "att"),
    (r"time_mix_(\w)\w*", r"time_mix_\1"),
]


def build_rwkv(family, changes, attention):
    """Without modules: all weights are in one table, and the first norm is multiplied into the embedding as the table is read."""
    os.environ["RWKV_JIT_ON"], os.environ["RWKV_CUDA_ON"] = "0", "0"
    from rwkv import model as source

    table = {}
    for name, p in build_transformers_rwkv(family, {}, attention).named_parameters():
        for pattern, replacement in RWKV_PLACES:
            name = re.sub(pattern, replacement, name)
        table[name] = p.detach().clone()
    load, torch.load = torch.load, lambda *args, **kwargs: table
    try:
        model = source.RWKV("table", "cpu fp32", verbose=False)
    finally:
        torch.load = load
    for name, weight in model.w.items():  # a recording begins with the first module that holds a parameter
        if isinstance(weight, torch.Tensor) and weight.is_floating_point():
            model.register_parameter(name.replace(".", "_"), torch.nn.Parameter(weight, requires_grad=False))
            model.w[name] = getattr(model, name.replace(".", "_"))
    model.scores_of = lambda tokens: torch.stack([model(row, None, full_output=True)[0] for row in tokens.tolist()])
    return model


def without_device():
    """Megatron on one process and without a GPU."""
    import contextlib

    torch.cuda.current_device = lambda: torch.device("cpu")
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random

    random.CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()
    if not parallel_state.is_initialized():
        parallel_state.initialize_model_parallel(1, 1)


def build_megatron(family, changes, attention):
    """The sequence comes first, and the packed rows are those of each group: its queries, its key, its value."""
    given = language_models.published("llama")
    without_device()
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    sizes = dict(num_layers=3, hidden_size=64, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=112, layernorm_epsilon=1e-5)
    kinds = dict(normalization="RMSNorm", add_bias_linear=False, gated_linear_unit=True, activation_func=torch.nn.functional.silu)
    without = ("bias_dropout_fusion", "bias_activation_fusion", "masked_softmax_fusion", "gradient_accumulation_fusion", "apply_rope_fusion")
    own = {**dict.fromkeys(without, False), **dict.fromkeys(("hidden_dropout", "attention_dropout"), 0.0), "use_cpu_initialization": True}
    config = TransformerConfig(**{**sizes, **kinds, **own, "params_dtype": torch.get_default_dtype(), **changes})
    rotary = dict(position_embedding_type="rope", share_embeddings_and_output_weights=False)
    model = GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), 96, 64, **rotary)
    state = {"embedding.word_embeddings.weight": given["model.embed_tokens.weight"]}
    state["decoder.final_layernorm.weight"], state["output_layer.weight"] = given["model.norm.weight"], given["lm_head.weight"]
    for n in range(3):
        old, new = f"model.layers.{n}.", f"decoder.layers.{n}."
        q, k, v = (given[f"{old}self_attn.{w}_proj.weight"].unflatten(0, (2, -1)) for w in "qkv")
        state[new + "self_attention.linear_qkv.weight"] = torch.cat([q, k, v], 1).flatten(0, 1)
        state[new + "self_attention.linear_proj.weight"] = given[old + "self_attn.o_proj.weight"]
        state[new + "mlp.linear_fc1.weight"] = torch.cat([given[f"{old}mlp.{w}_proj.weight"] for w in ("gate", "up")])
        state[new + "mlp.linear_fc2.weight"] = given[old + "mlp.down_proj.weight"]
        state[new + "input_layernorm.weight"] = given[old + "input_layernorm.weight"]
        state[new + "pre_mlp_layernorm.weight"] = given[old + "post_attention_layernorm.weight"]
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(state[name])

    def scores_of(tokens):
        unseen = torch.ones(tokens.shape[1], tokens.shape[1]).triu(1).bool()[None, None]
        return model(tokens, torch.arange(tokens.shape[1]).expand_as(tokens), unseen)

    model.scores_of = scores_of
    return model


BUILDERS = {
    ("llama", "megatron"): build_megatron,
    ("rwkv", "transformers"): build_transformers_rwkv,
    ("rwkv", "rwkv"): build_rwkv,
    ("llama", "xtransformers"): build_x_transformers,
    **{(family, "torchtune"): build_torchtune for family in ("llama", "qwen2", "gemma")},
    **{(family, "lens"): build_lens for family in ("llama", "gpt2")},
    ("mamba", "transformers"): build_transformers_mamba,
    ("mamba", "mambapy"): build_mambapy,
}
