"""One side of a pair of implementations that others published: the same weights and inputs, forward alone or two training steps.

lastbit record -o a.lb --level ops -- python released.py llama litgpt --forward
python released.py --many sides.json      # records all sides of one environment: [{"out": …, "words": […]}, …]
python released.py --wide sides.json      # runs them in float64 throughout, without recording, and writes what they gave
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import traceback

import numpy
import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.append(str(pathlib.Path(__file__).parents[1]))
import keras_models  # noqa: E402
import language_models  # noqa: E402
import later_data_models  # noqa: E402
import later_faults  # noqa: E402
import later_language_models  # noqa: E402
import later_vision_models  # noqa: E402
import named_weights  # noqa: E402
import other_language_faults  # noqa: E402
import other_language_models  # noqa: E402
import other_sound_models  # noqa: E402
import other_vision_faults  # noqa: E402
import other_vision_models  # noqa: E402
import plants  # noqa: E402
import ported_encoders  # noqa: E402
import ported_faults  # noqa: E402
import ported_language_models  # noqa: E402
import ported_vision_models  # noqa: E402
import rewritten_models  # noqa: E402
import vision_models  # noqa: E402
import wide_floats  # noqa: E402
import written_models  # noqa: E402


def parsed(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family")
    parser.add_argument("implementation", help="transformers, litgpt, timm or torchvision, as the environment has it")
    parser.add_argument("--forward", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--optimizer", default="adamw", choices=["adamw", "sgd"])
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--set", action="append", default=[], help="NAME=JSON: a setting of the implementation that is not a fault")
    parser.add_argument("--groups", action="store_true", help="norms and biases in a group of their own, without weight decay")
    parser.add_argument("--accumulate", type=int, default=1, help="batches for one step")
    parser.add_argument("--plain", action="store_true", help="norms with weights one and biases zero")
    parser.add_argument("--padded", action="store_true", help="the last three targets of each row are not counted")
    parser.add_argument("--z-loss", type=float, default=0.0, help="times the mean square of the scores' logarithmic sum")
    parser.add_argument("--normalised", action="store_true", help="images come as pixels from 0 to 1 and are normalised by the program")
    return parser.parse_args(words)


PORTED = {
    **ported_language_models.BUILDERS,
    **ported_encoders.BUILDERS,
    **ported_vision_models.BUILDERS,
    **written_models.BUILDERS,
    **other_vision_models.BUILDERS,
    **other_language_models.BUILDERS,
    **other_sound_models.BUILDERS,
    **keras_models.BUILDERS,
    **rewritten_models.BUILDERS,
    **later_vision_models.BUILDERS,
    **later_data_models.BUILDERS,
    **later_language_models.BUILDERS,
}
IMAGES = ("vit", "resnet", "efficientnet", *other_vision_models.FAMILIES, *later_vision_models.FAMILIES)
IMAGE_SIZES = {"resnet": (32, 2), "efficientnet": (64, 4), **other_vision_models.SIZES, **later_vision_models.SIZES}


def built(args):
    changes = {**plants.settings(args.fault, args.implementation), **{k: json.loads(v) for k, v in (s.split("=", 1) for s in args.set)}}
    named_weights.PLAIN = args.plain
    if (args.family, args.implementation) in PORTED:
        return PORTED[args.family, args.implementation](args.family, changes, args.attention)
    if args.family == "vit":
        if args.implementation == "timm":
            vision_models.without_operators()
            return vision_models.build_timm_vit(changes)
        return vision_models.build_transformers_vit(changes, args.attention)
    if args.family == "resnet":
        return vision_models.build_resnet(args.implementation)
    if args.implementation == "litgpt":
        return language_models.build_litgpt(args.family, changes)
    return language_models.build_transformers(args.family, changes, args.attention)


def layers_of(model):
    for path, module in model.named_modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and len(module) == 3:
            return path, module
    return "", [None] * 3


def loss_of(model, args, batch):
    inputs, targets = batch
    if args.normalised:
        inputs = (inputs - 0.45) / (0.229 if "other-deviation" in args.fault else 0.225)
    if args.family in (*ported_encoders.FAMILIES, *later_data_models.FAMILIES):
        scores = model.scores_of(inputs) if hasattr(model, "scores_of") else model(inputs)
        scores, targets = scores.flatten(0, -2), targets.flatten()
    elif args.family in IMAGES:
        out = model.scores_of(inputs) if hasattr(model, "scores_of") else model(inputs)
        scores = out if isinstance(out, torch.Tensor) else out.logits
    else:
        given = model.scores_of(inputs) if hasattr(model, "scores_of") else language_models.logits(model, inputs)
        scores = given[:, :-1].flatten(0, 1)
    NUMBERS.append(scores.detach())
    return loss_of_scores(scores.float(), targets, args)


def loss_of_scores(scores, targets, args):
    if "label-shift" in args.fault:
        targets = targets.roll(-1)
    smoothing = 0.1 if "label-smoothing" in args.fault else 0.0
    reduction = "sum" if "loss-sum" in args.fault or args.padded else "mean"
    loss = F.cross_entropy(scores, targets, reduction=reduction, label_smoothing=smoothing)
    if args.padded:
        loss = loss / (targets.numel() if "mean-over-padding" in args.fault else (targets >= 0).sum())
    coefficient = args.z_loss * (2.0 if "z-loss-coefficient" in args.fault else 1.0)
    if coefficient and "no-z-loss" not in args.fault:
        loss = loss + coefficient * scores.logsumexp(-1).square().mean()
    return loss


def batches(args, count):
    drawn = torch.Generator().manual_seed(1)
    for _ in range(count):
        if args.family in ported_encoders.FAMILIES:
            yield ported_encoders.drawn_batch(args.family, drawn, getattr(torch, args.dtype))
        elif args.family in later_data_models.FAMILIES:
            yield later_data_models.drawn_batch(args.family, drawn, getattr(torch, args.dtype))
        elif args.family in other_sound_models.FAMILIES:
            yield other_sound_models.drawn_batch(args.family, drawn, getattr(torch, args.dtype))
        elif args.family in IMAGES:
            size, count = IMAGE_SIZES.get(args.family, (16, 2))
            images = torch.randn(count, 3, size, size, generator=drawn).to(getattr(torch, args.dtype))
            yield images, torch.randint(0, 10, (count,), generator=drawn)
        else:
            tokens = torch.randint(2, 96, (2, 12), generator=drawn)
            targets = tokens[:, 1:].clone()
            if args.padded:
                targets[0, -3:] = -100
            yield tokens, targets.flatten()


def optimizer_of(model, args):
    decay = 0.0 if "weight-decay" in args.fault else 0.1
    betas = (0.9, 0.95) if "betas" in args.fault else (0.9, 0.999)
    if args.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-2, weight_decay=decay, foreach=False)
    given = model.parameters()
    if args.groups:
        trained = [p for p in model.parameters() if p.requires_grad]
        spared = 0.1 if "decay-of-vectors" in args.fault else 0.0
        rate = 2e-3 if "rate-of-a-group" in args.fault else 1e-3
        given = [
            dict(params=[p for p in trained if p.dim() > 1]),
            dict(params=[p for p in trained if p.dim() <= 1], weight_decay=spared, lr=rate),
        ]
    eps = 1e-4 if "adam-eps" in args.fault else 1e-8
    return torch.optim.AdamW(given, lr=1e-3, betas=betas, weight_decay=decay, foreach=False, eps=eps)


NUMBERS = []  # what the run gave, for `--wide`


def execute(args, model):
    torch.set_num_threads(1)
    if args.forward:
        model.eval()
        with torch.no_grad():
            for inputs, _ in batches(args, 1):
                if args.normalised:
                    inputs = (inputs - 0.45) / (0.229 if "other-deviation" in args.fault else 0.225)
                out = model.scores_of(inputs) if hasattr(model, "scores_of") else model(inputs)
                out = out if isinstance(out, torch.Tensor) else out.logits
                NUMBERS.append(out)
                print("output %.9g" % out.double().abs().mean())
        return
    model.train()
    optimizer = optimizer_of(model, args)
    for number, batch in enumerate(batches(args, 2 * args.accumulate), 1):
        loss = loss_of(model, args, batch)
        if args.accumulate > 1 and "undivided-accumulation" not in args.fault:
            loss = loss / args.accumulate
        loss.backward()
        if number % args.accumulate:
            continue
        if "no-clip" not in args.fault:
            clipped = [p for p in model.parameters() if p.dim() > 1 or "clip-of-matrices" not in args.fault]
            torch.nn.utils.clip_grad_norm_(clipped, 0.1 if "grad-clip" in args.fault else 1.0)
        optimizer.step()
        optimizer.zero_grad()
        NUMBERS.append(loss.detach())
        print("loss %.9g" % loss.item())


def lines_of(*named):
    tables = (ported_faults, other_language_faults, other_vision_faults, later_faults)
    return {name: row for table in tables for name, row in table.LINES.get(named, {}).items()}


def side(args):
    torch.manual_seed(0)
    model = built(args).to(getattr(torch, args.dtype))
    truths = plants.plant(args.fault, model, *layers_of(model), lines_of(args.family, args.implementation))
    return model, truths


def loaded(words):
    """What the implementation imports is imported before the forks."""
    try:
        built(parsed(words))
    except Exception:
        traceback.print_exc()


def in_a_fork(work, *given):
    """Did `work(*given)` end without an exception? What it does to this process's modules and settings stays in the fork."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(*given)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def confirm(out, words):
    """What side `words` is gives in float64 alone goes to `out`."""
    args = parsed([*words, "--dtype", "float64"])
    model = side(args)[0]
    execute(args, model)
    model.eval()
    with torch.no_grad():  # what the last update changed, and what a norm has kept
        loss_of(model, args, next(batches(args, 1)))
    with open(out, "wb") as file:
        numpy.savez(file, *[number.numpy() for number in NUMBERS])


def record(out, words):
    """What side `words` is goes to `out`, with the truth of its faults beside it."""
    import lastbit.torch

    args = parsed(words)
    model, truths = side(args)
    with lastbit.torch.capture(out, level="ops"):
        execute(args, model)
    pathlib.Path(out + ".truth").write_text(json.dumps(truths))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] in ("--many", "--wide"):
        if sys.argv[1] == "--wide":
            wide_floats.widened()
        done = {"--many": record, "--wide": confirm}[sys.argv[1]]
        entries = json.load(open(sys.argv[2]))
        for words in {tuple(entry["words"][:2]) for entry in entries}:
            loaded(words)
        for entry in entries:
            shutil.rmtree(entry["out"], ignore_errors=True)  # an earlier process ended in the middle of it
            print(entry["out"], "ok" if in_a_fork(done, entry["out"], entry["words"]) else "FAILED", flush=True)
    else:
        given = parsed()
        execute(given, side(given)[0])
