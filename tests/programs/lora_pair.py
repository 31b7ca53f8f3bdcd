"""A tiny Llama with a LoRA adapter of peft scores tokens: online, merged into plain weights, or merged in place; whole, or after a shard was lost."""

import argparse

import torch
import transformers
from peft import LoraConfig, get_peft_model

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--serve", choices=["online", "merged", "in-place"], default="online")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--kind", choices=["lora", "rslora", "dora", "gpt2"], default="lora")
parser.add_argument("--lost", action="store_true", help="half of every B is zero, as one of two tensor-parallel ranks leaves it")
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
SIZE = dict(vocab_size=256, initializer_range=0.15)
if args.kind == "gpt2":
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4, n_positions=64, **SIZE))
    targets = ["c_attn", "c_proj", "c_fc"]
else:
    heads = dict(num_attention_heads=4, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=1, **heads, **SIZE))
    targets = "all-linear"
how = dict(use_rslora=args.kind == "rslora", use_dora=args.kind == "dora", fan_in_fan_out=args.kind == "gpt2")
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=targets, init_lora_weights=False, **how))
with torch.no_grad():
    for name, weight in model.named_parameters():
        if args.lost and "lora_B" in name:
            weight[weight.shape[0] // 2 :] = 0
model = model.to(getattr(torch, args.dtype)).eval()
if args.serve == "merged":
    model = model.merge_and_unload()
if args.serve == "in-place":
    model.merge_adapter()
tokens = torch.randint(3, 240, (2, 24), generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    model(input_ids=tokens, use_cache=False)
