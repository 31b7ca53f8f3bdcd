"""Models as others published them, small, with weights that depend on their names alone, so that every implementation and every release holds
the same numbers. A family (llama.py, vit.py, …) builds one side by its name and applies a planted fault to it.

    python FAMILY.py SIDE [--train] [--dtype bf16] [--fault NAME]...
"""

import argparse
import sys
import zlib

import torch


def numbers(name, shape):
    """Weights of norms around 1, all others around 0; by name, whatever the order in which they are asked for."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    drawn = torch.randn(tuple(shape), generator=generator)
    if len(shape) == 1 and name.endswith("weight"):
        return 1 + 0.2 * drawn
    return drawn * (0.1 if len(shape) == 1 else 0.4 / shape[-1] ** 0.5 if len(shape) == 2 else 0.1)


def fill(model, rename=lambda name: name):
    """Each parameter (and each persistent buffer of floats) of a model gets the numbers of its name."""
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if tensor.is_floating_point():
                tensor.copy_(numbers(rename(name), tensor.shape))
    return model


def filled_state(model, rename=lambda name: name):
    return {name: tensor.clone() for name, tensor in fill(model, rename).state_dict().items()}


def tokens(vocabulary=96, batch=2, length=12):
    return torch.randint(2, vocabulary, (batch, length), generator=torch.Generator().manual_seed(7))


def images(size=32, batch=2):
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(7))


def without_torchvision_ops():
    """torchvision's compiled ops need the build of PyTorch that they were made for; no model here calls them."""
    library = torch.library.Library("torchvision", "DEF")
    for op in (
        "nms",
        "qnms",
        "roi_align",
        "_roi_align_backward",
        "roi_pool",
        "_roi_pool_backward",
        "ps_roi_align",
        "_ps_roi_align_backward",
        "ps_roi_pool",
        "_ps_roi_pool_backward",
        "deform_conv2d",
        "_deform_conv2d_backward",
    ):
        library.define(f"{op}(Tensor x) -> Tensor")
    return library


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("side")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--optimizer", default="adamw")
    return parser.parse_args()


def optimizer_of(model, options):
    faults = options.fault
    settings = {"lr": 1e-3 * (2 if "lr" in faults else 1)}
    if options.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=0.5 if "momentum" in faults else 0.9, **settings)
    settings["weight_decay"] = 0.0 if "weight-decay" in faults else 0.1
    settings["betas"] = (0.9, 0.95) if "beta2" in faults else (0.9, 0.999)
    settings["eps"] = 1e-4 if "adam-eps" in faults else 1e-8
    return torch.optim.AdamW(model.parameters(), foreach=options.side.endswith("5"), **settings)


def loss_of(result, targets, faults):
    """Next tokens, or classes of images."""
    if result.dim() == 3:
        result, targets = result[:, :-1].reshape(-1, result.shape[-1]), targets[:, 1:].reshape(-1)
    smoothing = 0.1 if "label-smoothing" in faults else 0.0
    reduction = "sum" if "loss-sum" in faults else "mean"
    return torch.nn.functional.cross_entropy(result.float(), targets, label_smoothing=smoothing, reduction=reduction)


def run(build):
    """`build(side, faults)` gives a model, what to call (model, batch) -> logits, and the batch with its targets."""
    options = arguments()
    torch.manual_seed(0)
    model, call, batch, targets = build(options.side, options.fault)
    model.to(getattr(torch, options.dtype))
    if batch.is_floating_point():
        batch = batch.to(getattr(torch, options.dtype))
    if not options.train:
        model.eval()
        with torch.no_grad():
            call(model, batch)
        return
    model.train()
    optimizer = optimizer_of(model, options)
    for _ in range(2):
        loss = loss_of(call(model, batch), targets, options.fault)
        loss.backward()
        if "clip" in options.fault:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    print(float(loss), file=sys.stderr)
