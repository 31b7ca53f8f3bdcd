"""Optimizers that are named after a rule: named_optimizers.py FOLDER NAME… writes FOLDER/NAME.lb, the third step of a training.

OWN is an AdamW that a program wrote by itself, as transformers had one (steps counted in Python, eps before the correction, decay behind the
update); FAULTS are the same and torch's own with one thing changed."""

import math
import pathlib
import sys

import lastbit.torch
import torch
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
}
OWN = ["own", "own_uncorrected", "own_lion", "own_names"]
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


class Lion(optim.Optimizer):
    def __init__(self, parameters, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
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
    if name in TORCHS:
        class_name, options = TORCHS[name]
        return getattr(optim, class_name)(parameters, **options)
    if name == "own_lion":
        return Lion(parameters, 1e-3, weight_decay=0.1)
    if name == "no_momentum":
        return SGD(parameters, 1e-2, 0.9)
    if name == "own_names":
        return AdamW(parameters, **BOTH, names=("mean", "square"))
    return AdamW(parameters, **BOTH, correct_bias=name != "own_uncorrected", fault=name * (name in FAULTS))


def main(folder, *names):
    for name in names:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 80), nn.Tanh(), nn.LayerNorm(80), nn.Linear(80, 64))
        if name.endswith("bf16"):
            model.bfloat16()
        optimizer = optimizer_of(name, model)
        with lastbit.torch.capture(pathlib.Path(folder) / f"{name}.lb", level="ops", steps="2") as capture:
            for step in range(3):
                with capture.step(step):
                    x = torch.randn(5, 8, dtype=model[0].weight.dtype)
                    model(x).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()


if __name__ == "__main__":
    main(*sys.argv[1:])
