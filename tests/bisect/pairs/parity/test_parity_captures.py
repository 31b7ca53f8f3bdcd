"""Parity of captures: decoding against full forward passes, and shifted positions of image tokens, in models of transformers."""

import re

import numpy as np
import pytest

PROGRAM = "tests/programs/scored_tokens.py"
RUNS = {"full": (), "again": (), "decode": ("--mode", "decode"), "image": ("--mode", "image"), "shifted": ("--mode", "image", "--shift", "3")}


@pytest.fixture(scope="module")
def runs(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    for name, options in RUNS.items():
        lastbit.record(folder / f"{name}.lb", PROGRAM, *options, options=("--level", "ops"), expect=0)
    return {name: folder / f"{name}.lb" for name in RUNS}


def test_decoding_from_a_cache_agrees_with_a_full_pass(lastbit, runs):
    answer = lastbit.json("parity", runs["full"], runs["decode"], "--noise", runs["again"], expect=0)
    assert answer["verdict"] == "pass" and answer["all"]["count"] == 2 * 23 and not answer["findings"]
    assert 0 < answer["all"]["k3"] < 1e-9 and answer["noise_floor"] == 0  # a run that is repeated gives the same bits; a cache does not
    assert "agree to the last bit" in lastbit.run("parity", runs["full"], runs["decode"], "--noise", runs["again"]).stdout


def log_rows(lastbit, capture, folder):
    """The head's logits as log-probabilities, from the recorded bytes."""
    lines = lastbit.run("ls", "--ops", capture, expect=0).stdout
    number = re.findall(r"lm_head +aten::\S+\(.*-> v(\d+):f32\[\d+,\d+,256\]", lines)[-1]
    lastbit.run("show", capture, "--value", number, "--npy", folder / f"{capture.stem}.npy", expect=0)
    rows = np.load(folder / f"{capture.stem}.npy").astype(np.float64)
    rows -= rows.max(-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(-1, keepdims=True))


def test_full_rows_give_the_divergence(lastbit, runs, tmp_path):
    p, q = (log_rows(lastbit, runs[name], tmp_path)[:, :-1] for name in ("image", "shifted"))
    answer = lastbit.json("parity", runs["image"], runs["shifted"], expect=1)
    assert answer["all"]["kl"] == pytest.approx((np.exp(p) * (p - q)).sum(-1).mean(), rel=1e-9)
    assert answer["all"]["top1"] == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean())
    rows = {row["kind"]: row for row in answer["tokens"]}
    assert rows["image"]["kl"] > 0.1 and rows["text"]["kl"] == 0
    decoded = lastbit.json("parity", runs["full"], runs["decode"], expect=0)["all"]
    assert 0 < decoded["kl"] < 1e-9 and decoded["top1"] == 1


def test_numbers_are_those_of_the_recorded_logits(lastbit, runs, tmp_path):
    lines = lastbit.run("ls", "--ops", runs["full"], expect=0).stdout
    (ids,) = re.search(r"aten::embedding\(v\d+, v(\d+)", lines).groups()
    (logits,) = re.findall(r"lm_head +aten::\S+\(.*-> v(\d+):f32\[2,24,256\]", lines)[-1:]
    arrays = {}
    for name, number in (("ids", ids), ("logits", logits)):
        lastbit.run("show", runs["full"], "--value", number, "--npy", tmp_path / f"{name}.npy", expect=0)
        arrays[name] = np.load(tmp_path / f"{name}.npy")
    rows = arrays["logits"].astype(np.float64)
    rows -= rows.max(-1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
    want = np.take_along_axis(rows[:, :-1], arrays["ids"][:, 1:, None], 2)[..., 0]
    heat = lastbit.json("parity", runs["full"], runs["full"], "--heat", expect=0)["heat"]
    for sequence, wanted, tokens in zip(heat, want, arrays["ids"]):
        assert [t["id"] for t in sequence["tokens"]] == tokens[1:].tolist()
        assert [t["log_p"] for t in sequence["tokens"]] == pytest.approx(wanted.tolist(), rel=1e-12)


def test_shifted_image_positions_fail_on_image_tokens_alone(lastbit, runs):
    answer = lastbit.json("parity", runs["image"], runs["shifted"], expect=1)
    rows = {row["kind"]: row for row in answer["tokens"]}
    assert rows["image"]["count"] == 16 and rows["image"]["k3"] > 0.1 and rows["text"]["k3"] == 0
    assert [f["kind"] for f in answer["findings"]] == ["kind"]
    text = lastbit.run("parity", runs["image"], runs["shifted"], expect=1).stdout
    assert re.search(r"where it begins: +lastbit diff \S+image.lb \S+shifted.lb", text)
    first = lastbit.json("diff", runs["image"], runs["shifted"], expect=1)["first"]
    assert "position_ids" in first["layer"]


def test_a_capture_without_tokens_is_said(lastbit, runs, tmp_path):
    lastbit.record(tmp_path / "none.lb", "tests/programs/two_linears.py", expect=0)
    assert "no step scores tokens" in lastbit.run("parity", runs["full"], tmp_path / "none.lb", expect=(125, 128)).stderr
