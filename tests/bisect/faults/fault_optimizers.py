"""Optimizers as people write them by hand: Lion and Muon, with the pieces that a fault may change as methods."""

import torch


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = state["exp_avg"] * first + p.grad * (1 - first)
                p.add_(update.sign(), alpha=-group["lr"])
                state["exp_avg"].mul_(second).add_(p.grad, alpha=1 - second)


class Muon(torch.optim.Optimizer):
    """Matrices by a quintic Newton-Schulz iteration of their momentum, everything else by SGD with momentum."""

    coefficients = (3.4445, -4.7750, 2.0315)

    def __init__(self, params, lr=1e-3, momentum=0.95, weight_decay=0.1, iterations=3):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, iterations=iterations))

    def orthogonal(self, g, iterations):
        a, b, c = self.coefficients
        x = g / (g.norm() + 1e-7)
        if tall := g.shape[0] > g.shape[1]:
            x = x.T
        for _ in range(iterations):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.T if tall else x

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                buffer = state["momentum_buffer"]
                buffer.mul_(group["momentum"]).add_(p.grad)
                update = p.grad.add(buffer, alpha=group["momentum"])
                if p.ndim == 2:
                    update = self.orthogonal(update, group["iterations"]) * max(1, p.shape[0] / p.shape[1]) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"])
