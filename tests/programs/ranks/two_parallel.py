"""One Llama twice, each on any number of processes: transformers' own by what torch ships (DDP, FSDP2, DTensor), and a decoder written from the
papers that shares its work out by hand (Megatron's columns and rows, a vocabulary in parts, the sequence in parts, stages). Same weights, same tokens.

python two_parallel.py transformers|decoder [--how ddp|fsdp2|tp|sp|pp] [--fault NAME]
"""

import argparse
import math
import os

import gloo_group
import sum_functions
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, LAYERS, HEADS, INNER, WORDS, BATCH, LENGTH = 32, 2, 4, 48, 40, 4, 6
SIZE = WIDTH // HEADS

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("side", choices=["transformers", "decoder"])
parser.add_argument("--how", choices=["ddp", "fsdp2", "tp", "sp", "pp"])
parser.add_argument("--fault", action="append", default=[])
parser.add_argument("--steps", type=int, default=1)
args = parser.parse_args()
faults = args.fault
torch.set_num_threads(1)
world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
by_batch = args.how in ("ddp", "fsdp2")
parts = world if args.how in ("tp", "sp") else 1  # of weights


def summed(x):
    x = x.clone()
    dist.all_reduce(x)
    return x


def gathered(x):
    """Parts of the sequence of all processes."""
    pieces = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(pieces, x.contiguous())
    return torch.cat(pieces, 1)


def scattered(x):
    mine = torch.empty_like(x[:, : x.shape[1] // world])
    dist.reduce_scatter(mine, [part.contiguous() for part in x.chunk(world, 1)])
    return mine


Reduce, Spread = sum_functions.of(summed)


class Gather(torch.autograd.Function):
    forward, backward = staticmethod(lambda ctx, x: gathered(x)), staticmethod(lambda ctx, g: scattered(g))


class Scatter(torch.autograd.Function):
    forward, backward = staticmethod(lambda ctx, x: scattered(x)), staticmethod(lambda ctx, g: gathered(g))


def enter(x):
    """Before columns of a weight."""
    return x if parts == 1 else Gather.apply(x) if args.how == "sp" else x if "spread" in faults else Spread.apply(x)


def leave(x):
    """Behind rows of a weight."""
    return x if parts == 1 else Scatter.apply(x) if args.how == "sp" else Reduce.apply(x)


class Scale(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(WIDTH)), eps

    def forward(self, x):
        return functional.rms_norm(x, (WIDTH,), self.gain, self.eps)


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.joint, self.out = nn.Linear(WIDTH, 3 * WIDTH // parts, bias=False), nn.Linear(WIDTH // parts, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        x = enter(x)
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, -1, SIZE).transpose(1, 2) for t in self.joint(x).chunk(3, -1))
        q, k = self.turned(q, cos, sin), self.turned(k, cos, sin)
        scores = q @ k.transpose(-1, -2) / math.sqrt(SIZE)
        if "scale" in faults and self.layer == 1:
            scores = scores * 1.1
        mask = torch.full((length, length), -math.inf).triu(1)
        return leave(self.out(((scores + mask).softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)))

    @staticmethod
    def turned(t, cos, sin):
        a, b = t.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * INNER // parts, bias=False), nn.Linear(INNER // parts, WIDTH, bias=False)

    def forward(self, x):
        gate, value = self.up(enter(x)).chunk(2, -1)
        return leave(self.down(functional.silu(gate) * value))


class Block(nn.Module):
    def __init__(self, layer, eps):
        super().__init__()
        self.layer, self.before = layer, Scale(eps)
        odd = layer == 1 and ("eps" in faults or ("rank_eps" in faults and rank == 1))
        self.between = Scale(1e-2 if odd else eps)
        self.mix, self.feed = Attention(layer), Feed()

    def forward(self, x, cos, sin):
        x = x + self.mix(self.before(x), cos, sin)
        return x + self.feed(self.between(x))


class Words(nn.Module):
    """A part of the vocabulary: other words give nothing here."""

    def __init__(self):
        super().__init__()
        self.first, self.weight = rank * WORDS // parts if parts > 1 else 0, nn.Parameter(torch.empty(WORDS // parts, WIDTH))

    def forward(self, ids):
        if parts == 1:
            return functional.embedding(ids, self.weight)
        foreign = (ids < self.first) | (ids >= self.first + WORDS // parts)
        x = functional.embedding((ids - self.first).masked_fill(foreign, 0), self.weight).masked_fill(foreign[..., None], 0.0)
        return leave(x)


class ParallelEntropy(torch.autograd.Function):
    """Cross entropy over logits of which each process has a part."""

    @staticmethod
    def forward(ctx, logits, wanted, first):
        most = logits.max(-1).values
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        logits = logits - most[:, None]
        foreign = (wanted < first) | (wanted >= first + logits.shape[1])
        own = (wanted - first).masked_fill(foreign, 0)
        hit = logits.gather(1, own[:, None])[:, 0].masked_fill(foreign, 0.0)
        dist.all_reduce(hit)
        exps = logits.exp()
        total = exps.sum(-1)
        if "local_sum" not in faults:
            dist.all_reduce(total)
        ctx.save_for_backward(exps / total[:, None], own, foreign)
        return (total.log() - hit).mean()

    @staticmethod
    def backward(ctx, gradient):
        shares, own, foreign = ctx.saved_tensors
        shares = shares.clone()
        shares.scatter_add_(1, own[:, None], (-1.0 + foreign.float())[:, None])
        return shares * (gradient / len(own)), None, None


class Decoder(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.words = Words()
        self.blocks = nn.ModuleList(Block(i, eps) for i in range(LAYERS))
        self.last, self.head = Scale(eps), nn.Linear(WIDTH, WORDS // parts, bias=False)
        angles = torch.outer(torch.arange(64).float(), 1 / 10000.0 ** (torch.arange(0, SIZE, 2).float() / SIZE))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids):
        x, cos, sin = self.words(ids), self.cos[:LENGTH], self.sin[:LENGTH]
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(enter(self.last(x)))


def columns(t):
    return t.chunk(parts, 0)[rank % parts]


def rows(t):
    return t.chunk(parts, 1)[rank % parts]


def port(state, decoder):
    with torch.no_grad():
        decoder.words.weight.copy_(columns(state["model.embed_tokens.weight"]))
        decoder.last.gain.copy_(state["model.norm.weight"])
        decoder.head.weight.copy_(columns(state["lm_head.weight"]))
        for i, block in enumerate(decoder.blocks):
            of = {name.removeprefix(f"model.layers.{i}."): t for name, t in state.items() if name.startswith(f"model.layers.{i}.")}
            block.before.gain.copy_(of["input_layernorm.weight"])
            block.between.gain.copy_(of["post_attention_layernorm.weight"])
            block.mix.joint.weight.copy_(torch.cat([columns(of[f"self_attn.{p}_proj.weight"]) for p in "qkv"]))
            block.mix.out.weight.copy_(rows(of["self_attn.o_proj.weight"]))
            block.feed.up.weight.copy_(torch.cat([columns(of[f"mlp.{p}_proj.weight"]) for p in ("gate", "up")]))
            block.feed.down.weight.copy_(rows(of["mlp.down_proj.weight"]))
            if "shard" in faults and i == 1:  # this process has the part of another one
                block.mix.out.weight.copy_(of["self_attn.o_proj.weight"].chunk(parts, 1)[(rank + 1) % parts])
    return decoder


def share_by_torch(model):
    if args.how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    layers = model.model.layers if args.side == "transformers" else model.blocks
    if args.how == "fsdp2":
        for layer in layers:
            fully_shard(layer)
        return fully_shard(model)
    columns = {f"self_attn.{p}_proj": ColwiseParallel() for p in "qkv"} | {f"mlp.{p}_proj": ColwiseParallel() for p in ("gate", "up")}
    for layer in layers:
        plan = columns | {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
        parallelize_module(layer, init_device_mesh("cpu", (world,)), plan)
    return model


def share(model):
    if world == 1 or args.how == "pp":
        return model
    if args.side == "transformers" or args.how == "fsdp2" or "torch_ddp" in faults:
        return share_by_torch(model)
    return model


def average_gradients(model):
    """By hand: of ranks that have parts of the batch, and of norms that saw a part of the sequence."""
    for name, p in model.named_parameters():
        if args.how == "ddp":
            if "no_reduce" in faults and name == "blocks.1.between.gain":
                continue
            dist.all_reduce(p.grad)
            if "no_average" not in faults:
                p.grad /= world * (2 if "twice" in faults and name == "blocks.0.feed.down.weight" else 1)
        elif args.how == "sp" and name.endswith("gain") and not ("no_reduce" in faults and name == "blocks.1.between.gain"):
            dist.all_reduce(p.grad)


def loss_of(model, ids):
    inputs, wanted = ids[:, :-1], ids[:, 1:].flatten()
    if args.side == "transformers":
        return functional.cross_entropy(model(input_ids=inputs, use_cache=False).logits.flatten(0, 1), wanted)
    logits = model(inputs).flatten(0, 1)
    return ParallelEntropy.apply(logits, wanted, model.words.first) if parts > 1 else functional.cross_entropy(logits, wanted)


def pipeline_step(model, ids):
    """The first process has the first layer, the second the others: activations go there, gradients come back."""
    inputs, wanted = ids[:, :-1], ids[:, 1:].flatten()
    cos, sin = model.cos[:LENGTH], model.sin[:LENGTH]
    if rank == 0:
        x = model.blocks[0](model.words(inputs), cos, sin)
        dist.send(x.detach(), 1)
        gradient = torch.empty_like(x)
        dist.recv(gradient, 1)
        x.backward(gradient)
        return
    x = torch.empty(BATCH, LENGTH, WIDTH)
    dist.recv(x, 0)
    x.requires_grad_()
    functional.cross_entropy(model.head(model.last(model.blocks[1](x, cos, sin))).flatten(0, 1), wanted).backward()
    dist.send(x.grad, 0)


def make_model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.uniform_(parameter, 0.5, 1.5)
    model = model if args.side == "transformers" else port(model.state_dict(), Decoder(config.rms_norm_eps))
    if args.how == "pp" and world > 1:
        if rank == 0:
            model.blocks[1] = model.last = model.head = nn.Identity()
        else:
            model.blocks[0] = model.words = nn.Identity()
    return model


def main():
    if world > 1:
        dist.init_process_group("gloo")
    model = make_model()
    runs = share(model)
    optimizer = torch.optim.AdamW(runs.parameters(), lr=1e-3, weight_decay=0.1, foreach=False)
    for step in range(args.steps):
        ids = torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1 + step))
        if by_batch and world > 1:
            ids = ids.chunk(world)[rank]
        if args.how == "pp" and world > 1:
            pipeline_step(model, ids)
        else:
            loss = loss_of(runs, ids)
            loss.backward()
        if world > 1 and runs is model:
            average_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        if args.how != "pp":
            print(f"rank {rank} step {step} loss {loss.item():.7f}", flush=True)
    if world > 1:
        gloo_group.leave()


main()
