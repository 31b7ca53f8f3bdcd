"""More custom ops by the names and schemas of vLLM, SGLang and their kin, computed by their public definitions in plain torch: quantisers
and products of what they made. As serving_ops.py, whose machinery this uses; here each op says by itself with what it is called."""
import argparse

import torch
import torch.nn.functional as F

import serving_ops

FP8 = torch.float8_e4m3fn


def clamped(y, most=448.0):
    return y.clamp(-most, most).to(FP8)


# ---- quantisers

def spread(scale, shape):
    """Scales of one, a channel, or (rows / m, columns / n), for each element."""
    if scale.dim() == 2:
        return scale.repeat_interleave(shape[0] // scale.shape[0], 0).repeat_interleave(shape[1] // scale.shape[1], 1)
    return scale.expand(shape)


def static_fp8(out, x, scale, group_shape=None):
    scale = scale[:, None] if group_shape is not None and tuple(group_shape) == (1, -1) else scale
    out.copy_(clamped(x.float() * (1 / spread(scale, x.shape))))


def dynamic_fp8(out, x, scale):
    scale.copy_(x.float().abs().max() / 448)
    out.copy_(clamped(x.float() * (1 / scale)))


def row_fp8(out, x, scale, bound):
    most = x.float().abs().amax(-1, keepdim=True)
    most = most if bound is None else torch.minimum(most, bound)
    scale.copy_((most / 448).clamp(min=1 / (448 * 512)))
    out.copy_(clamped(x.float() / scale))


def sgl_tensor(x, out, scale, static):
    if not static:
        scale.copy_(x.float().abs().max() / 448)
    out.copy_(clamped(x.float() * (1 / scale)))


def sgl_row(x, out, scale):
    scale.copy_((x.float().abs().amax(-1) / 448).view(scale.shape))
    out.copy_(clamped(x.float() * (1 / scale.view(-1, 1))))


def group_fp8(x, out, scale, size, eps, least, most, power, *_):
    groups = x.float().view(-1, size)
    s = groups.abs().amax(-1).clamp(min=eps) / most
    s = torch.exp2(torch.ceil(torch.log2(s.clamp(min=1e-10)))) if power else s
    out.copy_((groups / s[:, None]).clamp(least, most).view(x.shape).to(FP8))
    scale.copy_(s.view(scale.shape))


def quantised(r, name):
    x, q = r(6, 256) * 3, lambda: torch.empty(6, 256, dtype=FP8)
    if "static" in name:
        yield q(), x, torch.tensor([0.02]), None
        yield q(), x, torch.rand(256) * 0.02 + 0.01, None
        yield q(), x, torch.rand(6) * 0.02 + 0.01, [1, -1]
        yield q(), x, torch.rand(3, 2) * 0.02 + 0.01, [2, 128]
    elif "dynamic_scaled" in name:
        yield q(), x, torch.zeros(1)
    elif "per_token_scaled" in name:
        yield q(), x, torch.empty(6, 1), None
        yield q(), x, torch.empty(6, 1), torch.tensor([5.0])
        yield q(), x * 0, torch.empty(6, 1), None
    elif "tensor" in name:
        yield x, q(), torch.zeros(1), False
        yield x, q(), torch.tensor([0.02]), True
    elif "group" in name:
        more = [False, False] if name.startswith("_C") else []
        for power in (False, True):
            yield x, q(), torch.empty(6, 2), 128, 1e-10, -448.0, 448.0, power, *more
        yield x, q(), torch.empty(4, 6).t(), 64, 1e-10, -448.0, 448.0, False, *more
    else:
        yield x, q(), torch.empty(6, 1)


# ---- scaled products

def scaled(a, b, sa, sb, bias=None):
    a, b = a.float(), b.float()
    if sa.dim() == 2 and sa.shape[1] > 1:  # blocks of 128 along k
        a = a * sa.repeat_interleave(128, 1)[:, :a.shape[1]]
        sb = sb.repeat_interleave(128, 0)[:b.shape[0]]
        b = b * (sb if sb.shape[1] == b.shape[1] else sb.repeat_interleave(128, 1)[:, :b.shape[1]])
        y = a @ b
    else:
        y = (a @ b) * (sa.view(-1, 1) * sb.view(1, -1))
    return y if bias is None else y + bias.float()


def cutlass(out, *rest):
    out.copy_(scaled(*rest))


def products(r, name):
    def e(*shape):
        return (r(*shape, of=torch.float32) * 40).to(FP8)
    blocks = e(6, 300), e(200, 300).t(), torch.rand(6, 3) * 0.01, torch.rand(3, 2) * 0.01
    wide = e(6, 256), e(40, 256).t(), torch.rand(6, 2) * 0.01, torch.rand(2, 40) * 0.01
    rows = e(6, 64), e(48, 64).t(), torch.rand(6, 1) * 0.01, torch.rand(48) * 0.01
    one = e(6, 64), e(48, 64).t(), torch.tensor([0.02]), torch.tensor([0.01])
    half = r(1).dtype if r(1).dtype != torch.float32 else torch.bfloat16
    if name.startswith("_C"):
        for a, b, sa, sb, bias in ((*blocks, None), (*wide, None), (*rows, r(48)), (*one, None)):
            yield torch.empty(a.shape[0], b.shape[1], dtype=half), a, b, sa, sb, bias
    elif "blockwise" in name:
        yield *blocks, half
    else:
        yield *rows, half, r(48)
        yield *one, half, None


IN_OUT = "(Tensor input, Tensor{0} output_q, Tensor{0} output_s"
GROUP = ", int group_size, float eps, float fp8_min, float fp8_max, bool scale_ue8m0"
# name: schema, definition, what it is called with
OPS = {
    "_C::static_scaled_fp8_quant": ("(Tensor! result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()", static_fp8, quantised),
    "_C::dynamic_scaled_fp8_quant": ("(Tensor! result, Tensor input, Tensor! scale) -> ()", dynamic_fp8, quantised),
    "_C::dynamic_per_token_scaled_fp8_quant": ("(Tensor! result, Tensor input, Tensor! scale, Tensor? scale_ub) -> ()", row_fp8, quantised),
    "_C::per_token_group_fp8_quant": (IN_OUT.format("!") + GROUP + ", bool dummy_is_scale_transposed, bool dummy_is_tma_aligned) -> ()",
                                      group_fp8, quantised),
    "sgl_kernel::sgl_per_tensor_quant_fp8": (IN_OUT.format("") + ", bool is_static) -> ()", sgl_tensor, quantised),
    "sgl_kernel::sgl_per_token_quant_fp8": (IN_OUT.format("") + ") -> ()", sgl_row, quantised),
    "sgl_kernel::sgl_per_token_group_quant_fp8": (IN_OUT.format("") + GROUP + ") -> ()", group_fp8, quantised),
    "sgl_kernel::sgl_per_token_group_quant_8bit": (IN_OUT.format("") + GROUP + ") -> ()", group_fp8, quantised),
    "_C::cutlass_scaled_mm": ("(Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias) -> ()", cutlass, products),
    "sgl_kernel::fp8_scaled_mm": ("(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType out_dtype, Tensor? bias) -> Tensor",
                                  lambda a, b, sa, sb, dtype, bias: scaled(a, b, sa, sb, bias).to(dtype), products),
    "sgl_kernel::fp8_blockwise_scaled_mm": ("(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType out_dtype) -> Tensor",
                                            lambda a, b, sa, sb, dtype: scaled(a, b, sa, sb).to(dtype), products),
}
serving_ops.HIDDEN.update({schema: [1, 2] for name, (schema, _, _) in OPS.items() if "output_q" in schema and "!" not in schema})


class Serve(torch.nn.Module):
    """Every op at least once."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 4)

    def forward(self, draw, dtype):
        def r(*shape, of=dtype):
            return torch.randn(shape, generator=draw).to(of)
        for name, (_, _, calls) in OPS.items():
            for arguments in calls(r, name):
                serving_ops.call(name, *arguments)
        return self.head(r(2, 4, of=torch.float32))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--wrong", action="store_true", help="one element of every op's result is not what its definition gives")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    serving_ops.define(args.wrong, {name: row[:2] for name, row in OPS.items()})
    with torch.no_grad():
        Serve()(torch.Generator().manual_seed(0), getattr(torch, args.dtype))
    print("ok", len(OPS))
