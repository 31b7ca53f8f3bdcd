"""Isolated A/A over 24 architectures: nothing diverges, and at least 99.5 % of the executed ops are computed."""

import architectures
import pytest

# Between them: flash attention, latent attention, experts, convolutions, recurrent states, and sums of bf16 that some processors flush to 0.
ALWAYS = ("deepseek_v3 bf16", "qwen3_next", "bamba autocast")


def check(tmp_path, name):
    done = architectures.record(tmp_path / "run.lb", architectures.CASES[name])
    assert done.returncode == 0 and "recording stopped" not in done.stderr, done.stderr[-2000:]
    answer = architectures.replay(tmp_path / "run.lb")
    assert "error" not in answer, answer["error"]
    assert answer["verdicts"]["diverged"] == 0, [w for w in answer["worst"] if w["verdict"] == "diverged"]
    assert answer["verdict"] in ("identical", "rounding")
    assert answer["ops"]["native"] >= 0.995 * answer["ops"]["total"], answer["opaque_ops"]
    assert answer["compared"] > 30 and answer["compared"] >= 0.95 * answer["ops"]["native"]


@pytest.mark.parametrize("name", ALWAYS)
def test_an_architecture_replays(tmp_path, name):
    check(tmp_path, name)


@pytest.mark.full
@pytest.mark.parametrize("name", [n for n in architectures.CASES if n not in ALWAYS])
def test_more_architectures_replay(tmp_path, name):
    check(tmp_path, name)
