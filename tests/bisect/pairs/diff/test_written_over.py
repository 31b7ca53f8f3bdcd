"""A write over a parameter or a buffer is placed: the parameter, its module and the step in which it acts, however it is written."""

import random
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "programs"))

import written_over  # noqa: E402

NAMES = ["embed.weight", "norm.weight", "head.weight"] + [
    f"blocks.{n}.{name}"
    for n in range(3)
    for name in (
        "norm1.weight",
        "attention.qkv.weight",
        "attention.out.weight",
        "norm2.weight",
        "mlp.up.weight",
        "mlp.up.bias",
        "mlp.down.weight",
        "mlp.down.bias",
        "attention.rotary.inv_freq",
    )
]


def cases():
    draw = random.Random(4)
    for what in ("train", "serve"):
        for how in written_over.WRITES:
            yield how, draw.choice(NAMES), draw.randint(1, 3) if what == "train" else 0, what


@pytest.mark.parametrize("how,name,step,what", list(cases()), ids=lambda x: str(x).replace(" ", "-"))
def test_what_was_written_over_is_named(lastbit, tmp_path, how, name, step, what):
    lastbit.record(tmp_path / "run.lb", "tests/programs/written_over.py", how, name, step, what, expect=0)
    verdict = lastbit.json("bisect", "-q", tmp_path / "run.lb", expect=1)
    culprit = verdict["culprit"]
    assert (culprit["axis"], culprit["step"]) == ("source", step), culprit
    assert (culprit["parameter"], culprit["layer"]) == (name, name.rpartition(".")[0]), culprit
    assert len(verdict["culprits"]) == 1 and name in culprit["why"]
