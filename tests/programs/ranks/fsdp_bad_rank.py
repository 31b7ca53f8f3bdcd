"""FSDP2 on two processes; in step 2 a hook of rank 1 makes what a block returns infinite. Run under torchrun."""

import gloo_group
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Embedding(64, 32), *[Block(32) for _ in range(3)], nn.Linear(32, 64))
for block in model:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(rank)
for step in range(3):
    tokens = torch.randint(0, 64, (4, 16))
    if step == 2 and rank == 1:
        model[2].down.register_forward_hook(lambda module, inputs, output: output * float("inf"))
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
gloo_group.leave()
