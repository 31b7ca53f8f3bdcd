"""lastbit order on kernels that nobody here wrote, and on our own: the order found must be the order declared."""
import sys

import pytest


@pytest.mark.parametrize("kernel, n, name", [
    ("numpy:sum", 32, "numpy"), ("numpy:sum", 200, "numpy"), ("torch:sum", 32, "cascade:8"), ("torch:sum", 1000, "cascade:8"),
])
def test_the_order_of_a_live_sum_is_named(lastbit, kernel, n, name):
    answer = lastbit.json("order", "--python", kernel, "-n", n, "--interpreter", sys.executable, expect=0)
    assert answer["outcome"] == "tree"
    assert name in answer["groups"][0]["name"].split(" = ")


@pytest.mark.parametrize("order", ["sequential", "pairwise", "cascade:8", "blocked:8", "splitk:4", "lanes:4", "butterfly:32"])
def test_our_own_orders_are_found_as_declared(lastbit, order):
    lastbit.run("order", "--engine", order, "-n", 96, "--expect", order, expect=0)


def test_another_order_than_expected_ends_with_1_and_a_stored_tree_is_an_expectation(lastbit, tmp_path):
    lastbit.run("order", "--engine", "pairwise", "-n", 24, "-o", tmp_path / "tree.json", expect=0)
    lastbit.run("order", "--engine", "pairwise", "-n", 24, "--expect", tmp_path / "tree.json", expect=0)
    lastbit.run("order", "--engine", "sequential", "-n", 24, "--expect", tmp_path / "tree.json", expect=1)


def test_what_cannot_be_called_is_said(lastbit):
    done = lastbit.run("order", "--python", "nosuch:f", "-n", 8, "--interpreter", sys.executable, expect=128)
    assert "nosuch" in done.stderr
