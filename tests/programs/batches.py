"""Batches of other sizes with rows in common: one recording for each line of arguments, all of one process.

    batches.py FOLDER NAME:KEY=VALUE,...  ...

Keys: model (llama, gpt2, mixture, classifier, vit), rows (3+6+1: of eight texts, in that order), length, dtype, attention, train (0, 1), generate (0, 1), positional (0, 1: ids by place), level, seed (of
the texts), fault (none; weight: one weight is another; element: one element of the row of text 3 of a
SiLU's result is wrong, of experts of every token; roll: what the first layer's experts give goes to the next token each),
experts (eager, batched_mm, grouped_mm: how those of a mixture are computed).
Beside each recording NAME.pt holds what modules gave, as PyTorch saw it.
"""

import pathlib
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "capture"))
import lastbit.torch  # noqa: E402

DEFAULTS = dict(
    model="llama",
    rows="3",
    length=3,
    dtype="float32",
    attention="sdpa",
    train="0",
    generate="0",
    positional="0",
    experts="",
    level="ops",
    seed=5,
    fault="none",
)


def break_silu(row):
    """Below the recorder: the second SiLU's result has a wrong element in that row."""
    calls = []

    def silu(x):
        result = torch.ops.aten.silu.out(x, out=torch.empty_like(x))
        calls.append(x)
        if len(calls) == 2 and x.dim() == 3:
            result[row, 1, 17] += 0.5
        elif len(calls) == 2:  # of experts, whose tokens stand in another order
            result[:, 17] += 0.5
        return result

    library = torch.library.Library("aten", "IMPL")
    library.impl("silu", silu, "CPU")
    return library


def make(o):
    torch.manual_seed(0)
    if o["model"] == "llama":
        config = transformers.LlamaConfig(
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=4,
            vocab_size=512,
            max_position_embeddings=128,
        )
        kind = transformers.LlamaForCausalLM
    elif o["model"] == "gpt2":
        config = transformers.GPT2Config(
            n_embd=256,
            n_layer=2,
            n_head=8,
            vocab_size=512,
            n_positions=128,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
        kind = transformers.GPT2LMHeadModel
    elif o["model"] == "mixture":
        config = transformers.Qwen3MoeConfig(
            hidden_size=64,
            intermediate_size=96,
            moe_intermediate_size=32,
            num_hidden_layers=2,
            num_experts=8,
            num_experts_per_tok=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            vocab_size=512,
            max_position_embeddings=128,
            norm_topk_prob=True,
        )
        kind = transformers.Qwen3MoeForCausalLM
    elif o["model"] == "classifier":
        config = transformers.LlamaConfig(
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=1,
            num_attention_heads=4,
            vocab_size=512,
            max_position_embeddings=128,
            pad_token_id=0,
            num_labels=3,
        )
        kind = transformers.LlamaForSequenceClassification
    else:
        config = transformers.ViTConfig(
            hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4, num_labels=5
        )
        kind = transformers.ViTForImageClassification
    config._attn_implementation = o["attention"]
    if o["experts"]:
        config._experts_implementation = o["experts"]
    model = kind(config).to(getattr(torch, o["dtype"]))
    if o["fault"] == "weight":
        with torch.no_grad():
            mlp = model.model.layers[1].mlp
            (mlp.experts.down_proj[3] if o["model"] == "mixture" else mlp.up_proj.weight)[5, 7] += 0.25
    if o["fault"] == "roll":
        model.model.layers[0].mlp.experts.register_forward_hook(lambda module, inputs, result: result.roll(1, 0))
    return model


def generate(model, ids, o):
    """A prefill, and then a token at a time from a cache; what follows is the text itself, the same in every batch."""
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        for first, last in ((0, 4), (4, 5), (5, 6)):
            result = model(ids[:, first:last], past_key_values=cache, use_cache=True)
    return result


def step(model, inputs, o):
    if int(o["generate"]):
        return generate(model, inputs["input_ids"], o)
    if not int(o["train"]):
        with torch.no_grad():
            return model(inputs["input_ids"], use_cache=False) if int(o["positional"]) else model(**inputs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    optimizer.step()
    return None


def run(folder, name, o):
    rows = [int(row) for row in str(o["rows"]).split("+")]
    draw = torch.Generator().manual_seed(int(o["seed"]))
    if o["model"] == "vit":
        inputs = {"pixel_values": torch.randn(8, 3, 16, 16, generator=draw)[rows].to(getattr(torch, o["dtype"]))}
    else:
        inputs = {"input_ids": torch.randint(1, 512, (8, 16), generator=draw)[rows, : int(o["length"])]}
    if o["model"] in ("llama", "gpt2", "mixture"):
        inputs["use_cache"] = False
    model = make(o).train(bool(int(o["train"])))
    given = {}

    def keep(path):
        def hook(module, arguments, result):
            if isinstance(result, torch.Tensor):
                given[path] = result.detach().clone()

        return hook

    broken = break_silu(rows.index(3)) if o["fault"] == "element" else None
    with lastbit.torch.capture(str(folder / f"{name}.lb"), level=o["level"]):
        step(model, inputs, o)
    if broken:
        broken._destroy()
    model = make(o).train(bool(int(o["train"])))
    for path, module in model.named_modules():
        module.register_forward_hook(keep(path))
    result = step(model, inputs, o)
    if result is not None:
        given["logits"] = result.logits
    torch.save(given, folder / f"{name}.pt")


torch.set_num_threads(1)
for text in sys.argv[2:]:
    name, _, options = text.partition(":")
    run(pathlib.Path(sys.argv[1]), name, DEFAULTS | dict(item.split("=") for item in options.split(",") if item))
