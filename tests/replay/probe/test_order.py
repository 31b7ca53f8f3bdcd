"""`lastbit order` on kernels as people have them: NumPy, torch, OpenBLAS, functions of a shared object, lastbit's own engine."""

import json
import os
import sys

import pytest
from conftest import BUILD

SUMS = next(BUILD.glob("**/libprobed_sums.so"), BUILD / "libprobed_sums.so")


def order(lastbit, *args, expect=0):
    return lastbit.json("order", "--interpreter", sys.executable, *args, expect=expect, env={**os.environ, "OMP_NUM_THREADS": "1"})


def confirmed(answer, n=None):
    """One tree, and every sum of random terms has its bits."""
    group = answer["groups"][0]
    assert answer["outcome"] == "tree" and len(answer["groups"]) == 1
    assert group["confirmed"] == group["tried"] == 32
    assert group["tree"]["leaves"] == (n or answer["n"])
    return group


# ---- shared objects ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "symbol,args,name,arithmetic",
    [
        ("even_odd", ["-n", 101], "lanes:2", "f32"),
        ("backwards", ["-n", 77, "--dtype", "f64"], "reversed", "f64"),
        ("narrow", ["-n", 300, "--dtype", "bf16"], "sequential", "bf16 at every addition"),
        ("narrow_to_wide", ["-n", 300, "--dtype", "bf16", "--result", "f32", "--as", "dot"], "sequential", "f32 fma"),
        ("of_columns", ["-n", 50, "--as", "columns", "--rows", 9], "sequential", "f32"),
        ("splitk", ["-n", 100, "--as", "matmul", "--rows", 5, "--columns", 6], "splitk:4@0,2,3,1", "f32"),
    ],
)
def test_functions_of_a_shared_object(lastbit, symbol, args, name, arithmetic):
    group = confirmed(order(lastbit, "--so", SUMS, "--symbol", symbol, *args))
    assert group["name"] == name and group["arithmetic"] == arithmetic


def test_a_row_with_an_order_of_its_own(lastbit):
    answer = order(lastbit, "--so", SUMS, "--symbol", "odd_one_out", "-n", 40, "--as", "rows", "--rows", 7, expect=1)
    assert [(g["name"], g["positions"], g["row"]) for g in answer["groups"]] == [("sequential", 6, 0), ("reversed", 1, 6)]


@pytest.mark.parametrize("symbol,outcome", [("compensated", "exact"), ("largest", "no-sum")])
def test_what_is_no_tree(lastbit, symbol, outcome):
    answer = order(lastbit, "--so", SUMS, "--symbol", symbol, "-n", 40, expect=125)
    assert answer["outcome"] == outcome and answer["groups"][0]["tree"] is None and answer["groups"][0]["reason"]


@pytest.mark.parametrize(
    "symbol,ending",
    [
        ("turned_round", "signal 11 (Segmentation fault)"),
        ("aborts", "signal 6 (Aborted)"),
        ("leaves", "exit code 3"),
        ("endless", "has not returned for 1 s"),
    ],
)
def test_a_function_that_does_not_return_is_an_error_that_names_its_signature(lastbit, symbol, ending):
    done = lastbit.run("order", "--so", SUMS, "--symbol", symbol, "-n", 40, "--timeout", 1, "--json", expect=128, timeout=60)
    assert f"{symbol} of {SUMS}, called as float f(const float *x, int64_t n)," in done.stderr and ending in done.stderr
    assert "another signature" in done.stderr and done.stdout == ""


def test_the_signature_named_is_that_of_the_call(lastbit):
    for args, words in [
        (["--as", "rows", "--rows", 2], "void f(const float *x, int64_t rows, int64_t n, float *out)"),
        (["--dtype", "f64"], "double f(const double *x, int64_t n)"),
        (["--dtype", "bf16", "--result", "f32", "--as", "dot"], "float f(const uint16_t *x, const uint16_t *y, int64_t n)"),
    ]:
        assert words in lastbit.run("order", "--so", SUMS, "--symbol", "leaves", "-n", 4, *args, expect=128).stderr


def test_what_a_function_prints_is_no_result(lastbit):
    assert confirmed(order(lastbit, "--so", SUMS, "--symbol", "talks", "-n", 20))["name"] == "sequential"


def test_a_tree_is_stored_expected_and_summed_along(lastbit, tmp_path):
    stored = tmp_path / "tree.json"
    order(lastbit, "--so", SUMS, "--symbol", "even_odd", "-n", 30, "-o", stored)
    kept = json.loads(stored.read_text())
    assert kept["schema"] == "lastbit.tree/1" and kept["text"] == "([0..28/2] [1..29/2])" and kept["name"] == "lanes:2"
    assert order(lastbit, "--so", SUMS, "--symbol", "even_odd", "-n", 30, "--expect", stored)["as_expected"]
    assert order(lastbit, "--engine", f"tree:{stored}", "-n", 30, "--expect", "lanes:2")["as_expected"]
    assert not order(lastbit, "--so", SUMS, "--symbol", "even_odd", "-n", 30, "--expect", "pairwise", expect=1)["as_expected"]
    assert lastbit.json("order", "--tree", stored, expect=0)["name"] == "lanes:2"
    text = lastbit.run("order", "--so", SUMS, "--symbol", "even_odd", "-n", 30, expect=0).stdout
    assert "lanes:2" in text and "([0..28/2] [1..29/2])" in text


@pytest.mark.parametrize("name", ["sequential", "pairwise", "cascade:8", "blocked:8", "splitk:4", "lanes:4", "butterfly:32"])
def test_our_own_orders_are_found_as_declared(lastbit, name):
    assert order(lastbit, "--engine", name, "-n", 96, "--expect", name)["as_expected"]


@pytest.mark.parametrize("name", ["dpbf16", "tdpbf16:1", "tdpbf16:3", "torchdot", "splitk:4", "blocked:8"])
def test_our_own_products_are_found_as_declared(lastbit, name):
    assert order(lastbit, "--engine", name, "--as", "matmul", "-n", 96, "--expect", name)["as_expected"]


def test_wrong_use_says_what_is_wrong(lastbit):
    for args, code, words in [
        ([], 129, "what to probe"),
        (["--engine", "pairwise", "--python", "numpy:sum", "-n", 5], 129, "what to probe"),
        (["--so", SUMS, "-n", 5], 129, "belong together"),
        (["--so", SUMS, "--symbol", "even_odd", "-n", 5, "--timeout", "0"], 129, "--timeout"),
        (["--so", SUMS, "--symbol", "even_odd", "-n", 5, "--timeout", "3000000"], 129, "--timeout"),
        (["--engine", "pairwise", "-n", 5, "--timeout", "5"], 129, "--timeout"),
        (["--engine", "pairwise"], 129, "terms"),
        (["--engine", "pairwise", "-n", 5, "--as", "tensor"], 129, "matmul"),
        (["--engine", "pairwise", "-n", 5, "--dtype", "e4m3fn"], 129, "bf16"),
        (["--engine", "pairwise", "-n", 5, "--expect", "sideways"], 129, "is not an order"),
        (["--engine", "sideways", "-n", 5], 129, "is not an order"),
        (["--so", SUMS, "--symbol", "nothing", "-n", 5], 128, "nothing"),
        (["--so", "/no/such/file.so", "--symbol", "f", "-n", 5], 128, "no/such"),
        (["--python", "numpy:nothing", "-n", 5, "--interpreter", sys.executable], 128, "nothing"),
        (["--python", "math:floor", "-n", 5, "--interpreter", sys.executable], 128, "Python"),
        (["--python", "numpy:sum", "-n", 5, "--interpreter", "/no/such/python"], 128, "127"),
    ]:
        done = lastbit.run("order", *args, expect=code)
        assert words in done.stderr, (args, done.stderr)


# ---- NumPy -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [7, 100, 1001])
def test_numpy_sums(lastbit, n):
    group = confirmed(order(lastbit, "--python", "numpy:sum", "-n", n))
    assert ("numpy" if n > 7 else "sequential") in group["names"] and group["arithmetic"] == "f32"


def test_numpy_means_columns_and_doubles(lastbit):
    assert confirmed(order(lastbit, "--python", "numpy:mean", "-n", 300))["arithmetic"] == "f32, divided by n"
    assert confirmed(order(lastbit, "--python", "numpy:sum(axis=0)", "--as", "columns", "-n", 100, "--rows", 20))["name"] == "sequential"
    assert "numpy" in confirmed(order(lastbit, "--python", "numpy:sum", "-n", 300, "--dtype", "f64"))["names"]


def test_a_tree_found_in_numpy_gives_its_bits_in_the_engine(lastbit, tmp_path):
    """OpenBLAS's dot has an order without a name; summed along the tree, random products have its bits. (Where a vector is left
    over, its kernel for AVX2 adds up the rest in f64, beside fma in f32.)"""
    group = confirmed(order(lastbit, "--python", "numpy:dot", "--as", "dot", "-n", 192, "-o", tmp_path / "dot.json"))
    again = confirmed(order(lastbit, "--engine", f"tree:{tmp_path / 'dot.json'}", "--as", "dot", "-n", 192, "--expect", tmp_path / "dot.json"))
    assert again["tree"]["nodes"] == group["tree"]["nodes"] and again["arithmetic"] == group["arithmetic"] == "f32 fma"


def test_a_function_of_the_user_s_own(lastbit, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text("""
import numpy as np
print("hello from the module")
class Sums:
    @staticmethod
    def by_blocks(x, size=16):
        print("called")
        total = np.float32(0)
        for i in range(0, len(x), size):
            part = np.float32(0)
            for value in x[i:i + size]:
                part += value
            total += part
        return total
def breaks(x):
    raise RuntimeError("no sum today")
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "blocked:8" in confirmed(order(lastbit, "--python", "own:Sums.by_blocks(size=8)", "-n", 24))["names"]
    done = lastbit.run("order", "--interpreter", sys.executable, "--python", "own:breaks", "-n", 24, expect=128)
    assert "no sum today" in done.stderr


# ---- torch -----------------------------------------------------------------------------------------------------------------


def test_torch_sums(lastbit):
    assert "cascade:8" in confirmed(order(lastbit, "--python", "torch:sum", "-n", 1000, "--threads", 1))["names"]


def test_products_of_bf16_without_onednn(lastbit, tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text("""
import torch
torch.backends.mkldnn.enabled = False
def product(a, b):
    return torch.nn.functional.linear(a, b.t().contiguous())
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = order(lastbit, "--python", "plain:product", "--as", "matmul", "-n", 90, "--dtype", "bf16", "--arrays", "torch", "--threads", 1)
    assert "torchdot" in confirmed(answer)["names"]


@pytest.mark.full
@pytest.mark.parametrize("n,threads", [(100, 1), (5000, 1), (40000, 1), (40000, 2), (100003, 4)])
def test_torch_sums_on_threads(lastbit, n, threads):
    answer = order(lastbit, "--python", "torch:sum", "-n", n, "--threads", threads, "--sample", 400)
    group = confirmed(answer, n=len(answer["sample"] or range(n)))
    assert "cascade:8" in group["names"] if threads == 1 else f"torch:{threads}" in group["names"]


@pytest.mark.full
def test_torch_rows_columns_and_16_bits(lastbit):
    assert "cascade:8" in confirmed(order(lastbit, "--python", "torch:sum(dim=1)", "--as", "rows", "-n", 300, "--threads", 1))["names"]
    assert "cascade:8" in confirmed(order(lastbit, "--python", "torch:sum(dim=0)", "--as", "columns", "-n", 300, "--threads", 1))["names"]
    answer = order(lastbit, "--python", "torch:sum", "-n", 100, "--dtype", "f16", "--threads", 1)
    assert confirmed(answer)["arithmetic"] == "f32, rounded to f16 at the end"
