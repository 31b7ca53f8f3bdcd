"""Unwritten bytes are undefined, and nothing that is made of them is judged; bytes that C++ wrote through a pointer are a source."""

import sys

import recorded
from warm_python import TORCHRUN

OPS = """
import torch
torch.set_num_threads(1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(8, 8)
    def forward(self, x):
        for fill in (float("nan"), 3.0, 7.0):  # what an allocator hands out again
            torch.full((50, 8), fill)
        garbage = torch.empty(50, 8)
        garbage.add_(1).mul_(2)
        garbage * 3
        left, right = torch.randn(2, 5, 8), torch.randn(2, 8, 6)  # products that are added to nothing: their first argument is not read
        torch.baddbmm(torch.empty(2, 5, 6), left, right, beta=0.0, alpha=0.5).softmax(-1)
        torch.addmm(torch.empty(5, 6), left[0], right[0], beta=0)
        torch.empty(5, 6).addmm_(left[0], right[0], beta=0)
        torch.addmv(torch.empty(5), left[0], right[0, :, 0], beta=0)
        torch.addr(torch.empty(5, 6), left[0, :, 0], right[0, 0], beta=0)
        torch.addbmm(torch.empty(5, 6), left, right, beta=0)
        torch.addmm(torch.empty(3, 3), torch.ones(3, 2), torch.ones(2, 3), beta=0.5)
        inverse = torch.empty(8, dtype=torch.long)
        order = torch.arange(7, -1, -1)
        inverse[order] = torch.arange(8)
        put = torch.empty(8, 6).index_copy(0, order, torch.randn(8, 6)), torch.empty(4).scatter(0, order[4:], 2.0)
        put += torch.empty(8).index_put((order,), torch.randn(8)), torch.empty(2, 3).select_scatter(torch.randn(3), 0, 1)
        torch.empty(8).index_put((order,), torch.randn(8), accumulate=True)
        torch.empty(8).scatter_add(0, order, torch.randn(8))
        return self.lin(x[inverse])
net = Net()
for _ in range(2):
    net(torch.randn(8, 8)).sum().backward()
"""

RANKS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.GELU(), torch.nn.Linear(32, 4))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(2):
    model(torch.randn(8, 16)).pow(2).mean().backward()
    optimizer.step(); optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_what_is_made_of_nothing_is_not_judged(lastbit, tmp_path):
    (tmp_path / "program.py").write_text(OPS)
    lastbit.record(tmp_path / "run.lb", tmp_path / "program.py", options=["--level", "ops"], expect=0)
    step = recorded.Recorded(tmp_path / "run.lb").programs[0][0]
    flags = {}
    for op in step.ops:
        for v in step.results(op) + step.written(op):
            if v != recorded.NONE and step.shape(v) == [50, 8] and step.name(op) != "aten::full":
                flags[step.name(op)] = bool(step.values[v].flags & recorded.UNDEFINED)
    assert flags["aten::add_.Tensor"] and flags["aten::mul_.Tensor"] and flags["aten::mul.Tensor"], flags
    unread = ("aten::baddbmm", "aten::_softmax", "aten::addmm", "aten::addmm_", "aten::addmv", "aten::addr", "aten::addbmm")
    products = [op for op in step.ops if step.name(op) in unread]
    assert {step.name(op) for op in products} == set(unread)
    for op in products:
        for v in step.results(op) + step.written(op):
            half = step.shape(v) == [3, 3]
            assert bool(step.values[v].flags & recorded.UNDEFINED) == half, (step.name(op), step.shape(v))
    scattered = [v for op in step.ops if "index_put" in step.name(op) for v in step.written(op)]
    assert scattered and not any(step.values[v].flags & recorded.UNDEFINED for v in scattered)
    for name, undefined in (
        ("index_copy", {False}),
        ("scatter.value", {False}),
        ("index_put", {False, True}),
        ("select_scatter", {False}),
        ("scatter_add", {True}),
    ):
        seen = {bool(step.values[v].flags & recorded.UNDEFINED) for op in step.ops if step.name(op) == f"aten::{name}" for v in step.results(op)}
        assert seen == undefined, (name, seen)
    assert lastbit.json("replay", tmp_path / "run.lb", expect=0)["verdicts"]["diverged"] == 0


def test_healthy_ranks_have_nothing_undefined_to_send(lastbit, tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    for name in ("one", "two"):
        lastbit.run(
            "record",
            "-o",
            tmp_path / f"{name}.lb",
            "--level",
            "ops",
            "--",
            sys.executable,
            *TORCHRUN,
            "2",
            tmp_path / "ranks.py",
            expect=0,
        )
    seen = 0
    for step in recorded.Recorded(tmp_path / "one.lb").programs[0].values():  # rank 0 is the root of every broadcast
        for op in step.ops:
            if op.flags & recorded.COLLECTIVE:
                assert not [v for v in step.inputs(op) if step.values[v].flags & recorded.UNDEFINED], step.name(op)
                seen += step.name(op) == "c10d::broadcast_"
    assert seen > 2
    told = lastbit.json("explain", tmp_path / "one.lb", tmp_path / "two.lb", expect=0)
    assert not [row for row in told.get("findings", []) if "broadcast" in str(row)]
    assert lastbit.json("replay", tmp_path / "one.lb", expect=0)["verdicts"]["diverged"] == 0
