"""What one side's model is given whole and the other's in pieces."""

import pytest

PROGRAM = "tests/programs/cut_input.py"


@pytest.fixture(scope="module")
def captures(lastbit, tmp_path_factory):
    made = {}

    def record(*how):
        if how not in made:
            made[how] = tmp_path_factory.mktemp("cut") / "run.lb"
            lastbit.record(made[how], PROGRAM, *how, options=("--level", "ops"), expect=0)
        return made[how]

    return record


@pytest.mark.parametrize("turned", [False, True])
def test_pieces_of_a_batch_meet_where_they_lie(lastbit, captures, turned):
    """A slice of a slice of a batch is read in runs; as many elements of the same name may be others, and sizes may add up by chance."""
    sides = [captures("train"), captures("train", "micro")]
    found = lastbit.json("diff", *(reversed(sides) if turned else sides), expect=0)
    assert found["verdict"] == "rounding"


@pytest.mark.parametrize("turned", [False, True])
def test_a_prompt_in_two_calls_is_no_other_function(lastbit, captures, turned):
    """Steps of one number are of other tokens: all steps of either side are one program, from token to token."""
    sides = [captures("decode"), captures("decode", "split")]
    found = lastbit.json("diff", *(reversed(sides) if turned else sides), expect=0)
    assert found["verdict"] in ("identical", "rounding") and found["implementations"] and not found["missing"]
