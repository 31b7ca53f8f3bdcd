"""Training steps of tiny randomly initialised Hugging Face models: the settings that change which ops run."""

import argparse
import contextlib
import hashlib

import torch
import transformers
from smollm_config import SMOLLM

CONFIGS = {
    "llama": ("LlamaConfig", dict(num_key_value_heads=2, intermediate_size=128)),
    "gpt2": ("GPT2Config", dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        dict(
            num_key_value_heads=2,
            intermediate_size=128,
            moe_intermediate_size=32,
            num_experts=8,
            num_experts_per_tok=2,
            head_dim=16,
            norm_topk_prob=True,
        ),
    ),
    "smollm": (
        "LlamaConfig",
        SMOLLM,
    ),
}
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", choices=CONFIGS, default="llama")
parser.add_argument("--dtype", choices=["fp32", "bf16", "autocast"], default="fp32")
parser.add_argument("--attention", choices=["eager", "sdpa"], default="sdpa")
parser.add_argument(
    "--optimizer",
    choices=["single", "foreach", "fused", "muon"],
    default="single",
    help="AdamW in one of its forms, or torch.optim.Muon for the matrices with AdamW for the rest",
)
parser.add_argument("--experts", choices=["eager", "batched_mm", "grouped_mm"], default="grouped_mm")
parser.add_argument("--accumulate", type=int, default=1, help="micro-batches that the batch is cut into")
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--seq", type=int, default=16)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.set_num_threads(args.threads)
torch.manual_seed(args.seed)
name, extra = CONFIGS[args.model]
small = dict(
    vocab_size=256,
    hidden_size=args.hidden,
    num_hidden_layers=args.layers,
    num_attention_heads=4,
    max_position_embeddings=256,
    use_cache=False,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
)
config = getattr(transformers, name)(**{**small, **extra})
config._attn_implementation = args.attention
if "num_experts" in extra:
    config._experts_implementation = args.experts
model = transformers.AutoModelForCausalLM.from_config(config)
if args.dtype == "bf16":
    model.to(torch.bfloat16)
model.train()

matrices = {n for n, p in model.named_parameters() if p.ndim == 2 and not any(word in n for word in ("embed", "wte", "wpe", "head"))}
if args.optimizer == "muon":
    optimizers = [
        torch.optim.Muon([p for n, p in model.named_parameters() if n in matrices], lr=1e-2),
        torch.optim.AdamW([p for n, p in model.named_parameters() if n not in matrices], lr=1e-3),
    ]
else:
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=args.optimizer == "foreach", fused=args.optimizer == "fused")]
text = torch.Generator().manual_seed(args.seed + 1)
for step in range(args.steps):
    batch, total = torch.randint(0, 256, (args.batch, args.seq), generator=text), 0.0
    for part in batch.chunk(args.accumulate):
        with torch.autocast("cpu", torch.bfloat16) if args.dtype == "autocast" else contextlib.nullcontext():
            loss = model(input_ids=part, labels=part).loss / args.accumulate
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    print(f"step {step} loss {total:.6f} grad_norm {norm.item():.6f}", flush=True)
digest = hashlib.sha256()
for p in model.parameters():
    digest.update(p.detach().contiguous().view(torch.uint8).numpy().tobytes())
print("digest", digest.hexdigest())
