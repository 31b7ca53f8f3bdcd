"""Two ranks that add up what their halves of a product gave, add the residual and take the RMSNorm, as tensor-parallel layers do."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.product = nn.Linear(32, 64, bias=False)
        self.weight = nn.Parameter(torch.rand(64) + 0.5)

    def forward(self, x, residual):
        y = self.product(x)
        dist.all_reduce(y)
        h = y + residual
        return self.weight * (h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(h.dtype)


def run(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    layer = Layer().bfloat16()
    residual = torch.randn(10, 64, generator=torch.Generator().manual_seed(7)).bfloat16()
    with torch.no_grad():
        layer(torch.randn(10, 32).bfloat16(), residual)
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    mp.spawn(run, (free,), nprocs=2)
