"""Experts computed over tokens in another order, as Hugging Face's three ways to run them do: no difference where they are put back."""

import pytest

PROGRAM = "tests/programs/mixture_pair.py"
EXPERTS = [f"model.layers.{i}.mlp.experts" for i in (0, 1)]


@pytest.fixture
def runs(recordings):
    def run(experts, *options):
        return recordings("--experts", experts, "--dtype", "bfloat16", "--chosen", "4", *options, program=PROGRAM)

    return run


def explain(lastbit, a, b, expect):
    return lastbit.json("explain", "--seconds", "0.1", a, b, expect=expect)["findings"]


def test_grouped_and_batched_products_are_told_by_what_they_give(lastbit, runs):
    """On some processors both have the same bits in the end, and only rows inside the experts lie elsewhere, which explains itself; on
    others the products' order differs."""
    a, b = runs("grouped_mm"), runs("batched_mm")
    told = lastbit.json("diff", a, b)
    assert told["verdict"] in ("identical", "rounding", "reordered")
    inside = all("experts" in row["layer"] for row in told["layers"] if row["verdict"] != "identical")
    if told["verdict"] == "identical" or inside:
        assert explain(lastbit, a, b, 0) == []
    else:
        assert not [f for f in explain(lastbit, a, b, 1) if f["cause"] in ("unexplained", "routing")]


@pytest.mark.parametrize("how", ["grouped_mm", "batched_mm"])
def test_a_loop_over_experts_differs_by_its_finalise(lastbit, runs, how):
    a, b = runs(how), runs("eager")
    told = lastbit.json("diff", a, b)
    assert told["verdict"] in ("rounding", "reordered")
    findings = explain(lastbit, a, b, 1)
    own = [f for f in findings if f["cause"] not in ("input", "routing") and f["layer"] in EXPERTS]
    assert {f["layer"] for f in own} == set(EXPERTS) and not [f for f in own if f["cause"] == "unexplained"]
    # A router near a tie may choose another expert on one processor and not on the next; then that token's row is not the finalise's.
    flips = {f["layer"].replace("gate", "experts"): f["elements"] - f["matched"] for f in findings if f["cause"] == "routing"}
    assert EXPERTS[0] not in flips
    for f in own:
        assert f["elements"] == 128 * 64 and f["matched"] >= f["elements"] - 64 * flips.get(f["layer"], 0)
        if f["layer"] not in flips:
            assert (f["first"], f["schedule"]) in {("finalise:batched", "finalise:index_add"), ("finalise:index_add", "finalise:batched")}


def test_rows_that_are_not_put_back_are_a_fault(lastbit, runs):
    """The same rows, each one place on: every expert's result goes to the next token."""
    a, b = runs("grouped_mm"), runs("grouped_mm", "--change", "roll")
    told = lastbit.json("diff", a, b, expect=1)
    assert told["verdict"] == "diverged" and told["first"]["layer"].startswith(EXPERTS[0])
    own = [f for f in explain(lastbit, a, b, 1) if f["cause"] not in ("input", "routing") and f["op"] != "lb::source"]
    assert own and own[0]["layer"].startswith(EXPERTS[0]) and own[0]["cause"] != "input"
    a, b = runs("batched_mm"), runs("grouped_mm", "--change", "roll")
    told = lastbit.json("diff", a, b, expect=1)
    assert told["verdict"] == "diverged" and told["first"]["layer"].startswith(EXPERTS[0])
