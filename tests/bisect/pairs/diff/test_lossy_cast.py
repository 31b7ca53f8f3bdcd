"""Which of several places of rounding is named: a cast to a type that cannot hold its input is, whatever harmless change stands before it."""

import subprocess
import sys

import pytest
from conftest import ROOT, warm_python

sys.path.insert(0, str(ROOT / "tests" / "programs"))

from lossy_casts import PAIRS  # noqa: E402

LOSES_MOST = ("it vanishes", "it vanishes at the end", "it vanishes on the side without the other order")


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("casts")
    subprocess.run([*warm_python(), ROOT / "tests/programs/lossy_casts.py", folder], check=True, timeout=300)
    return folder / "plain.lb", folder / "changed.lb"


@pytest.mark.parametrize("name", PAIRS)
def test_the_cast_is_the_place_where_it_loses_most(lastbit, sides, name):
    step = str(list(PAIRS).index(name))
    for a, b in (sides, sides[::-1]):
        told = lastbit.json("diff", "--steps", step, a, b)
        culprit = lastbit.json("bisect", "--steps", step, b, "--against", a)["culprit"]
        first = told["first"]
        assert told["verdict"] == "rounding" and told["earliest"]["layer"] == "1"
        assert (culprit["layer"], culprit["op"]) == (first["layer"], first["op"])
        if name in LOSES_MOST:
            assert (first["layer"], first["op"], culprit["axis"]) == ("3", "aten::_to_copy", "precision") and "f16" in first["why"]
        else:
            assert (first["layer"], culprit["axis"]) == ("1", "order")
