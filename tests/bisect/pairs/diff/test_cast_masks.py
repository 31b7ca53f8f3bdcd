"""What is cast to bools or whole numbers, and what is computed beside memory that nothing wrote, differs like anything else; run twice it
does not."""

import pytest

NAMES = ["triangle", "bytes", "places", "buckets", "steps", "unwritten", "around"]


@pytest.fixture(scope="module")
def masks(recorded_pairs):
    return recorded_pairs("cast_masks")


@pytest.mark.parametrize("trained", ["", "train-"])
@pytest.mark.parametrize("name", NAMES)
def test_another_number_behind_a_cast_is_no_rounding(lastbit, masks, name, trained):
    for pair in ("ab", "ba"):
        answer = lastbit.json("diff", *(masks / f"{trained}{name}-{side}.lb" for side in pair), expect=1)
        assert answer["verdict"] == "diverged" and answer["first"]["layer"].split(".")[0] == "1"


@pytest.mark.parametrize("trained", ["", "train-"])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_twice_is_the_same(lastbit, masks, name, trained):
    answer = lastbit.json("diff", masks / f"{trained}{name}-a.lb", masks / f"{trained}{name}-again.lb", expect=0)
    assert answer["verdict"] == "identical" and not answer["missing"]
