"""diff across complex numbers: rotary embeddings as complex products are run exactly, as pairs of f64."""

import pytest
import torch
from safetensors.torch import load_file

PROGRAM = "tests/programs/complex_rotary.py"


@pytest.fixture(scope="module")
def right(lastbit, tmp_path_factory):
    out = tmp_path_factory.mktemp("complex") / "right.lb"
    lastbit.record(out, PROGRAM, options=("--level", "ops"), expect=0)
    return out


@pytest.mark.parametrize("fault", ["conjugated", "scaled", "moved", "flipped"])
def test_a_fault_in_a_complex_rotary_embedding_is_not_rounding(lastbit, right, tmp_path, fault):
    """flipped: the sign of one number of the table."""
    lastbit.record(tmp_path / "wrong.lb", PROGRAM, fault, options=("--level", "ops"), expect=0)
    told = lastbit.json("diff", right, tmp_path / "wrong.lb", expect=1)
    assert told["verdict"] == told["first"]["verdict"] == "diverged" and not told["missing"]
    if fault == "flipped":
        assert told["first"]["op"] == "lb::source" and told["first"]["layer"] == "angles"
        assert told["first"]["differing"] == 1 and told["first"]["elements"] == 128 and "one flipped bit" in told["first"]["pattern"]
    else:
        op = "aten::add.Tensor" if fault == "moved" else "aten::mul.Tensor"  # what the wrong side alone runs
        assert told["first"]["phase"] == "forward" and told["first"]["op"] == op


@pytest.mark.parametrize("one,other", [("twice", "once"), ("right", "real")])
def test_the_same_rotation_in_other_steps_is_rounding(lastbit, tmp_path, one, other):
    """By two angles and by their sum, and as the four real products that a complex one is: nothing of it is missing."""
    for how in (one, other):
        lastbit.record(tmp_path / f"{how}.lb", PROGRAM, how, options=("--level", "ops"), expect=0)
    told = lastbit.json("diff", tmp_path / f"{one}.lb", tmp_path / f"{other}.lb", expect=0)
    assert told["verdict"] == "rounding" and not told["missing"]
    assert told["first"]["phase"] == "forward" and told["first"]["op"] == "aten::mul.Tensor"


def test_the_same_rotary_embedding_is_the_same(lastbit, right, tmp_path):
    lastbit.record(tmp_path / "again.lb", PROGRAM, options=("--level", "ops"), expect=0)
    assert lastbit.json("diff", right, tmp_path / "again.lb", expect=0)["verdict"] == "identical"


def test_a_region_of_f64_holds_complex_numbers_in_f64(lastbit, right, tmp_path):
    """What leaves the attention is what torch gives in f64 from the same queries, keys and values."""
    written = tmp_path / "wide.safetensors"
    told = lastbit.json("replay", right, "--mode", "chained", "--precision", "=f64", "--write", written, "--select", "op=aten::mm&phase=forward")
    assert told["ops"]["opaque"] == 0 and told["verdicts"]["missing"] == 0
    product, out = (t for _, t in sorted(load_file(written).items(), key=lambda item: int(item[0].split(".")[2][2:])))
    torch.manual_seed(0)
    _, weight = (torch.nn.Linear(32, n, bias=False).weight.detach().double() for n in (96, 32))
    angles = torch.outer(torch.arange(16), 1.0 / (10000.0 ** (torch.arange(0, 8, 2).float() / 8))).float()
    table = torch.polar(torch.ones(16, 4), angles)
    q, k, v = (t.reshape(2, 16, 4, 8) for t in product.reshape(2, 16, 96).chunk(3, -1))

    def attention(turn):
        x, y = (
            torch.view_as_real(torch.view_as_complex(t.reshape(2, 16, 4, 4, 2)).to(turn.dtype) * turn[None, :, None]).flatten(3).double()
            for t in (q, k)
        )
        z = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (x, y, v)), is_causal=True)
        return z.transpose(1, 2).reshape(32, 32) @ weight.t()

    assert product.dtype == out.dtype == torch.float64
    assert (out - attention(table.to(torch.complex128))).abs().max() < 1e-14
    assert (out - attention(table)).abs().max() > 1e-9  # what products in c64 would give
