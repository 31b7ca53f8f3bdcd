"""Which order, kernel or precision turns one recording into another: pairs of real runs, from their recorded bits alone."""

import functools
import json
import os
import re

import pytest

PROJECTIONS = [f"self_attn.{n}_proj" for n in "qkvo"] + [f"mlp.{n}_proj" for n in ("gate", "up", "down")]
SUM = """
import sys, torch
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Linear(1, 1)
    def forward(self, x):
        return self.scale(sum(row.sum() for row in x).reshape(1, 1) * 1e-3)
model = Model()
with torch.no_grad():
    for step in range(3):
        model(torch.randn(4, 400000))
"""

SPLIT = """
import sys, torch
slices = int(sys.argv[1])
torch.manual_seed(0)
class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 256) / 16)
    def forward(self, x):
        w, k = self.weight.t(), 256 // slices
        y = x[:, :k] @ w[:k]
        for i in range(1, slices):
            y = y + x[:, i * k:(i + 1) * k] @ w[i * k:(i + 1) * k]
        return y
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = Product(), torch.nn.LayerNorm(64)
    def forward(self, x):
        return self.norm(self.up(x))
model = Model()
with torch.no_grad():
    model(torch.randn(32, 256))
"""

NARROW = """
import sys, torch
torch.backends.mkldnn.enabled = False
torch.manual_seed(0)
class Product(torch.nn.Module):
    def __init__(self, k, n):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(n, k).bfloat16() / k ** 0.5)
        self.transposed = torch.nn.Parameter(self.weight.detach().t().contiguous())
    def forward(self, x):
        return x @ (self.transposed if sys.argv[1] == "rows" else self.weight.t())
sizes = [512, 768, 256, 640, 384, 512]
model = torch.nn.Sequential(*[Product(k, n) for k, n in zip(sizes, sizes[1:])])
with torch.no_grad():
    model(torch.randn(64, 512).bfloat16())
"""

NORM = """
import sys, torch
torch.manual_seed(0)
H = 512
def butterfly(v, threads, vector):
    # Threads take `vector` consecutive terms in turn; xor exchange in warps of 32, then over the warps.
    n = v.shape[-1]
    rounds = n // (threads * vector)
    t = v.reshape(-1, rounds, threads, vector)
    acc = t[:, 0, :, 0]
    for r in range(rounds):
        for i in range(vector):
            if r or i: acc = acc + t[:, r, :, i]
    def warp(x):
        for offset in (16, 8, 4, 2, 1):
            x = x + x[..., torch.arange(32) ^ offset]
        return x[..., 0]
    sums = warp(acc.reshape(-1, threads // 32, 32))
    if threads == 32: return sums
    return warp(torch.nn.functional.pad(sums, (0, 32 - threads // 32)))[..., None]
class RMSNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + torch.randn(H) / 8)
    def forward(self, x):
        if sys.argv[1] == "eager":
            mean = x.pow(2).mean(-1, keepdim=True)
        else:
            mean = butterfly(x.pow(2), int(sys.argv[1]), int(sys.argv[2])) / H
        return x * torch.rsqrt(mean + 1e-6) * self.weight
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(64, H, bias=False), RMSNorm(), torch.nn.Linear(H, 32, bias=False)
    def forward(self, x): return self.down(self.norm(self.up(x)))
m = Model()
with torch.no_grad(): m(torch.randn(64, 64))
"""

MOE = """
import sys, torch
torch.manual_seed(0)
T, H, F, E, K = 32, 64, 48, 8, 4
class Expert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(H, F, bias=False), torch.nn.Linear(F, H, bias=False)
    def forward(self, x): return self.down(torch.relu(self.up(x)))
class Moe(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = torch.nn.Linear(H, E, bias=False), torch.nn.ModuleList(Expert() for _ in range(E))
    def forward(self, x):
        weights, ids = torch.topk(torch.softmax(self.gate(x).float(), -1), K)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        how = sys.argv[1]
        orders = {"running": range(K), "reversed": range(K)[::-1], "shuffled": (2, 0, 3, 1), "mixed": (1, 3, 0, 2)}
        if how in orders or how in ("batched", "once", "inplace"):
            rows = torch.zeros(T, K, H, dtype=x.dtype)
            for e in range(E):
                token, slot = torch.where(ids == e)
                rows[token, slot] = self.experts[e](x[token])
            if how == "batched": return (rows * weights[..., None]).sum(1)
            if how == "once": return (rows.float() * weights.float()[..., None]).sum(1).to(x.dtype)
            if how == "inplace":
                out = torch.zeros(T, H)
                for k in range(K): out += rows[:, k].float() * weights[:, k, None].float()
                return out.to(x.dtype)
            out = torch.zeros_like(x)
            for k in orders[how]: out = out + rows[:, k] * weights[:, k, None]
            return out
        out = torch.zeros(T, H, dtype=torch.float32 if sys.argv[1] == "f32" else x.dtype)
        buf = torch.zeros(T, K, H)
        for e in range(E):
            token, slot = torch.where(ids == e)
            y = self.experts[e](x[token])
            if sys.argv[1] == "slots":
                buf[token, slot] = y.float() * weights[token, slot, None].float()
            elif sys.argv[1] == "f32":
                out.index_add_(0, token, y.float() * weights[token, slot, None].float())
            else:
                out.index_add_(0, token, y * weights[token, slot, None])
        if sys.argv[1] == "slots": out = buf.sum(1)
        return out.to(x.dtype)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.moe, self.head = torch.nn.Linear(H, H, bias=False), Moe(), torch.nn.Linear(H, 16, bias=False)
    def forward(self, x): return self.head(self.moe(self.embed(x)))
m = Model().to(torch.bfloat16)
with torch.no_grad(): m(torch.randn(T, H).to(torch.bfloat16))
"""

SUMS = """
import sys, torch
torch.manual_seed(0)
N = 256
class Total(torch.nn.Module):
    def forward(self, x):
        if sys.argv[1] == "op": return x.sum(-1)
        if sys.argv[1] == "loop":
            y = x[:, 0]
            for i in range(1, N): y = y + x[:, i]
            return y
        if sys.argv[1] == "inplace":
            y = torch.zeros(x.shape[0])
            for i in range(N): y += x[:, i]
            return y
        if sys.argv[1] == "chunks":  # partial sums of 64, then those one after the other
            y = None
            for k in range(0, N, 64):
                part = x[:, k]
                for i in range(k + 1, k + 64): part = part + x[:, i]
                y = part if y is None else y + part
            return y
        if sys.argv[1] == "tree":
            parts = [x[:, i] for i in range(N)]
            while len(parts) > 1: parts = [a + b for a, b in zip(parts[::2], parts[1::2])]
            return parts[0]
class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + torch.randn(N) / 8)
    def forward(self, x):
        square = x.pow(2)
        if sys.argv[1] == "op": mean = square.mean(-1, keepdim=True)
        else:
            y = None
            for k in range(0, N, 32):
                part = square[:, k:k + 1]
                for i in range(k + 1, k + 32): part = part + square[:, i:i + 1]
                y = part if y is None else y + part
            mean = y / N
        return x * torch.rsqrt(mean + 1e-6) * self.weight
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.total, self.down = torch.nn.Linear(32, N), Norm(), Total(), torch.nn.Linear(64, 8)
    def forward(self, x): return self.down(self.total(self.norm(self.up(x)))[None])
m = Model()
with torch.no_grad(): m(torch.randn(64, 32))
"""

LLAMA = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
attn, dtype = sys.argv[1], getattr(torch, sys.argv[2])
torch.manual_seed(0)
config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, attn_implementation=attn)
model = LlamaForCausalLM(config).to(torch.bfloat16).to(dtype).eval()
ids = torch.randint(0, 256, (1, 32))
with torch.no_grad():
    model(ids, use_cache=False)
"""

SINKS = """
import sys, torch
from transformers import AttentionInterface, GptOssConfig, GptOssForCausalLM
@torch.library.custom_op("serving::sink_attention", mutates_args=())
def sink_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, sinks: torch.Tensor, scale: float) -> torch.Tensor:
    # One pass over all keys in f32: products are chains of fma, the sink joins the sum at the end, p is rounded before it meets v.
    def chain(a, b):
        acc = torch.zeros(*a.shape[:-1], b.shape[-1])
        for i in range(a.shape[-1]):
            acc = (acc.double() + a[..., i:i + 1].double() * b[..., i:i + 1, :].double()).float()
        return acc
    s = chain(q.float(), k.float().transpose(2, 3)) * scale + mask.float()
    top = s.amax(-1, keepdim=True)
    exp = lambda x: x.double().exp().float()
    p = exp(s - top)
    total = p.sum(-1, keepdim=True) + exp(sinks.float().reshape(1, -1, 1, 1) - top)
    return (chain(p.to(q.dtype).float(), v.float()) * (1 / total)).to(q.dtype)
def fused(module, query, key, value, mask, scaling, dropout=0.0, s_aux=None, **rest):
    n = module.num_key_value_groups
    k, v = (t[:, :, None].expand(-1, -1, n, -1, -1).reshape(t.shape[0], -1, *t.shape[2:]) for t in (key, value))
    return sink_attention(query, k, v, mask, module.sinks, scaling).transpose(1, 2).contiguous(), None
AttentionInterface.register("fused", fused)
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
ALL_MASK_ATTENTION_FUNCTIONS.register("fused", eager_mask)
torch.manual_seed(0)
config = GptOssConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64, attn_implementation=sys.argv[1])
model = GptOssForCausalLM(config).to(torch.bfloat16).eval()
for layer in model.model.layers: torch.nn.init.normal_(layer.self_attn.sinks)
with torch.no_grad(): model(torch.randint(0, 64, (2, 24)), use_cache=False)
"""

DECODE = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, attn_implementation=sys.argv[2])
model = LlamaForCausalLM(config).eval()
ids = torch.randint(0, 256, (1, 12))
with torch.no_grad():
    if sys.argv[1] == "full":
        model(ids, use_cache=False)
    else:
        out = model(ids[:, :8], use_cache=True)
        for i in range(8, 12):
            out = model(ids[:, i:i + 1], past_key_values=out.past_key_values, use_cache=True)
"""

SCALED = """
import sys, torch
torch.manual_seed(0)
class Scaled(torch.nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(m, n) / n ** 0.5)
        self.register_buffer("amax_history", torch.zeros(4))
    def quantise(self, x, amax):
        scale = 448 / amax
        return (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) / scale
    def forward(self, x):
        amax = x.abs().amax()
        if sys.argv[1] == "static":
            amax = self.amax_history.max()
        if sys.argv[1] == "delayed":
            history = self.amax_history.max()
            self.amax_history.copy_(self.amax_history.roll(1))
            self.amax_history[0] = amax
            amax = history
        return self.quantise(x, amax) @ self.quantise(self.weight, self.weight.abs().amax()).t()
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.up, self.down = torch.nn.Linear(32, 64), Scaled(64, 128), torch.nn.Linear(128, 16)
    def forward(self, x): return self.down(torch.relu(self.up(self.embed(x))))
m = Model()
m.up.amax_history.fill_(3.0)
with torch.no_grad():
    for step in range(3): m(torch.randn(24, 32))
"""

OPAQUE = """
import sys, torch
torch.manual_seed(0)
H, THREADS, VECTOR = 1024, 256, 4
@torch.library.custom_op("serving::norm", mutates_args=())
def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    # Each thread chains fma over its vector, warps exchange by xor, then one warp over the warps.
    v = x.float().double().reshape(-1, THREADS, VECTOR)
    acc = torch.zeros(v.shape[:2], dtype=torch.float32)
    for i in range(VECTOR):
        acc = (acc.double() + v[:, :, i] * v[:, :, i]).float()
    def warp(s):
        for offset in (16, 8, 4, 2, 1):
            s = s + s[..., torch.arange(32) ^ offset]
        return s[..., 0]
    total = warp(torch.nn.functional.pad(warp(acc.reshape(-1, THREADS // 32, 32)), (0, 32 - THREADS // 32)))
    scale = (1 / (total / H + 1e-6).double().sqrt()).float()
    return (x.float() * scale.reshape(-1, 1) * weight.float()).to(x.dtype)
class RMSNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + torch.randn(H) / 8)
    def forward(self, x):
        if sys.argv[1] == "fused": return norm(x, self.weight)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(64, H, bias=False), RMSNorm(), torch.nn.Linear(H, 32, bias=False)
    def forward(self, x): return self.down(self.norm(self.up(x)))
dtype = getattr(torch, sys.argv[2])
m = Model().to(dtype)
with torch.no_grad(): m(torch.randn(64, 64).to(dtype))
"""


CLIP = """
import sys, torch
how, threads, p = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.mid, self.down = torch.nn.Linear(256, 400), torch.nn.Linear(400, 400), torch.nn.Linear(400, 256)
    def forward(self, x): return self.down(torch.relu(self.mid(torch.relu(self.up(x)))))
model = Model()
params = list(model.parameters())
opt = torch.optim.SGD(params, lr=0.1)
for step in range(2):
    model(torch.randn(64, 256)).pow(2).mean().backward()
    torch.set_num_threads(threads)
    if how in ("foreach", "loop"):
        torch.nn.utils.clip_grad_norm_(params, 0.01, norm_type=p, foreach=how == "foreach")
    else:
        grads = [q.grad for q in params]
        if how == "squares": total = torch.sqrt(sum(g.pow(2).sum() for g in grads))
        if how == "dropped": total = torch.stack(torch._foreach_norm(grads[:-1])).norm(2)
        for g in grads: g.mul_(torch.clamp(0.01 / (total + 1e-6), max=1.0))
    torch.set_num_threads(1)
    opt.step(); opt.zero_grad()
"""

LAYER_NORM = """
import sys, torch
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.LayerNorm(256), torch.nn.Linear(256, 8))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.randn(150, 256)).pow(2).mean().backward()
    opt.step(); opt.zero_grad()
"""


DELTA = """
import sys, torch
import transformers.models.qwen3_next.modeling_qwen3_next as qwen
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
torch.set_num_threads(1)
steps = qwen.torch_recurrent_gated_delta_rule
def narrow(query, key, value, g, beta, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, **rest):
    # The recurrence token by token, its state as it is, in bf16, or too large.
    out, state = [], initial_state
    for i in range(query.shape[1]):
        y, state = steps(*(x[:, i:i + 1] for x in (query, key, value)), g=g[:, i:i + 1], beta=beta[:, i:i + 1], initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel)
        if sys.argv[1] == "bf16": state = state.to(torch.bfloat16)
        if sys.argv[1] == "wrong": state = state * (1 + 2 ** -12)
        out.append(y)
    return torch.cat(out, 1), state
if sys.argv[1] == "steps": qwen.torch_chunk_gated_delta_rule = lambda *a, **k: steps(*a, **k)
if sys.argv[1] in ("bf16", "single", "wrong"): qwen.torch_chunk_gated_delta_rule = narrow
torch.manual_seed(0)
config = Qwen3NextConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16, layer_types=["linear_attention"] * 2, mlp_only_layers=[0, 1])
model = Qwen3NextForCausalLM(config).eval()
with torch.no_grad(): model(torch.randint(0, 64, (1, 12)), use_cache=False)
"""


def record(lastbit, folder, name, text, *args, level="ops"):
    """Records a program given as text; what it needs besides torch is in its arguments."""
    script = folder / f"{name}.py"
    script.write_text(text)
    lastbit.record(folder / f"{name}.lb", script, *args, options=("--level", level), expect=0)
    return folder / f"{name}.lb"


def recorded_once(lastbit, folder, text):
    """A capture per way of running `text`: words that the program is given."""
    return functools.cache(lambda how: record(lastbit, folder, how.replace(" ", "-"), text, *how.split()))


def record_pair(lastbit, folder, text, one, other):
    return record(lastbit, folder, "one", text, *one), record(lastbit, folder, "other", text, *other)


def own(answer):
    """What differs for a reason of its own."""
    return [f for f in answer["findings"] if f["cause"] != "input"]


def test_a_sum_by_four_threads(lastbit, tmp_path):
    one, other = record_pair(lastbit, tmp_path, SUM, ["1"], ["4"])
    answer = lastbit.json("explain", one, other, expect=1)
    found = own(answer)
    assert len(found) >= 6 and {f["step"] for f in found} == {0, 1, 2}
    for f in found:
        assert (f["op"], f["cause"], f["schedule"], f["first"]) == ("aten::sum", "order", "torch:4", "torch:1")
        assert f["matched"] == f["elements"] == 1 and f["proof"] == "bits"
    # One element is a weak witness: what one sum cannot rule out, all of them together do.
    also = [set(filter(None, f["also"].split("; "))) for f in found]
    assert not set.intersection(*also)
    text = lastbit.run("explain", one, other, expect=1).stdout
    assert "torch:1 became torch:4" in text and "told apart" not in text
    alone = own(lastbit.json("explain", other, expect=1))
    assert {f["schedule"] for f in alone if f["op"] == "aten::sum"} == {"torch:4"}
    assert lastbit.json("explain", one, one, expect=0)["findings"] == []


@pytest.fixture(scope="module")
def clips(lastbit, tmp_path_factory):
    return recorded_once(lastbit, tmp_path_factory.mktemp("clips"), CLIP)


@pytest.mark.parametrize(
    "one, other, first, schedule, elements",
    [
        ("foreach 1 1", "foreach 4 1", "torch:1", "torch:4", 12),
        ("foreach 4 1", "foreach 1 1", "torch:4", "torch:1", 12),
        ("foreach 1 1", "loop 3 1", "torch:1", "torch:3", 6),
        ("loop 3 1", "foreach 4 1", "torch:3", "torch:4", 6),
    ],
)
def test_norms_of_all_gradients_by_other_numbers_of_threads(lastbit, clips, one, other, first, schedule, elements):
    """clip_grad_norm_: one op over all gradients, or one per gradient; of those larger than a piece each thread adds a part."""
    found = own(lastbit.json("explain", "--phase", "optimizer", clips(one), clips(other), expect=1))
    assert {f["step"] for f in found} == {0, 1} and sum(f["elements"] for f in found) == elements
    for f in found:
        assert (f["cause"], f["first"], f["schedule"], f["proof"]) == ("order", first, schedule, "bits")
        assert f["matched"] == f["elements"] and f["excluded"] >= 12
        assert {f["op"], f["other_op"]} <= {"aten::_foreach_norm.Scalar", "aten::linalg_vector_norm"}
    # One norm may have another order by chance, all of them have one; a single thread adds one term after the other.
    also = [set(filter(None, f["also"].split("; "))) for f in found]
    assert set.intersection(*also) == ({"sequential"} if schedule == "torch:1" else set())


def test_a_norm_that_is_written_out(lastbit, clips):
    """The norm of norms against the root of all squares: torch's sum has another order than its norm. A norm that lacks a gradient is none
    of them, and nothing explains it."""
    foreach, squares, dropped = (clips(f"{how} 1 2") for how in ("foreach", "squares", "dropped"))
    assert not lastbit.json("explain", foreach, clips("loop 4 2"), expect=0)["findings"]
    for sides, turned in (((foreach, squares), False), ((squares, foreach), True)):
        found = own(lastbit.json("explain", "--phase", "optimizer", *sides, expect=1))
        assert [f["step"] for f in found] == [0, 1]
        for f in found:
            assert (f["cause"], f["schedule"], f["proof"], f["reversed"]) == ("order", "cascade:8", "bits", turned)
            assert f["matched"] == f["elements"] == 1 and "aten::_foreach_norm.Scalar" in f["other_op" if turned else "op"]
    found = own(lastbit.json("explain", "--phase", "optimizer", foreach, dropped, expect=1))
    assert {(f["cause"], f["matched"]) for f in found} == {("unexplained", 0)} and all(f["excluded"] == f["tried"] >= 30 for f in found)


@pytest.mark.full
def test_the_backward_of_a_layer_norm_by_four_threads(lastbit, tmp_path):
    """Each thread adds up the gradients of its rows."""
    one, other = record_pair(lastbit, tmp_path, LAYER_NORM, ["1"], ["4"])
    for sides, names in (((one, other), ("torch:1", "torch:4")), ((other, one), ("torch:4", "torch:1"))):
        found = own(lastbit.json("explain", *sides, expect=1))
        assert [f["step"] for f in found] == [0, 1]
        for f in found:
            assert (f["op"], f["cause"], f["proof"]) == ("aten::native_layer_norm_backward", "order", "bits")
            assert (f["first"], f["schedule"]) == names and f["matched"] == f["elements"] == 2 * 256
            assert f["schedule"] == "torch:1" or (not f["also"] and f["excluded"] >= 100)


def test_one_order_explains_all_products_of_bf16(lastbit, tmp_path):
    """Products of a few rows fit many orders once they are rounded to bf16; together they fit one on each side."""
    one, other = record_pair(lastbit, tmp_path, NARROW, ["rows"], ["columns"])
    found = own(lastbit.json("explain", one, other, "--seconds", 60, expect=1))
    assert len(found) >= 3 and {f["op"] for f in found} == {"aten::mm"}
    assert {(f["cause"], f["first"], f["schedule"]) for f in found} == {("order", "lanes:4", "torchdot")}
    assert all(f["matched"] == f["elements"] for f in found)
    assert any(f["also"] for f in found)  # by itself it could have been another


@pytest.mark.parametrize("turned", [False, True])
def test_split_k_by_hand(lastbit, tmp_path, turned):
    one, other = record_pair(lastbit, tmp_path, SPLIT, ["1"], ["4"])
    answer = lastbit.json("explain", *((other, one) if turned else (one, other)), expect=1)
    (f,) = own(answer)
    assert (f["layer"], f["cause"], f["schedule"], f["reversed"]) == ("up", "order", "splitk:4", turned)
    assert f["matched"] == f["elements"] == 32 * 64 and f["proof"] == "bits" and not f["also"]
    assert f["excluded"] == f["tried"] - 1 >= 50
    (norm,) = [f for f in answer["findings"] if f["layer"] == "norm"]
    assert norm["cause"] == "input" and norm["matched"] == norm["elements"]
    assert own(lastbit.json("explain", one, other, "--layer", "norm")) == []
    for nothing in ("--phase backward", "--layer nosuch", "--select op=nosuch"):
        refused = lastbit.run("explain", one, other, *nothing.split(), expect=125)
        assert "selects no op" in refused.stderr and not refused.stdout
    assert "phases are" in lastbit.run("explain", one, other, "--phase", "sideways", expect=129).stderr


def test_programs_that_have_nothing_in_common_are_not_called_equal(lastbit, tmp_path):
    lastbit.record(tmp_path / "a.lb", "tests/programs/two_linears.py", options=("--level", "ops"), expect=0)
    lastbit.record(tmp_path / "b.lb", "tests/programs/mixture_pair.py", options=("--level", "ops"), expect=0)
    assert "lines up" in lastbit.run("explain", tmp_path / "a.lb", tmp_path / "b.lb", expect=125).stderr


@pytest.fixture(scope="module")
def norms(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("norms")
    sides = {"eager": ["eager"], "32": ["32", "4"], "128": ["128", "4"]}
    return {name: record(lastbit, folder, f"norm{name}", NORM, *args) for name, args in sides.items()}


@pytest.mark.parametrize(
    "one, other, first, schedule",
    [
        ("eager", "32", "torch:1", "butterfly:32x4"),
        ("eager", "128", "torch:1", "butterfly:128x4"),
        ("32", "128", "butterfly:32x4", "butterfly:128x4"),
        ("128", "32", "butterfly:128x4", "butterfly:32x4"),
    ],
)
def test_norms_of_two_block_sizes(lastbit, norms, one, other, first, schedule):
    answer = lastbit.json("explain", norms[one], norms[other], "--seconds", "20", expect=1)
    (f,) = own(answer)
    assert (f["layer"], f["cause"], f["schedule"], f["proof"]) == ("norm", "order", schedule, "bits")
    assert f["first"] in (first, "own")
    assert f["matched"] == f["elements"] == 64 and f["excluded"] >= 40
    inherited = {f["layer"] for f in answer["findings"] if f["cause"] == "input"}
    assert inherited == {"norm", "down"}


def test_moe_finalise_in_bf16_and_f32(lastbit, tmp_path):
    bf16, f32, slots = (record(lastbit, tmp_path, name, MOE, name) for name in ("bf16", "f32", "slots"))
    for sides, narrow in (((f32, bf16), "second"), ((bf16, f32), "first")):
        found = own(lastbit.json("explain", *sides, expect=1))
        assert {f["layer"] for f in found} == {"moe"} and {f["cause"] for f in found} == {"precision"}
        assert all(f["proof"] == "bits" and f["matched"] == f["elements"] for f in found)
        sums = [f for f in found if f["op"] == "aten::index_add_"]
        assert sums and all(f["schedule"] == "bf16" and f["first"] == "f32" and f["excluded"] >= 1 for f in sums)
        assert all(f["reversed"] == (narrow == "first") for f in sums)
    # Another order of the experts' parts, in the same precision, is another kernel; with the precision besides, that is the cause.
    (f,) = own(lastbit.json("explain", f32, slots, expect=1))
    assert (f["cause"], f["proof"]) == ("kernel", "bits") and "index_put_" in f["other_op"]
    found = own(lastbit.json("explain", bf16, slots, expect=1))
    (f,) = [f for f in found if "index_add_" in f["op"]]
    assert (f["cause"], f["first"], f["schedule"], f["matched"]) == ("precision", "bf16", "f32", f["elements"])


def test_moe_finalise_by_hand(lastbit, tmp_path):
    """Rows gathered by slot, then summed: the loop over experts is grown to the composite that it is, and its kernels are tried."""
    hf = record(lastbit, tmp_path, "hf", MOE, "bf16")
    for how, kernels in (("running", {"slots", "score-bf16"}), ("batched", {"batched", "batched,order:expert", "batched,order:last", "ranks:8"})):
        for turned in (False, True):
            sides = [hf, tmp_path / f"{how}.lb"]
            if not turned:
                record(lastbit, tmp_path, how, MOE, how)
            (f,) = own(lastbit.json("explain", *(reversed(sides) if turned else sides), expect=1))
            assert (f["layer"], f["cause"], f["proof"], f["reversed"]) == ("moe", "kernel", "bits", turned)
            # Weights are bf16 already, and four terms hide the order of an f32 sum: what cannot be told apart is said.
            named = {f["schedule"], *filter(None, f["also"].split("; "))}
            assert named <= {f"finalise:{k}" for k in kernels} and f["schedule"] in ("finalise:slots", "finalise:score-bf16", "finalise:batched")
            assert f["matched"] == f["elements"] == 32 * 64 and f["excluded"] >= 15


@pytest.fixture(scope="module")
def mixtures(lastbit, tmp_path_factory):
    return recorded_once(lastbit, tmp_path_factory.mktemp("mixtures"), MOE)


FINALISES = {
    "running": "slots",
    "reversed": "slots,order:last",
    "batched": "batched",
    "once": "batched-f32",
    "inplace": "batched-f32",
    "slots": "batched-f32",
    "bf16": "index_add",
}


@pytest.mark.parametrize(
    "one, other",
    [
        ("running", "batched"),
        ("batched", "running"),
        ("running", "once"),
        ("once", "running"),
        ("running", "reversed"),
        ("reversed", "running"),
        ("reversed", "batched"),
        ("inplace", "running"),
        ("slots", "running"),
        ("bf16", "running"),
    ],
)
def test_moe_finalise_by_hand_on_both_sides(lastbit, mixtures, one, other):
    """Neither side is what a library writes: each is named by the kernel that gives its bits from what both begin with."""
    (f,) = own(lastbit.json("explain", mixtures(one), mixtures(other), expect=1))
    assert (f["layer"], f["cause"], f["proof"], f["reversed"]) == ("moe", "kernel", "bits", False)
    assert (f["first"], f["schedule"]) == (f"finalise:{FINALISES[one]}", f"finalise:{FINALISES[other]}")
    assert f["matched"] == f["elements"] == 32 * 64 and f["excluded"] >= 10
    # The first side's own form has lost, like every other one with other bits; weights that are bf16 already are not rounded again.
    assert f["first"] not in f["also"].split("; ")
    if other == "running":
        assert {k for k in f["also"].split("; ") if k.startswith("finalise:")} == {"finalise:score-bf16"}
    if other == "reversed":
        assert f["also"] == "finalise:score-bf16,order:last"


def test_moe_finalise_in_an_order_that_no_kernel_has(lastbit, mixtures):
    """Slots in the order 2, 0, 3, 1 are nobody's: the side that is known is named, the other is not, and two such have no names."""
    (f,) = own(lastbit.json("explain", mixtures("shuffled"), mixtures("running"), expect=1))
    assert (f["cause"], f["first"], f["schedule"], f["proof"]) == ("kernel", "own", "finalise:slots", "bits")
    (f,) = own(lastbit.json("explain", mixtures("shuffled"), mixtures("mixed"), expect=1))
    assert (f["layer"], f["cause"], f["schedule"], f["proof"]) == ("moe", "kernel", "the second side's own ops", "bits")
    assert f["excluded"] == f["tried"] >= 10 and not f["first"] and not f["also"]


@pytest.mark.parametrize("how, schedule", [("loop", "sequential"), ("inplace", "sequential"), ("chunks", "splitk:4"), ("tree", "pairwise")])
def test_sums_written_out(lastbit, sums, how, schedule):
    """One op on one side, 255 or 256 on the other."""
    found = {f["layer"]: f for f in own(lastbit.json("explain", sums("op"), sums(how), expect=1))}
    assert set(found) == {"norm", "total"}
    for layer, order in (("total", schedule), ("norm", "splitk:8")):
        f = found[layer]
        assert (f["cause"], f["first"], f["schedule"], f["proof"], f["also"]) == ("order", "torch:1", order, "bits", "")
        assert f["matched"] == f["elements"] == 64 and f["excluded"] == f["tried"] - 1 >= 80
    assert "x25" in found["total"]["other_op"] and found["norm"]["other_op"] == "aten::add.Tensor x255, aten::div.Tensor"


def test_sums_both_written_out(lastbit, sums):
    """The additions line up one by one, but from some on they add other terms: that is where the sides part."""
    for how, adds in (("chunks", 192), ("tree", 254)):
        (f,) = own(lastbit.json("explain", sums("loop"), sums(how), expect=1))
        assert (f["layer"], f["cause"], f["proof"], f["matched"]) == ("total", "kernel", "bits", 64)
        assert f["op"] == f["other_op"] == f"aten::add.Tensor x{adds}" and f["excluded"] == f["tried"]


@pytest.fixture(scope="module")
def sums(lastbit, tmp_path_factory):
    return recorded_once(lastbit, tmp_path_factory.mktemp("sums"), SUMS)


@pytest.fixture(scope="module")
def llamas(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llamas")
    sides = [("eager", "float32"), ("eager", "bfloat16"), ("sdpa", "float32")]
    return {side: record(lastbit, folder, "-".join(side), LLAMA, *side) for side in sides}


@pytest.mark.full
def test_llama_in_bf16_and_f32(lastbit, llamas):
    answer = lastbit.json("explain", "--seconds", "20", llamas["eager", "float32"], llamas["eager", "bfloat16"], expect=1)
    found = own(answer)
    assert {f["cause"] for f in found} == {"precision"} and {f["schedule"] for f in found} == {"bf16"}
    products = [f for f in found if f["op"] in ("aten::mm", "aten::bmm")]
    layers = {f"model.layers.{i}.{name}" for i in range(2) for name in ("self_attn", *PROJECTIONS)}
    assert {f["layer"] for f in products} == layers | {"lm_head"}
    for f in products:
        assert f["proof"] == "bits" and f["matched"] == f["elements"] and f["excluded"] >= 4, f
    assert not [f for f in found if f["proof"] != "bits" and f["op"] != "aten::silu"]
    text = lastbit.run("explain", llamas["eager", "float32"], llamas["eager", "bfloat16"], expect=1).stdout
    assert text.startswith(f"{len(found)} places differ for a reason of their own (precision {len(found)})")
    assert len(text.splitlines()) < 32  # layers are folded


@pytest.mark.parametrize("turned", [False, True])
def test_eager_and_flash_attention(lastbit, llamas, turned):
    """torch's flash kernel is one of the kernels of the composite that eager attention is: its very bits come out."""
    if pytest.importorskip("torch").backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("torch's vectors have another width here")
    sides = llamas["eager", "float32"], llamas["sdpa", "float32"]
    answer = lastbit.json("explain", *(reversed(sides) if turned else sides), expect=1)
    found = own(answer)
    assert [f["layer"] for f in found] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    for f in found:
        assert (f["cause"], f["schedule"], f["proof"], f["reversed"]) == ("kernel", "attention:flash-cpu", "bits", turned)
        assert {f["op"], f["other_op"]} == {"aten::bmm x2, aten::_softmax", "aten::_scaled_dot_product_flash_attention_for_cpu"}
        # torch's own exponential under eager's softmax is no kernel here, so that what eager is remains unnamed.
        assert f["matched"] == f["elements"] == 32 * 64 and not f["also"] and f["excluded"] == f["tried"] - 1 >= 40 and not f["first"]
    # Everything between is inherited: the very bits come out of the first side's ops on the second side's inputs.
    inherited = [f for f in answer["findings"] if f["cause"] == "input" and f["op"] == "aten::mm"]
    assert len(inherited) >= 10 and all(f["matched"] == f["elements"] for f in inherited)
    alone = own(lastbit.json("explain", llamas["sdpa", "float32"], expect=1))
    flash = [f for f in alone if "flash" in f["op"]]
    assert len(flash) == 2 and {(f["schedule"], f["proof"]) for f in flash} == {("attention:flash-cpu", "bits")}


def test_attention_with_sinks(lastbit, tmp_path):
    """gpt_oss as Hugging Face writes it against a fused kernel that adds the sink at the end, recorded as one op."""
    eager, fused = (record(lastbit, tmp_path, name, SINKS, name) for name in ("eager", "fused"))
    found = own(lastbit.json("explain", eager, fused, expect=1))
    assert [f["layer"] for f in found] == [f"model.layers.{i}.self_attn" for i in range(2)]
    for f in found:
        assert (f["cause"], f["schedule"], f["other_op"], f["proof"]) == ("kernel", "attention:flash:512", "serving::sink_attention", "bits")
        assert f["matched"] == f["elements"] == 2 * 24 * 64 and f["excluded"] >= 100
        # bf16 hides the base of the exponential and how the end is divided; not whether the sink comes first, nor eager's roundings.
        assert set(f["also"].split("; ")) <= {f"attention:flash:512{x}{y}" for x in ("", ",exp:2") for y in ("", ",end:divide")}


@pytest.mark.parametrize("turned", [False, True])
def test_chunks_and_steps_of_a_gated_delta_rule(lastbit, tmp_path, turned):
    """A prefill takes 64 tokens at once, by a triangular system, decoding one after the other: one function, in ops that have nothing in
    common. A state that grows a little too much is another."""
    chunks, steps, wrong = (record(lastbit, tmp_path, how, DELTA, how) for how in ("chunks", "steps", "wrong"))
    found = own(lastbit.json("explain", *((steps, chunks) if turned else (chunks, steps)), expect=1))
    assert [(f["layer"], f["cause"], f["proof"]) for f in found] == [(f"model.layers.{i}.linear_attn", "kernel", "exact") for i in (0, 1)]
    found = own(lastbit.json("explain", *((wrong, chunks) if turned else (chunks, wrong)), expect=1))
    assert [(f["layer"], f["cause"]) for f in found] == [(f"model.layers.{i}.linear_attn", "unexplained") for i in (0, 1)]


def test_the_state_of_a_gated_delta_rule_in_bf16(lastbit, tmp_path):
    """Qwen3-Next's recurrence with its state kept in f32 and in bf16 from token to token: the cast is named, in each layer, by bits. A state
    that is scaled by a little is no precision, and nothing explains it."""
    single, bf16, wrong = (record(lastbit, tmp_path, how, DELTA, how) for how in ("single", "bf16", "wrong"))
    found = own(lastbit.json("explain", single, bf16, expect=1))
    layers = {f"model.layers.{i}.linear_attn" for i in range(2)}
    assert {f["layer"] for f in found} == layers and len(found) == 2 * 11  # between twelve tokens
    for f in found:
        assert (f["cause"], f["schedule"], f["proof"]) == ("precision", "bf16", "bits")
        assert f["matched"] == f["elements"] == 4 * 8 * 8 and f["excluded"] >= 3
    found = own(lastbit.json("explain", single, wrong, expect=1))
    assert {f["layer"] for f in found} == layers and {f["cause"] for f in found} == {"unexplained"}


ROW_ORDERS = ["folded:4,aligned:0,tail:after,rounded", "folded:4,head:1,tail:after,rounded", "folded:8,pairs", "folded:16,head:1,tail:again"]


def live_orders(lastbit, folder, rows):
    """The orders in which torch multiplies so many rows with a weight of DECODE's sizes here, by probing it; None where one has no name."""
    (folder / "live.py").write_text("import torch\ndef product(a, b): return torch.nn.functional.linear(a, b.t().contiguous())\n")
    names = set()
    for k, n in ((64, 32), (128, 64)):
        answer = lastbit.probe_product("product", k, rows, n, env={**os.environ, "PYTHONPATH": str(folder)})
        names |= {g["name"] if g["confirmed"] == g["tried"] else None for g in answer["groups"]}
    return names


@pytest.mark.parametrize(
    "attention,environment",
    [("eager", {}), pytest.param("eager", {"MKL_CBWR": "AVX2"}, marks=pytest.mark.full), pytest.param("sdpa", {}, marks=pytest.mark.full)],
)
def test_decode_with_a_cache_and_the_full_forward(lastbit, tmp_path, monkeypatch, attention, environment):
    """Twelve tokens at once against a prefill of eight and four steps of one: aligned by position. Single rows go to a kernel for vectors;
    its order is named where it is one that is known, and no other candidate has its bits."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    full, decode = (record(lastbit, tmp_path, name, DECODE, name, attention) for name in ("full", "decode"))
    rows = live_orders(lastbit, tmp_path, 1)
    expected = rows.pop() if len(rows) == 1 else None
    whole = live_orders(lastbit, tmp_path, 8) | live_orders(lastbit, tmp_path, 12) == {"sequential"}
    known = whole and expected in ROW_ORDERS
    for sides, turned in (((full, decode), False), ((decode, full), True)):
        answer = lastbit.json("explain", *sides, expect=1)
        found = own(answer)
        assert all(f["reversed"] == turned for f in found)
        products = {f["layer"] for f in found if f["op"] == "aten::mm"}
        assert products == {f"model.layers.{i}.{name}" for i in range(2) for name in PROJECTIONS} | {"lm_head"}
        for f in found:
            if f["op"] != "aten::mm":
                assert f["cause"] == "kernel" and f["layer"].endswith("self_attn") and f["other_op"] == "calls x5"
                assert f["matched"] < f["elements"]
                continue
            assert f["other_op"] == "aten::mm x5" and f["tried"] >= 90
            # The prefill's rows have the full pass's bits, unless the last rows of a product have an order of their own (AVX2).
            if not whole:
                assert f["proof"] in ("bits", "exact") and f["elements"] >= f["matched"]
            elif known:
                assert (f["cause"], f["proof"], f["schedule"]) == ("order", "bits", f"{expected} for 4 of 5 calls")
                assert f["matched"] == f["elements"] and f["excluded"] == f["tried"] - 1 and not f["also"]
            else:
                assert (f["cause"], f["proof"], f["schedule"]) == ("kernel", "exact", "another kernel for 4 of 5 calls")
                assert f["elements"] > f["matched"] >= f["elements"] * 8 // 12 and f["excluded"] == f["tried"]
        inherited = [f for f in answer["findings"] if f["cause"] == "input" and f["proof"] == "bits"]
        assert len(inherited) >= 20 and all(f["matched"] == f["elements"] for f in inherited)


PERMUTED = """
import sys, torch
torch.manual_seed(0)
order = [int(i) for i in sys.argv[1].split(",")] if sys.argv[1] else None
@torch.library.custom_op("own::product", mutates_args=())
def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x[:, order] @ w[order]
class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 48) / 8)
    def forward(self, x):
        return x @ self.weight if order is None else product(x, self.weight)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = Product(), torch.nn.LayerNorm(48)
    def forward(self, x): return self.norm(self.up(x))
model = Model()
with torch.no_grad():
    model(torch.randn(12, 64))
"""


def test_a_tree_of_one_s_own_is_tried(lastbit, tmp_path, monkeypatch):
    """A product in an order that has no name: the tree in a file explains it; another tree, or one of other sums, does not."""
    monkeypatch.chdir(tmp_path)
    order = [(7 * i + 3) % 64 for i in range(64)]  # the first two ascend: of two terms the later one goes in by fma
    (tmp_path / "right.txt").write_text("[" + " ".join(map(str, order)) + "]")
    (tmp_path / "wrong.txt").write_text("[" + " ".join(map(str, order[::2] + order[1::2])) + "]")
    (tmp_path / "short.txt").write_text("[0 2 1]")
    nodes = [[order[0], order[1]]] + [[62 + i, order[i]] for i in range(2, 64)]
    (tmp_path / "rounded.json").write_text(json.dumps({"leaves": 64, "nodes": nodes, "products": "rounded"}))
    sides = record(lastbit, tmp_path, "one", PERMUTED, ""), record(lastbit, tmp_path, "other", PERMUTED, ",".join(map(str, order)))

    def explained(*trees):
        (found,) = own(lastbit.json("explain", *sides, *(f"--tree={t}" for t in trees), expect=1))
        return found

    plain = explained()
    assert plain["layer"] == "up" and (plain["cause"], plain["proof"]) != ("order", "bits")
    without = explained("wrong.txt", "short.txt", "rounded.json")
    assert (without["cause"], without["proof"]) == (plain["cause"], plain["proof"]) and without["tried"] == plain["tried"] + 2
    found = explained("wrong.txt", "short.txt", "rounded.json", "right.txt")
    if found["cause"] != "order":
        pytest.skip("torch's product of 12 rows is no chain of fma here")
    assert (found["proof"], found["schedule"], found["also"]) == ("bits", "tree:right.txt", "")
    assert found["matched"] == found["elements"] == 12 * 48 and found["excluded"] == found["tried"] - 1
    assert "tree:right.txt" in lastbit.run("explain", *sides, "--tree", "right.txt", expect=1).stdout
    for file, why, code in (("none.txt", "No such file", 128), ("a" * 200, "longer than", 129), ("one.py", "tree", 129)):
        assert why in lastbit.run("explain", *sides, "--tree", file, expect=code).stderr


def test_a_probed_order_explains_a_recording(lastbit, tmp_path, monkeypatch):
    """The order that `lastbit order -o` finds in the live kernel for one row gives the bits of a decode step."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "live.py").write_text("import torch\ndef product(a, b): return torch.nn.functional.linear(a, b.t().contiguous())\n")
    probed = lastbit.probe_product("product", 64, 1, 64, "-o", "row.json", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    group = probed["groups"][0]
    if len(probed["groups"]) > 1 or group["arithmetic"] not in ("f32", "f32 fma") or group["name"] == "folded:16,head:1,tail:again":
        pytest.skip(f"the tree does not say it all here: {group['name']}, {group['arithmetic']}")
    stored = json.loads((tmp_path / "row.json").read_text())
    assert (stored.get("products") == "rounded") == (group["arithmetic"] == "f32")
    full, decode = (record(lastbit, tmp_path, name, DECODE, name, "eager") for name in ("full", "decode"))
    answer = lastbit.json("explain", full, decode, "--tree", "row.json", "--layer", ".*q_proj", expect=1)
    found = own(answer)
    if {f["first"] for f in found} != {"sequential"}:
        pytest.skip("the full pass is in another order here")
    assert {f["schedule"] for f in found} == {"tree:row.json for 4 of 5 calls"} and all(f["matched"] == f["elements"] for f in found)


def test_histories_that_differ(lastbit, tmp_path):
    """The same recipe on both sides, delayed scaling, with another amax history: a source differs, and no kernel."""
    sides = []
    for start in ("3.0", "2.0"):
        sides.append(record(lastbit, tmp_path, f"from{start[0]}", SCALED.replace("fill_(3.0)", f"fill_({start})"), "delayed"))
    answer = lastbit.json("explain", *sides, expect=1)
    assert own(answer) == []
    (f,) = [f for f in answer["findings"] if f["op"] == "lb::source"]
    assert (f["step"], f["layer"], f["cause"], f["schedule"]) == (0, "up", "input", "state up.amax_history")
    assert (f["matched"], f["elements"]) == (0, 4) and "another history: the scale of a cast to e4m3fn" in f["why"]
    assert all(f["proof"] == "bits" and f["matched"] == f["elements"] for f in answer["findings"] if f["op"] != "lb::source")
    text = lastbit.run("explain", *sides, expect=1).stdout
    assert "1 source enters with other numbers" in text and "up, forward: state up.amax_history: another history" in text


def test_delayed_and_current_scaling(lastbit, tmp_path):
    current, delayed, static = (record(lastbit, tmp_path, name, SCALED, name) for name in ("current", "delayed", "static"))
    for one, other in (("current", "delayed"), ("delayed", "current"), ("current", "static")):
        answer = lastbit.json("explain", tmp_path / f"{one}.lb", tmp_path / f"{other}.lb", expect=1)
        found = own(answer)
        assert [f["step"] for f in found] == [0, 1, 2]
        for f in found:
            assert (f["layer"], f["cause"], f["proof"]) == ("up", "precision", "bits")
            assert (f["first"], f["schedule"]) == (f"e4m3fn:{one}", f"e4m3fn:{other}")
            assert f["matched"] == f["elements"] and f["excluded"] == f["tried"] > 0 and "up.amax_history" in f["why"]
        # What follows from the scale is inherited, bit by bit.
        assert {f["layer"] for f in answer["findings"] if f["cause"] == "input"} >= {"up", "down"}
        assert all(f["proof"] == "bits" for f in answer["findings"])


def test_the_budget_of_one_change(lastbit, norms):
    """The change that was found, in a chained replay, gives every bit of the other run's output."""
    answer = lastbit.json("explain", "--budget", norms["eager"], norms["128"], expect=1)
    (budget,) = answer["budget"]
    assert [(r["cause"], r["schedule"], r["layer"]) for r in budget["rows"]] == [("order", "butterfly:128x4", "norm")]
    assert budget["differing"] == 0 and budget["elements"] == 64 * 32
    assert budget["rows"][0]["share"] == pytest.approx(1) and budget["together"] == pytest.approx(1)
    assert abs(budget["interaction"]) < 1e-9 and abs(budget["rest"]) < 1e-9
    norm, down = answer["layers"]
    assert (norm["layer"], norm["own"], down["layer"], down["own"], down["local"]) == ("norm", 1, "down", 0, None)
    assert 0 < norm["local"] < 1e-6 and 0 < down["total"] < 1e-6


def test_the_budget_of_a_llama_in_bf16(lastbit, llamas):
    sides = llamas["eager", "float32"], llamas["eager", "bfloat16"]
    answer = lastbit.json("explain", "--budget", *sides, expect=1)
    (budget,) = answer["budget"]
    assert [r["layer"] for r in budget["rows"]] == ["model.rotary_emb", "model.layers.0", "model.layers.1", "model.norm", "lm_head"]
    assert all(r["cause"] == "precision" and r["schedule"] == "bf16" for r in budget["rows"])
    # All changes in one replay of the f32 run give the bf16 run's very logits; by themselves they do not add up to it.
    assert budget["differing"] == 0 and budget["elements"] == 32 * 256
    assert budget["together"] == pytest.approx(1, abs=1e-3) and budget["interaction"] > 0.1
    total = sum(r["share"] for r in budget["rows"]) + budget["interaction"] + budget["rest"]
    assert total == pytest.approx(1)
    layers = {row["layer"]: row for row in answer["layers"]}
    assert layers["model.layers.1.mlp.down_proj"]["total"] > layers["model.layers.0.self_attn.q_proj"]["total"]
    assert all(1e-4 < row["local"] < 1e-2 for row in layers.values() if row["own"])
    text = lastbit.run("explain", "--budget", "--table", *sides, expect=1).stdout
    assert "interaction: all changes in one replay" in text and "8192 of 8192 elements have the second side's bits" in text


@pytest.mark.full
def test_a_fused_norm_that_replay_does_not_know(lastbit, tmp_path):
    """A custom op is recorded whole; what it did inside is found from its bits alone."""
    eager, fused = (record(lastbit, tmp_path, name, OPAQUE, name, "float32") for name in ("hf", "fused"))
    answer = lastbit.json("explain", "--budget", "--seconds", "20", eager, fused, expect=1)
    (f,) = own(answer)
    assert (f["layer"], f["cause"], f["other_op"], f["proof"]) == ("norm", "kernel", "serving::norm", "bits")
    assert f["schedule"] == "rms_norm:butterfly:256x4x1" and f["matched"] == f["elements"] == 64 * 1024
    # Threads without a term change nothing; the same tree without fma, or other trees, are excluded.
    assert set(f["also"].split("; ")) <= {"rms_norm:butterfly:512x4x1", "rms_norm:butterfly:1024x4x1"} and f["excluded"] >= 100
    (budget,) = answer["budget"]
    assert budget["differing"] == 0 and budget["rows"][0]["share"] == pytest.approx(1)
    # In bf16 the last rounding hides the order: the cause stays, and the data is said not to tell kernels apart.
    for name in ("hf", "fused"):
        record(lastbit, tmp_path, f"{name}16", OPAQUE, name, "bfloat16")
    (f,) = own(lastbit.json("explain", "--seconds", "20", tmp_path / "hf16.lb", tmp_path / "fused16.lb", expect=1))
    assert (f["cause"], f["schedule"]) == ("precision", "f32") and "rms_norm:butterfly" in f["also"]


BY_HAND = """
import sys, torch
torch.manual_seed(0)
class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(one + torch.randn(512) / 8) for one in (1, 0))
    def forward(self, x):
        if sys.argv[1] == "torch": return torch.nn.functional.layer_norm(x, (512,), self.weight, self.bias, 1e-5)
        centred = x - x.mean(-1, keepdim=True)
        eps = float(sys.argv[2])
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + eps) * self.weight + self.bias
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(64, 512, bias=False), Norm(), torch.nn.Linear(512, 32, bias=False)
    def forward(self, x): return self.down(self.norm(self.up(x)))
model = Model()
with torch.no_grad(): model(torch.randn(64, 64))
"""


def test_a_layer_norm_by_hand_against_torchs(lastbit, tmp_path):
    """Nine ops on one side, one on the other: they are one layer norm, and torch's own kernel in their place gives its bits. With another
    eps they are another function, which no kernel explains."""
    ours, torchs, other = (
        record(lastbit, tmp_path, name, BY_HAND, *args)
        for name, args in {"hand": ("hand", "1e-5"), "torch": ("torch",), "other": ("hand", "1e-3")}.items()
    )
    (f,) = own(lastbit.json("explain", ours, torchs, expect=1))
    assert (f["layer"], f["cause"], f["schedule"], f["proof"]) == ("norm", "kernel", "layer_norm:welford", "bits")
    assert f["matched"] == f["elements"] == 64 * 512 and f["excluded"] >= 20 and f["other_op"] == "aten::native_layer_norm"
    assert {f["cause"] for f in own(lastbit.json("explain", other, torchs, expect=1))} == {"unexplained"}


def test_a_row_in_batches_of_other_sizes(lastbit, norms):
    """Our own kernels do not look at the batch; launch rules of fused norms do, and so may libraries."""
    eager = norms["eager"]
    answer = lastbit.json("explain", "--invariance", "layer=up|norm|down", eager, expect=(0, 1))
    rows = answer["invariance"]
    kernels = {(r["op"], r["kernel"]) for r in rows}
    assert {("aten::mm", "own"), ("aten::mm", "openblas"), ("aten::mean.dim", "own"), ("rms_norm", "butterfly,sms:132")} <= kernels
    assert not [r for r in rows if r["kernel"] == "own" and r["varies"]]
    for r in rows:
        assert [s["rows"] for s in r["sizes"]] == [1 << i for i in range(10)] and r["recorded"] == 64 and r["embedded"] == 64
        (recorded,) = [s for s in r["sizes"] if s["rows"] == 64]
        assert recorded["differing"] == 0 and r["varies"] == any(s["differing"] for s in r["sizes"])
    # 512 f32 columns are 128 threads: one block whatever the batch. With 1024 columns two blocks become one from some batch on.
    (fused,) = [r for r in rows if r["op"] == "rms_norm"]
    assert not fused["varies"]
    assert lastbit.run("explain", "--invariance", "layer=nothing", eager).returncode == 125
    assert lastbit.run("explain", "--invariance", "layer=up", eager, eager).returncode == 129


def test_the_launch_rule_of_a_fused_norm(lastbit, tmp_path):
    eager = record(lastbit, tmp_path, "eager", OPAQUE, "hf", "float32")
    for multiprocessors, first in ((132, 128), (16, 16)):
        (norm,) = lastbit.json("explain", "--invariance", "layer=norm&op=mul.Tensor", "--multiprocessors", multiprocessors, eager, expect=1)[
            "invariance"
        ]
        # tokens * 2 blocks > SMs: then one block of 256 threads, another tree than two of 128.
        sides = [{s["differing"] > 0 for s in norm["sizes"] if (s["rows"] >= first) == beyond} for beyond in (False, True)]
        recorded = norm["recorded"] >= first
        assert sides[recorded] == {False} and sides[not recorded] == {True}


def test_what_lacks_bytes_is_missing_and_not_unexplained(lastbit, tmp_path):
    """Of level stats there are digests: they differ, and nobody can say why. The answer names what to record again."""
    program = tmp_path / "split.py"
    program.write_text(SPLIT)
    for slices in "1", "4":
        lastbit.record(tmp_path / f"{slices}.lb", program, slices, options=("--level", "stats"), expect=0)
    told = lastbit.json("explain", tmp_path / "1.lb", tmp_path / "4.lb", expect=125)
    assert not told["findings"] and len(told["missing"]) == 1
    assert "--level ops --steps 0" in told["missing"][0]
    assert "nothing differs" not in lastbit.run("explain", tmp_path / "1.lb", tmp_path / "4.lb", expect=125).stdout


@pytest.mark.full
def test_routing_of_a_mixture_in_bf16_and_f32(lastbit, tmp_path):
    """A whole training step: choices of experts that differ, apart from what makes the numbers differ."""
    for dtype in ("fp32", "bf16"):
        lastbit.record(
            tmp_path / f"{dtype}.lb",
            "tests/programs/hf_train.py",
            "--model",
            "qwen3_moe",
            "--steps",
            "1",
            "--batch",
            "4",
            "--seq",
            "64",
            "--dtype",
            dtype,
            options=("--steps", "0-0", "--level", "ops"),
            expect=0,
        )
    answer = lastbit.json("explain", "--seconds", "0.1", tmp_path / "fp32.lb", tmp_path / "bf16.lb", expect=1)
    routing = [f for f in answer["findings"] if f["cause"] == "routing"]
    compared = {r["layer"]: r for r in lastbit.json("diff", tmp_path / "fp32.lb", tmp_path / "bf16.lb")["routing"] if r["flips"]}
    assert routing and {f["layer"] for f in routing} == set(compared)
    for f in routing:
        row = compared[f["layer"]]
        assert (f["elements"], f["matched"]) == (row["choices"], row["choices"] - row["flips"])
    rest = own(answer)
    unexplained = [f for f in rest if f["cause"] == "unexplained"]
    assert len(unexplained) < len(rest) / 20 and not [f for f in unexplained if f["phase"] == "forward"]


def test_many_lines_are_summed_up_by_cause(lastbit, tmp_path):
    """Of f32 against bf16 every op differs: a screen says of which causes, with the first and the largest of each; --all says everything."""
    for name, options in (("wide", ()), ("narrow", ("--precision", "bf16"))):
        lastbit.record(tmp_path / f"{name}.lb", "samples/hybrid_lm.py", "--steps", "1", *options, expect=0)
    sides = tmp_path / "wide.lb", tmp_path / "narrow.lb"
    text, everything = lastbit.run("explain", *sides, expect=1).stdout, lastbit.run("explain", "--all", *sides, expect=1).stdout
    assert len(text.splitlines()) <= 30 and len(everything.splitlines()) > 100
    counts = {cause: int(n) for cause, n in re.findall(r"^(\w+) +(\d+) places, \d+ kinds$", text, re.M)}
    own = dict((cause, int(n)) for cause, n in re.findall(r"(\w+) (\d+)[,)]", text.splitlines()[0]))
    assert counts["precision"] == own["precision"] > 100 and counts["unexplained"] == own["unexplained"]
    assert re.search(r"^  first +\S.*\n  largest +\S", text, re.M) and "one for each kind: --all" in text
    assert "kinds: --all" not in everything and len(re.findall(r"^precision ", everything, re.M)) > 20
    for line in (text + everything).splitlines():
        assert not re.search(r"(^|\s)\.(\s|$)", line), line
