"""Weights and optimizer restored, the scales of fp8 linears cold: a difference that diff sees and bisect names."""

import json
import subprocess

import pytest
from conftest import ROOT, warm_python

PROGRAM = "tests/programs/resume_fp8.py"


@pytest.fixture(scope="module")
def resumed(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("resumed")
    subprocess.run([*warm_python(), ROOT / PROGRAM, folder / "ck.pt", "--save"], check=True, capture_output=True)
    lastbit.record(folder / "warm.lb", PROGRAM, folder / "ck.pt", expect=0)
    lastbit.record(folder / "cold.lb", PROGRAM, folder / "ck.pt", "--cold", expect=0)
    return folder


def test_cold_scales_are_where_two_resumed_runs_part(lastbit, resumed):
    answer = lastbit.json("diff", resumed / "warm.lb", resumed / "cold.lb", expect=1)
    assert answer["verdict"] == "diverged"
    first = json.dumps(answer["first"])
    assert "layers.0.attention.qkv.x_amax" in first and "state" in first


def test_bisect_names_the_amax_history(lastbit, resumed):
    answer = lastbit.json("bisect", resumed / "cold.lb", "--against", resumed / "warm.lb", "-q", expect=1)
    assert answer["culprit"]["layer"].startswith("layers.0.attention.qkv") and "amax" in json.dumps(answer["culprit"])


def test_the_checkpoint_itself_shows_the_histories(lastbit, resumed):
    names = [v["name"] for v in lastbit.json("ls", resumed / "ck.pt", "--values", expect=0)["programs"][0]["value_list"]]
    assert "model.layers.0.attention.qkv.x_amax" in names and any(name.startswith("steppers.") for name in names)
