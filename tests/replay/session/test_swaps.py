"""Every transformation that `lastbit replay` offers, on real recordings, against the same change made in PyTorch or NumPy.

Chains are held against the sample trained in this process with the change made by hand; single ops, bit by bit, against
NumPy on their recorded inputs."""

import math
import os

import numpy as np
import pytest
import recorded as R  # noqa: E402
import swapped
import torch
from swapped import distance, replayed, train

SAMPLE = "samples/hybrid_lm.py"
CHAINED = ("--mode", "chained")
# Without experts there are no decisions, and a swap never ends a chain.
POLAR = ["--pattern", "AMRD", "--steps", "3", "--iteration", "polar-express"]  # in bf16
DENSE = ["--pattern", "AMRD", "--steps", "3", "--muon-dtype", "float32"]


@pytest.fixture(scope="module")
def captures(lastbit, tmp_path_factory):
    made = {}

    def capture(*options, program=SAMPLE):
        if (program, options) not in made:
            out = tmp_path_factory.mktemp("swaps") / "run.lb"
            lastbit.record(out, program, *options, expect=0)
            made[program, options] = out
        return made[program, options]

    return capture


def check_parameters(written, expected, bound):
    """All parameters after every step."""
    worst = 0.0
    for step, parameters in enumerate(expected):
        for name, p in parameters.items():
            worst = max(worst, distance(written.named[step, name], p))
            assert worst <= bound, (step, name, worst)
    return worst


# ---- chains, against a model that was changed by hand -----------------------------------------------------------------


def test_the_unswapped_chain_follows_the_run(lastbit, captures, tmp_path):
    answer, written = replayed(lastbit, captures(*DENSE), tmp_path, *CHAINED, "--select", "phase=optimizer")
    assert answer["verdict"] in ("identical", "rounding")
    check_parameters(written, train(DENSE)[0], 2e-5)


def test_a_chain_in_f64_is_the_model_in_f64(lastbit, captures, tmp_path):
    expected, losses = train(DENSE, wide=True)
    answer, written = replayed(lastbit, captures(*DENSE), tmp_path, *CHAINED, "--precision", "f64")
    assert answer["swaps"][0]["touched"] > 1000
    check_parameters(written, expected, 1e-9)
    assert all(p.dtype == torch.float64 for (_, name), p in written.named.items() if name in expected[0])
    # the loss is divided by the number of micro-batches last of all
    found = [
        [
            t.item()
            for (s, _, op, _), t in written.tensors.items()
            if s == step and t.ndim == 0 and written.text[s, 0, op].startswith("aten::div.Tensor in -, forward")
        ]
        for step in range(3)
    ]
    for step, loss in enumerate(losses):
        assert any(abs(x - loss) < 1e-11 * abs(loss) for x in found[step]), (loss, found[step])


def test_muon_in_f32_is_muon_in_f32(lastbit, captures, tmp_path):
    answer, written = replayed(lastbit, captures(*POLAR), tmp_path, *CHAINED, "--muon", "f32", "--select", "phase=optimizer")
    assert answer["swaps"] == [{"swap": "muon", "selector": "", "argument": "f32", "touched": 3 * 9}]
    changed = train([*POLAR, "--muon-dtype", "float32"])[0]
    assert check_parameters(written, changed, 2e-5) > 0
    assert distance(train(POLAR)[0][2]["layers.0.attention.qkv.weight"], changed[2]["layers.0.attention.qkv.weight"]) > 1e-3


def test_adamw_for_muon_is_adamw(lastbit, captures, tmp_path):
    """Muon written by hand, with Polar Express's coefficients; the state of AdamW starts at zero in the first step."""
    options = [*POLAR, "--lr", "0.002"]
    answer, written = replayed(lastbit, captures(*options), tmp_path, *CHAINED, "--muon", "adamw", "--select", "phase=optimizer")
    assert answer["swaps"][0]["touched"] == 3 * 9
    assert "0.002" in answer["note"]
    check_parameters(written, train([*options, "--optimizer", "adamw"])[0], 2e-5)


def test_one_parameter_can_have_adamw_alone(lastbit, captures, tmp_path):
    _, written = replayed(
        lastbit, captures(*POLAR), tmp_path, *CHAINED, "--muon", "layer=layers.3.mlp.down=adamw", "--muon", "f32", "--select", "phase=optimizer"
    )
    args = swapped.sample_arguments(*POLAR, "--muon-dtype", "float32")
    plain = swapped.lab.optimizers

    def split(_, model):
        muon, adamw = plain(args, model)
        down = model.layers[3].mlp.down.weight
        muon.param_groups[0]["params"] = [p for p in muon.param_groups[0]["params"] if p is not down]
        adamw.param_groups[0]["params"].append(down)
        return muon, adamw

    swapped.lab.optimizers = split
    try:
        expected = train([*POLAR, "--muon-dtype", "float32"])[0]
    finally:
        swapped.lab.optimizers = plain
    check_parameters(written, expected, 2e-5)


class Nothing(torch.nn.Module):
    def forward(self, x):
        return x * 0


def without_mixer(model):
    model.layers[1].scan = Nothing()


def without_block(model):
    model.layers[2] = torch.nn.Identity()


@pytest.mark.parametrize(
    "selector,change,frozen",
    [
        ("layer=layers.1.scan", without_mixer, "layers.1.scan."),
        ("layer=layers.2", without_block, "layers.2."),
        ("block=R", without_block, "layers.2."),
    ],
)
def test_a_skipped_module_is_out_of_forward_backward_and_optimizer(lastbit, captures, tmp_path, selector, change, frozen):
    answer, written = replayed(lastbit, captures(*DENSE), tmp_path, *CHAINED, "--skip", selector, "--select", "phase=optimizer")
    assert answer["swaps"][0]["touched"] == 3
    expected = [{name: p for name, p in after.items() if not name.startswith(frozen)} for after in train(DENSE, change=change)[0]]
    check_parameters(written, expected, 2e-5)
    assert not [name for _, name in written.named if name.startswith(frozen)], "its parameters were updated"


@pytest.mark.parametrize("forced", ["ids", "ids+weights", "ids+weights+slots"])
def test_forced_routing_takes_the_recorded_experts(lastbit, captures, tmp_path, forced):
    """Without its first block the router would choose other experts."""
    options = ["--pattern", "AED", "--steps", "2", "--muon-dtype", "float32"]
    capture = captures(*options)
    programs = R.Recorded(capture).programs[0]
    step_of, chosen = [0], {}
    for step, program in programs.items():
        (row,) = program.routings
        chosen[step] = program.tensor(row.ids), program.tensor(row.weights)

    def without(model):
        model.layers[0] = torch.nn.Identity()
        moe = model.layers[1].moe

        def forward(x):
            rows, (ids, final) = x.flatten(0, -2), chosen[step_of[0]]
            weights = moe.router(rows).float().softmax(-1).gather(-1, ids)
            weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
            if forced != "ids":
                weights = weights + (final - weights).detach()
            return moe.eager(rows, weights, ids).view_as(x)

        moe.forward = forward

    swap = (*CHAINED, "--skip", "layer=layers.0", "--select", "phase=optimizer")
    answer, written = replayed(lastbit, capture, tmp_path, *swap, "--routing", forced)
    assert answer["undecided"] == 0
    expected = train(options, change=without, before_step=lambda model, step: step_of.__setitem__(0, step))[0]
    # forced weights aren't what their gradient was taken of: torch's own w + (r - w) rounds too
    check_parameters(written, expected, 2e-5 if forced == "ids" else 1e-4)
    refused, _ = replayed(lastbit, capture, tmp_path, *swap, "--routing", "recompute", expect=125)
    assert refused["undecided"]


# ---- single ops, from their recorded inputs ----------------------------------------------------------------------------


def operands(program, index):
    """The recorded tensors and numbers that an op took."""

    def open_up(x):
        if isinstance(x, tuple) and x[0] == "value":
            return program.tensor(x[1])
        return [open_up(y) for y in x] if isinstance(x, list) else x

    return [open_up(x) for x in program.op_args(program.ops[index])]


def each(program, written, name, limit=12):
    """(index, operands, computed result) of ops of that name."""
    found = 0
    for (step, rank, index, result), tensor in sorted(written.tensors.items()):
        if program.name(program.ops[index]) == name and result == 0 and step == program.step and found < limit:
            found += 1
            yield index, operands(program, index), tensor
    assert found, f"no {name}"


@pytest.fixture(scope="module")
def narrow(lastbit, captures):
    capture = captures("--precision", "bf16", "--steps", "1", "--pattern", "AMRD")
    return capture, R.Recorded(capture).programs[0][0]


@pytest.fixture(scope="module")
def plain(lastbit, captures):
    capture = captures(*DENSE)
    return capture, R.Recorded(capture).programs[0][0]


def one_step(lastbit, capture, folder, *options):
    return replayed(lastbit, capture, folder, "--steps", "0", *options)[1]


def ulps_apart(a, b, precision):
    """Largest distance in units of b's last place, for `precision` significand bits."""
    a, b = a.double(), b.double()
    exponent = torch.frexp(torch.maximum(b.abs(), torch.tensor(2.0**-120, dtype=torch.float64)))[1]
    return ((a - b).abs() / torch.ldexp(torch.ones_like(b), exponent - precision)).max().item()


def test_a_region_of_one_op_takes_rounds_and_holds(lastbit, plain, tmp_path):
    for name, dtype, precision in (("bf16", torch.bfloat16, 8), ("f16", torch.float16, 11)):
        written = one_step(lastbit, plain[0], tmp_path, "--precision", f"op=aten::mm={name}", "--select", "op=aten::mm")
        for _, (a, b), got in each(plain[1], written, "aten::mm"):
            assert got.dtype == dtype
            exact = a.to(dtype).double() @ b.to(dtype).double()
            terms = a.to(dtype).double().abs() @ b.to(dtype).double().abs()
            assert bool(((got.double() - exact).abs() <= 2.0**-precision * exact.abs() + a.shape[1] * 2.0**-24 * terms + 1e-7).all())


def test_e4m3_saturates_and_rounds_as_torch_does(lastbit, plain, tmp_path):
    written = one_step(lastbit, plain[0], tmp_path, "--precision", "op=mul.Tensor&phase=forward=e4m3", "--select", "op=mul.Tensor&phase=forward")
    e4m3 = torch.float8_e4m3fn
    for _, (a, b), got in each(plain[1], written, "aten::mul.Tensor", limit=40):
        a, b = (x.to(e4m3).float() if torch.is_tensor(x) else x for x in (a, b))
        assert got.dtype == e4m3
        assert torch.equal(got.float(), (a * b).clamp(-448, 448).to(e4m3).float())


@pytest.mark.parametrize("how", ["rz", "rna", "rne"])
def test_tf32_rounds_what_products_read(lastbit, plain, tmp_path, how):
    def tf32(x):
        bits = x.contiguous().numpy().view(np.uint32).astype(np.uint64)
        if how == "rna":
            bits = bits + (1 << 12)
        elif how == "rne":
            bits = bits + (1 << 12) - 1 + ((bits >> 13) & 1)
        return torch.from_numpy((bits & 0xFFFFE000).astype(np.uint32).view(np.float32).copy()).double()

    written = one_step(lastbit, plain[0], tmp_path, "--precision", f"phase=forward=tf32:{how}", "--select", "phase=forward&op=aten::mm")
    other = 0
    for _, (a, b), got in each(plain[1], written, "aten::mm", limit=40):
        exact, terms = tf32(a) @ tf32(b), tf32(a).abs() @ tf32(b).abs()
        bound = (a.shape[1] + 1) * 2.0**-24 * terms
        assert bool(((got.double() - exact).abs() <= bound).all())
        other += bool(((got.double() - a.double() @ b.double()).abs() > bound).any())
    assert other  # TF32 is another number somewhere


def bits(x):
    return x.contiguous().numpy().view(np.uint32)


def toward_zero(exact):
    """f64 to f32, truncated."""
    near = exact.numpy().astype(np.float32)
    over = np.abs(near.astype(np.float64)) > np.abs(exact.numpy())
    return np.where(over, np.nextafter(near, np.float32(0)), near).astype(np.float32)


def test_rounding_toward_zero_truncates_the_exact_product(lastbit, plain, tmp_path):
    written = one_step(lastbit, plain[0], tmp_path, "--rounding", "op=mul.Tensor=rz", "--select", "op=mul.Tensor&phase=forward")
    changed = 0
    for _, (a, b), got in each(plain[1], written, "aten::mul.Tensor", limit=60):
        if not torch.is_tensor(b) or a.dtype != torch.float32 or b.dtype != torch.float32:
            continue
        expected = toward_zero(torch.as_tensor(a.double() * b.double()))
        assert np.array_equal(bits(got), expected.view(np.uint32).reshape(got.shape))
        changed += not torch.equal(got, a * b)
    assert changed


def test_rounding_toward_zero_of_bf16_results(lastbit, narrow, tmp_path):
    written = one_step(lastbit, narrow[0], tmp_path, "--rounding", "op=mul.Tensor=rz", "--select", "op=mul.Tensor&phase=forward")
    seen = 0
    for _, (a, b), got in each(narrow[1], written, "aten::mul.Tensor", limit=60):
        if got.dtype != torch.bfloat16 or not torch.is_tensor(b) or b.dtype != torch.bfloat16:
            continue
        product = bits((a.float() * b.float()).contiguous())  # exact: 8 + 8 bits
        assert np.array_equal(product & np.uint32(0xFFFF0000), bits(got.float().contiguous()))
        seen += 1
    assert seen


def test_stochastic_rounding_is_one_of_two_neighbours_and_unbiased(lastbit, narrow, tmp_path):
    def results(seed):
        written = one_step(lastbit, narrow[0], tmp_path, "--rounding", f"op=mul.Tensor=stochastic:{seed}", "--select", "op=mul.Tensor&phase=forward")
        return [
            (a, b, got)
            for _, (a, b), got in each(narrow[1], written, "aten::mul.Tensor", limit=80)
            if got.dtype == torch.bfloat16 and torch.is_tensor(b) and b.dtype == torch.bfloat16
        ]

    ups, expected, variance, ones = 0, 0.0, 0.0, results(1)
    for a, b, got in ones:
        product = np.broadcast_to(bits((a.float() * b.float()).contiguous()), got.shape).astype(np.int64)
        low, fraction = product & ~0xFFFF, (product & 0xFFFF) / 65536
        rounded = bits(got.float()).astype(np.int64)
        assert set(np.unique((rounded - low) >> 16)) <= {0, 1}
        ups, expected = ups + ((rounded - low) >> 16).sum(), expected + fraction.sum()
        variance += (fraction * (1 - fraction)).sum()
    assert variance > 1000 and abs(ups - expected) < 5 * variance**0.5
    again, other = results(1), results(2)
    assert all(torch.equal(x[2], y[2]) for x, y in zip(ones, again))
    assert not all(torch.equal(x[2], y[2]) for x, y in zip(ones, other))


# Orders of n terms along the last axis, in f32, as schedule.h states them. NumPy adds element by element here.


def in_turn(terms):
    total = np.zeros(terms.shape[:-1], np.float32)
    for i in range(terms.shape[-1]):
        total = total + terms[..., i]
    return total


def in_pairs(terms):
    n = terms.shape[-1]
    if n == 1:
        return terms[..., 0]
    half = 1 << (n - 1).bit_length() - 1
    return in_pairs(terms[..., :half]) + in_pairs(terms[..., half:])


def in_blocks(terms, size):
    return in_turn(np.stack([in_turn(terms[..., i : i + size]) for i in range(0, terms.shape[-1], size)], -1))


def in_lanes(terms, lanes):
    return in_turn(np.stack([in_turn(terms[..., i::lanes]) for i in range(lanes)], -1))


def in_butterflies(terms, threads, vector):
    n, own = terms.shape[-1], []
    for thread in range(threads):
        mine = [i for start in range(thread * vector, n, threads * vector) for i in range(start, min(start + vector, n))]
        own.append(in_turn(terms[..., mine]))

    def warp(values):
        for distance_ in (16, 8, 4, 2, 1):
            values = [values[i] + values[i ^ distance_] for i in range(32)]
        return values[0]

    zero = np.zeros_like(own[0])
    warps = [warp((own[i : i + 32] + [zero] * 32)[:32]) for i in range(0, threads, 32)]
    return warp((warps + [zero] * 32)[:32])


ORDERS = {
    "sequential": in_turn,
    "pairwise": in_pairs,
    "blocked:5": lambda t: in_blocks(t, 5),
    "splitk:3": lambda t: in_blocks(t, -(-t.shape[-1] // 3)),
    "lanes:4": lambda t: in_lanes(t, 4),
    "butterfly:32x4": lambda t: in_butterflies(t, 32, 4),
    "butterfly:64x1": lambda t: in_butterflies(t, 64, 1),
    "exact": lambda t: t.astype(np.float64).sum(-1).astype(np.float32),
}


@pytest.mark.parametrize("order", ORDERS)
def test_sums_in_a_stated_order(lastbit, plain, tmp_path, order):
    written = one_step(lastbit, plain[0], tmp_path, "--order", f"op=sum.dim_IntList={order}", "--select", "op=sum.dim_IntList")
    seen = 0
    for _, (x, dims, *_), got in each(plain[1], written, "aten::sum.dim_IntList", limit=60):
        dims = [d % x.ndim for d in dims]
        if x.dtype != torch.float32 or len(dims) != 1 or x.shape[dims[0]] < 6:
            continue
        terms = np.moveaxis(x.numpy(), dims[0], -1)
        expected = ORDERS[order](terms) + np.float32(0)  # sums start from +0
        assert np.array_equal(bits(got).ravel(), expected.astype(np.float32).view(np.uint32).ravel()), (order, x.shape, dims)
        seen += 1
    assert seen


def test_sums_in_torchs_own_order_are_the_recorded_ones(lastbit, plain, tmp_path):
    written = one_step(lastbit, plain[0], tmp_path, "--order", "op=sum.dim_IntList=cascade", "--select", "op=sum.dim_IntList")
    same = [
        torch.equal(got, plain[1].tensor(plain[1].results(plain[1].ops[index])[0]))
        for index, _, got in each(plain[1], written, "aten::sum.dim_IntList", limit=60)
    ]
    assert sum(same) > 0.8 * len(same)


def chain(a, b, size):
    """f32 fma chains of `size` terms, added in order. Products of f32 are exact in f64, and one more rounding there moves a
    result once in 2^29."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    a, b = a.numpy().astype(np.float64), b.numpy().astype(np.float64)
    for start in range(0, a.shape[1], size):
        part = np.zeros_like(total)
        for k in range(start, min(start + size, a.shape[1])):
            part = (part.astype(np.float64) + a[:, k : k + 1] * b[k : k + 1]).astype(np.float32)
        total = part if size >= a.shape[1] else total + part
    return total


def rounded_products(order):
    return lambda a, b: ORDERS[order]((a.numpy()[:, None, :] * b.numpy().T[None, :, :]).astype(np.float32))


PRODUCTS = {
    "sequential": lambda a, b: chain(a, b, a.shape[1]),
    "blocked:6": lambda a, b: chain(a, b, 6),
    "splitk:4": lambda a, b: chain(a, b, -(-a.shape[1] // 4)),
    "pairwise": rounded_products("pairwise"),
    "lanes:4": rounded_products("lanes:4"),
    "butterfly:32x4": rounded_products("butterfly:32x4"),
}


@pytest.mark.parametrize("order", PRODUCTS)
def test_products_in_a_stated_order(lastbit, plain, tmp_path, order):
    written = one_step(lastbit, plain[0], tmp_path, "--order", f"op=aten::mm={order}", "--select", "op=aten::mm&phase=forward,backward")
    for _, (a, b), got in each(plain[1], written, "aten::mm", limit=8):
        expected = PRODUCTS[order](a, b)
        assert np.array_equal(bits(got), expected.view(np.uint32)), (order, a.shape, b.shape)


def test_sums_can_be_rounded_at_every_addition(lastbit, plain, tmp_path):
    """mm accumulated in bf16, one fma after the other."""
    written = one_step(lastbit, plain[0], tmp_path, "--accumulate", "op=aten::mm=bf16", "--select", "op=aten::mm&phase=forward")
    for _, (a, b), got in each(plain[1], written, "aten::mm", limit=6):
        total = torch.zeros(got.shape)
        for k in range(a.shape[1]):
            exact = total.double() + a[:, k : k + 1].double() * b[k : k + 1].double()
            total = exact.float().bfloat16().float()
        assert torch.equal(total, got)


def test_openblas_is_another_kernel_of_the_same_product(lastbit, plain, tmp_path):
    answer, written = replayed(lastbit, plain[0], tmp_path, "--steps", "0", "--kernel", "openblas", "--select", "op=aten::mm")
    assert answer["swaps"][0]["touched"] > 100
    for _, (a, b), got in each(plain[1], written, "aten::mm", limit=40):
        if got.dtype == torch.float32:
            terms = a.double().abs() @ b.double().abs()
            assert bool(((got.double() - a.double() @ b.double()).abs() <= (a.shape[1] + 1) * 2.0**-24 * terms).all())


# ---- ranks --------------------------------------------------------------------------------------------------------------


def over_ranks(name, x):
    """f32 contributions of n ranks, reduced as collective_sum.h states it."""
    n, count = len(x), x[0].size
    if name == "rank":
        return sum(x[1:], x[0])
    if name == "doubling":
        return (x[0] + x[1]) + (x[2] + x[3])
    if name == "wide":
        return sum(x[1:], x[0].astype(np.float64)).astype(np.float32)
    result = np.empty(count, np.float32)
    if name == "mpi_ring":  # the first count mod n blocks are one larger
        sizes, at = [count // n + (b < count % n) for b in range(n)], 0
        for b, size in enumerate(sizes):
            part = slice(at, at + size)
            total = x[b][part]
            for hop in range(1, n):
                total = total + x[(b + hop) % n][part]
            result[part], at = total, at + size
        return result
    if name == "ring:1:100":  # NCCL: chunk c of each loop starts after rank c and ends there; a last loop has smaller chunks
        at = 0
        while at < count:
            chunk = min(100, math.ceil(math.ceil((count - at) / n) / 4) * 4)
            for c in range(n):
                part = slice(at + c * chunk, min(at + (c + 1) * chunk, count))
                total = x[(c + 1) % n][part]
                for hop in range(2, n + 1):
                    total = total + x[(c + hop) % n][part]
                result[part] = total
            at += n * chunk
        return result
    if name == "tree":  # NCCL's two trees over four ranks: 0 <- 2 <- (1, 3) for the first half, 3 <- 1 <- (2, 0) for the second
        half = -(-count // 2)
        result[:half] = (x[0] + ((x[2] + x[1]) + x[3]))[:half]
        result[half:] = (x[3] + ((x[1] + x[2]) + x[0]))[half:]
        return result
    raise KeyError(name)


@pytest.fixture(scope="module")
def four(captures):
    capture = captures(4, program="tests/programs/ranks/collectives.py")
    return capture, R.Recorded(capture)


@pytest.mark.parametrize("order", ["ring:1:100", "tree", "rank", "doubling", "wide", "mpi_ring"])
def test_all_reduce_in_a_stated_order(lastbit, four, tmp_path, order):
    capture, recording = four
    _, written = replayed(lastbit, capture, tmp_path, "--order", f"op=allreduce_={order}", "--select", "op=allreduce_")
    seen = 0
    for step, first in recording.programs[0].items():
        for row in first.collectives:
            if first.name(first.ops[row.op]) != "c10d::allreduce_" or first.text(row.reduce) != "sum" or row.ranks != 4:
                continue
            inputs, outputs = [], []
            for rank in range(4):
                program = recording.programs[rank][step]
                (op,) = [c.op for c in program.collectives if c.sequence == row.sequence and program.text(c.group) == first.text(row.group)]
                inputs.append(program.tensor(program.inputs(program.ops[op])[0]))
                outputs += [t for (s, r, o, i), t in written.tensors.items() if (s, r, o) == (step, rank, op)]
            if inputs[0].dtype != torch.float32:
                continue
            expected = over_ranks(order, [x.numpy().ravel() for x in inputs])
            assert len(outputs) >= 4
            for got in outputs:
                assert np.array_equal(bits(got).ravel(), expected.view(np.uint32)), (order, step, row.op)
            seen += 1
    assert seen


@pytest.mark.parametrize("swap", [[], ["--order", "op=allreduce_=tree"], ["--order", "op=allreduce_=rank"]], ids=" ".join)
def test_a_chain_over_ranks_and_steps_stays_with_the_run(lastbit, captures, tmp_path, swap):
    """Three ranks under DDP: the recorded parameters are PyTorch's own; ranks agree to the last bit whatever the order."""
    capture = captures("--pattern", "AD", "--steps", "3", "--muon-dtype", "float32", "--spawn", "3")
    recording = R.Recorded(capture)
    answer, written = replayed(lastbit, capture, tmp_path, *CHAINED, "--select", "phase=optimizer", *swap)
    assert answer["verdict"] in (("swapped",) if swap else ("identical", "rounding"))
    last, seen = {}, 0
    for (step, rank, index, i), tensor in written.tensors.items():
        program = recording.programs[rank][step]
        op = program.ops[index]
        v = (program.results(op) + program.written(op))[i]
        if program.values[v].flags & R.PARAMETER and program.has(v):
            assert distance(tensor, program.tensor(v)) < 2e-5, (step, rank, program.name(op))
            last[rank, program.text(program.values[v].name)] = tensor
            seen += step == 2
    assert seen > 10
    for (rank, name), tensor in last.items():
        assert torch.equal(tensor, last[0, name]), (rank, name)


REBASED = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(4):
    x = torch.randn(32, 8)
    loss = (model(x) - x[:, :4]).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        model[2].weight.detach().numpy()[:] *= -3  # nobody sees this write
    print(step, loss.item())
"""


def test_a_chain_goes_on_from_a_write_that_nobody_saw(lastbit, tmp_path):
    program = tmp_path / "rebased.py"
    program.write_text(REBASED)
    capture = tmp_path / "rebased.lb"
    lastbit.record(capture, program, expect=0)
    recording = R.Recorded(capture).programs[0]
    kinds = [R.KINDS[v.source] for v in recording[2].values]
    assert "unseen" in kinds and "carried" in kinds
    answer, written = replayed(lastbit, capture, tmp_path, *CHAINED)
    assert answer["verdict"] in ("identical", "rounding")
    seen = 0
    for step, program in recording.items():
        for index, op in enumerate(program.ops):
            for i, v in enumerate(program.results(op) + program.written(op)):
                if program.values[v].flags & R.PARAMETER and program.has(v) and (step, 0, index, i) in written.tensors:
                    assert distance(written.tensors[step, 0, index, i], program.tensor(v)) < 1e-5
                    seen += step == 3
    assert seen
    # what came before the write does not matter to the weight after it: another world until step 1, the same weight in step 2
    other, changed = replayed(lastbit, capture, tmp_path, *CHAINED, "--precision", "step=0,1=bf16")
    forward = [(place, t) for place, t in changed.tensors.items() if place[0] == 2 and "addmm in 2," in changed.text[place[:3]]]
    assert other["verdict"] == "swapped" and forward
    first = recording[2]
    (_, _, index, _), got = forward[0]
    _, hidden, weight = first.inputs(first.ops[index])
    bias = changed.named[1, "2.bias"]
    (hidden,) = [
        changed.tensors[2, 0, at, i]
        for at, op in enumerate(first.ops)
        for i, v in enumerate(first.results(op))
        if v == hidden and (2, 0, at, i) in changed.tensors
    ]
    assert bias.dtype == torch.bfloat16
    assert distance(got, bias.float() + hidden @ first.tensor(weight)) < 1e-6


def test_a_swap_that_concerns_nothing_cannot_be_tested(lastbit):
    sample = os.path.join(swapped.ROOT, "samples", "scan-overflow.lbz")
    said = lastbit.run("replay", sample, "--mode", "chained", "--precision", "layer=nosuch=f64", expect=125).stdout
    assert "concerned nothing" in said
    assert 'no "lyer="' in lastbit.run("replay", sample, "--precision", "lyer=mlp=bf16", expect=129).stderr
