"""Optimizers that are named after a rule: named_optimizers.py FOLDER NAME… writes FOLDER/NAME.lb, the third step of a training;
NAME_first the first.

OWN is an AdamW that a program wrote by itself, as transformers had one (steps counted in Python, eps before the correction, decay behind the
update); FAULTS are the same and torch's own with one thing changed."""

import math
import pathlib
import sys

import lastbit.torch
import torch
import transformers
from torch import nn, optim

BOTH = {"lr": 1e-2, "weight_decay": 0.1}
# name: class of torch.optim and its options; `bf16` is the dtype of the parameters, `pair` two groups with rates of their own.
TORCHS = {
    "sgd": ("SGD", BOTH),
    "sgd_momentum": ("SGD", {**BOTH, "momentum": 0.9, "dampening": 0.3}),
    "sgd_nesterov": ("SGD", {**BOTH, "momentum": 0.9, "nesterov": True}),
    "sgd_maximize": ("SGD", {**BOTH, "momentum": 0.9, "maximize": True, "foreach": True}),
    "sgd_fused": ("SGD", {**BOTH, "momentum": 0.9, "fused": True}),
    "adam": ("Adam", {"lr": 1e-2}),
    "adam_decay": ("Adam", BOTH),
    "adam_decoupled": ("Adam", {**BOTH, "decoupled_weight_decay": True}),
    "adam_amsgrad": ("Adam", {**BOTH, "amsgrad": True}),
    "adamw": ("AdamW", BOTH),
    "adamw_each": ("AdamW", {**BOTH, "foreach": False}),
    "adamw_foreach": ("AdamW", {**BOTH, "foreach": True}),
    "adamw_fused": ("AdamW", {**BOTH, "fused": True, "amsgrad": True}),
    "adamw_maximize": ("AdamW", {**BOTH, "maximize": True, "betas": (0.8, 0.95), "eps": 1e-3}),
    "adamw_bf16": ("AdamW", BOTH),
    "adamw_pair": ("AdamW", BOTH),
    "nadam": ("NAdam", BOTH),
    "nadam_decoupled": ("NAdam", {**BOTH, "decoupled_weight_decay": True, "foreach": True}),
    "radam": ("RAdam", BOTH),
    "radam_late": ("RAdam", {**BOTH, "betas": (0.9, 0.6)}),
    "adamax": ("Adamax", BOTH),
    "adamax_foreach": ("Adamax", {**BOTH, "foreach": True}),
    "rmsprop": ("RMSprop", BOTH),
    "rmsprop_centered": ("RMSprop", {**BOTH, "centered": True, "momentum": 0.5}),
    "adagrad": ("Adagrad", {**BOTH, "lr_decay": 0.1}),
    "adagrad_begun": ("Adagrad", {**BOTH, "initial_accumulator_value": 0.5}),
    "adagrad_fused": ("Adagrad", {**BOTH, "fused": True}),
    "adafactor": ("Adafactor", {"lr": 1e-2}),
    "adafactor_decay": ("Adafactor", {**BOTH, "d": 1.5, "beta2_decay": -0.5, "foreach": True}),
    "adafactor_bf16": ("Adafactor", {**BOTH, "maximize": True}),
    "muon": ("Muon", BOTH),
    "muon_rms": ("Muon", {"lr": 1e-2, "weight_decay": 0.0, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}),
    "muon_rounds": ("Muon", {**BOTH, "ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5), "momentum": 0.8}),
}
OWN = ["own", "own_uncorrected", "own_lion", "own_names"]
# Rules that make a number from others of its tensor, as other libraries have them; the last are faults.
CLIPS = ["lamb_clipped", "lamb_clipped_reads", "lamb_clipped_pair", "lamb_clipped_eps", "lamb_below", "lamb_trusted", "lamb_bounded"]
WHOLE = ["hf_adafactor", "hf_adafactor_relative", "jordan", "jordan_sums", "lamb", "lamb_plain", "lamb_without_decay"]
WHOLE_FAULTS = ["jordan_half", "jordan_undecayed", "lamb_half", "adafactor_half", "jordan_squared"]
CLIP_FAULTS = ["lamb_unclipped", "lamb_clips_own", "lamb_clips_always", "lamb_clipped_half"]
# AdamW that updates f32 masters of bf16 parameters: its own states, or what it was given, copied after its step.
MASTERS = ["masters_inside", "masters_outside", "masters_outside_foreach", "masters_cast", "masters_inside_half"]
FAULTS = [
    "coupled",
    "fully",
    "no_decay",
    "uncorrected",
    "second_uncorrected",
    "inside",
    "step_early",
    "step_late",
    "betas_exchanged",
    "ascends",
    "half",
    "coupled_and_uncorrected",
    "one_of_them",
    "clipped",
    "no_momentum",
]


class AdamW(optim.Optimizer):
    """`fault`: what it does otherwise than it says."""

    def __init__(self, parameters, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, correct_bias=True, fault="", names=("exp_avg", "exp_avg_sq")):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "correct_bias": correct_bias})
        self.faults, self.names = set(fault.split("_and_")) - {""}, names

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for n, p in enumerate(group["params"]):
                self.update(group, p, self.faults if self.faults != {"one_of_them"} else {"half"} if n == 1 else set())

    def update(self, group, p, faults):
        state, g, (b1, b2), lr, decay = self.state[p], p.grad, group["betas"], group["lr"], group["weight_decay"]
        if not state:
            state.update({"step": 0, **{name: torch.zeros_like(p) for name in self.names}})
        state["step"] += 1
        t = max(state["step"] + ("step_early" in faults) - ("step_late" in faults), 1)
        m, v = (state[name] for name in self.names)
        if "coupled" in faults:
            g = g + decay * p
        if "betas_exchanged" in faults:
            b1, b2 = b2, b1
        if "ascends" in faults:
            g = -g
        m.mul_(b1).add_(g, alpha=1 - b1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)
        none = "uncorrected" in faults or not group["correct_bias"]
        first, second = 1 if none else 1 - b1**t, 1 if none or "second_uncorrected" in faults else 1 - b2**t
        root = (v / second + group["eps"]).sqrt() if "inside" in faults else (v.sqrt() + group["eps"]) / math.sqrt(second)
        update = (m / root).clamp(-0.1, 0.1) if "clipped" in faults else m / root
        p.add_(update, alpha=-lr / first * (0.5 if "half" in faults else 1))
        if not faults & {"coupled", "no_decay"}:
            p.add_(p, alpha=-decay * (1 if "fully" in faults else lr))


class Muon(optim.Optimizer):
    """As its author's: https://github.com/KellerJordan/Muon; `sums` as it was at first."""

    def __init__(self, parameters, lr, momentum=0.95, weight_decay=0.1, how=""):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.how = how

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                if "sums" in self.how:
                    m.mul_(group["momentum"]).add_(p.grad)
                    u = p.grad.add(m, alpha=group["momentum"])
                else:
                    m.lerp_(p.grad, 1 - group["momentum"])
                    u = p.grad.lerp(m, group["momentum"])
                x = u.bfloat16().T if u.shape[0] > u.shape[1] else u.bfloat16()
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    y = x @ x.T
                    x = 3.4445 * x + (-4.7750 * y + 2.0315 * y @ y) @ x
                x = x.T if u.shape[0] > u.shape[1] else x
                x = x.square() if "squared" in self.how else x
                if "undecayed" not in self.how:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(x, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5 * (0.5 if "half" in self.how else 1))


class Lamb(optim.Optimizer):
    """You et al., algorithm 2; `plain` without the correction of the moments, which the first implementations left out. `max_grad_norm`: as
    apex and timm have it; `reads` the norm into Python, `eps` is added to it."""

    def __init__(self, parameters, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.1, how="", max_grad_norm=None):
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, options | ({"max_grad_norm": max_grad_norm} if max_grad_norm else {}))
        self.how = how

    def divisor(self, group, p):
        """What the gradient of p is divided by."""
        own = "own" in self.how
        gradients = [q.grad for g in self.param_groups for q in g["params"] if (not own or q is p) and (g is group or "group" not in self.how)]
        norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        norm = norm + group["eps"] if "eps" in self.how else norm
        by = (norm.item() if "reads" in self.how else norm) / group["max_grad_norm"]
        if "always" in self.how or "unclipped" in self.how:
            return by if "always" in self.how else 1
        return max(1, by) if "reads" in self.how else by.clamp(min=1)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            divisors = [self.divisor(group, p) if "max_grad_norm" in group else 1 for p in group["params"]]
            for p, by in zip(group["params"], divisors):
                state = self.state[p]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["step"] += 1
                g = p.grad / by
                m = state["exp_avg"].mul_(b1).add_(g, alpha=1 - b1)
                v = state["exp_avg_sq"].mul_(b2).addcmul_(g, g, value=1 - b2)
                first, second = (1, 1) if "plain" in self.how else (1 - b1 ** state["step"], 1 - b2 ** state["step"])
                u = m / first / ((v / second).sqrt() + group["eps"]) + group["weight_decay"] * p
                ratio = p.norm() / u.norm() if "plain" in self.how or p.norm() > 0 else 1
                if "trusted" in self.how or "bounded" in self.how:
                    ratio = min(ratio, 1 if "trusted" in self.how else 0.9)
                p.add_(u * ratio, alpha=-group["lr"] * (0.5 if "half" in self.how else 1))


class Adafactor(optim.Optimizer):
    """torch's, of vectors and matrices; each update is half of what it says."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "beta2_decay": -0.8, "eps": (None, 1e-3), "d": 1.0, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state, g = self.state[p], p.grad
                if not state:
                    state["step"] = 0
                    state.update(row_var=g.new_zeros(g.shape[0], 1), col_var=g.new_zeros(1, g.shape[1])) if g.ndim > 1 else state.update(
                        variance=g * 0
                    )
                state["step"] += 1
                w, count, eps = state["step"] ** group["beta2_decay"], p.numel() ** 0.5, torch.finfo(p.dtype).eps
                alpha = max(group["eps"][1], p.norm().item() / count) * min(group["lr"], state["step"] ** -0.5)
                if g.ndim > 1:
                    row = state["row_var"].lerp_(g.square().mean(1, keepdim=True), w)
                    square = row @ state["col_var"].lerp_(g.square().mean(0, keepdim=True), w) / row.mean().clamp(min=eps)
                else:
                    square = state["variance"].lerp_(g.square(), w)
                u = square.clamp(min=eps**2).rsqrt() * g
                p.add_(u, alpha=-0.5 * alpha / max(1.0, u.norm().item() / count))


class Masters(AdamW):
    """Its parameters are copies of f32 states, from which the digits of an update are not lost."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            (b1, b2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                state, g = self.state[p], p.grad.float()
                if not state:
                    state.update(step=0, master=p.float().clone(), exp_avg=torch.zeros_like(g), exp_avg_sq=torch.zeros_like(g))
                state["step"] += 1
                m, v, w = (state[name] for name in ("exp_avg", "exp_avg_sq", "master"))
                m.mul_(b1).add_(g, alpha=1 - b1)
                v.mul_(b2).addcmul_(g, g, value=1 - b2)
                w.mul_(1 - lr * group["weight_decay"])
                root = (v / (1 - b2 ** state["step"])).sqrt().add_(group["eps"])
                w.addcdiv_(m, root, value=-lr / (1 - b1 ** state["step"]) * (0.5 if "half" in self.faults else 1))
                p.copy_(w)


class Outside:
    """What trainers of mixed precision do: the optimizer holds masters, and each gradient and number is copied."""

    def __init__(self, parameters, how):
        self.parameters, self.how = parameters, how
        self.masters = [nn.Parameter(p.detach().float()) for p in parameters]
        self.optimizer = optim.AdamW(self.masters, **BOTH)

    def step(self):
        for p, w in zip(self.parameters, self.masters):
            w.grad = p.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            if "foreach" in self.how:
                torch._foreach_copy_(self.parameters, self.masters)
            for p, w in zip(self.parameters, self.masters):
                if "cast" in self.how:
                    p.copy_(w.bfloat16())
                elif "foreach" not in self.how:
                    p.copy_(w)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


class AdamW8bit(optim.Optimizer):
    """Its states are codes of 8 bits, each tensor with a scale."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, state1=torch.zeros_like(p, dtype=torch.uint8), scale1=torch.zeros(()))
                state["step"] += 1
                m = (state["state1"].float() - 127) * state["scale1"] * 0.9 + p.grad * 0.1
                state["scale1"].copy_(m.abs().max() / 127)
                state["state1"].copy_((m / state["scale1"]).round() + 127)
                p.sub_(group["lr"] * m)


class Lion(optim.Optimizer):
    def __init__(self, parameters, lr, betas=(0.9, 0.99), weight_decay=0.0, silent=False):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay} | ({} if silent else {"betas": betas}))
        self.betas = betas

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = self.betas
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((m * b1 + p.grad * (1 - b1)).sign(), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class SGD(optim.Optimizer):
    """Has a momentum among its options, and forgets it."""

    def __init__(self, parameters, lr, momentum):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)).add_(p.grad)
                p.sub_(group["lr"] * p.grad)


def optimizer_of(name, model):
    parameters = list(model.parameters())
    if name == "adamw_pair":
        parameters = [{"params": parameters[:2], "lr": 1e-3}, {"params": parameters[2:], "weight_decay": 0.0}]
    matrices = [p for p in parameters if isinstance(p, nn.Parameter) and p.ndim == 2]
    if name in TORCHS:
        class_name, options = TORCHS[name]
        parameters = matrices if class_name == "Muon" else parameters
        return getattr(optim, class_name)(parameters, **options)
    if name.startswith("hf_adafactor"):
        given = {"lr": None} if name.endswith("relative") else {"lr": 1e-2, "scale_parameter": False, "relative_step": False, "weight_decay": 0.1}
        return transformers.optimization.Adafactor(parameters, **given)
    if name == "adafactor_half":
        return Adafactor(parameters, lr=1e-2)
    if name.startswith("jordan"):
        return Muon(matrices, 1e-2, how=name)
    if name.startswith("lamb"):
        clips = {"max_grad_norm": 30.0 if "below" in name or "always" in name else 0.01} if "clip" in name or "below" in name else {}
        parameters = [{"params": parameters[:2]}, {"params": parameters[2:]}] if "pair" in name or "group" in name else parameters
        made = Lamb(parameters, 1e-2, weight_decay=0.0 if name == "lamb_without_decay" else 0.1, how=name, **clips)
        made.param_groups[0].update({"trust_clip": True} if name == "lamb_trusted" else {})
        return made
    if name.startswith("masters_inside"):
        made = Masters(parameters, **BOTH, fault="half" if name.endswith("half") else "")
        made.__class__ = type("AdamW", (Masters,), {})
        return made
    if name.startswith("masters"):
        return Outside(parameters, name)
    if name == "eight_bits":
        return AdamW8bit(parameters, 1e-2)
    if name in ("own_lion", "lion_silent"):
        return Lion(parameters, 1e-3, weight_decay=0.1, silent=name == "lion_silent")
    if name == "no_rule":
        return type("Sophia", (SGD,), {})(parameters, 1e-2, 0.9)
    if name == "no_momentum":
        return SGD(parameters, 1e-2, 0.9)
    if name == "own_names":
        return AdamW(parameters, **BOTH, names=("mean", "square"))
    return AdamW(parameters, **BOTH, correct_bias=name != "own_uncorrected", fault=name * (name in FAULTS))


def main(folder, *names):
    for name in names:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 80), nn.Tanh(), nn.LayerNorm(80), nn.Linear(80, 64))
        if name.endswith("bf16") or name.startswith("masters"):
            model.bfloat16()
        optimizer = optimizer_of(name.removesuffix("_first"), model)
        steps = "0" if name.endswith("_first") else "2"
        with lastbit.torch.capture(pathlib.Path(folder) / f"{name}.lb", level="ops", steps=steps) as capture:
            for step in range(3):
                with capture.step(step):
                    x = torch.randn(5, 8, dtype=model[0].weight.dtype)
                    model(x).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()


if __name__ == "__main__":
    main(*sys.argv[1:])
