"""What torch's CUDA kernels give for ops that a CPU computes otherwise, modelled here in torch on the CPU: it must be inside the bound (or have the
kernel's very bits), and a planted fault outside."""

import math

import op_harness as H
import pytest
import torch

torch.set_num_threads(1)
ROWS = H.rows()
LOW = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def recorded_on_cuda():
    H.set_limits()
    H.set_cuda(True)
    yield
    H.set_cuda(False)


def worst(name, values, recorded):
    return max(float(r.max()) for r in H.ratios(ROWS[name], values, recorded) if r is not None and r.numel())


def draw(seed, *shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


# ---- ties ------------------------------------------------------------------------------------------------------------


def chosen(name, values, branch):
    return H.run_branch(ROWS[name], values, [torch.empty_like(b) for b in branch], branch)


def followed(name, values, values_of, indices):
    """Does the row take these indices as they are?"""
    got = chosen(name, values, [values_of, indices])
    same = (got[0] == values_of) | ((got[0] != got[0]) & (values_of != values_of))
    return bool((got[1] == indices).all()) and bool(same.all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64])
@pytest.mark.parametrize("seed", range(4))
def test_another_choice_among_equal_values_is_followed_and_a_wrong_one_is_not(dtype, seed):
    x = torch.randint(0, 6, (5, 40), generator=torch.Generator().manual_seed(seed)).to(dtype)
    if dtype.is_floating_point:
        x[1, 3] = x[1, 30] = math.nan
    backwards = x.flip(1).sort(dim=1, stable=True)  # of equal elements the last first
    values, indices = backwards.values, 39 - backwards.indices
    assert followed("aten::sort", [x, 1, False], values, indices)
    assert followed("aten::topk", [x, 7, 1, False, True], values[:, :7], indices[:, :7])  # the least 7
    shuffled = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    assert followed("aten::topk", [x, 7, 1, False, False], values[:, :7][:, shuffled], indices[:, :7][:, shuffled])
    assert followed("aten::max.dim", [x, 1, False], values[:, -1], indices[:, -1])
    assert followed("aten::kthvalue", [x, 9, 1, False], values[:, 8], indices[:, 8])
    for position in (0, 13, 39):
        wrong = indices.clone()
        other = int((values[2] != values[2, position]).nonzero()[0])
        wrong[2, position] = indices[2, other]  # another value
        assert not followed("aten::sort", [x, 1, False], values, wrong)
    twice = indices.clone()
    twice[0, 1] = twice[0, 0]
    assert not followed("aten::sort", [x, 1, False], values, twice)
    for bad in (-1, 40):
        outside = indices[:, -1].clone()
        outside[3] = bad
        assert not followed("aten::max.dim", [x, 1, False], values[:, -1], outside)


def test_a_stable_sort_keeps_its_one_order():
    x = torch.tensor([[1.0, 0, 1, 0]])
    right = [torch.tensor([[0.0, 0, 1, 1]]), torch.tensor([[1, 3, 0, 2]])]
    other = [right[0], torch.tensor([[3, 1, 0, 2]])]
    assert followed("aten::sort.stable", [x, True, 1, False], *right)
    assert not followed("aten::sort.stable", [x, True, 1, False], *other)
    assert followed("aten::sort.stable", [x, False, 1, False], *other)


def test_running_extremes_follow_any_of_equal_elements_before():
    x = torch.tensor([2.0, 1, 2, 2, 3, 3])
    first = [torch.tensor([2.0, 2, 2, 2, 3, 3]), torch.tensor([0, 0, 0, 0, 4, 4])]
    assert followed("aten::cummax", [x, 0], *first)
    later = [first[0], torch.tensor([0, 0, 2, 3, 5, 5])]  # element 5 stands after place 4
    assert not followed("aten::cummax", [x, 0], *later)


# ---- scans -----------------------------------------------------------------------------------------------------------


def combine(kind, a, b, dtype):
    a, b = a.float(), b.float()
    return (torch.logaddexp(a, b) if kind == "aten::logcumsumexp" else a * b if kind == "aten::cumprod" else a + b).to(dtype)


def any_tree(kind, x, dtype, split):
    """Prefixes of a row by a tree that cuts where `split` says; every partial result in the dtype. The parts, and their total."""
    n = x.shape[0]
    if n == 1:
        return x.clone()
    cut = split(n)
    left, right = any_tree(kind, x[:cut], dtype, split), any_tree(kind, x[cut:], dtype, split)
    return torch.cat([left, combine(kind, left[-1:], right, dtype)])


@pytest.mark.parametrize("kind", ["aten::cumsum", "aten::cumprod", "aten::logcumsumexp"])
@pytest.mark.parametrize("dtype", LOW)
def test_scans_of_one_row_by_any_tree_are_inside_and_a_dropped_term_is_not(kind, dtype):
    draws = torch.Generator().manual_seed(5)
    for n in (2, 7, 33, 100, 500):
        x = draw(n, n, dtype=dtype, scale=0.3 if kind == "aten::cumprod" else 1.0)
        if kind == "aten::cumprod":
            x = (x.float() + 1).to(dtype)
        for split in (lambda n: n // 2, lambda n: 1 if n < 8 else n // 2, lambda n: max(1, int(torch.randint(1, n, (), generator=draws)))):
            if n > 100 and split(8) != 4:
                continue
            assert worst(kind, [x, 0], [any_tree(kind, x, dtype, split)]) <= 1
    x = draw(3, 4, dtype=dtype).abs() + 1
    dropped = any_tree(kind, torch.cat([x[:1], x[2:]]), dtype, lambda n: n // 2)
    assert worst(kind, [x, 0], [torch.cat([dropped[:1], dropped])]) > 1


@pytest.mark.parametrize("kind", ["aten::cumsum", "aten::cumprod", "aten::logcumsumexp"])
@pytest.mark.parametrize("dtype", [*LOW, torch.float32])
def test_scans_across_and_along_rows_have_the_bits_of_their_network(kind, dtype):
    base = draw(8, 6, 70, dtype=dtype, scale=0.3 if kind == "aten::cumprod" else 2.0)
    x = (base.float() + (1 if kind == "aten::cumprod" else 0)).to(dtype)
    across = [x[0]]
    for row in x[1:]:
        across.append(combine(kind, across[-1], row, dtype))
    across = torch.stack(across)
    got = torch.empty_like(x)
    H.run(ROWS[kind], [x, 0], [got])
    if kind != "aten::logcumsumexp":
        assert torch.equal(got, across)
    assert worst(kind, [x, 0], [across]) <= 1
    H.run(ROWS[kind], [x, 1], [got])
    assert worst(kind, [x, 1], [got]) <= 1
    spoilt = across.clone()
    spoilt[4:] = combine(kind, across[3:4], x[5:], dtype)[:1]
    assert worst(kind, [x, 0], [spoilt]) > 1


def test_a_cpu_allows_no_more_than_before():
    x = draw(1, 4, 512, dtype=torch.bfloat16)
    across = any_tree("aten::cumsum", x[0], torch.bfloat16, lambda n: n // 2)
    recorded = torch.stack([across, *x[1:].float().cumsum(1).bfloat16()])
    H.set_cuda(False)
    assert worst("aten::cumsum", [x, 1], [recorded]) > 1


# ---- norms, softmax, optimizers, transforms -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("seed", range(3))
def test_group_norm_with_statistics_in_16_bits(dtype, seed):
    x = (draw(seed, 2, 8, 5, 7) * 1.5 + 2).to(dtype)
    gamma, beta = draw(seed + 10, 8, dtype=dtype), draw(seed + 20, 8, dtype=dtype)

    def by_cuda(eps):
        rows = x.float().view(2, 4, -1)
        mean = rows.mean(-1).to(dtype)
        rstd = (rows.var(-1, unbiased=False) + torch.tensor(eps).to(dtype).float()).rsqrt().to(dtype)
        a = rstd.float().repeat_interleave(2, 1) * gamma.float()
        b = -a * mean.float().repeat_interleave(2, 1) + beta.float()
        return [(x.float() * a[..., None, None] + b[..., None, None]).to(dtype), mean, rstd]

    values = [x, gamma, beta, 2, 8, 35, 4, 0.05]
    assert worst("aten::native_group_norm", values, by_cuda(0.05)) <= 1
    assert worst("aten::native_group_norm", values, by_cuda(0.2)) > 1
    H.set_cuda(False)
    assert worst("aten::native_group_norm", values, by_cuda(0.05)) > 1


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("seed", range(3))
def test_softmax_backward_of_products_in_16_bits(dtype, seed):
    y, g = draw(seed, 6, 300).softmax(1).to(dtype), draw(seed + 1, 6, 300, dtype=dtype, scale=1e-2)
    products = (g * y).float()
    recorded = (products - y.float() * products.sum(1, keepdim=True)).to(dtype)
    values = [g, y, 1, dtype]
    assert worst("aten::_softmax_backward_data", values, [recorded]) <= 1
    without = (products - y.float() * products[:, 1:].sum(1, keepdim=True) * 1.5).to(dtype)
    assert worst("aten::_softmax_backward_data", values, [without]) > 1


@pytest.mark.parametrize("step", [1, 2, 10, 1000])
def test_fused_adam_with_betas_in_f32(step):
    p, g, m, v = draw(1, 1000), draw(2, 1000, scale=0.1), draw(3, 1000, scale=0.1), draw(4, 1000, scale=0.1).square()
    if step == 1:
        m, v = torch.zeros(1000), torch.zeros(1000)
    lr, b1, b2, decay, eps = 0.01, 0.9, 0.999, 0.1, 1e-8

    def by_cuda(eps):
        f = [torch.tensor(k, dtype=torch.float32) for k in (lr, b1, b2, decay, eps, step)]
        q = p - f[0] * f[3] * p
        avg = f[1] * m + (g - f[1] * g)
        square = f[2] * v + (g * g - f[2] * (g * g))
        c1, c2 = 1 - f[1].pow(f[5]), (1 - f[2].pow(f[5])).sqrt()
        return [q - f[0] / c1 * avg / (square.sqrt() / c2 + f[4]), g, avg, square]

    values = [[p], [g], [m], [v], [], [torch.tensor(float(step))], lr, b1, b2, decay, eps, False, False, None, None]
    assert worst("aten::_fused_adamw_", values, by_cuda(eps)) <= 1
    assert worst("aten::_fused_adamw_", [*values[:10], 0.02, *values[11:]], by_cuda(0.01)) > 1


def test_a_fourier_transform_may_have_an_imaginary_part_at_frequency_0():
    x = draw(1, 4, 64)
    recorded = torch.fft.rfft(x)
    recorded[:, 0] += 3e-7j
    values = [x, [1], 0, True]
    assert worst("aten::_fft_r2c", values, [recorded]) <= 1
    recorded[:, 0] += 1e-3j
    assert worst("aten::_fft_r2c", values, [recorded]) > 1
    H.set_cuda(False)
    assert worst("aten::_fft_r2c", values, [torch.fft.rfft(x) + 0]) <= 1


@pytest.mark.parametrize("name", ["aten::div.Tensor", "aten::mul.Tensor", "aten::add.Tensor"])
def test_a_0_dim_operand_is_rounded_to_the_dtype_of_the_others(name):
    x, s = draw(1, 300, dtype=torch.bfloat16), torch.tensor(0.0316225737)
    op = {"d": torch.div, "m": torch.mul, "a": torch.add}[name[6]]
    values = [x, s] + ([1] if name == "aten::add.Tensor" else [])
    recorded = op(x.float(), s.bfloat16().float()).bfloat16()
    got = torch.empty_like(x)
    H.run(ROWS[name], values, [got])
    assert torch.equal(got, recorded)
    H.set_cuda(False)
    H.run(ROWS[name], values, [got])
    assert torch.equal(got, op(x, s))  # as torch on a CPU


# ---- casts -----------------------------------------------------------------------------------------------------------


def test_a_cast_to_e4m3_overflows_as_was_recorded():
    x = torch.tensor([1.0, 448, 463.9, 464, 464.1, 479, 480, 1e9, -465, math.nan, math.inf])
    saturated = torch.tensor([1.0, 448, 448, 448, 448, 448, 448, 448, -448, math.nan, 448])
    nan = torch.tensor([1.0, 448, 448, 448, *[math.nan] * 7])
    for recorded in (saturated, nan):
        for name, values in (("aten::_to_copy", [x, torch.float8_e4m3fn]), ("aten::copy", [x.to(torch.float8_e4m3fn), x, False])):
            branch = recorded.nan_to_num(0).to(torch.float8_e4m3fn)
            branch.view(torch.uint8)[recorded.isnan()] = 0x7F
            got = H.run_branch(ROWS[name], values, [torch.zeros_like(branch)], [branch])[0]
            assert torch.equal(got.float().nan_to_num(7), recorded.nan_to_num(7)), (name, got)


# ---- statistics --------------------------------------------------------------------------------------------------------


def test_statistics_that_no_result_within_the_bound_could_have():
    x = draw(1, 50)
    row, values = ROWS["aten::exp"], [x]
    assert H.allows(row, values, [x.exp()]) and H.allows(row, values, [x.double().exp().float()])
    for spoil in (math.nan, math.inf, -math.inf, 1e4, -1.0):
        y = x.exp()
        y[7] = spoil
        assert not H.allows(row, values, [y]), spoil
    missing = x.clone()
    missing[3] = math.nan
    assert H.allows(row, [missing], [missing.exp()]) and not H.allows(row, [missing], [x.exp()])
    half = torch.tensor([1.0, 11.0899, 11.2], dtype=torch.float16)  # exp is 65504 or beyond
    assert H.allows(row, [half], [half.exp()])


def test_prims_of_compiled_graphs_are_found():
    for name in ("convert_element_type", "iota", "inductor_lookup_seed", "fma", "add", "exp", "where", "full", "sum", "rsqrt", "eq", "maximum"):
        assert H.find(f"prims::{name}")[0] is not None, name
    assert H.find("prims::svd")[0] is None and H.find("prims::no_such")[0] is None
    cast = torch.empty(5, dtype=torch.bfloat16)
    x = draw(1, 5)
    H.run(H.find("prims::convert_element_type")[0], [x, torch.bfloat16], [cast])
    assert torch.equal(cast, x.bfloat16())
    steps = torch.empty(4, dtype=torch.int64)
    H.run(ROWS["prims::iota"], [4, 3, -2, torch.int64, None, False], [steps])
    assert steps.tolist() == [3, 1, -1, -3]
    seed = torch.empty((), dtype=torch.int64)
    H.run(ROWS["prims::inductor_lookup_seed"], [torch.tensor([5, 7, 9]), 1], [seed])
    assert int(seed) == 7


def test_log_sigmoid_without_a_buffer():
    x = draw(1, 9)
    y, nothing = torch.empty(9), torch.empty(0)
    H.run(ROWS["aten::log_sigmoid_forward"], [x], [y, nothing])
    assert torch.allclose(y, torch.nn.functional.logsigmoid(x))
