"""Tables whose gradients are sparse, and a layer of a graph: sparse_gradients.py [--optimizer sgd|adam|adagrad] [--fault].

--fault: the optimizer forgets one of two numbers that meet in one row, where a row is added to a table."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", default="adam")
parser.add_argument("--fault", action="store_true")
options = parser.parse_args()


def forgetful(self, other, alpha=1):
    """A kernel of our own underneath everything that watches ops."""
    indices, values = other._indices()[0], other._values()
    for k in range(len(indices)):
        if not (indices[:k] == indices[k]).any():
            self[indices[k]] += alpha * values[k]
    return self


if options.fault:
    library = torch.library.Library("aten", "IMPL")
    library.impl("add_.Tensor", forgetful, "SparseCPU")
torch.manual_seed(0)
torch.set_num_threads(1)
table, head = nn.Embedding(40, 8, sparse=True, padding_idx=0), nn.Linear(8, 40)
graph = torch.sparse_coo_tensor(torch.randint(0, 6, (2, 20)), torch.rand(20), (6, 6))
optimizer = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, foreach=False),
    "adam": lambda p: torch.optim.SparseAdam(list(p), 0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
}[options.optimizer](table.parameters())
dense = torch.optim.AdamW(head.parameters())
for step in range(3):
    tokens = torch.randint(0, 40, (6, 9))
    h = torch.stack([torch.sparse.mm(graph, sentence) for sentence in table(tokens).transpose(0, 1)], 1)
    loss = F.cross_entropy(head(h).flatten(0, 1), tokens.flatten())
    loss.backward()
    for one in (optimizer, dense):
        one.step()
        one.zero_grad()
    print(f"step {step} loss {loss.item():.6f}")
