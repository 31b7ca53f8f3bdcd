"""One model that is given the same tokens in other steps, as a server is that decodes from a cache beside a trainer that runs them all at once: one function,
and every fault by its place."""

import pytest

PROGRAM = "tests/programs/other_steps.py"


@pytest.fixture
def recorded(recordings):
    return lambda *words, program=PROGRAM: recordings(*words, program=program)


@pytest.mark.parametrize("first, second", [("whole", "decode"), ("chunks", "whole"), ("whole", "rows"), ("decode", "chunks")])
def test_the_same_tokens_in_other_steps_are_one_function(lastbit, recorded, first, second):
    answer = lastbit.json("diff", recorded(first), recorded(second), expect=0)
    assert answer["verdict"] == "rounding" and answer["implementations"] and not answer["missing"]


@pytest.mark.parametrize("second, fault, layer, op", [
    ("decode", "eps", "model.layers.1.input_layernorm", "aten::add.Tensor"),
    ("rows", "scale", "model.layers.1.self_attn", "aten::_scaled_dot_product_flash_attention_for_cpu"),
    ("chunks", "act", "model.layers.1.mlp.act_fn", "aten::silu"),
    ("decode", "position", "model.rotary_emb", "aten::mul.Tensor"),
    ("decode", "stale", "model.layers.1.self_attn", "aten::cat"),
])  # fmt: skip
def test_a_fault_of_a_server_is_the_one_place_that_differs(lastbit, recorded, second, fault, layer, op):
    answer = lastbit.json("diff", recorded("whole"), recorded(second, "--fault", fault), expect=1)
    assert answer["verdict"] == "diverged"
    assert [(d["layer"], d["layer_b"], d["op"]) for d in answer["differences"]] == [(layer, layer, op)]
    assert answer["differences"][0]["ranks_b"] in ([0], [])


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_what_generate_wrote_is_scored_as_one_function(lastbit, tmp_path, family):
    """Its steps give out the last token's scores alone, and never read the last token."""
    for how in ("generate", "scored"):
        words = (how, "--family", family, "--text", tmp_path / "text")
        lastbit.record(tmp_path / f"{how}.lb", PROGRAM, *words, options=("--level", "ops"), expect=0)
    for pair in (("scored", "generate"), ("generate", "scored")):
        answer = lastbit.json("diff", *(tmp_path / f"{how}.lb" for how in pair), expect=0)
        assert answer["verdict"] == "rounding" and not answer["missing"]


@pytest.mark.parametrize("fault, place", [(None, None), ("eps", ("model.layers.1.post_attention_layernorm", "blocks.1.between"))])
def test_a_server_and_another_implementation_of_its_trainer(lastbit, recorded, fault, place):
    program = "tests/programs/two_implementations.py"
    server = recorded("transformers", "--decode", program=program)
    trainer = recorded("decoder", *(("--fault", fault) if fault else ()), program=program)
    for pair in ((server, trainer), (trainer, server)):
        answer = lastbit.json("diff", *pair, expect=1 if fault else 0)
        places = [(d["layer"], d["layer_b"]) for d in answer["differences"]]
        assert places == ([place if pair[0] == server else place[::-1]] if fault else []) and not answer["missing"]


def test_other_tokens_are_no_difference_of_the_model(lastbit, recorded, tmp_path):
    lastbit.record(tmp_path / "g.lb", PROGRAM, "generate", "--text", tmp_path / "text", options=("--level", "ops"), expect=0)
    answer = lastbit.json("diff", recorded("whole"), tmp_path / "g.lb", expect=1)
    assert answer["verdict"] == "missing" and any("other tokens" in text for text in answer["missing"])
