"""An optimizer written a second time: other ops, other names of states, or no optimizer at all, but a loop over tensors."""

import pytest

PROGRAM = "tests/programs/second_optimizers.py"
DOUBT = {"lr": 2, "beta1": 0.8, "beta2": 0.99, "eps": 1e-4, "weight_decay": 0.3, "momentum_decay": 0.1, "alpha": 0.9, "momentum": 0.8}
RULES = {
    "adamw": ("lr", "beta1", "beta2", "eps", "weight_decay"),
    "nadam": ("lr", "beta1", "beta2", "eps", "weight_decay", "momentum_decay"),
    "adagrad": ("lr", "eps", "weight_decay"),
    "rmsprop": ("lr", "alpha", "eps", "momentum", "weight_decay"),
    "adamax": ("lr", "beta1", "beta2", "eps", "weight_decay"),
    "nesterov": ("lr", "momentum", "weight_decay"),
}
NAMES = {"beta1": "betas.0", "beta2": "betas.1"}
EACH = [(rule, option) for rule, options in RULES.items() for option in options]


@pytest.fixture
def diff(lastbit, recordings):
    def ask(rule, first, second, *words, turned=False):
        sides = [recordings(first, rule, program=PROGRAM), recordings(second, rule, *words, program=PROGRAM)]
        return lastbit.json("diff", *(reversed(sides) if turned else sides), expect=1 if words else 0)

    return ask


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("second", ["own", "loop"])
@pytest.mark.parametrize("turned", [False, True])
def test_one_rule_is_one_function_however_it_is_written(diff, rule, second, turned):
    answer = diff(rule, "torch", second, turned=turned)
    assert answer["verdict"] in ("rounding", "reordered") and not answer["missing"] and not answer["differences"]


@pytest.mark.parametrize("rule, option", EACH[::3] + [pytest.param(*each, marks=pytest.mark.full) for each in EACH if each not in EACH[::3]])
def test_an_option_that_differs_is_named(diff, rule, option):
    value = DOUBT[option] * (1e-3 if rule == "rmsprop" else 1e-2) if option == "lr" else DOUBT[option]
    answer = diff(rule, "torch", "own", f"{option}={value}")
    first = answer["differences"][0]
    assert first["phase"] == "optimizer" and first["step"] == min(d["step"] for d in answer["differences"])
    named = {a["name"]: a for a in first["arguments"]}[NAMES.get(option, option)]
    assert float(named["second"]) == pytest.approx(value) and float(named["first"]) != pytest.approx(value)


@pytest.mark.parametrize("rule, option", EACH[1::6])
def test_a_loop_that_differs_does_so_in_its_update(diff, rule, option):
    answer = diff(rule, "torch", "loop", f"{option}={2e-2 if option == 'lr' else DOUBT[option]}")
    assert answer["verdict"] == "diverged" and {d["phase"] for d in answer["differences"]} == {"optimizer"}
    assert len(answer["differences"]) <= 3


@pytest.mark.parametrize("second", ["torch", "own", "loop"])
def test_a_parameter_that_is_left_out_is_named(diff, second):
    answer = diff("adamw", "torch", second, "left=up.weight")
    (difference,) = answer["differences"]
    assert difference["why"] == "only the first side updates up.weight" and difference["steps"] == 3


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("decay", [0.9, 0.8])
def test_an_average_of_weights_that_nothing_reads_is_compared(lastbit, recordings, turned, decay):
    """torch's own average beside one by hand: the step reads neither, and each has its own ops."""
    sides = [recordings("torch", "adamw", f"{word}={d}", program=PROGRAM) for word, d in (("average", 0.9), ("averaged", decay))]
    answer = lastbit.json("diff", *(sides[::-1] if turned else sides), expect=int(decay != 0.9))
    assert answer["verdict"] == ("rounding" if decay == 0.9 else "diverged") and not answer["missing"]
    for difference in answer["differences"]:
        assert difference["phase"] == "optimizer" and difference["step"] == 1 and difference["times"] == 9
    assert len(answer["differences"]) == (decay != 0.9)


@pytest.mark.parametrize("second", ["own", "loop"])
def test_an_average_is_no_identity_where_no_place_is_found(lastbit, recordings, second):
    """The optimizers are spelled differently, too."""
    sides = [recordings("torch", "adamw", "average=0.9", program=PROGRAM), recordings(second, "adamw", "averaged=0.8", program=PROGRAM)]
    assert lastbit.json("diff", *sides, expect=1)["verdict"] in ("missing", "diverged")
