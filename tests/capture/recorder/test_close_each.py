"""`record --close-each`: a rank's steps in several files, each whole once it is closed, which commands read as one archive."""

import re
import subprocess
import sys

import pytest
from conftest import BUILD
from second_reader import Capture

PROGRAM = "tests/programs/ranks/ddp_buckets.py"


def record(lastbit, out, *options):
    lastbit.record(out, PROGRAM, "2", "gloo", options=("--level", "ops", *options), expect=0)
    return out


@pytest.fixture(scope="module")
def runs(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return record(lastbit, folder / "one.lb"), record(lastbit, folder / "each.lb", "--close-each", "step")


def programs(lastbit, *path):
    return lastbit.json("ls", *path, "--ops", "--values", expect=0)["programs"]


def without_draws(listed):
    """Gloo's own order of arrival is in no program; what differs from run to run is where memory lay."""
    return [{key: p[key] for key in ("rank", "step", "level", "kept", "collectives", "complete") if key in p} for p in listed]


def test_files_of_a_rank_are_one_archive(lastbit, runs):
    one, each = runs
    assert sorted(path.name for path in each.iterdir()) == [f"rank-0000{r}-000000000{p}.tar" for r in (0, 1) for p in (0, 1, 2)]
    said = programs(lastbit, each)
    assert [(p["rank"], p["step"]) for p in said] == [(p["rank"], p["step"]) for p in programs(lastbit, one)]
    assert without_draws(said) == without_draws(programs(lastbit, one))
    verified = lastbit.json("verify", each, expect=0)
    assert (verified["verdict"], verified["archives"], verified["closed"], verified["missing"]) == ("whole", 6, 6, 0)
    assert lastbit.json("diff", one, each, expect=0)["verdict"] == "identical"
    assert lastbit.json("replay", each, "--mode", "chained")["compared"] == lastbit.json("replay", one, "--mode", "chained")["compared"]
    tables = [lastbit.json("ls", path, "--tables", expect=0)["tables"] for path in runs]
    for rank in (0, 1):
        coverage = [all_ranks[rank]["tables"]["coverage"] for all_ranks in tables]
        assert coverage[1]["closed"] and coverage[1]["steps"] == coverage[0]["steps"] == 2  # of the last file, not of the first
        assert sorted(tables[0][rank]["tables"]) == sorted(tables[1][rank]["tables"])


def test_ranks_are_counted_and_not_files(lastbit, tmp_path):
    said = lastbit.record(tmp_path / "run.lb", PROGRAM, "2", "gloo", options=("--close-each", "1"), expect=0).stderr
    assert "2 steps (0 to 1) of 2 ranks" in said


def test_each_file_is_whole_by_itself(lastbit, runs):
    for path in sorted(runs[1].iterdir()):
        verified = lastbit.json("verify", path, expect=0)
        assert (verified["verdict"], verified["closed"], verified["missing"], verified["damages"]) == ("whole", 1, 0, 0), path
        assert subprocess.run(["tar", "-tf", path], capture_output=True).returncode == 0
    steps = [[p["step"] for p in programs(lastbit, runs[1] / f"rank-00001-000000000{part}.tar")] for part in (0, 1, 2)]
    assert steps == [[0], [1], []]
    second = programs(lastbit, runs[1] / "rank-00001-0000000001.tar")
    assert second == [p for p in programs(lastbit, runs[1]) if (p["rank"], p["step"]) == (1, 1)]


def test_the_second_reader_reads_them(runs):
    one, each = (Capture(str(path)) for path in runs)
    assert {k: len(p["ops"]["name"]) for k, p in each.programs.items()} == {k: len(p["ops"]["name"]) for k, p in one.programs.items()}
    assert set(each.blobs) >= {blob for blob in one.blobs if blob in each.blobs} and len(each.blobs) >= len(one.blobs) // 2


def test_commands_that_write_captures_take_them(lastbit, runs, tmp_path):
    each = runs[1]
    lastbit.run("pack", each, "-o", tmp_path / "run.lbz", expect=0)
    lastbit.run("recover", each, "-o", tmp_path / "whole.lb", expect=0)
    lastbit.run("gather", each, "-o", tmp_path / "some.lb", "--steps", "1", expect=0)
    assert programs(lastbit, tmp_path / "run.lbz") == programs(lastbit, tmp_path / "whole.lb") == programs(lastbit, each)
    assert programs(lastbit, tmp_path / "some.lb") == [p for p in programs(lastbit, each) if p["step"] == 1]
    assert sorted(path.name for path in (tmp_path / "whole.lb").iterdir()) == sorted(path.name for path in each.iterdir())


def test_what_was_closed_outlives_a_kill(lastbit, tmp_path):
    out = tmp_path / "run.lb"
    made = subprocess.run([BUILD / "tests/make_steps", out, "steps=8", "close_each=3", "close=0", "flush=1"], capture_output=True)
    assert made.returncode == -9
    verified = lastbit.json("verify", out, expect=0)
    assert (verified["verdict"], verified["archives"], verified["closed"]) == ("whole", 3, 2)
    assert lastbit.json("ls", out, expect=0)["steps"] == list(range(8))
    for part in (0, 1):
        assert lastbit.json("ls", out / f"rank-00000-000000000{part}.tar", expect=0)["steps"] == [3 * part, 3 * part + 1, 3 * part + 2]


def test_a_file_that_was_just_begun_is_none_yet(lastbit, runs, tmp_path):
    for path in runs[1].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "rank-00000-0000000003.tar").touch()
    assert programs(lastbit, tmp_path) == programs(lastbit, runs[1])
    (tmp_path / "rank-00000-0000000001.tar").write_bytes(b"")  # one that others follow was cut off
    assert "rank-00000-0000000001.tar" in lastbit.run("ls", tmp_path, expect=128).stderr


def test_wrong_words(lastbit, tmp_path):
    for words in (("0",), ("x",), ("1.5",), ("-1",), ("3", "--ring", "2")):
        said = lastbit.run("record", "-o", tmp_path / "no.lb", "--close-each", *words, "--", sys.executable, "-c", "", expect=129).stderr
        assert "--close-each" in said
    assert not (tmp_path / "no.lb").exists()


@pytest.mark.parametrize("beside", (0, 1))
def test_memory_and_files_do_not_grow_with_their_number(lastbit, tmp_path, beside):
    """make_steps.c through the library: written by a thread beside the run, too."""
    made = subprocess.run(
        [BUILD / "tests/make_steps", tmp_path / "run.lb", "steps=40", "close_each=4", f"beside={beside}", "soak=8"], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    states = [[int(n) for n in line.split()] for line in made.stdout.splitlines()]
    assert len({descriptors for _, _, descriptors, _ in states[1:]}) <= 2
    assert len(list((tmp_path / "run.lb").iterdir())) == 11
    listed = lastbit.json("ls", tmp_path / "run.lb", expect=0)
    assert listed["steps"] == list(range(40))
    assert lastbit.json("verify", tmp_path / "run.lb", expect=0)["missing"] == 0
    assert not [path for path in tmp_path.rglob("*") if re.search(r"\.draft$", path.name)]
