"""Windows from the middle of two trainings, whose weights and states differ as they begin: the step is judged by itself, and what came before it is said."""

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "programs"))
from written_twice import ask

PROGRAM = ROOT / "tests" / "programs" / "states_apart.py"
# What differs, and what the two sentences on it say: of weights, of states.
APART = {
    "adamw-all": ("the weights of 34 of 34 tensors alike, by about 1e-05", "the states of 68 of 68 tensors alike"),
    "sgd-weights": ("the weights of 34 of 34 tensors alike, by about 1e-05",),
    "muon-states": ("the states of 34 of 34 tensors alike, by about 0.001",),
    "adam-far": ("the weights of 34 of 34 tensors alike, by about 0.01",),
    "adamw-layer": ("the weights of layer h.1 alone (10 tensors)", "the states of layer layers.1 alone (20 tensors)"),
    "muon-tensor": ("h.1.down.weight alone, by up to 0.0",),
    "adamw-third": ("h.1.qkv.weight alone, by up to 0.0",),
    "sgd-norm": ("h.1.ln_b.w alone, by up to 0.0",),
    "adam-redrawn": ("h.1.down.weight alone, by up to 0.9 of their size",),
    "sgd-moment": ("the states of layers.1.down_proj.weight alone",),
    "sgd-all-none-bf16": ("tensors alike, by about 1e-05",),
    "adamw-all-none-bf16": ("the states of 102 of 102 tensors alike, by about 1e-05",),
}
OWN = {
    "adamw-layer": ("the weights of layer layers.1 alone (15 tensors)", "the states of layer layers.1 alone (30 tensors)"),
    "adam-norm": ("layers.1.norm2.weight alone",),
    "adamw-lost": ("98 states of the optimizer, which are all zero on the second side",),
    "sgd-all-none-bf16": ("alike, by about 1e-05",),
}
# A fault beside them, and where it lies.
FAULTS = {
    "adamw-all-scale": "scores = scores * 1.1",
    "adam-all-gelu": "F.gelu(gate) * value",
    "muon-all-eps": "self.w + self.b",
    "sgd-all-mask": "torch.ones(x.shape[1], x.shape[1]",
    "adamw-all-beta": "self.v[i].copy_",
    "sgd-layer-scale": "scores = scores * 1.1",
    "adamw-norm-eps": "self.w + self.b",
    "muon-third-scale": "scores = scores * 1.1",
    "adamw-all-scale-bf16": "scores = scores * 1.1",
}


def base(word):
    rule, *rest = word.split("-")
    return "-".join(["library", rule, "none", *(["none", rest[2]] if len(rest) > 2 else [])])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apart")
    words = {base(word) for word in [*APART, *OWN, *FAULTS]} | {f"other-{word}" for word in [*APART, *FAULTS]} | {f"library-{word}" for word in OWN}
    words |= {"other-adamw-none", "other-sgd-none-none-bf16"}
    variables = dict(os.environ, PYTHONPATH=str(ROOT / "capture"))
    subprocess.run([sys.executable, PROGRAM, folder, *sorted(words)], env=variables, check=True, timeout=600)
    return folder


def assert_judged_by_itself(answer, sentences):
    assert answer["verdict"] in ("rounding", "reordered") and not answer["differences"] and not answer["missing"]
    said = [text for text in answer["findings"] if "came before the window" in text]
    assert len(said) >= len(sentences) and any("step 50000 was judged by itself" in text for text in answer["findings"])
    assert all(any(sentence in text for text in said) for sentence in sentences), said


@pytest.mark.parametrize("word", ["adamw-none", "sgd-none-none-bf16"])
def test_equal_states_are_no_finding(lastbit, recorded, word):
    answer = ask(lastbit, recorded, base(word), f"other-{word}", expect=0)
    assert answer["verdict"] == "rounding" and not [text for text in answer["findings"] if "came before" in text]


@pytest.mark.parametrize("word", APART)
def test_another_implementation_is_judged_from_one_sides_states(lastbit, recorded, word):
    assert_judged_by_itself(ask(lastbit, recorded, base(word), f"other-{word}", expect=0), APART[word])


@pytest.mark.parametrize("word", ["adamw-all", "sgd-weights", "adam-far", "adamw-third", "muon-states"])
def test_the_second_side_may_be_named_first(lastbit, recorded, word):
    assert_judged_by_itself(ask(lastbit, recorded, base(word), f"other-{word}", True, expect=0), ())


@pytest.mark.parametrize("word", OWN)
def test_the_same_program_is_judged_from_one_sides_states(lastbit, recorded, word):
    assert_judged_by_itself(ask(lastbit, recorded, base(word), f"library-{word}", expect=0), OWN[word])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("word", FAULTS)
def test_a_fault_beside_such_states_is_in_its_line(lastbit, recorded, word, turned):
    answer = ask(lastbit, recorded, base(word), f"other-{word}", turned, expect=1)
    assert answer["verdict"] == "diverged" and any("came before the window" in text for text in answer["findings"])
    line = next(n for n, text in enumerate(pathlib.Path(PROGRAM).read_text().splitlines(), 1) if FAULTS[word] in text)
    source, lines = ("source", "lines") if turned else ("source_b", "lines_b")
    for place in answer["differences"]:
        assert line in {(place[source] or {}).get("line"), *place[lines]}
