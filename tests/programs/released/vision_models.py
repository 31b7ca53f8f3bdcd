"""Image models that others published: ViT of transformers, timm and torchvision, ResNet of timm and torchvision. Published names: timm's."""

import re
import sys
import types

import named_weights
import torch


def without_operators():
    """torchvision's package index has builds for CUDA alone; its operators, which no model here calls, stay unregistered."""
    for name in ("extension", "_meta_registrations", "_autograd_registrations"):
        module = types.ModuleType(f"torchvision.{name}")
        module._HAS_OPS, module._has_ops, module._assert_has_ops = False, lambda: False, lambda: None
        module._check_cuda_version, module._load_library = (lambda: -1), (lambda name: None)
        sys.modules[f"torchvision.{name}"] = module


def build_timm_vit(changes):
    import timm.models.vision_transformer as source

    model = source.VisionTransformer(
        img_size=16, patch_size=4, num_classes=10, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2, norm_layer=None, **changes
    )
    named_weights.fill(model)
    return model


def vit_state():
    model = build_timm_vit({})
    return dict(model.named_parameters())


def build_transformers_vit(changes, attention):
    import transformers

    config = transformers.ViTConfig(
        **{
            **dict(
                hidden_size=64,
                num_hidden_layers=3,
                num_attention_heads=4,
                intermediate_size=128,
                image_size=16,
                patch_size=4,
                layer_norm_eps=1e-6,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                num_labels=10,
            ),
            **changes,
        }
    )
    config._attn_implementation = attention
    model = transformers.ViTForImageClassification(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(vit_weight(name, p.shape))
    return model


PLACES = [
    (r".*cls_token", "cls_token"),
    (r".*position_embeddings", "pos_embed"),
    (r".*patch_embeddings\.projection\.(\w+)", r"patch_embed.proj.\1"),
    (r".*layernorm_before\.(\w+)", r"norm1.\1"),
    (r".*layernorm_after\.(\w+)", r"norm2.\1"),
    (r".*attention\.output\.dense\.(\w+)", r"attn.proj.\1"),
    (r".*attention\.o_proj\.(\w+)", r"attn.proj.\1"),
    (r".*(?:intermediate\.dense|mlp\.fc1)\.(\w+)", r"mlp.fc1.\1"),
    (r".*(?:output\.dense|mlp\.fc2)\.(\w+)", r"mlp.fc2.\1"),
    (r"vit\.layernorm\.(\w+)", r"norm.\1"),
    (r"classifier\.(\w+)", r"head.\1"),
]


def vit_weight(name, shape):
    number = re.search(r"layers?\.(\d+)\.", name)
    block = f"blocks.{number.group(1)}." if number else ""
    third = re.match(r".*\.(query|key|value|[qkv]_proj)\.(\w+)", name)
    if third:
        fused = named_weights.weight(f"{block}attn.qkv.{third.group(2)}", (3 * shape[0], *shape[1:]))
        return fused.chunk(3)["qkv".index(third.group(1)[0])]
    for pattern, place in PLACES:
        found = re.fullmatch(pattern, name)
        if found:
            return named_weights.weight(block + found.expand(place), shape)
    raise KeyError(name)


def build_resnet(implementation):
    without_operators()
    if implementation == "torchvision":
        import torchvision

        model = torchvision.models.resnet18(num_classes=10)
    else:
        import timm

        model = timm.create_model("resnet18", num_classes=10)
    named_weights.fill(model)
    return model
