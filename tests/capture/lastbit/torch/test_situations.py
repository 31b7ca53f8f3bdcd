"""Situations in which a recorder could miss or mistake where steps begin and where ops belong, each as a small program."""

import os
import sys
import textwrap

import pytest
import recorded
from small_programs import LOOP, NET, find, names, notes, recorder

torch = pytest.importorskip("torch")


@pytest.fixture
def record(tmp_path):
    return recorder(tmp_path)


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


# ---- results that share a storage -------------------------------------------------------------------------------------

PARTS = """
library = torch.library.Library("mine", "DEF")
library.define("parts(Tensor x) -> Tensor[]")
library.define("pair(Tensor x) -> (Tensor, Tensor)")
def parts(x):
    made = torch.cat([x.reshape(-1), x.reshape(-1) * 2, x.reshape(-1) * 3])
    same = made[%d:%d]
    return [made[:9], made[9:12], made[4:20:3], made.view(9, 4).t(), same, same, made]
library.impl("parts", parts, "CPU")
library.impl("pair", lambda x: parts(x)[:2], "CPU")
for _ in range(2):
    x = torch.randn(3, 4)
    y = model(x)
    a, b, c, *_, whole = torch.ops.mine.parts(x)
    d, e = torch.ops.mine.pair(x)
    a.mul_(3); e.add_(b)
    (y.sum() + a.sum() + c.sum() + whole.max() + d.sum() * e.sum()).backward()
    opt.step(); opt.zero_grad()
"""


@pytest.mark.parametrize("same", [(0, 9), (2, 7), (0, 36)])
@pytest.mark.parametrize("level", ["stats", "ops"])
def test_results_of_one_op_may_lie_in_one_storage(record, lastbit, tmp_path, level, same):
    """As the gradients of cuDNN's recurrent layers do: one killed the program that was recorded."""
    capture = record(PARTS % same, level=level)
    assert capture.steps == [0, 1]
    for program in capture.programs[0].values():
        assert program.complete
        assert [op.results for name in ("mine::parts", "mine::pair") for op in find(program, name)] == [7, 2]
    if level == "ops":
        verdicts = lastbit.json("replay", "--mode", "chained", tmp_path / "run.lb", expect=0)["verdicts"]
        assert verdicts["opaque"] == 2 * 2 and verdicts["missing"] == verdicts["diverged"] == 0 < verdicts["identical"]


# ---- why nothing was recorded ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program,options,why",
    [
        ("print(torch.ones(2).sum())", (), "modules were made, but none was called, and no backward ran"),
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
