"""A back end that is wrong in one place never passes: each mutant of capture/cuda, linked with test_cuda_programs.c, gives a value other than
the one that an op left, gives none, or breaks a rule of the driver's."""

import os
import pathlib
import shutil
import subprocess

import pytest
from conftest import FULL, ROOT

CUDA = ROOT / "capture" / "cuda"
BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release"))
NINJA = shutil.which("ninja")
pytestmark = pytest.mark.skipif(not NINJA or not (BUILD / "build.ninja").exists(), reason="ninja did not build this")
TARGET, PROGRAMS = "tests/capture_test_cuda_programs", 24

# file, what stands there once, what stands there in the mutant
MUTANTS = {
    "copies on the side": (
        "cuda_gather.c",
        "(CUdeviceptr)(uintptr_t)work->item.dense, work->item.dense_bytes, stream)",
        "(CUdeviceptr)(uintptr_t)work->item.dense, work->item.dense_bytes, device->side)",
    ),
    "no copy: read when it is measured": ("cuda_gather.c", "if (!aside->taken) return item;", "if (aside) return item;"),
    "copies that are not waited for": (
        "cuda_gather.c",
        "        if (!LB_CUDA_CALL(device, StreamWaitEvent, device->side, read->copied, 0)) return false;\n",
        "",
    ),
    "an event behind the first copy alone": (
        "cuda_gather.c",
        "           LB_CUDA_CALL(device, EventRecord, read->copied, stream);",
        "           (read->gathered || LB_CUDA_CALL(device, EventRecord, read->copied, stream));",
    ),
    "copies of before a launch of their stream": (
        "cuda_gather.c",
        "        if (!read->gathered) continue;",
        "        if (!read->gathered || read->serial != LB_CUDA_GATHERED) continue;",
    ),
    "room that is free too early": (
        "cuda_gather.c",
        "    flight->aside = true;\n",
        "    flight->aside = true;\n    for (size_t i = 0; i < flight->n; i++) lb_cuda_give_piece(device, LB_CUDA_STAGING, &flight->jobs[i].aside);\n",
    ),
    "no flush before a wait": ("cuda_device.c", "if (flushed) lb_cuda_flush(device, wait);", ""),
    "writes that do not wait for reads": (
        "cuda_gather.c",
        "if (read->stream_id != id && !LB_CUDA_CALL(device, StreamWaitEvent, stream, read->last, 0)) return;",
        "if (read->stream_id == id) return;",
    ),
    "streams by their handles": (
        "cuda_gather.c",
        "if (device->reads[i].stream_id == id) return",
        "if (device->reads[i].stream_id == id || i + 1 == device->n_reads) return",
    ),
    "nothing to order": (
        "cuda_device.c",
        "if (device->unlisted || device->n_reads > 1) return false;",
        "if (device->unlisted || device->n_reads > 9) return false;",
    ),
    "an event of the first copies": (
        "cuda_gather.c",
        "    read->last = read->copied;\n    read->serial = LB_CUDA_GATHERED;\n    read->gathered",
        "    read->gathered",
    ),
    "results before they are there": ("cuda_collect.c", "!lb_cuda_wait_for_reads(device, device->own, from, serial) ||", ""),
    "bytes before they are there": (
        "cuda_gather.c",
        "    if (!LB_CUDA_CALL(device, StreamWaitEvent, device->own, flight->read, 0)) return false;\n",
        "",
    ),
    "bytes of the neighbour": ("cuda_gather.c", "at = job->bytes_at, bytes = job->aside.bytes;", "at = 0, bytes = job->aside.bytes;"),
    "a run of bytes that has a hole": (
        "cuda_gather.c",
        "if (job && bytes && job->aside.at - first < bytes + LB_SPACE_ALIGN) {",
        "if (job && bytes && job->aside.at > first) {",
    ),
}


def test_all_of_them_are_found_where_they_stand():
    for name, (file, before, _) in MUTANTS.items():
        assert (CUDA / file).read_text().count(before) == 1, name


@pytest.fixture(scope="module")
def commands():
    text = subprocess.run([NINJA, "-C", BUILD, "-t", "commands", TARGET], check=True, capture_output=True, text=True).stdout
    return text.splitlines()


def linked(commands, folder, file=None):
    """The test's program with the mutant in `folder` in place of its file."""
    link, program = next(line for line in commands if f"-o {TARGET} " in line), folder / "programs"
    link = link.replace(f"-o {TARGET} ", f"-o {program} ")
    if file:
        made = next(line for line in commands if line.endswith(f"-c {CUDA / file}")).split()
        words = [word for word in made[: made.index("-MD")] if word != "ccache" and not word.startswith("-O")]
        subprocess.run([*words, "-O1", "-w", "-o", folder / "mutant.o", "-c", folder / file], cwd=BUILD, check=True)
        link = link.replace(" liblb_capture.a ", f" {folder / 'mutant.o'} liblb_capture.a ", 1)
    subprocess.run(link, shell=True, cwd=BUILD, check=True)
    return program


def run(program):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(BUILD / "standin")}
    return subprocess.run([program, str(PROGRAMS)], capture_output=True, text=True, timeout=120, env=environment)


def test_the_back_end_itself_passes(commands, tmp_path):
    done = run(linked(commands, tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(MUTANTS) if FULL else sorted(MUTANTS)[::4])
def test_a_mutant_never_passes(commands, tmp_path, name):
    file, before, after = MUTANTS[name]
    (tmp_path / file).write_text((CUDA / file).read_text().replace(before, after))
    done = run(linked(commands, tmp_path, file))
    assert done.returncode != 0 and ("[  FAILED  ]" in done.stdout or done.returncode < 0), done.stdout + done.stderr
