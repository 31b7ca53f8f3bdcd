"""samples/silent_ranks.py: three seed settings whose mean loss is alike and whose workers drift apart in their order."""

import pytest

SETTINGS = "s1-1", "s1-2", "s1-3"


@pytest.fixture(scope="module")
def curves(lastbit, captures):
    """Per setting the report on it, each recorded once."""
    return {setting: lastbit.json("ranks", capture, expect=(0, 1)) for setting, capture in captures.items()}


@pytest.fixture(scope="module")
def captures(lastbit, tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("silent"), {}
    for setting in SETTINGS:
        out = folder / f"{setting}.lb"
        arguments = (setting, "--steps", "8", "--layers", "1", "--width", "16")
        lastbit.record(out, "samples/silent_ranks.py", *arguments, options=("--level", "ops"), expect=0)
        made[setting] = out
    return made


def mean(answer, key):
    """Of the last steps: in the first ones an untrained model finds all instructions equally hard."""
    rows = [step[key] for step in answer["steps"]][4:]
    return sum(rows) / len(rows)


def test_workers_drift_apart_from_setting_to_setting(curves):
    for key in ("loss_std", "loss_range", "grad_norm_std"):
        assert mean(curves["s1-1"], key) < mean(curves["s1-2"], key) < mean(curves["s1-3"], key), key
    for key in ("grad_cosine_mean",):
        assert mean(curves["s1-1"], key) > mean(curves["s1-2"], key) > mean(curves["s1-3"], key), key


def test_the_mean_loss_shows_nothing(curves):
    for answer in curves.values():
        losses = [step["loss_mean"] for step in answer["steps"]]
        assert len(losses) == 8 and losses[-1] < losses[0] and all(abs(b - a) < 0.5 for a, b in zip(losses, losses[1:]))
        assert all(len(step["workers"]) == 8 for step in answer["steps"])


def test_nothing_is_unequal_and_no_call_differs(curves):
    for answer in curves.values():
        assert not {row["kind"] for row in answer["findings"] if not row["note"]} & {"collective", "replica", "initial", "option", "version"}


def test_settings_side_by_side_read_as_the_paper_reads_them(lastbit, captures, curves):
    """The one with one seed is the consistent one, the others are silent inconsistencies, in whatever order they are given."""
    for order in (SETTINGS, SETTINGS[::-1]):
        answer = lastbit.json("ranks", *(captures[s] for s in order), expect=1)
        assert answer["verdict"] == "found" and answer["closest"] == str(captures["s1-1"]) and answer["steps_compared"] == 8
        rows = dict(zip(order, answer["settings"]))
        assert {s: row["inconsistent"] for s, row in rows.items()} == {"s1-1": False, "s1-2": True, "s1-3": True}
        assert rows["s1-3"]["apart"] == ["loss", "grad_norm", "grad_cosine"]
        for setting, row in rows.items():
            assert row["report"]["steps"] == curves[setting]["steps"]
            assert row["loss_std"] == pytest.approx(sum(s["loss_std"] for s in row["report"]["steps"]) / 8)


def test_a_setting_beside_itself_is_clean_and_few_steps_tell_nothing(lastbit, captures):
    alike = lastbit.json("ranks", captures["s1-3"], captures["s1-3"], expect=0)
    assert alike["verdict"] == "clean" and not any(row["inconsistent"] for row in alike["settings"])
    few = lastbit.json("ranks", "--steps", "0-1", captures["s1-3"], captures["s1-3"], expect=0)
    assert few["verdict"] == "clean" and few["steps_compared"] == 2
    for order in (("s1-1", "s1-3"), ("s1-3", "s1-1")):  # further apart in each of six steps: that is not clean
        text = lastbit.run("ranks", "--steps", "0-5", *(captures[s] for s in order), expect=125).stdout
        assert text.startswith("verdict: cannot be tested") and "6 steps are too few" in text
        assert f"{captures['s1-3']}: its workers are further apart in every step" in text
    answer = lastbit.json("ranks", "--steps", "0-5", captures["s1-1"], captures["s1-3"], expect=125)
    assert answer["verdict"] == "cannot be tested" and not any(row["inconsistent"] for row in answer["settings"])


def test_the_text_says_verdict_setting_and_numbers(lastbit, captures):
    lines = lastbit.run("ranks", captures["s1-1"], captures["s1-2"], captures["s1-3"], expect=1).stdout.splitlines()
    assert lines[0] == "verdict: found"
    assert lines[1].startswith(f"{captures['s1-2']}: silent inconsistency: its workers are further apart: loss dispersion")
    assert f"{captures['s1-1']}: its workers are closest together" in lines
