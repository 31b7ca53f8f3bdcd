"""Forward passes that meet by their data: evaluations of one side, micro-batches that run twice or in another order, and faults beside them."""

import pytest

PROGRAM = "tests/programs/micro_batches.py"
PLAIN = ("1,2,3",)


@pytest.fixture(scope="module")
def capture(lastbit, tmp_path_factory):
    """capture(ARGUMENTS): a run of the program with these."""
    folder, made = tmp_path_factory.mktemp("forwards"), {}

    def record(arguments):
        if arguments not in made:
            made[arguments] = folder / f"{len(made)}.lb"
            lastbit.record(made[arguments], PROGRAM, *arguments, expect=0)
        return made[arguments]

    return record


@pytest.fixture(scope="module")
def diff(lastbit, capture):
    """diff(FIRST, SECOND): of two runs of the program with these arguments."""
    return lambda a, b: lastbit.json("diff", capture(a), capture(b), expect=(0, 1))


@pytest.fixture(scope="module")
def explain(lastbit, capture):
    return lambda a, b: lastbit.json("explain", capture(a), capture(b), expect=(0, 1))


def own(report):
    """What differs for a reason of its own."""
    return [finding for finding in report["findings"] if finding["cause"] != "input"]


def notes(report, word):
    return [finding for finding in report["findings"] if word in finding]


@pytest.mark.parametrize("after", ["1", "3"])
def test_an_evaluation_of_one_side_is_told_and_changes_nothing(diff, after):
    report = diff(PLAIN, ("1,2,3", after))
    assert report["verdict"] == "identical" and not report["structure"]
    told = f"step 0: the second side runs an additional evaluation, after micro-batch {after}: 17 forward ops from layer embed on, without a backward"
    assert notes(report, "evaluation") == [told]
    assert notes(diff(("1,2,3", after), PLAIN), "evaluation") == [told.replace("second", "first")]


@pytest.mark.parametrize("after", ["1", pytest.param("3", marks=pytest.mark.full)])
@pytest.mark.parametrize("fault, layer, op", [("layer", "layers.1", "aten::mul.Tensor"), ("cap", "", "aten::div.Tensor")])
def test_an_evaluation_does_not_hide_where_the_sides_part(diff, after, fault, layer, op):
    report = diff(PLAIN, ("1,2,3", after, fault))
    assert report["verdict"] == "diverged"
    first = report["first"]
    assert (first["step"], first["phase"], first["layer"], first["op"]) == (0, "forward", layer, op)
    assert first == {**first, **{k: diff(PLAIN, ("1,2,3", "0", fault))["first"][k] for k in ("layer", "op", "index", "why")}}


def test_micro_batches_in_another_order_are_the_same_function(diff):
    report = diff(PLAIN, ("3,1,2",))
    assert report["verdict"] == "reordered" and notes(report, "order") == ["step 0: the second side runs the micro-batches in the order 3 1 2"]
    assert not notes(report, "number loss differs") and not notes(report, "other tokens")
    # The sum of two gradients is the same in either order, and so is all that follows.
    report = diff(PLAIN, ("2,1,3",))
    assert report["verdict"] == "identical" and notes(report, "order") == ["step 0: the second side runs the micro-batches in the order 2 1 3"]


@pytest.mark.parametrize("order", ["3,1,2", pytest.param("2,1,3", marks=pytest.mark.full)])
def test_the_place_of_a_fault_beside_another_order(diff, order):
    first = diff(PLAIN, (order, "0", "layer"))["first"]
    assert (first["step"], first["phase"], first["layer"], first["op"]) == (0, "forward", "layers.1", "aten::mul.Tensor")


def test_a_micro_batch_that_runs_twice(diff):
    report = diff(PLAIN, ("1,2,2,3",))
    assert report["verdict"] == "diverged"
    assert notes(report, "again") == ["step 0: micro-batch 2 of the first side is run again by the second side, as its number 3"]
    assert report["first"]["layer"] == "embed" and "the second side alone runs aten::embedding" in report["first"]["why"]
    first = diff(PLAIN, ("1,2,2,3", "0", "layer"))["first"]
    assert (first["layer"], first["op"]) == ("layers.1", "aten::mul.Tensor")


@pytest.mark.parametrize("after", ["1", "3"])
def test_explain_says_of_an_evaluation_what_diff_says(diff, explain, after):
    for pair in ((PLAIN, ("1,2,3", after)), (("1,2,3", after), PLAIN)):
        report = explain(*pair)
        assert not report["findings"] and not report["missing"]
        assert report["notes"] == notes(diff(*pair), "evaluation") and len(report["notes"]) == 1


def test_explain_finds_the_fault_beside_an_evaluation_as_without_one(explain):
    def places(second):
        return [(f["phase"], f["layer"], f["op"], f["other_op"], f["cause"], f["matched"], f["elements"]) for f in own(explain(PLAIN, second))]

    assert places(("1,2,3", "1", "layer")) == places(("1,2,3", "0", "layer")) != []


def test_explain_of_micro_batches_in_another_order(diff, explain):
    report = explain(PLAIN, ("3,1,2",))
    assert report["notes"] == notes(diff(PLAIN, ("3,1,2",)), "order")
    assert {(f["cause"], f["phase"]) for f in own(report)} == {("order", "backward")}
    report = explain(PLAIN, ("2,1,3",))
    assert report["notes"] == notes(diff(PLAIN, ("2,1,3",)), "order") and not report["findings"]


def test_explain_of_a_micro_batch_that_runs_twice(lastbit, capture, diff, explain):
    told = notes(diff(PLAIN, ("1,2,2,3",)), "again")
    report = explain(PLAIN, ("1,2,2,3",))
    assert report["notes"] == told
    # One place in each step: all that differs follows from it.
    assert [(f["step"], f["layer"], f["cause"], f["other_op"]) for f in own(report)] == [
        (step, "embed", "unexplained", "aten::embedding") for step in (0, 1)
    ]
    assert {f"step 0: {f['why']}" for f in own(report)} == set(told)
    text = lastbit.run("explain", capture(("1,2,2,3",)), capture(PLAIN), expect=1).stdout
    assert "micro-batch 2 of the second side is run again by the first side, as its number 3" in text
    assert "line      first: micro_batches.py" in text and "line      second" not in text


def test_explain_of_a_micro_batch_that_is_left_out(diff, explain):
    report = explain(PLAIN, ("1,3",))
    assert report["notes"] == notes(diff(PLAIN, ("1,3",)), "additional micro-batch") != []
    # The optimizer's square root may be the library's own on some processors.
    assert [(f["step"], f["layer"]) for f in own(report) if f["phase"] != "optimizer"] == [(0, "embed"), (1, "embed")]
