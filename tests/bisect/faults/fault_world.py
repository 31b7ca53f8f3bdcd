"""One run of a drawn program: model, optimizer, precision, batches, and the places where a fault or an innocent change takes hold.

A case is a plain dictionary, so that it can be written down and run again:

    {"seed", "program", "optimizer", "precision", "mode": "train" | "serve", "steps", "changes": [[name, seed], …]}

`Run(case, changes=True)` is the changed side, `Run(case)` the reference. `exact=True` runs the same program in float64 with every
cast between float types the identity: in it two programs that compute the same function agree to 1e-9, and no rounding hides or
makes a difference. Nothing here knows of lastbit."""

import contextlib
import os
import random

import change_table
import fault_models
import fault_optimizers
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

NARROW = {torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2}
OPTIMIZERS = ("adamw", "adamw-foreach", "adamw-fused", "sgd", "lion", "muon", "torch-muon")
PRECISIONS = ("fp32", "bf16", "fp16-scaler", "autocast", "fp8")


class Exact(TorchDispatchMode):
    """Every float that an op makes is a float64, whatever type the program names."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        wide = lambda x: torch.float64 if isinstance(x, torch.dtype) and x in NARROW else x
        return func(*(wide(a) for a in args), **{name: wide(value) for name, value in (kwargs or {}).items()})


@contextlib.contextmanager
def exactly(on):
    if not on:
        yield
        return
    torch.set_default_dtype(torch.float64)
    try:
        with Exact():
            yield
    finally:
        torch.set_default_dtype(torch.float32)


class Through(torch.autograd.Function):
    """A rounding whose gradient passes as if it weren't there."""

    @staticmethod
    def forward(ctx, x, rounded):
        return rounded.clone()

    @staticmethod
    def backward(ctx, g):
        return g, None


def to_fp8(x, headroom=1.0):
    """By hand, as recipes with a scale per tensor do it."""
    with torch.no_grad():
        scale = x.abs().amax().clamp(min=1e-12) / (448 * headroom)
        rounded = (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale
    return Through.apply(x, rounded)


class Run:
    def __init__(self, case, changed=False, exact=False):
        self.case, self.exact, self.now, self.acts_from = case, exact, 0, 0
        self.rank = int(os.environ.get("RANK", 0)) if case.get("ranks", 1) > 1 else 0
        self.options = {
            "foreach": False,
            "fused": False,
            "micro": 1,
            "precision": case["precision"],
            "clip": 1.0,
            "lr": 1e-2,
            "threads": 1,
            "keep_zeros": False,
            "reversed": False,
        }
        self.before, self.before_reduction, self.after_backward, self.before_update, self.after_update, self.ready = [], [], [], [], [], []
        torch.manual_seed(case["seed"])
        self.model, self.data = self.made(random.Random(case["seed"]))
        torch.manual_seed(case["seed"])
        self.whole = self.drawn_batches()
        self.take_shards()
        self.truths, late, self.changed = [], [], changed
        for name, seed in case["changes"]:
            change = change_table.TABLE[name]
            if not changed and not change.shared:
                continue
            if change.early:
                self.truths.append(change.make(self, random.Random(seed)))
            else:
                late.append((change, seed))
        self.take_precision()
        for change, seed in late:
            self.truths.append(change.make(self, random.Random(seed)))
        self.optimizers = self.made_optimizers() if case["mode"] == "train" else []
        for act in self.ready:
            act()

    # ---- what the run is made of

    def made(self, draw):
        if self.case["program"] in fault_models.OWN:
            return fault_models.build(self.case["program"], draw)
        import fault_architectures

        return fault_architectures.build(self.case["program"], draw)

    def drawn_batches(self):
        """Batches for all steps: the first of them in `serve` is the prompt, the others are one token each."""
        draw, data, batches = torch.Generator().manual_seed(self.case["seed"] + 1), self.data, []
        for step in range(self.case["steps"]):
            if "batch" in data:
                batches.append(data["batch"](draw))
                if self.case["mode"] == "serve" and step:
                    batches[-1]["named"] = {n: x[:, :1] if n == "input_ids" else x for n, x in batches[-1]["named"].items()}
            elif data["input"] == "tokens":
                length = data["length"] if self.case["mode"] == "train" or step == 0 else 1
                text = torch.randint(0, data["vocabulary"], (4, length + 1), generator=draw)
                batches.append({"inputs": (text[:, :-1].contiguous(),), "labels": text[:, 1:].contiguous()})
            else:
                batches.append(
                    {"inputs": (torch.randn(4, *data["shape"], generator=draw),), "labels": torch.randint(0, data["classes"], (4,), generator=draw)}
                )
        return batches

    def shards(self, number):
        """Whose rows of a batch this rank reads."""
        return self.rank

    def take_shards(self):
        ranks = self.case.get("ranks", 1)
        self.batches = [self.cut(batch, ranks)[self.shards(n)] if ranks > 1 else batch for n, batch in enumerate(self.whole)]

    def take_precision(self):
        precision = self.options["precision"]
        if self.exact:
            self.model.double()
        elif precision == "bf16":
            self.model.to(torch.bfloat16)
        if precision == "fp8":
            for module in self.model.modules():
                if type(module) is nn.Linear:
                    module.forward = lambda x, m=module: F.linear(to_fp8(x), to_fp8(m.weight), m.bias)
        self.model.train(self.case["mode"] == "train")
        self.dtype = next(p.dtype for p in self.model.parameters() if p.is_floating_point())
        scaled = precision == "fp16-scaler" and self.case["mode"] == "train" and not self.exact
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000) if scaled else None

    def casts(self):
        kinds = {"autocast": torch.bfloat16, "fp16-scaler": torch.float16}
        if self.exact or self.options["precision"] not in kinds:
            return contextlib.nullcontext()
        return torch.autocast("cpu", kinds[self.options["precision"]])

    def groups(self):
        """Two groups, as it is usual: matrices decay, everything else doesn't."""
        wanted = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        matrices, rest = [p for _, p in wanted if p.ndim >= 2], [p for _, p in wanted if p.ndim < 2]
        groups = [g for g in ({"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}) if g["params"]]
        return groups[::-1] if self.options["reversed"] else groups

    def made_optimizers(self):
        name, lr, groups = self.case["optimizer"], self.options["lr"], self.groups()
        foreach = self.options["foreach"] or name == "adamw-foreach"
        fused = self.options["fused"] or name == "adamw-fused"
        if name.startswith("adamw"):
            return [torch.optim.AdamW(groups, lr=lr / 10, foreach=foreach and not fused, fused=fused)]
        if name == "sgd":
            return [torch.optim.SGD(groups, lr=lr, momentum=0.9, foreach=foreach)]
        if name == "lion":
            return [fault_optimizers.Lion(groups, lr=lr / 10)]
        if name == "muon":
            return [fault_optimizers.Muon(groups, lr=lr)]
        matrices = [p for g in groups for p in g["params"] if p.ndim == 2]
        rest = [p for g in groups for p in g["params"] if p.ndim != 2]
        return [torch.optim.Muon(matrices, lr=lr / 10)] + ([torch.optim.AdamW(rest, lr=lr / 10, foreach=False)] if rest else [])

    # ---- the run

    def acting(self):
        return self.now >= self.acts_from

    def shaped(self, x):
        return x.to(self.dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    def called(self, batch):
        given = tuple(self.shaped(x) for x in batch["inputs"])
        return self.model(*given, **{n: self.shaped(x) for n, x in batch.get("named", {}).items()})

    def loss_of(self, output, labels):
        """Of logits the cross-entropy, of any other output its distance from the labels."""
        if labels is None:
            return output.float().pow(2).mean()
        return F.cross_entropy(output.reshape(-1, output.shape[-1]).float(), labels.reshape(-1))

    def clipped(self):
        if self.options["clip"]:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options["clip"])

    def parts(self, batch):
        """Micro-batches."""
        return self.cut(batch, self.options["micro"]) if self.options["micro"] > 1 else [batch]

    def cut(self, batch, count):
        cut = lambda x, i: x.chunk(count)[i] if isinstance(x, torch.Tensor) else x
        return [
            {
                "inputs": tuple(cut(x, i) for x in batch["inputs"]),
                "labels": cut(batch["labels"], i),
                "named": {n: cut(x, i) for n, x in batch.get("named", {}).items()},
            }
            for i in range(count)
        ]

    def step(self, number):
        self.now = number
        for act in self.before:
            act()
        total = 0.0
        for part in self.parts(self.batches[number]):
            with self.casts():
                output = first_float(self.called(part))
            loss = self.loss_of(output, part["labels"]) / self.options["micro"]
            (self.scaler.scale(loss) if self.scaler else loss).backward()
            total = loss.detach() + total
        for act in self.before_reduction:
            act()
        if self.case.get("ranks", 1) > 1:
            for name, p in self.model.named_parameters():
                self.reduced(name, p)
        for act in self.after_backward:
            act()
        if self.scaler:
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
        self.clipped()
        for act in self.before_update:
            act()
        for optimizer in self.optimizers:
            self.stepped(optimizer)
        if self.scaler:
            self.scaler.update()
        for act in self.after_update:
            act()
        self.losses.append(total)
        for optimizer in self.optimizers:
            self.zeroed(optimizer)

    def reduced(self, name, p):
        """The average of a gradient over the ranks."""
        import torch.distributed as dist

        dist.all_reduce(p.grad)
        p.grad.div_(self.case["ranks"])

    def zeroed(self, optimizer):
        optimizer.zero_grad(set_to_none=not self.options["keep_zeros"])

    def stepped(self, optimizer):
        self.scaler.step(optimizer) if self.scaler else optimizer.step()

    def decoded(self):
        """A prompt, then one token at a time, from a cache where the program has one."""
        past, text = [[] for _ in self.model.layers] if self.case["program"] in ("gpt", "moe") else None, None
        for number, batch in enumerate(self.batches):
            self.now = number
            for act in self.before:
                act()
            named = dict(batch.get("named", {}))
            if self.case["program"].startswith("causal/"):
                text = named["input_ids"] if text is None else torch.cat([text, named["input_ids"]], 1)
                named.update(use_cache=True, **({"past_key_values": past} if past is not None else {"input_ids": text}))
            elif past is not None:
                named["caches"] = past
            with self.casts():
                output = self.called({**batch, "named": named})
            past = getattr(output, "past_key_values", None) if text is not None else past
            self.losses.append(output.clone() if isinstance(output, torch.Tensor) else first_float(output).clone())

    def execute(self):
        self.losses = []
        before = torch.get_num_threads()
        torch.set_num_threads(self.options["threads"])
        try:
            torch.manual_seed(self.case["seed"] + 2)
            with exactly(self.exact):
                if self.case["mode"] == "serve":
                    with torch.no_grad():
                        self.decoded()
                else:
                    for number in range(self.case["steps"]):
                        self.step(number)
        finally:
            torch.set_num_threads(before)
        return self


def first_float(output):
    """The tensor that a module's result is about: itself, or the first of a tuple or of a model's output."""
    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() else None
    values = output.values() if hasattr(output, "values") else output if isinstance(output, (tuple, list)) else ()
    return next((x for x in map(first_float, values) if x is not None), None)


def with_first(output, change):
    """The same result with another first tensor."""
    if isinstance(output, torch.Tensor):
        return change(output)
    if isinstance(output, tuple) and not hasattr(output, "_fields"):
        for i, x in enumerate(output):
            if first_float(x) is not None:
                return (*output[:i], with_first(x, change), *output[i + 1 :])
    if hasattr(output, "keys"):
        for name in list(output.keys()):
            if first_float(output[name]) is not None:
                output[name] = with_first(output[name], change)
                return output
    return output
