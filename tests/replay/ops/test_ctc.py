"""Connectionist temporal classification where samples have other lengths: what nothing writes is as recorded, and faults are outside the bound."""

import op_harness as H
import pytest
import torch

INPUTS, LENGTHS = [12, 9, 5], [4, 2, 3]


def recorded():
    draw = torch.Generator().manual_seed(0)
    log_p = torch.randn(12, 3, 6, generator=draw).log_softmax(-1)
    targets = torch.randint(1, 6, (3, 4), generator=draw)
    return log_p, targets, torch.ops.aten._ctc_loss(log_p, targets, INPUTS, LENGTHS, 0, False)


def written(alpha):
    """Which elements of log_alpha the op writes."""
    mask = torch.zeros(alpha.shape, dtype=torch.bool)
    for b, (steps, labels) in enumerate(zip(INPUTS, LENGTHS)):
        mask[b, 0], mask[b, :steps, : 2 * labels + 1] = True, True
    return mask


def test_what_lies_behind_the_end_of_a_sample_is_taken_as_it_was_recorded():
    log_p, targets, (loss, alpha) = recorded()
    mask = written(alpha)
    alpha[~mask] = torch.arange(float((~mask).sum()))  # whatever memory held
    row, _ = H.find("aten::_ctc_loss")
    ours = H.run_branch(row, [log_p, targets, INPUTS, LENGTHS, 0, False], [torch.empty_like(loss), torch.empty_like(alpha)], [loss, alpha])
    assert torch.allclose(ours[0], loss, rtol=1e-5) and torch.equal(ours[1][~mask], alpha[~mask])
    assert torch.allclose(ours[1][mask], alpha[mask], rtol=1e-5)


def test_a_wrong_path_and_a_wrong_share_are_outside_the_bound():
    """The faults: a label that repeats without a blank between, a gradient of the neighbouring label; torch's own is inside."""
    log_p, targets, (loss, alpha) = recorded()
    row, _ = H.find("aten::_ctc_loss_backward")
    grad = torch.tensor([1.0, 0.5, 2.0])
    values = [grad, log_p, targets, INPUTS, LENGTHS, loss, alpha, 0, False]
    right = torch.ops.aten._ctc_loss_backward(*values)
    assert float(H.ratios(row, values, [right])[0].max()) <= 1
    wrong = right.clone()
    wrong[3, 0, [1, 2]] = right[3, 0, [2, 1]]
    assert float(H.ratios(row, values, [wrong])[0].max()) > 1
    row, _ = H.find("aten::_ctc_loss")
    values = [log_p, targets, INPUTS, LENGTHS, 0, False]
    found = H.ratios(row, values, [loss * (1 + 1e-4), alpha])[0]
    assert bool((found > 1).all())


def test_a_batch_of_any_size_is_computed():
    """As many samples as a training step of speech has: room that was taken for each of them ran out at 16."""
    draw = torch.Generator().manual_seed(1)
    log_p, targets = torch.randn(9, 70, 6, generator=draw).log_softmax(-1), torch.randint(1, 6, (70, 3), generator=draw)
    loss, alpha = torch.ops.aten._ctc_loss(log_p, targets, [9] * 70, [3] * 70, 0, False)
    for name, values, right in (
        ("aten::_ctc_loss", [log_p, targets, [9] * 70, [3] * 70, 0, False], [loss, alpha]),
        (
            "aten::_ctc_loss_backward",
            [torch.ones(70), log_p, targets, [9] * 70, [3] * 70, loss, alpha, 0, False],
            [torch.ops.aten._ctc_loss_backward(torch.ones(70), log_p, targets, [9] * 70, [3] * 70, loss, alpha, 0, False)],
        ),
    ):
        assert all(float(found.max()) <= 1 for found in H.ratios(H.find(name)[0], values, right))


@pytest.mark.parametrize("lengths", [([13, 9, 5], LENGTHS), (INPUTS, [5, 2, 3]), ([12, 9], LENGTHS)])
def test_lengths_out_of_range_are_refused(lengths):
    log_p, targets, (loss, alpha) = recorded()
    row, _ = H.find("aten::_ctc_loss")
    with pytest.raises(H.Unsupported):
        H.run(row, [log_p, targets, *lengths, 0, False], [torch.empty_like(loss), torch.empty_like(alpha)])
