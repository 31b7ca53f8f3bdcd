"""Kinds of code and of tensors that a recorder could miss or mistake: autograd, compiled functions, threads, sparse and complex tensors."""

import os
import textwrap

import pytest
import recorded
from small_programs import NET, find, names, notes, recorder

torch = pytest.importorskip("torch")


@pytest.fixture
def record(tmp_path):
    return recorder(tmp_path)


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


def test_gradients_that_another_thread_computes_are_not_read(record):
    """Autograd sets `p.grad` without the interpreter's lock: a recorder that reads it at that moment kills the program."""
    capture = record("""
        class Watched(torch.nn.Parameter):
            reads = 0
            @property
            def grad(self):
                Watched.reads += 1
                return torch.Tensor.grad.__get__(self)
            @grad.setter
            def grad(self, value):
                torch.Tensor.grad.__set__(self, value)
        other, inside, go = Net(), threading.Event(), threading.Event()
        other.second.weight = Watched(other.second.weight.detach())
        def train():
            opt = torch.optim.SGD(other.parameters(), lr=0.1)
            other(torch.ones(3, 4)).sum().backward(); opt.step(); opt.zero_grad()
            y = other(torch.ones(3, 4)).sum()
            y.register_hook(lambda grad: (inside.set(), go.wait()) and None)
            y.backward(); opt.step(); opt.zero_grad()
        model(torch.ones(3, 4)).sum().backward(); opt.step(); opt.zero_grad()
        t = threading.Thread(target=train)
        t.start()
        inside.wait()
        before = Watched.reads
        for _ in range(3):
            model(torch.ones(3, 4)).sum().backward(); opt.step(); opt.zero_grad()
        during = Watched.reads - before
        go.set(); t.join()
        assert before and Watched.reads > before + during, "it is read where it may be"
        assert during == 0, during
    """)
    assert all(program.complete for program in capture.programs[0].values()) and len(capture.steps) > 3
    assert len([message for message in notes(capture, "thread") if "gradients were not read" in message]) == 1


STORAGES = """
    import collections, time
    taken, lock, storage = collections.Counter(), threading.Lock(), torch.UntypedStorage
    take, free = storage._weak_ref, storage._free_weak_ref

    def took(of):
        reference = take(of)
        with lock:
            taken[reference] += 1
        time.sleep(0.05)  # the other thread goes on
        return reference

    def freed(reference):
        with lock:
            taken[reference] -= 1
        free(reference)

    storage._weak_ref, storage._free_weak_ref = took, staticmethod(freed)
    import lastbit.torch

    meeting, together = [None], threading.Barrier(2)

    def work(other):
        for n in range(4):
            if not other:
                with torch._C._DisableTorchDispatch():
                    meeting[0] = torch.ones(4)
            together.wait()
            meeting[0] + 1
            together.wait()

    with lastbit.torch.capture(%r, level="stats") as capture, capture.step(0):
        thread = threading.Thread(target=work, args=(True,))
        thread.start()
        work(False)
        thread.join()
    assert len(taken) > 8, taken
    assert not [reference for reference, n in taken.items() if n], taken
"""


def test_storage_that_two_threads_meet_at_once_has_one_reference(tmp_path):
    """What nobody gives back keeps the storage's address, and its object, to the end of the program."""
    package = "import sys, threading, torch\nsys.path.append(%r)\n" % os.path.join(recorded.ROOT, "capture")
    recorded.run(package + textwrap.dedent(STORAGES % str(tmp_path / "run.lb")))


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
    for op in added:  # its dense result is a source: not every op on a sparse tensor can be computed again
        assert all(program.values[v].flags & recorded.SOURCE and recorded.KINDS[program.values[v].source] == "opaque" for v in program.written(op))
    assert not notes(capture, "unseen_write")
    replayed = lastbit.json("replay", tmp_path / "run.lb", expect=0)
    assert replayed["verdict"] in ("identical", "rounding") and replayed["ops"]["opaque"] == 0
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
