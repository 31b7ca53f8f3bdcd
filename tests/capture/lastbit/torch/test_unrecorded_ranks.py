"""A rank that `record --ranks` does not name runs as it would without us."""

import re


def test_nothing_watches_a_rank_that_is_not_recorded(lastbit, tmp_path):
    out = tmp_path / "run.lb"
    said = lastbit.record(out, "tests/programs/ranks/watched_ranks.py", options=("--ranks", "1"), expect=0).stdout
    watched = {int(rank): [int(n) for n in numbers] for rank, *numbers in re.findall(r"rank (\d): (\d+) modes, (\d+) hooks, (\d+) threads", said)}
    assert watched[0] == [0, 0, 0], said
    assert all(watched[1]), said
    assert [path.name for path in out.iterdir()] == ["rank-00001.tar"]
    assert lastbit.json("ls", out, expect=0)["steps"] == [0, 1, 2]
