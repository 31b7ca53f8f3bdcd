"""`lastbit check`: faults of gradients planted in real steps are named with place and kind, and steps as they should be have no finding."""

import pytest
from checked_programs import recorded
from conftest import ROOT

# name: kind, a part of the layer, a part of the line of code that is at fault, the factor (None: no one number).
FAULTS = {
    "custom_twice": ("scale", "blocks.1", "return g * 2", 2),
    "scan_lost": ("gradient", "blocks", None, None),
    "rope_detached": ("detached", "blocks.1", "q.detach(), k.detach()", 0),
    "heads_exchanged": ("gradient", "blocks.0", "flip(-2)", None),
    "stage_divided_gas": ("scale", "blocks.0", "g / 4", 0.25),
    "rows_zeroed": ("gradient", "blocks.1", "zeros_like", None),
    "weight_hook": ("scale", "blocks.1.up", "g * 3", 3),
    "drop_checkpoint_redrawn": ("redrawn", "blocks.1.drop", "self.drop(", None),
    "rrelu_stopped_checkpoint": ("unwritten", "blocks.1.1", "checkpoint(block, x", None),
    "tied_added_twice": ("read", "", "model.wte.weight.grad.add_", 2),
    "one_halved": ("read", "", "grad.div_(2)", 0.5),
    "gradient_zeroed": ("detached", "blocks.0", "g * 0", 0),
    "logits_divided_gas": ("scale", "", "g / len(batches)", 0.25),
    "gas_lost": ("lost", "", "backward()", None),
}
HEALTHY = """plain sgd foreach fused muon clip tied padding relu scan frozen drop drop_checkpoint drop_checkpoint_reentrant gas gas_clip scaler_gas
scaler_clip autocast autocast_drop_checkpoint_gas bf16 bf16_sgd_tied
mask_of_cuda rrelu rrelu_checkpoint""".split()
ARCHITECTURES = "llama gpt2 mamba mixtral gemma2 qwen2 qwen3_moe olmo2 gpt_neox bloom bert t5".split()


# name: what is left, if anything is.
ODD = {
    "image:resnet+autocast": "",  # the largest of bf16 numbers is another one than of exact ones
    "causal:jetmoe": "",  # experts' parts are cut by a list of Python's
    "image:swinv2": "does not settle",  # relus of exactly 0
    "causal:gemma2+left": "rows of its softmax hide all that they could see",
}


@pytest.fixture(scope="module")
def steps(lastbit, tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("steps"), "checked_steps.py", [*FAULTS, *HEALTHY, "statistics_held", "left_over", "relu_of_zero"])


@pytest.fixture(scope="module")
def architectures(lastbit, tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("architectures"), "checked_architectures.py", ARCHITECTURES)


@pytest.fixture(scope="module")
def odd(lastbit, tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("odd"), "many_architectures.py", ODD)


@pytest.mark.parametrize("name", ODD)
def test_what_looks_like_a_fault_is_none(lastbit, odd, name):
    answer = lastbit.json("check", odd / f"{name}.lb", "--only", "gradient,step,relations", expect=125 if ODD[name] else 0)
    assert answer["findings"] == [] and answer["proven"]
    assert [ODD[name] in row["why"] for row in answer["not_judged"]] == [True] * bool(ODD[name]), answer


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_with_its_place_and_kind(lastbit, steps, name):
    kind, layer, text, factor = FAULTS[name]
    answer = lastbit.json("check", steps / f"{name}.lb", expect=1)
    row = answer["findings"][0]
    assert (answer["verdict"], row["kind"]) == ("found", kind), answer
    assert layer in row["layer"] and (text is None or text in row["source"]["text"]), row
    if kind != "lost":
        assert row["factor"] == (None if factor is None else pytest.approx(factor, rel=1e-4)), row


@pytest.mark.parametrize("how", ["", "look"])
def test_a_gradient_of_an_earlier_steps_forward_is_not_judged(lastbit, tmp_path, how):
    """A generator runs before its critic steps. What reads its parameters in the step of its gradient, another forward that is looked at or the end
    of the program, leads to no loss of it."""
    lastbit.record(tmp_path / "gan.lb", "tests/programs/gan_two_optimizers.py", *how.split(), options=("--level", "ops"), expect=0)
    answer = lastbit.json("check", tmp_path / "gan.lb", "--only", "gradient,step", "--budget", "100", expect=125)
    assert answer["findings"] == []
    left = [row["what"] for row in answer["not_judged"] if "no op of forward reads the parameter" in row["why"]]
    assert left == [f"the gradients of 6 parameters in step {n}" for n in (1, 3, 5, 7)]


def test_a_derivative_near_what_f64_rounds_is_judged_by_larger_steps(lastbit, tmp_path):
    """LoRA begins with B = 0: the loss of 1 changes by 1e-8 along a direction."""
    lastbit.record(tmp_path / "lora.lb", "tests/programs/healthy_runs.py", "lora", options=("--level", "ops"), expect=0)
    answer = lastbit.json("check", tmp_path / "lora.lb", "--only", "gradient", "--budget", "100", expect=0)
    assert (answer["findings"], answer["not_judged"]) == ([], [])
    assert sum("gradients of 4 parameters are the derivative" in line for line in answer["proven"]) == 5


@pytest.mark.parametrize("name", HEALTHY)
def test_a_step_as_it_should_be_has_no_finding(lastbit, steps, name):
    answer = lastbit.json("check", steps / f"{name}.lb", expect=0)
    assert (answer["verdict"], answer["findings"]) == ("clean", [])
    assert answer["not_judged"] == []
    assert answer["replays"] <= 20 and any("derivative" in line for line in answer["proven"])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_has_no_finding(lastbit, architectures, name):
    answer = lastbit.json("check", architectures / f"{name}.lb", expect=0)
    assert (answer["verdict"], answer["findings"]) == ("clean", [])
    assert answer["replays"] <= 20


def test_what_the_program_holds_constant_is_said_and_not_judged(lastbit, steps):
    answer = lastbit.json("check", steps / "statistics_held.lb", "--only", "gradient,step", expect=125)
    assert answer["findings"] == [] and any("without a gradient" in row["why"] for row in answer["not_judged"])


def test_numbers_at_a_kink_have_no_one_derivative(lastbit, steps):
    answer = lastbit.json("check", steps / "relu_of_zero.lb", "--only", "gradient", expect=125)
    assert answer["findings"] == [] and any("does not settle" in row["why"] for row in answer["not_judged"])


def test_a_gradient_that_was_not_zeroed_is_judged_without_what_was_left(lastbit, steps):
    answer = lastbit.json("check", steps / "left_over.lb", expect=125)
    assert answer["findings"] == [] and any("derivative" in line for line in answer["proven"])
    assert any("not zeroed" in row["why"] for row in answer["not_judged"])


def test_one_part_alone_is_asked_for(lastbit, steps):
    assert lastbit.json("check", steps / "one_halved.lb", "--only", "gradient", expect=0)["findings"] == []
    assert lastbit.json("check", steps / "custom_twice.lb", "--only", "step", expect=0)["findings"] == []
    assert lastbit.run("check", steps / "plain.lb", "--only", "all", expect=129)


def test_a_step_without_a_loss_is_undecided(lastbit):
    answer = lastbit.json("check", ROOT / "samples/poisoned-rank.lbz", expect=125)
    assert answer["verdict"] == "undecided" and answer["not_judged"]
