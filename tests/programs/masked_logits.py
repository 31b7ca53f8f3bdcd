"""A tiny bf16 Llama whose outermost output is its logits with a third of the vocabulary masked, as constrained decoding leaves them."""

import torch
import transformers

torch.set_num_threads(1)
torch.manual_seed(0)
size = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=96, initializer_range=0.2, **size))
        self.register_buffer("banned", torch.arange(96) % 3 == 0)

    def forward(self, tokens):
        return self.model(input_ids=tokens, use_cache=False).logits.masked_fill(self.banned, -torch.inf)


model = Masked().to(torch.bfloat16).eval()
with torch.no_grad():
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight += 0.3 * torch.randn_like(weight)
    model(torch.randint(3, 90, (2, 16)))
