"""Weights of one model put into another implementation of it: renamed, several parts into one tensor, turned, reshaped.

A rule is (pattern, replacement) for names of the given model, applied one after another. A name that ends in "#2" is the third of several parts
along the first dimension; "^T" turns a matrix."""

import re

import torch


def renamed(name, rules):
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def moved(given, rules, model, left_out=()):
    """`given` holds names and tensors; each parameter and floating buffer that `given` reaches is filled. Every parameter is, but for `left_out`."""
    parts = {}
    for name, value in given.items():
        name = renamed(name, rules)
        turned = name.endswith("^T")
        name, _, number = name.removesuffix("^T").partition("#")
        parts.setdefault(name, {})[int(number or 0)] = value.T if turned else value
    own = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    with torch.no_grad():
        for name, pieces in parts.items():
            if name in own:
                own[name].copy_(torch.cat([pieces[k] for k in sorted(pieces)]).reshape(own[name].shape))
    missing = [name for name, _ in model.named_parameters() if name not in parts and not any(re.search(p, name) for p in left_out)]
    assert not missing, f"not given: {missing}"
    return model


def contents(model, buffers=()):
    """Names and values of a model's parameters, and of the buffers whose names match."""
    held = {name: p.detach().clone() for name, p in model.named_parameters()}
    return held | {name: b.clone() for name, b in model.named_buffers() if any(re.search(pattern, name) for pattern in buffers)}
