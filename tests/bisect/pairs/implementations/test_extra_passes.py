"""An evaluation that one side runs besides, or a micro-batch twice, beside a fault of the step: both are said, and the fault keeps its line."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "programs"))
from written_twice import ask

PROGRAM = ROOT / "tests" / "programs" / "extra_passes.py"
EVALUATIONS = ["before", "between", "after", "same"]
# The text of the line that a fault is in, of each side's program (states_apart.py).
LINES = {
    "library": {"eps": "y = self.norm2(x)", "gelu": "F.gelu(self.gate_proj(y))"},
    "other": {"eps": "self.w + self.b", "gelu": "F.gelu(gate) * value", "scale": "scores = scores * 1.1"},
}
FAULTS = [(side, fault) for side in LINES for fault in LINES[side]]
BASE = "library-none-none"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extra")
    words = {f"{side}-{extra}-{fault}" for side, fault in FAULTS for extra in [*EVALUATIONS, "repeated"]}
    words |= {f"{side}-{extra}-none" for side in LINES for extra in EVALUATIONS} | {BASE}
    variables = dict(os.environ, PYTHONPATH=str(ROOT / "capture"))
    subprocess.run([sys.executable, PROGRAM, folder, *sorted(words)], env=variables, check=True, timeout=600)
    return folder


def places(answer, turned):
    """Lines of code that each place may lie in, by number."""
    source, lines = ("source", "lines") if turned else ("source_b", "lines_b")
    return [{(place[source] or {}).get("line"), *place[lines]} for place in answer["differences"]]


def line_of(side, fault):
    text = (ROOT / "tests" / "programs" / "states_apart.py").read_text().splitlines()
    return next(n for n, line in enumerate(text, 1) if LINES[side][fault] in line)


def tells_of_an_evaluation(answer):
    return any("runs an additional evaluation" in text for text in answer["findings"])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("extra", EVALUATIONS)
@pytest.mark.parametrize("side", LINES)
def test_an_evaluation_is_no_difference(lastbit, recorded, side, extra, turned):
    answer = ask(lastbit, recorded, BASE, f"{side}-{extra}-none", turned, expect=0)
    assert tells_of_an_evaluation(answer) and not answer["differences"] and not answer["missing"]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("extra", EVALUATIONS)
@pytest.mark.parametrize("side, fault", FAULTS)
def test_a_fault_beside_an_evaluation_is_in_its_line(lastbit, recorded, side, fault, extra, turned):
    answer = ask(lastbit, recorded, BASE, f"{side}-{extra}-{fault}", turned, expect=1)
    assert answer["verdict"] == "diverged" and tells_of_an_evaluation(answer)
    assert all(line_of(side, fault) in lines for lines in places(answer, turned)) and answer["differences"]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("side, fault", FAULTS)
def test_a_fault_beside_a_repeated_micro_batch_is_named(lastbit, recorded, side, fault, turned):
    """The sums that the repeated one goes into are places, too."""
    answer = ask(lastbit, recorded, BASE, f"{side}-repeated-{fault}", turned, expect=1)
    assert any("is run again by" in text for text in answer["findings"])
    assert any(line_of(side, fault) in lines for lines in places(answer, turned))
