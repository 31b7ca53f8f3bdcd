"""`explain --routing`: two real recordings of a mixture of experts, against torch on what was recorded of both."""

import os

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
import recorded as R  # noqa: E402
from explained_pairs import own, recorded_once  # noqa: E402

PROGRAM = "tests/programs/mixture_pair.py"
GATES = [f"model.layers.{i}.mlp.gate" for i in (0, 1)]


@pytest.fixture
def runs(recordings):
    return lambda *options: recordings(*options, program=PROGRAM)


def explained(lastbit, a, b, expect=1):
    answer = lastbit.json("explain", "--routing", "--seconds", "0.05", a, b, expect=expect)
    return answer["routing"], [f for f in answer["findings"] if f["cause"] == "routing"]


class Gate:
    """What a router read and gave: rows (T, D), weight (E, D), logits (T, E), ids (T, K)."""

    def __init__(self, capture, layer):
        program = R.Recorded(capture).programs[0][0]
        (row,) = (r for r in program.routings if program.text(program.scopes[r.scope].path) == layer)
        (product,) = (
            op for op in program.ops if program.name(op) == "aten::mm" and program.layer(op) == layer and op.phase == R.PHASES.index("forward")
        )
        operands = [program.tensor(a[1]) for a in program.op_args(product)]
        self.rows, self.weight = operands[0].double(), operands[1].t().double()
        self.logits, self.ids = program.tensor(program.results(product)[0]).double(), program.tensor(row.ids)


def flips_of(a, b):
    """{(token, lost, won): (margin, upstream)}: choices of `a` that `b` made otherwise, by a's logits, and by what a's weights
    make of b's hidden states."""
    moved = (b.rows @ a.weight.t() - a.logits).abs()
    found = {}
    for t, (mine, theirs) in enumerate(zip(a.ids.tolist(), b.ids.tolist())):
        lost = sorted(set(mine) - set(theirs), key=lambda e: -a.logits[t, e].item())
        won = sorted(set(theirs) - set(mine), key=lambda e: a.logits[t, e].item())
        for x, y in zip(lost, won):
            found[t, x, y] = ((a.logits[t, x] - a.logits[t, y]).item(), (moved[t, x] + moved[t, y]).item())
    return found


def check_flips(report, a, b):
    for layer in GATES:
        expected = flips_of(Gate(a, layer), Gate(b, layer))
        found = {(f["token"], f["lost"], f["won"]): f for f in report["flips"] if f["layer"] == layer}
        assert found.keys() == expected.keys(), layer
        for key, flip in found.items():
            margin, upstream = expected[key]
            assert flip["margin"] == pytest.approx(margin, rel=1e-5, abs=1e-9)
            assert flip["upstream"] == pytest.approx(upstream, rel=1e-3, abs=1e-6)
            assert flip["kind"] == ("near tie" if flip["margin"] <= flip["upstream"] + flip["rounding"] else "router difference")
        (row,) = (r for r in report["layers"] if r["layer"] == layer)
        assert row["flips"] == len(expected) == row["near_ties"] + row["router_differences"] and row["choices"] == 256


def recovered(report):
    (ending,) = report["endings"]
    return {m["mode"]: m.get("recovered", {}).get("output") for m in ending["modes"]}, {m["mode"]: m["output"] for m in ending["modes"]}


def test_another_router_is_told_from_near_ties_and_its_choices_recover_the_gap(lastbit, runs):
    a, b = runs(), runs("--change", "gate")
    (report,), findings = explained(lastbit, a, b)
    check_flips(report, a, b)
    (f,) = findings
    assert (f["layer"], f["schedule"]) == (GATES[1], "another router")
    flips = [x for x in report["flips"] if x["kind"] == "router difference"]
    assert len(flips) > 5 and all(x["upstream"] < 1e-4 for x in flips)
    assert f["elements"] - f["matched"] == len(report["flips"])
    part, gap = recovered(report)
    assert gap["recompute"] > 1e-3
    # with other weights for the same experts a part of the gap stays; with the weights too, nothing but roundings does
    assert 0.1 < part["ids"] < 0.999 < part["ids+weights"] and gap["ids+weights"] < 1e-5
    text = lastbit.run("explain", "--routing", "--seconds", "0.05", a, b, expect=1).stdout
    assert "the second side's ids" in text and "router difference" in text and "no swap" not in text


@pytest.mark.full
def test_choices_that_follow_from_upstream_are_no_other_router(lastbit, runs):
    a, b = runs(), runs("--change", "attention")
    (report,), findings = explained(lastbit, a, b)
    check_flips(report, a, b)
    assert {f["layer"] for f in findings} == set(GATES) and {f["schedule"] for f in findings} == {"upstream"}
    part, gap = recovered(report)
    assert 0 < gap["ids"] < gap["recompute"]  # the attention itself still differs
    assert part["ids"] == pytest.approx(1 - gap["ids"] / gap["recompute"], rel=1e-6) and part["ids"] < 0.9


def test_the_first_side_is_compared_with_the_second_sides_logits(lastbit, runs):
    """The gap without anything forced, from both recordings in torch: replay's own roundings are far below it."""
    a, b = runs(), runs("--change", "attention")
    (report,), _ = explained(lastbit, a, b)

    def logits(capture):
        program = R.Recorded(capture).programs[0][0]
        head = max(
            i
            for i, op in enumerate(program.ops)
            if program.layer(op) == "lm_head" and program.name(op) == "aten::mm" and op.phase == R.PHASES.index("forward")
        )
        return program.tensor(program.results(program.ops[head])[0]).double()

    mine, theirs = logits(a), logits(b)
    _, gap = recovered(report)
    assert gap["recompute"] == pytest.approx(((mine - theirs).norm() / theirs.norm()).item(), rel=1e-4)


@pytest.mark.full
def test_other_weights_for_the_same_experts_are_recovered_by_weights_alone(lastbit, runs):
    (report,), findings = explained(lastbit, runs(), runs("--change", "weights"))
    assert not findings and not report["flips"]
    part, gap = recovered(report)
    assert gap["recompute"] > 1e-4 and abs(part["ids"]) < 1e-3 and part["ids+weights"] > 0.99


def test_the_same_choices_leave_nothing_to_recover(lastbit, runs):
    (report,), findings = explained(lastbit, runs(), runs(), expect=0)
    assert not findings and not report["flips"] and all(row["flips"] == row["recomputed"] == 0 for row in report["layers"])
    part, gap = recovered(report)
    assert all(g < 1e-6 for g in gap.values())


def test_experts_in_a_loop_refuse_other_choices(lastbit, runs):
    """With other choices the loop would have run other ops: nothing is forced, and it is said where the chain ends."""
    a, b = runs("--experts", "eager"), runs("--experts", "eager", "--change", "gate")
    (report,), findings = explained(lastbit, a, b)
    check_flips(report, a, b)
    assert findings and "aten::nonzero" in report["undecided_at"]
    assert all(m["undecided"] for m in report["endings"][0]["modes"] if m["mode"].startswith("ids"))
    assert "the chain ended" in lastbit.run("explain", "--routing", "--seconds", "0.05", a, b, expect=1).stdout


def test_without_a_router_it_is_said(lastbit, tmp_path):
    lastbit.record(tmp_path / "dense.lb", "tests/programs/two_linears.py", options=("--level", "ops"), expect=0)
    answer = lastbit.json("explain", "--routing", tmp_path / "dense.lb", tmp_path / "dense.lb", expect=125)
    assert any("no routing of experts" in m for m in answer["missing"])


@pytest.mark.full
def test_a_mixture_in_bf16_and_f32(lastbit, runs):
    a, b = runs(), runs("--dtype", "bfloat16")
    (report,), findings = explained(lastbit, a, b)
    assert report["flips"] and findings
    part, gap = recovered(report)
    assert 0 < part["ids"] < 1 and gap["ids"] < gap["recompute"]


OWN = """
import sys, torch
torch.manual_seed(0)
how = sys.argv[1]
T, H, F, E, K = 64, 32, 48, 8, 2  # tokens, hidden, inner, experts, chosen
class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router = torch.nn.Parameter(torch.randn(H, E) * .02)
        # The first token's scores are sums of powers of two, exact in f32 in any order: 8 of expert 0, and of experts 1 and 2, in bf16, 4 + 2^-5
        # and 4 as whole sums, 4 and 4 + 2^-5 where the halves are rounded by themselves.
        self.register_buffer("first", torch.zeros(1, H).index_fill_(1, torch.tensor([0, 1, H // 2]), 64.))
        with torch.no_grad():
            self.router[[0, 1, H // 2]] = 0
            self.router[0, :3] = torch.tensor([2 ** -3, 2 ** -4, 2 ** -4])
            self.router[1, 1:3] = torch.tensor([2 ** -12, 3 * 2 ** -12])
            self.router[H // 2, 1:3] = torch.tensor([2 ** -12, -2 ** -11])
        self.up, self.down = torch.nn.Parameter(torch.randn(E, H, F) * .1), torch.nn.Parameter(torch.randn(E, F, H) * .1)
    def forward(self, x):
        x = torch.cat([self.first, x[1:]])
        if how != "whole":
            scores = x[:, :H // 2] @ self.router[:H // 2] + x[:, H // 2:] @ self.router[H // 2:]
        else:
            scores = x @ self.router
        weights, ids = torch.topk(torch.softmax(scores, -1), K, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e in range(E):
            token, slot = (ids == e).nonzero(as_tuple=True)
            y = torch.relu(x[token] @ self.up[e]) @ self.down[e - (how == "neighbour")]
            if how == "scaled": y = y * 1.01
            out.index_add_(0, token, y * weights[token, slot, None])
        return out
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.ffn = torch.nn.LayerNorm(H), Own()
    def forward(self, x): return x + self.ffn(self.norm(x))
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.head = torch.nn.Linear(H, H), torch.nn.ModuleList(Block() for _ in range(3)), torch.nn.Linear(H, 16)
    def forward(self, x):
        x = self.embed(x)
        for l in self.layers: x = l(x)
        return self.head(x)
m = Model().to(torch.bfloat16)
with torch.no_grad(): m(torch.randn(T, H).to(torch.bfloat16))
"""


@pytest.fixture(scope="module")
def own_mixtures(lastbit, tmp_path_factory):
    return recorded_once(lastbit, tmp_path_factory.mktemp("own"), OWN)


@pytest.mark.parametrize("turned", [False, True])
def test_what_follows_from_a_flip_in_a_mixture_written_by_hand(lastbit, own_mixtures, turned):
    """Two spellings of the router's product; where their roundings send a token to another expert, two experts take different numbers of rows, so
    that no side's ops can be run on the other's bits: they are the same ops, and that is proven instead."""
    sides = [own_mixtures(how) for how in ("whole", "split")]
    found = own(lastbit.json("explain", "--seconds", "0.05", *(sides[::-1] if turned else sides), expect=1))
    flips = {f["layer"] for f in found if f["cause"] == "routing" and f["op"] == "experts chosen"}
    follows = [f for f in found if f["cause"] == "routing" and f["op"] != "experts chosen"]
    assert flips == {f"layers.{i}.ffn" for i in range(3)}  # by the first token, on every processor
    assert {f["layer"] for f in follows} == flips and not [f for f in found if f["cause"] == "unexplained"]
    for f in follows:
        assert "aten::index_add_" in f["op"] and f["schedule"] == "different rows" and f["proof"] in ("bits", "exact")
        assert f["why"].startswith("the same ops on different rows") and 0 < f["matched"] <= f["elements"] == 64 * 32


@pytest.mark.parametrize("how", ["scaled", "neighbour"])
def test_a_fault_beside_a_flip_does_not_follow_from_it(lastbit, own_mixtures, how):
    """Experts whose results are scaled, or that take their neighbour's weights, are not the same ops."""
    found = own(lastbit.json("explain", "--seconds", "0.05", own_mixtures("whole"), own_mixtures(how), expect=1))
    assert not [f for f in found if f["schedule"] == "different rows"]
    assert [f for f in found if f["layer"] == "layers.0.ffn" and f["cause"] == "unexplained"]
