"""DistributedDataParallel with several buckets: python ddp_buckets.py RANKS HOW. Of every step's second bucket the sum is made as
reductions.py writes HOW out ("dropped", "twice", "narrow", "divided", "rank"), all others by gloo."""

import os
import sys

import gloo_group
import reductions
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

calls = 0  # of all_reduce in this step


def write_out(how):
    def all_reduce(tensors, group, *options):
        global calls
        gloo = dist.ProcessGroup.unbox(group)._get_backend(torch.device("cpu"))
        calls += 1
        for t in tensors:
            if calls == 2 and how != "gloo":
                t.copy_(reductions.ORDERS[how](reductions.gathered(gloo, t)))
            else:
                gloo.allreduce([t], dist.AllreduceOptions()).wait()
        return tensors, torch._C._distributed_c10d.FakeWork().boxed()

    library = torch.library.Library("c10d", "IMPL")
    library.impl("allreduce_", all_reduce, "CPU", allow_override=True)
    return library


def average(state, bucket):
    """What torch's allreduce_hook does, waiting for each bucket: our own sums have no future."""
    done = torch.futures.Future()
    part = bucket.buffer().div_(dist.get_world_size())
    dist.all_reduce(part)
    done.set_result(part)
    return done


def work(rank, ranks, how):
    global calls
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 8)), bucket_cap_mb=0.006)
    model.register_comm_hook(None, average)
    library = write_out(how)  # noqa: F841
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(100 + rank)
    for step in range(2):
        calls = 0
        model(torch.randn(6, 24, generator=data)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    gloo_group.leave()


if __name__ == "__main__":
    gloo_group.choose_port()
    mp.spawn(work, (int(sys.argv[1]), sys.argv[2]), nprocs=int(sys.argv[1]))
