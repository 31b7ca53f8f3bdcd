"""Against another checkpoint: names, transposes, fusions and stacks are seen through; casts, roundings and differences told apart."""

import audit_models as models
import pytest
import torch
from safetensors.torch import save_file


@pytest.fixture(scope="module")
def state():
    return models.weights("llama")


def verdicts(answer):
    return {p["verdict"] for p in answer["pairs"]}


def test_casts_and_roundings(lastbit, tmp_path, state):
    whole = models.write(tmp_path, "whole", state)
    narrow = models.write(tmp_path, "narrow", {k: v.bfloat16() for k, v in state.items()})
    assert verdicts(lastbit.json("audit", whole, "--against", whole, expect=0)) == {"identical"}
    for pair in [(whole, narrow), (narrow, whole)]:
        assert verdicts(lastbit.json("audit", pair[0], "--against", pair[1], expect=0)) == {"cast"}
    rounded = models.write(tmp_path, "rounded", {k: v.bfloat16().float() for k, v in state.items()})
    answer = lastbit.json("audit", whole, "--against", rounded, expect=0)
    assert {p["rounded_to"] for p in answer["pairs"] if p["verdict"] == "rounding"} == {"bf16"}
    nudged = models.write(tmp_path, "nudged", {k: torch.nextafter(v, torch.full_like(v, 9.0)) for k, v in state.items()})
    answer = lastbit.json("audit", whole, "--against", nudged, expect=0)
    assert verdicts(answer) == {"rounding"} and {p["rounded_to"] for p in answer["pairs"]} == {None}


def test_the_largest_difference_is_found(lastbit, tmp_path, state):
    name = "model.layers.2.mlp.up_proj.weight"
    changed = {**state, name: state[name].clone()}
    changed[name][11, 7] += 0.75
    changed[name][12, 7] += 0.25
    answer = lastbit.json("audit", models.write(tmp_path, "a", state), "--against", models.write(tmp_path, "b", changed), expect=1)
    assert [(f["kind"], f["tensor"]) for f in answer["findings"]] == [("differs", name)]
    (pair,) = [p for p in answer["pairs"] if p["verdict"] != "identical"]
    assert pair["index"] == [11, 7] and pair["differing"] == 2 and pair["max_abs"] == pytest.approx(0.75, rel=1e-6)


def test_names_by_a_map(lastbit, tmp_path, state):
    renamed = {"module." + k.replace("self_attn", "mixer"): v for k, v in state.items()}
    a, b = models.write(tmp_path, "a", renamed), models.write(tmp_path, "b", state)
    lastbit.json("audit", a, "--against", b, "--map", r"s/^module\.//", "--map", "s/mixer/self_attn/", expect=0)
    answer = lastbit.json("audit", models.write(tmp_path, "c", {"other": torch.randn(3, 3)}), "--against", b, expect=1)
    assert {f["kind"] for f in answer["findings"]} == {"missing", "unexpected"}


def test_transposes(lastbit, tmp_path, state):
    turned = {k: v.T if "proj" in k else v for k, v in state.items()}
    answer = lastbit.json("audit", models.write(tmp_path, "a", turned), "--against", models.write(tmp_path, "b", state), expect=0)
    assert {p["how"] for p in answer["pairs"] if "proj" in p["tensor"]} == {"transposed"} and verdicts(answer) == {"identical"}


def fuse(state, groups, key="qkv_proj"):
    """q, k and v in one matrix, `groups` groups of heads one after the other; gate and up side by side."""
    fused = {k: v for k, v in state.items() if not any(f"{w}_proj" in k for w in ("q", "k", "v", "gate", "up"))}
    for layer in range(5):
        at = f"model.layers.{layer}.self_attn."
        parts = [state[f"{at}{w}_proj.weight"].chunk(groups) for w in "qkv"]
        fused[f"{at}{key}.weight"] = torch.cat([p[g] for g in range(groups) for p in parts])
        mlp = f"model.layers.{layer}.mlp."
        fused[f"{mlp}gate_up_proj.weight"] = torch.cat([state[f"{mlp}gate_proj.weight"], state[f"{mlp}up_proj.weight"]])
    return fused


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("key", ["qkv_proj", "query_key_value", "linear_qkv"])
def test_fused_matrices(lastbit, tmp_path, state, groups, key):
    a, b = models.write(tmp_path, "a", fuse(state, groups, key)), models.write(tmp_path, "b", state)
    for pair in [(a, b), (b, a)]:
        answer = lastbit.json("audit", pair[0], "--against", pair[1], expect=0)
        assert verdicts(answer) == {"identical"}
        hows = {p["how"].split(": ")[0] for p in answer["pairs"]}
        parts = "3 parts side by side" if groups == 1 else "3 parts in 2 groups"
        assert parts in hows if pair[0] == b else f"part of model.layers.3.self_attn.{key}.weight, from row {64 // groups} on" in hows
    broken = fuse(state, groups, key)
    broken[f"model.layers.3.self_attn.{key}.weight"][40, 2] += 1
    answer = lastbit.json("audit", models.write(tmp_path, "c", broken), "--against", b, expect=1)
    assert [(f["kind"], f["tensor"]) for f in answer["findings"]] == [("differs", f"model.layers.3.self_attn.{key}.weight")]


def test_stacked_experts(lastbit, tmp_path):
    """transformers stacks experts in memory and writes them one by one."""
    model = models.trained("qwen3moe")[0]
    models.save(model, tmp_path / "apart")
    torch.save(model.state_dict(), tmp_path / "stacked.pt")
    for pair in [("apart", "stacked.pt"), ("stacked.pt", "apart")]:
        answer = lastbit.json("audit", tmp_path / pair[0], "--against", tmp_path / pair[1], expect=0)
        whole = pair[1] == "stacked.pt"
        assert verdicts(answer) == {"identical"} and sum("experts" in p["tensor"] for p in answer["pairs"]) == 5 * (2 if whole else 4 * 3)
    state = model.state_dict()
    state["model.layers.1.mlp.experts.down_proj"][2, 5, 6] += 1
    torch.save(state, tmp_path / "broken.pt")
    answer = lastbit.json("audit", tmp_path / "apart", "--against", tmp_path / "broken.pt", expect=1)
    state["model.layers.1.mlp.experts.down_proj"][2, 5, 6] -= 1
    assert [(f["kind"], f["tensor"]) for f in answer["findings"]] == [("differs", "model.layers.1.mlp.experts.2.down_proj.weight")]


@pytest.mark.parametrize("ranks", [2, 4])
def test_experts_numbered_on_each_rank(lastbit, tmp_path, ranks):
    state = {f"layers.{i}.experts.{e}.w1.weight": torch.randn(16, 8) for i in range(3) for e in range(8)}
    state |= {f"layers.{i}.norm.weight": torch.randn(8) for i in range(3)}
    local = 8 // ranks
    (tmp_path / "ep").mkdir()
    for rank in range(ranks):
        shard = {k: v for k, v in state.items() if "norm" in k}
        shard |= {
            f"layers.{i}.experts.{e}.w1.weight": state[f"layers.{i}.experts.{rank * local + e}.w1.weight"] for i in range(3) for e in range(local)
        }
        save_file(shard, tmp_path / "ep" / f"rank-{rank}.safetensors")
    answer = lastbit.json("audit", tmp_path / "ep", "--against", models.write(tmp_path, "whole", state), expect=0)
    assert verdicts(answer) == {"identical"} and len(answer["pairs"]) == len(state)
