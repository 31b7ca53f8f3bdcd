"""Shards: those of ranks' files, and parts of distributed checkpoints. Each fault names tensor and ranks."""

import pickle
import shutil

import audit_models as models
import pytest
import torch
from safetensors.torch import save_file


def found(answer):
    return sorted((f["kind"], f["tensor"], tuple(f["ranks"])) for f in answer["findings"])


Q, DOWN, NORM = "model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.mlp.down_proj.weight", "model.layers.{}.input_layernorm.weight"


class Ranks:
    def __init__(self, folder, ranks):
        self.folder = folder
        self.shards = models.tensor_parallel(models.trained("llama")[0].state_dict(), ranks)

    def write(self, lastbit=None, expect=1):
        for rank, shard in enumerate(self.shards):
            path = self.folder / f"mp_rank_{rank:02}.safetensors"
            path.unlink(missing_ok=True)
            if shard is not None:
                save_file(shard, path)
        return lastbit and lastbit.json("audit", self.folder, expect=expect)


@pytest.fixture(params=[2, 4])
def ranks(request, tmp_path):
    return Ranks(tmp_path, request.param)


def test_equal_shards(lastbit, ranks):
    ranks.shards[1][Q.format(3)] = ranks.shards[0][Q.format(3)].clone()
    assert found(ranks.write(lastbit)) == [("shards_equal", Q.format(3), (0, 1))]


def test_a_module_whose_shards_are_all_equal(lastbit, ranks):
    """In no layer does rank 1 have its own: siblings say nothing, the module's name does."""
    for layer in range(5):
        for shard in ranks.shards[1:]:
            shard[DOWN.format(layer)] = ranks.shards[0][DOWN.format(layer)].clone()
    every = tuple(range(len(ranks.shards)))
    assert found(ranks.write(lastbit)) == [("shards_equal", DOWN.format(layer), every) for layer in range(5)]


def test_copies_are_no_shards(lastbit, tmp_path):
    state = models.trained("llama")[0].state_dict()
    for rank in range(2):
        save_file({k: v.clone() for k, v in state.items()}, tmp_path / f"rank-{rank}.safetensors")
    answer = lastbit.json("audit", tmp_path, expect=0)
    assert [n["kind"] for n in answer["notes"]] == ["shards_equal"]


def test_an_absent_shard(lastbit, ranks):
    del ranks.shards[1][Q.format(2)]
    assert found(ranks.write(lastbit)) == [("shard_missing", Q.format(2), (1,))]


def test_an_absent_rank(lastbit, tmp_path):
    ranks = Ranks(tmp_path, 4)
    ranks.shards[2] = None
    assert found(ranks.write(lastbit)) == [("shard_missing", None, (2,))]
    for rank, shard in enumerate(ranks.shards):
        (tmp_path / f"mp_rank_{rank:02}.safetensors").unlink(missing_ok=True)
        if rank != 3:
            save_file(shard or models.tensor_parallel(models.trained("llama")[0].state_dict(), 4)[2], tmp_path / f"m-{rank:05}-of-00004.safetensors")
    answer = lastbit.json("audit", tmp_path, expect=1)
    assert found(answer) == [("shard_missing", None, (3,))] and answer["findings"][0]["file"] == "m-00003-of-00004.safetensors"


def test_folders_of_ranks(lastbit, tmp_path):
    ranks = Ranks(tmp_path, 2)
    ranks.shards[1][Q.format(1)].zero_()
    for rank, shard in enumerate(ranks.shards):
        (tmp_path / f"tp_rank_{rank:02}").mkdir()
        torch.save({"model": shard}, tmp_path / f"tp_rank_{rank:02}" / "model.pt")
    assert found(lastbit.json("audit", tmp_path, expect=1)) == [("zero", "model." + Q.format(1), (1,))]


def test_a_norm_that_drifted(lastbit, ranks):
    ranks.shards[1][NORM.format(2)][5] += 0.5
    answer = ranks.write(lastbit)
    kinds = {(f["kind"], f["tensor"]) for f in answer["findings"]}
    assert kinds == {("replicas_differ", NORM.format(2))}


def test_shards_of_other_shapes(lastbit, ranks):
    ranks.shards[1][Q.format(2)] = torch.randn(7, 9)
    assert found(ranks.write(lastbit)) == [("shape", Q.format(2), (1,))]


def test_a_truncated_rank(lastbit, ranks):
    ranks.write()
    path = ranks.folder / "mp_rank_01.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    answer = lastbit.json("audit", ranks.folder, expect=1)
    assert found(answer) == [("truncated", None, (1,))] and answer["findings"][0]["file"] == path.name


def test_shards_are_put_together(lastbit, ranks, tmp_path):
    ranks.write()
    models.save(models.trained("llama")[0], tmp_path / "whole")
    answer = lastbit.json("audit", ranks.folder, "--against", tmp_path / "whole", expect=0)
    assert {p["verdict"] for p in answer["pairs"]} == {"identical"} and len(answer["pairs"]) == answer["tensors"]
    ranks.shards[1][DOWN.format(2)][3, 4] += 1
    ranks.write()
    answer = lastbit.json("audit", ranks.folder, "--against", tmp_path / "whole", expect=1)
    assert [(f["kind"], f["tensor"]) for f in answer["findings"]] == [("differs", DOWN.format(2))]
    (pair,) = [p for p in answer["pairs"] if p["verdict"] == "differs"]
    assert pair["index"] == [3, 4 + 96 // len(ranks.shards)] and pair["differing"] == 1 and pair["max_abs"] == pytest.approx(1, abs=1e-6)


# ---- distributed checkpoints


@pytest.fixture(scope="module")
def distributed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dcp") / "c"
    models.on_ranks(2, models.save_sharded, folder, models.trained("llama")[0].state_dict())
    return folder


def edit(folder, change):
    """Changes the description of a distributed checkpoint."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))


@pytest.fixture
def dcp(distributed, tmp_path):
    shutil.copytree(distributed, tmp_path / "c")
    return tmp_path / "c"


def part(metadata, name, rank):
    return next((index, info) for index, info in metadata.storage_data.items() if index.fqn == name and info.relative_path == f"__{rank}_0.distcp")


def move(metadata, name, rank, offset):
    import dataclasses

    index, info = part(metadata, name, rank)
    del metadata.storage_data[index]
    metadata.storage_data[dataclasses.replace(index, offset=torch.Size(offset))] = info


def test_a_part_that_is_not_there(lastbit, dcp):
    edit(dcp, lambda m: m.storage_data.pop(part(m, Q.format(2), 1)[0]))
    answer = lastbit.json("audit", dcp, expect=1)
    assert found(answer) == [("gap", Q.format(2), ())]
    assert "[32:64, 0:64] of [64, 64]" in answer["findings"][0]["message"]


def test_parts_that_overlap(lastbit, dcp):
    edit(dcp, lambda m: move(m, Q.format(1), 1, [16, 0]))
    answer = lastbit.json("audit", dcp, expect=1)
    assert found(answer) == [("overlap", Q.format(1), (0, 1))]
    assert "[16:32, 0:64]" in answer["findings"][0]["message"]


def test_a_part_out_of_range(lastbit, dcp):
    edit(dcp, lambda m: move(m, Q.format(1), 1, [48, 0]))
    assert found(lastbit.json("audit", dcp, expect=1)) == [("out_of_range", Q.format(1), (1,))]


def test_a_file_of_a_rank_that_is_not_there(lastbit, dcp):
    (dcp / "__1_0.distcp").unlink()
    answer = lastbit.json("audit", dcp, expect=1)
    assert {(f["kind"], tuple(f["ranks"])) for f in answer["findings"]} == {("shard_missing", (1,))}
    assert Q.format(0) in {f["tensor"] for f in answer["findings"]}


@pytest.mark.parametrize("part", range(1, 7))
def test_a_truncated_file_of_a_rank(lastbit, dcp, part):
    path = dcp / "__1_0.distcp"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * part // 7])
    answer = lastbit.json("audit", dcp, expect=1)
    assert {(f["kind"], tuple(f["ranks"])) for f in answer["findings"]} == {("truncated", (1,))}


def test_a_truncated_description(lastbit, dcp):
    whole = (dcp / ".metadata").read_bytes()
    for part in range(7):
        (dcp / ".metadata").write_bytes(whole[: len(whole) * part // 7])
        answer = lastbit.json("audit", dcp, expect=1)
        assert [(f["kind"], f["file"]) for f in answer["findings"]] == [("truncated", ".metadata")]


def test_equal_parts(lastbit, tmp_path):
    """Both ranks give the same local part: one rank's never got there."""
    state = models.trained("llama")[0].state_dict()
    local = state[Q.format(2)].chunk(2)[0]
    models.on_ranks(2, models.save_sharded, tmp_path / "c", state, {Q.format(2): [local, local]})
    assert found(lastbit.json("audit", tmp_path / "c", expect=1)) == [("shards_equal", Q.format(2), (0, 1))]


def test_parts_of_zero_are_not_equal_shards(lastbit, tmp_path):
    state = {f"layers.{i}.bias_table": torch.zeros(64, 8) for i in range(3)}
    models.on_ranks(2, models.save_sharded, tmp_path / "c", state)
    lastbit.json("audit", tmp_path / "c", expect=0)


# ---- ranks on several axes: DeepSpeed's ZeRO and pipeline, Megatron's stages


def flat_slots(rank, dp, n=64):
    """What ZeRO keeps of a rank: flat partitions of masters and moments (runtime/zero/stage_1_and_2.py)."""
    torch.manual_seed(rank)
    moments = {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(n), "exp_avg_sq": torch.rand(n)}}
    state = {
        "zero_stage": 2,
        "partition_count": [dp],
        "single_partition_of_fp32_groups": [torch.randn(n)],
        "base_optimizer_state": {"state": moments},
    }
    return {"optimizer_state_dict": state, "ds_version": "0.16.0"}


def save_zero(folder, dp, mp):
    """Names as deepspeed/runtime/engine.py gives them (_get_ckpt_name, _get_zero_ckpt_name)."""
    shards = models.tensor_parallel(models.trained("llama")[0].state_dict(), mp) if mp > 1 else [models.trained("llama")[0].state_dict()]
    for m, shard in enumerate(shards):
        torch.save({"module": shard, "dp_world_size": dp, "mp_world_size": mp}, folder / f"mp_rank_{m:02}_model_states.pt")
        for d in range(dp):
            torch.save(flat_slots(d * mp + m, dp), folder / f"zero_pp_rank_{d}_mp_rank_{m:02}_optim_states.pt")


@pytest.mark.parametrize("dp, mp", [(4, 1), (2, 2)])
def test_partitions_of_zero(lastbit, tmp_path, dp, mp):
    save_zero(tmp_path, dp, mp)
    whole = lastbit.json("audit", tmp_path, expect=0)
    assert whole["ranks"] == dp * mp and not whole["findings"]
    last = tmp_path / f"zero_pp_rank_{dp - 1}_mp_rank_{mp - 1:02}_optim_states.pt"
    last.unlink()  # of the last rank: the files themselves state how many there are
    (finding,) = lastbit.json("audit", tmp_path, expect=1)["findings"]
    assert (finding["kind"], finding["file"], finding["ranks"]) == ("shard_missing", last.name, [dp * mp - 1])


def test_shards_beside_partitions_of_zero(lastbit, tmp_path):
    save_zero(tmp_path, 2, 2)
    state = torch.load(tmp_path / "mp_rank_01_model_states.pt")
    del state["module"][Q.format(1)]
    torch.save(state, tmp_path / "mp_rank_01_model_states.pt")
    assert found(lastbit.json("audit", tmp_path, expect=1)) == [("shard_missing", "module." + Q.format(1), (1,))]
    (tmp_path / "mp_rank_01_model_states.pt").unlink()
    answer = lastbit.json("audit", tmp_path, expect=1)
    assert ("shard_missing", "mp_rank_01_model_states.pt", [1]) in [(f["kind"], f["file"], f["ranks"]) for f in answer["findings"]]


def test_files_of_layers_of_a_pipeline(lastbit, tmp_path):
    """layer_LL-model_MM-model_states.pt (runtime/pipe/module.py): a layer is in the files of all its tensor ranks; layers may be missing numbers."""
    shards = models.tensor_parallel(models.trained("llama")[0].state_dict(), 2)
    for m, shard in enumerate(shards):
        for layer in range(5):
            own = {n.split(f"layers.{layer}.")[1]: t for n, t in shard.items() if f"layers.{layer}." in n}
            torch.save(own, tmp_path / f"layer_{2 * layer + 1:02}-model_{m:02}-model_states.pt")
    lastbit.json("audit", tmp_path, expect=0)
    (tmp_path / "layer_05-model_01-model_states.pt").unlink()
    answer = lastbit.json("audit", tmp_path, expect=1)
    assert [(f["kind"], f["file"], f["ranks"]) for f in answer["findings"]] == [("shard_missing", "layer_05-model_01-model_states.pt", [1])]


def save_stages(folder, tp, pp):
    """mp_rank_TT_PPP/model_optim_rng.pt, layers numbered from 0 in each stage (megatron/training/checkpointing.py)."""
    state = models.trained("llama")[0].state_dict()
    for t, shard in enumerate(models.tensor_parallel(state, tp)):
        for p in range(pp):
            own = {n.replace(f"layers.{2 * p + i}.", f"layers.{i}."): v for i in range(2) for n, v in shard.items() if f"layers.{2 * p + i}." in n}
            own |= {n: v for n, v in shard.items() if "embed_tokens" in n and p == 0 or "lm_head" in n and p == pp - 1}
            (folder / f"mp_rank_{t:02}_{p:03}").mkdir()
            torch.save({"model": own}, folder / f"mp_rank_{t:02}_{p:03}" / "model_optim_rng.pt")


def test_stages_of_a_pipeline_hold_what_they_hold(lastbit, tmp_path):
    save_stages(tmp_path, 2, 2)
    assert lastbit.json("audit", tmp_path, expect=0)["ranks"] == 4
    path = tmp_path / "mp_rank_01_001" / "model_optim_rng.pt"
    state = torch.load(path)
    del state["model"][Q.format(1)]
    torch.save(state, path)
    assert found(lastbit.json("audit", tmp_path, expect=1)) == [("shard_missing", "model." + Q.format(1), (3,))]
    shutil.rmtree(path.parent)
    (finding,) = lastbit.json("audit", tmp_path, expect=1)["findings"]
    assert (finding["kind"], finding["file"], finding["ranks"]) == ("shard_missing", "mp_rank_01_001/model_optim_rng.pt", [3])
