"""Where the numbers went bad: steps that fail as they fail in practice, for reasons that no single change of a kernel cures."""

import pytest

LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(torch.softmax(q @ k.transpose(1, 2) / 6 + mask, -1) @ v)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.up, self.down = Attention(), nn.Linear(32, 64, bias=False), nn.Linear(64, 32)
    def forward(self, x, mask):
        x = x + self.attention(x, mask)
        return x + self.down(torch.relu(self.up(x)))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(64, 32), nn.ModuleList(Layer() for _ in range(2)), nn.Linear(32, 64)
    def forward(self, x, mask):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, mask)
        return self.head(h)

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    x = torch.randint(0, 64, (2, 8))
    y, extra = x.clone(), lambda z: 0
    mask = torch.zeros(2, 8, 8).masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), float("-inf"))
    CASE
    out = model(x, mask)
    loss = nn.functional.cross_entropy(out.flatten(0, 1), y.flatten()) + extra(out)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

CASES = {
    "a masked row": ("if step == 1: mask[1, 3] = float('-inf')", "aten::_softmax", "layers.0.attention", "every key"),
    "no target": ("if step == 1: y[:] = -100", "aten::nll_loss_forward", "", "no target counts"),
    "log of zero": ("if step == 1: extra = lambda z: 1e-3 * (z.detach() * 0).abs().log().mean()", "aten::log", "", "logarithm of 0"),
    "overflow": ("if step == 1: extra = lambda z: (z.abs() + 1).mul(3e38).mean()", "aten::mul.Tensor", "", "more than its dtype can hold"),
    "filled weight": (
        "if step == 1: model.layers[1].up.weight.data[5] = 3e38",
        "aten::fill_.Tensor",
        "layers.1.up",
        "aten::mm of layers.1.up reads it and overflows",
    ),
    "scaled weight": (
        "if step == 1: model.layers[1].up.weight.data.mul_(1e38)",
        "aten::mul_.Tensor",
        "layers.1.up",
        "aten::mm of layers.1.up reads it, and aten::nll_loss_forward overflows in the end",
    ),
    "written weight": ("if step == 1: model.layers[1].up.weight.data[5, 7] = float('nan')", None, "layers.1.up", "a constant that is not finite"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_op_that_made_it_of_finite_numbers_is_named_and_why(lastbit, tmp_path, case):
    code, op, layer, why = CASES[case]
    program = tmp_path / "program.py"
    program.write_text(LOOP.replace("CASE", code))
    lastbit.record(tmp_path / "run.lb", program, expect=0)
    begins = lastbit.json("bisect", tmp_path / "run.lb", "-q", expect=(1, 125))["begins"]
    assert begins["op"] == (op or begins["op"]) and begins["layer"] == layer and why in begins["text"], begins
    assert "begins" in lastbit.run("bisect", tmp_path / "run.lb", "-q").stdout
