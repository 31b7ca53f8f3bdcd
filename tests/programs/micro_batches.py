"""Two steps that add up gradients over three micro-batches: micro_batches.py ORDER [EVALUATE_AFTER] [FAULT].

ORDER: the numbers of the micro-batches as they run, as "1,2,3". EVALUATE_AFTER: behind that many of them a batch of its own is evaluated;
0: never. FAULT: "layer", a factor inside the second layer; "cap", a soft cap behind the head, which is the last op of a forward pass.
"""

import sys

import numpy
import torch
import torch.nn.functional as F

order = [int(number) - 1 for number in sys.argv[1].split(",")]
after = int(sys.argv[2]) if len(sys.argv) > 2 else 0
fault = sys.argv[3] if len(sys.argv) > 3 else ""


class Layer(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.norm = number, torch.nn.LayerNorm(16)
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, h):
        u = torch.relu(self.up(self.norm(h)))
        if fault == "layer" and self.number == 1:
            u = u * 1.01
        return h + self.down(u)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50)
        self.layers = torch.nn.ModuleList(Layer(i) for i in range(3))

    def forward(self, tokens):
        h = self.embed(tokens)
        for layer in self.layers:
            h = layer(h)
        y = self.head(h)
        return 5 * torch.tanh(y / 5) if fault == "cap" else y


def draw(seed):
    return torch.from_numpy(numpy.random.default_rng(seed).integers(0, 50, (4, 9)))


def loss_of(tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = [[draw(10 * step + k) for k in range(4)] for step in range(2)]
for step in range(2):
    for ran, number in enumerate(order, 1):
        (loss_of(batches[step][number]) / 3).backward()
        if ran == after:
            with torch.no_grad():
                print("evaluation", loss_of(batches[step][3]).item())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
