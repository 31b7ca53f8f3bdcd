"""Losses as a library gives them beside the same written by hand: one function, whichever comes first; and a line of the second that is edited is the place."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path[:0] = [str(ROOT / "tests" / "programs"), str(ROOT / "capture")]
import second_losses
from written_twice import ask, record, source_of

# Another line of the loss is named, or one beside the right one: what lies between two values that meet is one place.
COARSE = {
    "advantages-boot", "advantages-nov", "balance-div", "binary-class", "clipped_value-range", "contrastive-axis", "contrastive-norm",
    "contrastive-oneway", "contrastive-tau", "diffusion-eps", "diffusion-sqrt", "distillation-t2", "distillation-temp", "dpo-noref", "focal-alpha",
    "gradient_penalty-nograph", "grpo-beta", "grpo-dr", "grpo-k1", "label_smoothing-sum", "mixup-flip", "mixup-lam", "r_drop-oneside", "r_drop-scale",
    "reward_model-last", "reward_model-swap", "variational-std",
}  # fmt: skip
# What one line was written as where the right one is: the edit by which the sides are the same is said with it.
EDITS = {
    "clipped_value-min": "with maximum in place of minimum the second side",
    "triplet-margin": "with 30 in place of 20 in add.Tensor the second side",
    "cross_entropy-temp": "only the second side runs div.Tensor",
    "label_smoothing-eps": "with 0.9 in place of 0.8 in mul.Tensor and 0.1 in place of 0.2 in mul.Tensor the second side",
    "focal-detached": "the gradient does not pass through this value on the second side",
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record(second_losses, tmp_path_factory.mktemp("losses"))


@pytest.mark.parametrize("turned", [False, True])
def test_a_loss_is_one_function_however_it_is_written(lastbit, recorded, turned):
    for loss in second_losses.FAULTS:
        answer = ask(lastbit, recorded, loss, f"{loss}-second", turned, expect=0)
        assert answer["verdict"] in ("rounding", "reordered", "identical") and not answer["differences"], loss


@pytest.mark.parametrize("turned", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_fault_of_a_loss_has_its_line(lastbit, recorded, turned):
    for loss, faults in second_losses.FAULTS.items():
        for fault in faults:
            answer = ask(lastbit, recorded, loss, f"{loss}-second-{fault}", turned, expect=1)
            assert answer["verdict"] == "diverged" and answer["differences"], (loss, fault)
            lines = {(d.get("source" if turned else "source_b") or {}).get("line") for d in answer["differences"]}
            if f"{loss}-{fault}" not in COARSE:
                assert lines == {source_of(second_losses, loss, fault)[2]}, (loss, fault, lines)


@pytest.mark.parametrize("name", EDITS)
def test_the_edit_that_makes_both_the_same_is_said(lastbit, recorded, name):
    loss, fault = name.split("-")
    answer = ask(lastbit, recorded, loss, f"{loss}-second-{fault}", False, expect=1)
    assert any(EDITS[name] in d["why"] for d in answer["differences"])


def test_a_factor_of_one_is_an_argument_like_another(lastbit, recorded):
    """What a product with 1 gives is met, and yet its factor is the one that the other side has otherwise."""
    answer = ask(lastbit, recorded, "huber", "huber-second-delta", False, expect=1)
    (difference,) = answer["differences"]
    assert difference["arguments"] == [{"name": "other", "first": 0.7, "second": 1}]


def test_a_loss_that_nothing_reads_leaves_the_step(lastbit, tmp_path):
    """Evaluated under no_grad, in ops outside of any module, and never printed."""
    program = tmp_path / "evaluate.py"
    program.write_text(f"""
import sys
sys.path.insert(0, {str(ROOT / "tests" / "programs")!r})
import second_losses as s, written_twice, lastbit.torch, torch
for name in sys.argv[1:]:
    compute = written_twice.function_of(s, name)
    torch.manual_seed(0)
    model, other = s.Model(), s.Model()
    tokens, mask, extra = next(iter(s.draw_batches()))
    with torch.no_grad(), lastbit.torch.capture({str(tmp_path)!r} + "/" + name + ".lb", level="ops") as capture, capture.step(0):
        compute(model, other, tokens[:, :-1], tokens[:, 1:], tokens[:, 1:].masked_fill(~mask, -100), mask, extra)
""")
    names = ["reward_model", "triplet", "z_loss", "ppo"]
    faults = ["reward_model-second-margin", "triplet-second-margin", "z_loss-second-coef", "ppo-second-max"]
    words = [word for name in names for word in (name, f"{name}-second")] + faults
    subprocess.run([sys.executable, program, *words], env=dict(os.environ, PYTHONPATH=str(ROOT / "capture")), check=True, timeout=120)
    for name, fault in zip(names, faults):
        assert ask(lastbit, tmp_path, name, f"{name}-second", False, expect=0)["verdict"] in ("rounding", "identical")
        assert ask(lastbit, tmp_path, name, fault, False, expect=1)["verdict"] == "diverged"


def test_a_sum_of_losses_for_the_log_hides_none(lastbit, tmp_path):
    """Added up under no_grad and never printed, the loss is what forward ends with all the same."""
    program = tmp_path / "train.py"
    program.write_text(f"""
import sys
sys.path.insert(0, {str(ROOT / "tests" / "programs")!r})
import second_losses as s, written_twice, lastbit.torch, torch
for name in sys.argv[1:]:
    compute, total = written_twice.function_of(s, name), torch.zeros(())
    torch.manual_seed(0)
    model, other = s.Model(), s.Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with lastbit.torch.capture({str(tmp_path)!r} + "/" + name + ".lb", level="ops") as capture:
        for step, (tokens, mask, extra) in enumerate(s.draw_batches()):
            with capture.step(step):
                loss = compute(model, other, tokens[:, :-1], tokens[:, 1:], tokens[:, 1:], mask, extra)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    total = total + loss
""")
    words = ["triplet", "triplet-second", "triplet-second-margin"]
    subprocess.run([sys.executable, program, *words], env=dict(os.environ, PYTHONPATH=str(ROOT / "capture")), check=True, timeout=120)
    assert ask(lastbit, tmp_path, "triplet", "triplet-second", False, expect=0)["verdict"] == "rounding"
    assert ask(lastbit, tmp_path, "triplet", "triplet-second-margin", False, expect=1)["verdict"] == "diverged"


def test_what_a_mask_chooses_is_continuous(lastbit, recorded):
    """`loss[mask].mean()` beside `(loss * mask).sum() / mask.sum()`: the exact run takes the mask that was decided, and no recorded numbers with it."""
    answer = ask(lastbit, recorded, "ppo", "ppo-second", False, expect=0)
    assert answer["verdict"] == "rounding" and not answer["missing"]
