"""A model of transformers, random weights, scores tokens that are given: text in one forward pass or token by token from a cache; or text
and an image, whose positions may be shifted.

The kinds of tokens are what the model itself is told: mm_token_type_ids.
"""

import argparse
import inspect

import torch
import transformers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--mode", choices=["full", "decode", "image"], default="full")
parser.add_argument("--shift", type=int, default=0, help="of the positions of image tokens")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--tokens", type=int, default=24)
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(0)
TEXT = dict(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.15
)


def text_model():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT))


def image_model():
    vision = dict(
        depth=1, embed_dim=32, hidden_size=64, num_heads=2, mlp_ratio=2, patch_size=4, spatial_merge_size=2, temporal_patch_size=2, in_channels=3
    )
    config = transformers.Qwen2VLConfig(
        text_config=dict(TEXT, rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]}),
        vision_config=vision,
        image_token_id=250,
        video_token_id=251,
        vision_start_token_id=252,
        vision_end_token_id=253,
    )
    return transformers.Qwen2VLForConditionalGeneration(config)


@torch.no_grad()
def score_image(model):
    draw = torch.Generator().manual_seed(1)
    tokens = torch.cat([torch.randint(3, 240, (1, args.tokens), generator=draw), torch.tensor([[252] + [250] * 16])], 1)
    grid, patches = torch.tensor([[1, 8, 8]]), torch.randn(64, 3 * 2 * 4 * 4, generator=draw).to(model.dtype)
    kinds = (tokens == 250).int()
    order = dict(mm_token_type_ids=kinds) if "mm_token_type_ids" in inspect.signature(model.model.get_rope_index).parameters else {}
    positions, _ = model.model.get_rope_index(tokens, image_grid_thw=grid, **order)
    positions = positions + args.shift * (tokens == 250)
    model(input_ids=tokens, pixel_values=patches, image_grid_thw=grid, position_ids=positions, mm_token_type_ids=kinds)


@torch.no_grad()
def score_text(model):
    tokens = torch.randint(3, 240, (2, args.tokens), generator=torch.Generator().manual_seed(1))
    if args.mode == "full":
        return model(input_ids=tokens, use_cache=False)
    out = model(input_ids=tokens[:, :8], use_cache=True)
    for t in range(8, args.tokens):
        out = model(input_ids=tokens[:, t : t + 1], past_key_values=out.past_key_values, use_cache=True)
    return out


model = (image_model() if args.mode == "image" else text_model()).to(getattr(torch, args.dtype)).eval()
(score_image if args.mode == "image" else score_text)(model)
