"""Verdicts on what MPI libraries gave, over 2, 5 and 8 ranks: an input that differed, another legal order by its name, or no legal order and
then what was changed. The bytes are those of real runs; faults are planted by making what they lead to, message by message."""

import judged_mpi as J
import numpy as np
import pytest
import recorded_collectives as R

RANKS = (2, 5, 8)
N = 333
SETS = {  # library, settings, and the orders of its four collectives
    "first": (
        "openmpi",
        {"tuned_allreduce": 3, "tuned_reduce": 5, "tuned_reduce_scatter_block": 2, "libnbc_iallreduce": 2},
        ("doubling", "binomial", "binomial", "binomial"),
    ),
    "second": (
        "openmpi",
        {"tuned_allreduce": 4, "tuned_reduce": 6, "tuned_reduce_scatter_block": 3, "libnbc_iallreduce": 1},
        ("mpi_ring", "in_order_binary", "halving", "nbc_ring"),
    ),
    "third": (
        "mpich",
        {"REDUCE_SCATTER_BLOCK": "pairwise", "IALLREDUCE": "tsp_tree", "REDUCE": "reduce_scatter_gather", "ALLREDUCE": "smp"},
        ("binomial", "doubling", "pairwise", "kary"),
    ),
}


def cases(n):
    yield J.Case(n, "allreduce", "sum", "f32", N)
    yield J.Case(n, "reduce", "sum", "f32", N, n - 1)
    yield J.Case(n, "reduce_scatter_block", "sum", "f32", 48 * n)
    yield J.Case(n, "iallreduce", "sum", "f64", N)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Set -> ranks -> results of the four collectives; one run of a library for each set."""
    folder = tmp_path_factory.mktemp("judged")
    if not J.installed("openmpi") or not J.installed("mpich"):
        pytest.skip("no Open MPI, or no MPICH, here")
    programs = {library: J.build(library, folder) for library in ("openmpi", "mpich")}
    made = {}
    for name, (library, chosen, _) in SETS.items():
        if library == "openmpi":
            settings = {f"coll_{key}_algorithm": value for key, value in chosen.items()} | {"coll_tuned_use_dynamic_rules": 1}
        else:
            settings = {f"MPIR_CVAR_{key}_INTRA_ALGORITHM": value for key, value in chosen.items()}
        listed = [case for n in RANKS for case in cases(n)]
        all_of_it = J.judge(library, programs[library], settings, listed, folder / name)
        made[name] = {n: [r for r in all_of_it if r.case.ranks == n] for n in RANKS}
    return made


@pytest.fixture(scope="module")
def captures(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    return {(name, n): R.write(folder / f"{name}{n}.lb", n, [[r] for r in results[name][n]]) for name in SETS for n in RANKS}


def by_step(rows):
    return {row["step"]: row for row in rows if "c10d" in row["op"]}


@pytest.mark.parametrize("n", (5, 8))
@pytest.mark.parametrize("other", ("second", "third"))
def test_another_legal_order_is_named_from_bits_alone(lastbit, captures, n, other):
    pair = captures["first", n], captures[other, n]
    found = by_step(lastbit.json("explain", *pair, expect=1)["findings"])
    differing = set()
    for step, (mine, theirs) in enumerate(zip(SETS["first"][2], SETS[other][2], strict=True)):
        if step not in found:
            continue  # the same bits: eight ranks make one tree of doubling and of binomial
        differing.add(step)
        f = found[step]
        assert (f["cause"], f["proof"]) == ("order", "bits") and "all ranks brought the same bits" in f["why"], f
        assert f["matched"] == f["elements"] and f["excluded"] >= 20
        names = [f["schedule"], *f["also"].split("; ")]
        assert theirs in names and mine not in names, f
        inputs, root = cases_inputs(captures, n, step)
        assert f["first"] == mine or alike(f["first"], mine, inputs, root), f
    assert differing >= {1, 2, 3} if n == 5 or other == "second" else differing
    answer = lastbit.json("diff", *pair, expect=0)
    assert answer["verdict"] == "reordered"
    whys = [row["why"] for row in answer["differences"]] + [answer["first"]["why"]]
    assert all("the same terms in another order" in why for why in whys), whys


def cases_inputs(captures, n, step):
    drawn = np.random.default_rng(1)
    count, dtype = (48, np.float32) if step == 2 else (N, np.float64 if step == 3 else np.float32)
    return [(drawn.standard_normal(count) * 2.0 ** drawn.integers(-9, 9, count)).astype(dtype) for _ in range(n)], n if step == 1 else 0


def alike(one, other, inputs, home):
    """Both orders give the same bits, whatever is added."""
    dtype = "f64" if inputs[0].dtype == np.float64 else "f32"
    a, b = (J.rank_sum(order, "sum", dtype, inputs, home) for order in (one, other))
    return np.array_equal(J.bits(a), J.bits(b))


def test_two_ranks_have_one_order(lastbit, captures):
    assert lastbit.json("diff", captures["first", 2], captures["second", 2], expect=0)["verdict"] == "identical"
    assert not lastbit.json("explain", captures["first", 2], captures["second", 2], expect=0)["findings"]


def test_a_library_s_own_order_is_no_fault(lastbit, captures):
    """Replay takes another order than the library did, and says which one the library took."""
    answer = lastbit.json("replay", captures["second", 5], expect=None)
    assert answer["verdict"] == "reordered"
    assert lastbit.json("ranks", captures["second", 5], expect=0)["verdict"] == "clean"


@pytest.mark.parametrize("n", RANKS)
def test_who_sent_what_is_not_finite_is_named_by_every_command(lastbit, results, tmp_path, n):
    """No gradient, loss or parameter holds it: what is sent is judged by itself, and is never clean."""
    good = results["first"][n][0]
    sent = good.inputs[n - 1].copy()
    sent[41] = np.nan
    given = exchanged(good.inputs, n - 1, sent)
    bad = good._replace(inputs=given, outputs=[J.rank_sum("doubling", "sum", "f32", given)] * n)
    capture = R.write(tmp_path / "nan.lb", n, [[good], [bad], [good]])
    (told,) = [f for f in lastbit.json("ranks", capture, expect=1)["findings"] if not f["note"]]
    assert (told["kind"], told["ranks"], told["step"]) == ("nonfinite", [n - 1], 1)
    answer = lastbit.json("bisect", capture, expect=1)
    assert answer["outcome"] == "found" and answer["culprit"]["axis"] == "rank"
    assert (answer["culprit"]["ranks"], answer["culprit"]["step"]) == ([n - 1], 1)
    assert not [stage for stage in answer["stages"] if stage["outcome"] == "cleared"]


# ---- faults -------------------------------------------------------------------------------------------------------------


class Fault:
    """An all-reduce by recursive doubling with a fault, and what has to be said of it."""

    def __init__(self, good, said, outputs, case=None, before=None):
        self.said, self.good = said, good
        self.bad = good._replace(outputs=outputs, case=case or good.case)
        self.before = before  # a healthy one of the step before


def exchanged(given, rank, other):
    return [other if r == rank else x for r, x in enumerate(given)]


def faults(good, n):
    given, last = good.inputs, n - 1

    def sum_of(inputs, order="doubling"):
        return [J.rank_sum(order, "sum", "f32", inputs)] * n

    *_, messages = J.hop("doubling", "f32", given, 0, 0, 0)
    for message in sorted({0, messages // 2, messages - 1}):  # the first, one on the way, one that is handed out or last
        held, sender, receiver, _ = J.hop("doubling", "f32", given, 41, message, 1 << 22)
        outputs = [x.copy() for x in good.outputs]
        for rank in range(n):
            outputs[rank][41] = held[rank]
        yield Fault(good, ("hop", sender, receiver), outputs)
    yield Fault(good, f"without the contribution of rank {last}", sum_of(given[:last], "rank"))
    if n == 8:  # the tree of seven is another one
        yield Fault(good, "with zeros for the contribution of rank 0", sum_of(exchanged(given, 0, np.zeros_like(given[0]))))
    yield Fault(good, "with the contribution of rank 1 added twice", sum_of([*given, given[1]], "rank"))
    old = exchanged(given, 1, (given[1] * np.float32(1.5)).astype(np.float32))
    said = "with what rank 1 brought to an earlier collective"
    yield Fault(good, said, sum_of(old), before=good._replace(inputs=old, outputs=sum_of(old)))
    other = {r: good.case._replace(reduction="max") if r == last else good.case for r in range(n)}
    said = "did not all call the same" if n == 2 else f"rank {last} called something else"
    yield Fault(good, said, [*good.outputs[:last], J.rank_sum("rank", "max", "f32", given)], other)


@pytest.mark.parametrize("n", RANKS)
def test_no_legal_order_and_what_was_changed(lastbit, results, tmp_path, n):
    for at, fault in enumerate(faults(results["first"][n][0], n)):
        before = [[fault.before]] if fault.before else []
        good = R.write(tmp_path / f"good{at}.lb", n, [*before, [fault.good]])
        bad = R.write(tmp_path / f"bad{at}.lb", n, [*before, [fault.bad]])
        (told,) = [f for f in lastbit.json("explain", good, bad, expect=1)["findings"] if "c10d" in f["op"]]
        place = lastbit.json("diff", good, bad, expect=1)["first"]
        assert told["cause"] == "unexplained" and place["verdict"] == "diverged", (told, place)
        if isinstance(fault.said, str):
            assert fault.said in told["why"] and fault.said in place["why"], (fault.said, told["why"], place["why"])
            continue
        _, sender, receiver = fault.said
        assert f"on the way from rank {sender} to rank {receiver}" in told["why"] and "bit 22" in told["why"], (fault.said, told["why"])
        assert f"from rank {sender} to rank {receiver}" in place["why"] and "bit 22" in place["why"], (fault.said, place["why"])
        if n == 5:  # of five ranks no other order gives the same sums
            assert place["hop"] == {"from": sender, "to": receiver}, place
            assert f"it is bit 22 on the way from rank {sender} to rank {receiver}" in told["why"]


@pytest.mark.parametrize("n", RANKS)
def test_an_input_already_differed(lastbit, results, captures, tmp_path, n):
    good = results["first"][n][0]
    rank = n - 1
    inputs = [x.copy() for x in good.inputs]
    inputs[rank][7] += 1
    outputs = [J.rank_sum("doubling", "sum", "f32", inputs)] * n
    one = R.write(tmp_path / "one.lb", n, [[good]])
    other = R.write(tmp_path / "other.lb", n, [[good._replace(inputs=inputs, outputs=outputs)]])
    rows = lastbit.json("explain", one, other, expect=1)["findings"]
    (f,) = [row for row in rows if "c10d" in row["op"]]
    assert f["cause"] == "input" and f"rank {rank} brought other numbers" in f["why"], f
    answer = lastbit.json("diff", one, other, expect=1)
    assert (answer["first"]["rank"], answer["first"]["op"]) == (rank, "lb::source"), answer["first"]
