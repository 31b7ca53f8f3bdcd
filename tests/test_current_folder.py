"""No code of the folder that somebody stands in runs: it may hold a stranger's files. Libraries, programs, modules of Python, paths that are cut."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT

MARK = "planted code ran"
SHIM_PATH = "$ORIGIN/../.."  # of the library in NCCL's place, which stands below the one that it needs


def entries(path, *tags):
    """What the dynamic section of an ELF file says: [(tag, text)]."""
    done = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True)
    rows = [line.split("(", 1)[1] for line in done.stdout.splitlines() if "[" in line and "(" in line]
    return [(row.split(")")[0], row[row.index("[") + 1 : row.rindex("]")]) for row in rows if row.split(")")[0] in tags]


def check_paths(files):
    """Of what people run none names folders of its own, but for the one that stands beside what it needs."""
    assert {path.name for path in files} >= {"lastbit", "liblastbit_capture.so", "liblastbit_nccl.so", "libnccl.so.2"}
    for path in files:
        named = [text for _, text in entries(path, "RPATH", "RUNPATH")]
        assert named == ([SHIM_PATH] if path.name == "libnccl.so.2" else []), path


def programs_of(folder):
    """The ELF files of a folder, links aside."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if path.open("rb").read(4) == b"\x7fELF"]


def test_build_tree_names_no_folder_of_libraries():
    own = [BUILD / "lastbit", *BUILD.glob("liblastbit_*.so"), BUILD / "dropin/nccl/libnccl.so.2"]
    check_paths(own)
    assert [text for _, text in entries(BUILD / "train_in_c", "RPATH", "RUNPATH")] == ["$ORIGIN"]  # the sample, beside the library


def test_installed_files_name_no_folder_of_libraries(tmp_path):
    subprocess.run(["cmake", "--install", BUILD, "--prefix", tmp_path], check=True, capture_output=True)
    check_paths(programs_of(tmp_path))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A folder in which every library that the command needs, every program that it starts, and modules of Python and PyTorch are a stranger's."""
    folder = tmp_path_factory.mktemp("planted")
    says = f'echo "{MARK}: $0" >> {folder}/ran\n'
    (folder / "planted.c").write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void)\n"
        f'{{\n    FILE *to = fopen("{folder}/ran", "a");\n    fputs("{MARK}: a library\\n", to);\n    fclose(to);\n}}\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "planted.so", folder / "planted.c"], check=True)
    needed = {name for path in (BUILD / "lastbit", *BUILD.glob("liblastbit_*.so")) for _, name in entries(path, "NEEDED")}
    assert "libjansson.so.4" in needed
    for name in needed | {"libcuda.so.1", "libnvrtc.so", "libnccl.so.2", "liblastbit_capture.so", "tree/liblastbit_nccl.so"}:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / "planted.so", folder / name)
    for name in ("curl", "python3", "python"):
        (folder / name).write_text("#!/bin/sh\n" + says)
        (folder / name).chmod(0o755)
    modules = "json torch numpy struct argparse ast runpy importlib traceback platform hashlib ctypes sitecustomize usercustomize lastbit"
    for name in modules.split():
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write('{MARK}: {name}.py\\n')\nraise SystemExit(99)\n")
    (folder / "mine.py").write_text("def total(x):\n    return x.sum()\n")
    return folder


def run_there(folder, *words, env=None):
    (folder / "ran").unlink(missing_ok=True)
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True, env=env, timeout=120)
    assert not (folder / "ran").exists(), (folder / "ran").read_text() + done.stderr
    return done


def test_planted_libraries_are_not_loaded(planted):
    assert run_there(planted, BUILD / "lastbit", "ls", ROOT / "samples/clean.lbz").returncode == 0
    assert run_there(planted, BUILD / "train_in_c", "run.lb").returncode == 0


def test_modules_of_the_folder_replace_none_of_pythons_own(planted):
    """And a module that the user names is found there."""
    found = run_there(planted, BUILD / "lastbit", "order", "--interpreter", sys.executable, "--python", "mine:total", "-n", 8)
    assert found.returncode == 0 and "sum" in found.stdout + found.stderr, found.stderr
    replayed = run_there(
        planted, BUILD / "lastbit", "replay", ROOT / "samples/clean.lbz", "--kernel", "op=mul=torch", "--backend-python", sys.executable
    )
    assert replayed.returncode == 125 and "bit-equal" in replayed.stdout and "concerned nothing" not in replayed.stdout, (
        replayed.stderr
    )  # bytes not kept


def test_doctor_runs_no_module_of_the_folder(planted):
    done = run_there(planted, BUILD / "lastbit", "doctor", "--json", "--python", os.path.realpath(sys.executable))  # quick: it has no torch
    assert '"checks"' in done.stdout, done.stderr


def test_programs_of_the_folder_are_not_started(planted):
    """An empty item of PATH is the current folder: a shell may look there, we do not for what nobody typed."""
    env = {**os.environ, "PATH": "::" + os.environ["PATH"] + ":.", "PYTHONPATH": ":"}
    run_there(planted, BUILD / "lastbit", "order", "--python", "mine:total", "-n", 8, env=env)
    log = planted / "train.jsonl"
    log.write_text("".join('{"step": %d, "loss": %s}\n' % (i, "NaN" if i > 30 else 2.0) for i in range(40)))
    alarmed = run_there(planted, BUILD / "lastbit", "watch", log, "--webhook", "http://127.0.0.1:9/", env=env)
    assert alarmed.returncode == 1, alarmed.stderr


def test_path_that_would_be_cut_is_not_preloaded(planted, tmp_path):
    """The loader ends a path of LD_PRELOAD at a space or a colon, and Python one of PYTHONPATH at a colon: the rest is a path from here."""
    prefix = tmp_path / "a tree"
    (prefix / "build").mkdir(parents=True)
    shutil.copy(BUILD / "lastbit", prefix / "build/lastbit")
    for path in BUILD.glob("liblastbit_*.so"):
        shutil.copy(path, prefix / "build" / path.name)
    (planted / "tree/build").mkdir(exist_ok=True)
    shutil.copy(planted / "planted.so", planted / "tree/build/liblastbit_nccl.so")
    env = {**os.environ, "LASTBIT_PYTHON": str(ROOT / "capture")}
    done = run_there(planted, prefix / "build/lastbit", "record", "-o", tmp_path / "run.lb", "--", "/bin/true", env=env)
    assert "LD_PRELOAD takes no path with a space or a colon" in done.stderr
    shutil.copytree(ROOT / "capture/lastbit", tmp_path / "b:c" / "lastbit")
    refused = run_there(planted, BUILD / "lastbit", "doctor", "--python", sys.executable, env={**env, "LASTBIT_PYTHON": str(tmp_path / "b:c")})
    assert refused.returncode == 125 and "PYTHONPATH takes no path with a colon" in refused.stdout
