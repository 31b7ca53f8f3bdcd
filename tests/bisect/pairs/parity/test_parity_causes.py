"""Causes are named where the data tell them from all others, and nowhere else: a confusion matrix over faults that NumPy makes (token_faults.py)."""

import itertools

import pytest
import token_faults

CAUSES = {"scale", "shift", "temperature", "filter", "vocabulary", "renormalised", "argmax", "labels", "constant"}
NOISES = (0, 0.004, 0.03)  # of logits: none, f16's, and what bf16 leaves


def named(lastbit, pair):
    return {f["kind"] for f in lastbit.json("parity", *pair, expect=(0, 1))["findings"]} & CAUSES


@pytest.mark.parametrize("level", token_faults.LEVELS)
def test_no_cause_is_named_that_is_not_the_fault(lastbit, tmp_path, level):
    """Every fault, with bases and noises in turn, either way round."""
    turns = itertools.cycle(itertools.product(token_faults.BASES, NOISES))
    for seed, (fault, allowed) in enumerate(token_faults.FAULTS.items(), 100 * token_faults.LEVELS.index(level)):
        base, noise = next(turns)
        pair = token_faults.write_case(tmp_path, base, fault, noise, level, seed)
        assert named(lastbit, pair[:: -1 if seed % 2 else 1]) <= allowed, (base, noise, fault, seed)


@pytest.mark.full
@pytest.mark.parametrize("base", token_faults.BASES)
@pytest.mark.parametrize("level", token_faults.LEVELS)
def test_no_cause_is_named_wrongly_over_many_draws(lastbit, tmp_path, base, level):
    for seed, (noise, fault, _) in enumerate(itertools.product(NOISES, token_faults.FAULTS, range(4))):
        pair = token_faults.write_case(tmp_path, base, fault, noise, level, 10000 + seed)
        for way in (pair, pair[::-1]):
            assert named(lastbit, way) <= token_faults.FAULTS[fault], (noise, fault, seed)


# What has to be told, of distributions as language models have them under bf16's noise; by what the files hold.
WORDS, ROWS, ONE_SIDE = {"alternatives", "logits"}, {"logits"}, {"logits", "first logits"}
TOLD = {
    "temperature 0.7": ("temperature", WORDS | ONE_SIDE),
    "temperature 1.2": ("temperature", WORDS | ONE_SIDE),
    "top-k 3": ("filter", WORDS | ONE_SIDE),
    "top-p 0.8": ("filter", ONE_SIDE),
    "min-p": ("filter", ROWS),
    "masked words": ("vocabulary", ROWS),
    "padded words": ("vocabulary", ROWS),
    "one right": ("shift", set(token_faults.LEVELS)),
    "losses": ("scale", set(token_faults.LEVELS)),
    "base 2": ("scale", set(token_faults.LEVELS)),
    "base 10": ("scale", set(token_faults.LEVELS)),
    "probabilities": ("scale", set(token_faults.LEVELS)),
    "argmax": ("argmax", WORDS | ONE_SIDE | {"second logits"}),
    "next token's label": ("labels", ONE_SIDE | {"second logits"}),
    "labels not shifted": ("labels", ONE_SIDE | {"second logits"}),
}


@pytest.mark.parametrize("fault", TOLD)
def test_causes_that_the_files_tell_are_named(lastbit, tmp_path, fault):
    cause, levels = TOLD[fault]
    for level in levels:
        pair = token_faults.write_case(tmp_path, "plain", fault, 0.004, level, 7)
        answer = lastbit.json("parity", *pair, expect=(0, 1))
        found = {f["kind"] for f in answer["findings"]}
        assert cause in found, level
        assert "untold" not in found and (cause in ("scale", "shift") or answer["verdict"] == "fail"), level


def test_a_parameter_is_read_off(lastbit, tmp_path):
    for fault, level, said in (
        ("temperature 0.7", "logits", "divided by 0.7"),
        ("temperature 0.7", "first logits", "divided by 0.7"),
        ("top-k 3", "logits", "top-k 3"),
        ("top-k 3", "first logits", "top-k 3"),
        ("top-p 0.8", "logits", "top-p between"),
        ("top-p 0.8", "first logits", "top-p 0.8"),
        ("next token's label", "logits", "say of token t+1"),
    ):
        pair = token_faults.write_case(tmp_path, "plain", fault, 0, level, 3)
        messages = [f["message"] for f in lastbit.json("parity", *pair, expect=1)["findings"]]
        assert any(said in m for m in messages), (fault, messages)


@pytest.mark.parametrize("fault", ["other weights", "lost shard", "other prompt"])
def test_what_is_not_told_apart_is_said(lastbit, tmp_path, fault):
    answer = lastbit.json("parity", *token_faults.write_case(tmp_path, "plain", fault, 0, "logits", 5), expect=1)
    (finding,) = [f for f in answer["findings"] if f["kind"] == "untold"]
    assert "no temperature, no filter" in finding["message"] and "a lost shard" in finding["message"]
    assert set(answer["causes"].values()) == {"excluded"}
    blind = lastbit.json("parity", *token_faults.write_case(tmp_path, "plain", fault, 0, "numbers", 5), expect=1)
    assert blind["causes"]["temperature"] == "unknown" and "one number per token does not tell" in blind["findings"][-1]["message"]


def test_sequences_of_an_older_policy_are_told_from_the_rest(lastbit, tmp_path):
    pair = token_faults.write_case(tmp_path, "plain", "older policy", 0.001, "numbers", 2)
    answer = lastbit.json("parity", *pair, expect=1)
    (finding,) = answer["findings"]
    assert finding["kind"] == "sequences" and "3 of 6 sequences agree" in finding["message"]
