"""Numbers that a program logs leave the step: runs that log losses of other bits are not identical, though all gradients are the same."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logged")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "capture")}
    subprocess.run([sys.executable, ROOT / "tests/programs/logged_losses.py", folder], check=True, env=environment)
    return folder


def both_ways(lastbit, logged, first, second, how):
    paths = [logged / f"{way}-{how}.lb" for way in (first, second)]
    return [lastbit.json("diff", "--all", *order, expect=(0, 1)) for order in (paths, paths[::-1])]


@pytest.mark.parametrize(
    "how,named", [("scalar", "the logged number logged differs: "), ("item", "a number that the program read (.item()) differs: ")]
)
def test_a_loss_that_is_added_up_in_another_order_is_the_same_function(lastbit, logged, how, named):
    for answer in both_ways(lastbit, logged, "sum", "stacked", how):
        assert answer["verdict"] in ("rounding", "reordered")  # the order of a library's sum has a name on some processors
        assert answer["earliest"]["op"] in ("aten::add.Tensor", "aten::sum")
        assert [text for text in answer["findings"] if text.startswith(named)]


@pytest.mark.parametrize("how", ["scalar", "item"])
def test_a_loss_that_is_another_function_diverged(lastbit, logged, how):
    for answer in both_ways(lastbit, logged, "sum", "weighted", how):
        assert answer["verdict"] == "diverged"


def test_a_number_of_python_alone_is_not_identical_and_said_not_to_be_judged(lastbit, logged):
    for answer in both_ways(lastbit, logged, "floats", "backwards", "scalar"):
        assert answer["verdict"] == "rounding"
        assert [text for text in answer["findings"] if "the logged number logged" in text and "not judged" in text]


def test_numbers_that_are_read_in_another_order_are_the_same_numbers(lastbit, logged):
    for answer in both_ways(lastbit, logged, "floats", "backwards", "item"):
        assert answer["verdict"] == "identical" and not answer["findings"]
