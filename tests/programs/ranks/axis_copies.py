"""What ranks hold in common over other axes than data parallelism, healthy and not: python axis_copies.py CASE [--fault].

sequence    hand-written tensor parallelism with the sequence shared out between the products (Megatron's layers);
            fault: the gradient of the last norm is not summed over the ranks
all-norms   the same; fault: of no norm it is
heads       heads shared out, with a norm over each head whose weight all ranks hold; fault: its gradient is not summed
kv          one head of keys and values that both ranks hold a copy of; fault: its gradient is not summed
tied        two pipeline stages whose embedding and output are tied; fault: their gradients are not summed
chunks      two pipeline stages of two chunks each; fault: the chunks of one rank begin from one seed
experts     experts of each rank's own, a router that all hold; fault: the router's gradient is not summed
local       each rank trains alone and now and then the ranks average their weights: nothing is wrong with that
copied      two pipeline stages whose layers are deep copies of one (nn.TransformerEncoder's way): nothing is wrong
biases      tensor parallelism whose shards have biases, which begin as zeros and go their own ways: nothing is wrong
late        data parallelism; fault: the last micro-batch's gradient is added to what was reduced
restored    data parallelism; fault: rank 1 goes on with another learning rate
"""

import argparse
import copy
import os

import gloo_group
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F

WIDTH, VOCABULARY, ROWS, LENGTH = 16, 32, 2, 8


class Gather(torch.autograd.Function):
    """Rows of all ranks one behind the other; backward sums and scatters them."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g.chunk(dist.get_world_size())[dist.get_rank()].contiguous()


class Scatter(torch.autograd.Function):
    """Sums over the ranks, of which each keeps its rows; backward gathers."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x.chunk(dist.get_world_size())[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx, g):
        parts = [torch.empty_like(g) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, g.contiguous())
        return torch.cat(parts)


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class Shards(nn.Module):
    """Two products, the first cut by columns, the second by rows; each rank draws its own part."""

    def __init__(self, rank, enter, leave, bias=False):
        super().__init__()
        state = torch.get_rng_state()
        torch.manual_seed(100 + rank)
        self.up, self.down = nn.Linear(WIDTH, WIDTH, bias=bias), nn.Linear(WIDTH, WIDTH, bias=False)
        if bias:
            nn.init.zeros_(self.up.bias)
        torch.set_rng_state(state)
        self.enter, self.leave = enter, leave

    def forward(self, x):
        return self.leave(self.down(F.gelu(self.up(self.enter(x)))))


class SequenceModel(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.shards = nn.ModuleList(Shards(rank, Gather.apply, Scatter.apply) for _ in range(2))
        self.final_norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = Scatter.apply(self.embed(ids) / dist.get_world_size())
        for norm, shards in zip(self.norms, self.shards):
            x = x + shards(norm(x))
        return self.head(Gather.apply(self.final_norm(x)) / 1.0)


class HeadModel(nn.Module):
    """Attention without much attention: values by head, each head normed."""

    def __init__(self, rank, copies):
        super().__init__()
        self.heads, self.size, self.copies = 2, WIDTH // 4, copies
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        if copies:  # one head of keys and values, which every rank holds
            self.kv = nn.Linear(WIDTH, self.size, bias=False)
        state = torch.get_rng_state()
        torch.manual_seed(100 + rank)
        self.queries = nn.Linear(WIDTH, self.heads * self.size, bias=False)
        self.out = nn.Linear(self.heads * self.size, WIDTH, bias=False)
        torch.set_rng_state(state)
        self.out_norm = nn.RMSNorm(self.size)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        y = Spread.apply(x)
        q = self.queries(y).unflatten(-1, (self.heads, self.size))
        if self.copies:
            kv = self.kv(y).unsqueeze(2)
            q = q * torch.sigmoid((q * kv).sum(-1, keepdim=True)) + kv
        q = self.out_norm(q) if not self.copies else q
        return self.head(x + Sum.apply(self.out(q.flatten(-2))))


class BiasModel(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.shards = Shards(rank, Spread.apply, Sum.apply, bias=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.shards(self.norm(x)))


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x.contiguous())
        return y

    @staticmethod
    def backward(ctx, g):
        return AllToAll.apply(g)


class ExpertModel(nn.Module):
    """A token's row goes to the expert of its place: half of them to each rank."""

    def __init__(self, rank):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.router = nn.Linear(WIDTH, 2, bias=False)
        state = torch.get_rng_state()
        torch.manual_seed(100 + rank)
        self.expert = nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.expert.bias)
        torch.set_rng_state(state)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed(ids).flatten(0, 1)
        weights = F.softmax(self.router(x), -1)[:, :1]
        y = AllToAll.apply(F.gelu(self.expert(AllToAll.apply(x))))
        return self.head(x + y * weights)


def mean_gradients(model, names, wanted=lambda name: True):
    for name in names:
        if wanted(name):
            g = dict(model.named_parameters())[name].grad
            dist.all_reduce(g)
            g /= dist.get_world_size()


def train(model, args, rank, finish, own_data=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)
    data = torch.Generator().manual_seed(7 + (rank if own_data else 0))
    for step in range(3):
        ids = torch.randint(0, VOCABULARY, (LENGTH, ROWS), generator=data)
        loss = F.cross_entropy(model(ids).flatten(0, -2), ids.roll(-1).flatten())
        loss.backward()
        finish(model, step)
        optimizer.step()
        optimizer.zero_grad()


def sums(names):
    def finish(model, step):
        for name, p in model.named_parameters():
            if name in names and p.grad is not None:
                dist.all_reduce(p.grad)

    return finish


def sequence(rank, args):
    model = SequenceModel(rank)
    norms = [n for n, _ in model.named_parameters() if "norm" in n]
    lost = norms if args.case == "all-norms" else ["final_norm.weight", "final_norm.bias"]
    # Each rank's loss is the whole one, and backward of its gather sums over them: twice the gradient everywhere alike.
    train(model, args, rank, sums([n for n in norms if not (args.fault and n in lost)]))


def heads(rank, args):
    model = HeadModel(rank, args.case == "kv")
    train(model, args, rank, sums([] if args.fault else ["out_norm.weight", "kv.weight"]))


def biases(rank, args):
    train(BiasModel(rank), args, rank, lambda model, step: None)


def experts(rank, args):
    model = ExpertModel(rank)
    names = [n for n, _ in model.named_parameters() if not n.startswith("expert")]
    train(model, args, rank, lambda m, step: mean_gradients(m, names, lambda n: not (args.fault and n == "router.weight")), own_data=True)


def local(rank, args):
    model = BiasFree()

    def finish(model, step):
        if step == 2:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= dist.get_world_size()

    train(model, args, rank, finish, own_data=True)


class BiasFree(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))


class Chunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.b(torch.tanh(self.a(x)))


class Stages(nn.Module):
    """What one rank holds: an embedding or an output, and chunks."""

    def __init__(self, rank, chunks):
        super().__init__()
        if rank == 0:
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
        else:
            self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.chunks = nn.ModuleList(chunks)


def pipeline(rank, args):
    """Chunk k lies on rank k % 2; what one rank gives the other goes on, and its gradient comes back the same way."""
    table = torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(3 if args.case == "tied" else 3 + rank)) / 4
    if args.case == "copied":
        torch.manual_seed(11 + rank)
        first = Chunk()
        chunks = [first, copy.deepcopy(first)]
    else:
        chunks = []
        for k in range(2 if args.case == "chunks" else 1):
            torch.manual_seed(11 + rank if args.fault and args.case == "chunks" else 11 + 2 * k + rank)
            chunks.append(Chunk())
    model = Stages(rank, chunks)
    with torch.no_grad():
        (model.embed if rank == 0 else model.output).weight.copy_(table)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)
    data = torch.Generator().manual_seed(7)
    turns = len(chunks) if args.case == "chunks" else 1
    for step in range(3):
        ids = torch.randint(0, VOCABULARY, (LENGTH, ROWS), generator=data)
        ends = []
        x = model.embed(ids) if rank == 0 else None
        for k in range(turns):
            if rank == 1 or k:
                x = torch.empty(LENGTH, ROWS, WIDTH)
                dist.recv(x, 1 - rank)
                x.requires_grad_()
            begin = x
            for chunk in [chunks[k]] if args.case == "chunks" else chunks:
                x = chunk(x)
            ends.append((begin, x))
            if rank == 0 or k < turns - 1:
                dist.send(x.detach(), 1 - rank)
        for k in reversed(range(turns)):
            begin, x = ends[k]
            if rank == 1 and k == turns - 1:
                F.cross_entropy(model.output(x).flatten(0, -2), ids.roll(-1).flatten()).backward()
            else:
                g = torch.empty_like(x)
                dist.recv(g, 1 - rank)
                x.backward(g)
            if rank == 1 or k:
                dist.send(begin.grad, 1 - rank)
        if args.case == "tied" and not args.fault:
            dist.all_reduce((model.embed if rank == 0 else model.output).weight.grad)
        optimizer.step()
        optimizer.zero_grad()


def halves(rank, args):
    model = BiasFree()
    names = [n for n, _ in model.named_parameters() if not (args.fault and n == "1.weight")]
    train(model, args, rank, lambda m, step: mean_gradients(m, names), own_data=True)


def data_parallel(rank, args):
    model = BiasFree()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)
    data = torch.Generator().manual_seed(7 + rank)
    for step in range(3):
        if args.fault and args.case == "restored" and step == 1 and rank == 1:
            optimizer.param_groups[0]["lr"] *= 0.9
        for micro in range(2):
            ids = torch.randint(0, VOCABULARY, (LENGTH, ROWS), generator=data)
            if args.fault and args.case == "late" and micro:
                mean_gradients(model, [n for n, _ in model.named_parameters()])
            (F.cross_entropy(model(ids).flatten(0, -2), ids.roll(-1).flatten()) / 2).backward()
        if not (args.fault and args.case == "late"):
            mean_gradients(model, [n for n, _ in model.named_parameters()])
        optimizer.step()
        optimizer.zero_grad()


CASES = {
    "sequence": sequence,
    "all-norms": sequence,
    "heads": heads,
    "kv": heads,
    "biases": biases,
    "experts": experts,
    "local": local,
    "tied": pipeline,
    "chunks": pipeline,
    "copied": pipeline,
    "halves": halves,
    "late": data_parallel,
    "restored": data_parallel,
}


def work(rank, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    CASES[args.case](rank, args)
    gloo_group.leave()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--fault", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    gloo_group.choose_port()
    mp.spawn(work, (given,), nprocs=2)
