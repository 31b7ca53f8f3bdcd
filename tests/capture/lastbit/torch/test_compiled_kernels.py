"""`record --compiled kernels`: compiled code runs as it would, and what enters and leaves each compiled graph is recorded.

Inductor's last stage, which makes code of a graph, is a stand-in here: it runs the graph, and plants an error where it is told to. Only
the last test compiles C++.
"""

import pytest
import recorded

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not hasattr(torch.utils._python_dispatch.TorchDispatchMode, "ignore_compile_internals"),
    reason="this torch compiles nothing under a dispatch mode",
)

NET = """
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down, self.norm = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8)
            self.drop = torch.nn.Dropout(DROP)
        def forward(self, x):
            return self.norm(x + self.drop(self.down(torch.nn.functional.gelu(self.up(x)))))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.head = torch.nn.ModuleList([Block(), Block()]), torch.nn.Linear(8, 1)
        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    COMPILE
    for step in range(3):
        loss = net(torch.randn(4, 8)).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        norm = net.layers[0].norm
        print(loss.item().hex(), norm.running_var.sum().item().hex(), norm.num_batches_tracked.item(), torch.rand(1).item().hex())
    print(calls) if "calls" in globals() else None
"""
# A graph that gets weights of layers.1 has the planted error in its first output of floats, where it is told to.
FAKE = """
    import torch._inductor.compile_fx as inductor
    calls = [0, 0]

    def generated(graph, example, **given):
        backward = bool(given.get("is_backward"))
        def code(inputs):
            calls[backward] += 1
            planted = PLANTED and not backward and any(t is p for t in inputs for p in net.layers[1].parameters())
            out = list(torch.fx.Interpreter(graph).run(*inputs))
            inputs.clear()
            n = [t is not None and t.shape == (4, 8) for t in out].index(True) if planted else 0
            out[n] = out[n] * 1.5 if planted else out[n]
            return out
        code._boxed_call = True
        return code

    inductor.compile_fx_inner = generated
    for layer in net.layers:
        layer.compile(BACKEND)
"""
PLAIN = "backend=lambda graph, example: inductor.compile_fx(graph, example, inner_compile=generated)"


def program(backend="", planted=False, drop=0.0):
    fake = FAKE.replace("BACKEND", backend).replace("PLANTED", str(planted))
    return NET.replace("    COMPILE\n", fake).replace("DROP", str(drop))


def ran(folder, how="kernels", **options):
    """What the program printed by itself and under recording, and the capture."""
    plain, _, _ = recorded.run(program(PLAIN, **options))
    out, _, _ = recorded.run(program(**options), folder / "run.lb", compiled=how)
    return plain, out, recorded.Recorded(folder / "run.lb")


def outputs(step):
    """(layer, phase, whether the compiled code gave what the graph gave op by op) of each output of a compiled graph."""
    found = []
    for op in step.ops:
        if step.name(op) in ("compiled::output", "compiled::changed"):
            before = step.tensor(step.args[op.first_arg].u)
            (after,) = step.results(op) or step.written(op)
            assert op.flags & recorded.COMPOSITE and recorded.KINDS[step.values[after].source] == "opaque"
            found.append((step.layer(op), recorded.PHASES[op.phase], torch.equal(before, step.tensor(after))))
    return found


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return (folder := tmp_path_factory.mktemp("planted")), *ran(folder, planted=True)


def test_the_program_computes_what_its_compiled_code_computes(planted):
    _, plain, out, capture = planted
    assert plain == out and len(out.splitlines()) == 4
    assert capture.table("receipt")["bits"] == "kernels" and "compiled::output" in str(capture.table("coverage")["notes"]["compiled"])
    assert capture.table("coverage")["unseen_writes"] == 0


def test_what_a_compiled_kernel_does_otherwise_is_found_in_its_layer(planted):
    for step in planted[3].programs[0].values():
        found = outputs(step)
        assert {phase for _, phase, _ in found} == {"forward", "backward"}
        wrong = {(layer, phase) for layer, phase, same in found if not same}
        assert len([same for _, _, same in found if not same]) == 1 and wrong <= {("layers.1.norm", "forward"), ("layers.1", "forward")}
        assert {layer for layer, _, _ in found} >= {"layers.0.up", "layers.1.up"}


def test_what_follows_reads_what_the_compiled_code_gave(planted):
    step = planted[3].programs[0][0]
    (wrong,) = [
        step.results(op)[0]
        for op in step.ops
        if step.name(op) == "compiled::output" and not torch.equal(step.tensor(step.args[op.first_arg].u), step.tensor(step.results(op)[0]))
    ]
    (head,) = [op for op in step.ops if step.layer(op) == "head" and step.name(op) == "aten::addmm"]
    assert wrong in [step.args[a].u for a in range(head.first_arg, head.first_arg + head.args)]


def test_diff_with_an_eager_run_shows_the_layers_of_compiled_code_that_differ(planted, lastbit):
    folder = planted[0]
    recorded.run(NET.replace("COMPILE", "").replace("DROP", "0.0"), folder / "eager.lb")
    said = lastbit.run("diff", "--all", folder / "eager.lb", folder / "run.lb").stdout
    assert "verdict: missing" in said and "compiled::output" in said  # no one can run a compiled kernel exactly
    replayed = lastbit.json("replay", folder / "run.lb", expect=0)
    assert replayed["verdict"] in ("identical", "rounding", "opaque") and replayed["ops"]["opaque"] > 0
    assert all("compiled kernel" in row["why"] for row in replayed["opaque_ops"])


@pytest.mark.full
def test_running_a_graph_beside_draws_nothing_and_changes_nothing(tmp_path):
    plain, out, capture = ran(tmp_path, drop=0.5)
    assert plain == out
    assert all(line.split()[2] == str(n + 1) for n, line in enumerate(out.splitlines()[:3]))  # batches that the norm has seen


@pytest.mark.full
def test_graphs_run_beside_in_recorded_steps_alone(tmp_path):
    _, _, _ = recorded.run(program(), tmp_path / "run.lb", compiled="kernels", steps="1")
    capture = recorded.Recorded(tmp_path / "run.lb")
    assert capture.steps == [1] and all(same for _, _, same in outputs(capture.programs[0][1]))


@pytest.mark.full
def test_another_compiler_than_inductor_is_recorded_as_its_graphs_and_said(tmp_path):
    recorded.run(
        NET.replace("COMPILE", "net = torch.compile(net, backend='aot_eager')\n    net.layers = net._orig_mod.layers").replace("DROP", "0.0"),
        tmp_path / "run.lb",
        compiled="kernels",
    )
    capture = recorded.Recorded(tmp_path / "run.lb")
    assert "aot_eager" in str(capture.table("coverage")["notes"]["degraded"]) and not outputs(capture.programs[0][0])


@pytest.mark.full
def test_modules_that_are_compiled_one_by_one_keep_their_paths(tmp_path):
    _, _, capture = ran(tmp_path, how="graph")
    step = capture.programs[0][0]
    of = [step.layer(op) for op in step.ops if step.name(op) in ("aten::addmm", "aten::mm") and recorded.PHASES[op.phase] == "forward"]
    assert of == ["layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down", "head"]


@pytest.mark.full
def test_kernels_of_inductor_are_recorded_as_they_ran(tmp_path):
    code = NET.replace("COMPILE", "forward = torch.compile(net.forward)\n    net.forward = forward").replace("DROP", "0.0")
    plain, _, _ = recorded.run(code)
    out, _, _ = recorded.run(code, tmp_path / "run.lb", compiled="kernels")
    assert plain == out
    capture = recorded.Recorded(tmp_path / "run.lb")
    for step in capture.programs[0].values():
        assert len(outputs(step)) > 20 and {layer for layer, _, _ in outputs(step)} >= {"head", "layers.0.up", "layers.1.norm"}
