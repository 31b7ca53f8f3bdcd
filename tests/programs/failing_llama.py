"""Training steps of a Hugging Face Llama of a real size, failing in one decoder layer: for measuring how long a bisection takes.

failing_llama.py FAULT [--shape llama|smollm|slice|small] [--steps N] [--optimizer single|foreach|fused]

none       it does not fail
weight     before step 2 a weight is multiplied by 1e30: everything in the program, as after a broken checkpoint merge
gradient   in step 2 the gradient that enters an MLP is not finite: as of a fused backward that divides by zero
overflow   in step 2 an MLP's activation overflows
half       attention scores of one layer are computed in float16, and leave its range in step 2
rate       a learning rate that is far too large
"""

import argparse

import torch
import transformers
from smollm_config import SMOLLM

SHAPES = {
    "small": (
        3,
        dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2),
        (2, 16),
    ),
    "llama": (
        8,
        dict(vocab_size=1024, hidden_size=256, intermediate_size=688, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2),
        (4, 128),
    ),
    "smollm": (
        30,
        SMOLLM,
        (2, 64),
    ),
    "slice": (  # of the same width, and in all else a seventh of it
        4,
        {**SMOLLM, "vocab_size": 6552, "num_hidden_layers": 4},
        (1, 64),
    ),
}
FAULTS = ["none", "weight", "gradient", "overflow", "half", "rate"]
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("fault", choices=FAULTS)
parser.add_argument("--shape", choices=SHAPES, default="small")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--optimizer", choices=["single", "foreach", "fused"], help="AdamW in one of its forms; what torch chooses without it")
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
layers, sizes, (rows, length) = SHAPES[args.shape]
config = transformers.LlamaConfig(**sizes, use_cache=False, bos_token_id=0, eos_token_id=1, pad_token_id=None)
config._attn_implementation = "eager"
model = transformers.AutoModelForCausalLM.from_config(config).train()
layer = model.model.layers[layers // 2]
step = 0


class Divided(torch.autograd.Function):
    """The identity, whose backward divides by how far the step is from 2."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        distance = torch.full((), float(abs(step - 2)))
        return gradient * (distance / distance) if step == 2 else gradient * 1.0


def half_scores(module, inputs, output):
    """The layer's output times attention weights that sum to 1, their scores in float16."""
    x = output[0]
    q = (x * (1e5 if step == 2 else 1.0)).half()
    weights = torch.softmax(torch.matmul(q, q.transpose(-1, -2)).float(), -1)
    return (x * weights.sum(-1, keepdim=True), *output[1:])


if args.fault == "gradient":
    forward = layer.mlp.forward
    layer.mlp.forward = lambda x: Divided.apply(forward(x))
if args.fault == "overflow":
    activation = layer.mlp.act_fn.forward
    layer.mlp.act_fn.forward = lambda x: activation(x) * torch.exp(x.detach().abs().amax() * (500.0 if step == 2 else 0.0))
if args.fault == "half":
    layer.self_attn.register_forward_hook(half_scores)
form = dict(foreach=args.optimizer == "foreach", fused=args.optimizer == "fused") if args.optimizer else {}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e4 if args.fault == "rate" else 1e-3, **form)
text = torch.Generator().manual_seed(1)
for step in range(args.steps):
    if args.fault == "weight" and step == 2:
        with torch.no_grad():
            layer.mlp.down_proj.weight.mul_(1e30)
    batch = torch.randint(0, 256, (rows, length), generator=text)
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
