"""Adapters as peft writes them: what contradicts itself, shards that did not survive, online against merged."""

import copy
import json
import math

import audit_models as models
import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file


def found(answer):
    return sorted((f["kind"], f["tensor"], tuple(f["ranks"])) for f in answer["findings"])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A trained base, a trained adapter of it, both merged."""
    folder = tmp_path_factory.mktemp("adapter")
    model = copy.deepcopy(models.trained("llama")[0])
    models.save(model, folder / "base")
    wrapped = models.adapter(model, folder / "lora", steps=5)
    models.save(wrapped.merge_and_unload(), folder / "merged")
    return folder


@pytest.fixture
def lora(made, tmp_path):
    """The adapter's tensors and configuration, to be changed; write() gives the folder."""

    class Adapter:
        tensors = load_file(made / "lora" / "adapter_model.safetensors")
        config = json.loads((made / "lora" / "adapter_config.json").read_text())

        def write(self):
            save_file(self.tensors, tmp_path / "adapter_model.safetensors", metadata={"format": "pt"})
            (tmp_path / "adapter_config.json").write_text(json.dumps(self.config))
            return tmp_path

    return Adapter()


@pytest.mark.parametrize("half, parts, axis, where", [("B", 2, 0, "rows 0:48 of 96"), ("A", 4, 1, "columns 0:16 of 64")])
def test_a_shard_that_a_merge_did_not_have(lastbit, made, tmp_path, half, parts, axis, where):
    """peft merges an adapter of which one rank's part is zero; the merged weight alone remains."""
    base = transformers.AutoModelForCausalLM.from_pretrained(made / "base")
    wrapped = peft.PeftModel.from_pretrained(base, made / "lora")
    for name, p in wrapped.named_parameters():
        if f"up_proj.lora_{half}" in name:
            p.data.narrow(axis, 0, p.shape[axis] // parts).zero_()
    models.save(wrapped.merge_and_unload(), tmp_path / "merged")
    answer = lastbit.json("audit", "--adapter", made / "lora", "--base", made / "base", "--merged", tmp_path / "merged", expect=1)
    rows = [f for f in answer["findings"] if "up_proj" in f["tensor"]]
    assert rows and all(f["kind"] == "shard_missing" and f["ranks"] == [0] and where in f["message"] for f in rows), rows
    assert all("up_proj" in f["tensor"] for f in answer["findings"])


UP = "base_model.model.model.layers.2.mlp.up_proj.lora_{}.weight"


def test_a_half_that_is_not_there(lastbit, made, lora):
    del lora.tensors[UP.format("B")]
    answer = lastbit.json("audit", lora.write(), "--base", made / "base", expect=1)
    assert ("missing", UP.format("B"), ()) in found(answer)
    assert {f["tensor"] for f in answer["findings"]} <= {UP.format("B"), "model.layers.2.mlp.up_proj"}


def test_halves_of_other_ranks(lastbit, made, lora):
    lora.tensors[UP.format("B")] = lora.tensors[UP.format("B")][:, :4].clone()
    assert found(lastbit.json("audit", lora.write(), "--base", made / "base", expect=1)) == [("adapter_rank", UP.format("B"), ())]


def test_another_rank_than_the_configuration_says(lastbit, made, lora):
    lora.config["rank_pattern"] = {"layers.2.mlp.up_proj": 16}
    assert found(lastbit.json("audit", lora.write(), "--base", made / "base", expect=1)) == [("adapter_rank", UP.format("A"), ())]


def test_a_configuration_without_a_rank(lastbit, made, lora):
    del lora.config["r"]
    assert found(lastbit.json("audit", lora.write(), expect=1)) == [("adapter_config", None, ())]


def test_a_module_that_is_no_target(lastbit, made, lora):
    lora.config["target_modules"] = ["q_proj", "o_proj", "down_proj"]
    answer = lastbit.json("audit", lora.write(), expect=1)
    assert {f["kind"] for f in answer["findings"]} == {"adapter_config"} and len(answer["findings"]) == 5


def test_a_target_without_an_adapter(lastbit, made, lora):
    lora.config["target_modules"] = [*lora.config["target_modules"], "gate_proj"]
    answer = lastbit.json("audit", lora.write(), "--base", made / "base", expect=1)
    assert found(answer) == [("missing", f"model.layers.{i}.mlp.gate_proj", ()) for i in range(5)]


def test_a_base_of_another_shape(lastbit, made, lora):
    lora.tensors[UP.format("A")] = torch.randn(8, 63)
    assert ("adapter_target", UP.format("A"), ()) in found(lastbit.json("audit", lora.write(), "--base", made / "base", expect=1))


def test_one_half_of_zeros(lastbit, made, lora):
    lora.tensors[UP.format("B")].zero_()
    assert found(lastbit.json("audit", lora.write(), "--base", made / "base", expect=1)) == [("zero", UP.format("B"), ())]


# ---- the case of the playbook: shards of one key


def sharded(tensors, ranks):
    """Each rank's part, as tensor parallelism cuts an adapter: B of the first matrix of a pair, A of the second; the other half is a copy."""
    shards = [{} for _ in range(ranks)]
    for name, value in tensors.items():
        column = "q_proj" in name or "up_proj" in name
        for rank in range(ranks):
            cut = 0 if column and "lora_B" in name else 1 if not column and "lora_A" in name else None
            shards[rank][name] = value.clone() if cut is None else value.chunk(ranks, cut)[rank].clone()
    return shards


@pytest.mark.parametrize("ranks", [2, 4])
def test_shards_dropped_for_their_equal_keys(lastbit, made, tmp_path, ranks):
    """torch.distributed.checkpoint takes plain tensors of one key for copies and writes one of them: tensor and ranks are named."""
    import torch.distributed.checkpoint as dcp

    tensors = load_file(made / "lora" / "adapter_model.safetensors")
    shards = sharded(tensors, ranks)
    models.on_ranks(ranks, models.save_dcp, tmp_path / "c", shards)
    answer = lastbit.json("audit", tmp_path / "c", "--base", made / "base", expect=1)
    cut = {name for name in tensors if shards[0][name].shape != tensors[name].shape}
    assert {f["tensor"] for f in answer["findings"]} == cut and {f["kind"] for f in answer["findings"]} == {"shard_missing"}
    for finding in answer["findings"]:
        there = {name: torch.zeros_like(shards[0][name]) for name in [finding["tensor"]]}
        dcp.load(there, checkpoint_id=str(tmp_path / "c"), no_dist=True)
        written = [r for r in range(ranks) if torch.equal(there[finding["tensor"]], shards[r][finding["tensor"]])]
        assert finding["ranks"] == [r for r in range(ranks) if r not in written]
    alone = lastbit.json("audit", tmp_path / "c", expect=0)
    assert "shard_missing" in [n["kind"] for n in alone["notes"]], "without the base's shapes it says what it cannot see"


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_files_of_an_adapter(lastbit, made, tmp_path, ranks):
    shards = sharded(load_file(made / "lora" / "adapter_model.safetensors"), ranks)
    for rank, shard in enumerate(shards):
        save_file(shard, tmp_path / f"adapter_model-{rank:05}-of-{ranks:05}.safetensors")
    (tmp_path / "adapter_config.json").write_text((made / "lora" / "adapter_config.json").read_text())
    answer = lastbit.json("audit", tmp_path, "--base", made / "base", "--merged", made / "merged", expect=0)
    assert len(answer["merged"]) == 20 and answer["ranks"] == ranks
    for layer in range(5):  # in every layer, so that only the module's name tells
        name = UP.format("B").replace("layers.2", f"layers.{layer}")
        shards[1][name] = shards[0][name].clone()
    save_file(shards[1], tmp_path / f"adapter_model-00001-of-{ranks:05}.safetensors")
    answer = lastbit.json("audit", tmp_path, expect=1)
    assert found(answer) == [("shards_equal", UP.format("B").replace("layers.2", f"layers.{i}"), (0, 1)) for i in range(5)]


# ---- online against merged


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """One linear layer of 1024 features with outputs of some units' size, as the playbook's layers have."""
    folder = tmp_path_factory.mktemp("wide")
    torch.manual_seed(7)
    model = torch.nn.Sequential()
    model.add_module("q_proj", torch.nn.Linear(1024, 1024, bias=False))
    torch.nn.init.normal_(model.q_proj.weight, std=0.04)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=128, lora_alpha=32, target_modules=["q_proj"]))
    torch.nn.init.normal_(wrapped.base_model.model.q_proj.lora_B["default"].weight, std=0.01)
    save_file({"q_proj.weight": model.q_proj.base_layer.weight.detach().contiguous()}, folder / "base.safetensors")
    wrapped.save_pretrained(folder / "lora")
    return folder, wrapped


def test_the_playbooks_figures(lastbit, wide):
    """About 1e-6 in f32, 0.0039 in f16, 0.031 in bf16: one unit in the last place of outputs between 4 and 8, which is 2^-8 in f16
    (11 bits) and 2^-5 in bf16 (8 bits). How large the largest output is depends on the layer, hence an order of magnitude."""
    folder, _ = wide
    answer = lastbit.json("audit", "--adapter", folder / "lora", "--base", folder / "base.safetensors", expect=0)
    table = {row["dtype"]: row for row in answer["precision"]}
    for dtype, figure in {"f32": 1e-6, "f16": 0.0039, "bf16": 0.031}.items():
        assert figure / 10 < table[dtype]["max_abs"] < figure * 10, (dtype, table[dtype])
    assert table["f32"]["rel_l2"] < table["f16"]["rel_l2"] < table["bf16"]["rel_l2"] < table["e4m3fn"]["rel_l2"]
    assert len(answer["modules"]) == 4 and answer["modules"][0]["module"] == "q_proj"
    again = lastbit.json("audit", folder / "lora", "--base", folder / "base.safetensors", "--seed", "1", expect=0)
    assert again["precision"] != answer["precision"], "other inputs"


def test_the_table_is_what_peft_computes(lastbit, wide, tmp_path):
    """The same inputs through peft, online and merged, in bf16: errors of one size (torch adds up in another order)."""
    folder, wrapped = wide
    x = np.random.default_rng(0).standard_normal((16, 1024)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    answer = lastbit.json("audit", folder / "lora", "--base", folder / "base.safetensors", "--inputs", tmp_path / "x.npy", expect=0)
    table = {row["dtype"]: row for row in answer["precision"]}
    for dtype, name in [(torch.bfloat16, "bf16"), (torch.float16, "f16")]:
        model = copy.deepcopy(wrapped).to(dtype)
        inputs = torch.from_numpy(x).to(dtype)
        with torch.no_grad():
            online = model.base_model.model.q_proj(inputs).double()
            merged = model.merge_and_unload()(inputs).double()
        expected = ((merged - online).norm() / online.norm()).item()
        assert table[name]["rel_l2"] == pytest.approx(expected, rel=0.1)
        assert math.log2(table[name]["max_abs"] / (merged - online).abs().max().item()) == pytest.approx(0, abs=1)


# ---- how a checkpoint was merged


def test_a_merge_is_reproduced(lastbit, made):
    answer = lastbit.json("audit", made / "lora", "--base", made / "base", "--merged", made / "merged", expect=0)
    assert {(m["scaling"], m["factor"]) for m in answer["merged"]} == {("alpha/r", 2.0)} and len(answer["merged"]) == 20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_merge_in_a_narrow_dtype(lastbit, made, tmp_path, dtype):
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(made / "base", dtype=dtype)
    models.save(model, tmp_path / "base")
    models.save(peft.PeftModel.from_pretrained(model, made / "lora").merge_and_unload(), tmp_path / "merged")
    answer = lastbit.json("audit", made / "lora", "--base", tmp_path / "base", "--merged", tmp_path / "merged", expect=0)
    assert {m["scaling"] for m in answer["merged"]} == {"alpha/r"} and all(m["order"] for m in answer["merged"])


def test_rslora_is_understood(lastbit, made, tmp_path):
    model = copy.deepcopy(models.trained("llama")[0])
    wrapped = models.adapter(model, tmp_path / "lora", steps=5, use_rslora=True, rank_pattern={"q_proj": 4})
    models.save(wrapped.merge_and_unload(), tmp_path / "merged")
    answer = lastbit.json("audit", tmp_path / "lora", "--base", made / "base", "--merged", tmp_path / "merged", expect=0)
    assert {m["factor"] for m in answer["merged"]} == {16 / 8**0.5, 16 / 4**0.5}
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    config["use_rslora"] = False
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(config))
    answer = lastbit.json("audit", tmp_path / "lora", "--base", made / "base", "--merged", tmp_path / "merged", expect=1)
    assert {f["kind"] for f in answer["findings"]} == {"merge_scaling"} and {m["scaling"] for m in answer["merged"]} == {"alpha/sqrt(r)"}


def test_modules_that_were_not_merged(lastbit, made, tmp_path):
    base, merged = (models.Folder(made / name) for name in ("base", "merged"))
    left, wrong, other = "model.layers.1.mlp.up_proj.weight", "model.layers.3.self_attn.q_proj.weight", "model.layers.0.input_layernorm.weight"
    merged[left] = base[left]
    merged[wrong] = merged[wrong] + 0.01 * torch.randn(64, 64)
    merged[other] = merged[other] * 1.5
    (tmp_path / "m").mkdir()
    merged.folder = tmp_path / "m"
    merged.write()
    answer = lastbit.json("audit", made / "lora", "--base", made / "base", "--merged", tmp_path / "m", expect=1)
    assert found(answer) == [("differs", other, ()), ("merge_differs", wrong, ()), ("unmerged", left, ())]


# ---- DoRA and convolutions


@pytest.fixture(scope="module")
def dora(tmp_path_factory):
    """A trained DoRA adapter of the same base, and what peft merges."""
    folder = tmp_path_factory.mktemp("dora")
    wrapped = models.adapter(copy.deepcopy(models.trained("llama")[0]), folder / "lora", steps=5, use_dora=True)
    models.save(wrapped.merge_and_unload(), folder / "merged")
    return folder


def test_dora_is_merged_as_peft_merges_it(lastbit, made, dora, tmp_path):
    answer = lastbit.json("audit", dora / "lora", "--base", made / "base", "--merged", dora / "merged", expect=0)
    assert {(m["scaling"], m["factor"]) for m in answer["merged"]} == {("DoRA", 2.0)} and len(answer["merged"]) == 20
    plain = copy.deepcopy(models.trained("llama")[0])
    config = json.loads((dora / "lora" / "adapter_config.json").read_text())
    tensors = {n: t for n, t in load_file(dora / "lora" / "adapter_model.safetensors").items() if "magnitude" not in n}
    (tmp_path / "plain").mkdir()
    save_file(tensors, tmp_path / "plain" / "adapter_model.safetensors", metadata={"format": "pt"})
    (tmp_path / "plain" / "adapter_config.json").write_text(json.dumps(config | {"use_dora": False}))
    models.save(peft.PeftModel.from_pretrained(plain, tmp_path / "plain").merge_and_unload(), tmp_path / "merged")
    answer = lastbit.json("audit", dora / "lora", "--base", made / "base", "--merged", tmp_path / "merged", expect=1)
    assert {f["kind"] for f in answer["findings"]} == {"merge_differs"} and {m["scaling"] for m in answer["merged"]} == {"LoRA"}
    answer = lastbit.json("audit", dora / "lora", "--base", made / "base", "--merged", made / "base", expect=1)
    assert {f["kind"] for f in answer["findings"]} == {"unmerged"}


def test_lengths_that_dora_lacks_or_that_nobody_asks_for(lastbit, made, dora, tmp_path):
    tensors, name = load_file(dora / "lora" / "adapter_model.safetensors"), UP.format("A")
    lengths = next(n for n in tensors if "layers.2.mlp.up_proj.lora_magnitude_vector" in n)
    config = json.loads((dora / "lora" / "adapter_config.json").read_text())

    def audit(tensors, config):
        save_file(tensors, tmp_path / "adapter_model.safetensors", metadata={"format": "pt"})
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
        return found(lastbit.json("audit", tmp_path, "--base", made / "base", expect=1))

    assert ("adapter_partner", name, ()) in audit({n: t for n, t in tensors.items() if n != lengths}, config)
    assert ("shape", lengths, ()) in audit(tensors | {lengths: torch.ones(7)}, config)
    assert ("adapter_config", name, ()) in audit(tensors, config | {"use_dora": False})


class Stem(torch.nn.Module):
    """Two convolutions and a projection, as vision towers begin."""

    def __init__(self):
        super().__init__()
        self.patch, self.inner, self.head = torch.nn.Conv2d(3, 16, 4, 4, bias=False), torch.nn.Conv2d(16, 24, 3, bias=False), torch.nn.Linear(24, 8)

    def forward(self, x):
        return self.head(self.inner(self.patch(x)).mean((2, 3)))


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"use_dora": True}])
def test_adapters_of_convolutions_are_merged(lastbit, tmp_path, options):
    torch.manual_seed(9)
    model = Stem()
    save_file({n: p.detach().clone() for n, p in model.named_parameters()}, tmp_path / "base.safetensors")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["patch", "inner"], **options))
    x = torch.randn(32, 3, 24, 24)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    for _ in range(5):
        wrapped(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    wrapped.save_pretrained(tmp_path / "lora")
    merged = wrapped.merge_and_unload()
    save_file({n: p.detach().clone() for n, p in merged.named_parameters()}, tmp_path / "merged.safetensors")
    answer = lastbit.json("audit", tmp_path / "lora", "--base", tmp_path / "base.safetensors", "--merged", tmp_path / "merged.safetensors", expect=0)
    assert {m["module"] for m in answer["merged"]} == {"patch", "inner"} and {m["factor"] for m in answer["merged"]} == {
        4.0 if "use_rslora" in options else 2.0
    }
    table = {row["dtype"]: row for row in answer["precision"]}
    assert table["f32"]["rel_l2"] < 1e-5 < table["f16"]["rel_l2"] < table["bf16"]["rel_l2"] < table["e4m3fn"]["rel_l2"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_table_of_dora_is_what_peft_computes(lastbit, dora, made, tmp_path, dtype):
    from transformers import LlamaForCausalLM

    name = "model.layers.1.mlp.up_proj"
    x = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    save_file({name: torch.from_numpy(x)}, tmp_path / "x.safetensors")
    answer = lastbit.json("audit", dora / "lora", "--base", made / "base", "--inputs", tmp_path / "x.safetensors", expect=0)
    row = next(r for r in answer["modules"] if r["module"] == name and r["dtype"] == {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype])
    model = peft.PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(made / "base"), dora / "lora").to(dtype).eval()
    inputs = torch.from_numpy(x).to(dtype)
    with torch.no_grad():
        online = model.base_model.model.model.layers[1].mlp.up_proj(inputs).double()
        merged = model.merge_and_unload().model.layers[1].mlp.up_proj(inputs).double()
    expected = ((merged - online).norm() / online.norm()).item()
    assert row["rel_l2"] == pytest.approx(expected, rel=0.15)


# ---- without a base: what a description itself shows


def save_with_lost(rank, ranks, folder, tensors, lost):
    """Every tensor as a DTensor over the ranks, but for `lost`, of which each rank gives its own part under the one key."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (ranks,))
    state = {name: distribute_tensor(value, mesh, [Shard(0)]) for name, value in tensors.items() if name not in lost}
    dcp.save(state | {name: tensors[name].chunk(ranks, lost[name])[rank].clone() for name in lost}, checkpoint_id=str(folder))


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """An adapter of all three matrices of the gated MLP."""
    folder = tmp_path_factory.mktemp("gated")
    options = {"target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"]}
    models.adapter(copy.deepcopy(models.trained("llama")[0]), folder, steps=2, **options)
    return load_file(folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    "lost",
    [
        {UP.format("B"): 0},  # in one layer: its siblings tell
        pytest.param({UP.replace("layers.2", f"layers.{i}").format("B"): 0 for i in range(5)}, marks=pytest.mark.full),  # in all: its partners tell
        pytest.param({UP.replace("layers.2", f"layers.{i}").replace("up", "down").format("A"): 1 for i in range(5)}, marks=pytest.mark.full),
    ],
)
def test_shards_that_a_description_itself_lacks(lastbit, gated, tmp_path, lost):
    models.on_ranks(2, save_with_lost, tmp_path / "whole", gated, {})
    assert not lastbit.json("audit", tmp_path / "whole", expect=0)["findings"]
    models.on_ranks(2, save_with_lost, tmp_path / "lost", gated, lost)
    answer = lastbit.json("audit", tmp_path / "lost", expect=1)
    assert sorted((f["kind"], f["tensor"]) for f in answer["findings"]) == sorted(("shard_missing", name) for name in lost)
    assert all(len(f["ranks"]) == 1 and "1 part of 2" in f["message"] for f in answer["findings"])


# ---- what was lost on the way


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_an_adapter_that_was_cast_before_it_was_merged(lastbit, made, tmp_path, cast):
    """peft itself: the adapter in a narrow dtype beside a base in f32, and merged."""
    from transformers import LlamaForCausalLM

    wrapped = peft.PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(made / "base"), made / "lora")
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(cast)
    models.save(wrapped.merge_and_unload(), tmp_path / "merged")
    answer = lastbit.json("audit", made / "lora", "--base", made / "base", "--merged", tmp_path / "merged", expect=1)
    short = {torch.bfloat16: "bf16", torch.float16: "f16"}[cast]
    assert {f["kind"] for f in answer["findings"]} == {"merge_rounded"} and len(answer["findings"]) == 20
    assert all(f"were cast to {short} before they were merged into f32" in f["message"] for f in answer["findings"])
    assert {(m["scaling"], m["factor"]) for m in answer["merged"]} == {("alpha/r", 2.0)}


def test_an_adapter_saved_in_bf16_is_merged_as_it_is(lastbit, made, tmp_path):
    """Numbers that bf16 holds are not cast: nothing is lost."""
    from transformers import LlamaForCausalLM

    tensors = {k: v.bfloat16() for k, v in load_file(made / "lora" / "adapter_model.safetensors").items()}
    (tmp_path / "lora").mkdir()
    save_file(tensors, tmp_path / "lora" / "adapter_model.safetensors", metadata={"format": "pt"})
    (tmp_path / "lora" / "adapter_config.json").write_text((made / "lora" / "adapter_config.json").read_text())
    for dtype in (torch.float32, torch.bfloat16):
        base = LlamaForCausalLM.from_pretrained(made / "base", dtype=dtype)
        models.save(base, tmp_path / "base")
        models.save(peft.PeftModel.from_pretrained(base, tmp_path / "lora").merge_and_unload(), tmp_path / "merged")
        answer = lastbit.json("audit", tmp_path / "lora", "--base", tmp_path / "base", "--merged", tmp_path / "merged", expect=0)
        assert answer["findings"] == [] and len(answer["merged"]) == 20


def test_no_output_is_off_by_a_multiple_of_itself_alone(lastbit, wide):
    """Outputs near zero made 1005 % of a difference of one unit in the last place."""
    folder, _ = wide
    answer = lastbit.json("audit", "--adapter", folder / "lora", "--base", folder / "base.safetensors", expect=0)
    for row in answer["precision"]:
        assert row["rel_l2"] <= row["rel_max"] < 20 * row["rel_l2"]
