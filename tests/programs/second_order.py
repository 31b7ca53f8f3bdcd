"""Training with optimizers that factorise matrices: second_order.py [--optimizer soap|shampoo|whitened] [--steps N] [--fault OP:KIND].

soap      Adam in the eigenbasis of Shampoo's two Gram matrices, which a power iteration and a QR keep up to date (Vyas et al. 2024)
shampoo   inverse fourth roots of the Gram matrices by eigendecomposition (Gupta et al. 2018)
whitened  the update's orthogonal factor by a singular value decomposition, and preconditioning by Cholesky solves and inverses

--fault replaces torch's CPU kernel of an op by one whose results are legal but others (`signs`), or wrong in one place (`wrong`).
"""

import argparse

import numpy
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", default="soap")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--fault", default="")
options = parser.parse_args()


def in_numpy(name, arrays):
    if name == "linalg_qr":
        return list(numpy.linalg.qr(arrays[0]))
    if name == "_linalg_eigh":
        return list(numpy.linalg.eigh(arrays[0]))
    u, s, vh = numpy.linalg.svd(arrays[0], full_matrices=False)
    return [u, s, vh]


def plant(name, kind):
    """A kernel of our own underneath everything that watches ops."""

    def kernel(a, *args, **kwargs):
        results = in_numpy(name, [a.double().numpy()])
        vectors = 1 if name == "_linalg_eigh" else 0
        if kind == "signs":  # of the first vector, and of what belongs to it
            results[vectors][:, 0] *= -1
            if name != "_linalg_eigh":
                results[-1][0] *= -1
        else:
            results[vectors][0, 1] += 0.01
        return tuple(torch.from_numpy(numpy.ascontiguousarray(r)).to(a.dtype) for r in results)

    library = torch.library.Library("aten", "IMPL")
    library.impl(name, kernel, "CPU")
    return library


class Soap(torch.optim.Optimizer):
    def __init__(self, params, lr=3e-3, betas=(0.95, 0.95), decay=0.95, eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, decay=decay, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, self.state[p], **{k: group[k] for k in ("lr", "betas", "decay", "eps")})

    def update(self, p, state, lr, betas, decay, eps):
        g = p.grad
        if g.dim() != 2:
            p.add_(g, alpha=-lr)
            return
        if not state:
            state.update(step=0, left=g @ g.T, right=g.T @ g, mean=torch.zeros_like(g), square=torch.zeros_like(g))
            state["q"] = [torch.linalg.eigh(m + 1e-6 * torch.eye(m.shape[0]))[1] for m in (state["left"], state["right"])]
        state["step"] += 1
        ql, qr = state["q"]
        rotated = ql.T @ g @ qr
        state["mean"].lerp_(g, 1 - betas[0])
        state["square"].lerp_(rotated.square(), 1 - betas[1])
        update = (ql.T @ state["mean"] @ qr) / (state["square"].sqrt() + eps)
        p.add_(ql @ update @ qr.T, alpha=-lr)
        state["left"].lerp_(g @ g.T, 1 - decay)
        state["right"].lerp_(g.T @ g, 1 - decay)
        state["q"] = [torch.linalg.qr(m @ q)[0] for m, q in ((state["left"], ql), (state["right"], qr))]


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                g, state = p.grad, self.state[p]
                if g.dim() != 2:
                    p.add_(g, alpha=-group["lr"])
                    continue
                if not state:
                    state.update(left=1e-4 * torch.eye(g.shape[0]), right=1e-4 * torch.eye(g.shape[1]))
                state["left"].addmm_(g, g.T)
                state["right"].addmm_(g.T, g)
                p.add_(self.root(state["left"]) @ g @ self.root(state["right"]), alpha=-group["lr"])

    @staticmethod
    def root(m):
        values, vectors = torch.linalg.eigh(m)
        return vectors * values.clamp(min=1e-8).pow(-0.25) @ vectors.T


class Whitened(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                g = p.grad
                if g.dim() != 2:
                    p.add_(g, alpha=-group["lr"])
                    continue
                gram = g @ g.T + 0.1 * torch.eye(g.shape[0])
                u, _, vh = torch.linalg.svd(g, full_matrices=False)
                solved = torch.cholesky_solve(g, torch.linalg.cholesky(gram)) + torch.linalg.inv(gram) @ g + torch.linalg.solve(gram, g)
                scale = torch.linalg.eigvalsh(gram).amax()
                p.add_(u @ vh + solved * scale / 100, alpha=-group["lr"])


library = plant(*options.fault.split(":")) if options.fault else None
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 4))
optimizer = {"soap": Soap, "shampoo": Shampoo, "whitened": Whitened}[options.optimizer](model.parameters())
for step in range(options.steps):
    x = torch.randn(32, 12)
    loss = (model(x) - x[:, :4].sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
