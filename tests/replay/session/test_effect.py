"""What a swap does is said, not judged: its effect on what leaves the step is what PyTorch gives for the changed program."""

import pytest
import torch

PROGRAM = """
import sys, torch
torch.set_num_threads(1)
torch.manual_seed(3)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.side = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
    def forward(self, x):
        return (self.up(x) if 'skip' not in sys.argv else 0) + self.side(x)
model = torch.nn.Sequential(Block(), torch.nn.Linear(16, 8))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(4, 16), torch.randn(4, 8)
ends = []
for step in range(2):
    out = model(x)
    loss = (out - y).square().mean()
    loss.backward()
    opt.step(); opt.zero_grad()
    ends.append((out.detach().clone(), loss.detach().clone(), {n: p.detach().clone() for n, p in model.named_parameters()}))
torch.save(ends, sys.argv[1])
"""


@pytest.fixture(scope="module")
def pair(lastbit, tmp_path_factory):
    """The capture of the whole program, and what both programs end their steps with."""
    folder = tmp_path_factory.mktemp("effect")
    (folder / "program.py").write_text(PROGRAM)
    captures = {}
    for level in ("ops", "sources"):
        lastbit.record(folder / f"{level}.lb", folder / "program.py", folder / "whole.pt", options=["--level", level], expect=0)
        captures[level] = folder / f"{level}.lb"
    lastbit.record(folder / "skipped.lb", folder / "program.py", folder / "skipped.pt", "skip", expect=0)
    return captures, torch.load(folder / "whole.pt"), torch.load(folder / "skipped.pt")


def distance(a, b):
    a, b = torch.cat([t.flatten().double() for t in a]), torch.cat([t.flatten().double() for t in b])
    return float((a - b).abs().max()), float((a - b).norm() / b.norm())


@pytest.mark.parametrize("level", ["ops", "sources"])
def test_effect_of_a_module_left_out_is_that_of_a_program_without_it(lastbit, pair, level):
    captures, whole, skipped = pair
    told = lastbit.json("replay", captures[level], "--mode", "chained", "--skip", r"layer=0\.up", expect=0 if level == "ops" else (0, 125))
    assert told["verdict"] == "swapped" or level == "sources"
    assert told["verdicts"]["swapped"] > 0 and told["verdicts"]["diverged"] == 0
    assert not [row for row in told["worst"] if row["verdict"] == "diverged"]
    for step, effect in enumerate(told["effect"]["steps"]):
        (out, loss, parameters), (other_out, other_loss, others) = whole[step], skipped[step]
        names = sorted(parameters)
        truth = {
            "output": distance([other_out], [out]),
            "loss": distance([other_loss], [loss]),
            "parameters": distance([others[n] for n in names], [parameters[n] for n in names]),
        }
        for part, (max_abs, rel_l2) in truth.items():
            assert effect[part]["max_abs"] == pytest.approx(max_abs, rel=1e-4), (step, part)
            assert effect[part]["rel_l2"] == pytest.approx(rel_l2, rel=1e-4), (step, part)
        assert effect["parameters"]["tensors"] == len(names) and effect["parameters"].get("unknown", 0) == 0
        assert effect["loss_swapped"] == pytest.approx(float(other_loss), rel=1e-5)
    assert told["effect"]["output"]["max_abs"] == max(e["output"]["max_abs"] for e in told["effect"]["steps"]) > 0.1


@pytest.mark.parametrize(
    "swap, moved",
    [
        (["--precision", "bf16"], True),
        (["--order", "op=mm=pairwise"], True),
        (["--update", "0.5"], True),
        (["--rounding", "op=mm=rz"], True),
        (["--source", "finite"], False),
        (["--skip", "layer=nowhere"], None),
    ],
)
def test_no_swap_is_judged(lastbit, pair, swap, moved):
    captures, _, _ = pair
    plain = lastbit.json("replay", captures["ops"], "--mode", "chained", expect=0)
    assert plain["verdicts"]["swapped"] == 0 and "effect" not in plain
    told = lastbit.json("replay", captures["ops"], "--mode", "chained", "--force-decisions", *swap, expect=125 if moved is None else 0)
    assert told["verdict"] == ("swapped" if moved else plain["verdict"] if moved is None else told["verdict"])
    assert told["verdict"] != "diverged" and (moved is None) == (told["effect"] is None)
    if moved:
        assert max(told["effect"][part]["moved"] for part in ("output", "loss", "parameters")) > 0
    text = lastbit.run("replay", captures["ops"], "--mode", "chained", "--force-decisions", *swap).stdout
    assert ("said, not judged" in text) == bool(moved)


def test_op_by_op_a_swap_is_said_too(lastbit, pair):
    captures, _, _ = pair
    told = lastbit.json("replay", captures["ops"], "--precision", "op=addmm=bf16", expect=0)
    assert told["verdict"] == "swapped" and told["verdicts"]["diverged"] == 0 and told["effect"] is None
    assert {row["op"] for row in told["worst"] if row["verdict"] == "swapped"} == {"aten::addmm"}
