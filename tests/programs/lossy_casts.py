"""A small network with a mean that is taken in one order or another, and behind it a cast that holds its numbers or does not.

    lossy_casts.py FOLDER

Two recordings, plain.lb and changed.lb, whose steps are the rows of PAIRS: the latter takes its mean in another order."""

import pathlib
import sys

if __name__ == "__main__":  # the test reads only PAIRS
    import torch
    from torch import nn

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "capture"))
    import lastbit.torch

VANISHING = {"dtype": "float16", "factor": 1e-8}
PAIRS = {  # of the first side and of the second: the type of the cast, what numbers are multiplied by before it, whether it is the last module
    "it vanishes": ({}, VANISHING),
    "it vanishes at the end": ({"last": True}, {**VANISHING, "last": True}),
    "it vanishes on the side without the other order": (VANISHING, {}),
    "it is rounded": ({}, {"dtype": "bfloat16"}),
    "it lies in the range": ({}, {"dtype": "float16"}),
    "it vanishes on both sides": (VANISHING, VANISHING),
}


if __name__ == "__main__":

    class Norm(nn.Module):
        def forward(self, x):
            half = x.shape[-1] // 2
            square = x * x
            mean = (square[..., :half].sum(-1) + square[..., half:].sum(-1)) / x.shape[-1] if self.halves else square.mean(-1)
            return x * torch.rsqrt(mean + 1e-6)[..., None]

    class Cast(nn.Module):
        def set(self, dtype=None, factor=1, last=False):
            self.dtype, self.factor, self.last = dtype, factor, last

        def forward(self, x):
            held = (x * self.factor).to(getattr(torch, self.dtype)).to(x.dtype) / self.factor if self.dtype else x
            return x + held

    class Head(nn.Linear):
        def forward(self, x):
            return x if self.idle else super().forward(x)

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(32, 32), Norm(), nn.Linear(32, 32), Cast(), Head(32, 8))
    inputs = torch.randn(24, 32)
    for side, name in enumerate(("plain.lb", "changed.lb")):
        network[1].halves = side == 1
        with lastbit.torch.capture(pathlib.Path(sys.argv[1]) / name, level="ops") as cap:
            for n, pair in enumerate(PAIRS.values()):
                network[3].set(**pair[side])
                network[4].idle = network[3].last
                with cap.step(n), torch.no_grad():
                    network(inputs)
