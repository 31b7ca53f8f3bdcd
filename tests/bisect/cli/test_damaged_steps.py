"""A step that was recorded and is damaged is no step that is not there: nothing is said of a window as if it had fewer steps.

Two copies of one damaged file have the same bits in every step that can be read; that makes them not identical."""

import shutil

import pytest
from conftest import ROOT

SAMPLE = ROOT / "samples" / "clean.lbz"


@pytest.fixture(scope="module")
def damaged(lastbit, tmp_path_factory):
    """By step: the archive of two steps, with bytes of that step's program exchanged for others."""
    folder = tmp_path_factory.mktemp("damaged")
    lastbit.run("recover", SAMPLE, "-o", folder / "whole.tar", expect=0)
    whole, found = (folder / "whole.tar").read_bytes(), {}
    for at in range(0, len(whole), 8192):
        if len(found) == 2:
            break
        path = folder / "tried.tar"
        path.write_bytes(whole[: at + 700] + bytes(255 - byte for byte in whole[at + 700 : at + 1700]) + whole[at + 1700 :])
        said = lastbit.run("verify", path).stdout
        for step in (0, 1):
            if f"program of rank 0, step {step}:" in said and step not in found:
                found[step] = shutil.copy(path, folder / f"step{step}.tar")
    assert set(found) == {0, 1}
    return found | {"whole": folder / "whole.tar"}


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("command", ["diff", "explain", "bisect"])
def test_two_sides_that_are_damaged_alike_are_not_the_same(lastbit, damaged, tmp_path, command, step):
    other = shutil.copy(damaged[step], tmp_path / "other.tar")
    for first, second in ((damaged[step], other), (damaged["whole"], other), (other, damaged["whole"])):
        words = ["bisect", "-q", first, "--against", second] if command == "bisect" else [command, first, second]
        done = lastbit.run(*words, expect=128)
        assert f"program of step {step}" in done.stderr and "damaged" in done.stderr and not done.stdout


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("command", ["check", "ranks", "replay", "watch", "bisect"])
def test_one_side_with_a_damaged_step_is_told_so(lastbit, damaged, command, step):
    done = lastbit.run(command, damaged[step], expect=125 if command == "bisect" else 128)
    assert f"program of step {step}" in " ".join((done.stdout + done.stderr).split()), done.stdout + done.stderr


def test_a_damaged_step_is_no_capture_of_tensors(lastbit, damaged):
    """Of one step alone, which is damaged: it was recorded."""
    for command in ("bisect", "check"):
        done = lastbit.run(command, damaged[1], "--steps", "1", expect=(125, 128))
        assert "damaged" in done.stdout + done.stderr and "tensors only" not in done.stdout, done.stdout
    done = lastbit.run("diff", damaged[1], damaged[1], "--steps", "1", expect=128)
    assert "damaged" in done.stderr
