"""Runs of many ranks that are computed and recorded here (make_ranks.c): every bit replays, and each planted fault is found where it is."""

import subprocess

import pytest
from conftest import BUILD, FULL

RANKS, LAYERS = 8, 3


def make(folder, *options):
    made = subprocess.run([BUILD / "tests/make_ranks", folder, f"ranks={RANKS}", f"layers={LAYERS}", *options], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return make(tmp_path_factory.mktemp("ranks") / "clean.lb")


def test_every_recorded_bit_is_what_replay_computes(lastbit, clean):
    replayed = lastbit.json("replay", clean, expect=0)
    assert replayed["verdict"] == "identical"
    assert replayed["compared"] == replayed["bitwise"] > RANKS * LAYERS * 10
    assert lastbit.json("verify", clean, expect=0)["missing"] == 0
    assert lastbit.json("ranks", clean, expect=0)["verdict"] == "clean"


def test_what_follows_from_a_poisoned_rank_follows(lastbit, clean, tmp_path):
    bad = make(tmp_path / "bad.lb", "poison=0:5:1")
    answer = lastbit.json("diff", clean, bad, expect=1)
    assert answer["verdict"] == "diverged"
    first = answer["first"]
    assert (first["step"], first["rank"], first["layer"], first["op"]) == (0, 5, "layers.1", "aten::mm")
    kept = make(tmp_path / "kept.lb", "poison=0:5:1", "level=3")  # each op by itself, from the recorded bits that it read
    replayed = lastbit.json("replay", kept)
    assert [(op["rank"], op["layer"], op["op"]) for op in replayed["worst"]] == [(5, "layers.1", "aten::mm")]
    assert replayed["compared"] - replayed["bitwise"] == 1


def test_a_bit_lost_between_two_ranks_is_found_in_its_all_reduce(lastbit, clean, tmp_path):
    bad = make(tmp_path / "bad.lb", "flip=0:2:3")
    out = lastbit.run("diff", clean, bad, expect=1).stdout
    assert "received what no order of the sum gives from allreduce_(sum) 0 of group 0: element 0" in out  # backward begins with layer 2
    assert "on the way from rank 4 to rank 5" in out  # of the ring that begins at rank 1, the fourth addition


@pytest.mark.parametrize("ranks", [5, 12] if not FULL else range(3, 20))
def test_all_hops_that_one_lost_bit_may_have_been_on_are_listed(lastbit, tmp_path, ranks):
    """Sums of few bits are exact, so that the same bit lost on several hops leaves the same numbers: those are listed, and no other, and it is said that
    nothing tells them apart. The sum of addition `f` of the ring that begins at rank 1 goes from rank f + 2 to the next."""
    hops = {f: ((f + 2) % ranks, (f + 3) % ranks) for f in range(ranks - 2)}
    runs = {f: make(tmp_path / f"{f}.lb", f"ranks={ranks}", "layers=2", "steps=1", f"flip=0:1:{f}") for f in hops}
    left = {f: b"".join((runs[f] / f"rank-{rank:05}.tar").read_bytes() for rank in range(ranks)) for f in hops}
    several = 0
    for f in hops:
        [found] = [one for one in lastbit.json("ranks", runs[f], expect=1)["findings"] if one["kind"] == "result"]
        alike = {hops[other] for other in hops if left[other] == left[f]}
        assert {(hop["from"], hop["to"]) for hop in found["hops"] if hop["bits"] == [18]} == alike
        assert found["possible"] == len(found["hops"]) and {hop["order"] for hop in found["hops"]} == {"ring"}
        ways = {(hop["from"], hop["to"]) for hop in found["hops"]}
        several += len(ways) > 1
        assert ("hop" in found) == (len(ways) == 1)
        apart = f"each of these {found['possible']} gives what was received, and the bits do not tell which it was"
        assert (apart in found["message"]) == (len(ways) > 1), found["message"]
        more = found["possible"] - 4
        assert (f", or one of {more} more" in found["message"]) == (len(ways) > 1 and more > 0), found["message"]
    assert several


def test_a_rank_that_gives_half_of_a_gradient_is_named(lastbit, tmp_path):
    bad = make(tmp_path / "bad.lb", "mismatch=0:6:1")
    found = lastbit.json("ranks", bad, expect=1)["findings"]
    assert [f["kind"] for f in found][0] == "collective" and "rank 6 called allreduce_(sum) of f32[32]" in found[0]["message"]


def test_two_orders_of_addition_are_told_apart(lastbit, clean, tmp_path):
    tree = make(tmp_path / "tree.lb", "order=tree")
    assert lastbit.json("replay", tree, expect=0)["verdict"] == "identical"
    out = lastbit.run("diff", clean, tree).stdout
    assert "verdict: rounding" in out and "the first side's bits are those of ring, the second's of tree" in out


def test_zeros_of_large_tensors_take_no_disk(lastbit, tmp_path):
    run = make(tmp_path / "run.lb", "table=4194304", "steps=1", "last=0")
    archive = (run / "rank-00000.tar").stat()
    assert archive.st_size > LAYERS * 16 << 20 and archive.st_blocks * 512 < 1 << 20
    assert lastbit.json("verify", run, expect=0)["verdict"] == "whole"


def test_a_list_of_ranks_is_written_once_a_step(tmp_path):
    """Not once a collective: of 1,024 ranks and 100 layers that was more than all the rest."""
    sizes = [(make(tmp_path / f"{n}.lb", f"ranks={n}", "last=0", "layers=24") / "rank-00000.tar").stat().st_size for n in (16, 512)]
    assert sizes[1] - sizes[0] < 16384
