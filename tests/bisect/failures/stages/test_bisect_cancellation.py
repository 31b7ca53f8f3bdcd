"""Differences of which rounding alone is left: the difference is named and its line, and fewer digits are no cure."""

import pytest

PROGRAM = "tests/programs/cancelled_variance.py"

# Squared distances as x^2 + y^2 - 2xy, of points that lie far from 0 in step 2: outside every module.
DISTANCES = """
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(4):
    x, far = torch.randn(12, 16), 500 if step == 2 else 0
    a, b = net(x) + far, net(x + 0.01 * torch.randn(12, 16)) + far
    squares = (a * a).sum(-1) + (b * b).sum(-1)
    products = 2 * (a * b).sum(-1)
    squared = squares - products
    squared.sqrt().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("precision", ["bf16", pytest.param("f32", marks=pytest.mark.full)])
def test_a_variance_that_cancels(lastbit, tmp_path, precision):
    lastbit.record(tmp_path / "run.lb", PROGRAM, precision, expect=0)
    verdict = lastbit.json("bisect", tmp_path / "run.lb", "-q", expect=1)
    found = [(c["axis"], c["block"], c["layer"], c["op"], c["phase"], c["step"]) for c in verdict["culprits"]]
    assert found == [("block", "D", f"layers.{i}.norm", "aten::sub.Tensor", "forward", 2) for i in range(3)]
    assert verdict["culprit"]["source"]["text"] == "variance = squares - middle * middle"
    assert "where f32 goes in steps of 1" in verdict["culprit"]["why"]
    assert "f64" in verdict["cure"] and "bf16" not in verdict["cure"]
    outcomes = {s["stage"]: s["outcome"] for s in verdict["stages"]}
    assert outcomes["precision"] == ("cleared" if precision == "bf16" else "none")
    # In bf16 everywhere both operands are the same number, so that the failure does not show: that is seen, and is no cure.
    hidden = [t["outcome"] for t in verdict["trials"] if t["description"] == "everything in bf16"]
    assert hidden == (["cured"] if precision == "bf16" else [])


def test_a_distance_that_cancels_in_the_loss(lastbit, tmp_path):
    (tmp_path / "train.py").write_text(DISTANCES)
    lastbit.record(tmp_path / "run.lb", tmp_path / "train.py", expect=0)
    verdict = lastbit.json("bisect", tmp_path / "run.lb", "-q", expect=1)
    assert [(c["layer"], c["op"], c["step"]) for c in verdict["culprits"]] == [("", "aten::sub.Tensor", 2)]
    assert verdict["culprit"]["source"]["text"] == "squared = squares - products"
