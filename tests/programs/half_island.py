"""A small mixture of experts in which one projection runs in float16 and overflows from a step on: half_island.py EXPERTS LAYER.

The router's numbers are large, as a trained router's may be: weights of experts that it did not choose itself add up to 0.
"""

import sys

import torch
import transformers

experts, layer = sys.argv[1:3]
torch.manual_seed(0)
torch.set_num_threads(1)
config = transformers.MixtralConfig(
    vocab_size=128,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    num_local_experts=4,
    num_experts_per_tok=2,
    max_position_embeddings=64,
    pad_token_id=None,
    use_cache=False,
)
config._experts_implementation = experts
model = transformers.AutoModelForCausalLM.from_config(config)
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if name.endswith("gate.weight"):
            parameter.mul_(10000)


class Half(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.scale = 1.0

    def forward(self, x):
        return torch.nn.functional.linear((x * self.scale).half(), self.inner.weight.half()).to(x.dtype) / self.scale


parent, _, leaf = layer.rpartition(".")
half = Half(model.get_submodule(layer))
setattr(model.get_submodule(parent), leaf, half)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    batch = torch.randint(2, 128, (2, 16))
    if step == 1:
        half.scale = 1e9
    model(input_ids=batch, labels=batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
