"""An adapter of peft online and merged are one function: q_proj.base_layer and its lora are q_proj. A shard that was lost is not."""

import pytest

PROGRAM = "tests/programs/lora_pair.py"


@pytest.fixture(scope="module")
def runs(recordings):
    return lambda *options: recordings(*options, program=PROGRAM)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("serve", ["merged", "in-place"])
def test_online_and_merged_are_one_function(lastbit, runs, dtype, serve):
    online, merged = runs("--dtype", dtype), runs("--dtype", dtype, "--serve", serve)
    answer = lastbit.json("diff", online, merged, expect=0)
    assert answer["verdict"] == "rounding"
    rows = {row["second"]: row["first"] for row in answer["map"] if row["relation"] == "merged"}
    assert len(rows) == 7
    (query,) = [name for name in rows if "q_proj" in name]
    assert rows[query].endswith("q_proj.base_layer.weight + 2 lora_B lora_A")
    assert lastbit.json("diff", merged, online, expect=0)["verdict"] == "rounding"
    assert lastbit.json("parity", online, merged, expect=0)["verdict"] == "pass"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("turned", [False, True], ids=["online-first", "merged-first"])
def test_the_first_place_is_where_a_merged_weight_is_read(lastbit, runs, dtype, turned):
    """What stands before it has the same bits on both sides, though several values of a side are one quantity (half a rotary table, the whole of it)."""
    pair = [runs("--dtype", dtype), runs("--dtype", dtype, "--serve", "merged")]
    answer = lastbit.json("diff", *(pair[::-1] if turned else pair), expect=0)
    for place in (answer["first"], answer["earliest"]):
        assert "layers.0.self_attn.q_proj" in place["layer"] and place["op"] == "aten::mm"
        assert "q_proj.base_layer.weight + 2 lora_B lora_A in one tensor" in place["why"]
    assert answer["ops"]["identical"] == answer["ops"]["aligned"] > 10
    rounded = {row["layer"].removeprefix("base_model.model.").removesuffix(".base_layer") for row in answer["layers"] if row["verdict"] == "rounding"}
    mlp, attention = ("gate_proj", "up_proj", "down_proj"), ("q_proj", "k_proj", "v_proj", "o_proj")
    assert rounded == {"lm_head"} | {f"model.layers.0.mlp.{w}" for w in mlp} | {f"model.layers.0.self_attn.{w}" for w in attention}


@pytest.mark.parametrize("kind", ["rslora", "gpt2"])
def test_other_scales_and_turned_weights_are_merged_too(lastbit, runs, kind):
    answer = lastbit.json("diff", runs("--kind", kind), runs("--kind", kind, "--serve", "in-place"), expect=0)
    scale = {"rslora": "5.657", "gpt2": "2"}[kind]
    merged = [row["first"] for row in answer["map"] if row["relation"] == "merged"]
    assert answer["verdict"] == "rounding" and merged and all(f"+ {scale} lora_B" in first for first in merged)


@pytest.mark.parametrize("serve", ["merged", "in-place"])
def test_a_lost_shard_is_no_merge(lastbit, runs, serve):
    online, broken = runs("--dtype", "bfloat16"), runs("--dtype", "bfloat16", "--serve", serve, "--lost")
    answer = lastbit.json("diff", online, broken, expect=1)
    assert answer["verdict"] == "diverged" and not [row for row in answer.get("map", []) if row["relation"] == "merged"]
    said = lastbit.json("parity", online, broken, expect=1)
    assert said["verdict"] == "fail" and {f["kind"] for f in said["findings"]} == {"untold"}
    assert said["causes"]["temperature"] == said["causes"]["renormalised"] == "excluded"


def test_blocks_of_a_wrapped_model_are_exchanged_with_a_plain_one(lastbit, runs):
    """In bf16 the exchange ends at what replay itself leaves, and says so."""
    online, merged = runs("--dtype", "bfloat16"), runs("--dtype", "bfloat16", "--serve", "merged")
    answer = lastbit.json("parity", online, merged, "--swap-block", "each", expect=0)
    rows = {row["classes"]: row for row in answer["swaps"]}
    assert {classes: row["blocks"] for classes, row in rows.items()} == {"": 0, "A": 1, "D": 1, "AD": 2}
    assert 0 < answer["floor"] and rows["AD"]["at_floor"] and not rows[""]["at_floor"] and rows[""]["k3"] > 2 * answer["floor"]
    lines = lastbit.run("parity", online, merged, "--swap-block", "each", expect=0).stdout.splitlines()
    assert lines[0].startswith("blocks AD: exchanging them takes k3 from") and lines[0].endswith("which is the floor")
    assert any(line.startswith("floor (second, replayed)") for line in lines)
