"""A small net recorded once as it is and once per change of an argument, of an option of its optimizer, or of an op that is left out."""

import pathlib
import sys

import torch
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "capture"))
import lastbit.torch  # noqa: E402

BASE = dict(slope=0.2, approximate="none", eps=1e-5, fc_lr=0.05, decay=0.1, adam_eps=1e-8, cap=None, extra=None, smoothing=0.0, beta=0.9)
CHANGES = {
    "base": {},
    "slope": dict(slope=0.02),
    "approximate": dict(approximate="tanh"),
    "eps": dict(eps=1e-3),
    "fc_lr": dict(fc_lr=0.5),
    "decay": dict(decay=0.01),
    "no_decay": dict(decay=0.0),
    "adam_eps": dict(adam_eps=1e-3),
    "beta": dict(beta=0.8),
    "cap": dict(cap=5.0),
    "extra": dict(extra=1e-2),
    "smoothing": dict(smoothing=0.1),
}


def build():
    torch.manual_seed(0)
    return torch.nn.ModuleDict({"fc": torch.nn.Linear(8, 16), "norm": torch.nn.LayerNorm(16), "head": torch.nn.Linear(16, 4)})


def loss_of(net, x, y, o):
    h = functional.leaky_relu(net["fc"](x), o["slope"])
    h = functional.gelu(net["norm"](h), approximate=o["approximate"])
    logits = net["head"](h)
    if o["cap"]:
        logits = torch.tanh(logits / o["cap"]) * o["cap"]
    loss = functional.cross_entropy(logits, y, label_smoothing=o["smoothing"])
    if o["extra"]:
        loss = loss + o["extra"] * logits.logsumexp(-1).square().mean()
    return loss


def train(o, how):
    net = build()
    net["norm"].eps = o["eps"]
    groups = [{"params": net["fc"].parameters(), "lr": o["fc_lr"]}, {"params": [*net["norm"].parameters(), *net["head"].parameters()]}]
    optimizer = torch.optim.AdamW(
        groups, lr=0.05, weight_decay=o["decay"], eps=o["adam_eps"], betas=(o["beta"], 0.999), foreach=how == "foreach", fused=how == "fused"
    )
    for _ in range(2):
        loss_of(net, torch.randn(6, 8), torch.randint(0, 4, (6,)), o).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    for how in ("loop", "foreach", "fused"):
        for name, change in CHANGES.items():
            if how != "loop" and name not in ("base", "fc_lr", "decay", "adam_eps"):
                continue
            with lastbit.torch.capture(pathlib.Path(sys.argv[1]) / f"{how}-{name}.lb", level="ops"):
                train(dict(BASE, **change), how)
