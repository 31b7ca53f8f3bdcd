"""An update in one op of its own, as an 8-bit optimizer has it: it writes a state that one of its uses lacks. `inf`: a weight comes
with an infinity in a row that nothing reads."""

import sys
from typing import Optional

import torch

torch.manual_seed(0)


@torch.library.custom_op("house::update", mutates_args=("p", "state"))
def update(p: torch.Tensor, g: torch.Tensor, state: Optional[torch.Tensor], lr: float) -> None:
    if state is not None:
        state.mul_(0.5).add_(g)
    p.sub_(lr * (g if state is None else state))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
        if "inf" in sys.argv:
            self.spare.weight.data[1, 2] = torch.inf

    def forward(self, x):
        return self.used(x) + self.spare.weight[0, :4]


if __name__ == "__main__":
    net = Net()
    momentum = torch.zeros_like(net.used.weight)
    net(torch.randn(5, 8)).square().sum().backward()
    with torch.no_grad():
        torch.ops.house.update(net.used.weight, net.used.weight.grad, momentum, 0.1)
        torch.ops.house.update(net.spare.weight, net.spare.weight.grad, None, 0.1)
