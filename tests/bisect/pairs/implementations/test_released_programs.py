"""Programs in the ways in which people write a model again: time before batch, einsum over heads, packed weights, complex rotary tables."""

import pytest

PROGRAM = "tests/programs/released/released.py"


@pytest.fixture
def diff(lastbit, recordings):
    def run(family, written, *faults, train=False, expect=1):
        words = [] if train else ["--forward"]
        first = recordings(family, "transformers", *words, program=PROGRAM)
        second = recordings(family, written, *words, *(word for fault in faults for word in ("--fault", fault)), program=PROGRAM)
        return lastbit.json("diff", first, second, expect=expect)

    return run


@pytest.mark.parametrize("family, written, train", [
    ("gpt2", "sequencefirst", True), ("gpt2", "einsumgpt", False), ("gpt2", "einsumgpt", True), ("llama", "complexllama", False),
])  # fmt: skip
def test_a_model_written_again_is_the_same_function(diff, family, written, train):
    answer = diff(family, written, train=train, expect=0)
    assert answer["verdict"] == "rounding" and not answer["missing"] and not answer["differences"]


@pytest.mark.parametrize("family, written, fault, first, second", [
    ("gpt2", "sequencefirst", "exact-gelu", "transformer.h.1.mlp.act", "blocks.1.mlp.1"),
    ("gpt2", "sequencefirst", "norm-eps", "transformer.h.1.ln_2", "blocks.1.ln_2"),
    ("gpt2", "einsumgpt", "exact-gelu", "transformer.h.1.mlp.act", "blocks.1"),
    ("gpt2", "einsumgpt", "softmax-axis", "transformer.h.1.attn", "blocks.1"),  # x + product + bias holds the residual stream
    ("gpt2", "sequencefirst", "shifted-positions", "transformer.wpe", "wpe"),  # everything differs, so that shapes alone tell time from batch
    ("deepseek", "latent", "no-latent-norm", "model.layers.1.self_attn.kv_a_layernorm", "blocks.1.attention"),  # choices behind it fall elsewhere
    ("qwen2moe", "dispatch", "one-expert", "model.layers.1.mlp.gate", "feeds.1"),  # another number of choices is no flip
    ("llama", "complexllama", "halves-as-neighbours", "model.layers.1.self_attn", "layers.1.attention"),  # not the table, which other layers read, too
])  # fmt: skip
def test_a_fault_is_the_one_place_that_differs(diff, family, written, fault, first, second):
    answer = diff(family, written, fault)
    assert answer["verdict"] == "diverged"
    assert [(d["layer"], d["layer_b"]) for d in answer["differences"]] == [(first, second)]


def test_a_residual_that_is_left_out_has_a_place_on_both_sides(diff):
    """The op is on the first side alone; the module beside its own is the second side's place."""
    (difference,) = diff("llama", "complexllama", "dropped-residual")["differences"]
    assert (difference["layer"], difference["layer_b"], difference["op_b"]) == ("model.layers.1", "layers.1", None)


def test_two_faults_between_the_same_two_places_are_two(diff):
    answer = diff("gpt2", "sequencefirst", "exact-gelu", "norm-eps")
    assert {d["layer"] for d in answer["differences"]} == {"transformer.h.1.mlp.act", "transformer.h.1.ln_2"}


def test_a_place_in_every_step_is_one_row(diff):
    (difference,) = diff("gpt2", "sequencefirst", "exact-gelu", train=True)["differences"]
    assert difference["steps"] == 2 and difference["phase"] == "forward"


def test_a_gradient_that_is_rounding_alone_is_no_difference(diff):
    """That of the bias of keys, which a softmax does not see: also behind runs that measured what rounding may do."""
    answer = diff("gpt2", "onlinegpt", "exchanged-shifts", train=True)
    assert answer["verdict"] == "diverged" and {d["layer_b"] for d in answer["differences"]} == {"blocks.1"}
