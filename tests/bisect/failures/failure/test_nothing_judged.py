"""Nothing judged is not clean: weights, damaged captures, captures without bytes. Each is undecided, exit code 125, with the reason."""

import shutil
import tarfile

import numpy
import pytest
import torch
from conftest import ROOT, warm_python

TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for batch in list(torch.randn(3, 4, 8)):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def healthy(lastbit, tmp_path_factory):
    """healthy(LEVEL): three steps of a run in which nothing fails."""
    folder, made = tmp_path_factory.mktemp("healthy"), {}
    (folder / "train.py").write_text(TRAIN)

    def get(level):
        if level not in made:
            made[level] = folder / f"{level}.lb"
            lastbit.run("record", "-o", made[level], "--level", level, "--", *warm_python(), folder / "train.py", expect=0)
        return made[level]

    return get


def undecided(lastbit, *args):
    verdict = lastbit.json("bisect", "-q", *args, expect=125)
    assert verdict["outcome"] == "undecided" and verdict["culprit"] is None and verdict["reason"]
    text = " ".join(lastbit.run("bisect", "-q", *args, expect=125).stdout.split())
    assert verdict["reason"] in text
    return verdict["reason"]


WRITERS = {
    ".pt": torch.save,
    ".npz": lambda d, path: numpy.savez(path, **{k: v.numpy() for k, v in d.items()}),
    ".safetensors": lambda d, path: __import__("safetensors.torch").torch.save_file(d, path),
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("spoilt", [True, False])
def test_weights_are_no_step(lastbit, tmp_path, suffix, spoilt):
    tensors = {"a.weight": torch.randn(4, 4), "b.weight": torch.randn(3, 5, 7), "b.bias": torch.zeros(2)}
    if spoilt:
        tensors["b.weight"][1, 2, 3] = float("nan")
        tensors["b.weight"][2, 0, 0] = float("inf")
    WRITERS[suffix](tensors, tmp_path / f"w{suffix}")
    reason = undecided(lastbit, tmp_path / f"w{suffix}")
    assert "tensors only" in reason and "lastbit show" in reason
    assert ("b.weight: 2 of 105 elements are NaN or infinite, first at [1, 2, 3]" in reason) is spoilt
    assert "a.weight" not in reason and ("all of them are finite" in reason) is not spoilt


def test_statistics_alone_cannot_be_replayed(lastbit, healthy):
    reason = undecided(lastbit, healthy("stats"))
    assert "were not kept" in reason and "statistics show no failure" in reason
    verdict = lastbit.json("bisect", "-q", healthy("stats"))
    assert "--level sources" in verdict["record"]


def test_a_predicate_that_selects_nothing_is_not_clean(lastbit, healthy):
    assert "selected" in undecided(lastbit, healthy("ops"), "--predicate", "nonfinite@layer=nosuch")
    assert lastbit.json("bisect", "-q", healthy("ops"), "--predicate", "nonfinite@layer=0", expect=0)["outcome"] == "clean"


@pytest.mark.parametrize("level", ["sources", "ops"])
def test_a_healthy_run_stays_clean_and_says_what_it_could_not_judge(lastbit, healthy, level):
    verdict = lastbit.json("bisect", "-q", healthy(level), expect=0)
    assert verdict["outcome"] == "clean" and verdict["reason"] is None
    assert ("could not be judged" in verdict["stages"][0]["note"]) is (level == "sources")
    judged = verdict["judged"]
    assert judged["ops"] > 0 and judged["opaque"] == 0 and (judged["not_kept"] > 0) is (level == "sources")
    first = " ".join(lastbit.run("bisect", "-q", healthy(level), expect=0).stdout.split("tried")[0].split())
    total = judged["ops"] + judged["not_kept"]
    assert (f"all {total} ops were judged" if level == "ops" else f"{judged['ops']} of {total} ops were judged") in first


OPAQUE = """
import torch
torch.manual_seed(0)
library = torch.library.Library("mine", "DEF")
library.define("act(Tensor x) -> Tensor")
library.impl("act", lambda x: x.tanh(), "CPU")
class Act(torch.nn.Module):
    def forward(self, x):
        return torch.ops.mine.act(x)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), Act(), torch.nn.Linear(16, 4))
with torch.no_grad():
    for batch in list(torch.randn(2, 4, 8)):
        model(batch).sum().item()
"""


def test_an_opaque_op_behind_a_change_hides_what_the_change_does(lastbit, tmp_path):
    (tmp_path / "serve.py").write_text(OPAQUE)
    run = tmp_path / "run.lb"
    lastbit.run("record", "-o", run, "--level", "ops", "--", *warm_python(), tmp_path / "serve.py", expect=0)
    verdict = lastbit.json("bisect", "-q", run, expect=0)
    assert verdict["outcome"] == "clean" and verdict["judged"]["opaque"] == 2
    assert "mine::act" in undecided(lastbit, run, "--check", "--precision", "layer=^0$=f16")
    behind = lastbit.json("bisect", "-q", run, "--check", "--precision", "layer=^2$=f16", expect=0)
    assert behind["outcome"] == "clean"


HIDDEN = """
import sys, torch
torch.manual_seed(0)
hide = {"tanh": torch.tanh, "clamp": lambda x: x.clamp(-1, 1), "sigmoid": torch.sigmoid, "nan_to_num": lambda x: torch.nan_to_num(x, 0, 1, -1),
        "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)).clamp(max=2), "argmax": lambda x: x.argmax(-1).float(), "mask": torch.tanh}[sys.argv[1]]
class Hide(torch.nn.Module):
    forward = staticmethod(hide)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4), Hide())
with torch.no_grad():
    model[2].bias[1] = float("-inf" if sys.argv[1] == "mask" else "nan" if sys.argv[1] == "nan_to_num" else "inf")
    for batch in list(torch.randn(2, 4, 8)):
        print(model(batch).sum().item())
"""


@pytest.mark.parametrize("how", ["tanh", "clamp", "sigmoid", "nan_to_num", "maximum", "argmax", "mask"])
def test_a_weight_that_is_not_finite_is_found_however_it_is_hidden(lastbit, tmp_path, how):
    """-inf alone is a mask, as in an output."""
    (tmp_path / "serve.py").write_text(HIDDEN)
    lastbit.run("record", "-o", tmp_path / "run.lb", "--level", "ops", "--", *warm_python(), tmp_path / "serve.py", how, expect=0)
    found = lastbit.json("bisect", "-q", tmp_path / "run.lb", expect=0 if how == "mask" else 1)
    if how == "mask":
        assert found["outcome"] == "clean"
        return
    assert found["culprit"]["axis"] == "source" and found["culprit"]["parameter"].endswith("2.bias") and found["failure"]["step"] == 0
    shown = lastbit.run("show", tmp_path / "run.lb", "--name", found["culprit"]["parameter"], expect=0)
    assert ("nan" if how == "nan_to_num" else "inf") in shown.stdout


def entries(path):
    """One entry of each kind: its name, and where its bytes lie."""
    with tarfile.open(path) as tar:
        found = {member.name.split("/")[0]: (member.name, member.offset_data, member.size) for member in tar if member.name != "locator"}
    return found.values()


def test_damage_is_named_by_entry_and_offset(lastbit, healthy, tmp_path):
    whole = (healthy("ops") / "rank-00000.tar").read_bytes()
    kinds = list(entries(healthy("ops") / "rank-00000.tar"))
    assert {name.split("/")[0] for name, _, _ in kinds} >= {"program", "pack", "table", "commit"}
    for name, start, size in kinds:
        folder = tmp_path / name.replace("/", "-")
        shutil.copytree(healthy("ops"), folder)
        damaged = bytearray(whole)
        damaged[start + size // 2] ^= 0x40
        (folder / "rank-00000.tar").write_bytes(damaged)
        reason = undecided(lastbit, folder)
        assert "damaged" in reason and "rank-00000.tar" in reason and "lastbit recover" in reason, name
        offset = int(reason.partition("offset ")[2].partition(":")[0])
        assert start <= offset <= start + size, name
        kind = {"pack": "blob", "head.msgpack": "head", "index.msgpack": "index"}.get(name.split("/")[0], name.split("/")[0])
        assert kind in reason, name


def test_damage_beside_a_failure_that_is_cured_is_a_note(lastbit, tmp_path):
    """A failure that is seen again and cured is what it is, whatever else was damaged."""
    sample = tmp_path / "scan.lbz"
    packed = bytearray((ROOT / "samples" / "scan-overflow.lbz").read_bytes())
    with tarfile.open(ROOT / "samples" / "scan-overflow.lbz") as tar:
        receipt = next(member for member in tar if member.name == "table/rank-00000-receipt.msgpack" or member.name == "table/receipt.msgpack")
    packed[receipt.offset_data + receipt.size // 2] ^= 0x40
    sample.write_bytes(packed)
    verdict = lastbit.json("bisect", "-q", sample, expect=1)
    assert verdict["culprit"]["layer"] == "layers.2.scan" and "receipt" in verdict["note"]
