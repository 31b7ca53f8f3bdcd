"""`lastbit check --only relations` of a pipeline: the last stage scores tokens that the first one looks up. Ranks run together, and a relation that
breaks is followed to the stage and the op where it does."""

import shutil

import pytest
from checked_programs import recorded

PROVEN = ["no row of scores depends on a later token", "sequences of the batch do not meet"]
HEALTHY = ["clean", "one", "torch", "padded"]
# name: kind, the rank, a part of the line of code.
FAULTS = {
    "0_future": ("future", 0, "scaled_dot_product_attention"),
    "2_future": ("future", 2, "scaled_dot_product_attention"),
    "0_rows": ("rows", 0, "x - x.mean(0"),
    "1_rows": ("rows", 1, "x - x.mean(0"),
    "2_rows": ("rows", 2, "x - x.mean(0"),
    "1_padded": ("padding", 1, "scaled_dot_product_attention"),
    "2_padded": ("padding", 2, "scaled_dot_product_attention"),
    "2_scored": ("target", 2, "F.cross_entropy"),
}


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("staged"), "ranks/staged_tokens.py", [*HEALTHY, *FAULTS])


def answer_of(lastbit, path, expect):
    return lastbit.json("check", path, "--only", "relations", expect=expect)


@pytest.mark.parametrize("name", HEALTHY)
def test_relations_of_a_pipeline_are_proven(lastbit, steps, name):
    answer = answer_of(lastbit, steps / f"{name}.lb", 0)
    proven = "; ".join(answer["proven"])
    assert (answer["findings"], answer["not_judged"]) == ([], []) and answer["replays"] <= 20
    wanted = (
        PROVEN + ["the attention mask hides change nothing"] * (name == "padded") + ["micro-batches do not depend on the first"] * (name != "one")
    )
    assert [line for line in wanted if line not in proven] == [], proven


@pytest.mark.parametrize("name", FAULTS)
def test_the_stage_where_tokens_meet_is_named(lastbit, steps, name):
    kind, rank, line = FAULTS[name]
    rows = answer_of(lastbit, steps / f"{name}.lb", 1)["findings"]
    assert {row["kind"] for row in rows} == {kind} and len(rows) == (2 if kind == "target" else 1), rows
    assert rows[0]["rank"] == rank and line in rows[0]["source"]["text"] and f"--rank {rank} " in rows[0]["command"], rows[0]


def test_a_last_stage_alone_is_said_not_to_be_judged(lastbit, steps, tmp_path):
    shutil.copytree(steps / "clean.lb", tmp_path / "alone.lb")
    for rank in (0, 1):
        (tmp_path / f"alone.lb/rank-{rank:05}.tar").unlink()
    answer = answer_of(lastbit, tmp_path / "alone.lb", 125)
    assert answer["findings"] == [] and "tokens that another rank looks up" in answer["not_judged"][0]["why"]
