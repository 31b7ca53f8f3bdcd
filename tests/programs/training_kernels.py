"""Custom ops of state-space models and linear attention, forward and backward, by the names and schemas of mamba_ssm, vLLM, lingua and
flash-linear-attention. As serving_kernels.py, but that gradients are what torch's autograd makes of the plain formula in float64."""

import serving_ops
import torch
import torch.nn.functional as F


def gradients(function, inputs, douts):
    """Of each floating input, in its own dtype and shape; an op's kernel runs below autograd, which has to be let in again."""
    keys = torch._C.DispatchKey
    excluded = torch._C._dispatch_tls_local_exclude_set().remove(keys.AutogradFunctionality).remove(keys.ADInplaceOrView)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set().add(keys.ADInplaceOrView), excluded), torch.enable_grad():
        leaves = [t.detach().double().requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in inputs]
        wanted = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
        found = iter(torch.autograd.grad(function(*leaves), wanted, [d.double() for d in douts], materialize_grads=True))
        return [next(found).to(t.dtype) if t is not leaf else None for t, leaf in zip(inputs, leaves)]


def empty_for_none(tensors, like):
    return tuple(like.new_empty(0) if t is None else t.contiguous() for t in tensors)


# ---- scans


def scan(u, dt, A, B, C, D, z, bias, initial, documents, softplus, limits=(0.0, float("inf"))):
    """u, z (batch, time, heads, parts); dt (batch, time, heads); A (heads, states or 1); B, C (batch, time, heads, states): y, the gated y
    and the states after each step."""
    dt = dt if bias is None else dt + bias
    dt = (F.softplus(dt) if softplus else dt).clamp(*limits)
    h = u.new_zeros(*u[:, 0].shape, B.shape[-1]) if initial is None else initial
    ys, states = [], []
    for t in range(u.shape[1]):
        if documents is not None and t:
            h = h * (documents[:, t] == documents[:, t - 1])[:, None, None, None]
        decay = torch.exp(dt[:, t, :, None] * A)[:, :, None]
        h = decay * h + (dt[:, t, :, None] * B[:, t])[:, :, None] * u[:, t, :, :, None]
        ys.append((h * C[:, t][:, :, None]).sum(-1))
        states.append(h)
    y = torch.stack(ys, 1)
    if D is not None:
        y = y + u * (D if D.dim() == 2 else D[:, None])
    return y, y if z is None else y * F.silu(z), states


def by_channel(t, channels, batch, length):
    """B or C as Mamba has them, for every channel: (batch, time, channels, states)."""
    if t.dim() == 2:
        return t[None, None].expand(batch, length, -1, -1)
    t = t[:, None] if t.dim() == 3 else t
    return t.repeat_interleave(channels // t.shape[1], 1).permute(0, 3, 1, 2)


def mamba(u, delta, A, B, C, D, z, bias, softplus, initial=None):
    batch, channels, length = u.shape
    y, gated, states = scan(
        u.transpose(1, 2)[..., None],
        delta.transpose(1, 2),
        A,
        by_channel(B, channels, batch, length),
        by_channel(C, channels, batch, length),
        D,
        None if z is None else z.transpose(1, 2)[..., None],
        bias,
        initial,
        None,
        softplus,
        (-float("inf"), float("inf")),
    )
    return y[..., 0].transpose(1, 2), gated[..., 0].transpose(1, 2), states[-1][:, :, 0]


def wide(*tensors):
    return [t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in tensors]


def mamba_forward(u, delta, A, B, C, D, z, bias, softplus, keep):
    y, gated, last = mamba(*wide(u, delta, A, B, C, D, z, bias), softplus)
    states = torch.zeros(*last.shape[:2], 1, 2 * last.shape[2])
    return (
        gated.to(u.dtype).contiguous(),
        last.float() if keep else u.new_empty(0),
        y.to(u.dtype).contiguous(),
        states,
        B.dim() == 3,
        C.dim() == 3,
        z is not None,
    )


def mamba_backward(dout, u, delta, A, B, C, D, z, bias, softplus, out, x, *_):
    return empty_for_none(gradients(lambda *t: mamba(*t, softplus)[1], (u, delta, A, B, C, D, z, bias), [dout]), u)


def mambas(r, name):
    A = -r(8, 4, of=torch.float32).exp()
    one = r(2, 8, 12), r(2, 8, 12), A, r(2, 4, 12), r(2, 2, 4, 12), r(8, of=torch.float32), r(2, 8, 12), r(8, of=torch.float32), True
    two = r(2, 8, 12), r(2, 8, 12).abs(), A, r(8, 4), r(2, 1, 4, 12), None, None, None, False
    far = r(1, 8, 70), r(1, 8, 70) + 19.5, A * 0.01, r(1, 4, 70), r(1, 4, 70), None, None, None, True  # on either side of where softplus ends
    for arguments in (one, two, far):
        if "fwd" in name:
            yield *arguments, arguments is one
        else:
            out, x = mamba_forward(*arguments, False)[2:4]
            yield r(*arguments[0].shape), *arguments, out, x, False, False


def vllm_scan(u, delta, A, B, C, D, z, bias, softplus, borders, slots, begun, states, null, *_):
    ragged = borders is not None
    for i in range(len(borders) - 1 if ragged else len(u)):
        slot = i if slots is None else int(slots[i])
        if slot == null and slots is not None:
            continue
        at = (Ellipsis, slice(*borders[i : i + 2].tolist())) if ragged else (i,)
        one = [None if t is None else t[at][None] for t in (u, delta, B, C, z)]
        initial = states[slot][None, :, None].double() if begun is not None and begun[i] else None
        y, gated, last = mamba(*wide(*one[:2], A, *one[2:4], D, one[4], bias), softplus, initial)
        delta[at] = y[0].to(delta.dtype)
        if z is not None:
            z[at] = gated[0].to(z.dtype)
        states[slot] = last[0].to(states.dtype)


def vllm_scans(r, name):
    A, D, bias = -r(8, 4, of=torch.float32).exp(), r(8, of=torch.float32), r(8, of=torch.float32)
    rest = [16, None, None, None, None, None]
    yield r(2, 8, 6), r(2, 8, 6), A, r(2, 2, 4, 6), r(2, 2, 4, 6), D, r(2, 8, 6), bias, True, None, None, None, r(2, 8, 4), -1, *rest
    yield (
        r(8, 9),
        r(8, 9),
        A,
        r(1, 4, 9),
        r(1, 4, 9),
        D,
        None,
        None,
        True,
        torch.tensor([0, 4, 4, 9], dtype=torch.int32),
        torch.tensor([2, 0, 1], dtype=torch.int32),
        torch.tensor([True, True, False]),
        r(4, 8, 4, of=torch.float32),
        0,
        *rest,
    )


def mamba2(x, dt, A, B, C, D, z, bias, initial, documents, softplus, limits):
    B, C = (t.repeat_interleave(x.shape[2] // t.shape[2], 2) for t in (B, C))
    return scan(x, dt, A[:, None], B, C, D, z, bias, initial, documents, softplus, tuple(limits or (0.0, float("inf"))))


def mamba2_forward(x, dt, A, B, C, chunk, D, z, bias, initial, documents, borders, softplus, limits):
    y, gated, states = mamba2(*wide(x, dt, A, B, C, D, z, bias, initial), documents, softplus, limits)
    ends = x.new_empty(0) if borders is None else torch.cat([states[t - 1] for t in borders[1:].tolist()]).to(x.dtype)
    return gated.to(x.dtype), x.new_empty(0) if z is None else y.to(x.dtype), ends


def mamba2_backward(dout, x, dt, A, B, C, out, chunk, D, z, bias, initial, documents, softplus, limits):
    return empty_for_none(gradients(lambda *t: mamba2(*t, documents, softplus, limits)[1], (x, dt, A, B, C, D, z, bias, initial), [dout]), x)


def mamba2s(r, name):
    def f(*shape):
        return r(*shape, of=torch.float32)

    one = r(2, 9, 4, 8), r(2, 9, 4), -f(4).exp(), r(2, 9, 2, 5), r(2, 9, 2, 5), 4, f(4), r(2, 9, 4, 8), f(4), None, None
    ragged = (
        r(1, 9, 4, 8),
        r(1, 9, 4),
        -f(4).exp(),
        r(1, 9, 1, 5),
        r(1, 9, 1, 5),
        4,
        f(4, 8),
        None,
        f(4),
        None,
        torch.tensor([[0, 0, 0, 0, 1, 1, 2, 2, 2]], dtype=torch.int32),
    )
    begun = r(2, 5, 4, 8), r(2, 5, 4).abs(), -f(4).exp(), r(2, 5, 4, 5), r(2, 5, 4, 5), 4, None, None, None, r(2, 4, 8, 5), None
    for arguments, softplus, limits in ((one, True, [0.0, float("inf")]), (ragged, True, [0.05, 0.9]), (begun, False, [0.0, float("inf")])):
        borders = torch.tensor([0, 4, 6, 9], dtype=torch.int32) if arguments is ragged else None
        if "fwd" in name:
            yield *arguments, borders, softplus, limits
        else:
            x, dt, A, B, C, chunk, *rest = arguments
            gated, y, _ = mamba2_forward(*arguments, None, softplus, limits)
            yield r(*x.shape), x, dt, A, B, C, gated if rest[1] is None else y, chunk, *rest, softplus, limits


# ---- causal convolutions


def conv(x, weight, bias, initial, documents, silu):
    """y and the last inputs, which are the next call's initial state."""
    length, taps = x.shape[2], weight.shape[1]
    whole = torch.cat([torch.zeros_like(x[..., :1]).expand(-1, -1, taps - 1) if initial is None else initial, x], -1)
    y = torch.zeros_like(x) if bias is None else bias[:, None].expand(x.shape)
    for k in range(taps):
        lag = taps - 1 - k
        same = 1 if documents is None else F.pad(documents[:, : length - lag] == documents[:, lag:], (lag, 0))[:, None]
        y = y + weight[:, k, None] * whole[..., k : k + length] * same
    return F.silu(y) if silu else y, whole[..., length:]


def conv_backward(x, weight, bias, dout, documents, initial, dfinal, dx, dweight, dbias, dinitial, silu):
    douts = [dout, torch.zeros(*x.shape[:2], weight.shape[1] - 1) if dfinal is None else dfinal]
    found = gradients(lambda *t: conv(*t, documents, silu), (x, weight.float(), None if bias is None else bias.float(), initial), douts)
    dx.copy_(found[0])
    dweight.add_(found[1])
    if bias is not None:
        dbias.add_(found[2])
    if dinitial is not None:
        dinitial.copy_(found[3])


def convs(r, name):
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2, 3]] * 2, dtype=torch.int32)
    for bias, initial, dfinal, given, length, silu in (
        (r(12), None, None, None, 10, True),
        (None, None, None, None, 10, False),
        (r(12), None, None, documents, 10, True),
        (r(12), r(2, 12, 3), r(2, 12, 3), None, 10, True),
        (None, r(2, 12, 3), r(2, 12, 3), None, 2, False),
    ):
        x = r(2, 12, length)
        yield (
            x,
            r(12, 4),
            bias,
            r(2, 12, length),
            given,
            initial,
            dfinal,
            torch.empty_like(x),
            torch.zeros(12, 4),
            None if bias is None else torch.zeros(12),
            None if initial is None else torch.empty_like(initial),
            silu,
        )


# ---- RWKV-7


def packed(tensors):
    return torch.cat([t.flatten() for t in tensors])


def rwkv_k(k, a, ka):
    return k * (1 + (a - 1) * ka)


def rwkv_addcmul(hidden, delta, *factors):
    return tuple(hidden + delta * x for x in factors)


def rwkv_gate(o, r, k, r_k, v, g):
    return (o + ((r * k * r_k).sum(-1, keepdim=True) * v).flatten(-2)) * g


def rwkv_keys(k, a, k_k, k_a, size):
    unit = F.normalize((k * k_k).unflatten(-1, (-1, size)), dim=-1).flatten(-2)
    return tuple(t.reshape(-1, size) for t in (k * (1 + (a - 1) * k_a), -unit, unit * a))


def rwkv_addcmul_backward(*args):
    count = 6 if args[13] else 5
    found = gradients(rwkv_addcmul, (torch.zeros_like(args[12]), args[12], *args[6 : 6 + count]), args[:count])
    return *found, *([torch.zeros_like(args[11])] if count == 5 else [])


def rwkvs(r, name):
    x, w = (lambda: r(2, 5, 32)), (lambda: r(1, 1, 32))
    if "fused_k" in name:
        yield x(), x(), x(), r(32)
    elif "addcmul" in name:
        for used in (True, False):
            yield *(x() for _ in range(6)), *(w() for _ in range(6)), x(), used
    elif "gate" in name:
        yield x(), x(), r(2, 5, 4, 8), r(2, 5, 4, 8), r(4, 8), r(2, 5, 4, 8), x()
    elif name.endswith("bwd"):
        for there in ((True, True, True), (False, True, False)):
            yield r(40, 8), r(40, 8), r(40, 8), x(), x(), r(32), r(32), 8, *there
    else:
        yield x(), x(), r(32), r(32), 8
        yield x() * (torch.arange(32) >= 8), x(), r(4, 8), r(4, 8), 8  # one head is too short to be normalised


def rwkv_keys_backward(dk, down, dm, k, a, k_k, k_a, size, *there):
    given = [d if used else torch.zeros_like(d) for d, used in zip((dk, down, dm), there)]
    return packed(gradients(lambda *t: rwkv_keys(*t, size), (k, a, k_k, k_a), given))


# ---- the generalised delta rule


def delta_rule(q, k, v, a, b, g, h0, borders, scale):
    """Outputs and final states; the parts of one batch that borders tell apart are sequences of their own."""
    if borders is not None:
        found = [
            delta_rule(*(t[:, first:end] for t in (q, k, v, a, b, g)), None if h0 is None else h0[i : i + 1], None, scale)
            for i, (first, end) in enumerate(zip(borders.tolist(), borders[1:].tolist()))
        ]
        return torch.cat([o for o, _ in found], 1), torch.cat([s for _, s in found])
    s = q.new_zeros(q.shape[0], *q.shape[2:], v.shape[-1]) if h0 is None else h0
    outs = []
    for t in range(q.shape[1]):
        along = (a[:, t, :, :, None] * s).sum(-2, keepdim=True)
        s = g[:, t].exp()[..., None] * s + b[:, t, :, :, None] * along + k[:, t, :, :, None] * v[:, t, :, None]
        outs.append(scale * (q[:, t, :, :, None] * s).sum(-2))
    return torch.stack(outs, 1), s


def delta_forward(kept):
    def run(q, k, v, a, b, g, h0, borders, scale, begun, last, ragged, chunk):
        o, s = delta_rule(*wide(q, k, v, a, b, g), h0.double() if begun else None, borders if ragged else None, scale)
        none = torch.zeros(0, 2, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
        return o.to(v.dtype), s.float() if last else torch.empty(0), *none, *(torch.zeros(3) for _ in range(kept))

    return run


def delta_backward(do, dht, q, k, v, a, b, g, h0, borders, *rest):
    scale, begun, ragged, _ = rest[-4:]
    inputs = (q, k, v, a, b, g, h0 if begun else None)

    def states(*t):
        return delta_rule(*t, borders if ragged else None, scale)

    found = gradients(states, inputs, [do, dht if dht.numel() else torch.zeros_like(states(*wide(*inputs))[1])])
    return *(t.contiguous() for t in found[:6]), found[6] if begun else h0.new_empty(0)


def delta_recurrent(q, g, k, v, a, b, scale, h0, last, borders):
    o, s = delta_rule(*wide(q, k, v, a, b, g, h0), borders, scale)
    return o.to(q.dtype), s.float()


def deltas(r, name):
    for begun, ragged in ((True, False), (False, False), (True, True)):
        batch, tokens, count = (1, 7, 3) if ragged else (2, 6, 2)
        borders = torch.tensor([0, 3, 4, 7] if ragged else [], dtype=torch.int32)
        unit = F.normalize(r(batch, tokens, 2, 8), dim=-1)
        q, k, v, g = r(batch, tokens, 2, 8), r(batch, tokens, 2, 8), r(batch, tokens, 2, 4), F.logsigmoid(r(batch, tokens, 2, 8))
        h0 = r(count, 2, 8, 4, of=torch.float32)
        one = q, k, v, -unit, unit * torch.sigmoid(r(batch, tokens, 2, 1)), g
        none = torch.zeros(0, 2, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
        if "recurrent" in name:
            yield q, g, *one[1:5], 0.35, h0 if begun else None, True, borders if ragged else None
        elif "fwd" in name:
            yield *one, h0, borders, 0.35, begun, begun, ragged, 32
        else:
            kept = [torch.zeros(3) for _ in range(11 if "ctx" in name else 0)]
            yield r(*v.shape), h0 * 0.5 if begun else h0.new_empty(0), *one, h0, borders, *none, *kept, 0.35, begun, ragged, 32


# ---- softmax


def masks(x, mask, causal, aligned):
    if mask is not None:
        return mask.bool().expand(x.shape)
    distance = torch.arange(x.shape[-1])[None] - torch.arange(x.shape[-2])[:, None] - (x.shape[-1] - x.shape[-2] if aligned else 0)
    return (distance > 0).expand(x.shape) if causal else torch.zeros_like(x, dtype=torch.bool)


def softmax(x, mask, scale, causal=False, aligned=False):
    """Masked by a tensor, a row that is hidden wholly vanishes; causal masks hide altogether."""
    hidden = masks(x, mask, causal, aligned)
    y = torch.softmax((x * scale).masked_fill(hidden, -torch.inf if causal else -10000.0), -1)
    return y * ~hidden.all(-1, keepdim=True) if mask is not None else torch.nan_to_num(y) * ~hidden if causal else y


def softmax_forward(**how):
    return lambda x, *rest: softmax(x.double(), *(rest if len(rest) == 2 else (None, *rest)), **how).to(x.dtype)


def softmax_backward(dy, y, scale):
    return (torch.ops.aten._softmax_backward_data(dy.double(), y.double(), -1, torch.float64) * scale).to(dy.dtype)


def softmaxes(r, name):
    shape = (2, 3, 5, 9) if "aligned" in name else (6, 7, 7) if "triang" in name else (2, 3, 5, 8)
    if name.endswith("backward"):
        yield r(*shape), torch.softmax(r(*shape).float(), -1).to(r(1).dtype), 0.35
    elif "_masked_" in name and "triang" not in name and "causal" not in name:
        for batch in (1, 2):
            mask = (torch.arange(batch * 40).view(batch, 1, 5, 8) % 3 == 0).to(torch.uint8)
            mask[:, :, 4] = 1
            yield r(*shape), mask, 0.35
    else:
        yield r(*shape) * 4, 0.35


# ---- activations of Transformer Engine


def halves(function):
    def run(x):
        a, b = x.chunk(2, -1)
        return function(a) * b

    return run


def activation(function):
    return lambda x, *_: function(x.double()).to(x.dtype)


def gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


def activations(r, name):
    yield r(6, 32) * 2, torch.empty(0), torch.empty(0), torch.empty(0), 0, 0


CHANNELS = "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, bool delta_softplus"
HEADS = "Tensor? D=None, Tensor? z=None, Tensor? dt_bias=None, Tensor? initial_states=None, Tensor? seq_idx=None, "
# name: schema, definition, what it is called with
OPS = {
    "custom_ops::selective_scan_fwd": (
        f"({CHANNELS}, bool return_last_state) -> (Tensor, Tensor, Tensor, Tensor, bool, bool, bool)",
        mamba_forward,
        mambas,
    ),
    "custom_ops::selective_scan_bwd": (
        f"(Tensor dout, {CHANNELS}, Tensor out, Tensor x, bool squeeze_B, bool squeeze_C) -> (Tensor, Tensor, "
        "Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        mamba_backward,
        mambas,
    ),
    "_C::selective_scan_fwd": (
        "(Tensor! u, Tensor! delta, Tensor! A, Tensor! B, Tensor! C, Tensor? D_, Tensor!? z_, Tensor? delta_bias_, "
        "bool delta_softplus, Tensor? query_start_loc, Tensor? cache_indices, Tensor? has_initial_state, "
        "Tensor! ssm_states, int null_block_id, int block_size, Tensor? block_idx_first_scheduled_token, "
        "Tensor? block_idx_last_scheduled_token, Tensor? initial_state_idx, Tensor? cu_chunk_seqlen, "
        "Tensor? last_chunk_indices) -> ()",
        vllm_scan,
        vllm_scans,
    ),
    "mamba_ssm::ssm_chunk_scan_combined_fwd": (
        f"(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, int chunk_size, {HEADS}Tensor? cu_seqlens"
        "=None, bool dt_softplus=False, float[]? dt_limit=None) -> (Tensor, Tensor, Tensor)",
        mamba2_forward,
        mamba2s,
    ),
    "mamba_ssm::ssm_chunk_scan_combined_bwd": (
        f"(Tensor dout, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor out, int chunk_size, {HEADS}"
        "bool dt_softplus=False, float[]? dt_limit=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor, "
        "Tensor, Tensor, Tensor, Tensor)",
        mamba2_backward,
        mamba2s,
    ),
    "DaoAILab::_causal_conv1d_bwd_cpp": (
        "(Tensor x, Tensor weight, Tensor? bias, Tensor dout, Tensor? seq_idx, Tensor? initial_states, "
        "Tensor!? dfinal_states, Tensor! dx, Tensor! dweight, Tensor!? dbias, Tensor!? dinitial_states, "
        "bool silu_activation) -> ()",
        conv_backward,
        convs,
    ),
    "fla::kk_pre_rwkv7": (
        "(Tensor k, Tensor a, Tensor k_k, Tensor k_a, int head_dim) -> Tensor",
        lambda k, a, k_k, k_a, size: torch.stack(rwkv_keys(*wide(k, a, k_k.flatten(), k_a.flatten()), size)).to(k.dtype),
        rwkvs,
    ),
    "fla::fused_k_rwkv7_bwd": (
        "(Tensor dy, Tensor k, Tensor a, Tensor ka) -> Tensor",
        lambda dy, *inputs: packed(gradients(rwkv_k, inputs, [dy])),
        rwkvs,
    ),
    "fla::fused_addcmul_rwkv7_bwd": (
        "(Tensor dxr, Tensor dxw, Tensor dxk, Tensor dxv, Tensor dxa, Tensor dxg, Tensor x_r, Tensor x_w, Tensor x_k, "
        "Tensor x_v, Tensor x_a, Tensor x_g, Tensor delta, bool use_xg) -> (Tensor, Tensor, Tensor, Tensor, Tensor, "
        "Tensor, Tensor, Tensor)",
        rwkv_addcmul_backward,
        rwkvs,
    ),
    "fla::gate_output_correction_rwkv7_bwd": (
        "(Tensor dy, Tensor o, Tensor r, Tensor k, Tensor r_k, Tensor v, Tensor g) -> Tensor",
        lambda dy, *inputs: packed(gradients(rwkv_gate, inputs, [dy])),
        rwkvs,
    ),
    "fla::kk_pre_rwkv7_bwd": (
        "(Tensor dk_new, Tensor dneg_kk, Tensor dkka, Tensor k, Tensor a, Tensor k_k, Tensor k_a, int head_dim, "
        "bool has_dk_new, bool has_dneg_kk, bool has_dkka) -> Tensor",
        rwkv_keys_backward,
        rwkvs,
    ),
}


RULE = "Tensor q, Tensor k, Tensor v, Tensor a, Tensor b, Tensor gk, Tensor h0, Tensor cu_seqlens, "
KEPT = ["h", "v_new", "qg", "kg", "ag", "bg", "w", "A_ab_inv", "A_ak", "A_qk", "A_qb"]
for ending, kept in (("", []), ("_ctx", KEPT)):
    results = ", ".join(["Tensor"] * (4 + len(kept)))
    OPS[f"fla::chunk_dplr_delta_rule_fwd{ending}"] = (
        f"({RULE}float scale, bool has_initial_state, bool output_final_state, bool is_varlen, int chunk_size) -> ({results})",
        delta_forward(len(kept)),
        deltas,
    )
    OPS[f"fla::chunk_dplr_delta_rule_bwd{ending}"] = (
        f"(Tensor do, Tensor dht, {RULE}Tensor chunk_indices, Tensor chunk_offsets, "
        + "".join(f"Tensor {name}_ctx, " for name in kept)
        + "float scale, bool has_initial_state, "
        "bool is_varlen, int chunk_size) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        delta_backward,
        deltas,
    )
OPS["fla::fused_recurrent_rwkv7"] = (
    "(Tensor r, Tensor w, Tensor k, Tensor v, Tensor a, Tensor b, float scale, Tensor? initial_state, "
    "bool output_final_state, Tensor? cu_seqlens) -> (Tensor, Tensor?)",
    delta_recurrent,
    deltas,
)
for space in ("transformer_engine", "transformer_engine_stable"):
    for kind, how in (
        ("", {}),
        ("_masked", {}),
        ("_upper_triang_masked", {"causal": True}),
        ("_aligned_causal_masked", {"causal": True, "aligned": True}),
    ):
        mask = "Tensor mask, " if kind == "_masked" else ""
        OPS[f"{space}::scaled{kind}_softmax_forward"] = f"(Tensor input, {mask}float scale_factor) -> Tensor", softmax_forward(**how), softmaxes
        OPS[f"{space}::scaled{kind}_softmax_backward"] = (
            "(Tensor output_grad, Tensor softmax_results, float scale_factor) -> Tensor",
            softmax_backward,
            softmaxes,
        )
for short, function in (
    ("gelu", gelu_tanh),
    ("relu", F.relu),
    ("srelu", lambda x: F.relu(x) ** 2),
    ("qgelu", lambda x: x * torch.sigmoid(1.702 * x)),
    ("geglu", halves(gelu_tanh)),
    ("reglu", halves(F.relu)),
    ("swiglu", halves(F.silu)),
):
    OPS[f"tex_ts::{short}_ts"] = (
        "(Tensor input, Tensor scale, Tensor amax, Tensor scale_inv, int fp8_tensor, int otype) -> Tensor",
        activation(function),
        activations,
    )


if __name__ == "__main__":
    serving_ops.main(OPS, serving_ops.each_of(OPS))
