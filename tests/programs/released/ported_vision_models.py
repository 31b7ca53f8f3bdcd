"""EfficientNet of timm, torchvision, geffnet and efficientnet_pytorch, and torchvision's ViT, which packs its queries, keys and values.

All four EfficientNets register their parts in one order, so that a part is named by its number."""

import re

import named_weights
import torch
import vision_models

DEPTH = 0.3


def width_of(changes):
    """At a quarter of the width the first block of efficientnet_pytorch leaves out the skip that the others have."""
    changes = dict(changes)
    return changes.pop("width", 0.5), changes


def numbered(model):
    """Gives each parameter and each running statistic the weight of its number."""
    with torch.no_grad():
        for number, p in enumerate(model.parameters()):
            p.copy_(named_weights.weight(f"efficientnet.{number}.{'weight' if number % 3 else 'bias'}", p.shape))
        norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
        for number, norm in enumerate(norms):
            norm.weight.copy_(named_weights.weight(f"norm.{number}.weight", norm.weight.shape))
            norm.bias.copy_(named_weights.weight(f"norm.{number}.bias", norm.bias.shape))
            norm.running_mean.copy_(named_weights.weight(f"mean.{number}.bias", norm.bias.shape))
            norm.running_var.copy_(
                named_weights.weight(f"variance.{number}.weight", norm.bias.shape).abs() * 0.05 + 0.24
            )  # so that neither signal nor gain dies out
    return model


def build_timm(family, changes, attention):
    vision_models.without_operators()
    import timm.models.efficientnet as source

    width, changes = width_of(changes)
    return numbered(source._gen_efficientnet("efficientnet_b0", width, DEPTH, num_classes=10, **changes))


def build_torchvision(family, changes, attention):
    vision_models.without_operators()
    from torchvision.models import efficientnet as source

    blocks, last = source._efficientnet_conf("efficientnet_b0", width_mult=0.5, depth_mult=DEPTH)
    return numbered(source.EfficientNet(blocks, dropout=0.0, stochastic_depth_prob=0.0, num_classes=10, last_channel=last, **changes))


def build_geffnet(family, changes, attention):
    from geffnet import gen_efficientnet as source

    return numbered(source._gen_efficientnet("efficientnet_b0", 0.5, DEPTH, num_classes=10, **changes))


def build_efficientnet(family, changes, attention):
    import efficientnet_pytorch as source
    from efficientnet_pytorch.utils import get_model_params

    width, changes = width_of(changes)
    blocks, settings = get_model_params("efficientnet-b0", None)
    own = dict(width_coefficient=width, depth_coefficient=DEPTH, num_classes=10, dropout_rate=0.0, drop_connect_rate=0.0, image_size=64)
    return numbered(source.EfficientNet(blocks, settings._replace(**{**own, **changes})))


PLACES = [
    (r"class_token", "cls_token"),
    (r"encoder\.pos_embedding", "pos_embed"),
    (r"conv_proj\.", "patch_embed.proj."),
    (r"encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"ln_(\d)", r"norm\1"),
    (r"self_attention\.in_proj_", "attn.qkv."),
    (r"self_attention\.out_proj", "attn.proj"),
    (r"mlp\.0\.", "mlp.fc1."),
    (r"mlp\.3\.", "mlp.fc2."),
    (r"encoder\.ln\.", "norm."),
    (r"heads\.head\.", "head."),
]


def vit_name(name):
    for pattern, replacement in PLACES:
        name = re.sub(pattern, replacement, name)
    return name


def build_torchvision_vit(family, changes, attention):
    vision_models.without_operators()
    from torchvision.models.vision_transformer import VisionTransformer

    model = VisionTransformer(image_size=16, patch_size=4, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10, **changes)
    named_weights.fill(model, vit_name)
    return model


BUILDERS = {
    ("efficientnet", "timm"): build_timm,
    ("efficientnet", "torchvision"): build_torchvision,
    ("efficientnet", "geffnet"): build_geffnet,
    ("efficientnet", "efficientnet"): build_efficientnet,
    ("vit", "torchvision"): build_torchvision_vit,
}
