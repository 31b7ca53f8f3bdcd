"""Programs of PyTorch on the stand-in driver of CUDA (standin_on_driver.h), whose streams run late: the back end for CUDA records of them what is
recorded on the CPU, and changes no bit; no rule of the driver is broken."""

import os
import platform
import subprocess
import sys

import pytest
import recorded
import standin
import torch
from conftest import BUILD, ROOT
from test_standin import assert_same_bits, steps_of

PROGRAMS, ON_DRIVER = ROOT / "tests" / "programs", ROOT / "tests" / "capture" / "device" / "on_driver.py"
FIRST, SECOND, THIRD = "on_device.py", "device_programs.py", "stream_programs.py"
SOON = [(FIRST, what) for what in ("train", "offload", "graph", "decode", "checkpoint")] + [(SECOND, what) for what in ("prefetch", "reuse", "views")]
LATER = [(FIRST, what) for what in ("dropout", "generate", "drawing", "partial")] + [
    (SECOND, what) for what in ("transformers", "optimizers", "embeddings", "sparse", "dtypes", "functions", "workers", "threads", "full")
]
SOON += [(THIRD, what) for what in ("slices", "fed", "bare", "both")]
LATER += [(THIRD, what) for what in ("pool", "early", "aside", "buckets", "put_away", "soon", "overtaken", "numpy", "polled")]
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="a function of torch's is replaced by code of x86-64")


@pytest.fixture(scope="module", autouse=True)
def library():
    os.environ["STANDIN_LIBRARY"] = str(standin.build(BUILD / "standin"))
    yield
    del os.environ["STANDIN_LIBRARY"]


@pytest.fixture
def record_on(lastbit, tmp_path):
    """(capture, the tensors that the program ended with) of it on a device."""

    def record_on(file, what, device, ranks=1, **environment):
        options = ("--level", "ops")
        capture, saved = tmp_path / f"{device}.lb", tmp_path / f"{device}.pt"
        program = (PROGRAMS / file, what, "--device", device, "--save", saved)
        if device == "cpu" and ranks == 1:
            lastbit.record(capture, *program, options=options, expect=0)
        else:  # in an interpreter of its own: the accelerator is there before torch is
            start = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
            command = [sys.executable, *start, *([] if device == "cpu" else [ON_DRIVER]), *program]
            lastbit.run("record", "-o", capture, *options, "--", *command, env={**os.environ, **environment}, expect=0)
        return capture, torch.load(saved)

    return record_on


def devices_of(capture):
    return recorded.Recorded(capture).table("coverage").get("devices", [])


@pytest.mark.parametrize("file,what", [*SOON, *(pytest.param(*one, marks=pytest.mark.full) for one in LATER)])
def test_program_is_recorded_as_on_the_cpu(lastbit, record_on, file, what):
    here, on_cpu = record_on(file, what, "cpu")
    there, on_device = record_on(file, what, "standin")
    assert [(d["kind"], d["back_end"], d["skipped"]) for d in devices_of(there)] == [("cuda", "cuda", 0)] and devices_of(here) == []
    assert_same_bits(on_device, on_cpu)
    found = lastbit.json("diff", here, there, expect=0)
    assert found["verdict"] == "identical" and found["first"] is None
    ours, theirs = steps_of(lastbit, there), steps_of(lastbit, here)
    assert len(ours) == len(theirs) > 0
    assert all(step["level"] == "ops" and step["kept"]["sources"]["kept"] == step["kept"]["sources"]["values"] for step in ours)
    assert [step["notices"] for step in ours] == [step["notices"] for step in theirs]


@pytest.mark.parametrize("what", ["split", pytest.param("replicas", marks=pytest.mark.full)])
def test_two_devices_of_a_process_are_recorded_as_on_the_cpu(lastbit, record_on, what):
    """Each has its context, its streams and a reader; what goes from one to the other is measured where it arrives."""
    here, on_cpu = record_on(THIRD, what, "cpu")
    there, on_device = record_on(THIRD, what, "standin", STANDIN_DEVICES="2")
    assert sorted((d["back_end"], d["unit"], d["skipped"]) for d in devices_of(there)) == [("cuda", 0, 0), ("cuda", 1, 0)]
    assert_same_bits(on_device, on_cpu)
    found = lastbit.json("diff", here, there, expect=0)
    assert found["verdict"] == "identical" and found["first"] is None
    ours, theirs = steps_of(lastbit, there), steps_of(lastbit, here)
    assert all(step["kept"]["sources"]["kept"] == step["kept"]["sources"]["values"] for step in ours)
    assert len(ours) == len(theirs) == 3 and [step["notices"] for step in ours] == [step["notices"] for step in theirs]


@pytest.mark.full
@pytest.mark.parametrize("file,what", [(FIRST, "ddp"), (SECOND, "fsdp")])
def test_ranks_are_recorded_as_on_the_cpu(lastbit, record_on, file, what):
    """Two ranks under torchrun: what each sends, what it gets, and on FSDP2's own streams what it gathers and scatters."""
    here, on_cpu = record_on(file, what, "cpu", ranks=2)
    there, on_device = record_on(file, what, "standin", ranks=2)
    assert_same_bits(on_device, on_cpu)
    assert lastbit.json("diff", here, there, expect=0)["verdict"] == "identical"
    ours, theirs = steps_of(lastbit, there), steps_of(lastbit, here)
    assert [step["collectives"] for step in ours] == [step["collectives"] for step in theirs] and len(ours) == 4
    assert all(step["collectives"] and step["kept"]["sources"]["kept"] == step["kept"]["sources"]["values"] for step in ours)


@pytest.mark.parametrize(
    "file,what",
    [(FIRST, "train"), (SECOND, "full"), *(pytest.param(SECOND, what, marks=pytest.mark.full) for what in ("reuse", "optimizers", "functions"))],
)
def test_program_needs_no_more_memory_when_it_is_recorded(lastbit, record_on, tmp_path, file, what):
    """Its allocator uses at once what is freed, and has just what the program needs by itself: nothing is held a moment longer."""
    environment = {**os.environ, "STANDIN_USED": str(tmp_path / "used")}
    subprocess.run([sys.executable, ON_DRIVER, PROGRAMS / file, what, "--device", "standin"], env=environment, check=True, capture_output=True)
    used = int((tmp_path / "used").read_text())
    here, on_cpu = record_on(file, what, "cpu")
    there, on_device = record_on(file, what, "standin", STANDIN_MEMORY=str(used))
    assert_same_bits(on_device, on_cpu)
    assert lastbit.json("diff", here, there, expect=0)["verdict"] == "identical"
    environment["STANDIN_MEMORY"] = str(used - 256)
    short = subprocess.run([sys.executable, ON_DRIVER, PROGRAMS / file, what, "--device", "standin"], env=environment, capture_output=True, text=True)
    assert short.returncode and "the stand-in device is out of memory" in short.stderr


@pytest.mark.parametrize("left,least", [(24 << 20, 4 << 20), pytest.param(1 << 20, 0, marks=pytest.mark.full)])
def test_program_that_has_taken_nearly_all_memory_keeps_it(lastbit, record_on, left, least):
    """Of what is left the back end takes what it finds; where that is too little, torch copies what is read. The program has the same bits."""
    here, on_cpu = record_on(FIRST, "train", "cpu")
    there, on_device = record_on(FIRST, "train", "standin", STANDIN_LEFT=str(left))
    assert_same_bits(on_device, on_cpu)
    assert lastbit.json("diff", here, there, expect=0)["verdict"] == "identical"
    taken = [device["memory_bytes"] for device in devices_of(there) if device["back_end"] == "cuda"]
    assert (least <= taken[0] <= left) if least else not any(taken)
    notes = recorded.Recorded(there).table("coverage").get("notes", {})
    assert ("is not measured where its values lie: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY" in str(notes)) == (least == 0)


def test_reader_that_is_not_ordered_behind_the_ops_finds_other_bytes(lastbit, record_on):
    """What the tests above show is shown only if a reader that comes too early is found out."""
    here, on_cpu = record_on(FIRST, "train", "cpu")
    there, on_device = record_on(FIRST, "train", "standin", STANDIN_WRONG_STREAM="1", STANDIN_DELAY_US="2000")
    assert_same_bits(on_device, on_cpu)
    assert lastbit.json("diff", here, there)["verdict"] != "identical"
