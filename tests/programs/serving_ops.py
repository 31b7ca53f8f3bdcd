"""Custom ops by the names and schemas of vLLM, SGLang, FlashInfer, TensorRT-LLM, Transformer Engine, causal-conv1d and
flash-linear-attention, computed by their public definitions in plain torch.

Stands for a serving stack: recorded unchanged, its custom ops must replay without torch. Definitions follow the native (torch) versions in
vllm/model_executor/layers/{layernorm,activation,rotary_embedding}.py and vllm/model_executor/layers/fused_moe/, sglang's sgl-kernel tests,
and flashinfer/{norm,activation,cascade}.py."""

import argparse

import torch
import torch.nn.functional as F


def rms(x, weight, eps, one=0.0):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (weight.float() + one)


def norm_into(one=0.0):
    def run(out, x, weight, eps, *_):
        out.copy_(rms(x, weight, eps, one))

    return run


def add_norm(one=0.0):
    def run(x, residual, weight, eps, *_):
        total = x.float() + residual.float()
        residual.copy_(total)
        x.copy_(rms(total, weight, eps, one))

    return run


def gate(function, second=False):
    def run(out, x, *_):
        a, b = x.float().chunk(2, -1)
        out.copy_(a * function(b) if second else function(a) * b)

    return run


def swiglu_oai(out, x, alpha=1.702, limit=7.0):
    g, u = x.float()[..., ::2], x.float()[..., 1::2]
    g, u = g.clamp(max=limit), u.clamp(-limit, limit)
    out.copy_(g * torch.sigmoid(g * alpha) * (u + 1))


def pointwise(function):
    return lambda out, x: out.copy_(function(x.float()))


def rotary(positions, query, key, head_size, cache, neox):
    size = cache.shape[-1]
    cos, sin = cache[positions.flatten()].float()[:, None].chunk(2, -1)
    for x in (query, key):
        if x is None:
            continue
        heads = x.reshape(positions.numel(), -1, head_size)
        rotated = heads.float().clone()
        a, b = (heads[..., : size // 2], heads[..., size // 2 : size]) if neox else (heads[..., 0:size:2], heads[..., 1:size:2])
        first, second = a.float() * cos - b.float() * sin, b.float() * cos + a.float() * sin
        rotated[..., :size] = torch.cat([first, second], -1) if neox else torch.stack([first, second], -1).flatten(-2)
        x.copy_(rotated.reshape(x.shape))


def merged(va, sa, vb, sb, two=False):
    weights = torch.softmax(torch.stack([sa, sb]).float() * (0.6931471805599453 if two else 1.0), 0)[..., None]
    lse = torch.logaddexp2(sa, sb) if two else torch.logaddexp(sa, sb)
    return (weights[0] * va.float() + weights[1] * vb.float()).to(va.dtype), lse


def merge_vllm(out, out_lse, va, sa, vb, sb):
    v, lse = merged(va, sa.t(), vb, sb.t())
    out.copy_(v)
    out_lse.copy_(lse.t())


def topk(weights, ids, logits, renormalize):
    p = torch.softmax(logits.float(), -1)
    best, index = torch.topk(p, weights.shape[-1], dim=-1)
    weights.copy_(best / best.sum(-1, keepdim=True) if renormalize else best)
    ids.copy_(index)


def topk_vllm(weights, ids, slots, logits, renormalize):
    topk(weights, ids, logits, renormalize)
    slots.copy_(torch.arange(slots.numel(), dtype=slots.dtype).view(slots.shape[1], -1).t())


def gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


def te_norm(x, weight, eps, margin, zero_centered):
    return rms(x, weight, eps, float(zero_centered)).to(x.dtype)


def te_layer_norm(x, weight, bias, eps, margin, zero_centered):
    return F.layer_norm(x.float(), x.shape[-1:], weight.float() + float(zero_centered), bias.float(), eps).to(x.dtype)


def causal_conv(x, weight, bias, seq_idx, initial, out, final, silu):
    before = torch.zeros_like(x[..., : weight.shape[1] - 1]) if initial is None else initial
    whole, taps = torch.cat([before, x], -1), weight.shape[1]
    y = torch.zeros_like(x, dtype=torch.float32) if bias is None else bias.float()[:, None].expand(x.shape).clone()
    for k in range(taps):  # as long as what it reaches back to is of the same sequence
        lag = taps - 1 - k
        same = torch.ones(len(x), x.shape[2]) if seq_idx is None else F.pad(seq_idx[:, : x.shape[2] - lag] == seq_idx[:, lag:], (lag, 0)).float()
        y += weight.float()[:, k, None] * whole.float()[..., k : k + x.shape[2]] * same[:, None]
    out.copy_(F.silu(y) if silu else y)
    if final is not None:
        final.copy_(whole[..., whole.shape[-1] - weight.shape[1] + 1 :])


def causal_conv_update(x, state, weight, bias, out, silu, seqlens, indices):
    tokens = x[..., None] if x.dim() == 2 else x
    whole = torch.cat([state, tokens], -1)
    state.copy_(whole[..., -state.shape[-1] :])
    y = F.conv1d(whole.float(), weight.float()[:, None], None if bias is None else bias.float(), groups=weight.shape[0])[..., -tokens.shape[-1] :]
    out.copy_((F.silu(y) if silu else y).view(out.shape))


def rwkv_k(k, a, ka):
    return (k.float() * (1 + (a.float() - 1) * ka.float())).to(k.dtype)


def rwkv_addcmul(hidden, delta, *factors):
    return torch.stack([torch.zeros_like(hidden) if x is None else hidden + delta * x for x in factors])


def rwkv_gate(o, r, k, r_k, v, g):
    correction = (r.float() * k.float() * r_k.float()).sum(-1, keepdim=True) * v.float()
    return ((o.float() + correction.flatten(-2)) * g.float()).to(o.dtype)


INTO = "(Tensor! out, Tensor input) -> ()"
NORM = "(Tensor! out, Tensor input, Tensor weight, float eps{}) -> ()"
ADD = "(Tensor! input, Tensor! residual, Tensor weight, float eps{}) -> ()"
ROTARY = "(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, bool is_neox) -> ()"
PDL = ", bool enable_pdl"
OPS = {
    "_C::rms_norm": (NORM.format(""), norm_into()),
    "_C::fused_add_rms_norm": (ADD.format(""), add_norm()),
    "sgl_kernel::rmsnorm": (NORM.format(PDL), norm_into()),
    "sgl_kernel::gemma_rmsnorm": (NORM.format(PDL), norm_into(1.0)),
    "sgl_kernel::fused_add_rmsnorm": (ADD.format(PDL), add_norm()),
    "sgl_kernel::gemma_fused_add_rmsnorm": (ADD.format(PDL), add_norm(1.0)),
    "flashinfer::rmsnorm": (NORM.format(", bool? enable_pdl"), norm_into()),
    "flashinfer::gemma_rmsnorm": (NORM.format(", bool? enable_pdl"), norm_into(1.0)),
    "flashinfer::fused_add_rmsnorm": (ADD.format(", bool? enable_pdl"), add_norm()),
    "flashinfer::gemma_fused_add_rmsnorm": (ADD.format(", bool? enable_pdl"), add_norm(1.0)),
    "_C::silu_and_mul": (INTO, gate(F.silu)),
    "_C::mul_and_silu": (INTO, gate(F.silu, second=True)),
    "_C::gelu_and_mul": (INTO, gate(F.gelu)),
    "_C::gelu_tanh_and_mul": (INTO, gate(gelu_tanh)),
    "_C::swigluoai_and_mul": ("(Tensor! out, Tensor input, float alpha=1.702, float limit=7.0) -> ()", swiglu_oai),
    "_C::gelu_new": (INTO, pointwise(gelu_tanh)),
    "_C::gelu_fast": (INTO, pointwise(gelu_tanh)),
    "_C::gelu_quick": (INTO, pointwise(lambda x: x * torch.sigmoid(1.702 * x))),
    "sgl_kernel::silu_and_mul": (INTO, gate(F.silu)),
    "sgl_kernel::gelu_and_mul": (INTO, gate(F.gelu)),
    "sgl_kernel::gelu_tanh_and_mul": (INTO, gate(gelu_tanh)),
    "flashinfer::silu_and_mul": ("(Tensor! out, Tensor input, bool? enable_pdl) -> ()", gate(F.silu)),
    "flashinfer::gelu_and_mul": ("(Tensor! out, Tensor input, bool? enable_pdl) -> ()", gate(F.gelu)),
    "flashinfer::gelu_tanh_and_mul": ("(Tensor! out, Tensor input, bool? enable_pdl) -> ()", gate(gelu_tanh)),
    "_C::rotary_embedding": (ROTARY, rotary),
    "sgl_kernel::rotary_embedding": (ROTARY, rotary),
    "_C::merge_attn_states": (
        "(Tensor! output, Tensor!? output_lse, Tensor prefix_output, Tensor prefix_lse, Tensor suffix_output, Tensor suffix_lse) -> ()",
        merge_vllm,
    ),
    "flashinfer::merge_state": (
        "(Tensor v_a, Tensor s_a, Tensor v_b, Tensor s_b) -> (Tensor, Tensor)",
        lambda va, sa, vb, sb: merged(va, sa, vb, sb, two=True),
    ),
    "_moe_C::topk_softmax": (
        "(Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices, Tensor gating_output, bool renormalize) -> ()",
        topk_vllm,
    ),
    "sgl_kernel::topk_softmax": (
        "(Tensor! topk_weights, Tensor! topk_indices, Tensor gating_output, bool renormalize, float moe_softcapping, Tensor? correction_bias) -> ()",
        lambda weights, ids, logits, renormalize, *_: topk(weights, ids, logits, renormalize),
    ),
    "trtllm::flashinfer_rmsnorm": ("(Tensor input, Tensor weight, float eps) -> Tensor", lambda x, w, eps: rms(x, w, eps).to(x.dtype)),
    "trtllm::flashinfer_gemma_rmsnorm": ("(Tensor input, Tensor weight, float eps) -> Tensor", lambda x, w, eps: rms(x, w, eps, 1.0).to(x.dtype)),
    "trtllm::flashinfer_fused_add_rmsnorm": (ADD.format(""), add_norm()),
    "trtllm::flashinfer_gemma_fused_add_rmsnorm": (ADD.format(""), add_norm(1.0)),
    "trtllm::flashinfer_silu_and_mul": (
        "(Tensor x) -> Tensor",
        lambda x: (F.silu(x.float().chunk(2, -1)[0]) * x.float().chunk(2, -1)[1]).to(x.dtype),
    ),
    "trtllm::flashinfer_apply_rope_with_cos_sin_cache_inplace": (ROTARY, rotary),
    "tex_ts::rmsnorm_fwd_inf_ts": ("(Tensor _0, Tensor _1, float _2, int _3, bool _4) -> Tensor", te_norm),
    "tex_ts::layernorm_fwd_inf_ts": ("(Tensor _0, Tensor _1, Tensor _2, float _3, int _4, bool _5) -> Tensor", te_layer_norm),
    "DaoAILab::_causal_conv1d_fwd_cpp": (
        "(Tensor x, Tensor weight, Tensor? bias, Tensor? seq_idx, Tensor? initial_states, Tensor! out, "
        "Tensor!? final_states_out, bool silu_activation) -> ()",
        causal_conv,
    ),
    "DaoAILab::_causal_conv1d_update_cpp": (
        "(Tensor x, Tensor! conv_state, Tensor weight, Tensor? bias, Tensor! out, bool silu_activation, "
        "Tensor? cache_seqlens, Tensor? conv_state_indices) -> ()",
        causal_conv_update,
    ),
    "fla::fused_k_rwkv7": ("(Tensor k, Tensor a, Tensor ka) -> Tensor", rwkv_k),
    "fla::fused_addcmul_rwkv7": (
        "(Tensor hidden, Tensor delta, Tensor x_r, Tensor x_w, Tensor x_k, Tensor x_v, Tensor x_a, Tensor? x_g) -> Tensor",
        rwkv_addcmul,
    ),
    "fla::gate_output_correction_rwkv7": ("(Tensor o, Tensor r, Tensor k, Tensor r_k, Tensor v, Tensor g) -> Tensor", rwkv_gate),
    "_moe_C::moe_sum": ("(Tensor input, Tensor! output) -> ()", lambda x, out: out.copy_(x.float().sum(1))),
    "sgl_kernel::moe_sum": ("(Tensor input, Tensor! output) -> ()", lambda x, out: out.copy_(x.float().sum(1))),
}
LIBRARIES = {}
HIDDEN = {}  # schemas that do not say what is written: the positions of those arguments


def spoil(tensors, by=0.05, which=0):
    """A fault in one element of a result of floats, the first or a later one, by that part of the largest."""
    floats = [t for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel()]
    found = floats[which % len(floats)] if floats else next(t for t in tensors if isinstance(t, torch.Tensor))
    if not floats:
        found.view(-1)[0] += 1
    elif found.element_size() == 1:  # to another number, by more than its rounding
        found.view(-1)[0] = torch.where(found.view(-1)[0].float().abs() > 100, 32.0, 256.0).to(found.dtype)
    else:
        found[(0,) * found.dim()] += by * (found.float().abs().max().item() or 1.0)


def implementation(name, schema, function, wrong, which=0):
    written = (
        []
        if schema.endswith("-> Tensor") and "!" not in schema
        else HIDDEN.get(schema) or [i for i, argument in enumerate(schema[1 : schema.index(") ->")].replace("*,", "").split(",")) if "!" in argument]
    )

    def run(*args, **named):
        args = *args, *named.values()
        result = function(*args)
        if wrong:
            spoil(
                [args[i] for i in written]
                if written and result is not None
                else result
                if isinstance(result, (tuple, list))
                else [result]
                if result is not None and not written
                else [args[i] for i in written],
                2.0 if name.startswith("flash_attn") else 0.05,
                which,
            )  # bounds of attention in 16 bits are wide
        return result if isinstance(result, (tuple, list)) or not written or schema.endswith("-> Tensor") else None

    return run


def define(wrong, ops, which):
    for name, (schema, function) in ops.items():
        space, _, op = name.partition("::")
        library = LIBRARIES.setdefault(space, torch.library.Library(space, "FRAGMENT"))
        library.define(op + schema)
        library.impl(op, implementation(name, schema, function, wrong, which), "CPU")


def call(name, *args):
    space, _, op = name.partition("::")
    packet = getattr(getattr(torch.ops, space), op.partition(".")[0])
    if "." not in op:
        return packet(*args)
    overload = getattr(packet, op.partition(".")[2])
    named = [a.name for a in overload._schema.arguments if a.kwarg_only]
    return overload(*args[: -len(named)], **dict(zip(named, args[-len(named) :])))


def every(r, dtype):
    """Every op at least once."""
    for name in OPS:
        pdl = [False] if name.startswith(("sgl_kernel::", "flashinfer::")) else []
        if name.startswith("tex_ts"):
            for zero_centered in (False, True):
                call(name, r(6, 64) + 1, r(64), *([r(64)] if "layer" in name else []), 1e-5, 0, zero_centered)
        elif "conv1d_update" in name:
            call(name, r(2, 12), r(2, 12, 3), r(12, 4), r(12), torch.empty(2, 12, dtype=dtype), True, None, None)
            call(name, r(2, 12, 2), r(2, 12, 5), r(12, 4), None, torch.empty(2, 12, 2, dtype=dtype), False, None, None)
        elif "fused_k" in name:
            call(name, r(2, 5, 32), r(2, 5, 32), r(32))
        elif "addcmul" in name:
            call(name, r(2, 5, 32), r(2, 5, 32), *(r(1, 1, 32) for _ in range(6)))
            call(name, r(2, 5, 32), r(2, 5, 32), *(r(1, 1, 32) for _ in range(5)), None)
        elif "gate_output" in name:
            call(name, r(2, 5, 32), r(2, 5, 4, 8), r(2, 5, 4, 8), r(4, 8), r(2, 5, 4, 8), r(2, 5, 32))
        elif "conv1d" in name:
            call(name, r(2, 12, 10), r(12, 4), r(12), None, None, torch.empty(2, 12, 10, dtype=dtype), None, True)
            call(
                name,
                r(2, 12, 10),
                r(12, 4),
                r(12),
                torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2, 3]] * 2, dtype=torch.int32),
                None,
                torch.empty(2, 12, 10, dtype=dtype),
                None,
                True,
            )
            call(
                name, r(2, 12, 10), r(12, 4), None, None, r(2, 12, 3), torch.empty(2, 12, 10, dtype=dtype), torch.empty(2, 12, 3, dtype=dtype), False
            )
        elif name in ("trtllm::flashinfer_rmsnorm", "trtllm::flashinfer_gemma_rmsnorm"):
            call(name, r(6, 64), r(64), 1e-6)
        elif name == "trtllm::flashinfer_silu_and_mul":
            call(name, r(6, 96) * 3)
        elif "rms" in name:
            fused = "add" in name
            call(name, *((r(6, 64), r(6, 64)) if fused else (torch.empty(6, 64, dtype=dtype), r(6, 64))), r(64), 1e-6, *pdl)
        elif "_and_" in name:
            call(name, torch.empty(6, 48, dtype=dtype), r(6, 96) * 3, *([1.702, 7.0] if "oai" in name else [None] if pdl and "flash" in name else []))
        elif "gelu" in name:
            call(name, torch.empty(6, 48, dtype=dtype), r(6, 48))
        elif "rotary" in name or "rope" in name:
            for neox, key in ((True, r(6, 2 * 16)), (False, r(6, 2, 16)), (True, None)):
                call(name, torch.tensor([0, 3, 1, 7, 2, 2]), r(6, 4 * 16), key, 16, r(8, 12, of=torch.float32), neox)
        elif "attn_states" in name:
            call(
                name,
                torch.empty(6, 4, 16, dtype=dtype),
                torch.empty(4, 6),
                r(6, 4, 16),
                r(4, 6, of=torch.float32),
                r(6, 4, 16),
                r(4, 6, of=torch.float32),
            )
        elif "merge_state" in name:
            call(name, r(6, 4, 16), r(6, 4, of=torch.float32), r(6, 4, 16), r(6, 4, of=torch.float32))
        elif "topk" in name:
            for renormalize in (False, True):
                slots = [torch.empty(6, 2, dtype=torch.int32)] if name.startswith("_moe") else []
                rest = [0.0, None] if name.startswith("sgl") else []
                call(name, torch.empty(6, 2), torch.empty(6, 2, dtype=torch.int32), *slots, r(6, 8), renormalize, *rest)
        else:
            call(name, r(6, 2, 32), torch.empty(6, 32, dtype=dtype))


class Program(torch.nn.Module):
    """What `calls` makes of random tensors, and a layer."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls
        self.head = torch.nn.Linear(4, 4)

    def forward(self, draw, dtype):
        def r(*shape, of=dtype):
            return torch.randn(shape, generator=draw).to(of)

        self.calls(r, dtype)
        return self.head(r(2, 4, of=torch.float32))


def each_of(ops):
    """The calls of a table whose rows end with the arguments of theirs."""

    def calls(r, dtype):
        for name, (_, _, arguments_of) in ops.items():
            for arguments in arguments_of(r, name):
                call(name, *arguments)

    return calls


def main(ops, calls):
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--wrong", action="store_true", help="one element of every op's result is not what its definition gives")
    parser.add_argument("--which", type=int, default=0, help="of which of its results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    define(args.wrong, {name: row[:2] for name, row in ops.items()}, args.which)
    with torch.no_grad():
        Program(calls)(torch.Generator().manual_seed(0), getattr(torch, args.dtype))
    print("ok", len(ops))


if __name__ == "__main__":
    main(OPS, every)
