"""Looks for the inputs on which torch comes closest to the bound of a row of the op table, or goes beyond it.

    search_bounds.py [ROW …] [--seconds N] [--seed N] [--isa default,avx2,avx512] [--table FILE] [--full]

A bound that is too tight makes `replay` call a healthy op `diverged`; samples do not find it, since torch has several code paths per op, each
with its own worst places. So for every row the search maximises

    |torch - exact| / bound        over values × layouts × sizes × dtypes × scalar arguments

by drawing from what is hard (every exponent, neighbourhoods of zeros, kinks, thresholds and of the points where functions cancel, subnormals, the
largest numbers, rows with a large mean, terms that cancel) and then by hill climbing from the worst it has seen: bits of values are changed, the
layout and the shape stay. Elementwise rows are searched thousands of elements at a time, since elements do not know their neighbours; of the others one
call is one individual. What computes is the code that `replay` uses (replay/judgement/bound.c), so a ratio above 1 is a verdict that would be wrong.
EXACT rows have the ratio infinity where bits differ (signs of zeros aside) and 0 elsewhere.

torch chooses its code by the processor, oneDNN and MKL as well: `--isa` runs the search in a child process for each that this processor can be
asked for. Exit status 1 where a ratio is above 1. test_bounds.py runs a short search in every test run.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import subprocess
import sys
import time

import op_harness as H
import op_references
import op_samples
import torch
from op_cases import Case, callable_op, mapped, same_bits, torch_result

ROWS = H.rows()
WIDTHS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def searched_rows():
    """Rows that torch itself computes here, and that have a kernel. What the backward of oneDNN's LSTM reads, its workspace must agree with."""
    return sorted(
        n
        for n, r in ROWS.items()
        if r.contents.kernel
        and n.startswith("aten::")
        and H.torch_op(n) is not None
        and n != "aten::mkldnn_rnn_layer_backward"
        and not r.contents.flags & H.RANDOM
        and r.contents.text("samples") not in ("fused", "custom")
        and not isinstance(callable_op(n), op_references.Reference)
    )


# What torch takes for granted without looking: sizes and positions that fit each other; keys and values whose numbers of one head lie side by
# side; parameters, gradients and states of one layout. Other calls have no meaning there, and never come from its own callers.
SIZES_FIT = (
    "_embedding_bag",
    "_grouped_mm",
    "mkldnn_rnn",
    "_fused_",
    "_batch_norm_",
    "batch_norm_backward",
    "native_batch_norm_backward",
    "_adaptive_avg_pool",
    "adaptive_max_pool",
    "max_pool",
    "avg_pool",
    "nll_loss2d",
    "_index_put_impl",
    "embedding_renorm_",
)
VECTORS_DENSE = ("mkldnn_convolution", "native_group_norm")  # biases and weights of channels
HEADS_DENSE = ("_scaled_dot_product", "_flash", "_efficient")
# And results of a forward op, or of a reduction of the other arguments, that a backward op is given: the numbers of samples stay.
NUMBERS_FIT = (
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "batch_norm_backward",
    "native_batch_norm_backward",
    "native_layer_norm_backward",
    "native_group_norm_backward",
    "_fused_rms_norm_backward",
)
ONE_LAYOUT = (
    "_weight_norm_interface",
    "_fused_ad",
    "_fused_sgd",
    "native_layer_norm_backward",
    "native_group_norm_backward",
    "batch_norm_backward",
    "native_batch_norm_backward",
    "_fused_rms_norm_backward",
    "mkldnn_rnn",
)


def listed(name, beginnings):
    return name[len("aten::") :].startswith(beginnings)


# ---- values ----------------------------------------------------------------------------------------------------------

LANDMARKS = [
    0.0,
    0.5,
    1.0,
    2.0,
    3.0,
    6.0,
    20.0,
    0.25,
    0.1,
    math.pi / 2,
    math.pi,
    1.5 * math.pi,
    2 * math.pi,
    11 * math.pi,
    math.e,
    math.log(2),
    1 / math.sqrt(2),
    0.06,
    0.7,
    2.9,
    4.0,
    5.0,
    9.0,
    12.0,
    87.3,
    88.7,
    103.9,
    127.0,
    128.0,
    149.0,
    709.0,
    745.0,
    1e4,
    65504.0,
    1e10,
]


def quiet(x):
    """Without signalling NaN: what a minimum makes of them is the C library's affair."""
    return torch.where(x == x, x, torch.full_like(x, math.nan))


def moved(x, steps):
    """Values `steps` representable numbers farther from zero."""
    bits = x.contiguous().view(WIDTHS[x.dtype])
    return quiet((bits + steps.to(bits.dtype)).view(x.dtype))


class Values:
    """Draws of numbers that are hard for some op."""

    def __init__(self, seed, modest=False):
        self.random = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.modest = modest

    def tamed(self, x):
        """Without infinities, NaN and numbers whose squares overflow or underflow, where only modest ones are asked for."""
        if not self.modest:
            return x
        a = x.double().abs()
        return torch.where((a < 1e9) & (a > 1e-9) | (x == 0), x, torch.full_like(x, 0.7))

    def uniform(self, *shape):
        return torch.rand(*shape, generator=self.torch, dtype=torch.float64)

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.torch, dtype=torch.float64)

    def signs(self, n):
        return torch.randint(0, 2, (n,), generator=self.torch) * 2 - 1

    def steps(self, n, most):
        """Distances in representable numbers: small ones as often as large ones."""
        return (torch.exp2(self.uniform(n) * most).long() - 1) * self.signs(n)

    def any_bits(self, n, dtype):
        width = WIDTHS[dtype]
        info = torch.iinfo(width)
        return quiet(torch.randint(info.min, info.max, (n,), generator=self.torch, dtype=torch.int64).to(width).view(dtype))

    def exponents(self, n, dtype, low=-20, high=10):
        return (torch.exp2(low + (high - low) * self.uniform(n)) * self.signs(n)).to(dtype)

    def near_landmarks(self, n, dtype, more=()):
        known = torch.tensor(LANDMARKS + [float(m) for m in more if isinstance(m, (int, float)) and math.isfinite(m)], dtype=torch.float64)
        picked = known[torch.randint(0, len(known), (n,), generator=self.torch)].to(dtype)
        return moved(picked, self.steps(n, torch.finfo(dtype).bits // 2 - 1).abs()) * self.signs(n).to(dtype)

    def specials(self, n, dtype):
        info = torch.finfo(dtype)
        known = torch.tensor(
            [
                0.0,
                -0.0,
                math.inf,
                -math.inf,
                math.nan,
                info.tiny,
                -info.tiny,
                info.tiny * info.eps,
                -info.tiny * info.eps,
                info.max,
                -info.max,
                info.max / 2,
                info.tiny / 2,
                1.0,
                -1.0,
            ],
            dtype=torch.float64,
        ).to(dtype)
        return known[torch.randint(0, len(known), (n,), generator=self.torch)]

    def pool(self, n, dtype, more=()):
        """n numbers of all those kinds."""
        part = n // 8
        kinds = [
            self.any_bits(part, dtype),
            self.exponents(part, dtype),
            self.exponents(part, dtype, -3, 4),
            self.near_landmarks(2 * part, dtype, more),
            self.normal(part).to(dtype),
            (12 * self.uniform(part) - 6).to(dtype),
        ]
        kinds.append(self.specials(n - sum(len(k) for k in kinds), dtype))
        return self.tamed(torch.cat(kinds)[torch.randperm(n, generator=self.torch)])

    def mutated(self, x):
        """Neighbours of x: a few units, a change of exponent or sign, another number altogether."""
        n = x.numel()
        kind = torch.randint(0, 16, (n,), generator=self.torch)
        y = moved(x, self.steps(n, torch.finfo(x.dtype).bits - 10))
        y = torch.where(kind == 0, x * torch.exp2(torch.randint(-2, 3, (n,), generator=self.torch)).to(x.dtype), y)
        y = torch.where(kind == 1, -x, y)
        y = torch.where(kind == 2, self.pool(n, x.dtype), y)
        return self.tamed(torch.where((kind > 2) & (kind < 6), x, y))

    def filled(self, shape, dtype):
        """A tensor of which sums, means and norms are hard, or one of ordinary numbers."""
        n = math.prod(shape)
        x = self.normal(n)
        kind = self.random.randrange(12)
        if kind == 1:
            x = x.abs()
        elif kind == 2:
            x = x * 1e-3 + self.random.choice([1.0, 30.0, 1e3, 1e4])
        elif kind == 3:
            x = x * torch.exp2(40 * self.uniform(n) - 20)
        elif kind == 4:
            x = torch.ones(n, dtype=torch.float64) * self.random.choice([0.1, 1 / 3, 1.0, 7.7])
        elif kind == 5:
            x = x.abs() * (1 - 2 * (torch.arange(n) % 2)) + 1e-4 * self.normal(n)
        elif kind == 6 and n:
            x[self.random.randrange(n)] = self.random.choice([1e4, -1e4, 3e4])
        elif kind == 7:
            x = x * self.random.choice([1e-3, 1e-6, 30.0, 1e3, 1e-20, 1e-38, 1e18, 1e36])
        elif kind == 8 and n:
            return self.pool(n, dtype)[:n].view(shape) if n >= 16 else self.near_landmarks(n, dtype).view(shape)
        elif kind == 9:
            x = torch.randint(-3, 4, (n,), generator=self.torch).double()
        return self.tamed(x.view(shape).to(dtype))


# ---- layouts ---------------------------------------------------------------------------------------------------------


def in_memory(x, width, offset, step):
    """The last dimension of x in rows of `width` elements, every `step`-th of them, the whole behind `offset` elements."""
    storage = torch.zeros(offset + math.prod(x.shape[:-1]) * width, dtype=x.dtype)
    rows = storage[offset:].view(*x.shape[:-1], width)
    view = rows[..., : step * x.shape[-1] : step]
    view.copy_(x)
    return view


def permuted(x, order):
    """The same elements, dense, dimension order[0] the slowest in memory."""
    inverse = [order.index(k) for k in range(x.dim())]
    return x.permute(order).contiguous().permute(inverse)


def relaid(x, values, heads=False):
    """The same elements under a layout drawn from those that send torch another way. `heads`: the last dimension stays dense."""
    if x.dim() == 0 or x.numel() == 0:
        return x
    kind = values.random.choice(["dense", "permuted", "channels", "strided", "unaligned", "rows", "ones"])
    if heads and kind in ("channels", "strided", "ones"):
        kind = "permuted"
    if kind == "permuted" and heads:
        return permuted(x, [*values.random.sample(range(x.dim() - 1), x.dim() - 1), x.dim() - 1])
    if kind == "permuted":
        return permuted(x, values.random.sample(range(x.dim()), x.dim()))
    if kind == "channels" and x.dim() > 2:
        return permuted(x, [0, *range(2, x.dim()), 1])
    if kind == "strided":
        return in_memory(x, 2 * x.shape[-1], 0, 2)
    if kind == "unaligned":
        return in_memory(x, x.shape[-1], 1, 1)
    if kind == "rows":
        return in_memory(x, x.shape[-1] + 3, 0, 1)
    if kind == "ones":  # strides of dimensions of size 1 are anything
        return x.as_strided(x.shape, [7 if s == 1 else st for s, st in zip(x.shape, x.contiguous().stride())]) if x.is_contiguous() else x
    return x.contiguous()


# Layouts of n elements in a row, for elementwise ops. n is a multiple of 112.
FLAT = {
    "dense": lambda x: x,
    "unaligned": lambda x: in_memory(x, x.numel(), 1, 1),
    "strided": lambda x: in_memory(x, 2 * x.numel(), 0, 2),
    "transposed": lambda x: permuted(x.view(-1, 16), [1, 0]),
    "rows of 7": lambda x: in_memory(x.view(-1, 7), 9, 0, 1),
    "channels last": lambda x: permuted(x.view(-1, 4, 2, 2), [0, 2, 3, 1]),
    "column": lambda x: x.view(-1, 1),
}


# ---- one call --------------------------------------------------------------------------------------------------------


def bits_agree(got, recorded):
    """0 where they do, infinity elsewhere; signs of zeros do not count."""
    parts = [torch.view_as_real(t) if t.dtype.is_complex else t for t in (got, recorded)]
    return torch.where(same_bits(*parts) | ((parts[0] == 0) & (parts[1] == 0)), 0.0, math.inf).double()


def ratios_of(case):
    """Per result a tensor of ratios; infinity where bits that must agree differ. Of a factorisation one ratio, of its residuals: `replay` judges
    those by nothing else, since near a singular matrix no bound of single elements holds."""
    values, recorded = case.values(), case.expected
    if case.flags & H.FACTORS:
        return [torch.tensor([H.residual(case.row.contents.text("name"), values, recorded)], dtype=torch.float64)]
    if H.is_exact(case.row, values, recorded):
        got = case.ours(values, case.blanks())
        return [None if g is None else bits_agree(g, e) for g, e in zip(got, recorded)]
    found = H.ratios(case.row, values, recorded)
    for k, (f, e) in enumerate(zip(found, recorded)):
        if f is not None and not e.dtype.is_floating_point and not e.dtype.is_complex:
            got = case.ours(values, case.blanks())[k]
            found[k] = None if got is None else bits_agree(got, e)
    return found


class Worst:
    """The worst ratio of a row, how it came about, and the same per kind of call; and when to stop looking."""

    def __init__(self, seconds=math.inf, calls=math.inf):
        self.ratio, self.where, self.calls, self.kinds = 0.0, "", 0, {}
        self.deadline, self.most = time.monotonic() + seconds, calls

    def goes_on(self):
        return self.calls < self.most and time.monotonic() < self.deadline

    def take(self, ratio, kind, describe):
        if ratio > max(self.kinds.get(kind, (0.0, ""))[0], 0):
            self.kinds[kind] = ratio, describe()
            if ratio > self.ratio:
                self.ratio, self.where = self.kinds[kind]

    def told(self):
        beyond = sorted((found for found in self.kinds.values() if found[0] > 1), key=lambda f: -f[0])
        return self.ratio, self.where, self.calls, beyond[1:6]


# ---- elementwise rows ------------------------------------------------------------------------------------------------


class Flat:
    """An elementwise row with its scalar arguments fixed, called on n elements at once."""

    def __init__(self, row, op, args, kwargs, domains):
        self.row, self.op, self.args, self.kwargs, self.domains = row, op, args, kwargs, domains
        shaped = [k for k, a in enumerate(args) if isinstance(a, torch.Tensor) and a.dtype in WIDTHS]
        widest = max((args[k].numel() for k in shaped), default=0)
        self.genes = [k for k in shaped if args[k].numel() == widest or args[k].numel() > 1]
        self.single = [k for k in shaped if k not in self.genes]
        self.numbers = [a for a in list(args) + list(kwargs.values()) if isinstance(a, (int, float)) and not isinstance(a, bool)]

    def pools(self, values, n):
        drawn = {k: self.domains[k](values.pool(n, self.args[k].dtype, self.numbers)) for k in self.genes}
        first = self.genes[0]
        for k in self.genes[1:]:  # pairs that are nearly equal, or nearly cancel
            near = moved(drawn[first], values.steps(n, 12)).to(self.args[k].dtype) * values.signs(n).to(self.args[k].dtype)
            drawn[k] = torch.where(values.uniform(n) < 0.25, self.domains[k](near), drawn[k])
        return drawn

    def case(self, drawn, layout):
        args = list(self.args)
        for k, x in drawn.items():
            args[k] = (FLAT[layout] if layout != "mixed" else FLAT["dense" if k == self.genes[0] else "transposed"])(x)
        if layout == "mixed":
            args[self.genes[0]] = args[self.genes[0]].view(-1, 16)
        return Case(self.row, self.op, args, self.kwargs)

    def judged(self, drawn, layout, worst):
        """Each element's ratio. None: torch refuses."""
        case = self.case(drawn, layout)
        if case.expected is None:
            return None
        worst.calls += 1
        n = next(iter(drawn.values())).numel()
        ratio = torch.zeros(n, dtype=torch.float64)
        for found in ratios_of(case):
            if found is not None and found.numel() == n:
                ratio = torch.maximum(ratio, torch.nan_to_num(found.reshape(n), nan=0.0, posinf=math.inf))
        k = int(ratio.argmax())
        worst.take(float(ratio[k]), (layout, *(str(x.dtype) for x in drawn.values())), lambda: f"{layout}: {self.told(drawn, k)}")
        return ratio

    def told(self, drawn, at):
        shown = [f"{str(x.dtype)[6:]} {float(x[at])!r}" for x in drawn.values()]
        return ", ".join(shown + [repr(a) for a in self.args if not isinstance(a, torch.Tensor)] + [f"{k}={v!r}" for k, v in self.kwargs.items()])


def climb_flat(flat, layout, values, worst, n, generations):
    drawn = flat.pools(values, n)
    ratio = flat.judged(drawn, layout, worst)
    for _ in range(generations if ratio is not None else 0):
        best = ratio.topk(min(64, n)).indices
        parents = best.repeat(-(-n // len(best)))[:n]
        children = {k: flat.domains[k](values.mutated(x[parents])) for k, x in drawn.items()}
        for x, k in ((children[k], k) for k in children):
            x[: len(best)] = drawn[k][best]
        drawn, ratio = children, flat.judged(children, layout, worst)
        if ratio is None:
            return


def search_elementwise(row, op, samples, domains, values, worst, n):
    flats, seen = [], set()
    for args, kwargs in samples:
        flat = Flat(row, op, args, kwargs, domains)
        key = (
            tuple(str(args[k].dtype) for k in flat.genes),
            tuple(flat.single),
            tuple(map(repr, flat.numbers)),
            repr(kwargs) if "Tensor" not in repr(kwargs) else "",
        )
        if flat.genes and key not in seen:
            seen.add(key)
            flats.append(flat)
    values.random.shuffle(flats)
    while flats and worst.goes_on():
        for flat in flats:
            layouts = list(FLAT) + (["mixed"] if len(flat.genes) > 1 else [])
            layout = values.random.choice(layouts)
            climb_flat(flat, layout, values, worst, n, 6)
            if not worst.goes_on():
                break


# ---- all other rows --------------------------------------------------------------------------------------------------

SIZES = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 127, 129, 257, 1025]


def regrown(args, kwargs, values, domains):
    """The same call with other sizes: each size is replaced wherever it stands, in shapes and in lists of sizes. torch refuses what does not fit."""
    new = {}

    def size(s):
        if s not in new:
            new[s] = s if s <= 1 or values.random.random() < 0.5 else values.random.choice(SIZES)
        return new[s]

    def grown(k, v):
        if isinstance(v, torch.Tensor):
            shape = [size(s) for s in v.shape]
            if math.prod(shape) > 300_000:
                raise OverflowError
            if v.dtype in WIDTHS:
                return domains.get(k, lambda t: t)(values.filled(shape, v.dtype))
            count = max(math.prod(shape), 1)
            return v.reshape(-1).repeat(-(-count // v.numel()))[: math.prod(shape)].view(shape) if v.numel() else v
        if isinstance(v, (list, tuple)) and v and all(isinstance(e, int) and not isinstance(e, bool) for e in v):
            return [size(e) if e > 1 else e for e in v]
        if isinstance(v, (list, tuple)):
            return [grown(k, e) for e in v]
        return v

    return [grown(k, v) for k, v in enumerate(args)], {k: grown(k, v) for k, v in kwargs.items()}


def tensors_in(value, path=()):
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from tensors_in(v, (*path, k))
    elif isinstance(value, (list, tuple)):
        for k, v in enumerate(value):
            yield from tensors_in(v, (*path, k))


class Individual:
    """One call of a row that is not elementwise."""

    def __init__(self, row, op, args, kwargs):
        self.case = Case(row, op, args, kwargs)
        self.ratio, self.kind = -1.0, frozenset(str(t.dtype)[6:] for _, t in tensors_in(list(args)))
        if self.case.expected is None:
            return
        try:
            self.ratio = max(
                [float(torch.nan_to_num(f, nan=0.0, posinf=math.inf).max()) for f in ratios_of(self.case) if f is not None and f.numel()], default=0.0
            )
        except H.Unsupported:
            pass

    def child(self, values, domains):
        """A few numbers of one of its tensors changed; the layout stays."""
        case = self.case
        args = mapped(list(case.args), lambda t: t)
        paths = [(p, t) for p, t in tensors_in(args) if t.dtype in WIDTHS and t.numel()]
        if not paths:
            return None
        path, t = values.random.choice(paths)
        flat = t.reshape(-1).clone()
        chosen = values.uniform(flat.numel()) < values.random.choice([0.02, 0.2, 1.0])
        changed = domains.get(path[0], lambda x: x)(values.mutated(flat))
        changed = torch.where(chosen, changed, flat).view(t.shape)
        twin = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) if 0 not in t.stride() else changed
        twin.copy_(changed)

        def replaced(value, at=()):
            if at == path:
                return twin
            if isinstance(value, (list, tuple)):
                return type(value)(replaced(v, (*at, k)) for k, v in enumerate(value))
            return value

        return Individual(case.row, case.op, replaced(args), case.kwargs)


def search_calls(name, row, op, samples, domains, values, worst, grow):
    best = []
    tries = 0
    while worst.goes_on() and tries < 50 + 2 * worst.calls:  # torch may refuse all that is tried
        tries += 1
        args, kwargs = values.random.choice(samples)
        args, kwargs = list(args), dict(kwargs)
        fit, vectors = listed(name, NUMBERS_FIT), listed(name, VECTORS_DENSE)
        if grow and not fit and not listed(name, SIZES_FIT) and values.random.random() < 0.6:
            try:
                args, kwargs = regrown(args, kwargs, values, domains)
            except OverflowError:
                continue
            if listed(name, ("upsample", "_upsample")):  # scales follow from the sizes
                args = [None if isinstance(a, float) or (isinstance(a, list) and a and isinstance(a[0], float)) else a for a in args]
        if not listed(name, ONE_LAYOUT) and values.random.random() < 0.7:
            args = mapped(args, lambda t: relaid(t, values, listed(name, HEADS_DENSE)) if t.dtype in WIDTHS and not (t.dim() == 1 and vectors) else t)
        one = Individual(row, op, args, kwargs)
        worst.calls += 1
        worst.take(one.ratio, one.kind, lambda: str(one.case))
        for _ in range(3 if one.ratio > 0 and not fit else 0):
            child = one.child(values, domains)
            if child is None:
                break
            worst.calls += 1
            worst.take(child.ratio, child.kind, lambda: str(child.case))
            one = child if child.ratio > one.ratio else one
        best = sorted(best + [one], key=lambda i: -i.ratio)[:6]
        for k, parent in enumerate(best):
            child = parent.child(values, domains) if 0 < parent.ratio < math.inf and not fit else None
            if child is None or not worst.goes_on():
                continue
            worst.calls += 1
            worst.take(child.ratio, child.kind, lambda: str(child.case))
            if child.ratio > parent.ratio:
                best[k] = child


# ---- rows ------------------------------------------------------------------------------------------------------------


def domains_of(samples):
    """Per argument what its numbers are made to be: probabilities where all samples are, of one sign where all samples are."""
    found = {}
    for args, _ in samples:
        for path, t in tensors_in(list(args)):
            if t.dtype in WIDTHS and t.numel():
                low, high = found.get(path[0], (math.inf, -math.inf))
                known = torch.nan_to_num(t.double(), nan=0.0)
                found[path[0]] = (min(low, float(known.min())), max(high, float(known.max())))

    def domain(low, high):
        if low >= 0 and high <= 1:
            return lambda x: torch.nan_to_num(x.abs(), nan=0.5, posinf=1.0).clamp(0, 1)
        return torch.abs if low >= 0 else (lambda x: -x.abs()) if high <= 0 else lambda x: x

    return {k: domain(*v) for k, v in found.items()}


def search(name, seconds, seed, n=4480, grow=True, modest=False, calls=math.inf):
    """The worst of one row, within that time and that many calls."""
    H.set_limits()
    row, op, values, worst = ROWS[name], callable_op(name), Values(seed, modest), Worst(seconds, calls)
    text = row.contents.text("samples")
    samples = [s for k in range(3) for s in op_samples.samples(text, seed + 17 * k) if torch_result(op, *s) is not None]
    domains = domains_of(samples)
    try:
        if row.contents.flags & H.ELEMENTWISE and samples and "complex" not in text:
            search_elementwise(row, op, samples, domains, values, worst, n)
        elif samples:
            search_calls(name, row, op, samples, domains, values, worst, grow)
    except H.Unsupported:
        pass
    return worst


def apart(name, seconds, seed, modest=False, calls=math.inf):
    """The same in a process of its own: some of torch's own ops read beyond tensors whose sizes do not fit; then sizes stay as they are."""
    for grow in (True, False):
        receive, send = multiprocessing.Pipe(False)
        child = multiprocessing.get_context("fork").Process(
            target=lambda: send.send(search(name, seconds, seed, grow=grow, modest=modest, calls=calls).told())
        )
        child.start()
        send.close()
        try:
            return receive.recv()
        except EOFError:
            child.join()
    return 0.0, f"crashed with status {child.exitcode}", 0, []


def in_children(arguments, isas):
    """The same search under each instruction set. oneDNN and MKL have switches of their own."""
    onednn = {"default": "SSE41", "avx2": "AVX2", "avx512": "ALL"}
    mkl = {"default": "SSE4_2", "avx2": "AVX2", "avx512": "AVX512"}
    status = 0
    for isa in isas:
        print(f"== {isa}", flush=True)
        environment = dict(os.environ, ATEN_CPU_CAPABILITY=isa, ONEDNN_MAX_CPU_ISA=onednn[isa], MKL_ENABLE_INSTRUCTIONS=mkl[isa])
        status |= subprocess.run([sys.executable, __file__, *arguments], env=environment).returncode
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", nargs="*", help="names without aten::, or the beginning of names with a * behind; default: all")
    parser.add_argument("--seconds", type=float, default=2.0, help="per row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--modest", action="store_true", help="no infinities, NaN, and numbers whose squares overflow or underflow")
    parser.add_argument("--isa", help="comma separated: default, avx2, avx512")
    parser.add_argument("--table", help="write {row: [ratio, where]} as JSON there")
    parser.add_argument("--full", action="store_true", help="20 seconds per row under every instruction set")
    options = parser.parse_args()
    if options.isa or options.full:
        kept = [
            *options.rows,
            *(["--modest"] if options.modest else []),
            "--seed",
            str(options.seed),
            "--seconds",
            str(20.0 if options.full else options.seconds),
        ]
        return in_children(kept, (options.isa or "default,avx2,avx512").split(","))
    torch.set_num_threads(1)
    wanted = [r.rstrip("*") for r in options.rows]
    table = {}
    for name in searched_rows():
        short = name[len("aten::") :]
        if options.rows and not any(short == w or (r.endswith("*") and short.startswith(w)) for r, w in zip(options.rows, wanted)):
            continue
        ratio, where, calls, others = apart(name, options.seconds, options.seed, options.modest)
        table[short] = [ratio, where]
        print(f"{ratio:10.3f}{'  !' if ratio > 1 else '   '} {short:44} {calls:6} calls  {where[:230]}", flush=True)
        for other in others:
            print(f"{other[0]:10.3f}      {other[1][:230]}")
    if options.table:
        with open(options.table, "w") as file:
            json.dump(table, file, indent=1)
    return int(any(ratio > 1 for ratio, _ in table.values()))


if __name__ == "__main__":
    sys.exit(main())
