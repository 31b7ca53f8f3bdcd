"""Models of images: transformers, timm and torchvision. The family is part of the side: vit/timm, resnet/torchvision."""

import harness
import torch

SIZE, WIDTH, LAYERS, HEADS, INNER, CLASSES = 32, 48, 3, 4, 96, 10


def transformers_vit(faults):
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=INNER,
            image_size=SIZE,
            patch_size=8,
            num_labels=CLASSES,
            layer_norm_eps=1e-6,
            attn_implementation="eager",
        )
    )


def vit_names(layer_name):
    """timm's names for what transformers calls so (transformers.models.vit.convert_vit_timm_to_pytorch has the same table)."""
    pairs = [
        ("vit.embeddings.cls_token", "cls_token"),
        ("vit.embeddings.position_embeddings", "pos_embed"),
        ("vit.embeddings.patch_embeddings.projection", "patch_embed.proj"),
        ("vit.layernorm", "norm"),
        ("classifier", "head"),
        ("vit.encoder.layer.", "blocks."),
        ("vit.layers.", "blocks."),
        ("layernorm_before", "norm1"),
        ("layernorm_after", "norm2"),
        ("attention.output.dense", "attn.proj"),
        ("attention.o_proj", "attn.proj"),
        ("intermediate.dense", "mlp.fc1"),
        ("mlp.fc1", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
    ]
    for old, new in pairs:
        layer_name = layer_name.replace(old, new)
    return layer_name


def fill_vit(model):
    return harness.fill(model, vit_part)


def vit_part(name):
    """The name by which both sides draw numbers; queries, keys and values have one each."""
    name = vit_names(name)
    for part in ("query", "key", "value"):
        name = name.replace(f"attention.attention.{part}", f"attn.{part}").replace(f"attention.{part[0]}_proj", f"attn.{part}")
    return name


def timm_vit(faults):
    library = harness.without_torchvision_ops()
    import timm

    settings = {}
    if "norm-eps" in faults:
        settings["norm_layer"] = lambda width, **more: torch.nn.LayerNorm(width, eps=1e-2)
    if "gelu" in faults:
        settings["act_layer"] = lambda: torch.nn.GELU(approximate="tanh")
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=SIZE,
        patch_size=8,
        embed_dim=WIDTH,
        depth=LAYERS,
        num_heads=HEADS,
        mlp_ratio=INNER / WIDTH,
        num_classes=CLASSES,
        **settings,
    )
    model.library = library
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if ".attn.qkv." in name:
                tensor.copy_(
                    torch.cat([harness.numbers(name.replace("qkv", part), (WIDTH, *tensor.shape[1:])) for part in ("query", "key", "value")])
                )
            else:
                tensor.copy_(harness.numbers(name, tensor.shape))
    for block in model.blocks:
        block.attn.fused_attn = "fused" in faults
    if "attention-scale" in faults:
        model.blocks[1].attn.scale *= 1.3
    if "skipped-block" in faults:
        model.blocks[1].mlp.register_forward_hook(lambda m, args, out: out * 0)
    return model


def resnet(library_name, faults):
    library = harness.without_torchvision_ops()
    if library_name == "timm":
        import timm

        model = timm.create_model("resnet18", num_classes=CLASSES)
    else:
        import torchvision

        model = torchvision.models.resnet18(num_classes=CLASSES)
    model.library = library
    harness.fill(model)
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name.endswith("running_var"):
                tensor.copy_(1 + tensor.abs())
    if "norm-eps" in faults:
        model.layer2[0].bn1.eps = 1e-1
    if "stride" in faults:
        model.layer3[0].conv2.dilation, model.layer3[0].conv2.padding = (2, 2), (2, 2)
    if "act" in faults:
        model.layer2[1].act1 = torch.nn.LeakyReLU(0.1)
    return model


def build(side, faults):
    family, implementation = side.split("/")
    batch, targets = harness.images(SIZE), torch.tensor([1, 7])
    if family == "vit":
        if implementation == "timm":
            return timm_vit(faults), (lambda m, x: m(x)), batch, targets
        return fill_vit(transformers_vit(faults)), (lambda m, x: m(pixel_values=x).logits), batch, targets
    return resnet(implementation, faults), (lambda m, x: m(x)), batch, targets


if __name__ == "__main__":
    harness.run(build)
