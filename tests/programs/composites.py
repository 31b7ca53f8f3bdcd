"""Composites in many spellings, each in a module named for it: what the recognisers must find, and look-alikes that they must not."""

import argparse
import inspect
import math

import torch
import torch.nn.functional as F
from torch import nn

ROWS, SIZE, CLASSES = 64, 96, 40


def rms(x, eps=1e-6):
    return torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)


def mean(x):
    return x.mean(-1, keepdim=True)


def of_the_differences(x):
    return (x - mean(x)).pow(2).mean(-1, keepdim=True)


def tanh_of(x):
    return torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3)))


def picked(z, t):
    return z.gather(-1, t.unsqueeze(-1)).squeeze(-1)


class Spelling(nn.Module):
    """Its arguments by name: x and y are (ROWS, SIZE), z logits (ROWS, CLASSES), t targets, w and b parameters (SIZE)."""

    def __init__(self, function, dtype):
        super().__init__()
        self.function, self.names = function, list(inspect.signature(function).parameters)
        self.weights = nn.ParameterList(nn.Parameter((torch.randn(SIZE) * 0.3 + 1).to(dtype)) for name in self.names if name in "wb")

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
# eps behind the root, or the least that the root may be
NORMS_BY_THE_ROOT = {
    "norm_normalize": lambda x, w: F.normalize(x, dim=-1) * SIZE**0.5 * w,
    "norm_normalize_plus_one": lambda x, w: F.normalize(x, dim=-1) * (w + 1) * SIZE**0.5,
    "norm_clamped": lambda x, w: x / (torch.norm(x, dim=-1, keepdim=True) * SIZE**-0.5).clamp(min=1e-8) * w,
    "norm_outside": lambda x, w: x / (torch.sqrt(x.pow(2).mean(-1, keepdim=True)) + 1e-3) * w,
    "norm_of_the_norm": lambda x, w: w * (x / (x.norm(2, dim=-1, keepdim=True) * SIZE**-0.5 + 1e-3)),
}
LAYERS = {
    "layer_torch": lambda x, w, b: F.layer_norm(x, (SIZE,), w, b, 1e-5),
    "layer_differences": lambda x, w, b: (x - mean(x)) * torch.rsqrt(of_the_differences(x) + 1e-5) * w + b,
    "layer_divided": lambda x, w, b: (x - mean(x)) / torch.sqrt(of_the_differences(x) + 1e-5) * w + b,
    "layer_var": lambda x, w, b: w * ((x - mean(x)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()) + b,
    "layer_var_mean": lambda x, w, b: (lambda v, m: (x - m) * torch.rsqrt(v + 1e-5) * w + b)(*torch.var_mean(x, -1, unbiased=False, keepdim=True)),
    "layer_squares": lambda x, w, b: (x - mean(x)) * torch.rsqrt(mean(x * x) - mean(x) ** 2 + 1e-5) * w + b,
    "layer_wide": lambda x, w, b: ((x.float() - mean(x.float())) * torch.rsqrt(of_the_differences(x.float()) + 1e-5) * w + b).to(x.dtype),
    "layer_std": lambda x, w, b: w * (x - mean(x)) / (x.std(-1, keepdim=True) + 1e-3) + b,
    "layer_bare": lambda x: (x - mean(x)) * torch.rsqrt(of_the_differences(x) + 1e-5),
    "layer_no_bias": lambda x, w: (x - mean(x)) * torch.rsqrt(of_the_differences(x) + 1e-5) * w,
}
GATES = {
    "gate_torch": lambda x, y: F.silu(x) * y,
    "gate_silu": lambda x, y: x * torch.sigmoid(x) * y,
    "gate_silu_last": lambda x, y: x * (torch.sigmoid(x) * y),
    "gate_silu_first": lambda x, y: y * (torch.sigmoid(x) * x),
    "gate_silu_product": lambda x, y: torch.sigmoid(x) * x * (y * x.flip(0)),
    "gate_exp": lambda x, y: x / (1 + torch.exp(-x)) * y,
    "gate_exp_last": lambda x, y: x * y / (torch.exp(-x) + 1),
    "gate_reciprocal": lambda x, y: x * (1 / (1 + torch.exp(-x))) * y,
    "gate_tanh": lambda x, y: 0.5 * x * (1.0 + tanh_of(x)) * y,
    "gate_tanh_factored": lambda x, y: x * 0.5 * (1 + torch.tanh(x * 0.7978845608028654 * (1 + 0.044715 * x * x))) * y,
    "gate_erf": lambda x, y: y * (x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))),
    "gate_erf_last": lambda x, y: x * (torch.erf(x * 0.7071067811865476) + 1) * y / 2,
}
LOSSES = {
    "loss_torch": lambda z, t: F.cross_entropy(z, t),
    "loss_logsumexp": lambda z, t: (z.logsumexp(-1) - picked(z, t)).mean(),
    "loss_picked_first": lambda z, t: -(picked(z, t) - torch.logsumexp(z, 1)).mean(),
    "loss_gather": lambda z, t: -picked(z.log_softmax(-1), t).mean(),
    "loss_neg_first": lambda z, t: (-z.log_softmax(-1).gather(1, t[:, None])).mean(),
    "loss_index": lambda z, t: -F.log_softmax(z, -1)[torch.arange(ROWS), t].mean(),
    "loss_divided": lambda z, t: -picked(z.log_softmax(-1), t).sum() / ROWS,
    "loss_sum": lambda z, t: (z.logsumexp(-1, keepdim=True) - z.gather(-1, t[:, None])).sum(),
}
NONE = {
    "no_sum": lambda x, w: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6) * w,  # an l2 norm
    "no_columns": lambda x, w: x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6) * w,
    "no_cube": lambda x, w: x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-6) * w,
    "no_other": lambda x, w: (x + 1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
    "no_deviation": lambda x, w: (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
    "no_unit": lambda x, w: F.normalize(x, dim=-1) * w,
    "no_other_factor": lambda x, w: F.normalize(x, dim=-1) * (SIZE + 1) ** 0.5 * w,
    "no_normalize_columns": lambda x, w: F.normalize(x, dim=0) * SIZE**0.5 * w,
    "no_absolute": lambda x, w: F.normalize(x, p=1, dim=-1) * SIZE**0.5 * w,
    "no_eps_in_x": lambda x, w: (x + 1e-3) / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w,
    "no_eps_at_all": lambda x, w: x / torch.sqrt(x.pow(2).mean(-1, keepdim=True)) * w,
    "no_layer_columns": lambda x, w, b: (x - x.mean(0, keepdim=True)) * torch.rsqrt(x.var(0, unbiased=False, keepdim=True) + 1e-5) * w + b,
    "no_mean_of_columns": lambda x, w, b: (x - x.mean(0, keepdim=True)) * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * w + b,
    "no_mean": lambda x, w, b: x * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * w + b,
    "no_own_variance": lambda x, y, w, b: (x - mean(x)) * torch.rsqrt(y.var(-1, unbiased=False, keepdim=True) + 1e-5) * w + b,
    "no_square_of_mean": lambda x, w, b: (x - mean(x)) * torch.rsqrt(mean(x * x) - mean(x) + 4) * w + b,
    "no_half_mean": lambda x, w, b: (x - 0.5 * mean(x)) * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * w + b,
    "no_mean_for_variance": lambda x, w, b: (lambda v, m: (x - m) * torch.rsqrt(m + 4) * w + b)(*torch.var_mean(x, -1, unbiased=False, keepdim=True)),
    "no_variance_for_mean": lambda x, w, b: (lambda v, m: (x - v) * torch.rsqrt(v + 1e-5) * w + b)(
        *torch.var_mean(x, -1, unbiased=False, keepdim=True)
    ),
    "no_glu": lambda x, y: torch.sigmoid(x) * y,
    "no_gate_of_other": lambda x, y: x * torch.sigmoid(y) * y.flip(0),
    "no_division": lambda x, y: x * (1 + torch.exp(-x)) * y,
    "no_other_sign": lambda x, y: x / (1 + torch.exp(x)) * y,
    "no_gate_below": lambda x, y: torch.sigmoid(x) * y / (x + 9) * x.square(),
    "no_up_below": lambda x, y: x * torch.sigmoid(x) / (y.abs() + 1),
    "no_sigmoid_below": lambda x, y: x / torch.sigmoid(x) * y,
    "no_silu_alone": lambda x: x * torch.sigmoid(x),
    "no_quick_gelu": lambda x, y: x * torch.sigmoid(1.702 * x) * y,
    "no_half": lambda x, y: x * (1 + tanh_of(x)) * y,
    "no_other_cubic": lambda x, y: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.0447 * x**3))) * y,
    "no_root_of_two": lambda x, y: 0.5 * x * (1 + torch.erf(x)) * y,
    "no_one": lambda x, y: 0.5 * x * torch.erf(x / math.sqrt(2)) * y,
    "no_doubled": lambda x, y: 2 * (x * torch.sigmoid(x)) * y,
    "no_likelihood": lambda z, t: picked(z.log_softmax(-1), t).mean(),
    "no_classes": lambda z, t: -z.log_softmax(0).gather(1, t[:, None]).mean(),
    "no_own_logits": lambda z, t: (z.logsumexp(-1) - picked(2 * z, t)).mean(),
    "no_rows_in_order": lambda z, t: -F.log_softmax(z, -1)[torch.arange(1, ROWS + 1) % ROWS, t].mean(),
    "no_weights": lambda z, t: (-picked(z.log_softmax(-1), t) * torch.linspace(0, 1, ROWS)).mean(),
    "no_square": lambda z, t: (z.logsumexp(-1) - picked(z, t)).square().mean(),
}
FOUND = {"rms_norm": {**NORMS, **NORMS_BY_THE_ROOT}, "layer_norm": LAYERS, "swiglu": GATES, "cross_entropy": LOSSES}


class All(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        for functions in (*FOUND.values(), NONE):
            for name, function in functions.items():
                self.add_module(name, Spelling(function, dtype))

    def forward(self, x, t):
        given = {"x": x, "y": x.flip(0), "z": x[:, :CLASSES].float(), "t": t}
        return sum(module(*(given[name] for name in module.names if name in given)).float().sum() for module in self.children())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = All(dtype)
    model(torch.randn(ROWS, SIZE).to(dtype).requires_grad_(), torch.randint(0, CLASSES, (ROWS,))).backward()
