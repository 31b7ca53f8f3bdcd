"""The law of reading: files and folders are opened, listed and looked at by lastbit/input.h, which tells a refusal from what is not there."""

import pathlib
import re
import subprocess

import pytest
from conftest import ROOT

# Files that read by other means, and why.
EXCEPTIONS = {
    "formats/base/input.c": "the one reader",
    "formats/base/output.c": "the one writer looks at what it replaces",
    "formats/base/output_place.c": "the one writer",
    "formats/base/output_folder.c": "the one writer",
    "formats/base/output_inputs.c": "the one writer compares what it writes with what is read",
    "formats/base/executable.c": "looks through PATH for a program; what cannot be looked at cannot be started",
    "formats/archive/archive_reader.c": "the map of an archive, whose descriptor comes from lastbit/input.h",
    "formats/captures/capture_reader.c": "/proc/self/statm, for when to hand memory back",
    "formats/program/program_shelf.c": "the map of its own scratch file: what cannot be mapped stays in memory",
    "formats/captures/ring_files.c": "each error stops the assembly, and the files stay",
    "formats/parts/part_folder.c": "claims of other workers come and go; one that cannot be read is theirs",
    "formats/foreign/checkpoint.c": "access, whose failure is the command's error",
    "bisect/inspection/watch/log_tail.c": "follows a file while others write and replace it; every other error is a refusal",
    "bisect/inspection/watch/metric_folder.c": "fts, whose errors are refusals",
    "bisect/inspection/workers/worker_products.c": "its own scratch file",
    "bisect/failures/trials/rerun.c": "/proc/meminfo, for a default",
    "bisect/cli/watch_action.c": "/proc, and the mark of its own hold file: to be sure that it may be replaced",
    "formats/command/command_line.c": "where this program was installed",
    "bisect/inspection/report/report.c": "whether what stands at its output is a page of its own: if it cannot be read it is not replaced",
    "bisect/failures/reproduce/reproducer.c": "what stands at its output",
    "bisect/failures/live/live_job.c": "the pipe of the job that it runs",
}
# `capture` runs in other processes, or launches them: there a failure is told by the recorder's own means.
READS = r"\b(?:f?reopen|fopen|fdopen|opendir|fdopendir|scandir|readdir|fts_open|mmap|access|l?stat|fstatat|openat|open)\s*\("


def reads(text):
    text = re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\])*\"", "", text, flags=re.DOTALL)
    return [found.group(0) for found in re.finditer(READS, text) if not text[: found.start()].endswith(("->", "."))]


def test_nothing_else_reads_a_file():
    tracked = subprocess.run(["git", "ls-files", "formats", "replay", "bisect"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = {name: reads((ROOT / name).read_text()) for name in tracked.stdout.split() if pathlib.Path(name).suffix in (".c", ".h")}
    new = {name: hits for name, hits in found.items() if hits and name not in EXCEPTIONS}
    assert not new, f"read by lastbit/input.h: {new}"
    unused = {name for name in EXCEPTIONS if not found.get(name)}
    assert not unused, f"no exceptions any more: {unused}"


@pytest.mark.parametrize(
    "line", ['fopen(path, "r")', "open(path, O_RDONLY)", "opendir(folder)", "stat(path, &st)", "mmap(NULL, n, PROT_READ, 0, fd, 0)"]
)
def test_the_law_sees_what_it_is_about(line):
    assert reads(line)
    assert not reads('lb_input_stream(path, &file, err); lb_archive_open(path, &a, err); s->open(x); "open(it)" /* stat(it) */')
