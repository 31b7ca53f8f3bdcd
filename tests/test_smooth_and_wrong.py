"""The sample of a loss that is smooth and wrong: the answer that its README promises, and none for the mended program."""

import os
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT

SAMPLE = ROOT / "samples" / "smooth_and_wrong"


@pytest.fixture(scope="module")
def folder(lastbit, tmp_path_factory):
    """run.lb and mended.lb, with what the first program said."""
    folder = tmp_path_factory.mktemp("smooth")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name, words in (("run", []), ("mended", ["--mended"])):
        command = [BUILD / "lastbit", "record", "-o", f"{name}.lb", "--steps", "40", "--", sys.executable, SAMPLE / "train.py", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, env=environment)
        assert done.returncode == 0, done.stderr
        (folder / f"{name}.txt").write_text(done.stdout)
    return folder


def test_the_readme_tells_what_is_answered(lastbit, folder):
    readme = (SAMPLE / "README.md").read_text()
    losses = [float(line.split()[-1]) for line in (folder / "run.txt").read_text().splitlines()]
    assert losses[0] > 5 > 4 > losses[-1]
    found = lastbit.run("check", "run.lb", "--only", "relations", cwd=folder, expect=1).stdout
    assert found.startswith("verdict: found") and all(line.strip() in readme for line in found.splitlines())


def test_bisect_offers_that_command(lastbit, folder):
    assert lastbit.json("bisect", "-q", "run.lb", cwd=folder, expect=0)["shows"] == "lastbit check run.lb"


def test_the_mended_program_is_clean(lastbit, folder):
    answer = lastbit.json("check", "mended.lb", cwd=folder, expect=0)
    assert (answer["verdict"], answer["findings"], answer["not_judged"]) == ("clean", [], [])
    assert any("each row is scored against the next token" in line for line in answer["proven"])
