"""What commands write is there whole or not at all: over a good older output, on a full disk, under kills, through planted links.

The law itself is the last test: nothing in the tree opens a file for writing but the one writer, formats/base/output.c."""

import contextlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest
from conftest import FULL, ROOT

CLEAN = ROOT / "samples" / "clean.lbz"
FAILING = ROOT / "samples" / "scan-overflow.lbz"
LOG = "".join(json.dumps({"step": n, "loss": 2.0 if n < 60 else 90.0, "grad_norm": 1.0 if n < 60 else 500.0}) + "\n" for n in range(90))


def words(text):
    return [str(word) for word in text]


def pack(inputs, out):
    return ["pack", "-f", inputs / "in.lbz", "-o", out]


def replay(inputs, out):
    return ["replay", inputs / "in.lbz", "--steps", "1", "--write", out]


def order(inputs, out):
    return ["order", "--engine", "pairwise", "-n", "300", "--expect", inputs / "in.json", "-o", out]


def report(inputs, out):
    return ["report", inputs / "answer.json", "-o", out]


def table(inputs, out):
    return ["diff", inputs / "a.npz", inputs / "b.npz", "--map", inputs / "in.map", "--map-out", out]


# The command, and which of its inputs is tried as its output.
WRITERS = {
    "pack": (pack, "in.lbz"),
    "replay": (replay, "in.lbz"),
    "order": (order, "in.json"),
    "report": (report, "answer.json"),
    "diff": (table, "in.map"),
}


@pytest.fixture(scope="module")
def inputs(lastbit, tmp_path_factory):
    import numpy as np

    folder = tmp_path_factory.mktemp("inputs")
    shutil.copy(CLEAN, folder / "in.lbz")
    np.savez(folder / "a.npz", **{f"first.{n}": np.arange(64.0) * (n + 1) for n in range(20)})
    np.savez(folder / "b.npz", **{f"second.{n}": np.arange(64.0) * (n + 1) for n in range(20)})
    (folder / "in.map").write_text("second.0 = first.0\n")
    (folder / "answer.json").write_text(lastbit.run("ls", "--json", CLEAN, expect=0).stdout)
    lastbit.run("order", "--engine", "pairwise", "-n", "300", "-o", folder / "in.json", expect=0)
    return folder


@pytest.fixture(scope="module")
def older(lastbit, inputs, tmp_path_factory):
    """What each command writes, as the good output that stands there."""
    folder = tmp_path_factory.mktemp("older")
    for name, (command, _) in WRITERS.items():
        lastbit.run(*command(inputs, folder / name), expect=(0, 1, 125))
    return {name: (folder / name).read_bytes() for name in WRITERS}


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    """A disk of 64 KB with nothing left on it, where one may be mounted."""
    folder = tmp_path_factory.mktemp("disk")
    mounted = (
        os.geteuid() == 0
        and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=100", "tmpfs", folder], capture_output=True).returncode == 0
    )
    yield folder if mounted else None
    if mounted:
        subprocess.run(["umount", folder], check=True)


def fill(path):
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(file, b"x" * 4096)
    except OSError:
        os.close(file)


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_older_output(lastbit, inputs, older, small_disk, tmp_path, name):
    command, _ = WRITERS[name]
    folder, how = small_disk or tmp_path, {}
    out = folder / "out"
    out.write_bytes(older[name][:1000])  # a page begins as one
    before = out.read_bytes()
    if small_disk:
        fill(folder / "filler")
    else:
        how["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
    done = subprocess.run(
        words([lastbit.path, *command(inputs, out)]), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=100, **how
    )
    said = done.stderr
    left = sorted(path.name for path in folder.iterdir())
    after = out.read_bytes()
    for path in folder.iterdir():
        path.unlink()
    assert done.returncode == 128 and ("No space left" in said or "File too large" in said) and str(out) in said, said
    assert after == before and set(left) <= {"out", "filler"}


@pytest.mark.parametrize("name", WRITERS)
def test_an_output_that_is_an_input_is_refused(lastbit, inputs, tmp_path, name):
    """By its own name, `./`, a second name of the file, a link to it; --force does not change that."""
    command, taken = WRITERS[name]
    for path in inputs.iterdir():
        shutil.copy(path, tmp_path / path.name)
    own = tmp_path / taken
    (tmp_path / "hard").hardlink_to(own)
    (tmp_path / "soft").symlink_to(own)
    (tmp_path / "folder").mkdir()
    before = own.read_bytes()
    for out in (own, f"{tmp_path}/./{taken}", f"{tmp_path}/folder/../{taken}", tmp_path / "hard", tmp_path / "soft"):
        done = lastbit.run(*command(tmp_path, out), expect=128)
        assert "which is read" in done.stderr or "is not a report" in done.stderr, done.stderr
        assert own.read_bytes() == before and (tmp_path / "soft").is_symlink()
    assert not list(tmp_path.glob("*.draft"))


@pytest.mark.parametrize("path", ["", "new/", "."])
@pytest.mark.parametrize("name", [name for name in WRITERS if name != "report"])  # which says that there is no page
def test_a_path_without_a_name_is_no_file_that_exists(lastbit, inputs, tmp_path, name, path):
    done = lastbit.run(*WRITERS[name][0](inputs, path), cwd=tmp_path, expect=(128, 129))
    assert "names a folder" in done.stderr and "--force" not in done.stderr and not list(tmp_path.iterdir())
    if name == "pack":
        done = lastbit.run("pack", inputs / "in.lbz", "-o", path, cwd=tmp_path, expect=(128, 129))
        assert "names a folder" in done.stderr and "--force" not in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_at_the_place_is_not_written_through(lastbit, inputs, older, tmp_path, name):
    command, _ = WRITERS[name]
    victim = tmp_path / "victim"
    victim.write_bytes(older[name])
    (tmp_path / "out").symlink_to(victim)
    (tmp_path / "out.part").symlink_to(victim)
    lastbit.run(*command(inputs, tmp_path / "out"), expect=(0, 1, 125))
    assert victim.read_bytes() == older[name] and not (tmp_path / "out").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.part", "victim"]


def test_what_options_name_is_no_place_for_an_output(lastbit, inputs, tmp_path):
    """A table that is compared with, weights that are asked for, the answers of others."""
    for path in inputs.iterdir():
        shutil.copy(path, tmp_path / path.name)
    lastbit.run("fingerprint", tmp_path / "a.npz", "-o", tmp_path / "table.json", expect=0)
    (tmp_path / "hard").hardlink_to(tmp_path / "table.json")
    (tmp_path / "soft").symlink_to(tmp_path / "b.npz")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    part = ["--part", "1/2"]
    for words in (
        ["fingerprint", "a.npz", "--against", "table.json", "-o", "table.json"],
        ["fingerprint", "a.npz", "--against", "table.json", "-o", "hard"],
        ["fingerprint", "a.npz", "--against", "b.npz", "--against", "table.json", "-o", "./table.json"],
        ["audit", "a.npz", "--against", "b.npz", *part, "-o", "b.npz"],
        ["audit", "a.npz", "--expect", "b.npz", *part, "-o", "soft"],
        ["diff", "a.npz", "b.npz", "--map", "in.map", *part, "-o", "in.map"],
    ):
        done = lastbit.run(*words, cwd=tmp_path, expect=128)
        assert "which is read" in done.stderr, (words, done.stderr)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before, words


def test_a_capture_is_no_place_for_its_own_reproducer(lastbit, tmp_path):
    folder = tmp_path / "bad.lb"
    lastbit.run("recover", FAILING, "-o", tmp_path / "bad.tar", expect=0)
    folder.mkdir()
    (tmp_path / "bad.tar").rename(folder / "rank-00000.tar")
    (tmp_path / "way").symlink_to(folder)
    before = (folder / "rank-00000.tar").read_bytes()
    for out in (folder, f"{folder}/", tmp_path / "way", f"{tmp_path}/./bad.lb"):
        done = lastbit.run("bisect", folder, "-o", out, "--force", expect=128)
        assert "which is read" in done.stderr
    for command in (["pack", "-f", folder, "-o", folder / "rank-00000.tar"], ["replay", folder, "--write", folder / "rank-00000.tar"]):
        assert "part of" in lastbit.run(*command, expect=128).stderr
    assert [path.name for path in folder.iterdir()] == ["rank-00000.tar"] and (folder / "rank-00000.tar").read_bytes() == before


def test_a_reproducer_replaces_another_when_told(lastbit, tmp_path):
    out = tmp_path / "small.lb"
    for rank in (0, 3):
        out.mkdir(exist_ok=True)
        (out / f"rank-0000{rank}.tar").write_bytes(b"an older one")
    done = lastbit.run("bisect", "-q", FAILING, "-o", out, expect=128)
    assert "--force replaces it" in done.stderr
    (out / "notes.txt").write_text("mine")
    assert "notes.txt" in lastbit.run("bisect", "-q", FAILING, "-o", out, "--force", expect=128).stderr
    assert (out / "rank-00000.tar").read_bytes() == b"an older one"
    (out / "notes.txt").unlink()
    lastbit.run("bisect", "-q", FAILING, "-o", out, "--force", expect=1)
    assert [path.name for path in out.iterdir()] == ["rank-00000.tar"] and [path.name for path in tmp_path.iterdir()] == ["small.lb"]
    lastbit.run("bisect", "--check", out, expect=1)


def test_a_capture_is_not_recorded_over_what_it_is_to_be_like(lastbit, tmp_path):
    good = tmp_path / "good.lb"
    good.mkdir()
    lastbit.run("recover", CLEAN, "-o", good / "rank-00000.tar", expect=0)
    for like in (good, good / "rank-00000.tar", f"{tmp_path}/./good.lb"):
        assert "which is read" in lastbit.run("record", "--like", like, "-o", good, "--force", "--", "true", expect=128).stderr
    assert (good / "rank-00000.tar").exists()


def test_a_draft_that_a_kill_left_goes_when_the_run_has_ended(lastbit, tmp_path):
    out, draft = tmp_path / "run.lb", "rank-00001.tar.0123456789abcdef.draft"
    lastbit.run("recover", CLEAN, "-o", tmp_path / "good.tar", expect=0)
    program = ["sh", "-c", f"cp {tmp_path}/good.tar {out}/rank-00000.tar; touch {out}/{draft}"]
    lastbit.run("record", "-o", out, "--", *program, expect=0)
    assert [path.name for path in out.iterdir()] == ["rank-00000.tar"]


def test_alarms_are_not_written_into_the_log(lastbit, tmp_path):
    log = tmp_path / "train.jsonl"
    log.write_text(LOG)
    (tmp_path / "hard").hardlink_to(log)
    for option in ("--alarm-file", "--hold"):
        assert "which is read" in lastbit.run("watch", log, option, tmp_path / "hard", expect=128).stderr
    assert log.read_text() == LOG


def test_a_hold_file_is_no_pipe_that_is_waited_for(lastbit, tmp_path):
    """A FIFO without another end, and the pipe that the report goes into, by its name in /dev."""
    (tmp_path / "train.jsonl").write_text(LOG)
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/stdout", "/dev/null", tmp_path):
        done = lastbit.run("watch", tmp_path / "train.jsonl", "--hold", path, expect=128, timeout=20)
        assert "no watch has written" in done.stderr or "which is read" in done.stderr or "Is a directory" in done.stderr, done.stderr


def test_a_file_that_came_while_a_log_was_watched_is_no_hold_file(lastbit, tmp_path):
    """The alarm's command writes it; the hold begins with that alarm, or with one after it."""
    log, hold = tmp_path / "train.jsonl", tmp_path / "hold"
    calm, wild = ([{"step": n, "loss": 2.0, "grad_norm": norm} for n in range(*steps)] for norm, steps in ((1.0, (0, 60)), (500.0, (60, 90))))
    log.write_text("".join(json.dumps(row) + "\n" for row in calm))
    watch = [lastbit.path, "watch", "--follow", "--idle", "1.5", log, "--hold", hold]
    with subprocess.Popen(words(watch), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        time.sleep(0.5)
        hold.write_text("mine")
        with log.open("a") as out:
            out.write("".join(json.dumps(row) + "\n" for row in wild))
        said = child.communicate(timeout=60)[1]
    assert child.returncode == 1 and "no watch has written" in said and hold.read_text() == "mine", said


def killed(lastbit, command, seconds):
    child = subprocess.Popen(words([lastbit.path, *command]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    child.kill()
    return child.wait() == -signal.SIGKILL


@pytest.mark.parametrize("name", ["pack", "replay", "report"])
def test_a_kill_leaves_the_older_output_or_the_new_one(lastbit, inputs, older, tmp_path, name):
    command, taken = WRITERS[name]
    out, own = tmp_path / "out", (inputs / taken).read_bytes()
    begin = time.monotonic()
    lastbit.run(*command(inputs, out), expect=(0, 1, 125))
    whole, length, deaths = out.read_bytes(), time.monotonic() - begin, 0
    chance = random.Random(name)
    other = older[name] if name == "report" else b"an older one"
    for _ in range(400 if FULL else 10):
        out.write_bytes(other)
        deaths += killed(lastbit, command(inputs, out), chance.random() * length)
        assert out.read_bytes() in (other, whole)
    assert deaths and (inputs / taken).read_bytes() == own
    for path in tmp_path.iterdir():
        assert path == out or re.fullmatch(r"out\.[0-9a-f]{16}\.draft", path.name), path.name


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_signal_leaves_no_draft(lastbit, inputs, tmp_path, kind, number):
    out, drafts = tmp_path / "out", 0
    command = ["pack", "-f", inputs / "in.lbz", "--level", "19", "-o", out] if kind == "file" else ["bisect", "-q", FAILING, "-o", out]
    pattern = re.compile(r"out\.\w+\.draft")

    def draft_is_there():
        with contextlib.suppress(FileNotFoundError):  # it may go while it is looked into
            for path in tmp_path.iterdir():
                if pattern.fullmatch(path.name) and (kind == "file" or any(path.iterdir())):
                    return True
        return False

    def listen():  # under nohup a hangup is ignored, and by what is started, too
        signal.signal(number, signal.SIG_DFL)

    for _ in range(100):  # a machine with other work may look too late
        child = subprocess.Popen(words([lastbit.path, *command]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=listen)
        while child.poll() is None and not draft_is_there():
            time.sleep(0.0002)
        child.send_signal(number)
        code = child.wait()
        assert not list(tmp_path.glob("*.draft"))
        if code == -number:
            drafts += 1
            break
        shutil.rmtree(out) if kind == "folder" else out.unlink()
    assert drafts, "it was never met while it wrote"


AS_SOON_AS_IT_IS_THERE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
static int ended(const char *path, int result)
{
    const size_t n = strlen(path);
    if (result >= 0 && n > 6 && strcmp(path + n - 6, ".draft") == 0) raise(SIGTERM);
    return result;
}
int openat(int folder, const char *path, int flags, ...)
{
    __builtin_va_list rest;
    __builtin_va_start(rest, flags);
    const mode_t mode = __builtin_va_arg(rest, mode_t);
    __builtin_va_end(rest);
    int (*real)(int, const char *, int, ...) = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat");
    return ended(path, real(folder, path, flags, mode));
}
int mkdirat(int folder, const char *path, mode_t mode)
{
    int (*real)(int, const char *, mode_t) = (int (*)(int, const char *, mode_t))dlsym(RTLD_NEXT, "mkdirat");
    return ended(path, real(folder, path, mode));
}
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_signal_as_soon_as_a_draft_is_there(lastbit, inputs, tmp_path, kind):
    source, shim, out = tmp_path / "shim.c", tmp_path / "shim.so", tmp_path / "out"
    source.write_text(AS_SOON_AS_IT_IS_THERE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    command = ["pack", "-f", inputs / "in.lbz", "-o", out] if kind == "file" else ["bisect", "-q", FAILING, "-o", out]
    done = lastbit.run(*command, env={**os.environ, "LD_PRELOAD": str(shim)})
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert not list(tmp_path.glob("*.draft")) and not out.exists()


WHILE_THE_OLDER_ONE_GOES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
static int exchanged, calls;
static int ended(int result)
{
    if (exchanged && calls++ == atoi(getenv("ENDED_AT"))) raise(SIGTERM);
    return result;
}
int renameat2(int a, const char *from, int b, const char *to, unsigned how)
{
    int (*real)(int, const char *, int, const char *, unsigned) = (int (*)(int, const char *, int, const char *, unsigned))dlsym(RTLD_NEXT, "renameat2");
    const int result = real(a, from, b, to, how);
    exchanged |= result == 0 && how == RENAME_EXCHANGE;
    return ended(result);
}
int unlinkat(int folder, const char *path, int how)
{
    int (*real)(int, const char *, int) = (int (*)(int, const char *, int))dlsym(RTLD_NEXT, "unlinkat");
    return ended(real(folder, path, how));
}
int fsync(int file)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return ended(real(file));
}
"""


def test_a_signal_while_an_older_folder_goes_leaves_nothing_of_it(lastbit, tmp_path):
    """After any of the calls between the new folder's name and the end: the names are exchanged, then the older folder's draft is emptied."""
    source, shim, out, deaths = tmp_path / "shim.c", tmp_path / "shim.so", tmp_path / "outputs" / "out", 0
    source.write_text(WHILE_THE_OLDER_ONE_GOES)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    out.parent.mkdir()
    gather = ["gather", CLEAN, "-o", out]
    lastbit.run(*gather, expect=0)
    (whole,) = ((path.name, path.read_bytes()) for path in out.iterdir())
    for call in range(20):
        (out / "rank-00001.tar").write_bytes(b"of the older one")
        done = lastbit.run(*gather, "--force", env={**os.environ, "LD_PRELOAD": str(shim), "ENDED_AT": str(call)})
        deaths += done.returncode == -signal.SIGTERM
        assert [path.name for path in out.parent.iterdir()] == ["out"], call
        assert [(path.name, path.read_bytes()) for path in out.iterdir()] == [whole], call
        if done.returncode == 0:
            break
    assert done.returncode == 0 and deaths > 3


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_kill_of_recover_leaves_a_whole_capture_or_none(lastbit, inputs, tmp_path, kind):
    source, out = inputs / "in.lbz", tmp_path / "out"
    if kind == "folder":
        source = tmp_path / "run.lb"
        source.mkdir()
        for rank in range(4):
            lastbit.run("recover", inputs / "in.lbz", "-o", source / f"rank-0000{rank}.tar", expect=0)
    begin = time.monotonic()
    lastbit.run("recover", source, "-o", out, expect=0)
    size = [path.stat().st_size for path in out.iterdir()] if kind == "folder" else [out.stat().st_size]
    length, chance, deaths = time.monotonic() - begin, random.Random(kind), 0
    for _ in range(400 if FULL else 8):
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        deaths += killed(lastbit, ["recover", source, "-o", out], chance.random() * length)
        if out.exists():
            assert [path.stat().st_size for path in (out.iterdir() if kind == "folder" else [out])] == size
    assert deaths


# ---- the law

# Files that open for writing all the same, and why.
EXCEPTIONS = {
    "formats/base/output.c": "the one writer",
    "formats/base/output_place.c": "the one writer: drafts and renames",
    "formats/base/output_folder.c": "the one writer: folders",
    "formats/parts/part_folder.c": "claims and marks of workers: that one was created is all that it says",
    "capture/nccl/communicator.c": "a library beneath NCCL that uses no room: appends one line in one write, which is checked, to a file of the job",
    "capture/cli/cmd_doctor.c": "a scratch folder of its own, removed at the end",
    "capture/lastbit/doctor.py": "answers into the scratch folder of the command that started it",
    "capture/lastbit/torch/fingerprints.py": "a scratch folder of tables, written by lastbit/output.h, for the command that compares them; removed at the end",
    "capture/lastbit/launch/sitecustomize.py": "notes for the launcher in its private folder, before anything of ours is loaded: lines, each in one write",
}
OPENS = {
    ".c": r"\b(?:f?re?open|fopen|fdopen|fopen64)\s*\([^;]*,\s*(?:[^;\"]*\?\s*)?\"[^\"]*[wa+x]|\bO_(?:WRONLY|RDWR|CREAT|TMPFILE)\b|\bcreat\s*\(|\bmk[od]?s?temps?\s*\(|\bmkdtemp\s*\(|\btmpfile\s*\("
    r"|\brename(?:at2?)?\s*\(|\blink(?:at)?\s*\(|\bjson_dump(?:_file|fd)\s*\(|\barchive_write_open_(?:filename|fd|FILE)",
    ".py": r"\bopen\([^)]*,\s*(?:mode=)?[\"'][^\"']*[wax+]|\bO_(?:WRONLY|RDWR|CREAT)\b|\.write_(?:text|bytes)\(|\bos\.(?:rename|replace|link)\(|\.(?:rename|replace)\([a-z_]*path|\btempfile\.|\bshutil\.(?:copy|move)"
    r"|\bnp\.save|\btorch\.save",
}
OPENS[".h"] = OPENS[".cu"] = OPENS[".cuh"] = OPENS[".c"]


def opened_for_writing(text, ending):
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL) if ending != ".py" else re.sub(r"(?m)#.*$", "", text)
    return [found.group(0) for found in re.finditer(OPENS[ending], text)]


def test_nothing_else_opens_a_file_for_writing():
    tracked = subprocess.run(["git", "ls-files", "formats", "capture", "replay", "bisect"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = {}
    for name in tracked.stdout.split():
        if pathlib.Path(name).suffix in OPENS and (ROOT / name).exists():
            hits = opened_for_writing((ROOT / name).read_text(), pathlib.Path(name).suffix)
            if hits:
                found[name] = hits
    new = {name: hits for name, hits in found.items() if name not in EXCEPTIONS}
    assert not new, f"write by lastbit/output.h: {new}"
    assert set(EXCEPTIONS) <= set(found), f"no exceptions any more: {set(EXCEPTIONS) - set(found)}"


@pytest.mark.parametrize(
    "ending, line",
    [
        (".c", 'FILE *f = fopen(path, "w");'),
        (".c", 'fopen(path, resume ? "a" : "wx")'),
        (".c", "open(path, O_WRONLY | O_CREAT, 0600)"),
        (".c", "json_dump_file(o, path, 0)"),
        (".c", "rename(a, b)"),
        (".c", "mkstemp(name)"),
        (".py", 'with open(path, "w") as out:'),
        (".py", "path.write_text(text)"),
        (".py", "os.replace(a, b)"),
    ],
)
def test_the_law_sees_what_it_is_about(ending, line):
    assert opened_for_writing(line, ending)
    harmless = 'fopen(path, "rb"); open(path, O_RDONLY | O_CLOEXEC)' if ending == ".c" else 'open(path, "rb"); open("/proc/self/maps")'
    assert not opened_for_writing(harmless, ending)
