"""Experts' outputs put together by other ops, as serving stacks do: what is said of the finalise, of experts that then fall otherwise, and of what
only reads the difference."""

import pytest
import torch
from explained_pairs import own

PROGRAM = "tests/programs/expert_finalise.py"
EXPERTS = "mlp.experts"


@pytest.fixture
def runs(recordings):
    return lambda *options: recordings(*options, program=PROGRAM)


def explained(lastbit, a, b):
    answer = lastbit.json("explain", a, b, expect=1)
    return answer, own(answer)


@pytest.mark.parametrize("how", ["bmm", "ranks", pytest.param("slots", marks=pytest.mark.full)])
def test_what_reads_another_finalise_is_inherited(lastbit, runs, how):
    """Attention ran as the same kernel on both sides. Replay misses one of its bits here and there, which makes no other kernel of it."""
    _, found = explained(lastbit, runs(), runs("--finalise", how))
    assert {f["layer"] for f in found if f["op"] != "experts chosen"} == {f"model.layers.{i}.{EXPERTS}" for i in range(3)}
    flips = any(f["op"] == "experts chosen" for f in found)  # a choice that is a tie to the last bit falls as the processor's kernels have it
    assert {f["cause"] for f in found} <= {"kernel", "precision"} | ({"routing"} if flips else set())


@pytest.mark.parametrize("turned", [False, True])
def test_a_missed_bit_of_attention_is_no_kernel(lastbit, runs, turned):
    sides = runs("--nudge", "1"), runs("--finalise", "bmm")
    answer, found = explained(lastbit, *(sides[::-1] if turned else sides))
    assert all(f["layer"].endswith(EXPERTS) or f["op"] == "experts chosen" for f in found)
    (attention,) = [f for f in answer["findings"] if "attention" in f["op"] and f["layer"] == "model.layers.1.self_attn"]
    assert (attention["cause"], attention["proof"]) == ("input", "bound")


def test_many_missed_bits_of_attention_are(lastbit, runs):
    """Where torch has no vectors, replay has none of its kernels of attention, and the bits may be that kernel's: within its bound."""
    answer, found = explained(lastbit, runs("--nudge", "150"), runs("--finalise", "bmm"))
    vectors = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    by_itself = [(f["layer"], f["cause"]) for f in found if "attention" in f["op"]]
    assert by_itself == ([("model.layers.1.self_attn", "kernel")] if vectors else [])
    inherited = [f for f in answer["findings"] if "attention" in f["op"] and f["cause"] == "input"]
    assert {f["layer"] for f in inherited} == {"model.layers.2.self_attn"} | (set() if vectors else {"model.layers.1.self_attn"})
    assert vectors or {f["proof"] for f in inherited} == {"bound"}


def test_experts_that_fall_otherwise_are_routing(lastbit, runs):
    """The choices decide how many rows each expert has, and the loops over them are written for those."""
    options = "--tokens", "192", "--apart", "0.05"
    answer, found = explained(lastbit, runs(*options), runs("--finalise", "bmm", *options))
    flipped = {f["layer"].removesuffix(".gate") for f in found if f["op"] == "experts chosen"}
    assert flipped and "model.layers.0.mlp" not in flipped
    experts = [f for f in found if f["layer"].endswith(EXPERTS)]
    for f in experts:
        flips = f["layer"].removesuffix(".experts") in flipped
        # One product among others, whose rows are in another order on the two sides, may be all that is seen of it.
        assert f["cause"] in (("routing", "unexplained") if flips else ("kernel", "precision"))
        assert f["why"].startswith("experts were chosen differently here") == flips
    whole = {f["layer"].removesuffix(".experts") for f in experts if f["cause"] == "routing" and f["schedule"] == "different rows"}
    assert whole == flipped and {f["layer"] for f in found} == {f["layer"] for f in experts} | {f"{layer}.gate" for layer in flipped}


def test_a_fault_among_other_ops_stays_unexplained(lastbit, runs):
    _, found = explained(lastbit, runs(), runs("--finalise", "bmm", "--rolled"))
    assert {f["layer"] for f in found if f["cause"] == "unexplained"} == {f"model.layers.2.{EXPERTS}"}
    assert all(f["cause"] in ("kernel", "precision") for f in found if "layers.2" not in f["layer"])


def test_products_that_miss_are_not_run_a_hundred_times(lastbit, runs):
    """A place of 48 ops with 16 products: one of these says of most of the 380 candidates that they give other bits."""
    options = "--dtype", "float32", "--hidden", "256"
    answer, found = explained(lastbit, runs(*options), runs("--finalise", "bmm", *options))
    assert len([f for f in found if f["layer"].endswith(EXPERTS) and f["cause"] == "kernel"]) == 3
    assert all(f["excluded"] >= 300 for f in found if f["layer"].endswith(EXPERTS))
    assert answer["cost"]["ops"] < 50_000  # 140,000 where every candidate ran all of them
