"""What no name and no partner says: tensors that Python keeps from step to step, masks that hide behind a decision, a mean beside a weight."""

import pytest

CACHE, EXPERTS, LEFT = "tests/programs/carried_cache.py", "tests/programs/capacity.py", "tests/programs/left_state.py"


def both_ways(lastbit, recordings, program, how):
    good, bad = recordings("again", program=program), recordings(how, program=program)
    return lastbit.json("diff", good, bad), lastbit.json("diff", bad, good)


@pytest.mark.parametrize("program", [CACHE, EXPERTS])
def test_other_ops_are_rounding(lastbit, recordings, program):
    assert [answer["verdict"] for answer in both_ways(lastbit, recordings, program, "twin")] == ["rounding"] * 2


@pytest.mark.parametrize("how,op", [("scaled", "aten::mul.Tensor"), ("turned", "aten::flip")])
def test_a_kept_value_is_judged_where_it_is_made(lastbit, recordings, how, op):
    for answer in both_ways(lastbit, recordings, CACHE, how):
        first = answer["first"]
        assert (answer["verdict"], first["step"], first["layer"], first["op"]) == ("diverged", 1, "layers.0", op)


def test_a_kept_value_of_another_step_is_not_called_rounding(lastbit, recordings):
    answers = both_ways(lastbit, recordings, CACHE, "older")
    assert [answer["first"]["step"] for answer in answers] == [3, 3]
    assert answers[0]["verdict"] == "diverged" and answers[0]["first"]["op"] == "aten::cat"  # one side alone puts the last position beside itself
    assert answers[1]["verdict"] == "diverged"


@pytest.mark.parametrize("how,op", [("room", "aten::lt.Scalar"), ("threshold", "aten::gt.Scalar")])
def test_a_mask_that_a_decision_hides_is_the_place(lastbit, recordings, how, op):
    for answer in both_ways(lastbit, recordings, EXPERTS, how):
        first = answer["first"]
        assert (answer["verdict"], first["step"], first["phase"], first["layer"], first["op"]) == ("diverged", 0, "forward", "1", op)


def test_inputs_of_one_name_are_told_apart(lastbit, recordings):
    runs = [recordings(which, program="tests/programs/two_inputs.py") for which in ("one", "other")]
    assert lastbit.json("diff", *runs, expect=0)["verdict"] == "identical"


SEVERAL = "tests/programs/several_results.py"


def test_results_of_two_modules_meet_by_their_place_as_a_guess(lastbit, recordings):
    """The second module draws a number, so that both are not run by values alone, and gives out its result last, where the first one gives it first."""
    one, other, faulty = (recordings(which, program=SEVERAL) for which in ("one", "other", "faulty"))
    for pair in ((one, other), (other, one)):
        assert lastbit.json("diff", *pair)["verdict"] in ("missing", "rounding")
    for pair in ((one, faulty), (faulty, one)):
        assert lastbit.json("diff", *pair)["verdict"] in ("missing", "diverged")
    assert lastbit.json("diff", other, faulty, expect=1)["verdict"] == "diverged"  # one class: places tell


def verdicts(lastbit, recordings, first, second):
    runs = recordings(first, program=LEFT), recordings(second, program=LEFT)
    return [lastbit.json("diff", *pair)["verdict"] for pair in (runs, runs[::-1])]


def test_a_state_for_nothing_may_be_scaled(lastbit, recordings):
    assert verdicts(lastbit, recordings, "again", "stable") == ["rounding"] * 2


@pytest.mark.parametrize("first,second", [("again", "decaying"), ("kept", "kept-scaled"), ("stable", "decaying")])
def test_a_state_that_is_for_something_is_judged(lastbit, recordings, first, second):
    assert verdicts(lastbit, recordings, first, second) == ["diverged"] * 2
