"""Faults that ports have, by family and implementation: which published line says something else, in layer 1 or in the whole model.

A row is (module, method, published text, what stands there instead, further patterns of places). A module beginning with "/" is one of the
whole model. The places of a fault are its module, what that module holds, and the further patterns."""

ROTARY_PAIRS = "(lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2))("
ITSELF = "(torch.arange(key_ctx_length) == 0)"

LLAMA = {
    "interleaved-rotary": ("self_attn", "forward>apply_rotary_pos_emb", "rotate_half(", ROTARY_PAIRS),
    "scale-by-width": ("self_attn", "forward", "scaling=self.scaling", "scaling=self.q_proj.in_features**-0.5"),
    "dropped-residual": ("", "forward", "hidden_states = residual + hidden_states\n\n", "hidden_states = hidden_states\n\n"),
    "normed-residual": (
        "",
        "forward",
        "residual = hidden_states\n    hidden_states = self.post_attention_layernorm(hidden_states)",
        "hidden_states = self.post_attention_layernorm(hidden_states)\n    residual = hidden_states",
    ),
    "other-activation": ("mlp", "forward", "self.act_fn(", "torch.nn.functional.gelu("),
    "halved-rotary": ("self_attn", "forward>apply_rotary_pos_emb", "cos = cos.", "cos, sin = cos.roll(1, -1), sin\n    cos = cos."),
}
TORCHTUNE = {
    "repeated-heads": (
        "attn",
        "forward",
        "k = k.unsqueeze(2).expand(expand_shape).flatten(1, 2)",
        "k = k.unsqueeze(1).expand(b, q_per_kv, self.num_kv_heads, -1, self.head_dim).flatten(1, 2)",
    ),
    "dropped-residual": ("", "forward", "h = self.sa_scale(attn_out) + x", "h = self.sa_scale(attn_out)"),
    "normed-residual": ("", "forward", "+ x", "+ h"),
    "wrong-residual": ("", "forward", "out = h + ", "out = x + "),
    "other-activation": ("mlp", "forward", "self.activation(", "torch.nn.functional.gelu("),
    "scale-by-width": ("attn", "forward", "q = q.transpose(1, 2)", "q = q.transpose(1, 2) * (self.head_dim / self.embed_dim) ** 0.5"),
    "norm-without-one": ("mlp_norm", "forward", "(1.0 + self.scale.float())", "self.scale.float()"),
}
GPT2 = {
    "scale-by-width": ("attn", "forward", "scaling=self.scaling", "scaling=self.embed_dim**-0.5"),
    "dropped-residual": ("", "forward", "hidden_states = attn_output + residual", "hidden_states = attn_output"),
    "other-activation": ("mlp", "forward", "self.act(", "torch.nn.functional.gelu("),
    "shifted-positions": (
        "/transformer",
        "forward",
        "position_embeds = self.wpe(position_ids)",
        "position_embeds = self.wpe(position_ids + 1)",
        "transformer.wpe",
    ),
    "swapped-keys": ("attn", "forward", "query_states, key_states, value_states = self.c_attn", "key_states, query_states, value_states = self.c_attn"),
    "head-layout": (
        "attn",
        "forward",
        "value_states = value_states.view(shape_kv).transpose(1, 2)\n\n    shape_q",
        "value_states = value_states.view(*value_states.shape[:-1], self.head_dim, -1).permute(0, 3, 1, 2)\n\n    shape_q",
    ),
}
LENS = {
    "attention-scale": ("attn", "calculate_attention_scores", "/ self.attn_scale", "/ (self.attn_scale * 1.1)"),
    "scale-by-width": ("attn", "calculate_attention_scores", "/ self.attn_scale", "/ self.cfg.d_model**0.5"),
    "softmax-axis": ("attn", "forward", "F.softmax(attn_scores, dim=-1)", "F.softmax(attn_scores, dim=-2)"),
    "other-activation": ("mlp", "forward", "self.act_fn(pre_act)", "torch.nn.functional.gelu(pre_act)"),
    "mask-without-itself": (
        "attn",
        "apply_causal_mask",
        "torch.where(final_mask,",
        f"torch.where(final_mask.tril(-1) | (final_mask & {ITSELF}),",
    ),
    "dropped-residual": ("", "forward", "self.hook_resid_mid(resid_pre + attn_out)", "self.hook_resid_mid(attn_out)"),
    "dropped-bias": ("mlp", "forward", "batch_addmm(self.b_out,", "batch_addmm(0 * self.b_out,"),
    "head-layout": (
        "attn",
        "forward",
        "\"head_index d_head d_model -> d_model (head_index d_head)\"",
        "\"head_index d_head d_model -> d_model (d_head head_index)\"",
    ),
    "rotated-values": ("attn", "forward", "k, 0, attention_mask", "k, 1, attention_mask"),
    "eps-outside": ("ln2", "forward", "+ self.eps).sqrt()", ").sqrt() + self.eps**0.5"),
}
MAMBA = {
    "dropped-residual": ("", "forward", "hidden_states = residual + hidden_states", "hidden_states = hidden_states"),
    "swapped-gate": ("mixer", "forward", "hidden_states_B_C, gate = projected", "gate, hidden_states_B_C = projected"),
    "swapped-b-c": ("mixer", "forward", "time_step, B, C = torch", "time_step, C, B = torch"),
    "no-step-bias": ("mixer", "forward", "self.dt_proj.bias.float() if", "0 * self.dt_proj.bias.float() if"),
    "no-skip": ("mixer", "forward", "D=self.D.float()", "D=0 * self.D.float()"),
    "eps-outside": ("norm", "forward", "torch.rsqrt(variance + self.variance_epsilon)", "(1 / (variance.sqrt() + self.variance_epsilon**0.5))"),
}
MAMBAPY = {
    "dropped-residual": ("", "forward", "+ x", ""),
    "swapped-gate": ("mixer", "forward", "x, z = xz", "z, x = xz"),
    "swapped-b-c": ("mixer", "ssm", "delta, B, C = torch", "delta, C, B = torch"),
    "no-step-bias": ("mixer", "ssm", "F.softplus(delta + self.dt_proj.bias)", "F.softplus(delta)"),
    "no-skip": ("mixer", "selective_scan", "y = y + D * x", "y = y"),
    "conv-shift": ("mixer", "forward", "self.conv1d(x)[:, :, :L]", "self.conv1d(x)[:, :, 1:L + 1]", "mixer.conv1d"),
    "unnegated-decay": ("mixer", "ssm", "-torch.exp(self.A_log.float())", "-torch.exp(self.A_log.float() * 0.9)"),
    "euler-decay": ("mixer", "selective_scan", "torch.exp(delta.unsqueeze(-1) * A)", "1 / (1 - delta.unsqueeze(-1) * A)"),
    "other-activation": ("mixer", "forward", "x = F.silu(x)", "x = F.gelu(x)"),
}

LINES = {
    ("llama", "transformers"): LLAMA,
    ("qwen2", "transformers"): LLAMA,
    ("gemma", "transformers"): {
        **LLAMA,
        "norm-without-one": ("post_attention_layernorm", "forward", "(1.0 + self.weight.float())", "self.weight.float()"),
        "unscaled-embedding": ("/model", "forward", "hidden_states = inputs_embeds", "hidden_states = inputs_embeds / 8.0", "model.embed_tokens"),
    },
    ("llama", "torchtune"): TORCHTUNE,
    ("qwen2", "torchtune"): TORCHTUNE,
    ("gemma", "torchtune"): TORCHTUNE,
    ("gpt2", "transformers"): GPT2,
    ("gpt2", "lens"): LENS,
    ("llama", "lens"): LENS,
    ("mamba", "transformers"): MAMBA,
    ("mamba", "mambapy"): MAMBAPY,
}
