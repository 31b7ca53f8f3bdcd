"""A Llama on a device, by itself or under torchrun: python device_step.py train|graph|generate|fail [--device cuda] [--size 1b] …

    train     bf16 steps of AdamW, with FSDP2 or DDP under torchrun
    graph     the same in one process, the step captured as a CUDA graph and replayed
    generate  a prompt and 16 tokens with a KV cache
    fail      train, and a weight of one layer that is not finite from step 2 on

Writes a JSON object to --out: the seconds of each step, and a digest of what the run leaves behind (parameters, optimizer states,
tokens, losses), which must not depend on whether it was recorded."""

import argparse
import hashlib
import json
import os
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {  # hidden, feed-forward, layers, heads, key-value heads, vocabulary; 1b: the shape of Llama 3.2 1B (its config.json)
    "1b": (2048, 8192, 16, 32, 8, 128256),
    "small": (64, 128, 2, 4, 2, 256),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "graph", "generate", "fail"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=sorted(SIZES), default="1b")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--parallel", choices=["fsdp", "ddp"], default="fsdp")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


class Job:
    def __init__(self, args):
        self.args = args
        self.ranks = int(os.environ.get("WORLD_SIZE", "0"))  # 0: not under torchrun
        self.device = torch.device(args.device)
        if self.ranks:
            if self.device.type == "cuda":
                self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
                torch.cuda.set_device(self.device)
            torch.distributed.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
        torch.manual_seed(7)
        self.model = self.whole = self.built()
        self.losses, self.seconds = [], []

    def built(self):
        hidden, wide, layers, heads, shared, self.vocabulary = SIZES[self.args.size]
        config = LlamaConfig(
            hidden_size=hidden,
            intermediate_size=wide,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=shared,
            vocab_size=self.vocabulary,
            tie_word_embeddings=True,
        )
        with self.device:  # a billion numbers are drawn there in no time
            return LlamaForCausalLM(config).to(torch.bfloat16)

    def spread(self):
        if not self.ranks:
            return
        if self.args.parallel == "ddp":
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
            return
        from torch.distributed.fsdp import fully_shard

        for layer in self.whole.model.layers:
            fully_shard(layer)
        fully_shard(self.whole)

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def batch(self):
        return torch.randint(0, self.vocabulary, (self.args.batch, self.args.sequence), device=self.device)

    def timed(self, work):
        self.wait()
        began = time.perf_counter()
        result = work()
        self.wait()
        self.seconds.append(time.perf_counter() - began)
        return result

    def train(self, broken=False):
        self.spread()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        for step in range(self.args.steps):
            tokens = self.batch()
            if broken and step == 2:
                with torch.no_grad():
                    self.whole.model.layers[1].mlp.up_proj.weight[3, 5] = float("inf")
            self.losses.append(self.timed(lambda tokens=tokens: self.step(tokens, optimizer)))

    def step(self, tokens, optimizer):
        loss = self.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach().clone()

    def graph(self):
        """After three warm-up steps on a side stream, as torch's documentation of CUDA graphs has it."""
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, capturable=True)
        tokens, side = self.batch(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step(tokens, optimizer)
        torch.cuda.current_stream().wait_stream(side)
        whole = torch.cuda.CUDAGraph()
        with torch.cuda.graph(whole):
            loss = self.step(tokens, optimizer)
        for _ in range(self.args.steps):
            tokens.copy_(self.batch())
            self.timed(whole.replay)
            self.losses.append(loss.clone())

    def generate(self):
        prompt = self.batch()[:, :32]
        for _ in range(self.args.steps):
            with torch.no_grad():
                self.losses.append(self.timed(lambda: self.model.generate(prompt, max_new_tokens=16, do_sample=False)))

    def left_behind(self):
        """Of everything that the run leaves, byte by byte."""
        digest = hashlib.sha256()
        for tensor in [*self.losses, *self.model.parameters()]:
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            digest.update(local.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def main():
    args = arguments()
    torch.use_deterministic_algorithms(True, warn_only=True)  # or attention's backward adds in another order each time,
    torch.backends.cuda.enable_cudnn_sdp(False)  # as cuDNN's does all the same
    job = Job(args)
    if args.what == "fail":
        job.train(broken=True)
    else:
        getattr(job, args.what)()
    digest = job.left_behind()
    if int(os.environ.get("RANK", "0")) == 0:
        with open(args.out, "w") as out:
            json.dump({"seconds": job.seconds, "digest": digest, "ranks": job.ranks}, out)
    if job.ranks:
        time.sleep(0.2)  # a gloo thread that lets go of a tensor while the group ends waits for this one, and this one for it (torch 2.13)
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
