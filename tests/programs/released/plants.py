"""Faults that are planted from outside into an imported implementation: by its settings, or in layer 1 of the model that was built.

Each gives the truth with it: patterns of the modules at which a comparison may first place it, on the side that has it."""

import copy
import functools
import types

import edited_lines
import torch
import torch.nn.functional as F

LAYER = 1

# What the modules of a layer are called, by implementation.
PARTS = {
    "attention": ("self_attn", "attn", "attention", "self_attention"),
    "output": ("o_proj", "proj", "dense", "out_proj", "c_proj", "output_proj", "linear_proj"),
    "mlp": ("mlp", "block_sparse_moe", "ff_sub_layer"),
    "down": ("down_proj", "proj", "dense_4h_to_h", "fc2", "c_proj", "fc_out", "w2"),
    "norm": (
        "post_attention_layernorm",
        "mlp_norm",
        "ln2",
        "mlp_ln",
        "norm_2",
        "norm2",
        "ln_2",
        "layernorm_after",
        "final_layer_norm",
        "input_layernorm",
        "norm_1",
        "ln_1",
        "norm",
    ),
}


def part(module, kind):
    for name in PARTS[kind]:
        if isinstance(getattr(module, name, None), torch.nn.Module):
            return name, getattr(module, name)
    raise LookupError(f"no {kind} in {type(module).__name__}")


def with_attention(attention, replacement):
    """F.scaled_dot_product_attention is `replacement(original)` while `attention` runs."""
    forward, original = attention.forward, F.scaled_dot_product_attention

    def run(*args, **kwargs):
        F.scaled_dot_product_attention = replacement(original)
        try:
            return forward(*args, **kwargs)
        finally:
            F.scaled_dot_product_attention = original

    attention.forward = run


def masked(offset):
    """Each token sees `offset` tokens more than it should (None: all)."""

    def replacement(original):
        def run(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **kwargs):
            length = q.shape[-2]
            seen = torch.ones(length, length, dtype=torch.bool)
            seen = seen if offset is None else seen.tril(offset)
            return original(q, k, v, attn_mask=seen, dropout_p=dropout_p, is_causal=False, scale=scale, **kwargs)

        return run

    return replacement


def scaled(factor):
    def replacement(original):
        def run(q, k, v, *args, scale=None, **kwargs):
            return original(q, k, v, *args, scale=(scale or q.shape[-1] ** -0.5) * factor, **kwargs)

        return run

    return replacement


def norm_eps(layer):
    name, norm = part(layer, "norm")
    for field in ("variance_epsilon", "eps"):
        if hasattr(norm, field):
            setattr(norm, field, 1e-2)
    return [name]


def attention_scale(layer):
    name, attention = part(layer, "attention")
    with_attention(attention, scaled(1.1))
    return [name]


def no_causal_mask(layer):
    name, attention = part(layer, "attention")
    with_attention(attention, masked(None))
    return [name]


def mask_off_by_one(layer):
    name, attention = part(layer, "attention")
    with_attention(attention, masked(1))
    return [name]


def head_interleave(layer):
    """The heads of attention's result are put together as (dimension, head)."""
    name, attention = part(layer, "attention")
    last, output = part(attention, "output")
    forward = output.forward
    output.forward = lambda x: forward(x.unflatten(-1, (4, -1)).transpose(-1, -2).flatten(-2))
    return [f"{name}.{last}", name]


def residual_scale(layer):
    name, attention = part(layer, "attention")
    last, output = part(attention, "output")
    forward = output.forward
    output.forward = lambda x: forward(x) * 0.9
    return [f"{name}.{last}", name]


def dropped_bias(layer):
    name, mlp = part(layer, "mlp")
    last, down = part(mlp, "down")
    if down.bias is None:
        raise LookupError("no bias")
    down.forward = lambda x: F.linear(x, down.weight)
    return [f"{name}.{last}", name]


def swapped_gate_up(layer):
    name, mlp = part(layer, "mlp")
    one, other = next(pair for pair in (("gate_proj", "up_proj"), ("fc_1", "fc_2"), ("w1", "w3")) if hasattr(mlp, pair[0]))
    gate, up = getattr(mlp, one).forward, getattr(mlp, other).forward
    getattr(mlp, one).forward, getattr(mlp, other).forward = up, gate
    return [name, f"{name}.*"]


def other_gelu(layer):
    """GELU's tanh form where its exact form is meant, and the reverse."""
    name, mlp = part(layer, "mlp")
    forward, original = mlp.forward, F.gelu

    def gelu(x, approximate="none"):
        return original(x, approximate="tanh" if approximate == "none" else "none")

    def run(*args, **kwargs):
        F.gelu = gelu
        try:
            return forward(*args, **kwargs)
        finally:
            F.gelu = original

    mlp.forward = run
    for child_name, child in mlp.named_children():
        if type(child).__name__ in ("GELU", "GELUActivation", "NewGELUActivation", "PytorchGELUTanh"):
            tanh = "Tanh" in type(child).__name__ or "New" in type(child).__name__ or getattr(child, "approximate", "none") == "tanh"
            child.forward = functools.partial(original, approximate="none" if tanh else "tanh")
    return [name, f"{name}.*"]


def no_qk_norm(layer):
    name, attention = part(layer, "attention")
    for field in ("q_norm", "norm_q"):
        if hasattr(attention, field):
            setattr(attention, field, torch.nn.Identity())
            return [name, f"{name}.{field}", f"{name}.norm*", f"{name}.*_norm"]
    raise LookupError("no norm of queries")


def small_factor(layer):
    name, mlp = part(layer, "mlp")
    forward = mlp.forward

    def run(*args, **kwargs):
        out = forward(*args, **kwargs)
        return (out[0] * 1.001, *out[1:]) if isinstance(out, tuple) else out * 1.001

    mlp.forward = run
    return [name, f"{name}.*"]


def transposed_weight(layer):
    """A square matrix that was loaded the wrong way round."""
    name, attention = part(layer, "attention")
    last, output = part(attention, "output")
    with torch.no_grad():
        output.weight.copy_(output.weight.T.clone())
    return [f"{name}.{last}", name]


def unpaired_rotary(layer):
    """Rows of queries and keys stay in the order of a rotary embedding that turns halves, before one that turns neighbours."""
    name, attention = part(layer, "attention")
    with torch.no_grad():
        for linear in (attention.q_proj, attention.k_proj):
            rows = linear.weight.unflatten(0, (-1, attention.head_dim // 2, 2))
            linear.weight.copy_(rows.transpose(1, 2).flatten(0, 2).clone())
    return [name, f"{name}.q_proj", f"{name}.k_proj", f"{name}.*"]


def dropout_in_evaluation(layer):
    name, mlp = part(layer, "mlp")
    forward = mlp.forward
    mlp.forward = lambda *args, **kwargs: F.dropout(forward(*args, **kwargs), 0.1, training=True)
    return [name, f"{name}.*"]


def untied(model):
    """The head begins as the embedding and is trained by itself."""
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return ["backward:(root*", "optimizer:*", "other:*", "lm_head", "transformer.wte", "backward:*wte"]


IN_A_MODEL = {"untied": untied}

IN_A_LAYER = {
    f.__name__.replace("_", "-"): f
    for f in (
        norm_eps,
        attention_scale,
        no_causal_mask,
        mask_off_by_one,
        head_interleave,
        residual_scale,
        dropped_bias,
        swapped_gate_up,
        other_gelu,
        no_qk_norm,
        small_factor,
        dropout_in_evaluation,
        transposed_weight,
        unpaired_rotary,
    )
}

# Settings that are wrong for the whole model, by implementation, and where that first shows.
SETTINGS = {
    "rope-base": dict(
        transformers=dict(rope_theta=20000.0),
        litgpt=dict(rope_base=20000),
        where=["*rotary*", "*.0.*attn", "(root after *wte)", "(root after *embed*)", "(root after nothing)"],
    ),
    "all-norms-eps": dict(
        transformers=dict(rms_norm_eps=1e-2, layer_norm_eps=1e-2), litgpt=dict(norm_eps=1e-2), where=["*norm", "*norm_1", "*norm_2", "*.ln_f"]
    ),
    "rope-linear": dict(
        transformers=dict(rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=10000.0)),
        where=["*rotary*", "*.0.*attn", "(root after *embed*)", "(root after nothing)"],
    ),
    "window-off-by-one": dict(transformers=dict(sliding_window=5), where=["*.[0-2].*attn*", "*.[0-2].self_attn", "(root*", "model"]),
    "choice-normalised": dict(
        transformers=dict(norm_topk_prob=True), keras=dict(norm_top_k_prob=True), where=["*.[0-2].mlp*", "*feeds.[0-2]*", "(root*"]
    ),
    "other-groups": dict(transformers=dict(n_group=2, topk_group=1), where=["*.[12].mlp*", "*.[12].feed*"]),
    "other-scale-of-routing": dict(transformers=dict(routed_scaling_factor=1.0), where=["*.[12].mlp*", "*.[12].feed*"]),
    "no-final-softcap": dict(
        transformers=dict(final_logit_softcapping=None), litgpt=dict(final_logit_softcapping=None), where=["(root after lm_head)", "lm_head"]
    ),
}

# Faults of the loop around the model.
LOSS = ["forward:(root after *", "forward:lm_head"]
IN_THE_LOOP = {
    "weight-decay": ["optimizer:*"],
    "betas": ["optimizer:*"],
    "loss-sum": LOSS,
    "label-smoothing": LOSS,
    "grad-clip": ["optimizer:*", "other:*", "backward:(root*"],
    "no-clip": ["optimizer:*", "other:*", "backward:(root*"],
    "decay-of-vectors": ["optimizer:*"],
    "rate-of-a-group": ["optimizer:*"],
    "label-shift": LOSS,
    "mean-over-padding": LOSS,
    "z-loss-coefficient": LOSS,
    "no-z-loss": LOSS,
    "clip-of-matrices": ["optimizer:*", "other:*", "backward:(root*"],
    "adam-eps": ["optimizer:*"],
    "other-deviation": ["forward:(root after nothing)", "(root after nothing)"],
    "undivided-accumulation": [*LOSS, "backward:(root*", "optimizer:*", "other:*"],
}


def settings(faults, implementation):
    changes = {}
    for fault in faults:
        if fault in SETTINGS:
            changes.update(SETTINGS[fault][implementation])
    return types.MappingProxyType(copy.deepcopy(changes))


# What other implementations call the same module of a layer: a difference may stand there alone, where the fault left an operation out.
SAME = (
    ("self_attn", "attn", "attention", "self_attention", "mixer", "mha"),
    ("mlp", "block_sparse_moe", "ffn", "intermediate", "output", "feed"),
    (
        "post_attention_layernorm",
        "mlp_norm",
        "ln2",
        "mlp_ln",
        "ln_2",
        "norm_2",
        "norm2",
        "layernorm_after",
        "layer_norm2",
        "final_layer_norm",
        "mlp_ln",
        "feed_norm",
    ),
    (
        "input_layernorm",
        "sa_norm",
        "ln1",
        "ln_1",
        "norm_1",
        "norm1",
        "layernorm_before",
        "layer_norm1",
        "self_attn_layer_norm",
        "attn_ln",
        "attention_norm",
    ),
)
LAYERS = ("layers", "h", "blocks", "layer", "resblocks")


def elsewhere(place):
    """Patterns of the same place in other implementations."""
    if not place:
        return [f"*{layers}.{LAYER}" for layers in LAYERS]
    first = place.split(".")[0]
    return [f"*.{LAYER}.{name}{rest}" for names in SAME if first in names for name in names for rest in ("", ".*")]


def line(model, path, layer, row):
    """Edits one published line; the places at which that shows."""
    place, method, old, new, *further = row
    name = next((name for name, module in model.named_modules() if module is layer), f"{path}.{LAYER}")
    if place.startswith("/"):
        owner, at = model.get_submodule(place[1:]), place[1:]
    else:
        owner, at = layer.get_submodule(place), ".".join(filter(None, (name, place)))
    edited_lines.edit(owner, method, old, new)
    own = [at] if at else ["(root*"]
    if place and not place.startswith("/"):
        own.append(f"{at}.*")
    if not place.startswith("/"):
        own += elsewhere(place)
    return own + [p if place.startswith("/") or p.startswith(("*", "(")) else f"{name}.{p}" for p in further]


def plant(faults, model, path, layers, lines):
    """Patches layer 1 of `model`; the truth of all faults, one list of places each. `lines`: the rows of ported_faults for this implementation."""
    truths = []
    for fault in faults:
        if fault in lines:
            truths.append(line(model, path, layers[LAYER], lines[fault]))
        elif fault in SETTINGS:
            truths.append(SETTINGS[fault]["where"])
        elif fault in IN_THE_LOOP:
            truths.append(IN_THE_LOOP[fault])
        elif fault in IN_A_MODEL:
            truths.append(IN_A_MODEL[fault](model))
        else:
            found = IN_A_LAYER[fault](layers[LAYER])
            truths.append([f"{path}.{LAYER}.{place}" for place in found] + elsewhere(found[0]))
    return truths
