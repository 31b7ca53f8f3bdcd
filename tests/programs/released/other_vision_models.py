"""Image models of transformers beside those of timm and torchvision. Published names: those of transformers 5, or of torchvision."""

import functools

import moved_weights
import named_weights
import torch
import vision_models

FAMILIES = ("convnext", "swin", "dinov2", "beit", "deit", "siglip", "regnet", "densenet")
SIZES = dict(convnext=(64, 2), swin=(32, 2), regnet=(32, 4), densenet=(32, 4))  # of an image, and images
VIT = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128, image_size=16, patch_size=4, hidden_act="gelu")
STILL = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
TIMM_VIT = dict(img_size=16, patch_size=4, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2)


def weight(name, shape):
    """Scales of layers are near one, where a fresh model's are near zero; tables of relative positions are drawn as embeddings are."""
    if any(word in name for word in ("lambda", "layer_scale", "gamma")):
        return named_weights.weight(name + ".weight", (shape.numel(),)).reshape(shape) * 0.7
    if any(word in name for word in ("position_embedding", "bias_table", "token", "probe")):
        return named_weights.weight("embed." + name, shape)
    return named_weights.weight(name, shape)


def filled(model):
    """Weights and running statistics of `model` by their names."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(weight(name, p.shape))
        for name, b in model.named_buffers():
            if name.endswith("running_mean"):
                b.copy_(named_weights.weight(name + ".bias", b.shape))
            if name.endswith("running_var"):
                b.copy_(named_weights.weight(name + ".weight", b.shape).abs() * 0.05 + 0.24)
    return model


def transformers_model(family, changes, attention):
    vision_models.without_operators()
    import transformers as source

    own = {
        "convnext": dict(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], layer_scale_init_value=1.0),
        "swin": dict(
            image_size=32, patch_size=2, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4, drop_path_rate=0.0, mlp_ratio=2.0, **STILL
        ),
        "dinov2": dict(VIT, **STILL, mlp_ratio=2, use_mask_token=False, layer_norm_eps=1e-6),
        "beit": dict(VIT, **STILL, use_relative_position_bias=True, drop_path_rate=0.0, layer_norm_eps=1e-6),
        "deit": dict(VIT, **STILL, layer_norm_eps=1e-6),
        "siglip": dict(VIT, hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6),
        "regnet": dict(embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], groups_width=8, layer_type="y"),
    }[family]
    kinds = dict(convnext="ConvNext", swin="Swin", dinov2="Dinov2", beit="Beit", deit="DeiT", siglip="SiglipVision", regnet="RegNet")
    config = getattr(source, kinds[family] + "Config")(num_labels=10, **{**own, **changes})
    if family in ("dinov2", "beit", "deit", "siglip", "swin"):
        config._attn_implementation = attention
    tail = {"siglip": "Model", "deit": "ForImageClassificationWithTeacher"}.get(family, "ForImageClassification")
    return getattr(source, kinds[family] + tail)(config)


def build_transformers(family, changes, attention):
    model = filled(transformers_model(family, changes, attention))
    if family == "siglip":
        model.scores_of = lambda images: model(pixel_values=images).pooler_output
    return model


def published(family, buffers=("running_",)):
    return moved_weights.contents(filled(transformers_model(family, {}, "eager")), buffers)


THIRDS = [(r"([qkv])_proj\.(\w+)$", lambda found: f"qkv.{found[2]}#{'qkv'.index(found[1])}")]
BLOCK = [(r"layernorm_before", "norm1"), (r"layernorm_after", "norm2"), (r"layer_norm(\d)", r"norm\1")]
PATCHES = [(r".*patch_embeddings?\.projection\.", "patch_embed.proj."), (r".*cls_token", "cls_token"), (r".*position_embeddings", "pos_embed")]
LAYERS = [(r"^\w+\.(?:encoder\.)?layers?\.(\d+)\.", r"blocks.\1.")]
TIMM_RULES = {
    "convnext": [
        (r"convnext\.embeddings\.patch_embeddings", "stem.0"),
        (r"convnext\.embeddings\.layernorm", "stem.1"),
        (r"convnext\.encoder\.", ""),
        (r"\.layers\.", ".blocks."),
        (r"layer_scale_parameter", "gamma"),
        (r"dwconv", "conv_dw"),
        (r"pwconv(\d)", r"mlp.fc\1"),
        (r"downsampling_layer", "downsample"),
        (r"^convnext\.layernorm", "head.norm"),
        (r"\.layernorm", ".norm"),
        (r"classifier", "head.fc"),
    ],
    "swin": [
        (r"swin\.embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
        (r"swin\.embeddings\.norm", "patch_embed.norm"),
        (r"swin\.encoder\.layers\.(\d)\.downsample", lambda found: f"layers.{int(found[1]) + 1}.downsample"),
        (r"swin\.encoder\.", ""),
        (r"attention\.o_proj", "attn.proj"),
        (r"attention\.relative_position_bias\.", "attn."),
        (r"attention\.", "attn."),
        *THIRDS,
        *BLOCK,
        (r"swin\.layernorm", "norm"),
        (r"classifier", "head.fc"),
    ],
    "dinov2": [
        *PATCHES,
        *LAYERS,
        (r"attention\.o_proj", "attn.proj"),
        (r"attention\.", "attn."),
        *THIRDS,
        (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
        (r"dinov2\.layernorm", "norm"),
        (r"classifier", "head"),
    ],
    "beit": [
        *PATCHES,
        *LAYERS,
        (r"relative_position_bias\.rel", "attn.rel"),
        (r"lambda_(\d)", r"gamma_\1"),
        (r"attention\.o_proj", "attn.proj"),
        (r"attention\.([qv])_proj\.bias", r"attn.\1_bias"),
        (r"attention\.", "attn."),
        *THIRDS,
        *BLOCK,
        (r"beit\.pooler\.layernorm", "fc_norm"),
        (r"classifier", "head"),
    ],
    "deit": [
        (r".*distillation_token", "dist_token"),
        *PATCHES,
        *LAYERS,
        (r"attention\.o_proj", "attn.proj"),
        (r"attention\.", "attn."),
        *THIRDS,
        *BLOCK,
        (r"deit\.layernorm", "norm"),
        (r"distillation_classifier", "head_dist"),
        (r"cls_classifier", "head"),
    ],
    "siglip": [
        (r"embeddings\.patch_embedding\.", "patch_embed.proj."),
        (r"embeddings\.position_embedding\.weight", "pos_embed"),
        (r"encoder\.layers\.", "blocks."),
        (r"self_attn\.out_proj", "attn.proj"),
        (r"self_attn\.", "attn."),
        *THIRDS,
        *BLOCK,
        (r"post_layernorm", "norm"),
        (r"head\.probe", "attn_pool.latent"),
        (r"head\.attention\.out_proj", "attn_pool.proj"),
        (r"head\.layernorm", "attn_pool.norm"),
        (r"head\.mlp", "attn_pool.mlp"),
    ],
}


def with_parts_of_pool(given):
    """The packed rows of siglip's pooling attention: queries apart from keys and values."""
    for kind in ("weight", "bias"):
        packed = given.pop(f"head.attention.in_proj_{kind}")
        given[f"attn_pool.q.{kind}"], given[f"attn_pool.kv.{kind}"] = packed[:64], packed[64:]
    return given


def build_timm(family, changes, attention):
    vision_models.without_operators()
    import timm.models as source

    vit = source.vision_transformer.VisionTransformer
    if family == "convnext":
        model = source.convnext.ConvNeXt(depths=(1, 1, 2, 1), dims=(16, 32, 48, 64), num_classes=10, ls_init_value=1.0, norm_eps=1e-12, **changes)
        for norm in [model.stem[1], *(stage.downsample[0] for stage in model.stages[1:])]:
            norm.eps = 1e-6  # transformers has another eps in blocks and at the end
        for stage in model.stages:
            for block in stage.blocks:
                block.norm.eps = 1e-6
        return moved_weights.moved(published(family), TIMM_RULES[family], model)
    if family == "swin":
        own = dict(img_size=32, patch_size=2, embed_dim=32, depths=(2, 2), num_heads=(2, 4), window_size=4, drop_path_rate=0.0, mlp_ratio=2.0)
        model = source.swin_transformer.SwinTransformer(num_classes=10, **{**own, **changes})
    elif family == "dinov2":
        model = DinoHead(vit(**TIMM_VIT, num_classes=0, init_values=1.0, global_pool="token", **changes))
        return moved_weights.moved(published(family), [*TIMM_RULES[family], (r"^(?!head)", "body.")], model)
    elif family == "beit":
        own = dict(
            TIMM_VIT, use_abs_pos_emb=False, use_rel_pos_bias=True, init_values=0.1, norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-6)
        )
        model = source.beit.Beit(num_classes=10, **{**own, **changes})
        model.fc_norm.eps = 1e-6
    elif family == "deit":
        model = source.deit.VisionTransformerDistilled(**TIMM_VIT, num_classes=10, **changes)
    else:
        model = vit(**TIMM_VIT, num_classes=0, class_token=False, global_pool="map", act_layer="gelu_tanh", **changes)
    given = published(family)
    return moved_weights.moved(with_parts_of_pool(given) if family == "siglip" else given, TIMM_RULES[family], model)


class DinoHead(torch.nn.Module):
    """The classifier reads the first token beside the mean of the others, as DINOv2's own linear probe."""

    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, torch.nn.Linear(128, 10)

    def forward(self, images):
        tokens = self.body.forward_features(images)
        return self.head(torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], 1))


def torchvision_source(family, changes):
    vision_models.without_operators()
    if family == "convnext":
        from torchvision.models.convnext import CNBlockConfig, ConvNeXt

        blocks = [CNBlockConfig(16, 32, 1), CNBlockConfig(32, 48, 1), CNBlockConfig(48, 64, 2), CNBlockConfig(64, None, 1)]
        return ConvNeXt(blocks, num_classes=10, layer_scale=1.0, **changes)
    if family == "swin":
        from torchvision.models.swin_transformer import SwinTransformer

        own = dict(mlp_ratio=2.0, stochastic_depth_prob=0.0, norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-5))
        return SwinTransformer([2, 2], 32, [2, 2], [2, 4], [4, 4], num_classes=10, **{**own, **changes})
    if family == "densenet":
        from torchvision.models.densenet import DenseNet

        return DenseNet(8, (2, 2), 16, num_classes=10, **changes)
    from torchvision.models.regnet import BlockParams, RegNet

    blocks = BlockParams([1, 1, 2, 1], [16, 32, 48, 64], [8] * 4, [1.0] * 4, [2] * 4, 0.25)
    return RegNet(blocks, num_classes=10, stem_width=16, **changes)


TORCHVISION_RULES = {
    "convnext": [
        (r"convnext\.embeddings\.patch_embeddings", "features.0.0"),
        (r"convnext\.embeddings\.layernorm", "features.0.1"),
        (r"convnext\.encoder\.stages\.(\d)\.downsampling_layer\.", lambda found: f"features.{2 * int(found[1])}."),
        (r"convnext\.encoder\.stages\.(\d)\.layers\.", lambda found: f"features.{2 * int(found[1]) + 1}."),
        (r"layer_scale_parameter", "layer_scale"),
        (r"dwconv", "block.0"),
        (r"pwconv1", "block.3"),
        (r"pwconv2", "block.5"),
        (r"^convnext\.layernorm", "classifier.0"),
        (r"\.layernorm", ".block.2"),
        (r"^classifier\.(\w+)$", r"classifier.2.\1"),
    ],
    "swin": [
        (r"swin\.embeddings\.patch_embeddings\.projection", "features.0.0"),
        (r"swin\.embeddings\.norm", "features.0.2"),
        (r"swin\.encoder\.layers\.(\d)\.downsample", lambda found: f"features.{2 * int(found[1]) + 2}"),
        (r"swin\.encoder\.layers\.(\d)\.blocks\.", lambda found: f"features.{2 * int(found[1]) + 1}."),
        (r"attention\.o_proj", "attn.proj"),
        (r"attention\.relative_position_bias\.", "attn."),
        (r"attention\.", "attn."),
        *THIRDS,
        *BLOCK,
        (r"mlp\.fc1", "mlp.0"),
        (r"mlp\.fc2", "mlp.3"),
        (r"swin\.layernorm", "norm"),
        (r"classifier", "head"),
    ],
}


def build_torchvision(family, changes, attention):
    model = torchvision_source(family, changes)
    if family in TORCHVISION_RULES:
        if family == "convnext":
            model.classifier[0].eps = 1e-12
        return moved_weights.moved(published(family), TORCHVISION_RULES[family], model)
    return in_order(filled(transformers_model(family, {}, attention)), model) if family == "regnet" else filled(model)


def in_order(given, model):
    """Both register their parts in one order."""
    theirs, ours = ([*m.parameters(), *(b for b in m.buffers() if b.is_floating_point())] for m in (given, model))
    assert [p.numel() for p in theirs] == [p.numel() for p in ours]
    with torch.no_grad():
        for a, b in zip(theirs, ours):
            b.copy_(a.reshape(b.shape))
    return model


def build_timm_densenet(family, changes, attention):
    vision_models.without_operators()
    from timm.models.densenet import DenseNet

    return in_order(filled(torchvision_source(family, {})), DenseNet(8, (2, 2), num_classes=10, **changes))


BUILDERS = {
    **{(f, "transformers"): build_transformers for f in FAMILIES if f != "densenet"},
    **{(f, "timm"): build_timm for f in ("convnext", "swin", "dinov2", "beit", "deit", "siglip")},
    **{(f, "torchvision"): build_torchvision for f in ("convnext", "swin", "densenet", "regnet")},
    ("densenet", "timm"): build_timm_densenet,
}
