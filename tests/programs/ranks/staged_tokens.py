"""A language model in three stages of a pipeline, by gloo: staged_tokens.py FOLDER NAME… writes FOLDER/NAME.lb, a capture of three ranks.

NAME is `clean`, `one` (a single micro-batch), `torch` (torch.distributed.pipelining's GPipe), `padded` (a mask for all stages), or STAGE and a
fault: `0_future`, `2_future`, `1_rows`, `2_rows`, `1_padded`, `2_scored` (against the token after the next)."""

import os
import pathlib
import sys

import gloo_group
import lastbit.torch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

WORDS, WIDTH, ROWS, LENGTH, GAS, STAGES = 50, 24, 3, 13, 2, 3


class Block(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.norm, self.qkv, self.out, self.fault = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), fault

    def forward(self, x, visible=None):
        q, k, v = (part.unflatten(-1, (2, 12)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(1 if self.fault == "future" else 0)
        if visible is not None and self.fault != "padded":
            seen = seen & visible[:, None, None, :]
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2))
        if self.fault == "rows":
            x = x - x.mean(0, keepdim=True)
        return x


class Stage(nn.Module):
    def __init__(self, rank, fault):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH) if rank == 0 else None
        self.block = Block(fault)
        self.head = nn.Linear(WIDTH, WORDS) if rank == STAGES - 1 else None

    def forward(self, x, visible=None):
        x = self.block(x if self.table is None else self.table(x), visible)
        return x if self.head is None else self.head(x)


def by_hand(stage, rank, batches, masks, fault):
    for ids, visible in zip(batches, masks):
        x = ids
        if rank:
            x = torch.empty(ROWS, LENGTH, WIDTH)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y, g = stage(x, visible), torch.empty(ROWS, LENGTH, WIDTH)
        if rank == STAGES - 1:
            by = 2 if fault == "scored" else 1
            labels = torch.full_like(ids, -100)
            labels[:, :-by] = ids[:, by:]
            if visible is not None:
                labels[:, :-by][~visible[:, :-by]] = -100
            (F.cross_entropy(y.flatten(0, 1), labels.flatten()) / len(batches)).backward()
        else:
            dist.send(y.detach(), rank + 1)
            dist.recv(g, rank + 1)
            y.backward(g)
        if rank:
            dist.send(x.grad, rank - 1)


def work(rank, folder, names):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(STAGES))
    dist.init_process_group("gloo", rank=rank, world_size=STAGES)
    for name in names:
        at, _, fault = name.partition("_")
        torch.manual_seed(rank)
        stage = Stage(rank, fault if at == str(rank) else "")
        optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-2)
        batches = torch.randint(1, WORDS, (1 if name == "one" else GAS, ROWS, LENGTH), generator=torch.Generator().manual_seed(7))
        masks = [None] * len(batches)
        if "padded" in name:
            masks = [torch.arange(LENGTH) >= torch.tensor([[0], [4], [5]]) for _ in batches]
            batches = [torch.where(visible, ids, 0) for ids, visible in zip(batches, masks)]
        schedule = None
        if name == "torch":
            loss = lambda y, ids: F.cross_entropy(y[:, :-1].flatten(0, 1), ids[:, 1:].flatten())  # noqa: E731
            schedule = ScheduleGPipe(PipelineStage(stage, rank, STAGES, torch.device("cpu")), GAS, loss_fn=loss)
        with lastbit.torch.capture(pathlib.Path(folder) / f"{name}.lb", level="ops", steps="1") as capture:
            for step in range(2):  # shapes are exchanged in the first
                with capture.step(step):
                    if schedule:
                        ids = batches.flatten(0, 1)
                        schedule.step(*([ids] if rank == 0 else []), **({"target": ids} if rank == STAGES - 1 else {}))
                    else:
                        by_hand(stage, rank, batches, masks, fault)
                    optimizer.step()
                    optimizer.zero_grad()
        dist.barrier()
    gloo_group.leave()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    gloo_group.choose_port()
    mp.spawn(work, (sys.argv[1], sys.argv[2:]), nprocs=STAGES)
