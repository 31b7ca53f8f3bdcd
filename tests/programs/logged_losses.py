"""A loss in chunks, in bfloat16: each chunk is differentiated by itself, and what is logged is the chunks' sum, taken in one way of several.
Argument: a folder, which gets a capture of each way and of how the sum is logged (`scalar`: cap.scalar, `item`: float())."""

import sys

import lastbit.torch
import torch

WAYS = {
    "sum": sum,
    "stacked": lambda losses: torch.stack(losses).sum(),
    "weighted": lambda losses: sum(losses) * 1.25,
    "floats": lambda losses: sum(loss.item() for loss in losses),
    "backwards": lambda losses: sum(loss.item() for loss in losses[::-1]) + 1e-9,
}


def step(model, optimizer, way):
    tokens, targets = torch.randint(0, 64, (2, 603))
    losses = []
    for logits, wanted in zip(model(tokens).chunk(13), targets.chunk(13), strict=True):
        loss = torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="sum") / len(targets)
        loss.backward(retain_graph=True)
        losses.append(loss.detach())
    optimizer.step(), optimizer.zero_grad()
    return WAYS[way](losses)


def main(folder):
    for way, how in [(way, how) for way in WAYS for how in ("scalar", "item")]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64)).to(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with lastbit.torch.capture(f"{folder}/{way}-{how}.lb") as cap:
            for n in range(2):
                with cap.step(n):
                    loss = step(model, optimizer, way)
                    if how == "scalar":
                        cap.scalar("logged", loss)
                    else:
                        float(loss)


if __name__ == "__main__":
    main(sys.argv[1])
