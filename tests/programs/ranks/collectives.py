"""Every collective that torch's gloo has, over several dtypes and sizes: python collectives.py RANKS."""

import os
import sys

import gloo_group
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def every_collective(rank, world):
    def seeded(*shape, dtype=torch.float32):
        return torch.randn(*shape).to(dtype)

    for dtype, size in ((torch.float32, 7), (torch.float32, 300001), (torch.bfloat16, 1000), (torch.float16, 4097)):
        dist.all_reduce(seeded(size, dtype=dtype))
    dist.all_reduce(torch.randint(0, 100, (9,)))
    t = seeded(7)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    dist.all_reduce(t, op=dist.ReduceOp.PRODUCT)
    dist.broadcast(t, world - 1)
    dist.reduce(seeded(33), 0)
    dist.all_gather([torch.empty(5) for _ in range(world)], seeded(5))
    dist.all_gather_into_tensor(torch.empty(2 * world), seeded(2))
    dist.reduce_scatter_tensor(torch.empty(6), seeded(6 * world))
    dist.all_to_all_single(torch.empty(3 * world), seeded(3 * world))
    dist.scatter(torch.empty(4), [seeded(4) for _ in range(world)] if rank == 0 else None)
    dist.gather(seeded(4), [torch.empty(4) for _ in range(world)] if rank == 0 else None)
    dist.barrier()


def work(rank, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 8))
    model = torch.nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    for _ in range(3):
        x, y = torch.randn(16, 64), torch.randint(0, 8, (16,))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        every_collective(rank, world)
    gloo_group.leave()


if __name__ == "__main__":
    ranks = int(sys.argv[1])
    gloo_group.choose_port()
    mp.spawn(work, (ranks,), nprocs=ranks)
