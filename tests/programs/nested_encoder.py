"""An encoder asked with sequences of other lengths, which torch takes out of their padding and runs one by one in evaluation.

nested_encoder.py [--dtype bfloat16] [--fault]: one number of what a layer gives is off."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--dtype", default="float32")
parser.add_argument("--fault", action="store_true")
options = parser.parse_args()


def off(*args):
    """A kernel of our own underneath everything that watches ops: torch's for dense sequences, and one number changed."""
    given = [torch.ops.aten._transformer_encoder_layer_fwd(x[None], *args[1:])[0] for x in args[0].unbind()]
    given[1][0, 2] += 0.1 * given[1].abs().max()
    return torch._nested_tensor_from_tensor_list(given)


if options.fault:
    library = torch.library.Library("aten", "IMPL")
    library.impl("_transformer_encoder_layer_fwd", off, "NestedTensorCPU")
torch.manual_seed(0)
torch.set_num_threads(1)
layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
model = nn.TransformerEncoder(layer, 2).eval().to(getattr(torch, options.dtype))
with torch.no_grad():
    for lengths in ((5, 3, 1), (2, 5, 4)):
        x = torch.randn(3, 5, 16, dtype=getattr(torch, options.dtype))
        padded = torch.arange(5)[None] >= torch.tensor(lengths)[:, None]
        print(f"{model(x, src_key_padding_mask=padded).float().square().mean().item():.6f}")
