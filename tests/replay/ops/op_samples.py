"""Inputs for every row of the op table, from the row's `samples` text: "GENERATOR option option=value …".

A generator is a function (draw, options) that yields (args, kwargs) as one would call torch.ops.aten.OP. It is registered by its name; files
op_samples_*.py beside this one register those of their families and are imported by themselves. A sample that torch itself refuses is
skipped by the test, so a generator may be generous.

Layouts, broadcasting and special values (0, -0, inf, NaN, subnormals, the largest numbers) come from `Draw.tensor`.
"""

import importlib
import pathlib
import random
import sys

import torch

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool]
GENERATORS = {}


def generator(function):
    GENERATORS[function.__name__] = function
    return function


class Options(dict):
    """ "binary alpha scalars=2" -> name "binary", {"alpha": "", "scalars": "2"}."""

    def __init__(self, text):
        words = text.split()
        self.name = words[0]
        super().__init__(word.partition("=")[::2] for word in words[1:])

    def dtypes(self):
        found = [] if "integer" in self else list(FLOATS)
        if "float" not in self:
            found += INTEGERS
        return [d for d in found if not ("nobool" in self and d == torch.bool)]


class Draw:
    """Deterministic random tensors."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)

    def choice(self, sequence):
        return self.random.choice(list(sequence))

    def dense(self, shape, dtype, scale=None):
        if dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=self.torch).bool()
        if not dtype.is_floating_point:
            low = 0 if dtype == torch.uint8 else -20
            return torch.randint(low, 21, shape, generator=self.torch).to(dtype)
        x = torch.randn(shape, generator=self.torch, dtype=torch.float64)
        if scale is None:
            scale = self.choice([1.0, 1.0, 1.0, 3.0, 1e-3, 30.0])
        return (x * scale).to(dtype)

    def sprinkle(self, x, options):
        """Puts special values at random places."""
        if not x.dtype.is_floating_point or x.numel() == 0 or "tame" in options:
            return x
        info = torch.finfo(x.dtype)
        special = [
            0.0,
            -0.0,
            float("inf"),
            float("-inf"),
            float("nan"),
            info.tiny,
            -info.smallest_normal / 4,
            info.max,
            -info.max,
            1.0,
            -1.0,
            0.5,
            info.smallest_normal * info.eps,
        ]
        if "modest" in options:  # torch's vectorised fmod gives NaN for quotients above 2^53 or so
            special = [0.0, -0.0, float("nan"), 1.0, -1.0, 0.5]
        if "nozero" in options:
            special = [s for s in special if s != 0]
        if "nonan" in options:
            special = [s for s in special if s == s]
        flat = x.view(-1)
        for _ in range(max(1, x.numel() // 6)):
            flat[self.random.randrange(x.numel())] = self.choice(special)
        return x

    def layout(self, x):
        """The same elements under another layout."""
        kind = self.choice(["dense", "dense", "permuted", "sliced", "offset"])
        if kind == "permuted" and x.dim() > 1:
            order = list(range(x.dim()))
            self.random.shuffle(order)
            inverse = [order.index(k) for k in range(x.dim())]
            return x.permute(order).contiguous().permute(inverse)
        if kind == "sliced" and x.dim() > 0:
            wide = torch.zeros([*x.shape[:-1], 2 * x.shape[-1] + 1], dtype=x.dtype)
            wide[..., 1::2] = x
            return wide[..., 1::2]
        if kind == "offset":
            wide = torch.zeros(x.numel() + 3, dtype=x.dtype)
            wide[3:] = x.reshape(-1)
            return wide[3:].view(x.shape)
        return x

    def tensor(self, shape, dtype, options=(), scale=None):
        x = self.sprinkle(self.dense(shape, dtype, scale), options)
        if "nozero" in options and dtype.is_floating_point:
            x = torch.where(x == 0, torch.ones((), dtype=dtype), x)
        return self.layout(x)

    def shape(self):
        return self.choice([(), (1,), (7,), (5, 6), (2, 3, 4), (3, 1, 5), (0, 3), (65,), (2, 1, 3, 2)])

    def number(self, dtype, options=()):
        if not dtype.is_floating_point:
            return self.choice([1, 2, 3, -2] if dtype not in (torch.uint8, torch.bool) else [1, 2, 3])
        numbers = [0.1, -1.7, 2.0, 3, 1e-3, 0.5, -2, 1 / 3]
        return self.choice(numbers if "nonzero" in options else numbers + [0, 0.0])


# Shapes that broadcast with each other, and the dtypes of two operands.
PAIRS = [
    ((7,), (7,)),
    ((3, 5), (5,)),
    ((2, 3, 4), (3, 1)),
    ((), (4,)),
    ((4,), ()),
    ((0, 3), (3,)),
    ((2, 1, 5), (4, 1)),
    ((130,), (130,)),
    ((1,), (6,)),
    ((), ()),
]
MIXED = [
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.int64),
    (torch.bool, torch.int64),
    (torch.bfloat16, torch.int64),
    (torch.int32, torch.int64),
    (torch.float64, torch.float32),
]


def second(draw, shape, dtype, options, near):
    """The right operand: not zero for integer divisors, a legal distance for shifts, often equal to the left where `near` is given."""
    if "shift" in options:
        return torch.randint(0, 8, shape, generator=draw.torch).to(dtype)
    b = draw.tensor(shape, dtype, options)
    if "nonzero" in options and not dtype.is_floating_point:
        b = torch.where(b == 0, torch.ones((), dtype=dtype), b)
    if near is not None and near.shape == b.shape:
        b = torch.where(torch.rand(shape, generator=draw.torch) < 0.5, near.to(dtype), b)
    return b


def extras(draw, dtype, options):
    """kwargs of binary ops: alpha, rounding_mode."""
    kwargs = {}
    if "alpha" in options and draw.random.random() < 0.5:
        kwargs["alpha"] = draw.choice([2, 0.5, -0.3, 1e-3]) if dtype.is_floating_point else draw.choice([2, 3])
    if "rounding_mode" in options:
        kwargs["rounding_mode"] = draw.choice(["floor", "trunc"] if not dtype.is_floating_point else ["floor", "trunc", None])
    return kwargs


@generator
def binary(draw, options):
    dtypes = [(d, d) for d in options.dtypes()]
    mixed = [p for p in MIXED if p[0] in options.dtypes() and p[1] in options.dtypes()]
    for da, db in dtypes + mixed:
        for _ in range(5):
            sa, sb = draw.choice(PAIRS)
            a = draw.tensor(sa, da, options)
            b = second(draw, sb, db, options, a if "near" in options else None)
            yield (a, b), extras(draw, torch.promote_types(da, db), options)
    for dtype in options.dtypes():  # x + 0.5 arrives as add.Tensor(x, 0.5)
        if "shift" not in options:
            yield (draw.tensor(draw.shape(), dtype, options), draw.number(dtype, options)), extras(draw, dtype, options)


@generator
def powers_of_two(draw, options):
    for dtype in FLOATS:
        for whole in (torch.int8, torch.int32, torch.int64):
            for most in (3, 40):
                sa, sb = draw.choice(PAIRS)
                yield (draw.tensor(sa, dtype, options), torch.randint(-most, most, sb, generator=draw.torch).to(whole)), {}


@generator
def scalar(draw, options):
    for dtype in options.dtypes():
        for _ in range(5):
            number = draw.choice([1, 2, 3]) if "shift" in options else draw.number(dtype, options)
            a = draw.tensor(draw.shape(), dtype, options)
            if "near" in options and a.numel() and dtype.is_floating_point:
                number = draw.choice([number, float(a.reshape(-1)[0]), 0.1])
            if number != number:
                number = 0.5
            yield (a, number), extras(draw, dtype, options)
    if "integer" not in options and "nonzero" not in options:
        yield (torch.arange(-3, 4), 0.5), {}


@generator
def scalar_first(draw, options):
    for dtype in options.dtypes():
        for _ in range(5):
            b = second(draw, draw.shape(), dtype, Options("x nonzero modest"), None)
            yield (draw.number(dtype), b), {}


@generator
def unary(draw, options):
    for dtype in options.dtypes():
        for _ in range(6):
            scalars = [draw.number(dtype) for _ in range(int(options.get("scalars", 0)))]
            if "slope" in options:
                scalars = [draw.choice([0.01, 0.2])]
            if "lambd" in options:
                scalars = [draw.choice([0.5, 0.1, 1])]
            kwargs = {"approximate": draw.choice(["none", "tanh"])} if "approximate" in options else {}
            yield (draw.tensor(draw.shape(), dtype, options), *scalars), kwargs


@generator
def gradient(draw, options):
    """(grad_output, self, scalars …) of equal shape."""
    for dtype in FLOATS:
        for _ in range(8):
            shape = draw.shape()
            numbers = [draw.choice([0, 0.5, -0.25, 1]) for _ in range(int(options.get("scalars", 0)))]
            if "hardtanh" in options:
                numbers = draw.choice([[-1.0, 1.0], [0, 6], [-0.5, 0.1]])
            if "slope" in options:
                numbers = [draw.choice([0.01, 0.2]), False]
            if "lambd" in options:
                numbers = [draw.choice([0.5, 0.1, 1])]
            kwargs = {"approximate": draw.choice(["none", "tanh"])} if "approximate" in options else {}
            yield (draw.tensor(shape, dtype, options), draw.tensor(shape, dtype, options), *numbers), kwargs


@generator
def prelu(draw, options):
    for dtype in FLOATS:
        for shape, weight in (((4, 5), (1, 5)), ((2, 3, 4), (1, 3, 1)), ((7,), (1,)), ((6,), (6,))):
            x, w = draw.tensor(shape, dtype), draw.dense(weight, dtype, 0.3)
            yield ((draw.tensor(shape, dtype), x, w.expand(shape)) if "backward" in options else (x, w)), {}


@generator
def hardtanh(draw, options):
    for dtype in FLOATS:
        for bounds in ([-1.0, 1.0], [0, 6], [-0.5, 0.1]):
            yield (draw.tensor(draw.shape(), dtype), *bounds), {}


@generator
def clamp(draw, options):
    for dtype in options.dtypes():
        bounds = [(-0.5, 0.7), (None, 0.1), (0, None), (2, 1), (0.1, 0.2)] if dtype.is_floating_point else [(0, 5), (None, 3), (2, None)]
        for low, high in bounds:
            yield (draw.tensor(draw.shape(), dtype), low, high), {}


@generator
def clamp_tensor(draw, options):
    for dtype in options.dtypes():
        for given in ((True, True), (True, False), (False, True)):
            sa, sb = draw.choice(PAIRS)
            yield (draw.tensor(sa, dtype, ["nozero"]), *[draw.tensor(sb, dtype, ["nozero"]) if g else None for g in given]), {}


@generator
def where(draw, options):
    for dtype in FLOATS + INTEGERS:
        for _ in range(4):
            sa, sb = draw.choice(PAIRS)
            yield (draw.tensor(draw.choice([sa, sb]), torch.bool), draw.tensor(sa, dtype), draw.tensor(sb, dtype)), {}
    yield (draw.tensor((5,), torch.bool), draw.tensor((5,), torch.bfloat16), draw.tensor((), torch.float32)), {}
    yield (draw.tensor((5,), torch.bool), draw.tensor((5,), torch.bfloat16), draw.tensor((5,), torch.float32)), {}
    yield (draw.tensor((5,), torch.bool), draw.tensor((5,), torch.int64), draw.tensor((5,), torch.float32)), {}


@generator
def masked(draw, options):
    for dtype in FLOATS + INTEGERS:
        for _ in range(4):
            shape, mask = draw.choice([((4, 5), (4, 5)), ((2, 3, 4), (3, 1)), ((6,), (1,)), ((0, 3), (3,))])
            value = draw.choice([float("-inf"), 0.1, 0.0]) if dtype.is_floating_point else draw.number(dtype)
            if "tensor" in options:
                value = torch.tensor(value, dtype=dtype)
            yield (draw.tensor(shape, dtype), draw.tensor(mask, torch.bool), value), {}


@generator
def cast(draw, options):
    fp8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
    tame = Options("cast tame")
    for source in FLOATS + INTEGERS + fp8:
        for target in FLOATS + INTEGERS + fp8:
            # floats out of an integer's range are undefined in torch; conversions are tested bit by bit in tests/formats
            x = draw.tensor(draw.shape(), torch.float32 if source in fp8 else source, tame if not target.is_floating_point else ())
            if target == torch.uint8 or source == torch.uint8:
                x = x.abs() if x.dtype != torch.bool else x
            if source in fp8 and (x.dim() == 0 or not x.is_contiguous()):
                x = x.contiguous()
            yield (x.to(source),), {"dtype": target}
    for dtype in FLOATS:
        yield (draw.tensor((3, 4), dtype),), {"memory_format": torch.contiguous_format}


@generator
def copy(draw, options):
    for target in FLOATS + INTEGERS:
        for source in (torch.float32, torch.bfloat16, torch.int64, torch.bool, target):
            shape, other = draw.choice([((4, 5), (4, 5)), ((2, 3, 4), (3, 1)), ((6,), (1,)), ((6,), ()), ((0, 3), (3,))])
            x = draw.tensor(other, source, Options("copy tame"))
            yield (draw.tensor(shape, target), x.abs() if target == torch.uint8 and source != torch.bool else x), {}


@generator
def fill(draw, options):
    for dtype in FLOATS + INTEGERS:
        for _ in range(3):
            value = draw.number(dtype)
            yield (draw.tensor(draw.shape(), dtype), torch.tensor(value) if "tensor" in options else value), {}


@generator
def created(draw, options):
    for dtype in FLOATS + INTEGERS:
        yield (draw.shape(), *([draw.number(dtype)] if "value" in options else [])), {"dtype": dtype}


@generator
def like(draw, options):
    for dtype in FLOATS + INTEGERS:
        for target in (None, torch.float32, torch.int64):
            yield (draw.tensor(draw.shape(), dtype), *([draw.number(dtype)] if "value" in options else [])), {"dtype": target}


@generator
def new(draw, options):
    for dtype in FLOATS + INTEGERS:
        yield (draw.tensor((2,), dtype), draw.shape(), *([draw.number(dtype)] if "value" in options else [])), {}


@generator
def scalar_tensor(draw, options):
    for dtype in FLOATS + INTEGERS:
        yield (draw.number(dtype),), {"dtype": dtype}


@generator
def arange(draw, options):
    count = int([o for o in options if o.isdigit()][0])
    for dtype in (torch.int64, torch.int32, torch.float32, torch.float64):
        for end in (0, 1, 17, 700):
            yield ([(end,), (-5, end), (-5, end, 3)][count - 1]), {"dtype": dtype}
    yield ([(5.5,), (0.5, 7.3), (0.1, 70.0, 0.3)][count - 1]), {"dtype": torch.float32}


@generator
def linspace(draw, options):
    for dtype in FLOATS:
        for start, end, steps in ((0, 1, 11), (-3.7, 5.1, 64), (1e-4, 0.02, 1000), (2.0, 2.0, 3), (5, -1, 1), (0, 1, 0), (-1.0, 1.0, 2)):
            yield (start, end, steps), {"dtype": dtype}


@generator
def triangle_indices(draw, options):
    for rows, columns, offset in ((4, 4, 0), (3, 5, 1), (5, 3, -2), (2, 6, -9), (4, 2, 9), (0, 3, 0)):
        yield (rows, columns, offset), {}


@generator
def eye(draw, options):
    for dtype in FLOATS + INTEGERS:
        yield ((4,) if "1" in options else (3, 5)), {"dtype": dtype}


@generator
def native_dropout(draw, options):
    for dtype in FLOATS:
        for p in (0.0, 0.1, 0.5, 1.0):
            if "fused" in options:  # its p is the probability to keep
                if p > 0:
                    yield (draw.tensor((5, 7), dtype, Options("x tame")), p), {}
            else:
                yield (draw.tensor((5, 7), dtype, Options("x tame")), p, True), {}


@generator
def native_dropout_backward(draw, options):
    for dtype in FLOATS:
        for scale in (1.0, 1 / 0.9, 2.0):
            mask = draw.tensor((5, 7), torch.bool)
            yield (draw.tensor((5, 7), dtype), mask.to(torch.uint8) if "bytes" in options else mask, scale), {}


@generator
def rrelu(draw, options):
    """Slopes are drawn in training, where they may all be one; otherwise the one in the middle is taken."""
    for dtype in FLOATS:
        for lower, upper, training in ((0.125, 1 / 3, True), (0.125, 1 / 3, False), (-0.5, 2, True), (0.25, 0.25, True), (0, 0, True)):
            shape = draw.shape()
            x, noise = draw.tensor(shape, dtype), draw.dense(shape, dtype, 1.0)
            if "backward" in options:
                yield (draw.tensor(shape, dtype), x, noise, lower, upper, training, False), {}
            else:
                yield (x, noise, lower, upper, training), {}


@generator
def lerp(draw, options):
    for dtype in FLOATS:
        for weight in (0.1, 0.5, 0.9, -0.2, 0.05, 1.0):
            shape = draw.shape()
            if "scalar" not in options:
                weight = draw.dense(shape, dtype, 1.0) if draw.random.random() < 0.7 else torch.tensor(weight, dtype=dtype)
            modest = Options("x modest")  # no differences that overflow on the way
            yield (draw.tensor(shape, dtype, modest), draw.tensor(shape, dtype, modest), weight), {}


@generator
def addc(draw, options):
    """addcmul, addcdiv: the second factor away from 0, so that quotients are ordinary."""
    for dtype in options.dtypes():
        for _ in range(5):
            shape, other = draw.choice([((7,), (7,)), ((3, 5), (5,)), ((65,), (65,)), ((), ()), ((2, 3, 4), (3, 1))])
            value = draw.choice([1, -0.1, 2, 0.3]) if dtype.is_floating_point else draw.choice([1, 2])
            modest = Options("x modest")  # no products that overflow on the way
            yield (
                (draw.tensor(shape, dtype), draw.tensor(other, dtype, modest), draw.tensor(other, dtype, modest)),
                draw.choice([{}, {"value": value}]),
            )


@generator
def fused_adam(draw, options):
    for dtype in FLOATS:
        for amsgrad in (False, True):
            for maximize, decay, scale in ((False, 0.0, None), (False, 0.1, None), (True, 0.01, None), (False, 0.1, 8.0)):
                shapes = [(4,), (3, 5), (33,), (2, 1, 3), (130,)]
                make = lambda scale: [draw.dense(s, dtype, scale) for s in shapes]
                positive = lambda scale: [draw.dense(s, dtype, scale).abs() + 2.0**-20 for s in shapes]
                steps = [torch.tensor(float(draw.choice([1, 2, 7, 1000]))) for _ in shapes]
                yield (
                    (make(1.0), make(0.1), make(0.05), positive(1e-2), positive(1e-2) if amsgrad else [], steps),
                    dict(
                        lr=draw.choice([1e-3, 0.1]),
                        beta1=0.9,
                        beta2=draw.choice([0.999, 0.95]),
                        weight_decay=decay,
                        eps=1e-8,
                        amsgrad=amsgrad,
                        maximize=maximize,
                        grad_scale=None if scale is None else torch.tensor(scale),
                        found_inf=None if scale is None else torch.tensor(float(draw.choice([0, 0, 1]))),
                    ),
                )


@generator
def fused_sgd(draw, options):
    shapes = [(4,), (3, 5), (33,), (2, 1, 3), (130,)]
    for dtype in FLOATS:
        for momentum, dampening, nesterov, first in (
            (0.0, 0.0, False, False),
            (0.9, 0.0, False, True),
            (0.9, 0.1, False, False),
            (0.9, 0.0, True, False),
            (0.9, 0.0, True, True),
        ):
            for maximize, decay, scale in ((False, 0.0, None), (True, 0.1, None), (False, 0.1, 8.0)):
                make = lambda scale: [draw.dense(s, dtype, scale) for s in shapes]
                yield (
                    (make(1.0), make(0.1), make(0.1) if momentum else []),
                    dict(
                        weight_decay=decay,
                        momentum=momentum,
                        lr=0.1,
                        dampening=dampening,
                        nesterov=nesterov,
                        maximize=maximize,
                        is_first_step=first,
                        grad_scale=None if scale is None else torch.tensor(scale),
                        found_inf=None if scale is None else torch.tensor(float(draw.choice([0, 0, 1]))),
                    ),
                )


@generator
def softplus(draw, options):
    for dtype in FLOATS:
        for beta, threshold in ((1, 20), (2.0, 5), (0.5, 20.0)):
            shape = draw.shape()
            lead = [draw.tensor(shape, dtype, options)] if "backward" in options else []
            yield (*lead, draw.tensor(shape, dtype, options), beta, threshold), {}


@generator
def elu(draw, options):
    for dtype in FLOATS:
        for numbers in ((1.0, 1.0, 1.0), (1.6732632423543772, 1.0507009873554805, 1), (0.5, 1, 2)):
            shape = draw.shape()
            x = draw.tensor(shape, dtype, options)
            if "backward" not in options:
                yield (x, *numbers), {}
                continue
            for is_result in (False, True):
                yield (draw.tensor(shape, dtype, options), *numbers, is_result, x), {}


@generator
def log_sigmoid_backward(draw, options):
    for dtype in FLOATS:
        for _ in range(4):
            x = draw.tensor(draw.shape(), dtype, Options("x nonan"))
            buffer = torch.ops.aten.log_sigmoid_forward(x)[1]
            yield (draw.tensor(x.shape, dtype), x, buffer), {}


@generator
def power(draw, options):
    for dtype in FLOATS + [torch.int64]:
        if "scalar" in options:
            numbers = (2, 3, 2.0, -1, -2, 0.5, -0.5, 1.5, 0, 1, 4) if dtype.is_floating_point else (0, 1, 2, 3, 5)
            for number in numbers:
                x = draw.tensor(draw.shape(), dtype)
                yield (x.abs() if number in (0.5, -0.5, 1.5) else x, number), {}
        elif "tensor" in options:
            for _ in range(5):
                sa, sb = draw.choice(PAIRS)
                yield (draw.tensor(sa, dtype).abs(), draw.dense(sb, dtype, 2.0).abs()), {}
        else:
            for number in (2, 0.5, 10000.0, 3.7):
                yield (number, draw.dense(draw.shape(), dtype, 1.0).abs()), {}


def loss_options(draw, options, names, shape, dtype, reduction):
    """The args of a loss behind its tensors: the weights that `names` lists, the reduction, the border."""
    weights = [draw.choice([None, draw.dense(shape, dtype, 1.0).abs()]) for name in names if name in options]
    return [*weights, reduction, *([draw.choice([1.0, 0.3])] if "border" in options else [])]


@generator
def loss(draw, options):
    for dtype in FLOATS:
        for reduction in (0, 1, 2):
            shape = draw.choice([(7,), (4, 33), (2, 3, 5), ()])
            x, y = draw.dense(shape, dtype, 1.0), draw.dense(shape, dtype, 1.0)
            if "probability" in options:
                x, y = x.sigmoid(), y.sigmoid()
            if "target" in options:
                y = y.sigmoid()
            yield (x, y, *loss_options(draw, options, ("weight", "pos_weight"), shape, dtype, reduction)), {}


@generator
def loss_backward(draw, options):
    for dtype in FLOATS:
        for reduction in (0, 1, 2):
            shape = draw.choice([(7,), (4, 33), (2, 3, 5)])
            x, y = draw.dense(shape, dtype, 1.0), draw.dense(shape, dtype, 1.0)
            if "probability" in options:
                x, y = x.sigmoid(), y.sigmoid()
            grad = draw.dense(shape if reduction == 0 else (), dtype, 1.0)
            yield (grad, x, y, *loss_options(draw, options, ("weight",), shape, dtype, reduction)), {}


@generator
def glu(draw, options):
    for dtype in FLOATS:
        for shape, dim in (((4, 6), -1), ((4, 6), 0), ((2, 8, 3), 1), ((10,), 0)):
            x = draw.tensor(shape, dtype, options)
            half = list(shape)
            half[dim] //= 2
            yield ((draw.tensor(half, dtype, options), x, dim) if "backward" in options else (x, dim)), {}


def samples(text, seed=0):
    """The samples of a row. Unknown generators are an error: a row without test does not pass."""
    options = Options(text)
    return list(GENERATORS[options.name](Draw(seed), options))


sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.modules.setdefault("op_samples", sys.modules[__name__])
for path in sorted(pathlib.Path(__file__).parent.glob("op_samples_*.py")):
    importlib.import_module(path.stem)
