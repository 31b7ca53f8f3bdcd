"""Steps of training by two people: optimizers as functions over dictionaries, lists and flat vectors beside torch's, and objectives by hand."""

import sys

import pytest
from conftest import ROOT

sys.path[:0] = [str(ROOT / "tests" / "programs"), str(ROOT / "capture")]
import training_objectives
import update_rules
from written_twice import ask, record, source_of, words_of

PROGRAMS = {program.__name__: program for program in (update_rules, training_objectives)}
EACH = [(program, name) for program in PROGRAMS for name in PROGRAMS[program].FAULTS]
FAULTS = [(program, f"{name}-{fault}") for program, name in EACH for fault in PROGRAMS[program].FAULTS[name]]
# One side keeps y and z, the other x and z, and y is made of x and z: no memory of one is the other's.
OF_OTHER_STATES = {"schedule_free"}
# An edit that leaves no op in its line: the one that goes on without it.
READ = {
    "adamw_groups-uncorrected": ["w = {k: w[k] - 0.01"],
    "adamw_groups-decayed": ["w = {k: w[k] - 0.01"],
    "adamw_groups-unclipped": ["m = {k: 0.9 * m", "v = {k: 0.95"],
    "adamw_flat-unrooted": ["p.sub_(rate"],
    "adam_coupled-decoupled": ["m.copy_", "v.copy_"],
    "adam_coupled-undecayed": ["m.copy_", "v.copy_"],
    "sgd_nesterov-plain": ["w = {k: w[k] - 0.1"],
    "rmsprop_centered-uncentred": ["torch.sqrt(spread"],
    "adagrad-constant": ["w = {k: w[k] - rate"],
    "adagrad-offset": ["w = {k: w[k] - rate"],
    "adafactor-power": ["row = (1", "column = (1", "kept[k] = below"],
    "adafactor-unclipped": ["new[k] ="],
    "muon_and_adamw-plain": ["x = x.bfloat16()"],
    "muon_and_adamw-turns": ["gram = x", "x = 3.44"],
    "muon_and_adamw-shape": ["new[k] = (1 - "],
    "lamb-after": ["ratio =", "w[i] = w[i]"],
    "lamb-uncorrected": ["r = first"],
    "schedule_free-average": ["x = {k: (1 - c)"],
    "averaged_schedule-cosine": ["w = {k: w[k] - rate"],
    "averaged_schedule-warm": ["w = {k: w[k] - rate"],
    "mean_of_tokens-unclipped": ["velocity = whole", "w = {k: w[k] - 0.2"],
    "scaled_loss-last": ["g = whole"],
    "layer_rates-embed": ["w[k] = w[k]"],
    "layer_rates-head": ["w[k] = w[k]"],
    "layer_rates-biases": ["w[k] = w[k]"],
    "clipped_policy-raw": ["policy_loss ="],
    "balanced_experts-weights": ["y = (each"],
}
# A place beside the right one is named, too, or another line of the same function alone.
ELSEWHERE = {
    "adamw_groups-unclipped", "adam_coupled-decoupled", "adam_coupled-undecayed", "adafactor-unscaled", "lamb-uncorrected", "sophia-gamma",
    "sophia-batch", "shampoo-power", "shampoo-onesided", "soap-gram", "mean_of_tokens-padded", "mean_of_tokens-early", "scaled_loss-unhalved",
    "layer_rates-limit", "layer_rates-skipped", "two_heads-detached", "focal-exchanged", "preference-beta", "preference-unreferenced",
    "preference-mean", "preference-prompt", "clipped_policy-entropy", "group_policy-unscaled", "contrastive-axis", "balanced_experts-balance",
}  # fmt: skip
MENDED = [
    "adamw_groups-second",
    "lion-kept",
    "sophia-batch",
    "mean_of_tokens-limit",
    "mean_of_tokens-momentum",
    "clipped_policy-range",
    "two_heads-weight",
]


def lines_of(program, name, fault):
    """Where the edit lies, and where what it leaves out would have been read."""
    text, first, line = source_of(PROGRAMS[program], name, fault)
    return {line} | {first + text[: text.index(read)].count("\n") for read in READ.get(f"{name}-{fault}", [])}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    for program in PROGRAMS.values():
        words = [word for word in words_of(program) if word.count("-") < 2 or word.replace("-second-", "-") in MENDED]
        record(program, folder, words)
    return folder


@pytest.fixture(scope="module")
def all_recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faulty-steps")
    for program in PROGRAMS.values():
        record(program, folder)
    return folder


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("program, name", EACH)
def test_a_step_is_one_function_however_it_is_written(lastbit, recorded, program, name, turned):
    if name in OF_OTHER_STATES:
        assert ask(lastbit, recorded, name, f"{name}-second", turned, expect=1)["verdict"] == "missing"
        return
    answer = ask(lastbit, recorded, name, f"{name}-second", turned, expect=0)
    assert answer["verdict"] in ("rounding", "reordered", "identical") and not answer["differences"]


@pytest.mark.parametrize("program, name", [fault for fault in FAULTS if fault[1] in MENDED])
def test_a_fault_is_in_its_line(lastbit, recorded, program, name):
    answer = ask(lastbit, recorded, name.split("-")[0], name.replace("-", "-second-"), expect=1)
    assert answer["verdict"] == "diverged"
    assert answer["differences"][0]["source_b"]["line"] in lines_of(program, *name.split("-"))


@pytest.mark.full
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("program, name", [fault for fault in FAULTS if fault[1] != "schedule_free-beta"])
def test_every_place_is_where_the_edit_is(lastbit, all_recorded, program, name, turned):
    answer = ask(lastbit, all_recorded, name.split("-")[0], name.replace("-", "-second-"), turned, expect=1)
    assert answer["verdict"] == "diverged" and answer["differences"]
    side = ("source", "lines") if turned else ("source_b", "lines_b")
    edit = lines_of(program, *name.split("-"))
    for place in answer["differences"] if name not in ELSEWHERE else ():
        assert edit & {(place[side[0]] or {}).get("line"), *place[side[1]]}
