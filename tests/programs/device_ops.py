"""Ops that a device computes by kernels of its own, section by section: python device_ops.py [--device cuda] [--steps 2] [--only NAME …] [--tf32]

Each section is a module with its own loss, run forward and backward in f32, bf16 and f16 where the device has the op in that dtype. What a
device lacks is said on stdout ("lacks NAME dtype: why") and left out: the rest runs on."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SECTIONS = {}


def section(function):
    """The function takes the section's module, whose weight() and draw() make what it reads, and returns what the loss sums."""
    SECTIONS[function.__name__] = function
    return function


class Section(nn.Module):
    def __init__(self, name, dtype, device):
        super().__init__()
        self.name, self.dtype, self.device = name, dtype, device
        self.weights = nn.ParameterDict()

    def weight(self, name, *shape):
        if name not in self.weights:
            self.weights[name] = nn.Parameter(torch.randn(*shape, device=self.device, dtype=self.dtype) * shape[-1] ** -0.5)
        return self.weights[name]

    def draw(self, *shape):
        return torch.randn(*shape, device=self.device, dtype=self.dtype)

    def pick(self, below, *shape):
        return torch.randint(below, shape, device=self.device)

    def forward(self):
        return SECTIONS[self.name](self)


@section
def products(s):
    a = F.linear(s.draw(96, 512), s.weight("w", 256, 512), s.weight("b", 256))
    b = torch.bmm(s.draw(6, 33, 128), s.weight("batched", 6, 128, 65))
    c = torch.addmm(s.draw(64), s.draw(48, 4096), s.weight("long", 4096, 64), beta=0.5, alpha=0.25)
    d = torch.einsum("bhqd,bhkd->bhqk", s.draw(2, 3, 17, 80), s.weight("k", 2, 3, 19, 80))
    return a, b, c, d, torch.mv(s.weight("mv", 31, 700), s.draw(700)), torch.dot(s.draw(1000), s.weight("dot", 1000))


def attention(s, backend, causal=True, masked=False):
    q, k, v = (s.weight(name, 2, 4, 128, 64) for name in "qkv")
    mask = s.draw(2, 1, 128, 128) if masked else None
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q * 3, k, v, attn_mask=mask, is_causal=causal and not masked)


@section
def attention_math(s):
    return attention(s, SDPBackend.MATH)


@section
def attention_flash(s):
    return attention(s, SDPBackend.FLASH_ATTENTION), attention(s, SDPBackend.FLASH_ATTENTION, causal=False)


@section
def attention_efficient(s):
    return attention(s, SDPBackend.EFFICIENT_ATTENTION), attention(s, SDPBackend.EFFICIENT_ATTENTION, masked=True)


@section
def attention_cudnn(s):
    return attention(s, SDPBackend.CUDNN_ATTENTION)


@section
def attention_dropout(s):
    q, k, v = (s.weight(name, 2, 4, 64, 32) for name in "qkv")
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)


@section
def norms(s):
    x = s.weight("x", 40, 768) * 2 + 1
    a = F.layer_norm(x, (768,), s.weight("w", 768), s.weight("b", 768))
    b = F.rms_norm(x, (768,), s.weight("rms", 768))
    c = F.group_norm(s.weight("image", 3, 16, 9, 11), 4, s.weight("gw", 16), s.weight("gb", 16))
    d = F.batch_norm(s.weight("maps", 5, 8, 7, 7), None, None, s.weight("bw", 8), s.weight("bb", 8), training=True)
    return a, b, c, d, F.normalize(s.weight("n", 12, 33)), torch.linalg.vector_norm(x, dim=1), x.var(1), x.std(0)


@section
def pointwise(s):
    x = s.weight("x", 77, 130) * 3
    one = x.sigmoid(), x.tanh(), x.exp(), F.silu(x), F.gelu(x), F.gelu(x, approximate="tanh"), F.softplus(x), F.mish(x), F.elu(x)
    two = x.sin(), x.cos(), x.abs().log1p(), x.square().rsqrt(), x.erf(), x.atan(), x.expm1(), x.pow(3), x.abs().pow(1.5), F.hardswish(x)
    return *one, *two, x.clamp(-1, 1), x / (x.abs() + 1), x.abs().sqrt(), x.cosh(), F.logsigmoid(x), F.leaky_relu(x, 0.1)


@section
def sums(s):
    x = s.weight("x", 130, 1031) * 2
    one = x.sum(), x.sum(0), x.sum(1), x.mean(0), x.mean(1), x.cumsum(1), x[:, :9].prod(1), x.logsumexp(1), x.amax(0), x.norm()
    return *one, x.softmax(1), x.log_softmax(0), x.max(1).values, x.topk(5).values, x.sort(1).values, x.kthvalue(3).values, x.median(1).values


@section
def losses(s):
    logits, wanted = s.weight("logits", 60, 1000) * 4, s.pick(1000, 60)
    a = F.cross_entropy(logits, wanted, label_smoothing=0.1, ignore_index=3)
    b = F.binary_cross_entropy_with_logits(logits, s.draw(60, 1000).sigmoid())
    c = F.kl_div(logits.log_softmax(1), s.draw(60, 1000).softmax(1), reduction="batchmean")
    return a, b, c, F.mse_loss(logits, s.draw(60, 1000)), F.huber_loss(logits, s.draw(60, 1000)), F.smooth_l1_loss(logits, s.draw(60, 1000))


@section
def gathers(s):
    table, ids = s.weight("table", 500, 64), s.pick(500, 300)
    a = F.embedding(ids, table)
    b = torch.zeros(40, 64, device=s.device, dtype=s.dtype).index_add(0, s.pick(40, 300), a)
    c = torch.zeros(40, 64, device=s.device, dtype=s.dtype).scatter_add(0, s.pick(40, 300, 64), a)
    d = F.embedding_bag(ids.view(30, 10), table, mode="mean")
    return (
        a,
        b,
        c,
        d,
        table[s.pick(500, 90)],
        table.gather(0, s.pick(500, 20, 64)),
        table.index_select(0, s.pick(500, 33)),
        table.repeat_interleave(2, 0),
    )


@section
def convolutions(s):
    x = s.weight("x", 4, 8, 20, 20)
    a = F.conv2d(x, s.weight("w", 16, 8, 3, 3), s.weight("b", 16), padding=1)
    b = F.conv_transpose2d(a, s.weight("t", 16, 8, 4, 4), stride=2)
    c = F.conv1d(s.weight("line", 3, 12, 50), s.weight("wide", 24, 3, 5), groups=4)
    d = F.conv3d(s.weight("volume", 2, 3, 8, 8, 8), s.weight("cube", 5, 3, 3, 3, 3), stride=2)
    return a, b, c, d, F.max_pool2d(a, 3, 2), F.avg_pool2d(a, 2), F.adaptive_avg_pool2d(a, 3), F.interpolate(x, scale_factor=2, mode="bilinear")


@section
def recurrent(s):
    if not hasattr(s, "lstm"):
        s.lstm = nn.LSTM(12, 20, 2, batch_first=True, bidirectional=True).to(s.device, s.dtype)
        s.gru = nn.GRU(12, 20).to(s.device, s.dtype)
    return s.lstm(s.draw(3, 15, 12))[0], s.gru(s.draw(15, 3, 12))[0]


@section
def draws(s):
    x = s.weight("x", 64, 300)
    drawn = torch.rand(40, 40, device=s.device), torch.empty(50, 7, device=s.device, dtype=s.dtype).normal_(1, 2), torch.randperm(99, device=s.device)
    picked = (
        torch.multinomial(x.detach().float().softmax(1), 4),
        torch.bernoulli(torch.full((33, 9), 0.3, device=s.device)),
        torch.empty(70, device=s.device).exponential_(),
    )
    return F.dropout(x, 0.3), F.dropout(x * 2, 0.1), *(t.to(s.dtype) for t in (*drawn, *picked))


@section
def transforms(s):
    x = s.weight("x", 8, 240)
    return (
        torch.fft.rfft(x).abs(),
        torch.fft.ifft(torch.fft.fft(x)).real,
        torch.stft(x, 64, return_complex=True, window=torch.hann_window(64, device=s.device)).abs(),
    )


@section
def factors(s):
    x = s.weight("x", 3, 24, 24) + 2 * torch.eye(24, device=s.device)
    q, r = torch.linalg.qr(x)
    return (
        q,
        r,
        torch.linalg.cholesky(x @ x.mT),
        torch.linalg.solve(x, s.draw(3, 24, 5)),
        torch.linalg.inv(x),
        torch.linalg.svdvals(x),
        torch.linalg.det(x),
    )


@section
def moved(s):
    x = s.weight("x", 6, 10, 14)
    return (
        torch.cat([x, x * 2], 1),
        torch.stack([x, x]),
        x.roll(3, 1),
        x.flip(2),
        F.pad(x, (1, 2)),
        x.tril(),
        torch.where(x > 0, x, x * 0.5),
        x.masked_fill(x > 0.2, 0),
    )


@section
def scaled_products(s):
    """fp8 with one scale for each tensor and for each row; 8-bit integers; products of groups. No backward."""
    with torch.no_grad():
        a, b = s.draw(64, 256), s.draw(128, 256)
        if s.dtype == torch.float32:
            return torch._int_mm(s.pick(100, 64, 256).to(torch.int8), s.pick(100, 256, 128).to(torch.int8)).float(), s.weight("w", 1)
        one = torch.full((), 0.5, device=s.device)
        rows, columns = torch.rand(64, 1, device=s.device) + 0.5, torch.rand(1, 128, device=s.device) + 0.5
        eighth_a, eighth_b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        tensorwise = torch._scaled_mm(eighth_a, eighth_b.t(), one, one, out_dtype=s.dtype)
        quick = torch._scaled_mm(eighth_a, eighth_b.t(), one, one, out_dtype=s.dtype, use_fast_accum=True)
        rowwise = torch._scaled_mm(eighth_a, eighth_b.t(), rows, columns, out_dtype=torch.bfloat16)
        return tensorwise, quick, rowwise, s.weight("w", 1)


@section
def grouped_products(s):
    ends = torch.tensor([16, 24, 64], device=s.device, dtype=torch.int32)
    return torch._grouped_mm(s.draw(64, 128), s.weight("experts", 3, 128, 96), offs=ends)


class Everything(nn.Module):
    def __init__(self, names, device):
        super().__init__()
        self.parts = nn.ModuleDict({f"{name}_{kind}": Section(name, dtype, device) for name in names for kind, dtype in DTYPES.items()})
        self.lacking = {}

    def forward(self):
        for name, part in self.parts.items():
            if name in self.lacking:
                continue
            try:
                loss = sum(result.float().square().mean() for result in always_a_tuple(part()))
                loss.backward()
            except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
                self.lacking[name] = str(error).strip().splitlines()[0][:150]


def always_a_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def optimizers(model):
    """The parameters spread over what updates them in one launch, in lists and one by one."""
    groups = [[p for i, p in enumerate(model.parameters()) if i % 5 == k and p.grad is not None] for k in range(5)]
    adamw = torch.optim.AdamW
    made = [lambda p: adamw(p, fused=True), lambda p: adamw(p, foreach=True), lambda p: adamw(p, foreach=False)]
    made += [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), lambda p: torch.optim.Adagrad(p)]
    return [make(group) for make, group in zip(made, groups) if group]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=sorted(SECTIONS))
    parser.add_argument("--tf32", action="store_true")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    torch.manual_seed(11)
    model = Everything(args.only or list(SECTIONS), args.device)
    model()  # the weights are made as they are asked for, and what lacks is known from here on
    update = optimizers(model)
    for _ in range(args.steps):
        for optimizer in update:
            optimizer.zero_grad()
        model()
        for optimizer in update:
            optimizer.step()
    for name, why in sorted(model.lacking.items()):
        print("lacks %s: %s" % (name, why))
    print("ran %d of %d" % (len(model.parts) - len(model.lacking), len(model.parts)))


if __name__ == "__main__":
    main()
