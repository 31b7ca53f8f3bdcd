"""`lastbit check --only digits` of a step of several ranks: they run together, and what a line costs it costs on all of them."""

import json
import os
import re
import subprocess
import sys

import pytest
from checked_programs import Answers, recorded
from conftest import ROOT

HEALTHY = ["ddp", "ddp_view", "ddp_clip", "ddp_no_sync", "mean", "sum", "fsdp", "fsdp_clip", "ddp_right_rope", "fsdp_right_rope"]
ROPES = ["ddp_rope_bf16", "fsdp_rope_bf16", "mean_rope_bf16"]


@pytest.fixture(scope="module")
def steps(lastbit, tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("rank_digits"), "ranks/checked_ranks.py", [*HEALTHY, *ROPES, "mean_bf16"])


@pytest.fixture(scope="module")
def answers(lastbit, steps):
    return Answers(lastbit, steps, "--only", "digits")


def rounding(answer):
    return [row for row in answer["digits"] if row["kind"] == "rounding"]


def losses(answer):
    """Recorded, exact, and how far what ops round leads from the one past the other."""
    (line,) = [line for line in answer["proven"] if "in exact arithmetic" in line]
    return map(float, re.search(r"the loss (\S+), the mean over 2 ranks, is (\S+) in exact.*\(to (\S+)\)", line).groups())


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_step_of_several_ranks_is_clean(lastbit, steps, name):
    answer = lastbit.json("check", steps / f"{name}.lb", expect=0)
    assert (answer["verdict"], answer["findings"], answer["not_judged"]) == ("clean", [], [])
    recorded, exact, gap = losses(answer)
    assert recorded != exact and gap <= 1e-6 * abs(recorded - exact) + 16 * 2**-53 * recorded  # f64 rounds, too
    assert answer["replays"] <= 20 and len(rounding(answer)) >= 4


@pytest.mark.parametrize("name", ["ddp", "ddp_no_sync", "fsdp"])
def test_the_exact_loss_is_the_mean_over_ranks_in_f64(answers, name):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'capture'}:{ROOT / 'tests/programs/ranks'}"}
    code = f"import json, checked_ranks; print(json.dumps(checked_ranks.exact_loss('{name}')))"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=300, env=environment, capture_output=True)
    assert list(losses(answers(name)))[1] == pytest.approx(json.loads(done.stdout), rel=1e-9)


@pytest.mark.parametrize("name", ROPES)
def test_a_line_in_bf16_on_all_ranks_is_one_cause(answers, name):
    answer = answers(name)
    (row,) = answer["findings"]
    assert row["kind"] == "rounded" and "angles = positions.bfloat16()" in row["source"]["text"], answer["findings"]
    first = rounding(answer)[0]
    assert first["dtype"] == "bf16" and "angles = positions.bfloat16()" in first["source"]["text"], first
    assert first["ops"] % 2 == 0 and any(first["cured"][k] < 2 * first["effect"][k] for k in ("logits", "gradients")), first


def test_updates_of_copies_are_told_once(answers):
    """Each rank of FSDP has updates of its own rows; those of DDP are the same."""
    for name, ranks in (("ddp_rope_bf16", {0}), ("mean_bf16", {0})):
        told = [(row["rank"], row["layer"]) for row in answers(name)["digits"] if row["kind"] == "updates"]
        assert {rank for rank, _ in told} == ranks and len(told) == len(set(told)), told


def test_what_a_reduction_rounds_is_a_line_of_its_own(answers):
    found = {row["op"]: row for row in rounding(answers("mean_bf16")) if row["dtype"] == "bf16"}
    assert {"aten::_to_copy", "c10d::allreduce_"} <= set(found), found
    for row in found.values():
        assert "narrow" in row["source"]["text"] and row["effect"]["loss"] == 0 and row["effect"]["gradients"] > 1e-4, row
    whole = found["aten::_to_copy"]["effect"]["gradients"] / found["aten::_to_copy"]["share"] ** 0.5
    assert sum(row["share"] for row in found.values()) > 0.9 and 1e-3 < whole < 1e-2
    assert not [row for row in rounding(answers("mean")) if row["effect"]["gradients"] > 1e-4]


def test_ranks_that_were_not_all_recorded_are_not_judged(lastbit, steps, tmp_path):
    lastbit.run("pack", "-f", steps / "ddp.lb", "-o", tmp_path / "one.lbz", "--ranks", "0", expect=0)
    answer = lastbit.json("check", tmp_path / "one.lbz", "--only", "digits", expect=125)
    assert answer["findings"] == [] and not rounding(answer)
    (row,) = answer["not_judged"]
    assert row["what"] == "where the digits of step 0 go" and "not all of them were recorded" in row["why"]
