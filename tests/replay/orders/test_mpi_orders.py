"""Orders judged by MPI libraries: Open MPI and MPICH with each algorithm forced give, element for element, the bits of the order that
README.md says the algorithm has."""

import judged_mpi as J
import pytest
from conftest import FULL

RANKS = range(2, 9) if FULL else (2, 3, 5, 8)
SEGMENT = 64  # bytes of a segment, where algorithms have segments


def power(n):
    return 1 << n.bit_length() - 1


def ring_or_doubling(case):
    return "doubling" if case.count < case.ranks else "mpi_ring"


def rabenseifner(case):
    return "linear" if case.count < power(case.ranks) else "rabenseifner"


def nbc_rabenseifner(case):
    return "nbc_ring" if case.count < power(case.ranks) else "rabenseifner"


def size(case):
    return case.count * (8 if case.dtype == "f64" else 4)


def by_size(case):
    """MPICH takes the binomial tree up to 2048 bytes, and where there are fewer elements than ranks."""
    return "binomial" if size(case) <= 2048 or case.count < power(case.ranks) else "rabenseifner"


def at_zero(case):
    """… and 4.0.2 reduces to rank 0, which sends it on, beyond that size where it is told to be binomial."""
    return "binomial" if size(case) <= 2048 else "binomial@0"


def nbc_chain(case):
    return "nbc_chain" if case.count < power(case.ranks) else "rabenseifner"


def scattered(case):
    return "binomial" if case.count < power(case.ranks) else "rabenseifner"


def by_halves(case):
    """MPICH's reduce-scatter of powers of two that needs no commutative operation is a balanced tree."""
    return "doubling" if case.ranks == power(case.ranks) else "halving"


# What algorithm number k of Open MPI's component tuned is; None: what the library itself chooses is one of ours. A reduction to rank 0 that
# is then handed out is of the algorithm that the library chooses for that size.
OPEN_MPI = {
    "allreduce": {1: "linear", 2: None, 3: "doubling", 4: ring_or_doubling, 5: ring_or_doubling, 6: rabenseifner},
    "reduce": {1: "linear", 2: "chain:4", 3: "chain:1", 4: "binary", 5: "binomial", 6: "in_order_binary", 7: rabenseifner},
    "reduce_scatter": {1: None, 2: "halving", 3: "ring", 4: "doubling"},
    "reduce_scatter_block": {1: None, 2: "binomial", 3: "halving", 4: "doubling"},
    "scan": {1: "rank", 2: "binomial"},
    "exscan": {1: "rank", 2: "binomial"},
    "iallreduce": {1: "nbc_ring", 2: "binomial", 3: nbc_rabenseifner},
    "ireduce": {1: "nbc_chain", 2: "nbc_binomial", 3: nbc_chain},
}
# Of MPICH, by the name that its control variable takes; nb: what the nonblocking collective does, which may be told another algorithm.
MPICH = {
    "allreduce": {
        "recursive_doubling": "doubling",
        "reduce_scatter_allgather": "rabenseifner",
        "smp": by_size,
        "nb": "doubling",
        "auto": "doubling",
    },
    "reduce": {"binomial": at_zero, "reduce_scatter_gather": scattered, "smp": by_size, "nb": by_size, "auto": by_size},
    "reduce_scatter": {
        "pairwise": "pairwise",
        "recursive_doubling": "binomial",
        "recursive_halving": "halving",
        "nb": "halving",
        "auto": "halving",
    },
    "reduce_scatter_block": {
        "pairwise": "pairwise",
        "recursive_doubling": "binomial",
        "recursive_halving": "halving",
        "noncommutative": by_halves,
        "auto": "halving",
    },
    "scan": {"recursive_doubling": "binomial", "smp": "binomial", "nb": "binomial"},
    "exscan": {"recursive_doubling": "binomial", "nb": "binomial"},
    "iallreduce": {
        "tsp_ring": "mpich_ring",
        "tsp_tree": "kary:2",
        "sched_recursive_doubling": "doubling",
        "sched_reduce_scatter_allgather": "rabenseifner",
        "sched_naive": by_size,
        "sched_smp": by_size,
        "tsp_recexch_single_buffer": "doubling",
        "tsp_recexch_multiple_buffer": "doubling",
        "tsp_recexch_reduce_scatter_recexch_allgatherv": "doubling",
    },
    "ireduce": {
        "tsp_ring": "chain:1",
        "tsp_tree": "kary:2",
        "sched_binomial": "binomial",
        "sched_reduce_scatter_gather": scattered,
        "sched_smp": by_size,
    },
}


def counts(collective, n):
    """One element, fewer than ranks, all around a segment, and some that no number of ranks divides."""
    most = [n, 3 * n + 2, SEGMENT // 8 - 1, SEGMENT // 8, 512, 513, 4095, 4096, 4097, 40009] if FULL else []
    if collective == "reduce_scatter_block":
        return [n, 3 * n, SEGMENT // 8 * n, 131 * n]
    return sorted({1, n - 1, 3 * n + 1, SEGMENT // 8 + 1, 2 * SEGMENT + 3, 1021, *most})


def cases(collective, reductions=("sum",)):
    for n in RANKS:
        for count in counts(collective, n):
            small = count < 200
            roots = range(n) if collective in J.ROOTED and (small or FULL) else [0, n - 1] if collective in J.ROOTED else [0]
            for root in roots:
                yield J.Case(n, collective, "sum", "f32", count, root)
            yield J.Case(n, collective, "sum", "f64", count, roots[-1])
            if count == 3 * n + 1 or collective == "reduce_scatter_block":
                yield J.Case(n, collective, "prod", "f32", count, roots[-1])
                yield J.Case(n, collective, "max", "f64", count, roots[-1])
                yield J.Case(n, collective, "min", "f32", count, roots[-1])
                yield J.Case(n, collective, "sum", "f32", count, roots[-1], int(collective != "ireduce"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    return {library: J.build(library, folder) for library in ("openmpi", "mpich") if J.installed(library)}


def asked(programs, library):
    if library not in programs:
        pytest.skip(f"no mpicc.{library} and mpirun.{library} here")
    return programs[library]


def hold(results, table, choice):
    """Every result against the order of its collective; `choice`: collective -> algorithm."""
    for result in results:
        name, algorithm = result.case.collective, choice[result.case.collective]
        expected = table[name][algorithm]
        if algorithm == "nb" and f"i{name}" in choice:
            expected = table[f"i{name}"][choice[f"i{name}"]]
        order = expected(result.case) if callable(expected) else expected
        if order is None:
            assert J.fitting(result), result.case
        else:
            assert J.wrong(result, order) == 0, (result.case, order, choice[result.case.collective], J.fitting(result))


@pytest.mark.parametrize("turn", range(1, 8))
def test_open_mpi_gives_the_bits_of_our_order(programs, tmp_path, turn):
    """Turn k takes algorithm k of each collective that has so many."""
    program = asked(programs, "openmpi")
    choice = {name: turn for name, table in OPEN_MPI.items() if turn in table}
    settings = {"coll_tuned_use_dynamic_rules": 1}
    for name, number in choice.items():
        component = "libnbc" if name.startswith("i") else "tuned"
        settings[f"coll_{component}_{name}_algorithm"] = number
        if name in ("allreduce", "reduce"):
            settings[f"coll_tuned_{name}_algorithm_segmentsize"] = SEGMENT
    listed = [case for name in choice for case in cases(name)]
    hold(J.judge("openmpi", program, settings, listed, tmp_path / "out"), OPEN_MPI, choice)


@pytest.mark.parametrize("turn", range(9))
def test_mpich_gives_the_bits_of_our_order(programs, tmp_path, turn):
    program = asked(programs, "mpich")
    choice = {name: list(table)[turn] for name, table in MPICH.items() if turn < len(table)}
    settings = {f"MPIR_CVAR_{name.upper()}_INTRA_ALGORITHM": algorithm for name, algorithm in choice.items()}
    listed = [case for name in choice for case in cases(name)]
    hold(J.judge("mpich", program, settings, listed, tmp_path / "out"), MPICH, choice)
