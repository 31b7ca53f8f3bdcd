"""The quickstart as a newcomer runs it; the captures that are shipped give what they were recorded for."""

import os
import re
import runpy
import subprocess

import pytest
from conftest import BUILD, ROOT

SAMPLES = ROOT / "samples"
TRUTH = runpy.run_path(str(SAMPLES / "hybrid_lm.py"))["TRUTH"]
FAILING = ["polar-bf16", "stale-scale", "scan-overflow", "bad-expert", "poisoned-rank"]


def test_the_quickstart_ends_with_a_verdict_and_what_to_type_next():
    done = subprocess.run([SAMPLES / "quickstart.sh"], capture_output=True, text=True, timeout=120, env={**os.environ, "LASTBIT_BUILD": str(BUILD)})
    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert re.search(r"culprit +block: layers\.2\.scan +aten::exp", out)
    assert re.search(r"verdict: diverged", out) and "layers.3.norm" in out
    assert (ROOT / "build/quickstart/reproducer.lb").exists()
    # What it says to type next works as it stands.
    line = next(line for line in out.splitlines() if "lastbit replay" in line and "reproducer" in line and "#" in line)
    typed = subprocess.run(
        line.split("#")[0], shell=True, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PATH": f"{BUILD}:{os.environ['PATH']}"}
    )
    assert typed.returncode == 0 and "NaN" in typed.stdout, typed.stdout + typed.stderr


@pytest.mark.parametrize("name", FAILING)
def test_a_shipped_capture_bisects_to_what_was_planted(lastbit, name):
    truth, verdict = TRUTH[name], lastbit.json("bisect", "-q", SAMPLES / f"{name}.lbz", expect=1)
    culprit = verdict["culprit"]
    assert (culprit["axis"], culprit["ranks"], culprit["op"], culprit["phase"], culprit["step"]) == (
        truth["axis"],
        truth["ranks"],
        truth["op"],
        truth["phase"],
        truth["acts"],
    )
    assert re.fullmatch(truth["layer"], culprit["layer"])


def test_the_shipped_clean_capture_is_clean(lastbit):
    assert lastbit.json("bisect", "-q", SAMPLES / "clean.lbz", expect=0)["outcome"] == "clean"


def test_shipped_captures_stay_small_and_whole(lastbit):
    shipped = sorted(SAMPLES.glob("*.lbz"))
    assert len(shipped) == 7 and sum(path.stat().st_size for path in shipped) < 10e6
    for path in shipped:
        lastbit.run("verify", path, expect=0)
