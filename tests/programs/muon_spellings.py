"""Muon as people write it, and what only looks like it: python muon_spellings.py NAME [overflow]

Every spelling orthogonalises the momentum of a matrix by products of it with itself transposed. With `overflow` the matrix is not
normalised in step 2: the iteration leaves what bf16 can hold, as f32. The decoys have such products, too, and are no Muon."""

import sys

import torch
from torch import nn

torch.manual_seed(5)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
POLAR = [(8.28721, -23.59589, 17.30038), (4.10706, -2.94785, 0.54484), (3.94869, -2.90890, 0.55181), (3.31842, -2.48849, 0.51005)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.tall, self.head = nn.Linear(12, 8), nn.Linear(8, 12), nn.Linear(12, 5)

    def forward(self, x):
        return self.head(torch.tanh(self.tall(torch.tanh(self.wide(x)))))


# ---- spellings: each takes the momentum, normalised by `norm`, to something near its polar factor


def flat(g):
    """Rows no longer than columns."""
    return (g.mT, True) if g.size(-2) > g.size(-1) else (g, False)


def plain(x, steps=4):
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def with_mm(x):
    a, b, c = COEFFICIENTS
    for _ in range(4):
        gram = torch.mm(x, x.t())
        x = torch.add(x, torch.mm(torch.mm(gram, gram) * c + gram * b, x) / a).mul(a)
    return x


def with_addmm(x):
    a, b, c = COEFFICIENTS
    for _ in range(4):
        gram = torch.mm(x, x.t())
        poly = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, poly, x, beta=a)
    return x


def in_place(x):
    a, b, c = COEFFICIENTS
    x, gram = x.clone(), x.new_empty(x.size(0), x.size(0))
    for _ in range(4):
        gram.zero_().addmm_(x, x.t())
        poly = (gram * b).addmm_(gram, gram, alpha=c)
        x = (x * a).addmm_(poly, x)
    return x


def out_arguments(x):
    a, b, c = COEFFICIENTS
    x, gram, square, step = x.contiguous(), x.new_empty(x.size(0), x.size(0)), x.new_empty(x.size(0), x.size(0)), torch.empty_like(x)
    for _ in range(4):
        torch.mm(x, x.t(), out=gram)
        torch.mm(gram, gram, out=square)
        torch.mm(b * gram + c * square, x, out=step)
        x = a * x + step
    return x


def tiles_of_k(x, tile=4):
    a, b, c = COEFFICIENTS
    for _ in range(4):
        gram = x.new_zeros(x.size(0), x.size(0))
        for k in range(0, x.size(1), tile):
            part = x[:, k : k + tile]
            gram.addmm_(part, part.t())
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def symmetric_halves(x):
    """The upper half in blocks, the lower is its mirror."""
    a, b, c = COEFFICIENTS
    n = x.size(0) // 2
    for _ in range(4):
        x = x.contiguous()
        top, bottom = x[:n], x[n:]
        corner = top @ bottom.mT
        gram = torch.cat([torch.cat([top @ top.mT, corner], 1), torch.cat([corner.mT, bottom @ bottom.mT], 1)], 0)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def batched(x):
    a, b, c = COEFFICIENTS
    x = x.expand(2, -1, -1).contiguous()
    for _ in range(4):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x[0]


def einsum(x):
    a, b, c = COEFFICIENTS
    for _ in range(4):
        gram = torch.einsum("ik,jk->ij", x, x)
        x = a * x + torch.einsum("ij,jk->ik", b * gram + c * torch.einsum("ij,jk->ik", gram, gram), x)
    return x


def linear(x):
    a, b, c = COEFFICIENTS
    for _ in range(4):
        gram = nn.functional.linear(x, x)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def gram_in_bf16(x):
    a, b, c = COEFFICIENTS
    x = x.float()
    for _ in range(4):
        gram = (x.bfloat16() @ x.bfloat16().mT).float()
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def transposed_copy(x):
    a, b, c = COEFFICIENTS
    for _ in range(4):
        turned = x.mT.contiguous()
        gram = x @ turned
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def polar_express(x):
    for a, b, c in POLAR:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def cubic(x):
    for _ in range(6):
        x = 1.5 * x - 0.5 * (x @ x.mT) @ x
    return x


def degree_seven(x):
    for _ in range(3):
        gram = x @ x.mT
        square = gram @ gram
        x = 2.1875 * x - (2.1875 * gram - 1.3125 * square + 0.3125 * square @ gram) @ x
    return x


def columns(x):
    """The small Gram matrix of a tall one, without turning it first."""
    x = x.mT.contiguous()
    for _ in range(5):
        x = 1.5 * x - 0.5 * x @ (x.mT @ x)
    return x.mT


def gram_space(x):
    """Only the Gram matrix is iterated; what it came from is multiplied once, at the end."""
    a, b, c = COEFFICIENTS
    gram, total = x @ x.mT, torch.eye(x.size(0), dtype=x.dtype)
    for _ in range(3):
        poly = a * torch.eye(x.size(0), dtype=x.dtype) + b * gram + c * gram @ gram
        total = poly @ total
        gram = poly @ gram @ poly
    return total @ x


SPELLINGS = [
    plain,
    with_mm,
    with_addmm,
    in_place,
    out_arguments,
    tiles_of_k,
    symmetric_halves,
    batched,
    einsum,
    linear,
    gram_in_bf16,
    transposed_copy,
    polar_express,
    cubic,
    degree_seven,
    columns,
    gram_space,
]


# ---- decoys: each gives the update of a matrix


def shampoo(g, state):
    left, right = state.setdefault("left", torch.eye(g.size(0)) * 1e-2), state.setdefault("right", torch.eye(g.size(1)) * 1e-2)
    left.addmm_(g, g.mT)
    right.addmm_(g.mT, g)

    def root(m):
        """The inverse fourth root, by products (a coupled Newton iteration)."""
        size = m.norm()
        m, x = m / size, torch.eye(m.size(0))
        for _ in range(6):
            t = (5 * torch.eye(m.size(0)) - m) / 4
            x, m = x @ t, t @ t @ t @ t @ m
        return x / size**0.25

    return root(left) @ g @ root(right)


def soap(g, state):
    cover = state.setdefault("cover", torch.eye(g.size(0)))
    cover.lerp_(g @ g.mT, 0.1)
    basis = state.get("basis", torch.eye(g.size(0)))
    state["basis"] = torch.linalg.qr(cover @ basis)[0]
    turned = state["basis"].mT @ g
    return state["basis"] @ (turned / (turned.square().mean().sqrt() + 1e-8))


def watched(g, state):
    """A covariance that is looked at."""
    state["condition"] = (g @ g.mT).diagonal().sum().item()
    return g


def orthogonal_penalty(g, state):
    w = state["parameter"]
    small = w if w.size(0) <= w.size(1) else w.mT
    pull = (small @ small.mT - torch.eye(small.size(0))) @ small
    return g + 1e-3 * (pull if w.size(0) <= w.size(1) else pull.mT)


def scaled_by_rows(g, state):
    return g / ((g @ g.mT).diagonal().sqrt()[:, None] + 1e-6)


def powersgd(g, state):
    q = state.setdefault("q", torch.randn(g.size(1), 2))
    p = torch.linalg.qr(g @ q)[0]
    q = g.mT @ p
    return p @ q.mT


DECOYS = [shampoo, soap, watched, orthogonal_penalty, scaled_by_rows, powersgd]


class Optimizer(torch.optim.Optimizer):
    """Its name says nothing."""

    def __init__(self, params, update):
        super().__init__(params, {"lr": 0.02})
        self.update = update

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("parameter", p) if self.update in DECOYS else None
                m = self.state[p].setdefault("momentum", torch.zeros_like(p))
                m.lerp_(p.grad, 0.5)
                p.sub_(0.02 * self.update(m, self.state[p]))


class ByHand(Optimizer):
    """No optimizer of torch's."""

    def __init__(self, params, update):
        self.param_groups, self.state, self.update = [{"params": list(params)}], {p: {} for p in params}, update

    def zero_grad(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None


def orthogonalised(spelling, narrow):
    def update(m, state):
        x, turned = flat(m.to(narrow))
        state["calls"] = state.get("calls", 0) + 1
        x = x * 1e12 if update.overflows and state["calls"] == 3 else x / (x.norm() + 1e-7)
        x = spelling(x)
        return (x.mT if turned else x).to(m.dtype)

    update.overflows = False
    return update


def main(name, overflow):
    model = Net()
    matrices = [model.wide.weight, model.tall.weight]
    others = torch.optim.AdamW([p for p in model.parameters() if p is not model.wide.weight and p is not model.tall.weight], lr=1e-3)
    name, _, how = name.partition("/")
    spelling = next(f for f in SPELLINGS + DECOYS if f.__name__ == name)
    update = orthogonalised(spelling, torch.bfloat16) if spelling in SPELLINGS else spelling
    update.overflows = overflow
    optimizer = (ByHand if how == "by-hand" else Optimizer)(matrices, update)
    for batch in list(torch.randn(4, 6, 12)):
        model(batch).square().mean().backward()
        optimizer.step()
        others.step()
        optimizer.zero_grad()
        others.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], "overflow" in sys.argv[2:])
