"""ZeRO: ranks whose optimizers hold parts of one flat whole are no replicas of each other; what is gathered from the parts is one again."""

import pytest

PROGRAM = "tests/programs/ranks/flat_partitions.py"


@pytest.mark.parametrize("stage", ["1", "2", pytest.param("2-reduce", marks=pytest.mark.full)])
def test_partitions_are_no_replicas(lastbit, recordings, stage):
    run = recordings(stage, program=PROGRAM)
    answer = lastbit.json("ranks", run, expect=0)
    assert answer["verdict"] == "clean" and not answer["findings"]
    assert lastbit.json("bisect", "-q", run, expect=0)["outcome"] == "clean"


@pytest.mark.parametrize("stage", ["1", pytest.param("2", marks=pytest.mark.full)])
def test_a_rank_that_does_not_take_what_was_gathered_is_found(lastbit, recordings, stage):
    run = recordings(stage, "late", program=PROGRAM)
    answer = lastbit.json("ranks", run, expect=1)
    found = [row for row in answer["findings"] if row["kind"] == "replica"]
    assert found and "0.weight" in found[0]["message"] and "AdamW.0.0" not in str(answer["findings"])
    assert "0.weight" in lastbit.json("bisect", "-q", run, expect=1)["failure"]["what"]
