"""Programs that came after the comparison had been mended with all others: adapters, a cache, recommenders, retention, and layouts of features."""

import subprocess
import sys

import pytest
from conftest import ROOT

PROGRAM = "tests/programs/released/released.py"
LOOSE = ("--set", "loose=true")


@pytest.fixture
def diff(lastbit, recordings):
    def run(family, written, second, *words, fault=None, expect=1):
        first = recordings(family, written, *words, program=PROGRAM)
        other = recordings(family, second, *words, *(("--fault", fault) if fault else ()), program=PROGRAM)
        return lastbit.json("diff", first, other, expect=expect)

    return run


@pytest.mark.parametrize("family, written, second, words", [
    ("clicks", "bags", "pairs", ("--forward", *LOOSE)),  # results of one part go into the next one: they leave nothing
    ("clicks", "bags", "pairs", LOOSE),
    ("gpt2", "transformers", "smallgpt", ("--forward", "--dtype", "bfloat16")),  # parameters of one name, turned
    ("retention", "parallel", "chunked", ()),
    ("longconv", "fourier", "matrix", ("--forward",)),
])  # fmt: skip
def test_another_way_of_computing_it_is_the_same_function(diff, family, written, second, words):
    answer = diff(family, written, second, *words, expect=0)
    assert answer["verdict"] == "rounding" and not answer["missing"] and not answer["differences"]


@pytest.mark.parametrize("family, written, second, fault, place, beside", [
    ("lora", "peft", "byhand", "no-scale", "base_model.model.model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.q_proj"),
    ("gpt2", "transformers", "smallgpt", "other-cubic", "transformer.h.1.mlp.act", "transformer.h.1"),
    ("retention", "parallel", "recurrent", "twice-forgotten", "layers.1.mixer", "layers.1.mixer"),
    ("longconv", "fourier", "matrix", "looks-ahead", "layers.1.mixer", "layers.1.mixer"),
    ("lora", "peft", "merged", "residual-scale", "base_model.model.model.layers.1.self_attn.o_proj", "model.layers.1.self_attn.o_proj"),
    ("llama", "transformers", "leftpadded", "norm-eps", "model.layers.1.post_attention_layernorm", "model.layers.1.post_attention_layernorm"),
    ("splines", "grid", "edges", "shifted-knots", "layers.1", "layers.1"),
    ("splines", "grid", "edges", "other-tail", "layers.1", "layers.1"),
    ("splines", "grid", "edges", "sigmoid-for-silu", "layers.1", "layers.1"),
])  # fmt: skip
def test_a_fault_is_the_one_place_that_differs(diff, family, written, second, fault, place, beside):
    answer = diff(family, written, second, "--forward", fault=fault)
    assert [(d["layer"], d["layer_b"]) for d in answer["differences"]] == [(place, beside)]
    assert answer["first"]["layer"] == place


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layouts")
    for name, words in (("rows", ("rows",)), ("channels", ("channels",)), ("gate", ("channels", "gate")), ("unscaled", ("channels", "unscaled"))):
        command = [sys.executable, ROOT / "tests" / "programs" / "second_layouts.py", folder / f"{name}.lb", *words]
        subprocess.run(command, env={"PYTHONPATH": str(ROOT / "capture"), "OMP_NUM_THREADS": "1"}, check=True, timeout=120)
    return folder


def test_features_first_are_features_last(lastbit, layouts):
    answer = lastbit.json("diff", layouts / "rows.lb", layouts / "channels.lb", expect=0)
    assert answer["verdict"] == "rounding" and not answer["differences"]


@pytest.mark.parametrize("fault", ["gate", "unscaled"])
@pytest.mark.parametrize("turned", [False, True])
def test_behind_a_fault_nothing_else_is_named(lastbit, layouts, fault, turned):
    """Not the norm, which each side makes of its own ops, nor the largest of other numbers in the next block, nor places that no op reads."""
    pair = [layouts / "rows.lb", layouts / f"{fault}.lb"]
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair), expect=1)
    assert [(d["layer"], d["layer_b"]) for d in answer["differences"]] == [("blocks.1", "blocks.1")]
