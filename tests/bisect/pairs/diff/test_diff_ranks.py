"""Runs of one model on other numbers of processes: shards are put together, each rank is blamed for its own, tokens meet."""

import numpy as np
import pytest
from conftest import ROOT, warm_python


@pytest.fixture(scope="module")
def recorded(lastbit, tmp_path_factory):
    """Records hf_ranks.py on so many processes, each once per settings."""
    folder = tmp_path_factory.mktemp("ranks")
    done = {}

    def record(ranks, *args):
        if (ranks, args) not in done:
            done[ranks, args] = folder / f"{len(done)}.lb"
            torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)) if ranks > 1 else ()
            lastbit.run(
                "record",
                "-o",
                done[ranks, args],
                "--level",
                "ops",
                "--steps",
                "0-0",
                "--",
                *warm_python(),
                *torchrun,
                ROOT / "tests/programs/ranks/hf_ranks.py",
                *args,
                expect=0,
            )
        return done[ranks, args]

    return record


def guilty(answer):
    return {(row["layer"], row["rank"]) for row in answer["layers"] if row["local"] == "diverged"}


def scored(answer):
    return {row["kind"]: row["count"] for row in answer["tokens"]}


@pytest.mark.parametrize("share", ["weights", "batch"])
@pytest.mark.parametrize("few, many", [(1, 2), pytest.param(2, 4, marks=pytest.mark.full), (4, 1)])
def test_what_ranks_share_out_is_the_same_put_together(lastbit, recorded, share, few, many):
    answer = lastbit.json("diff", recorded(few, "--share", share), recorded(many, "--share", share), expect=0)
    assert answer["verdict"] == "rounding" and answer["ops"]["aligned"] > 500, answer["first"]
    # All ranks that share the weights score all tokens, those that share the batch their own.
    sets = min(few, many) if share == "weights" else 1
    texts = 60 * sets
    assert scored(answer) == {"text": texts, "ignored": 4 * sets} and max(row["max_abs"] or 0 for row in answer["tokens"]) < 2e-6


def test_the_rank_that_errs_is_named_and_not_the_sum_that_carries_it(lastbit, recorded):
    """The other rank takes part in an all-reduce whose result differs although what it brought is the same."""
    good, bad = recorded(2), recorded(2, "--fault", "scaling")
    answer = lastbit.json("diff", good, bad, expect=1)
    first = answer["first"]
    assert (first["rank"], first["layer"], first["op"]) == (1, "model.layers.1.self_attn", "aten::mul.Tensor"), first
    assert guilty(answer) == {("model.layers.1.self_attn", 1)}
    inherited = {row["rank"]: row["inherited"] for row in answer["layers"] if row["layer"] == "model.norm"}
    assert inherited == {0: "diverged", 1: "diverged"}


@pytest.mark.parametrize("turned", [False, True])
def test_the_slice_of_the_rank_that_errs_is_named(lastbit, recorded, turned):
    good, bad = recorded(2), recorded(4, "--fault", "scaling")
    answer = lastbit.json("diff", *((bad, good) if turned else (good, bad)), expect=1)
    first = answer["first"]  # heads 6 and 7 of 8, of 4 texts: the second half of what the second of two ranks has
    assert (first["rank"], first["layer"]) == (2 if turned else 1, "model.layers.1.self_attn"), first
    assert guilty(answer) == {("model.layers.1.self_attn", first["rank"])}


def test_a_gradient_that_ranks_forget_to_add_up_is_found(lastbit, recorded):
    """torch's plan shards the heads of Qwen3, and the norms of queries and keys, which all ranks hold, see the gradients of their own
    heads only: a real mistake, which the losses of the second step show."""
    answer = lastbit.json("diff", recorded(1, "--model", "qwen3_moe"), recorded(2, "--model", "qwen3_moe"), expect=1)
    norms = {f"model.layers.{layer}.self_attn.{name}_norm" for layer in range(2) for name in "qk"}
    assert answer["verdict"] == "diverged" and {layer for layer, _ in guilty(answer)} == norms
    assert answer["first"]["why"] == "each rank takes what it has by itself, terms of a sum, for the sum of all", answer["first"]


@pytest.mark.parametrize("share", ["weights", "batch"])
def test_routing_of_shared_tokens_is_compared_with_all_of_them(lastbit, recorded, share):
    one, two = (recorded(n, "--model", "qwen3_moe", "--share", share) for n in (1, 2))
    for pair in ((one, two), (two, one)):
        rows = lastbit.json("diff", *pair, expect=(0, 1))["routing"]
        assert {(row["layer"], row["rank"], row["tokens"], row["choices"], row["flips"]) for row in rows} == {
            (f"model.layers.{layer}.mlp.gate", 0, 64, 128, 0) for layer in range(2)
        }


def test_flips_between_other_numbers_of_ranks_are_what_numpy_says(lastbit, recorded, tmp_path):
    """The second side in bf16, so that some choices differ."""
    one, two = recorded(1, "--model", "qwen3_moe", "--share", "batch"), recorded(2, "--model", "qwen3_moe", "--share", "batch", "--dtype", "bfloat16")
    answer = lastbit.json("diff", one, two, expect=1)
    assert answer["first"]["why"] == "its dtype is f32 on the first side, bf16 on the second: ranks are put together in one dtype only"
    rows = {row["layer"]: row for row in answer["routing"]}

    def chosen(capture, layer, rank):
        listed = lastbit.run("ls", "--ops", "--rank", rank, capture, expect=0).stdout.splitlines()
        line = next(row for row in listed if f"{layer}.mlp.gate " in row and "aten::topk(" in row)
        out = tmp_path / f"{capture.stem}-{layer}-{rank}.npy"
        lastbit.run("show", capture, "--rank", rank, "--value", line.split("-> v")[1].split(", v")[1].split(":")[0], "--npy", out, expect=0)
        return np.load(out)

    total = 0
    for number in range(2):
        layer = f"model.layers.{number}"
        ids = chosen(one, layer, 0), np.concatenate([chosen(two, layer, rank) for rank in range(2)])
        flips = sum(len(set(x) - set(y)) for x, y in zip(*ids))
        assert rows[f"{layer}.mlp.gate"]["flips"] == flips and rows[f"{layer}.mlp.gate"]["tokens"] == 64
        total += flips
    assert total > 0
