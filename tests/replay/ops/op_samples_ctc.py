"""Connectionist temporal classification."""

import torch
from op_samples import generator


@generator
def ctc(draw, options):
    """Full lengths, so that nothing of log_alpha is left unwritten; one sample whose target is longer than its input, one without a target."""
    for dtype in (torch.float32, torch.float64):
        for steps, batch, classes, length in ((6, 3, 5, 2), (20, 2, 7, 6), (4, 2, 3, 4), (5, 1, 4, 0), (1, 2, 3, 1)):
            logits = draw.dense((steps, batch, classes), dtype, draw.choice([1.0, 8.0]))
            log_p = draw.layout(logits.log_softmax(-1))
            targets = torch.randint(1, classes, (batch, length), generator=draw.torch)
            if draw.choice([True, False]) and length:
                targets = targets.reshape(-1)
            lengths = [[steps] * batch, [length] * batch] if "lists" in options else [torch.full((batch,), n) for n in (steps, length)]
            zero = draw.choice([True, False])
            if "gradient" not in options:
                yield (log_p, targets, *lengths, 0, zero), {}
                continue
            loss, alpha = torch.ops.aten._ctc_loss(log_p, targets, [steps] * batch, [length] * batch, 0, zero)
            yield (draw.dense((batch,), dtype, 1.0), log_p, targets, *lengths, loss, alpha, 0, zero), {}
