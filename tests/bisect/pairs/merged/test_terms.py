"""Terms of a sum that one process adds up itself: no rank has any part in it."""

import pytest

PROGRAM = "tests/programs/grouped_experts.py"


@pytest.fixture(scope="module")
def runs(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("grouped")
    for name, arguments in {"once": ("1",), "groups": ("2",), "early": ("2", "early")}.items():
        lastbit.record(folder / f"{name}.lb", PROGRAM, *arguments, expect=0)
    return folder


def test_an_op_that_is_given_terms_for_their_sum(lastbit, runs):
    for sides, second in ((("once", "early"), "second"), (("early", "once"), "first")):
        report = lastbit.json("diff", *(runs / f"{side}.lb" for side in sides), expect=1)
        first = report["first"]
        assert (first["layer"], first["op"], first["verdict"]) == ("0.post", "aten::tanh", "diverged")
        assert f"the {second} side runs this 2 times, each with one term of the sum" in first["why"]
        assert "rank takes" not in str(report)


def test_groups_that_are_added_up_are_the_same_function(lastbit, runs):
    assert lastbit.json("diff", runs / "once.lb", runs / "groups.lb", expect=0)["verdict"] == "rounding"
