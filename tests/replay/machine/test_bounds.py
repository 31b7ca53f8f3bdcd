"""No bound is too tight: a short adversarial search for every row of the op table (search_bounds.py looks longer).

Places where a bound was once exceeded are tried in every run: what several code paths of torch disagree about has to stay within the bound.
"""

import math

import op_harness as H
import pytest
import search_bounds as S
import torch
from op_cases import Case, callable_op

torch.set_num_threads(1)


# torch's vectorised remainders give NaN, or another multiple, where a quotient is beyond 2^53 or underflows.
QUOTIENTS = ("fmod", "remainder", "floor_divide", "div.Tensor_mode", "div.Scalar_mode")


@pytest.mark.parametrize("name", S.searched_rows())
def test_no_call_of_a_short_search_exceeds_the_bound(name):
    """Elementwise rows over all numbers, the others over those whose squares neither overflow nor underflow."""
    modest = not S.ROWS[name].contents.flags & H.ELEMENTWISE or name.startswith(tuple(f"aten::{q}" for q in QUOTIENTS))
    found = S.search(name, seconds=5.0, seed=7, n=1120, grow=False, modest=modest, calls=6)
    assert found.ratio <= 1, f"{found.ratio:.3g} of the bound at {found.where}"


def worst(name, *args, **kwargs):
    case = Case(S.ROWS[f"aten::{name}"], callable_op(f"aten::{name}"), list(args), kwargs)
    assert case.expected is not None, "torch refuses"
    return max(float(torch.nan_to_num(r, nan=0.0, posinf=math.inf).max()) for r in S.ratios_of(case) if r is not None)


def laid(x):
    """x under the layouts that send torch's elementwise kernels through oneDNN, its vectors and its scalars."""
    return {name: S.FLAT[name](x) for name in ("dense", "transposed", "strided", "column")}


def test_gelu_keeps_its_bound_on_all_of_its_code_paths():
    """Abramowitz and Stegun's erf near ±0.05, oneDNN's polynomials near ±3."""
    for centre in (0.0424, 0.0665, 0.0332, 2.973, 3.453, 1.7):
        x = torch.linspace(0.97 * centre, 1.03 * centre, 112 * 200)
        for layout, z in laid(torch.cat([x, -x])).items():
            assert worst("gelu", z) <= 1, (centre, layout)
            assert worst("gelu_backward", torch.ones_like(z), z) <= 1, (centre, layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_nan_that_vectors_and_scalars_treat_differently_is_not_judged(dtype):
    x = torch.full((112,), math.nan, dtype=dtype)
    for layout, z in laid(x).items():
        g = torch.full_like(z, 2.0)
        for name, numbers in (
            ("elu_backward", None),
            ("hardswish_backward", ()),
            ("hardtanh_backward", (-1.0, 1.0)),
            ("hardshrink_backward", (0.5,)),
            ("softshrink_backward", (0.5,)),
        ):
            args = (g, 1.5, 1.1, 1.0, False, z) if numbers is None else (g, z, *numbers)
            assert worst(name, *args) <= 1, (name, layout)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_softmax_across_rows_of_one_rounds_its_exponentials(dtype):
    """(7, 1) along dimension 0: not the last dimension, though nothing stands behind it."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(50):
        x = (3 * torch.randn(7, 1, generator=generator)).to(dtype)
        assert worst("_softmax", x, 0, False) <= 1
        assert worst("_safe_softmax", x, 0) <= 1


def test_weights_of_an_interpolation_in_16_bits_are_rounded_before_they_are_taken_from_1():
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(8, 3, 12, generator=generator).bfloat16()
    assert worst("upsample_linear1d", x, [1025], True) <= 1


def test_thresholds_are_rounded_to_the_dtype_where_torch_does():
    for dtype in (torch.bfloat16, torch.float16):
        for number in (0.1, 0.3, 0.7, 1 / 3):
            x = torch.tensor([number], dtype=dtype) * torch.tensor([1, -1, 1 + 2.0**-7, 1 - 2.0**-7] * 4, dtype=dtype)
            for name in ("hardshrink", "softshrink"):
                assert worst(name, x, number) <= 1, (name, dtype, number)
            for name, numbers in (("hardshrink_backward", (number,)), ("softshrink_backward", (number,)), ("hardtanh_backward", (-number, number))):
                assert worst(name, torch.full_like(x, 2.0), x, *numbers) <= 1, (name, dtype, number)


def test_a_batch_added_in_16_bits_is_rounded_at_every_sample():
    generator = torch.Generator().manual_seed(5)
    c, a, b = (torch.randn(s, generator=generator).half() for s in ((1, 65), (3, 1, 8), (3, 8, 65)))
    assert worst("addbmm", 10_000 * c, a, b, beta=0.5, alpha=2) <= 1


def test_what_underflows_within_a_product_is_magnified_by_the_other_factors():
    x = torch.tensor([1e-3] * 6 + [1e3] * 5).half()
    assert worst("prod", x) <= 1
    assert worst("cumprod", torch.tensor([1e-20] * 3 + [1e20] * 3), 0) <= 1


def test_a_bound_is_not_vacuous():
    """A result that is off by more than its rounding exceeds the bound: each function at ordinary arguments, one part in 1000 away."""
    x = torch.linspace(0.55, 0.9, 112)
    for name in ("gelu", "silu", "mish", "sigmoid", "tanh", "exp", "log", "cosh", "sinh", "erf", "softplus", "logit"):
        case = Case(S.ROWS[f"aten::{name}"], callable_op(f"aten::{name}"), [x], {})
        assert float(H.ratios(case.row, case.values(), [case.expected[0] * 1.001])[0].min()) > 1, name
