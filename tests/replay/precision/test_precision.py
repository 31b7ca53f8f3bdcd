"""`--precision` end to end: a recorded run of two linear layers, replayed under a recipe that was not run, against torch training the
same model with its products quantised by the recipe. test_recipes.py has the recipes' definitions and their sources."""

import importlib.util
import math

import pytest
import test_recipes as recipes
import torch
from conftest import ROOT
from torch import nn

PROGRAM = "tests/programs/two_linears.py"
spec = importlib.util.spec_from_file_location("two_linears", ROOT / PROGRAM)
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)


@pytest.fixture(scope="module")
def capture(lastbit, tmp_path_factory):
    out = tmp_path_factory.mktemp("precision") / "linears.lb"
    lastbit.record(out, PROGRAM, expect=0)
    return out


# ---- the same model in torch, quantised ------------------------------------------------------------------------------


class Tensorwise:
    """State of one tensor under per-tensor scaling: [TE] delayed_scaling.cu, history longer than this run."""

    def __init__(self, name, delayed, margin=0, interval=1, calibrated=False):
        self.name, self.delayed, self.margin, self.interval, self.calibrated = name, delayed, margin, interval, calibrated
        self.scale, self.amaxes, self.latest, self.begun = torch.tensor(1.0), [], None, False

    def __call__(self, x, _dim):
        amax = x.abs().max()
        if not self.delayed:
            return recipes.te_current(x, self.name)
        self.latest = amax
        if self.calibrated and not self.begun:
            self.scale, self.begun = torch.tensor(recipes.largest(self.name) * 2.0**-self.margin) / amax, True
        return recipes.cast(x * self.scale, self.name) * (1 / self.scale)

    def end_of_step(self, n):
        self.amaxes.append(self.latest)
        if self.delayed and n % self.interval == 0:
            self.scale, self.begun = torch.tensor(recipes.largest(self.name) * 2.0**-self.margin) / max(self.amaxes), True


class Blockwise:
    """Blocks along the dimension a product sums over; 0 is that of tokens, where NVFP4 rotates."""

    def __init__(self, quantise, rotate=False):
        self.quantise, self.rotate = quantise, rotate

    def __call__(self, x, dim):
        if dim == 1:
            return self.quantise(x)
        x = x.t().contiguous()
        return self.quantise(recipes.hadamard(x, x.dtype) if self.rotate else x).t()

    def end_of_step(self, n):
        pass


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, q):
        ctx.save_for_backward(x, w)
        ctx.q = q
        return q["input"](x, 1) @ q["weight"](w, 1).t() + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        q = ctx.q
        return q["gradient"](g, 1) @ q["weight"](w, 0), q["gradient"](g, 0).t() @ q["input"](x, 0), g.sum(0), None


class Quantised(nn.Module):
    def __init__(self, layer, make):
        super().__init__()
        self.layer, self.q = layer, {role: make(role) for role in ("input", "weight", "gradient")}

    def forward(self, x):
        return Product.apply(x, self.layer.weight, self.layer.bias, self.q)


def torch_losses(make):
    plain = program.model()
    net = nn.Sequential(Quantised(plain[0], make), plain[1], Quantised(plain[2], make))
    states = [q for layer in (net[0], net[2]) for q in layer.q.values()]
    losses = []
    for n, loss in enumerate(program.train(net)):
        losses.append(loss)
        for state in states:
            state.end_of_step(n + 1)
    return losses


def tiles(x, height):
    return recipes.in_tiles(x, height, 128, lambda tile: recipes.te_current(tile, "e4m3fn", dim=1))


def hybrid(role):
    return "e5m2" if role == "gradient" else "e4m3fn"


MAKERS = {
    "fp8-current": lambda role: Tensorwise(hybrid(role), False),
    "fp8-delayed": lambda role: Tensorwise(hybrid(role), True),
    "fp8-delayed,start:calibrated,margin:1": lambda role: Tensorwise(hybrid(role), True, margin=1, calibrated=True),
    "e4m3fn:delayed,interval:2": lambda role: Tensorwise("e4m3fn", True, interval=2),
    "fp8-block,scale:f32": lambda role: Blockwise(lambda x: tiles(x, 128 if role == "weight" else 1)),
    "mxfp8": lambda role: Blockwise(lambda x: recipes.mx(x, "e4m3fn", "rceil")),
    "mxfp8,scale:floor": lambda role: Blockwise(lambda x: recipes.mx(x, "e4m3fn", "floor")),
    "nvfp4,hadamard:off,gradients:rne": lambda role: Blockwise(lambda x: recipes.nvfp4(x, role == "weight")),
    "nvfp4,gradients:rne": lambda role: Blockwise(lambda x: recipes.nvfp4(x, role == "weight"), role != "weight"),
}


@pytest.fixture(scope="module")
def references():
    """Losses by recipe; "": none."""
    torch.set_num_threads(1)
    return {"": list(program.train(program.model())), **{recipe: torch_losses(make) for recipe, make in MAKERS.items()}}


def distance(a, b):
    return max(abs(x / y - 1) for x, y in zip(a, b))


# A product summed in another order may tip one element over to the next value of an 8-bit type.
ONE_FLIP = 5e-5


@pytest.mark.parametrize("recipe", MAKERS)
def test_a_recipe_nobody_ran_gives_the_losses_it_would_have_had(lastbit, capture, references, recipe):
    answer = lastbit.json("replay", capture, "--table", "--precision", recipe, expect=0)["loss"]
    assert [row["step"] for row in answer] == list(range(len(program.SIZES)))
    assert distance([row["recorded"] for row in answer], references[""]) < 1e-6
    assert distance([row["plain"] for row in answer], references[""]) < 1e-6
    assert distance([row["swapped"] for row in answer], references[recipe]) < ONE_FLIP
    for row in answer:
        assert row["difference"] == pytest.approx(row["swapped"] - row["plain"], rel=1e-9)


def test_no_two_recipes_could_be_mistaken_for_each_other(references):
    names = list(references)
    assert min(distance(references[a], references[b]) for i, a in enumerate(names) for b in names[:i]) > 20 * ONE_FLIP


def test_the_table_has_a_row_per_layer_and_role(lastbit, capture):
    answer = lastbit.json("replay", capture, "--table", "--steps", "0", "--precision", "fp8-current", expect=0)
    # The first layer's input needs no gradient: its gradient row comes from the weight's alone.
    assert {(row["layer"], row["role"]): row["tensors"] for row in answer["table"]} == {
        ("0", "input"): 2,
        ("0", "weight"): 1,
        ("0", "gradient"): 1,
        ("2", "input"): 2,
        ("2", "weight"): 2,
        ("2", "gradient"): 2,
    }
    x, _ = next(program.batches())
    row = answer["table"][0]
    quantised = recipes.te_current(x, "e4m3fn")
    error = (quantised.double() - x.double()).pow(2)
    assert (row["layer"], row["role"], row["format"]) == ("0", "input", "e4m3fn current")
    assert row["elements"] == 2 * x.numel() and row["nonfinite"] == 0
    assert row["amax"] == x.abs().max().item()
    assert row["underflow"] == pytest.approx(100 * ((quantised == 0) & (x != 0)).sum().item() / x.numel())
    assert row["overflow"] == 0
    assert row["mse"] == pytest.approx(error.mean().item(), rel=1e-9)
    assert row["sqnr"] == pytest.approx(10 * math.log10(x.double().pow(2).sum() / error.sum()), rel=1e-9)
    text = lastbit.run("replay", capture, "--table", "--steps", "0", "--precision", "fp8-current", expect=0).stdout
    assert "SQNR" in text and "e5m2 current" in text and "with swaps" in text


def test_a_cold_scale_is_a_different_run_from_a_calibrated_one(lastbit, capture):
    cold, warm = (lastbit.json("replay", capture, "--table", "--precision", f"fp8-delayed,start:{start}") for start in ("cold", "calibrated"))
    assert cold["table"][0]["scale"][0] == 1 and warm["table"][0]["scale"][0] > 1
    assert cold["loss"][0]["swapped"] != warm["loss"][0]["swapped"]


@pytest.mark.parametrize(
    "recipe,words", [("mxfp8,scale:floor", "finite ones are NaN or infinite after it"), ("nvfp4", "of them are finite after it")]
)
def test_numbers_that_are_not_finite_are_told_of(lastbit, recipe, words):
    args = ("replay", ROOT / "samples" / "scan-overflow.lbz", "--table", "--precision", f"phase=forward={recipe}")
    rows = lastbit.json(*args)["table"]
    layer = next(r for r in rows if r["layer"] == "layers.2.scan.out_proj" and r["role"] == "input")
    assert layer["nonfinite"] > 0 and layer["spoiled" if "floor" in recipe else "masked"] > 0
    assert all(r["spoiled"] == r["masked"] == 0 for r in rows if not r["nonfinite"])
    told = [line for line in lastbit.run(*args).stdout.splitlines() if line.startswith("layers.2.scan.out_proj input, ")]
    assert len(told) == 1 and words in told[0] and f"{layer['nonfinite']} elements are NaN or infinite before rounding" in told[0]


def test_plain_types_are_tabulated_too(lastbit, capture):
    answer = lastbit.json("replay", capture, "--table", "--precision", "phase=forward&layer=2=compute:e5m2,round:rz")
    assert {(row["layer"], row["format"]) for row in answer["table"]} == {("2", "e5m2 rz")}
    nothing = lastbit.run("replay", capture, "--table", "--precision", "layer=nowhere=fp8-current")
    assert "no operand was rounded" in nothing.stdout


def test_stochastic_rounding_depends_on_the_seed_and_on_nothing_else(lastbit, capture):
    def digest(seed, threads):
        return lastbit.json(
            "replay", capture, "--mode", "chained", "--digest", "--threads", threads, "--precision", f"nvfp4,gradients:stochastic:{seed}"
        )["digest"]

    assert digest(1, 1) == digest(1, 3) != digest(2, 1)


def test_help_and_errors_name_what_can_be_said(lastbit, capture):
    text = lastbit.run("replay", "--help").stdout + lastbit.run("help", "swaps").stdout
    for word in ("compute", "accumulate", "storage", "fp8-delayed", "mxfp8", "nvfp4", "--table"):
        assert word in text
    assert "recipe" in lastbit.run("replay", capture, "--precision", "layer=2=fp9", expect=129).stderr
    assert "cold, calibrated" in lastbit.run("replay", capture, "--precision", "fp8-delayed,start:hot", expect=129).stderr
