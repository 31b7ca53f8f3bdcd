"""Losses side by side, and the memorisation test: a text that one side has by heart comes back through the other, or it does not."""

import json
import math

import numpy as np
import pytest

TOKENS = 120


def write(path, logprobs, **fields):
    line = dict(token_ids=list(range(len(logprobs) + 1)), logprobs=[None, *map(float, logprobs)], **fields)
    path.write_text(json.dumps(line) + "\n")
    return path


def memorised(mean, seed=0, tokens=TOKENS):
    """Log-probabilities of a mean loss, spread as real ones are."""
    draw = np.random.default_rng(seed).lognormal(0, 1.5, tokens)
    return -mean * draw / draw.mean()


def test_a_loss_of_300_times_fails_whatever_k3_says(lastbit, tmp_path):
    a, b = write(tmp_path / "trainer.jsonl", [-1e-4] * TOKENS), write(tmp_path / "server.jsonl", [-0.03] * TOKENS)
    answer = lastbit.json("parity", a, b, expect=1)
    assert answer["all"]["k3"] < 5e-4 and answer["verdict"] == "fail"
    assert answer["loss"]["first"] == pytest.approx(1e-4) and answer["loss"]["second"] == pytest.approx(0.03)
    assert answer["loss"]["ratio"] == pytest.approx(300)
    assert answer["tokens"][0]["reason"] == "loss" and "300 times" in answer["decided"]
    assert [f["kind"] for f in answer["findings"]] == ["untold"]
    assert answer["findings"][0]["message"].startswith("all 120 tokens are less probable on the second side")
    lines = lastbit.run("parity", a, b, expect=1).stdout.splitlines()
    assert lines[0].startswith("verdict: fail") and "300 times" in lines[0] and "loss" in lines[1] and "passes up to 3" in lines[1]
    assert lastbit.json("parity", b, a, expect=1)["loss"]["ratio"] == pytest.approx(1 / 300)


# What field reports call healthy, and what they call broken: losses of the same text on two paths.
@pytest.mark.parametrize(
    "first, second, passes",
    [
        (1.26e-5, 1.34e-5, True),
        (9e-6, 9.59e-6, True),
        (2.47e-5, 2.54e-5, True),
        (0.025, 0.058, True),
        (1e-7, 9e-7, True),
        (1e-4, 0.03, False),
        (1.35e-4, 0.00658, False),
        (0.0, 0.01, False),
        (2e-6, 2e-4, False),
    ],
)
def test_losses_of_field_reports(lastbit, tmp_path, first, second, passes):
    shape = memorised(1)
    a, b = write(tmp_path / "a.jsonl", first * shape), write(tmp_path / "b.jsonl", second * shape)
    for way in ((a, b), (b, a)):
        answer = lastbit.json("parity", *way, "--threshold", 0.01, expect=0 if passes else 1)
        assert answer["verdict"] == ("pass" if passes else "fail")


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("mean", [1e-5, 1e-3, 0.1])
def test_rounding_of_logits_does_not_fail(lastbit, tmp_path, mean, dtype):
    """Logits whose margins round as bf16's and f16's do move the losses by a few per cent."""
    for seed in range(4):
        exact = memorised(mean, seed)
        noise = np.random.default_rng(seed + 50).normal(0, 0.06 if dtype == np.float16 else 1e-4, TOKENS)
        odds = np.log(np.expm1(-exact)) + noise
        rounded = -np.log1p(np.exp(odds))
        a, b = write(tmp_path / "a.jsonl", exact), write(tmp_path / "b.jsonl", rounded)
        assert lastbit.json("parity", a, b, expect=0)["all"]["loss_factor"] < 1.2


def test_the_kind_that_was_learned_decides(lastbit, tmp_path):
    """A prompt of a high loss hides what the answer lost."""
    prompt = -np.random.default_rng(1).exponential(3, 400)
    kinds = ["prompt"] * 401 + ["generated"] * TOKENS
    a = write(tmp_path / "a.jsonl", np.concatenate([prompt, memorised(1e-4)]), kinds=kinds)
    b = write(tmp_path / "b.jsonl", np.concatenate([prompt, memorised(0.005)]), kinds=kinds)
    answer = lastbit.json("parity", a, b, expect=1)
    assert answer["all"]["loss_factor"] < 1.01 and "of kind generated is 50 times" in answer["decided"]
    assert {row["kind"]: row["reason"] for row in answer["tokens"]} == {"prompt": None, "generated": "loss"}


def test_few_printed_digits_are_no_gap(lastbit, tmp_path):
    """A server that prints four digits: 0.0000 and 0.0001 where the trainer has 2e-5."""
    exact = memorised(2e-5)
    exact[::29] = -0.2
    exact[::29] *= np.linspace(1, 2, len(exact[::29]))
    small = np.where(np.arange(TOKENS) % 29 == 0, exact, 0)
    kinds = ["easy"] + ["hard" if t % 29 == 0 else "easy" for t in range(TOKENS)]
    a = write(tmp_path / "a.jsonl", exact, kinds=kinds)
    b = write(tmp_path / "b.jsonl", np.round(small, 4), kinds=kinds)
    rows = {row["kind"]: row for row in lastbit.json("parity", a, b, expect=0)["tokens"]}
    assert rows["easy"]["loss_factor"] > 100 and rows["easy"]["reason"] is None


def test_limits_stand_on_the_noise_floor(lastbit, tmp_path):
    draw = np.random.default_rng(3)
    base = -draw.exponential(2, 400)

    def run(name, scale, seed):
        return write(tmp_path / f"{name}.jsonl", base + scale * np.random.default_rng(seed).standard_normal(400))

    first, again, near, far = run("first", 0.06, 1), run("again", 0.06, 2), run("near", 0.06, 3), run("far", 0.5, 4)
    assert lastbit.json("parity", first, near, expect=1)["verdict"] == "fail"  # k3 0.0036, of no known floor
    answer = lastbit.json("parity", first, near, "--noise", again, expect=125)
    assert answer["verdict"] == "undecided" and answer["tokens"][0]["reason"] == "noise" and "two runs of the first side" in answer["decided"]
    assert answer["tokens"][0]["k3_limit"] == pytest.approx(2 * answer["tokens"][0]["noise"]) and answer["tokens"][0]["loss_factor_limit"] == 3
    assert lastbit.json("parity", first, far, "--noise", again, expect=1)["verdict"] == "fail"
    # A text by heart whose loss two runs of the first side leave 4 times apart: 5 times is noise, 300 is not.
    learned = [write(tmp_path / f"{n}.jsonl", n * memorised(1e-5)) for n in (1, 4, 5, 300)]
    assert lastbit.json("parity", learned[0], learned[2], expect=1)["tokens"][0]["reason"] == "loss"
    answer = lastbit.json("parity", learned[0], learned[2], "--noise", learned[1], expect=0)
    assert answer["loss"]["noise_factor"] == pytest.approx(4) and answer["verdict"] == "pass"
    assert answer["all"]["loss_factor_limit"] == pytest.approx(16) and answer["all"]["k3_limit"] == 1e-3  # the floor's factor, squared
    assert lastbit.json("parity", learned[0], learned[3], "--noise", learned[1], expect=1)["verdict"] == "fail"


def test_tokens_that_are_not_compared_are_counted_by_reason(lastbit, tmp_path):
    scores = [None, -1.0, -2.0, math.nan, None, -0.5, -0.25]
    (tmp_path / "a.jsonl").write_text(json.dumps(dict(id="s", token_ids=[1, 2, 3, 4, 5, 6, 7], logprobs=scores)))
    other = [None, -1.0, -2.0, -3.0, -4.0, None, -0.25]
    (tmp_path / "b.jsonl").write_text(json.dumps(dict(id="s", token_ids=[1, 2, 3, 4, 5, 6, 7], logprobs=other)))
    coverage = lastbit.json("parity", tmp_path / "a.jsonl", tmp_path / "b.jsonl")["coverage"]
    assert coverage["first"] == dict(tokens=7, compared=3, first=1, unscored=2, unmatched=1)
    assert coverage["second"] == dict(tokens=7, compared=3, first=1, unscored=1, unmatched=2)
    text = lastbit.run("parity", tmp_path / "a.jsonl", tmp_path / "b.jsonl").stdout
    assert "3 of 7 tokens compared; not: 1 without a number as the first of their sequence, 2 without a number elsewhere, 1 that" in text
