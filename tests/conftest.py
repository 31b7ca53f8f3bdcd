"""What the Python tests share: where the build is, how to run a command, how to record a program."""

import atexit
import functools
import json
import os
import pathlib
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What several tests use stands in the folder of the room that it is about; names of files are unique in the tree.
sys.path += sorted({str(path.parent) for path in (ROOT / "tests").glob("*/**/*.py") if "programs" not in path.parts})
BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release"))
FULL = os.environ.get("LASTBIT_FULL", "0") not in ("", "0")

# PyTorch's OpenMP threads spin: two processes on two cores would run ten times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("LASTBIT_CACHE", "")  # nothing is left in the user's folder
# A shell starts what runs in its background with SIGINT ignored, and programs inherit that; those of the tests are interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    config.addinivalue_line("markers", "full: long; runs with tests/run.sh --full (LASTBIT_FULL=1)")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("full") and not FULL:  # keywords hold names of folders, too
            item.add_marker(pytest.mark.skip(reason="long: run tests/run.sh --full"))


@functools.cache
def warm_python():
    """The command in whose place `python` would stand: an interpreter that has PyTorch loaded (warm_python.py)."""
    folder = tempfile.mkdtemp(prefix="warm-python-")
    script, door = ROOT / "tests" / "warm_python.py", f"{folder}/door"
    server = subprocess.Popen([sys.executable, script, "serve", door], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    owner = os.getpid()

    @atexit.register
    def end():
        if os.getpid() == owner:  # tests of capture fork this process
            server.kill()
            shutil.rmtree(folder)

    assert server.stdout.readline() == b"ready\n"
    return [sys.executable, "-IS", script, "run", door]


# A program of several ranks may end so without lastbit, too: once in some 60 runs, when torch takes its threads down.
TORCH_ABORTS = "terminate called without an active exception"


class Lastbit:
    """Runs the command line; `json` parses what --json printed."""

    def __init__(self):
        self.path = BUILD / "lastbit"
        if not self.path.exists():
            pytest.fail(f"{self.path} is missing: build the release preset first (tests/run.sh does)")

    def run(self, *args, expect=None, timeout=300, **kwargs):
        done = subprocess.run([str(self.path), *map(str, args)], capture_output=True, text=True, timeout=timeout, **kwargs)
        if args[0] == "record" and done.returncode and done.stderr and done.stderr.startswith(TORCH_ABORTS):
            shutil.rmtree(args[args.index("-o") + 1])
            done = subprocess.run([str(self.path), *map(str, args)], capture_output=True, text=True, timeout=timeout, **kwargs)
        if expect is not None and done.returncode not in ((expect,) if isinstance(expect, int) else expect):
            raise AssertionError(f"lastbit {' '.join(map(str, args))} gave {done.returncode}, not {expect}\n{done.stdout}\n{done.stderr}")
        return done

    def json(self, command, *args, expect=None, **kwargs):
        done = self.run(command, "--json", *args, expect=expect, **kwargs)
        answer = json.loads(done.stdout)
        assert answer["schema"] == f"lastbit.{command}/1"
        for name in ("command", "inputs"):  # the paths of a test, which two answers that are alike do not share
            answer.pop(name, None)
        return answer

    def probe_product(self, function, k, rows, columns, *options, **kwargs):
        """What `order` finds in `function` of live.py, which multiplies a (rows, k) tensor with a (k, columns) one."""
        how = f"--as matmul --arrays torch -n {k} --rows {rows} --columns {columns}".split()
        return self.json("order", "--interpreter", sys.executable, "--python", f"live:{function}", *how, *options, **kwargs)

    def record(self, out, program, *args, options=(), expect=None, timeout=300, env=None):
        """Records `python PROGRAM ARGS`; the program is a path below the root."""
        return self.run(
            "record",
            "-o",
            out,
            *options,
            "--",
            *warm_python(),
            ROOT / program,
            *args,
            expect=expect,
            timeout=timeout,
            env={**os.environ, **(env or {})},
        )


def written_on_terminal(argv, env, stderr=None):
    """What a program writes on a terminal, stderr too if it goes nowhere else.

    This end keeps the program's end open until all is read: what a terminal holds may be gone with its last writer.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*map(str, argv)], stdout=theirs, stderr=theirs if stderr is None else stderr, env=env)
    text, ended = b"", False
    while not ended:
        ended = process.poll() is not None  # asked before reading: what was written by then is read below
        while select.select([ours], [], [], 0 if ended else 0.05)[0]:
            text += os.read(ours, 65536)
    os.close(theirs)
    os.close(ours)
    assert 0 <= process.returncode < 128, f"{argv} gave {process.returncode}\n{text}"
    return text.decode().replace("\r\n", "\n")


@pytest.fixture(scope="session")
def lastbit():
    return Lastbit()


# ---- tests/replay: models recorded once per session


@pytest.fixture(scope="session")
def recordings(lastbit, tmp_path_factory):
    """recordings(*ARGUMENTS, program=…): the capture, at level ops; a Hugging Face model where no program is named."""
    made = {}

    def record(*arguments, program="tests/programs/hf_architectures.py"):
        if (program, arguments) not in made:
            out = tmp_path_factory.mktemp("recordings") / "run.lb"
            lastbit.record(out, program, *arguments, options=("--level", "ops"), expect=0)
            made[program, arguments] = out
        return made[program, arguments]

    return record


@pytest.fixture(scope="session")
def steps(recordings):
    """The same, and the composites of its first step."""
    import composites

    made = {}

    def step(*arguments, **options):
        path = recordings(*arguments, **options)
        if path not in made:
            made[path] = composites.Step(path)
        return made[path]

    return step


# ---- tests/bisect/pairs/implementations: programs that record all their pairs into a folder


@pytest.fixture(scope="session")
def recorded_pairs(tmp_path_factory):
    """recorded_pairs(PROGRAM, [NAME…]): the folder of what a program of tests/programs records with --all, or of what it has by these names."""

    @functools.cache
    def record(program, *names, timeout=600):
        folder = tmp_path_factory.mktemp(program)
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "capture"), OMP_NUM_THREADS="1")
        subprocess.run(
            [sys.executable, ROOT / "tests" / "programs" / f"{program}.py", "--all", folder, *names], env=environment, check=True, timeout=timeout
        )
        return folder

    return record


# ---- tests/bisect/inspection/report: pages, and a browser to open them in


@pytest.fixture(scope="session")
def browser():
    from browser import CHROMIUM, Browser

    if CHROMIUM is None:
        pytest.skip("no Chromium here (apt-get install chromium)")
    one = Browser()
    yield one
    one.close()


@pytest.fixture
def report(lastbit, tmp_path):
    """report(RESULT, ...): the page of results (objects, or paths) as a path."""

    def write(*results, name="page.html"):
        paths = []
        for i, result in enumerate(results):
            if isinstance(result, dict):
                path = tmp_path / f"result-{i}.json"
                path.write_text(json.dumps(result))
                result = path
            paths.append(result)
        lastbit.run("report", "-o", tmp_path / name, *paths, expect=0)
        return tmp_path / name

    return write
