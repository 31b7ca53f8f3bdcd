"""More custom ops by the names and schemas of vLLM, SGLang and their kin, computed by their public definitions in plain torch: quantisers,
products of what they made, attention and its caches. As serving_ops.py, whose machinery this uses; here each op says by itself with what it is called."""

import serving_ops
import torch

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


def static_i8(out, x, scale, zero):
    y = x.float() / scale if zero is None else (x.float() * (1 / scale)).round().clamp(-(2.0**31), 2.0**31 - 128) + zero
    out.copy_(y.round().clamp(-128, 127))


def row_i8(out, x, scale, zero):
    x = x.float()
    if zero is None:
        most = x.abs().amax(-1, keepdim=True)
        scale.copy_(most / 127)
        out.copy_((x * torch.where(most == 0, 0, 127 / most)).round().clamp(-128, 127))
        return
    least, most = x.aminmax(dim=-1, keepdim=True)
    scale.copy_((most - least) / 255)
    zero.copy_((-128 - least / scale).round())
    out.copy_(((x * (1 / scale)).round() + zero).clamp(-128, 127))


def group_i8(x, out, scale, size, eps, least, most):
    groups = x.float().view(-1, size)
    s = groups.abs().amax(-1).clamp(min=eps) / most
    out.copy_((groups / s[:, None]).clamp(least, most).view(x.shape).to(torch.int8))
    scale.copy_(s.view(scale.shape))


def quantised_to_i8(r, name):
    x, q = r(6, 256) * 3, lambda: torch.empty(6, 256, dtype=torch.int8)
    if "group" in name:
        yield x, q(), torch.empty(6, 2), 128, 1e-10, -127.0, 127.0
        yield x * 0, q(), torch.empty(4, 6).t(), 64, 1e-10, -127.0, 127.0
        return
    for zero in (None, torch.tensor([-7], dtype=torch.int32)):
        yield q(), x, torch.tensor([0.02]), zero  # some of it beyond what int8 has


def rows_to_i8(r, name):
    x, q = r(6, 256) * 3, lambda: torch.empty(6, 256, dtype=torch.int8)
    for zeros in (None, torch.empty(6, 1, dtype=torch.int32)):
        yield q(), x + (0 if zeros is None else 2), torch.empty(6, 1), zeros
    yield q(), x * (torch.arange(6)[:, None] != 2), torch.empty(6, 1), None


# ---- products of experts


def expert_rows(x, matrices, ids, blocks, mapping, total, topk, padding):
    """The native version of fms/triton/pytorch_ops.py: its three tensors of blocks are for the GPU's kernel."""
    rows, out = x.repeat_interleave(topk, 0), torch.zeros(ids.numel(), matrices.shape[1], dtype=x.dtype)
    for expert in ids.unique().tolist():
        chosen = ids.view(-1) == expert
        out[chosen] = rows[chosen] @ matrices[expert].t()
    return out.view(*ids.shape, -1)


def experts(r, name):
    ids, none = torch.tensor([[2, 0], [0, 3], [3, 2], [2, 1], [0, 2]]), torch.zeros(1, dtype=torch.long)
    yield r(5, 24), r(4, 16, 24), ids, none, none, none, 2, 16  # one expert has one token
    yield r(10, 24), r(5, 16, 24), ids, none, none, none, 1, 16  # another none


# ---- scaled products


def scaled(a, b, sa, sb, bias=None):
    a, b = a.float(), b.float()
    if sa.dim() == 2 and sa.shape[1] > 1:  # blocks of 128 along k
        a = a * sa.repeat_interleave(128, 1)[:, : a.shape[1]]
        sb = sb.repeat_interleave(128, 0)[: b.shape[0]]
        b = b * (sb if sb.shape[1] == b.shape[1] else sb.repeat_interleave(128, 1)[:, : b.shape[1]])
        y = a @ b
    else:
        y = (a @ b) * (sa.view(-1, 1) * sb.view(1, -1))
    return y if bias is None else y + bias.float()


def cutlass(out, *rest):
    out.copy_(scaled(*rest))


def products(r, name):
    def e(*shape):
        return (r(*shape, of=torch.float32) * 40).to(torch.int8 if "int8" in name else FP8)

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


# ---- NVFP4

FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def tiles(scales):
    """(rows, columns) in tiles of 128 by 4, as tensor cores read them."""
    rows, columns = -(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4
    padded = torch.zeros(rows, columns, dtype=torch.uint8)
    padded[: scales.shape[0], : scales.shape[1]] = scales.view(torch.uint8)
    return padded.view(rows // 128, 4, 32, columns // 4, 4).permute(0, 3, 2, 1, 4).reshape(rows, columns)


def untiled(tiled, rows, columns):
    wide = -(-columns // 4)
    return tiled.view(torch.uint8).view(-1, wide, 32, 4, 4).permute(0, 3, 2, 1, 4).reshape(-1, 4 * wide)[:rows, :columns].view(FP8).float()


def nvfp4(x, given, tiled=True):
    groups = x.float().view(len(x), -1, 16)
    scales = (given * (groups.abs().amax(-1) * torch.tensor(1 / 6))).clamp(max=448).to(FP8)
    factor = torch.where(scales.float() == 0, 0, 1 / (scales.float() * (1 / given)))
    y = groups * factor[..., None]
    distance = (y.abs().clamp(max=6)[..., None] - FP4).abs()
    near = distance == distance.amin(-1, keepdim=True)  # one, or two, of which the even code is taken
    even = torch.where(near, torch.where(torch.arange(8) % 2 == 0, 2, 1), 0).argmax(-1)
    codes = (even + 8 * torch.signbit(y)).to(torch.uint8).view(len(x), -1, 2)
    return codes[..., 0] | codes[..., 1] << 4, tiles(scales).view(torch.int32) if tiled else scales.view(torch.uint8)


def nvfp4_written(out, x, scales, given, tiled=True):
    q, s = nvfp4(x, given, tiled)
    out.copy_(q)
    scales.copy_(s)


def nvfp4_product(out, a, b, sa, sb, alpha):
    def values(q, s):
        codes = torch.stack([q & 15, q >> 4], -1).flatten(1).long()
        x = torch.where(codes >= 8, -FP4[codes % 8], FP4[codes % 8])
        return x * untiled(s, len(x), x.shape[1] // 16).repeat_interleave(16, 1)

    out.copy_(values(a, sa) @ values(b, sb).t() * alpha)


def fp4s(r, name):
    half = r(1).dtype if r(1).dtype != torch.float32 else torch.bfloat16
    one = torch.tensor([40.0])
    if "_mm" in name:
        (a, sa), (b, sb) = nvfp4(r(130, 96), one), nvfp4(r(24, 96), one)
        for view in (torch.int32, FP8):
            yield torch.empty(130, 24, dtype=half), a, b, sa.view(view), sb.view(view), torch.tensor([1 / 1600])
        return
    x = r(130, 96) * (2.0 ** (torch.arange(130) / 10 - 9))[:, None].to(r(1).dtype) * (torch.arange(96) >= 16)
    out, tiled = torch.zeros(130, 48, dtype=torch.uint8), torch.zeros(256, 2, dtype=torch.int32)
    if name.endswith(".out"):
        yield x, one, True, out, tiled
    elif name.startswith("sgl"):
        yield out, x, tiled, one
    else:
        yield x, one, True
        yield x, one, False


# ---- experts in groups


def grouped(s, biased, groups, chosen, k, renormalize, factor):
    tokens, experts = s.shape
    best = biased.view(tokens, groups, -1).topk(min(2, experts // groups), -1).values.sum(-1).topk(chosen, -1).indices
    inside = torch.zeros(tokens, groups, dtype=torch.bool).scatter_(1, best, True).repeat_interleave(experts // groups, 1)
    ids = biased.masked_fill(~inside, -torch.inf).topk(k, -1).indices
    weights = s.gather(1, ids)
    return weights / (weights.sum(-1, keepdim=True) if renormalize else 1) * factor, ids.int()


def grouped_topk(x, groups, chosen, k, renormalize, factor, bias, scoring):
    s = torch.sigmoid(x) if scoring else x
    return grouped(s, s + bias, groups, chosen, k, renormalize, factor)


def topk_sigmoid(weights, ids, slots, x, renormalize, bias, factor):
    s = torch.sigmoid(x)
    w, chosen = grouped(s, s if bias is None else s + bias, 1, 1, weights.shape[1], renormalize, factor)
    weights.copy_(w)
    ids.copy_(chosen)
    slots.copy_(torch.arange(slots.numel(), dtype=slots.dtype).view(slots.shape[1], -1).t())


def fused_gate(x, bias, groups, chosen, k, shared, factor, on_output):
    s = torch.sigmoid(x)
    return list(grouped(s, s + bias, groups, chosen, k, True, factor if on_output else 1))


def noaux(x, bias, groups, chosen, k, factor):
    s = torch.sigmoid(x)
    return grouped(s, s + bias, groups, chosen, k, True, factor)


def routed(r, name):
    x, bias = r(6, 16, of=torch.float32), r(16, of=torch.float32) * 0.1
    if "grouped" in name:
        yield x, 4, 2, 3, True, 2.5, bias, 1
        yield torch.softmax(x, -1), 1, 1, 2, False, 1.0, bias * 0, 0
    elif "topk_sigmoid" in name:
        for renormalize, given in ((True, bias), (False, None)):
            yield torch.empty(6, 3), torch.empty(6, 3, dtype=torch.int32), torch.empty(6, 3, dtype=torch.int32), x, renormalize, given, 2.5
    elif "fused" in name:
        for on_output in (True, False):
            yield x, bias, 4, 2, 4, 0, 2.5, on_output
    else:
        yield x, bias, 4, 2, 4, 2.5


# ---- attention


def attended(q, k, v, scale, causal, left, right):
    """(tokens, heads, size), the masks anchored at the last query and key: the output and the log-sum-exps (heads, tokens)."""
    group, shift = q.shape[1] // k.shape[1], len(k) - len(q)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    distance = torch.arange(len(k))[None] - torch.arange(len(q))[:, None] - shift
    right = 0 if causal else right
    seen = torch.ones_like(distance, dtype=torch.bool)
    seen = seen & (distance <= right) if right >= 0 else seen
    seen = seen & (distance >= -left) if left >= 0 else seen
    scores = scores.masked_fill(~seen, -torch.inf)
    weights = torch.softmax(scores, -1).masked_fill(~seen, 0)
    lse = torch.logsumexp(scores, -1)
    return torch.einsum("hqk,khd->qhd", weights, v), torch.where(lse == -torch.inf, torch.inf, lse)


def pieces(borders):
    return [slice(a, b) for a, b in zip(borders.tolist(), borders[1:].tolist())]


def flash(q, k, v, dropout, scale, causal, left, right, *_):
    outs = [attended(*(t.float() for t in one), scale, causal, left, right) for one in zip(q, k, v)]
    return torch.stack([o for o, _ in outs]).to(q.dtype), torch.stack([lse for _, lse in outs]), q.new_empty(0), torch.zeros(2, dtype=torch.int64)


def flash_varlen(q, k, v, cu_q, cu_k, most_q, most_k, dropout, scale, causal, left, right, *_):
    outs = [attended(q[a].float(), k[b].float(), v[b].float(), scale, causal, left, right) for a, b in zip(pieces(cu_q), pieces(cu_k))]
    return (torch.cat([o for o, _ in outs]).to(q.dtype), torch.cat([lse for _, lse in outs], 1), q.new_empty(0), torch.zeros(2, dtype=torch.int64))


def gradients(dout, q, k, v, scale, *mask):
    """By hand: an op has no autograd inside. With unit vectors for values, the output is the weights."""
    dout, q, k, v = (t.float() for t in (dout, q, k, v))
    group, units = q.shape[1] // k.shape[1], torch.eye(len(k))[:, None].expand(-1, k.shape[1], -1)
    p = attended(q, k, units, scale, *mask)[0]  # (queries, heads, keys)
    wide_k, wide_v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    dp = torch.einsum("qhd,khd->qhk", dout, wide_v)
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
    dk, dv = torch.einsum("qhk,qhd->khd", ds, q), torch.einsum("qhk,qhd->khd", p, dout)
    return torch.einsum("qhk,khd->qhd", ds, wide_k), *(g.view(len(k), -1, group, g.shape[-1]).sum(2) for g in (dk, dv))


def flash_backward(dout, q, k, v, out, lse, dq, dk, dv, dropout, scale, causal, left, right, *_):
    for i in range(len(q)):
        for to, g in zip((dq, dk, dv), gradients(dout[i], q[i], k[i], v[i], scale, causal, left, right)):
            to[i].copy_(g)
    return torch.zeros(lse.shape)


def flash_varlen_backward(dout, q, k, v, out, lse, dq, dk, dv, cu_q, cu_k, most_q, most_k, dropout, scale, causal, left, right, *_):
    for a, b in zip(pieces(cu_q), pieces(cu_k)):
        for to, at, g in zip((dq, dk, dv), (a, b, b), gradients(dout[a], q[a], k[b], v[b], scale, causal, left, right)):
            to[at].copy_(g)
    return torch.zeros(lse.shape)


def flashes(r, name):
    ragged, backward = "varlen" in name, "backward" in name
    cu_q, cu_k = torch.tensor([0, 3, 8], dtype=torch.int32), torch.tensor([0, 5, 12], dtype=torch.int32)
    for causal, left, right in ((True, -1, -1), (False, -1, -1), (False, 2, 1)):
        q, k, v = (r(8, 4, 16), r(12, 2, 16), r(12, 2, 16)) if ragged else (r(2, 6, 4, 16), r(2, 9, 2, 16), r(2, 9, 2, 16))
        borders = (cu_q, cu_k, 5, 7) if ragged else ()
        window = 0.0, 0.25, causal, left, right, 0.0, None
        if not backward:
            yield q, k, v, *borders, *window, False
            continue
        forward = (flash_varlen if ragged else flash)(q, k, v, *borders, *window)
        yield r(*q.shape), q, k, v, *forward[:2], *map(torch.empty_like, (q, k, v)), *borders, *window, False, None


def paged(out, q, keys, values, heads, scale, tables, lengths, block, *_):
    for s, n in enumerate(lengths.tolist()):
        places = [(int(tables[s, t // block]), t % block) for t in range(n)]
        k = torch.stack([keys[b, :, :, o].flatten(1) for b, o in places]).float()  # (n, heads, size)
        v = torch.stack([values[b, :, :, o] for b, o in places]).float()
        out[s].copy_(attended(q[s][None].float(), k, v, scale, False, -1, -1)[0][0])


def paged_v2(out, sums, most, parts, *rest):
    paged(out, *rest)
    for t in (sums, most, parts):
        t.zero_()


def fill_cache(key, value, keys, values, slots, *_):
    for i, slot in enumerate(slots.tolist()):
        if slot >= 0:
            b, o = divmod(slot, keys.shape[3])
            keys[b, :, :, o] = key[i].view(key.shape[1], -1, keys.shape[4])
            values[b, :, :, o] = value[i]


def fill_cache_flash(key, value, keys, values, slots, *_):
    for i, slot in enumerate(slots.tolist()):
        if slot >= 0:
            keys[slot // keys.shape[1], slot % keys.shape[1]] = key[i]
            values[slot // keys.shape[1], slot % keys.shape[1]] = value[i]


def caches(r, name):
    one = torch.ones(1)
    if "paged" in name:
        parts = [torch.empty(2, 4, 1), torch.empty(2, 4, 1), r(2, 4, 1, 16)] if "v2" in name else []
        yield (
            r(2, 4, 16) * 0,
            *parts,
            r(2, 4, 16),
            r(5, 2, 2, 4, 8),
            r(5, 2, 16, 4),
            2,
            0.25,
            torch.tensor([[3, 0, 1], [2, 4, 0]], dtype=torch.int32),
            torch.tensor([9, 6], dtype=torch.int32),
            4,
            12,
            None,
            "auto",
            one,
            one,
            0,
            0,
            0,
            64,
            0,
        )
    elif "flash" in name:
        slots = torch.tensor([3, -1, 11, 0])
        yield r(5, 2, 16), r(5, 2, 16), r(3, 4, 2, 16), r(3, 4, 2, 16), slots, "auto", one, one
        yield r(4, 2, 16), r(4, 2, 16), r(3, 2, 4, 16).transpose(1, 2), r(3, 2, 4, 16).transpose(1, 2), slots, "auto", one, one
    else:
        yield r(4, 2, 16), r(4, 2, 16), r(3, 2, 2, 4, 8), r(3, 2, 16, 4), torch.tensor([3, -1, 11, 0]), "auto", one, one


IN_OUT = "(Tensor input, Tensor{0} output_q, Tensor{0} output_s"
GROUP = ", int group_size, float eps, float fp8_min, float fp8_max, bool scale_ue8m0"
WINDOW = "float dropout_p, float softmax_scale, bool causal, int window_size_left, int window_size_right, float softcap, Tensor? alibi_slopes"
BORDERS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k"
GRADIENTS = "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(a!)? dq, Tensor(b!)? dk, Tensor(c!)? dv"
CACHE = (
    "Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, float scale, Tensor block_tables, Tensor seq_lens, int block_size, "
    "int max_seq_len, Tensor? alibi_slopes, str kv_cache_dtype, Tensor k_scale, Tensor v_scale, int tp_rank, int blocksparse_local_blocks, "
    "int blocksparse_vert_stride, int blocksparse_block_size, int blocksparse_head_sliding_step"
)
FILL = (
    "(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, "
    "Tensor v_scale) -> ()"
)
# name: schema, definition, what it is called with
OPS = {
    "_C::static_scaled_fp8_quant": ("(Tensor! result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()", static_fp8, quantised),
    "_C::dynamic_scaled_fp8_quant": ("(Tensor! result, Tensor input, Tensor! scale) -> ()", dynamic_fp8, quantised),
    "_C::dynamic_per_token_scaled_fp8_quant": ("(Tensor! result, Tensor input, Tensor! scale, Tensor? scale_ub) -> ()", row_fp8, quantised),
    "_C::per_token_group_fp8_quant": (
        IN_OUT.format("!") + GROUP + ", bool dummy_is_scale_transposed, bool dummy_is_tma_aligned) -> ()",
        group_fp8,
        quantised,
    ),
    "sgl_kernel::sgl_per_tensor_quant_fp8": (IN_OUT.format("") + ", bool is_static) -> ()", sgl_tensor, quantised),
    "sgl_kernel::sgl_per_token_quant_fp8": (IN_OUT.format("") + ") -> ()", sgl_row, quantised),
    "sgl_kernel::sgl_per_token_group_quant_fp8": (IN_OUT.format("") + GROUP + ") -> ()", group_fp8, quantised),
    "sgl_kernel::sgl_per_token_group_quant_8bit": (IN_OUT.format("") + GROUP + ") -> ()", group_fp8, quantised),
    "_C::static_scaled_int8_quant": ("(Tensor! result, Tensor input, Tensor scale, Tensor? azp) -> ()", static_i8, quantised_to_i8),
    "_C::dynamic_scaled_int8_quant": ("(Tensor! result, Tensor input, Tensor! scale, Tensor!? azp) -> ()", row_i8, rows_to_i8),
    "_C::per_token_group_quant_int8": (
        IN_OUT.format("!") + ", int group_size, float eps, float int8_min, float int8_max) -> ()",
        group_i8,
        quantised_to_i8,
    ),
    "sgl_kernel::sgl_per_token_group_quant_int8": (
        IN_OUT.format("") + ", int group_size, float eps, float int8_min, float int8_max) -> ()",
        group_i8,
        quantised_to_i8,
    ),
    "flash_attn::_flash_attn_forward": (
        f"(Tensor q, Tensor k, Tensor v, {WINDOW}, bool return_softmax) -> (Tensor, Tensor, Tensor, Tensor)",
        flash,
        flashes,
    ),
    "flash_attn::_flash_attn_varlen_forward": (
        f"(Tensor q, Tensor k, Tensor v, {BORDERS}, {WINDOW}, bool return_softmax=False, Tensor? block_table"
        "=None, Tensor? leftpad_k=None, Tensor? seqused_k=None) -> (Tensor, Tensor, Tensor, Tensor)",
        flash_varlen,
        flashes,
    ),
    "flash_attn::_flash_attn_backward": (f"({GRADIENTS}, {WINDOW}, bool deterministic, Tensor? rng_state=None) -> Tensor", flash_backward, flashes),
    "flash_attn::_flash_attn_varlen_backward": (
        f"({GRADIENTS}, {BORDERS}, {WINDOW}, bool deterministic, Tensor? rng_state=None) -> Tensor",
        flash_varlen_backward,
        flashes,
    ),
    "_C::paged_attention_v1": (f"(Tensor! out, {CACHE}) -> ()", paged, caches),
    "_C::paged_attention_v2": (f"(Tensor! out, Tensor! exp_sums, Tensor! max_logits, Tensor! tmp_out, {CACHE}) -> ()", paged_v2, caches),
    "_C_cache_ops::reshape_and_cache": (FILL, fill_cache, caches),
    "_C_cache_ops::reshape_and_cache_flash": (FILL, fill_cache_flash, caches),
    "_C::cutlass_scaled_mm": ("(Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias) -> ()", cutlass, products),
    "sgl_kernel::fp8_scaled_mm": (
        "(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType out_dtype, Tensor? bias) -> Tensor",
        lambda a, b, sa, sb, dtype, bias: scaled(a, b, sa, sb, bias).to(dtype),
        products,
    ),
    "sgl_kernel::int8_scaled_mm": (
        "(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType out_dtype, Tensor? bias) -> Tensor",
        lambda a, b, sa, sb, dtype, bias: scaled(a, b, sa, sb, bias).to(dtype),
        products,
    ),
    "_C::scaled_fp4_quant": ("(Tensor input, Tensor input_scale, bool is_sf_swizzled_layout) -> (Tensor, Tensor)", nvfp4, fp4s),
    "_C::scaled_fp4_quant.out": (
        "(Tensor input, Tensor input_scale, bool is_sf_swizzled_layout, *, Tensor(a!) output, Tensor(b!) output_scale) -> ()",
        lambda x, given, tiled, out, scales: nvfp4_written(out, x, scales, given, tiled),
        fp4s,
    ),
    "sgl_kernel::scaled_fp4_quant": ("(Tensor! output, Tensor! input, Tensor! output_scale, Tensor! input_scale) -> ()", nvfp4_written, fp4s),
    "_C::cutlass_scaled_fp4_mm": (
        "(Tensor! out, Tensor a, Tensor b, Tensor block_scale_a, Tensor block_scale_b, Tensor alpha) -> ()",
        nvfp4_product,
        fp4s,
    ),
    "sgl_kernel::cutlass_scaled_fp4_mm": (
        "(Tensor! out, Tensor a, Tensor b, Tensor block_scale_a, Tensor block_scale_b, Tensor alpha) -> ()",
        nvfp4_product,
        fp4s,
    ),
    "moe::moe_mm": (
        "(Tensor input, Tensor moe_matrix, Tensor token_expert_mapping, Tensor padded_token_ids_per_block, Tensor expert_block_mapping, "
        "Tensor total_padded_tokens, SymInt topk, SymInt padding_size) -> Tensor",
        expert_rows,
        experts,
    ),
    "_moe_C::grouped_topk": (
        "(Tensor scores, int n_group, int topk_group, int topk, bool renormalize, float routed_scaling_factor, Tensor bias, "
        "int scoring_func) -> (Tensor, Tensor)",
        grouped_topk,
        routed,
    ),
    "_moe_C::topk_sigmoid": (
        "(Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices, Tensor gating_output, bool renormalize, "
        "Tensor? bias, float routed_scaling_factor) -> ()",
        topk_sigmoid,
        routed,
    ),
    "sgl_kernel::moe_fused_gate": (
        "(Tensor input, Tensor bias, int num_expert_group, int topk_group, int topk, int num_fused_shared_experts, "
        "float routed_scaling_factor, bool apply_routed_scaling_factor_on_output) -> Tensor[]",
        fused_gate,
        routed,
    ),
    "trtllm::noaux_tc_op": (
        "(Tensor scores, Tensor bias, int n_group, int topk_group, int topk, float routed_scaling_factor) -> (Tensor, Tensor)",
        noaux,
        routed,
    ),
    "sgl_kernel::fp8_blockwise_scaled_mm": (
        "(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType out_dtype) -> Tensor",
        lambda a, b, sa, sb, dtype: scaled(a, b, sa, sb).to(dtype),
        products,
    ),
}
serving_ops.HIDDEN.update({schema: [1, 2] for name, (schema, _, _) in OPS.items() if "output_q" in schema and "!" not in schema})


if __name__ == "__main__":
    serving_ops.main(OPS, serving_ops.each_of(OPS))
