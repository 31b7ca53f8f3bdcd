"""A capture never harms its host: same bits, same output, same exit code, whatever goes wrong inside the recorder.

Each test runs a program with and without `lastbit record` and compares everything that it printed; the programs print a
digest of their parameters last. A few configurations run always, all of them with LASTBIT_FULL=1.
"""

import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap

import pytest
from conftest import BUILD, ROOT

LASTBIT = BUILD / "lastbit"
SAMPLE, PROGRAMS = ROOT / "samples" / "hybrid_lm.py", ROOT / "tests" / "programs"
FULL = os.environ.get("LASTBIT_FULL", "0") == "1"
full = pytest.mark.skipif(not FULL, reason="only with --full")


@pytest.fixture(autouse=True)
def quiet_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, **options)


def steps_of(capture):
    """The steps that the capture holds; it must be whole."""
    verified = run(LASTBIT, "verify", capture)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    return listed_steps(capture)


def listed_steps(capture):
    return json.loads(run(LASTBIT, "ls", "--json", capture).stdout)["steps"]


def same_with_and_without(tmp_path, *program, options=(), code=0):
    plain = run(sys.executable, *program)
    recorded = run(LASTBIT, "record", "-o", tmp_path / "run.lb", *options, "--", sys.executable, *program)
    assert recorded.stdout == plain.stdout
    assert recorded.returncode == plain.returncode == code, recorded.stderr
    assert "recording stopped" not in recorded.stderr and "nothing" not in recorded.stderr
    steps = steps_of(tmp_path / "run.lb")
    assert steps, recorded.stderr
    return steps


# ---- bits ------------------------------------------------------------------------------------------------------------

SAMPLES = {
    "fp8": ["--steps", "5", "--precision", "fp8", "--adamw", "foreach"],
    "ranks and micro-batches": ["--steps", "3", "--spawn", "2", "--accumulate", "2"],
}
MORE_SAMPLES = {
    "plain": ["--steps", "5"],
    "bf16": ["--precision", "bf16", "--steps", "5"],
    "autocast": ["--precision", "autocast", "--steps", "5", "--attention", "sdpa"],
    "grouped experts": ["--experts-kind", "grouped", "--steps", "5", "--adamw", "fused"],
    "adamw": ["--optimizer", "adamw", "--steps", "5", "--tied"],
    "polar express": ["--iteration", "polar-express", "--muon-dtype", "float32", "--steps", "5"],
    "growing": ["--growing", "--steps", "5"],
    "two threads": ["--threads", "2", "--steps", "5"],
    "four ranks": ["--steps", "5", "--spawn", "4"],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_computes_the_same(tmp_path, name):
    same_with_and_without(tmp_path, SAMPLE, "--digest", *SAMPLES[name])


@full
@pytest.mark.parametrize("name", MORE_SAMPLES)
def test_sample_computes_the_same_in_all_its_forms(tmp_path, name):
    same_with_and_without(tmp_path, SAMPLE, "--digest", *MORE_SAMPLES[name])


@full
@pytest.mark.parametrize(
    "options",
    [("--level", level) for level in ("stats", "sources", "layers", "ops")]
    + [("--ring", "2"), ("--steps", "2"), ("--budget", "500K"), ("--keep", "mm", "--level", "stats")],
    ids=" ".join,
)
def test_every_way_to_record_computes_the_same(tmp_path, options):
    program = [SAMPLE, "--digest", "--steps", "5"]
    plain = run(sys.executable, *program)
    recorded = run(LASTBIT, "record", "-o", tmp_path / "run.lb", *options, "--", sys.executable, *program)
    assert (recorded.stdout, recorded.returncode) == (plain.stdout, 0), recorded.stderr


@full
@pytest.mark.parametrize(
    "program",
    [
        ["gpt_tied.py"],
        ["moe_dropout.py"],
        ["ranks/ddp_accumulate.py"],
        ["gan_two_optimizers.py"],
        ["generate_kv.py"],
        ["hf_train.py"],
        ["hf_train.py", "--model", "gpt2", "--dtype", "bf16", "--optimizer", "foreach"],
        ["hf_train.py", "--model", "qwen3_moe", "--dtype", "autocast", "--optimizer", "fused"],
        ["hf_train.py", "--model", "qwen3_moe", "--experts", "eager", "--optimizer", "muon"],
    ],
    ids=" ".join,
)
def test_other_program_computes_the_same(tmp_path, program):
    same_with_and_without(tmp_path, PROGRAMS / program[0], *program[1:])


def test_failing_run_fails_the_same_way(tmp_path):
    same_with_and_without(tmp_path, SAMPLE, "--fault", "stale-scale", code=1)


# ---- unexpected tensors -------------------------------------------------------------------------------------

ODD = """
import warnings; warnings.simplefilter("ignore")
import torch
torch.manual_seed(0)
class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
    def forward(self, x):
        said = []
        def case(name, function):
            try:
                result = function()
                said.append((name, str(result.sum().item() if isinstance(result, torch.Tensor) else result)))
            except Exception as error:
                said.append((name, type(error).__name__))
        case("sparse", lambda: (x.to_sparse() @ self.weight).detach())
        case("csr", lambda: (x.to_sparse_csr() @ self.weight).detach())
        case("sparse gradient", lambda: torch.autograd.grad(torch.nn.functional.embedding(torch.tensor([1, 1]), self.weight, sparse=True).sum(), self.weight)[0].to_dense())
        case("quantized", lambda: torch.quantize_per_tensor(x, 0.1, 10, torch.qint8).dequantize())
        case("mkldnn", lambda: x.to_mkldnn().to_dense())
        case("meta", lambda: list((x.to("meta") @ self.weight.to("meta")).shape))
        case("nested", lambda: torch.nested.nested_tensor([x, x[:1]]).to_padded_tensor(0.0))
        case("jagged", lambda: torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged).values())
        case("complex", lambda: torch.fft.fft(x).abs())
        case("complex half", lambda: x.to(torch.complex32).real.float())
        case("conjugate", lambda: torch.view_as_real(torch.complex(x, x).conj().resolve_conj()))
        case("lazy conjugate", lambda: torch.complex(x, x).conj().imag)
        case("negative view", lambda: torch.complex(x, x).conj().imag.neg())
        case("uint16", lambda: x.abs().to(torch.uint16).float())
        case("uint64", lambda: torch.tensor([2 ** 63], dtype=torch.uint64).float())
        case("float8", lambda: x.to(torch.float8_e4m3fn).float())
        case("e8m0", lambda: x.abs().to(torch.float8_e8m0fnu).float())
        case("fp4", lambda: torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).view(torch.uint8))
        case("bits", lambda: torch.zeros(4, dtype=torch.uint8).view(torch.bits8).view(torch.uint8))
        case("empty", lambda: torch.zeros(0, 3) @ torch.zeros(3, 2))
        case("many dimensions", lambda: torch.ones([1] * 20).sum())
        case("expanded", lambda: torch.zeros(1).expand(1 << 40)[0])
        case("storage only", lambda: torch.UntypedStorage(8).nbytes())
        case("resized", lambda: (lambda t: t.resize_(100).fill_(1.0))(torch.zeros(2)))
        case("freed", lambda: (lambda t: (t.untyped_storage().resize_(0), t.untyped_storage().resize_(16), t.fill_(2.0))[-1])(torch.zeros(4)))
        case("set", lambda: (lambda t: t.set_(torch.ones(9)))(torch.zeros(2)))
        case("numpy", lambda: torch.from_numpy(x.numpy() * 2))
        case("dlpack", lambda: torch.from_dlpack(x.clone()))
        case("fake", lambda: list(__import__("torch._subclasses", fromlist=["x"]).FakeTensorMode().from_tensor(x.clone()).shape))
        case("vmap", lambda: torch.func.vmap(torch.func.grad(lambda v: (v ** 3).sum()))(x))
        case("forward mode", lambda: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1])
        case("subclass", lambda: (type("Mine", (torch.Tensor,), {}) and x.as_subclass(type("Mine", (torch.Tensor,), {})) * 2).as_subclass(torch.Tensor))
        case("iterator of losses", lambda: torch.autograd.backward(iter([self.weight.sum(), self.weight.mean()])))
        case("raises", lambda: x @ torch.zeros(7, 7))
        case("string operand", lambda: torch.einsum("ij,jk->ik", x, x))
        case("shared", lambda: x.clone().share_memory_())
        print(*said, sep="\\n")
        return x @ self.weight
model = Odd()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.randn(4, 4)).square().sum().backward()
    optimizer.step(); optimizer.zero_grad()
print(model.weight.double().sum().item())
"""


def test_odd_tensors_are_recorded_or_passed_over(tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    steps = same_with_and_without(tmp_path, tmp_path / "odd.py", options=("--level", "ops"))
    assert steps == [0, 1]


# ---- faults inside the recorder --------------------------------------------------------------------------------------

# Breaks one thing of the recorder at its n-th call and then runs the program.
BREAK = """
import runpy, sys
import torch
import lastbit.torch
from lastbit.torch import dispatch, library, modules, objects, optimizers, roles, routing, session
where, after, kind = sys.argv[1], int(sys.argv[2]), getattr(__builtins__, sys.argv[3])
owner, name = where.rpartition(".")[0], where.rpartition(".")[2]
owner = eval(owner)
original, calls = getattr(owner, name), [0]
def broken(*args, **kwargs):
    calls[0] += 1
    if calls[0] > after:
        raise kind("injected")
    return original(*args, **kwargs)
setattr(owner, name, broken)
del sys.argv[:4]
program = sys.argv[0]
runpy.run_path(program, run_name="__main__")
"""
PLACES = [
    ("dispatch.describe", 20, "ValueError"),
    ("modules._keyword_arguments", 20, "RuntimeError"),
    ("session.Session.end_step", 1, "OSError"),
    ("session.Session.open_archive", 0, "MemoryError"),
]
MORE_PLACES = [
    ("modules.Modules.entry", 7, "KeyError"),
    ("optimizers.Optimizers._group", 1, "TypeError"),
    ("optimizers.Optimizers._states", 1, "RuntimeError"),
    ("session.Session.begin_step", 2, "RuntimeError"),
    ("roles.Roles.name_tensors", 1, "AttributeError"),
    ("roles.Roles.name_inputs", 2, "RecursionError"),
    ("session.Session.close_archive", 0, "OSError"),
    ("roles.Roles.role", 30, "MemoryError"),
    ("modules.Modules.number", 5, "RuntimeError"),
    ("optimizers.number_of", 3, "ValueError"),
    ("session.number_of", 1, "ValueError"),
    ("dispatch._arg_flags", 10, "RuntimeError"),
    ("session.Session.next_step", 1, "AssertionError"),
    ("routing.Routing.left", 3, "SystemError"),
]


@pytest.fixture(scope="module")
def plain_gpt():
    return run(sys.executable, PROGRAMS / "gpt_tied.py", env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout


def breaks_harmlessly(tmp_path, plain_gpt, place, after, kind):
    (tmp_path / "broken.py").write_text(BREAK)
    done = run(
        LASTBIT, "record", "-o", tmp_path / "run.lb", "--", sys.executable, tmp_path / "broken.py", place, after, kind, PROGRAMS / "gpt_tied.py"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain_gpt
    ours = [line for line in done.stderr.splitlines() if line.startswith("lastbit")]
    assert len(ours) == len(done.stderr.splitlines()), done.stderr  # no traceback
    assert len([line for line in ours if "recording stopped" in line or "is recorded in" in line]) <= 1
    assert any("injected" in line for line in ours), "the fault was never reached: " + done.stderr
    if (tmp_path / "run.lb").exists():
        steps_of(tmp_path / "run.lb")  # what is there is whole


@pytest.mark.parametrize("place, after, kind", PLACES, ids=lambda p: str(p))
def test_exception_in_the_recorder(tmp_path, plain_gpt, place, after, kind):
    breaks_harmlessly(tmp_path, plain_gpt, place, after, kind)


@full
@pytest.mark.parametrize("place, after, kind", MORE_PLACES, ids=lambda p: str(p))
def test_exception_anywhere_in_the_recorder(tmp_path, plain_gpt, place, after, kind):
    breaks_harmlessly(tmp_path, plain_gpt, place, after, kind)


@pytest.mark.parametrize("limit", [100_000, 3_000_000] if FULL else [3_000_000])
def test_archive_that_cannot_grow(tmp_path, plain_gpt, limit):
    """EFBIG at some byte of the archive, by a limit on the size of files."""
    done = run(
        LASTBIT,
        "record",
        "-o",
        tmp_path / "run.lb",
        "--level",
        "ops",
        "--",
        sys.executable,
        PROGRAMS / "gpt_tied.py",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert (done.returncode, done.stdout) == (0, plain_gpt), done.stderr
    assert done.stderr.count("recording stopped") == 1
    if limit > 1_000_000:
        assert steps_of(tmp_path / "run.lb")[0] == 0


@contextlib.contextmanager
def small_disk(size):
    folder = tempfile.mkdtemp()
    mounted = run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder).returncode == 0
    if not mounted:
        os.rmdir(folder)
        pytest.skip("mounting a small file system is not allowed here")
    try:
        yield pathlib.Path(folder)
    finally:
        run("umount", folder)
        os.rmdir(folder)


def test_full_disk(plain_gpt):
    with small_disk("3m") as disk:
        done = run(LASTBIT, "record", "-o", disk / "run.lb", "--level", "ops", "--", sys.executable, PROGRAMS / "gpt_tied.py")
        assert (done.returncode, done.stdout) == (0, plain_gpt), done.stderr
        assert done.stderr.count("recording stopped") == 1
        assert steps_of(disk / "run.lb")[0] == 0


def test_folder_turned_into_a_file(tmp_path, plain_gpt):
    (tmp_path / "spoil.py").write_text(
        textwrap.dedent("""
        import os, runpy, shutil, sys
        shutil.rmtree(os.environ["LASTBIT_OUT"]); open(os.environ["LASTBIT_OUT"], "w").close()
        runpy.run_path(sys.argv[1], run_name="__main__")
    """)
    )
    done = run(LASTBIT, "record", "-o", tmp_path / "run.lb", "--", sys.executable, tmp_path / "spoil.py", PROGRAMS / "gpt_tied.py")
    assert (done.returncode, done.stdout) == (0, plain_gpt), done.stderr
    assert done.stderr.count("recording stopped") == 1


def test_library_that_is_gone(tmp_path, plain_gpt, monkeypatch):
    (tmp_path / "library.so").write_text("no library")
    monkeypatch.setenv("LASTBIT_LIB", str(tmp_path / "library.so"))
    done = run(LASTBIT, "record", "-o", tmp_path / "run.lb", "--", sys.executable, PROGRAMS / "gpt_tied.py")
    assert (done.returncode, done.stdout) == (0, plain_gpt), done.stderr
    assert "nothing was recorded" in done.stderr


# ---- the end comes early ---------------------------------------------------------------------------------------------

ENDLESS = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100000):
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
    print(step, flush=True)
"""


def stop(tmp_path, number, group):
    (tmp_path / "endless.py").write_text(ENDLESS)
    child = subprocess.Popen(
        [LASTBIT, "record", "-o", tmp_path / "run.lb", "--", sys.executable, tmp_path / "endless.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in child.stdout:
        if int(line) >= 5:
            break
    if group:
        os.killpg(child.pid, number)
    else:
        children = pathlib.Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        os.kill(int(children[0]), number)
    _, errors = child.communicate(timeout=60)
    return child.returncode, errors


def test_interrupt_leaves_a_valid_capture(tmp_path):
    code, errors = stop(tmp_path, signal.SIGINT, True)
    assert code == 128 + signal.SIGINT  # as Python ends without us
    assert "KeyboardInterrupt" in errors
    assert "lastbit: " in errors and "Next: lastbit bisect" in errors
    assert steps_of(tmp_path / "run.lb")[:5] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_kill_leaves_a_valid_capture(tmp_path, number):
    code, errors = stop(tmp_path, number, False)
    assert code == 128 + number
    assert listed_steps(tmp_path / "run.lb")[:4] == [0, 1, 2, 3]


CRASHING = """
import os, signal, sys
import torch
sys.path.insert(0, %r)
import lastbit.torch
model = torch.nn.Linear(3000, 3000)
optimizer = torch.optim.AdamW(model.parameters())
with lastbit.torch.capture(%r, level="sources") as cap:
    for step in range(3):
        with cap.step(step):
            model(torch.randn(8, 3000)).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
    os.kill(os.getpid(), %d)  # 108 MB of this step are on their way to disk
"""


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_a_signal_loses_no_step_that_has_ended(tmp_path, number):
    (tmp_path / "crash.py").write_text(CRASHING % (str(ROOT / "capture"), str(tmp_path / "run.lb"), number))
    done = run(sys.executable, tmp_path / "crash.py")
    assert done.returncode == -number, done.stderr
    assert listed_steps(tmp_path / "run.lb") == [0, 1, 2]


@pytest.mark.parametrize("width", [32, 3000])  # what is behind when the last step ends takes longer to write
def test_exit_without_handlers_leaves_every_step_that_ended(tmp_path, width):
    program = ENDLESS.replace("32", str(width)).replace("print(step, flush=True)", "import os\n    if step == 3: os._exit(9)")
    (tmp_path / "leave.py").write_text(program)
    done = run(LASTBIT, "record", "--level", "ops", "-o", tmp_path / "run.lb", "--", sys.executable, tmp_path / "leave.py")
    assert done.returncode == 9
    assert listed_steps(tmp_path / "run.lb")[:3] == [0, 1, 2]
