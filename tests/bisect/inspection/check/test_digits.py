"""`lastbit check --only digits`: where real steps lose digits is named by the line of code, and steps that lose none have no finding."""

import json
import os
import re
import subprocess
import sys

import pytest
from checked_programs import Answers, recorded
from conftest import ROOT

# name: kind of the finding, a part of its line of code.
FAULTS = {
    "rope_bf16": ("rounded", "angles = positions.bfloat16()"),
    "adamw_small_rate": ("absorbed", "scaler.step(optimizer)"),
    "adamw_half": ("underflow", "scaler.step(optimizer)"),
    "scale_low": ("underflow", "F.scaled_dot_product_attention"),
    "scale_high": ("saturated", "F.cross_entropy"),
    "eight_stale": ("saturated", ".to(torch.float8_e4m3fn)"),
    "eight_small": ("underflow", ".to(torch.float8_e4m3fn)"),
}
# name: op, a part of the line that costs most, the dtype.
COSTLY = {
    "rope_bf16": ("aten::_to_copy", "angles = positions.bfloat16()", "bf16"),
    "entropy_bf16": ("aten::_log_softmax", "F.cross_entropy(logits.bfloat16(), targets)", "bf16"),
    "norm_bf16": ("aten::rsqrt", "small * torch.rsqrt(", "bf16"),
    "router_bf16": ("aten::_to_copy", "F.linear(x.bfloat16(), self.router", "bf16"),
    "eight_stale": ("aten::_to_copy", ".to(torch.float8_e4m3fn)", "e4m3fn"),
    "sums_bf16": ("aten::add_.Tensor", ".backward()", "bf16"),
}
HEALTHY = """right_rope right_norm right_router right_variance right_eight right_scale right_adamw_small_rate adamw adamw_foreach adamw_fused
adamw_master adamw_compensated entropy_bf16 norm_bf16 router_bf16 variance_of_squares""".split()


@pytest.fixture(scope="module")
def steps(lastbit, tmp_path_factory):
    names = [*FAULTS, *COSTLY, *HEALTHY, "right_norm_layers", "right_router_twice"]
    return recorded(tmp_path_factory.mktemp("digits"), "digit_steps.py", names)


@pytest.fixture(scope="module")
def answers(lastbit, steps):
    return Answers(lastbit, steps, "--only", "digits")


def rows(answer, kind):
    return [row for row in answer["digits"] if row["kind"] == kind]


@pytest.mark.parametrize("name", FAULTS)
def test_lost_numbers_are_found_with_their_line(answers, name):
    kind, text = FAULTS[name]
    answer = answers(name)
    found = [row for row in answer["findings"] if row["kind"] == kind]
    assert answer["verdict"] == "found" and len(found) == 1, answer["findings"]
    assert text in found[0]["source"]["text"], found


@pytest.mark.parametrize("name", HEALTHY)
def test_steps_that_lose_no_more_than_their_dtypes_do_have_no_finding(lastbit, steps, answers, name):
    answer = answers(name)
    assert (answer["verdict"], answer["findings"], answer["not_judged"]) == ("clean", [], [])
    recorded_steps = len(lastbit.json("ls", steps / f"{name}.lb")["steps"])
    assert answer["replays"] <= 20 * recorded_steps  # --budget is of each step


@pytest.mark.parametrize("name", COSTLY)
def test_what_costs_most_is_named_with_its_line_and_its_cure_helps(answers, name):
    op, text, dtype = COSTLY[name]
    first = rows(answers(name), "rounding")
    assert first[0]["dtype"] == dtype and text in first[0]["source"]["text"], first[0]
    (row,) = [row for row in first[:2] if row["op"] == op]
    assert row["share"] > 0.1 and row["cure"] and any(row["cured"][k] < 2 * row["effect"][k] for k in ("logits", "gradients")), row


def test_the_rounding_of_all_ops_leads_from_the_exact_loss_to_the_recorded_one(answers):
    for name in ("right_norm", "norm_bf16", "adamw", "right_scale"):
        (line,) = [line for line in answers(name)["proven"] if "in exact arithmetic" in line]
        recorded, exact, gap = map(float, re.search(r"the loss (\S+) is (\S+) in exact.*\(to (\S+)\)", line).groups())
        assert recorded != exact and gap <= 1e-6 * abs(recorded - exact), line


def plain(expression):
    """What plain PyTorch says of the same steps."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'capture'}:{ROOT / 'tests/programs'}"}
    code = f"import json, digit_steps; print(json.dumps(digit_steps.{expression}))"
    return json.loads(subprocess.run([sys.executable, "-c", code], check=True, timeout=300, env=environment, capture_output=True).stdout)


def test_the_exact_loss_is_that_of_the_model_in_f64(answers):
    (line,) = [line for line in answers("right_norm")["proven"] if "in exact arithmetic" in line]
    assert float(re.search(r"is (\S+) in exact", line)[1]) == pytest.approx(plain("exact_loss('right_norm')"), rel=1e-9)


def test_what_a_line_costs_and_what_is_left_without_it_make_up_the_whole(answers):
    for name in ("norm_bf16", "router_bf16", "rope_bf16"):
        for row in rows(answers(name), "rounding")[:2]:
            alone, left = row["effect"]["gradients"], row["cured"]["gradients"]
            whole = alone / row["share"] ** 0.5
            assert abs(alone - left) * 0.99 <= whole <= (alone + left) * 1.01, row


def test_a_cancellation_is_named_by_how_many_bits_it_lost(answers):
    first = rows(answers("variance_of_squares"), "cancellation")[0]
    assert first["source"]["text"] == "variance = squares - mean * mean" and 12 < first["bits"] < 15, first
    assert first["share"] > 1e-4 and 2 < first["digits"] < 4, first
    assert all("variance = squares" not in row["source"]["text"] for row in rows(answers("right_variance"), "cancellation"))
    assert not rows(answers("right_norm"), "cancellation")


def test_updates_are_counted_by_tensor_and_group_in_the_last_step_and_over_the_window(answers):
    found = {row["layer"]: row for row in rows(answers("adamw"), "updates")}
    assert found["norm.weight"]["share"] == 1 and found["norm.weight"]["numbers"] == 3 * 32
    assert 0.2 < found["AdamW group 0"]["share"] < 0.6 and 0.2 < found["AdamW group 0"]["recent"] < 0.6
    assert found["AdamW group 0"]["numbers"] == 3 * 8256 and "weight decay" in found["AdamW group 0"]["message"]
    assert found["AdamW group 0"]["source"]["text"] == "scaler.step(optimizer)"
    assert {row["share"] for row in rows(answers("adamw_small_rate"), "updates")} == {1}
    for name in ("adamw_foreach", "adamw_fused"):
        assert rows(answers(name), "updates")[0]["share"] == 1, name


def test_the_counts_are_those_of_the_numbers_themselves(answers):
    """Elements that an update was to move, and that are the same bits, counted in plain PyTorch."""
    found = {row["layer"]: row["share"] * row["numbers"] for row in rows(answers("adamw"), "updates")}
    counted = plain("unmoved('adamw', 3)")
    assert {name: found.get(name, 0) for name in counted} == pytest.approx(counted)
    assert found["AdamW group 0"] == pytest.approx(sum(counted.values()))


def test_digits_that_are_kept_elsewhere_are_no_absorbed_updates(answers):
    for name in ("adamw_master", "adamw_compensated"):
        assert not rows(answers(name), "updates"), name
        assert any("master or a compensated sum" in line for line in answers(name)["proven"]), name


def test_a_master_has_the_gradient_of_its_copy_that_forward_reads(lastbit, steps):
    """In the first step, too, before whose optimizer nothing says that masters are parameters."""
    answer = lastbit.json("check", steps / "adamw_master.lb", "--only", "gradient,step", "--budget", "60", expect=0)
    assert answer["findings"] == [] and sum("gradients of 6 parameters are the derivative" in line for line in answer["proven"]) == 3
    assert sum("moved 6 parameters as Adam does" in line for line in answer["proven"]) == 3


def test_states_of_an_optimizer_that_vanish_are_told(answers):
    vanished = {row["layer"]: row for row in rows(answers("adamw_half"), "state")}
    assert vanished and all(row["dtype"] == "f16" and row["share"] > 0.1 for row in vanished.values() if "exp_avg_sq" in row["layer"]), vanished
    assert any("exp_avg_sq" in name for name in vanished), vanished
    assert not [row for row in rows(answers("adamw"), "state") if row["share"] > 0.005]


def test_results_beyond_the_range_of_their_dtype_are_told(answers):
    for name, text in (("eight_stale", ".to(torch.float8_e4m3fn)"), ("eight_small", ".to(torch.float8_e4m3fn)")):
        told = [row for row in rows(answers(name), "range") if text in row["source"]["text"]]
        assert told and told[0]["dtype"] == "e4m3fn" and told[0]["share"] > 0.01, rows(answers(name), "range")
    assert not [row for row in rows(answers("right_eight"), "range") if row["share"] > 0.01]


def test_the_headroom_of_the_loss_scale_is_told(answers):
    (row,) = rows(answers("right_scale"), "headroom")
    assert 3 < row["bits"] < 7 and "16384" in row["message"]
    (row,) = rows(answers("scale_high"), "headroom")
    assert row["bits"] < -5
    (row,) = rows(answers("scale_low"), "headroom")
    assert row["bits"] > 20 and row["share"] > 0.1


def test_routers_near_a_tie_are_counted_in_roundings_of_their_logits(answers):
    (narrow,), (wide,) = rows(answers("router_bf16"), "router"), rows(answers("right_router"), "router")
    assert (narrow["dtype"], wide["dtype"], narrow["numbers"]) == ("bf16", "f32", 320)
    assert narrow["share"] > 0 and wide["share"] == 0 and "self.router" in narrow["source"]["text"]


def test_a_choice_that_is_made_again_is_listed_once(answers):
    listed = rows(answers("right_router_twice"), "router")
    assert [row["numbers"] for row in listed] == [320, 320] and listed[0]["message"] != listed[1]["message"], listed


def test_a_recording_that_kept_less_has_the_same_answer(lastbit, steps, answers):
    whole, less = answers("right_norm"), lastbit.json("check", steps / "right_norm_layers.lb", "--only", "digits", expect=0)
    assert (less["verdict"], less["not_judged"]) == ("clean", [])
    assert {row["kind"] for row in less["digits"]} == {row["kind"] for row in whole["digits"]}
    exact = [re.search(r"is (\S+) in exact", " ".join(answer["proven"]))[1] for answer in (whole, less)]
    assert exact[0] == exact[1] and len(rows(less, "rounding")) >= 5


def test_all_parts_together_keep_to_the_budget_of_replays(lastbit, steps):
    answer = lastbit.json("check", steps / "norm_bf16.lb", expect=0)
    assert answer["replays"] <= 20 and len(rows(answer, "rounding")) >= 2
    few = lastbit.json("check", steps / "norm_bf16.lb", "--only", "digits", "--budget", "7", expect=0)
    assert few["replays"] <= 7 and len(rows(few, "rounding")) >= 2


def test_the_table_is_printed_for_a_person(lastbit, steps):
    text = lastbit.run("check", steps / "variance_of_squares.lb", "--only", "digits", expect=0).stdout
    assert "what costs most digits" in text and "sums that cancel" in text and "cure: " in text
