"""The two functions of tensor parallelism (Megatron's f and g), over any sum of what several processes have."""

import torch


def of(added):
    """(Reduce, Spread): Reduce is `added` forward, Spread backward; the other way each hands on what it is given."""

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return added(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    class Spread(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return added(gradient)

    return Reduce, Spread
