"""`lastbit check` of bf16 parameters whose f32 masters a training loop keeps by hand, from its first step on: their updates are the
optimizer's rule, and what goes back to the parameters is their rounding."""

import pytest
from checked_programs import recorded

HEALTHY = ["early", "late", "late_sgd", "late_assigned", "early_assigned", "late_clipped", "early_normed", "early_third", "early_third_assigned"]
# name: the parameter, what is said of it, how many of the six, a piece of the line of code.
FAULTS = {
    "early_lost": ("0.weight", "does not get the numbers of its master", 1, "self.optimizer.step()"),
    "late_lost": ("0.weight", "does not get the numbers of its master", 1, "self.optimizer.step()"),
    "early_third_lost": ("0.weight", "nor was it its master, rounded, as the step began", 1, "self.optimizer.step()"),
    "early_third_lost_all": ("0.weight", "does not get the numbers of its master", 6, "self.optimizer.step()"),
    "late_stale": ("0.weight", "gets the numbers that its master had before the update", 6, "p.copy_(old)"),
    "early_exchanged": ("0.bias", "gets the numbers of the master of 2.bias", 2, "p.copy_(self.masters[4 - i])"),
    "early_third_exchanged": ("0.bias", "gets the numbers of the master of 2.bias", 2, "p.copy_(self.masters[4 - i])"),
    "late_halved": ("0.weight", "gets 0.5 times the numbers of its master", 1, "p.copy_(w * 0.5)"),
    "late_narrow": ("0.weight", "gets other numbers than those of its master", 1, "p.copy_(w.to(torch.float8_e4m3fn))"),
}
BEGIN = ["early_renewed", "early_third_renewed"]  # the copy stands before forward
ALONE = ["late_lost_all", "early_lost_all"]  # nothing goes back, in a step that shows nothing else


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("masters"), "kept_masters.py", [*HEALTHY, *FAULTS, *BEGIN, *ALONE])


def answer_of(lastbit, steps, name, expect):
    return lastbit.json("check", steps / f"{name}.lb", "--only", "gradient,step", expect=expect)


@pytest.mark.parametrize("name", HEALTHY)
def test_masters_kept_by_hand_are_proven(lastbit, steps, name):
    answer = answer_of(lastbit, steps, name, 0)
    assert (answer["findings"], answer["not_judged"]) == ([], [])
    proven = "; ".join(answer["proven"])
    assert "gradients of 6 parameters are the derivative" in proven
    assert f"moved 6 parameters as {'SGD' if 'sgd' in name else 'Adam'} does" in proven, proven
    assert "6 parameters are the rounding of their updated masters" in proven and "the optimizer read all 6 gradients as backward gave" in proven, (
        proven
    )


@pytest.mark.parametrize("name", BEGIN)
def test_parameters_that_are_written_before_forward_claim_nothing(lastbit, steps, name):
    answer = answer_of(lastbit, steps, name, 125)
    assert answer["findings"] == [] and any("moved 6 parameters as Adam does" in line for line in answer["proven"])


@pytest.mark.parametrize("name", FAULTS)
def test_a_copy_that_is_lost_or_wrong_is_named(lastbit, steps, name):
    parameter, said, n, line = FAULTS[name]
    (row,) = answer_of(lastbit, steps, name, 1)["findings"]
    assert row["kind"] == "update" and row["layer"] == parameter and said in row["message"], row
    assert f"({n} of 6 parameters with masters" in row["message"] and line in row["source"]["text"], row
    assert row["factor"] == (pytest.approx(0.5) if name == "late_halved" else None)


@pytest.mark.parametrize("name", ALONE)
def test_where_no_copy_is_seen_at_all_it_is_said(lastbit, steps, name):
    answer = answer_of(lastbit, steps, name, 125)
    assert answer["findings"] == []
    assert [row["why"] for row in answer["not_judged"]] == ["nothing writes the numbers of 6 masters back in this step"]
