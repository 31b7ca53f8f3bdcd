"""`lastbit check` of ranks that hold parts of one model: tensor and sequence parallelism, pipelines, copies of parts. Run together, their
gradients are the derivative of their losses, or it is said which are not."""

import pytest
from checked_programs import recorded

# name: ranks, and whether it is what backward gave that is right, or only what was made of it before it was read.
HEALTHY = {"tp": 2, "pp": 2, "dptp": 4, "tp_clipped": 2, "hsdp": 4, "dtensor": 2, "gpipe": 2}
# name: kind, layer, factor, what the message says, part of the line of code.
FAULTS = {
    "tp_clipped_alone": ("read", "", 0.98718, "each was clipped or scaled by a norm of its own", "p.grad.mul_("),
    "tp_partial": ("gradient", "blocks.0.down", None, "of which 2 ranks hold a part, is not the derivative", "self.down("),
    "tp_twice": ("scale", "blocks.1.down", 2, "from final.weight on they are right", "self.down("),
    "tp_half": ("scale", "blocks.1.down", 0.5, "from final.weight on they are right", "self.down("),
    "tp_detached": ("detached", "blocks.", 0, "has no gradient on any rank", "h.detach()"),
    "sp_unsummed": ("scale", "final", 0.5, "the gradient of final.weight, which all ranks hold", "self.final("),
    "sp_doubled": ("scale", "", 2, "all 6 parameters of which 2 ranks hold a part", ""),
    "pp_hooked": ("scale", "1", 0.25, "which is 1 / 4, the number of micro-batches", "x.register_hook(lambda g: g / GAS)"),
    "dptp_misled": ("read", "", None, "neither the mean over those ranks nor each its own", "p.grad /= 2"),
    "dptp_partial": ("gradient", "blocks.0.down", None, "from blocks.1.norm.weight on they are right", "self.down("),
}
LEAKING = ["tp_leaking", "dptp_leaking"]
UP = ["norm.weight", "norm.bias", "up.weight", "up.bias"]


@pytest.fixture(scope="module")
def steps(lastbit, tmp_path_factory):
    names = [*HEALTHY, "sp", "gpipe_crossing", *FAULTS, *LEAKING]
    return recorded(tmp_path_factory.mktemp("parts"), "ranks/checked_parts.py", names)


def answer_of(lastbit, steps, name, expect):
    return lastbit.json("check", steps / f"{name}.lb", "--only", "gradient,step", expect=expect)


@pytest.mark.parametrize("name", HEALTHY)
def test_ranks_that_hold_parts_have_no_finding(lastbit, steps, name):
    answer = answer_of(lastbit, steps, name, 0)
    proven = " ".join(answer["proven"])
    assert (answer["findings"], answer["not_judged"]) == ([], [])
    assert f"the gradients of {HEALTHY[name]} ranks are the derivative of the mean of their losses" in proven
    assert f"the optimizers of {HEALTHY[name]} ranks read" in proven and answer["replays"] <= 20


def test_gradients_that_are_added_up_by_hand_are_right_where_they_are_read(lastbit, steps):
    """With sequence parallelism backward leaves each rank's share of what all of them hold."""
    answer = answer_of(lastbit, steps, "sp", 0)
    assert (answer["findings"], answer["not_judged"]) == ([], [])
    assert "what the optimizers of 2 ranks read is the derivative of their losses" in " ".join(answer["proven"])


@pytest.mark.parametrize("name", FAULTS)
def test_a_gradient_that_is_no_derivative_is_named_once(lastbit, steps, name):
    kind, layer, factor, said, text = FAULTS[name]
    findings = answer_of(lastbit, steps, name, 1)["findings"]
    row = findings[0]
    assert {row["kind"] for row in findings} == {kind} and layer in row["layer"] and said in row["message"], findings
    assert row["factor"] == (None if factor is None else pytest.approx(factor, rel=1e-4)) and text in row["source"]["text"]
    named = {row["message"].split(" depend on ")[1].split()[0] for row in findings} if kind == "detached" else {""}
    assert len(findings) == len(named) and named in ({""}, {f"blocks.{n}.{part}" for n in (0, 1) for part in UP})


@pytest.mark.parametrize("name", ["tp", "sp", "dptp", "hsdp", "dtensor"])
def test_relations_hold_over_ranks_that_run_together(lastbit, steps, name):
    answer = lastbit.json("check", steps / f"{name}.lb", "--only", "relations", expect=0)
    proven = " ".join(answer["proven"])
    assert (answer["findings"], answer["not_judged"]) == ([], [])
    assert "no row of scores depends on a later token" in proven and "sequences of the batch do not meet" in proven


@pytest.mark.parametrize("name", LEAKING)
def test_a_leak_is_found_behind_collectives(lastbit, steps, name):
    (row,) = lastbit.json("check", steps / f"{name}.lb", "--only", "relations", expect=1)["findings"]
    assert row["kind"] == "future" and row["layer"] == "blocks.0" and "h.flip(1)" in row["source"]["text"], row


def test_without_all_ranks_a_loss_behind_collectives_is_not_judged(lastbit, steps, tmp_path):
    lastbit.run("pack", "-f", steps / "tp.lb", "-o", tmp_path / "one.lbz", "--ranks", "0", expect=0)
    answer = lastbit.json("check", tmp_path / "one.lbz", "--only", "relations", expect=125)
    assert [row["why"] for row in answer["not_judged"]] == ["its losses lie behind collectives"]


def test_messages_that_cross_the_ends_of_steps_are_not_judged(lastbit, steps):
    """A stage posts its first receive before its step begins: what it received then is no part of an exact run."""
    answer = answer_of(lastbit, steps, "gpipe_crossing", 125)
    assert answer["findings"] == [] and any("received in another step" in row["why"] for row in answer["not_judged"])
    told = [row["what"] for row in answer["not_judged"]]
    assert len(told) == len(set(told)), answer["not_judged"]  # one reason for a step
