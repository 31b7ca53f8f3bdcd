"""Weights that follow from a parameter's published name and its shape alone, so that two implementations in two processes hold the same."""

import hashlib

import torch

PLAIN = False  # norms as a fresh model has them: ones and zeros


def weight(name, shape, offset_norm=False):
    """`offset_norm`: a norm that adds one to its weight, as Gemma's."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "little")
    drawn = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))
    if len(shape) == 1:
        norm = name.endswith("weight")
        return drawn * (0.0 if PLAIN else 0.2 if norm else 0.1) + (1.0 if norm and not offset_norm else 0.0)
    if any(word in name for word in ("embed", "wte", "wpe", "cls_token")):
        return drawn * 0.5
    fan_in = drawn[0].numel()
    return drawn * fan_in**-0.5


def fill(model, names=lambda name: name, offset_norm=False):
    """Gives each parameter of `model` the weight of its published name."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(weight(names(name), p.shape, offset_norm))
            assert torch.isfinite(p).all()
