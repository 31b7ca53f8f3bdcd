"""All-reduce by torch.distributed, or written by hand: python written_reductions.py RANKS HOW[:DTYPE] …, each HOW a step of its own.

Ways over messages: "ring" in chunks, "ring-whole" with the whole tensor, "doubling" (recursive doubling), "halving" (recursive halving, then
doubling), "tree" (binomial, down to rank 0 and back), "chain" (a running sum from rank to rank, then broadcast). Over all_gather and
additions: "rank", "reverse", "pairwise", "stack", "wide". "all_reduce" is the library's. "HOW.FAULT" goes wrong: what rank 1 brings is
`dropped`, `twice` there, `scaled`, or the result is `divided`."""

import argparse
import os

import gloo_group
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def exchange(out, to, source):
    """Sends `out` and gives what came in its shape."""
    into = torch.empty_like(out)
    waiting = [dist.isend(out, to), dist.irecv(into, source)]
    for work in waiting:
        work.wait()
    return into


def exchange_blocking(out, to, source):
    """The same by calls that wait, even ranks first."""
    into = torch.empty_like(out)
    if dist.get_rank() % 2 == 0:
        dist.send(out, to)
        dist.recv(into, source)
    else:
        dist.recv(into, source)
        dist.send(out, to)
    return into


def exchange_batch(out, to, source):
    into = torch.empty_like(out)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, source)]):
        work.wait()
    return into


def ring(x, exchange=exchange):
    """Reduce-scatter and all-gather: after n - 1 hops rank r has the sum of chunk r + 1."""
    n, rank = dist.get_world_size(), dist.get_rank()
    chunks = [c.clone() for c in x.reshape(-1).chunk(n)]
    for hop in range(n - 1):
        send, add = (rank - hop) % n, (rank - hop - 1) % n
        chunks[add] = padded(chunks[add], exchange, chunks[send], (rank + 1) % n, (rank - 1) % n)
    for hop in range(n - 1):
        chunks[(rank - hop) % n] = exchange(chunks[(rank + 1 - hop) % n].contiguous(), (rank + 1) % n, (rank - 1) % n)
    return torch.cat(chunks).reshape(x.shape)


def padded(mine, exchange, out, to, source):
    return mine + exchange(out, to, source)


def ring_in_place(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    out = x.reshape(-1).clone()
    chunks = list(out.chunk(n))
    for hop in range(n - 1):
        chunks[(rank - hop - 1) % n] += exchange(chunks[(rank - hop) % n], (rank + 1) % n, (rank - 1) % n)
    for hop in range(n - 1):
        chunks[(rank - hop) % n].copy_(exchange(chunks[(rank + 1 - hop) % n], (rank + 1) % n, (rank - 1) % n))
    return out.reshape(x.shape)


def ring_whole(x):
    """Every rank's tensor goes once around; each rank adds what comes."""
    n, rank = dist.get_world_size(), dist.get_rank()
    total, passing = x.clone(), x
    for _ in range(n - 1):
        passing = exchange(passing, (rank + 1) % n, (rank - 1) % n)
        total = total + passing
    return total


def doubling(x):
    rank, distance = dist.get_rank(), 1
    while distance < dist.get_world_size():
        x = x + exchange(x, rank ^ distance, rank ^ distance)
        distance *= 2
    return x


def halving(x):
    """Recursive halving, the far partner first, then doubling."""
    n, rank = dist.get_world_size(), dist.get_rank()
    flat, parts, distance = x.reshape(-1), [], n // 2
    while distance:
        low, high = flat.chunk(2)
        keep, give = (low, high) if not rank & distance else (high, low)
        flat = keep + exchange(give.contiguous(), rank ^ distance, rank ^ distance)
        parts.append(distance)
        distance //= 2
    for distance in reversed(parts):
        other = exchange(flat, rank ^ distance, rank ^ distance)
        flat = torch.cat([flat, other] if not rank & distance else [other, flat])
    return flat.reshape(x.shape)


def tree(x):
    """A binomial tree down to rank 0, and back."""
    n, rank, distance = dist.get_world_size(), dist.get_rank(), 1
    while distance < n:
        if rank % (2 * distance) == distance:
            dist.send(x, rank - distance)
            break
        if rank + distance < n:
            part = torch.empty_like(x)
            dist.recv(part, rank + distance)
            x = x + part
        distance *= 2
    distance = 1
    while distance < n:
        distance *= 2
    while distance > 1:
        distance //= 2
        if rank % (2 * distance) == 0 and rank + distance < n:
            dist.send(x, rank + distance)
        elif rank % (2 * distance) == distance:
            x = torch.empty_like(x)
            dist.recv(x, rank - distance)
    return x


def chain(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    if rank:
        before = torch.empty_like(x)
        dist.recv(before, rank - 1)
        x = before + x
    else:
        x = x.clone()
    if rank < n - 1:
        dist.send(x, rank + 1)
    dist.broadcast(x, n - 1)
    return x


def gathered(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts


def in_order(parts):
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def in_pairs(parts):
    while len(parts) > 1:
        parts = [parts[i] + parts[i + 1] if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


def library(x):
    x = x.clone()
    dist.all_reduce(x)
    return x


WAYS = {
    "all_reduce": library,
    "ring": ring,
    "ring-blocking": lambda x: ring(x, exchange_blocking),
    "ring-batch": lambda x: ring(x, exchange_batch),
    "ring-in-place": ring_in_place,
    "ring-whole": ring_whole,
    "doubling": doubling,
    "halving": halving,
    "tree": tree,
    "chain": chain,
    "rank": lambda x: in_order(gathered(x)),
    "reverse": lambda x: in_order(gathered(x)[::-1]),
    "pairwise": lambda x: in_pairs(gathered(x)),
    "stack": lambda x: torch.stack(gathered(x)).sum(0),
    "wide": lambda x: in_order([p.double() if p.dtype == torch.float32 else p.float() for p in gathered(x)]).to(x.dtype),
}


class RowParallel(torch.nn.Module):
    how = "all_reduce"

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(24, 60) / 5)

    def forward(self, x):
        way, _, fault = self.how.partition(".")
        part = x @ self.weight
        if dist.get_rank() == 1:
            part = part * {"dropped": 0.0, "twice": 2.0, "scaled": 1.01}.get(fault, 1.0) if fault in ("dropped", "twice", "scaled") else part
        total = WAYS[way](part)
        return total / dist.get_world_size() if fault == "divided" else total


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.norm = RowParallel(), torch.nn.LayerNorm(60)

    def forward(self, x):
        return self.norm(self.down(x))


def work(rank, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(args.ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    torch.manual_seed(100 + rank)
    model = Model()
    for word in args.how:
        RowParallel.how, _, dtype = word.partition(":")
        dtype = getattr(torch, dtype or "float32")
        x = torch.randn(32, 24)
        with torch.no_grad():
            model.to(dtype)(x.to(dtype))
    gloo_group.leave()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int)
    parser.add_argument("how", nargs="+")
    args = parser.parse_args()
    gloo_group.choose_port()
    mp.spawn(work, (args,), nprocs=args.ranks)
