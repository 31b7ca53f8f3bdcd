"""Small programs that are recorded in a process of their own, and what of a recording tests ask for."""

import textwrap

import recorded

NET = """
import torch, threading, sys
torch.set_num_threads(1)
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        self.second = torch.nn.Linear(6, 2)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""


LOOP = """
    for _ in range(4):
        model(torch.randn(64, 4)).sum().backward()
        opt.step(); opt.zero_grad()
"""


def recorder(folder):
    def run(code, net=NET, **settings):
        out, err, _ = recorded.run(net + textwrap.dedent(code), folder / "run.lb", **settings)
        return recorded.Recorded(folder / "run.lb")

    return run


def names(program, phase=None):
    return [program.name(op) for op in program.ops if phase is None or recorded.PHASES[op.phase] == phase]


def notes(capture, kind):
    return capture.table("coverage")["notes"].get(kind, {})


def find(program, name):
    return [op for op in program.ops if program.name(op) == name]
