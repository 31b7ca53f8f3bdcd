"""What tests of swaps share: what `lastbit replay --write` wrote, and the sample trained in this process with a change."""

import contextlib
import os
import sys

import torch
from safetensors import safe_open

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "samples"))
import hybrid_lm as lab  # noqa: E402


class Written:
    """Tensors by (step, rank, op, result); `named[step, name]`: what was last written under that name."""

    def __init__(self, path):
        self.tensors, self.named, self.text = {}, {}, {}
        with safe_open(path, "pt") as file:
            texts = file.metadata() or {}
            for key in file.keys():
                place = tuple(int(part.lstrip("steprankop")) for part in key.split("."))  # noqa: B005  whatever letters
                self.tensors[place] = file.get_tensor(key).clone()  # the file may be written anew
                self.text[place[:3]] = texts[key.rsplit(".", 1)[0]]
            for place in sorted(self.tensors):
                name = texts.get("step%d.rank%d.op%d.%d" % place)
                if name:
                    self.named[place[0], name] = self.tensors[place]


def replayed(lastbit, capture, folder, *options, expect=0):
    """Runs a replay; returns its JSON and what it computed."""
    path = folder / "written.safetensors"
    answer = lastbit.json("replay", capture, "--worst", 0, "--write", path, *options, expect=expect)
    return answer, Written(path)


@contextlib.contextmanager
def wide_casts():
    """In a model of f64, `.float()` would narrow: leave wide what is wide."""
    plain, plain_to = torch.Tensor.float, torch.Tensor.to
    torch.Tensor.float = lambda self: self if self.dtype == torch.float64 else plain(self)
    torch.Tensor.to = lambda self, *args, **kwargs: self if self.dtype == torch.float64 else plain_to(self, *args, **kwargs)
    try:
        yield
    finally:
        torch.Tensor.float, torch.Tensor.to = plain, plain_to


def sample_arguments(*options):
    argv, sys.argv = sys.argv, ["hybrid_lm.py", *options]
    try:
        return lab.arguments()
    finally:
        sys.argv = argv


def train(options, change=None, wide=False, before_step=None):
    """The sample's loop (hybrid_lm.train, one process, no faults): parameters by name after each step, and the losses.

    `change(model)` is applied to the model as it starts."""
    args = sample_arguments(*options)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = lab.HybridLM(args)
    if args.precision == "bf16":
        model.to(torch.bfloat16)
    if wide:
        model.double()
        args.muon_dtype = "float64"
    if change:
        change(model)
    args.world = 1
    steppers, after, losses = lab.optimizers(args, model), [], []
    with wide_casts() if wide else contextlib.nullcontext():
        for step in range(args.steps):
            if before_step:
                before_step(model, step)
            if step % lab.FAULT_STEP == 0:
                documents, counts = lab.shard(args, step // lab.FAULT_STEP, 0)
            part = documents[step % lab.FAULT_STEP]
            loss = model(part[:, :-1], part[:, 1:], counts.double() if wide else counts)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            for stepper in steppers:
                stepper.step()
            for stepper in steppers:
                stepper.zero_grad()
            losses.append(loss.item())
            after.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return after, losses


def distance(a, b):
    """Relative, in the Euclidean norm."""
    a, b = a.double(), b.double()
    return ((a - b).norm() / b.norm().clamp(min=1e-30)).item()
