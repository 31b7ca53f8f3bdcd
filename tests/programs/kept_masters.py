"""A bf16 model whose f32 masters the training loop keeps by hand: kept_masters.py FOLDER NAME… writes FOLDER/NAME.lb.

Words of a NAME, joined by `_`: `late` masters are made in the first step, behind backward, `early` ones before it; `normed` ones are read
before forward; `third` records the third step, not the first; `renewed` parameters get their numbers before forward. Others are how
numbers go back."""

import pathlib
import sys

import lastbit.torch
import torch
from torch import nn, optim


class Trainer:
    def __init__(self, model, words):
        self.parameters, self.words, self.masters = list(model.parameters()), words, None
        if "late" not in words:
            self.make()

    def make(self):
        self.masters = [p.detach().float().clone() for p in self.parameters]
        rule, options = (optim.SGD, {"momentum": 0.9}) if "sgd" in self.words else (optim.AdamW, {"weight_decay": 0.1})
        self.optimizer = rule(self.masters, lr=1e-2, **options)

    def begin(self):
        with torch.no_grad():
            if "normed" in self.words:
                sum(w.norm() for w in self.masters).item()
            if "renewed" in self.words:
                for p, w in zip(self.parameters, self.masters):
                    p.copy_(w)

    def step(self):
        if self.masters is None:
            self.make()
        old = [w.clone() for w in self.masters]
        for p, w in zip(self.parameters, self.masters):
            w.grad, p.grad = p.grad.float(), None
        if "clipped" in self.words:
            nn.utils.clip_grad_norm_(self.masters, 0.01)
        self.optimizer.step()
        with torch.no_grad():
            for i, p in enumerate(self.parameters):
                self.write(i, p, old[i])

    def write(self, i, p, old):
        words, w = self.words, self.masters[i]
        if "renewed" in words or "lost" in words and ("all" in words or i == 0):
            return
        if "assigned" in words:
            p.data = w.bfloat16()
        elif "stale" in words:
            p.copy_(old)
        elif "exchanged" in words and i in (1, 3):
            p.copy_(self.masters[4 - i])
        elif "halved" in words and i == 0:
            p.copy_(w * 0.5)
        elif "narrow" in words and i == 0:
            p.copy_(w.to(torch.float8_e4m3fn))
        else:
            p.copy_(w)


def main(folder, *names):
    for name in names:
        words = name.split("_")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 64)).bfloat16()
        trainer, last = Trainer(model, words), 2 if "third" in words else 0
        with lastbit.torch.capture(pathlib.Path(folder) / f"{name}.lb", level="ops", steps=str(last)) as capture:
            for step in range(last + 1):
                with capture.step(step):
                    trainer.begin()
                    model(torch.randn(5, 8, dtype=torch.bfloat16)).float().square().mean().backward()
                    trainer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
