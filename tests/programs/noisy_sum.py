"""Rows added by threads in whatever order they come: no two runs have the same bits. --scale plants a real difference. Under torchrun the
columns of both layers are split over the ranks, as tensor parallelism does."""

import argparse
import os
import threading

import numpy
import torch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--nth", type=int, help="changes nothing: the runs differ by themselves")
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)


@torch.library.custom_op("noisy::gather_rows", mutates_args=())
def gather_rows(x: torch.Tensor) -> torch.Tensor:
    """The sum of all rows, added one by one as each thread gets the lock."""
    rows, total, lock = x.numpy(), numpy.zeros(x.shape[1], numpy.float32), threading.Lock()
    order = entropy.permutation(len(rows))

    def add(some):
        for i in some:
            with lock:
                total[:] += rows[i]

    workers = [threading.Thread(target=add, args=(order[k::4],)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return torch.from_numpy(total)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 64 // ranks), torch.nn.Linear(64 // ranks, 64, bias=False)
        share = slice(rank * 64 // ranks, (rank + 1) * 64 // ranks)
        torch.manual_seed(1)  # the shards drew other numbers of their own
        whole = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        with torch.no_grad():
            self.first.weight.copy_(whole[0].weight[share]), self.first.bias.copy_(whole[0].bias[share])
            self.last.weight.copy_(whole[1].weight[:, share])

    def forward(self, x):
        y = self.last(torch.tanh(gather_rows(self.first(x)) / 16 * args.scale))
        if ranks > 1:
            torch.distributed.all_reduce(y)
        return y


rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
entropy = numpy.random.default_rng()
model, x = Model(), torch.randn(200, 64)
with torch.no_grad():
    print(model(x).sum().item())
if ranks > 1:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
