"""Inputs of scaled dot-product attention."""
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


def inputs(draw):
    for dtype in FLOATS:
        for b, h, n, m, d in SHAPES:
            q, k, v = heads(draw, (b, h, n, d), dtype), heads(draw, (b, h, m, d), dtype), heads(draw, (b, h, m, d), dtype)
            for causal, masked in ((False, False), (True, False), (False, True)):
                mask = None
                if masked:
                    mask = draw.dense(draw.choice([(n, m), (b, 1, n, m), (b, h, n, m)]), dtype, 1.0)
                    mask = torch.where(torch.rand(mask.shape, generator=draw.torch) < 0.3, float("-inf"), mask)
                    mask[..., 0] = 0  # every row attends to something
                yield q, k, v, causal, mask, draw.choice([None, 0.3])


@generator
def attention(draw, options):
    for q, k, v, causal, mask, scale in inputs(draw):
        yield (q, k, v, 0.0, causal), {"attn_mask": mask, "scale": scale}
    for dtype in FLOATS:
        q = draw.dense((1, 2, 4, 8), dtype, 1.0)
        nothing = torch.zeros((4, 4), dtype=dtype)
        nothing[1] = float("-inf")
        yield (q, q, q, 0.0, False), {"attn_mask": nothing}


@generator
def attention_backward(draw, options):
    for q, k, v, causal, mask, scale in inputs(draw):
        y, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        g = heads(draw, tuple(y.shape), y.dtype)
        yield (g, q, k, v, y, lse, 0.0, causal), {"attn_mask": mask, "scale": scale}
