"""The same data in other shapes: a cache against the whole computed again, sequences packed and padded, whole numbers in two dtypes."""

import pytest

PROGRAM, PACKED = "tests/programs/given_rows.py", "tests/programs/packed_batch.py"


def both_ways(lastbit, recordings, first, second, program=PROGRAM):
    one, other = recordings(first, program=program), recordings(second, program=program)
    return lastbit.json("diff", one, other), lastbit.json("diff", other, one)


def test_what_a_cache_holds_may_be_computed_again(lastbit, recordings):
    assert [answer["verdict"] for answer in both_ways(lastbit, recordings, "cached", "recomputed")] == ["rounding"] * 2


def test_more_rows_hide_no_other_numbers(lastbit, recordings):
    for answer in both_ways(lastbit, recordings, "cached", "late"):
        assert (answer["verdict"], answer["first"]["phase"]) == ("diverged", "forward")


def test_what_an_earlier_step_kept_may_be_computed_again(lastbit, recordings):
    assert [answer["verdict"] for answer in both_ways(lastbit, recordings, "calls", "calls-recomputed")] == ["rounding"] * 2


@pytest.mark.parametrize("how,verdict", [("narrow", "identical"), ("reseeded", "diverged")])
def test_draws_are_the_numbers_whatever_their_width(lastbit, recordings, how, verdict):
    assert [answer["verdict"] for answer in both_ways(lastbit, recordings, "cached", how)] == [verdict] * 2


def test_a_batch_may_be_packed_or_padded(lastbit, recordings):
    assert [answer["verdict"] for answer in both_ways(lastbit, recordings, "packed", "padded", PACKED)] == ["rounding"] * 2


@pytest.mark.parametrize("first,second", [("packed", "short"), ("padded", "leaking"), ("padded", "short")])
def test_other_data_in_another_shape_are_other_data(lastbit, recordings, first, second):
    for answer in both_ways(lastbit, recordings, first, second, PACKED):
        assert (answer["verdict"], answer["first"]["step"]) == ("diverged", 0)


@pytest.mark.parametrize("how,op", [("count", "aten::div.Tensor"), ("doubled", "aten::mul.Tensor")])
def test_a_factor_of_a_loss_that_nobody_reads_is_named_in_forward(lastbit, recordings, how, op):
    for answer in both_ways(lastbit, recordings, "packed", how, PACKED):
        first = answer["first"]
        assert (answer["verdict"], first["step"], first["phase"], first["op"]) == ("diverged", 0, "forward", op)


def test_heads_in_another_order_are_named_where_they_are_copied(lastbit, recordings):
    for answer in both_ways(lastbit, recordings, "packed", "turned", PACKED):
        first = answer["first"]
        assert (answer["verdict"], first["phase"], first["layer"], first["op"]) == ("diverged", "forward", "joined", "aten::clone")


TEACHER = "tests/programs/teacher_first.py"


def test_steps_that_end_elsewhere_are_not_compared(lastbit, recordings):
    for answer in both_ways(lastbit, recordings, "no-grad", "detached", TEACHER):
        assert answer["verdict"] == "missing" and "--step-at" in answer["missing"][0]


def test_steps_that_end_where_the_program_says_are(lastbit, tmp_path):
    for how in ("no-grad", "detached", "detached-other"):
        lastbit.record(tmp_path / how, TEACHER, how, options=("--level", "ops", "--step-at", "train_step"), expect=0)
    found = [lastbit.json("diff", tmp_path / "no-grad", tmp_path / how)["verdict"] for how in ("detached", "detached-other")]
    assert found == ["identical", "diverged"]
