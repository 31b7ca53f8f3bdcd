"""What collectives gave: a stand-in for NCCL turns over one bit of one member's result, of a hop, of a message; rank 2 sends NaN."""

import os
import random

import pytest
from conftest import BUILD

PROGRAM = BUILD / "tests" / "nccl_program"


@pytest.fixture(scope="module")
def record(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    made = {}

    def record(scenario, ranks=4, options=(), **environment):
        key = (scenario, ranks, options, tuple(sorted(environment.items())))
        if key not in made:
            made[key] = folder / f"{len(made)}.lb"
            command = (PROGRAM, scenario, "processes", ranks)
            lastbit.run("record", "-o", made[key], *options, "--", *command, env={**os.environ, **environment}, expect=0, timeout=60)
        return made[key]

    return record


def of_kind(answer, kind):
    return [row for row in answer["findings"] if row["kind"] == kind]


@pytest.mark.parametrize("scenario, ranks", [("chained", 4), ("chained", 3), ("hops", 4), ("everything", 4)])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_results_of_healthy_collectives_are_clean(lastbit, record, scenario, ranks, algorithm):
    answer = lastbit.json("ranks", record(scenario, ranks, STANDIN_NCCL_ALGO=algorithm), expect=0)
    assert answer["verdict"] == "clean" and answer["results"] >= 4
    assert not of_kind(answer, "result") and not of_kind(answer, "nonfinite")


def test_sums_are_clean_where_their_order_is_not_known(lastbit, record, tmp_path):
    """Another plug-in stands in the place of ours: nobody says that these are three channels, or a tree."""
    for algorithm, channels in (("ring", "3"), ("tree", "2")):
        knobs = dict(STANDIN_NCCL_ALGO=algorithm, STANDIN_NCCL_CHANNELS=channels, NCCL_PROFILER_PLUGIN=str(tmp_path / "none.so"))
        assert not of_kind(lastbit.json("ranks", record("chained", **knobs), expect=0), "result")


DRAW = random.Random(8)
FLIPS = [(call, DRAW.randrange(4), DRAW.randrange(300), DRAW.randrange(3, 23)) for call in (0, 1, 6, 7, 16)]


@pytest.mark.parametrize("call, rank, element, bit", FLIPS)
def test_one_flipped_bit_of_one_member_is_found(lastbit, record, call, rank, element, bit):
    """Calls 0, 4, … are all-reduces, 1 all-gathers, 2 reduce-scatters, 3 broadcasts."""
    capture = record("chained", STANDIN_NCCL_FLIP=f"{call}:{rank}:{element}:{bit}")
    row = of_kind(lastbit.json("ranks", capture, expect=1), "result")[0]
    assert row["ranks"] == [rank] and row["element"] == element and row["bit"] == bit, row
    answer = lastbit.json("bisect", "-q", capture, expect=1)
    assert answer["outcome"] == "found" and answer["culprit"]["ranks"] == [rank]


def test_a_flip_is_seen_by_digests_alone(lastbit, record):
    capture = record("chained", options=("--nccl", "bytes", "--level", "stats"), STANDIN_NCCL_FLIP="4:1:77:9")
    row = of_kind(lastbit.json("ranks", capture, expect=1), "result")[0]
    assert row["ranks"] == [1] and "element" not in row and "bytes were not kept" in row["message"]


def test_the_hop_of_a_ring_is_named(lastbit, record):
    """Element 5 goes 1, 2, 3, 0 and then around again; hop 5 of 6 is from rank 1 to rank 2."""
    good, late = record("chained"), record("chained", STANDIN_NCCL_HOP="4:5:5:9")
    row = of_kind(lastbit.json("ranks", late, expect=1), "result")[0]
    assert row["ranks"] == [2, 3] and row["hop"] == {"from": 1, "to": 2} and row["bit"] == 9
    explained = lastbit.run("explain", good, late, expect=1).stdout
    assert "element 5 that rank 2 received has bit 9 turned over: in order ring it is bit 9 on the way from rank 1 to rank 2" in explained
    assert "it is bit 9 on the way from rank 1 to rank 2" in row["message"]  # in the same words
    for pair in ((good, late), (late, good)):
        first = lastbit.json("diff", *pair, expect=1)["first"]
        assert first["hop"] == {"from": 1, "to": 2} and row["message"] in first["why"]


def test_a_bit_of_a_partial_sum_is_in_what_all_received(lastbit, record):
    good, early = record("chained"), record("chained", STANDIN_NCCL_HOP="0:2:5:12")
    row = of_kind(lastbit.json("ranks", early, expect=1), "result")[0]
    assert row["ranks"] == [0, 1, 2, 3] and "from rank 2 to rank 3" in row["message"]
    first = lastbit.json("diff", good, early, expect=1)["first"]
    assert "hop" not in first and row["message"] in first["why"]


def test_the_hop_on_which_a_message_changed_is_named(lastbit, record):
    row = of_kind(lastbit.json("ranks", record("hops", STANDIN_NCCL_MESSAGE="1:5:2"), expect=1), "result")[0]
    assert row["ranks"] == [2] and row["hop"] == {"from": 1, "to": 2} and (row["element"], row["bit"]) == (5, 2)


def test_the_rank_that_sent_the_first_nan_is_named(lastbit, record):
    """Rank 3 has it from a message, and then all have it: none of them but rank 2 is to blame, and nothing is cleared."""
    capture = record("nan-of-rank-2")
    (row,) = of_kind(lastbit.json("ranks", capture, expect=1), "nonfinite")
    assert row["ranks"] == [2] and not row["note"]
    answer = lastbit.json("bisect", "-q", capture, expect=1)
    assert answer["outcome"] == "found" and answer["culprit"]["axis"] == "rank" and answer["culprit"]["ranks"] == [2]
    assert "cleared" not in [stage["outcome"] for stage in answer["stages"]]


def test_what_is_received_and_sent_on_is_one_value(lastbit, record):
    """Of the twenty calls only the first sends what nobody gave this rank, so that a chained replay computes the rest from it."""
    capture = record("chained")
    listed = lastbit.run("ls", "--ops", "--rank", "1", capture, expect=0).stdout
    assert listed.count("lb::source") == 1 and listed.count("nccl::") >= 20
    assert lastbit.json("replay", "--mode", "chained", capture, expect=0)["verdict"] == "identical"
