"""Sums that one side writes by ops of its own: reordered where an order is proven bit by bit, whichever side is named first."""

import pytest

PROGRAM = "tests/programs/norm_orders.py"


@pytest.fixture(scope="module")
def runs(lastbit, tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("orders"), {}

    def run(order, width):
        if (order, width) not in made:
            made[order, width] = folder / f"{order}-{width}.lb"
            lastbit.record(made[order, width], PROGRAM, "--order", order, "--width", str(width), options=("--level", "ops"), expect=0)
        return made[order, width]

    return run


@pytest.mark.parametrize(
    "order, schedule, width",
    [("sequence", "sequential", 32), ("sequence", "sequential", 48), ("butterfly", "butterfly", 32), ("butterfly", "butterfly", 64)],
)
def test_a_mean_by_additions_is_reordered(lastbit, runs, order, schedule, width):
    a, b = runs("torch", width), runs(order, width)
    for one, other in ((a, b), (b, a)):
        told = lastbit.json("diff", one, other)
        assert told["verdict"] == "reordered"
        assert told["first"]["layer"] == "1" and told["first"]["local"] == "reordered" and schedule in told["first"]["why"]
        assert {row["verdict"] for row in told["layers"]} <= {"reordered", "identical"}


def test_a_sum_that_lacks_a_term_is_no_order(lastbit, runs):
    told = lastbit.json("diff", runs("torch", 32), runs("wrong", 32), expect=1)
    assert told["verdict"] == "diverged" and told["first"]["layer"] == "1"
