"""Data-parallel training on many ranks of one machine: many_ranks.py OUT RANKS [--steps N] [--layers N] [--poison RANK:LAYER[:STEP]].

Ranks are forked behind the import of torch, so that 64 of them start in seconds. Each has rows of its own, averages its gradients with
the others', one all-reduce a tensor, and steps a copy of the model by AdamW. `--poison`: on that rank what the layer gives has the
highest bit of one exponent turned over, as broken hardware does, from STEP on (0)."""

import argparse
import os

import lastbit.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

WIDTH, WORDS, ROWS, LENGTH = 8, 16, 2, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def turn_a_bit(module, inputs, output):
    """No op sees it: the memory is written behind torch's back."""
    numbers = output.detach().numpy().view("int32")
    numbers.flat[3] ^= 1 << 28


def train(rank, ranks, out, options):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model(options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    poison = [int(x) for x in options.poison.split(":")] if options.poison else None
    with lastbit.torch.capture(out, level=options.level) as capture:
        for step in range(options.steps):
            draws = torch.Generator().manual_seed(1000 * step + rank)
            ids = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=draws)
            if poison and poison[0] == rank and step == (poison + [0])[2]:
                model.layers[poison[1]].up.register_forward_hook(turn_a_bit)
            with capture.step(step):
                loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
                loss.backward()
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= ranks
                optimizer.step()
                optimizer.zero_grad()
    dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("ranks", type=int)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--level", default="ops")
    parser.add_argument("--poison", default="")
    options = parser.parse_args()
    children = []
    store = f"{options.out}.store"
    for rank in range(options.ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                dist.init_process_group("gloo", init_method=f"file://{os.path.abspath(store)}", rank=rank, world_size=options.ranks)
                train(rank, options.ranks, options.out, options)
                dist.destroy_process_group()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    failed = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.path.exists(store) and os.unlink(store)
    raise SystemExit(any(failed))


if __name__ == "__main__":
    main()
