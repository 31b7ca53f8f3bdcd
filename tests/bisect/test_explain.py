"""Which order, kernel or precision turns one recording into another: pairs of real runs, from their recorded bits alone."""
import os
import subprocess
import sys

import pytest

SUM = """
import sys, torch
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Linear(1, 1)
    def forward(self, x):
        return self.scale(sum(row.sum() for row in x).reshape(1, 1) * 1e-3)
model = Model()
with torch.no_grad():
    for step in range(3):
        model(torch.randn(4, 400000))
"""

SPLIT = """
import sys, torch
slices = int(sys.argv[1])
torch.manual_seed(0)
class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 256) / 16)
    def forward(self, x):
        w, k = self.weight.t(), 256 // slices
        y = x[:, :k] @ w[:k]
        for i in range(1, slices):
            y = y + x[:, i * k:(i + 1) * k] @ w[i * k:(i + 1) * k]
        return y
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = Product(), torch.nn.LayerNorm(64)
    def forward(self, x):
        return self.norm(self.up(x))
model = Model()
with torch.no_grad():
    model(torch.randn(32, 256))
"""


def record(lastbit, folder, name, text, *args, level="ops"):
    """Records a program given as text; what it needs besides torch is in its arguments."""
    script = folder / f"{name}.py"
    script.write_text(text)
    lastbit.run("record", "-o", folder / f"{name}.lb", "--level", level, "--", sys.executable, script, *args, expect=0,
                env=dict(os.environ))
    return folder / f"{name}.lb"


def record_pair(lastbit, folder, text, one, other):
    return record(lastbit, folder, "one", text, *one), record(lastbit, folder, "other", text, *other)


def own(answer):
    """What differs for a reason of its own."""
    return [f for f in answer["findings"] if f["cause"] != "input"]


def test_a_sum_by_four_threads(lastbit, tmp_path):
    one, other = record_pair(lastbit, tmp_path, SUM, ["1"], ["4"])
    answer = lastbit.json("explain", one, other, expect=1)
    found = own(answer)
    assert len(found) >= 6 and {f["step"] for f in found} == {0, 1, 2}
    for f in found:
        assert (f["op"], f["cause"], f["schedule"], f["first"]) == ("aten::sum", "order", "torch:4", "torch:1")
        assert f["matched"] == f["elements"] == 1 and f["proof"] == "bits"
    # One element is a weak witness: what one sum cannot rule out, all of them together do.
    also = [set(filter(None, f["also"].split("; "))) for f in found]
    assert not set.intersection(*also)
    text = lastbit.run("explain", one, other, expect=1).stdout
    assert "torch:1 became torch:4" in text and "told apart" not in text
    alone = own(lastbit.json("explain", other, expect=1))
    assert {f["schedule"] for f in alone if f["op"] == "aten::sum"} == {"torch:4"}
    assert lastbit.json("explain", one, one, expect=0)["findings"] == []


@pytest.mark.parametrize("turned", [False, True])
def test_split_k_by_hand(lastbit, tmp_path, turned):
    one, other = record_pair(lastbit, tmp_path, SPLIT, ["1"], ["4"])
    answer = lastbit.json("explain", *((other, one) if turned else (one, other)), expect=1)
    (f,) = own(answer)
    assert (f["layer"], f["cause"], f["schedule"], f["reversed"]) == ("up", "order", "splitk:4", turned)
    assert f["matched"] == f["elements"] == 32 * 64 and f["proof"] == "bits" and not f["also"]
    assert f["excluded"] == f["tried"] - 1 >= 50
    (norm,) = [f for f in answer["findings"] if f["layer"] == "norm"]
    assert norm["cause"] == "input" and norm["matched"] == norm["elements"]
    for step in ("--layer norm", "--phase backward"):
        assert own(lastbit.json("explain", one, other, *step.split())) == []
