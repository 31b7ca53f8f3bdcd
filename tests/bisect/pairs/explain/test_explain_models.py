"""`explain` of whole models and their parts: mixtures of experts, attention, recurrences, decoding; pairs of real runs, from their recorded bits alone."""

import json
import os
import re

import pytest
from conftest import FULL
from explained_pairs import own, record, recorded_once

PROJECTIONS = [f"self_attn.{n}_proj" for n in "qkvo"] + [f"mlp.{n}_proj" for n in ("gate", "up", "down")]


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
    answer = lastbit.json("explain", "--seconds", "60", *(reversed(sides) if turned else sides), expect=1)
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
    found = own(lastbit.json("explain", "--seconds", "60", eager, fused, expect=1))
    assert [f["layer"] for f in found] == [f"model.layers.{i}.self_attn" for i in range(2)]
    for f in found:
        assert (f["cause"], f["schedule"], f["other_op"], f["proof"]) == ("kernel", "attention:flash:512", "serving::sink_attention", "bits")
        assert f["matched"] == f["elements"] == 2 * 24 * 64 and f["excluded"] >= 100
        # bf16 hides the base of the exponential and how the end is divided; not whether the sink comes first, nor eager's roundings.
        assert set(f["also"].split("; ")) <= {f"attention:flash:512{x}{y}" for x in ("", ",exp:2") for y in ("", ",end:divide")}


@pytest.mark.parametrize("turned", [False, True])
def test_chunks_and_steps_of_a_gated_delta_rule(lastbit, tmp_path, turned):
    """A prefill takes 64 tokens at once, by a triangular system, decoding one after the other: one function, in ops that have nothing in
    common. A state that grows a little too much is another. Where replay has every kernel that ran, as on some processors, it is proven by
    bits, otherwise in exact arithmetic."""
    chunks, steps, wrong = (record(lastbit, tmp_path, how, DELTA, how) for how in ("chunks", "steps", "wrong"))
    found = own(lastbit.json("explain", *((steps, chunks) if turned else (chunks, steps)), expect=1))
    assert [(f["layer"], f["cause"]) for f in found] == [(f"model.layers.{i}.linear_attn", "kernel") for i in (0, 1)]
    assert {f["proof"] for f in found} <= {"exact", "bits"}
    assert all("the same real function" in f["why"] and f["schedule"] == "the second side's own ops" for f in found)
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
    for sides, turned in (((full, decode), False), ((decode, full), True))[: 2 if FULL else 1]:
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
            assert f["other_op"] == "aten::mm x5" and f["tried"] >= 16  # how many there is time for
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


def test_the_budget_of_a_llama_in_bf16(lastbit, llamas):
    sides = llamas["eager", "float32"], llamas["eager", "bfloat16"]
    answer = lastbit.json("explain", "--budget", *sides, expect=1)
    (budget,) = answer["budget"]
    # Products of bf16 may have an order of their own besides (AVX2), and then rows of their own.
    layers = ["model.rotary_emb", "model.layers.0", "model.layers.1", "model.norm", "lm_head"]
    assert list(dict.fromkeys(r["layer"] for r in budget["rows"])) == layers
    assert all(r["cause"] == "precision" and r["schedule"].split(", ")[0] == "bf16" for r in budget["rows"])
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


@pytest.mark.full
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


def test_a_probed_order_explains_a_recording(lastbit, tmp_path, monkeypatch):
    """The order that `lastbit order -o` finds in the live kernel for one row gives the bits of a decode step."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "live.py").write_text("import torch\ndef product(a, b): return torch.nn.functional.linear(a, b.t().contiguous())\n")
    probed = lastbit.probe_product("product", 64, 1, 64, "-o", "row.json", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    group = probed["groups"][0]
    # Several groups, or sums that go on from an earlier one, are more than a tree of one sum can say.
    whole = len(probed["groups"]) == 1 and group["arithmetic"] in ("f32", "f32 fma") and group["name"] != "folded:16,head:1,tail:again"
    stored = json.loads((tmp_path / "row.json").read_text())
    assert (stored.get("products") == "rounded") == (group["arithmetic"] == "f32")
    full, decode = (record(lastbit, tmp_path, name, DECODE, name, "eager") for name in ("full", "decode"))
    without, found = (own(lastbit.json("explain", full, decode, *tree, "--layer", ".*q_proj", expect=1)) for tree in ((), ("--tree", "row.json")))
    assert found and [f["layer"] for f in found] == [f["layer"] for f in without]
    for alone, f in zip(without, found):
        by_tree = "tree:row.json" in f["schedule"]
        if by_tree:  # the tree is said where it gives every bit
            assert (f["schedule"], f["cause"], f["proof"]) == ("tree:row.json for 4 of 5 calls", "order", "bits")
            assert f["matched"] == f["elements"]
        else:  # it was tried, and nothing else is said than without it
            assert f["tried"] > alone["tried"] and (f["cause"], f["proof"]) == (alone["cause"], alone["proof"])
        assert by_tree or not (whole and f["first"] == "sequential")
