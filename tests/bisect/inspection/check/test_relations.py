"""`lastbit check --only relations`: tokens that meet where they must not are named with their line, and models as they should be have no finding."""

import random

import pytest
from checked_programs import recorded

SOFTMAX = "softmax(-1)"
# name: kind, a part of the layer, a part of the line of code that is at fault.
FAULTS = {
    "sdpa_not_causal": ("future", "blocks.0.attention", "scaled_dot_product_attention"),
    "future_mask_by_one": ("future", "blocks.0.attention", SOFTMAX),
    "future_softmax_of_queries": ("future", "blocks.0.attention", "softmax(-2)"),
    "future_conv": ("future", "blocks.1", "self.conv("),
    "future_norm_of_sequence": ("future", "blocks.1", "h.std((1, 2)"),
    "future_mean": ("future", "blocks.0", "h.mean(1"),
    "chunk_leak": ("future", "blocks.1", "h.view(b, t // 4"),
    "batch_norm": ("future", "blocks.0.batch", "self.batch("),
    "rows_scale_of_batch": ("future", "blocks.1", "h.abs().amax()"),
    "rows_mean_of_batch": ("rows", "blocks.1", "h.mean(0"),
    "rows_first_of_batch": ("rows", "blocks.0", "h[:1].sigmoid()"),
    "rows_heads_viewed": ("future", "blocks.0.attention", ""),
    "documents_meet": ("documents", "blocks.0.attention", SOFTMAX),
    "padding_once": ("padding", "blocks.1.attention", SOFTMAX),
    "padding_weakly": ("padding", "blocks.0.attention", SOFTMAX),
    "target_twice": ("target", "", "F.cross_entropy(logits"),
    "llama_target_twice": ("target", "", "cross_entropy"),
    "means": ("means", "", "F.cross_entropy(logits"),
    "carried_cache": ("carried", "blocks.0.attention", ""),
    "carried_mean": ("carried", "blocks.1", "h - self.mean"),
    "padding_shifts": ("positions", "wpe", "self.wpe(positions)"),
    "squares_documents_once": ("documents", "blocks.1.attention", SOFTMAX),
    "squares_padding_once": ("padding", "blocks.1.attention", SOFTMAX),
    "tokens_first_mean": ("future", "", "x.mean(0)"),
    "divided_twice": ("weights", "", "F.cross_entropy(logits"),
}
HEALTHY = """plain sdpa conv prefix_mean two_heads chosen next_tokens documents padding llama llama_eager llama_left means_of_all
micro_batches summed mean_kept stream experts_listed experts_found two_tables tokens_first squares_documents squares_padding""".split()
# What a shape may hide: as many channels, heads, or sequences as tokens, or one sequence alone.
SHAPES = ["1,16,16,2", "16,16,16,4", "2,16,32,16", "3,7,8,2", "2,24,24,4"]
DRAWN = random.Random(7)
DRAWN_FAULTS = [f"{name}@{shape}" for name in ("sdpa_not_causal", "future_conv", "future_mean") for shape in SHAPES]
DRAWN_HEALTHY = [f"{name}@{shape}" for name in ("plain", "conv", "sdpa") for shape in DRAWN.sample(SHAPES, 3)]


@pytest.fixture(scope="module")
def steps(lastbit, tmp_path_factory):
    names = [*FAULTS, *HEALTHY, *DRAWN_FAULTS, *DRAWN_HEALTHY]
    return recorded(tmp_path_factory.mktemp("relations"), "token_relations.py", names)


def relations(lastbit, path, expect):
    return lastbit.json("check", path, "--only", "relations", expect=expect)


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_relation_is_named_with_its_line(lastbit, steps, name):
    kind, layer, text = FAULTS[name]
    answer = relations(lastbit, steps / f"{name}.lb", expect=1)
    row = answer["findings"][0]
    assert (answer["verdict"], len(answer["findings"]), row["kind"]) == ("found", 1, kind), answer
    assert layer in row["layer"] and text in row["source"]["text"], row
    assert answer["replays"] <= 10


@pytest.mark.parametrize("name", HEALTHY)
def test_a_model_that_keeps_them_has_no_finding(lastbit, steps, name):
    answer = relations(lastbit, steps / f"{name}.lb", expect=0)
    assert (answer["findings"], answer["not_judged"]) == ([], [])
    assert any("depends on a later token" in line for line in answer["proven"]), answer


@pytest.mark.parametrize("name", DRAWN_FAULTS)
def test_a_fault_is_named_in_any_shape(lastbit, steps, name):
    row = relations(lastbit, steps / f"{name}.lb", expect=1)["findings"][0]
    kind, layer, text = FAULTS[name.partition("@")[0]]
    assert row["kind"] == kind and layer in row["layer"] and text in row["source"]["text"], row


@pytest.mark.parametrize("name", DRAWN_HEALTHY)
def test_no_shape_makes_a_fault(lastbit, steps, name):
    assert relations(lastbit, steps / f"{name}.lb", expect=0)["findings"] == []


def test_what_was_compared_is_said(lastbit, steps):
    def proven(name):
        return " ".join(relations(lastbit, steps / f"{name}.lb", expect=0)["proven"])

    assert "packed documents do not meet" in proven("documents")
    assert "packed documents do not meet" in proven("squares_documents")
    assert "tokens that the attention mask hides change nothing" in proven("squares_padding")
    assert "tokens that the attention mask hides change nothing" in proven("padding")
    assert "of sequence 0 tokens 5-19 count" in proven("llama_left")
    assert "of sequence 0 tokens 1-14 count" in proven("llama")
    assert "sequences of the batch do not meet" in proven("plain")
    assert "the sum, and not the mean, of 4 micro-batches" in proven("summed")
    assert "may come in any order (57 rows compared)" in proven("mean_kept")
    assert "may come in any order" not in proven("plain")
    assert "goes on where the one before it ended, and its state is carried in aten::sub.Tensor (blocks.1)" in proven("stream")
    assert "the first visible tokens of 4 sequences read position 0 in wpe" in proven("padding")


def test_what_other_choices_would_do_is_said_and_not_found(lastbit, steps):
    proven = relations(lastbit, steps / "experts_listed.lb", expect=0)["proven"]
    assert any("decisions as recorded" in line for line in proven)
    assert any("with decisions made anew tokens meet" in line for line in proven), proven


def test_batch_norm_is_said_to_be_what_it_is(lastbit, steps):
    answer = relations(lastbit, steps / "batch_norm.lb", expect=1)
    assert any("sequences of the batch meet in aten::native_batch_norm" in line for line in answer["proven"])
    assert "rows" not in {row["kind"] for row in answer["findings"]}


def test_one_cause_is_one_finding(lastbit, steps):
    row = relations(lastbit, steps / "rows_scale_of_batch.lb", expect=1)["findings"][0]
    assert "; rows: " in row["message"] and "sequence 0 were replaced" in row["message"]
