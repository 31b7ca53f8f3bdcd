"""Training steps of a tiny Hugging Face model with one fault in decoder layer 1, for tests of what a comparison finds."""

import argparse

import torch
import torch.nn.functional as F
import transformers

LAYER = 1


def wrong_eps(layer, model):
    layer.post_attention_layernorm.variance_epsilon = 2e-6


def wrong_scale(layer, model):
    layer.self_attn.scaling *= 1.001


def transposed_weight(layer, model):
    q_proj = layer.self_attn.q_proj
    q_proj.forward = lambda x: F.linear(x, q_proj.weight.t())


def small_factor(layer, model):
    original = layer.self_attn.o_proj.forward
    layer.self_attn.o_proj.forward = lambda x: original(x) * 0.9999


def rope_offset(layer, model):
    """Queries stand one position behind their keys: an offset of both would change nothing."""
    attention, apply = layer.self_attn, transformers.models.llama.modeling_llama.apply_rotary_pos_emb

    def offset(q, k, cos, sin, **kwargs):
        later = [torch.cat([x[:, 1:], x[:, -1:]], 1) for x in (cos, sin)]
        return apply(q, k, *later, **kwargs)[0], apply(q, k, cos, sin, **kwargs)[1]

    run_with(attention, "apply_rotary_pos_emb", offset)


def mask_offset(layer, model):
    original = layer.self_attn.forward

    def forward(hidden_states, attention_mask=None, **kwargs):
        seen = torch.cat([attention_mask[..., 1:, :], attention_mask[..., -1:, :]], -2)
        return original(hidden_states, attention_mask=seen, **kwargs)

    layer.self_attn.forward = forward


def dropped_term(layer, model):
    """The MLP forgets its gate for the last channel."""
    act = layer.mlp.act_fn.forward
    layer.mlp.act_fn.forward = lambda x: torch.cat([act(x[..., :-1]), torch.ones_like(x[..., -1:])], -1)


def one_element(layer, model):
    """One number in some thousand is off by a percent."""
    original = layer.self_attn.o_proj.forward

    def forward(x):
        y = original(x).clone()
        y[1, 7, 33] *= 1.01
        return y

    layer.self_attn.o_proj.forward = forward


def swapped_rows(layer, model):
    original = layer.mlp.forward

    def forward(x):
        y = original(x)
        return torch.cat([y[:, :4], y[:, 5:6], y[:, 4:5], y[:, 6:]], 1)

    layer.mlp.forward = forward


def stale_tensor(layer, model):
    pass  # below: in step 1 a weight gets its first value back


def cast_left_out(layer, model):
    """The norm does not go to float32 and back: the same function, with other roundings."""
    norm = layer.post_attention_layernorm
    norm.forward = lambda x: norm.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon))


def narrow_cast(layer, model):
    original = layer.mlp.forward
    layer.mlp.forward = lambda x: original(x.to(torch.float8_e5m2).to(x.dtype))


def integer_cast(layer, model):
    original = layer.mlp.forward
    layer.mlp.forward = lambda x: original((x * 1024).to(torch.int32).to(x.dtype) / 1024)


def no_decay(layer, model):
    pass  # below: its optimizer forgets weight decay


def stale_expert(layer, model):
    pass  # below: in step 1 an expert gets its old weight back


FAULTS = {
    f.__name__.replace("_", "-"): f
    for f in (
        wrong_eps,
        wrong_scale,
        transposed_weight,
        small_factor,
        rope_offset,
        mask_offset,
        narrow_cast,
        integer_cast,
        no_decay,
        stale_expert,
        stale_tensor,
        dropped_term,
        one_element,
        swapped_rows,
        cast_left_out,
    )
}


def run_with(module, name, replacement):
    """`module`'s forward sees another global of its own source file, other modules of the class don't."""
    original, space = module.forward, module.forward.__func__.__globals__

    def forward(*args, **kwargs):
        before, space[name] = space[name], replacement
        try:
            return original(*args, **kwargs)
        finally:
            space[name] = before

    module.forward = forward


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fault", choices=FAULTS)
parser.add_argument("--model", choices=["llama", "qwen3_moe"], default="llama")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--steps", type=int, default=1)
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
sizes = dict(
    vocab_size=256,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=128,
    head_dim=16,
    use_cache=False,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
)
if args.model == "llama":
    config = transformers.LlamaConfig(**sizes)
else:
    config = transformers.Qwen3MoeConfig(**sizes, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True)
    config._experts_implementation = "grouped_mm"
config._attn_implementation = "eager"
model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, args.dtype)).train()
layer = model.model.layers[LAYER]
if args.fault:
    FAULTS[args.fault](layer, model)
last = [model.model.layers[LAYER].self_attn.o_proj.weight]
rest = [p for p in model.parameters() if all(p is not q for q in last)]
optimizer = torch.optim.AdamW(
    [dict(params=rest), dict(params=last, weight_decay=0.0 if args.fault == "no-decay" else 0.1)], lr=1e-3, weight_decay=0.1, foreach=False
)
stale = layer.self_attn.q_proj.weight.detach().clone()
first = {n: p.detach().clone() for n, p in layer.mlp.named_parameters()}
text = torch.Generator().manual_seed(1)
for step in range(args.steps):
    if args.fault == "stale-expert" and step == 1:
        with torch.no_grad():
            layer.mlp.experts.down_proj[2] = first["experts.down_proj"][2]
    if args.fault == "stale-tensor" and step == 1:
        with torch.no_grad():
            layer.self_attn.q_proj.weight.copy_(stale)
    batch = torch.randint(0, 256, (2, 16), generator=text)
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}")
