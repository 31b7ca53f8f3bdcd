"""One model run with the other's blocks of one class: which exchange takes the gap away. A mixture of experts whose second router, or whose
first attention, does something else on one side."""

import pytest

PROGRAM = "tests/programs/mixture_pair.py"


@pytest.fixture(scope="module")
def runs(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("swap")
    for change in ("none", "weights", "attention"):
        lastbit.record(folder / f"{change}.lb", PROGRAM, "--change", change, options=("--level", "ops"), expect=0)
    lastbit.record(folder / "eager.lb", PROGRAM, "--change", "weights", "--experts", "eager", options=("--level", "ops"), expect=0)
    return lambda change: folder / f"{change}.lb"


def swaps(lastbit, base, donor, *options):
    rows = lastbit.json("parity", base, donor, "--swap-block", "each", *options)["swaps"]
    assert all(row["run"] for row in rows), rows
    return {row["classes"]: row for row in rows}


@pytest.mark.parametrize("change", ["weights", "eager"])
@pytest.mark.parametrize("exchanged", [False, True])
def test_the_class_that_differs_takes_the_gap_to_zero(lastbit, runs, change, exchanged):
    sides = (runs(change), runs("none")) if exchanged else (runs("none"), runs(change))
    rows = swaps(lastbit, *sides)
    assert {c: row["blocks"] for c, row in rows.items()} == {"": 0, "A": 2, "E": 2, "AE": 4}
    gap = rows[""]["k3"]
    assert gap > 1e-7 and rows["A"]["k3"] > 0.5 * gap
    assert rows["E"]["k3"] < 1e-6 * gap and rows["AE"]["k3"] < 1e-6 * gap


def test_attention_that_differs_is_told_from_experts(lastbit, runs):
    rows = swaps(lastbit, runs("none"), runs("attention"))
    # What the experts chose is as it was recorded of each side, so that a flip that attention caused stays until they are exchanged, too.
    assert rows["A"]["k3"] < 0.05 * rows[""]["k3"] and rows["E"]["k3"] > 0.5 * rows[""]["k3"] and rows["AE"]["k3"] < 1e-12


def test_a_class_that_cannot_be_exchanged_is_where_the_rest_may_lie(lastbit, tmp_path):
    """Eager attention is handed a mask, and SDPA none: of bf16 the floor is shown, and what is left is not said to lie elsewhere."""
    for name, words in (("eager", ["eager"]), ("sdpa", ["sdpa", "1.1"])):
        lastbit.record(tmp_path / f"{name}.lb", "tests/programs/attention_blocks.py", *words, options=("--level", "ops"), expect=0)
    pair = (tmp_path / "eager.lb", tmp_path / "sdpa.lb")
    rows = {row["classes"]: row for row in lastbit.json("parity", *pair, "--swap-block", "each")["swaps"]}
    assert not rows["A"]["run"] and rows["D"]["run"] and rows["D"]["k3"] < 0.1 * rows[""]["k3"]
    text = lastbit.run("parity", *pair, "--swap-block", "each").stdout
    assert "no exchange takes k3 to the floor, though one takes it below the threshold" in text.splitlines()[0]
    assert text.splitlines()[0].endswith("what is left may lie in blocks A, which could not be exchanged, or outside of the blocks")
    assert "floor (second, replayed)" in text and "over floor" in text


def test_exit_codes_and_misuse(lastbit, runs):
    pair = (runs("none"), runs("attention"))
    lastbit.run("parity", *pair, "--threshold", "1e-5", "--swap-block", "E", expect=1)
    text = lastbit.run("parity", *pair, "--threshold", "1e-5", "--swap-block", "A", expect=0).stdout
    assert "none (as recorded)" in text and "agrees" in text
    lastbit.run("parity", *pair, "--swap-block", "M", expect=125)
    assert "classes of blocks" in lastbit.run("parity", *pair, "--swap-block", "Q", expect=129).stderr
