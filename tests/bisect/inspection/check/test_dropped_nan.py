"""`check --only memory`: an op that gives a finite number in the place of NaN is named, where that goes on to what the step leaves."""

import pytest
from checked_programs import recorded

# name: the op, a part of the line, how many of the numbers, what follows from them.
DROPPED = {
    "scale_by_fmax": ("aten::fmax", "torch.fmax(largest, column)", "1 of the 6 numbers that it gives", "number 2 first", "the loss follows"),
    "sign_in_forward": ("aten::sign", "torch.sign(y)", "1 of the 48 numbers", "number 21 first", "the loss follows"),
    "narrow_gradient": ("aten::fmax", "torch.fmax(largest, column)", "of the 6 numbers that it gives", "", "the optimizer reads follows"),
    "signs": ("aten::sign", "torch.sign(p.grad)", "", "", "a parameter follows"),
    "clipped_by_fmin": (
        "aten::fmin",
        "torch.fmin(torch.ones(())",
        "1 of the 1 numbers",
        "number 0 first",
        "a gradient that the optimizer reads follows",
    ),
}
# NaN goes on, or a condition, a mask, an index that the program computed keeps it out, or the program says that it is to be left out.
HEALTHY = """scale_by_amax where_isnan where_positive filled written_over to_num summed_without other_rows smallest ignored_rows
distance scaler logged finite_fmax plain""".split()


@pytest.fixture(scope="module")
def steps(lastbit, tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("dropped"), "dropped_nan.py", [*DROPPED, *HEALTHY])


@pytest.mark.parametrize("name", DROPPED)
def test_an_op_that_drops_nan_is_named(lastbit, steps, name):
    op, text, *said = DROPPED[name]
    answer = lastbit.json("check", steps / f"{name}.lb", "--only", "memory", expect=1)
    row = answer["findings"][0]
    assert {row["kind"] for row in answer["findings"]} == {"dropped"} and row["op"] == op and text in row["source"]["text"], answer["findings"]
    assert all(part in row["message"] for part in said), row["message"]


@pytest.mark.parametrize("name", HEALTHY)
def test_nan_that_goes_on_or_is_kept_out_on_purpose_is_no_finding(lastbit, steps, name):
    answer = lastbit.json("check", steps / f"{name}.lb", "--only", "memory", expect=(0, 125))
    assert answer["findings"] == [], answer["findings"]
    assert all("no finite number that follows from NaN was given" in line for line in answer["proven"])


def test_where_nan_reaches_the_loss_nothing_is_called_clean(lastbit, steps):
    answer = lastbit.json("check", steps / "scale_by_amax.lb", "--only", "memory", expect=125)
    assert answer["proven"] and [row["why"] for row in answer["not_judged"]] == ["its loss is NaN: `lastbit bisect` says where that begins"]
    assert lastbit.json("check", steps / "where_isnan.lb", "--only", "memory", expect=0)["verdict"] == "clean"


def test_the_part_is_memory(lastbit, steps):
    answer = lastbit.json("check", steps / "scale_by_fmax.lb", "--only", "step", expect=125)
    assert answer["findings"] == []
