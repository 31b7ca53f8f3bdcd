"""Tiny randomly initialised Hugging Face models of 24 architectures, trained for two steps or asked to generate: what makes other ops run."""

import argparse
import contextlib
import hashlib
import inspect

import torch
import torch.nn.functional as F
import transformers

VOCAB, HIDDEN = 256, 64
TEXT = dict(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=128,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=2,
)
GROUPED = dict(TEXT, num_key_value_heads=2, intermediate_size=128)
MOE = dict(GROUPED, num_experts=8, num_local_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
SSD = dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=2, mamba_chunk_size=8)
VISION = dict(hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=16, patch_size=4)

# name: (configuration, model, arguments, kind of task, the argument that turns dropout on)
MODELS = {
    "llama": ("LlamaConfig", "AutoModelForCausalLM", GROUPED, "causal", {"attention_dropout": 0.1}),
    "gpt2": (
        "GPT2Config",
        "AutoModelForCausalLM",
        dict(TEXT, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
        "causal",
        {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
    ),
    "qwen3": ("Qwen3Config", "AutoModelForCausalLM", dict(GROUPED, head_dim=16), "causal", {"attention_dropout": 0.1}),
    "qwen3_moe": ("Qwen3MoeConfig", "AutoModelForCausalLM", dict(MOE, head_dim=16, norm_topk_prob=True), "causal", {"attention_dropout": 0.1}),
    "mixtral": ("MixtralConfig", "AutoModelForCausalLM", dict(MOE, intermediate_size=32), "causal", {"attention_dropout": 0.1}),
    "deepseek_v3": (
        "DeepseekV3Config",
        "AutoModelForCausalLM",
        dict(
            GROUPED,
            num_key_value_heads=4,
            n_routed_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            n_shared_experts=1,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=32,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=16,
        ),
        "causal",
        {"attention_dropout": 0.1},
    ),
    "mamba2": (
        "Mamba2Config",
        "AutoModelForCausalLM",
        dict(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            num_hidden_layers=2,
            num_heads=8,
            head_dim=16,
            state_size=16,
            n_groups=2,
            chunk_size=8,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
        ),
        "causal",
        None,
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        "AutoModelForCausalLM",
        dict(
            MOE,
            head_dim=16,
            num_hidden_layers=4,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            shared_expert_intermediate_size=32,
        ),
        "causal",
        {"attention_dropout": 0.1},
    ),
    "gemma2": ("Gemma2Config", "AutoModelForCausalLM", dict(GROUPED, head_dim=16, sliding_window=8), "causal", {"attention_dropout": 0.1}),
    "gemma3": ("Gemma3TextConfig", "AutoModelForCausalLM", dict(GROUPED, head_dim=16, sliding_window=8), "causal", {"attention_dropout": 0.1}),
    "gpt_oss": (
        "GptOssConfig",
        "AutoModelForCausalLM",
        dict(MOE, head_dim=16, intermediate_size=32, sliding_window=8),
        "causal",
        {"attention_dropout": 0.1},
    ),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        dict(
            vocab_size=VOCAB,
            d_model=HIDDEN,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
        ),
        "seq2seq",
        {"dropout_rate": 0.1},
    ),
    "bert": (
        "BertConfig",
        "BertForMaskedLM",
        dict(TEXT, intermediate_size=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        "masked",
        {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    ),
    "minilm": (
        "BertConfig",
        "BertModel",
        dict(TEXT, intermediate_size=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        "contrastive",
        {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    ),
    "vit": (
        "ViTConfig",
        "ViTForImageClassification",
        dict(VISION, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        "image",
        {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    ),
    "siglip_vision": ("SiglipVisionConfig", "SiglipVisionModel", VISION, "pooled", {"attention_dropout": 0.1}),
    "qwen2_vl": ("Qwen2VLConfig", "Qwen2VLForConditionalGeneration", None, "vision-text", None),
    "mamba": (
        "MambaConfig",
        "AutoModelForCausalLM",
        dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=2, state_size=8, bos_token_id=0, eos_token_id=1, pad_token_id=2),
        "causal",
        None,
    ),
    "jamba": (
        "JambaConfig",
        "AutoModelForCausalLM",
        dict(
            MOE,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=8,
            mamba_dt_rank=4,
            use_mamba_kernels=False,
        ),
        "causal",
        {"attention_dropout": 0.1},
    ),
    "bamba": ("BambaConfig", "AutoModelForCausalLM", dict(GROUPED, attn_layer_indices=[1], **SSD), "causal", {"attention_dropout": 0.1}),
    "falcon_h1": (
        "FalconH1Config",
        "AutoModelForCausalLM",
        dict(GROUPED, mamba_d_ssm=2 * HIDDEN, mamba_rms_norm=True, key_multiplier=0.7, lm_head_multiplier=0.5, mlp_multipliers=[0.9, 0.6], **SSD),
        "causal",
        {"attention_dropout": 0.1},
    ),
    "rwkv": (
        "RwkvConfig",
        "AutoModelForCausalLM",
        dict(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            num_hidden_layers=2,
            context_length=128,
            attention_hidden_size=HIDDEN,
            intermediate_size=128,
            bos_token_id=0,
            eos_token_id=1,
        ),
        "causal",
        None,
    ),
    "clip": ("CLIPConfig", "CLIPModel", None, "image-text", {"attention_dropout": 0.1}),
    "whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        dict(
            vocab_size=VOCAB,
            d_model=HIDDEN,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            num_mel_bins=16,
            max_source_positions=32,
            max_target_positions=64,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
            decoder_start_token_id=0,
        ),
        "speech",
        {"dropout": 0.1, "attention_dropout": 0.1},
    ),
}
WITHOUT_SDPA = {"mamba2", "gemma2", "gpt_oss", "mamba", "rwkv"}
EXPERTS = {"qwen3_moe", "mixtral", "deepseek_v3", "qwen3_next", "gpt_oss", "jamba"}


def configuration(args):
    name, _, values, _, dropout = MODELS[args.model]
    if args.model == "qwen2_vl":
        config = transformers.Qwen2VLConfig(
            text_config=dict(GROUPED, rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]}),
            vision_config=dict(
                depth=2,
                embed_dim=32,
                hidden_size=HIDDEN,
                num_heads=2,
                mlp_ratio=2,
                patch_size=4,
                spatial_merge_size=2,
                temporal_patch_size=2,
                in_channels=3,
            ),
            image_token_id=250,
            video_token_id=251,
            vision_start_token_id=252,
            vision_end_token_id=253,
        )
    elif args.model == "clip":
        more = dropout if args.dropout else {}
        config = transformers.CLIPConfig(text_config=dict(TEXT, intermediate_size=128, **more), vision_config=dict(VISION, **more), projection_dim=32)
    else:
        values = dict(values, **(dropout or {}) if args.dropout else {})
        if args.model == "gemma3":
            values["layer_types"] = ["sliding_attention", "full_attention"]
        if args.model == "qwen3_next":
            values["layer_types"] = ["linear_attention"] * 3 + ["full_attention"]
        config = getattr(transformers, name)(**values)
    config._attn_implementation = "eager" if args.model in WITHOUT_SDPA else args.attention
    if args.model in EXPERTS:
        config._experts_implementation = args.experts
    return config


def build(args):
    config = configuration(args)
    cls = getattr(transformers, MODELS[args.model][1])
    model = cls.from_config(config) if MODELS[args.model][1].startswith("Auto") else cls(config)
    if args.dtype in ("bf16", "fp16"):
        model.to({"bf16": torch.bfloat16, "fp16": torch.float16}[args.dtype])
    return model


def mask_of(args, tokens):
    """Right-hand padding of the second row."""
    mask = torch.ones_like(tokens)
    if args.padding:
        mask[1:, -tokens.shape[1] // 4 :] = 0
    return mask


def images(args, draw, model):
    return torch.randn(2, 3, 16, 16, generator=draw).to(next(model.parameters()).dtype)


def sound(draw, model):
    return torch.randn(2, 16, 64, generator=draw).to(next(model.parameters()).dtype)


def loss_of(args, model, draw):
    kind = MODELS[args.model][3]
    tokens = torch.randint(3, 240, (2, args.seq), generator=draw)
    mask = mask_of(args, tokens)
    given = {"attention_mask": mask} if args.padding else {}
    if kind in ("causal", "masked"):
        return model(input_ids=tokens, labels=torch.where(mask > 0, tokens, -100), **given).loss
    if kind == "seq2seq":
        return model(input_ids=tokens, labels=tokens[:, :8].contiguous(), **given).loss
    if kind == "contrastive":
        states = [model(input_ids=t, attention_mask=mask).last_hidden_state for t in (tokens, tokens.roll(1, 1))]
        weight = mask[..., None].to(states[0].dtype)
        a, b = (F.normalize((s * weight).sum(1) / weight.sum(1).clamp(min=1e-9), dim=-1) for s in states)
        return F.cross_entropy(a @ b.t() * 20, torch.arange(2))
    if kind == "image":
        return model(pixel_values=images(args, draw, model), labels=torch.randint(0, 10, (2,), generator=draw)).loss
    if kind == "image-text":
        return model(input_ids=tokens, pixel_values=images(args, draw, model), return_loss=True, **given).loss
    if kind == "speech":
        return model(input_features=sound(draw, model), labels=torch.where(mask > 0, tokens, -100)).loss
    if kind == "pooled":
        return model(pixel_values=images(args, draw, model)).pooler_output.float().pow(2).mean()
    grid = torch.tensor([[1, 4, 4]])
    patches = torch.randn(16, 3 * 2 * 4 * 4, generator=draw).to(next(model.parameters()).dtype)
    tokens = torch.randint(3, 240, (1, args.seq), generator=draw)
    tokens[0, 1], tokens[0, 2:6], tokens[0, 6] = 252, 250, 253
    kinds = (tokens == 250).int()
    extra = {"mm_token_type_ids": kinds} if "mm_token_type_ids" in inspect.signature(model.forward).parameters else {}
    return model(input_ids=tokens, pixel_values=patches, image_grid_thw=grid, labels=tokens, **extra).loss


def train(args, model):
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if args.lora:
        import peft

        names = {"gpt2": ["c_attn"], "t5": ["q", "v"], "bert": ["query", "value"]}.get(args.model, ["q_proj", "v_proj"])
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=names, lora_dropout=0.1 if args.dropout else 0.0))
    model.train()
    wanted = [p for p in model.parameters() if p.requires_grad]
    choices = {
        "adamw": lambda: torch.optim.AdamW(wanted, lr=1e-3),
        "foreach": lambda: torch.optim.AdamW(wanted, lr=1e-3, foreach=True),
        "fused": lambda: torch.optim.AdamW(wanted, lr=1e-3, fused=True),
        "amsgrad": lambda: torch.optim.AdamW(wanted, lr=1e-3, amsgrad=True, foreach=True),
        "sgd": lambda: torch.optim.SGD(wanted, lr=args.lr, momentum=0.9, nesterov=True),
        "adafactor": lambda: torch.optim.Adafactor(wanted, lr=1e-3),
        "rmsprop": lambda: torch.optim.RMSprop(wanted, lr=1e-3),
        "nadam": lambda: torch.optim.NAdam(wanted, lr=1e-3),
        "radam": lambda: torch.optim.RAdam(wanted, lr=1e-3),
        "adagrad": lambda: torch.optim.Adagrad(wanted, lr=1e-3),
    }
    optimizer = choices[args.optimizer]()
    draw = torch.Generator().manual_seed(args.seed + 1)
    for step in range(args.steps):
        with torch.autocast("cpu", torch.bfloat16) if args.dtype == "autocast" else contextlib.nullcontext():
            loss = loss_of(args, model, draw)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(wanted, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.6f} grad_norm {norm.item():.6f}", flush=True)
    return model.merge_and_unload() if args.lora else model


def decode(args, model):
    """Generation from a key-value cache (a recurrent state for Mamba)."""
    model.eval()
    draw = torch.Generator().manual_seed(args.seed + 1)
    kind = MODELS[args.model][3]
    if kind not in ("causal", "seq2seq"):
        with torch.inference_mode():
            loss_of(args, model, draw)
        return
    tokens = torch.randint(3, 240, (2, args.seq), generator=draw)
    mask = mask_of(args, tokens).flip(1)  # padded on the left
    torch.manual_seed(args.seed)
    with torch.autocast("cpu", torch.bfloat16) if args.dtype == "autocast" else contextlib.nullcontext():
        text = model.generate(input_ids=tokens, attention_mask=mask, max_new_tokens=5, do_sample=args.sample, top_k=16 if args.sample else None)
    print("text", text.tolist())


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", choices=MODELS, default="llama")
parser.add_argument("--dtype", choices=["fp32", "bf16", "fp16", "autocast"], default="fp32")
parser.add_argument("--attention", choices=["eager", "sdpa"], default="sdpa")
parser.add_argument("--experts", choices=["eager", "batched_mm", "grouped_mm"], default="grouped_mm")
parser.add_argument("--optimizer", default="adamw")
parser.add_argument("--lr", type=float, default=1e-2, help="of SGD")
for flag in ("dropout", "padding", "decode", "sample", "checkpointing", "lora"):
    parser.add_argument(f"--{flag}", action="store_true")
parser.add_argument("--seq", type=int, default=16)
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(args.seed)
model = build(args)
if args.decode:
    decode(args, model)
else:
    model = train(args, model)
digest = hashlib.sha256()
for p in model.parameters():
    digest.update(p.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
print("digest", digest.hexdigest())
