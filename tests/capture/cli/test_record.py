"""`lastbit record`: what the program notices of it (nothing) and what its processes are told.

A stand-in for torch and for the recorder is on the path, so that these tests take milliseconds; what the real recorder
writes is tested elsewhere.
"""

import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import textwrap

import pytest
from conftest import BUILD, ROOT

LASTBIT = BUILD / "lastbit"
LAUNCH = ROOT / "capture" / "lastbit" / "launch"

# Notes every call in a file beside the capture, the way the recorder would write its archive.
RECORDER = """
import os, sys
def autostart(note):
    if os.environ.get("BREAK_RECORDER"):
        raise RuntimeError("no recorder today")
    names = ("OUT", "LEVEL", "STEPS", "RANKS", "KEEP", "LAYERS", "BUDGET", "RING", "LIB")
    told = {n: os.environ.get("LASTBIT_" + n) for n in names}
    with open(os.environ["TOLD"], "a") as file:
        file.write(repr({"pid": os.getpid(), "main": sys.modules["__main__"].__dict__.get("__file__"), "told": told,
                         "torch": sys.modules["torch"].complete}) + "\\n")
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A scratch directory with a recorder that only takes notes, and a torch that does nothing."""
    package = tmp_path / "package" / "lastbit"
    (package / "torch").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "torch" / "__init__.py").write_text(RECORDER)
    (package / "launch").symlink_to(LAUNCH)
    site = tmp_path / "site"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("import torch.nn\ncomplete = True\n")
    (site / "torch" / "nn.py").write_text("")
    monkeypatch.setenv("LASTBIT_PYTHON", str(tmp_path / "package"))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    for name in list(os.environ):
        if name.startswith("LASTBIT_") and name != "LASTBIT_PYTHON":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(*arguments, **options):
    return subprocess.run([LASTBIT, "record", *map(str, arguments)], capture_output=True, text=True, timeout=60, **options)


def python(*code, options=("-o", "run.lb")):
    return record(*options, "--", sys.executable, "-c", textwrap.dedent("\n".join(code)))


def told(place):
    path = place / "told"
    return [eval(line) for line in path.read_text().splitlines()] if path.exists() else []


# ---- the program -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 3, 125, 255])
def test_exit_code_is_passed_on(place, code):
    assert python(f"raise SystemExit({code})").returncode == code


def test_death_by_signal_is_128_plus_its_number(place):
    assert python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)").returncode == 128 + signal.SIGKILL


def test_program_that_does_not_exist_is_127_and_leaves_nothing(place):
    done = record("--", "no-such-program")
    assert done.returncode == 127
    assert "no-such-program: No such file" in done.stderr
    assert not (place / "run.lb").exists()


def test_file_that_is_no_program_is_126(place):
    (place / "text").write_text("text")
    assert record("--", "./text").returncode == 126


def test_output_input_and_arguments_are_the_programs(place):
    done = record("--", sys.executable, "-c", "import sys; print(sys.stdin.read(), sys.argv)", "--level", "nonsense", "--", "a b", input="typed")
    assert done.returncode == 0
    assert done.stdout == "typed ['-c', '--level', 'nonsense', '--', 'a b']\n"


def test_one_line_on_stderr(place):
    done = python("pass")
    assert done.stderr.count("\n") == 1
    assert "nothing was recorded: 1 Python process ran, none imported torch" in done.stderr


def test_program_that_is_no_python_is_told_so(place):
    done = record("--", "sh", "-c", "exit 7")
    assert done.returncode == 7 and "was the program Python" in done.stderr
    assert "The launcher records PyTorch and calls of NCCL alone" in done.stderr and "lastbit/capture.h" in done.stderr
    assert not (place / "run.lb").exists()


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_program_of_another_framework_is_told_what_works(place, framework):
    (place / "site" / f"{framework}.py").write_text("")
    done = python(f"import {framework}; raise SystemExit(5)")
    assert done.returncode == 5
    assert f"none imported torch but {framework}: the launcher records PyTorch alone" in done.stderr
    assert "lb_host_tensor_of_dlpack" in done.stderr and "torch.from_dlpack" in done.stderr
    assert not (place / "run.lb").exists()


def test_json_says_the_same(place):
    done = python("import torch", options=("--json",))
    said = json.loads(done.stdout)
    assert said["schema"] == "lastbit.record/1"
    assert (said["exit"], said["processes"], said["torch"], said["steps"]) == (0, 1, 1, 0)


def send(place, number):
    """Starts a program that reports SIGINT and SIGTERM, signals `lastbit` alone; the exit code and what it printed."""
    code = """
        import signal, sys, time
        hits = []
        def note(number, frame):
            hits.append(int(number))
        signal.signal(signal.SIGTERM, note); signal.signal(signal.SIGINT, note)
        print("ready", flush=True)
        end = time.time() + 20
        while not hits and time.time() < end:
            time.sleep(0.01)
        time.sleep(0.3)
        print(hits, flush=True)
        sys.exit(7)
    """
    child = subprocess.Popen(
        [LASTBIT, "record", "--", sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert child.stdout.readline() == "ready\n"
    os.kill(child.pid, number)
    printed = child.stdout.read()
    return child.wait(timeout=30), printed.strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_sent_to_us_reaches_the_program_and_we_wait(place, number):
    assert send(place, number) == (7, f"[{int(number)}]")


def test_interrupt_from_the_terminal_reaches_the_program_once(place):
    """A pseudo-terminal's Ctrl-C goes to the whole group; passing it on as well would interrupt twice."""
    import pty

    code = """
        import signal, sys, time
        hits = []
        signal.signal(signal.SIGINT, lambda *a: hits.append(time.time()))
        print("ready", flush=True)
        end = time.time() + 20
        while not hits and time.time() < end:
            time.sleep(0.01)
        time.sleep(0.3)
        sys.exit(40 + len(hits))
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(LASTBIT, [str(LASTBIT), "record", "--", sys.executable, "-c", textwrap.dedent(code)])
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    try:
        while os.read(terminal, 1000):
            pass
    except OSError:
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 41
    os.close(terminal)


# ---- the folder ------------------------------------------------------------------------------------------------------


def test_folder_is_private_while_the_program_runs(place):
    old = os.umask(0)
    try:
        done = python("import os; print(oct(os.stat(os.environ['LASTBIT_OUT']).st_mode & 0o777))")
    finally:
        os.umask(old)
    assert done.stdout == "0o700\n"


def test_empty_capture_does_not_stay(place):
    python("import torch")
    assert not (place / "run.lb").exists()


KEEP = "import os; open(os.path.join(os.environ['LASTBIT_OUT'], 'rank-00000.tar'), 'w').write('x')"


def test_capture_is_not_overwritten(place):
    python(KEEP)
    assert stat.S_IMODE((place / "run.lb").stat().st_mode) == 0o700
    done = python("open('ran', 'w')")
    assert done.returncode == 128
    assert "run.lb is there already" in done.stderr
    assert not (place / "ran").exists()
    assert (place / "run.lb" / "rank-00000.tar").read_text() == "x"


def test_force_replaces_every_rank(place):
    python(KEEP.replace("00000", "00003"))
    done = python(KEEP, options=("--force",))
    assert done.returncode == 0
    assert [p.name for p in (place / "run.lb").iterdir()] == ["rank-00000.tar"]


def test_force_spares_what_is_no_capture(place):
    (place / "run.lb").mkdir()
    (place / "run.lb" / "thesis.tex").write_text("years")
    (place / "run.lb" / "rank-00000.tar").write_text("x")
    done = python("pass", options=("--force",))
    assert done.returncode == 128
    assert "thesis.tex" in done.stderr
    assert sorted(p.name for p in (place / "run.lb").iterdir()) == ["rank-00000.tar", "thesis.tex"]


def test_force_spares_a_file(place):
    (place / "run.lb").write_text("packed")
    assert python("pass", options=("--force",)).returncode == 128
    assert (place / "run.lb").read_text() == "packed"


MPI = {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prte-1@1"}


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_processes_of_one_launch_share_the_folder(place, force):
    """mpirun -n 2 lastbit record … : whoever comes first makes it, the others join."""
    python(KEEP.replace("00000", "00007"))
    if not force:
        (place / "run.lb" / "rank-00007.tar").unlink()
        (place / "run.lb").rmdir()
    code = "import os, time; rank = int(os.environ['OMPI_COMM_WORLD_RANK']);" + KEEP.replace("'rank-00000.tar'", "'rank-0000%d.tar' % rank")
    children = [
        subprocess.Popen(
            [LASTBIT, "record", *force, "-o", "run.lb", "--", sys.executable, "-c", code + "; time.sleep(1)"],
            env={**os.environ, **MPI, "OMPI_COMM_WORLD_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [child.communicate(timeout=30)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], said
    assert said[0] and not said[1]  # one speaks for all
    assert {p.name for p in (place / "run.lb").glob("*.tar")} == {"rank-00000.tar", "rank-00001.tar"}


def test_processes_of_another_launch_do_not(place):
    environment = {**os.environ, **MPI, "OMPI_COMM_WORLD_RANK": "0"}
    first = record("--", sys.executable, "-c", KEEP, env=environment)
    second = record("--", sys.executable, "-c", KEEP, env={**environment, "PMIX_NAMESPACE": "prte-1@2"})
    assert (first.returncode, second.returncode) == (0, 128)
    assert "is there already" in second.stderr


def test_folder_in_a_place_that_is_not_there(place):
    done = record("-o", "no/such/run.lb", "--", "true")
    assert done.returncode == 128
    assert "no/such/run.lb" in done.stderr


def test_program_that_changes_directory_still_finds_the_folder(place):
    (place / "elsewhere").mkdir()
    done = python("import os; os.chdir('elsewhere'); print(os.path.isdir(os.environ['LASTBIT_OUT']))")
    assert done.stdout == "True\n"


# ---- misuse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "what is to be run"),
        (["-o", "x"], "what is to be run"),
        (["--"], "what is to be run"),
        (["run.lb", "--", "true"], "expected -- COMMAND"),
        (["python", "train.py"], "expected -- COMMAND"),
        (["--nonsense", "--", "true"], "--nonsense"),
        (["--level", "all", "--", "true"], "none of auto, stats"),
        (["--steps", "5-3", "--", "true"], "--steps: `5-3`"),
        (["--steps", "a", "--", "true"], "--steps: `a`"),
        (["--steps", "1,", "--", "true"], "--steps: `1,`"),
        (["--steps", "-3", "--", "true"], "--steps"),
        (["--steps", "99999999999", "--", "true"], "--steps"),
        (["--ranks", "0..3", "--", "true"], "--ranks: `0..3`"),
        (["--keep", "(", "--", "true"], "missing closing parenthesis"),
        (["--layers", "[a", "--", "true"], "--layers: `[a`"),
        (["--budget", "much", "--", "true"], "--budget: `much`"),
        (["--budget", "0", "--", "true"], "--budget: `0`"),
        (["--budget", "-1G", "--", "true"], "--budget"),
        (["--ring", "0", "--", "true"], "--ring: `0`"),
        (["--ring", "3", "--steps", "1", "--", "true"], "exclude each other"),
    ],
)
def test_misuse_is_129_and_runs_nothing(place, arguments, says):
    done = record(*arguments)
    assert done.returncode == 129
    assert says in done.stderr
    assert not (place / "run.lb").exists()


def test_help_has_an_example(place):
    done = record("--help")
    assert done.returncode == 0
    assert "lastbit record -o run.lb --steps 3-5 -- torchrun" in done.stdout


# ---- what the processes are told -------------------------------------------------------------------------------------


def test_options_travel_in_the_environment(place):
    python("import torch", options=("--level", "ops", "--steps", "3-5", "--ranks", "0,2-", "--keep", "a|b", "--layers", "^x", "--budget", "1.5G"))
    [note] = told(place)
    expected = {
        "OUT": str(place / "run.lb"),
        "LEVEL": "ops",
        "STEPS": "3-5",
        "RANKS": "0,2-",
        "KEEP": "a|b",
        "LAYERS": "^x",
        "BUDGET": str(3 << 29),
        "RING": None,
    }
    assert {name: note["told"][name] for name in expected} == expected
    assert os.path.exists(note["told"]["LIB"])


def test_what_is_not_asked_for_is_not_inherited(place, monkeypatch):
    monkeypatch.setenv("LASTBIT_STEPS", "7")
    monkeypatch.setenv("LASTBIT_KEEP", "stale")
    python("import torch", options=("--ring", "2"))
    [note] = told(place)
    assert (note["told"]["STEPS"], note["told"]["KEEP"], note["told"]["RING"], note["told"]["LEVEL"]) == (None, None, "2", "auto")


def test_recorder_starts_after_torch_is_complete(place):
    python("import torch")
    assert told(place)[0]["torch"] is True


def test_recorder_starts_once(place):
    python("import torch, importlib; importlib.reload(torch); import torch.nn")
    assert len(told(place)) == 1


def test_without_torch_nothing_starts(place):
    assert python("import sys; print('lastbit' in sys.modules, 'importlib.util' in sys.modules)").stdout == "False False\n"
    assert told(place) == []


def test_script_and_module_are_seen(place):
    (place / "train.py").write_text("import torch\n")
    record("-o", "a.lb", "--", sys.executable, "train.py")
    record("-o", "b.lb", "--", sys.executable, "-m", "train")
    assert [pathlib.Path(note["main"] or "train.py").name for note in told(place)] == ["train.py", "train.py"]


def test_shell_between_changes_nothing(place):
    (place / "train.py").write_text("import torch\n")
    record("--", "sh", "-c", f"cd / && '{sys.executable}' '{place}/train.py'")
    assert len(told(place)) == 1


def test_children_of_every_kind_are_told(place):
    (place / "train.py").write_text(
        textwrap.dedent("""
        import multiprocessing, subprocess, sys
        def work(n):
            import torch
        if __name__ == "__main__":
            subprocess.run([sys.executable, "-c", "import torch"], check=True)
            for kind in "fork", "spawn", "forkserver":
                p = multiprocessing.get_context(kind).Process(target=work, args=(1,))
                p.start(); p.join()
                assert p.exitcode == 0
    """)
    )
    done = record("--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert len({note["pid"] for note in told(place)}) == 4


def test_isolated_interpreter_is_not_seen_and_the_closing_line_knows(place):
    for flag in ("-I", "-S", "-E"):
        done = record("--", sys.executable, flag, "-c", "pass")
        assert "-S, -I or -E" in done.stderr


def test_kill_switch(place, monkeypatch):
    monkeypatch.setenv("LASTBIT_DISABLE", "1")
    python("import torch")
    assert told(place) == []


# ---- a path that another run writes to ------------------------------------------------------------------------------


def test_hidden_sitecustomize_runs(place):
    (place / "site" / "sitecustomize.py").write_text("import sys\nsys.theirs = __file__\nvalue = 5\n")
    done = python("import sys, sitecustomize; print(sys.theirs == sitecustomize.__file__, sitecustomize.value); import torch")
    assert done.stdout == "True 5\n"
    assert len(told(place)) == 1


def test_hidden_sitecustomize_that_fails_fails_as_before(place):
    (place / "site" / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    plain = subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True)
    done = python("print(1); import torch")
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert "theirs" in plain.stderr and "theirs" in done.stderr
    assert len(told(place)) == 1


def test_the_programs_own_path_comes_first(place):
    (place / "site" / "lastbit.py").write_text("mine = 1\n")
    assert python("import lastbit; print(lastbit.mine)").stdout == "1\n"


def test_empty_pythonpath_does_not_become_the_current_directory(place, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")
    done = record("--", sys.executable, "-c", "import os; print('' in os.environ['PYTHONPATH'].split(':'))")
    assert done.stdout == "False\n"


def test_other_import_hooks_still_work(place):
    code = """
        import sys
        class Watch:
            seen = []
            def find_spec(self, name, path=None, target=None):
                self.seen.append(name)
        sys.meta_path.insert(0, Watch())
        import importlib.util
        print(importlib.util.find_spec("torch").name, importlib.util.find_spec("no_such_module"))
        import torch
        print("torch" in Watch.seen, type(torch.__spec__.loader).__name__)
    """
    assert python(code).stdout == "torch None\nTrue SourceFileLoader\n"
    assert len(told(place)) == 1


# ---- the host comes first --------------------------------------------------------------------------------------------


def test_recorder_that_cannot_start_harms_nothing(place, monkeypatch):
    monkeypatch.setenv("BREAK_RECORDER", "1")
    done = python("import torch; print('fine')")
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert done.stderr.count("no recorder today") == 2  # the process, and the closing line


def test_package_that_is_gone_harms_nothing(place):
    (place / "package" / "lastbit" / "__init__.py").unlink()
    done = python("import torch; print('fine')")
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert "nothing was recorded" in done.stderr


def test_torch_that_does_not_import_fails_as_before(place):
    (place / "site" / "torch" / "__init__.py").write_text("raise ImportError('half installed')\n")
    done = python("import torch")
    assert done.returncode == 1
    assert "half installed" in done.stderr
    assert told(place) == []


def test_folder_that_vanishes_harms_nothing(place):
    done = python("import os, shutil; shutil.rmtree(os.environ['LASTBIT_OUT']); import torch; print('fine')")
    assert (done.returncode, done.stdout) == (0, "fine\n")


def test_startup_is_light(place, monkeypatch):
    """The shim itself imports nothing that the interpreter would not have imported."""
    code = "import sys; print(sorted(m for m in sys.modules if not m.startswith('_')))"
    bare = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert python(code).stdout.replace("'sitecustomize', ", "") == bare.replace("'sitecustomize', ", "")


# ---- the package -----------------------------------------------------------------------------------------------------


def test_version_is_the_commands(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "capture"))
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'capture')!r}); import lastbit; print(lastbit.__version__)"
    version = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
    assert subprocess.run([LASTBIT, "--version"], capture_output=True, text=True).stdout == f"lastbit {version}\n"


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13"])
def test_shim_on_other_pythons(place, version):
    interpreter = f"python{version}"
    try:
        subprocess.run([interpreter, "-c", "pass"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"no {interpreter} here")
    done = record("--", interpreter, "-c", "import torch")
    assert done.returncode == 0
    assert len(told(place)) == 1, done.stderr


def test_each_step_waits_for_the_disk_where_that_is_asked_for(lastbit, tmp_path):
    """Calls of fsync and fdatasync are counted in the recording process, by a library that stands before libc's."""
    (tmp_path / "count.c").write_text(
        "#define _GNU_SOURCE\n#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n#include <sys/syscall.h>\n"
        'static void note(void) { FILE *f = fopen(getenv("COUNTED"), "a"); if (f) fputs("x", f), fclose(f); }\n'
        "int fsync(int fd) { note(); return (int)syscall(SYS_fsync, fd); }\n"
        "int fdatasync(int fd) { note(); return (int)syscall(SYS_fdatasync, fd); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "count.so", tmp_path / "count.c"], check=True)
    (tmp_path / "four.py").write_text(
        "import torch\nmodel = torch.nn.Linear(4, 4)\noptimizer = torch.optim.SGD(model.parameters(), lr=1e-3)\n"
        "for _ in range(4): model(torch.randn(2, 4)).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
    )
    environment = dict(os.environ, COUNTED=str(tmp_path / "counted"), LD_PRELOAD=str(tmp_path / "count.so"))
    lastbit.run("record", "-o", tmp_path / "run.lb", "--sync", "step", "--", sys.executable, tmp_path / "four.py", expect=0, env=environment)
    assert len((tmp_path / "counted").read_text()) >= 4
    assert lastbit.json("ls", tmp_path / "run.lb", expect=0)["steps"] == [0, 1, 2, 3]


def test_sync_takes_three_words(lastbit):
    assert "none of never, close, step" in lastbit.run("record", "--sync", "always", "--", "true", expect=129).stderr
