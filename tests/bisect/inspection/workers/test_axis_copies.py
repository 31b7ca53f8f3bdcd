"""Ranks that share out one model: what they hold copies of, and the norm over all its parts; each fault beside its healthy twin."""

import pytest

COPIES, NORMS = "tests/programs/ranks/axis_copies.py", "tests/programs/ranks/shard_norms.py"
FULL = pytest.mark.full


def found(answer):
    return [row for row in answer["findings"] if not row["note"]]


@pytest.mark.parametrize(
    "program, case",
    [
        (COPIES, "sequence"),
        (COPIES, "tied"),
        (COPIES, "biases"),
        (COPIES, "copied"),
        (NORMS, "fsdp"),
        (NORMS, "tensor"),
        *(pytest.param(COPIES, case, marks=FULL) for case in "heads kv experts local chunks halves late restored".split()),
        *(pytest.param(NORMS, case, marks=FULL) for case in "stages workers alone".split()),
    ],
)
def test_healthy_twins_are_clean(lastbit, recordings, program, case):
    answer = lastbit.json("ranks", recordings(case, program=program), expect=0)
    assert answer["verdict"] == "clean" and not found(answer), answer["findings"]


@pytest.mark.parametrize(
    "case, tensor",
    [
        ("sequence", "final_norm.weight"),
        ("heads", "out_norm.weight"),
        ("tied", "embed.weight (output.weight on rank 1)"),
        ("halves", "1.weight"),
        pytest.param("all-norms", "norms.0.weight", marks=FULL),
        pytest.param("kv", "kv.weight", marks=FULL),
        pytest.param("experts", "router.weight", marks=FULL),
    ],
)
def test_a_copy_whose_gradient_is_not_summed_is_named(lastbit, recordings, case, tensor):
    (row,) = found(lastbit.json("ranks", recordings(case, "--fault", program=COPIES), expect=1))
    assert row["kind"] == "replica" and row["tensor"] == tensor and row["step"] == 0
    assert "its gradient is not summed over them" in row["message"]


def test_chunks_of_one_rank_that_begin_alike_are_named(lastbit, recordings):
    rows = found(lastbit.json("ranks", recordings("chunks", "--fault", program=COPIES), expect=1))
    assert [(row["kind"], row["ranks"]) for row in rows] == [("alike", [0]), ("alike", [1])]
    assert "chunks.0.a.weight on rank 0 and chunks.1.a.weight on rank 0" in rows[0]["message"] and "3 more" in rows[0]["message"]


def test_a_gradient_that_is_added_behind_the_reduction_is_named(lastbit, recordings):
    late, replica = found(lastbit.json("ranks", recordings("late", "--fault", program=COPIES), expect=1))
    assert late["kind"] == "late" and late["ranks"] == [0, 1] and late["steps"] == 3 and replica["kind"] == "replica"


@FULL
def test_another_learning_rate_after_a_load_is_named(lastbit, recordings):
    option, replica = found(lastbit.json("ranks", recordings("restored", "--fault", program=COPIES), expect=1))
    assert option["kind"] == "option" and option["step"] == replica["step"] == 1 and replica["kind"] == "replica"


@pytest.mark.parametrize(
    "case, what",
    [
        ("fsdp", "the norm by which gradients are clipped on rank 0 is that of its own part alone"),
        ("tensor", "the norm by which gradients are clipped on rank 0 is a sum in which copies are counted once for every rank"),
        pytest.param("logged", "the norm of the gradients that is read on rank 0 is that of its own part alone", marks=FULL),
        pytest.param("stages", "the norm by which gradients are clipped on rank 0 is that of its own part alone", marks=FULL),
    ],
)
def test_a_norm_over_a_part_of_the_model_is_named(lastbit, recordings, case, what):
    rows = found(lastbit.json("ranks", recordings(case, "--fault", program=NORMS), expect=1))
    assert [(row["kind"], row["ranks"], row["steps"]) for row in rows] == [("clip", [0], 2), ("clip", [1], 2)]
    assert rows[0]["message"].startswith(what) and "shard_norms.py" in rows[0]["message"]
