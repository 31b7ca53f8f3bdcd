"""Runs in which nothing is wrong and much looks odd: python healthy_runs.py evals|masks|scheduled|lora"""

import sys

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


def evals():
    """Evaluation between steps, an average of the weights, dropout, batch norm whose statistics only evaluation reads."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for step in range(5):
        model.train()
        x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
        nn.functional.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        if step % 2:
            model.eval()
            with torch.no_grad():
                (model(torch.randn(64, 8)).argmax(-1) == 0).float().mean().item()
                average(torch.randn(4, 8)).softmax(-1)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, 4)

    def forward(self, x, mask, padding):
        return self.head(self.encoder(x, mask=mask, src_key_padding_mask=padding)).masked_fill(padding[..., None].isinf(), -torch.inf)


def masks():
    """-inf in masks, and in the output."""
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    mask = torch.full((6, 6), -torch.inf).triu(1)
    for _ in range(3):
        padding = torch.zeros(3, 6).masked_fill(torch.arange(6) >= torch.tensor([6, 4, 5])[:, None], -torch.inf)
        out = model(torch.randn(3, 6, 16), mask, padding)
        out[padding == 0].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(torch.randn(3, 6, 16), mask, padding)
        model.train()


def scheduled():
    """A learning rate that warms up from 0 to a thousand times its first value, over momenta that begin at 0."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e-6 * 10**step)
    for x in torch.randn(6, 4, 8):
        (model(x) - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        nn.init.normal_(self.b.weight, std=1e-6)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def lora():
    """Weights that begin near 0 and grow a thousandfold, as they should; a penalty on A Aᵀ."""
    model = nn.Sequential(Adapted(), nn.Tanh(), Adapted())
    optimizer = torch.optim.AdamW([p for n, p in model.named_parameters() if ".base" not in n], lr=5e-3)
    for x in torch.randn(5, 4, 8):
        a = model[0].a.weight
        ((model(x) - x).square().mean() + 1e-2 * (a @ a.T - torch.eye(2)).square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    {f.__name__: f for f in (evals, masks, scheduled, lora)}[sys.argv[1]]()
