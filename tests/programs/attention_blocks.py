"""A Llama of bf16 that reads four sequences: attention_blocks.py eager|sdpa [TIMES], TIMES what its down projections are."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

if __name__ == "__main__":
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        initializer_range=0.2,
        attn_implementation=sys.argv[1],
    )
    model = LlamaForCausalLM(config).eval().bfloat16()
    ids = torch.randint(0, 256, (4, 32), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(float(sys.argv[2]) if len(sys.argv) > 2 and "down_proj" in name else 1)
        model(input_ids=ids, labels=ids)
