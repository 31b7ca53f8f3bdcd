"""Faults of the models that came later, as ported_faults has them: which line says something else, in which module, and where that may show."""

PATCH_MIXER = ("transformer.layers.1.0*", "blocks.1.attention*", "blocks.1")
PATCH_FEED = ("transformer.layers.1.1*", "blocks.1", "blocks.1.up", "blocks.1.down", "blocks.1.norm2")
LUCID_VIT = {
    "scale-by-width": ("/transformer.layers.1.0", "forward", "* self.scale", "* 32**-0.5", *PATCH_MIXER),
    "heads-within": ("/transformer.layers.1.0", "forward", "'b h n d -> b n (h d)'", "'b h n d -> b n (d h)'", *PATCH_MIXER),
    "mean-of-tokens": ("/", "forward", "else x[:, 0]", "else x.mean(1)", "(root*", "mlp_head*", "head*", "last*"),
}
PATCH_VIT = {
    "tanh-gelu": ("/blocks.1", "forward", "F.gelu(self.up(self.norm2(x)))", "F.gelu(self.up(self.norm2(x)), approximate='tanh')", *PATCH_FEED),
    "residual-of-norm": ("/blocks.1", "forward", "x = x + mixed", "x = h + mixed", "transformer", "transformer.layers.1.0*", "blocks.1*"),
    "unbiased-variance": ("/", "forward", "correction=0", "correction=1", "(root*", "to_patch_embedding*"),
    "eps-of-patches": ("/", "forward", "1e-5", "1e-3", "(root*", "to_patch_embedding*"),
}
LUCID_PERCEIVER = {
    "scale-by-heads": (
        "/layers.1.self_attns.0.0.fn",
        "forward",
        "* self.scale",
        "* self.scale / self.heads",
        "layers.1.self_attns.0.0*",
        "thinks.1*",
    ),
    "softmax-of-queries": (
        "/layers.1.cross_attn.fn",
        "forward",
        "sim.softmax(dim = -1)",
        "sim.softmax(dim = -2)",
        "layers.1.cross_attn*",
        "reads.1*",
    ),
}
PLAIN_PERCEIVER = {
    "gate-and-value": ("/reads.1", "forward", "F.gelu(gate) * value", "F.gelu(value) * gate", "layers.1.cross_ff*", "reads.1*"),
    "unnormed-context": ("/reads.1", "forward", "self.kv_norm(context)", "context", "layers.1.cross_attn*", "reads.1*"),
    "sum-for-mean": ("/", "forward", " / x.shape[1]", "", "(root*", "norm", "to_logits*"),
    "other-rates": ("/", "forward", "linspace(1.0, 4.0, 3", "linspace(1.0, 8.0, 3", "(root*"),
}
SAM_MIXER = ("blocks.1.attn*", "layers.1.attn*")
SAM = {
    "no-relative-rows": ("/blocks.1.attn", "forward>add_decomposed_rel_pos", "rel_h[:, :, :, :, None] + rel_w", "rel_w", *SAM_MIXER),
    "scaled-relative": ("/blocks.1.attn", "forward", "rel_pos(attn, q,", "rel_pos(attn, q * self.scale,", *SAM_MIXER),
    "exchanged-axes": ("/blocks.1.attn", "forward", "self.rel_pos_h, self.rel_pos_w", "self.rel_pos_w, self.rel_pos_h", *SAM_MIXER),
    "padded-before": ("/blocks.1", "forward>window_partition", "(0, 0, 0, pad_w, 0, pad_h)", "(0, 0, pad_w, 0, pad_h, 0)", "blocks.1*", "layers.1*"),
}
TF_SAM = {
    "norm-eps": ("/layers.1.layer_norm2", "forward", "self.eps", "1e-2", "blocks.1.norm2"),
    "residual-before-window": ("/layers.1", "forward", "residual + hidden_states\n", "hidden_states\n", "blocks.1*", "layers.1*"),
}
HIERA_BLOCK = ("blocks.1*", "hiera.encoder.stages.1.layers.0*")
HIERA = {
    "mean-for-max": ("/blocks.1.attn", "forward", ".max(dim=3)\n            .values", ".mean(dim=3)", "hiera.encoder.stages.1.layers.0.attn*"),
    "pool-of-input": ("/blocks.1", "forward", "self.proj(x_norm)", "self.proj(x)", *HIERA_BLOCK),
    "unnormed-feed": ("/blocks.1", "forward", "self.mlp(self.norm2(x))", "self.mlp(x)", *HIERA_BLOCK),
}
TF_HIERA = {
    "no-scale": ("/hiera.encoder.stages.1.layers.1.attn", "forward", "(query * self.scale)", "query", "blocks.2.attn*"),
}
UNET_DOWN = ("down_blocks.1.resnets.0*", "down.2*")
PLAIN_UNET = {
    "sine-first": (
        "/", "forward", "[torch.cos(angles), torch.sin(angles)]", "[torch.sin(angles), torch.cos(angles)]",
        "(root*", "time_proj", "time_embedding.linear_1", "dense.0",
    ),
    "straight-time": ("/down.2", "forward", "self.temb_proj(temb * torch.sigmoid(temb))", "self.temb_proj(temb)", *UNET_DOWN),
    "scale-by-width": ("/mid.1", "forward", "8**-0.5", "32**-0.5", "mid_block.attentions.0*", "mid.1*"),
    "skip-first": (
        "/", "forward", "self.up1[0](torch.cat([h, kept.pop()], 1)", "self.up1[0](torch.cat([kept.pop(), h], 1)", "(root*", "up1.0*", "up_blocks.0*",
    ),
}  # fmt: skip
UNET = {
    "no-second-norm": ("/down_blocks.1.resnets.0", "forward", "hidden_states = self.norm2(hidden_states)\n", "pass\n", *UNET_DOWN),
    "scaled-by-time": (
        "/mid_block.resnets.1", "forward", "hidden_states = hidden_states + temb", "hidden_states = hidden_states * (1 + temb)",
        "mid_block.resnets.1*", "mid.2*",
    ),
}  # fmt: skip
UNIT = ("features.stage2.unit2*", "stage3.1*")
CV_SHUFFLE = {
    "no-shuffle": ("/features.stage2.unit2", "forward", "x = self.c_shuffle(x)", "pass", *UNIT),
    "other-half": ("/features.stage2.unit2", "forward", "y1, x2 = torch.chunk", "x2, y1 = torch.chunk", *UNIT),
    "extra-activation": ("/features.stage2.unit2", "forward", "y2 = self.dw_bn2(y2)", "y2 = self.activ(self.dw_bn2(y2))", *UNIT),
    "norm-momentum": (
        "/features.stage2.unit2.dw_bn2", "forward", "exponential_average_factor = self.momentum", "exponential_average_factor = 0.01", *UNIT,
    ),
}  # fmt: skip
GRAPH_LAYER = ("layers.1*", "convs.1*")
GRAPH = ("(root*", "layers.*", "convs.*")
DENSE_GCN = {
    "double-loops": ("/", "forward>adjacency", "+ torch.eye", "+ 2 * torch.eye", *GRAPH),
    "mean-of-neighbours": (
        "/layers.1",
        "forward",
        "((x @ self.weight) / root[:, None])) / root[:, None]",
        "(x @ self.weight)) / root[:, None] ** 2",
        *GRAPH_LAYER,
    ),
    "against-the-edges": ("/layers.1", "forward", "beside @", "beside.T @", *GRAPH_LAYER),
}
LIST_GCN = {
    "unscaled-loop": ("/", "forward", "h / degree.unsqueeze(1)", "h", *GRAPH),
}
DENSE_GAT = {
    "other-slope": ("/layers.1", "forward", "0.2 * pairs", "0.01 * pairs", *GRAPH_LAYER),
    "ends-exchanged": ("/layers.1", "forward", "self.right[..., None]) + (h @ self.left", "self.left[..., None]) + (h @ self.right", *GRAPH_LAYER),
    "softmax-of-sources": ("/layers.1", "forward", "torch.softmax(pairs, -1)", "torch.softmax(pairs, -2)", *GRAPH_LAYER),
}
PYG_GAT = {
    "no-bias": ("/convs.1", "forward", "out = out + self.bias", "pass", *GRAPH_LAYER),
}
CONFORMER_BLOCK = ("blocks.1*", "conformer_layers.1*")
PLAIN_CONFORMER = {
    "no-mask": ("/blocks.1", "attend", "mask[:, None, None]", "mask[:, None, None] & False", "conformer_layers.1.self_attn*", "blocks.1*"),
    "tanh-gate": ("/blocks.1", "mix", "torch.sigmoid(gate)", "torch.tanh(gate)", "conformer_layers.1.conv_module*", "blocks.1*"),
    "causal-kernel": ("/blocks.1", "mix", "(0, 0, 1, 1)", "(0, 0, 2, 0)", "conformer_layers.1.conv_module*", "blocks.1*"),
    "other-activation": ("/blocks.1", "mix", "F.silu(h)", "F.relu(h)", "conformer_layers.1.conv_module*", "blocks.1*"),
}
AUDIO_CONFORMER = {
    "whole-step": ("/conformer_layers.1", "forward", "self.ffn2(x)\n    x = x * 0.5", "self.ffn2(x)\n    x = x", *CONFORMER_BLOCK),
}
TABLE_BLOCK = ("blocks.1*", "backbone.blocks.1*")
PLAIN_TABLES = {
    "gate-and-value": ("/blocks.1", "forward", "F.relu(self.gate(h)) * self.value(h)", "F.relu(self.value(h)) * self.gate(h)", *TABLE_BLOCK),
    "no-level": ("/", "forward", "1) + self.level", "1)", "(root*", "cont_embeddings*", "cat_embeddings*"),
    "small-eps": ("/blocks.1.norm2", "forward", "self.eps", "1e-2", "blocks.1.norm2", "backbone.blocks.1.ffn_normalization"),
}
LIBRARY_TABLES = {
    "scale-by-width": ("/backbone.blocks.1.attention", "forward", "math.sqrt(d_head_key)", "math.sqrt(d_head_key * self._n_heads)", *TABLE_BLOCK),
}
PLAIN_SOFT = {
    "dispatch-over-slots": ("/layers.1", "forward", "scores.softmax(1).transpose", "scores.softmax(2).transpose", "layers.1*"),
    "no-slot-gain": ("/layers.1", "forward", "self.slot_gain * self.slots", "self.slots", "layers.1*"),
    "tanh-gelu": ("/layers.1", "forward", "by_expert, self.up))", "by_expert, self.up), approximate='tanh')", "layers.1*"),
}
LIBRARY_SOFT = {
    "unnormed-slots": ("/layers.1", "forward", "self.slot_norm(self.slot_embeds)", "self.slot_embeds", "layers.1*"),
}
PAIR_CLICKS = {
    "mean-of-bag": ("/", "lookup", ".sum(1)", ".mean(1)", "(root*", "emb_l*"),
    "order-of-pairs": (
        "/",
        "pairs",
        "for i in range(4) for j in range(i)",
        "for j in range(4) for i in range(j + 1, 4)",
        "(root*",
        "over1",
        "top_l*",
    ),
    "no-activation": (
        "/",
        "forward",
        "F.relu(self.dense2(F.relu(self.dense1(dense))))",
        "self.dense2(F.relu(self.dense1(dense)))",
        "(root*",
        "bot_l*",
        "dense2",
    ),
}
BAG_CLICKS = {
    "scaled-pairs": ("/", "interact", "torch.bmm(T, torch.transpose(T, 1, 2))", "torch.bmm(T, torch.transpose(T, 1, 2)) / 4", "(root*"),
}
EDGE_SPLINES = {
    "sigmoid-for-silu": ("/layers.1", "forward", "x[..., None] * torch.sigmoid(x)", "torch.sigmoid(x)", "layers.1*"),
    "shifted-knots": ("/layers.1", "basis", "dtype=x.dtype) - 1", "dtype=x.dtype) - 1.5", "layers.1*"),
    "other-tail": ("/layers.1", "basis", "** 3 / 6", "** 3 / 5", "layers.1*"),
}
GRID_SPLINES = {
    "no-scaler": ("/layers.1", "forward", "self.spline_weight * self.spline_scaler.unsqueeze(-1)", "self.spline_weight", "layers.1*"),
}
ADAPTED_QUERIES = ("*layers.1.self_attn.q_proj*",)
LORA = {
    "no-scale": ("/model.layers.1.self_attn.q_proj", "forward", "(x * SCALE)", "x", *ADAPTED_QUERIES),
    "scale-by-rank": ("/model.layers.1.self_attn.q_proj", "forward", "(x * SCALE)", "(x * SCALE / RANK)", *ADAPTED_QUERIES),
}
DORA = {
    "norm-of-base": ("/model.layers.1.self_attn.q_proj", "forward", "weight.detach().square()", "self.weight.square()", *ADAPTED_QUERIES),
    "norm-without-root": ("/model.layers.1.self_attn.q_proj", "forward", ".sum(1).sqrt()", ".sum(1)", *ADAPTED_QUERIES),
    "trained-norm": ("/model.layers.1.self_attn.q_proj", "forward", "weight.detach()", "weight", *ADAPTED_QUERIES),
}
IA3 = {
    "turned-gain": (
        "/model.layers.1.self_attn.k_proj",
        "forward",
        "self.weight, self.gain)",
        "self.weight, self.gain.flip(0))",
        "*layers.1.self_attn.k_proj*",
    ),
}
FAST_MIXER = ("layers.1.attention*", "model.layers.1.self_attn*")
FAST_LLAMA = {
    "repeated-groups": (
        "/layers.1.attention",
        "forward",
        "repeat_interleave(HEADS // GROUPS, dim=1)",
        "repeat(1, HEADS // GROUPS, 1, 1)",
        *FAST_MIXER,
    ),
    "late-keys": ("/layers.1.attention", "forward", "k_out[:, :, input_pos] = k", "k_out[:, :, input_pos + 1] = k", *FAST_MIXER),
    "opposite-turn": ("/layers.1.attention", "forward>apply_rotary_emb", "freqs_cis[..., 0] - pairs", "freqs_cis[..., 0] + pairs", *FAST_MIXER),
    "norm-eps": ("/layers.1.ffn_norm", "forward", "1e-5", "1e-2", "model.layers.1.post_attention_layernorm"),
}
SMALL_GPT = {
    "scale-by-width": ("/transformer.h.1", "attn", "math.sqrt(k.size(-1))", "math.sqrt(C)", "transformer.h.1*"),
    "mask-without-itself": (
        "/transformer.h.1",
        "attn",
        "self.bias[:, :, :T, :T] == 0",
        "torch.tril(self.bias, 1)[:, :, :T, :T] == 2",
        "transformer.h.1*",
    ),
    "other-cubic": ("/transformer.h.1", "forward", "0.044715", "0.04715", "transformer.h.1*"),
}
MIXER = ("layers.1.mixer*",)
RECURRENT = {
    "twice-forgotten": ("/layers.1.mixer", "forward", "keep * state +", "keep * keep * state +", *MIXER),
    "other-gate": ("/layers.1.mixer", "joined", "F.silu(self.g(x))", "torch.sigmoid(self.g(x))", *MIXER),
}
CHUNKED = {
    "since-too-early": ("/layers.1.mixer", "forward", "(places + 1)", "places", *MIXER),
    "until-too-late": ("/layers.1.mixer", "forward", "(step - 1 - places)", "(step - places)", *MIXER),
    "unscaled-keys": ("/layers.1.mixer", "heads_of", "self.k(x) * SIZE**-0.5", "self.k(x)", *MIXER),
}
MATRIX = {
    "looks-ahead": ("/layers.1.mixer", "forward", "* (apart >= 0)", "* (apart >= -1)", *MIXER),
    "turned-filter": ("/layers.1.mixer", "forward", "apart.clamp(min=0)]", "11 - apart.clamp(min=0)]", *MIXER),
}
GROUPED = {
    "unturned-filter": ("/layers.1.mixer", "forward", ".flip(-1)", "", *MIXER),
    "gates-exchanged": ("/layers.1.mixer", "forward", "before, value, behind =", "behind, value, before =", *MIXER),
}
FOURIER = {
    "around-the-end": ("/layers.1.mixer", "forward", "count = 2 * u.shape[-1]", "count = u.shape[-1]", *MIXER),
}

LINES = {
    ("patches", "vitpytorch"): LUCID_VIT,
    ("patches", "patchvit"): PATCH_VIT,
    ("latents", "perceiver"): LUCID_PERCEIVER,
    ("latents", "plainperceiver"): PLAIN_PERCEIVER,
    ("sam", "sam"): SAM,
    ("sam", "transformers"): TF_SAM,
    ("hiera", "hiera"): HIERA,
    ("hiera", "transformers"): TF_HIERA,
    ("unet", "plainunet"): PLAIN_UNET,
    ("unet", "diffusers"): UNET,
    ("shuffle", "pytorchcv"): CV_SHUFFLE,
    ("gcn", "densegraph"): DENSE_GCN,
    ("gcn", "listgraph"): LIST_GCN,
    ("gat", "densegraph"): DENSE_GAT,
    ("gat", "pyg"): PYG_GAT,
    ("conformer", "plainconformer"): PLAIN_CONFORMER,
    ("conformer", "torchaudio"): AUDIO_CONFORMER,
    ("tables", "plaintables"): PLAIN_TABLES,
    ("tables", "rtdl"): LIBRARY_TABLES,
    ("softmoe", "plainsoft"): PLAIN_SOFT,
    ("softmoe", "softmoe"): LIBRARY_SOFT,
    ("clicks", "pairs"): PAIR_CLICKS,
    ("clicks", "bags"): BAG_CLICKS,
    ("splines", "edges"): EDGE_SPLINES,
    ("splines", "grid"): GRID_SPLINES,
    ("lora", "byhand"): LORA,
    ("dora", "byhand"): DORA,
    ("ia3", "byhand"): IA3,
    ("llama", "fastllama"): FAST_LLAMA,
    ("gpt2", "smallgpt"): SMALL_GPT,
    ("retention", "recurrent"): RECURRENT,
    ("retention", "chunked"): CHUNKED,
    ("longconv", "matrix"): MATRIX,
    ("longconv", "grouped"): GROUPED,
    ("longconv", "fourier"): FOURIER,
}
