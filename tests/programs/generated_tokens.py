"""Greedy decoding by `generate` of transformers, a step for each forward pass.

    python generated_tokens.py --all FOLDER

dynamic: a cache that grows, two requests at once; static: a cache of fixed size; single: one request after the other; padded: three
tokens of padding before each. Faults lie in layer 1."""

import sys
import warnings

import torch

warnings.filterwarnings("ignore")
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig  # noqa: E402

SMALL = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
SMALL |= dict(max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=0)
MODELS = {"llama": lambda: LlamaConfig(**SMALL), "mixtral": lambda: MixtralConfig(**SMALL, num_local_experts=4)}
PADDING = 3


def eps(layer):
    layer.input_layernorm.variance_epsilon = 1e-2


def scale(layer):
    layer.self_attn.scaling *= 1.1


FAULTS = {"eps": eps, "scale": scale}


def built(model):
    torch.manual_seed(3)
    net = AutoModelForCausalLM.from_config(MODELS[model]()).eval()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape) * (0.3 if p.dim() == 1 else 0.2))
    return net, torch.randint(1, 97, (2, 8))


def decode(net, ids, way):
    options = dict(max_new_tokens=4, do_sample=False)
    if way == "single":
        for row in ids:
            net.generate(row[None], **options)
    elif way == "padded":
        mask = torch.ones(2, ids.shape[1] + PADDING, dtype=torch.long)
        mask[:, :PADDING] = 0
        net.generate(torch.nn.functional.pad(ids, (PADDING, 0)), attention_mask=mask, **options)
    else:
        net.generate(ids, **options, **(dict(cache_implementation="static") if way == "static" else {}))


def record(out, model, way, fault=None):
    import lastbit.torch

    net, ids = built(model)
    if fault:
        FAULTS[fault](net.model.layers[1])
    with torch.no_grad(), lastbit.torch.capture(out, level="ops"):
        decode(net, ids, way)


def main():
    folder = sys.argv[2]
    torch.set_num_threads(1)
    for model in MODELS:
        for way in ("dynamic", "static", "single", "padded"):
            record(f"{folder}/{model}-{way}.lb", model, way)
    for way in ("static", "single", "padded"):
        for fault in FAULTS:
            record(f"{folder}/llama-{way}-{fault}.lb", "llama", way, fault)


if __name__ == "__main__":
    main()
