"""Inputs of the fused Adagrad step."""

import torch
from op_samples import generator


@generator
def fused_adagrad(draw, options):
    shapes = [(4,), (3, 5), (33,), (130,)]
    for dtype in (torch.float32, torch.float64):
        for maximize, decay, scale in ((False, 0.0, None), (False, 0.1, None), (True, 0.01, None), (False, 0.1, 8.0)):
            make = lambda s: [draw.dense(shape, dtype, s) for shape in shapes]  # noqa: E731
            steps = [torch.tensor(float(draw.choice([1, 2, 7]))) for _ in shapes]
            yield (
                (make(1.0), make(0.1), [t.abs() for t in make(0.1)], steps),
                dict(
                    lr=0.1,
                    lr_decay=draw.choice([0.0, 0.01]),
                    weight_decay=decay,
                    eps=1e-10,
                    maximize=maximize,
                    grad_scale=None if scale is None else torch.tensor(scale),
                    found_inf=None if scale is None else torch.tensor(float(draw.choice([0, 1]))),
                ),
            )
