"""Log-probabilities and routing of two runs against the same numbers worked out in NumPy from the exported values."""

import re

import numpy as np
import pytest

HF = "tests/programs/hf_train.py"
MOE = ("--model", "qwen3_moe", "--steps", "1", "--batch", "4", "--seq", "64")


@pytest.fixture(scope="module")
def pair(lastbit, tmp_path_factory):
    """One run in fp32 and one in bf16: real differences everywhere, flipped experts among them."""
    folder = tmp_path_factory.mktemp("parity")
    for dtype in ("fp32", "bf16"):
        lastbit.record(folder / f"{dtype}.lb", HF, *MOE, "--dtype", dtype, options=("--steps", "0-0", "--level", "ops"), expect=0)
    return folder / "fp32.lb", folder / "bf16.lb"


def value(lastbit, capture, number, folder):
    out = folder / f"{capture.stem}-{number}.npy"
    if not out.exists():
        lastbit.run("show", capture, "--value", number, "--npy", out, expect=0)
    return np.load(out)


def find(lastbit, capture, pattern):
    """Numbers of values in the first line of `ls --ops` that matches."""
    return re.search(pattern, lastbit.run("ls", "--ops", capture, expect=0).stdout).groups()


def scores(lastbit, capture, folder):
    log_probs, targets = find(lastbit, capture, r"forward .*aten::nll_loss_forward\(v(\d+), v(\d+)")
    return value(lastbit, capture, log_probs, folder).astype(np.float64), value(lastbit, capture, targets, folder)


def expected(p, q, y):
    """The definitions of bisect/pairs/diff/diff_tokens.h, for rows that are all of one kind."""
    row = dict(kl=(np.exp(p) * (p - q)).sum(1).mean(), top1=(p.argmax(1) == q.argmax(1)).mean())
    if (y >= 0).all():
        d = np.take_along_axis(p - q, y[:, None], 1)[:, 0]
        row.update(k3=(np.expm1(d) - d).mean(), max_abs=np.abs(d).max(), mean_abs=np.abs(d).mean())
    return row


def check(rows, p, q, y, kinds):
    assert {row["kind"]: row["count"] for row in rows} == {kind: (kinds == kind).sum() for kind in set(kinds)}
    for row in rows:
        mine = kinds == row["kind"]
        for name, number in expected(p[mine], q[mine], y[mine]).items():
            assert row[name] == pytest.approx(number, rel=1e-9, abs=1e-18), (row["kind"], name)


def test_tokens_are_what_numpy_says(lastbit, pair, tmp_path):
    answer = lastbit.json("diff", *pair, expect=0)
    assert answer["verdict"] == "rounding"  # bf16 weights are the others rounded
    (p, y), (q, z) = (scores(lastbit, side, tmp_path) for side in pair)
    assert (y == z).all() and (y == -100).sum() == 4
    assert not answer["tokens_approximate"]
    check(answer["tokens"], p, q, y, np.where(y == -100, "ignored", "text"))
    ignored = next(row for row in answer["tokens"] if row["kind"] == "ignored")
    assert ignored["k3"] is None and ignored["max_abs"] is None


def test_kinds_are_taken_from_a_file(lastbit, pair, tmp_path):
    (p, y), (q, _) = (scores(lastbit, side, tmp_path) for side in pair)
    kinds = np.arange(len(y)) % 3
    np.save(tmp_path / "kinds.npy", kinds.astype(np.int32).reshape(4, -1))
    answer = lastbit.json("diff", *pair, "--kinds", tmp_path / "kinds.npy", "--kind-names", "prompt,tool", expect=0)
    named = np.array(["prompt", "tool", "kind 2"])[kinds]
    check(answer["tokens"], p, q, y, np.where(y == -100, "ignored", named))
    np.save(tmp_path / "short.npy", np.zeros(5, np.int64))
    short = lastbit.json("diff", *pair, "--kinds", tmp_path / "short.npy", expect=0)
    assert any("5 tokens" in finding for finding in short["findings"])
    text = lastbit.run("diff", *pair).stdout
    assert re.search(r"^text +252 ", text, re.M) and re.search(r"^ignored +4 +- ", text, re.M)


def routing(lastbit, capture, layer, folder):
    (logits,) = find(lastbit, capture, rf"{layer}\.mlp\.gate +aten::mm\(.*-> v(\d+)")
    (ids,) = find(lastbit, capture, rf"{layer}\.mlp\.gate +aten::topk\(.*-> v\d+:\w+\[[^]]*\], v(\d+)")
    return value(lastbit, capture, logits, folder).astype(np.float64), value(lastbit, capture, ids, folder)


def test_flips_of_experts_and_their_margins_are_what_numpy_says(lastbit, pair, tmp_path):
    rows = {row["layer"]: row for row in lastbit.json("diff", *pair, expect=0)["routing"]}
    assert set(rows) == {"model.layers.0.mlp.gate", "model.layers.1.mlp.gate"}
    total = 0
    for layer, row in rows.items():
        (la, ia), (lb, ib) = (routing(lastbit, side, layer.removesuffix(".mlp.gate"), tmp_path) for side in pair)
        flips, margins, explained = 0, [], 0
        for t, (x, y) in enumerate(zip(ia, ib)):
            lost = sorted(set(x) - set(y), key=lambda e: -la[t, e])
            won = sorted(set(y) - set(x), key=lambda e: la[t, e])
            flips += len(lost)
            for out, into in zip(lost, won):
                margins.append(la[t, out] - la[t, into])
                explained += margins[-1] <= abs(la[t, out] - lb[t, out]) + abs(la[t, into] - lb[t, into])
        assert (row["tokens"], row["choices"], row["flips"], row["explained"]) == (256, 512, flips, explained)
        assert row["largest_margin"] == (max(margins) if margins else None)
        assert row["share"] == flips / 512
        total += flips
    assert total > 0


def test_logits_of_an_inference_loop_count_as_greedy_tokens(lastbit, tmp_path):
    """generate_kv.py scores with a module named `head` and has no loss."""
    for dtype in ("float32", "bfloat16"):
        lastbit.record(
            tmp_path / f"{dtype}.lb", "tests/programs/generate_kv.py", "--tokens", "1", "--dtype", dtype, options=("--level", "layers"), expect=0
        )
    answer = lastbit.json("diff", tmp_path / "float32.lb", tmp_path / "bfloat16.lb", expect=0)
    (row,) = answer["tokens"]
    assert (row["kind"], row["count"]) == ("greedy", 16) and 0 < row["k3"] < 1e-2 and 0 < row["kl"] < 1e-2
    same = lastbit.json("diff", tmp_path / "float32.lb", tmp_path / "float32.lb", expect=0)
    assert same["tokens"][0] == dict(kind="greedy", count=16, k3=0, kl=0, top1=1, max_abs=0, mean_abs=0)
