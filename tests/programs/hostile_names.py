"""Two runs whose modules, parameters, taps and scalars have names of a stranger (spelt_names.py); in the second one layer gives an infinity.

hostile_names.py FOLDER
"""

import pathlib
import sys

import lastbit.torch
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from spelt_names import BAD_LAYER, LAYERS  # noqa: E402


class Layer(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.register_parameter("w" + LAYERS[5], torch.nn.Parameter(torch.full((4,), scale)))

    def forward(self, x):
        (weight,) = self.parameters()
        return torch.tanh(x * weight) + x


def run(folder, broken):
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    for name in LAYERS:
        model.add_module(name, Layer(float("inf") if broken and name == BAD_LAYER else 0.5))
    step = torch.optim.SGD(model.parameters(), 0.1)
    with lastbit.torch.capture(folder, level="ops") as capture, capture.step(0):
        x = lastbit.torch.tap("tap" + LAYERS[8], torch.ones(2, 4))
        loss = model(torch.ones(2, 4) if x is None else x).sum()
        loss.backward()
        step.step()
        capture.scalar("loss" + LAYERS[9], loss)


if __name__ == "__main__":
    run(sys.argv[1] + "/good.lb", False)
    run(sys.argv[1] + "/bad.lb", True)
