"""samples/silent_ranks.py: three seed settings whose mean loss is alike and whose workers drift apart in their order."""

import pytest

SETTINGS = "s1-1", "s1-2", "s1-3"


@pytest.fixture(scope="module")
def curves(lastbit, tmp_path_factory):
    """Per setting the report on it, each recorded once."""
    folder, made = tmp_path_factory.mktemp("silent"), {}
    for setting in SETTINGS:
        out = folder / f"{setting}.lb"
        arguments = (setting, "--steps", "8", "--layers", "1", "--width", "16")
        lastbit.record(out, "samples/silent_ranks.py", *arguments, options=("--level", "ops"), expect=0)
        made[setting] = lastbit.json("ranks", out, expect=(0, 1))
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
