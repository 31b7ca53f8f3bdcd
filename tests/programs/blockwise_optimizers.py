"""bitsandbytes' optimizers by name and schema, in f32 and 8 bits, as their public formulas have them: blockwise_optimizers.py [--fault NAME].

--fault of an optimizer (adam, momentum, lion, rmsprop, adagrad): one parameter of its first update is off by a hundredth of itself;
`code`: one code of a state of 8 bits is the next but one.
"""

import argparse

import torch

SPACE = "bitsandbytes"
HEAD = "str optimizer_name, Tensor(a0!) g, Tensor(a1!) p, Tensor(a2!) state1, Tensor(a3!)? state2, "
PLAIN = HEAD + (
    "Tensor(a4!)? unorm_vec, float max_unorm, float param_norm, float beta1, float beta2, float beta3, float alpha, float eps, "
    "float weight_decay, int step, float lr, float gnorm_scale, bool skip_zeros=False"
)
CODED = HEAD + (
    "float beta1, float beta2, float beta3, float alpha, float eps, int step, float lr, Tensor(a4!) qmap1, Tensor(a5!)? qmap2, "
    "Tensor(a6!) absmax1, Tensor(a7!)? absmax2, float weight_decay, float gnorm_scale, bool skip_zeros=False"
)
OPS = {f"{SPACE}::optimizer_update_32bit": PLAIN, f"{SPACE}::optimizer_update_8bit_blockwise": CODED}
BLOCK = 256
FAULT = ""


def updated(name, g, p, m, v, beta1, beta2, eps, step, lr, decay, scale):
    """New parameter and states, in f32."""
    g = g.float() * scale
    if name in ("momentum", "rmsprop", "adagrad"):
        g = g + decay * p
    else:
        p = p * (1 - lr * decay)
    if name == "adam":
        m, v = m * beta1 + (1 - beta1) * g, v * beta2 + (1 - beta2) * g * g
        c1, c2 = 1 - beta1**step, (1 - beta2**step) ** 0.5
        p = p - lr * c2 / c1 * (m / (v.sqrt() + eps * c2))
    elif name == "momentum":
        m = g if step == 1 else m * beta1 + g
        p = p - lr * m
    elif name == "lion":
        p, m = p - lr * torch.sign(m * beta1 + (1 - beta1) * g), m * beta2 + (1 - beta2) * g
    else:
        m = m + g * g if name == "adagrad" else m * beta1 + (1 - beta1) * g * g
        p = p - lr * g / (m.sqrt() + eps)
    if name == FAULT and step == 1:
        p = p.clone()
        p.view(-1)[3] *= 1.01
    return p, m, v


def update_plain(name, g, p, m, v, unorm, most, norm, beta1, beta2, beta3, alpha, eps, decay, step, lr, scale, skip=False):
    new = updated(name, g, p.float(), m, v, beta1, beta2, eps, step, lr, decay, scale)
    for old, x in zip((p, m, v), new):
        if old is not None:
            old.copy_(x)


def read(q, code, scales):
    return (code[q.long().view(-1)] * scales.repeat_interleave(BLOCK)[: q.numel()]).view(q.shape)


def write(x, q, code, scales):
    rows = torch.nn.functional.pad(x.reshape(-1), (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    scales.copy_(rows.abs().amax(1))
    near = (rows / scales[:, None].clamp(min=1e-30))[..., None] - code
    q.copy_(near.abs().argmin(-1).view(-1)[: x.numel()].view(x.shape))
    if FAULT == "code":
        q.view(-1)[5] = (int(q.view(-1)[5]) + 2) % 256


def update_coded(name, g, p, m, v, beta1, beta2, beta3, alpha, eps, step, lr, code1, code2, scale1, scale2, decay, scale, skip=False):
    states = [read(m, code1, scale1), None if v is None else read(v, code2, scale2)]
    new, *states = updated(name, g, p.float(), *states, beta1, beta2, eps, step, lr, decay, scale)
    p.copy_(new)
    write(states[0], m, code1, scale1)
    if v is not None:
        write(states[1], v, code2, scale2)


def dynamic(signed):
    """A code that is finer near 0, as bitsandbytes' dynamic map."""
    positive = torch.logspace(-6, 0, 128 if signed else 255)
    return torch.cat([-positive[:-1].flip(0), torch.zeros(1), positive] if signed else [torch.zeros(1), positive]).float()


def main():
    global FAULT
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    FAULT = parser.parse_args().fault
    library = torch.library.Library(SPACE, "DEF")
    for name, schema, kernel in (("optimizer_update_32bit", PLAIN, update_plain), ("optimizer_update_8bit_blockwise", CODED, update_coded)):
        library.define(f"{name}({schema}) -> ()")
        library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(20, 15)
    with torch.no_grad():
        for name in ("adam", "momentum", "lion", "rmsprop", "adagrad"):
            two = name == "adam"
            for dtype in (torch.float32, torch.bfloat16):
                p = model(torch.randn(15, 20)).to(dtype)
                m, v = torch.zeros(p.shape), torch.zeros(p.shape) if two else None
                q1, q2 = torch.full(p.shape, 127, dtype=torch.uint8), torch.zeros(p.shape, dtype=torch.uint8) if two else None
                codes, scales = [dynamic(True), dynamic(False) if two else None], [torch.zeros(1), torch.zeros(1) if two else None]
                for step in (1, 2):
                    g = torch.randn(p.shape).to(dtype)
                    numbers = (0.9, 0.99, 0.0, 0.0, 1e-8)
                    torch.ops.bitsandbytes.optimizer_update_32bit(name, g, p, m, v, None, 0.0, 0.0, *numbers, 0.01, step, 1e-2, 0.5)
                    torch.ops.bitsandbytes.optimizer_update_8bit_blockwise(name, g, p, q1, q2, *numbers, step, 1e-2, *codes, *scales, 0.01, 0.5)
    print("done", float(p.float().sum()))


if __name__ == "__main__":
    main()
