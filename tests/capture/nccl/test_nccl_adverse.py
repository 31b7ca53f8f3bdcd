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
LATE_CUDA = {"NCCL_CALLS_CUDA": str(BUILD / "tests" / "late" / "libcuda.so.1")}
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

    def record(scenario, *options, ranks=3, name="run.lb", **environment):
        folder = tmp_path / name
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


@pytest.mark.parametrize("scenario", ["several", "premul", "refused", "in-progress"])
def test_calls_on_default_streams_that_run_late_are_recorded_alike(lastbit, record, scenario):
    """By each of their names; whose bytes are there when a stream comes to the call, and not when the program makes it."""
    said, folder = record(scenario, "--level", "ops", **LATE_CUDA)
    assert calls_of(folder, len(said)) == expected(said)
    assert lastbit.json("replay", folder)["verdict"] == "identical"


def test_memory_that_cuda_does_not_know_is_not_read_and_said(lastbit, record):
    said, folder = record("several", NCCL_CALLS_HOST="1", **LATE_CUDA)
    listed = lastbit.run("ls", folder).stdout
    assert listed.count("bytes of nccl::all_reduce could not be read") == listed.count("bytes of nccl::all_gather could not be read") == 3
    assert lastbit.json("replay", folder)["verdict"] == "missing"


def test_group_that_is_larger_than_what_may_wait_is_said(lastbit, record):
    """Of 40 calls that send and receive 4 MB the first 33 fit; what comes after the group does again."""
    _, folder = record("large-group", "--level", "stats", ranks=1)
    assert "the bytes of nccl::all_gather were skipped: 256 MB waited for a stream, or in one group" in lastbit.run("ls", folder).stdout
    (program,) = recorded.Recorded(folder).programs[0].values()
    known = [any(program.digest(v)) for op in program.ops if program.name(op).startswith("nccl::all_") for v in program.inputs(op)[:1]]
    assert known == [True] * 33 + [False] * 7 + [True]


def test_thread_that_drives_all_devices_is_all_ranks(lastbit, record):
    """Whichever of them is current."""
    _, folder = record("one", LATE_CUDA_DEVICE="0", **LATE_CUDA)
    assert sorted(path.name for path in folder.glob("rank-*.tar")) == ["rank-00000.tar", "rank-00001.tar", "rank-00002.tar"]
    answer = lastbit.json("replay", folder)
    assert (answer["verdict"], answer["bitwise"]) == ("identical", 6)


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


def test_ring_against_tree_is_reordered_and_a_wrong_input_is_not(lastbit, record):
    """Which order each side took its recording says, and replay bears out; one rank that brings one other number is named."""
    _, ring = record("several", name="ring.lb")
    _, tree = record("several", name="tree.lb", STANDIN_NCCL_ALGO="tree", STANDIN_NCCL_NODES="3")
    for first, second, told in ((ring, tree, ("ring:1", "tree:1")), (tree, ring, ("tree:1", "ring:1"))):
        answer = lastbit.json("diff", first, second)
        assert answer["verdict"] == answer["first"]["local"] == "reordered", answer
        assert "the first side's bits are those of %s, the second's of %s, as recorded (50 elements)" % told in answer["first"]["why"]
    for knobs in ({}, {"STANDIN_NCCL_ALGO": "tree", "STANDIN_NCCL_NODES": "3"}):
        _, odd = record("several", name="odd.lb", NCCL_CALLS_ODD_RANK="1", **knobs)
        answer = lastbit.json("diff", ring, odd, expect=1)
        assert (answer["verdict"], answer["first"]["rank"], answer["first"]["local"]) == ("diverged", 1, "diverged"), answer["first"]


def test_other_order_of_collectives_on_one_rank_is_named(lastbit, record):
    _, folder = record("odd-order")
    told = lastbit.run("ranks", folder, expect=1).stdout
    assert "ranks 0,2 called all_reduce(sum) of i32[12]; rank 1 called broadcast of i32[12] from or to member 0" in told


def test_launcher_of_fewer_processes_than_ranks_gives_no_numbers(lastbit, record):
    """Several ranks of a process have their own, whatever RANK the process has."""
    _, folder = record("several", RANK="1", WORLD_SIZE="2")
    assert sorted(path.name for path in folder.glob("rank-*.tar")) == ["rank-00000.tar", "rank-00001.tar", "rank-00002.tar"]


@pytest.mark.parametrize("how", ["exit", "abort", "kill"])
def test_process_that_ends_suddenly_leaves_the_steps_before(lastbit, tmp_path, how):
    """Of four calls each; the last step was still open."""
    folder = tmp_path / "run.lb"
    env = {**os.environ, "LASTBIT_NCCL": str(STANDIN)}
    lastbit.run("record", "-o", folder, "--nccl-step", "4", "--", sys.executable, PROGRAM, DROP_IN, how, 2, env=env, timeout=60)
    if lastbit.run("verify", folder).returncode:
        lastbit.run("recover", folder, expect=0)
    calls = calls_of(folder, 2)
    assert [[count for _, count, *_ in rank][:8] for rank in calls] == [[10, 11, 12, 13] * 2] * 2
    answer = lastbit.json("replay", folder, "--steps", "0-1")
    assert (answer["verdict"], answer["bitwise"]) == ("identical", 16)


SLOW = """
#include <stdlib.h>
#include <unistd.h>
#include <fcntl.h>
__attribute__((constructor)) static void load(void)
{
    close(open(getenv("BEGUN"), O_CREAT | O_WRONLY, 0600));
    usleep(300000);
    close(open(getenv("ENDED"), O_CREAT | O_WRONLY, 0600));
}
"""
FORKS = """
import ctypes as c, os, sys, time
nccl, comm, data = c.CDLL(sys.argv[1]), c.c_void_p(), (c.c_float * 8)()
class UniqueId(c.Structure):
    _fields_ = [("internal", c.c_char * 128)]
unique = UniqueId()
nccl.ncclCommInitRank.argtypes = [c.c_void_p, c.c_int, UniqueId, c.c_int]
assert not nccl.ncclGetUniqueId(c.byref(unique)) and not nccl.ncclCommInitRank(c.byref(comm), 1, unique, 0)
assert not nccl.ncclAllReduce(data, data, c.c_size_t(8), 7, 0, comm, None)
while not os.path.exists(os.environ["BEGUN"]):
    time.sleep(0.001)
child = os.fork()
if not child:
    c.CDLL(None).exit(0 if os.path.exists(os.environ["ENDED"]) else 1)
sys.exit(os.waitpid(child, 0)[1] != 0)
"""


def test_fork_waits_for_the_recorder_that_is_just_being_loaded(tmp_path):
    """Else the child may find locks of the loader, or of exit, locked by a thread that it does not have."""
    slow = tmp_path / "slow.so"
    subprocess.run(["cc", "-xc", "-", "-shared", "-fPIC", "-o", slow], input=SLOW, text=True, check=True)
    env = {**os.environ, "LASTBIT_NCCL": str(STANDIN), "LASTBIT_LIB": str(slow), "LASTBIT_OUT": str(tmp_path)}
    env.update(BEGUN=str(tmp_path / "begun"), ENDED=str(tmp_path / "ended"))
    done = subprocess.run([sys.executable, "-c", FORKS, DROP_IN], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    assert "the recorder has no lb_recorder_open" in done.stderr
