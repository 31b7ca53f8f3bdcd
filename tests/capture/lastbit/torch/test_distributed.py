"""Programs whose parameters are spread over ranks as DTensors, under torchrun: what is recorded, and that it replays."""

import subprocess
import sys

import pytest
import recorded
from conftest import ROOT
from warm_python import TORCHRUN

RUN = [sys.executable, *TORCHRUN, "2", ROOT / "tests/programs/ranks/sharded.py"]


def named(program, name):
    return [op for op in program.ops if program.name(op) == name]


@pytest.fixture(scope="module", params=["fsdp", "tp"])
def run(request, lastbit, tmp_path_factory):
    out = tmp_path_factory.mktemp("spread") / "run.lb"
    return request.param, lastbit.run("record", "-o", out, "--level", "ops", "--", *RUN, request.param, expect=0), out


@pytest.fixture(scope="module")
def capture(run):
    return recorded.Recorded(run[2])


def test_nothing_is_said_and_nothing_changes(run):
    how, done, _ = run
    assert [line for line in done.stderr.splitlines() if line.startswith("lastbit:")][1:] == []
    warnings = [line for line in done.stderr.splitlines() if "Warning" in line]
    if how == "tp":
        assert warnings == []
        return
    plain = subprocess.run([*map(str, RUN), how], capture_output=True, text=True, timeout=300)
    assert plain.returncode == 0, plain.stderr
    assert sorted(done.stdout.splitlines()) == sorted(plain.stdout.splitlines()) and len(plain.stdout.splitlines()) == 2
    assert warnings == [line for line in plain.stderr.splitlines() if "Warning" in line]


def test_everything_was_seen(run, capture):
    assert capture.ranks == [0, 1] and capture.steps == [0, 1]
    for rank in capture.ranks:
        coverage = capture.table("coverage", rank)
        assert coverage["notes"] == {} and coverage["unseen_writes"] == 0


def test_replay_agrees(run, lastbit):
    for mode in ("isolated", "chained"):
        answer = lastbit.json("replay", "--mode", mode, run[2])
        assert answer["verdict"] in ("identical", "rounding"), answer["worst"][:3]
    assert lastbit.json("bisect", run[2], expect=0)["outcome"] == "clean"


def test_parameters_and_gradients_have_names(run, capture):
    for rank in capture.ranks:
        program = capture.programs[rank][1]
        for flag in (1 << 3, 1 << 4):
            names = {program.text(v.name) for v in program.values if v.flags & flag}
            assert {"blocks.0.up.weight", "blocks.2.down.weight", "head.weight"} <= names
        members = {program.text(m.name) for m in program.group_params}
        assert "blocks.1.down.bias" in members


def test_outputs_of_collectives_are_those_after_completion(run, capture):
    for step in capture.steps:
        first, second = (capture.programs[rank][step] for rank in capture.ranks)
        for name in ("_c10d_functional::all_reduce", "c10d::_allgather_base_"):
            ops, others = named(first, name), named(second, name)
            assert len(ops) == len(others)
            for a, b in zip(ops, others):
                assert first.digest(first.results(a)[0]) == second.digest(second.results(b)[0]) != (0, 0)
    assert {"fsdp": named(first, "c10d::_allgather_base_"), "tp": named(first, "_c10d_functional::all_reduce")}[run[0]]


def test_ops_of_fsdp_write_what_they_are_given(run, capture):
    if run[0] != "fsdp":
        return
    program = capture.programs[0][0]
    cat = "fsdp::chunk_cat_mixed_dtype" if named(program, "fsdp::chunk_cat_mixed_dtype") else "fsdp::chunk_cat"  # from PyTorch 2.15 on
    for name in ("fsdp::split_with_sizes_copy", cat):
        assert named(program, name)
        for op in named(program, name):
            assert program.written(op)
            assert all(program.digest(v) != (0, 0) and not program.values[v].flags & 2 for v in program.written(op))
    assert not named(program, "fsdp::all_gather_copy_in") and named(program, "aten::_foreach_copy_")  # its parts instead


def test_messages_of_some_members_do_not_count_among_the_collectives_of_all(lastbit, tmp_path):
    """Ranks 0 and 1 exchange a message in the group of all three: behind it all of them still meet, so that each sum is computed again."""
    run = tmp_path / "run.lb"
    lastbit.record(run, "tests/programs/ranks/messages_of_some.py", options=("--level", "ops"), expect=0)
    verdicts = lastbit.json("replay", "--order", "op=allreduce_=rank", run)["verdicts"]
    assert verdicts["swapped"] == 3 * 2 * 2  # ranks, parameters, steps
