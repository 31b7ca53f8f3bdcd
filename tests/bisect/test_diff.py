"""Diff on freshly recorded pairs: innocent ones are never `diverged`, planted differences are found where they are."""
import re

import pytest
import torch

HYBRID = "samples/hybrid_lm.py"
HF = "tests/programs/hf_train.py"


@pytest.fixture(scope="module")
def recorded(lastbit, tmp_path_factory):
    """Records a program once per settings and session."""
    folder = tmp_path_factory.mktemp("pairs")
    done = {}

    def get(program, *args, steps="0-0"):
        key = (program, args, steps)
        if key not in done:
            done[key] = folder / f"run{len(done)}.lb"
            lastbit.record(done[key], program, *args, options=("--steps", steps, "--level", "ops"))
        return done[key]

    return get


def diff(lastbit, a, b, *options):
    answer = lastbit.json("diff", *options, a, b, expect=(0, 1))
    assert answer["ops"]["aligned"] > 100
    return answer


def test_the_same_program_twice_is_identical(lastbit, recorded, tmp_path):
    a = recorded(HYBRID, "--steps", "1")
    lastbit.record(tmp_path / "again.lb", HYBRID, "--steps", "1", options=("--steps", "0-0", "--level", "ops"))
    answer = diff(lastbit, a, tmp_path / "again.lb", "--exact")
    assert answer["verdict"] == "identical" and answer["first"] is None


CALM = ("--steps", "1", "--muon-dtype", "float32")  # Newton-Schulz in bf16 amplifies rounding to percents

INNOCENT = {
    "threads": ((HYBRID, *CALM, "--threads", "1"), (HYBRID, *CALM, "--threads", "2")),
    "experts": ((HYBRID, "--steps", "1", "--experts-kind", "eager"), (HYBRID, "--steps", "1", "--experts-kind", "grouped")),
    "attention": ((HYBRID, *CALM, "--attention", "eager"), (HYBRID, *CALM, "--attention", "sdpa")),
    "adamw": ((HYBRID, *CALM, "--adamw", "foreach"), (HYBRID, *CALM, "--adamw", "single")),
    "accumulation": ((HYBRID, *CALM, "--accumulate", "1"), (HYBRID, *CALM, "--accumulate", "2")),
}


@pytest.mark.parametrize("pair", INNOCENT)
def test_innocent_pairs_are_never_diverged(lastbit, recorded, pair):
    first, second = INNOCENT[pair]
    answer = diff(lastbit, recorded(*first), recorded(*second))
    guilty = [layer for layer in answer["layers"] if layer["verdict"] == "diverged"]
    assert answer["verdict"] in ("identical", "reordered", "rounding") and not guilty, answer["first"]


@pytest.mark.parametrize("fault", ["dropped-term", "differs-eps"])
def test_a_planted_difference_is_found_where_it_is(lastbit, recorded, fault):
    answer = diff(lastbit, recorded(HYBRID, "--steps", "1"), recorded(HYBRID, "--steps", "1", "--fault", fault))
    phase = {"dropped-term": "backward", "differs-eps": "forward"}[fault]
    first = answer["first"]
    assert answer["verdict"] == "diverged"
    assert (first["layer"], first["phase"], first["local"]) == ("layers.3.norm", phase, "diverged"), first
    guilty = {layer["layer"] for layer in answer["layers"] if layer["local"] == "diverged"}
    assert guilty == {"layers.3.norm"}


def test_an_extra_cast_is_rounding(lastbit, recorded):
    """In the first step the norm's weight is 1 and the order of cast and product shows in no bit."""
    bf16 = ("--steps", "2", "--precision", "bf16", "--muon-dtype", "float32")
    answer = diff(lastbit, recorded(HYBRID, *bf16, steps="1-1"), recorded(HYBRID, *bf16, "--fault", "differs-cast", steps="1-1"))
    assert answer["verdict"] == "rounding", answer["first"]
    assert any(re.search("layers.3.norm", row["layer"]) for row in answer["structure"])


def test_what_the_step_before_left_different_stays_diverged(lastbit, recorded):
    """Both shadows of step 1 start from the same parameters and agree; the parameters do not."""
    pair = [recorded(HYBRID, "--steps", "2", *fault, steps="0-1") for fault in ((), ("--fault", "dropped-term"))]
    answer = diff(lastbit, *pair)
    verdicts = {row["layer"]: (row["local"], row["inherited"]) for row in answer["layers"] if not row["value"]}
    assert answer["first"]["step"] == 0 and answer["first"]["layer"] == "layers.3.norm"
    assert {layer for layer, (local, _) in verdicts.items() if local == "diverged"} == {"layers.3.norm"}
    for layer in ("layers.3.rnn", "layers.4.attention.qkv", "layers.5.mlp", "norm", "head", "loss"):
        assert verdicts[layer][1] == "diverged", (layer, verdicts[layer])


def test_the_text_is_short_and_its_commands_run(lastbit, recorded, tmp_path):
    a, b = (recorded(HYBRID, "--steps", "2", *fault, steps="0-1") for fault in ((), ("--fault", "dropped-term")))
    text = lastbit.run("diff", a, b, expect=1).stdout
    head, rest = text.split("\n\n", 1)
    assert head.startswith("verdict: diverged") and "layers.3.norm, aten::mul.Tensor" in rest
    table = re.search(r"^layer +verdict.*?(?=\n\n)", text, re.M | re.S).group().splitlines()
    assert len(table) <= 26 and "more layers" in table[-1] and "--all" in table[-1]
    shown = [line.split()[0] for line in table[1:-1]]
    assert {"layers.3.norm", "layers.3.rnn", "layers.2", "head", "loss"} <= set(shown)
    assert not any("weight" in name or "optimizer." in name for name in shown)
    assert re.search(r"^parameters, states and inputs: \d+ differ \(\d+ diverged, all inherited\)", text, re.M)
    commands = [line.split()[1:] for line in text.split("Next:\n")[1].splitlines()]
    assert [command[0] for command in commands] == ["show", "show", "bisect"]
    for command in commands:
        done = lastbit.run(*command, expect=(0, 1), cwd=tmp_path)
        assert "layers.3.norm" in done.stdout
    everything = lastbit.run("diff", "--all", a, b, expect=1).stdout
    assert "optimizer.exp_avg_sq:layers.5.norm.weight " in everything  # the whole name


ORDERS = "tests/programs/orders_of_sums.py"


def check_order(lastbit, first, second, op, order):
    answer = lastbit.json("diff", first, second, expect=0)
    found = answer["first"]
    assert answer["verdict"] == found["local"] == "reordered" and found["op"] == op, found
    assert f"those of torch:1, the second's of {order} (" in found["why"], found["why"]
    assert lastbit.run("diff", "--exact", first, second).returncode == 1


def test_a_sum_on_more_threads_is_named(lastbit, recorded):
    check_order(lastbit, recorded(ORDERS), recorded(ORDERS, "--threads", "2"), "aten::sum", "torch:2")


@pytest.mark.parametrize("how,order", [("numpy", "numpy"), ("blocked", "blocked:512")])
def test_a_sum_by_other_code_is_named(lastbit, recorded, how, order):
    rows = ("--rows", "40")
    check_order(lastbit, recorded(ORDERS, *rows), recorded(ORDERS, *rows, "--how", how), "aten::sum.dim_IntList", order)


def test_a_product_in_another_order_is_named(lastbit, recorded):
    if not torch.backends.mkl.is_available() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("known of MKL with AVX-512 only")
    long = ("--inner", "1100")
    check_order(lastbit, recorded(ORDERS, *long), recorded(ORDERS, *long, "--threads", "2"), "aten::mm", "torch:2")


NOISY = "tests/programs/noisy_sum.py"


def test_what_two_runs_of_the_first_side_differ_by_is_noise(lastbit, recorded):
    """The order of the additions really changes from run to run, and nobody can replay it."""
    runs = [recorded(NOISY, "--run", str(i)) for i in range(4)]
    alone = lastbit.json("diff", *runs[:2], expect=1)
    assert alone["verdict"] == "missing" and alone["first"]["op"] == "noisy::gather_rows"
    known = lastbit.json("diff", *runs[:2], "--noise", runs[2], "--noise", runs[3], expect=0)
    assert known["verdict"] == known["first"]["local"] == "noise", known["first"]
    last = {row["layer"]: row for row in known["layers"]}["last"]
    assert last["verdict"] == "noise" and last["inherited"] == "noise"


def test_a_difference_above_the_noise_is_none(lastbit, recorded):
    runs = [recorded(NOISY, "--run", str(i)) for i in (0, 2, 3)]
    answer = lastbit.json("diff", runs[0], recorded(NOISY, "--scale", "1.001"), "--noise", runs[1], "--noise", runs[2], expect=1)
    assert answer["verdict"] == "diverged" and answer["first"]["op"] == "aten::mul.Tensor", answer["first"]
    assert answer["earliest"]["op"] == "noisy::gather_rows" and answer["earliest"]["verdict"] == "noise"
