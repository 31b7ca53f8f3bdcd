"""Programs that call NCCL are recorded beneath: a stand-in for libnccl.so.2 reduces on host memory, threads or processes are its ranks.

What a call sent and received is compared by replay: it computes each collective again from what its members sent, in the order that the
stand-in named through the profiler interface, and both are programs of their own.
"""

import json
import os
import re
import subprocess

import msgpack
import pytest
from conftest import BUILD

PROGRAM = BUILD / "tests" / "nccl_program"
SHIM = BUILD / "liblastbit_nccl.so"


def play(scenario, ranks=4, how="threads", **environment):
    """The program without us: a hash of what each rank received."""
    env = {**os.environ, **{key: str(value) for key, value in environment.items()}}
    done = subprocess.run([PROGRAM, scenario, how, str(ranks)], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@pytest.fixture
def record(lastbit, tmp_path):
    def record(scenario, *options, ranks=4, how="threads", command=(), name="run.lb", **environment):
        """Its capture; what it received is what it receives without us."""
        folder = tmp_path / name
        env = {**os.environ, **{key: str(value) for key, value in environment.items()}}
        command = command or [PROGRAM, scenario, how, ranks]
        done = lastbit.run("record", "-o", folder, "--force", *options, "--", *command, env=env, timeout=60)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == play(scenario, ranks, how, **environment)
        return folder

    return record


def replay(lastbit, folder, *options):
    answer = lastbit.json("replay", folder, *options)
    return answer["verdict"], answer["bitwise"], answer["ops"]["total"]


@pytest.mark.parametrize("how", ["threads", "processes"])
def test_every_collective_replays_to_the_same_bits(lastbit, record, how):
    folder = record("everything", how=how)
    assert lastbit.run("verify", folder).returncode == 0
    answer = lastbit.json("replay", folder)
    assert answer["verdict"] == "identical"
    assert answer["ops"]["native"] == answer["ops"]["total"] == 191 and answer["bitwise"] == 174
    listed = lastbit.run("ls", folder).stdout
    for name in ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "send", "recv"):
        assert f"nccl::{name}" in listed
    assert "unseen_write" not in listed and "skipped" not in listed and "degraded" not in listed


@pytest.mark.parametrize(
    "algorithm, channels, nodes, order",
    [("ring", 1, 1, "ring:1"), ("ring", 3, 1, "ring:3"), ("tree", 2, 4, "tree:1"), ("tree", 2, 2, "tree:2"), ("tree", 2, 1, "tree:4")],
)
def test_order_that_nccl_names_is_the_one_replayed(lastbit, record, algorithm, channels, nodes, order):
    knobs = dict(STANDIN_NCCL_ALGO=algorithm, STANDIN_NCCL_CHANNELS=channels, STANDIN_NCCL_NODES=nodes)
    folder = record("everything", **knobs)
    assert replay(lastbit, folder) == ("identical", 174, 191)
    archive = (folder / "rank-00000.tar").read_bytes()
    assert f"{algorithm.upper()}/SIMPLE, {channels} channels".encode() in archive and order.encode() in archive


@pytest.mark.parametrize(
    "algorithm, channels, nodes, order",
    [("ring", 3, 1, "ring:3"), ("tree", 2, 4, "tree:1"), ("tree", 2, 1, "tree:4")],
)
def test_explain_tries_the_order_that_nccl_named_first(lastbit, record, algorithm, channels, nodes, order):
    """Three channels are in no list of likely orders: only the other side's recording knows of them."""
    one = record("steps", name="one.lb", STANDIN_NCCL_ALGO="ring", STANDIN_NCCL_CHANNELS=1)
    knobs = dict(STANDIN_NCCL_ALGO=algorithm, STANDIN_NCCL_CHANNELS=channels, STANDIN_NCCL_NODES=nodes)
    other = record("steps", name="other.lb", **knobs)
    for first, second, swapped in ((one, other, False), (other, one, True)):
        answer = lastbit.json("explain", first, second, expect=1)
        found = [row for row in answer["findings"] if "nccl::all_reduce" in (row["op"], row.get("other_op"))]
        orders = (order, "ring:1") if swapped else ("ring:1", order)
        assert found and all((row["cause"], row["first"], row["schedule"]) == ("order", *orders) for row in found), answer["findings"]


def test_explain_without_the_plugin_finds_no_order_of_its_own(lastbit, record, tmp_path):
    """The control: where another plug-in stands in the place of ours, three channels stay unnamed, and trees have their family's name."""
    one = record("steps", name="one.lb", STANDIN_NCCL_ALGO="ring", STANDIN_NCCL_CHANNELS=1)
    for algorithm, channels, nodes, named in (("ring", 3, 1, None), ("tree", 2, 4, "tree")):
        knobs = dict(STANDIN_NCCL_ALGO=algorithm, STANDIN_NCCL_CHANNELS=channels, STANDIN_NCCL_NODES=nodes)
        other = record("steps", name="other.lb", NCCL_PROFILER_PLUGIN=tmp_path / "none.so", **knobs)
        answer = lastbit.json("explain", one, other, expect=1)
        found = [row for row in answer["findings"] if row["op"] == "nccl::all_reduce"]
        assert found and all((row["schedule"] if row["cause"] == "order" else None) == named for row in found), answer["findings"]


def test_wrong_order_is_no_bit_equal_replay(lastbit, record):
    """The sums are not ones that every order gives."""
    folder = record("steps", STANDIN_NCCL_ALGO="ring")
    assert replay(lastbit, folder)[0] == "identical"
    verdict, bitwise, total = replay(lastbit, folder, "--order", "op=all_reduce=tree")
    assert bitwise < total


def test_one_thread_that_drives_all_ranks_in_groups(lastbit, record):
    folder = record("everything", how="single")
    assert replay(lastbit, folder) == ("identical", 12, 12)
    assert lastbit.json("ls", folder)["ranks"] in (4, [0, 1, 2, 3])


@pytest.mark.parametrize("scenario, count", [("non-blocking", 6), ("fork", 8)])
@pytest.mark.parametrize("how", ["threads", "processes"])
def test_non_blocking_communicators_and_forks(lastbit, record, scenario, count, how):
    assert replay(lastbit, record(scenario, ranks=2, how=how)) == ("identical", count, count)


def test_communicators_that_shrink_and_those_made_past_us(lastbit, record):
    """Who is left in a communicator is known; of one that grew the calls are recorded, and that its members are not known is said."""
    folder = record("grow", ranks=3, how="processes")
    listed = lastbit.run("ls", folder).stdout
    assert listed.count("2 collectives: 2 nccl::all_reduce") == 2 and listed.count("1 collective: 1 nccl::all_reduce") == 1
    assert listed.count("which ranks communicator") == 3
    archive = (folder / "rank-00001.tar").read_bytes()
    assert b"\xa31-2" in archive  # the name of those that are left, a MessagePack string of three bytes
    verdict, bitwise, total = replay(lastbit, folder)
    assert verdict == "identical" and bitwise == 2  # of the one that shrank


def test_program_says_where_steps_begin(lastbit, record):
    folder = record("marked", ranks=2, how="processes")
    assert "3 steps (10 to 12)" in lastbit.run("ls", folder).stdout


def test_steps_are_counts_of_collectives_otherwise(lastbit, record):
    folder = record("steps", "--nccl-step", "4", ranks=2)  # four calls in each of three rounds
    assert "3 steps (0 to 2)" in lastbit.run("ls", folder).stdout
    assert replay(lastbit, folder)[0] == "identical"
    folder = record("steps", "--nccl-step", "4", "--steps", "1", ranks=2)
    assert "1 step," in lastbit.run("ls", folder).stdout


@pytest.mark.parametrize(
    "scenario, told",
    [
        ("odd-op", "rank 0 called all_reduce(sum) of f32[1200]; rank 1 called all_reduce(max) of f32[1200]"),
        ("odd-count", "rank 0 called all_reduce(sum) of f32[1200]; rank 1 called all_reduce(sum) of f32[600]"),
        ("odd-root", "rank 0 called broadcast of f32[1200] from or to member 0; rank 1 called broadcast of f32[1200] from or to member 1"),
    ],
)
def test_calls_that_do_not_match_are_named(lastbit, record, scenario, told):
    folder = record(scenario, ranks=2, how="processes")
    for command in ("ranks", "bisect"):
        done = lastbit.run(command, folder, expect=1)
        assert told in re.sub(r"\s+", " ", done.stdout)


def test_rank_that_sent_the_nan_is_the_culprit(lastbit, record):
    folder = record("nan", ranks=3, how="processes")
    answer = lastbit.json("bisect", folder, expect=1)
    assert answer["culprit"]["axis"] == "rank" and answer["culprit"]["ranks"] == [1]


def test_calls_alone_have_no_bytes(lastbit, record):
    folder = record("steps", "--nccl", "calls", ranks=2)
    listed = lastbit.run("ls", folder).stdout
    assert "nccl::all_reduce" in listed and "level stats" in listed
    assert lastbit.json("replay", folder)["verdict"] == "missing"


def test_window_level_and_ranks_hold(lastbit, record):
    folder = record("marked", "--ranks", "1", "--steps", "11-12", "--level", "sources", ranks=2, how="processes")
    listed = lastbit.run("ls", folder).stdout
    assert "2 steps (11 to 12)" in listed and "level sources" in listed
    assert [name for name in sorted(os.listdir(folder)) if name.endswith(".tar")] == ["rank-00001.tar"]


@pytest.mark.parametrize("environment", [{"LASTBIT_DISABLE": "1"}, {}])
def test_shim_that_records_nothing_writes_nothing(tmp_path, environment):
    folder = tmp_path / "run.lb"
    folder.mkdir()
    if environment:
        environment = {**environment, "LASTBIT_OUT": folder}
    assert play("everything", LD_PRELOAD=SHIM, **environment) == play("everything")
    assert list(folder.iterdir()) == []


def test_off_preloads_nothing(lastbit, tmp_path):
    done = lastbit.run("record", "-o", tmp_path / "run.lb", "--nccl", "off", "--", "env")
    assert "LD_PRELOAD" not in done.stdout
    done = lastbit.run("record", "-o", tmp_path / "run.lb", "--", "env")
    assert f"LD_PRELOAD={SHIM}" in done.stdout and f"NCCL_PROFILER_PLUGIN={SHIM}" in done.stdout


@pytest.mark.parametrize("option, told", [(("--nccl", "all"), "bytes, calls, off"), (("--nccl-step", "0"), "is not a number of calls")])
def test_misuse_is_said_before_the_program_starts(lastbit, tmp_path, option, told):
    done = lastbit.run("record", "-o", tmp_path / "run.lb", *option, "--", "true", expect=129)
    assert told in done.stderr


def test_folder_that_cannot_be_written_harms_nobody(tmp_path):
    missing = tmp_path / "nowhere" / "run.lb"
    assert play("everything", LD_PRELOAD=SHIM, LASTBIT_OUT=missing, LASTBIT_LIB=BUILD / "liblastbit_capture.so") == play("everything")
    assert play("everything", LD_PRELOAD=SHIM, LASTBIT_OUT=tmp_path, LASTBIT_LIB=tmp_path / "none.so") == play("everything")


def test_library_stands_in_the_place_of_libnccl(lastbit, tmp_path):
    """Loaded as libnccl.so.2, it finds the real one by LASTBIT_NCCL, and has all that the real one has."""
    folder = tmp_path / "run.lb"
    folder.mkdir()
    env = {
        "LD_LIBRARY_PATH": BUILD / "dropin/nccl",
        "LASTBIT_NCCL": BUILD / "tests" / "standin" / "libnccl.so.2",
        "LASTBIT_OUT": folder,
        "LASTBIT_LIB": BUILD / "liblastbit_capture.so",
    }
    program = tmp_path / "nccl_program"  # whose runpath would come first
    program.write_bytes(PROGRAM.read_bytes())
    program.chmod(0o755)
    # LD_PRELOAD by the drop-in's own name is the same thing to a program that is linked, whatever its runpath.
    env["LD_PRELOAD"] = BUILD / "dropin/nccl/libnccl.so.2"
    assert play("everything", **env) == play("everything")
    assert replay(lastbit, folder)[0] == "identical"


def test_what_is_loaded_privately_is_found(tmp_path):
    """A program that opens the drop-in by dlopen, as Python bindings do, has its calls handed on; without a library they fail alone, which is
    said once."""
    script = (
        "import ctypes, os, sys\n"
        "nccl = ctypes.CDLL(os.environ['DROP_IN'])\n"
        "version = ctypes.c_int()\n"
        "print(nccl.ncclGetVersion(ctypes.byref(version)), version.value)\n"
    )
    env = {**os.environ, "DROP_IN": str(BUILD / "dropin/nccl/libnccl.so.2")}
    for real, told in [(BUILD / "tests" / "standin" / "libnccl.so.2", "0 23203"), (tmp_path / "none.so", "2 0")]:
        done = subprocess.run(["python3", "-c", script], capture_output=True, text=True, env={**env, "LASTBIT_NCCL": str(real)})
        assert done.stdout.strip() == told, done.stderr
        assert done.stderr.count("LASTBIT_NCCL names no library of NCCL") == (told == "2 0")


def test_receipt_says_what_steps_are(lastbit, record):
    folder = record("steps", ranks=2)
    table = subprocess.run(["tar", "tf", folder / "rank-00000.tar"], capture_output=True, text=True).stdout
    assert "nccl" in table
    assert json.loads(lastbit.run("ls", "--json", folder).stdout)["schema"] == "lastbit.ls/1"


@pytest.fixture
def late(lastbit, tmp_path):
    """The capture of three ranks whose streams run late, and who launch a graph of three calls so often."""

    def late(runs, *options, name="late.lb"):
        program = [BUILD / "tests" / "nccl_late", "3", str(runs)]
        alone = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
        done = lastbit.run("record", "-o", tmp_path / name, *options, "--", *program, timeout=60)
        assert done.returncode == 0 and done.stdout == alone.stdout, done.stderr
        return tmp_path / name

    return late


def test_streams_that_run_late_are_not_waited_for(lastbit, late):
    """Buffers are overwritten as soon as the stream has passed them, and one rank goes on only when the other's call has returned."""
    answer = lastbit.json("replay", late(0))
    assert answer["bitwise"] == 36 and answer["ops"]["total"] == 38  # 2 are a message; calls of a graph that is not launched are none


def runs_of_graphs(folder):
    tar = ["tar", "xOf"]
    tables = [subprocess.run([*tar, folder / f"rank-0000{r}.tar", "table/nccl_graphs.msgpack"], capture_output=True, check=True) for r in range(3)]
    return [msgpack.unpackb(table.stdout) for table in tables]


def test_runs_of_a_graph_are_recorded_one_by_one(lastbit, late):
    """Other calls lie between the launches; all ranks have them in one order, so that each is computed again to the same bits."""
    folder = late(40)
    answer = lastbit.json("replay", folder)
    eager = 36 + 3 * 13  # of the rounds; after every third launch
    assert answer["verdict"] == "identical" and answer["bitwise"] == eager + 3 * 3 * 40 and answer["ops"]["total"] == answer["bitwise"] + 2
    assert lastbit.run("ranks", folder).returncode == 0
    assert runs_of_graphs(folder) == [{"captured": 3, "runs": 120, "without_bytes": 0}] * 3
    listed = lastbit.run("ls", folder).stdout
    assert "skipped" not in listed and "CUDA graph" not in listed
    assert "2 steps (0 to 1)" in listed  # runs are counted as calls: 145 of the communicator


def test_captured_calls_whose_runs_cannot_be_seen_are_recorded_once(lastbit, late, monkeypatch):
    monkeypatch.setenv("LATE_CUDA_LOADS_NOTHING", "1")
    folder = late(6)
    answer = lastbit.json("replay", folder)
    assert answer["bitwise"] == 36 + 3 * 2 and answer["ops"]["total"] == answer["bitwise"] + 2 + 3 * 3
    listed = lastbit.run("ls", folder).stdout
    assert listed.count("nccl::all_reduce was captured into a CUDA graph: its runs are not seen, nor their bytes") == 3


def test_window_holds_for_runs_of_a_graph(lastbit, late):
    folder = late(40, "--nccl-step", "30", "--steps", "2-3")
    assert "2 steps (2 to 3)" in lastbit.run("ls", folder).stdout
    answer = lastbit.json("replay", folder)
    assert answer["verdict"] == "identical" and answer["bitwise"] == answer["ops"]["total"] == 3 * 60


def test_runs_of_a_graph_without_bytes_are_counted(lastbit, late):
    folder = late(10, "--nccl", "calls")
    assert runs_of_graphs(folder) == [{"captured": 3, "runs": 30, "without_bytes": 0}] * 3
    assert lastbit.json("replay", folder)["verdict"] == "missing"


YOUNGER = "int ncclGetVersion(int *version) { *version = 99999; return 0; }\nint ncclYounger(void) { return 42; }\n"
LINKED = """
#include <stdio.h>
int ncclGetVersion(int *version);
int ncclYounger(void);
int main(void)
{
    int version = 0, result = ncclGetVersion(&version);
    return printf("%d %d %d\\n", result, version, ncclYounger()) < 0;
}
"""
OPENED = """
import ctypes, sys
nccl, version = ctypes.CDLL(sys.argv[1]), ctypes.c_int()
print(nccl.ncclGetVersion(ctypes.byref(version)), version.value, nccl.ncclYounger())
"""


def test_function_that_the_drop_in_does_not_know_reaches_the_real_library(lastbit, tmp_path):
    """A program that needs all its symbols at its start, and those that open the drop-in by its name or its path, or a preload beside it."""
    (tmp_path / "real").mkdir()
    real, program = tmp_path / "real" / "libnccl.so.2", tmp_path / "linked"
    compiler = ["cc", "-xc", "-", "-o"]
    subprocess.run([*compiler, real, "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2"], input=YOUNGER, text=True, check=True)
    subprocess.run([*compiler, program, "-Wl,-z,now", "-xnone", real], input=LINKED, text=True, check=True)
    drop_in = BUILD / "dropin/nccl/libnccl.so.2"
    env = {**os.environ, "LASTBIT_NCCL": str(real), "LD_LIBRARY_PATH": str(drop_in.parent)}
    for command in ([program], ["python3", "-c", OPENED, "libnccl.so.2"], ["python3", "-c", OPENED, drop_in]):
        done = lastbit.run("record", "-o", tmp_path / "run.lb", "--force", "--", *command, env=env)
        assert done.stdout == "0 99999 42\n", done.stderr
        assert not list((tmp_path / "run.lb").glob("launch*"))
