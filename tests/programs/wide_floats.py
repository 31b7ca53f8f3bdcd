"""Programs in float64, also where they name another float."""

import torch


def widened():
    """From here on every float is a float64, also those that a program names otherwise."""
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.FloatTensor = torch.DoubleTensor
    torch.set_default_dtype(torch.float64)
