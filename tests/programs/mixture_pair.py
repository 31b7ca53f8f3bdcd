"""One forward pass of a tiny Qwen3-MoE, as it is or with one thing changed: the two sides of a pair."""

import argparse

import torch
import transformers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--change",
    choices=["none", "gate", "attention", "weights", "roll"],
    default="none",
    help="the second layer's router; what the first layer's attention gives; how sharply the second layer's router "
    "weighs the same experts; rows of the first layer's experts one place on",
)
parser.add_argument("--experts", choices=["eager", "batched_mm", "grouped_mm"], default="grouped_mm")
parser.add_argument("--chosen", type=int, default=2, help="experts for each token")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
config = transformers.Qwen3MoeConfig(
    vocab_size=256,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=128,
    moe_intermediate_size=32,
    num_experts=8,
    num_experts_per_tok=args.chosen,
    head_dim=16,
    norm_topk_prob=True,
    max_position_embeddings=256,
    use_cache=False,
)
config._experts_implementation = args.experts
model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, args.dtype))
layers = model.model.layers
tokens = torch.randint(0, 256, (2, 64))
if args.change == "gate":
    with torch.no_grad():
        layers[1].mlp.gate.weight.add_(torch.randn_like(layers[1].mlp.gate.weight), alpha=0.02)
if args.change == "attention":
    with torch.no_grad():
        layers[0].self_attn.o_proj.weight.mul_(1.5)
if args.change == "weights":
    with torch.no_grad():
        layers[1].mlp.gate.weight.mul_(4)
if args.change == "roll":
    layers[0].mlp.experts.act_fn.register_forward_hook(lambda module, inputs, output: output.roll(1, 0))
with torch.no_grad():
    model(input_ids=tokens)
