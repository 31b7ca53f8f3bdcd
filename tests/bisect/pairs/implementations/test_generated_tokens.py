"""`generate` of transformers with one cache and another, a request at a time, and padded on the left: one function; a fault in one layer's
norm or attention is named there, whatever tokens follow from it."""

import pytest

WAYS = ("static", "single", "padded")


@pytest.fixture(scope="module")
def generated(recorded_pairs):
    return recorded_pairs("generated_tokens")


@pytest.mark.parametrize("model", ["llama", "mixtral"])
@pytest.mark.parametrize("way", WAYS)
def test_caches_and_batches_are_one_function(lastbit, generated, model, way):
    pair = [generated / f"{model}-dynamic.lb", generated / f"{model}-{way}.lb"]
    for each in (pair, pair[::-1]):
        answer = lastbit.json("diff", *each, expect=0)
        assert answer["verdict"] in ("reordered", "rounding") and not answer["differences"]


@pytest.mark.parametrize("fault, layer", [("eps", "model.layers.1.input_layernorm"), ("scale", "model.layers.1.self_attn")])
@pytest.mark.parametrize("way", WAYS)
def test_a_fault_is_named_whatever_follows(lastbit, generated, way, fault, layer):
    answer = lastbit.json("diff", generated / "llama-dynamic.lb", generated / f"llama-{way}-{fault}.lb", expect=1)
    assert [place["layer"] for place in answer["differences"]] == [layer]
