"""Programs of plain functions: no module with parameters is called, and yet there are steps, and names."""

import os
import subprocess
import sys
import textwrap

import pytest
import recorded
from small_programs import find

torch = pytest.importorskip("torch")

HEAD = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
def batch():
    x = torch.randn(6, 4)
    return x, x.sum(1, keepdim=True)
def weights(): return {"w1": torch.randn(4, 5) * 0.5, "b1": torch.zeros(5), "w2": torch.randn(5, 1)}
def net(p, x): return torch.tanh(x @ p["w1"] + p["b1"]) @ p["w2"]
def loss_of(p, x, y): return (net(p, x) - y).square().mean()
"""

# A program; how many steps it has; ops that each of them has (this many times); tensors that each names.
TRAINING = {
    "leaves, updated in place": (
        """
        p = {k: v.requires_grad_() for k, v in weights().items()}
        for _ in range(3):
            loss_of(p, *batch()).backward()
            with torch.no_grad():
                for w in p.values(): w -= 0.1 * w.grad; w.grad.zero_()
        """,
        {"aten::tanh": 1, "aten::tanh_backward": 1, "aten::sub_.Tensor": 3},
        {"p.w1", "p.b1", "p.w2"},
    ),
    "leaves of an object, updated by .data, their gradients let go": (
        """
        class Model:
            def __init__(self): self.p = {k: v.requires_grad_() for k, v in weights().items()}
            def __call__(self, x): return net(self.p, x)
        def train():
            model = Model()
            for _ in range(3):
                x, y = batch()
                torch.nn.MSELoss()(model(x), y).backward()
                for w in model.p.values(): w.data.add_(w.grad, alpha=-0.1); w.grad = None
        train()
        """,
        {"aten::tanh": 1, "aten::mse_loss": 1, "aten::mse_loss_backward": 1, "aten::add_.Tensor": 3},
        {"model.p.w1", "model.p.b1", "model.p.w2"},
    ),
    "new leaves each time, by autograd.grad": (
        """
        p = [v.requires_grad_() for v in weights().values()]
        for _ in range(3):
            loss = loss_of(dict(zip(("w1", "b1", "w2"), p)), *batch())
            loss_logged = (loss * 2).item()
            gradients = torch.autograd.grad(loss, p)
            p = [(w - 0.1 * g).detach().requires_grad_() for w, g in zip(p, gradients)]
        """,
        {"aten::tanh": 1, "aten::tanh_backward": 1, "aten::sub.Tensor": 4},
        {"p.0", "p.1", "p.2"},
    ),
    "an optimizer over leaves": (
        """
        def main():
            p = {k: v.requires_grad_() for k, v in weights().items()}
            opt = torch.optim.SGD(p.values(), lr=0.1)
            for _ in range(3):
                opt.zero_grad()
                loss_of(p, *batch()).backward()
                torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
                opt.step()
        main()
        """,
        {"aten::tanh": 1, "aten::tanh_backward": 1, "aten::clamp": None},
        {"p.w1", "p.b1", "p.w2"},
    ),
    "an optimizer, two micro-batches each": (
        """
        p = {k: v.requires_grad_() for k, v in weights().items()}
        opt = torch.optim.AdamW(list(p.values()))
        for _ in range(3):
            for _ in range(2): (loss_of(p, *batch()) / 2).backward()
            opt.step(); opt.zero_grad()
        """,
        {"aten::tanh": 2, "aten::tanh_backward": 2},
        {"p.w1", "p.b1", "p.w2"},
    ),
    "two micro-batches by hand": (
        """
        p = {k: v.requires_grad_() for k, v in weights().items()}
        for _ in range(3):
            for _ in range(2): (loss_of(p, *batch()) / 2).backward()
            with torch.no_grad():
                for w in p.values(): w -= 0.1 * w.grad; w.grad = None
        """,
        {"aten::tanh": 2, "aten::tanh_backward": 2, "aten::sub_.Tensor": 3},
        {"p.w1", "p.b1", "p.w2"},
    ),
    "LBFGS and its closure": (
        """
        p = {k: v.requires_grad_() for k, v in weights().items()}
        opt = torch.optim.LBFGS(p.values(), max_iter=2)
        for _ in range(3):
            x, y = batch()
            def closure():
                opt.zero_grad()
                loss = loss_of(p, x, y); loss.backward()
                return loss
            opt.step(closure)
        """,
        {"aten::tanh_backward": None},
        {"p.w1", "p.b1", "p.w2"},
    ),
    "torch.func.grad, a new tree each time": (
        """
        p = weights()
        for _ in range(3):
            gradients = torch.func.grad(loss_of)(p, *batch())
            p = {k: w - 0.1 * gradients[k] for k, w in p.items()}
        """,
        {"aten::tanh": 1, "aten::tanh_backward": 1},
        {"p.w1", "p.b1", "p.w2"},
    ),
    "vjp, and momentum by hand": (
        """
        def main():
            p, m = weights(), {k: torch.zeros_like(v) for k, v in weights().items()}
            for _ in range(3):
                x, y = batch()
                loss, back = torch.func.vjp(lambda p: loss_of(p, x, y), p)
                (g,) = back(torch.ones(()))
                m = {k: 0.9 * m[k] + g[k] for k in m}
                p = {k: p[k] - 0.1 * m[k] for k in p}
        main()
        """,
        {"aten::tanh": 1, "aten::tanh_backward": 1},
        {"p.w1", "m.w1"},
    ),
    "gradients of each row": (
        """
        p = weights()
        def of_row(p, x, y): return loss_of(p, x[None], y[None])
        for _ in range(3):
            rows = torch.func.vmap(torch.func.grad(of_row), (None, 0, 0))(p, *batch())
            p = {k: w - 0.1 * rows[k].mean(0) for k, w in p.items()}
        """,
        {"aten::tanh": 1, "aten::tanh_backward": 1},
        {"p.w1", "p.b1", "p.w2"},
    ),
    "an autograd.Function of its own": (
        """
        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, w): ctx.save_for_backward(w); return w * w
            @staticmethod
            def backward(ctx, g): return 2 * ctx.saved_tensors[0] * g
        w = torch.randn(5, requires_grad=True)
        for _ in range(3):
            Square.apply(w).exp().sum().backward()
            with torch.no_grad(): w.copy_(w - 0.01 * w.grad)
            w.grad = None
        """,
        {"aten::exp": 1},
        {"w"},
    ),
    "modules made and never called: from the second iteration on": (
        """
        model = torch.nn.Linear(4, 1)
        for _ in range(4):
            x, y = batch()
            (model.forward(x) - y).square().mean().backward()
            with torch.no_grad():
                for w in model.parameters(): w -= 0.1 * w.grad; w.grad = None
        """,
        {"aten::addmm": 1, "aten::sub_.Tensor": 2},
        {"Linear.weight", "Linear.bias"},
    ),
}


@pytest.fixture
def record(tmp_path):
    def run(code, **settings):
        recorded.run(HEAD + textwrap.dedent(code), tmp_path / "run.lb", **settings)
        return recorded.Recorded(tmp_path / "run.lb")

    return run


def count(program, name):
    return len(find(program, name))


def named_sources(program):
    return {program.text(v.name) for v in program.values if v.source}


@pytest.mark.parametrize("program", TRAINING)
def test_an_iteration_of_a_loop_over_functions_is_a_step(program, record):
    code, ops, names = TRAINING[program]
    capture = record(code)
    assert len(capture.steps) == 3 and capture.steps == [0, 1, 2]
    for step in capture.steps:
        steps = capture.programs[0][step]
        assert steps.complete
        for op, times in ops.items():
            assert count(steps, op) == times if times is not None else count(steps, op), (step, op)
        assert names <= named_sources(steps), (step, named_sources(steps))


INFERENCE = {
    "functions in no_grad": "p = weights()\nwith torch.no_grad():\n    for _ in range(3): print(net(p, batch()[0]).argmax().item())",
    "functions in grad mode": "p = weights()\nfor _ in range(3): print(net(p, batch()[0]).argmax().item())",
    "functions in inference mode": "p = weights()\nwith torch.inference_mode():\n    for _ in range(3): print(net(p, batch()[0]).argmax().item())",
    "functions of leaves without a backward": "p = {k: v.requires_grad_() for k, v in weights().items()}\nfor _ in range(3): net(p, batch()[0])",
    "modules without parameters": "p = weights()\nfor _ in range(3): torch.nn.Softmax(-1)(net(p, batch()[0]))",
    "a program that raises": "p = weights()\nfor _ in range(3): net(p, batch()[0])\nraise SystemExit(0)",
}


@pytest.mark.parametrize("program", INFERENCE)
def test_a_program_that_only_infers_is_one_step(program, record):
    capture = record(INFERENCE[program])
    assert capture.steps == [0]
    (step,) = capture.programs[0].values()
    assert step.complete and count(step, "aten::tanh") == 3
    assert len(find(step, "aten::argmax")) in (0, 3)


def test_one_forward_and_one_backward_are_a_step(record):
    capture = record("q = torch.randn(3, 4, requires_grad=True)\nq.exp().sum().backward()\nprint(q.grad.norm().item())")
    (step,) = capture.programs[0].values()
    assert count(step, "aten::exp") == 1 and "q" in named_sources(step) and count(step, "aten::linalg_vector_norm") == 1


def test_what_a_program_of_modules_did_before_is_no_step(record):
    """It computes, makes modules, and calls them: as if nothing had been computed before."""
    code = """
        data = torch.randn(64, 4).exp().sum(1)
        model = torch.nn.Linear(4, 1)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(batch()[0]).sum().backward(); opt.step(); opt.zero_grad()
    """
    capture = record(code)
    assert capture.steps == [0, 1] and len(capture.programs) == 1
    assert all(count(step, "aten::addmm") == 1 and not count(step, "aten::exp") for step in capture.programs[0].values())


def test_a_window_of_a_loop_over_functions_is_that_of_the_whole_run(record):
    code = TRAINING["leaves, updated in place"][0].replace("range(3)", "range(6)")
    capture = record(code, steps="2-3", level="sources")
    assert capture.steps == [2, 3]
    assert all(count(step, "aten::tanh") == 1 and count(step, "aten::sub_.Tensor") == 3 for step in capture.programs[0].values())


def test_a_program_of_functions_says_where_its_steps_begin(record):
    code = """
        p = weights()
        def answer(x): return net(p, x).argmax().item()
        for _ in range(4): answer(batch()[0])
    """
    capture = record(code, step_at="answer")
    assert capture.steps == [0, 1, 2, 3]
    assert all(count(step, "aten::tanh") == 1 for step in capture.programs[0].values())


def test_variables_live_no_longer_than_they_did(record):
    """Looking at a function's variables must not keep what they held."""
    record("""
        import gc, weakref
        p = {k: v.requires_grad_() for k, v in weights().items()}
        def train():
            gone = None
            for _ in range(3):
                assert gone is None or gone() is None
                x, y = batch()
                activation = net(p, x)
                gone = weakref.ref(activation)
                (activation - y).square().mean().backward()
                del activation, x, y
                for w in p.values(): w.data -= 0.1 * w.grad; w.grad = None
        train()
    """)


def test_variables_of_a_function_with_an_optimizer_live_no_longer_than_they_did(record):
    record("""
        import gc, weakref
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def train():
            for _ in range(3):
                out = model(torch.ones(2, 4))
                gone = weakref.ref(out)
                optimizer.zero_grad()
                out.square().mean().backward()
                optimizer.step()
                del out
                assert gone() is None
        train()
    """)


def test_workers_of_a_loader_and_of_a_pool_open_no_capture(record):
    capture = record("""
        import multiprocessing
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 12
            def __getitem__(self, n): return torch.full((4,), float(n)).exp().sqrt()
        def halved(n): return (torch.full((2,), float(n)) * 0.5).sum().item()
        p = {k: v.requires_grad_() for k, v in weights().items()}
        with multiprocessing.get_context("fork").Pool(2) as pool: pool.map(halved, range(4))
        for x in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2):
            net(p, x).square().mean().backward()
            with torch.no_grad():
                for w in p.values(): w -= 1e-3 * w.grad; w.grad = None
    """)
    assert capture.ranks == [0] and capture.steps == [0, 1, 2]


RANKS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
w = torch.randn(4, 3, requires_grad=True)
x = torch.randn(2, 4) + dist.get_rank()
for _ in range(2):
    (x @ w).square().sum().backward()
    dist.all_reduce(w.grad)
    with torch.no_grad(): w -= 0.01 * w.grad
    w.grad = None
"""


def test_each_rank_of_torchrun_records_its_functions(lastbit, tmp_path):
    (tmp_path / "train.py").write_text(RANKS)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    lastbit.run("record", "-o", tmp_path / "run.lb", "--", *torchrun, tmp_path / "train.py", expect=0)
    capture = recorded.Recorded(tmp_path / "run.lb")
    assert capture.ranks == [0, 1] and capture.steps == [0, 1]
    for programs in capture.programs.values():
        assert all("w" in named_sources(step) and count(step, "c10d::allreduce_") == 1 for step in programs.values())


NOTHING = {
    "modules whose forward is called past the hooks": (
        "import torch\nm = torch.nn.Linear(2, 2)\nwith torch.no_grad(): m.forward(torch.ones(1, 2))",
        "modules were made, but none was called, and no backward ran",
    ),
    "torch that computes nothing": ("import torch\ntorch.zeros(3)", "torch was imported, but nothing was computed with it"),
}


@pytest.mark.parametrize("program", NOTHING)
def test_a_program_that_leaves_nothing_is_told_what_to_do(program, lastbit, tmp_path):
    code, why = NOTHING[program]
    (tmp_path / "program.py").write_text(code + "\nraise SystemExit(7)")
    done = lastbit.run("record", "-o", tmp_path / "run.lb", "--", sys.executable, tmp_path / "program.py", expect=7)
    assert f"lastbit: nothing was recorded: {why}" in done.stderr and not (tmp_path / "run.lb").exists()


CAPTURED = """
import lastbit.torch
p = {k: v.requires_grad_() for k, v in weights().items()}
scaled = p["w1"].detach() * 2  # work before the first step
with lastbit.torch.capture("run.lb") as capture:
    twice = scaled.exp()
    for n in (5, 6):
        with capture.step(n):
            loss_of(p, *batch()).backward()
            with torch.no_grad():
                for w in p.values(): w -= 0.1 * w.grad; w.grad = None
"""


def test_steps_that_a_program_of_functions_says_itself_have_its_names(tmp_path):
    (tmp_path / "program.py").write_text(HEAD + f"import sys; sys.path.append({recorded.ROOT + '/capture'!r})" + CAPTURED)
    subprocess.run([sys.executable, "program.py"], cwd=tmp_path, check=True)
    capture = recorded.Recorded(tmp_path / "run.lb")
    assert capture.steps == [5, 6]
    for step in capture.programs[0].values():
        assert {"p.w1", "p.b1", "p.w2"} <= named_sources(step) and not count(step, "aten::exp")
        assert {recorded.PHASES[op.phase] for op in find(step, "aten::sub_.Tensor")} == {"optimizer"}


BESIDE_MODULES = """
import sys, torch, lastbit.torch
torch.set_num_threads(1)
net = torch.nn.Linear(3, 3)  # it is there, and nothing calls it
with torch.no_grad(), lastbit.torch.capture(sys.argv[1], level="ops") as capture:
    x = torch.randn(3, 3)
    %s
"""


def capture_beside_modules(tmp_path, work):
    program = tmp_path / "beside.py"
    program.write_text(BESIDE_MODULES % work)
    out = tmp_path / "beside.lb"
    environment = dict(os.environ, PYTHONPATH=os.path.join(recorded.ROOT, "capture"), OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, program, out], env=environment, capture_output=True, text=True, check=True)
    return out, done.stderr


def test_functions_that_infer_in_a_step_are_a_forward(lastbit, tmp_path):
    out, said = capture_beside_modules(tmp_path, "with capture.step(): torch.tanh(x @ x)")
    assert said == ""
    (step,) = lastbit.json("ls", out)["programs"]
    assert step["phases"]["forward"] >= 2 and step["phases"]["other"] == 0


def test_a_capture_without_a_step_says_so(tmp_path):
    out, said = capture_beside_modules(tmp_path, "torch.tanh(x @ x)")
    assert not out.exists() and "nothing was recorded" in said and "with capture.step()" in said
