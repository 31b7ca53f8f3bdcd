"""What is installed can be linked: `samples/read_capture.c` is built from an install prefix, by pkg-config and by CMake, and reads a capture;
`samples/read_capture.py` reads it by the package that was installed beside, and prints the same."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT

SAMPLE = ROOT / "samples" / "read_capture.c"
CAPTURE = ROOT / "samples" / "scan-overflow.lbz"
# What a recorded program calls is in the capture library.
RECORDER = {"capture.h", "mpi.h", "nccl.h"}


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """An install that was moved after it was made: nothing in it may name the folder that it was made for."""
    folder = tmp_path_factory.mktemp("install")
    run("cmake", "--install", BUILD, "--prefix", folder / "made")
    shutil.move(folder / "made", folder / "moved")
    return folder / "moved"


def check_sample(program, prefix):
    env = {**os.environ, "LD_LIBRARY_PATH": str(prefix / "lib"), "OMP_NUM_THREADS": "1"}
    lines = run(program, CAPTURE, env=env).splitlines()
    assert re.fullmatch(r"step 2: \d+ ops, \d+ values", lines[0]), lines[0]
    assert any(re.fullmatch(r"  op +\d+  forward +layers\.2\.scan: aten::\S+", line) for line in lines)
    changed = re.fullmatch(r"\S+: the step changed (\d+) of (\d+) elements, (\d+) are not finite", lines[-3])
    assert changed and 0 < int(changed[3]) <= int(changed[1]) <= int(changed[2]), lines[-3]
    equal, ops = map(int, re.fullmatch(r"replay: (\d+) of (\d+) ops gave the recorded bits", lines[-2]).groups())
    assert 0.5 * ops < equal <= ops
    assert lines[-1] == "bisect: block: layers.2.scan aten::exp"
    missing = subprocess.run([program, prefix / "no.lb"], env=env, capture_output=True, text=True)
    assert missing.returncode == 128 and "no.lb" in missing.stderr


def test_pkg_config(prefix, tmp_path):
    env = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "lastbit", env=env).split()
    assert f"-L{prefix}" in " ".join(flags).replace("/lib/pkgconfig/../..", "")
    run("cc", "-std=c11", "-Wall", "-Werror", SAMPLE, *flags, "-o", tmp_path / "read_capture")
    check_sample(tmp_path / "read_capture", prefix)


def test_the_python_package_reads_what_the_library_reads(prefix, tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LASTBIT")}
    env = {**kept, "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig"), "OMP_NUM_THREADS": "1"}
    env |= {"LD_LIBRARY_PATH": str(prefix / "lib"), "PYTHONPATH": str(prefix / "lib" / "lastbit" / "python")}
    run("cc", SAMPLE, *run("pkg-config", "--cflags", "--libs", "lastbit", env=env).split(), "-o", tmp_path / "read_capture", env=env)
    del env["LD_LIBRARY_PATH"]  # the package finds its library by itself
    python = [sys.executable, SAMPLE.with_suffix(".py")]
    said = run(*python, CAPTURE, env=env)
    assert said == run(tmp_path / "read_capture", CAPTURE, env={**env, "LD_LIBRARY_PATH": str(prefix / "lib")}) and said.count("\n") > 40
    found = run(sys.executable, "-c", "import lastbit.reader.layout as l; print(l.load()._name, l.__file__)", env=env).split()
    assert all(path.startswith(f"{prefix}/lib/") for path in found), found
    assert (prefix / "lib" / "lastbit" / "python" / "lastbit" / "py.typed").exists()
    missing = subprocess.run([*map(str, python), str(prefix / "no.lb")], env=env, capture_output=True, text=True)
    assert missing.returncode == 128 and missing.stderr.startswith("read_capture: ") and "no.lb" in missing.stderr


def test_cmake_package(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(sample C)\nfind_package(lastbit 0.1 REQUIRED)\n"
        f"add_executable(read_capture {SAMPLE})\ntarget_link_libraries(read_capture lastbit::lastbit)\n"
        f"add_executable(train {ROOT}/samples/train_in_c.c)\ntarget_link_libraries(train lastbit::capture m)\n"
    )
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    check_sample(tmp_path / "build" / "read_capture", prefix)
    env = {**os.environ, "LD_LIBRARY_PATH": str(prefix / "lib")}
    run(tmp_path / "build" / "train", tmp_path / "run.lb", env=env)
    assert re.match(r"step \d+: \d+ ops", run(tmp_path / "build" / "read_capture", tmp_path / "run.lb", env=env))


# What takes an observer's events, which a few lines within one function cannot show.
WITHOUT_USE = {"effect", "precision"}


def simplest_use(header):
    """The lines of code behind "Simplest use:" in a header's first comment."""
    found = re.search(r"^ \* Simplest use.*:\n \*\n((?: \*     .*\n)+)", header.read_text().split("*/")[0], re.M)
    return "\n".join(line[7:] for line in found[1].splitlines()) if found else None


def test_each_header_says_its_simplest_use_and_it_compiles(tmp_path):
    headers = {header.stem: header for header in (ROOT / "include" / "lastbit").glob("*.h")}
    uses = {name: use for name, header in headers.items() if (use := simplest_use(header))}
    assert set(uses) == set(headers) - WITHOUT_USE
    for name, use in uses.items():
        source = tmp_path / f"{name}.c"
        source.write_text(
            f"#include <lastbit/{name}.h>\n#include <lastbit/archive.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
            "lb_status use(const char *path, lb_capture *capture, lb_capture *a, lb_capture *b, const lb_program *program, const lb_tensor *x,\n"
            f"              const lb_tensor *y, lb_err *err);\n"
            "lb_status use(const char *path, lb_capture *capture, lb_capture *a, lb_capture *b, const lb_program *program, const lb_tensor *x,\n"
            f"              const lb_tensor *y, lb_err *err)\n{{\n{use}\n    return LB_OK;\n}}\n"
        )
        run("cc", "-std=c11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-fsyntax-only", f"-I{ROOT}/include", source)


def test_the_library_exports_what_its_headers_declare(prefix):
    exported = set(re.findall(r" [TDBR] (\w+)$", run("nm", "-D", "--defined-only", prefix / "lib" / "liblastbit.so"), re.M))
    declared = set()
    for header in (prefix / "include" / "lastbit").glob("*.h"):
        if header.name not in RECORDER:
            text = re.sub(r"/\*.*?\*/", " ", header.read_text(), flags=re.S)
            declared |= set(re.findall(r"^LB_API [^;{]*?\b(lb_\w+)\(", text, re.M))
    assert len(declared) > 100 and not declared - exported, sorted(declared - exported)
    assert not [name for name in exported if not name.startswith("lb_")]
    assert run("readelf", "-d", prefix / "lib" / "liblastbit.so").count("Library soname: [liblastbit.so.0]") == 1
