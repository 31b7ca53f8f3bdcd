"""Each situation in which a recorder could miss or mistake something, as a small program."""

import os
import sys
import textwrap

import pytest
import recorded

torch = pytest.importorskip("torch")

NET = """
import torch, threading, sys
torch.set_num_threads(1)
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        self.second = torch.nn.Linear(6, 2)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.fixture
def record(tmp_path):
    def run(code, net=NET, **settings):
        out, err, _ = recorded.run(net + textwrap.dedent(code), tmp_path / "run.lb", **settings)
        return recorded.Recorded(tmp_path / "run.lb")

    return run


def names(program, phase=None):
    return [program.name(op) for op in program.ops if phase is None or recorded.PHASES[op.phase] == phase]


def notes(capture, kind):
    return capture.table("coverage")["notes"].get(kind, {})


def find(program, name):
    return [op for op in program.ops if program.name(op) == name]


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_steps_close_at_the_first_forward_after_an_optimizer_step(record):
    capture = record("""
        for _ in range(3):
            for micro in range(2):
                model(torch.randn(3, 4)).sum().backward()
            opt.step(); opt.zero_grad()
    """)
    assert capture.steps == [0, 1, 2]
    for program in capture.programs[0].values():
        assert program.complete
        assert len([b for b in program.boundaries if b.scope == 0 and b.output]) == 2
        assert [program.text(s.name) for s in program.scalars].count("loss") == 2


CLIP = """
def clip(limit):
    gradients = [p.grad for p in model.parameters()]
    norm = torch.sqrt(sum(g.pow(2).sum() for g in gradients))
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(scale)
for _ in range(2):
    x = torch.randn(3, 4)
    loss = (model(x) - x[:, :2]).abs().mean()
    loss.backward()
    %s
    shown = loss.detach() * 2 + model(x).mean() * 3
    %s; opt.zero_grad(set_to_none=False)
"""
BY_HAND = """
    for p in model.parameters(): p.data.sub_(p.grad * 0.1)
    opt.param_groups.clear(); opt.step()"""


@pytest.mark.parametrize(
    "clip, step", [("clip(0.1)", "opt.step()"), ("with torch.no_grad(): clip(0.1)", "opt.step()"), ("clip(0.1)", BY_HAND.strip())]
)
def test_work_on_gradients_outside_of_modules_is_of_the_optimizers_phase(record, clip, step):
    capture = record(CLIP % (clip, step))
    assert capture.steps == [0, 1]
    first = capture.programs[0][0]
    for name, n in (("aten::pow.Tensor_Scalar", 4), ("aten::sqrt", 1), ("aten::reciprocal", 1), ("aten::clamp", 1)):
        assert [recorded.PHASES[op.phase] for op in find(first, name)] == ["optimizer"] * n, name
    assert [recorded.PHASES[op.phase] for op in find(first, "aten::mul_.Tensor")] == ["optimizer"] * 4
    for name in ("aten::abs", "aten::mean", "aten::relu"):
        phases = [recorded.PHASES[op.phase] for op in find(first, name)]
        assert phases and set(phases) <= {"forward", "backward"}, name
    phases = [recorded.PHASES[op.phase] for op in find(first, "aten::mul.Tensor")]
    assert phases.count("forward") == 2 and phases.count("optimizer") == (5 if "p.grad" in step else 1)


def test_a_closure_opens_no_step(record):
    capture = record("""
        opt = torch.optim.LBFGS(model.parameters(), max_iter=3)
        x = torch.randn(3, 4)
        def closure():
            opt.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            return loss
        for _ in range(2):
            model(x).sum()
            opt.step(closure)
    """)
    assert capture.steps == [0, 1]
    step = capture.programs[0][0]
    assert "aten::mm" in names(step, "backward") and "aten::addmm" in names(step, "forward")


def test_without_an_optimizer_each_outermost_forward_is_a_step(record):
    capture = record(
        """
        del opt
        with torch.no_grad():
            for _ in range(3):
                torch.nn.functional.softmax(model(torch.randn(1, 4)), -1)
    """,
        net=NET.replace("opt = ", "opt = 0 and "),
    )
    assert capture.steps == [0, 1, 2]
    assert "aten::_softmax" in names(capture.programs[0][0])


def test_only_the_steps_and_ranks_that_are_asked_for(record):
    code = """
        for _ in range(6):
            model(torch.randn(3, 4)).sum().backward()
            opt.step(); opt.zero_grad()
    """
    capture = record(code, steps="1,3-4")
    assert capture.steps == [1, 3, 4]
    sources = capture.programs[0][3].values
    first = {capture.programs[0][3].text(v.name): recorded.KINDS[v.source] for v in sources if v.source}
    assert first["first.weight"] == "parameter"  # step 2 went by unseen: nothing is carried from step 1
    carried = {capture.programs[0][4].text(v.name): recorded.KINDS[v.source] for v in capture.programs[0][4].values if v.source}
    assert carried["first.weight"] == "carried"


def test_two_optimizers_may_step_one_after_the_other(record):
    capture = record("""
        a = torch.optim.SGD(model.first.parameters(), lr=0.1)
        b = torch.optim.Adam(model.second.parameters(), lr=0.01)
        for _ in range(2):
            model(torch.randn(3, 4)).sum().backward()
            a.step(); b.step(); a.zero_grad(); b.zero_grad()
    """)
    assert capture.steps == [0, 1]
    step = capture.programs[0][0]
    assert [step.text(g.optimizer) for g in step.groups] == ["SGD", "Adam"]
    named = [[step.text(step.group_params[g.first_param + i].name) for i in range(g.params)] for g in step.groups]
    assert named == [["first.weight", "first.bias"], ["second.weight", "second.bias"]]
    lr = [
        step.scalars[g.first_option + i].number
        for g in step.groups
        for i in range(g.options)
        if step.text(step.scalars[g.first_option + i].name) == "lr"
    ]
    assert lr == [0.1, 0.01]
    for g in step.groups:
        assert g.ops > 0 and all(recorded.PHASES[op.phase] == "optimizer" for op in step.ops[g.first_op : g.first_op + g.ops])


# ---- where ops belong ------------------------------------------------------------------------------------------------


def test_backward_ops_and_gradients_belong_to_their_modules(record):
    capture = record("""
        model(torch.randn(3, 4)).sum().backward()
        opt.step()
    """)
    step = capture.programs[0][0]
    layers = [step.layer(op) for op in step.ops if step.name(op) == "aten::mm" and recorded.PHASES[op.phase] == "backward"]
    assert layers == ["second", "second", "first"]
    gradients = {step.text(v.name) for v in step.values if v.flags & recorded.GRADIENT}
    assert gradients == {"first.weight", "first.bias", "second.weight", "second.bias"}


def test_wrapper_prefixes_are_left_out(record):
    capture = record("""
        class Wrapper(torch.nn.Module):
            def __init__(self, module):
                super().__init__()
                self.module = module
            def forward(self, x):
                return self.module(x)
        Wrapper.__name__ = "DistributedDataParallel"
        Wrapper(model)(torch.randn(3, 4)).sum().backward()
        opt.step()
    """)
    step = capture.programs[0][0]
    assert {step.layer(op) for op in step.ops} == {"", "first", "second"}
    assert {step.text(v.name) for v in step.values if v.flags & recorded.PARAMETER} >= {"first.weight", "second.bias"}


def test_two_models_have_names_of_their_own(record):
    capture = record("""
        other = Net()
        with torch.no_grad():
            pass
        (model(torch.randn(3, 4)) + other(torch.randn(3, 4))).sum().backward()
        opt.step()
    """)
    step = capture.programs[0][0]
    assert {step.layer(op) for op in step.ops} >= {"first", "second", "Net.first", "Net.second"}


def test_checkpointing_marks_what_is_computed_again(record):
    capture = record("""
        from torch.utils.checkpoint import checkpoint
        checkpoint(model, torch.randn(3, 4), use_reentrant=False).sum().backward()
        opt.step()
    """)
    step = capture.programs[0][0]
    again = [op for op in step.ops if op.flags & recorded.RECOMPUTE]
    assert [step.name(op) for op in again if not op.flags & recorded.VIEW] == ["aten::addmm", "aten::relu", "aten::addmm"][
        : len([op for op in again if not op.flags & recorded.VIEW])
    ]
    assert {step.layer(op) for op in again} >= {"first"}
    assert all(recorded.PHASES[op.phase] == "backward" for op in again)


def test_values_between_layers_are_boundaries(record):
    capture = record(
        """
        model(torch.randn(3, 4)).sum().backward()
        opt.step()
    """,
        level="layers",
    )
    step = capture.programs[0][0]
    assert step.level == 2
    at = [(step.text(step.scopes[b.scope].path), b.output) for b in step.boundaries]
    assert at == [("", 0), ("first", 0), ("first", 1), ("second", 0), ("second", 1), ("", 1)]
    assert all(step.has(b.value) and step.digest(b.value) != (0, 0) for b in step.boundaries)
    into, out = (step.tensor(step.boundaries[i].value) for i in (1, 2))
    assert out.shape == (3, 6) and into.shape == (3, 4)


# ---- kinds of code ---------------------------------------------------------------------------------------------------


def test_inference_mode_is_taken_apart(record):
    capture = record(
        """
        with torch.inference_mode():
            y = model(torch.randn(3, 4))
            z = torch.nn.functional.scaled_dot_product_attention(y[None, None], y[None, None], y[None, None])
            (y @ y.t()).softmax(-1).reshape(-1)
    """,
        net=NET.replace("opt = ", "opt = 0 and "),
    )
    seen = names(capture.programs[0][0])
    assert "aten::addmm" in seen and "aten::mm" in seen and "aten::_softmax" in seen
    assert not {"aten::linear", "aten::matmul", "aten::softmax.int", "aten::reshape", "aten::layer_norm"} & set(seen)


def test_custom_ops_are_recorded_whole_and_their_results_are_sources(record):
    capture = record(
        """
        @torch.library.custom_op("mine::twice", mutates_args=())
        def twice(x: torch.Tensor) -> torch.Tensor:
            return x * 2
        y = twice(model(torch.randn(3, 4)).detach())
        y.sum()
        opt.step()
    """,
        level="sources",
    )
    step = capture.programs[0][0]
    [op] = find(step, "mine::twice")
    assert op.flags & recorded.COMPOSITE
    [v] = step.results(op)
    assert recorded.KINDS[step.values[v].source] == "opaque" and step.has(v)
    assert not any(step.name(o) == "aten::mul.Tensor" for o in step.ops)


def test_autograd_functions_are_seen_inside(record):
    capture = record("""
        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x * x
            @staticmethod
            def backward(ctx, g):
                x, = ctx.saved_tensors
                return 3 * x * x * g
        Cube.apply(model(torch.randn(3, 4))).sum().backward()
        opt.step()
    """)
    step = capture.programs[0][0]
    assert "CubeBackward" in {step.text(op.node_name) for op in step.ops}


def test_functional_transforms_and_functional_call(record):
    capture = record("""
        p = {k: v.detach() * 1.5 for k, v in model.named_parameters()}
        x = torch.randn(3, 4)
        model(x)
        g = torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).sum())(p)
        v = torch.func.vmap(lambda a: (a * a).sum())(x)
        model(x + g["first.weight"][:3]).sum().backward()
        opt.step()
    """)
    step = capture.programs[0][0]
    assert step.complete and "aten::addmm" in names(step)


def test_compiled_functions_run_eagerly_and_are_recorded(record):
    capture = record("""
        compiled = torch.compile(model, backend="eager")
        compiled(torch.randn(3, 4)).sum().backward()
        opt.step()
    """)
    assert "aten::addmm" in names(capture.programs[0][0])


def test_threads_started_while_recording_are_seen(record):
    capture = record("""
        def work(x):
            with torch.no_grad():
                model.first(x).cumsum(0)
        class Worker(threading.Thread):
            def run(self):
                work(torch.ones(2, 4))
        model(torch.randn(3, 4)).sum().backward()
        for t in threading.Thread(target=work, args=(torch.ones(3, 4),)), Worker():
            t.start(); t.join()
        opt.step()
    """)
    step = capture.programs[0][0]
    other = [op for op in step.ops if op.thread]
    assert len({op.thread for op in other}) == 2
    assert [step.name(op) for op in other].count("aten::cumsum") == 2


def test_a_main_thread_that_only_steps_the_optimizer_is_recorded(record):
    capture = record("""
        def forward_and_backward():
            model(torch.ones(3, 4)).sum().backward()
        for _ in range(3):
            t = threading.Thread(target=forward_and_backward)
            t.start(); t.join()
            opt.step(); opt.zero_grad()
    """)
    assert capture.steps == [0, 1, 2]
    for program in capture.programs[0].values():
        assert program.complete and len(names(program, "optimizer")) == 4  # a write per parameter
        assert {op.thread for op in program.ops if recorded.PHASES[op.phase] == "optimizer"} == {0}
        assert all(op.thread for op in program.ops if recorded.PHASES[op.phase] == "backward")
        assert not program.notices
    assert not notes(capture, "unseen_write") and not notes(capture, "thread")


def test_threads_that_train_beside_each_other_are_reported_once(record):
    capture = record("""
        nets = [Net(), Net()]
        meet = threading.Barrier(2)
        def train(net):
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(3):
                meet.wait()
                net(torch.ones(3, 4)).sum().backward(); opt.step(); opt.zero_grad()
        threads = [threading.Thread(target=train, args=(net,)) for net in nets]
        model(torch.ones(3, 4)).sum().backward(); opt.step(); opt.zero_grad()
        for _ in range(2):
            threads = [threading.Thread(target=train, args=(net,)) for net in nets]
            [t.start() for t in threads]; [t.join() for t in threads]
    """)
    assert all(program.complete for program in capture.programs[0].values())
    assert not notes(capture, "unseen_write")
    (said,) = [message for message in notes(capture, "thread") if "both step optimizers" in message]
    assert "MainThread and Thread-" in said


def test_a_thread_that_evaluates_beside_the_training_is_no_trainer(record):
    capture = record("""
        def evaluate():
            with torch.no_grad():
                model(torch.zeros(3, 4))
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward(); opt.step(); opt.zero_grad()
            t = threading.Thread(target=evaluate)
            t.start(); t.join()
        model.first.weight.data.numpy()[0, 0] = 5  # the decoy: writes that nobody saw are still found
        model(torch.ones(3, 4)).sum().backward(); opt.step(); opt.zero_grad()
    """)
    assert not notes(capture, "thread") and capture.steps == [0, 1, 2]
    assert any("first.weight" in message for message in notes(capture, "unseen_write"))


def test_threads_that_were_there_before_are_reported(record):
    capture = record("""
        go, done = threading.Event(), threading.Event()
        def work():
            go.wait(); torch.ones(3).cumsum(0); done.set()
        threading.Thread(target=work, name="early", daemon=True).start()
        model(torch.randn(3, 4)).sum().backward()
        go.set(); done.wait()
        opt.step()
    """)
    assert "aten::cumsum" not in names(capture.programs[0][0])
    assert any("early" in message for message in notes(capture, "thread"))


def test_failed_ops_are_noted_and_the_exception_arrives(record):
    capture = record("""
        y = model(torch.randn(3, 4))
        try:
            torch.mm(y, y)
        except RuntimeError:
            pass
        try:
            torch.zeros(2).add_(torch.zeros(3))
        except RuntimeError:
            pass
        y.sum().backward()
        opt.step()
    """)
    step = capture.programs[0][0]
    failed = [step.name(op) for op in step.ops if op.flags & recorded.FAILED]
    assert failed == ["aten::mm", "aten::add_.Tensor"]


def test_sparse_quantized_and_complex_tensors_do_no_harm(record):
    capture = record("""
        e = torch.nn.Embedding(5, 4, sparse=True)
        model(e(torch.tensor([1, 2]))).sum().backward()
        c = torch.complex(torch.ones(3), torch.arange(3.)) * (1 + 2j)
        q = torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8)
        b = torch.ones(2, 0, 3) + 1
        opt.step()
    """)
    step = capture.programs[0][0]
    assert step.complete
    [mul] = [op for op in find(step, "aten::mul.Tensor") if step.values[step.results(op)[0]].dtype == 12]
    assert step.tensor(step.results(mul)[0]).tolist() == [1 + 2j, -1 + 3j, -3 + 4j]


# ---- what bytes mean -------------------------------------------------------------------------------------------------


def test_unseen_writes_are_findings(record):
    capture = record("""
        shared = torch.zeros(6)
        view = shared.numpy()
        for n in range(3):
            h = model(torch.randn(3, 4)) + shared[:2]
            view[0] = n + 1.0                                  # between two uses in one step
            (h + shared[:2]).sum().backward()
            with torch.no_grad():
                opt.step(); opt.zero_grad()
            if n == 1:
                model.first.weight.data_ptr()
                import ctypes
                ctypes.memset(model.first.weight.data_ptr(), 0, 4)  # between two steps
    """)
    findings = notes(capture, "unseen_write")
    assert any("first.weight" in text for text in findings)
    last = capture.programs[0][2]
    unseen = [v for v in last.values if recorded.KINDS[v.source] == "unseen"]
    assert "first.weight" in {last.text(v.name) for v in unseen}
    assert {last.text(n.kind) for n in last.notices} == {"unseen_write"}
    row = next(i for i, v in enumerate(last.values) if last.text(v.name) == "first.weight" and v.source)
    assert last.tensor(row)[0, 0] == 0
    assert len([v for v in capture.programs[0][1].values if recorded.KINDS[v.source] == "unseen"]) >= 1


def test_a_clean_run_has_no_findings(record):
    capture = record("""
        x = torch.from_numpy(__import__("numpy").ones((3, 4), dtype="float32"))
        for n in range(3):
            loss = model(x).sum()
            loss.backward(); opt.step(); opt.zero_grad()
            loss.detach().numpy().sum()
    """)
    assert capture.table("coverage")["unseen_writes"] == 0


def test_undefined_bytes_have_no_digest_until_they_are_written(record):
    capture = record("""
        model(torch.randn(3, 4)).sum().backward()
        a = torch.empty(4, 6)
        b = a[1:3]
        c = b.clone()                # garbage
        a[:2] = 1.0
        d = a[:2].clone()            # defined
        e = a.clone()                # half
        a[2:, ::2] = 2.0
        a[2:, 1::2] = 3.0
        f = a.clone()                # whole
        opt.step()
    """)
    step = capture.programs[0][0]
    clones = [step.values[step.results(op)[0]] for op in find(step, "aten::clone")]
    undefined = [bool(v.flags & recorded.UNDEFINED) for v in clones]
    assert undefined == [True, False, True, False]
    assert [(v.logical.hi, v.logical.lo) == (0, 0) for v in clones] == undefined
    whole = step.tensor(step.results(find(step, "aten::clone")[3])[0])
    assert whole.tolist() == [[1.0] * 6] * 2 + [[2.0, 3.0] * 3] * 2


def test_random_draws_are_sources(record):
    capture = record(
        """
        y = model(torch.randn(3, 4))
        torch.nn.functional.dropout(y, 0.5).sum().backward()
        torch.multinomial(torch.ones(5), 3); torch.randperm(4)
        opt.step()
    """,
        level="sources",
    )
    step = capture.programs[0][0]
    random = [op for op in step.ops if op.flags & recorded.RANDOM]
    assert {step.name(op) for op in random} >= {"aten::bernoulli_.float", "aten::multinomial", "aten::randperm"}
    for op in random:
        [v] = step.results(op)
        assert recorded.KINDS[step.values[v].source] == "random" and step.has(v), step.name(op)


def test_decisions_are_marked_with_their_value(record):
    capture = record("""
        y = model(torch.randn(3, 4))
        if (y > 100).any():
            print("no")
        k = int(torch.tensor(7))
        y[y > 0].sum(); (y > 0).nonzero(); float(y.sum())
        opt.step()
    """)
    step = capture.programs[0][0]
    decided = {step.name(op) for op in step.ops if op.flags & recorded.DECISION}
    assert decided >= {"aten::_local_scalar_dense", "aten::nonzero", "aten::index.Tensor"}
    items = [s.number for s in step.scalars if step.text(s.name) == "item"]
    assert items[:2] == [0.0, 7.0] and len(items) == 3


def test_batches_parameters_buffers_and_states_are_named(record):
    capture = record("""
        class Other(Net):
            def __init__(self):
                super().__init__()
                self.register_buffer("scale", torch.tensor(2.0))
            def forward(self, x, mask=None, extra=()):
                return super().forward(x * mask + extra["bias"]) * self.scale
        model = Other()
        opt = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.ones(3, 4), mask=torch.ones(3, 4), extra={"bias": torch.ones(4)}).sum().backward()
            opt.step(); opt.zero_grad()
    """)
    step = capture.programs[0][1]
    sources = {step.text(v.name): v for v in step.values if v.source}
    assert set(sources) >= {"input:0", "input:mask", "input:extra.bias", "first.weight", "scale", "optimizer.exp_avg:first.weight"}
    assert sources["scale"].flags & recorded.STATE and sources["input:mask"].flags & recorded.INPUT
    assert sources["first.weight"].flags & recorded.PARAMETER
    assert {recorded.KINDS[capture.programs[0][0].values[0].source]} <= {"batch", "parameter"}


def test_tied_and_resized_and_swapped_storages(record):
    capture = record("""
        model.second.weight.data = torch.full((2, 6), 0.5)       # another storage under the same parameter
        for n in range(2):
            y = model(torch.randn(3, 4))
            buffer = torch.empty(0)
            buffer.resize_(8).fill_(3.0)
            s = buffer.untyped_storage(); s.resize_(0); s.resize_(32)
            buffer.copy_(torch.arange(8.))
            (y.sum() + buffer.sum()).backward()
            opt.step(); opt.zero_grad()
    """)
    for step in capture.programs[0].values():
        total = [op for op in find(step, "aten::sum")][-1]
        assert step.tensor(step.results(total)[0]) == 28.0
    assert capture.table("coverage")["unseen_writes"] == 0


# ---- levels, patterns, budget ----------------------------------------------------------------------------------------

LOOP = """
    for _ in range(4):
        model(torch.randn(64, 4)).sum().backward()
        opt.step(); opt.zero_grad()
"""


def kept(step):
    values = [step.values[v] for op in step.ops if not op.flags & recorded.VIEW for v in step.results(op)]
    return {("source" if v.source else "result") for v in values if v.flags & recorded.KEPT}


def test_levels_keep_what_they_say(record, tmp_path):
    sizes = []
    for level in ("stats", "sources", "layers", "ops"):
        out, err, _ = recorded.run(NET + textwrap.dedent(LOOP), tmp_path / level, level=level)
        capture = recorded.Recorded(tmp_path / level)
        step = capture.programs[0][1]
        assert step.level == ["stats", "sources", "layers", "ops"].index(level)
        assert kept(step) == {"stats": set(), "sources": {"source"}}.get(level, {"source", "result"})
        mm = find(step, "aten::addmm")[0]
        assert step.digest(step.results(mm)[0]) != (0, 0)
        assert step.values[step.results(mm)[0]].statistics != recorded.NONE
        sizes.append(os.path.getsize(tmp_path / level / "rank-00000.tar"))
    assert sizes == sorted(sizes) and sizes[0] < sizes[1] < sizes[3]


def test_patterns_choose_layers_and_ops(record, tmp_path):
    capture = record(LOOP, level="stats", keep="^second/aten::addmm$")
    step = capture.programs[0][0]
    assert {
        step.name(o) + step.layer(o)
        for o in step.ops
        for v in step.results(o)
        if step.values[v].flags & recorded.KEPT and not o.flags & recorded.VIEW and not step.name(o) == "lb::source"
    } == {"aten::addmmsecond", "aten::relu"}  # and what goes into it
    recorded.run(NET + textwrap.dedent(LOOP), tmp_path / "b.lb", level="ops", layers="^first$")
    step = recorded.Recorded(tmp_path / "b.lb").programs[0][0]
    assert {
        step.layer(o)
        for o in step.ops
        for v in step.results(o)
        if step.values[v].flags & recorded.KEPT and not step.values[v].source and not o.flags & recorded.VIEW
    } == {"first"}


def test_the_budget_is_not_exceeded(record, tmp_path):
    budget = 120_000
    capture = record(LOOP * 5, level="ops", budget=budget, quiet=False)
    assert os.path.getsize(tmp_path / "run.lb" / "rank-00000.tar") <= budget
    coverage = capture.table("coverage")
    said = "budget" in coverage["notes"] or "budget" in coverage.get("stopped", "")
    assert coverage["skipped_values"] > 0 or said or coverage["level"] != "ops", (capture.steps, coverage)
    assert len(capture.steps) >= 1


def test_taps_and_scalars_and_shards(tmp_path):
    code = (
        NET
        + """
import lastbit.torch
with lastbit.torch.capture(%r, level="layers") as cap:
    for n in (5, 6):
        with cap.step(n, shard="part-%%d" %% n):
            y = model(torch.ones(2, 4))
            lastbit.torch.tap("my.place", y * 2)
            y.sum().backward()
            opt.step()
            cap.scalar("mine", 1.25)
model(torch.ones(2, 4)).sum().backward()
"""
        % str(tmp_path / "run.lb")
    )
    recorded.run("import sys; sys.path.insert(0, %r)\n" % os.path.join(recorded.ROOT, "capture") + code)
    capture = recorded.Recorded(tmp_path / "run.lb")
    assert capture.steps == [5, 6]
    step = capture.programs[0][6]
    assert step.text(step.pointer.contents.shard) == "part-6"
    assert ("mine", 1.25) in [(step.text(s.name), s.number) for s in step.scalars]
    [tap] = [b for b in step.boundaries if step.text(step.scopes[b.scope].path) == "my.place"]
    assert step.tensor(tap.value).shape == (2, 2)


# ---- an older or newer torch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hidden",
    [
        "torch._C._current_autograd_node",
        "torch.autograd._get_sequence_nr",
        "torch._C._len_torch_dispatch_stack",
        "sys.modules['torch.optim.optimizer'].register_optimizer_step_pre_hook",
        "torch.nn.utils.clip_grad.clip_grad_norm_",
        "torch.UntypedStorage._weak_ref",
    ],
)
def test_private_entry_points_that_are_gone_degrade_into_coverage(hidden, tmp_path):
    code = """
        import os, sys, torch.optim.optimizer, torch.nn.utils.clip_grad
        %s = None
        os.environ.update(LASTBIT_OUT=%r, LASTBIT_LEVEL="ops")
        sys.path.append(%r)
        import lastbit.torch
        try:
            lastbit.torch.autostart()
        except RuntimeError as error:
            sys.exit(str(error))
    """ % (hidden, str(tmp_path / "run.lb"), os.path.join(recorded.ROOT, "capture"))
    out, err, code = recorded.run(textwrap.dedent(code) + NET + textwrap.dedent(LOOP), quiet=False, ok=False)
    if hidden.endswith("_weak_ref"):  # nothing stands in for it
        assert code == 1 and "_weak_ref" in err
        return
    assert code == 0, err
    capture = recorded.Recorded(tmp_path / "run.lb")
    assert capture.steps and all(q.complete for q in capture.programs[0].values())
    another = hidden.endswith(("_len_torch_dispatch_stack", "_get_sequence_nr"))  # there is another way
    assert bool(notes(capture, "degraded")) != another


# ---- sparse tensors ---------------------------------------------------------------------------------------------------

SPARSE = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(32, 8, sparse=True)
        self.out = torch.nn.Linear(8, 1)
    def forward(self, i):
        return self.out(self.table(i)).mean()
model = Net()
sparse, dense = torch.optim.SparseAdam([model.table.weight], 1e-2), torch.optim.SGD(model.out.parameters(), 1e-2)
for _ in range(3):
    model(torch.randint(0, 32, (4, 5))).backward()
    sparse.step(); dense.step(); sparse.zero_grad(); dense.zero_grad()
"""


def test_a_sparse_gradient_is_recorded_as_its_parts(record, lastbit, tmp_path):
    capture = record("", net=SPARSE, level="ops")
    assert capture.steps == [0, 1, 2]
    program = capture.programs[0][1]
    (made,) = find(program, "aten::_sparse_coo_tensor_with_dims_and_tensors")[:1]
    indices, values = program.results(made)
    assert made.flags & recorded.VIEW and [len(program.shape(v)) for v in (indices, values)] == [2, 2]
    group = next(g for g in program.groups if program.text(g.optimizer) == "SparseAdam")
    gradient = program.group_params[group.first_param].gradient
    assert gradient in {program.values[v].storage for op in program.ops for v in program.results(op)}
    added = [op for op in find(program, "aten::add_.Tensor") if op.flags & recorded.COMPOSITE]
    assert added, "what is added to the table is sparse"
    for op in added:  # nobody can compute it again: its dense result is a source
        assert all(program.values[v].flags & recorded.SOURCE and recorded.KINDS[program.values[v].source] == "opaque" for v in program.written(op))
    assert not notes(capture, "unseen_write")
    replayed = lastbit.json("replay", tmp_path / "run.lb", expect=0)
    assert replayed["verdict"] in ("identical", "opaque", "rounding") and replayed["ops"]["opaque"] > 0
    lastbit.run("bisect", tmp_path / "run.lb", expect=0)
    chained = lastbit.json("replay", tmp_path / "run.lb", "--mode", "chained", expect=0)
    assert chained["verdict"] != "diverged"


def test_an_op_on_a_sparse_tensor_is_opaque_and_says_why(record, lastbit, tmp_path):
    record(
        """
        with torch.no_grad():
            y = model(torch.randn(2, 4))
            y.to_sparse().sum(), y.to_sparse_csr().sum(), torch.cat([y.to_sparse(), y.to_sparse()])
    """,
        level="ops",
    )
    said = lastbit.run("replay", tmp_path / "run.lb", "--coverage", expect=0).stdout
    assert "its argument self is a sparse tensor, of which its parts were recorded" in said
    assert "diverged" not in said


# ---- complex numbers --------------------------------------------------------------------------------------------------


def test_a_rotary_embedding_of_complex_numbers_is_computed(record, lastbit, tmp_path):
    """As in Meta's Llama: its backward multiplies by a lazy view of conjugates, whose bytes are the frequencies' own."""
    capture = record(
        """
        frequencies = torch.polar(torch.ones(3, 2), torch.outer(torch.arange(3), torch.tensor([1.0, 0.1])))
        for _ in range(2):
            x = torch.view_as_complex(model.first(torch.randn(2, 3, 4))[..., :4].reshape(2, 3, 2, 2)) * frequencies
            model.second(torch.nn.functional.pad(torch.view_as_real(x).flatten(2), (0, 2))).sum().backward()
            opt.step(); opt.zero_grad()
        frequencies.conj().clone(), frequencies.conj().imag.clone()
    """,
        level="ops",
    )
    steps = list(capture.programs[0].values())
    lazy = [v.flags >> 7 & 3 for p in steps for v in p.values]
    assert {1, 2} <= set(lazy), "conjugates, and the opposites that their imaginary parts are"
    said = lastbit.json("replay", tmp_path / "run.lb", expect=0)
    assert said["verdict"] in ("identical", "rounding") and said["ops"]["opaque"] == 0
    for p in steps:  # what a clone of conjugates holds
        for op in find(p, "aten::clone"):
            view, copy = p.inputs(op)[0], p.results(op)[0]
            if p.values[view].flags >> 7 & 1:
                assert torch.equal(p.tensor(copy), p.tensor(view).conj().resolve_conj())


def test_a_write_through_conjugates_is_opaque(record, lastbit, tmp_path):
    record(
        """
        with torch.no_grad():
            z = torch.view_as_complex(model(torch.randn(2, 4)).clone())
            z.conj().mul_(2j), (z + 1), z.exp()
    """,
        level="ops",
    )
    said = lastbit.run("replay", tmp_path / "run.lb", "--coverage", expect=0).stdout
    assert "writes through a view that is conjugated" in said and "exp" in said and "diverged" not in said


# ---- why nothing was recorded ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program,options,why",
    [
        ("print(torch.ones(2).sum())", (), "torch was imported, but no module was called"),
        ("torch.nn.Tanh()(torch.ones(2))", (), "the modules that were called (Tanh) have no parameters"),
        (
            "for _ in range(3):\n    model(torch.ones(1, 4)).sum().backward(); opt.step()",
            ("--steps", "5-"),
            "steps 0 to 2 ran, but none that --steps 5- asks for",
        ),
        ("model(torch.ones(1, 4))", ("--step-at", "nowhere"), "nothing called nowhere was called after torch was imported"),
        ("model(torch.ones(1, 4))", ("--ranks", "7"), "steps ran, but in no rank that --ranks 7 asks for"),
        ("model(torch.ones(1, 4))", ("--ring", "2"), "step 0 ran, and nothing went wrong that the flight recorder writes at"),
    ],
)
def test_a_run_that_leaves_nothing_says_why(lastbit, tmp_path, program, options, why):
    (tmp_path / "train.py").write_text(NET + program)
    done = lastbit.run("record", "-o", tmp_path / "run.lb", *options, "--", sys.executable, tmp_path / "train.py", expect=0)
    assert f"lastbit: nothing was recorded: {why}" in done.stderr
