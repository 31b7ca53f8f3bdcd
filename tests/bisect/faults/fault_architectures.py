"""Every architecture that the installed transformers knows, small and with random weights, by rule and not from a list.

A program is named "TASK/TYPE", "causal/llama" say. Its configuration is the type's default one in which every number whose name says
what it is (a width, a count of layers, heads, experts, positions, …) is made small. What doesn't build or run so is left out with the
reason:

    python tests/bisect/faults/fault_architectures.py [TASK]       # lists what builds, and why the others don't"""

import re
import sys
import time
from types import MappingProxyType

import torch

TASKS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "encoder": "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES",
    "speech": "MODEL_FOR_CTC_MAPPING_NAMES",
}
VOCABULARY, WIDTH, LENGTH, IMAGE, LARGEST = 96, 32, 8, 32, 4_000_000

# What the name of a number says, and how large it then is; the first that fits counts.
SMALL = [
    (r".*(dropout|drop_rate|layerdrop|_pdrop|drop_path_rate|jitter_noise|mask_time_prob|mask_feature_prob|drop)$", 0.0),
    (r"(vocab_size|.*_vocab_size|type_vocab_size_)$", VOCABULARY),
    (r"pad_token_id$", 0),
    (r"bos_token_id$", 1),
    (r"(eos_token_id|sep_token_id|decoder_start_token_id|forced_eos_token_id)$", 2),
    (r".*_token_(id|index)$", 3),
    (r"(num_experts_per_tok|moe_top_?k|top_k|num_experts_per_token|moe_k|router_top_k|moe_topk|topk_experts|num_selected_experts)$", 2),
    (r"(num_local_experts|num_experts|n_routed_experts|moe_num_experts|num_moe_experts|moe_num_local_experts)$", 4),
    (r"(n_group|topk_group|n_groups|num_shared_experts|n_shared_experts|moe_num_shared_experts|zero_expert_num)$", 1),
    (r"first_k_dense_replace$", 1),
    (r"(moe_intermediate_size|shared_expert_intermediate_size|expert_ffn_hidden_size|moe_shared_expert_intermediate_size)$", 24),
    (
        r"(num_hidden_layers|n_layers?|num_layers|encoder_layers|decoder_layers|num_decoder_layers|num_encoder_layers|depth|n_text_layer|num_blocks)$",
        2,
    ),
    (r"(num_key_value_heads|n_head_kv|num_kv_heads|num_global_key_value_heads|multi_query_group_num|swa_num_key_value_heads)$", 2),
    (
        r"(.*num_attention_heads|num_heads|n_heads?|encoder_attention_heads|decoder_attention_heads|swa_num_attention_heads|attn_heads|num_v_heads)$",
        4,
    ),
    (r"(mamba_n_heads|mamba_num_heads|num_v_heads|linear_num_value_heads)$", 8),
    (r"linear_num_key_heads$", 4),
    (r"(mamba_d_head|mamba_head_dim|linear_key_head_dim|linear_value_head_dim)$", 8),
    (r"(q_lora_rank|o_lora_rank)$", 16),
    (r"kv_lora_rank$", 8),
    (r"(qk_rope_head_dim|rotary_dim)$", 4),
    (r"qk_nope_head_dim$", 4),
    (r"v_head_dim$", 8),
    (r"(head_dim|d_kv|attention_head_dim|kv_channels|global_head_dim|swa_head_dim|swa_v_head_dim)$", 8),
    (r"(.*intermediate_size|.*ffn_dim|d_ff|n_inner|ffn_hidden_size|ffn_dim|d_inner|ffn_intermediate_size|mlp_dim|intermediate_dim)$", 48),
    (
        r"(hidden_size|d_model|n_embd|embed_dim|embedding_size|dim|hidden_dim|projection_dim|emb_dim|d_embed|word_embed_proj_dim|lru_width|"
        r"attention_hidden_size|cross_attention_hidden_size|num_embed|dim_model|moe_latent_size|conv_hidden_size|model_dim)$",
        WIDTH,
    ),
    (
        r"(max_position_embeddings|n_positions|n_ctx|max_source_positions|max_target_positions|context_length|max_seq_len|max_sequence_length|seq_length)$",
        64,
    ),
    (r"(sliding_window|attention_chunk_size|local_attention|attention_window|block_size|window)$", 4),
    (r"(chunk_size|mamba_chunk_size|chunk_length)$", 8),
    (r"(state_size|ssm_state_size|mamba_d_state|d_state|mamba_state_size)$", 8),
    (r"(time_step_rank|mamba_dt_rank|dt_rank)$", 4),
    (r"image_size$", IMAGE),
    (r"patch_size$", 4),
    (r"num_labels$", 8),
    (r"(depths|num_blocks_per_stage|layer_depths|num_encoder_blocks_)$", 1),
    (r"(hidden_sizes|embed_dims|conv_dim|tdnn_dim|neck_hidden_sizes|encoder_hidden_sizes|stage_out_channels|conv_channels|hidden_channels)$", 16),
    (r"(num_conv_pos_embeddings|context_size)$", 8),
    (r"num_mel_bins$", 16),
    (r"(hidden_size_per_layer_input|altup_num_inputs_)$", 8),
    (r"vocab_size_per_layer_input$", VOCABULARY),
    (r"(num_kv_shared_layers|num_nextn_predict_layers|num_mtp_modules|mtp_num_hidden_layers)$", 0),
    (r"(index_n_heads)$", 2),
    (r"index_head_dim$", 8),
    (r"index_topk$", 4),
]


# Where the first sizes don't go together: as many keys as queries, then heads as wide as their parts.
LADDER = [
    {},
    {"num_key_value_heads": 4},
    {"num_key_value_heads": 4, "head_dim": 4, "qk_rope_head_dim": 4},
    {"num_key_value_heads": 4, "head_dim": 4, "qk_head_dim": 8, "rope_head_dim": 4, "mamba_headdim": 16, "n_mamba_heads": 4},
    {"head_dim": 8, "num_heads": 8, "num_hidden_layers": 3, "num_key_value_heads": 2},
    {"num_hidden_layers": 4},
]


NEEDED = ("head_dim", "num_key_value_heads", "num_experts_per_tok", "pad_token_id")  # small also where the default is none


def tasks():
    from transformers.models.auto import modeling_auto

    return {task: dict(getattr(modeling_auto, name)) for task, name in TASKS.items()}


def names():
    """All programs, whether they build or not."""
    return [f"{task}/{kind}" for task, kinds in tasks().items() for kind, model in kinds.items() if isinstance(model, str)]


def small(name, value):
    """The value of a configuration's entry, made small where its name says what it is."""
    if isinstance(value, bool) or value is None and name not in NEEDED:
        return value
    for pattern, size in SMALL:
        if re.fullmatch(pattern, name):
            if isinstance(value, (int, float)):
                return type(value)(min(value, size) if name != "num_hidden_layers" else size) if not name.endswith("_token_id") else size
            if value is None and name in NEEDED:
                return size
            if isinstance(value, (list, tuple)) and value and all(isinstance(x, (int, float)) for x in value):
                return [min(x, 2 if "heads" in name else size) for x in value]
    return value


def shrunk(config_class, given=MappingProxyType({})):
    """The default configuration, made small, with the configurations inside it; `given` sizes go before the rules."""
    default = config_class()
    sizes = lambda name, value: given.get(name, small(name, value))
    values, inner = {}, getattr(config_class, "sub_configs", {}) or {}
    for name, value in default.to_dict().items():
        if name in inner and value is not None:
            values[name] = shrunk(type(getattr(default, name)), given).to_dict()
        elif name not in ("model_type", "transformers_version", "architectures", "dtype", "auto_map"):
            made = sizes(name, value)
            if made != value or name in getattr(config_class, "attribute_map", {}):
                values[name] = made
    layers = values.get("num_hidden_layers", 2)
    for name, value in default.to_dict().items():  # one entry per layer
        if isinstance(value, list) and len(value) > 4 and (name.endswith("types") or name.startswith("layer") or name.endswith("pattern")):
            kinds = list(dict.fromkeys(map(str, value)))
            values[name] = (
                [x for x in value if str(x) in kinds][-layers:]
                if len(kinds) < 2
                else [next(x for x in value if str(x) == kind) for kind in kinds[-layers:]]
            )
    return config_class(**values)


def inside(config):
    """The configurations inside a configuration."""
    return [part for part in (getattr(config, name, None) for name in getattr(config, "sub_configs", None) or {}) if part is not None]


def text_of(config):
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def build(name, draw):
    """The model and what its batches are, as fault_models.build: at the first sizes that go together."""
    attention, task = draw.choice(["eager", "sdpa"]), name.split("/")[0]
    if name not in FITTING:
        with torch.random.fork_rng(devices=()):
            FITTING[name] = first_fitting(name, attention)
    model = built(name, FITTING[name], attention)
    randomise(model)
    return model, {"batch": lambda dice: batch_of(task, model, dice)}


FITTING = {}  # the rung of the ladder for a name: found once, since a run that is recorded must run nothing else


def first_fitting(name, attention):
    first = None
    for given in LADDER:
        try:
            model = built(name, given, attention)
            with torch.no_grad():
                model(**batch_of(name.split("/")[0], model, torch.Generator().manual_seed(0))["named"])
            return given
        except TooLarge:
            raise
        except Exception as error:
            first = first or error
    raise first


class TooLarge(Exception):
    pass


def built(name, given, attention):
    import transformers
    from transformers import CONFIG_MAPPING

    task, kind = name.split("/", 1)
    config = shrunk(CONFIG_MAPPING[kind], given)
    model_class = getattr(transformers, tasks()[task][kind])
    if model_class.config_class is not type(config):  # a model of the text alone
        for sub in getattr(config, "sub_configs", {}) or {}:
            if type(getattr(config, sub)) is model_class.config_class:
                config = getattr(config, sub)
    for part in [config, *inside(config)]:
        part.use_cache, part._experts_implementation = False, "eager"
    refuse_large(model_class, config)
    try:
        model = model_class._from_config(config, attn_implementation=attention)
    except (ValueError, ImportError):
        model = model_class._from_config(config, attn_implementation="eager")
    return model


def refuse_large(model_class, config):
    """Counts parameters before any memory is filled with them."""
    with torch.device("meta"):
        count = sum(p.numel() for p in model_class._from_config(config, attn_implementation="eager").parameters())
    if count > LARGEST:
        raise TooLarge("%d parameters" % count)


def randomise(model):
    """Weights large enough for every layer to matter, biases and norms that are not 0 and 1; nothing is dropped at random."""
    for module in model.modules():
        for attribute in [
            n for n, value in vars(module).items() if isinstance(value, float) and "drop" in n or n == "p" and isinstance(module, torch.nn.Dropout)
        ]:
            setattr(module, attribute, 0.0)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                p.copy_(0.2 * torch.randn_like(p) if p.ndim >= 2 else p + 0.1 * torch.randn_like(p))


def batch_of(task, model, dice):
    config = model.config
    if task == "image":
        side = next((c.image_size for c in [config, *inside(config)] if isinstance(getattr(c, "image_size", None), int)), IMAGE)
        channels = getattr(config, "num_channels", 3)
        return {
            "inputs": (),
            "named": {"pixel_values": torch.randn(4, channels, side, side, generator=dice)},
            "labels": torch.randint(0, max(2, config.num_labels), (4,), generator=dice),
        }
    if task == "speech":
        if getattr(model, "main_input_name", "") == "input_features":
            sound = torch.randn(4, 32, getattr(config, "num_mel_bins", getattr(config, "feature_size", 80)), generator=dice)
        else:
            sound = torch.randn(4, 800, generator=dice)
        return {"inputs": (), "named": {model.main_input_name: sound}, "labels": None}
    vocabulary = text_of(config).vocab_size
    text = torch.randint(4, vocabulary, (4, LENGTH + 1), generator=dice)
    named = {"input_ids": text[:, :-1].contiguous()}
    if task == "seq2seq":
        named["decoder_input_ids"] = torch.randint(4, vocabulary, (4, LENGTH), generator=dice)
    return {"inputs": (), "named": named, "labels": None if task == "encoder" else text[:, 1:].contiguous()}


def main():
    from fault_world import Run

    for name in names():
        if len(sys.argv) > 1 and not name.startswith(sys.argv[1]):
            continue
        began = time.time()
        case = {"seed": 1, "program": name, "optimizer": "adamw", "precision": "fp32", "mode": "train", "steps": 1, "changes": []}
        try:
            run = Run(case).execute()
            said = "%8d parameters, loss %.3f" % (sum(p.numel() for p in run.model.parameters()), run.losses[0])
        except Exception as error:
            said = "no: %s: %s" % (type(error).__name__, str(error).strip().split("\n")[0][:150])
        print("%-40s %5.1f s  %s" % (name, time.time() - began, said), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
