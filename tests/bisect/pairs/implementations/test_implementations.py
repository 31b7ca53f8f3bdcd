"""transformers' Llama beside a decoder that shares neither its names, its layouts nor its ops: one function, and every fault by its place."""

import pytest

PROGRAM = "tests/programs/two_implementations.py"


@pytest.fixture
def pair(lastbit, recordings):
    def diff(*faults, train=False, expect=1, options=(), decoder=()):
        words = ["--train"] * train
        first = recordings("transformers", *words, program=PROGRAM)
        second = recordings("decoder", *words, *decoder, *(word for fault in faults for word in ("--fault", fault)), program=PROGRAM)
        return lastbit.json("diff", first, second, *options, expect=expect)

    return diff


def places(answer, step=0):
    return [(d["layer"], d["layer_b"]) for d in answer["differences"] if d["step"] == step]


@pytest.mark.parametrize("train", [False, True])
def test_two_implementations_are_one_function(pair, train):
    answer = pair(train=train, expect=0)
    assert answer["verdict"] == "rounding" and answer["implementations"] and not answer["missing"] and not answer["differences"]
    relations = {row["second"]: (row["relation"], row["first"]) for row in answer["map"]}
    parts = " + ".join(f"model.layers.2.self_attn.{p}_proj.weight" for p in "qkv")
    assert relations["blocks.2.mix.joint.weight"] == ("fused", parts)
    assert relations["blocks.0.between.gain"] == ("renamed", "model.layers.0.post_attention_layernorm.weight")


def test_the_second_side_may_be_named_first(lastbit, recordings):
    first, second = recordings("transformers", program=PROGRAM), recordings("decoder", program=PROGRAM)
    assert lastbit.json("diff", second, first)["verdict"] == "rounding"


@pytest.mark.parametrize("fault, first, second", [
    ("eps", "model.layers.1.post_attention_layernorm", "blocks.1.between"),
    ("residual", "model.layers.1", "blocks.1"),
    ("scale", "model.layers.1.self_attn", "blocks.1.mix"),
    ("mask", "model.layers.1.self_attn", "blocks.1.mix"),
])  # fmt: skip
def test_one_fault_is_one_place(pair, fault, first, second):
    answer = pair(fault)
    assert answer["verdict"] == "diverged" and places(answer) == [(first, second)]
    assert answer["differences"][0]["effect"] > 1e-5


def test_arguments_that_differ_are_said(pair):
    (difference,) = pair("eps")["differences"]
    assert [(float(a["first"]), float(a["second"])) for a in difference["arguments"]] == [(1e-6, pytest.approx(1e-2))]


def test_a_fault_in_every_layer_is_every_place(pair):
    assert sorted(places(pair("act"))) == [(f"model.layers.{i}.mlp.act_fn", f"blocks.{i}.feed") for i in range(3)]


def test_tables_of_another_formula_are_named(pair):
    answer = pair("rope")
    assert len(answer["differences"]) == 1 and places(answer)[0][0] == "model.rotary_emb"


@pytest.mark.parametrize("when", ["first", "before"])
def test_a_table_that_the_program_keeps_is_no_cache(pair, when):
    """The second step reads what the first one, or nothing that was recorded, left in a plain attribute."""
    answer = pair(train=True, expect=0, decoder=("--kept", when))
    assert answer["verdict"] == "rounding" and answer["implementations"] and not answer["differences"]
    worn = pair("worn", train=True, decoder=("--kept", when))
    if when == "before":  # of what it was made of nothing is known
        assert worn["verdict"] == "missing"
    else:
        assert worn["verdict"] == "diverged" and {d["step"] for d in worn["differences"]} == {1}
        assert worn["differences"][0]["layer"] == "model.rotary_emb"


def test_a_draw_of_one_side_alone_is_named_beside_a_place_of_every_step(pair):
    """The second step draws on one side alone."""
    answer = pair("eps", "drop", train=True)
    assert answer["verdict"] == "diverged" and answer["implementations"] and not answer["missing"]
    draws = [d for d in answer["differences"] if d["op"] == "aten::bernoulli_.float"]
    assert [(d["step"], d["means"]) for d in draws] == [(1, "dropout with p 0.5")]
    assert [(d["step"], d["steps"], d["layer_b"]) for d in answer["differences"] if d not in draws] == [(0, 2, "blocks.1.between")]
    assert ("model.layers.1.post_attention_layernorm", "blocks.1.between") in places(answer)


def test_three_faults_at_once_are_three_places(pair):
    assert sorted(places(pair("eps", "residual", "mask"))) == [
        ("model.layers.1", "blocks.1"), ("model.layers.1.post_attention_layernorm", "blocks.1.between"), ("model.layers.1.self_attn", "blocks.1.mix"),
    ]  # fmt: skip


def test_weights_in_the_wrong_place_show_where_they_are_used(pair):
    """Gate and up exchanged: every number is there, and silu is taken of the other half."""
    answer = pair("swapped")
    assert answer["verdict"] == "diverged" and {layer_b.split(".")[1] for _, layer_b in places(answer)} == {"1"}
    assert all("mlp" in layer for layer, _ in places(answer))


def test_a_weight_that_no_tensor_holds_is_named(pair):
    answer = pair("weight")
    assert answer["verdict"] == "diverged"
    assert [row["second"] for row in answer["map"] if row["relation"] == "none" and "mix" in row["second"]] == ["blocks.1.mix.out.weight"]
    assert {layer_b for _, layer_b in places(answer)} == {"blocks.1.mix.out"}


@pytest.mark.parametrize("fault", ["decay", "lr"])
def test_a_fault_of_the_update_is_named_in_the_optimizer(pair, fault):
    answer = pair(fault, train=True)
    assert answer["verdict"] == "diverged" and {d["phase"] for d in answer["differences"]} == {"optimizer"}
    if fault == "decay":
        assert {d["op"] for d in answer["differences"]} == {"aten::mul_.Tensor"}


def test_a_fault_of_forward_is_no_fault_of_its_backward_nor_of_the_update(pair):
    answer = pair("eps", train=True)
    assert places(answer) == [("model.layers.1.post_attention_layernorm", "blocks.1.between")]
    assert answer["differences"][0]["steps"] == 2


def test_the_table_of_tensors_is_written_and_read(pair, lastbit, recordings, tmp_path):
    table = tmp_path / "table"
    pair(expect=0, options=("--map-out", table))
    assert "blocks.1.feed.down.weight = model.layers.1.mlp.down_proj.weight  # renamed" in table.read_text().splitlines()
    assert pair(expect=0, options=("--map", table))["verdict"] == "rounding"
    table.write_text("blocks.1.feed.down.weight\n")
    words = [recordings(side, program=PROGRAM) for side in ("transformers", "decoder")]
    assert "expected SECOND = FIRST" in lastbit.run("diff", *words, "--map", table, expect=128).stderr


def test_bisect_names_all_places_that_differ_by_themselves(lastbit, recordings):
    runs = [
        recordings("transformers", program=PROGRAM),
        recordings("decoder", *(word for fault in ("eps", "residual", "mask") for word in ("--fault", fault)), program=PROGRAM),
    ]
    answer = lastbit.json("bisect", runs[0], "--against", runs[1], expect=1)
    assert sorted(culprit["layer"] for culprit in answer["culprits"]) == [
        "model.layers.1",
        "model.layers.1.post_attention_layernorm",
        "model.layers.1.self_attn",
    ]
