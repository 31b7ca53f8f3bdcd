"""A tiny Llama with custom code, recorded several times: as it is, and with one fault each. Lines that tests look for have a comment."""

import pathlib
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "capture"))
import lastbit.torch  # noqa: E402

FAULTS = ("none", "forward", "backward", "optimizer", "residual")
fault = "none"


class Mlp(modeling_llama.LlamaMLP):
    def forward(self, x):
        gate = self.act_fn(self.gate_proj(x))
        if fault == "forward":
            gate = gate * 1.01  # the scaled gate
        return self.down_proj(gate * self.up_proj(x))  # what follows the gate


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, g):
        return g * (1.9 if fault == "backward" else 2.0)  # the doubled gradient


class Layer(modeling_llama.LlamaDecoderLayer):
    def forward(self, hidden_states, **kwargs):
        normed = self.input_layernorm(hidden_states)
        attended, _ = self.self_attn(hidden_states=normed, **kwargs)
        hidden_states = hidden_states + attended  # the first residual
        mlp = self.mlp(self.post_attention_layernorm(hidden_states))
        if fault == "residual":
            return mlp
        return hidden_states + mlp  # the second residual


def train(steps=1):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2)
    model = LlamaForCausalLM(config)
    model.model.layers[1].__class__ = Layer
    model.model.layers[1].mlp.__class__ = Mlp
    model.model.embed_tokens.weight.register_hook(lambda g: g * 1.0)  # the hook
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        ids = torch.randint(0, 64, (2, 8))
        loss = Doubled.apply(model(ids, labels=ids).loss)
        loss.backward()  # backward
        if fault == "optimizer":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # clipped shorter
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)  # clipped
        optimizer.step()  # the update
        optimizer.zero_grad()


def record(name, **how):
    with lastbit.torch.capture(pathlib.Path(sys.argv[1]) / (name + ".lb"), level="ops", **how):
        train()


if __name__ == "__main__":
    for fault in FAULTS:
        record(fault)
    fault = "none"
    record("no-lines", lines=False)
