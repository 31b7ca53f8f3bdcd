"""Wrong precision, scales and casts; overflow and underflow."""

import ctypes

import torch
from change_places import after, begin, choose, forward_truth, having, instead, kin, linear, own, shapes, train, wide, written_truth
from change_table import fault, truth


@fault("precision", fits=wide)
def fp8_scale_forgotten(run, draw):
    """A cast to eight bits whose scale is not undone."""
    path, module = choose(run, draw, linear)

    def cast(original, x):
        scale = x.detach().abs().amax() / 448
        return original((x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale * 1.0625)

    instead(run, module, "forward", cast)
    return forward_truth(run, path, begin(run, draw))


@fault("precision", fits=wide)
def rounded_to_integers(run, draw):
    path, module = choose(run, draw)
    after(run, module, lambda y: (y * 64).detach().to(torch.int32).to(y.dtype) / 64 + (y - y.detach()))
    return forward_truth(run, path, begin(run, draw))


@fault("precision", fits=lambda case: case["precision"] in ("fp32", "bf16"))
def saturated(run, draw):
    """A cast that clips at the largest number of its format, with a scale too large."""
    path, module = choose(run, draw)
    after(run, module, lambda y: (y * 1e4).clamp(-448, 448) / 1e4)
    return forward_truth(run, path, begin(run, draw))


@fault("precision", fits=lambda case: case["precision"] == "fp32")
def underflow_in_half(run, draw):
    """Numbers too small for float16 become zero: in exact arithmetic nothing is wrong, so it is a matter of precision."""
    path, module = choose(run, draw, linear)
    after(run, module, lambda y: (y * 1e-8).to(torch.float16).to(y.dtype) / 1e-8)
    step = begin(run, draw)
    return truth(step, "forward", [path], kin(run, path), verdict=("rounding", "diverged"), axis=["precision"], inside=False, same=True)


@fault("precision", fits=lambda case: case["precision"] == "fp32")
def scale_of_the_step_before(run, draw):
    """Delayed scaling whose scale is too small for what comes: it saturates."""
    path, module = choose(run, draw, linear)
    after(run, module, lambda y: y.clamp(-0.3, 0.3))
    return forward_truth(run, path, begin(run, draw))


@fault("precision", fits=lambda case: case["precision"] in ("fp32", "bf16"))
def scale_applied_twice(run, draw):
    """A weight in int8 whose scale is applied once too often for one row."""
    path, module = choose(run, draw, lambda p, m: linear(p, m) and m.out_features > 2)

    def scaled(y):
        factor = torch.ones(y.shape[-1], dtype=y.dtype)
        factor[1] = 0.5
        return y * factor

    after(run, module, scaled)
    return forward_truth(run, path, begin(run, draw))


@fault("precision", fits=lambda case: case["precision"] == "fp32")
def truncated_mantissa(run, draw):
    """Bits cut off by hand, not by a cast: the integer view of the numbers."""
    path, module = choose(run, draw, linear)
    if run.exact:
        cut = lambda y: y + ((y.detach().float().view(torch.int32) & -65536).view(torch.float32).to(y.dtype) - y.detach())
    else:
        cut = lambda y: y + ((y.detach().view(torch.int32) & -65536).view(torch.float32) - y.detach())
    after(run, module, cut)
    # The bits of a number are no real function of it: that this can't be run exactly is as good an answer.
    return forward_truth(run, path, begin(run, draw), verdict=("diverged", "missing"))


def failing_truth(run, path, step, axis):
    return truth(step, "forward", [path], kin(run, path), verdict=("diverged", "rounding"), axis=axis, fails="nonfinite", inside=False)


@fault("precision", fits=lambda case: case["precision"] == "fp32" and train(case))
def overflow_in_half(run, draw):
    """An activation in float16 that no longer fits."""
    path, module = choose(run, draw, linear)
    after(run, module, lambda y: (y * 3e6).to(torch.float16).to(y.dtype) / 3e6)
    return failing_truth(run, path, begin(run, draw), ["precision", "block"])


@fault("precision", fits=lambda case: case["precision"] == "fp32" and train(case))
def logarithm_of_zero(run, draw):
    path, module = choose(run, draw, lambda p, m: len(shapes(run)[p][1]) > 1)
    after(run, module, lambda y: y + 1e-3 * torch.log((y.softmax(-1) - 0.5).clamp(min=0)))
    return failing_truth(run, path, begin(run, draw), ["block"])


@fault("precision", fits=lambda case: case["precision"] == "fp32" and train(case))
def division_by_zero(run, draw):
    path, module = choose(run, draw, lambda p, m: len(shapes(run)[p][1]) > 1)
    after(run, module, lambda y: y / (y - y.amax(-1, keepdim=True)))
    return failing_truth(run, path, begin(run, draw), ["block"])


@fault("precision", fits=own("gpt", "moe"))
def row_without_keys(run, draw):
    """A mask that leaves one query nothing to look at."""
    path, module = choose(run, draw, having("mask"))

    def hiding(original, r, c):
        mask = original(r, c)
        mask[0, :] = True
        return mask

    instead(run, module, "mask", hiding)
    found = failing_truth(run, path, begin(run, draw), ["block", "source"])
    return found


@fault("precision", fits=lambda case: train(case) and case["steps"] > 1 and case["precision"] in ("fp32", "bf16"))
def infinite_weight(run, draw):
    """One element of a parameter is overwritten behind PyTorch's back."""
    name = draw.choice([n for n, p in run.model.named_parameters() if p.ndim == 2 and "emb" not in n])
    p, step = run.model.get_parameter(name), draw.randrange(1, run.case["steps"])

    def write():
        if run.now == step:
            pattern = {torch.float32: b"\x00\x00\x80\x7f", torch.bfloat16: b"\x80\x7f", torch.float64: b"\x00" * 6 + b"\xf0\x7f"}[p.dtype]
            ctypes.memmove(p.data_ptr() + 3 * p.element_size(), pattern, p.element_size())

    run.before.append(write)
    found = written_truth(run, name, step)
    return dict(found, fails="nonfinite")
