"""Causes that are no stage of the playbook: bytes that nobody's op wrote, results that are not what their inputs give; what
a person asks for: a predicate, a journal to go on with."""

import json

import pytest

LOOP = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
    def forward(self, x):
        h = torch.relu(self.up(x))
        INSIDE
        return x + self.down(h)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
    def forward(self, x, y):
        for layer in self.layers:
            x = layer(x)
        return (x - y).pow(2).mean()

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(4, 8), torch.randn(4, 8)
for step in range(4):
    EACH
    loss = model(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def run(lastbit, tmp_path):
    """Records the loop with a line put in at the start of each step, or inside a layer's forward."""

    def record(each="pass", inside="pass"):
        program, capture = tmp_path / "program.py", tmp_path / "run.lb"
        program.write_text(LOOP.replace("EACH", each).replace("INSIDE", inside))
        lastbit.record(capture, program)
        return capture

    return record


def test_an_unseen_write_is_the_cause(lastbit, run):
    capture = run(each="if step == 2: model.layers[1].up.weight.detach().numpy()[3, 5] = float('nan')")
    verdict = lastbit.json("bisect", capture, "-q", expect=1)
    assert verdict["culprit"]["axis"] == "source"
    assert verdict["culprit"]["step"] == 2
    assert "layers.1.up.weight" in verdict["culprit"]["why"]
    assert [stage["stage"] for stage in verdict["stages"]] == ["sanity"]


def test_a_result_that_its_inputs_do_not_give_is_the_cause(lastbit, run):
    # A result that changes after it was computed, as by a flipped bit in memory: nobody's op, and no framework sees it.
    flip = "if step == 2 and self is model.layers[1]: import ctypes; ctypes.memmove(h.data_ptr(), b'\\0\\0\\x80\\x7f', 4)"
    verdict = lastbit.json("bisect", run(inside=flip), "-q", expect=1)
    assert verdict["culprit"]["axis"] == "kernel"
    assert verdict["culprit"]["layer"] == "layers.1.down"
    assert verdict["culprit"]["step"] == 2


def test_a_predicate_sets_another_failure(lastbit, run):
    capture = run(each="if step == 2: x = x * 1e6")
    assert lastbit.json("bisect", capture, "-q", "--predicate", "max>1e30")["outcome"] == "clean"
    verdict = lastbit.json("bisect", capture, "-q", "--predicate", "max>1e4@layer=layers.1&phase=forward", expect=(1, 125))
    assert verdict["failure"]["kind"] == "predicate"
    assert verdict["failure"]["step"] == 2
    assert verdict["failure"]["layer"].startswith("layers.1")
    assert lastbit.run("bisect", capture, "--predicate", "max").returncode == 129


def test_a_journal_saves_the_trials(lastbit, run, tmp_path):
    capture = run(each="if step == 2: model.layers[1].up.weight.data.mul_(1e30)")
    journal = tmp_path / "journal"
    first = lastbit.json("bisect", capture, "-q", "--journal", journal)
    assert len(journal.read_text().splitlines()) == 1 + len(first["trials"]) > 1
    assert lastbit.run("bisect", capture, "--journal", journal).returncode == 128  # not overwritten
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-1]) + lines[-1][:20])  # killed in the middle of a line
    again = lastbit.json("bisect", capture, "-q", "--journal", journal, "--resume")
    assert [t["change"] for t in again["trials"]] == [t["change"] for t in first["trials"]]
    assert again["culprits"] == first["culprits"]
    assert all(t["seconds"] == 0 for t in again["trials"][:-1])
    done = [json.loads(line) for line in journal.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
    assert len(done) == 1 + len(first["trials"])
