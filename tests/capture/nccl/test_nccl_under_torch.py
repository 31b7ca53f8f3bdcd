"""Calls of NCCL beneath PyTorch: the op that makes them is recorded once, in the order that NCCL names."""

import os

import pytest
import recorded
from conftest import BUILD


@pytest.fixture(scope="module")
def capture(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("beneath") / "run.lb"
    knobs = {"STANDIN_NCCL_ALGO": "tree", "STANDIN_NCCL_CHANNELS": "2", "STANDIN_NCCL_NODES": "4"}
    knobs["LASTBIT_NCCL"] = str(BUILD / "tests" / "standin" / "libnccl.so.2")
    program = ("tests/programs/ranks/nccl_beneath.py", BUILD / "dropin/nccl/libnccl.so.2", 4)
    done = lastbit.record(folder, *program, options=("--level", "ops"), env=knobs)
    assert done.returncode == 0, done.stderr
    return folder


def test_calls_join_the_op_that_made_them(lastbit, capture):
    found = recorded.Recorded(capture)
    for rank in range(4):
        for program in found.programs[rank].values():
            names = [program.name(op) for op in program.ops]
            assert not [name for name in names if name.startswith("nccl::")]
            (row,) = program.collectives
            assert program.name(program.ops[row.op]) == "trtllm::allreduce" and program.text(row.algorithm) == "tree:1"
    assert sorted(name for name in os.listdir(capture) if name.endswith(".tar")) == [f"rank-0000{r}.tar" for r in range(4)]


def test_replay_takes_the_order_that_nccl_named(lastbit, capture):
    answer = lastbit.json("replay", capture, "--mode", "chained")
    assert answer["verdict"] == "identical" and answer["ops"]["opaque"] == 0
    other = lastbit.json("replay", capture, "--mode", "chained", "--order", "trtllm::allreduce=ring")
    assert other["bitwise"] < answer["bitwise"]
