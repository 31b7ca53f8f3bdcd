"""Routing replay: what each mode recovers, and near ties told from other routers, against torch on the recorded values."""

import re

import pytest
import recorded as R  # noqa: E402
import torch
from swapped import replayed

MODES = ["plain", "recompute", "ids", "ids+weights", "ids+weights+slots"]
TIED = "tests/programs/tied_router.py"


@pytest.fixture(scope="module")
def captures(recordings):
    return lambda program, *options: recordings(*options, program=program)


@pytest.fixture(scope="module")
def qwen(captures):
    return captures("tests/programs/hf_train.py", "--model", "qwen3_moe", "--steps", "2", "--batch", "4", "--seq", "64")


def report(lastbit, capture, *options, expect):
    answer = lastbit.json("replay", capture, "--routing-report", "--worst", "1000", *options, expect=expect)
    return answer["routing"]


class Gate:
    """A recorded router that is one product: rows (T, D), weight (E, D), logits (T, E), ids (T, K)."""

    def __init__(self, program, layer):
        (row,) = (r for r in program.routings if program.text(program.scopes[r.scope].path) == layer)
        (product,) = (
            op for op in program.ops if program.name(op) == "aten::mm" and program.layer(op) == layer and op.phase == R.PHASES.index("forward")
        )
        operands = [program.tensor(a[1]) for a in program.op_args(product)]
        self.rows, self.weight = operands[0], operands[1].t()
        self.logits, self.ids = program.tensor(program.results(product)[0]), program.tensor(row.ids)


def flips_of(then, now, logits):
    """{(token, lost, won): margin}: the best of the lost with the worst of the won, by the recorded logits."""
    found = {}
    for t, (a, b) in enumerate(zip(then.tolist(), now.tolist())):
        lost = sorted(set(a) - set(b), key=lambda e: -logits[t, e].item())
        won = sorted(set(b) - set(a), key=lambda e: logits[t, e].item())
        for x, y in zip(lost, won):
            found[t, x, y] = (logits[t, x].double() - logits[t, y].double()).item()
    return found


def as_reported(routing, layer, step=0):
    return {(f["token"], f["lost"], f["won"]): f for f in routing["flips"] if f["layer"] == layer and f["step"] == step}


def test_a_router_with_other_weights_is_a_router_difference(lastbit, qwen):
    layer = "model.layers.1.mlp.gate"
    before, after = (Gate(R.Recorded(qwen).programs[0][step], layer) for step in (0, 1))
    assert not torch.equal(before.weight, after.weight)
    now = (before.rows @ after.weight.t()).softmax(-1).topk(before.ids.shape[1]).indices
    expected = flips_of(before.ids, now, before.logits)
    routing = report(lastbit, qwen, "--steps", "0", "--source", f"layer={layer}=step:1", expect=1)
    found = as_reported(routing, layer)
    assert len(expected) > 5 and found.keys() == expected.keys()
    for key, flip in found.items():
        assert flip["kind"] == "router difference", flip
        assert flip["margin"] == pytest.approx(expected[key], rel=1e-6, abs=1e-12)
        assert flip["upstream"] < 1e-6 < flip["margin"]
    (row,) = (r for r in routing["layers"] if r["layer"] == layer)
    assert (row["flips"], row["near_ties"], row["router_differences"], row["unjudged"]) == (len(found), 0, len(found), 0)
    assert row["tokens"] == 256 and row["choices"] == 512 and row["recomputed"] == len(found)
    (other,) = (r for r in routing["layers"] if r["layer"] == "model.layers.0.mlp.gate")
    assert other["flips"] == other["recomputed"] == 0
    gaps = {m["mode"]: m for m in routing["endings"][0]["modes"]}
    assert gaps["recompute"]["output"] > 1e-3 and gaps["ids+weights"]["recovered"]["output"] > 0.99
    assert 0.5 < gaps["ids"]["recovered"]["output"] < 0.999  # its weights are not yet the recorded ones


def test_flips_from_upstream_are_near_ties(lastbit, qwen):
    """Hidden states as attention in bf16 leaves them, through the recorded router in torch."""
    layer = "model.layers.1.mlp.gate"
    swap = ("--precision", "layer=model.layers.1.self_attn&phase=forward=bf16")
    gate = Gate(R.Recorded(qwen).programs[0][0], layer)
    routing = report(lastbit, qwen, "--steps", "0", *swap, expect=0)
    assert routing["flips"] and {f["kind"] for f in routing["flips"]} == {"near tie"}
    assert {f["layer"] for f in routing["flips"]} == {layer}
    found = as_reported(routing, layer)
    for (t, lost, won), f in found.items():
        assert f["margin"] == pytest.approx((gate.logits[t, lost] - gate.logits[t, won]).item(), rel=1e-5, abs=1e-12)
        assert 1e-6 < f["upstream"] and f["margin"] <= f["upstream"] + f["rounding"]
        assert f["rounding"] == pytest.approx(8 * 2.0**-24 * gate.logits[t].abs().max().item())


def test_what_upstream_moves_is_the_recorded_router_over_the_replayed_rows(lastbit, qwen, tmp_path):
    layer = "model.layers.1.mlp.gate"
    swap = ("--precision", "layer=model.layers.1.self_attn&phase=forward=bf16")
    program = R.Recorded(qwen).programs[0][0]
    gate = Gate(program, layer)
    flips = as_reported(report(lastbit, qwen, "--steps", "0", *swap, expect=0), layer)
    _, written = replayed(
        lastbit,
        qwen,
        tmp_path,
        "--mode",
        "chained",
        "--steps",
        "0",
        *swap,
        "--routing",
        "ids",
        "--select",
        "layer=model.layers.1.post_attention_layernorm&phase=forward",
    )
    rows = written.tensors[max(written.tensors)].flatten(0, -2)
    assert rows.shape == gate.rows.shape and not torch.equal(rows, gate.rows)
    moved = (rows.double() @ gate.weight.double().t() - gate.logits.double()).abs()
    for (t, lost, won), f in flips.items():
        assert f["upstream"] == pytest.approx((moved[t, lost] + moved[t, won]).item(), abs=2 * f["rounding"])


def test_a_planted_tie_is_a_near_tie_though_the_router_itself_adds_otherwise(lastbit, captures):
    capture = captures(TIED, "--tie")
    gate = Gate(R.Recorded(capture).programs[0][0], "moes.1.router")
    routing = report(lastbit, capture, "--order", "layer=moes.1.router=pairwise", expect=0)
    assert routing["flips"]
    for f in routing["flips"]:
        assert f["kind"] == "near tie" and {f["lost"], f["won"]} == {0, 1} and f["margin"] < 1e-6
        assert f["margin"] == (gate.logits[f["token"], f["lost"]] - gate.logits[f["token"], f["won"]]).item()
    modes = {m["mode"]: m for m in routing["endings"][0]["modes"]}
    assert modes["plain"]["output"] > 1e-3  # even another matrix product flips them, and 1e-7 becomes 1e-2
    assert modes["ids"]["recovered"]["output"] > 0.999 and modes["ids"]["output"] < 1e-6


def test_without_a_tie_the_same_order_changes_no_choice(lastbit, captures):
    routing = report(lastbit, captures(TIED), "--order", "layer=moes.1.router=pairwise", expect=0)
    assert routing["flips"] == [] and [row["flips"] for row in routing["layers"]] == [0, 0]
    assert all(m["output"] < 1e-6 for m in routing["endings"][0]["modes"])


def test_gaps_are_the_distances_of_what_replay_writes(lastbit, qwen, tmp_path):
    swap = ("--precision", "layer=model.layers.0&phase=forward=bf16")
    program = R.Recorded(qwen).programs[0][0]
    head = max(
        i
        for i, op in enumerate(program.ops)
        if program.layer(op) == "lm_head" and program.name(op) == "aten::mm" and op.phase == R.PHASES.index("forward")
    )
    then = program.tensor(program.results(program.ops[head])[0]).double()
    (ending,) = report(lastbit, qwen, "--steps", "0", *swap, expect=(0, 1))["endings"]
    assert [m["mode"] for m in ending["modes"]] == MODES and ending["output"] == ""
    base = None
    for mode in ending["modes"]:
        options = () if mode["mode"] == "plain" else (*swap, "--routing", mode["mode"])
        _, written = replayed(lastbit, qwen, tmp_path, "--mode", "chained", "--steps", "0", *options, "--select", f"index={head}")
        now = written.tensors[0, 0, head, 0].double()
        gap = ((now - then).norm() / then.norm()).item()
        assert mode["output"] == pytest.approx(gap, rel=1e-9), mode["mode"]
        base = gap if mode["mode"] == "recompute" else base
        if "recovered" in mode:
            assert mode["recovered"]["output"] == pytest.approx(1 - gap / base, rel=1e-6)


def test_a_program_that_depends_on_the_routing_ends_where_it_changes(lastbit, captures):
    """The sample's experts are a loop over the tokens of each: with other choices it would have run other ops."""
    capture = captures("samples/hybrid_lm.py")
    text = lastbit.run("replay", capture, "--routing-report", "--precision", "block=A&phase=forward=bf16", "--steps", "0", expect=0).stdout
    assert re.search(r"recompute +- +- +- +- +\(the chain ended\)", text) and 'aten::nonzero in "layers.1.moe"' in text
    assert re.search(r"^  ids +0\.0\d+ +- ", text, re.M) and "near tie" in text and "router difference" not in text


def test_routers_that_run_again_in_backward_are_forced_and_not_counted_twice(lastbit, captures):
    capture = captures("tests/programs/hf_architectures.py", "--model", "qwen3_moe", "--checkpointing", "--seq", "64", "--steps", "1")
    program = R.Recorded(capture).programs[0][0]
    assert len(program.routings) == 4
    routing = report(lastbit, capture, "--precision", "layer=model.layers.0.self_attn=e4m3fn", expect=0)
    assert [(r["layer"], r["call"]) for r in routing["layers"]] == [(f"model.layers.{i}.mlp.gate", 0) for i in (0, 1)]
    assert all(r["flips"] > 0 for r in routing["layers"])


def test_what_does_not_go_together_is_said(lastbit, qwen, captures):
    for options, word in ((("--routing", "ids"), "--routing out"), (("--mode", "layer"), "--mode out"), (("--table",), "--table")):
        refused = lastbit.run("replay", qwen, "--routing-report", *options, expect=129)
        assert word in refused.stderr
    dense = captures("tests/programs/two_linears.py")
    assert "no routing of experts" in lastbit.run("replay", dense, "--routing-report", expect=125).stderr
