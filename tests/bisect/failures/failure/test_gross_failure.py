"""Failures that stay finite: what counts as gross is held against the recorded run, and nothing else is taken for a gradient."""

import pytest

PROGRAM = """
import torch
from torch import nn

class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.RMSNorm(16, eps=1e-6), MLP()
    def forward(self, x):
        return x + self.mlp(self.norm(x))

torch.manual_seed(0)
model = nn.Sequential(*[Block() for _ in range(3)], nn.RMSNorm(16, eps=1e-6), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(4):
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    if step == 2:
        with torch.no_grad():
            model[1].mlp.up.weight[5] *= 1e30
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    print(step, loss.item(), torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def grown(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("grown")
    (folder / "train.py").write_text(PROGRAM)
    lastbit.record(folder / "run.lb", folder / "train.py", expect=0)
    return folder / "run.lb"


def test_the_coefficient_of_clipping_is_no_gradient(lastbit, grown):
    """Gradients that vanish are clipped by 1 / (0 + 1e-6), clamped to 1: a million before that."""
    answer = lastbit.json("bisect", grown, "-q", expect=1)
    assert answer["failure"]["kind"] == "gross" and "parameter 1.mlp.up.weight" in answer["failure"]["what"]
    assert lastbit.json("bisect", grown, "-q", "--predicate", "grad_norm>1000", expect=0)["outcome"] == "clean"


def test_a_module_that_is_taken_out_earlier_does_not_hide_the_growth(lastbit, grown):
    """Without the module in steps 0 and 1 its weight is not written there, so that nothing says what it used to be."""
    answer = lastbit.json("bisect", grown, "-q", expect=1)
    assert answer["culprit"]["step"] == 2 and answer["culprit"]["layer"].startswith("1.mlp")
