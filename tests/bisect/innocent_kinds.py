"""Kinds of innocent changes: the same real function by other means. Each takes a run, changes it, and says what it did."""
import functools

import torch
import torch.nn.functional as F
from torch import nn

from change_table import Unfit, innocent
from fault_kinds import both, choose, having, instead, linear, modules, own, shapes, train, trained
from fault_world import to_fp8


@innocent()
def nothing(run, draw):
    return "nothing"


@innocent(early=True, fits=lambda case: train(case) and case["optimizer"] in ("adamw", "sgd"))
def foreach_optimizer(run, draw):
    run.options["foreach"] = True
    return "foreach"


@innocent(early=True, fits=lambda case: train(case) and case["optimizer"] in ("adamw", "adamw-foreach"))
def fused_optimizer(run, draw):
    run.options["fused"] = True
    return "fused"


class FusedProjection(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.weight = nn.Parameter(torch.cat([p.weight for p in parts]).detach())
        self.bias = nn.Parameter(torch.cat([p.bias for p in parts]).detach())

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@innocent(early=True, fits=lambda case: case["program"] in ("gpt", "moe") and case["precision"] != "fp8" and case["optimizer"] in ("adamw", "sgd", "lion"))
def fused_qkv(run, draw):
    """q, k and v as one product of one parameter."""
    for block in run.model.layers:
        m = block.mixer
        m.qkv = FusedProjection([m.q, m.k, m.v])
        del m.q, m.k, m.v
        m.projected = lambda x, m=m: m.qkv(x).chunk(3, -1)
    return "fused qkv"


@innocent(fits=lambda case: case["program"] in ("gpt", "moe") and case["precision"] != "fp8")
def one_product_for_qkv(run, draw):
    """q, k and v as one product; the parameters stay three."""
    path, m = choose(run, draw, having("projected"))

    def projected(original, x):
        weight, bias = (torch.cat([getattr(p, n) for p in (m.q, m.k, m.v)]) for n in ("weight", "bias"))
        return F.linear(x, weight, bias).chunk(3, -1)

    instead(run, m, "projected", projected)
    return path


@innocent(fits=lambda case: case["precision"] != "fp8")
def halves_of_k(run, draw):
    """A product in two parts, summed in the result's precision."""
    path, m = choose(run, draw, linear)
    half = m.in_features // 2

    def split(original, x):
        y = F.linear(x[..., :half], m.weight[:, :half]) + F.linear(x[..., half:], m.weight[:, half:])
        return y if m.bias is None else y + m.bias

    instead(run, m, "forward", split)
    return path


@innocent(fits=lambda case: case["precision"] != "fp8")
def blocks_of_columns(run, draw):
    path, m = choose(run, draw, linear)

    def split(original, x):
        bias = m.bias.chunk(2) if m.bias is not None else (None, None)
        return torch.cat([F.linear(x, w, b) for w, b in zip(m.weight.chunk(2), bias)], -1)

    if m.out_features < 2:
        raise Unfit
    instead(run, m, "forward", split)
    return path


@innocent(fits=lambda case: case["precision"] != "fp8")
def matmul_and_bias(run, draw):
    path, m = choose(run, draw, linear)
    instead(run, m, "forward", lambda original, x: x @ m.weight.t() if m.bias is None else x @ m.weight.t() + m.bias)
    return path


@innocent(fits=lambda case: case["precision"] != "fp8")
def transposed_product(run, draw):
    path, m = choose(run, draw, linear)

    def turned(original, x):
        y = (m.weight @ x.reshape(-1, m.in_features).t()).t().reshape(*x.shape[:-1], m.out_features)
        return y if m.bias is None else y + m.bias

    instead(run, m, "forward", turned)
    return path


def norm_by_hand(m, x):
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) / (variance + m.eps).sqrt() * m.weight + m.bias


@innocent()
def layer_norm_by_hand(run, draw):
    path, m = choose(run, draw, lambda p, m: type(m) is nn.LayerNorm and m.bias is not None)
    instead(run, m, "forward", lambda original, x: norm_by_hand(m, x))
    return path


def summed(x, order):
    """The sum over the last axis, in another order."""
    parts = list(x.unbind(-1))
    if order == "sequence":
        return functools.reduce(torch.add, parts)
    while len(parts) > 1:
        half = (len(parts) + 1) // 2
        parts = [a + b for a, b in zip(parts[:half], parts[half:])] + parts[len(parts) - half:half]
    return parts[0]


@innocent()
def rms_norm_in_another_order(run, draw):
    path, m = choose(run, draw, having("square_mean"))
    order = draw.choice(["sequence", "butterfly"])
    instead(run, m, "square_mean", lambda original, x: summed(x.pow(2), order)[..., None] / x.shape[-1])
    return path


@innocent()
def rms_norm_by_the_library(run, draw):
    path, m = choose(run, draw, having("square_mean"))
    instead(run, m, "forward", lambda original, x: F.rms_norm(x, (x.shape[-1],), m.weight, m.eps))
    return path


@innocent(fits=own("gpt", "moe"))
def softmax_by_hand(run, draw):
    path, m = choose(run, draw, having("weights"))

    def by_hand(original, s):
        e = (s - s.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)

    instead(run, m, "weights", by_hand)
    return path


@innocent(fits=own("gpt", "moe"))
def library_attention(run, draw):
    path, m = choose(run, draw, having("attended"))
    instead(run, m, "attended", lambda original, q, k, v: F.scaled_dot_product_attention(
        q, k, v, attn_mask=~m.mask(q.shape[-2], k.shape[-2]), scale=m.scale))
    return path


@innocent(fits=own("gpt", "moe"))
def attention_in_blocks(run, draw):
    """Keys in two blocks, with a running maximum, as flash attention does it."""
    path, m = choose(run, draw, having("attended"))

    def blocks(original, q, k, v):
        scores = (q @ k.transpose(-1, -2) * m.scale).masked_fill(m.mask(q.shape[-2], k.shape[-2]), -1e4)
        cut = max(1, k.shape[-2] // 2)
        top = total = out = None
        for s, w in zip(scores.split(cut, -1), v.split(cut, -2)):
            high = s.amax(-1, keepdim=True) if top is None else torch.maximum(top, s.amax(-1, keepdim=True))
            e = (s - high).exp()
            if top is None:
                total, out = e.sum(-1, keepdim=True), e @ w
            else:
                back = (top - high).exp()
                total, out = total * back + e.sum(-1, keepdim=True), out * back + e @ w
            top = high
        return out / total

    instead(run, m, "attended", blocks)
    return path


@innocent(fits=trained("gpt", "moe", "linear"))
def recomputed(run, draw):
    """Blocks run again in backward instead of keeping what they computed."""
    from torch.utils.checkpoint import checkpoint

    run.model.called = lambda block, x, cache: checkpoint(block, x, use_reentrant=False)
    return "checkpointing"


@innocent(early=True, fits=train)
def micro_batches(run, draw):
    if run.case["program"] not in ("gpt", "moe", "linear", "gru", "mixer", "convnet") or run.case["precision"] == "fp8":
        raise Unfit
    run.options["micro"] = 2
    return "micro-batches"


@innocent(fits=train)
def loss_by_hand(run, draw):
    if run.batches[0]["labels"] is None:
        raise Unfit

    def by_hand(original, y, labels):
        y = y.reshape(-1, y.shape[-1]).float()
        return (y.logsumexp(-1) - y.gather(-1, labels.reshape(-1, 1))[:, 0]).mean()

    instead(run, run, "loss_of", by_hand)
    return "loss"


@innocent(early=True, fits=lambda case: case["precision"] == "fp32")
def in_bf16(run, draw):
    """The whole program in another type: the same real function."""
    run.options["precision"] = "bf16"
    return "bf16"


@innocent(early=True, fits=lambda case: case["precision"] == "fp32")
def under_autocast(run, draw):
    run.options["precision"] = "autocast"
    return "autocast"


@innocent()
def through_another_layout(run, draw):
    """A result that lies transposed in memory."""
    path, m = choose(run, draw, lambda p, m: linear(p, m) and len(shapes(run)[p][1]) > 1)
    instead(run, m, "forward", lambda original, x: original(x).transpose(-1, -2).contiguous().transpose(-1, -2))
    return path


@innocent()
def written_in_another_order(run, draw):
    """x + y as y + x."""
    path, m = choose(run, draw, having("join"))
    instead(run, m, "join", lambda original, x, y: y + x)
    return path


@innocent()
def more_threads(run, draw):
    run.options["threads"] = 2
    return "threads"


@innocent()
def cast_to_wide_and_back(run, draw):
    path, m = choose(run, draw, lambda p, m: type(m) in (nn.SiLU, nn.GELU, nn.LayerNorm))
    wide = torch.float64 if run.case["precision"] == "fp32" else torch.float32

    def widened(original, x):
        if isinstance(m, nn.LayerNorm):
            return F.layer_norm(x.to(wide), m.normalized_shape, m.weight.to(wide), m.bias.to(wide), m.eps).to(x.dtype)
        return original(x.to(wide)).to(x.dtype)

    instead(run, m, "forward", widened)
    return path
