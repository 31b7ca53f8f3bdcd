"""bitsandbytes' optimizers, f32 and 8 bits, by their public formulas: replayed within their bounds, and faults found."""

import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "programs"))
import blockwise_optimizers

PROGRAM = "tests/programs/blockwise_optimizers.py"


def replayed(lastbit, tmp_path, *arguments):
    lastbit.record(tmp_path / "run.lb", PROGRAM, *arguments, options=("--level", "ops"), expect=0)
    return lastbit.json("replay", tmp_path / "run.lb", "--coverage", "--worst", 1000, expect=(0, 1))


def test_every_rule_replays_within_its_bound(lastbit, tmp_path):
    answer = replayed(lastbit, tmp_path)
    counts = {row["op"]: row["count"] for row in answer["coverage"] if row["op"] in blockwise_optimizers.OPS}
    assert counts == dict.fromkeys(blockwise_optimizers.OPS, 20)
    assert not {row["op"] for row in answer["opaque_ops"]} & set(blockwise_optimizers.OPS)
    assert answer["verdicts"]["diverged"] == answer["verdicts"]["missing"] == 0, answer["worst"][:3]


@pytest.mark.parametrize("fault", ["adam", "code", *(pytest.param(f, marks=pytest.mark.full) for f in ("momentum", "lion", "rmsprop", "adagrad"))])
def test_a_wrong_parameter_or_code_diverges(lastbit, tmp_path, fault):
    answer = replayed(lastbit, tmp_path, "--fault", fault)
    diverged = [one["op"] for one in answer["worst"] if one["verdict"] == "diverged"]
    name = "bitsandbytes::optimizer_update_8bit_blockwise"
    assert set(diverged) <= set(blockwise_optimizers.OPS)
    assert diverged.count(name) == 20 if fault == "code" else len(diverged) == 4, diverged
