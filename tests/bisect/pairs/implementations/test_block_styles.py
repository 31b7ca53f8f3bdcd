"""One decoder in five styles beside a plain one, each fault in the second block: every style is the same function, and every fault has its place there."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

PLAIN = "norm-computed"
STYLES = [
    "renamed-weightfirst-computed",  # what reads a norm's weight gives no norm yet
    "renamed-root-time-joint-buffer",
    "renamed-norm-folded-joint-rotations",  # the rounding of folded weights hides nothing larger
    "renamed-norm-folded-computed",
    "renamed-weightfirst-time-half-joint",  # nor does that of a table in 16 bits
]
COARSE = "renamed-root-joint-computed-coarse"
FAULTS = ["eps", "smalleps", "noresidual", "normbehind", "transposed", "shiftedtable", "scale", "oneheadofkeys", "input"]


def styles_of(fault):
    """Three of the styles, others for each fault; LASTBIT_FULL: all."""
    first = FAULTS.index(fault)
    return STYLES if os.environ.get("LASTBIT_FULL") else [STYLES[(first + k) % len(STYLES)] for k in (0, 2, 4)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("styles")
    names = [PLAIN, COARSE, *STYLES, *(f"{style}-{fault}" for fault in FAULTS for style in styles_of(fault))]
    program = ROOT / "tests" / "programs" / "block_styles.py"
    subprocess.run([sys.executable, program, folder, *names], env=dict(os.environ, PYTHONPATH=str(ROOT / "capture")), check=True, timeout=300)
    return folder


def pairs(fault=None):
    """Each style second, or first, by turns; LASTBIT_FULL: both."""
    for i, style in enumerate(styles_of(fault) if fault else STYLES):
        other = f"{style}-{fault}" if fault else style
        if os.environ.get("LASTBIT_FULL") or i % 2:
            yield PLAIN, other
        if os.environ.get("LASTBIT_FULL") or not i % 2:
            yield other, PLAIN


def test_every_style_is_the_same_function(lastbit, recorded):
    for first, second in pairs():
        answer = lastbit.json("diff", recorded / f"{first}.lb", recorded / f"{second}.lb", expect=0)
        assert answer["verdict"] == "rounding" and not answer["differences"], (first, second)


@pytest.mark.parametrize("style, said", [
    (COARSE, "side alone rounds to bf16 in layers.0 (aten::_to_copy, "),
    ("renamed-weightfirst-time-half-joint", "side alone holds cos in bf16"),
])  # fmt: skip
def test_a_rounding_of_another_size_is_said(lastbit, recorded, style, said):
    for first, second in ((PLAIN, style), (style, PLAIN)):
        answer = lastbit.json("diff", recorded / f"{first}.lb", recorded / f"{second}.lb", expect=0)
        (finding,) = answer["findings"]
        assert answer["verdict"] == "rounding" and said in finding and ("second" if first == PLAIN else "first") in finding
    usual = lastbit.json("diff", recorded / f"{PLAIN}.lb", recorded / f"{STYLES[1]}.lb", expect=0)
    assert not usual["findings"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_place_whatever_the_styles(lastbit, recorded, fault):
    for first, second in pairs(fault):
        answer = lastbit.json("diff", recorded / f"{first}.lb", recorded / f"{second}.lb", expect=1)
        named = {side for d in answer["differences"] for side in (d["layer"], d["layer_b"])}
        assert answer["verdict"] == "diverged" and named, (first, second)
        if fault == "input":
            assert named == {""}, (first, second, named)
        else:
            assert {tuple(name.split(".")[:2]) for name in named} <= {("blocks", "1"), ("layers", "1")}, (first, second, named)
