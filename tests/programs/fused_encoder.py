"""An encoder in evaluation, which torch runs as one op a layer: fused_encoder.py [--apart] [--wrong] [--dtype DTYPE] [--norm-first].

--apart: the same modules op by op. --wrong: apart, and the second layer takes gelu's tanh form."""

import argparse

import torch
from torch import nn

options = argparse.ArgumentParser()
options.add_argument("--apart", action="store_true")
options.add_argument("--wrong", action="store_true")
options.add_argument("--norm-first", action="store_true")
options.add_argument("--dtype", default="float32")
options = options.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(not options.apart and not options.wrong)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 96, activation="gelu", batch_first=True, norm_first=options.norm_first)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.pool = nn.MultiheadAttention(32, 2, batch_first=True)
        self.head = nn.Linear(32, 64)

    def forward(self, x, padding):
        h = self.encoder(self.embed(x), src_key_padding_mask=padding)
        h, weights = self.pool(h, h, h, key_padding_mask=padding)
        return self.head(h), weights


model = Model().to(getattr(torch, options.dtype)).eval()
for p in model.parameters():
    if p.dim() > 1:
        nn.init.normal_(p, std=p.shape[-1] ** -0.5)
if options.wrong:
    model.encoder.layers[1].activation = nn.GELU(approximate="tanh")
x = torch.randint(0, 64, (3, 11))
padding = torch.arange(11)[None] >= torch.tensor([11, 7, 4])[:, None]
with torch.inference_mode():
    model(x, padding)
