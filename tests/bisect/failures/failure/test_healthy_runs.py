"""Healthy runs raise nothing: evaluation between steps, masks, warm-up, adapters; several ranks of every kind."""

import pytest
from conftest import ROOT, warm_python

ALONE = ["evals", "masks", "scheduled", "lora"]
# program, its arguments, ranks that torchrun starts (0: it starts them itself)
RANKS = {
    "pipeline": ("tests/programs/ranks/pipeline.py", [], 2),
    "fsdp2": ("tests/programs/ranks/fsdp_two_linears.py", [], 0),
    "fsdp2 in bf16": ("tests/programs/ranks/fsdp_two_linears.py", ["--mixed"], 0),
    "ddp": ("tests/programs/ranks/ddp_accumulate.py", ["--bucket-view"], 2),
    "tensor parallel": ("tests/programs/ranks/tensor_parallel.py", ["--ranks", "2"], 2),
}


def check(lastbit, capture):
    verdict = lastbit.json("bisect", "-q", capture, expect=0)
    assert verdict["outcome"] == "clean" and verdict["failure"] is None and not verdict["trials"], verdict
    assert verdict["reason"] is None and verdict["note"] is None


@pytest.mark.parametrize("case", ALONE)
def test_a_healthy_run_is_clean(lastbit, tmp_path, case):
    lastbit.record(tmp_path / "run.lb", "tests/programs/healthy_runs.py", case, options=["--level", "ops"], expect=0)
    check(lastbit, tmp_path / "run.lb")


@pytest.mark.parametrize("case", RANKS)
def test_healthy_ranks_are_clean(lastbit, tmp_path, case):
    program, arguments, ranks = RANKS[case]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    lastbit.run("record", "-o", tmp_path / "run.lb", "--level", "ops", "--", *warm_python(), *torchrun, ROOT / program, *arguments, expect=0)
    check(lastbit, tmp_path / "run.lb")
