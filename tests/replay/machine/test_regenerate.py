"""An isolated replay of a capture without the bytes of results: what has the recorded digest serves as well as recorded bytes, products
take the order of the library that computed them, and only what really came out otherwise is not judged."""

import os
import sys

import pytest

PROGRAM = """
import sys, torch
torch.set_num_threads(1)
torch.manual_seed(0)
dtype, hidden = getattr(torch, sys.argv[1]), int(sys.argv[2])
act = {"relu": torch.nn.ReLU, "gelu": torch.nn.GELU, "silu": torch.nn.SiLU}[sys.argv[3]]
model = torch.nn.Sequential(torch.nn.Linear(576, hidden), act(), torch.nn.Linear(hidden, 24)).to(dtype)
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(3):
    x, y = torch.randn(40, 576, dtype=dtype), torch.randn(40, 24, dtype=dtype)
    (model(x) - y).square().mean().backward()
    opt.step(); opt.zero_grad()
"""


def record(lastbit, tmp_path, level, *args):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    lastbit.record(tmp_path / f"{level}.lb", program, *args, options=["--level", level], expect=0)
    return tmp_path / f"{level}.lb"


@pytest.mark.parametrize("args", [("float32", 1536, "relu"), ("bfloat16", 700, "relu")], ids=str)
@pytest.mark.parametrize("level", ["sources", "layers"])
def test_products_in_the_order_of_the_library_are_judged_without_bytes(lastbit, tmp_path, level, args):
    told = lastbit.json("replay", record(lastbit, tmp_path, level, *args))
    own = lastbit.json("replay", record(lastbit, tmp_path, "ops", *args), expect=0)
    assert own["regenerated"] == 0 and own["verdicts"]["missing"] == 0
    adds_as_we_do = own["verdicts"]["identical"] == own["compared"]  # then no order has to be found
    judged = told["compared"] - told["verdicts"]["missing"]
    assert told["regenerated"] == told["verdicts"]["reordered"] and (told["regenerated"] > 0 or level == "layers" or adds_as_we_do)
    assert judged >= 0.95 * own["compared"], told.get("missing")


@pytest.mark.parametrize("act", ["silu", "gelu"])
def test_what_comes_out_otherwise_pytorch_computes(lastbit, tmp_path, act):
    capture = record(lastbit, tmp_path, "sources", "float32", 96, act)
    alone = lastbit.json("replay", capture, expect=125)
    assert alone["missing"].strip().endswith(f"--level ops --steps 0-2 -- python {tmp_path}/program.py float32 96 {act}")
    assert alone["verdict"] == "missing" and f"lastbit replay --backend torch {capture}" in alone["missing"]
    env = {**os.environ, "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]}
    told = lastbit.json("replay", capture, "--backend", "torch", env=env, expect=0)
    assert told["verdicts"]["missing"] == told["verdicts"]["diverged"] == 0 and "missing" not in told
    assert 0 < told["ops"]["backend"] < alone["verdicts"]["missing"]
