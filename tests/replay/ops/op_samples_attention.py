"""Inputs of scaled dot-product attention."""

import op_references
import torch
from op_samples import FLOATS, generator

# batch, heads, queries, keys, head size
SHAPES = [(1, 1, 1, 1, 8), (2, 3, 5, 5, 16), (1, 2, 17, 33, 8), (2, 2, 64, 64, 32), (1, 1, 3, 600, 16), (1, 2, 40, 7, 64)]


def heads(draw, shape, dtype):
    """(batch, heads, tokens, size), dense or as a transposed view of (batch, tokens, heads, size)."""
    x = draw.dense(shape, dtype, 1.0)
    if draw.random.random() < 0.6:
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    return x


def inputs(draw, masks=True, groups=False):
    for dtype in FLOATS:
        for b, h, n, m, d in SHAPES:
            kv = h * (1 if not groups else draw.choice([1, 2]))
            q, k, v = heads(draw, (b, kv, n, d), dtype), heads(draw, (b, h, m, d), dtype), heads(draw, (b, h, m, d), dtype)
            for causal, masked in ((False, False), (True, False), (False, True)):
                mask = None
                if masked and masks:
                    mask = draw.dense(draw.choice([(n, m), (b, 1, n, m), (b, kv, n, m)]), dtype, 1.0)
                    mask = torch.where(torch.rand(mask.shape, generator=draw.torch) < 0.3, float("-inf"), mask)
                    mask[..., 0] = 0  # every row attends to something
                yield q, k, v, causal, mask, draw.choice([None, 0.3])


def poisoned(draw, dtype):
    """q, k, v, causal, mask with a NaN or an infinity in a row of q, k or v; fewer keys than a vector has lanes, and more; several blocks.
    Behind the last full vector torch treats NaN in another way: as many keys lie there whether a vector has 4, 8 or 16 lanes."""
    for n, m in ((3, 3), (5, 18), (35, 35), (70, 579)):
        for which in range(3):
            for bad in (float("nan"), float("inf")):
                shapes = ((1, 2, n, 8), (1, 2, m, 8), (1, 2, m, 8))
                tensors = [draw.dense(s, dtype, 1.0) for s in shapes]
                # Not in the midst: there a NaN can reach its neighbour through the pairs of torch's bf16 product (2.13, seen with 511 keys).
                row = draw.choice([0, shapes[which][2] - 1])
                if bad == bad and which < 2:
                    tensors[1 - which][..., 3] = tensors[1 - which][..., 3].abs() + 0.5  # no infinities of both signs: their order decides
                tensors[which][:, :, row, 3] = bad
                masked = torch.where(torch.rand((n, m), generator=draw.torch) < 0.3, float("-inf"), torch.zeros((n, m))).to(dtype)
                yield *tensors, False, None
                yield *tensors, True, None
                yield *tensors, False, masked


# Where the op takes its mask, and what else it takes.
FORWARD = {
    "flash": lambda q, k, v, causal, mask, scale: ((q, k, v, 0.0, causal), {"scale": scale}),
    "efficient": lambda q, k, v, causal, mask, scale: ((q, k, v, mask, True, 0.0, causal), {"scale": scale}),
    "cudnn": lambda q, k, v, causal, mask, scale: ((q, k, v, mask, True, 0.0, causal), {"scale": scale}),
    "overrideable": lambda q, k, v, causal, mask, scale: ((q, k, v, mask, 0.0, causal), {"scale": scale}),
    "whole": lambda q, k, v, causal, mask, scale: ((q, k, v, mask, 0.0, causal), {"scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}),
}


@generator
def attention(draw, options):
    kind = next((o for o in options if o in FORWARD), None)
    for q, k, v, causal, mask, scale in inputs(draw, masks=kind != "flash", groups=kind in ("flash", "whole", "overrideable")):
        if kind is None:
            yield (q, k, v, 0.0, causal), {"attn_mask": mask, "scale": scale}
            continue
        yield FORWARD[kind](q, k, v, causal, mask, scale)
        if kind == "whole" and mask is None and q.shape[1] == k.shape[1]:
            yield FORWARD[kind](q[0], k[0], v[0], causal, None, scale)
            keep = torch.rand(q.shape[-2], k.shape[-2], generator=draw.torch) < 0.7
            keep[:, 0] = True
            if not causal:
                yield FORWARD[kind](q, k, v, False, keep, scale)
    for dtype in FLOATS if kind is None else ():
        q = draw.dense((1, 2, 4, 8), dtype, 1.0)
        nothing = torch.zeros((4, 4), dtype=dtype)
        nothing[1] = float("-inf")
        yield (q, q, q, 0.0, False), {"attn_mask": nothing}
        for args in poisoned(draw, dtype):
            yield args[:3] + (0.0, args[3]), {"attn_mask": args[4]}


def backward_args(kind, g, q, k, v, y, lse, causal, mask, scale):
    none, n, m = torch.empty(0), q.shape[-2], k.shape[-2]
    borders = (none, none, n, m)
    if kind == "flash":
        return (g, q, k, v, y, lse, *borders, 0.0, causal, none, none), {"scale": scale}
    if kind == "efficient":
        bias = None if mask is None else mask.expand(*q.shape[:-1], m)
        return (g, q, k, v, bias, y, lse, none, none, 0.0, [True] * 3 + [mask is not None], causal), {"scale": scale}
    if kind == "cudnn":
        return (g, q, k, v, y, lse, none, none, mask, *borders, 0.0, causal), {"scale": scale}
    bias = None if mask is None else mask.expand(*q.shape[:-1], m)
    return (g, q, k, v, bias, [True] * 3 + [mask is not None], y, lse, *borders, 0.0, causal, none, none), {"scale": scale}


@generator
def attention_backward(draw, options):
    kind = next((o for o in options if o in FORWARD), None)
    for q, k, v, causal, mask, scale in inputs(draw, masks=kind != "flash", groups=kind == "flash"):
        if kind is None:
            y, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        else:
            padded = 32 if kind == "efficient" else None
            y, lse = op_references.heads_first_forward(q, k, v, mask, causal, scale, padded)
        g = heads(draw, tuple(y.shape), y.dtype)
        if kind is None:
            yield (g, q, k, v, y, lse, 0.0, causal), {"attn_mask": mask, "scale": scale}
        else:
            yield backward_args(kind, g, q, k, v, y, lse, causal, mask, scale)
    for dtype in FLOATS if kind is None else ():
        for q, k, v, causal, mask in poisoned(draw, dtype):
            y, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask)
            yield (heads(draw, tuple(y.shape), y.dtype), q, k, v, y, lse, 0.0, causal), {"attn_mask": mask}


# Ragged: lengths of queries and of keys.
LENGTHS = [([3, 5, 1], [3, 5, 1]), ([7], [9]), ([2, 4], [6, 4])]


def raw_inputs(draw):
    """q, k, v as tokens first, or ragged with their borders (else None)."""
    for dtype in FLOATS:
        for b, h, n, m, d in SHAPES[1:4]:
            kv = draw.choice([1, h])
            yield (*(draw.dense((b, t, hh, d), dtype, 1.0) for t, hh in ((n, h), (m, kv), (m, kv))), None, None)
        for queries, keys in LENGTHS:
            borders = [torch.tensor([0, *torch.tensor(l).cumsum(0).tolist()], dtype=torch.int32) for l in (queries, keys)]
            yield (*(draw.dense((sum(t), 2, 8), dtype, 1.0) for t in (queries, keys, keys)), *borders)


def windows(draw):
    return draw.choice([(False, None, None), (True, None, None), (True, 3, None), (False, 2, 3)])


@generator
def raw_attention(draw, options):
    for q, k, v, cum_q, cum_k in raw_inputs(draw):
        n, m = q.shape[-3], k.shape[-3]
        for _ in range(2):
            causal, left, right = windows(draw)
            if "flash" in options:
                yield (q, k, v, cum_q, cum_k, n, m, 0.0, causal, False), {"window_size_left": left, "window_size_right": right}
            elif "efficient" in options:
                if q.shape[-2] != k.shape[-2]:
                    continue
                q4, k4, v4 = ((t if t.dim() == 4 else t[None]) for t in (q, k, v))
                bias = draw.dense((q4.shape[0], q4.shape[2], n, m), q.dtype, 1.0) if cum_q is None else None
                yield ((q4, k4, v4, bias, cum_q, cum_k, n, m, 0.0, draw.choice([0, 1, 2]), True), {"window_size": draw.choice([None, 3])})
            elif cum_q is None and q.shape[-2] == k.shape[-2]:
                yield (*(t.transpose(1, 2) for t in (q, k, v)), None, None, None, n, m, True, 0.0, causal), {}


@generator
def raw_attention_backward(draw, options):
    none = torch.empty(0)
    for args, kwargs in raw_attention(draw, options):
        if "flash" in options:
            q, k, v, cum_q, cum_k, n, m, _, causal, _ = args
            y, lse = op_references.raw_flash(q, k, v, cum_q, cum_k, causal, None, **kwargs)
            g = draw.dense(tuple(y.shape), y.dtype, 1.0)
            given = (none, none) if cum_q is None else (cum_q, cum_k)
            if not bool(torch.isinf(lse).any()):  # a row that attends to nothing has no gradient to compare
                yield (g, q, k, v, y, lse, *given, n, m, 0.0, causal, none, none), kwargs
        else:
            q, k, v, bias, cum_q, cum_k, n, m, _, kind, _ = args
            y, lse = op_references.raw_efficient(q, k, v, bias, cum_q, cum_k, kind, None, **kwargs)
            g = draw.dense(tuple(y.shape), y.dtype, 1.0)
            yield (g, q, k, v, bias, y, cum_q, cum_k, n, m, lse, 0.0, none, none, kind, bias is not None), kwargs
