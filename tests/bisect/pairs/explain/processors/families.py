"""What PyTorch's libraries add up in orders that depend on the processor: each family is a step. `families.py OUT.lb` records them,
with --fault two wrong numbers besides: the scale of an attention, the eps of a layer norm.

The numbers that it begins with are exact on every processor: PyTorch's own draws and functions are not.
"""

import functools
import sys

import lastbit.torch
import torch
from torch.nn import functional as F


@functools.lru_cache(None)
def numbers(*shape, seed=1):
    """In (-0.5, 0.5), with 24 bits each, of integers alone."""
    n = 1
    for s in shape:
        n *= s
    i = torch.arange(1, n + 1, dtype=torch.int64)
    return (((i * 2654435761 + seed * 40503) % (1 << 24)).double() / (1 << 24) - 0.5).float().reshape(shape)


@functools.lru_cache(None)
def halves(*shape, seed=1):
    return numbers(*shape, seed=seed).bfloat16()


def products():
    a, b = numbers(5, 65), numbers(65, 13, seed=2)
    torch.mm(a, b), torch.addmm(numbers(13, seed=3), a, b), torch.mv(b, numbers(13, seed=4)), torch.dot(a[0], b[:, 0].contiguous())
    torch.bmm(numbers(2, 5, 40), numbers(2, 40, 5, seed=5)), F.linear(a, numbers(18, 65, seed=6))


def half_products():
    a, b = halves(5, 130), halves(130, 13, seed=2)
    torch.mm(a, b), F.linear(a, halves(10, 130, seed=6), halves(10)), torch.bmm(a[None], b[None]), torch.mv(b, a[0, :13])


def sums():
    x = numbers(3, 150)
    x.sum(), x.sum(0), x.sum(1), x.mean(1), x.var(1), x.cumsum(1), torch.logsumexp(x, 1), torch.linalg.vector_norm(x)
    x.softmax(1), x.log_softmax(1), halves(3, 150).sum(1), halves(3, 150).softmax(1)


def norms():
    x, w = numbers(3, 60), numbers(60, seed=3)
    F.layer_norm(x, (60,), w, w), F.rms_norm(x, (60,), w), F.layer_norm(halves(3, 60), (60,), halves(60), halves(60))
    F.group_norm(x.reshape(3, 20, 3), 4), F.batch_norm(x, None, None, training=True)


def attention():
    F.scaled_dot_product_attention(*(numbers(1, 2, 7, 16, seed=s) for s in (1, 2, 3)), is_causal=True)
    F.scaled_dot_product_attention(*(halves(1, 2, 7, 16, seed=s) for s in (1, 2, 3)), is_causal=True)
    q, k, v = (numbers(1, 2, 7, 16, seed=s) for s in (1, 2, 3))
    torch.softmax(q @ k.transpose(-1, -2) * SCALE, -1) @ v


def training():
    w1, w2 = numbers(33, 16, seed=7).requires_grad_(), numbers(16, 8, seed=8).requires_grad_()
    w1.grad = w2.grad = None
    h = F.layer_norm(F.gelu(numbers(6, 33, seed=3) @ w1), (16,), eps=EPS)
    F.cross_entropy(h @ w2, torch.arange(6)).backward()


SCALE, EPS = (16**-0.5, 1e-5) if "--fault" not in sys.argv else (0.251, 1e-3)
FAMILIES = [products, half_products, sums, norms, attention, training]

if __name__ == "__main__":
    torch.set_num_threads(1)
    for family in FAMILIES:
        family()  # its numbers are made before recording begins
    with lastbit.torch.capture(sys.argv[1], level="ops", lines=False) as capture:
        for n, family in enumerate(FAMILIES):
            with capture.step(n):
                family()
