"""Diff on Hugging Face models: innocent pairs are never `diverged`; small planted differences are found, and in one layer only.

What diff cannot call diverged, and does not: a fault whose every bit is rounded away (`identical`), and a float cast, which is the
identity in exact arithmetic (`rounding`). Both are in the table below as what they are."""

import re

import pytest

pytestmark = pytest.mark.full
HF = "tests/programs/hf_train.py"
PLANTED = "tests/programs/planted_fault.py"


@pytest.fixture(scope="module")
def recorded(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    done = {}

    def get(program, *args):
        if args not in done:
            done[args] = folder / f"run{len(done)}.lb"
            lastbit.record(done[args], program, *args, options=("--level", "ops"), expect=0)
        return done[args]

    return get


INNOCENT = {
    "again": ("--seed", "0"),
    "threads": ("--threads", "2"),
    "attention": ("--attention", "sdpa"),
    "adamw": ("--optimizer", "foreach"),
    "accumulation": ("--accumulate", "2"),
    "experts": ("--experts", "grouped_mm"),
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("model,change", [(m, c) for m in ("llama", "gpt2", "qwen3_moe") for c in INNOCENT if c != "experts" or m == "qwen3_moe"])
def test_innocent_pairs_are_never_diverged(lastbit, recorded, model, dtype, change):
    base = ("--model", model, "--dtype", dtype, "--attention", "eager", "--experts", "eager")
    answer = lastbit.json("diff", recorded(HF, *base), recorded(HF, *base, *INNOCENT[change]), expect=0)
    assert answer["verdict"] in ("identical", "reordered", "rounding"), answer["first"]
    aligned = 600 if change == "adamw" else 1000  # one op for all parameters has no partner on the other side
    assert answer["ops"]["aligned"] > aligned and not any(row["verdict"] == "diverged" for row in answer["layers"])
    if change == "again":
        assert answer["verdict"] == "identical"


def test_another_seed_and_another_batch_part_at_the_input(lastbit, recorded):
    """Whole numbers that differ are where it begins: no layer behind them is blamed for what it was given."""
    base = ("--model", "llama", "--dtype", "fp32", "--attention", "eager", "--experts", "eager")
    seed = lastbit.json("diff", recorded(HF, *base), recorded(HF, *base, "--seed", "1"), expect=1)
    assert seed["first"]["layer"] == "input:labels" and seed["first"]["local"] == "diverged"
    blamed = {row["layer"] for row in seed["layers"] if row["local"] == "diverged" and not row["value"]}
    assert not any(layer.startswith("model.") for layer in blamed), blamed
    batch = lastbit.json("diff", recorded(HF, *base), recorded(HF, *base, "--batch", "4"), expect=1)
    assert batch["first"]["why"] == "its shape is [2, 16] on the first side, [4, 16] on the second"


ATTENTION, MLP, LAYER = r"model\.layers\.1\.self_attn.*", r"model\.layers\.1\.mlp.*", r"model\.layers\.1"
NORM, Q = r"model\.layers\.1\.post_attention_layernorm", r"model\.layers\.1\.self_attn\.q_proj"
# By fault: where the first difference lies and in which phase, in fp32; what it is in bf16 where that is not the same.
FAULTS = {
    "wrong-eps": (NORM, "forward", "diverged"),
    "wrong-scale": (ATTENTION, "forward", "identical"),  # by 1.001: less than half an ulp of bf16
    "transposed-weight": (Q, "forward", "diverged"),
    "small-factor": (LAYER, "forward", "identical"),
    "rope-offset": (ATTENTION, "forward", "diverged"),
    "mask-offset": (ATTENTION, "forward", "diverged"),
    "integer-cast": (MLP, "forward", "diverged"),
    "dropped-term": (MLP, "forward", "diverged"),
    "one-element": (LAYER, "forward", "diverged"),
    "swapped-rows": (LAYER, "forward", "diverged"),
    "no-decay": (r"model\.layers\.1\.self_attn\.o_proj\.weight", "optimizer", "identical"),
    "stale-tensor": (Q + r"\.weight", "optimizer", "diverged"),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_small_fault_is_found_where_it_is(lastbit, recorded, fault, dtype):
    layer, phase, in_bf16 = FAULTS[fault]
    base = ("--dtype", dtype, "--steps", "2")
    pair = recorded(PLANTED, *base), recorded(PLANTED, *base, "--fault", fault)
    answer = lastbit.json("diff", *pair, expect=(0, 1))
    assert answer["verdict"] == (in_bf16 if dtype == "bfloat16" else "diverged"), answer["first"]
    if answer["verdict"] == "identical":
        return
    first = answer["first"]
    assert re.fullmatch(layer, first["layer"]) and first["phase"] == phase and first["local"] == "diverged", first
    assert first["step"] == 0
    if fault == "stale-tensor":  # one side alone writes, after the optimizer's step: no pair of ops shows it
        assert first["why"] == "aten::copy_ writes it last, on the second side only; exact values differ"
        assert lastbit.json("diff", "--steps", "0", *pair, expect=1)["first"]["layer"] == first["layer"]
    guilty = {row["layer"] for row in answer["layers"] if row["local"] == "diverged"}
    assert all(name.startswith("model.layers.1") for name in guilty), guilty


def test_a_stale_expert_is_named(lastbit, recorded):
    base = ("--model", "qwen3_moe", "--steps", "2")
    answer = lastbit.json("diff", recorded(PLANTED, *base), recorded(PLANTED, *base, "--fault", "stale-expert"), expect=1)
    first = answer["first"]
    assert (first["step"], first["layer"]) == (1, "model.layers.1.mlp.experts.down_proj")
    assert "dimension 0, slice 2 of 8" in first["pattern"], first["pattern"]


@pytest.mark.parametrize(
    "fault,dtype,verdict",
    [
        ("narrow-cast", "float32", "rounding"),
        ("narrow-cast", "bfloat16", "rounding"),
        ("cast-left-out", "bfloat16", "rounding"),
        ("cast-left-out", "float32", "identical"),
    ],
)
def test_a_float_cast_is_rounding_by_definition(lastbit, recorded, fault, dtype, verdict):
    base = ("--dtype", dtype, "--steps", "2")
    answer = lastbit.json("diff", recorded(PLANTED, *base), recorded(PLANTED, *base, "--fault", fault), expect=0)
    assert answer["verdict"] == verdict, answer["first"]
    if verdict == "rounding":  # the cast itself is named
        assert any(
            "_to_copy" in row["only_first"] + row["only_second"] and row["layer"].startswith("model.layers.1") for row in answer["structure"]
        ), answer["structure"]
