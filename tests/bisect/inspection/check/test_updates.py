"""`lastbit check --only step` of optimizers that are named after a rule: what they did to parameters is that rule, or it is said what else."""

import pytest
from checked_programs import recorded

TORCHS = {
    "SGD": ["sgd", "sgd_momentum", "sgd_nesterov", "sgd_maximize", "sgd_fused"],
    "Adam": ["adam", "adam_decay", "adam_decoupled", "adam_amsgrad", "adamw", "adamw_each", "adamw_foreach", "adamw_fused"],
    "NAdam": ["nadam", "nadam_decoupled"],
    "RAdam": ["radam", "radam_late"],
    "Adamax": ["adamax", "adamax_foreach"],
    "RMSprop": ["rmsprop", "rmsprop_centered"],
    "Adagrad": ["adagrad", "adagrad_begun", "adagrad_fused"],
}
TORCHS["Adam"] += ["adamw_maximize", "adamw_bf16"]
# Rules of whole tensors, and how many parameters they move.
WHOLE = {
    **dict.fromkeys(["adafactor", "adafactor_decay", "adafactor_bf16", "hf_adafactor", "hf_adafactor_relative"], ("Adafactor", 6)),
    **dict.fromkeys(["muon", "muon_rms", "muon_rounds", "jordan", "jordan_sums"], ("Muon", 2)),
    **dict.fromkeys(["lamb", "lamb_plain", "lamb_without_decay"], ("LAMB", 6)),
    **dict.fromkeys(["lamb_clipped", "lamb_clipped_reads", "lamb_clipped_eps", "lamb_below", "lamb_trusted"], ("LAMB", 6)),
    **dict.fromkeys(["lamb_clipped_pair", "lamb_clips_group"], ("LAMB", 4)),
}
WHOLE_FAULTS = {
    "jordan_half": ("Muon group 0 moves 0.5 times as far", 0.5, 2),
    "jordan_undecayed": ("Muon group 0 leaves weight decay out", None, 2),
    "adafactor_half": ("Adafactor group 0 moves 0.5", 0.5, 6),
    "lamb_half": ("Lamb group 0 moves 0.5 times as far", 0.5, 6),
    "lamb_unclipped": ("Lamb group 0 does not clip its gradients", None, 6),
    "lamb_clips_own": ("Lamb group 0 clips each gradient by its own norm", None, 6),
    "lamb_clips_always": ("Lamb group 0 divides by the norm of its gradients where that is below", None, 6),
    "lamb_clipped_half": ("Lamb group 0 moves 0.5 times as far", 0.5, 6),
}
UNKNOWN = {
    "no_rule": "its rule is not known",
    "lion_silent": "its group does not say the betas",
}
MASTERS = ["masters_inside", "masters_inside_first", "masters_outside", "masters_outside_first", "masters_outside_foreach", "masters_cast"]
OWN = {"own": "Adam", "own_uncorrected": "Adam", "own_names": "Adam", "own_lion": "Lion"}
# name: what is said of it, and the factor where it is one number.
FAULTS = {
    "coupled": ("adds weight decay to the gradient", None),
    "fully": ("takes weight decay without the learning rate", None),
    "no_decay": ("leaves weight decay out", None),
    "uncorrected": ("corrects neither moment", None),
    "second_uncorrected": ("does not correct the second moment", None),
    "inside": ("adds eps under the root", None),
    "step_early": ("a count of steps that is one too high", None),
    "step_late": ("a count of steps that is one too low", None),
    "betas_exchanged": ("exchanges the two betas", None),
    "ascends": ("goes up the gradient", None),
    "half": ("moves 0.5 times as far", 0.5),
    "coupled_and_uncorrected": ("adds weight decay to the gradient, where it goes through the moments, and corrects neither", None),
    "one_of_them": ("moves 0.5 times as far", 0.5),
    "no_momentum": ("leaves the momentum out", None),
}


@pytest.fixture(scope="module")
def steps(lastbit, tmp_path_factory):
    names = [*sum(TORCHS.values(), []), "adamw_pair", *OWN, *FAULTS, "clipped", *WHOLE, *WHOLE_FAULTS, *MASTERS]
    names += ["jordan_squared", "lamb_bounded", "masters_inside_half", "eight_bits", *UNKNOWN]
    return recorded(tmp_path_factory.mktemp("optimizers"), "named_optimizers.py", names)


def answer_of(lastbit, steps, name, expect):
    return lastbit.json("check", steps / f"{name}.lb", "--only", "step", expect=expect)


@pytest.mark.parametrize("name, rule", [(name, rule) for rule, names in TORCHS.items() for name in names] + list(OWN.items()))
def test_an_optimizer_that_does_what_its_name_says_is_proven_to(lastbit, steps, name, rule):
    answer = answer_of(lastbit, steps, name, 0)
    assert (answer["findings"], answer["not_judged"]) == ([], [])
    assert any(f"moved 6 parameters as {rule} does" in line for line in answer["proven"]), answer["proven"]


@pytest.mark.parametrize("name", FAULTS)
def test_what_an_optimizer_does_otherwise_is_said(lastbit, steps, name):
    said, factor = FAULTS[name]
    (row,) = answer_of(lastbit, steps, name, 1)["findings"]
    assert row["kind"] == "update" and said in row["message"] and row["phase"] == "optimizer", row
    assert row["factor"] == (pytest.approx(factor, rel=1e-6) if factor else None)
    parameters = "1 of its 6" if name == "one_of_them" else "6 of its 6"
    assert f"{parameters} parameters" in row["message"] and row["layer"] == ("0.bias" if name == "one_of_them" else "0.weight")
    assert row["source"]["text"].startswith(("p.add_(", "p.sub_(")), row["source"]


def test_each_group_is_told_with_its_own_options(lastbit, steps):
    first, second = (line for line in answer_of(lastbit, steps, "adamw_pair", 0)["proven"] if "moved" in line)
    assert "group 0 moved 2 parameters as Adam does, lr 0.001, weight decay 0.1 of the parameter itself, also on 1 of one" in first
    assert second.endswith("group 1 moved 4 parameters as Adam does, lr 0.01")


@pytest.mark.parametrize("name", WHOLE)
def test_a_rule_that_mixes_the_numbers_of_a_tensor_is_proven(lastbit, steps, name):
    rule, n = WHOLE[name]
    answer = answer_of(lastbit, steps, name, 0)
    assert (answer["findings"], answer["not_judged"]) == ([], [])
    assert any(f"moved {n} parameters as {rule} does" in line for line in answer["proven"]), answer["proven"]


def test_which_norm_gradients_are_clipped_by_is_said(lastbit, steps):
    ours, alone = ("; ".join(answer_of(lastbit, steps, name, 0)["proven"]) for name in ("lamb_clipped_pair", "lamb_clips_group"))
    assert ours.count("it clips to 0.01, with weight decay") == 2 and "alone" not in ours, ours
    assert alone.count(", of this group alone, it clips to 0.01, with weight decay") == 2, alone
    assert "is below its bound 30" in "; ".join(answer_of(lastbit, steps, "lamb_below", 0)["proven"])


@pytest.mark.parametrize("name", WHOLE_FAULTS)
def test_what_such_a_rule_does_otherwise_is_said(lastbit, steps, name):
    said, factor, n = WHOLE_FAULTS[name]
    (row,) = answer_of(lastbit, steps, name, 1)["findings"]
    assert row["kind"] == "update" and said in row["message"] and f"{n} of its {n} parameters" in row["message"], row
    assert row["factor"] == (pytest.approx(factor, rel=1e-5) if factor else None) and row["source"]["text"].startswith("p.add_(")


def test_such_a_rule_that_no_form_explains_is_not_judged(lastbit, steps):
    answer = answer_of(lastbit, steps, "jordan_squared", 125)
    assert answer["findings"] == [] and "did not move as Muon moves them, in any of its forms" in answer["not_judged"][0]["why"]


def test_a_ratio_of_its_own_is_not_judged(lastbit, steps):
    """DeepSpeed bounds it: one tensor of six then moves by a factor of its own, which is no fault."""
    answer = answer_of(lastbit, steps, "lamb_bounded", 125)
    assert answer["findings"] == [] and "did not move as LAMB moves them" in answer["not_judged"][0]["why"]


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_no_rule_is_known_of_claims_nothing(lastbit, steps, name):
    answer = answer_of(lastbit, steps, name, 0)
    assert answer["findings"] == [] and [(row["why"], row["passed"]) for row in answer["not_judged"]] == [(UNKNOWN[name], True)]


@pytest.mark.parametrize("name", MASTERS)
def test_masters_of_narrow_parameters_are_followed(lastbit, steps, name):
    """Gradients are the derivative by the copies that forward reads; updates are those of the masters."""
    answer = lastbit.json("check", steps / f"{name}.lb", "--only", "gradient,step", expect=0)
    assert (answer["findings"], answer["not_judged"]) == ([], [])
    proven = "; ".join(answer["proven"])
    assert "gradients of 6 parameters are the derivative" in proven
    assert f"moved 6 parameters{', through masters among its states,' if name.startswith('masters_inside') else ''} as Adam does" in proven, proven


def test_a_fault_of_the_masters_is_told(lastbit, steps):
    (row,) = answer_of(lastbit, steps, "masters_inside_half", 1)["findings"]
    assert row["kind"] == "update" and "moves 0.5 times as far" in row["message"], row


def test_states_of_8_bits_are_said_not_to_be_judged(lastbit, steps):
    answer = answer_of(lastbit, steps, "eight_bits", 0)
    assert answer["findings"] == [] and not any("moved" in line for line in answer["proven"])
    ((why, passed),) = [(row["why"], row["passed"]) for row in answer["not_judged"]]
    assert "states of 6 parameters are codes of 8 bits" in why and passed


def test_an_update_that_nothing_explains_is_not_judged(lastbit, steps):
    """A class of that name may add something to its rule; that torch's own does so is not tried here."""
    answer = answer_of(lastbit, steps, "clipped", 125)
    assert answer["findings"] == [] and "none of the changes that were tried explains it" in answer["not_judged"][0]["why"]
