"""Composites in many spellings, each in a module named for it: what the recognisers must find, and look-alikes that they must not."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn

ROWS, SIZE = 64, 96


def rms(x, eps=1e-6):
    return torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)


class Spelling(nn.Module):
    def __init__(self, function, *shapes, dtype=torch.float32):
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter((torch.randn(s) * 0.3 + 1).to(dtype)) for s in shapes)

    def forward(self, *args):
        return self.function(*args, *self.weights)


NORMS = {
    "norm_llama": lambda x, w: w * (x.float() * rms(x)).to(x.dtype),
    "norm_gemma": lambda x, w: (x.float() * rms(x) * (1.0 + w.float())).to(x.dtype),
    "norm_wide": lambda x, w: (x.float() * rms(x) * w).to(x.dtype),
    "norm_square": lambda x, w: x * torch.rsqrt(torch.square(x).mean(-1, keepdim=True) + 1e-5) * w,
    "norm_product": lambda x, w: x * (1 / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)) * w,
    "norm_divided": lambda x, w: x / torch.sqrt((x * x).sum(-1, keepdim=True) / SIZE + 1e-5) * w,
    "norm_torch": lambda x, w: F.rms_norm(x, (SIZE,), w, 1e-5),
    "norm_bare": lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) + w,
    "norm_added": lambda x, y, w: F.rms_norm(x + y, (SIZE,), w, 1e-5),
}
NONE = {
    "no_sum": lambda x, w: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6) * w,   # an l2 norm
    "no_columns": lambda x, w: x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6) * w,
    "no_cube": lambda x, w: x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-6) * w,
    "no_other": lambda x, w: (x + 1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
    "no_deviation": lambda x, w: (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
}


class All(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        for name, function in {**NORMS, **NONE}.items():
            self.add_module(name, Spelling(function, (SIZE,), dtype=dtype))

    def forward(self, x):
        total = 0
        for name, module in self.named_children():
            total = total + (module(x, x.flip(0)) if name == "norm_added" else module(x)).float().sum()
        return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = All(dtype)
    model(torch.randn(ROWS, SIZE).to(dtype).requires_grad_()).backward()
