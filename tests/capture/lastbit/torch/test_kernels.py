"""Kernels that a program launches itself: Triton's, by the interface of several of its versions."""

import importlib.util
import os
import sys

import pytest
import recorded

torch = pytest.importorskip("torch")
STANDIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "standin_triton")
HAS_TRITON = importlib.util.find_spec("triton") is not None

PROGRAM = """
    import os, sys
    %s
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def scaled(x_ptr, w_ptr, out_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n)
        w = tl.load(w_ptr + at, mask=at < n)
        there = out_ptr + at
        tl.store(there, x * w, mask=at < n)

    @triton.autotune(configs=[triton.Config({"BLOCK": n}) for n in SIZES], key=["n"])
    @triton.jit
    def summed(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        total = tl.load(out_ptr)
        for start in range(0, 40, BLOCK):
            at = start + tl.arange(0, BLOCK)
            total = total + tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0))
        tl.store(out_ptr, total)

    def grid(meta):
        return (triton.cdiv(40, meta["BLOCK"]),)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            out = torch.empty_like(x)
            scaled[grid](x, w, out, x.numel(), BLOCK=32)
            return out
        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            g, gx, gw = g.contiguous(), torch.empty_like(x), torch.empty_like(w)
            scaled[grid](g, w, gx, x.numel(), BLOCK=32)
            scaled[grid](g, x, gw, x.numel(), BLOCK=32)
            return gx, gw

    @torch.library.custom_op("mine::scaled", mutates_args=())
    def registered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        scaled[grid](x, w, out, x.numel(), BLOCK=32)
        return out

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.w = torch.nn.Linear(8, 10), torch.nn.Parameter(torch.ones(4, 10))
        def forward(self, x):
            return Scaled.apply(self.up(x), self.w)

    torch.manual_seed(0)
    net, total = Net(), torch.zeros(1)
    for step in range(2):
        y = net(torch.randn(4, 8))
        summed[(1,)](net.w.detach(), total, 40)
        registered(y.detach(), net.w.detach())
        y.sum().backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        print(y.sum().item(), total.item())
"""
FROM_STANDIN = (
    "import torch.utils._triton; torch.utils._triton.has_triton_package = lambda: False; os.environ['STANDIN_TRITON'] = %r; sys.path.insert(0, %r)"
)
INTERFACES = {
    "2.1": PROGRAM.replace("SIZES", "(16, 32)") % (FROM_STANDIN % ("2.1", STANDIN)),
    "3": PROGRAM.replace("SIZES", "(16, 32)") % (FROM_STANDIN % ("3", STANDIN)),
    "interpreted": PROGRAM.replace("SIZES", "(32,)") % "os.environ['TRITON_INTERPRET'] = '1'",
}


@pytest.fixture(scope="module", params=list(INTERFACES))
def ran(request, tmp_path_factory):
    """What the program printed by itself and under recording, and the capture."""
    if request.param == "interpreted" and not HAS_TRITON:
        pytest.skip("there is no triton here")
    folder = tmp_path_factory.mktemp("kernels") / "run.lb"
    code = as_file(INTERFACES[request.param], folder.parent)
    return recorded.run(code)[0], recorded.run(code, folder)[0], folder


def as_file(code, folder):
    """Runs the program from a file of its own: what a kernel writes is read from its source."""
    import textwrap

    path = folder / "kernels_program.py"
    path.write_text(textwrap.dedent(code))
    return "import runpy; runpy.run_path(%r, run_name='__main__')" % str(path)


def launches(program, name):
    return [op for op in program.ops if program.name(op) == "triton::" + name]


def arguments_of(program, op):
    return [program.args[a].u for a in range(op.first_arg, op.first_arg + op.args)]


def test_a_launch_changes_nothing_that_the_program_computes(ran):
    plain, under, _ = ran
    assert plain == under and len(plain.splitlines()) == 2


def test_a_launch_is_an_opaque_op_that_names_its_kernel(ran):
    program = recorded.Recorded(ran[2]).programs[0][0]
    forward, *backward = launches(program, "scaled")
    assert len(backward) == 2 and recorded.PHASES[forward.phase] == "forward"
    assert [recorded.PHASES[op.phase] for op in backward] == ["backward"] * 2
    for op in (forward, *backward):
        assert op.flags & recorded.COMPOSITE and op.flags & recorded.MUTABLE
        x, w, out, n, block = arguments_of(program, op)
        assert (n, block) == (40, 32)
        (written,) = program.written(op)  # x and w are only loaded
        assert program.values[written].storage == program.values[out].storage
        assert recorded.KINDS[program.values[written].source] == "opaque" and program.has(written)
    x, w, _, _, _ = arguments_of(program, forward)
    made = program.tensor(x) * program.tensor(w)
    assert torch.equal(program.tensor(program.written(forward)[0]), made)


def test_what_follows_reads_what_the_kernel_wrote(ran):
    program = recorded.Recorded(ran[2]).programs[0][1]
    (out,) = program.written(launches(program, "scaled")[0])
    assert any(out in arguments_of(program, op) for op in program.ops if program.name(op) == "aten::sum")
    assert not [n for n in program.notices if program.text(n.kind) == "unseen_write"]


def test_an_autotuned_kernel_is_launched_once(ran):
    capture = recorded.Recorded(ran[2])
    for program in capture.programs[0].values():
        (op,) = launches(program, "summed")
        (written,) = program.written(op)
        assert program.shape(written) == [1]
    assert "triton::summed ran with" in str(capture.table("coverage")["notes"]["autotuned"])


def test_a_kernel_inside_a_registered_op_is_that_op(ran):
    for program in recorded.Recorded(ran[2]).programs[0].values():
        (op,) = [op for op in program.ops if program.name(op) == "mine::scaled"]
        assert op.flags & recorded.COMPOSITE and len(program.results(op)) == 1 and not program.written(op)


def test_a_capture_with_launches_replays_and_bisects(ran, lastbit):
    replayed = lastbit.json("replay", ran[2], expect=0)
    assert replayed["verdict"] in ("identical", "rounding", "opaque") and replayed["ops"]["opaque"] == 10
    lastbit.run("bisect", ran[2], expect=0)


REGISTERED = """
    import os
    os.environ["TRITON_INTERPRET"] = "1"
    import torch, triton
    import triton.language as tl

    @triton.jit
    def doubled(x_ptr, out_ptr, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out_ptr + at, tl.load(x_ptr + at) * 2)

    @torch.library.triton_op("mine::doubled", mutates_args={})
    def op(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.library.wrap_triton(doubled)[(1,)](x, out, BLOCK=4)
        return out

    class Net(torch.nn.Module):
        def forward(self, x):
            return op(x)

    print(torch.nn.Sequential(torch.nn.Linear(4, 4), Net())(torch.ones(4)).tolist())
"""


@pytest.mark.skipif(not HAS_TRITON, reason="there is no triton here")
def test_a_kernel_registered_by_triton_op_is_an_op_of_its_name(tmp_path):
    recorded.run(as_file(REGISTERED, tmp_path), tmp_path / "run.lb")
    (program,) = recorded.Recorded(tmp_path / "run.lb").programs[0].values()
    assert [program.name(op) for op in program.ops if "::" in program.name(op)].count("mine::doubled") == 1
    assert not launches(program, "doubled")


FAILING = """
    import os, sys
    %s
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def broken(x_ptr, n, missing):
        tl.store(x_ptr, n)
        raise ValueError("no such kernel")

    net, x = torch.nn.Linear(4, 4), torch.zeros(4)
    for step in range(2):
        net(x)
        try:
            broken[(1,)](x, 7, 0)
        except ValueError as error:
            print(error, x[0].item())
"""


def test_a_launch_that_raises_is_noted_and_the_program_goes_on(tmp_path):
    code = as_file(FAILING % (FROM_STANDIN % ("3", STANDIN)), tmp_path)
    out, _, _ = recorded.run(code, tmp_path / "run.lb")
    assert out == "no such kernel 7.0\n" * 2
    for program in recorded.Recorded(tmp_path / "run.lb").programs[0].values():
        (op,) = launches(program, "broken")
        assert op.flags & recorded.FAILED


# ---- what a kernel may store through


@pytest.fixture(scope="module")
def writes():
    """Names of the parameters that a function of the source given may write."""
    sys.path.insert(0, os.path.join(recorded.ROOT, "capture"))
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "triton"}
    sys.path.insert(0, STANDIN)
    try:
        import triton
        import triton.language as tl
    finally:
        sys.path.remove(STANDIN)
        for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
            del sys.modules[name]
        sys.modules.update(before)
    from lastbit.torch import kernel_writes

    def of(source, tmp_path):
        import inspect
        import linecache
        import textwrap

        path = str(tmp_path / "kernel.py")
        lines = textwrap.dedent(source)
        linecache.cache[path] = (len(lines), None, lines.splitlines(True), path)
        space = {"tl": tl, "triton": triton, "__name__": "kernel"}
        exec(compile(lines, path, "exec"), space)
        function = space["kernel"]
        return kernel_writes.parameters(function, list(inspect.signature(function).parameters))

    return of


@pytest.mark.parametrize(
    "body, expected",
    [
        ("tl.store(b, tl.load(a))", "b"),
        ("p = b + 4\n    q = p\n    tl.store(q + n, tl.load(a + n))", "b n"),
        ("tl.atomic_add(b, tl.load(a))", "b"),
        ("for i in range(n):\n        tl.store(p, 0.0) if i else None\n        p = a", "a"),
        ("while n:\n        tl.store(q, 0.0)\n        q = p\n        p = b\n        n = n - 1", "b"),
        ("helper(a, tl.load(b))", "a"),
        ("b.store([n], a.load([n]))", "b n"),
        ("[tl.store(p, 0.0) for p in (a, b)]", "a b"),
        ("tl.inline_asm_elementwise('st', [a], is_pure=False)", "a"),
        ("n(a, b)", "a b n"),
        ("x, y = a + 1, b + 1\n    tl.store(y, 1.0)", "a b"),
        ("if (p := b + 1) is not None:\n        tl.store(p, tl.load(a) < tl.load(a + 1))", "b"),
        ("tl.load(a + n)", ""),
    ],
)
def test_a_parameter_is_written_unless_its_uses_write_nothing(writes, tmp_path, body, expected):
    source = "def helper(p, x):\n    tl.store(p, x)\n\ndef kernel(a, b, n):\n    %s\n" % body
    assert " ".join(writes(source, tmp_path)) == expected


def test_a_kernel_whose_source_is_not_there_may_write_everything(writes):
    from lastbit.torch import kernel_writes

    space = {}
    exec("def kernel(a, b):\n    pass", space)
    assert kernel_writes.parameters(space["kernel"], ["a", "b"]) is None
