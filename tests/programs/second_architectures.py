"""Architectures of transformers beside the same written again in plain torch (plain_decoders.py, plain_encoders.py, plain_mixers.py).

    python second_architectures.py --all DIR       # every one of them: NET-first.lb, NET-second.lb, NET-FAULT.lb, and train-NET-… of two steps of training
    python second_architectures.py --confirm       # in float64: both ways agree to 1e-9, and a fault moves more than 1e-6

Every net has three layers; a fault is one other expression of the second way, in layers.1 alone."""

import os
import sys

import plain_decoders
import plain_encoders
import plain_mixers
import torch
import torch.nn.functional as F
import transformers
import wide_floats

BUILDERS = {**plain_decoders.BUILDERS, **plain_encoders.BUILDERS, **plain_mixers.BUILDERS}
WORDS, WIDTH, LENGTH = 48, 64, 10
SMALL = dict(vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=3, num_attention_heads=4, pad_token_id=None, bos_token_id=None, eos_token_id=None)
LLAMA = dict(SMALL, num_key_value_heads=2, intermediate_size=96, head_dim=16)
BERT = dict(SMALL, intermediate_size=96, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
GPT = dict(vocab_size=WORDS, n_layer=3, n_head=4, pad_token_id=None, bos_token_id=None, eos_token_id=None)
NO_DROPOUT = dict(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)

# Of each net the class of its configuration, that of its model, and its settings
NETS = dict(
    gptj=("GPTJ", "ForCausalLM", dict(GPT, n_embd=WIDTH, n_positions=32, rotary_dim=8, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)),
    bloom=("Bloom", "ForCausalLM", dict(GPT, hidden_size=WIDTH, hidden_dropout=0.0, attention_dropout=0.0)),
    cohere=("Cohere", "ForCausalLM", dict(LLAMA, logit_scale=0.25, rope_theta=10000.0)),
    granite=(
        "Granite",
        "ForCausalLM",
        dict(LLAMA, attention_multiplier=0.2, residual_multiplier=0.3, embedding_multiplier=3.0, logits_scaling=2.0),
    ),
    olmo2=("Olmo2", "ForCausalLM", dict(LLAMA, rms_norm_eps=1e-6)),
    nemotron=("Nemotron", "ForCausalLM", dict(LLAMA, norm_eps=1e-5, partial_rotary_factor=0.5)),
    olmoe=("Olmoe", "ForCausalLM", dict(LLAMA, num_experts=4, num_experts_per_tok=2)),
    modernbert=("ModernBert", "Model", dict(SMALL, intermediate_size=96, local_attention=6, cls_token_id=None, sep_token_id=None)),
    roformer=("RoFormer", "Model", dict(BERT, embedding_size=WIDTH)),
    fnet=("FNet", "Model", dict(SMALL, intermediate_size=96, hidden_dropout_prob=0.0, max_position_embeddings=16)),
    spectrogram=(
        "AST",
        "Model",
        dict(BERT, patch_size=4, frequency_stride=3, time_stride=3, max_length=16, num_mel_bins=10),
    ),
    convnextv2=("ConvNextV2", "Model", dict(num_stages=1, hidden_sizes=[16], depths=[3], patch_size=4)),
    bart=(
        "Bart",
        "ForConditionalGeneration",
        dict(
            NO_DROPOUT,
            vocab_size=WORDS,
            d_model=WIDTH,
            encoder_layers=3,
            decoder_layers=3,
            encoder_ffn_dim=96,
            decoder_ffn_dim=96,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            max_position_embeddings=32,
        ),
    ),
    griffin=(
        "RecurrentGemma",
        "ForCausalLM",
        dict(LLAMA, num_key_value_heads=1, lru_width=WIDTH, attention_window_size=4, block_types=["recurrent", "recurrent", "attention"]),
    ),
    delta=(
        "Qwen3Next",
        "ForCausalLM",
        dict(
            LLAMA,
            layer_types=["linear_attention"] * 3,
            mlp_only_layers=[0, 1, 2],
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
        ),
    ),
)
INPUTS = dict(spectrogram=(2, 16, 10), convnextv2=(2, 3, 24, 24))
EAGER = ("gptj", "bloom", "granite", "spectrogram", "bart", "roformer")  # attention spelled out; the others call torch's own


def transformers_model(name):
    kind, head, settings = NETS[name]
    attention = {} if name in ("fnet", "convnextv2") else dict(attn_implementation="eager" if name in EAGER else "sdpa")
    if name == "olmoe" and torch.get_default_dtype() == torch.float64:
        attention["experts_implementation"] = "eager"  # torch's grouped product has no float64
    config = getattr(transformers, f"{kind}Config")(**settings, **attention)
    torch.manual_seed(3)
    model = getattr(transformers, f"{kind}{head}")(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape) * (0.2 if p.dim() == 1 else 0.12))
    return model.eval()


def built(name, way, fault, dtype):
    make, kind = BUILDERS[name]
    model = transformers_model(name).to(dtype)
    if way == "second":
        model = make(model).to(dtype)
        model.layers[1].fault = fault
    torch.manual_seed(5)
    shape = INPUTS.get(name)
    return model, torch.randn(shape, dtype=torch.float64).to(dtype) if shape else torch.randint(1, WORDS, (2, LENGTH))


def scores(model, name, way, x):
    if way == "second":
        return model(x)
    if name == "bart":
        return model(input_ids=x, decoder_input_ids=x.roll(1, 1)[:, :8], use_cache=False).logits
    out = model(x) if name in INPUTS or name in ("fnet", "modernbert", "roformer") else model(x, use_cache=False)
    if hasattr(out, "logits"):
        return out.logits
    return out.pooler_output if name == "convnextv2" else out.last_hidden_state


def faults_of(name):
    return BUILDERS[name][1].faults


def pairs():
    """Name, way, fault, and whether two steps of training are recorded."""
    for trained in (False, True):
        for name in NETS:
            yield name, "first", None, trained
            for fault in (None, *faults_of(name)):
                if not trained or fault in (None, faults_of(name)[0]):
                    yield name, "second", fault, trained


def confirm():
    wide_floats.widened()
    for name in NETS:
        with torch.no_grad():
            model, x = built(name, "first", None, torch.float64)
            right = scores(model, name, "first", x)
            for fault in (None, *faults_of(name)):
                model, x = built(name, "second", fault, torch.float64)
                far = float((scores(model, name, "second", x) - right).norm() / right.norm())
                print("%-6s %.1e %s %s" % ("right" if (far > 1e-6 if fault else far < 1e-9) else "WRONG", far, name, fault or ""), flush=True)


def execute(model, name, way, x, trained, capture):
    if not trained:
        with torch.no_grad():
            scores(model, name, way, x)
        return
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number in range(2):
        with capture.step(number):
            given = scores(model, name, way, x).flatten(0, -2)
            loss = F.cross_entropy(given, torch.arange(len(given)) % given.shape[1])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def record(out, name, way, fault, trained):
    import lastbit.torch

    model, x = built(name, way, fault, torch.float32)
    with lastbit.torch.capture(out, level="ops") as capture:
        execute(model, name, way, x, trained, capture)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--confirm":
        confirm()
    else:
        for name, way, fault, trained in pairs():
            out = f"{sys.argv[2]}/{'train-' * trained}{name}-{fault or way}.lb"
            if not os.path.exists(out):
                record(out, name, way, fault, trained)
