"""Kinds of innocent changes: the same real function by other means. Each takes a run, changes it, and says what it did."""

import functools

import torch
import torch.nn.functional as F
from change_places import choose, having, instead, linear, own, shapes, train, trained
from change_table import Unfit, innocent
from torch import nn


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


@innocent(
    early=True, fits=lambda case: case["program"] in ("gpt", "moe") and case["precision"] != "fp8" and case["optimizer"] in ("adamw", "sgd", "lion")
)
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
        parts = [a + b for a, b in zip(parts[:half], parts[half:])] + parts[len(parts) - half : half]
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
    instead(
        run,
        m,
        "attended",
        lambda original, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=~m.mask(q.shape[-2], k.shape[-2]), scale=m.scale),
    )
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


def gelu_by_hand(x):
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


BY_HAND = {nn.SiLU: lambda x: x * torch.sigmoid(x), nn.GELU: gelu_by_hand, nn.ReLU: lambda x: x.clamp(min=0)}


@innocent()
def activation_by_hand(run, draw):
    path, m = choose(run, draw, lambda p, m: type(m) in BY_HAND and getattr(m, "approximate", "none") == "none")
    instead(run, m, "forward", lambda original, x: BY_HAND[type(m)](x))
    return path


@innocent(fits=lambda case: case["program"] in ("gpt", "moe") and case["precision"] != "fp8")
def gate_and_up_in_one_product(run, draw):
    path, m = choose(run, draw, lambda p, m: getattr(m, "gate", None) is not None)

    def mixed(original, x):
        gate, up = F.linear(x, torch.cat([m.gate.weight, m.up.weight]), torch.cat([m.gate.bias, m.up.bias])).chunk(2, -1)
        return m.act(gate) * up

    instead(run, m, "mixed", mixed)
    return path


@innocent(fits=lambda case: case["precision"] not in ("fp8", "autocast", "fp16-scaler"))
def product_by_einsum(run, draw):
    path, m = choose(run, draw, linear)

    def product(original, x):
        y = torch.einsum("...i,oi->...o", x, m.weight)
        return y if m.bias is None else y + m.bias

    instead(run, m, "forward", product)
    return path


@innocent(fits=lambda case: case["precision"] not in ("fp8", "autocast", "fp16-scaler"))
def tiles_of_k(run, draw):
    """A product accumulated in place, tile by tile."""
    path, m = choose(run, draw, lambda p, m: linear(p, m) and m.in_features % 4 == 0)
    if run.case["mode"] == "train":
        raise Unfit

    def tiles(original, x):
        flat = x.reshape(-1, m.in_features)
        y = torch.zeros(len(flat), m.out_features, dtype=x.dtype) if m.bias is None else m.bias.expand(len(flat), -1).clone()
        for a, b in zip(flat.split(m.in_features // 4, 1), m.weight.split(m.in_features // 4, 1)):
            y.addmm_(a, b.t())
        return y.view(*x.shape[:-1], m.out_features)

    instead(run, m, "forward", tiles)
    return path


@innocent(fits=own("gpt", "moe", "linear", "gru"))
def embedding_as_a_product(run, draw):
    module = run.model.emb
    instead(run, module, "forward", lambda original, t: F.one_hot(t, module.num_embeddings).to(module.weight.dtype) @ module.weight)
    return "emb"


@innocent(fits=lambda case: case["program"] == "convnet" and case["precision"] in ("fp32", "bf16"))
def convolution_as_a_product(run, draw):
    path, m = choose(run, draw, lambda p, m: type(m) is nn.Conv2d and m.groups == 1)

    def unfolded(original, x):
        columns = F.unfold(x, m.kernel_size, padding=m.padding, stride=m.stride)
        y = m.weight.flatten(1) @ columns + m.bias[:, None]
        side = (x.shape[-1] + 2 * m.padding[0] - m.kernel_size[0]) // m.stride[0] + 1
        return y.view(len(x), m.out_channels, -1, side)

    instead(run, m, "forward", unfolded)
    return path


@innocent(fits=own("mixer", "convnet"))
def mean_by_sum(run, draw):
    axes, count = (1, lambda x: x.shape[1]) if run.case["program"] == "mixer" else ((2, 3), lambda x: x.shape[2] * x.shape[3])
    instead(run, run.model, "pooled", lambda original, x: x.sum(axes) / count(x))
    return "pooled"


@innocent(fits=own("gpt", "moe", "linear", "mixer", "convnet"))
def sum_in_place(run, draw):
    path, m = choose(run, draw, having("join"))
    instead(run, m, "join", lambda original, x, y: x.clone().add_(y))
    return path


@innocent(fits=own("gpt", "moe"))
def softmax_through_logarithms(run, draw):
    path, m = choose(run, draw, having("weights"))
    instead(run, m, "weights", lambda original, s: s.log_softmax(-1).exp())
    return path


@innocent(fits=own("gpt", "moe"))
def scale_on_the_queries(run, draw):
    path, m = choose(run, draw, having("attended"))
    scale = m.scale

    def attended(original, q, k, v):
        scores = (q * scale) @ k.transpose(-1, -2)
        return m.weights(scores.masked_fill(m.mask(q.shape[-2], k.shape[-2]), float("-inf"))) @ v

    instead(run, m, "attended", attended)
    return path


@innocent(fits=own("linear"))
def recurrence_in_parallel(run, draw):
    """The same sum over the past as one matrix of decays."""
    path, m = choose(run, draw, having("kept"))

    def forward(original, x, cache=None):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, m.heads, d // m.heads).transpose(1, 2) for z in (m.q(x), m.k(x), m.v(x)))
        k = F.elu(k) + 1
        age = torch.arange(t)[:, None] - torch.arange(t)[None]
        decay = (torch.sigmoid(m.decay)[:, None, None] ** age.clamp(min=0)).tril()
        return m.o(((q @ k.transpose(-1, -2) * decay.to(q.dtype)) @ v).transpose(1, 2).reshape(b, t, d))

    instead(run, m, "forward", forward)
    return path


def routed(m, x):
    """Rows, the chances of the experts that each chose, and their numbers."""
    flat = x.reshape(-1, x.shape[-1])
    return flat, *m.chances(m.router(flat)).topk(m.chosen, -1)


@innocent(fits=own("moe"))
def experts_in_another_order(run, draw):
    """The tokens' shares of the last expert are added first."""
    path, m = choose(run, draw, having("experts", "router"))

    def forward(original, x):
        flat, weights, ids = routed(m, x)
        weights, y = m.shares(weights), torch.zeros_like(flat)
        for e in reversed(range(len(m.experts))):
            token, slot = (ids == e).nonzero(as_tuple=True)
            if len(token):
                y = y.index_add(0, token, (m.expert(e)(flat[token]) * weights[token, slot, None]).to(y.dtype))
        return y.view_as(x)

    instead(run, m, "forward", forward)
    return path


@innocent(fits=own("moe"))
def every_expert_sees_every_token(run, draw):
    """Dense: experts that were not chosen get the share 0."""
    path, m = choose(run, draw, having("experts", "router"))

    def forward(original, x):
        flat, weights, ids = routed(m, x)
        shares = torch.zeros(len(flat), len(m.experts), dtype=weights.dtype).scatter(1, ids, m.shares(weights))
        return sum(m.expert(e)(flat) * shares[:, e, None] for e in range(len(m.experts))).to(x.dtype).view_as(x)

    instead(run, m, "forward", forward)
    return path


@innocent(early=True, fits=train)
def gradients_kept_as_zeros(run, draw):
    run.options["keep_zeros"] = True
    return "zeros"


@innocent(early=True, fits=train)
def groups_in_another_order(run, draw):
    run.options["reversed"] = True
    return "groups"


@innocent(fits=train)
def clipping_by_hand(run, draw):
    def by_hand():
        with torch.no_grad():
            grads = [p.grad for p in run.model.parameters() if p.grad is not None]
            norm = torch.sqrt(sum(g.pow(2).sum() for g in grads))
            factor = (run.options["clip"] / (norm + 1e-6)).clamp(max=1.0)
            for g in grads:
                g.mul_(factor)

    run.clipped = by_hand
    return "clip"


@innocent(fits=lambda case: train(case) and case["optimizer"] == "adamw")
def adamw_by_hand(run, draw):
    state = {}

    def by_hand(optimizer):
        if run.scaler:
            raise Unfit
        for group in optimizer.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                with torch.no_grad():
                    n, m, v = state.setdefault(p, [0, torch.zeros_like(p), torch.zeros_like(p)])
                    state[p][0] = n = n + 1
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    m.mul_(first).add_(p.grad, alpha=1 - first)
                    v.mul_(second).add_(p.grad * p.grad, alpha=1 - second)
                    p.sub_(group["lr"] * (m / (1 - first**n)) / ((v / (1 - second**n)).sqrt() + group["eps"]))

    if run.case["precision"] == "fp16-scaler":
        raise Unfit
    run.stepped = by_hand
    return "adamw"


@innocent(early=True, fits=lambda case: "/" in case["program"])
def other_attention_of_the_library(run, draw):
    other = {"eager": "sdpa", "sdpa": "eager"}.get(run.model.config._attn_implementation)
    if other is None:
        raise Unfit
    try:
        run.model.set_attn_implementation(other)
    except ValueError:
        raise Unfit from None
    return other


@innocent(fits=lambda case: "/" in case["program"] and train(case))
def recomputed_by_the_library(run, draw):
    if not getattr(run.model, "supports_gradient_checkpointing", False):
        raise Unfit
    run.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return "checkpointing"


@innocent(early=True, fits=lambda case: case["program"].startswith("causal/") and "mo" in case["program"])
def grouped_experts(run, draw):
    from fault_architectures import inside

    if run.exact:  # the kernel knows no float64
        return "grouped"
    for part in [run.model.config, *inside(run.model.config)]:
        part._experts_implementation = "grouped_mm"
    return "grouped"


@innocent()
def weights_lie_transposed(run, draw):
    """A parameter whose columns are contiguous."""
    path, m = choose(run, draw, linear)
    m.weight.data = m.weight.data.t().contiguous().t()
    return path


@innocent()
def input_lies_elsewhere(run, draw):
    """A module is given a copy of its input that is not contiguous."""
    path, m = choose(run, draw, lambda p, m: linear(p, m) and (shapes(run)[p][0] or ())[1:] != ())
    instead(run, m, "forward", lambda original, x: original(torch.stack([x, x], -1)[..., 0]))
    return path


@innocent(fits=lambda case: case["precision"] == "fp32")
def cast_through_bf16(run, draw):
    """A result through a narrower float and back: the same real function."""
    path, m = choose(run, draw, linear)
    instead(run, m, "forward", lambda original, x: original(x).to(torch.bfloat16).to(x.dtype))
    return path


@innocent(fits=train)
def loss_summed_over_rows(run, draw):
    """The loss as a sum over its rows, divided at the end."""
    if run.batches[0]["labels"] is None:
        raise Unfit

    def rows(original, y, labels):
        y = y.reshape(-1, y.shape[-1]).float()
        return F.cross_entropy(y, labels.reshape(-1), reduction="none").sum() / labels.numel()

    instead(run, run, "loss_of", rows)
    return "loss"
