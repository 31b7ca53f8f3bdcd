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


# ---- both sides by hand


def named(answer):
    """The two orders of a sum that was reordered, as `diff` names them."""
    first = answer["first"]
    assert answer["verdict"] == first["local"] == "reordered", (answer["verdict"], first)
    assert first["why"].startswith("the same terms in another order: ")
    return first["why"]


def explained(lastbit, step, *sides):
    """What `explain` says of the places that differ for a reason of their own."""
    findings = [f for f in lastbit.json("explain", "--steps", step, *sides, expect=(0, 1))["findings"] if f["cause"] != "input"]
    return {(f["cause"], f["proof"]) for f in findings}, {(f["first"], f["schedule"]) for f in findings}


SUMS = {  # what, how on either side: which orders
    "experts": ("sequence", "reverse", {"sequential", "reversed"}),
    "slices": ("pairs", "stack", {"pairwise", "sequential"}),
    "slices/": ("reverse", "in-place", {"reversed", "sequential"}),
    "loss": ("sequence", "reverse", {"sequential", "reversed"}),
}
FAULTS = [("experts", "pairs", "twice"), ("slices", "sequence", "dropped"), ("experts", "stack", "scaled"), ("loss", "stack", "dropped")]


@pytest.fixture(scope="module")
def sums(lastbit, tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("sums"), []
    pairs = [(what.strip("/"), *hows[:2]) for what, hows in SUMS.items()] + FAULTS
    for side in (1, 2):
        made.append(folder / f"{side}.lb")
        words = [f"{pair[0]}:{pair[side]}" for pair in pairs]
        lastbit.record(made[-1], "tests/programs/written_sums.py", *words, options=("--level", "ops"), expect=0)
    return made


@pytest.mark.parametrize("what", list(SUMS))
def test_sums_by_hand_have_orders(lastbit, sums, what):
    step, (_, _, orders) = list(SUMS).index(what), SUMS[what]
    for sides in (sums, sums[::-1]):
        told = named(lastbit.json("diff", "--steps", step, *sides, expect=0))
        assert all(f" as {order}" in told for order in orders), told
    causes, names = explained(lastbit, step, *sums)
    assert causes == {("order", "bits")} and len(names) == 1
    assert {name.replace("own", "sequential") for name in names.pop()} == orders  # an op's own order, through several ops


@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_terms_that_are_missing_doubled_or_scaled_are_no_order(lastbit, sums, fault):
    step = len(SUMS) + fault
    for sides in (sums, sums[::-1]):
        assert lastbit.json("diff", "--steps", step, *sides, expect=1)["verdict"] == "diverged"
    assert "order" not in {cause for cause, _ in explained(lastbit, step, *sums)[0]}


# ---- over ranks

REDUCTIONS = [  # by torch or by hand, on either side: which orders
    ("all_reduce", "ring", {"gloo", "mpi_ring"}),
    ("ring-in-place", "rank", {"mpi_ring", "rank"}),
    ("halving", "tree", {"halving", "doubling"}),
    ("ring-whole", "reverse", None),  # each rank has an order of its own
    ("all_reduce:bfloat16", "chain:bfloat16", {"gloo", "rank"}),
    ("ring-blocking:bfloat16", "pairwise:bfloat16", {"mpi_ring", "doubling"}),
    ("wide", "doubling", {"wide", "doubling"}),
]
WRONG = [("all_reduce", "ring.dropped"), ("ring", "ring-in-place.twice"), ("tree", "doubling.scaled"), ("rank", "chain.divided")]


@pytest.fixture(scope="module")
def reductions(lastbit, tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("reductions"), []
    for side in (0, 1):
        made.append(folder / f"{side}.lb")
        words = [pair[side] for pair in REDUCTIONS + WRONG]
        lastbit.record(made[-1], "tests/programs/ranks/written_reductions.py", 4, *words, options=("--level", "ops"), expect=0)
    return made


@pytest.mark.parametrize("step", range(len(REDUCTIONS)))
def test_reductions_over_ranks_by_hand_have_orders(lastbit, reductions, step):
    answer = lastbit.json("diff", "--steps", step, *reductions, expect=0)
    told, orders = named(answer), REDUCTIONS[step][2]
    assert answer["cost"]["ops"] <= 10 * answer["cost"]["recorded"]
    causes, names = explained(lastbit, step, *reductions)
    assert causes == {("order", "bits")}
    if orders:
        assert all(f" as {order}" in told for order in orders), told
        assert {name for pair in names for name in pair} == orders
    else:
        assert len({first for first, _ in names}) >= 3 and all(first != second for first, second in names)


@pytest.mark.parametrize("wrong", range(len(WRONG)))
def test_faults_of_reductions_by_hand_are_no_orders(lastbit, reductions, wrong):
    step = len(REDUCTIONS) + wrong
    answer = lastbit.json("diff", "--steps", step, *reductions, expect=1)
    assert answer["verdict"] == "diverged" and answer["first"]["layer"] == "down"
    assert "order" not in {cause for cause, _ in explained(lastbit, step, *reductions)[0]}
