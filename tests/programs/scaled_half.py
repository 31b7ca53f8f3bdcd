"""A small GPT in f16 autocast under a GradScaler: python scaled_half.py healthy|first-step|two-steps|overflow|scale|falling

healthy: no step is skipped. first-step: one is, by a scale that was too large. overflow: every step is, by the cube in one activation
whose inputs are large. scale: every step is, the scale is made larger than f16 can bear again and again. two-steps: the first two are. falling: of 30 most are, while the
scale falls by half each time."""

import math
import sys

import torch
from torch import nn

torch.manual_seed(0)


class Gelu(nn.Module):
    """As GPT-2 writes it."""

    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(16, 32), Gelu(), nn.Linear(32, 16)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(16), Mlp()

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h, self.head = nn.ModuleList(Block() for _ in range(4)), nn.Linear(16, 8)

    def forward(self, x):
        for block in self.h:
            x = block(x)
        return self.head(x)


def main(case):
    model = Model()
    if case == "overflow":
        model.h[2].mlp.up.weight.data.mul_(150)
        model.h[2].mlp.down.weight.data.mul_(1e-2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(
        "cpu",
        init_scale={"first-step": 2.0**30, "two-steps": 2.0**40, "scale": 2.0**40, "falling": 2.0**40}.get(case, 128.0),
        backoff_factor={"first-step": 1e-6, "two-steps": 1e-4}.get(case, 0.5),
    )
    for batch in list(torch.randn(30 if case == "falling" else 4, 6, 16)):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(batch).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1])
