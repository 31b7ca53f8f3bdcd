"""Each op knows the line of the program that called it, and answers say it."""

import subprocess
import sys

import pytest
from conftest import ROOT

pytest.importorskip("transformers")
PROGRAM = ROOT / "tests" / "programs" / "lined_llama.py"

COMPILED = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.a(x)
        y = torch.nn.functional.gelu(y)
        if y.sum().item() > 1e9:
            y = y + 1
        return torch.tanh(y)

torch.manual_seed(0)
block = Block()
compiled = torch.compile(block)
optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
for step in range(2):
    loss = compiled(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def llamas(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lines")
    subprocess.run([sys.executable, PROGRAM, folder], check=True, capture_output=True, timeout=300)
    return folder


def line_with(comment):
    lines = PROGRAM.read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.endswith("  # " + comment)]
    return number, lines[number - 1].strip()


def ops_of(lastbit, capture, step=-1):
    return lastbit.json("ls", "--ops", capture, expect=0)["programs"][step]["op_list"]


def is_at(source, comment, function):
    number, text = line_with(comment)
    assert source == {"file": "lined_llama.py", "line": number, "function": function, "text": text}


def test_ops_of_forward_backward_and_update_have_the_line_that_called_them(lastbit, llamas):
    ops = ops_of(lastbit, llamas / "none.lb")
    computing = [op for op in ops if op["name"] != "lb::source"]
    without = [op for op in computing if op["source"] is None]
    assert {op["name"] for op in without} <= {"aten::detach"} and {op["phase"] for op in without} <= {"backward"}, without
    residual = line_with("the second residual")[0]
    assert [op["name"] for op in ops if op["source"] and op["source"]["line"] == residual and op["phase"] == "forward"] == ["aten::add.Tensor"]
    modeling = [op for op in ops if op["layer"] == "model.layers.0.mlp" and op["name"] == "aten::mul.Tensor"]
    assert {op["phase"] for op in modeling} == {"forward", "backward"}
    for op in modeling:  # transformers is no part of torch
        assert op["source"]["file"] == "transformers/models/llama/modeling_llama.py" and op["source"]["function"] == "forward"
        assert "self.up_proj(x)" in op["source"]["text"]
    for product in (op for op in ops if op["name"] == "aten::mm" and op["layer"] == "model.layers.1.mlp.down_proj"):
        is_at(product["source"], "what follows the gate", "forward")  # torch's own Linear called it
    (start,) = [op for op in ops if op["name"] == "aten::ones_like"]
    is_at(start["source"], "backward", "train")
    hooked = [op for op in ops if op["phase"] == "backward" and op["source"] and op["source"]["line"] == line_with("the hook")[0]]
    assert [op["name"] for op in hooked] == ["aten::mul.Tensor"]
    is_at(hooked[0]["source"], "the hook", "<lambda>")
    updates = [op for op in ops if op["phase"] == "optimizer" and "add_" in op["name"]]
    for update in updates[-2:]:
        is_at(update["source"], "the update", "train")


@pytest.mark.parametrize(
    "fault, first, second",
    [
        ("forward", ("what follows the gate", "forward"), ("the scaled gate", "forward")),
        ("backward", ("the doubled gradient", "backward"), ("the doubled gradient", "backward")),
        ("optimizer", ("clipped", "train"), ("clipped shorter", "train")),
    ],
)
def test_diff_says_the_lines_of_both_sides(lastbit, llamas, fault, first, second):
    answer = lastbit.json("diff", llamas / "none.lb", llamas / f"{fault}.lb", expect=1)
    is_at(answer["first"]["source"], *first)
    is_at(answer["first"]["source_b"], *second)
    text = lastbit.run("diff", llamas / "none.lb", llamas / f"{fault}.lb", expect=1).stdout
    for comment, function in (first, second):
        number, line = line_with(comment)
        assert f"lined_llama.py:{number} in {function}: {line}" in text
    turned = lastbit.json("diff", llamas / f"{fault}.lb", llamas / "none.lb", expect=1)
    is_at(turned["first"]["source"], *second)
    is_at(turned["first"]["source_b"], *first)


def test_a_residual_left_out_is_placed_at_its_line(lastbit, llamas):
    answer = lastbit.json("diff", llamas / "none.lb", llamas / "residual.lb", expect=1)
    is_at(answer["first"]["source"], "the second residual", "forward")


def test_bisect_explain_and_the_page_say_the_line(lastbit, llamas, tmp_path):
    page = tmp_path / "page.html"
    sides = llamas / "forward.lb", "--against", llamas / "none.lb"
    answer = lastbit.json("bisect", *sides, "--html", page, expect=1)
    is_at(answer["culprit"]["source"], "the scaled gate", "forward")
    is_at(answer["culprit"]["source_b"], "what follows the gate", "forward")
    number, line = line_with("the scaled gate")
    assert f"lined_llama.py:{number} in forward: {line}" in lastbit.run("bisect", *sides, expect=1).stdout
    assert line in page.read_text()
    explained = lastbit.json("explain", llamas / "none.lb", llamas / "forward.lb")
    assert any((f["source_b"] or {}).get("line") == number for f in explained["findings"])


def test_show_says_the_line_of_a_value(lastbit, llamas):
    number, line = line_with("the scaled gate")
    ops = ops_of(lastbit, llamas / "forward.lb")
    (op,) = [op for op in ops if op["source"] and op["source"]["line"] == number and op["phase"] == "forward"]
    shown = lastbit.json("show", llamas / "forward.lb", "--op", str(op["op"]), expect=0)["values"][0]
    is_at(shown["source_line"], "the scaled gate", "forward")
    assert f"lined_llama.py:{number} in forward: {line}" in lastbit.run("show", llamas / "forward.lb", "--op", str(op["op"])).stdout


def test_a_recording_without_lines_has_the_same_ops(lastbit, llamas):
    lined, plain = ops_of(lastbit, llamas / "none.lb"), ops_of(lastbit, llamas / "no-lines.lb")
    assert all(op["source"] is None for op in plain)
    assert [(op["name"], op["layer"], op["phase"]) for op in lined] == [(op["name"], op["layer"], op["phase"]) for op in plain]
    assert lastbit.json("diff", llamas / "none.lb", llamas / "no-lines.lb", expect=0)["verdict"] == "identical"


def test_archives_of_before_there_were_lines_are_read(lastbit):
    old = ROOT / "samples" / "clean.lbz"
    assert all(op["source"] is None for op in ops_of(lastbit, old))
    first = lastbit.json("diff", old, ROOT / "samples" / "dropped-term.lbz", expect=1)["first"]
    assert first["source"] is None and first["source_b"] is None


@pytest.mark.parametrize("how", ["eager", "graph"])
def test_a_compiled_program_has_no_wrong_line(lastbit, tmp_path, how):
    program = tmp_path / "compiled_block.py"
    program.write_text(COMPILED)
    lastbit.record(tmp_path / "c.lb", program, options=["--compiled", how], expect=0)
    lines = COMPILED.splitlines()
    words = {"gelu": "gelu", "tanh": "tanh", "addmm": "self.a(x)", "pow": "square", "mean": "mean", "gelu_backward": "gelu", "tanh_backward": "tanh"}
    seen = set()
    for op in ops_of(lastbit, tmp_path / "c.lb"):
        name = op["name"].partition("::")[2].partition(".")[0]
        source = op["source"]
        if source is None:
            continue
        assert source["file"] == "compiled_block.py" and source["text"] == lines[source["line"] - 1].strip()
        if name in words and op["phase"] == "forward" or name.endswith("_backward"):
            assert words[name] in source["text"], (op, source)
            seen.add(name)
    assert seen >= {"gelu", "tanh", "addmm", "gelu_backward", "tanh_backward"}


def test_the_command_leaves_lines_out_when_asked(lastbit, tmp_path):
    program = tmp_path / "small.py"
    program.write_text("import torch\nw = torch.nn.Linear(2, 2)\nw(torch.ones(1, 2)).sum().backward()\n")
    lastbit.record(tmp_path / "a.lb", program, options=["--no-lines"], expect=0)
    lastbit.record(tmp_path / "b.lb", program, expect=0)
    assert all(op["source"] is None for op in ops_of(lastbit, tmp_path / "a.lb"))
    (product,) = [op for op in ops_of(lastbit, tmp_path / "b.lb") if op["name"] == "aten::addmm"]
    assert product["source"] == {"file": "small.py", "line": 3, "function": "<module>", "text": "w(torch.ones(1, 2)).sum().backward()"}
