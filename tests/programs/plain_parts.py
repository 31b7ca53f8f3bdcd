"""What models that are written again in plain torch (plain_decoders.py, plain_encoders.py, plain_mixers.py) are made of."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    """`fault` names what is written differently in this layer."""

    fault = None

    def has(self, fault):
        return self.fault == fault

    def take_weights(self, **modules):
        """A copy of each one's weight, by a name of this layer's."""
        for name, module in modules.items():
            self.register_parameter(name, nn.Parameter(module.weight.detach().clone()))


def own(module):
    """A copy with memory of its own."""
    return copy.deepcopy(module)


def fused(*linears):
    """Linears of one input as one."""
    weights = torch.cat([linear.weight.detach() for linear in linears])
    made = nn.Linear(weights.shape[1], weights.shape[0], bias=linears[0].bias is not None)
    made.weight = nn.Parameter(weights.clone())
    if linears[0].bias is not None:
        made.bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in linears]).clone())
    return made


def heads(x, size):  # (b, t, heads * size) -> (b, heads, t, size)
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


def joined(x):  # (b, heads, t, size) -> (b, t, heads * size)
    return x.transpose(1, 2).flatten(2)


def attended(q, k, v, scale, bias=None):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
    return torch.softmax(scores if bias is None else scores + bias, -1) @ v


def causal(length, window=None, like=None):
    """Zero where a token is seen, minus infinity elsewhere."""
    away = torch.arange(length)[:, None] - torch.arange(length)
    seen = (away >= 0) & (away < (window or length))
    return torch.zeros(length, length, dtype=like.dtype).masked_fill(~seen, -math.inf)


def angles(length, size, base, like):
    rates = torch.exp(torch.arange(0, size, 2, dtype=like.dtype) * (-math.log(base) / size))
    return torch.outer(torch.arange(length, dtype=like.dtype), rates)


def turned_pairs(x, angle):
    """Neighbours of each head are turned, as numbers of the plane."""
    cos, sin = angle.cos(), angle.sin()
    one, two = x[..., 0::2], x[..., 1::2]
    return torch.stack([one * cos - two * sin, two * cos + one * sin], -1).flatten(-2)


def turned_halves(x, angle):
    one, two = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


def rms(x, gain, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def layer_norm(x, gain, bias, eps):
    away = x - x.mean(-1, keepdim=True)
    y = away / (away.square().mean(-1, keepdim=True) + eps).sqrt() * gain
    return y if bias is None else y + bias


def tanh_gelu(x):
    return F.gelu(x, approximate="tanh")
