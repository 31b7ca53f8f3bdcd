"""Messages between ranks are sent again: what one rank computes in replay is what the other receives, also where receives were posted first."""

import pytest
from conftest import ROOT, warm_python

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def run(lastbit, tmp_path_factory):
    out = tmp_path_factory.mktemp("messages") / "run.lb"
    lastbit.record(out, "tests/programs/ranks/posted_receives.py", options=("--level", "ops"), expect=0)
    return out


@pytest.mark.parametrize("mode", ["isolated", "chained", "layer"])
def test_what_is_received_is_what_was_sent(lastbit, run, mode):
    answer = lastbit.json("replay", "--mode", mode, run, expect=0)
    assert answer["ops"]["opaque"] == 0 and answer["verdicts"]["missing"] == 0
    assert answer["verdict"] in ("identical", "rounding")  # a library's own product and tanh
    if mode == "chained":
        assert answer["compared"] >= 2 * 2 * 8  # per rank and step: three receives among them


def test_a_change_on_one_rank_reaches_the_other(lastbit, run):
    answer = lastbit.json("replay", "--mode", "chained", "--precision", "rank=0&op=aten::mm=bf16", run)
    moved = {(row["op"], row["rank"]) for row in answer["worst"] if row["verdict"] == "swapped"}
    assert ("c10d::recv_", 1) in moved and ("c10d::recv_", 0) not in moved


def test_one_rank_alone_takes_what_was_recorded(lastbit, run):
    answer = lastbit.json("replay", "--mode", "chained", "--ranks", 0, run, expect=0)
    assert answer["verdict"] in ("identical", "rounding") and answer["verdicts"]["missing"] == 0


def test_a_step_that_begins_between_two_messages_receives_its_own(lastbit, tmp_path):
    """The second stage of a pipeline gets its first part before the first op of its step: the step's first receive takes the second message."""
    out = tmp_path / "run.lb"
    lastbit.run("record", "-o", out, "--level", "ops", "--", *warm_python(), *TORCHRUN, ROOT / "tests/programs/ranks/pipeline.py", expect=0)
    for mode in "isolated", "chained":
        answer = lastbit.json("replay", "--mode", mode, out, expect=0)
        assert answer["verdict"] in ("identical", "rounding") and answer["verdicts"]["missing"] == 0
    answer = lastbit.json("replay", "--mode", "chained", "--steps", "0", "--precision", "rank=0&op=aten::addmm=bf16", out)
    assert ("c10d::recv_", 1) in {(row["op"], row["rank"]) for row in answer["worst"] if row["verdict"] == "swapped"}
