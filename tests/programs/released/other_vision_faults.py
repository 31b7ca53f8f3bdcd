"""Faults of the further image models, as ported_faults has them: which published line says something else, where."""

from other_language_faults import ATTENTION, FEED

STAGE = ("*stages.2.*.0*", "*features.5.0*", "*features.5.0.*")
SWIN_BLOCK = ("*layers.0.blocks.1*", "*features.1.1*")

TF_CONVNEXT = {
    "no-layer-scale": ("/convnext.encoder.stages.2.layers.0", "forward", "self.layer_scale_parameter * features", "features", *STAGE),
    "drop-path-in-eval": ("/convnext.encoder.stages.2.layers.0", "forward", "self.drop_path(features)", "0.9 * features", *STAGE),
    "norm-before-pool": (
        "/convnext",
        "forward",
        "self.layernorm(last_hidden_state.mean([-2, -1]))",
        "self.layernorm(last_hidden_state.permute(0, 2, 3, 1)).mean([1, 2])",
        "convnext.layernorm",
        "head*",
        "classifier*",
    ),
    "norm-after-activation": (
        "/convnext.encoder.stages.2.layers.0",
        "forward",
        "features = self.pwconv1(features)\n    features = self.act(features)",
        "features = self.act(features)\n    features = self.pwconv1(features)",
        "convnext.encoder.stages.2.layers.0.*",
        *STAGE,
    ),
}
TIMM_CONVNEXT = {
    "no-layer-scale": ("/stages.2.blocks.0", "forward", "x.mul(self.gamma.reshape(1, -1, 1, 1))", "x", *STAGE),
    "dropped-residual": ("/stages.2.blocks.0", "forward", "self.drop_path(x) + self.shortcut(shortcut)", "self.drop_path(x)", *STAGE),
    "norm-eps": ("/stages.2.blocks.0.norm", "forward", "self.eps", "1e-3", *STAGE),
    "tanh-gelu": ("/stages.2.blocks.0.mlp.act", "forward", "F.gelu(input)", "F.gelu(input, approximate='tanh')", "stages.2.blocks.0.mlp", *STAGE),
}
TORCHVISION_CONVNEXT = {
    "scaled-twice": ("/features.5.0", "forward", "self.layer_scale *", "self.layer_scale * self.layer_scale *", *STAGE),
    "channels-of-norm": ("/features.3.0.block.2", "forward", "self.eps", "1e-2", "*stages.1.*", "features.3.0*"),
}
TF_SWIN = {
    "no-shift-mask": ("/swin.encoder.layers.0.blocks.1", "forward", "hidden_states_windows, attn_mask,", "hidden_states_windows, None,", *SWIN_BLOCK),
    "no-relative-bias": (
        "/swin.encoder.layers.0.blocks.1.attention",
        "forward",
        "relative_position_bias + attention_mask",
        "0 * relative_position_bias + attention_mask",
        *SWIN_BLOCK,
    ),
    "merge-order": (
        "/swin.encoder.layers.0.downsample",
        "forward",
        "for col in range(2) for row in range(2)",
        "for row in range(2) for col in range(2)",
        "layers.1.downsample*",
        "features.2*",
    ),
    "unshifted-back": ("/swin.encoder.layers.0.blocks.1", "forward", ", reverse=True", ", reverse=False", *SWIN_BLOCK),
}
TIMM_SWIN = {
    "shift-the-other-way": (
        "/layers.0.blocks.1",
        "_attn",
        "shifts=(-self.shift_size[0], -self.shift_size[1])",
        "shifts=(self.shift_size[0], self.shift_size[1])",
        *SWIN_BLOCK,
    ),
    "no-shift-mask": ("/layers.0.blocks.1", "_attn", "mask=attn_mask", "mask=None", *SWIN_BLOCK),
    "scale-by-width": (
        "/layers.0.blocks.1.attn",
        "forward",
        "q, k, v = qkv.unbind(0)",
        "q, k, v = qkv.unbind(0)\n    q = q * self.scale",
        *SWIN_BLOCK,
    ),
}
TORCHVISION_SWIN = {
    "transposed-bias": (
        "/features.1.1.attn",
        "forward>shifted_window_attention",
        "attn + relative_position_bias",
        "attn + relative_position_bias.mT",
        *SWIN_BLOCK,
    ),
    "weak-mask": ("/features.1.1.attn", "forward>shifted_window_attention", "float(-100.0)", "float(-1.0)", *SWIN_BLOCK),
}
TF_DINO = {
    "no-layer-scale": ("", "forward", "self.layer_scale1(hidden_states)", "hidden_states", "*.1.ls1", "*.1.layer_scale1", *ATTENTION),
    "pooled-with-class": ("/", "forward", "patch_tokens.mean(dim=1)", "sequence_output.mean(dim=1)", "(root*"),
    "scale-by-width": ("attention", "forward", "scaling=self.scaling", "scaling=self.scaling / 2", *ATTENTION),
}
TIMM_DINO = {
    "scale-of-the-other": ("/body.blocks.1", "forward", "self.ls2(self.mlp(", "self.ls1(self.mlp(", "body.blocks.1*", "*.layer.1.layer_scale2"),
    "unpositioned-class": (
        "/body",
        "_pos_embed",
        "x = x + pos_embed\n\n    return",
        "x = x + torch.cat([0 * pos_embed[:, :1], pos_embed[:, 1:]], 1)\n\n    return",
        "(root*",
        "*embeddings*",
        "body.patch_embed*",
    ),
}
TF_BEIT = {
    "pooled-with-class": ("/beit.pooler", "forward", "hidden_states[:, 1:, :].mean(1)", "hidden_states.mean(1)", "(root*", "fc_norm", "blocks.2*"),
    "no-layer-scale": ("", "forward", "self.lambda_2 * hidden_states", "hidden_states", "blocks.1*"),
    "transposed-bias": (
        "",
        "forward",
        "relative_position_bias + attention_mask if attention_mask is not None else relative_position_bias",
        "relative_position_bias.mT",
        "*.1.attention*",
        "blocks.1.attn*",
    ),
}
TIMM_BEIT = {
    "biases-exchanged": (
        "attn",
        "forward",
        "torch.cat((self.q_bias, self.k_bias, self.v_bias))",
        "torch.cat((self.v_bias, self.k_bias, self.q_bias))",
        "*.1.attention*",
    ),
    "no-relative-bias": ("attn", "forward", "attn_mask=rel_pos_bias", "attn_mask=None", "*.1.attention*", "*.1.relative*"),
    "pooled-token": ("/", "forward_head", "x[:, self.num_prefix_tokens:].mean(dim=1)", "x[:, 0]", "(root*", "fc_norm", "beit.pooler*"),
}
TF_DEIT = {
    "class-head-alone": ("/", "forward", "(cls_logits + distillation_logits) / 2", "cls_logits", "(root*", "head*"),
    "tokens-exchanged": (
        "/deit.embeddings",
        "forward",
        "(cls_tokens, distillation_tokens,",
        "(distillation_tokens, cls_tokens,",
        "(root*",
        "patch_embed*",
    ),
}
TIMM_DEIT = {
    "heads-exchanged": ("/", "forward_head", "x, x_dist = x[:, 0], x[:, 1]", "x_dist, x = x[:, 0], x[:, 1]", "(root*", "head*", "*classifier"),
    "summed-heads": ("/", "forward_head", "return (x + x_dist) / 2", "return x + x_dist", "(root*"),
}
TF_SIGLIP = {
    "probe-without-residual": ("/head", "forward", "residual + self.mlp(hidden_state)", "self.mlp(hidden_state)", "attn_pool*"),
    "scale-by-width": ("self_attn", "forward", "scaling=self.scale", "scaling=self.embed_dim**-0.5", *ATTENTION),
}
TIMM_SIGLIP = {
    "mean-of-tokens": (
        "/attn_pool",
        "forward",
        "self.latent.expand(B, -1, -1)",
        "(self.latent + 0 * x.mean(1, True)).expand(B, -1, -1) * 1.1",
        "head*",
        "attn_pool*",
    ),
    "residual-of-norm": ("/attn_pool", "forward", "x = x + self.mlp(self.norm(x))", "x = self.norm(x)\n        x = x + self.mlp(x)", "head*"),
    "exact-gelu": ("mlp.act", "forward", "'tanh'", "'none'", "blocks.1.mlp*", *FEED),
}
TF_REGNET = {
    "gate-of-output": (
        "/regnet.encoder.stages.2.layers.0.layer.2",
        "forward",
        "hidden_state * attention",
        "hidden_state + attention",
        "trunk_output.block3.block3-0*",
    ),
    "no-activation": (
        "/regnet.encoder.stages.2.layers.0",
        "forward",
        "hidden_state = self.activation(hidden_state)",
        "pass",
        "trunk_output.block3.block3-0*",
        "regnet.encoder.stages.2.layers.0.activation",
    ),
}
TORCHVISION_REGNET = {
    "norm-momentum": (
        "/trunk_output.block3.block3-0.f.a.1",
        "forward",
        "exponential_average_factor = self.momentum",
        "exponential_average_factor = 0.01",
        "*stages.2.layers.0*",
    ),
    "kept-statistics": ("/trunk_output.block3.block3-0.f.a.1", "forward", "bn_training = True", "bn_training = False", "*stages.2.layers.0*"),
}
TIMM_DENSENET = {
    "order-of-features": (
        "/features.denseblock1.denselayer2",
        "bottleneck_fn",
        "torch.cat(xs, 1)",
        "torch.cat(xs[::-1], 1)",
        "features.denseblock1*",
    ),
    "max-for-mean": ("/features.transition1.pool", "forward", "F.avg_pool2d(", "(lambda x, *a: F.max_pool2d(x, 2))(", "features.transition1*"),
}

LINES = {
    ("convnext", "transformers"): TF_CONVNEXT,
    ("convnext", "timm"): TIMM_CONVNEXT,
    ("convnext", "torchvision"): TORCHVISION_CONVNEXT,
    ("swin", "transformers"): TF_SWIN,
    ("swin", "timm"): TIMM_SWIN,
    ("swin", "torchvision"): TORCHVISION_SWIN,
    ("dinov2", "transformers"): TF_DINO,
    ("dinov2", "timm"): TIMM_DINO,
    ("beit", "transformers"): TF_BEIT,
    ("beit", "timm"): TIMM_BEIT,
    ("deit", "transformers"): TF_DEIT,
    ("deit", "timm"): TIMM_DEIT,
    ("siglip", "transformers"): TF_SIGLIP,
    ("siglip", "timm"): TIMM_SIGLIP,
    ("regnet", "transformers"): TF_REGNET,
    ("regnet", "torchvision"): TORCHVISION_REGNET,
    ("densenet", "timm"): TIMM_DENSENET,
}
