"""Workers that drift apart under a smooth mean loss: three seed settings of one data-parallel fine-tuning run.

    lastbit record -o s1.lb -- python samples/silent_ranks.py s1-1        # then s1-2 and s1-3
    lastbit ranks s1.lb --layers

After the settings of the paper on silent inconsistency in data-parallel fine-tuning (worker-level loss dispersion, gradient-norm
dispersion and gradient-direction consistency on 8 workers):

    s1-1   all ranks one seed: one order of the data, which the ranks share out
    s1-2   rank 0 alone has another seed, so that its batches come from elsewhere in the data
    s1-3   every rank has its own

The model, a small Llama with random weights, answers instructions of several kinds, harder and easier ones; batches hold one kind, as
batches by length or by source do. The loss is on the response only. Nothing fails in any setting, and the mean loss falls alike."""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

VOCABULARY, LENGTH, ROWS, BATCHES = 64, 10, 4, 24


def answer(kind, prompt):
    """The response to a prompt, token by token: one of 2^kind words of this kind's own, so that some kinds are harder."""
    return 8 + 2**kind + prompt % 2**kind


def examples(batch, ranks):
    """A global batch of the data set: rows of all ranks, one kind of instruction. The same on every rank and in every setting."""
    draw = torch.Generator().manual_seed(1000 + batch)
    kind = batch % 4
    rows = []
    for _ in range(ROWS * ranks):
        prompt = torch.randint(24, VOCABULARY, (LENGTH,), generator=draw)
        rows.append(torch.cat([torch.tensor([1, 2 + kind]), prompt, torch.tensor([7]), answer(kind, prompt)]))
    return torch.stack(rows)


def build(layers, width):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)  # fine-tuning begins from one checkpoint
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def seed_of(setting, rank):
    if setting == "s1-1":
        return 1
    if setting == "s1-2":
        return 2 if rank == 0 else 1
    return 1 + rank


def work(rank, args, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=args.ranks)
    model = DDP(build(args.layers, args.width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    order = torch.randperm(BATCHES, generator=torch.Generator().manual_seed(seed_of(args.setting, rank))).tolist()
    for step in range(args.steps):
        ids = examples(order[step % BATCHES], args.ranks)[rank :: args.ranks]
        logits = model(input_ids=ids).logits[:, LENGTH + 2 : -1]  # said after the separator: the response
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, LENGTH + 3 :].flatten())
        loss.backward()
        mean = loss.detach().clone()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step:3d}  mean loss {mean.item() / args.ranks:.4f}", flush=True)
    time.sleep(0.2)  # a gloo thread that lets go of a tensor while Python ends aborts the process (torch 2.13)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", choices=["s1-1", "s1-2", "s1-3"])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    given = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (given, folder), nprocs=given.ranks)
