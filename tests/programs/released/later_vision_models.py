"""Image models of projects that came later: vit-pytorch, perceiver-pytorch, segment-anything, hiera, diffusers and pytorchcv, beside transformers,
torchvision, or the same written again from the paper."""

import math

import torch
import torch.nn.functional as F
import vision_models
from other_vision_models import filled, in_order
from torch import nn

FAMILIES = ("patches", "latents", "sam", "hiera", "unet", "shuffle")
SIZES = dict(patches=(16, 2), latents=(8, 2), sam=(32, 2), hiera=(32, 2), unet=(8, 2), shuffle=(64, 4))
WIDTH, HEADS, SIZE = 32, 4, 8


def copied(model, state):
    """`state` holds names and tensors of all of `model`'s parameters."""
    own = dict(model.named_parameters())
    assert own.keys() == state.keys(), own.keys() ^ state.keys()
    with torch.no_grad():
        for name, p in own.items():
            p.copy_(state[name].reshape(p.shape))
    return model


class PatchBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        h = self.norm1(x)
        mixed, _ = self.attention(h, h, h, need_weights=True)
        x = x + mixed
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class PatchViT(nn.Module):
    """The projection is a convolution whose weight holds the first norm's gain; its bias, that norm's."""

    def __init__(self):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(48)), nn.Parameter(torch.zeros(48))
        self.project, self.norm = nn.Linear(48, WIDTH), nn.LayerNorm(WIDTH)
        self.first, self.places = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Parameter(torch.zeros(1, 17, WIDTH))
        self.blocks = nn.ModuleList(PatchBlock() for _ in range(3))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, images):
        pieces = F.unfold(images, 4, stride=4).transpose(1, 2)
        variance, mean = torch.var_mean(pieces, -1, correction=0, keepdim=True)
        pieces = (pieces - mean) * torch.rsqrt(variance + 1e-5) * self.gain + self.shift
        x = self.norm(self.project(pieces))
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x)[:, 0])


def lucid_vit():
    from vit_pytorch.vit import ViT

    return filled(ViT(image_size=16, patch_size=4, num_classes=10, dim=WIDTH, depth=3, heads=HEADS, mlp_dim=2 * WIDTH, dim_head=SIZE))


def by_channel(rows):
    """Columns in the order (row, column, channel) put into the order (channel, row, column)."""
    return rows.unflatten(-1, (4, 4, 3)).movedim(-1, -3).flatten(-3)


def build_patch_vit(family, changes, attention):
    given = dict(lucid_vit().named_parameters())
    patch = "to_patch_embedding."
    state = dict(gain=by_channel(given[patch + "1.weight"]), shift=by_channel(given[patch + "1.bias"]), first=given["cls_token"])
    state |= {"places": given["pos_embedding"], "project.weight": by_channel(given[patch + "2.weight"])}
    state["project.bias"] = given[patch + "2.bias"]
    for kind in ("weight", "bias"):
        state[f"norm.{kind}"], state[f"last.{kind}"] = given[f"{patch}3.{kind}"], given[f"transformer.norm.{kind}"]
        state[f"head.{kind}"] = given[f"mlp_head.{kind}"]
        for n in range(3):
            old, new = f"transformer.layers.{n}.", f"blocks.{n}."
            state[f"{new}norm1.{kind}"], state[f"{new}norm2.{kind}"] = given[f"{old}0.norm.{kind}"], given[f"{old}1.net.0.{kind}"]
            state[f"{new}up.{kind}"], state[f"{new}down.{kind}"] = given[f"{old}1.net.1.{kind}"], given[f"{old}1.net.4.{kind}"]
            state[f"{new}attention.out_proj.{kind}"] = given[f"{old}0.to_out.0.{kind}"]
            state[f"{new}attention.in_proj_weight"], state[f"{new}attention.in_proj_bias"] = given[f"{old}0.to_qkv.weight"], torch.zeros(3 * WIDTH)
    model = copied(PatchViT(), state)
    for block in model.blocks:
        block.attention.in_proj_bias.requires_grad_(False)
    return model


def lucid_perceiver():
    from perceiver_pytorch.perceiver_pytorch import Perceiver

    own = dict(num_freq_bands=3, depth=2, max_freq=8.0, num_latents=6, latent_dim=WIDTH, cross_heads=2, latent_heads=HEADS, num_classes=10)
    return filled(Perceiver(**own, cross_dim_head=SIZE, latent_dim_head=SIZE, self_per_cross_attn=1))


def build_lucid_perceiver(family, changes, attention):
    model = lucid_perceiver()
    model.scores_of = lambda images: model(images.movedim(1, -1))
    return model


class Attend(nn.Module):
    """Of `x` to `context`, as functions; the names are those of the paper."""

    def __init__(self, width, context, heads):
        super().__init__()
        self.heads, inner = heads, heads * SIZE
        self.q_norm, self.kv_norm = nn.LayerNorm(width), nn.LayerNorm(context) if context else None
        self.q, self.k, self.v = (nn.Linear(n, inner, bias=False) for n in (width, context or width, context or width))
        self.o = nn.Linear(inner, width)
        self.mlp_norm, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x, context=None):
        h = self.q_norm(x)
        context = h if context is None else self.kv_norm(context)
        q, k, v = (t.unflatten(-1, (self.heads, SIZE)).transpose(1, 2) for t in (self.q(h), self.k(context), self.v(context)))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        value, gate = self.fc1(self.mlp_norm(x)).split(4 * WIDTH, -1)
        return x + self.fc2(F.gelu(gate) * value)


class PlainPerceiver(nn.Module):
    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.zeros(6, WIDTH))
        self.reads, self.thinks = (nn.ModuleList(Attend(WIDTH, n, heads) for _ in range(2)) for n, heads in ((17, 2), (None, HEADS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, images):
        batch, _, height, width = images.shape
        rates = math.pi * torch.linspace(1.0, 4.0, 3, dtype=images.dtype)
        parts = [images.flatten(2).transpose(1, 2)]
        for axis, count in enumerate((height, width)):
            along = torch.linspace(-1.0, 1.0, count, dtype=images.dtype)
            place = (along[:, None].expand(-1, width) if axis == 0 else along[None].expand(height, -1)).reshape(-1, 1)
            parts += [t.expand(batch, -1, -1) for t in (torch.sin(place * rates), torch.cos(place * rates), place)]
        data, x = torch.cat(parts, -1), self.latents.expand(batch, -1, -1)
        for read, think in zip(self.reads, self.thinks):
            x = think(read(x, data))
        return self.head(self.norm(x.sum(1) / x.shape[1]))


def build_plain_perceiver(family, changes, attention):
    given = dict(lucid_perceiver().named_parameters())
    state = dict(latents=given["latents"])
    for kind in ("weight", "bias"):
        state[f"norm.{kind}"], state[f"head.{kind}"] = given[f"to_logits.1.{kind}"], given[f"to_logits.2.{kind}"]
    for n in range(2):
        pairs = (("reads", "cross_attn", "cross_ff"), ("thinks", "self_attns.0.0", "self_attns.0.1"))
        for part, mixer, feed in pairs:
            old, new = f"layers.{n}.", f"{part}.{n}."
            keys, values = given[f"{old}{mixer}.fn.to_kv.weight"].chunk(2)
            state |= {new + "q.weight": given[f"{old}{mixer}.fn.to_q.weight"], new + "k.weight": keys, new + "v.weight": values}
            for kind in ("weight", "bias"):
                state[f"{new}q_norm.{kind}"], state[f"{new}o.{kind}"] = given[f"{old}{mixer}.norm.{kind}"], given[f"{old}{mixer}.fn.to_out.{kind}"]
                state[f"{new}mlp_norm.{kind}"] = given[f"{old}{feed}.norm.{kind}"]
                state[f"{new}fc1.{kind}"], state[f"{new}fc2.{kind}"] = (given[f"{old}{feed}.fn.net.{k}.{kind}"] for k in (0, 2))
                if part == "reads":
                    state[f"{new}kv_norm.{kind}"] = given[f"{old}{mixer}.norm_context.{kind}"]
    return copied(PlainPerceiver(), state)


def transformers_sam(changes, attention):
    vision_models.without_operators()
    from transformers.models.sam.configuration_sam import SamVisionConfig
    from transformers.models.sam.modeling_sam import SamVisionEncoder

    own = dict(hidden_size=WIDTH, output_channels=10, num_hidden_layers=3, num_attention_heads=HEADS, image_size=32, patch_size=4, window_size=3)
    config = SamVisionConfig(**{**own, **changes}, global_attn_indexes=[2], mlp_dim=2 * WIDTH)
    config._attn_implementation = attention
    return filled(SamVisionEncoder(config))


def build_transformers_sam(family, changes, attention):
    model = transformers_sam(changes, attention)
    model.scores_of = lambda images: model(images).last_hidden_state.mean((2, 3))
    return model


def build_sam(family, changes, attention):
    vision_models.without_operators()
    import functools

    from segment_anything.modeling.image_encoder import ImageEncoderViT

    own = dict(img_size=32, patch_size=4, embed_dim=WIDTH, depth=3, num_heads=HEADS, mlp_ratio=2, out_chans=10, use_rel_pos=True, window_size=3)
    model = ImageEncoderViT(**own, global_attn_indexes=(2,), norm_layer=functools.partial(nn.LayerNorm, eps=1e-6))
    in_order(transformers_sam({}, attention), model)
    model.scores_of = lambda images: model(images).flatten(2).mean(-1)
    return model


def transformers_hiera(changes, attention):
    vision_models.without_operators()
    import transformers

    own = dict(embed_dim=16, image_size=[32, 32], depths=[1, 2, 1], num_heads=[1, 2, 4], num_query_pool=2, masked_unit_size=[4, 4])
    own |= dict(masked_unit_attention=[True, True, False], mlp_ratio=2.0, patch_size=[7, 7], patch_stride=[4, 4], patch_padding=[3, 3])
    config = transformers.HieraConfig(**{**own, **changes}, num_labels=10, layer_norm_init=1.0, drop_path_rate=0.0)
    return filled(transformers.HieraForImageClassification(config))


def build_hiera(family, changes, attention):
    vision_models.without_operators()
    from hiera.hiera import Hiera

    own = dict(input_size=(32, 32), embed_dim=16, num_heads=1, num_classes=10, stages=(1, 2, 1), q_pool=2, mask_unit_size=(4, 4), mlp_ratio=2.0)
    model = Hiera(**own, mask_unit_attn=(True, True, False))
    model.head.act_func = nn.Identity()
    return in_order(transformers_hiera({}, attention), model)


def diffusers_unet():
    vision_models.without_operators()
    from diffusers.models.unets.unet_2d import UNet2DModel

    own = dict(
        sample_size=8, in_channels=3, out_channels=10, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=4, attention_head_dim=8
    )
    kinds = dict(down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"))
    return filled(UNet2DModel(**own, **kinds))


def build_diffusers_unet(family, changes, attention):
    model = diffusers_unet()
    model.scores_of = lambda images: model(images, torch.tensor([3, 40])).sample.mean((2, 3))
    return model


class Residual(nn.Module):
    def __init__(self, given, out):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, given), nn.Conv2d(given, out, 3, padding=1)
        self.temb_proj = nn.Linear(64, out)
        self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(given, out, 1) if given != out else None

    def forward(self, x, temb):
        h = self.norm1(x)
        h = self.conv1(h * torch.sigmoid(h))
        h = h + self.temb_proj(temb * torch.sigmoid(temb))[:, :, None, None]
        h = self.norm2(h)
        h = self.conv2(h * torch.sigmoid(h))
        return h + (x if self.nin_shortcut is None else self.nin_shortcut(x))


class Spatial(nn.Module):
    """Attention between places of an image, by products of (channel, place)."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x):
        batch, width, height, across = x.shape
        h = self.norm(x)
        q, k, v = (part(h).reshape(batch * width // 8, 8, height * across) for part in (self.q, self.k, self.v))
        weights = torch.softmax(torch.bmm(q.transpose(1, 2), k) * 8**-0.5, 2)
        h = torch.bmm(v, weights.transpose(1, 2)).reshape(x.shape)
        return x + self.proj_out(h)


class PlainUNet(nn.Module):
    """As the program that came with the first paper, in torch."""

    def __init__(self):
        super().__init__()
        self.conv_in, self.dense = nn.Conv2d(3, 16, 3, padding=1), nn.ModuleList([nn.Linear(16, 64), nn.Linear(64, 64)])
        self.down = nn.ModuleList([Residual(16, 16), nn.Conv2d(16, 16, 3, stride=2, padding=1), Residual(16, 32), Spatial(32)])
        self.mid = nn.ModuleList([Residual(32, 32), Spatial(32), Residual(32, 32)])
        self.up1 = nn.ModuleList([Residual(64, 32), Spatial(32), Residual(48, 32), Spatial(32)])
        self.upsample = nn.Conv2d(32, 32, 3, padding=1)
        self.up0 = nn.ModuleList([Residual(48, 16), Residual(32, 16)])
        self.norm_out, self.conv_out = nn.GroupNorm(4, 16), nn.Conv2d(16, 10, 3, padding=1)

    def forward(self, x, t):
        rates = torch.exp(torch.arange(8, dtype=torch.float32) * -(math.log(10000) / 8)).to(x.dtype)
        angles = t[:, None].to(x.dtype) * rates[None]
        temb = self.dense[0](torch.cat([torch.cos(angles), torch.sin(angles)], 1))
        temb = self.dense[1](temb * torch.sigmoid(temb))
        kept = [self.conv_in(x)]
        kept.append(self.down[0](kept[-1], temb))
        kept.append(self.down[1](kept[-1]))
        kept.append(self.down[3](self.down[2](kept[-1], temb)))
        h = self.mid[2](self.mid[1](self.mid[0](kept[-1], temb)), temb)
        h = self.up1[1](self.up1[0](torch.cat([h, kept.pop()], 1), temb))
        h = self.up1[3](self.up1[2](torch.cat([h, kept.pop()], 1), temb))
        h = self.upsample(h.repeat_interleave(2, 2).repeat_interleave(2, 3))
        for block in self.up0:
            h = block(torch.cat([h, kept.pop()], 1), temb)
        h = self.norm_out(h)
        return self.conv_out(h * torch.sigmoid(h))


UNET_PARTS = {
    "conv_in": "conv_in", "dense.0": "time_embedding.linear_1", "dense.1": "time_embedding.linear_2",
    "down.0": "down_blocks.0.resnets.0", "down.1": "down_blocks.0.downsamplers.0.conv", "down.2": "down_blocks.1.resnets.0",
    "down.3": "down_blocks.1.attentions.0", "mid.0": "mid_block.resnets.0", "mid.1": "mid_block.attentions.0", "mid.2": "mid_block.resnets.1",
    "up1.0": "up_blocks.0.resnets.0", "up1.1": "up_blocks.0.attentions.0", "up1.2": "up_blocks.0.resnets.1", "up1.3": "up_blocks.0.attentions.1",
    "upsample": "up_blocks.0.upsamplers.0.conv", "up0.0": "up_blocks.1.resnets.0", "up0.1": "up_blocks.1.resnets.1", "norm_out": "conv_norm_out",
    "conv_out": "conv_out",
}  # fmt: skip
UNET_WORDS = {"temb_proj": "time_emb_proj", "nin_shortcut": "conv_shortcut", "q": "to_q", "k": "to_k", "v": "to_v", "proj_out": "to_out.0"}


def build_plain_unet(family, changes, attention):
    given, state = dict(diffusers_unet().named_parameters()), {}
    model = PlainUNet()
    for name, _ in model.named_parameters():
        part = next(part for part in UNET_PARTS if name.startswith(part + "."))
        *inner, kind = name.removeprefix(part + ".").split(".")
        spatial = part in ("down.3", "mid.1", "up1.1", "up1.3")
        words = ["group_norm" if spatial and word == "norm" else UNET_WORDS.get(word, word) for word in inner]
        state[name] = given[".".join([UNET_PARTS[part], *words, kind])]
    copied(model, state)
    model.scores_of = lambda images: model(images, torch.tensor([3, 40])).flatten(2).mean(2)
    return model


def torchvision_shuffle():
    vision_models.without_operators()
    from torchvision.models.shufflenetv2 import ShuffleNetV2

    return filled(ShuffleNetV2([2, 3, 2], [8, 16, 24, 32, 40], num_classes=10))


def build_cv_shuffle(family, changes, attention):
    vision_models.without_operators()
    from pytorchcv.models.shufflenetv2 import ShuffleNetV2

    model = ShuffleNetV2([[16, 16], [24, 24, 24], [32, 32]], 8, 40, in_size=(64, 64), num_classes=10)
    model.features.final_pool = nn.AvgPool2d(2)
    model.features.init_block.pool = nn.MaxPool2d(3, 2, padding=1)  # torchvision pads where the first author counts the last window
    given, own = torchvision_shuffle().state_dict(), model.state_dict()
    second = ("compress_conv1", "compress_bn1", "dw_conv2", "dw_bn2", "expand_conv3", "expand_bn3")
    first, state = ("dw_conv4", "dw_bn4", "expand_conv5", "expand_bn5"), {}
    numbers = {**{f"branch1.{k}": v for k, v in zip((0, 1, 2, 3), first)}, **{f"branch2.{k}": v for k, v in zip((0, 1, 3, 4, 5, 6), second)}}
    for name, value in given.items():
        head, *rest = name.split(".")
        if head.startswith("stage"):
            unit, branch, number, kind = rest
            new = f"features.stage{int(head[-1]) - 1}.unit{int(unit) + 1}.{numbers[f'{branch}.{number}']}.{kind}"
        elif head == "fc":
            new = f"output.{rest[0]}"
        else:
            block = "init_block.conv" if head == "conv1" else "final_block"
            new = f"features.{block}.{'conv' if rest[0] == '0' else 'bn'}.{rest[1]}"
        state[new] = value
    assert own.keys() == state.keys(), own.keys() ^ state.keys()
    model.load_state_dict(state)
    return model


BUILDERS = {
    ("patches", "vitpytorch"): lambda *given: lucid_vit(),
    ("patches", "patchvit"): build_patch_vit,
    ("latents", "perceiver"): build_lucid_perceiver,
    ("latents", "plainperceiver"): build_plain_perceiver,
    ("sam", "transformers"): build_transformers_sam,
    ("sam", "sam"): build_sam,
    ("hiera", "transformers"): lambda family, changes, attention: transformers_hiera(changes, attention),
    ("hiera", "hiera"): build_hiera,
    ("unet", "diffusers"): build_diffusers_unet,
    ("unet", "plainunet"): build_plain_unet,
    ("shuffle", "torchvision"): lambda *given: torchvision_shuffle(),
    ("shuffle", "pytorchcv"): build_cv_shuffle,
}
