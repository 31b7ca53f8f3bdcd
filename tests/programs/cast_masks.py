"""One program against the same with another number in it, where the number goes through a cast to bools or whole numbers, or where memory
that nothing wrote is masked.

    python cast_masks.py --all FOLDER    # NAME-a.lb, NAME-b.lb, and train-NAME-a.lb, train-NAME-b.lb"""

import sys

import torch
from torch import nn

LENGTH, WIDTH, ROOM = 6, 16, 10


class Masked(nn.Module):
    """Attention whose scores are masked by a float mask cast to bool, made of `number`."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def attend(self, x, hidden):
        return (x @ x.mT).masked_fill(hidden, -1e9).softmax(-1) @ x


class Triangle(Masked):
    def forward(self, x):
        return self.attend(x, torch.ones(LENGTH, LENGTH).triu(int(self.number)).bool())


class Bytes(Masked):
    def forward(self, x):
        return self.attend(x, torch.ones(LENGTH, LENGTH).triu(int(self.number)).to(torch.uint8).bool())


class Places(Masked):
    def forward(self, x):
        return x[:, (torch.arange(float(LENGTH)) * self.number * 0.4).long()]


class Buckets(Masked):
    def __init__(self, number):
        super().__init__(number)
        self.table = nn.Embedding(40, WIDTH)

    def forward(self, x):
        return x + self.table((torch.log1p(torch.arange(float(LENGTH))) * (7 + self.number)).to(torch.int64))


class Steps(Masked):
    def forward(self, x):
        return x + (x * (1 + self.number)).int()


class Unwritten(nn.Module):
    """A cache of which the rows behind the text were never written; masks hide them. `number` scales what leaves."""

    def __init__(self, number):
        super().__init__()
        self.number, self.norm = number, nn.LayerNorm(WIDTH)

    def forward(self, x):
        keys = torch.empty(len(x), ROOM, WIDTH)
        keys[:, :LENGTH] = x
        behind = torch.arange(ROOM) >= torch.arange(1, LENGTH + 1)[:, None]
        shares = (x @ keys.mT).masked_fill(behind, float("-inf")).softmax(-1)
        values = keys.masked_fill((torch.arange(ROOM) >= LENGTH)[:, None], 0)
        return self.norm(x + shares @ values) * self.number


class Around(nn.Module):
    """A convolution around the edges: its padding is written in pieces into fresh memory."""

    def __init__(self, number):
        super().__init__()
        self.conv = nn.Conv1d(LENGTH, LENGTH, 3, padding=1, padding_mode="circular" if number == 1 else "zeros")

    def forward(self, x):
        return self.conv(x)


NETS = dict(triangle=Triangle, bytes=Bytes, places=Places, buckets=Buckets, steps=Steps, unwritten=Unwritten, around=Around)


def record(out, kind, number, trained):
    import lastbit.torch

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), kind(number), nn.Linear(WIDTH, 4))
    x, optimizer = torch.randn(4, LENGTH, WIDTH), torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.set_grad_enabled(trained), lastbit.torch.capture(out, level="sources") as cap, cap.step(0):
        loss = net(x).pow(2).mean()
        if trained:
            loss.backward()
            optimizer.step()


def main():
    torch.set_num_threads(1)
    for name, kind in NETS.items():
        for trained in (False, True):
            for side, number in (("a", 1.0), ("again", 1.0), ("b", 2.0)):
                record(f"{sys.argv[2]}/{'train-' * trained}{name}-{side}.lb", kind, number, trained)


if __name__ == "__main__":
    main()
