"""A trainer that sends its weights to a server three times, and says after each sync which tensor the server does not have.

    PYTHONPATH=PREFIX/lib/lastbit/python python trainer.py FOLDER [--lose NAME] [--delay NAME]

A tiny random Llama is trained with LoRA (peft) in f32; the adapter is merged and all weights go to server.py, a process of its own that
serves in bf16. In sync 2 the tensor `--lose` is dropped on the way, and `--delay` arrives one sync late from then on. Both sides keep a table
of fingerprints for each sync in FOLDER: sent-N.json and server-N.json."""

import argparse
import copy
import os
import pathlib
import subprocess
import sys
from multiprocessing.connection import Listener

import lastbit.torch
import peft
import torch
import transformers
from safetensors.torch import save

LOST, LATE = "model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.weight"
SYNCS = 3


def llama():
    """What both sides begin with."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=False))


def adapted(model):
    torch.manual_seed(1)
    modules = ["q_proj", "v_proj", "up_proj", "down_proj"]
    return peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=modules))


def train(model, steps, seed):
    """A few steps of AdamW on random tokens."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        tokens = torch.randint(0, 128, (4, 16), generator=draw)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def merged(model):
    """The weights that the server is to have, by their names there."""
    return copy.deepcopy(model).merge_and_unload().state_dict()


class Line:
    """The way to the server, which loses a tensor and delays another."""

    def __init__(self, connection, lose, delay):
        self.connection, self.lose, self.delay, self.waiting = connection, lose, delay, {}

    def send(self, sync, weights):
        now = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
        if sync == 2:
            now.pop(self.lose, None)
        if sync >= 2 and self.delay in now:
            late, self.waiting = self.waiting, {self.delay: now.pop(self.delay)}
            now.update(late)
        self.connection.send_bytes(save({name: tensor.contiguous() for name, tensor in now.items()}))
        return self.connection.recv()  # where the server's table lies


def say(sync, answer):
    print(f"sync {sync}: {answer.verdict}")
    for match in answer.matches:
        if match.finding:
            print(f"  {match.kind}: {match.tensor}" + (f" (as in sync {match.earlier + 1})" if match.earlier is not None else ""))


def main(folder, lose, delay):
    folder.mkdir(parents=True, exist_ok=True)
    door = str(folder / "door")
    with Listener(door, "AF_UNIX") as listener:
        server = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "server.py"), door, folder])
        with listener.accept() as connection:
            line, model, sent, served = Line(connection, lose, delay), adapted(llama()), [], []
            for sync in range(1, SYNCS + 1):
                train(model, steps=3, seed=sync)
                weights = merged(model)
                table = lastbit.torch.fingerprint(weights, rounded=True)  # of FSDP's shards: .all_reduce() behind it
                table.save(folder / f"sent-{sync}.json")
                served.append(line.send(sync, weights))
                say(sync, table.compare(served[-1], earlier=sent))
                sent.append(table)
    if server.wait() != 0:
        sys.exit("the server failed")
    print("lastbit fingerprint " + " ".join(f"sent-{n}.json" for n in range(1, SYNCS + 1)), end="")
    print("".join(f" --against server-{n}.json" for n in range(1, SYNCS + 1)) + "    # all syncs together: what came late, too")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--lose", default=LOST, metavar="NAME")
    parser.add_argument("--delay", default=LATE, metavar="NAME")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.folder, arguments.lose, arguments.delay)
