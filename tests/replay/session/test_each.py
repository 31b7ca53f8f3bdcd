"""`lastbit replay --each`: what each swap does alone and left out of all, against replays under just these swaps."""

import pytest
from swapped import replayed

SWAPS = [("--fuse", "add_rms_norm=sequential,acc:bf16"), ("--fuse", "attention=splitkv:2"), ("--order", "op=mm=pairwise"), ("--fuse", "finalise=on")]


@pytest.fixture(scope="module")
def capture(recordings):
    return recordings("--model", "llama", "--dtype", "bf16", "--steps", "2")


def ends(lastbit, capture, tmp_path, swaps):
    """(logits, loss) of every step."""
    _, written = replayed(
        lastbit,
        capture,
        tmp_path,
        "--mode",
        "chained",
        *(w for s in swaps for w in s),
        "--select",
        "phase=forward&(lm_head/aten::mm|nll_loss_forward)",
    )
    found = {}
    for (step, _, _, result), t in sorted(written.tensors.items()):
        if result == 0:
            found.setdefault(step, []).append(t.double())
    return found


def moved(now, then):
    return {step: [((a - b).norm() / b.norm()).item() for a, b in zip(now[step], then[step])] for step in then}


def test_every_swap_is_tried_alone_and_left_out(lastbit, capture, tmp_path):
    answer = lastbit.json("replay", capture, "--each", *(w for s in SWAPS for w in s), expect=0)
    plain = ends(lastbit, capture, tmp_path, [])
    assert [len(v) for v in plain.values()] == [2, 2]
    assert [s["touched"] > 0 for s in answer["swaps"]] == [True, True, True, False]  # a dense model has no experts to finalise
    assert [s["undecided"] for s in answer["swaps"]] == [False] * 4
    everything = moved(ends(lastbit, capture, tmp_path, SWAPS), plain)
    alone = [moved(ends(lastbit, capture, tmp_path, [s]), plain) for s in SWAPS]
    without = [moved(ends(lastbit, capture, tmp_path, [s for s in SWAPS if s != out]), plain) for out in SWAPS]
    assert [e["step"] for e in answer["each"]] == [0, 1]
    for e in answer["each"]:
        step = e["step"]
        assert [e["all"]["output"], e["all"]["loss"]] == pytest.approx(everything[step], rel=1e-9)
        for row, one, rest in zip(e["swaps"], alone, without):
            assert [row["alone"]["output"], row["alone"]["loss"]] == pytest.approx(one[step], rel=1e-9)
            assert [row["without"]["output"], row["without"]["loss"]] == pytest.approx(rest[step], rel=1e-9)
        assert e["swaps"][0]["alone"]["output"] > 0 and e["swaps"][3]["alone"] == {"output": 0, "loss": 0}
        assert e["swaps"][3]["without"] == e["all"]
    text = lastbit.run("replay", capture, "--each", *SWAPS[0], *SWAPS[1], expect=0).stdout
    assert text.count("--fuse attention=splitkv:2") == 2 and text.count("\nall ") == 2


def test_what_does_not_go_together_is_said(lastbit, capture):
    for options, word in (
        ((), "give some"),
        (("--fuse", "rms_norm=on", "--table"), "--table"),
        (("--fuse", "rms_norm=on", "--mode", "layer"), "--mode out"),
        (("--fuse", "rms_norm=on", "--routing-report"), "--each"),
    ):
        assert word in lastbit.run("replay", capture, "--each", *options, expect=129).stderr


def test_a_dash_and_a_swap_that_touches_nothing_are_explained(lastbit, capture, recordings, tmp_path):
    text = lastbit.run("replay", capture, "--each", "--fuse", "rms_norm=on", "--fuse", "finalise=on", expect=0).stdout
    assert "--fuse finalise=on touches nothing here" in text and "- output" not in text and "- loss" not in text
    lastbit.record(tmp_path / "stats.lb", "tests/programs/two_linears.py", options=("--level", "stats"), expect=0)
    text = lastbit.run("replay", tmp_path / "stats.lb", "--each", "--order", "op=addmm=pairwise").stdout
    assert "- output: it could not be computed" in text and "--level sources" in text


def test_outputs_that_are_masked_have_a_distance(lastbit, tmp_path):
    """Logits of which some are minus infinity on both sides, in bf16."""
    lastbit.record(tmp_path / "masked.lb", "tests/programs/masked_logits.py", options=("--level", "ops"), expect=0)
    answer = lastbit.json("replay", tmp_path / "masked.lb", "--each", "--fuse", "rms_norm=on", "--order", "op=mm=pairwise", expect=0)
    (end,) = answer["each"]
    assert all(row["alone"]["output"] is not None for row in end["swaps"]) and end["all"]["output"] > 0
