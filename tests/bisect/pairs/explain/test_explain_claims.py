"""What explain must not claim: a kernel or a type that neither side had, from bits that fit it by chance."""

import pytest
import torch

PROGRAM = """
import sys, torch
torch.manual_seed(0)
how, dtype = sys.argv[1], getattr(torch, sys.argv[2])
class Form(torch.nn.Module):
    def forward(self, x):
        v = x.abs() + 0.5
        if how == "times": return x * 0.1
        if how == "over": return x / 10
        if how == "addcmul": return torch.addcmul(x, v, v)
        if how == "apart": return x + v * v
        if how == "double": return (x.double() + v.double() * v.double()).to(x.dtype)
        if how == "erf": return torch.nn.functional.gelu(x)
        if how == "tanh": return torch.nn.functional.gelu(x, approximate="tanh")
        return x
class Block(torch.nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(128, eps=eps), torch.nn.Linear(128, 256, bias=False), torch.nn.Linear(256, 128, bias=False)
    def forward(self, x): return x + self.down(torch.relu(self.up(self.norm(x))))
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.form, self.blocks = Form(), torch.nn.ModuleList(Block(1e-2 if how == "eps" and not i else 1e-5) for i in range(3))
    def forward(self, x):
        x = self.form(x)
        for b in self.blocks: x = b(x)
        return x
with torch.no_grad(): Model().to(dtype)(torch.randn(48, 128).to(dtype))
"""


@pytest.fixture(scope="module")
def explained(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("claims")
    (folder / "program.py").write_text(PROGRAM)

    def record(how, dtype):
        out = folder / f"{how}-{dtype}.lb"
        if not out.exists():
            lastbit.record(out, folder / "program.py", how, dtype, options=("--level", "ops"), expect=0)
        return out

    def explain(a, b, dtype="float32"):
        answer = lastbit.json("explain", "--seconds", "0.2", record(a, dtype), record(b, dtype), expect=1)
        return [f for f in answer["findings"] if f["cause"] != "input"], answer["findings"]

    return explain


def test_one_kernel_that_fits_both_sides_is_no_change_of_order(explained):
    """Only an epsilon differs; that bf16 results fit ours on one side by chance makes no other kernel of the other side's."""
    own, every = explained("none", "eps", "bfloat16")
    (f,) = own
    assert (f["layer"], f["op"], f["schedule"]) == ("blocks.0.norm", "aten::native_layer_norm", "other arguments")
    products = [x for x in every if x["op"] == "aten::mm"]
    assert len(products) == 6 and {x["cause"] for x in products} == {"input"}
    assert all(x["matched"] == x["elements"] for x in products)


@pytest.mark.parametrize("a, b", [("times", "over"), ("over", "times"), ("addcmul", "apart"), ("apart", "addcmul")])
def test_a_form_that_rounds_less_is_not_called_f64(explained, a, b):
    if "addcmul" in (a, b) and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("without vector instructions ATen fuses no multiplication with an addition: both forms give the same bits")
    (f,), _ = explained(a, b)
    assert (f["layer"], f["cause"], f["proof"]) == ("form", "kernel", "bits") and f["matched"] == f["elements"] == 48 * 128
    assert f["schedule"] == "rounded once" and "fused multiply-add" in f["why"]


def test_a_form_in_f64_is(explained):
    own, _ = explained("apart", "double")
    assert {(f["layer"], f["cause"]) for f in own} == {("form", "precision")}
    assert all("f64" in (f["schedule"], f["first"]) and f["matched"] == f["elements"] for f in own)


def test_another_word_among_the_arguments_is_seen(explained, lastbit):
    (f,), _ = explained("erf", "tanh")
    assert (f["layer"], f["op"], f["cause"], f["schedule"]) == ("form", "aten::gelu", "kernel", "other arguments")
    assert f["proof"] == "bound" and f["matched"] < f["elements"] == 48 * 128
