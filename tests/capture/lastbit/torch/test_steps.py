"""Where steps begin and end: the automaton as its table, over generated sequences of events, and over real loops."""

import itertools
import os
import random
import re
import textwrap

import pytest
import recorded

torch = pytest.importorskip("torch")

import importlib.util  # noqa: E402

_spec = importlib.util.spec_from_file_location("lastbit_steps", os.path.join(recorded.ROOT, "capture", "lastbit", "torch", "steps.py"))
steps = importlib.util.module_from_spec(_spec)  # by itself: it needs nothing else
_spec.loader.exec_module(steps)


# ---- the table ---------------------------------------------------------------------------------------------------------


def documented():
    cells = {}
    for line in steps.__doc__.split("\n"):
        parts = re.split(r" {2,}", line.strip())
        if parts[0] in steps.EVENTS:
            row = [re.sub(r" \d$", "", part) for part in parts[-len(steps.STATES) :]]
            for state, cell in zip(steps.STATES, row):
                action, _, after = cell.rpartition(" ")
                cells[parts[0], state] = (action or steps.STAY, after)
    return cells


def test_the_table_that_people_read_is_the_one_that_runs():
    told = documented()
    assert set(told) == set(itertools.product(steps.EVENTS, steps.STATES))
    for (event, state), (action, after) in told.items():
        automaton = steps.Steps()
        automaton.state = state
        assert (automaton.see(event), automaton.state) == (action, after), (event, state)


def test_no_sequence_leaves_the_states_or_opens_twice():
    for sequence in itertools.product(steps.EVENTS, repeat=4):
        automaton, opened = steps.Steps(), False
        for event in sequence:
            action = automaton.see(event)
            assert (action == steps.BEGIN) <= (not opened) and (action == steps.CUT) <= opened, sequence
            opened = opened or action == steps.BEGIN
            assert opened == (automaton.state != steps.CLOSED) and automaton.state in steps.STATES


# What loops do in one iteration; ^ stands before the event at which its step has to begin.
def plain(r):
    return ["^forward", "backward", "update", "cleared"]


def accumulating(r):
    return ["^forward", "backward"] + ["forward", "backward"] * r.randint(1, 3) + ["update", "cleared"]


def several_forwards(r):
    return ["^forward"] + ["forward"] * r.randint(1, 3) + ["glance"] * r.randint(0, 2) + ["backward", "update", "schedule", "cleared"]


def guarded(r):
    return ["^forward", "backward", "cleared"]


def skipped_by_a_scaler(r):
    return ["^forward", "backward", "update", "schedule", "cleared"]


def scheduled_only(r):
    return ["^forward", "backward", "schedule"]


def sam(r):
    return ["^forward", "backward", "kept", "forward", "backward", "update", "cleared"]


def closure(r):
    return ["^forward", "backward"] + ["glance", "backward"] * r.randint(0, 3) + ["update"]


def two_optimizers(r):
    return ["^forward", "backward", "update", "update", "schedule", "schedule", "cleared", "cleared"]


def raised(r):
    return ["^forward"]  # and the loop goes on: nothing ran backward, so the next forward is of the same step


ITERATIONS = [plain, accumulating, several_forwards, guarded, skipped_by_a_scaler, scheduled_only, sam, closure, two_optimizers]


@pytest.mark.parametrize("seed", range(40))
def test_each_iteration_of_a_generated_loop_is_a_step(seed):
    r = random.Random(seed)
    automaton = steps.Steps()
    for n in range(30):
        events = r.choice(ITERATIONS)(r) + ["glance"] * r.choice([0, 0, 1, 5])  # evaluation, generation
        if n and r.random() < 0.1:
            events = ["^forward"] + [event.lstrip("^") for event in events]  # the first attempt raised
        for event in events:
            begins, event = event.startswith("^"), event.lstrip("^")
            action = automaton.see(event)
            assert action == ((steps.CUT if n else steps.BEGIN) if begins else steps.STAY), (n, events, event)


def test_gradients_zeroed_between_forward_and_backward_tell_skipped_iterations_from_accumulation():
    automaton = steps.Steps()
    actions, before = [], False
    for skipped in (False, True, True, False, True, False):
        actions.append(automaton.see("forward"))
        automaton.zeroed_late()
        if before:
            automaton.see("cleared")
        automaton.see("backward")
        before = skipped
        if not skipped:
            automaton.see("update")
    assert actions == ["begin"] + ["cut"] * 5
    for _ in range(3):  # it accumulates from now on
        assert automaton.see("forward") in ("cut", "stay")
        automaton.see("backward"), automaton.see("forward"), automaton.see("backward"), automaton.see("update")
    assert automaton.see("forward") == "cut"
    automaton.see("backward")
    assert automaton.see("forward") == "stay"


# ---- real loops --------------------------------------------------------------------------------------------------------

HEAD = """
import torch, math
torch.set_num_threads(1)
torch.manual_seed(0)
def net(n=4, m=2):
    return torch.nn.Sequential(torch.nn.Linear(n, 6), torch.nn.Tanh(), torch.nn.Linear(6, m))
model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
data = lambda: torch.randn(3, 4)
def loss_of(x): return model(x).square().mean()
class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kw):
        super().__init__(params, dict(rho=rho, **kw))
        self.base_optimizer = base(self.param_groups, **kw)
        self.param_groups = self.base_optimizer.param_groups
    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norm = torch.norm(torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]))
        for g in self.param_groups:
            for p in g["params"]:
                e = p.grad * (0.05 / (norm + 1e-12))
                p.add_(e)
                self.state[p]["e_w"] = e
        if zero_grad: self.zero_grad()
    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for g in self.param_groups:
            for p in g["params"]:
                p.sub_(self.state[p]["e_w"])
        self.base_optimizer.step()
        if zero_grad: self.zero_grad()
    @torch.no_grad()
    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()
"""

# name: (code, expected number of steps, outermost backwards of each)
LOOPS = {
    "plain": ("for _ in range(4): loss_of(data()).backward(); opt.step(); opt.zero_grad()", 4, 1),
    "gradients zeroed first": ("for _ in range(4): opt.zero_grad(); loss_of(data()).backward(); opt.step()", 4, 1),
    "gradients zeroed before backward": ("for _ in range(4): l = loss_of(data()); opt.zero_grad(); l.backward(); opt.step()", 4, 1),
    "two micro-batches": (
        """
        for _ in range(3):
            for _ in range(2): (loss_of(data()) / 2).backward()
            opt.step(); opt.zero_grad()""",
        3,
        2,
    ),
    "four micro-batches, zeroed in place": (
        """
        for _ in range(3):
            opt.zero_grad(set_to_none=False)
            for _ in range(4): (loss_of(data()) / 4).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            opt.step()""",
        3,
        4,
    ),
    "a scaler skips": (
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 120)
        for n in range(6):
            loss = loss_of(data()) * (1e30 if n % 2 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(opt); scaler.update(); opt.zero_grad()""",
        6,
        1,
    ),
    "a scaler skips, zeroed before backward": (
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 120)
        for n in range(6):
            loss = loss_of(data()) * (1e30 if n % 2 else 1.0)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            scaler.step(opt); scaler.update()""",
        6,
        1,
    ),
    "a guard returns early": (
        """
        def train(n):
            opt.zero_grad()
            loss_of(data()).backward()
            if n % 3: return
            opt.step()
        for n in range(7): train(n)""",
        7,
        1,
    ),
    "a guard, zeroed by hand": (
        """
        for n in range(7):
            loss_of(data()).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if n % 2:
                for p in model.parameters(): p.grad = None
                continue
            opt.step()
            for p in model.parameters(): p.grad = None""",
        7,
        1,
    ),
    "a guard, zeroed by hand in place": (
        """
        for n in range(7):
            loss_of(data()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            if n % 2 == 0: opt.step()
            for p in model.parameters(): p.grad.zero_()""",
        7,
        1,
    ),
    "a guard, zeroed before backward": (
        """
        for n in range(7):
            loss = loss_of(data())
            opt.zero_grad()
            loss.backward()
            if n % 3 == 0: opt.step()""",
        7,
        1,
    ),
    "clipped while accumulating": (
        """
        for _ in range(3):
            for _ in range(3):
                loss_of(data()).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            opt.step(); model.zero_grad()""",
        3,
        3,
    ),
    "LBFGS": (
        """
        opt = torch.optim.LBFGS(model.parameters(), max_iter=3)
        x = data()
        def closure():
            opt.zero_grad()
            loss = loss_of(x)
            loss.backward()
            return loss
        for _ in range(3): opt.step(closure)""",
        3,
        None,
    ),
    "a closure, zeroed in its middle": (
        """
        for _ in range(4):
            x = data()
            def closure():
                loss = loss_of(x); opt.zero_grad(); loss.backward(); return loss
            opt.step(closure)""",
        4,
        1,
    ),
    "SAM by a closure": (
        """
        opt = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        for _ in range(3):
            x = data()
            def closure():
                loss = loss_of(x); loss.backward(); return loss
            closure()
            opt.step(closure); opt.zero_grad()""",
        3,
        2,
    ),
    "SAM in two halves": (
        """
        opt = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        for _ in range(3):
            x = data()
            loss_of(x).backward(); opt.first_step(zero_grad=True)
            loss_of(x).backward(); opt.second_step(zero_grad=True)""",
        3,
        2,
    ),
    "a GAN: each network's update is a step": (
        """
        G, D = net(3, 4), net(4, 1)
        g, d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
        for _ in range(3):
            D.zero_grad()
            D(data()).mean().backward()
            fake = G(torch.randn(3, 3))
            D(fake.detach()).mean().neg().backward()
            d.step()
            G.zero_grad()
            D(fake).mean().backward()
            g.step()""",
        6,
        None,
    ),
    "two models and two optimizers, one loss": (
        """
        other = net()
        second = torch.optim.AdamW(other.parameters())
        for _ in range(3):
            x = data()
            (model(x) - other(x)).square().sum().backward()
            opt.step(); second.step(); opt.zero_grad(); second.zero_grad()""",
        3,
        1,
    ),
    "evaluation and generation between": (
        """
        for n in range(3):
            model.train(); loss_of(data()).backward(); opt.step(); opt.zero_grad()
            model.eval()
            with torch.no_grad():
                for _ in range(n): loss_of(data()).item()
            with torch.inference_mode():
                x = data()
                for _ in range(4): x = model(x).repeat(1, 2)""",
        3,
        1,
    ),
    "contrastive": ("for _ in range(3): (model(data()) * model(data())).sum().backward(); opt.step(); opt.zero_grad()", 3, 1),
    "policy and reference": (
        """
        reference = net()
        for _ in range(3):
            x = data()
            with torch.no_grad(): model(x); r = reference(x)
            (model(x).log_softmax(-1) - r.log_softmax(-1)).exp().mean().backward()
            opt.step(); opt.zero_grad()""",
        3,
        1,
    ),
    "schedulers": (
        """
        one = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: 0.9 ** n)
        two = torch.optim.lr_scheduler.SequentialLR(opt, [torch.optim.lr_scheduler.ConstantLR(opt), torch.optim.lr_scheduler.CosineAnnealingLR(opt, 9)], [2])
        for _ in range(4): loss_of(data()).backward(); opt.step(); one.step(); two.step(); opt.zero_grad()""",
        4,
        1,
    ),
    "a scheduler's step ends what nothing else does": (
        """
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)
        for n in range(4):
            loss = loss_of(data()); loss.backward(); plateau.step(loss.item())""",
        4,
        1,
    ),
    "an optimizer that raises": (
        """
        class Flaky(torch.optim.SGD):
            def step(self, closure=None):
                self.calls = getattr(self, "calls", 0) + 1
                if self.calls % 2 == 0: raise FloatingPointError("no")
                return super().step(closure)
        opt = Flaky(model.parameters(), lr=0.1)
        for n in range(5):
            opt.zero_grad()
            loss_of(data()).backward()
            try: opt.step()
            except FloatingPointError: pass""",
        5,
        1,
    ),
    "a forward that raises": (
        """
        for n in range(4):
            opt.zero_grad()
            try: model(torch.randn(3, 5))
            except RuntimeError: pass
            loss_of(data()).backward(); opt.step()""",
        4,
        1,
    ),
    "recomputed in backward": (
        """
        from torch.utils.checkpoint import checkpoint
        for _ in range(3):
            for _ in range(2): checkpoint(model, data(), use_reentrant=False).sum().backward()
            opt.step(); opt.zero_grad()""",
        3,
        2,
    ),
    "written by hand": (
        """
        del opt
        for _ in range(4):
            loss_of(data()).backward()
            with torch.no_grad():
                for p in model.parameters(): p -= 0.1 * p.grad; p.grad = None""",
        4,
        1,
    ),
    "autograd.grad, written by hand": (
        """
        del opt
        for _ in range(4):
            gradients = torch.autograd.grad(loss_of(data()), list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), gradients): p.sub_(0.1 * g)""",
        4,
        None,
    ),
    "a forward inside an autograd.Function": (
        """
        class Adjoint(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, steps, *parameters):
                ctx.steps = steps
                for _ in range(steps): x = x + 0.1 * field(x)
                ctx.save_for_backward(x)
                return x
            @staticmethod
            def backward(ctx, a):
                x, = ctx.saved_tensors
                sums = [torch.zeros_like(p) for p in field.parameters()]
                for _ in range(ctx.steps):
                    with torch.enable_grad():
                        x = x.detach().requires_grad_()
                        f = field(x)
                        moved, *of = torch.autograd.grad(f, (x, *field.parameters()), a)
                    a, x = a + 0.1 * moved, x - 0.1 * f
                    sums = [s + 0.1 * g for s, g in zip(sums, of)]
                return a, None, *sums
        field = net(4, 4)
        opt = torch.optim.SGD(field.parameters(), lr=0.05)
        for _ in range(4):
            loss = Adjoint.apply(data(), 3, *field.parameters()).square().mean()
            opt.zero_grad(); loss.backward(); opt.step()
            with torch.no_grad(): Adjoint.apply(data(), 3, *field.parameters())""",
        4,
        1,
    ),
    "reentrant checkpoints": (
        """
        from torch.utils.checkpoint import checkpoint
        for n in range(6):
            x = data().requires_grad_()
            checkpoint(model, x, use_reentrant=True).square().mean().backward()
            if n % 3: opt.step()
            opt.zero_grad()""",
        6,
        1,
    ),
    "gradient penalty": (
        """
        for _ in range(3):
            x = data().requires_grad_()
            y = model(x).sum()
            g, = torch.autograd.grad(y, x, create_graph=True)
            (y + g.square().sum()).backward(); opt.step(); opt.zero_grad()""",
        3,
        1,
    ),
}
WITHOUT_OPTIMIZER = ("written by hand", "autograd.grad, written by hand")


@pytest.fixture
def record(tmp_path):
    def run(code, head=HEAD, **settings):
        recorded.run(head + textwrap.dedent(code), tmp_path / "run.lb", **settings)
        return recorded.Recorded(tmp_path / "run.lb")

    return run


@pytest.mark.parametrize("loop", LOOPS)
def test_each_iteration_of_a_real_loop_is_a_step(loop, record):
    code, count, backwards = LOOPS[loop]
    head = HEAD.replace("opt = torch.optim.SGD(", "opt = tuple(", 1).replace("lr=0.05)", ")", 1) if loop in WITHOUT_OPTIMIZER else HEAD
    head = head.replace("tuple(model.parameters(), )", "0")
    capture = record(code, head, level="stats")
    assert capture.steps == list(range(count))
    for program in capture.programs[0].values():
        assert program.complete and any(recorded.PHASES[op.phase] == "backward" for op in program.ops)
        if backwards is not None:
            assert [program.text(s.name) for s in program.scalars].count("loss") == backwards
    coverage = capture.table("coverage")
    assert coverage["unseen_writes"] == 0 and "skipped" not in coverage["notes"]


WRITES = {
    "in place": "p -= 0.1 * p.grad",
    "through data": "p.data.add_(p.grad, alpha=-0.1)",
    "as new data": "p.data = p.data - 0.1 * p.grad",
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("zeroed", ["before forward", "before backward", "after"])
def test_a_loop_without_an_optimizer_has_a_step_for_each_update(write, zeroed, record):
    """Wherever it zeroes gradients: by a module's zero_grad, which before the first backward finds none."""
    code = f"""
    for _ in range(4):
        if {zeroed == "before forward"}: model.zero_grad()
        loss = loss_of(data())
        if {zeroed == "before backward"}: model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters(): {WRITES[write]}
        if {zeroed == "after"}: model.zero_grad()
    """
    capture = record(code, HEAD.replace("opt = torch.optim.SGD(model.parameters(), lr=0.05)", ""), level="stats")
    assert capture.steps == list(range(4))
    for program in capture.programs[0].values():
        assert [program.text(s.name) for s in program.scalars].count("loss") == 1


def test_a_weight_that_modules_compute_is_read_without_a_step(record):
    """Initialisation, logging and weight decay by hand read the weight of a parametrized layer: modules run, but no step."""
    capture = record(
        """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3, padding=1))
                self.bound = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
                self.head = nn.Linear(4, 2)
                self.conv.weight.sum(), self.bound.weight.sum()

            def forward(self, x):
                return self.head(self.bound(self.conv(x).mean(-1)))

        net = Net()
        net.conv.weight.norm()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            loss = net(torch.randn(2, 4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            net.conv.weight.norm().item()
    """,
        level="stats",
    )
    assert capture.steps == [0, 1, 2]
    assert all(len(program.ops) > 30 for program in capture.programs[0].values())


def test_thirty_skipped_iterations_are_thirty_steps(record):
    """A scaler that never finds a finite gradient: no optimizer ever steps."""
    capture = record(
        """
        opt = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 127, backoff_factor=0.99)
        for _ in range(30):
            with torch.autocast("cpu", dtype=torch.bfloat16): loss = loss_of(data())
            scaler.scale(loss * 1e6).backward(); scaler.step(opt); scaler.update(); opt.zero_grad()
    """,
        level="stats",
    )
    assert capture.steps == list(range(30))
    sizes = [len(program.ops) for program in capture.programs[0].values()]
    assert max(sizes) <= min(sizes) + 4


@pytest.mark.parametrize("name", ["Net", "train_step", "Trainer.training_step", "__main__.train_step", "Trainer.of_class", "body"])
def test_a_step_begins_where_the_program_says(name, record):
    """An iteration of a GAN as one step, which no rule of ours would find."""
    capture = record(
        """
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body = net(3, 4)
            def forward(self, x): return self.body(x)
        G, D = Net(), net(4, 1)
        g, d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
        def train_step():
            fake = G(torch.randn(3, 3))
            D.zero_grad()
            (D(data()).mean() - D(fake.detach()).mean()).backward(); d.step()
            G.zero_grad()
            D(fake).mean().backward(); g.step()
        class Trainer:
            def training_step(self): train_step()
            @classmethod
            def of_class(cls): cls().training_step()
        for _ in range(3): Trainer.of_class()
    """,
        level="stats",
        step_at=name,
    )
    assert capture.steps == [0, 1, 2]
    for program in capture.programs[0].values():
        assert [program.text(s.name) for s in program.scalars].count("loss") == 2
        assert {program.text(g.optimizer) for g in program.groups} == {"Adam"} and len(program.groups) == 2


def test_a_program_that_calls_no_module_has_a_step_from_update_to_update(record):
    capture = record("""
        w, b = torch.randn(4, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
        opt = torch.optim.AdamW([w, b])
        for _ in range(4):
            (data() @ w + b).square().sum().backward(); opt.step(); opt.zero_grad()
    """)
    assert len(capture.steps) >= 3 and "aten::mm" in [capture.programs[0][1].name(op) for op in capture.programs[0][1].ops]
    named = {capture.programs[0][1].text(v.name) for v in capture.programs[0][1].values if v.source}
    assert named >= {"w", "b", "optimizer.exp_avg:w"}


WINDOW = """
import copy, pickle
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()
    def forward(self, x, scale=None): return self.body(x) * scale
model = Net()
opt = torch.optim.AdamW(model.parameters())
for n in range(12):
    torch.manual_seed(n)
    model(data(), scale=torch.full((1,), 2.0)).square().mean().backward()
    if n % 4: opt.step()
    opt.zero_grad()
    with torch.no_grad(): model(data(), scale=torch.ones(1))
    assert type(pickle.loads(pickle.dumps(copy.deepcopy(model)))) is Net and not model._forward_pre_hooks
"""


@pytest.mark.parametrize("window", ["9-", "2,6-7,10", "0"])
def test_a_window_has_the_steps_that_the_whole_run_has(window, tmp_path):
    """Between windows no module has a hook and no mode is there: steps are counted all the same."""
    captures = []
    for name, steps_wanted in (("whole", ""), ("window", window)):
        recorded.run(HEAD + WINDOW, tmp_path / name, level="stats", steps=steps_wanted)
        captures.append(recorded.Recorded(tmp_path / name))
    whole, part = captures
    assert whole.steps == list(range(12)) and len(part.steps) >= 1
    for step in part.steps:
        a, b = whole.programs[0][step], part.programs[0][step]
        losses = [[s.number for s in p.scalars if p.text(s.name) == "loss"] for p in (a, b)]
        assert losses[0] == losses[1] and len(losses[0]) == 1
        ops = [[p.name(op) for op in p.ops if p.name(op) != "lb::source" and not p.name(op).startswith("aten::fu")] for p in (a, b)]
        assert ops[0] == ops[1] or step == part.steps[-1]  # the mode goes with the last one
        assert {"input:0", "input:scale"} <= {b.text(v.name) for v in b.values}
