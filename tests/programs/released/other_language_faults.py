"""Faults of the further language and sound models, as ported_faults has them: which published line says something else, where.

Patterns of the same place on the other side stand behind each row, since a difference may show there alone."""

ATTENTION = ("*.1.self_attn*", "*.1.attn*", "*.1.attention*", "*attentions.1*", "*.1.layer.0.SelfAttention*", "*transformer_layer_1.self_attention*")
FEED = (
    "*.1.mlp*",
    "*.1.ff_sub_layer*",
    "*.1.feed*",
    "*feeds.1*",
    "*.1.linear*",
    "*.1.fc*",
    "*.1.intermediate*",
    "*.1.output*",
    "*.1.layer.1*",
    "*transformer_layer_1.feedforward*",
    "*transformer_layer_1.*_moe_block*",
)
LAYER = ("*.layers.1", "*.layer.1", "*.blocks.1", "*.h.1", "blocks.1", "*.block.1", "*transformer_layer_1")

FMS = {
    "dropped-residual": ("", "forward", "x = x + residual\n\n    # then", "x = x\n\n    # then", *LAYER),
    "normed-residual": ("", "forward", "residual = x\n    x = self.ff_ln(x)", "x = self.ff_ln(x)\n    residual = x", *LAYER),
    "swapped-gate": ("ff_sub_layer", "forward", "wg, w1 = torch.split", "w1, wg = torch.split", *FEED),
    "norm-without-mean": (
        "ff_ln",
        "forward",
        "xf.pow(2).mean(-1, keepdim=True)",
        "xf.pow(2).sum(-1, keepdim=True)",
        "*.1.post_attention_layernorm",
        "*.1.ln_2",
    ),
    "unturned-keys": ("attn", "forward", "queries, keys = self.position_encoder", "queries, _ = self.position_encoder", *ATTENTION),
    "keys-of-the-other-group": (
        "attn",
        "forward",
        "keys = k_out.view(batch_size, q_len, self.kvheads, self.emb_kq_per_head)",
        "keys = k_out.view(batch_size, q_len, self.kvheads, self.emb_kq_per_head).flip(2)",
        *ATTENTION,
    ),
}
FMS_MIXTRAL = {
    "dropped-residual": FMS["dropped-residual"],
    "softmax-not-normalised": ("ff_sub_layer", "forward", "expert_weights /= expert_weights.sum(dim=-1, keepdim=True)", "pass", "*.1.mlp*"),
}
FMS_ROBERTA = {
    "dropped-residual": ("", "forward", "x = x + residual\n    # post ln", "x = x\n    # post ln", *LAYER),
    "positions-from-one": ("/base_model", "forward", "cumsum(1) - 1)", "cumsum(1))", "(root*", "*embeddings*", "base_model.position*"),
    "tanh-gelu": ("ff_sub_layer.a", "forward", "self.approximate", "'tanh'", *FEED),
}
FMS_MPNET = {
    "bias-without-sign": (
        "/base_model",
        "compute_position_bias",
        "memory_position - context_position",
        "(memory_position - context_position).abs()",
        "*encoder*",
        "base_model*",
        "encoder.relative*",
    ),
    "transposed-bias": ("/base_model", "compute_position_bias", "values.permute([2, 0, 1])", "values.permute([2, 1, 0])", "*encoder*", "base_model*"),
    "norm-before-add": (
        "",
        "forward",
        "x = x + residual\n    x = self.ln(x)",
        "x = self.ln(x) + residual",
        "*.1.ln",
        "*.1.attention*",
        "*.1.attn*",
        *LAYER,
    ),
}
FMS_BIGCODE = {
    "shifted-positions": (
        "/base_model",
        "forward",
        "self.position_embedding(position_ids)",
        "self.position_embedding(position_ids + 1)",
        "(root*",
        "*wpe",
        "base_model.position*",
    ),
    "dropped-residual": FMS["dropped-residual"],
    "norm-eps": ("ff_ln", "forward", "self.eps", "1e-2", "*.1.ln_2"),
}
TF_BIGCODE = {
    "heads-of-one-key": (
        "attn",
        "forward",
        "query = query.view(*input_shape",
        "key, value = value, key; query = query.view(*input_shape",
        *ATTENTION,
    ),
    "scale-by-width": ("attn", "forward", "scaling=self.scaling", "scaling=self.embed_dim**-0.5", *ATTENTION),
}
TF_LLAMA = {
    "no-final-norm": (
        "/model",
        "forward",
        "hidden_states = self.norm(hidden_states)",
        "hidden_states = hidden_states",
        "*norm",
        "(root*",
        "lm_head",
        "head",
        "output",
        "backbone",
    ),
    "detached-branch": (
        "",
        "forward",
        "hidden_states = self.mlp(hidden_states)",
        "hidden_states = self.mlp(hidden_states.detach())",
        *FEED,
        *LAYER,
        "*.1.post_attention_layernorm",
        "*.1.ff_ln",
        "(root*",
    ),
    "bf16-softmax": ("self_attn", "forward>eager_attention_forward", "dtype=torch.float32", "dtype=torch.bfloat16", *ATTENTION),
    "rounded-table": (
        "/model.rotary_emb",
        "forward",
        "cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)",
        "cos.to(torch.bfloat16).to(dtype=x.dtype), sin.to(torch.bfloat16).to(dtype=x.dtype)",
        "(root*",
        "*attn*",
    ),
}
TORCHTEXT_T5 = {
    "scaled-scores": (
        "/encoder.layers.1.self_attn",
        "_t5_dot_product_attention",
        "attn = torch.matmul(q, k.transpose(3, 2))",
        "attn = torch.matmul(q, k.transpose(3, 2)) / math.sqrt(E)",
        "encoder.layers.1*",
        "encoder.block.1.layer.0*",
    ),
    "late-residual": (
        "/encoder.layers.1",
        "forward",
        "x = x + self._ff_block(self.norm2(x))",
        "x = seq + self._ff_block(self.norm2(x))",
        "encoder.layers.1*",
        "encoder.block.1*",
    ),
    "gelu-for-relu": (
        "/encoder.layers.1",
        "_ff_block",
        "self.activation(self.linear1(x))",
        "F.gelu(self.linear1(x))",
        "encoder.layers.1*",
        "encoder.block.1.layer.1*",
    ),
    "buckets-both-ways": (
        "/decoder.layers.0.self_attn",
        "_relative_position_bucket",
        "if bidirectional:",
        "if True:",
        "decoder.layers.0*",
        "decoder.block.0.layer.0*",
        "decoder",
    ),
    "unscaled-head": ("/", "forward", "decoder_output * (self.embedding_dim ** -0.5)", "decoder_output * 1.0", "(root*", "lm_head"),
    "centred-norm": (
        "/encoder.layers.1.norm2",
        "forward",
        "hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)",
        "hidden_states.to(torch.float32).var(-1, keepdim=True)",
        "encoder.layers.1*",
        "encoder.block.1.layer.1.layer_norm",
    ),
}
TF_T5 = {
    "bias-for-first-alone": (
        "/encoder.block.1.layer.0.SelfAttention",
        "forward",
        "position_bias=position_bias,\n        **kwargs",
        "position_bias=0 * position_bias,\n        **kwargs",
        "encoder.layers.1*",
        "encoder.block.1.layer.0*",
    ),
    "dropped-residual": (
        "/encoder.block.1.layer.1",
        "forward",
        "hidden_states + self.dropout(forwarded_states)",
        "self.dropout(forwarded_states)",
        "encoder.layers.1*",
    ),
}
TORCHTEXT_ROBERTA = {
    "positions-from-zero": (
        "/encoder.transformer.positional_embedding",
        "forward",
        "self.embedding(positions)",
        "self.embedding(positions - 2)",
        "*embeddings*",
        "encoder.transformer.positional*",
    ),
    "no-embedding-norm": (
        "/encoder.transformer",
        "forward",
        "embedded = self.embedding_layer_norm(embedded)\n",
        "pass\n",
        "*embeddings*",
        "encoder.transformer.embedding*",
        "encoder.transformer.layers.layers.0*",
        "*.layer.0*",
    ),
}
TORCHAUDIO = {
    "padded-left": ("/encoder.transformer.pos_conv_embed", "forward", "x[..., : -self.num_remove]", "x[..., self.num_remove :]", "*pos_conv_embed*"),
    "norm-first": (
        "/encoder.transformer.layers.1",
        "forward",
        "x = self.layer_norm(x)\n        x = self.final_layer_norm(x + self.feed_forward(x))",
        "x = self.final_layer_norm(x + self.feed_forward(self.layer_norm(x)))",
        "*encoder.layers.1*",
        "encoder.transformer.layers.1*",
    ),
    "no-positions": (
        "/encoder.transformer.pos_conv_embed",
        "forward",
        "torch.nn.functional.gelu(x)",
        "0 * torch.nn.functional.gelu(x)",
        "*pos_conv_embed*",
        "encoder*",
    ),
    "scale-by-width": (
        "/encoder.transformer.layers.1.attention",
        "forward",
        "is_causal=False",
        "is_causal=False, scale=self.embed_dim**-0.5",
        "*encoder.layers.1.attention*",
    ),
    "early-norm": (
        "/feature_extractor.conv_layers.0",
        "forward",
        "x = nn.functional.gelu(x)",
        "x = nn.functional.relu(x)",
        "feature_extractor.conv_layers.0*",
    ),
}
TF_ESM = {
    "no-mask-ratio": (
        "/esm.embeddings",
        "forward",
        "embeddings * (1 - mask_ratio_train) /",
        "embeddings /",
        "(root*",
        "embed_tokens",
        "layers.0*",
        "esm.encoder.layer.0*",
    ),
    "dropped-norm": (
        "/esm.encoder.layer.1.attention",
        "forward",
        "self.LayerNorm(hidden_states)",
        "hidden_states",
        "esm.encoder.layer.1*",
        "layers.1.self_attn*",
    ),
}
ESM = {
    "residual-of-norm": (
        "/layers.1",
        "forward",
        "residual = x\n    x = self.final_layer_norm(x)",
        "x = self.final_layer_norm(x)\n    residual = x",
        "esm.encoder.layer.1*",
    ),
    "rotary-of-keys": (
        "/layers.1.self_attn.rot_emb",
        "forward",
        "apply_rotary_pos_emb(k, self._cos_cached, self._sin_cached)",
        "k",
        "esm.encoder.layer.1*",
        "layers.1.self_attn*",
    ),
    "tanh-gelu": (
        "/layers.1",
        "forward",
        "gelu(self.fc1(x))",
        "__import__('torch').nn.functional.gelu(self.fc1(x), approximate='tanh')",
        "esm.encoder.layer.1*",
        "layers.1*",
    ),
}
ENCODEC = {
    "no-shortcut": ("/encoder.model.1", "forward", "self.shortcut(x) + self.block(x)", "self.block(x)", "encoder.layers.1*"),
    "no-skip": ("/decoder.model.1", "forward", "y = y + x", "y = y", "decoder.layers.1*"),
    "padded-both": (
        "/encoder.model.0",
        "forward",
        "(padding_total, extra_padding)",
        "(padding_total - 1, extra_padding + 1)",
        "encoder.layers.0*",
        "encoder.model.0*",
    ),
    "zero-padding": ("/encoder.model.0", "forward", "mode=self.pad_mode", "mode='constant'", "encoder.layers.0*", "encoder.model.0*"),
    "trimmed-left": (
        "/decoder.model.3",
        "forward",
        "unpad1d(y, (padding_left, padding_right))",
        "unpad1d(y, (padding_right, padding_left))",
        "decoder.layers.3*",
        "decoder.model.3*",
    ),
}
LITGPT_FALCON = {
    "serial-residual": (
        "/transformer.h.1",
        "forward",
        "self.post_mlp_norm(self.mlp(x_normed)) + x",
        "self.post_mlp_norm(self.mlp(self.norm_1(x))) + x",
        "transformer.h.1*",
    ),
    "norm-of-sum": ("/transformer.h.1", "forward", "attention_output + x\n    else", "attention_output + x_normed\n    else", "transformer.h.1*"),
    "opposite-turn": (
        "/transformer.h.1.attn",
        "forward>apply_rope",
        "torch.cat((-x2, x1), dim=-1)",
        "torch.cat((x2, -x1), dim=-1)",
        "transformer.h.1*",
    ),
}
LITGPT_GEMMA3 = {
    "no-norm-of-keys": ("/transformer.h.1.attn", "forward", "k = self.norm_k(k)", "k = k", "transformer.h.1.attn*", "model.layers.1.self_attn*"),
    "window-too-long": (
        "/transformer.h.1.attn",
        "forward",
        "diagonal=-self.config.sliding_window_size",
        "diagonal=-self.config.sliding_window_size - 1",
        "model.layers.1.self_attn*",
    ),
    "global-table": ("/", "forward", "sin[..., self.config.rope_indices[block_idx]]", "sin[..., 0]", "(root*", "*attn*"),
    "no-norm-after": (
        "/transformer.h.1",
        "forward",
        "attention_output = self.post_attention_norm(attention_output)",
        "pass",
        "transformer.h.1*",
        "model.layers.1.post_attention_layernorm",
        "model.layers.1",
    ),
}
TF_QWEN_MOE = {
    "no-shared-gate": ("mlp", "forward", "F.sigmoid(self.shared_expert_gate(hidden_states_reshaped)) *", "", *FEED),
    "normalised-choice": ("mlp.gate", "forward", "if self.norm_topk_prob:", "if True:", *FEED),
    "no-shared-expert": ("mlp", "forward", "expert_output = expert_output + shared_expert_output", "pass", *FEED),
    "detached-router": (
        "mlp",
        "forward",
        "self.experts(hidden_states_reshaped, selected_experts, routing_weights)",
        "self.experts(hidden_states_reshaped, selected_experts, routing_weights.detach())",
        *FEED,
        "(root*",
        "*.1.post_attention_layernorm",
    ),
}
DISPATCH = {
    "no-shared-gate": ("/feeds.1", "forward", 'torch.sigmoid(torch.einsum("btd,od->bto", x, self.shared_choice)) * shared', "shared", *FEED),
    "normalised-choice": (
        "/feeds.1",
        "forward",
        "best, chosen = torch.topk(probabilities, 2, -1)",
        "best, chosen = torch.topk(probabilities, 2, -1)\n    best = best / best.sum(-1, True)",
        *FEED,
    ),
    "one-expert": ("/feeds.1", "forward", "torch.topk(probabilities, 2, -1)", "torch.topk(probabilities, 1, -1)", *FEED),
    "sigmoid-router": (
        "/feeds.1",
        "forward",
        'F.softmax(torch.einsum("btd,ed->bte", x, self.router), -1)',
        'torch.sigmoid(torch.einsum("btd,ed->bte", x, self.router))',
        *FEED,
    ),
    "keys-of-the-other-group": (
        "/attentions.1",
        "forward",
        "k, v = k.permute(0, 2, 3, 1), v.transpose(1, 2)",
        "k, v = k.flip(2).permute(0, 2, 3, 1), v.transpose(1, 2)",
        *ATTENTION,
    ),
    "mask-without-itself": (
        "/attentions.1",
        "forward",
        ".triu(1).repeat",
        ".triu(0).logical_and(torch.arange(length)[:, None] > 0).repeat",
        *ATTENTION,
    ),
    "exchanged-experts": ("/feeds.1", "forward", "F.one_hot(chosen, 4)", "F.one_hot((chosen + 1) % 4, 4)", *FEED),
}
LATENT = {
    "scale-of-plain-part": ("/blocks.1.attention", "forward", "math.sqrt(16)", "math.sqrt(8)", *ATTENTION),
    "no-latent-norm": ("/blocks.1.attention", "forward", "latent = rms(latent, self.kvn, 1e-6)", "pass", *ATTENTION),
    "unturned-key": ("/blocks.1.attention", "forward", "in_complex(key, turns)", "key", *ATTENTION),
    "unscaled-routing": ("/blocks.1.feed.router", "forward", " * 2.5", "", *FEED),
    "biased-weights": ("/blocks.1.feed.router", "forward", "scores.gather(1, best)", "(scores + self.bias).gather(1, best)", *FEED),
    "unnormalised": ("/blocks.1.feed.router", "forward", "weights / weights.sum(-1, keepdim=True)", "weights", *FEED),
    "one-group": ("/blocks.1.feed.router", "forward", "topk(2, -1)", "topk(4, -1)", *FEED),
    "no-shared-expert": ("/blocks.1.feed", "forward", "out = self.shared(rows)", "out = 0 * self.shared(rows)", *FEED),
}
TF_DEEPSEEK = {
    "halves-for-neighbours": ("self_attn", "forward", "if self.config.rope_interleave:", "if False:", *ATTENTION),
    "scale-of-plain-part": ("self_attn", "forward", "scaling=self.scaling", "scaling=self.qk_nope_head_dim**-0.5", *ATTENTION),
    "unnormalised": ("mlp.gate", "forward", "if self.norm_topk_prob:", "if False:", *FEED),
    "no-shared-expert": ("mlp", "forward", "hidden_states = hidden_states + self.shared_experts(residuals)", "pass", *FEED),
}
RECURRENT = {
    "no-step-bias": ("/mixers.1", "forward", "dt + self.dt_bias", "dt", "backbone.layers.1*"),
    "unscaled-input": ("/mixers.1", "forward", "(dt[:, t, :, None] * x[:, t])", "(x[:, t])", "backbone.layers.1*"),
    "late-state": (
        "/mixers.1",
        "forward",
        "out.append((state * c[:, t, :, None])",
        "out.append((state * c[:, t - 1, :, None])",
        "backbone.layers.1*",
    ),
    "gate-after-norm": (
        "/mixers.1",
        "forward",
        "y = torch.stack(out, 1).flatten(2) * (z * torch.sigmoid(z))",
        "y = torch.stack(out, 1).flatten(2)",
        "backbone.layers.1*",
    ),
    "one-group-of-norm": ("/mixers.1", "forward", "y.unflatten(-1, (GROUPS, -1))", "y.unflatten(-1, (1, -1))", "backbone.layers.1*"),
    "groups-in-turn": ("/mixers.1", "forward", ".repeat_interleave(8 // GROUPS, 2)", ".repeat(1, 1, 8 // GROUPS, 1)", "backbone.layers.1*"),
    "kernel-turned": ("/mixers.1", "forward", "self.kernel[:, k]", "self.kernel[:, 3 - k]", "backbone.layers.1*"),
}
TF_MAMBA2 = {
    "norm-before-gate": (
        "mixer.norm",
        "forward",
        "hidden_states = hidden_states * nn.functional.silu(gate.to(torch.float32))",
        "pass",
        "backbone.layers.1*",
        "mixers.1*",
    ),
}
FLAT = {
    "one-head-of-keys": ("/", "attend", "h // (HEADS // GROUPS)", "h % GROUPS", "(root*", "*self_attn*"),
    "shifted-cache": ("/", "step", "self.rotate(k, position)", "self.rotate(k, position + 1)", "(root*", "*self_attn*", "*rotary*"),
    "no-scale": ("/", "attend", " / math.sqrt(SIZE)", "", "(root*", "*self_attn*"),
    "stale-values": ("/", "step", "values.append(v)", "values.append(v if position else 0 * v)", "(root*", "*self_attn*"),
    "wrong-base": ("/", "rotate", "10000.0", "500000.0", "(root*", "*self_attn*", "*rotary*"),
    "no-final-norm": ("/", "step", "rms(x, self.rms_final)", "x", "(root*", "model.norm", "lm_head"),
}
DICT = {
    "norm-of-sum": ("/", "forward>norm_of", "/ WIDTH", "/ (WIDTH - 1)", "(root*", "*norm"),
    "gate-and-up": ("/", "forward>feed_of", "gate, up =", "up, gate =", "(root*", "*mlp*"),
    "groups-exchanged": (
        "/",
        "forward>attention_of",
        "q.unflatten(2, (GROUPS, HEADS // GROUPS))",
        "q.unflatten(2, (HEADS // GROUPS, GROUPS)).transpose(2, 3)",
        "(root*",
        "*self_attn*",
    ),
    "window": (
        "/",
        "forward",
        "0.0, -1e30)",
        "0.0, -1e30).masked_fill(torch.ones(tokens.shape[1], tokens.shape[1]).tril(-4).bool(), -1e30)",
        "(root*",
        "*self_attn*",
    ),
}
ONLINE = {
    "unscaled-sum": ("", "attend", "total * old + new.sum(-1)", "total + new.sum(-1)", *LAYER, *ATTENTION),
    "block-boundary": ("", "attend", "range(0, start + block, block)", "range(0, max(start, block), block)", *LAYER, *ATTENTION),
    "biased-variance": ("", "centred", "x.pow(2).mean(-1, keepdim=True)", "(x.pow(2).sum(-1, keepdim=True) / 63)", *LAYER, "*.1.ln_*"),
    "exchanged-shifts": ("", "forward", "self.centred(x, self.g2, self.b2)", "self.centred(x, self.g2, self.b1)", *LAYER, "*.1.ln_2*"),
    "wrong-slope": (
        "",
        "forward",
        "TanhGELU.apply(self.centred(x, self.g2, self.b2) @ self.wi + self.bi)",
        "(lambda z: TanhGELU.apply(z) + 0.1 * (z - z.detach()))(self.centred(x, self.g2, self.b2) @ self.wi + self.bi)",
        *LAYER,
        *FEED,
        "(root*",
    ),
}
CELLS = {
    "order-of-gates": ("/cells.1", "forward", "i, g, f, o =", "i, f, g, o =", "lstm", "cells*"),
    "forget-bias": ("/cells.1", "forward", "torch.sigmoid(f)", "torch.sigmoid(f + 1.0)", "lstm", "cells*"),
    "stale-state": ("/", "forward", "h = states[n][0]", "h = states[n][0] if t else h", "lstm", "(root*", "cells*"),
}
TF_GPTOSS = {
    "no-sink": (
        "self_attn",
        "forward>eager_attention_forward",
        "scores = probs[..., :-1]",
        "scores = probs[..., :-1] / probs[..., :-1].sum(-1, True)",
        *ATTENTION,
    ),
    "gate-without-one": ("mlp.experts", "_apply_gate", "(up + 1) * glu", "up * glu", *FEED),
    "softmax-of-all": (
        "mlp.router",
        "forward",
        "torch.nn.functional.softmax(router_top_value, dim=1, dtype=router_top_value.dtype)",
        "torch.nn.functional.softmax(router_logits, dim=1).gather(1, router_indices)",
        *FEED,
    ),
}

LINES = {
    ("llama", "fms"): FMS,
    ("mixtral", "fms"): FMS_MIXTRAL,
    ("roberta", "fms"): FMS_ROBERTA,
    ("mpnet", "fms"): FMS_MPNET,
    ("bigcode", "fms"): FMS_BIGCODE,
    ("bigcode", "transformers"): TF_BIGCODE,
    ("llama", "transformers"): TF_LLAMA,
    ("t5", "torchtext"): TORCHTEXT_T5,
    ("t5", "transformers"): TF_T5,
    ("roberta", "torchtext"): TORCHTEXT_ROBERTA,
    ("wav2vec2", "torchaudio"): TORCHAUDIO,
    ("esm", "transformers"): TF_ESM,
    ("esm", "fairesm"): ESM,
    ("encodec", "encodec"): ENCODEC,
    ("falcon", "litgpt"): LITGPT_FALCON,
    ("gemma3", "litgpt"): LITGPT_GEMMA3,
    ("qwen2moe", "transformers"): TF_QWEN_MOE,
    ("qwen2moe", "dispatch"): DISPATCH,
    ("deepseek", "latent"): LATENT,
    ("deepseek", "transformers"): TF_DEEPSEEK,
    ("mamba2", "recurrent"): RECURRENT,
    ("mamba2", "transformers"): TF_MAMBA2,
    ("llama", "flatllama"): FLAT,
    ("llama", "dictllama"): DICT,
    ("gpt2", "onlinegpt"): ONLINE,
    ("lstm", "cells"): CELLS,
    ("gptoss", "transformers"): TF_GPTOSS,
}
