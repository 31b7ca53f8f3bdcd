"""What bytes of a recording mean (unseen writes, undefined memory, draws, decisions, names), and which are kept."""

import os
import textwrap

import pytest
import recorded
from small_programs import LOOP, NET, find, notes, recorder

torch = pytest.importorskip("torch")


@pytest.fixture
def record(tmp_path):
    return recorder(tmp_path)


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
