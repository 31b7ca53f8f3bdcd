"""Conversions without a map: tensors meet by their numbers, and one layer that was converted as no other was is the finding."""

import pickle

import audit_models as models
import pytest
import torch
import transformers
from safetensors.torch import load_file

LAYERS, HEADS, KV = 5, 4, 2


@pytest.fixture(scope="module")
def state():
    return models.weights("llama")


def found(answer):
    return [(f["kind"], f["tensor"]) for f in answer["findings"]]


def layer(state, i):
    """(attention's q k v o, mlp's gate up down, the two norms) of a layer."""
    at = f"model.layers.{i}."
    attention = [state[f"{at}self_attn.{w}_proj.weight"] for w in "qkvo"]
    mlp = [state[f"{at}mlp.{w}_proj.weight"] for w in ("gate", "up", "down")]
    return attention, mlp, [state[f"{at}{n}_layernorm.weight"] for n in ("input", "post_attention")]


def ends(state, embed, norm, head):
    return {embed: state["model.embed_tokens.weight"], norm: state["model.norm.weight"], head: state["lm_head.weight"]}


def grouped(q, k, v, groups):
    return torch.cat([p[g] for g in range(groups) for p in (q.chunk(groups), k.chunk(groups), v.chunk(groups))])


def interleaved(w, heads):
    """Rows of halves as pairs, as llama.cpp's converter permutes q and k for its rotation."""
    return w.view(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def megatron(state, odd=None):
    out = ends(state, "embedding.word_embeddings.weight", "decoder.final_layernorm.weight", "output_layer.weight")
    for i in range(LAYERS):
        (q, k, v, o), (gate, up, down), (first, second) = layer(state, i)
        at = f"decoder.layers.{i}."
        out |= {
            f"{at}self_attention.linear_qkv.weight": grouped(q, k, v, 1 if (i, "groups") == odd else KV),
            f"{at}self_attention.linear_proj.weight": o,
        }
        out |= {f"{at}self_attention.linear_qkv.layer_norm_weight": first, f"{at}mlp.linear_fc1.layer_norm_weight": second}
        fc1 = [up, gate] if (i, "gate") == odd else [gate, up]
        out |= {f"{at}mlp.linear_fc1.weight": torch.cat(fc1), f"{at}mlp.linear_fc2.weight": down}
    return out


def vllm(state, odd=None):
    out = ends(state, "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    for i in range(LAYERS):
        (q, k, v, o), (gate, up, down), (first, second) = layer(state, i)
        at = f"model.layers.{i}."
        fused = [k, q, v] if (i, "order") == odd else [q, k, v]
        out |= {f"{at}self_attn.qkv_proj.weight": torch.cat(fused), f"{at}self_attn.o_proj.weight": o.T if (i, "turned") == odd else o}
        out |= {f"{at}mlp.gate_up_proj.weight": torch.cat([up, gate] if (i, "gate") == odd else [gate, up]), f"{at}mlp.down_proj.weight": down}
        out |= {f"{at}input_layernorm.weight": first, f"{at}post_attention_layernorm.weight": second}
    return out


def gguf(state, odd=None):
    out = ends(state, "token_embd.weight", "output_norm.weight", "output.weight")
    for i in range(LAYERS):
        (q, k, v, o), (gate, up, down), (first, second) = layer(state, i)
        q = q if (i, "rotation") == odd else interleaved(q, HEADS)
        names = {"attn_q": q, "attn_k": interleaved(k, KV), "attn_v": v, "attn_output": o, "ffn_gate": gate, "ffn_up": up, "ffn_down": down}
        out |= {f"blk.{i}.{n}.weight": t for n, t in names.items()} | {f"blk.{i}.attn_norm.weight": first, f"blk.{i}.ffn_norm.weight": second}
    return out


def turned(state, odd=None):
    """As Conv1D or JAX keep matrices; o_proj is square."""
    return {k: v.T if "proj" in k and k != odd else v for k, v in state.items()}


WAYS = {"megatron": megatron, "vllm": vllm, "gguf": gguf, "turned": turned}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
def test_a_conversion_is_seen_through(lastbit, state, tmp_path, way, dtype):
    there = models.write(tmp_path, "there", {k: v.to(dtype) for k, v in WAYS[way](state).items()})
    here = models.write(tmp_path, "here", state)
    for pair in [(here, there), (there, here)]:
        answer = lastbit.json("audit", pair[0], "--against", pair[1], expect=0)
        assert not answer["findings"] and not answer["notes"]
        assert {p["verdict"] for p in answer["pairs"]} == {"identical" if dtype == torch.float32 else "cast"}


ODD = [
    ("megatron", (2, "gate"), "decoder.layers.2.mlp.linear_fc1.weight"),
    ("megatron", (3, "groups"), "decoder.layers.3.self_attention.linear_qkv.weight"),
    ("vllm", (1, "gate"), "model.layers.1.mlp.gate_up_proj.weight"),
    ("vllm", (4, "order"), "model.layers.4.self_attn.qkv_proj.weight"),
    ("vllm", (0, "turned"), "model.layers.0.self_attn.o_proj.weight"),
    ("gguf", (2, "rotation"), "blk.2.attn_q.weight"),
    ("turned", "model.layers.3.self_attn.o_proj.weight", "model.layers.3.self_attn.o_proj.weight"),
]


@pytest.mark.parametrize("way, odd, name", ODD)
def test_one_layer_that_was_converted_in_another_way(lastbit, state, tmp_path, way, odd, name):
    """Every number is there, so that no tensor differs; its siblings tell."""
    there, here = models.write(tmp_path, "there", WAYS[way](state, odd)), models.write(tmp_path, "here", state)
    answer = lastbit.json("audit", here, "--against", there, expect=1)
    assert {f["kind"] for f in answer["findings"]} == {"arranged"} and len(answer["findings"]) == 1
    assert name in answer["findings"][0]["message"]
    answer = lastbit.json("audit", there, "--against", here, expect=1)
    assert {f["kind"] for f in answer["findings"]} == {"arranged"} and {f["tensor"] for f in answer["findings"]} == {name}


def test_two_layers_exchanged(lastbit, state, tmp_path):
    swapped = {k.replace("layers.1.", "layers.x.").replace("layers.3.", "layers.1.").replace("layers.x.", "layers.3."): v for k, v in state.items()}
    answer = lastbit.json("audit", models.write(tmp_path, "a", swapped), "--against", models.write(tmp_path, "b", state), expect=1)
    assert {f["kind"] for f in answer["findings"]} == {"arranged"}
    assert {f["tensor"].split(".")[2] for f in answer["findings"]} == {"1", "3"} and len(answer["findings"]) == 18


@pytest.mark.parametrize("way", ["megatron", "gguf"])
def test_a_number_that_differs_behind_a_conversion(lastbit, state, tmp_path, way):
    here = models.write(tmp_path, "here", state)
    for name in [n for n in WAYS[way](state) if ".2." in n and "norm" not in n]:
        changed = WAYS[way](state)
        changed[name] = changed[name].clone()
        changed[name][7, 3] += 0.5
        answer = lastbit.json("audit", models.write(tmp_path, "there", changed), "--against", here, expect=1)
        assert found(answer) == [("differs", name)], name
        (pair,) = [p for p in answer["pairs"] if p["verdict"] != "identical"]
        assert pair["differing"] == 1 and pair["max_abs"] == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("way", ["megatron", "vllm"])
def test_a_rounding_behind_a_conversion(lastbit, state, tmp_path, way):
    """Both sides were rounded: no number is equal, the signs are, but for those that f16 loses."""
    state = {name: weight.clone() for name, weight in state.items()}
    for name, weight in state.items():
        if weight.ndim == 2:
            weight[3, 5] = 1e-8
    here = models.write(tmp_path, "here", {k: v.to(torch.float16).float() for k, v in state.items()})
    there = models.write(tmp_path, "there", {k: v.to(torch.bfloat16) for k, v in WAYS[way](state).items()})
    answer = lastbit.json("audit", there, "--against", here)
    assert not [f for f in answer["findings"] if f["kind"] in ("missing", "unexpected", "arranged")]
    assert {p["other"] for p in answer["pairs"]} == set(state)


@pytest.mark.parametrize("prefix", ["model.", "module.", "base.model."])
def test_a_prefix(lastbit, state, tmp_path, prefix):
    """Fresh norms are all one: only names tell them apart; a weight that differs keeps its name."""
    fresh = {k: v.detach() for k, v in models.fresh("llama").state_dict().items()}
    here, there = models.write(tmp_path, "here", fresh), models.write(tmp_path, "there", {prefix + k: v for k, v in fresh.items()})
    for pair in [(here, there), (there, here)]:
        answer = lastbit.json("audit", pair[0], "--against", pair[1], expect=0)
        assert not answer["findings"] and len(answer["pairs"]) == len(fresh)
    trained = models.write(tmp_path, "trained", {prefix + k: v for k, v in state.items()})
    answer = lastbit.json("audit", here, "--against", trained, expect=1)
    assert {f["kind"] for f in answer["findings"]} == {"differs"} and len(answer["pairs"]) == len(fresh)


# Inside a layer of transformers' vision models: what timm and DINOv2's own code call differently, and what they fuse.
TIMM = {
    "attention.o_proj": "attn.proj",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
}
TIMM |= {"mlp.down_proj": "mlp.w3"}
FUSED = {"attn.qkv": ["attention.q_proj", "attention.k_proj", "attention.v_proj"], "mlp.w12": ["mlp.gate_proj", "mlp.up_proj"]}


def timm(ours, odd=None):
    """`odd`: a layer and the fused matrix of it whose parts are in another order."""
    out = {}
    for name, value in ours.items():
        numbers = [w for w in name.split(".") if w.isdigit()]
        if not numbers:
            out[name.replace("embeddings.", "").replace("patch_embeddings.projection", "patch_embed.proj").replace("layernorm", "norm")] = value
            continue
        inner = name.split(f".{numbers[0]}.")[1]
        if any(inner.startswith(part) for parts in FUSED.values() for part in parts):
            continue
        for old, new in TIMM.items():
            inner = inner.replace(old, new)
        out[f"blocks.{numbers[0]}.{inner}"] = value
    for fused, parts in FUSED.items():
        for name in [n for n in ours if parts[0] in n]:
            i, kind = next(w for w in name.split(".") if w.isdigit()), name.rsplit(".", 1)[1]
            tensors = [ours[name.replace(parts[0], part)] for part in parts]
            out[f"blocks.{i}.{fused}.{kind}"] = torch.cat(tensors[::-1] if (i, fused) == odd else tensors)
    return out


@pytest.mark.parametrize("name, options, fused", [("ViT", {"intermediate_size": 96}, "attn.qkv"), ("Dinov2", {"use_swiglu_ffn": True}, "mlp.w12")])
def test_names_of_vision_models(lastbit, tmp_path, name, options, fused):
    torch.manual_seed(6)
    config = getattr(transformers, f"{name}Config")(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=4, image_size=32, patch_size=8, **options
    )
    ours = {k: torch.randn_like(v) for k, v in getattr(transformers, f"{name}Model")(config).state_dict().items()}
    assert any(part in k for part in FUSED[fused] for k in ours), "transformers' names have changed"
    here, there = models.write(tmp_path, "here", ours), models.write(tmp_path, "there", timm(ours))
    for pair in [(here, there), (there, here)]:
        answer = lastbit.json("audit", pair[0], "--against", pair[1], expect=0)
        assert {p["verdict"] for p in answer["pairs"]} == {"identical"}
    answer = lastbit.json("audit", models.write(tmp_path, "odd", timm(ours, ("2", fused))), "--against", here, expect=1)
    assert sorted(found(answer)) == [("arranged", f"blocks.2.{fused}.bias"), ("arranged", f"blocks.2.{fused}.weight")]


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    """transformers' own two forms of a mixture: what a process holds has the experts stacked, what it saves has them one by one."""
    config = transformers.MixtralConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_local_experts=4, vocab_size=200)
    config.num_attention_heads = config.num_key_value_heads = 4
    model = transformers.MixtralForCausalLM(config)
    torch.manual_seed(9)
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})
    folder = tmp_path_factory.mktemp("mixtral")
    model.save_pretrained(folder)
    live, saved = dict(model.state_dict()), load_file(folder / "model.safetensors")
    assert live["model.layers.0.mlp.experts.gate_up_proj"].ndim == 3 and EXPERT.format(0, 0, "w1") in saved, "transformers' names have changed"
    return live, saved


EXPERT = "model.layers.{}.block_sparse_moe.experts.{}.{}.weight"


@pytest.mark.parametrize("odd", [None, "gate and up of one expert", "two experts"])
def test_experts_one_by_one_and_stacked(lastbit, mixtral, tmp_path, odd):
    """A number in a name on one side is a place in a tensor on the other: experts, too, are siblings."""
    live, saved = mixtral[0], dict(mixtral[1])
    exchanged = {None: [], "gate and up of one expert": [((2, "w1"), (2, "w3"))], "two experts": [((2, w), (3, w)) for w in ("w1", "w2", "w3")]}[odd]
    for pair in exchanged:
        one, two = (EXPERT.format(1, *which) for which in pair)
        saved[one], saved[two] = saved[two], saved[one]
    here, there = models.write(tmp_path, "here", live), models.write(tmp_path, "there", saved)
    fused = ["down_proj", "gate_up_proj"] if odd == "two experts" else ["gate_up_proj"] * bool(odd)
    answer = lastbit.json("audit", here, "--against", there, expect=int(bool(odd)))
    assert sorted(found(answer)) == [("arranged", f"model.layers.1.mlp.experts.{w}") for w in fused]
    assert all(EXPERT.format(1, 2, "")[:-7] in f["message"] and "of matrix " in f["message"] for f in answer["findings"])
    answer = lastbit.json("audit", there, "--against", here, expect=int(bool(odd)))
    assert len(answer["findings"]) == len(fused) and all(kind == "arranged" and ".layers.1." in name for kind, name in found(answer))


@pytest.mark.parametrize("odd", [None, "self_attn.q_proj", "input_layernorm"])
def test_layers_one_by_one_and_stacked(lastbit, state, tmp_path, odd):
    """As programs that scan over layers keep them; two layers of one weight are exchanged."""
    there = {}
    for name, value in state.items():
        if ".layers.0." not in name:
            there[name] = value if ".layers." not in name else there.get(name)
            continue
        order = [0, 3, 2, 1, 4] if odd and odd in name else range(LAYERS)
        there[name.replace(".layers.0.", ".layers.")] = torch.stack([state[name.replace(".0.", f".{i}.")] for i in order])
    there = {name: value for name, value in there.items() if value is not None}
    here, there = models.write(tmp_path, "here", state), models.write(tmp_path, "there", there)
    answer = lastbit.json("audit", there, "--against", here, expect=int(bool(odd)))
    assert found(answer) == [("arranged", f"model.layers.{odd}.weight")] * bool(odd)


def test_weights_are_judged_apart_from_the_state_of_a_run(lastbit, state, tmp_path):
    _, optimizer = models.trained("llama")
    whole = {"model": state, "optimizer": pickle.loads(pickle.dumps(optimizer.state_dict())), "rng_state": torch.get_rng_state(), "step": 3}
    torch.save(whole, tmp_path / "run.pt")
    here = models.write(tmp_path, "here", state)
    for pair in [(tmp_path / "run.pt", here), (here, tmp_path / "run.pt")]:
        answer = lastbit.json("audit", pair[0], "--against", pair[1], expect=0)
        assert len(answer["pairs"]) == len(state) and {p["verdict"] for p in answer["pairs"]} == {"identical"}
        (note,) = answer["notes"]
        assert "state of a run" in note["message"]
    del whole["optimizer"]["state"][4]["exp_avg"]
    torch.save(whole, tmp_path / "lost.pt")
    answer = lastbit.json("audit", tmp_path / "lost.pt", "--against", tmp_path / "run.pt", expect=1)
    assert ("optimizer_missing", "optimizer.state.4.exp_avg") in found(answer)


def test_shards_of_ranks_under_other_names(lastbit, state, tmp_path):
    """Column and row parallel shards of a Megatron folder against the whole under Hugging Face's names."""
    renamed = {k.replace("model.layers", "decoder.layers").replace("self_attn", "self_attention"): v for k, v in state.items()}
    renamed = {k.replace("q_proj", "query").replace("o_proj", "linear_proj") if "atten" in k else k: v for k, v in renamed.items()}
    for rank in range(2):
        shard = {}
        for k, v in renamed.items():
            column = any(w in k for w in ("query", "k_proj", "v_proj", "gate_proj", "up_proj", "embed", "lm_head"))
            shard[k] = v.chunk(2, 0)[rank] if column else v.chunk(2, 1)[rank] if "linear_proj" in k or "down_proj" in k else v
        models.write(tmp_path, f"mp_rank_{rank:02}", shard)
    (tmp_path / "whole").mkdir()
    whole = models.write(tmp_path / "whole", "model", state)
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(2):
        (tmp_path / f"mp_rank_{rank:02}.safetensors").rename(folder / f"mp_rank_{rank:02}.safetensors")
    answer = lastbit.json("audit", folder, "--against", whole, expect=0)
    assert {p["verdict"] for p in answer["pairs"]} == {"identical"} and {p["other"] for p in answer["pairs"]} == set(state)
