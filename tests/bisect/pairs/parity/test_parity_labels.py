"""Captures of a loss: which token each row of logits is of, the last label that no pass read, what the loss ignores, and labels that are wrong."""

import numpy as np
import pytest

PROGRAM = "tests/programs/labelled_tokens.py"


@pytest.fixture(scope="module")
def runs(lastbit, tmp_path_factory):
    """runs(LABELS, NOISE): the capture, the loss that the program printed, and torch's numbers."""
    folder, made = tmp_path_factory.mktemp("labels"), {}

    def run(labels, noise=0):
        if (labels, noise) not in made:
            out = folder / f"{labels}-{noise}.lb"
            numbers = out.with_suffix(".npy")
            done = lastbit.record(out, PROGRAM, "--labels", labels, "--noise", noise, "--save", numbers, options=("--steps", "0-0"), expect=0)
            made[labels, noise] = out, float(done.stdout.split("loss ")[1].split()[0]), np.load(numbers)
        return made[labels, noise]

    return run


@pytest.mark.parametrize("labels", ["transformers", "halves", "rows"])
def test_every_label_is_scored_the_last_one_too(lastbit, runs, labels):
    (a, loss_a, p), (b, loss_b, q) = runs("transformers"), runs(labels, 0.05)
    answer = lastbit.json("parity", a, b, expect=1)
    d = p - q
    assert answer["all"]["count"] == p.size == 240
    assert answer["all"]["k3"] == pytest.approx((np.expm1(d) - d).mean(), rel=1e-4)
    assert answer["loss"]["first"] == pytest.approx(loss_a, rel=1e-6) and answer["loss"]["second"] == pytest.approx(loss_b, rel=1e-6)
    for side in ("first", "second"):
        assert answer["coverage"][side] == dict(tokens=244, compared=240, first=4, unscored=0, unmatched=0)


def test_what_the_loss_ignores_is_a_kind_of_its_own(lastbit, runs):
    whole, answer_alone = runs("transformers"), runs("answer", 0.05)
    answer = lastbit.json("parity", whole[0], answer_alone[0], expect=1)
    rows = {row["kind"]: row for row in answer["tokens"]}
    assert {kind: row["count"] for kind, row in rows.items()} == {"prompt": 4 * 19, "generated": 4 * 41}
    assert rows["generated"]["loss_b"] == pytest.approx(answer_alone[1], rel=1e-6)


@pytest.mark.parametrize("labels, word", [("twice", "shifted twice"), ("unshifted", "not shifted")])
def test_labels_that_are_not_the_next_tokens_are_named(lastbit, runs, labels, word):
    """As transformers#47394: the model shifts labels, and so does its loss. The numbers are the same; what was trained is not."""
    answer = lastbit.json("parity", runs("transformers")[0], runs(labels)[0], expect=1)
    (finding,) = answer["findings"]
    assert finding["kind"] == "labels" and "second side's loss" in finding["message"] and word in finding["message"]
    assert answer["all"]["k3"] < 1e-12 and answer["causes"]["labels"] == "found"
