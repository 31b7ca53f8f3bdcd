"""`lastbit gather`: steps of ranks from the folders of several machines, in one capture that says the same."""

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import BUILD, ROOT

PROGRAM = ROOT / "tests/programs/ranks/node_of_run.py"
CLEAN = ROOT / "samples" / "clean.lbz"


def make_ranks(folder, *options):
    subprocess.run([BUILD / "tests/make_ranks", folder, *options], check=True)
    return folder


@pytest.fixture(scope="module")
def nodes(lastbit, tmp_path_factory):
    """A run of two processes, each recorded by its own machine into its own folder."""
    folder = tmp_path_factory.mktemp("nodes")
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = str(door.getsockname()[1])
    running = []
    for rank in "01":
        env = os.environ | dict(RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1")
        command = [lastbit.path, "record", "-o", folder / f"node{rank}.lb", "--level", "ops", "--", sys.executable, PROGRAM]
        running.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for process in running:
        said, _ = process.communicate(timeout=200)
        assert process.returncode == 0, said
    return folder / "node0.lb", folder / "node1.lb"


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    return make_ranks(tmp_path_factory.mktemp("computed") / "run.lb", "ranks=8", "layers=3", "steps=4")


def programs(lastbit, *path):
    """Everything that `ls` says of each program, by rank and step."""
    return {(p["rank"], p["step"]): p for p in lastbit.json("ls", *path, "--ops", "--values", expect=0)["programs"]}


def test_ranks_of_two_machines_become_one_run(lastbit, nodes, tmp_path):
    whole = tmp_path / "whole.lb"
    answer = lastbit.json("gather", *nodes, "-o", whole, expect=0)
    assert (answer["ranks"], answer["programs"], answer["missing"]) == (2, 6, 0)
    assert programs(lastbit, whole) == programs(lastbit, nodes[0]) | programs(lastbit, nodes[1])
    verified = lastbit.json("verify", whole, expect=0)
    assert (verified["verdict"], verified["missing"], verified["archives"], verified["closed"]) == ("whole", 0, 2, 2)
    alone, together = (lastbit.json("replay", path) for path in (nodes[0], whole))
    assert together["compared"] > alone["compared"]  # all-reduces run when all their ranks are here
    assert lastbit.json("ranks", whole, expect=0)["collectives"] > 0
    tables = [lastbit.json("ls", path, "--tables", expect=0)["tables"] for path in (*nodes, whole)]
    assert tables[0] + tables[1] == tables[2] and tables[2][1]["tables"]["receipt"]["versions"]["torch"]


def test_one_step_needs_no_other(lastbit, nodes, tmp_path):
    one = tmp_path / "one.lb"
    lastbit.run("gather", *nodes, "-o", one, "--steps", "2", expect=0)
    said = programs(lastbit, one)
    assert sorted(said) == [(0, 2), (1, 2)]
    assert said[1, 2] == programs(lastbit, nodes[1])[1, 2]
    assert lastbit.json("verify", one, expect=0)["missing"] == 0
    replayed = lastbit.json("replay", one, "--mode", "isolated")
    before = lastbit.json("replay", tmp_path / "one.lb")
    assert replayed["compared"] == before["compared"] > 0


def test_bytes_of_several_ranks_come_once(lastbit, computed, tmp_path):
    """The eight ranks hold the same weights, and each has a batch, a target and gradients of its own."""
    some = tmp_path / "some.lb"
    answer = lastbit.json("gather", computed, "-o", some, "--ranks", "1,4-6", "--steps", "1,3", expect=0)
    assert (answer["ranks"], answer["programs"]) == (4, 8)
    alone = 0
    for rank in "1456":
        alone += lastbit.json("gather", computed, "-o", tmp_path / rank, "--ranks", rank, "--steps", "1,3", expect=0)["blobs"]
    # On three of the ranks: the weights of both steps and of the one after step 1, and the sums of the gradients.
    assert alone - answer["blobs"] == 3 * (2 * 3 + 3 + 2 * 3)
    assert programs(lastbit, some) == {
        place: p for place, p in programs(lastbit, computed).items() if place[0] in (1, 4, 5, 6) and place[1] in (1, 3)
    }
    replayed = lastbit.json("replay", some)
    assert replayed["verdict"] == "identical" and replayed["compared"] == replayed["bitwise"]
    again = tmp_path / "again.lb"  # rank 6 alone, whose weights lie in the archive of rank 1
    lastbit.run("gather", some, "-o", again, "--ranks", "6", expect=0)
    assert lastbit.json("verify", again, expect=0)["missing"] == 0
    replayed = lastbit.json("replay", again)
    assert replayed["verdict"] == "identical" and replayed["compared"] == replayed["bitwise"] > 0


def test_archives_of_other_ranks_are_not_read(lastbit, computed, tmp_path):
    broken = shutil.copytree(computed, tmp_path / "broken.lb")
    for rank in (0, 3, 7):
        (broken / f"rank-0000{rank}.tar").write_bytes(b"no archive" * 1000)
    lastbit.run("gather", broken, "-o", tmp_path / "two.lb", "--ranks", "1-2", expect=0)
    assert "rank-00003.tar" in lastbit.run("gather", broken, "-o", tmp_path / "three.lb", "--ranks", "1-3", expect=128).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.lb", "two.lb"]


def test_what_is_not_there_is_said(lastbit, computed, tmp_path):
    short = make_ranks(tmp_path / "short.lb", "ranks=8", "layers=3", "steps=2", "first=6", "last=7")
    for path in (computed / "rank-00006.tar", computed / "rank-00007.tar"):
        assert path.exists()
    long = shutil.copytree(computed, tmp_path / "long.lb", ignore=shutil.ignore_patterns("rank-0000[67].tar"))
    answer = lastbit.json("gather", long, short, "-o", tmp_path / "all.lb", "--ranks", "5-9", "--steps", "1-2", expect=1)
    assert answer["absent_ranks"] == [8, 9]
    assert answer["absent_steps"] == [{"rank": 6, "step": 2}, {"rank": 7, "step": 2}]
    said = lastbit.run("gather", long, short, "-o", tmp_path / "all.lb", "--ranks", "5-9", "--steps", "1-2", "-f", expect=1).stdout
    assert "not there: ranks 8, 9\n" in said and "not there: step 2 of rank 6\n" in said
    for options, why in (
        (("--ranks", "20"), "none of the ranks that are wanted; it has 6, from 0 to 5"),
        (("--steps", "9"), "none of the steps"),
    ):
        assert why in lastbit.run("gather", long, "-o", tmp_path / "no.lb", *options, expect=128).stderr
    assert not (tmp_path / "no.lb").exists()


def test_copies_are_as_good_as_one_and_two_runs_are_not(lastbit, computed, tmp_path):
    other = make_ranks(tmp_path / "other.lb", "ranks=8", "layers=3", "steps=4", "poison=2:3:1")
    packed = tmp_path / "packed.lbz"
    lastbit.run("pack", computed, "-o", packed, expect=0)
    lastbit.run("gather", computed, packed, "-o", tmp_path / "same.lb", expect=0)
    assert programs(lastbit, tmp_path / "same.lb") == programs(lastbit, computed)
    said = lastbit.run("gather", computed, other, "-o", tmp_path / "two.lb", expect=128).stderr
    assert re.search(r"step 2 of rank \d is in .*run\.lb and in .*other\.lb, and they are not the same", said), said
    assert not (tmp_path / "two.lb").exists()


def test_no_input_is_written_over(lastbit, computed, tmp_path):
    run, other = shutil.copytree(computed, tmp_path / "run.lb"), shutil.copytree(computed, tmp_path / "other.lb")
    (tmp_path / "soft.lb").symlink_to(run)
    before = {path: path.read_bytes() for path in run.iterdir()}
    for out in (run, other, f"{tmp_path}/./run.lb", tmp_path / "soft.lb", tmp_path):
        for force in ((), ("--force",)):
            done = lastbit.run("gather", other, run, "-o", out, *force, expect=128)
            assert "which is read" in done.stderr or "holds" in done.stderr, done.stderr
    assert {path: path.read_bytes() for path in run.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.lb", "run.lb", "soft.lb"]


def test_an_older_capture_goes_only_when_told_and_nothing_else_does(lastbit, computed, tmp_path):
    out = tmp_path / "out.lb"
    lastbit.run("gather", computed, "-o", out, expect=0)
    assert "--force replaces" in lastbit.run("gather", computed, "-o", out, "--ranks", "1", expect=128).stderr
    assert len(list(out.iterdir())) == 8
    lastbit.run("gather", computed, "-o", out, "--ranks", "1", "--force", expect=0)
    assert [path.name for path in out.iterdir()] == ["rank-00001.tar"]
    (out / "thesis.tex").write_text("x")
    assert "thesis.tex" in lastbit.run("gather", computed, "-o", out, "--force", expect=128).stderr
    assert sorted(path.name for path in out.iterdir()) == ["rank-00001.tar", "thesis.tex"]


def test_it_appears_whole_or_not_at_all(lastbit, computed, tmp_path):
    out = tmp_path / "out.lb"
    done = subprocess.run(
        [lastbit.path, "gather", computed, "-o", out],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)),
    )
    assert done.returncode == 128 and "File too large" in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []
    large = make_ranks(tmp_path / "large.lb", "ranks=64", "layers=20")
    for wait in (0.01, 0.03, 0.06):
        process = subprocess.Popen([lastbit.path, "gather", large, "-o", out], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(wait)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        assert not out.exists() or lastbit.json("verify", out, expect=0)["archives"] == 64
        assert not list(tmp_path.glob("*.draft"))


def test_wrong_words(lastbit, computed):
    assert "-o FOLDER" in lastbit.run("gather", computed, expect=129).stderr
    for words in (("--steps", "x"), ("--ranks", "1-"), ("--ranks", "1;2")):
        assert "3-5,8" in lastbit.run("gather", computed, "-o", "no.lb", *words, expect=129).stderr
    assert "CAPTURE" in lastbit.run("gather", "-o", "no.lb", expect=129).stderr
