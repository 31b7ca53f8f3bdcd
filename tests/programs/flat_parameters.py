"""A small network whose parameters are tensors of their own (separate) or windows on one flat buffer, as ZeRO and FSDP1 lay them; the buffer is
updated as a whole (flat), with a flat gradient that backward writes (gradient), or window by window (views). `fault` updates one window of the
flat buffer too far."""

import sys

import torch

how = sys.argv[1]
torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(width), torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


model = torch.nn.Sequential(torch.nn.Embedding(20, 8), Block(8), torch.nn.Linear(8, 20))
parameters = list(model.parameters())
held = parameters
if how != "separate":
    flat = torch.cat([p.detach().flatten() for p in parameters])
    gradient, places, at = torch.zeros_like(flat), [], 0
    for p in parameters:
        places.append(slice(at, at + p.numel()))
        p.data = flat[places[-1]].view(p.shape)
        if how == "gradient":
            p.grad = gradient[places[-1]].view(p.shape)
        at += p.numel()
    if how != "views":
        held = [torch.nn.Parameter(flat)]
optimizer = torch.optim.AdamW(held, lr=1e-2, foreach=False)
for _ in range(2):
    tokens = torch.randint(0, 20, (4, 6))
    torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten()).backward()
    if how in ("flat", "fault"):
        held[0].grad = torch.cat([p.grad.flatten() for p in parameters])
    if how == "gradient":
        held[0].grad = gradient
    optimizer.step()
    if how == "fault":
        flat[places[3]].mul_(1.01)
    if how == "gradient":
        gradient.zero_()
    else:
        for p in parameters:
            p.grad = None
