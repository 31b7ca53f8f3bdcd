"""Sums whose order depends on --threads or on who computes them (--how)."""
import argparse
import numpy
import torch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--inner", type=int, default=64, help="terms of the products")
parser.add_argument("--how", choices=["torch", "numpy", "blocked"], default="torch")
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(0)
a, x = torch.randn(48, args.inner), torch.randn(100003)
library = torch.library.Library("aten", "IMPL")
if args.how == "numpy":
    library.impl("sum", lambda x, dtype=None: torch.tensor(x.numpy().sum()), "CPU")
elif args.how == "blocked":
    def blocked(x, dtype=None):
        total = torch.zeros((), dtype=x.dtype)
        for block in x.split(4096):
            total = total + torch.tensor(numpy.add.accumulate(block.numpy())[-1])
        return total
    library.impl("sum", blocked, "CPU")


class Sums(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(args.inner, 64))

    def forward(self, a, x):
        return (a @ self.weight) * x.sum()


model = Sums()
with torch.no_grad():
    print(model(a, x)[0, 0].item())
