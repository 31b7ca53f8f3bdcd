"""`lastbit check` of a step of several ranks: their gradients are the derivative of the mean of their losses, and optimizers read the mean."""

import pytest
from checked_programs import recorded

PARTS = ["fsdp", "fsdp_clip"]  # what is read is what is reduced
HEALTHY = {
    "ddp": "mean",
    "ddp_view": "mean",
    "ddp_view_clip": "mean",
    "ddp_clip": "mean",
    "ddp_no_sync": "mean",
    "mean": "mean",
    "sum": "sum",
    "mean_clip": "mean",
}
# name: what the message says, and part of the line of code.
FAULTS = {
    "lost": ("0.5 times its own gradient, without the other ranks'", "p.grad /= RANKS"),
    "late": ("something else than the mean over the ranks", "p.grad += late"),
    "twice_divided": ("0.5 times the mean over the ranks", "p.grad /= RANKS"),
}


@pytest.fixture(scope="module")
def steps(lastbit, tmp_path_factory):
    names = [*HEALTHY, *FAULTS, *PARTS, "ddp_custom_twice", "fsdp_custom_twice"]
    return recorded(tmp_path_factory.mktemp("ranks"), "ranks/checked_ranks.py", names)


@pytest.mark.parametrize("name", HEALTHY)
def test_copies_that_train_together_have_no_finding(lastbit, steps, name):
    answer = lastbit.json("check", steps / f"{name}.lb", "--only", "gradient,step", expect=0)
    assert (answer["findings"], answer["not_judged"]) == ([], [])
    proven = " ".join(answer["proven"])
    assert f"the optimizers of 2 ranks read the {HEALTHY[name]} of their gradients" in proven
    assert "are the derivative of the mean of their losses" in proven and answer["replays"] <= 20


@pytest.mark.parametrize("name", FAULTS)
def test_what_an_optimizer_read_instead_is_named(lastbit, steps, name):
    answer = lastbit.json("check", steps / f"{name}.lb", "--only", "step", expect=1)
    row = answer["findings"][0]
    said, text = FAULTS[name]
    assert row["kind"] == "read" and said in row["message"] and text in row["source"]["text"], answer


@pytest.mark.parametrize("name", ["ddp_custom_twice", "fsdp_custom_twice"])
def test_a_wrong_backward_is_placed_in_a_step_of_several_ranks(lastbit, steps, name):
    row = lastbit.json("check", steps / f"{name}.lb", "--only", "gradient", expect=1)["findings"][0]
    assert (row["kind"], row["factor"]) == ("scale", pytest.approx(2, rel=1e-4)) and "return g * 2" in row["source"]["text"]


def test_one_rank_of_several_is_not_judged_by_itself(lastbit, steps, tmp_path):
    lastbit.run("pack", "-f", steps / "ddp.lb", "-o", tmp_path / "one.lbz", "--ranks", "0", expect=0)
    answer = lastbit.json("check", tmp_path / "one.lbz", "--only", "gradient,step", expect=125)
    assert answer["findings"] == [] and "not all of them were recorded" in answer["not_judged"][0]["why"]


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_parameters_are_moved_by_themselves(lastbit, steps, name):
    answer = lastbit.json("check", steps / f"{name}.lb", "--only", "gradient,step", expect=0)
    assert (answer["findings"], answer["not_judged"]) == ([], [])
    assert "the gradients of 2 ranks are the derivative of the mean of their losses" in " ".join(answer["proven"])
