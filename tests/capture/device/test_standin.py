"""Programs on an accelerator whose memory the host cannot read (standin.py) are recorded as on the CPU: the same ops, digests and bytes;
their captures replay and bisect without it, and recording changes no bit."""

import json
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest
import standin
import torch
from conftest import BUILD, warm_python

ROOT = pathlib.Path(__file__).parents[3]
PROGRAM, ON_STANDIN, SAMPLE = "tests/programs/on_device.py", "tests/capture/device/on_standin.py", "samples/hybrid_lm.py"
# Of one program on two devices: what names neither the file nor the time.
OF_A_STEP = ("step", "level", "ops", "phases", "values", "kept", "collectives", "routings", "optimizers", "scalars", "notices", "decisions")


@pytest.fixture(scope="module", autouse=True)
def library():
    return standin.build()


@pytest.fixture(scope="module")
def pair(lastbit, tmp_path_factory):
    """pair(WHAT): captures of a program of on_device.py on the CPU and on the device, and the tensors that both ended with."""
    made = {}

    def record(what):
        if what not in made:
            folder = tmp_path_factory.mktemp("devices")
            for device in ("cpu", "standin"):
                options = ("--device", device, "--save", folder / f"{device}.pt")
                lastbit.record(folder / f"{device}.lb", PROGRAM, what, *options, options=("--level", "ops"), expect=0)
            made[what] = folder
        return made[what]

    return record


def steps_of(lastbit, capture):
    programs = lastbit.json("ls", capture, expect=0)["programs"]
    return [{key: program[key] for key in OF_A_STEP} for program in programs]


def ends_of(folder, device):
    return torch.load(folder / f"{device}.pt")


def assert_same_bits(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert a.dtype == b.dtype and torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


def assert_same_but_for_copies(ours, theirs, copies):
    """The last step goes on to the program's end: there tensors are copied to the host where they do not lie there already."""
    assert ours[:-1] == theirs[:-1]
    assert ours[-1]["ops"] == theirs[-1]["ops"] + copies
    assert ours[-1]["scalars"] == theirs[-1]["scalars"] and ours[-1]["notices"] == theirs[-1]["notices"]
    assert ours[-1]["kept"]["sources"] == theirs[-1]["kept"]["sources"]


def test_memory_of_the_device_faults():
    """What the other tests show is shown only if nobody can look."""
    look = "import standin, torch, ctypes; standin.load(); ctypes.string_at(torch.ones(4, device='standin').data_ptr(), 4)"
    done = subprocess.run([sys.executable, "-c", look], cwd=standin.SOURCE.parent)
    assert done.returncode == -11


LATE = """
import standin, torch
standin.load()
there, here = torch.arange(4.0, device="standin"), torch.zeros(4, pin_memory=True)
here.copy_(there, non_blocking=True)
there.add_(1)
sent = torch.ones(4).pin_memory()
there.copy_(sent, non_blocking=True)
sent.fill_(7)
early, queued = here.tolist(), torch.Event(device="standin")
queued.record()
queued.synchronize()
print(early, here.tolist(), there.tolist(), here.is_pinned(), torch.zeros(4).is_pinned())
"""


def test_copies_of_the_device_are_late():
    """What is copied to pinned memory arrives when it is waited for, as it was when the copy was queued; what is copied from there is read
    when the device comes to it."""
    done = subprocess.run([sys.executable, "-c", LATE], cwd=standin.SOURCE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0.0, 0.0, 0.0, 0.0] [0.0, 1.0, 2.0, 3.0] [7.0, 7.0, 7.0, 7.0] True False\n"


def test_training_is_recorded_as_on_the_cpu(lastbit, pair):
    folder = pair("train")
    ours, theirs = steps_of(lastbit, folder / "standin.lb"), steps_of(lastbit, folder / "cpu.lb")
    assert_same_but_for_copies(ours, theirs, len(ends_of(folder, "cpu")))
    assert len(ours) == 3
    assert all(step["scalars"]["loss"] > 0 and step["kept"]["ops"]["kept"] == step["kept"]["ops"]["values"] for step in ours)
    found = lastbit.json("diff", folder / "cpu.lb", folder / "standin.lb", expect=0)
    assert found["verdict"] == "identical" and found["first"] is None


def test_values_say_where_they_lay(lastbit, pair):
    shown = lastbit.run("show", pair("train") / "standin.lb", "0.weight", expect=0).stdout
    assert "0.weight" in shown and "missing" not in shown


def test_generation_with_a_cache_is_recorded_as_on_the_cpu(lastbit, pair):
    folder = pair("generate")
    ours, theirs = steps_of(lastbit, folder / "standin.lb"), steps_of(lastbit, folder / "cpu.lb")
    assert_same_but_for_copies(ours, theirs, 2)  # to print the tokens, and to save them
    assert len(ours) == 8
    assert lastbit.json("diff", folder / "cpu.lb", folder / "standin.lb", expect=0)["verdict"] == "identical"


def test_copies_that_arrive_later_are_recorded_as_they_arrive(lastbit, pair):
    """Activations in pinned memory and back, losses in slices of one buffer, outputs of another type and in another order: the program waits
    for the device at the end of each step."""
    folder = pair("offload")
    ours, theirs = steps_of(lastbit, folder / "standin.lb"), steps_of(lastbit, folder / "cpu.lb")
    assert_same_bits(ends_of(folder, "standin"), ends_of(folder, "cpu"))
    found = lastbit.json("diff", folder / "cpu.lb", folder / "standin.lb", expect=0)
    assert found["verdict"] == "identical" and found["first"] is None
    assert len(ours) == 3 and [step["notices"] for step in ours] == [step["notices"] for step in theirs]
    assert lastbit.json("replay", folder / "standin.lb", expect=0)["verdict"] in ("identical", "rounding")


@pytest.mark.full
def test_forwards_that_backward_runs_again_belong_to_their_modules(lastbit, pair):
    """Nodes of a device run in a thread of autograd's engine, and so do these forwards."""
    folder = pair("checkpoint")
    ours, theirs = steps_of(lastbit, folder / "standin.lb"), steps_of(lastbit, folder / "cpu.lb")
    assert_same_but_for_copies(ours, theirs, len(ends_of(folder, "cpu")))
    found = lastbit.json("diff", folder / "cpu.lb", folder / "standin.lb", expect=0)
    assert found["verdict"] == "identical" and {layer["layer"] for layer in found["layers"]} >= {"blocks.0.up", "blocks.1.down"}


def test_draws_on_a_device_are_sources(lastbit, pair):
    """torch has one op for dropout on a device and four on the CPU: the mask that it drew is kept, and replay takes it."""
    folder = pair("dropout")
    assert lastbit.json("diff", folder / "cpu.lb", folder / "standin.lb", expect=0)["verdict"] == "identical"
    replayed = lastbit.json("replay", folder / "standin.lb", expect=0)
    assert replayed["verdict"] in ("identical", "rounding")


@pytest.mark.parametrize("what", ["dropout", pytest.param("generate", marks=pytest.mark.full)])
def test_recording_changes_no_bit(pair, what, tmp_path):
    command = [*warm_python(), ROOT / PROGRAM, what, "--device", "standin", "--save", tmp_path / "alone.pt"]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert_same_bits(ends_of(pair(what), "standin"), torch.load(tmp_path / "alone.pt"))
    assert_same_bits(ends_of(pair(what), "standin"), ends_of(pair(what), "cpu"))


def left_out(step):
    return {kind: kept["values"] - kept["kept"] for kind, kept in step["kept"].items()}


@pytest.mark.parametrize("what", ["graph", "decode", "drawing"])
def test_each_replay_of_a_graph_is_a_step(lastbit, pair, what):
    """A step that was captured runs unseen: its ops, modules and updates are those of the same step on the CPU, all of its values have
    their bytes, draws among them; what replay makes of them are the bits of the run."""
    folder = pair(what)
    ours, theirs = steps_of(lastbit, folder / "standin.lb"), steps_of(lastbit, folder / "cpu.lb")
    assert len(ours) == len(theirs) == 5
    copies = len(ends_of(folder, "cpu"))
    for n, (mine, other) in enumerate(zip(ours, theirs)):
        if what != "drawing":  # where torch has one op of a device for four of the CPU
            assert mine["ops"] == other["ops"] + (copies if n == 4 else 0) and left_out(mine) == left_out(other)
        assert mine["optimizers"] == other["optimizers"] and mine["level"] == "ops"
        assert left_out(mine) == left_out(ours[1])
    assert_same_bits(ends_of(folder, "standin"), ends_of(folder, "cpu"))
    found = lastbit.json("diff", folder / "cpu.lb", folder / "standin.lb", expect=0)
    assert found["verdict"] == "identical"
    assert lastbit.json("diff", folder / "standin.lb", folder / "cpu.lb", expect=0)["verdict"] == "identical"
    assert lastbit.run("bisect", folder / "standin.lb", expect=0).stdout.startswith("clean")


def test_what_one_graph_leaves_another_one_reads(lastbit, pair):
    """A graph of a forward and one of its backward: activations, freed when that had been captured, pass between them."""
    folder = pair("partial")
    ours = steps_of(lastbit, folder / "standin.lb")
    assert len(ours) == 5 and all(step["level"] == "ops" for step in ours)
    assert all(left_out(step)["sources"] == 0 for step in ours)
    assert_same_bits(ends_of(folder, "standin"), ends_of(folder, "cpu"))
    assert lastbit.json("diff", folder / "cpu.lb", folder / "standin.lb", expect=0)["verdict"] == "identical"
    assert lastbit.json("replay", folder / "standin.lb", expect=0)["verdict"] in ("identical", "rounding")


def test_a_fault_in_a_graph_is_found(lastbit, pair, tmp_path):
    """A residual with another factor, in the captured forward alone."""
    options = ("decode", "--device", "standin", "--factor", "1.5")
    lastbit.record(tmp_path / "faulty.lb", PROGRAM, *options, options=("--level", "ops"), expect=0)
    found = lastbit.json("diff", pair("decode") / "cpu.lb", tmp_path / "faulty.lb", expect=1)
    assert (found["verdict"], found["first"]["step"], found["first"]["layer"]) == ("diverged", 2, "1")


HEARTBEAT = """
import sys, threading, time, torch, standin
standin.load()
import lastbit.torch

HELD = 500
gaps, over, x = {"python": [], "ops": []}, threading.Event(), torch.ones(64)

def beat(kind):
    while not over.is_set():
        before = time.monotonic()
        time.sleep(0.002)
        if kind == "ops":
            x + 1
        gaps[kind].append((before, time.monotonic() - before))

waited = {}

def hold(what, work):
    standin.stand_still(HELD)
    began = time.monotonic()
    work()
    waited[what] = began, time.monotonic()

model, batch = torch.nn.Linear(64, 64).to("standin"), torch.ones(8, 64, device="standin")
host, other = torch.zeros(8, 64, pin_memory=True), torch.zeros(64, 8, pin_memory=True).t()
with lastbit.torch.capture(sys.argv[1], level=sys.argv[2]) as capture:
    graph = torch.standin.StandinGraph()
    with torch.no_grad(), torch.standin.graph(graph):
        model(batch)
    with capture.step(0):
        graph.replay()
    beats = [threading.Thread(target=beat, args=(kind,)) for kind in gaps]
    for thread in beats:
        thread.start()
    step = capture.step(1)
    step.__enter__()
    hold("source", lambda: batch + 1)
    hold("result", lambda: model(batch))
    hold("copy", lambda: host.copy_(batch, non_blocking=True))
    hold("copy in another order", lambda: other.copy_(batch, non_blocking=True))
    hold("run of a graph", graph.replay)
    hold("number", lambda: batch.sum().item())
    batch[0].mul_(2)  # what was written in parts is read when the step ends
    hold("end of step", lambda: step.__exit__(None, None, None))
    over.set()
    for thread in beats:
        thread.join()
for what, (began, ended) in waited.items():
    silent = {kind: max(gap for at, gap in all if at <= ended and at + gap >= began) for kind, all in gaps.items()}
    print("%s: waited %.3f s, silent %s" % (what, ended - began, {kind: round(gap, 3) for kind, gap in silent.items()}))
    assert ended - began > 0.4 and max(silent.values()) < 0.05, what
"""


@pytest.mark.parametrize("level", ["stats", "ops"])
def test_other_threads_go_on_while_a_device_is_waited_for(lastbit, tmp_path, level):
    """A device is held for half a second at each of several calls that read from it: neither a thread of Python nor one whose ops are
    recorded is ever silent for 50 ms. A lock that is held is held every time; a machine that others use pauses a thread now and then."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'capture'}", "LASTBIT_LIB": str(BUILD / "liblastbit_capture.so")}
    for attempt in range(5):
        run = tmp_path / f"run{attempt}.lb"
        command = [sys.executable, "-c", HEARTBEAT, run, level]
        done = subprocess.run(command, cwd=standin.SOURCE.parent, capture_output=True, text=True, env=environment)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    steps = steps_of(lastbit, run)
    assert len(steps) == 2 and steps[1]["ops"] > 100 and steps[1]["notices"] == steps[0]["notices"]


AGAIN = """
import sys, torch, standin
standin.load()
import lastbit.torch

def captured(pool=None):
    graph = torch.standin.StandinGraph()
    with torch.standin.graph(graph, pool=pool):
        out = model(x).relu()
    return graph, out

model, x = torch.nn.Linear(16, 16).to("standin"), torch.ones(8, 16, device="standin")
with torch.no_grad():
    early, _ = captured()
    with lastbit.torch.capture(sys.argv[1], level="ops") as capture:
        for n in range(30):
            with capture.step(n):
                graph, out = captured()
                graph.replay()
                x.copy_(out)
        with capture.step(30):
            early.replay()
            model(x)
        held = standin.library().standin_used()
    graph.replay()  # recording is over: what it copies aside has to be there still
    print(held, out.sum().item() == model(x).relu().sum().item())
"""


def test_room_of_graphs_that_are_gone_is_given_back(lastbit, tmp_path):
    """Thirty captures one after the other, where two find room at a time; and a graph that was captured before anything was recorded."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'capture'}", "LASTBIT_LIB": str(BUILD / "liblastbit_capture.so")}
    environment["LASTBIT_DEVICE_MEMORY"] = "3000"
    command = [sys.executable, "-c", AGAIN, tmp_path / "run.lb"]
    done = subprocess.run(command, cwd=standin.SOURCE.parent, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    used, right = done.stdout.split()
    assert right == "True" and int(used) < 30000
    steps = steps_of(lastbit, tmp_path / "run.lb")
    assert len(steps) == 31 and all(step["level"] == "ops" and not any(left_out(step).values()) for step in steps)
    assert ["capture was not recorded" in notice["message"] for notice in steps[-1]["notices"]] == [True]


@pytest.mark.full
def test_a_failing_step_with_dropout_in_a_graph_replays_to_its_failure(lastbit, tmp_path):
    """A batch that is not finite; masks and noise are those of the failing run."""
    answers = []
    for device in ("cpu", "standin"):
        out = tmp_path / f"{device}.lb"
        options = ("drawing", "--device", device, "--factor", "inf")
        lastbit.record(out, PROGRAM, *options, options=("--level", "sources", "--steps", "2-3"), expect=0)
        answer = lastbit.json("bisect", out)
        begins, sanity = answer["begins"], answer["stages"][0]
        answers.append((answer["failure"]["step"], answer["failure"]["what"], begins["step"], begins["op"], sanity["outcome"]))
    assert answers[0] == answers[1] and answers[0][0] == 3


def bisected(lastbit, capture):
    """The answer of `bisect` without what names the file or the time."""
    answer = lastbit.json("bisect", capture, expect=1)
    text = re.sub(r'"seconds": [^,}]*', '"seconds": 0', json.dumps(answer)).replace(str(capture), "CAPTURE")
    return json.loads(text)


@pytest.mark.parametrize(
    "fault,steps",
    [("scan-overflow", "2-2"), pytest.param("polar-bf16", "2-3", marks=pytest.mark.full), pytest.param("stale-scale", "2-2", marks=pytest.mark.full)],
)
def test_a_fault_bisects_to_the_same_answer(lastbit, tmp_path, fault, steps):
    """A program that knows nothing of devices, recorded on one: the sample's."""
    options = ("--steps", steps, "--level", "layers")
    ours, theirs = tmp_path / "standin.lb", tmp_path / "cpu.lb"
    lastbit.record(ours, ON_STANDIN, ROOT / SAMPLE, "--fault", fault, options=options)
    lastbit.record(theirs, SAMPLE, "--fault", fault, options=options)
    assert steps_of(lastbit, ours) == steps_of(lastbit, theirs)
    answer = bisected(lastbit, ours)
    assert answer == bisected(lastbit, theirs)
    assert re.search(runpy.run_path(str(ROOT / SAMPLE))["TRUTH"][fault]["axis"], json.dumps(answer))


@pytest.mark.full
@pytest.mark.parametrize("level", ["stats", "sources", "layers", "auto"])
def test_levels_keep_what_they_keep_on_the_cpu(lastbit, tmp_path, level):
    for device in ("cpu", "standin"):
        lastbit.record(tmp_path / f"{device}.lb", PROGRAM, "train", "--device", device, options=("--level", level), expect=0)
    ours, theirs = steps_of(lastbit, tmp_path / "standin.lb"), steps_of(lastbit, tmp_path / "cpu.lb")
    assert_same_but_for_copies(ours, theirs, 0)


@pytest.mark.full
def test_the_flight_recorder_holds_values_of_a_device(lastbit, tmp_path):
    """A NaN in a gradient writes the ring; its steps hold bytes."""
    out = tmp_path / "ring.lb"
    lastbit.record(out, ON_STANDIN, ROOT / SAMPLE, "--fault", "scan-overflow", options=("--ring", "2"))
    steps = steps_of(lastbit, out)
    assert steps and steps[-1]["step"] == 2
    assert steps[-1]["kept"]["sources"]["kept"] > 0


def test_the_state_of_a_generator_is_a_source(lastbit, tmp_path):
    """Its seed and offset at the beginning of each step, under its name."""
    out = tmp_path / "run.lb"
    options = ("--level", "sources", "--steps", "0-1")
    lastbit.record(out, PROGRAM, "dropout", "--device", "standin", options=options, env={"STANDIN_GENERATOR": "1"}, expect=0)
    shown = lastbit.run("show", out, "generator:standin:0", "--step", "1", expect=0).stdout
    assert "source: state" in shown and "u8 [5056]" in shown


def test_doctor_says_what_is_recorded_of_a_device():
    ask = "import standin; standin.load(); import lastbit.doctor as d; r = d.Report(); d.check_devices(r, __import__('torch')); print(r.checks)"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'capture'}", "LASTBIT_LIB": str(BUILD / "liblastbit_capture.so")}
    done = subprocess.run([sys.executable, "-c", ask], cwd=standin.SOURCE.parent, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(r"'device standin:0'.*digests, statistics and bytes, copied by torch; read at [0-9.]+ GB/s", done.stdout)


@pytest.mark.full
def test_data_parallel_training_is_recorded_as_on_the_cpu(lastbit, tmp_path):
    """Two ranks under torchrun: buckets, their sums, and what each rank sent."""
    for device in ("cpu", "standin"):
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*start, ROOT / PROGRAM, "ddp", "--device", device]
        lastbit.run("record", "-o", tmp_path / f"{device}.lb", "--level", "ops", "--", *command, expect=0)
    ours, theirs = steps_of(lastbit, tmp_path / "standin.lb"), steps_of(lastbit, tmp_path / "cpu.lb")
    assert [step["collectives"] for step in ours] == [step["collectives"] for step in theirs]
    assert sum(step["collectives"] for step in ours) > 0
    assert [step["kept"]["sources"]["kept"] for step in ours] == [step["kept"]["sources"]["values"] for step in ours]
    found = lastbit.json("diff", tmp_path / "cpu.lb", tmp_path / "standin.lb", expect=0)
    assert found["verdict"] == "identical"
