"""Adapters of every kind that peft makes of a model: none is found fault with, and what is lost in merging is named."""

import copy
import json

import audit_models as models
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

HALVES = ["q_proj", "up_proj"]
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
# name: model, its modules, options of LoraConfig
KINDS = {
    "embedding": ("llama", ["embed_tokens", "lm_head", "q_proj"], {}),
    "saved whole": ("llama", HALVES, {"modules_to_save": ["lm_head", "input_layernorm"]}),
    "saved whole, with lengths": ("llama", HALVES, {"modules_to_save": ["embed_tokens"], "use_dora": True}),
    "every bias": ("qwen2", ["q_proj", "o_proj"], {"bias": "all"}),
    "biases of B": ("qwen2", ["q_proj", "k_proj"], {"lora_bias": True}),
    "rows of the embedding": ("llama", HALVES, {"trainable_token_indices": [1, 5, 3]}),
    "patterns": (
        "llama",
        HALVES,
        {
            "use_rslora": True,
            "rank_pattern": {"q_proj": 4, r"^model\.layers\.1\.mlp\.up_proj": 2},
            "alpha_pattern": {r"layers\.[12]\.self_attn\.q_proj": 32},
        },
    ),
    "a layer left out": ("llama", HALVES, {"exclude_modules": r".*layers\.2\..*"}),
    "a module left out": ("llama", HALVES, {"exclude_modules": ["layers.2.mlp.up_proj"]}),
    "some layers": ("llama", HALVES, {"layers_to_transform": [0, 1, 3, 4], "layers_pattern": "layers"}),
    "an expression": ("llama", r"model\.layers\.[0134]\.self_attn\.(q|v)_proj", {}),
    "transposed": ("gpt2", ["c_attn", "c_proj"], {}),  # attention's c_proj is square
    "transposed, with lengths": ("gpt2", ["c_proj"], {"use_dora": True}),
    "experts": ("qwen3moe", ["q_proj"], {"target_parameters": EXPERTS}),
    "experts by their old names": ("qwen3moe", ["q_proj", "gate", "gate_proj", "up_proj", "down_proj"], {}),
    "an orthogonal beginning": ("llama", HALVES, {"init_lora_weights": "olora"}),
}


def make(folder, name, targets, kind=peft.LoraConfig, steps=3, **options):
    """The base, an adapter that learnt something, and peft's own merge of both."""
    model = copy.deepcopy(models.trained(name)[0])
    models.save(model, folder / "base")
    torch.manual_seed(3)
    settings = {"r": 8, "lora_alpha": 16, "target_modules": targets, **options}
    wrapped = peft.get_peft_model(model, kind(**settings))
    models.train(wrapped, steps=steps, lr=2e-3)
    wrapped.save_pretrained(folder / "lora")
    models.save(wrapped.merge_and_unload(), folder / "merged")
    return folder


def audit(lastbit, folder, expect=0, merged="merged"):
    return lastbit.json("audit", folder / "lora", "--base", folder / "base", "--merged", folder / merged, expect=expect)


@pytest.mark.parametrize("kind", KINDS)
def test_what_peft_makes_and_merges_is_clean(lastbit, tmp_path, kind):
    name, targets, options = KINDS[kind]
    make(tmp_path, name, targets, **options)
    answer = audit(lastbit, tmp_path)
    assert answer["findings"] == [] and answer["merged"], "every module that has halves is judged"
    explained = {m["scaling"] for m in answer["merged"]} <= {"alpha/r", "alpha/sqrt(r)", "DoRA"}
    assert explained == ("init_lora_weights" not in options)
    expected = {"experts": {"adapter_rank"}, "experts by their old names": {"adapter_rank"}, "an orthogonal beginning": {"merge_differs"}}
    assert {n["kind"] for n in answer["notes"]} == expected.get(kind, set())


def test_ranks_that_training_prunes(lastbit, tmp_path):
    options = {"init_r": 8, "target_r": 4, "total_step": 10, "tinit": 1, "tfinal": 2, "deltaT": 1}
    make(tmp_path, "llama", ["q_proj", "v_proj"], peft.AdaLoraConfig, **options)
    answer = audit(lastbit, tmp_path)
    assert answer["findings"] == [] and all(m["factor"] == pytest.approx(2, rel=1e-5) for m in answer["merged"])
    path = tmp_path / "lora" / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(n for n in tensors if "layers.2.self_attn.q_proj.lora_E" in n)
    save_file(tensors | {name: tensors[name] * 3 + 1}, path, metadata={"format": "pt"})
    assert "merge_differs" in [f["kind"] for f in audit(lastbit, tmp_path, expect=1)["findings"]]


def test_modules_that_a_library_renames_on_loading(lastbit, tmp_path):
    make(tmp_path, "llama", ["q_proj"])
    base = load_file(tmp_path / "base" / "model.safetensors")
    save_file({n.replace("self_attn.q_proj", "attention.query"): t for n, t in base.items()}, tmp_path / "base" / "model.safetensors")
    answer = lastbit.json("audit", tmp_path / "lora", "--base", tmp_path / "base", expect=1)
    assert {f["kind"] for f in answer["findings"]} == {"adapter_target"} and "--map" in answer["findings"][0]["message"]
    rule = ["--map", "s/self_attn.q_proj/attention.query/"]
    answer = lastbit.json("audit", tmp_path / "lora", "--base", tmp_path / "base", *rule, expect=0)
    assert len(answer["modules"]) == 20


# ---- what a merge loses


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Modules saved whole, rows of an embedding and biases of B in one adapter."""
    options = {"modules_to_save": ["lm_head"], "trainable_token_indices": [1, 5, 3], "lora_bias": True}
    return make(tmp_path_factory.mktemp("everything"), "qwen2", ["q_proj", "k_proj"], **options)


LOST = {
    "lm_head.weight": "was saved whole",
    "model.embed_tokens.weight": "trainable_token_indices trained",
    "model.layers.1.self_attn.q_proj.bias": "a bias of B",
}


@pytest.mark.parametrize("name", LOST)
def test_what_is_not_merged_and_what_is_merged_wrongly(lastbit, everything, tmp_path, name):
    assert audit(lastbit, everything)["findings"] == []
    base, merged = (load_file(everything / which / "model.safetensors") for which in ("base", "merged"))
    for value, kind in [(base[name], "unmerged"), (merged[name] * 1.5, "merge_differs")]:
        save_file(merged | {name: value}, tmp_path / "model.safetensors")
        answer = lastbit.json("audit", everything / "lora", "--base", everything / "base", "--merged", tmp_path, expect=1)
        assert [(f["kind"], f["tensor"]) for f in answer["findings"]] == [(kind, name)]
        assert LOST[name] in answer["findings"][0]["message"]


def test_a_saved_module_of_another_shape_and_one_that_is_not_there(lastbit, everything, tmp_path):
    merged = load_file(everything / "merged" / "model.safetensors")
    save_file(merged | {"lm_head.weight": merged["lm_head.weight"][:100].clone()}, tmp_path / "model.safetensors")
    arguments = ["audit", everything / "lora", "--base", everything / "base", "--merged", tmp_path]
    assert ("shape", "lm_head.weight") in [(f["kind"], f["tensor"]) for f in lastbit.json(*arguments, expect=1)["findings"]]
    del merged["lm_head.weight"]
    save_file(merged, tmp_path / "model.safetensors")
    assert [(f["kind"], f["tensor"]) for f in lastbit.json(*arguments, expect=1)["findings"]] == [("missing", "lm_head.weight")]


def test_a_layer_that_is_lost_although_others_are_left_out(lastbit, tmp_path):
    """What the configuration leaves out is no finding; what it asks for and the adapter lacks is one."""
    make(tmp_path, "llama", HALVES, exclude_modules=["layers.2.mlp.up_proj"])
    path = tmp_path / "lora" / "adapter_model.safetensors"
    tensors = {n: t for n, t in load_file(path).items() if "layers.3.self_attn.q_proj" not in n}
    save_file(tensors, path, metadata={"format": "pt"})
    answer = lastbit.json("audit", tmp_path / "lora", "--base", tmp_path / "base", expect=1)
    assert {f["kind"] for f in answer["findings"]} == {"missing"} and {"layers.3.self_attn.q_proj" in f["tensor"] for f in answer["findings"]} == {
        True
    }


def test_ranks_of_experts_that_the_configuration_does_not_say(lastbit, tmp_path):
    make(tmp_path, "qwen3moe", ["q_proj"], target_parameters=EXPERTS)
    path = tmp_path / "lora" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rank_pattern": {"experts": 5, "gate_up_proj": 5, "down_proj": 5}}))
    answer = lastbit.json("audit", tmp_path / "lora", expect=1)
    assert {f["kind"] for f in answer["findings"]} == {"adapter_rank"} and len(answer["findings"]) == 10


@pytest.mark.parametrize(("lose", "kind"), [(lambda t: torch.zeros(0), "empty"), (lambda t: t.flatten(), "shape")])
def test_halves_of_parameters_that_were_not_gathered(lastbit, everything, tmp_path, lose, kind):
    """DeepSpeed's ZeRO-3 leaves [0] of a parameter, FSDP's flattened ones one dimension; peft itself warns of both."""
    for name in ["adapter_config.json", "adapter_model.safetensors"]:
        (tmp_path / name).write_bytes((everything / "lora" / name).read_bytes())
    path = tmp_path / "adapter_model.safetensors"
    tensors = load_file(path)
    halves = {n for n in tensors if n.endswith(("lora_A.weight", "lora_B.weight"))}
    save_file({n: lose(t) if n in halves else t for n, t in tensors.items()}, path, metadata={"format": "pt"})
    for base in [[], ["--base", everything / "base"]]:
        answer = lastbit.json("audit", tmp_path, *base, expect=1)
        assert {(f["kind"], f["tensor"]) for f in answer["findings"]} == {(kind, n) for n in halves}


# ---- convolutions of groups


class Grouped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.head = torch.nn.Conv2d(8, 12, 3, groups=4, bias=False), torch.nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.mix(x).mean((2, 3)))


def test_a_grouped_convolution_that_no_weight_can_hold(lastbit, tmp_path):
    """peft's A reads the inputs of every group: it works online, and peft refuses to merge it."""
    torch.manual_seed(4)
    model = Grouped()
    save_file({n: p.detach().clone() for n, p in model.named_parameters()}, tmp_path / "base.safetensors")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules=["mix"]))
    torch.nn.init.normal_(wrapped.base_model.model.mix.lora_B["default"].weight)
    wrapped.save_pretrained(tmp_path / "lora")
    with pytest.raises(NotImplementedError):
        wrapped.merge_and_unload()
    answer = lastbit.json("audit", tmp_path / "lora", "--base", tmp_path / "base.safetensors", expect=0)
    assert [n["kind"] for n in answer["notes"]] == ["adapter_rank"] and "4 groups" in answer["notes"][0]["message"]
    merged = ["--merged", tmp_path / "base.safetensors"]
    answer = lastbit.json("audit", tmp_path / "lora", "--base", tmp_path / "base.safetensors", *merged, expect=1)
    assert [(f["kind"], f["tensor"]) for f in answer["findings"]] == [("unmerged", "mix.weight")]


@pytest.mark.parametrize("fault", [False, True])
def test_a_grouped_convolution_whose_halves_are_both_grouped(lastbit, tmp_path, fault):
    """Each group's own A and B: torch's grouped convolutions, online, are what the merged weight computes."""
    torch.manual_seed(5)
    groups, w, a, b = 4, torch.randn(12, 2, 3, 3), torch.randn(8, 2, 3, 3), torch.randn(12, 2, 1, 1)
    product = torch.cat([(bg.flatten(1) @ ag.flatten(1)).view(3, 2, 3, 3) for ag, bg in zip(a.chunk(groups), b.chunk(groups), strict=True)])
    merged, x = w + 2 * product, torch.randn(2, 8, 9, 9)
    conv = torch.nn.functional.conv2d
    online = conv(x, w, groups=groups) + 2 * conv(conv(x, a, groups=groups), b, groups=groups)
    torch.testing.assert_close(conv(x, merged, groups=groups), online, rtol=1e-4, atol=1e-4)
    (tmp_path / "lora").mkdir()
    halves = {"base_model.model.mix.lora_A.weight": a, "base_model.model.mix.lora_B.weight": b}
    save_file(halves, tmp_path / "lora" / "adapter_model.safetensors")
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["mix"]}))
    save_file({"mix.weight": w}, tmp_path / "base.safetensors")
    save_file({"mix.weight": merged.roll(3, 0) if fault else merged}, tmp_path / "merged.safetensors")
    arguments = ["audit", tmp_path / "lora", "--base", tmp_path / "base.safetensors", "--merged", tmp_path / "merged.safetensors"]
    answer = lastbit.json(*arguments, expect=1 if fault else 0)
    assert [f["kind"] for f in answer["findings"]] == ["merge_differs"] * fault
    assert fault or [m["factor"] for m in answer["merged"]] == [2]
    assert len(answer["modules"]) == 4, "online against merged in each precision"
