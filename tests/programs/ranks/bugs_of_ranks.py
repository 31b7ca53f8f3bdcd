"""Bugs of record that need two ranks: bugs_of_ranks.py FOLDER NAME… writes FOLDER/NAME.lb; NAME_mended is the same as it should be.

stage_hooks     deepspeed#8154: the hook of every stage of a pipeline divides by the number of micro-batches, and so does the loss
context_sum     Megatron-LM#673: halves of a sequence on two ranks, whose gradients are summed where each loss is a mean of its half
local_positions OLMo-core#341: halves of a sequence on two ranks, each of which counts its positions from 0
vocabulary      ms-swift#9947: halves of the vocabulary on two ranks; log-probabilities of a rank's own words are summed by a collective that
                autograd does not know, so that the other rank's logits, which are in their denominator, get no gradient of them
smoothing       Megatron-LM#7452: halves of the vocabulary; what smoothing takes from all words is taken of the rank's own
sampler         LongLive#71: each rank's sampler has its own seed, so that they see the same samples at other times"""

import os
import pathlib
import sys

import gloo_group
import lastbit.torch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F

WIDTH, WORDS, ROWS, LENGTH, GAS = 16, 32, 2, 8, 4
DATA = torch.Generator()


class Sum(torch.autograd.Function):
    """The sum over ranks; each rank's gradient of it is the whole one."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Spread(torch.autograd.Function):
    """What all ranks hold goes to each one's part, and the gradients of the parts are summed."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class Layers(nn.Module):
    def __init__(self, words=WORDS, enter=lambda x: x):
        super().__init__()
        self.enter = enter
        self.wte, self.wpe, self.norm = nn.Embedding(WORDS, WIDTH), nn.Embedding(2 * LENGTH, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down, self.head = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH), nn.Linear(WIDTH, words, bias=False)

    def forward(self, ids, first=0):
        x = self.wte(ids) + self.wpe(torch.arange(first, first + ids.shape[-1]))
        return self.head(self.enter(x + self.down(F.gelu(self.up(self.norm(x))))))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)


def reduce_gradients(model, by):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= by


def stage_hooks(capture, rank, mended):
    torch.manual_seed(rank)
    stage = (
        nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH))
        if rank == 0
        else nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))
    )
    optimizer = adamw(stage)
    with capture.step(0):
        for ids in torch.randint(0, WORDS, (GAS, ROWS, LENGTH), generator=DATA):
            if rank == 0:
                x, g = stage(ids), torch.empty(ROWS, LENGTH, WIDTH)
                if not mended:
                    x.register_hook(lambda g: g / GAS)
                dist.send(x.detach(), 1)
                dist.recv(g, 1)
                x.backward(g)
            else:
                x = torch.empty(ROWS, LENGTH, WIDTH)
                dist.recv(x, 0)
                x.requires_grad_()
                (F.cross_entropy(stage(x).flatten(0, 1), ids.roll(-1, 1).flatten()) / GAS).backward()
                dist.send(x.grad, 0)
        optimizer.step()


def halves_of_a_sequence(capture, rank, first, by):
    model = Layers()
    optimizer = adamw(model)
    for step in range(2):
        ids = torch.randint(0, WORDS, (ROWS, 2 * LENGTH + 1), generator=DATA)
        mine = slice(rank * LENGTH, (rank + 1) * LENGTH)
        with capture.step(step):
            logits = model(ids[:, :-1][:, mine], first)
            F.cross_entropy(logits.flatten(0, 1), ids[:, 1:][:, mine].flatten()).backward()
            reduce_gradients(model, by)
            optimizer.step()
            optimizer.zero_grad()


def context_sum(capture, rank, mended):
    halves_of_a_sequence(capture, rank, rank * LENGTH, 2 if mended else 1)


def local_positions(capture, rank, mended):
    halves_of_a_sequence(capture, rank, rank * LENGTH if mended else 0, 2)


def halves_of_a_vocabulary(capture, rank, loss_of):
    model = Layers(WORDS // 2, Spread.apply)
    torch.manual_seed(50 + rank)
    nn.init.normal_(model.head.weight, std=0.2)
    optimizer = adamw(model)
    for step in range(2):
        ids = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=DATA)
        with capture.step(step):
            logits, targets = model(ids[:, :-1]), ids[:, 1:]
            largest = logits.detach().amax(-1)
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            logits = logits - largest[..., None]
            local = targets - rank * (WORDS // 2)
            owned = (local >= 0) & (local < WORDS // 2)
            chosen = logits.gather(-1, local.clamp(0, WORDS // 2 - 1)[..., None])[..., 0] * owned
            loss_of(logits, chosen).backward()
            optimizer.step()
            optimizer.zero_grad()


def vocabulary(capture, rank, mended):
    def loss_of(logits, chosen):
        total = Sum.apply(logits.exp().sum(-1)).log()
        if mended:
            return (total - Sum.apply(chosen)).mean()
        score = (chosen - total) * (chosen != 0)
        dist.all_reduce(score.detach())
        return -score.mean()

    halves_of_a_vocabulary(capture, rank, loss_of)


def smoothing(capture, rank, mended):
    def loss_of(logits, chosen):
        total = Sum.apply(logits.exp().sum(-1)).log()
        mean = Sum.apply(logits.sum(-1)) / WORDS if mended else logits.mean(-1)
        return (total - 0.9 * Sum.apply(chosen) - 0.1 * mean).mean()

    halves_of_a_vocabulary(capture, rank, loss_of)


def sampler(capture, rank, mended):
    data = torch.utils.data.TensorDataset(torch.randint(0, WORDS, (16, LENGTH + 1), generator=DATA))
    model = Layers()
    optimizer = adamw(model)
    order = torch.utils.data.distributed.DistributedSampler(data, num_replicas=2, rank=rank, seed=0 if mended else rank)
    for step, (ids,) in enumerate(torch.utils.data.DataLoader(data, batch_size=ROWS, sampler=order)):
        with capture.step(step):
            F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
            reduce_gradients(model, 2)
            optimizer.step()
            optimizer.zero_grad()


def work(rank, folder, names):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for name in names:
        torch.manual_seed(0)
        DATA.manual_seed(7)
        case, _, mended = name.partition("_mended")
        with lastbit.torch.capture(pathlib.Path(folder) / f"{name}.lb", level="ops") as capture:
            globals()[case](capture, rank, name.endswith("_mended"))
        dist.barrier()
    gloo_group.leave()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    gloo_group.choose_port()
    mp.spawn(work, (sys.argv[1], sys.argv[2:]), nprocs=2)
