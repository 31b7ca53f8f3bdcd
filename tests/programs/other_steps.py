"""One Llama of transformers, or a Mixtral, that is given the same tokens in other steps: all in one forward, a prompt and then token by token from a cache,
in chunks, a sequence a call, or by `generate`, whose text `scored` takes in one forward.

python other_steps.py whole|decode|chunks|rows|generate|scored [--fault NAME] [--text FILE]
"""

import argparse
import json
import pathlib
import zlib

import torch
import transformers

CUTS = {"decode": (8, 1, 1, 1, 1), "chunks": (5, 5, 2)}
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("how", choices=["whole", "decode", "chunks", "rows", "generate", "scored"])
parser.add_argument("--family", choices=["llama", "mixtral"], default="llama")
parser.add_argument("--fault", choices=["eps", "scale", "act", "position", "stale"])
parser.add_argument("--text", type=pathlib.Path)
args = parser.parse_args()
torch.set_num_threads(1)


def built():
    sizes = dict(vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    ends = dict(max_position_embeddings=64, bos_token_id=0, eos_token_id=1, pad_token_id=0)
    if args.family == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **ends))
    else:
        model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **ends, num_local_experts=4, num_experts_per_tok=2))
    for name, p in model.named_parameters():
        drawn = 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
        p.data.copy_(1 + drawn if p.dim() == 1 else drawn)
    return model.eval()


def spoil(layer):
    if args.fault == "eps":
        layer.input_layernorm.variance_epsilon = 1e-2
    if args.fault == "scale":
        layer.self_attn.scaling *= 0.9
    if args.fault == "act":
        layer.mlp.act_fn = torch.nn.GELU()
    if args.fault == "stale":
        layer.self_attn.forward = reading_stale(layer.self_attn.forward)


def reading_stale(forward):
    """The first step that goes on from a cache finds values of the layer before."""
    done = []

    def spoiled(*given, **named):
        cache = named["past_key_values"]
        length = cache.get_seq_length(1)
        if length and not done:
            cache.layers[1].values = cache.layers[0].values[:, :, :length].clone()
            done.append(length)
        return forward(*given, **named)

    return spoiled


def step_by_step(model, tokens):
    cache, at, late = None, 0, args.fault == "position"
    for length in CUTS[args.how]:
        places = (torch.arange(at, at + length) + (1 if late and at else 0)).expand(2, -1)
        cache = model(tokens[:, at : at + length], past_key_values=cache, use_cache=True, position_ids=places).past_key_values
        at += length


model = built()
spoil(model.model.layers[1])
tokens = torch.randint(2, 96, (2, 12), generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    if args.how == "generate":
        args.text.write_text(json.dumps(model.generate(tokens[:, :6], max_new_tokens=6, do_sample=False, eos_token_id=None).tolist()))
    elif args.how == "scored":
        model(torch.tensor(json.loads(args.text.read_text())), use_cache=False)
    elif args.how == "whole":
        model(tokens, use_cache=False)
    elif args.how == "rows":
        for row in tokens:
            model(row[None], use_cache=False)
    else:
        step_by_step(model, tokens)
