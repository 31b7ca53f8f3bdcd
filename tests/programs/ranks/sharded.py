"""A small language model whose parameters are DTensors: torchrun --nproc-per-node 2 sharded.py fsdp|tp."""

import hashlib
import sys

import gloo_group
import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width=16, vocabulary=32):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def spread(model, how):
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def main(how):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    spread(model, how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    torch.manual_seed(dist.get_rank() if how == "fsdp" else 0)
    for _ in range(2):
        ids = torch.randint(0, 32, (4, 8))
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        if how == "fsdp":  # with tensor parallelism some parameters are DTensors and some are not: torch refuses
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    mine = [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]
    sys.stdout.write("rank %d %s\n" % (dist.get_rank(), hashlib.sha256(b"".join(p.numpy().tobytes() for p in mine)).hexdigest()))
    gloo_group.leave()


if __name__ == "__main__":
    main(sys.argv[1])
