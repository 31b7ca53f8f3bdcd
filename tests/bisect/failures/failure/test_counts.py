"""Counts of elements are those of one tensor: not of what an op that works in place gives and writes, nor of all tensors of a list."""

import re

import pytest

PROGRAM = """
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    torch.nn.functional.cross_entropy(net(torch.randn(8, 16)), torch.randint(0, 4, (8,))).backward()
    if step == 1:
        CASE
    optimizer.step()
    optimizer.zero_grad()
"""
CASES = {
    "in place": "net[0].weight.grad[2:4].mul_(1e30).mul_(1e30)",
    "a whole in place": "net[0].weight.grad.mul_(1e30).mul_(1e30)",
    "a list": "torch._foreach_mul_([p.grad for p in net.parameters()], 1e30); torch._foreach_mul_([p.grad for p in net.parameters()], 1e30)",
}


@pytest.mark.parametrize("case", CASES)
def test_elements_are_those_of_the_tensor(lastbit, tmp_path, case):
    (tmp_path / "train.py").write_text(PROGRAM.replace("CASE", CASES[case]))
    lastbit.record(tmp_path / "run.lb", tmp_path / "train.py", expect=0)
    verdict = lastbit.json("bisect", tmp_path / "run.lb", "-q", expect=(1, 125))
    count = re.search(r"of its result \d+ of (\d+) elements \(f32\) are infinite", verdict["begins"]["text"])
    assert int(count[1]) == (32 if case == "in place" else 256)
    every = [int(n) for n in re.findall(r"\d+ of (\d+) elements", str(verdict))]
    assert every and set(every) <= {4, 16, 32, 64, 256}
