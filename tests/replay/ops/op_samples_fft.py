"""Fourier transforms."""

import torch
from op_samples import generator
from op_samples_complex import complex_tensor

# Lengths: powers of two, small primes, a large prime (by Bluestein's convolution), one number.
SHAPES = [((16,), [0]), ((3, 12), [1]), ((3, 15), [0]), ((2, 67), [1]), ((4, 134, 2), [1]), ((1,), [0]), ((6, 10), [0, 1]), ((2, 7, 9), [2, 1]), ((3, 8, 5, 6), [1, 3]), ((2, 3, 1), [2]), ((2, 3), [0, 1])]  # fmt: skip


@generator
def complex_fft(draw, options):
    """Arguments of _fft_r2c, _fft_c2r and _fft_c2c, in every normalization and direction."""
    for dtype in (torch.complex64, torch.complex128):
        for k, (shape, dims) in enumerate(SHAPES):
            z, mode, flag = draw.layout(complex_tensor(draw, shape, dtype)), k % 3, bool(k // 3 % 2)
            if "r2c" in options:
                yield (draw.layout(z.real.clone()), dims, mode, flag), {}
            elif "c2r" in options:
                n = shape[dims[-1]]
                yield (z, dims, mode, 2 * n - 2 + flag if n > 1 else 1), {}
            else:
                yield (z, dims, mode, flag), {}
