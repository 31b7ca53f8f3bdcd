"""Programs that use torch.compile: they run as without us, and what is recorded is said truly."""

import os
import sys
import textwrap

import pytest
import recorded
from conftest import ROOT

torch = pytest.importorskip("torch")
CAPTURE = str(ROOT / "capture")
COMPOSITE = 1 << 7

MODEL = """
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    ran = 0

    def backend(graph, example):
        def run(*args):
            global ran
            ran += 1
            return graph.forward(*args)
        return run
"""
COMPILED_MODULE = (
    MODEL
    + """
    compiled = torch.compile(model, backend=backend)
    for step in range(5):
        before = ran
        loss = compiled(torch.randn(4, 8)).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        print(step, "compiled" if ran > before else "eager", loss.item())
"""
)
WHOLE_GRAPH = (
    MODEL
    + """
    @torch.compile(backend=backend, fullgraph=True)
    def forward(x):
        return model(x).pow(2).mean()

    for step in range(2):
        loss = forward(torch.randn(4, 8))
        loss.backward()
        opt.step()
        opt.zero_grad()
        print(loss.item(), ran)
"""
)
WORKERS = """
    import torch

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, i):
            return torch.full((8,), float(i)), torch.tensor(i % 2)

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
"""


def test_steps_that_are_not_wanted_run_compiled(tmp_path):
    plain, _, _ = recorded.run(COMPILED_MODULE)
    out, err, _ = recorded.run(COMPILED_MODULE, tmp_path / "run.lb", steps="2-3")
    assert "Warning" not in err
    assert [line.split()[1] for line in out.splitlines()] == ["compiled", "compiled", "eager", "eager", "compiled"]
    assert [line.split()[2] for line in out.splitlines()] == [line.split()[2] for line in plain.splitlines()]
    capture = recorded.Recorded(tmp_path / "run.lb")
    assert capture.steps == [2, 3]
    program = capture.programs[0][3]
    assert {program.layer(op) for op in program.ops if program.name(op) == "aten::addmm"} == {"0", "2"}


def test_function_that_must_be_one_graph_is_recorded_too(tmp_path):
    out, err, _ = recorded.run(WHOLE_GRAPH, tmp_path / "run.lb")
    assert "Warning" not in err and [line.split()[1] for line in out.splitlines()] == ["0", "0"]
    assert recorded.Recorded(tmp_path / "run.lb").steps == [0, 1]


def test_hooks_of_others_are_still_warned_of(tmp_path):
    hooked = COMPILED_MODULE.replace("    compiled =", "    torch.nn.modules.module.register_module_forward_hook(lambda *a: None)\n    compiled =")
    _, err, _ = recorded.run(hooked, tmp_path / "run.lb")
    assert "when there are global hooks" in err


def test_batches_of_workers_are_sources_and_no_writes(tmp_path):
    recorded.run(WORKERS, tmp_path / "run.lb")
    capture = recorded.Recorded(tmp_path / "run.lb")
    assert capture.table("coverage")["unseen_writes"] == 0 and len(capture.steps) == 3
    for program in capture.programs[0].values():
        assert not [op for op in program.ops if "set_" in program.name(op)]
        batch = [v for v in program.values if program.text(v.name).startswith("input:") and v.source]
        assert batch and all(recorded.KINDS[v.source] == "batch" for v in batch)


LAYERS = """
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        def forward(self, x):
            return x + self.down(torch.nn.functional.gelu(self.up(x)))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([Block(), Block()])
            self.head = torch.nn.Linear(8, 1)
        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.head(TAP(x))

    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    %s
    for step in range(3):
        loss = forward(torch.randn(4, 8))
        loss.backward()
        opt.step()
        opt.zero_grad()
        print(loss.item())
"""
OF_MODULE = (
    LAYERS
    % """compiled = torch.compile(model, mode="reduce-overhead")
    forward = lambda x: compiled(x).pow(2).mean()"""
)
OF_FUNCTION = LAYERS % """forward = torch.compile(lambda x: model(x).pow(2).mean(), fullgraph=True)"""
EAGER = LAYERS % """forward = lambda x: model(x).pow(2).mean()"""


def linear_layers(program, phase):
    return [program.layer(op) for op in program.ops if program.name(op) in ("aten::addmm", "aten::mm") and recorded.PHASES[op.phase] == phase]


def without_tap(code):
    return code.replace("TAP(x)", "x")


@pytest.mark.skipif(
    not hasattr(torch.utils._python_dispatch.TorchDispatchMode, "ignore_compile_internals"),
    reason="this torch compiles nothing under a dispatch mode",
)
def test_compiled_functions_are_recorded_as_their_graphs(tmp_path, lastbit):
    eager, _, _ = recorded.run(without_tap(EAGER), tmp_path / "eager.lb")
    of_eager = recorded.Recorded(tmp_path / "eager.lb")
    assert of_eager.table("receipt")["bits"] == "eager"
    for name, code in (("module", OF_MODULE), ("function", OF_FUNCTION)):
        path = tmp_path / name / "run.lb"
        path.parent.mkdir()
        out, err, _ = recorded.run(without_tap(code), path, compiled="graph")
        assert [float(line) for line in out.split()] == pytest.approx([float(line) for line in eager.split()], rel=1e-5), name
        capture = recorded.Recorded(path)
        assert capture.steps == [0, 1, 2] and capture.table("receipt")["bits"] == "graph"
        assert "op by op" in str(capture.table("coverage")["notes"]["compiled"])
        program, expected = capture.programs[0][1], of_eager.programs[0][1]
        for phase in ("forward", "backward"):
            assert linear_layers(program, phase) == linear_layers(expected, phase), (name, phase)
        assert not [op for op in program.ops if op.flags & COMPOSITE]
        assert lastbit.json("replay", "--mode", "chained", path, expect=0)["verdict"] in ("identical", "rounding")


def test_where_graphs_cannot_be_had_eager_is_recorded_and_said(tmp_path):
    before = """
        import os, sys, torch.utils._python_dispatch
        torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals = None
        os.environ.update(LASTBIT_OUT=%r, LASTBIT_LEVEL="ops", LASTBIT_COMPILED="graph")
        sys.path.append(%r)
        import lastbit.torch
        lastbit.torch.autostart()
    """ % (str(tmp_path / "run.lb"), CAPTURE)
    (tmp_path / "run.lb").mkdir()
    recorded.run(textwrap.dedent(before) + textwrap.dedent(without_tap(OF_MODULE)), quiet=False)
    capture = recorded.Recorded(tmp_path / "run.lb")
    assert capture.steps == [0, 1, 2] and capture.table("receipt")["bits"] == "eager"
    assert "run eagerly" in str(capture.table("coverage")["notes"]["degraded"])


def test_a_tap_survives_compilation(tmp_path):
    tapped = "    import sys\n    sys.path.insert(0, %r)\n    from lastbit.torch import tap\n" % CAPTURE
    code = tapped + OF_MODULE.replace("TAP(x)", "tap('before the head', x)")
    plain, _, _ = recorded.run(code.replace('mode="reduce-overhead"', 'backend="aot_eager"'))
    for how in ("graph", "eager"):
        path = tmp_path / how / "run.lb"
        path.parent.mkdir()
        out, _, _ = recorded.run(code, path, compiled=how)
        assert [float(line) for line in out.split()] == pytest.approx([float(line) for line in plain.split()], rel=1e-5)
        for program in recorded.Recorded(path).programs[0].values():
            taps = [b for b in program.boundaries if program.text(program.scopes[b.scope].path) == "before the head"]
            assert len(taps) == 1 and program.shape(taps[0].value) == [4, 8] and program.has(taps[0].value)


@pytest.mark.parametrize("strict", [True, False])
def test_a_tap_is_an_op_of_an_exported_graph(strict):
    out, _, _ = recorded.run(
        """
        import sys
        sys.path.insert(0, %r)
        import torch
        from lastbit.torch import tap
        class Net(torch.nn.Module):
            def forward(self, x):
                return tap("middle", x + 1).relu()
        exported = torch.export.export(Net(), (torch.randn(2, 3),), strict=%r)
        print(*[node.target for node in exported.graph.nodes if node.op == "call_function"])
        x = torch.randn(2, 3)
        print(torch.equal(exported.module()(x), Net()(x)))
    """
        % (CAPTURE, strict)
    )
    assert out.split() == ["aten.add.Tensor", "lastbit.tap.default", "aten.relu.default", "True"]


def test_a_program_that_imports_the_recorder_before_torch_is_recorded(lastbit, tmp_path):
    program = tmp_path / "first.py"
    program.write_text("import lastbit.torch\nimport torch\nlastbit.torch.tap('x', torch.nn.Linear(3, 3)(torch.ones(2, 3)))\n")
    out = tmp_path / "run.lb"
    done = lastbit.run("record", "-o", out, "--", sys.executable, program, env={**os.environ, "PYTHONPATH": str(ROOT / "capture")})
    assert done.returncode == 0 and "nothing" not in done.stderr, done.stderr
    assert "x" in lastbit.run("show", out, "x", expect=0).stdout
