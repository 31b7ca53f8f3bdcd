"""The real SmolLM2-135M in bf16 against f32: what explain says of trained weights, from the recorded bits alone."""

import os
import re

import pytest
import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
import recorded as R  # noqa: E402

PROGRAM = "tests/programs/smollm2.py"


def record(lastbit, folder, name, *options):
    lastbit.record(folder / f"{name}.lb", PROGRAM, *options, options=("--level", "ops"), expect=0)
    return folder / f"{name}.lb"


def layers_of(findings):
    return {int(m[1]) for f in findings if (m := re.match(r"model\.layers\.(\d+)", f["layer"]))}


def check(answer, layers, wide, narrow):
    """Every place has the one cause; sources are said to be what torch makes of them."""
    findings = answer["findings"]
    sources = [f for f in findings if f["op"] == "lb::source"]
    own = [f for f in findings if f["op"] != "lb::source" and f["cause"] != "input"]
    assert own and {f["cause"] for f in own} == {"precision"}, {(f["cause"], f["layer"], f["op"]) for f in own if f["cause"] != "precision"}
    assert layers_of(own) == set(range(layers))
    for f in own:
        if f["proof"] == "bits":
            assert f["matched"] == f["elements"] > 0
        assert f["matched"] <= f["elements"] and f["excluded"] <= f["tried"]
    products = [f for f in own if f["op"] == "aten::mm"]
    assert len(products) >= 7 * layers and {f["proof"] for f in products} <= {"bits", "bound"}
    assert all(f["schedule"].startswith("bf16") for f in products)
    # the library's kernel is one and the same, so it has one name, or none
    assert len({f["schedule"] for f in products if f["proof"] == "bits"} - {"bf16"}) <= 1
    a, b = (R.Recorded(c).programs[0][0] for c in (wide, narrow))
    parameters = [f for f in sources if f["schedule"].startswith("parameter")]
    assert len(parameters) >= 7 * layers + 1  # the norms are trained in bf16: theirs are the same numbers
    for f in parameters:
        assert "rounded to bf16" in f["why"], f
        x, y = (p.tensor(p.results(p.ops[f[k]])[0]) for p, k in ((a, "index"), (b, "other")))
        assert torch.equal(x.bfloat16(), y) and int((x == y.float()).sum()) == f["matched"]
    total = {row["layer"]: row["total"] for row in answer["layers"] if row["phase"] == "forward"}
    assert 1e-4 < total["model.norm"] < 0.2


@pytest.fixture(scope="module")
def wide(lastbit, tmp_path_factory):
    return record(lastbit, tmp_path_factory.mktemp("smollm2"), "wide", "--layers", "2")


@pytest.mark.full
def test_smollm2_in_bf16_and_f32(lastbit, wide, tmp_path):
    narrow = record(lastbit, tmp_path, "narrow", "--layers", "2", "--dtype", "bfloat16")
    check(lastbit.json("explain", "--seconds", "0.1", wide, narrow, expect=1), 2, wide, narrow)
    text = lastbit.run("explain", "--seconds", "0.1", "--layer", "model.layers.0.mlp", wide, narrow, expect=1).stdout
    assert "precision " in text and "more: --all" not in text and re.search(r"times parameter: .*rounded to bf16", text)


@pytest.mark.full
def test_one_nudged_number_of_smollm2_is_not_called_precision(lastbit, wide, tmp_path):
    """9215 of 9216 elements fit: the wrong but plausible cause must lose."""
    nudged = record(lastbit, tmp_path, "nudged", "--layers", "2", "--dtype", "bfloat16", "--nudge", "1")
    found = lastbit.json("explain", "--seconds", "0.1", "--layer", "model.layers.1", wide, nudged, expect=1)["findings"]
    odd = [f for f in found if f["layer"].startswith("model.layers.1") and f["cause"] not in ("precision", "input")]
    assert len(odd) == 1 and odd[0]["cause"] == "unexplained" and odd[0]["elements"] == 16 * 576
    assert odd[0]["matched"] <= 16 * 576 - 1


@pytest.mark.full
def test_all_of_smollm2_in_bf16_and_f32(lastbit, tmp_path):
    wide, narrow = record(lastbit, tmp_path, "wide"), record(lastbit, tmp_path, "narrow", "--dtype", "bfloat16")
    check(lastbit.json("explain", "--seconds", "0.1", wide, narrow, expect=1), 30, wide, narrow)
