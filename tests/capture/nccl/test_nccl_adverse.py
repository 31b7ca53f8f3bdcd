"""What a program gives NCCL and gets from it against what the capture holds, call by call; programs that are not nice to who stands beneath."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
import recorded
from conftest import BUILD, ROOT

PROGRAM = ROOT / "tests" / "programs" / "ranks" / "nccl_calls.py"
STANDIN, DROP_IN = BUILD / "tests" / "standin" / "libnccl.so.2", BUILD / "dropin" / "nccl" / "libnccl.so.2"
KINDS = {
    "AllReduce": "all_reduce",
    "Reduce": "reduce",
    "Bcast": "broadcast",
    "Broadcast": "broadcast",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AlltoAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
    "Send": "send",
    "Recv": "recv",
}


def alone(scenario, ranks, **environment):
    command = [sys.executable, PROGRAM, STANDIN, scenario, str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def record(lastbit, tmp_path):
    """(what each rank says of its calls, the capture); it is what they say without us."""

    def record(scenario, *options, ranks=3, **environment):
        folder = tmp_path / "run.lb"
        env = {**os.environ, "LASTBIT_NCCL": str(STANDIN), **environment}
        done = lastbit.run("record", "-o", folder, "--force", *options, "--", sys.executable, PROGRAM, DROP_IN, scenario, ranks, env=env, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout == alone(scenario, ranks, **environment)
        return json.loads(done.stdout), folder

    return record


def short(program, value):
    if value is None:
        return None
    tensor = program.tensor(value[1]).contiguous()
    return hashlib.sha256(bytes(tensor.view(-1).view(__import__("torch").uint8).numpy()) if tensor.numel() else b"").hexdigest()[:16]


def calls_of(folder, ranks):
    """As the program says them: of each rank, in order; without those that NCCL refused."""
    capture = recorded.Recorded(folder)
    calls = []
    for rank in range(ranks):
        rows = []
        for program in capture.programs.get(rank, {}).values():
            for op in (op for op in program.ops if program.name(op).startswith("nccl::") and not op.flags & recorded.FAILED):
                send, recv, _, count = program.op_args(op)[:4]
                rows.append([program.name(op)[6:], count, short(program, send), received(program, op, recv)])
        calls.append(rows)
    return calls


def received(program, op, argument):
    written = program.written(op)
    return short(program, ("value", written[0])) if argument and written else None


def expected(calls):
    """Where NCCL reads no bytes of a rank, or writes none, the capture has none either."""
    return [[[KINDS[name], count, sent, got] for name, _, count, _, sent, got in rank] for rank in calls]


@pytest.mark.parametrize("scenario", ["moves", "to-oneself", "several", "premul", "refused", "splits", "some", "first-ends", "in-progress"])
def test_each_call_is_recorded_with_what_was_sent_and_received(lastbit, record, scenario):
    said, folder = record(scenario, "--level", "ops")
    assert calls_of(folder, len(said)) == expected(said)
    answer = lastbit.json("replay", folder)
    computed = sum(name not in ("Send", "Recv") and got is not None for rank in said for name, *_, got in rank)
    assert (answer["verdict"], answer["bitwise"]) == ("identical", computed), answer
    told = lastbit.run("ranks", folder, expect=1 if scenario == "refused" else 0).stdout
    assert ("and it failed" in told) == (scenario == "refused")


@pytest.mark.parametrize("version", range(1, 8))
def test_every_version_of_the_profiler_interface_tells_algorithms(record, version):
    """Until version 4 it does not say how many ranks there are, which the order of a tree has to know. All-gathers are counted in bytes."""
    knobs = dict(STANDIN_NCCL_PROFILER=str(version), STANDIN_NCCL_ALGO="tree", STANDIN_NCCL_CHANNELS="3")
    _, folder = record("several", **knobs)
    told = set()
    for programs in recorded.Recorded(folder).programs.values():
        for program in programs.values():
            told |= {
                (program.name(program.ops[row.op]), program.op_args(program.ops[row.op])[6], program.text(row.algorithm))
                for row in program.collectives
            }
    ring, tree = "RING/SIMPLE, 3 channels", "TREE/SIMPLE, 3 channels"
    assert told == {
        ("nccl::all_reduce", tree, "tree:3" if version >= 4 else ""),
        ("nccl::all_gather", ring, "ring:3"),
        ("nccl::reduce_scatter", ring, "ring:3"),
    }


def test_kernels_of_symmetric_memory_have_no_order_of_ring_or_tree(record):
    """Of these NCCL tells no channels, and until version 7 of the interface an algorithm that was never chosen."""
    _, folder = record("several", STANDIN_NCCL_ALGO="tree", STANDIN_NCCL_CHANNELS="0")
    programs = [program for steps in recorded.Recorded(folder).programs.values() for program in steps.values()]
    assert {program.text(row.algorithm) for program in programs for row in program.collectives} == {""}


def test_plug_in_of_somebody_else_stays_and_is_said(lastbit, record, tmp_path):
    _, folder = record("several", NCCL_PROFILER_PLUGIN=str(tmp_path / "theirs.so"))
    assert lastbit.run("ls", folder).stdout.count("NCCL_PROFILER_PLUGIN names another plug-in") == 3
    _, folder = record("several")
    assert "NCCL_PROFILER_PLUGIN" not in lastbit.run("ls", folder).stdout


def test_steps_go_on_when_the_communicator_that_counts_them_ends(lastbit, record):
    _, folder = record("first-ends", "--nccl-step", "4")
    assert "4 steps (0 to 3)" in lastbit.run("ls", folder).stdout
