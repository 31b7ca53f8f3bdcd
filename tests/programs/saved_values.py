"""Clones tensors of every dtype and layout while it is recorded, and saves them beside the capture: what a reader must give back.

python saved_values.py FOLDER [LEVEL]      writes FOLDER/run.lb and FOLDER/saved.pt, a list of (input, clone)"""

import sys

import lastbit.torch
import torch

DTYPES = """float64 float32 bfloat16 float16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu complex32 complex64 complex128
int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool""".split()


def tensors():
    for number, name in enumerate(DTYPES):
        dtype, draw = getattr(torch, name), torch.Generator().manual_seed(number)
        size = torch.empty((), dtype=dtype).element_size()

        def make(*shape):
            n = max(1, torch.Size(shape).numel())
            bits = torch.randint(0, 2 if name == "bool" else 256, (n * size,), dtype=torch.uint8, generator=draw)
            return bits.view(dtype)[: torch.Size(shape).numel()].reshape(shape)

        yield make(3, 5)
        yield make(4, 6).t()
        yield make(6, 8)[1:5:2, 2::3]
        yield make(1, 4).expand(3, 4)
        yield make()
        yield make(0)
        yield make(2, 0, 3)
        yield make(2, 3, 4).permute(2, 0, 1)[1:]
        yield make(70001)


def main(folder, level="ops"):
    # The clones begin as tensors of their own, so that each is read and none is another's part.
    inputs = list(tensors())
    with lastbit.torch.capture(f"{folder}/run.lb", level=level) as capture:
        with capture.step(0):
            clones = [one.clone() for one in inputs]
    torch.save(list(zip(inputs, clones)), f"{folder}/saved.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
