"""One training step of any architecture of transformers, tiny and with random weights: many_architectures.py FOLDER NAME… writes FOLDER/NAME.lb.

NAME is TASK:MODEL, and +HOW for what is different: an optimizer (sgd, adafactor, lion, muon, fused), a dtype (bf16, autocast, scaler), gas (two
micro-batches), checkpoint or reentrant, lora, drop, clip, padding (on the right) or left. What does not build here is told and left out."""

import contextlib
import pathlib
import shutil
import sys
import traceback

import lastbit.torch
import torch
import transformers as hf

VOCABULARY, COLUMNS = 64, 12
AUTO = {
    "causal": hf.AutoModelForCausalLM,
    "masked": hf.AutoModelForMaskedLM,
    "seq2seq": hf.AutoModelForSeq2SeqLM,
    "image": hf.AutoModelForImageClassification,
    "speech": hf.AutoModelForSpeechSeq2Seq,
}
SMALL = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
    use_cache=False,
)
GROUPED = dict(num_key_value_heads=2, head_dim=8)
EXPERTS = dict(num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1)
LATENT = dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, num_key_value_heads=4, head_dim=8)
ENCODER_DECODER = dict(
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
)
T5 = dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, num_decoder_layers=2)
STATES = dict(state_size=4, expand=2)
SSD = dict(num_heads=8, head_dim=8, state_size=8, n_groups=2, chunk_size=4)
VISION = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4, num_labels=4, num_channels=3
)
STAGES = dict(num_labels=4, image_size=32, num_channels=3)
# What an architecture needs beyond the names that most of them share.
OWN = {
    "gpt2": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "openai-gpt": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "gpt_bigcode": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "gptj": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4),
    "codegen": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, n_ctx=64, rotary_dim=4),
    "gpt_neo": dict(num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=4),
    "bloom": dict(n_layer=2, n_head=4),
    "mpt": dict(d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
    "falcon": dict(new_decoder_architecture=False),
    "ctrl": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, dff=48),
    "opt": dict(ffn_dim=48, word_embed_proj_dim=32),
    "xglm": dict(d_model=32, ffn_dim=48, num_layers=2, attention_heads=4),
    "xlnet": dict(max_position_embeddings=None, d_model=32, n_layer=2, n_head=4, d_inner=48),
    "xlm": dict(emb_dim=32, n_layers=2, n_heads=4, n_words=VOCABULARY, pad_index=0),
    "rwkv": dict(context_length=64, attention_hidden_size=32),
    "reformer": dict(
        attn_layers=["local", "lsh"],
        attention_head_size=8,
        feed_forward_size=48,
        num_buckets=2,
        axial_pos_shape=(4, 3),
        axial_pos_embds_dim=(16, 16),
        local_attn_chunk_length=4,
        lsh_attn_chunk_length=4,
        num_hashes=1,
        is_decoder=True,
    ),
    "transfo-xl": dict(d_model=32),
    "mamba": STATES,
    "falcon_mamba": STATES,
    "mamba2": SSD,
    "recurrent_gemma": dict(lru_width=32, attention_window_size=8, num_hidden_layers=3),
    "jamba": dict(
        EXPERTS,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "bamba": dict(attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=2, mamba_chunk_size=4),
    "falcon_h1": dict(mamba_d_ssm=64, mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=2, mamba_chunk_size=4),
    "granitemoehybrid": dict(
        EXPERTS,
        layer_types=["mamba", "attention"],
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_n_groups=2,
        mamba_chunk_size=4,
        shared_intermediate_size=16,
    ),
    "nemotron_h": dict(
        EXPERTS, layers_block_type=["mamba", "attention"], mamba_num_heads=8, mamba_head_dim=8, ssm_state_size=8, n_groups=2, chunk_size=4
    ),
    "zamba2": dict(
        mamba_d_state=8,
        mamba_headdim=8,
        mamba_ngroups=2,
        n_mamba_heads=8,
        chunk_size=4,
        num_mem_blocks=1,
        layers_block_type=["mamba", "hybrid"],
        num_key_value_heads=4,
        attention_head_dim=16,
    ),
    "zamba": dict(layers_block_type=["mamba", "hybrid"], mamba_d_state=4, mamba_dt_rank=4, n_mamba_heads=2, use_mamba_kernels=False),
    "qwen3_next": dict(
        EXPERTS,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        shared_expert_intermediate_size=16,
        layer_types=["linear_attention", "full_attention"],
    ),
    "qwen3_5_text": dict(
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "olmo_hybrid": dict(
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "xlstm": dict(num_heads=4, num_blocks=2, chunk_size=4),
    "lfm2": dict(layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False),
    "lfm2_moe": dict(EXPERTS, layer_types=["conv", "full_attention"], num_dense_layers=1),
    "mixtral": dict(EXPERTS, output_router_logits=True),
    "qwen2_moe": dict(EXPERTS, shared_expert_intermediate_size=16, decoder_sparse_step=1, output_router_logits=True),
    "deepseek_v2": dict(EXPERTS, **LATENT, n_group=2, topk_group=1, first_k_dense_replace=1, topk_method="greedy"),
    "deepseek_v3": dict(EXPERTS, **LATENT, n_group=2, topk_group=1, first_k_dense_replace=1),
    "glm4_moe": dict(EXPERTS, n_group=2, topk_group=1, first_k_dense_replace=1),
    "dots1": dict(EXPERTS, n_group=2, topk_group=1, first_k_dense_replace=1),
    "ernie4_5_moe": dict(EXPERTS, moe_num_experts=4, moe_k=2, moe_layer_start_index=1, moe_num_shared_experts=1),
    "minicpm3": LATENT,
    "llama4_text": dict(EXPERTS, intermediate_size_mlp=48, interleave_moe_layer_step=2, attention_chunk_size=8),
    "dbrx": dict(
        d_model=32,
        n_heads=4,
        n_layers=2,
        max_seq_len=64,
        ffn_config=dict(ffn_hidden_size=48, moe_num_experts=4, moe_top_k=2),
        attn_config=dict(kv_n_heads=2),
    ),
    "gemma2": dict(sliding_window=4),
    "gemma3_text": dict(layer_types=["sliding_attention", "full_attention"], sliding_window=4),
    "cohere2": dict(layer_types=["sliding_attention", "full_attention"], sliding_window=4),
    "gpt_oss": dict(EXPERTS, layer_types=["sliding_attention", "full_attention"], sliding_window=4),
    "minimax": dict(EXPERTS, layer_types=["linear_attention", "full_attention"], block_size=4),
    "gemma3n_text": dict(
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=0,
        laurel_rank=8,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=4,
        activation_sparsity_pattern=[0.0, 0.0],
        intermediate_size=[48, 48],
    ),
    "t5": T5,
    "mt5": T5,
    "umt5": T5,
    "longt5": dict(T5, local_radius=3),
    "switch_transformers": dict(T5, num_experts=4, expert_capacity=16, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1),
    "prophetnet": dict(
        num_hidden_layers=None,
        hidden_size=32,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
    ),
    "fsmt": dict(src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY, langs=["en", "de"]),
    "led": dict(attention_window=4, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64),
    "bigbird_pegasus": dict(attention_type="original_full"),
    "big_bird": dict(attention_type="original_full"),
    "distilbert": dict(dim=32, n_layers=2, n_heads=4, hidden_dim=48),
    "albert": dict(embedding_size=16),
    "electra": dict(embedding_size=16),
    "deberta-v2": dict(relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8),
    "deberta": dict(relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "funnel": dict(num_hidden_layers=None, block_sizes=[1, 1], num_decoder_layers=1, d_model=32, n_head=4, d_head=8, d_inner=48),
    "convbert": dict(embedding_size=16),
    "squeezebert": dict(embedding_size=32),
    "mobilebert": dict(embedding_size=16, intra_bottleneck_size=16),
    "longformer": dict(attention_window=4),
    "flaubert": dict(emb_dim=32, n_layers=2, n_heads=4),
    "rembert": dict(input_embedding_size=16, output_embedding_size=32),
    "modernbert": dict(global_attn_every_n_layers=2, local_attention=4),
    "nystromformer": dict(num_landmarks=4, segment_means_seq_len=12),
    "whisper": dict(num_mel_bins=16, max_source_positions=32, max_target_positions=64),
    "speech_to_text": dict(input_feat_per_channel=16, max_source_positions=64, max_target_positions=64),
    "moonshine": dict(encoder_num_hidden_layers=2, decoder_num_hidden_layers=2, encoder_num_attention_heads=4, decoder_num_attention_heads=4),
    "resnet": dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1]),
    "regnet": dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], groups_width=8),
    "convnext": dict(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2),
    "convnextv2": dict(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2),
    "swin": dict(embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4, patch_size=4),
    "swinv2": dict(embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4, patch_size=4),
    "mobilenet_v1": dict(depth_multiplier=0.25, min_depth=8),
    "mobilenet_v2": dict(depth_multiplier=0.25, min_depth=8, depth_divisible_by=8),
    "poolformer": dict(hidden_sizes=[16, 32], depths=[1, 1], patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1], num_encoder_blocks=2),
    "segformer": dict(
        hidden_sizes=[16, 32],
        depths=[1, 1],
        num_encoder_blocks=2,
        patch_sizes=[7, 3],
        strides=[4, 2],
        sr_ratios=[2, 1],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
    ),
    "imagegpt": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=VOCABULARY + 1, num_labels=4),
}
STAGED = ("resnet", "regnet", "convnext", "swin", "mobilenet", "poolformer", "segformer")
DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "attention_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "dropout",
    "dropout_rate",
)


MOST_PARAMETERS = 1 << 20


def configuration(task, kind, how):
    usual = hf.AutoConfig.for_model(kind)
    wanted = {**ENCODER_DECODER, **GROUPED, **EXPERTS}
    values = {name: value for name, value in wanted.items() if hasattr(usual, name)}
    if task == "image":
        values.update(STAGES if kind.startswith(STAGED) else VISION)
    else:
        values.update(SMALL)
    if task == "causal" and hasattr(usual, "is_decoder"):
        values["is_decoder"] = True
    values.update(OWN.get(kind, {}))
    if "drop" not in how:
        values.update({name: 0.0 for name in DROPOUTS if hasattr(usual, name)})
    return hf.AutoConfig.for_model(kind, **{name: value for name, value in values.items() if value is not None})


def build(task, config):
    """No model that a default left large."""
    with torch.device("meta"):
        size = sum(p.numel() for p in AUTO[task].from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(0)
    return AUTO[task].from_config(config)


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * 0.1).sub_((mean * 0.9 + p.grad * 0.1).sign_() * group["lr"])
                mean.mul_(0.99).add_(p.grad, alpha=0.01)


def optimizers_of(how, parameters):
    if "muon" in how:
        matrices = [p for p in parameters if p.ndim == 2 and p.shape[0] != VOCABULARY]
        rest = [p for p in parameters if all(p is not m for m in matrices)]
        return [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(rest, lr=1e-3)]
    if "sgd" in how:
        return [torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, nesterov=True)]
    if "adafactor" in how:
        return [torch.optim.Adafactor(parameters, lr=1e-3)]
    if "lion" in how:
        return [Lion(parameters, 1e-4)]
    return [torch.optim.AdamW(parameters, lr=1e-3, fused="fused" in how)]


def padded(ids, how):
    """Sequences of other lengths, padded at one end."""
    mask = torch.ones_like(ids)
    for row, n in enumerate((0, 4)):
        place = slice(0, n) if "left" in how else slice(COLUMNS - n, None)
        mask[row, place] = 0
    return torch.where(mask == 1, ids, 0), torch.where(mask == 1, ids, -100), mask


def batch_of(task, kind, config, how, dtype):
    ids = torch.randint(3, VOCABULARY, (2, COLUMNS))
    if task == "image":
        if kind == "imagegpt":
            return dict(input_ids=ids, labels=torch.randint(0, 4, (2,)))
        return dict(pixel_values=torch.randn(2, 3, config.image_size, config.image_size, dtype=dtype), labels=torch.randint(0, 4, (2,)))
    if task == "speech":
        if kind == "moonshine":
            return dict(input_values=torch.randn(2, 2000, dtype=dtype), labels=ids)
        shape = (2, 64, 16) if kind == "speech_to_text" else (2, 16, 64)
        return dict(input_features=torch.randn(shape, dtype=dtype), labels=ids)
    labels, given = ids, {}
    if "padding" in how or "left" in how:
        ids, labels, given["attention_mask"] = padded(ids, how)
    if task == "masked":
        chosen = torch.zeros(ids.shape).scatter(1, torch.rand(2, 8).topk(3)[1], 1) == 1  # as many in each row
        labels, ids = torch.where(chosen & (labels != -100), ids, -100), torch.where(chosen, 3, ids)
    return dict(input_ids=ids, labels=labels[:, :8].contiguous() if task == "seq2seq" else labels, **given)


def prepare(task, kind, how):
    config = configuration(task, kind, how)
    if "eager" in how:
        config._attn_implementation = "eager"
    model = build(task, config)
    if "bf16" in how:
        model = model.bfloat16()
    if "lora" in how:
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1 if "drop" in how else 0.0))
    if "checkpoint" in how or "reentrant" in how:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": "reentrant" in how})
        if "reentrant" in how:
            model.enable_input_require_grads()
    dtype = next(p for p in model.parameters() if p.is_floating_point()).dtype
    batches = [batch_of(task, kind, config, how, dtype) for _ in range(2 if "gas" in how else 1)]
    return model.train(), batches


def step(model, batches, how, optimizers):
    parameters = [p for p in model.parameters() if p.requires_grad]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaler" in how)
    for batch in batches:
        with torch.autocast("cpu", torch.bfloat16) if "autocast" in how else contextlib.nullcontext():
            loss = model(**batch).loss / len(batches)
        scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    if "clip" in how:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for optimizer in optimizers:
        scaler.step(optimizer)


def train(name, out):
    what, *how = name.split("+")
    task, _, kind = what.partition(":")
    model, batches = prepare(task, kind, how)
    optimizers = optimizers_of(how, [p for p in model.parameters() if p.requires_grad])
    with lastbit.torch.capture(out, level="ops") as capture, capture.step(0):
        step(model, batches, how, optimizers)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        out = pathlib.Path(sys.argv[1]) / f"{name}.lb"
        try:
            train(name, out)
        except Exception as error:
            shutil.rmtree(out, ignore_errors=True)
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"{name} did not run: {type(error).__name__}: {str(error)[:200]} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})", flush=True)
