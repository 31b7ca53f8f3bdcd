"""What the nets of second_blocks.py, second_operators.py and second_orders.py share: three layers, each of which two people write.

A layer is written in two ways; a fault is one other expression of the second way, in layers.1 alone."""

import functools
import sys

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, SIZE, LENGTH = 16, 4, 4, 10


class Layer(nn.Module):
    """`fault` names what is written differently; `way`: first or second."""

    fault = way = None

    def has(self, fault):
        return self.fault == fault

    def taken_over(self):
        """Brings the first way's weights into the second way's layout."""

    def tabled(self):
        """Gives the first way the tables that it keeps."""

    def laid_out(self, tokens):
        """The tokens as this way's batch holds them."""
        return tokens


class Stack(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed = nn.Embedding(40, WIDTH)
        self.layers = nn.ModuleList(kind() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def heads(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def causal(length, ahead=0):
    return torch.ones(length, length, dtype=torch.bool).tril(ahead)


def written(net, way, fault, dtype):
    """Draws the net's weights, then writes its layers in a way: the fault in layers.1."""
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape) * (0.3 if p.dim() == 1 else 0.25))
        net.to(dtype)
        for layer in net.layers:
            layer.way = way
        net.layers[1].fault = fault
        for layer in net.layers:
            layer.taken_over() if way == "second" else layer.tabled()
    return net


def built(nets, name, way, fault, dtype):
    torch.manual_seed(5)
    net = written(Stack(nets[name]), way, fault, dtype)
    return net, torch.randint(0, 40, (2, LENGTH + 1))


def loss_of(net, tokens):
    logits = net(net.layers[0].laid_out(tokens[:, :-1]))
    return logits, F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def wide(nets, name, way, fault=None):
    net, tokens = built(nets, name, way, fault, torch.float64)
    logits, loss = loss_of(net, tokens)
    loss.backward()
    lengths = [p.grad.norm().view(1) if p.grad is not None else torch.zeros(1) for p in net.parameters()]
    return torch.cat([logits.detach().flatten(), *lengths])


def record(nets, out, name, way, fault, trained):
    import lastbit.torch

    net, tokens = built(nets, name, way, fault, torch.float32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    with torch.set_grad_enabled(trained), lastbit.torch.capture(out, level="ops"):
        _, loss = loss_of(net, tokens)
        if trained:
            loss.backward()
            optimizer.step()


def pairs(nets):
    """Name, way, fault, and whether a step of training is recorded."""
    for name, kind in nets.items():
        for trained in (False, True):
            yield name, "first", None, trained
            for fault in (None, *kind.faults):
                yield name, "second", fault, trained


def confirm(pairs, wide):
    """Prints how far from the first way the second one is, and each fault in it: `wide` computes a way in float64."""
    for name, way, fault, trained in pairs:
        if way == "first" and not trained:
            right = wide(name, way)
        elif not trained:
            far = float((wide(name, way, fault) - right).norm() / right.norm())
            print("%-6s %.1e %s %s" % ("right" if (far > 1e-6 if fault else far < 1e-9) else "WRONG", far, name, fault or ""))


def main(pairs, wide, record):
    torch.set_num_threads(1)
    if sys.argv[1] == "--confirm":
        confirm(pairs, wide)
        return
    for name, way, fault, trained in pairs:
        if name in (sys.argv[3:] or (name,)):
            record(f"{sys.argv[2]}/{'train-' * trained}{name}-{fault or way}.lb", name, way, fault, trained)


def main_of(nets):
    main(pairs(nets), functools.partial(wide, nets), functools.partial(record, nets))
