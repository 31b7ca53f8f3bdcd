"""A shard that was lost inside a whole tensor: parts that are zero or there twice, and rows of zeros; and zeros that are how a model is."""

import copy

import audit_models as models
import pytest
import torch
from safetensors.torch import load_file, save_file

Q, DOWN, NORM = "model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.mlp.down_proj.weight", "model.layers.{}.input_layernorm.weight"


def found(answer):
    return sorted((f["kind"], f["tensor"]) for f in answer["findings"])


def lose(tensor, dim, parts, which, how):
    """Part `which` of `parts` along `dim` is zero, or repeats the first one."""
    out, width = tensor.clone(), tensor.shape[dim] // parts
    part = out.narrow(dim, which * width, width)
    part.copy_(torch.zeros_like(part) if how == "zero" else out.narrow(dim, 0, width))
    return out


@pytest.fixture(scope="module")
def state():
    return models.weights("llama")


def audit(lastbit, folder, tensors, expect, *options):
    return lastbit.json("audit", models.write(folder, "model", tensors), *options, expect=expect)


KINDS = {"zero": "shard_missing", "repeat": "shards_equal"}


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("parts, which", [(2, 0), (2, 1), (4, 1), (8, 5)])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_part_of_one_tensor(lastbit, state, tmp_path, how, parts, which, dim):
    if how == "repeat" and not which:
        pytest.skip("the first part repeats nothing")
    for name in (Q.format(2), DOWN.format(0), "model.embed_tokens.weight", "lm_head.weight"):
        answer = audit(lastbit, tmp_path, state | {name: lose(state[name], dim, parts, which, how)}, 1)
        assert found(answer) == [(KINDS[how], name)]
        assert f"over {parts}" in answer["findings"][0]["message"] and answer["findings"][0]["ranks"] == [which]


@pytest.mark.parametrize("how", KINDS)
def test_the_same_part_of_every_matrix(lastbit, state, tmp_path, how):
    """No sibling is whole."""
    cut = {k: lose(v, 1 if "o_proj" in k or "down" in k else 0, 2, 1, how) for k, v in state.items() if v.dim() == 2}
    answer = audit(lastbit, tmp_path, state | cut, 1)
    assert found(answer) == sorted((KINDS[how], k) for k in cut)
    answer = audit(lastbit, tmp_path, state | cut, 1, "--against", tmp_path / "model.safetensors")
    assert found(answer) == sorted((KINDS[how], k) for k in cut)


def test_three_of_four_parts(lastbit, state, tmp_path):
    name = Q.format(1)
    for how in KINDS:
        tensor = state[name]
        for which in (1, 2, 3):
            tensor = lose(tensor, 0, 4, which, how)
        answer = audit(lastbit, tmp_path, state | {name: tensor}, 1)
        assert found(answer) == [(KINDS[how], name)] and answer["findings"][0]["ranks"] == [1, 2, 3]


@pytest.mark.parametrize("how", KINDS)
def test_half_of_each_matrix_in_a_fused_one(lastbit, state, tmp_path, how):
    fused = torch.cat([lose(state[f"model.layers.1.mlp.{w}_proj.weight"], 0, 2, 1, how) for w in ("gate", "up")])
    answer = audit(lastbit, tmp_path, {"gate_up_proj.weight": fused, "o.weight": state[Q.format(0)]}, 1)
    assert found(answer) == [(KINDS[how], "gate_up_proj.weight")] and "over 2" in answer["findings"][0]["message"]


def test_a_bias_and_experts(lastbit, tmp_path):
    torch.manual_seed(0)
    tensors = {"experts.gate_up_proj": torch.randn(8, 24, 16), "q.bias": torch.randn(64), "q.weight": torch.randn(64, 16)}
    audit(lastbit, tmp_path, tensors, 0)
    for name in ("experts.gate_up_proj", "q.bias"):
        for how in KINDS:
            answer = audit(lastbit, tmp_path, tensors | {name: lose(tensors[name], 0, 4, 2, how)}, 1)
            assert found(answer) == [(KINDS[how], name)] and "over 4" in answer["findings"][0]["message"]


@pytest.mark.parametrize("how", KINDS)
def test_a_part_of_an_adapter(lastbit, tmp_path, how):
    model = copy.deepcopy(models.trained("llama")[0])
    models.save(model, tmp_path / "base")
    models.adapter(model, tmp_path / "lora", steps=5)
    path = tmp_path / "lora" / "adapter_model.safetensors"
    whole = load_file(path)
    up = "base_model.model.model.layers.{}.mlp.up_proj.lora_B.weight"
    down = "base_model.model.model.layers.{}.mlp.down_proj.lora_A.weight"
    cut = {up.format(i): lose(whole[up.format(i)], 0, 2, 1, how) for i in range(5)} | {down.format(3): lose(whole[down.format(3)], 1, 4, 2, how)}
    save_file(whole | cut, path)
    for options in ([], ["--base", tmp_path / "base"]):
        assert found(lastbit.json("audit", "--adapter", tmp_path / "lora", *options, expect=1)) == sorted((KINDS[how], k) for k in cut)


def test_one_rank_of_parts_that_is_zero_in_every_tensor(lastbit, state, tmp_path):
    local = {k: [v.chunk(2)[0], torch.zeros_like(v.chunk(2)[1])] for k, v in state.items() if v.dim() == 2}
    models.on_ranks(2, models.save_sharded, tmp_path / "c", state, local)
    answer = lastbit.json("audit", tmp_path / "c", expect=1)
    assert sorted((f["kind"], f["tensor"], *f["ranks"]) for f in answer["findings"]) == sorted(("zero", k, 1) for k in local)


# ---- rows of zeros


def test_rows_and_columns_of_zeros(lastbit, state, tmp_path):
    for name, rows, columns in [(Q.format(2), [5], []), (DOWN.format(1), [3, 40, 41], []), (Q.format(0), [], [7])]:
        tensor = state[name].clone()
        tensor[rows] = 0
        tensor[:, columns] = 0
        answer = audit(lastbit, tmp_path, state | {name: tensor}, 1)
        assert found(answer) == [("dead", name)]
        text = f"{len(rows)} of its 64 rows" if rows else "1 of its 64 columns"
        assert answer["findings"][0]["message"].startswith(text)


HEALTHY = {
    "a padding token": lambda s: s["model.embed_tokens.weight"][[0]].zero_(),
    "the end of a vocabulary": lambda s: s["model.embed_tokens.weight"][-5:].zero_(),
    "biases at the start": lambda s: s.update({f"model.layers.{i}.self_attn.q_proj.bias": torch.zeros(64) for i in range(5)}),
    "norms at the start": lambda s: [s[NORM.format(i)].fill_(1) for i in range(5)],
    "residual projections at the start": lambda s: [s[DOWN.format(i)].zero_() for i in range(5)],
    "a causal mask": lambda s: s.update({f"model.layers.{i}.attn.bias": torch.tril(torch.ones(1, 1, 32, 32)) for i in range(5)}),
    "a mask of infinities": lambda s: s.update({"attn_mask": torch.full((32, 32), float("-inf")).triu(1)}),
    "a convolution that begins at zero": lambda s: s.update(
        {f"controlnet_down_blocks.{i}.weight": torch.zeros(32, 32, 1, 1) for i in range(4)}
        | {"controlnet_mid_block.weight": torch.zeros(32, 32, 1, 1)}
    ),
    "modulations that begin at zero": lambda s: s.update({f"blocks.{i}.adaLN_modulation.1.weight": torch.zeros(96, 32) for i in range(3)}),
    "statistics of a batch norm": lambda s: s.update(
        {"bn.running_mean": torch.zeros(64), "bn.running_var": torch.ones(64), "bn.weight": torch.ones(64)}
    ),
    "angles of positions": lambda s: s.update({"rotary_emb.cos_cached": torch.cat([torch.cos(torch.arange(640.0).view(20, 32) / 50)] * 2, -1)}),
    "a state matrix, the same in each row": lambda s: s.update({"mixer.A_log": torch.log(torch.arange(1.0, 17)).repeat(64, 1)}),
    "an adapter at its first step": lambda s: (
        s.clear(),
        s.update({f"layers.{i}.q_proj.lora_{h}.weight": torch.randn(8, 64) if h == "A" else torch.zeros(64, 8) for i in range(4) for h in "AB"}),
    ),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_zeros_that_are_how_a_model_is(lastbit, state, tmp_path, case):
    torch.manual_seed(1)
    tensors = {k: v.clone() for k, v in state.items()}
    HEALTHY[case](tensors)
    assert audit(lastbit, tmp_path, tensors, 0)["findings"] == []
