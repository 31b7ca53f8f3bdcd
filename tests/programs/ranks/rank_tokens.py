"""Two ranks that train on tokens of a loader: seeded by the rank, or, as a mistake, alike (--same)."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seed = torch.Generator().manual_seed(7 if "--same" in sys.argv else 7 + rank)
dataset = [torch.randint(50, (4, 9), generator=seed) for _ in range(8)]
for batch in torch.utils.data.DataLoader(dataset, batch_size=None):
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
