"""Steps of a small transformer, each recorded by itself: checked_steps.py FOLDER NAME… writes FOLDER/NAME.lb. A name says what is different:
a fault of those that projects reported, or a way to train that is as it should be."""

import pathlib
import sys

import lastbit.torch
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

VOCABULARY = 32


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Scan(torch.autograd.Function):
    """y_t = a_t y_(t-1) + x_t over the second dimension; `lost`: its backward loses what comes from behind one position."""

    @staticmethod
    def forward(ctx, a, x, lost):
        y = [x[:, 0]]
        for t in range(1, x.shape[1]):
            y.append(a[:, t] * y[-1] + x[:, t])
        ctx.lost = lost
        ctx.save_for_backward(a, torch.stack(y, 1))
        return torch.stack(y, 1)

    @staticmethod
    def backward(ctx, g):
        a, y = ctx.saved_tensors
        gx, ga, carry = torch.empty_like(g), torch.zeros_like(g), torch.zeros_like(g[:, 0])
        for t in range(g.shape[1] - 1, -1, -1):
            carry = carry + g[:, t]
            gx[:, t] = carry
            if t:
                ga[:, t] = carry * y[:, t - 1]
            carry = carry * a[:, t]
            if ctx.lost and t == 5:
                carry = torch.zeros_like(carry)
        return ga, gx, None


class Block(torch.nn.Module):
    def __init__(self, d, heads, name, index):
        super().__init__()
        self.heads, self.name, self.index = heads, name, index
        self.n1, self.n2 = torch.nn.LayerNorm(d), torch.nn.LayerNorm(d)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(d, d) for _ in range(4))
        self.up, self.down = torch.nn.Linear(d, 2 * d), torch.nn.Linear(2 * d, d)
        self.drop = torch.nn.Dropout(0.1 if "drop" in name else 0.0)
        if name == "relu_of_zero":  # a table of distances, the first of which is 0, as is the bias
            self.near, self.far = torch.nn.Linear(1, 64), torch.nn.Linear(64, 2 * d)
            torch.nn.init.zeros_(self.near.bias)

    def turn(self, x):
        t = torch.arange(x.shape[-2])[:, None] / 10 ** torch.arange(x.shape[-1] // 2)
        a, b = x.chunk(2, -1)
        return torch.cat([a * t.cos() - b * t.sin(), b * t.cos() + a * t.sin()], -1)

    def forward(self, x):
        b, t, d = x.shape
        h = self.n1(x)
        q, k, v = (layer(h).view(b, t, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.name == "rope_detached" and self.index == 1:
            q, k = q.detach(), k.detach()
        q, k = self.turn(q).to(v.dtype), self.turn(k).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        if self.name == "heads_exchanged" and self.index == 0:
            y.register_hook(lambda g: g.view(b, t, 2, -1).flip(-2).reshape(g.shape))
        x = x + self.drop(self.out(y))
        h = self.up(self.n2(x))
        h = F.relu(h) if self.name == "relu" else F.rrelu(h, training=True) if "rrelu" in self.name else F.gelu(h)
        if self.name == "mask_of_cuda":  # as dropout runs there
            h = torch.native_dropout(h, 0.2, True)[0]
        if self.name == "relu_of_zero":
            h = h + self.far(F.relu(self.near(torch.arange(float(t))[:, None])))
        if self.name == "custom_twice" and self.index == 1:
            h = Twice.apply(h)
        if self.name in ("scan", "scan_lost"):
            h = Scan.apply(torch.sigmoid(h), h, self.name == "scan_lost")
        if self.name == "stage_divided_gas" and self.index == 0:
            h.register_hook(lambda g: g / 4)
        if self.name == "gradient_zeroed" and self.index == 0:
            h.register_hook(lambda g: g * 0)
        if self.name == "rows_zeroed" and self.index == 1:
            h.register_hook(lambda g: torch.cat([g[:, :-2], torch.zeros_like(g[:, -2:])], 1))
        if self.name == "statistics_held":
            with torch.no_grad():
                size = h.abs().mean()
            h = h / size
        return x + self.drop(self.down(h))


class Model(torch.nn.Module):
    def __init__(self, name, d=16, layers=2):
        super().__init__()
        self.name = name
        self.wte = torch.nn.Embedding(VOCABULARY, d, padding_idx=1 if name == "padding" else None)
        self.blocks = torch.nn.ModuleList(Block(d, 2, name, i) for i in range(layers))
        self.norm = torch.nn.LayerNorm(d)
        self.head = torch.nn.Linear(d, VOCABULARY, bias=False)
        if "tied" in name:
            self.head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids)
        for block in self.blocks:
            if "checkpoint" in self.name:
                x = checkpoint(block, x, use_reentrant="reentrant" in self.name, preserve_rng_state="redrawn" not in self.name)
            else:
                x = block(x)
        return self.head(self.norm(x))


def optimizer_of(name, model):
    if "sgd" in name:
        return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-2)
    if "muon" in name:
        return torch.optim.Muon([p for p in model.blocks.parameters() if p.ndim == 2], lr=1e-2)
    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach="foreach" in name, fused="fused" in name)


def spoil_gradients(name, model):
    if name == "tied_added_twice":
        model.wte.weight.grad.add_(model.wte.weight.grad.clone())
    if name == "one_halved":
        model.blocks[1].down.weight.grad.div_(2)


def train(name, out):
    torch.manual_seed(0)
    model = Model(name)
    if "bf16" in name:
        model = model.bfloat16()
    if "frozen" in name:
        model.blocks[0].requires_grad_(False)
    if name == "rrelu_stopped_checkpoint":  # behind its noise nothing is saved, so that the recomputation stops before it is drawn
        model.blocks[1] = torch.nn.Sequential(model.blocks[1], torch.nn.RReLU())
    if name == "weight_hook":
        model.blocks[1].up.weight.register_hook(lambda g: g * 3)
    optimizer, scaler = optimizer_of(name, model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    batches = torch.randint(0, VOCABULARY, (4 if "gas" in name else 1, 2, 12))
    if name == "left_over":
        F.cross_entropy(model(batches[0]).flatten(0, 1), batches[0].flatten()).backward()
    with lastbit.torch.capture(out, level="ops") as capture, capture.step(0):
        for micro, ids in enumerate(batches):
            with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in name):
                logits = model(ids)
            if name == "logits_divided_gas":
                logits.register_hook(lambda g: g / len(batches))
            loss = F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY).float(), ids[:, 1:].reshape(-1)) / len(batches)
            if name == "gas_lost" and micro == 3:
                optimizer.zero_grad()
            (scaler.scale(loss) if "scaler" in name else loss).backward()
        spoil_gradients(name, model)
        if "scaler" in name:
            scaler.unscale_(optimizer)
        if "clip" in name:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer) if "scaler" in name else optimizer.step()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        train(name, pathlib.Path(sys.argv[1]) / f"{name}.lb")
