"""`lastbit doctor`: works, works in part, or can't; and says why."""

import json
import os
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT

LASTBIT = BUILD / "lastbit"


def doctor(*arguments, **environment):
    done = subprocess.run(
        [LASTBIT, "doctor", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    return done


def checks(*arguments, **environment):
    done = doctor("--json", *arguments, **environment)
    said = json.loads(done.stdout)
    assert said["schema"] == "lastbit.doctor/1"
    assert done.returncode == {"works": 0, "degraded": 1, "impossible": 125}[said["verdict"]]
    return said["verdict"], {check["what"]: check for check in said["checks"]}


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.chdir(tmp_path)
    yield temporary
    assert not list(temporary.glob("lastbit-*"))


def test_this_python_records():
    verdict, found = checks("--python", sys.executable)
    assert verdict == "works", found
    assert found["recording"]["state"] == "ok"
    assert found["python"]["detail"].endswith(sys.executable)


def test_kernels_are_named(tmp_path):
    """What the library was built with; an NVRTC that is there is found, by its path."""
    build = LASTBIT.parent
    _, found = checks("--python", sys.executable)
    said = found["cuda kernels"]
    compiled = build / "digest_kernel.fatbin.of"
    assert said["state"] == "ok"
    if compiled.exists():
        assert said["detail"].startswith("compiled for sm_80, sm_90") and compiled.read_text() in said["detail"]
    else:
        assert said["detail"].startswith("not compiled; ")
    if "no NVRTC is found" not in said["detail"]:
        return
    nvrtc = tmp_path / "lib" / "libnvrtc.so.13"
    nvrtc.parent.mkdir()
    subprocess.run(["cc", "-shared", "-o", nvrtc, "-x", "c", "/dev/null"], check=True)
    _, found = checks("--python", sys.executable, LD_LIBRARY_PATH=str(nvrtc.parent))
    assert "; NVRTC %s" % nvrtc in found["cuda kernels"]["detail"]


def test_text_ends_with_the_next_command():
    done = doctor("--python", sys.executable)
    assert done.returncode == 0, done.stdout
    assert done.stdout.rstrip().endswith("recording works. Next: lastbit record -o run.lb -- python train.py")


def test_python_without_torch_cannot(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch')\n")
    verdict, found = checks("--python", sys.executable, PYTHONPATH=str(tmp_path))
    assert verdict == "impossible"
    assert "No module named torch" in found["torch"]["detail"]
    assert "--python" in found["torch"]["advice"]


def test_broken_torch_cannot(tmp_path):
    (tmp_path / "torch.py").write_text("print('noise on stdout')\n1 / 0\n")
    verdict, found = checks("--python", sys.executable, PYTHONPATH=str(tmp_path))
    assert verdict == "impossible"
    assert "ZeroDivisionError" in found["torch"]["detail"]


def test_interpreter_that_is_none():
    for program in ("/no/such/python", "/bin/false"):
        verdict, found = checks("--python", program)
        assert verdict == "impossible"
        assert program in found["python"]["detail"]


def test_library_that_does_not_load(tmp_path):
    (tmp_path / "library.so").write_text("text")
    verdict, found = checks("--python", sys.executable, LASTBIT_LIB=str(tmp_path / "library.so"))
    assert verdict == "impossible"
    assert "library.so" in found["recorder"]["detail"]


def test_hidden_entry_point_is_named(tmp_path):
    """A torch without one of the private functions: recording goes on with less."""
    (tmp_path / "sitecustomize.py").write_text("""
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        import importlib.util
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            del module._C._len_torch_dispatch_stack
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Hide())
""")
    verdict, found = checks("--python", sys.executable, PYTHONPATH=str(tmp_path))
    assert verdict == "degraded", found
    assert found["torch: dispatch mode stack"]["advice"]
    assert str(tmp_path) in found["start"]["detail"]


def test_families_of_mpi_are_those_that_have_an_adapter(monkeypatch, tmp_path):
    _, found = checks("--python", sys.executable)
    there = [name for name, file in (("Open MPI", "openmpi"), ("MPICH", "mpich")) if (LASTBIT.parent / f"liblastbit_mpi_{file}.so").exists()]
    assert found["mpi"]["state"] == ("ok" if there else "note") and all(name in found["mpi"]["detail"] for name in there)
    monkeypatch.syspath_prepend(str(ROOT / "capture"))
    from lastbit import doctor as ours

    said = []
    monkeypatch.setenv("LASTBIT_LIB", str(tmp_path / "liblastbit_capture.so"))
    for name in ("liblastbit_capture.so", "liblastbit_mpi.so", "liblastbit_mpi_mpich.so"):
        (tmp_path / name).write_text("")
        report = ours.Report()
        ours.check_mpi(report)
        said += [(check["state"], check["detail"]) for check in report.checks]
    assert [state for state, _ in said] == ["note", "note", "ok"]
    assert "not beside" in said[0][1] and "without an adapter" in said[1][1] and "MPICH" in said[2][1] and "Open MPI" not in said[2][1]


def test_what_lies_beneath_collectives_is_said_in_a_line(tmp_path):
    """The libnccl named, the shim in front of it, and the interface that both speak; without it, what is lost."""
    standin = LASTBIT.parent / "tests" / "standin" / "libnccl.so.2"
    if not standin.exists():
        pytest.skip("the stand-in for libnccl is not built")
    _, found = checks("--python", sys.executable, LASTBIT_NCCL=str(standin))
    assert found["nccl"]["state"] == "ok" and str(standin) in found["nccl"]["detail"]
    assert "both speak version 7 of the profiler interface" in found["nccl"]["detail"]
    old = tmp_path / "libnccl.so.2"
    old.write_bytes(b"ncclProfiler_v8\0 and no library")
    verdict, found = checks("--python", sys.executable, LASTBIT_NCCL=str(old))
    assert verdict == "works" and found["nccl"]["state"] == "note"
    assert "its profiler interface is version 8" in found["nccl"]["detail"] and "1, 2, 3, 4, 5, 6, 7" in found["nccl"]["advice"]


def test_profiler_plug_in_of_somebody_else_is_said(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "capture"))
    from lastbit import doctor as ours

    standin = str(LASTBIT.parent / "tests" / "standin" / "libnccl.so.2")
    said = []
    for plugin in ("/opt/theirs.so", standin, None):
        monkeypatch.setenv("LASTBIT_NCCL", standin)
        monkeypatch.setenv("LASTBIT_NCCL_SHIM", standin)
        monkeypatch.setenv("NCCL_PROFILER_PLUGIN", plugin) if plugin else monkeypatch.delenv("NCCL_PROFILER_PLUGIN")
        report = ours.Report()
        ours.check_nccl(report, None)
        said += [check["detail"] for check in report.checks]
    assert said[0].endswith("the shim is there, but NCCL_PROFILER_PLUGIN names /opt/theirs.so")
    assert not any("NCCL_PROFILER_PLUGIN" in detail for detail in said[1:]) and len(said) == 3


def test_misuse():
    assert doctor("--nonsense").returncode == 129
    assert doctor("something").returncode == 129
    assert "--python" in doctor("--help").stdout
