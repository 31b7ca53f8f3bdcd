"""Rows of Fourier transforms against torch: ours and torch's result within the bound of each part, the f64 one beside torch's own."""

import math

import op_cases
import op_harness as H
import op_samples
import pytest
import torch
from op_samples_complex import complex_tensor

ROWS = ["_fft_r2c", "_fft_c2r", "_fft_c2c"]


def wide(t):
    return t.to(torch.complex128) if t.is_complex() else t.double()


def worst(row, values, recorded):
    """How much of its bound the result uses: above 1 it is wrong."""
    ratios = H.ratios(row, values, [recorded])[0]
    return float(ratios.max()) if recorded.numel() else 0.0


def calls(name, seed):
    row, _ = H.find(f"aten::{name}")
    op = H.torch_op(f"aten::{name}")
    for args, kwargs in op_samples.samples(row.contents.text("samples"), seed):
        values = H.in_schema_order(op, list(args), kwargs)
        yield row, op, values, op(*values)


@pytest.mark.parametrize("name", ROWS)
def test_ours_and_torchs_are_inside_the_bound_and_the_shadow_is_torchs_f64(name):
    for row, op, values, expected in calls(name, 1):
        got = op_cases.blank_like(expected)
        H.run(row, values, [got])
        assert worst(row, values, expected) <= 1, (values[0].shape, values[1:])
        assert worst(row, values, got) <= 1, (values[0].shape, values[1:])
        theirs = op(wide(values[0]), *values[1:])
        shadow = torch.empty_like(theirs)
        H.run(row, [wide(values[0]), *values[1:]], [shadow])
        size = float(wide(values[0]).abs().sum()) + 1e-300
        assert float((shadow - theirs).abs().max()) <= 1e-14 * size * max(1, values[0].numel() if values[2] == 0 else 1)


@pytest.mark.parametrize("name", ROWS)
def test_bits_do_not_depend_on_the_instruction_set(name):
    for row, _, values, expected in calls(name, 2):
        found = []
        for isa in range(H.best_isa() + 1):
            H.set_limits(isa=isa)
            found.append(torch.zeros_like(expected))
            H.run(row, values, [found[-1]])
        H.set_limits()
        assert all(bool(op_cases.same_bits(found[0], f).all()) for f in found)


@pytest.mark.parametrize("n", [8, 60, 97, 1024])
def test_other_normalizations_directions_and_frequencies_are_outside_the_bound(n):
    """The faults: a norm that was left out, the other direction, two neighbouring frequencies exchanged."""
    row, _ = H.find("aten::_fft_c2c")
    z = complex_tensor(op_samples.Draw(n), (3, n))
    right = torch.fft.fft(z)
    assert worst(row, [z, [1], 0, True], right) <= 1
    assert worst(row, [z, [1], 0, True], right / math.sqrt(n)) > 1
    assert worst(row, [z, [1], 0, True], torch.fft.ifft(z, norm="forward")) > 1
    exchanged = right.clone()
    exchanged[0, [1, 2]] = right[0, [2, 1]]
    assert worst(row, [z, [1], 0, True], exchanged) > 1
    assert worst(row, [z, [1], 0, True], right * (1 + 2e-3)) > 1


def test_of_numbers_that_are_not_finite_nothing_is_said_and_other_samples_are_judged():
    row, _ = H.find("aten::_fft_c2c")
    z = complex_tensor(op_samples.Draw(5), (2, 12))
    z[0, 3] = complex("nan")
    right = torch.fft.fft(z)
    assert worst(row, [z, [1], 0, True], right) <= 1
    wrong = right.clone()
    wrong[1, 4] += 0.01
    assert worst(row, [z, [1], 0, True], wrong) > 1


def test_what_is_no_transform_is_refused():
    row, _ = H.find("aten::_fft_c2c")
    z = complex_tensor(op_samples.Draw(6), (2, 12))
    for values, like in (([z, [5], 0, True], z), ([z, [], 0, True], z), ([z, [1], 0, True], z[:, :5])):
        with pytest.raises(H.Unsupported):
            H.run(row, values, [torch.empty_like(like)])
