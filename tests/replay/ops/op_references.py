"""What ops compute that this build of torch cannot run: ops of other devices, written down from their definitions with plain torch.

A reference takes the parameters of the op's schema by name and gives its first results; by-products (generator states, workspaces) are left out.
It computes in f64 and rounds once at the end, so that it is within every bound if the definition is right. test_ops_torch.py calls it in place of
the op.
"""

import math

import torch

REFERENCES = {}


def reference(*names):
    def register(function):
        for name in names:
            REFERENCES[f"aten::{name}"] = function
        return function

    return register


class Reference:
    """Called as torch.ops.aten.OP is."""

    def __init__(self, op, function):
        self._schema, self.function = op._schema, function

    def __call__(self, *args, **kwargs):
        values = {p.name: p.default_value for p in self._schema.arguments if p.has_default_value()}
        values.update(zip((p.name for p in self._schema.arguments), args))
        values.update(kwargs)
        return self.function(**values)


# ---- attention -------------------------------------------------------------------------------------------------------


def visible(queries, keys, left=None, right=None, bottom=False):
    """True where query i sees key j."""
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    i = i + (keys - queries if bottom else 0)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if left is not None and left >= 0:
        seen &= j >= i - left
    if right is not None and right >= 0:
        seen &= j <= i + right
    return seen


def scores_of(q, k, mask, seen, scale):
    """(heads, queries, keys) in f64 of one sequence; heads of keys are repeated for groups of heads of queries."""
    q, k = q.double(), k.double()
    s = q @ k.repeat_interleave(q.shape[0] // k.shape[0], 0).transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else s + mask.double()
    return s.masked_fill(~seen, -math.inf)


def attend(q, k, v, mask, seen, scale):
    s = scores_of(q, k, mask, seen, scale)
    lse = s.logsumexp(-1)
    p = torch.where(torch.isneginf(lse)[..., None], 0.0, (s - lse[..., None]).exp())
    y = p @ v.double().repeat_interleave(q.shape[0] // v.shape[0], 0)
    return y, torch.where(torch.isneginf(lse), math.inf, lse)


def attend_backward(dy, q, k, v, y, lse, mask, seen, scale):
    groups, number = q.shape[0] // k.shape[0], 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    dy, wide_k, wide_v = dy.double(), k.double().repeat_interleave(groups, 0), v.double().repeat_interleave(groups, 0)
    p = (scores_of(q, k, mask, seen, scale) - lse.double()[..., None]).exp()
    ds = p * (dy @ wide_v.transpose(-1, -2) - (dy * y.double()).sum(-1, keepdim=True))
    fold = lambda g: g.unflatten(0, (-1, groups)).sum(1)  # noqa: E731
    return ds @ wide_k * number, fold(ds.transpose(-1, -2) @ q.double()) * number, fold(p.transpose(-1, -2) @ dy), ds


def over_batch(function, tensors, mask):
    """`function` on each sample of (batch, …) tensors; results stacked."""
    results = [function(*(t[b] for t in tensors), None if mask is None else mask[b]) for b in range(tensors[0].shape[0])]
    return [torch.stack(r) for r in zip(*results)]


def whole_mask(mask, q, k):
    return None if mask is None else mask.expand(*q.shape[:-1], k.shape[-2])


def lse_of(lse, dtype, padded=None):
    lse = lse.to(torch.float64 if dtype == torch.float64 else torch.float32)
    if padded and lse.shape[-1] % padded:
        lse = torch.nn.functional.pad(lse, (0, padded - lse.shape[-1] % padded), value=math.inf)
    return lse


def heads_first_forward(query, key, value, mask, is_causal, scale, padded=None):
    seen = visible(query.shape[-2], key.shape[-2], right=0 if is_causal else None)
    y, lse = over_batch(lambda q, k, v, m: attend(q, k, v, m, seen, scale), (query, key, value), whole_mask(mask, query, key))
    return y.to(query.dtype), lse_of(lse, query.dtype, padded)


def heads_first_backward(grad, query, key, value, out, logsumexp, mask, is_causal, scale):
    seen = visible(query.shape[-2], key.shape[-2], right=0 if is_causal else None)
    grads = over_batch(
        lambda dy, q, k, v, y, l, m: attend_backward(dy, q, k, v, y, l, m, seen, scale),
        (grad, query, key, value, out, logsumexp[..., : query.shape[-2]]),
        whole_mask(mask, query, key),
    )
    return [g.to(query.dtype) for g in grads]


@reference("_scaled_dot_product_flash_attention")
def flash(query, key, value, is_causal, scale, **rest):
    return heads_first_forward(query, key, value, None, is_causal, scale)


@reference("_scaled_dot_product_efficient_attention")
def efficient(query, key, value, attn_bias, is_causal, scale, **rest):
    return heads_first_forward(query, key, value, attn_bias, is_causal, scale, padded=32)


@reference("_scaled_dot_product_cudnn_attention", "_cudnn_attention_forward", "_scaled_dot_product_fused_attention_overrideable")
def biased(query, key, value, attn_bias, is_causal, scale, **rest):
    return heads_first_forward(query, key, value, attn_bias, is_causal, scale)


@reference("_scaled_dot_product_flash_attention_backward")
def flash_backward(grad_out, query, key, value, out, logsumexp, is_causal, scale, **rest):
    return heads_first_backward(grad_out, query, key, value, out, logsumexp, None, is_causal, scale)[:3]


@reference("_scaled_dot_product_efficient_attention_backward")
def efficient_backward(grad_out_, query, key, value, attn_bias, out, logsumexp, is_causal, scale, **rest):
    grads = heads_first_backward(grad_out_, query, key, value, out, logsumexp, attn_bias, is_causal, scale)
    return grads if attn_bias is not None else grads[:3]


@reference("_scaled_dot_product_cudnn_attention_backward", "_cudnn_attention_backward")
def cudnn_backward(grad_out, query, key, value, out, logsumexp, attn_bias, is_causal, scale, **rest):
    return heads_first_backward(grad_out, query, key, value, out, logsumexp, attn_bias, is_causal, scale)[:3]


@reference("_scaled_dot_product_fused_attention_overrideable_backward")
def overrideable_backward(grad_out, query, key, value, attn_bias, out, logsumexp, is_causal, scale, **rest):
    return efficient_backward(grad_out, query, key, value, attn_bias, out, logsumexp, is_causal, scale)


def each_sequence(cum_q, cum_k, query, key):
    """(slice of queries, slice of keys, sample) of every sequence of (batch, tokens, heads, size) or ragged (tokens, heads, size)."""
    if cum_q is None or cum_q.numel() < 2:
        return [(slice(0, query.shape[1]), slice(0, key.shape[1]), b) for b in range(query.shape[0])]
    q, k = cum_q.tolist(), cum_k.tolist()
    return [(slice(q[s], q[s + 1]), slice(k[s], k[s + 1]), 0) for s in range(len(q) - 1)]


def raw_forward(query, key, value, mask, cum_q, cum_k, scale, window):
    """(y as query lies, log-sum-exps by sequence) ; window(queries, keys) says what is seen."""
    batched = [t if t.dim() == 4 else t[None] for t in (query, key, value)]
    y, lses = torch.zeros(*batched[0].shape[:3], value.shape[-1], dtype=torch.float64), []
    for rows, columns, b in each_sequence(cum_q, cum_k, query, key):
        q, k, v = (t[b, r].transpose(0, 1) for t, r in zip(batched, (rows, columns, columns)))
        one, lse = attend(q, k, v, None if mask is None else mask[b], window(q.shape[1], k.shape[1]), scale)
        y[b, rows] = one.transpose(0, 1)
        lses.append(lse)
    return y.to(query.dtype).reshape(*query.shape[:-1], value.shape[-1]), lses


def raw_backward(grad, query, key, value, out, lses, mask, cum_q, cum_k, scale, window):
    batched = [t if t.dim() == 4 else t[None] for t in (grad, query, key, value, out)]
    grads, biases = [torch.zeros(t.shape, dtype=torch.float64) for t in batched[1:4]], []
    for (rows, columns, b), lse in zip(each_sequence(cum_q, cum_k, query, key), lses):
        dy, q, k, v, y = (t[b, r].transpose(0, 1) for t, r in zip(batched, (rows, rows, columns, columns, rows)))
        found = attend_backward(dy, q, k, v, y, lse, None if mask is None else mask[b], window(q.shape[1], k.shape[1]), scale)
        for g, part, r in zip(grads, found, (rows, columns, columns)):
            g[b, r] = part.transpose(0, 1)
        biases.append(found[3])
    grads = [g.to(t.dtype).reshape(t.shape) for g, t in zip(grads, (query, key, value))]
    return grads + [torch.stack(biases).to(query.dtype)] if mask is not None else grads


def flash_window(is_causal, left, right):
    return lambda queries, keys: visible(queries, keys, left, 0 if is_causal else right, bottom=True)


@reference("_flash_attention_forward")
def raw_flash(query, key, value, cum_seq_q, cum_seq_k, is_causal, scale, window_size_left, window_size_right, **rest):
    y, lses = raw_forward(query, key, value, None, cum_seq_q, cum_seq_k, scale, flash_window(is_causal, window_size_left, window_size_right))
    return y, lse_of(torch.stack(lses) if query.dim() == 4 else torch.cat(lses, 1), query.dtype)


@reference("_flash_attention_backward")
def raw_flash_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, is_causal, scale, window_size_left, window_size_right, **rest
):
    lses = [logsumexp[b] for b in range(query.shape[0])] if query.dim() == 4 else logsumexp.split(cum_seq_q.diff().tolist(), 1)
    return raw_backward(
        grad_out, query, key, value, out, lses, None, cum_seq_q, cum_seq_k, scale, flash_window(is_causal, window_size_left, window_size_right)
    )


def efficient_window(kind, size):
    return lambda queries, keys: visible(queries, keys, size - 1 if size else None, 0 if kind else None, bottom=kind == 2)


@reference("_efficient_attention_forward")
def raw_efficient(query, key, value, bias, cu_seqlens_q, cu_seqlens_k, custom_mask_type, scale, window_size, **rest):
    y, lses = raw_forward(query, key, value, bias, cu_seqlens_q, cu_seqlens_k, scale, efficient_window(custom_mask_type, window_size))
    most = max(l.shape[1] for l in lses)
    lses = [torch.nn.functional.pad(l, (0, most - l.shape[1]), value=math.inf) for l in lses]
    return y, lse_of(torch.stack(lses), query.dtype, padded=32)


@reference("_efficient_attention_backward")
def raw_efficient_backward(
    grad_out_, query, key, value, bias, out, cu_seqlens_q, cu_seqlens_k, logsumexp, custom_mask_type, scale, window_size, **rest
):
    sequences = each_sequence(cu_seqlens_q, cu_seqlens_k, query, key)
    lses = [logsumexp[s][:, : rows.stop - rows.start] for s, (rows, _, _) in enumerate(sequences)]
    return raw_backward(
        grad_out_, query, key, value, out, lses, bias, cu_seqlens_q, cu_seqlens_k, scale, efficient_window(custom_mask_type, window_size)
    )


# ---- norms and dropout -----------------------------------------------------------------------------------------------


@reference("_fused_rms_norm_backward")
def rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask):
    dims = tuple(range(-len(normalized_shape), 0))
    dy, x, r = grad_out.double(), input.double(), rstd.double().reshape(*input.shape[: -len(normalized_shape)], *[1] * len(normalized_shape))
    g = dy if weight is None else dy * weight.double()
    dx = r * g - x * r**3 * (g * x).mean(dims, keepdim=True)
    dw = (dy * x * r).flatten(0, -len(normalized_shape) - 1).sum(0)
    return [dx.to(input.dtype), dw.to(input.dtype) if weight is not None and output_mask[1] else None]


def per_channel(t, x):
    return t.double().reshape(1, -1, *[1] * (x.dim() - 2))


@reference("cudnn_batch_norm", "miopen_batch_norm")
def cudnn_batch_norm(input, weight, bias, epsilon, **rest):
    x, dims = input.double(), [d for d in range(input.dim()) if d != 1]
    var, mean = torch.var_mean(x, dims, correction=0)
    r = (var + epsilon).rsqrt()
    y = (x - per_channel(mean, x)) * per_channel(r * weight.double(), x) + (per_channel(bias, x) if bias is not None else 0)
    return y.to(input.dtype), mean.to(weight.dtype), r.to(weight.dtype)


@reference("cudnn_batch_norm_backward", "miopen_batch_norm_backward")
def cudnn_batch_norm_backward(input, grad_output, weight, save_mean, save_var, **rest):
    x, dy, dims = input.double(), grad_output.double(), [d for d in range(input.dim()) if d != 1]
    n, r = x.numel() / x.shape[1], per_channel(save_var, x)
    hat = (x - per_channel(save_mean, x)) * r
    db, dw = dy.sum(dims), (dy * hat).sum(dims)
    dx = (dy - per_channel(db, x) / n - hat * per_channel(dw, x) / n) * r * per_channel(weight, x)
    return dx.to(input.dtype), dw.to(weight.dtype), db.to(weight.dtype)


def statistics_dtype(x):
    return torch.float64 if x.dtype == torch.float64 else torch.float32


@reference("batch_norm_stats")
def batch_norm_stats(input, eps):
    var, mean = torch.var_mean(input.double(), [d for d in range(input.dim()) if d != 1], correction=0)
    return mean.to(statistics_dtype(input)), (var + eps).rsqrt().to(statistics_dtype(input))


@reference("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")
def gather_stats(input, mean, invstd, eps, count=None, counts=None, **rest):
    n = (torch.full(mean.shape[:1], count) if counts is None else counts).double()[:, None]
    whole = (mean.double() * n).sum(0) / n.sum()
    var = ((invstd.double() ** -2 - eps + (mean.double() - whole) ** 2) * n).sum(0) / n.sum()
    return whole.to(mean.dtype), (var + eps).rsqrt().to(mean.dtype)


@reference("batch_norm_elemt")
def batch_norm_elemt(input, weight, bias, mean, invstd, **rest):
    x = input.double()
    y = (x - per_channel(mean, x)) * per_channel(invstd, x)
    return ((y if weight is None else y * per_channel(weight, x)) + (0 if bias is None else per_channel(bias, x))).to(input.dtype)


@reference("batch_norm_backward_reduce")
def batch_norm_backward_reduce(grad_out, input, mean, invstd, weight, weight_g, bias_g, **rest):
    x, dy, dims = input.double(), grad_out.double(), [d for d in range(input.dim()) if d != 1]
    total, dot = dy.sum(dims), (dy * (x - per_channel(mean, x))).sum(dims)
    dgamma, dbeta = ((dot * invstd.double()).to(weight.dtype), total.to(weight.dtype)) if weight is not None else (None, None)
    return total.to(mean.dtype), dot.to(mean.dtype), dgamma if weight_g else None, dbeta if bias_g else None


@reference("batch_norm_backward_elemt")
def batch_norm_backward_elemt(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    x, dy, n, r = input.double(), grad_out.double(), int(count.sum()), invstd.double()
    centred = dy - per_channel(sum_dy, x) / n - (x - per_channel(mean, x)) * per_channel(r**2 * sum_dy_xmu.double(), x) / n
    return (centred * per_channel(r if weight is None else r * weight.double(), x)).to(input.dtype)


@reference("_masked_scale")
def masked_scale(self, mask, scale):
    return (self.double() * mask * scale).to(self.dtype)


@reference("_fused_dropout")
def fused_dropout(self, p, generator=None):
    mask = torch.rand(self.shape) < p
    return (self.double() * mask / p).to(self.dtype), mask.to(torch.uint8)


# ---- products of devices ---------------------------------------------------------------------------------------------


@reference("mm.dtype", "bmm.dtype")
def typed_product(self, mat2, out_dtype):
    return (self.double() @ mat2.double()).to(out_dtype)


@reference("addmm.dtype", "baddbmm.dtype")
def typed_sum(self, out_dtype, beta, alpha, mat1=None, mat2=None, batch1=None, batch2=None):
    a, b = (mat1, mat2) if batch1 is None else (batch1, batch2)
    return ((beta * self.double() if beta else 0) + alpha * (a.double() @ b.double())).to(out_dtype)


def untiled(scales, rows, columns):
    """What SWIZZLE_32_4_4 laid out: tiles of 128 rows by 4 scales, 32 groups of 4 rows in each."""
    tiles = scales.view(-(-rows // 128), -(-columns // 4), 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-(-rows // 128) * 128, -1)[:rows, :columns]


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def numbers_of(t):
    """(rows, k) in f64, of floats or of bytes with two e2m1 each."""
    if t.dtype != torch.uint8:
        return t.double()
    codes = torch.stack([t & 15, t >> 4], -1).flatten(1).long()
    return E2M1[codes % 8] * (1 - 2 * (codes // 8))


def operand_of(t, scales, recipe, swizzle):
    """(rows, k) of an operand as it is meant."""
    x, first = numbers_of(t), scales[0].double()
    rows, k = x.shape
    if recipe[0] < 2:
        return x * first.reshape(-1, 1)
    if recipe[0] > 3:
        first = first.t().repeat_interleave(128, 0)[:rows] if recipe[0] == 5 else first
        return x * first.repeat_interleave(128, 1)[:, :k]
    width = 16 * (recipe[0] - 1)
    columns = -(-k // width)
    first = untiled(first, rows, columns) if swizzle[0] else first.view(rows, columns)
    return x * first.repeat_interleave(width, 1)[:, :k] * (scales[1].double() if len(scales) > 1 else 1)


@reference("_scaled_mm_v2")
def scaled_as_said(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype, **rest):
    a, b = operand_of(self, scale_a, recipe_a, swizzle_a), operand_of(mat2.t(), scale_b, recipe_b, swizzle_b)
    return (a @ b.t() + (0 if bias is None else bias.double())).to(out_dtype)


@reference("_scaled_grouped_mm")
def scaled_grouped(self, mat2, scale_a, scale_b, offs, out_dtype, **rest):
    a, b, sa, sb = self.double(), mat2.double(), scale_a.double(), scale_b.double()
    ends = None if offs is None else offs.tolist()
    if ends is None:
        y = (a * sa[:, :, None]) @ (b * sb[:, None, :])
    elif a.dim() == 2 and b.dim() == 2:
        y = grouped_mm(a, b, offs) * sa.view(len(ends), -1, 1) * sb.view(len(ends), 1, -1)
    elif a.dim() == 2:
        y = grouped_mm(a * sa[:, None], b * sb[:, None, :], offs)
    else:
        y = grouped_mm(a * sa[:, :, None], b * sb[None, :], offs)
    return y.to(out_dtype)


@reference("_scaled_grouped_mm_v2")
def scaled_grouped_as_said(scale_a, scale_b, **rest):
    return scaled_grouped(scale_a=scale_a[0], scale_b=scale_b[0], **rest)


# ---- samples ---------------------------------------------------------------------------------------------------------


@reference("cudnn_grid_sampler")
def sampled(self, grid):
    return torch.ops.aten.grid_sampler_2d(self.double(), grid.double(), 0, 0, True).to(self.dtype)


@reference("cudnn_grid_sampler_backward")
def sampled_backward(self, grid, grad_output):
    wide = (t.double() for t in (grad_output, self, grid))
    return [g.to(self.dtype) for g in torch.ops.aten.grid_sampler_2d_backward(*wide, 0, 0, True, [True, True])]


# ---- convolutions of devices -----------------------------------------------------------------------------------------


def convolve(x, weight, bias, stride, padding, dilation, groups, transposed=False, output_padding=None):
    y = torch.ops.aten.convolution(
        x.double(),
        weight.double(),
        None if bias is None else bias.double(),
        stride,
        padding,
        dilation,
        transposed,
        output_padding or [0] * len(stride),
        groups,
    )
    return y


@reference("cudnn_convolution", "miopen_convolution", "miopen_depthwise_convolution")
def device_convolution(self, weight, padding, stride, dilation, groups, bias=None, **rest):
    return convolve(self, weight, bias, stride, padding, dilation, groups).to(self.dtype)


@reference("cudnn_convolution_transpose", "miopen_convolution_transpose")
def device_transposed(self, weight, padding, output_padding, stride, dilation, groups, bias=None, **rest):
    return convolve(self, weight, bias, stride, padding, dilation, groups, True, output_padding).to(self.dtype)


@reference("cudnn_convolution_relu", "miopen_convolution_relu")
def device_relu(self, weight, bias, stride, padding, dilation, groups):
    return convolve(self, weight, bias, stride, padding, dilation, groups).relu().to(self.dtype)


@reference("cudnn_convolution_add_relu", "miopen_convolution_add_relu")
def device_add_relu(self, weight, z, alpha, bias, stride, padding, dilation, groups):
    added = z.double() * (1 if alpha is None else alpha)
    return (convolve(self, weight, bias, stride, padding, dilation, groups) + added).relu().to(self.dtype)


@reference("_conv_depthwise2d", "conv_depthwise3d")
def depthwise(self, weight, kernel_size, bias, stride, padding, dilation):
    return convolve(self, weight, bias, stride, padding, dilation, self.shape[1]).to(self.dtype)


# ---- recurrent cells -------------------------------------------------------------------------------------------------


def preactivations(input_gates, hidden_gates, input_bias, hidden_bias, kinds):
    x, h = input_gates.double(), hidden_gates.double()
    x, h = (x, h) if input_bias is None else (x + input_bias.double(), h + hidden_bias.double())
    return x.chunk(kinds, 1), h.chunk(kinds, 1)


@reference("_thnn_fused_lstm_cell")
def lstm_cell(input_gates, hidden_gates, cx, input_bias, hidden_bias):
    i, f, g, o = (x + h for x, h in zip(*preactivations(input_gates, hidden_gates, input_bias, hidden_bias, 4)))
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx.double() + i * g
    return [t.to(cx.dtype) for t in (o * cy.tanh(), cy, torch.cat([i, f, g, o], 1))]


def by_unit(gates, wanted):
    return gates.sum(0) if wanted else None


def sigmoid_near(y, d):
    """What is y, and goes on as a sigmoid when its argument goes on by d, to first order."""
    return y + y * (1 - y) * d


def tanh_near(y, d):
    return y + (1 - y * y) * d


def lstm_cell_gradients(grad_hy, grad_cy, cx, cy, workspace):
    """By autograd, from the activations that the workspace holds."""
    kept = workspace.double().chunk(4, 1)
    z = torch.zeros_like(workspace, dtype=torch.float64).requires_grad_()
    c = cx.double().requires_grad_()
    i, f, g, o = ((tanh_near if k == 2 else sigmoid_near)(y, d) for k, (y, d) in enumerate(zip(kept, z.chunk(4, 1))))
    after = f * c + i * g
    after = after + (cy.double() - after).detach()
    outputs, grads = zip(*((y, d.double()) for y, d in ((o * after.tanh(), grad_hy), (after, grad_cy)) if d is not None))
    return torch.autograd.grad(outputs, (z, c), grads)


@reference("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward_impl(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    dz, dc = lstm_cell_gradients(grad_hy, grad_cy, cx, cy, workspace)
    return dz.to(cx.dtype), dc.to(cx.dtype), by_unit(dz, has_bias).to(cx.dtype) if has_bias else None


@reference("_thnn_fused_lstm_cell_backward")
def lstm_cell_backward(has_bias, cx, **given):
    dz, dc, db = lstm_cell_backward_impl(has_bias=has_bias, cx=cx, **given)
    return dz, dz, dc, db, db


@reference("_thnn_fused_gru_cell")
def gru_cell(input_gates, hidden_gates, hx, input_bias, hidden_bias):
    x, v = preactivations(input_gates, hidden_gates, input_bias, hidden_bias, 3)
    r, z, h = (x[0] + v[0]).sigmoid(), (x[1] + v[1]).sigmoid(), hx.double()
    n = (x[2] + r * v[2]).tanh()
    return [t.to(hx.dtype) for t in (n + z * (h - n), torch.cat([r, z, n, h, v[2]], 1))]


@reference("_thnn_fused_gru_cell_backward")
def gru_cell_backward(grad_hy, workspace, has_bias):
    R, Z, N, h, V = workspace.double().chunk(5, 1)
    x, v = ([torch.zeros_like(R).requires_grad_() for _ in range(3)] for _ in range(2))
    h = h.clone().requires_grad_()
    r, z = sigmoid_near(R, x[0] + v[0]), sigmoid_near(Z, x[1] + v[1])
    n = tanh_near(N, x[2] + r * (V + v[2]) - R * V)
    grads = torch.autograd.grad(n + z * (h - n), (*x, *v, h), grad_hy.double())
    dx, dv, dh = torch.cat(grads[:3], 1), torch.cat(grads[3:6], 1), grads[6]
    results = (dx, dv, dh, by_unit(dx, has_bias), by_unit(dv, has_bias))
    return [None if t is None else t.to(grad_hy.dtype) for t in results]


RECURRENT = [torch.ops.aten.rnn_relu, torch.ops.aten.rnn_tanh, torch.ops.aten.lstm, torch.ops.aten.gru]


def torch_layers(x, weights, hx, cx, mode, num_layers, batch_first, bidirectional, batch_sizes, biases):
    """What torch computes on the CPU."""
    op, states = RECURRENT[mode], [hx, cx] if mode == 2 else hx
    if batch_sizes:
        return op.data(x, torch.tensor(batch_sizes), states, weights, biases, num_layers, 0.0, True, bidirectional)
    return op.input(x, states, weights, biases, num_layers, 0.0, True, bidirectional, batch_first)


@reference("_cudnn_rnn")
def recurrent_layers(input, weight, weight_stride0, hx, cx, mode, **rest):
    how = {k: rest[k] for k in ("num_layers", "batch_first", "bidirectional", "batch_sizes")}
    results = torch_layers(
        input.double(), [w.double() for w in weight], *(t if t is None else t.double() for t in (hx, cx)), mode, biases=weight_stride0 == 4, **how
    )
    results = [t.to(input.dtype) for t in results]
    return [*results, *([torch.empty(0, dtype=input.dtype)] if mode != 2 else [])]


@reference("_cudnn_rnn_backward")
def recurrent_layers_backward(input, weight, weight_stride0, hx, cx, grad_output, grad_hy, grad_cy, mode, **rest):
    """By autograd."""
    how = {k: rest[k] for k in ("num_layers", "batch_first", "bidirectional", "batch_sizes")}
    leaves = [t.detach().double().requires_grad_() for t in (input, hx, *([cx] if mode == 2 else []), *weight)]
    states, weights = (leaves[1], leaves[2]) if mode == 2 else (leaves[1], None), leaves[3 if mode == 2 else 2 :]
    with torch.enable_grad():
        results = torch_layers(leaves[0], weights, *states, mode, biases=weight_stride0 == 4, **how)
    given = [t.double() for t in (grad_output, grad_hy, grad_cy) if t is not None]
    grads = [g.to(input.dtype) for g in torch.autograd.grad(results, leaves, given)]
    return grads if mode == 2 else [*grads[:2], None, *grads[2:]]


# ---- ops that torch runs here, but not in f64: what their shadows are compared with -----------------------------------

SHADOWS = {}


def shadow(*names):
    def register(function):
        for name in names:
            SHADOWS[f"aten::{name}"] = function
        return function

    return register


@shadow("linalg_matrix_exp")
def matrix_exp(self):
    """Taylor's series of a sixteenth of it, squared four times: torch's own has constants that are no f64."""
    a, one = self / 2**4, torch.eye(self.shape[-1], dtype=self.dtype)
    y = one
    for k in range(40, 0, -1):
        y = one + a @ y / k
    for _ in range(4):
        y = y @ y
    return y


@shadow("_grouped_mm")
def grouped_mm(self, mat2, offs, **rest):
    if offs is None:
        return self @ mat2
    starts, ends = [0, *offs.tolist()[:-1]], offs.tolist()
    pieces = list(zip(starts, ends))
    if self.dim() == 2 and mat2.dim() == 3:
        y = torch.zeros(self.shape[0], mat2.shape[2], dtype=self.dtype)
        for g, (a, b) in enumerate(pieces):
            y[a:b] = self[a:b] @ mat2[g]
        return y
    if self.dim() == 2:
        return torch.stack([self[:, a:b] @ mat2[a:b] for a, b in pieces])
    return torch.cat([self[g] @ mat2[:, a:b] for g, (a, b) in enumerate(pieces)], 1)


@shadow("_scaled_mm")
def scaled_mm(self, mat2, scale_a, scale_b, bias, **rest):
    return (self * scale_a) @ (mat2 * scale_b) + (0 if bias is None else bias)


@shadow("_weight_int8pack_mm")
def int8_weights(self, mat2, scales):
    return self @ mat2.double().t() * scales


@shadow("mkldnn_convolution")
def mkldnn_convolution(self, weight, bias, padding, stride, dilation, groups):
    return convolve(self, weight, bias, stride, padding, dilation, groups)


def lstm(x, weights, h, c, reverse):
    w, v, b, d = weights
    outputs = []
    for t in reversed(range(x.shape[0])) if reverse else range(x.shape[0]):
        i, f, g, o = (x[t] @ w.t() + h @ v.t() + b + d).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs[::-1] if reverse else outputs), h, c


@shadow("mkldnn_rnn_layer")
def lstm_layer(input, weight0, weight1, weight2, weight3, hx_, cx_, reverse, **rest):
    return [*lstm(input, (weight0, weight1, weight2, weight3), hx_, cx_, reverse), None]


@shadow("mkldnn_rnn_layer_backward")
def lstm_layer_backward(input, weight1, weight2, weight3, weight4, hx_, cx_tmp, grad_output, grad_hy, grad_cy, reverse, **rest):
    leaves = [t.detach().clone().requires_grad_() for t in (input, weight1, weight2, weight3, weight4, hx_, cx_tmp)]
    y, h, c = lstm(leaves[0], leaves[1:5], leaves[5], leaves[6], reverse)
    return torch.autograd.grad((y, h, c), leaves, (grad_output, grad_hy, grad_cy))


@shadow("_amp_foreach_non_finite_check_and_unscale_")
def unscale(self, found_inf, inv_scale):
    found = any(not bool(torch.isfinite(t).all()) for t in self)
    return [*(t * inv_scale for t in self), torch.ones_like(found_inf) if found else found_inf]


@shadow("_amp_update_scale_")
def update_scale(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval):
    steps = growth_tracker + 1
    if found_inf:
        return self * scale_backoff_factor, growth_tracker * 0
    grown = (self * scale_growth_factor).float()
    return (self if steps != growth_interval or torch.isinf(grown) else grown.double()), steps * (steps != growth_interval)
