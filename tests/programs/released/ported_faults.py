"""Faults that ports have, by family and implementation: which published line says something else, in layer 1 or in the whole model.

A row is (module, method, published text, what stands there instead, further patterns of places). A module beginning with "/" is one of the
whole model. The places of a fault are its module, what that module holds, and the further patterns."""

ROTARY_PAIRS = "(lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2))("
ITSELF = "(torch.arange(key_ctx_length) == 0)"

LLAMA = {
    "interleaved-rotary": ("self_attn", "forward>apply_rotary_pos_emb", "rotate_half(", ROTARY_PAIRS, "*attn_layers.layers.2.1*"),
    "scale-by-width": ("self_attn", "forward", "scaling=self.scaling", "scaling=self.q_proj.in_features**-0.5", "*attn_layers.layers.2.1*"),
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
    "swapped-keys": (
        "attn",
        "forward",
        "query_states, key_states, value_states = self.c_attn",
        "key_states, query_states, value_states = self.c_attn",
    ),
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
        '"head_index d_head d_model -> d_model (head_index d_head)"',
        '"head_index d_head d_model -> d_model (d_head head_index)"',
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

TANH = "torch.nn.functional.gelu(hidden_states, approximate='tanh')"
FIRST_ADD = "hidden_states = residual + hidden_states\n\n    residual"
BERT_BLOCK = {
    "dropped-residual": ("attention.output", "forward", "hidden_states + input_tensor", "hidden_states"),
    "norm-before-add": ("output", "forward", "self.LayerNorm(hidden_states + input_tensor)", "self.LayerNorm(hidden_states) + input_tensor"),
    "tanh-gelu": ("intermediate", "forward", "self.intermediate_act_fn(hidden_states)", TANH),
    "small-eps": ("attention.output.LayerNorm", "forward", "self.eps", "1e-5"),
}
BERT = {
    **BERT_BLOCK,
    "scale-by-width": ("attention.self", "forward", "scaling=self.scaling", "scaling=self.all_head_size**-0.5"),
    "ignored-padding": ("attention.self", "forward", "value_layer,\n        attention_mask,", "value_layer,\n        None,"),
    "no-types": ("/bert.embeddings", "forward", "inputs_embeds + token_type_embeddings", "inputs_embeds"),
    "shifted-positions": ("/bert.embeddings", "forward", "_embeddings(position_ids)", "_embeddings(position_ids + 1)", "bert.embeddings.*"),
}
BERT_BEFORE = {
    **BERT_BLOCK,
    "small-eps": ("attention.output.LayerNorm", "forward", "self.variance_epsilon", "1e-5"),
    "scale-by-width": ("attention.self", "forward", "math.sqrt(self.attention_head_size)", "math.sqrt(self.all_head_size)"),
    "softmax-axis": ("attention.self", "forward", "nn.Softmax(dim=-1)", "nn.Softmax(dim=-2)"),
    "ignored-padding": ("attention.self", "forward", "attention_scores + attention_mask", "attention_scores"),
    "head-layout": ("attention.self", "forward", "context_layer.permute(0, 2, 1, 3)", "context_layer.permute(0, 2, 3, 1)"),
    "swapped-keys": (
        "attention.self",
        "forward",
        "torch.matmul(query_layer, key_layer.transpose(-1, -2))",
        "torch.matmul(key_layer, query_layer.transpose(-1, -2))",
    ),
    "no-types": ("/bert.embeddings", "forward", " + token_type_embeddings\n", "\n"),
    "shifted-positions": ("/bert.embeddings", "forward", "_embeddings(position_ids)", "_embeddings(position_ids + 1)", "bert.embeddings.*"),
}
CURATED = {
    "tanh-gelu": (
        "ffn",
        "forward",
        "self.activation(self.intermediate(input))",
        "__import__('torch').nn.functional.gelu(self.intermediate(input), approximate='tanh')",
    ),
    "norm-eps": ("attn_residual_layer_norm", "forward", "self.eps", "1e-3"),
    "small-eps": ("attn_residual_layer_norm", "forward", "self.eps", "1e-5"),
    "no-types": ("/embeddings", "forward", "embeddings += self.type_embeddings(type_ids)", "pass"),
    "shifted-positions": ("/embeddings", "forward", "_embeddings(positions)", "_embeddings(positions + 1)", "embeddings.*"),
    "dropped-bias": ("ffn", "forward", "self.intermediate(input)", "self.intermediate(input) - self.intermediate.bias"),
}
WHISPER = {
    "scaled-twice": ("self_attn", "forward", "scaling=1.0", "scaling=self.scaling"),
    "dropped-residual": ("", "forward", FIRST_ADD, FIRST_ADD.replace("residual + ", "")),
    "tanh-gelu": (
        "",
        "forward",
        "self.activation_fn(self.fc1(hidden_states))",
        TANH.replace("hidden_states", "self.fc1(hidden_states)"),
        "activation_fn",
    ),
    "cross-without-norm": (
        "/model.decoder.layers.1",
        "forward",
        "hidden_states = self.encoder_attn_layer_norm(hidden_states)",
        "hidden_states = hidden_states",
        "model.decoder.layers.1.encoder_attn*",
    ),
    "keys-of-itself": (
        "/model.decoder.layers.1.encoder_attn",
        "forward",
        "self.v_proj(current_states)",
        "self.v_proj(current_states.roll(1, 1))",
        "decoder.blocks.1.cross_attn*",
        "model.decoder.layers.1.encoder_attn*",
    ),
}
WHISPER_OPENAI = {
    "scaled-twice": ("attn", "qkv_attention", "q = q.view(", "q = scale * q.view("),
    "uncausal-decoder": (
        "/decoder.blocks.1.attn",
        "qkv_attention",
        "is_causal=mask is not None and n_ctx > 1",
        "is_causal=False",
        "model.decoder.layers.1.self_attn*",
    ),
    "tanh-gelu": ("mlp.1", "forward", "self.approximate", "'tanh'", "mlp"),
    "dropped-residual": ("", "forward", "x = x + self.attn(", "x = self.attn("),
    "cross-without-norm": ("/decoder.blocks.1", "forward", "self.cross_attn_ln(x), xa", "x, xa", "decoder.blocks.1.cross_attn*"),
    "shifted-positions": (
        "/decoder",
        "forward",
        "self.positional_embedding[offset : offset + x.shape[-1]]",
        "self.positional_embedding[offset + 1 : offset + 1 + x.shape[-1]]",
        "model.decoder",
        "model.decoder.embed_positions",
    ),
    "norm-after": ("", "forward", "x = x + self.mlp(self.mlp_ln(x))", "x = self.mlp_ln(x + self.mlp(x))", "mlp_ln", "mlp.*"),
}
CLIP = {
    "scale-by-width": ("self_attn", "forward", "scaling=self.scale", "scaling=self.embed_dim**-0.5"),
    "exact-gelu": ("mlp", "forward", "self.activation_fn(", "torch.nn.functional.gelu("),
    "dropped-residual": ("", "forward", FIRST_ADD, FIRST_ADD.replace("residual + ", "")),
    "normed-residual": (
        "",
        "forward",
        "residual = hidden_states\n    hidden_states = self.layer_norm2(hidden_states)",
        "hidden_states = self.layer_norm2(hidden_states)\n    residual = hidden_states",
    ),
}
OPEN_CLIP = {
    "exact-gelu": ("mlp.gelu", "forward", "x * torch.sigmoid(1.702 * x)", "torch.nn.functional.gelu(x)", "mlp"),
    "dropped-residual": ("", "forward", "x = q_x + self.ls_1(", "x = self.ls_1("),
    "unmasked-text": ("/transformer.resblocks.1", "forward", "attn_mask=attn_mask", "attn_mask=None", "transformer.resblocks.1.attn*"),
    "norm-after": ("", "forward", "self.ls_2(self.mlp(self.ln_2(x)))", "self.ln_2(self.mlp(x))", "ln_2", "mlp.*"),
    "values-unnormed": ("", "attention", "q_x, k_x, v_x,", "q_x, k_x, 1.1 * v_x,", "attn", "attn.*"),
}

TIMM_BLOCK = "/blocks.3.0"
TORCHVISION_BLOCK = "/features.4.0"
TIMM_EFFICIENTNET = {
    "hard-gate": (f"{TIMM_BLOCK}.se", "forward", "self.gate(x_se)", "torch.nn.functional.hardsigmoid(x_se)"),
    "relu": (f"{TIMM_BLOCK}.bn2.act", "forward", "F.silu(", "F.relu("),
    "dropped-residual": ("/blocks.5.1", "forward", "self.drop_path(x) + shortcut", "self.drop_path(x)", "features.6.1"),
}
TORCHVISION_EFFICIENTNET = {
    "hard-gate": (f"{TORCHVISION_BLOCK}.block.2", "_scale", "self.scale_activation(", "torch.nn.functional.hardsigmoid("),
    "relu-in-gate": (f"{TORCHVISION_BLOCK}.block.2", "_scale", "self.activation(", "torch.nn.functional.relu("),
    "dropped-residual": ("/features.6.1", "forward", "result += input", "pass", "blocks.5.1"),
    "norm-eps": (f"{TORCHVISION_BLOCK}.block.1.1", "forward", "self.eps", "1e-3"),
    "norm-momentum": (f"{TORCHVISION_BLOCK}.block.1.1", "forward", "exponential_average_factor = self.momentum", "exponential_average_factor = 0.01"),
    "kept-statistics": (f"{TORCHVISION_BLOCK}.block.1.1", "forward", "bn_training = True", "bn_training = False", "blocks.3.0.bn2"),
    "shifted-kernel": (f"{TORCHVISION_BLOCK}.block.1.0", "forward", "self.weight", "self.weight.flip(-1)"),
}
GEFFNET = {
    "hard-gate": (f"{TIMM_BLOCK}.se", "forward", "self.gate_fn(x_se)", "torch.nn.functional.hardsigmoid(x_se)"),
    "gate-of-input": ("/blocks.3.0", "forward", "x = self.se(x)", "x = x + self.se(x)"),
    "dropped-residual": ("/blocks.5.1", "forward", "x += residual", "pass"),
    "late-norm": (
        "/blocks.3.0",
        "forward",
        "x = self.bn2(x)\n    x = self.act2(x)",
        "x = self.act2(x)\n    x = self.bn2(x)",
        "blocks.3.0.bn2",
        "blocks.3.0.act2",
    ),
}
EFFICIENTNET = {
    "hard-gate": ("/_blocks.3", "forward", "torch.sigmoid(x_squeezed)", "F.hardsigmoid(x_squeezed)"),
    "max-squeeze": ("/_blocks.3", "forward", "F.adaptive_avg_pool2d", "F.adaptive_max_pool2d"),
    "no-activation": ("/_blocks.3", "forward", "x = self._bn1(x)\n    x = self._swish(x)", "x = self._bn1(x)", "blocks.3.0.bn2*"),
    "symmetric-padding": ("/_blocks.5._depthwise_conv", "forward", "self.static_padding(x)", "F.pad(x, (2, 1, 2, 1))", "_blocks.5"),
}
TORCHVISION_VIT = {
    "dropped-residual": ("", "forward", "x = x + input", "x = x", "self_attention", "ln_2"),
    "swapped-keys": (
        "",
        "forward",
        "self.self_attention(x, x, x,",
        "self.self_attention(x, x.flip(1), x,",
        "self_attention",
        "self_attention.*",
        "*.1.attn*",
    ),
    "tanh-gelu": ("mlp.1", "forward", "self.approximate", "'tanh'", "mlp"),
    "norm-after": (
        "",
        "forward",
        "y = self.ln_2(x)\n    y = self.mlp(y)",
        "y = self.mlp(x)\n    y = self.ln_2(y)",
        "mlp",
        "mlp.*",
        "ln_2",
        "*.1.mlp*",
        "*.1.norm2",
    ),
    "unpositioned": ("/encoder", "forward", "input = input + self.pos_embedding", "pass", "(root*"),
}

COMPLEX_LLAMA = {
    "interleaved-heads": ("attention", "forward", "q, k, v = (t.flatten(2, 3)", "q, k, v = (t.transpose(2, 3).flatten(2, 3)"),
    "mixed-heads": ("attention", "forward", "k, v = k.expand_as(q), v.expand_as(q)", "k, v = k.expand_as(q), v.flip(2).expand_as(q)"),
    "opposite-turn": ("attention", "forward", "* turns).flatten", "* turns.conj()).flatten"),
    "halves-as-neighbours": (
        "attention",
        "forward",
        "t.unflatten(-1, (-1, 2)).contiguous()",
        "t.unflatten(-1, (2, -1)).transpose(-1, -2).contiguous()",
    ),
    "unmasked": ("attention", "forward", "is_causal=True", "is_causal=False"),
    "swapped-gate": ("feed", "forward", "gate, up =", "up, gate ="),
    "dropped-residual": ("", "forward", "x = x + self.attention(", "x = self.attention("),
    "norm-without-root": ("feed_norm", "forward", ".rsqrt()", ".reciprocal()"),
    "shifted-turns": ("/", "forward", "torch.arange(tokens.shape[1])", "1.1 * torch.arange(tokens.shape[1])"),
}
EINSUM_GPT = {
    "scale-by-width": ("", "forward", "math.sqrt(SIZE)", "math.sqrt(WIDTH)"),
    "softmax-axis": ("", "forward", ".softmax(-1)", ".softmax(-2)"),
    "mask-off-by-one": ("", "forward", ".triu(1)", ".triu(2)"),
    "swapped-keys": ("", "forward", "q, k, v =", "k, q, v ="),
    "dropped-bias": ("", "forward", " + self.out_bias", ""),
    "exact-gelu": ("", "forward", "0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))", "F.gelu(inner)"),
    "cubic-constant": ("", "forward", "0.044715", "0.04"),
    "dropped-residual": ("", "forward", "return x + self.down(inner)", "return self.down(inner)"),
    "norm-twice": ("", "forward", "self.up(self.norm2(x))", "self.up(self.norm2(self.norm1(x)))", "norm1", "norm2", "up"),
    "shifted-positions": ("/", "forward", "self.places[: tokens.shape[1]]", "self.places[1 : tokens.shape[1] + 1]"),
}
SEQUENCE_FIRST = {
    "swapped-batch": ("", "forward", "h = self.ln_1(x)", "h = self.ln_1(x).flip(1)", "attn", "attn.*", "ln_1"),
    "unmasked": ("", "forward", "attn_mask=mask", "attn_mask=None", "attn", "attn.*"),
    "exact-gelu": ("mlp.1", "forward", "self.approximate", "'none'", "mlp"),
    "normed-residual": ("", "forward", "x = x + self.attn(", "x = h + self.attn("),
    "norm-eps": ("ln_2", "forward", "self.eps", "1e-3"),
    "shifted-positions": ("/", "forward", "torch.arange(tokens.shape[0])", "torch.arange(tokens.shape[0]) + 1", "wpe"),
}
TORCH_BERT = {
    "ignored-padding": ("/", "forward", "src_key_padding_mask=mask == 0", "src_key_padding_mask=None", "layers.*", "*.attention*"),
    "no-types": ("/", "forward", " + self.kinds(kinds)", ""),
    "relu": ("", "_ff_block", "self.activation(", "F.relu("),
}
X_ATTENTION, X_FEED = "/attn_layers.layers.2.1", "/attn_layers.layers.3.1"
X_TRANSFORMERS = {
    "repeated-heads": (f"{X_ATTENTION}.attend", "forward", "(r kvh) n d'", "(kvh r) n d'", "attn_layers.layers.2.1*", "*.1.self_attn*"),
    "unpaired-rotary": (
        X_ATTENTION,
        "forward>apply_rotary_pos_emb",
        "rotate_half(t)",
        "torch.cat((-t[..., 8:], t[..., :8]), -1)",
        "attn_layers.layers.2.1.*",
        "*.1.self_attn*",
    ),
    "swapped-gate": (f"{X_FEED}.ff.0", "forward", "up, gate =", "gate, up =", "attn_layers.layers.3.1*", "*.1.mlp*"),
    "other-activation": (f"{X_FEED}.ff.0", "forward", "self.act(gate)", "torch.nn.functional.gelu(gate)", "attn_layers.layers.3.1*", "*.1.mlp*"),
    "centred-norm": (
        "/attn_layers.layers.3.0.0",
        "forward",
        "F.normalize(x, dim = -1)",
        "F.normalize(x - x.mean(-1, keepdim = True), dim = -1)",
        "*.1.post_attention_layernorm",
    ),
}
RWKV_HF = {
    "swapped-mix": ("attention", "extract_key_value", "hidden * self.time_mix_value + shifted", "shifted * self.time_mix_value + hidden"),
    "no-square": ("feed_forward", "forward", "torch.square(torch.relu(self.key(key)))", "torch.relu(self.key(key))"),
    "dropped-residual": ("", "forward", "hidden = hidden + attention", "hidden = attention"),
    "gate-of-output": ("attention", "forward", "self.output(receptance * rwkv)", "receptance * self.output(rwkv)"),
}
HEADS_OF_GROUPS = "self.num_attention_heads_per_partition // self.num_query_groups_per_partition, dim=2"
MEGATRON = {
    "attention-scale": ("self_attention.core_attention", "forward", "alpha=self.softmax_scale", "alpha=1.1 * self.softmax_scale"),
    "repeated-heads": (
        "self_attention.core_attention",
        "forward",
        f"key.repeat_interleave(\n            {HEADS_OF_GROUPS}\n        )",
        "key.repeat(1, 1, 2, 1)",
        "self_attention",
    ),
    "swapped-gate": ("mlp", "forward", "x_glu, x_linear = torch.chunk", "x_linear, x_glu = torch.chunk"),
    "norm-eps": ("pre_mlp_layernorm", "forward", "self.eps", "1e-2"),
}

LINES = {
    ("llama", "transformers"): LLAMA,
    ("qwen2", "transformers"): LLAMA,
    ("gemma", "transformers"): {
        **LLAMA,
        "norm-without-one": ("post_attention_layernorm", "forward", "(1.0 + self.weight.float())", "self.weight.float()"),
        "unscaled-embedding": (
            "/model",
            "forward",
            "hidden_states = inputs_embeds",
            "hidden_states = inputs_embeds / 8.0",
            "model.embed_tokens",
            "tok_embeddings",
        ),
    },
    ("llama", "torchtune"): TORCHTUNE,
    ("qwen2", "torchtune"): TORCHTUNE,
    ("gemma", "torchtune"): TORCHTUNE,
    ("gpt2", "transformers"): GPT2,
    ("gpt2", "lens"): LENS,
    ("llama", "lens"): LENS,
    ("mamba", "transformers"): MAMBA,
    ("mamba", "mambapy"): MAMBAPY,
    ("bert", "transformers"): BERT,
    ("bertencoder", "transformers"): {name: tuple(text.replace("bert.embeddings", "embeddings") for text in row) for name, row in BERT.items()},
    ("bert", "bert2018"): BERT_BEFORE,
    ("bert", "bert2019"): {**BERT_BEFORE, "small-eps": BERT_BLOCK["small-eps"]},
    ("bertencoder", "curated"): CURATED,
    ("whisper", "transformers"): WHISPER,
    ("whisper", "whisper"): WHISPER_OPENAI,
    ("clip", "transformers"): CLIP,
    ("clip", "openclip"): OPEN_CLIP,
    ("efficientnet", "timm"): TIMM_EFFICIENTNET,
    ("efficientnet", "torchvision"): TORCHVISION_EFFICIENTNET,
    ("efficientnet", "geffnet"): GEFFNET,
    ("efficientnet", "efficientnet"): EFFICIENTNET,
    ("vit", "torchvision"): TORCHVISION_VIT,
    ("llama", "xtransformers"): X_TRANSFORMERS,
    ("llama", "megatron"): MEGATRON,
    ("rwkv", "transformers"): RWKV_HF,
    ("llama", "complexllama"): COMPLEX_LLAMA,
    ("gpt2", "einsumgpt"): EINSUM_GPT,
    ("gpt2", "sequencefirst"): SEQUENCE_FIRST,
    ("bertencoder", "torchbert"): TORCH_BERT,
}
