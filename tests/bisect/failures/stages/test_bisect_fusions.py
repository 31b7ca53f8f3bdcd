"""A set of fusions, each one switch, of which some are too much: `bisect --run` over `bisect --check` names them."""

import itertools
import shlex

import pytest

FUSIONS = {"add_rms_norm": "sequential,acc:bf16", "attention": "splitkv:2", "swiglu": "fused", "rope": "fused,table:t"}


def switches(which):
    return [word for kind in which for word in ("--fuse", f"{kind}={FUSIONS[kind]}")]


@pytest.fixture(scope="module")
def trained(lastbit, tmp_path_factory):
    out = tmp_path_factory.mktemp("fusions") / "run.lb"
    lastbit.record(out, "tests/programs/hf_train.py", "--model", "llama", "--steps", "6", "--dtype", "bf16", options=("--level", "ops"), expect=0)
    return out


def losses(lastbit, capture, which):
    """Of the chained replay, by step; None: as it was recorded."""
    rows = lastbit.json("replay", capture, "--table", *switches(which), expect=0)["loss"]
    return {row["step"]: row["swapped" if which else "plain"] for row in rows}


def check(lastbit, capture, predicate, which):
    return lastbit.run("bisect", "--check", capture, "--predicate", predicate, *switches(which), expect=(0, 1)).returncode


def test_the_fusions_that_take_the_loss_above_a_limit_are_found(lastbit, trained, tmp_path):
    plain, fused = losses(lastbit, trained, []), losses(lastbit, trained, FUSIONS)
    step = max(plain, key=lambda s: fused[s] - plain[s])
    assert fused[step] > plain[step]
    predicate = f"loss>{(fused[step] + plain[step]) / 2:.17g}@step={step}"
    assert check(lastbit, trained, predicate, FUSIONS) == 1 and check(lastbit, trained, predicate, []) == 0
    job = shlex.join([str(lastbit.path), "bisect", "--check", str(trained), "--predicate", predicate, *switches(FUSIONS)]) + " {} >/dev/null"
    flags = [word for kind in FUSIONS for word in ("--flag", f"kernel:{kind}=--fuse {kind}=off")]
    found = lastbit.json("bisect", "--run", job, *flags, cwd=tmp_path, expect=1)
    assert found["outcome"] == "found" and found["culprit"]["axis"] == "kernel"
    culprits = {kind for kind in FUSIONS if f"--fuse {kind}=off" in found["cures"]}
    assert culprits and check(lastbit, trained, predicate, [k for k in FUSIONS if k not in culprits]) == 0
    for n in range(len(culprits)):  # and fewer switches do not do it
        for fewer in itertools.combinations(sorted(culprits), n):
            assert check(lastbit, trained, predicate, [k for k in FUSIONS if k not in fewer]) == 1


def test_the_number_of_targets_is_not_the_loss(lastbit, trained):
    """nll_loss_forward gives both: 30 targets, and a loss of about 5.6."""
    assert check(lastbit, trained, "loss>7", []) == 0 and check(lastbit, trained, "loss>5", []) == 1
