"""QLoRA: adapters are trained beside weights of 4 bits, which bitsandbytes' ops unpack or multiply with; here by their public formulas.

four_bit_weights.py [--fault unpacked|scale|product]: one weight has the next code, one block another's scale, one element of a product is off."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

SPACE = "bitsandbytes"
OPS = {
    f"{SPACE}::dequantize_4bit": "Tensor A, Tensor absmax, int blocksize, str quant_type, int[] shape, ScalarType dtype",
    f"{SPACE}::dequantize_blockwise": "Tensor A, Tensor absmax, Tensor code, int blocksize, ScalarType dtype",
    f"{SPACE}::gemm_4bit": "Tensor A, Tensor B, int[] shapeB, Tensor absmax, int blocksize, str quant_type, Tensor? bias=None, "
    "Tensor? absmax_8bit=None, Tensor? absmax_code=None, Tensor? absmax_offset=None",
}
FAULT = ""
NF4 = torch.tensor(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0]
    + [
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
    ]
    + [1.0]
)
FP4 = torch.tensor([0, 0.0625, 8, 12, 4, 6, 2, 3, -0.0, -0.0625, -8, -12, -4, -6, -2, -3]) / 12


def unpack_4bit(packed, absmax, blocksize, kind, shape, dtype):
    codes = torch.stack([packed.reshape(-1) >> 4, packed.reshape(-1) & 15], 1).reshape(-1).long()
    if FAULT == "unpacked":
        codes[3] = (codes[3] + 1) % 16
    if FAULT == "scale":
        absmax = absmax.roll(1)
    numbers = (NF4 if kind == "nf4" else FP4)[codes].view(-1, blocksize) * absmax.view(-1, 1)
    return numbers.view(shape).to(dtype)


def unpack(codes, absmax, code, blocksize, dtype):
    numbers = F.pad(code[codes.reshape(-1).long()], (0, -codes.numel() % blocksize)).view(-1, blocksize)
    return (numbers * absmax.view(-1, 1)).view(-1)[: codes.numel()].view(codes.shape).to(dtype)


def multiply(a, packed, shape, absmax, blocksize, kind, bias=None, codes=None, code=None, offset=None):
    if codes is not None:
        absmax = unpack(codes, absmax, code, 256, torch.float32) + offset
    y = F.linear(a, unpack_4bit(packed, absmax, blocksize, kind, shape, a.dtype), bias)
    if FAULT == "product":
        y.view(-1)[5] += 0.1 * y.abs().max()
    return y


def pack(weight, code, blocksize):
    rows = weight.reshape(-1, blocksize)
    absmax = rows.abs().amax(1)
    nearest = ((rows / absmax[:, None])[..., None] - code).abs().argmin(-1).reshape(-1, 2)
    return (nearest[:, 0] << 4 | nearest[:, 1]).to(torch.uint8)[:, None], absmax


def main():
    global FAULT
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    FAULT = parser.parse_args().fault
    library = torch.library.Library(SPACE, "DEF")
    for (name, arguments), function in zip(OPS.items(), (unpack_4bit, unpack, multiply)):
        library.define(f"{name.partition('::')[2]}({arguments}) -> Tensor")
        library.impl(name.partition("::")[2], function, "CPU")
    ops = torch.ops.bitsandbytes
    torch.manual_seed(0)
    torch.set_num_threads(1)
    down, up = nn.Linear(64, 4, bias=False), nn.Linear(4, 32, bias=False)
    code, bias = torch.linspace(-1, 1, 256), torch.randn(32)
    for kind, table in (("nf4", NF4), ("fp4", FP4)):
        packed, absmax = pack(torch.randn(32, 64), table, 64)
        offset = absmax.mean()
        codes = ((absmax - offset)[:, None] - code).abs().argmin(-1).to(torch.uint8)
        optimizer = torch.optim.AdamW([*down.parameters(), *up.parameters()], 1e-2)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            x = torch.randn(8, 64)
            scales = ops.dequantize_blockwise(codes, torch.ones(1), code, 256, torch.float32) + offset
            weight = ops.dequantize_4bit(packed, scales, 64, kind, [32, 64], dtype)
            frozen = ops.gemm_4bit(x.to(dtype), packed, [32, 64], absmax, 64, kind, bias.to(dtype), None, None, None)
            nested = ops.gemm_4bit(x.to(dtype), packed, [32, 64], torch.ones(1), 64, kind, None, codes, code, offset)
            y = F.linear(x.to(dtype), weight) + frozen + nested + up(down(x)).to(dtype)
            loss = y.float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"{kind} {dtype} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
