"""Three training steps whose optimizer is torch's, one of this file, or a loop without any: second_optimizers.py WHOSE RULE [OPTION=VALUE …].

WHOSE: "torch", "own" (a torch.optim.Optimizer whose states have other names and whose updates are spelled differently), "loop" (tensors in a list).
RULE: adamw, nadam, adagrad, rmsprop, adamax, nesterov. Options are those of torch's class; left=NAME: that parameter is in no group.
average=DECAY, averaged=DECAY: weights are averaged after each step, by torch.optim.swa_utils or by hand.
"""

import math
import sys

import torch
import torch.nn.functional as F

whose, rule = sys.argv[1:3]
given = dict(word.split("=") for word in sys.argv[3:])
left = given.pop("left", "")
given = {name: float(value) for name, value in given.items()}
by_torch, decay = "average" in given, given.pop("average", 0) or given.pop("averaged", 0)
DEFAULTS = {
    "adamw": {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1},
    "nadam": {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "momentum_decay": 4e-3},
    "adagrad": {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.01},
    "rmsprop": {"lr": 1e-3, "alpha": 0.99, "eps": 1e-8, "momentum": 0.9, "weight_decay": 0.0},
    "adamax": {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
    "nesterov": {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.05},
}[rule]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = torch.nn.Embedding(40, 24), torch.nn.LayerNorm(24)
        self.up, self.down, self.head = torch.nn.Linear(24, 48), torch.nn.Linear(48, 24), torch.nn.Linear(24, 40)

    def forward(self, tokens):
        h = self.embed(tokens)
        return self.head(h + self.down(F.gelu(self.up(self.norm(h)))))


def torchs(parameters, o):
    o = dict(o)
    if "beta1" in o:
        o["betas"] = (o.pop("beta1"), o.pop("beta2"))
    if rule == "nesterov":
        return torch.optim.SGD(parameters, nesterov=True, foreach=False, **o)
    return {
        "adamw": torch.optim.AdamW,
        "nadam": torch.optim.NAdam,
        "adagrad": torch.optim.Adagrad,
        "rmsprop": torch.optim.RMSprop,
        "adamax": torch.optim.Adamax,
    }[rule](parameters, foreach=False, **o)


# The rules once more: `s` holds a parameter's states, `t` counts from 1. In place, each operation by itself.


def adamw(p, g, s, t, lr, beta1, beta2, eps, weight_decay):
    s["moment"] = s.get("moment", torch.zeros_like(p)).mul_(beta1).add_(g * (1 - beta1))
    s["square"] = s.get("square", torch.zeros_like(p)).mul_(beta2).add_((1 - beta2) * g * g)
    update = (s["moment"] / (1 - beta1**t)) / ((s["square"] / (1 - beta2**t)).sqrt() + eps)
    p.sub_(lr * (update + weight_decay * p))


def nadam(p, g, s, t, lr, beta1, beta2, eps, weight_decay, momentum_decay):
    g = g + weight_decay * p if weight_decay else g
    now, after = (beta1 * (1 - 0.5 * 0.96 ** (i * momentum_decay)) for i in (t, t + 1))
    s["product"] = s.get("product", 1.0) * now
    s["moment"] = s.get("moment", torch.zeros_like(p)).mul_(beta1).add_(g * (1 - beta1))
    s["square"] = s.get("square", torch.zeros_like(p)).mul_(beta2).addcmul_(g, g, value=1 - beta2)
    below = s["square"].sqrt().div_(math.sqrt(1 - beta2**t)).add_(eps)
    p.addcdiv_(g, below, value=-lr * (1 - now) / (1 - s["product"]))
    p.addcdiv_(s["moment"], below, value=-lr * after / (1 - s["product"] * after))


def adagrad(p, g, s, t, lr, eps, weight_decay):
    g = g + weight_decay * p
    s["total"] = s.get("total", torch.zeros_like(p)) + g.square()
    p.sub_(g.mul(lr).div(s["total"].sqrt() + eps))


def rmsprop(p, g, s, t, lr, alpha, eps, momentum, weight_decay):
    g = g + weight_decay * p if weight_decay else g
    s["square"] = s.get("square", torch.zeros_like(p)).lerp_(g * g, 1 - alpha)
    s["velocity"] = s.get("velocity", torch.zeros_like(p)) * momentum + g / (s["square"].sqrt() + eps)
    p.sub_(lr * s["velocity"])


def adamax(p, g, s, t, lr, beta1, beta2, eps, weight_decay):
    g = g + weight_decay * p
    s["moment"] = s.get("moment", torch.zeros_like(p)).mul_(beta1).add_(g, alpha=1 - beta1)
    s["most"] = torch.maximum(beta2 * s.get("most", torch.zeros_like(p)), g.abs() + eps)
    p.sub_(s["moment"] / s["most"] * (lr / (1 - beta1**t)))


def nesterov(p, g, s, t, lr, momentum, weight_decay):
    g = g + weight_decay * p
    s["velocity"] = momentum * s["velocity"] + g if "velocity" in s else g
    p.sub_(lr * (g + momentum * s["velocity"]))


class Own(torch.optim.Optimizer):
    def __init__(self, parameters, options):
        options = dict(options)
        if "beta1" in options:
            options["betas"] = (options.pop("beta1"), options.pop("beta2"))
        super().__init__(parameters, options)
        self.t = 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        for group in self.param_groups:
            options = {name: group[name] for name in DEFAULTS if name in group}
            if "betas" in group:
                options["beta1"], options["beta2"] = group["betas"]
            for p in group["params"]:
                globals()[rule](p, p.grad, self.state[p], self.t, **options)


class Loop:
    def __init__(self, parameters, options):
        self.parameters, self.options, self.t = parameters, options, 0
        self.states = [{} for _ in parameters]

    @torch.no_grad()
    def step(self):
        self.t += 1
        for p, s in zip(self.parameters, self.states):
            globals()[rule](p, p.grad, s, self.t, **self.options)


@torch.no_grad()
def averaged(average):
    if by_torch:
        averages = torch.optim.swa_utils
        average = average or averages.AveragedModel(model, multi_avg_fn=averages.get_ema_multi_avg_fn(decay))
        average.update_parameters(model)
    elif average is None:
        average = [p.clone() for p in model.parameters()]
    else:
        for a, p in zip(average, model.parameters()):
            a.mul_(decay).add_(p * (1 - decay))
    return average


torch.set_num_threads(1)
torch.manual_seed(0)
model = Model()
average = None
parameters = [p for name, p in model.named_parameters() if name != left]
optimizer = {"torch": torchs, "own": Own, "loop": Loop}[whose](parameters, {**DEFAULTS, **given})
for step in range(3):
    tokens = torch.randint(0, 40, (4, 9), generator=torch.Generator().manual_seed(step))
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    optimizer.step()
    if decay:
        average = averaged(average)
    print(step, loss.item())
