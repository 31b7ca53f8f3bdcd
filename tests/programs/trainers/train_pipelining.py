"""Two stages, two micro-batches: torch finds out shapes by running each stage over unwritten memory."""

import planted  # noqa: F401
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)


class Stage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(16), torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


model = Stage()
schedule = ScheduleGPipe(PipelineStage(model, rank, 2, torch.device("cpu")), n_microbatches=2, loss_fn=lambda y, target: (y - target).square().mean())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    x = torch.randn(8, 16)
    schedule.step(x) if rank == 0 else schedule.step(target=torch.zeros(8, 16))
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
