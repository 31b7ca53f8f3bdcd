"""BERT, Whisper and CLIP of transformers and of other projects. Published names: those of transformers.

Each model says by `scores_of` how it is called with a drawn batch."""

import re
import types

import absent_packages
import named_weights
import torch

BERT = dict(
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=32,
    type_vocab_size=2,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    hidden_act="gelu",
    layer_norm_eps=1e-12,
)


def filled(model, name_of, weight_of=named_weights.weight):
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(weight_of(name_of(name), p.shape))
    return model


def bert_weight(name, shape):
    name = name.replace("cls.predictions.decoder.bias", "cls.predictions.bias")
    return named_weights.weight(name, shape)


def published_encoder():
    """BertModel's weights, and a pooler that nothing reads."""
    import transformers

    parameters = transformers.BertModel(transformers.BertConfig(vocab_size=96, **BERT)).named_parameters()
    return {name: bert_weight("bert." + name, p.shape) for name, p in parameters}


def build_transformers_bert(family, changes, attention):
    import transformers

    config = transformers.BertConfig(vocab_size=96, **{**BERT, **changes})
    config._attn_implementation = attention
    if family == "bertencoder":
        model = filled(transformers.BertModel(config, add_pooling_layer=False), lambda name: "bert." + name, bert_weight)
        model.scores_of = lambda batch: model(batch.tokens, attention_mask=batch.mask, token_type_ids=batch.types).last_hidden_state
    else:
        model = filled(transformers.BertForMaskedLM(config), str, bert_weight)
        model.scores_of = lambda batch: model(batch.tokens, attention_mask=batch.mask, token_type_ids=batch.types).logits
    return model


def build_bert2018(family, changes, attention):
    with absent_packages.absent("boto3", "botocore"):
        from pytorch_pretrained_bert import modeling

    given = {k: v for k, v in BERT.items() if k != "layer_norm_eps"}
    model = filled(modeling.BertForMaskedLM(modeling.BertConfig(96, **{**given, **changes})), str, bert_weight)
    model.scores_of = lambda batch: model(batch.tokens, batch.types, batch.mask)
    return model


def build_bert2019(family, changes, attention):
    with absent_packages.absent("boto3", "botocore", "six", "sacremoses", "sentencepiece"):
        from pytorch_transformers import modeling_bert

    config = modeling_bert.BertConfig(96, **{**BERT, **changes})
    model = filled(modeling_bert.BertForMaskedLM(config), str, bert_weight)
    model.scores_of = lambda batch: model(batch.tokens, token_type_ids=batch.types, attention_mask=batch.mask)[0]
    return model


def build_curated(family, changes, attention):
    import transformers
    from curated_transformers.layers import AttentionMask
    from curated_transformers.models.bert import BERTConfig, BERTEncoder

    sizes = dict(embedding_width=64, hidden_width=64, intermediate_width=128, n_attention_heads=4, n_hidden_layers=3, n_pieces=96, n_positions=32)
    model = BERTEncoder(BERTConfig(**{**sizes, "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, **changes}))
    given = transformers.BertModel(transformers.BertConfig(vocab_size=96, **BERT), add_pooling_layer=False).named_parameters()
    state = {"bert." + name: bert_weight("bert." + name, p.shape) for name, p in given}
    model.load_state_dict(BERTEncoder.state_dict_from_hf(state))
    model.scores_of = lambda batch: model(batch.tokens, AttentionMask(batch.mask.bool()), type_ids=batch.types).last_hidden_layer_state
    return model


def whisper_weight(name, shape):
    if name.endswith("encoder.embed_positions.weight"):
        from transformers.models.whisper.modeling_whisper import sinusoids

        return sinusoids(*shape)
    return named_weights.weight(name, shape)


def build_transformers_whisper(family, changes, attention):
    import transformers

    config = transformers.WhisperConfig(
        **{
            **dict(
                vocab_size=96,
                num_mel_bins=20,
                d_model=64,
                encoder_layers=3,
                decoder_layers=3,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=256,
                decoder_ffn_dim=256,
                max_source_positions=8,
                max_target_positions=16,
                dropout=0.0,
                attention_dropout=0.0,
                activation_dropout=0.0,
                use_cache=False,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=1,
                decoder_start_token_id=1,
                suppress_tokens=None,
                begin_suppress_tokens=None,
            ),
            **changes,
        }
    )
    config._attn_implementation = attention
    model = filled(transformers.WhisperForConditionalGeneration(config), str, whisper_weight)
    model.scores_of = lambda batch: model(input_features=batch.sound, decoder_input_ids=batch.tokens, use_cache=False).logits
    return model


WHISPER_PLACES = [
    (r"(encoder|decoder)\.blocks", r"model.\1.layers"),
    (r"cross_attn_ln", "encoder_attn_layer_norm"),
    (r"cross_attn\.", "encoder_attn."),
    (r"attn_ln", "self_attn_layer_norm"),
    (r"\.attn\.", ".self_attn."),
    (
        r"attn\.(query|key|value|out)\.",
        lambda found: "attn.%s." % {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}[found.group(1)],
    ),
    (r"mlp_ln", "final_layer_norm"),
    (r"mlp\.0", "fc1"),
    (r"mlp\.2", "fc2"),
    (r"^encoder\.ln_post", "model.encoder.layer_norm"),
    (r"^decoder\.ln\.", "model.decoder.layer_norm."),
    (r"^decoder\.token_embedding", "model.decoder.embed_tokens"),
    (r"^decoder\.positional_embedding", "model.decoder.embed_positions.weight"),
    (r"^encoder\.conv", "model.encoder.conv"),
]


def renamed(name, places):
    for pattern, replacement in places:
        name = re.sub(pattern, replacement, name)
    return name


def build_whisper(family, changes, attention):
    with absent_packages.absent("tiktoken", "numba"):
        from whisper import model as source

    dims = dict(n_mels=20, n_audio_ctx=8, n_audio_state=64, n_audio_head=4, n_audio_layer=3)
    dims.update(n_vocab=96, n_text_ctx=16, n_text_state=64, n_text_head=4, n_text_layer=3)
    model = source.Whisper(source.ModelDimensions(**{**dims, **changes}))
    del model.alignment_heads  # sparse, and read by nothing here
    filled(model, lambda name: renamed(name, WHISPER_PLACES))
    model.scores_of = lambda batch: model(batch.sound, batch.tokens)
    return model


def clip_weight(name, shape):
    if name == "logit_scale":
        return torch.tensor(2.0).reshape(tuple(shape))
    return named_weights.weight(name, shape)


def build_transformers_clip(family, changes, attention):
    import transformers

    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, hidden_act="quick_gelu", **changes)
    text = dict(sizes, vocab_size=96, max_position_embeddings=12, eos_token_id=95, bos_token_id=1, pad_token_id=0)
    vision = dict(sizes, image_size=16, patch_size=4)
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=32)
    config._attn_implementation = config.text_config._attn_implementation = config.vision_config._attn_implementation = attention
    model = filled(transformers.CLIPModel(config), str, clip_weight)
    model.scores_of = lambda batch: model(input_ids=batch.tokens, pixel_values=batch.image).logits_per_image
    return model


CLIP_PLACES = [
    (r"^visual\.transformer\.resblocks", "vision_model.encoder.layers"),
    (r"^transformer\.resblocks", "text_model.encoder.layers"),
    (r"attn\.out_proj", "self_attn.out_proj"),
    (r"ln_(\d)", r"layer_norm\1"),
    (r"mlp\.c_fc", "mlp.fc1"),
    (r"mlp\.c_proj", "mlp.fc2"),
    (r"^visual\.class_embedding", "vision_model.embeddings.class_embedding"),
    (r"^visual\.positional_embedding", "vision_model.embeddings.position_embedding.weight"),
    (r"^visual\.conv1", "vision_model.embeddings.patch_embedding"),
    (r"^visual\.ln_pre", "vision_model.pre_layrnorm"),
    (r"^visual\.ln_post", "vision_model.post_layernorm"),
    (r"^visual\.proj", "visual_projection.weight"),
    (r"^text_projection", "text_projection.weight"),
    (r"^token_embedding", "text_model.embeddings.token_embedding"),
    (r"^positional_embedding", "text_model.embeddings.position_embedding.weight"),
    (r"^ln_final", "text_model.final_layer_norm"),
]


def open_clip_weight(name, shape):
    name = renamed(name, CLIP_PLACES)
    packed = re.fullmatch(r"(.*)\.attn\.in_proj_(weight|bias)", name)
    if packed:
        third = (shape[0] // 3, *shape[1:])
        return torch.cat([clip_weight(f"{packed.group(1)}.self_attn.{w}_proj.{packed.group(2)}", third) for w in "qkv"])
    if name.endswith("projection.weight"):
        return clip_weight(name, shape[::-1]).T
    return clip_weight(name, shape)


def build_openclip(family, changes, attention):
    absent_packages.bare("open_clip")
    with absent_packages.absent("torchvision", "PIL"):
        from open_clip import model as source

    vision = source.CLIPVisionCfg(layers=3, width=64, head_width=16, patch_size=4, image_size=16, mlp_ratio=2.0)
    text = source.CLIPTextCfg(context_length=12, vocab_size=96, width=64, heads=4, layers=3, mlp_ratio=2.0)
    model = filled(source.CLIP(32, vision, text, **{**dict(quick_gelu=True), **changes}), str, open_clip_weight)

    def scores_of(batch):
        image, words, scale = model(batch.image, batch.tokens)[:3]
        return scale * image @ words.T

    model.scores_of = scores_of
    return model


BUILDERS = {
    ("bert", "transformers"): build_transformers_bert,
    ("bertencoder", "transformers"): build_transformers_bert,
    ("bert", "bert2018"): build_bert2018,
    ("bert", "bert2019"): build_bert2019,
    ("bertencoder", "curated"): build_curated,
    ("whisper", "transformers"): build_transformers_whisper,
    ("whisper", "whisper"): build_whisper,
    ("clip", "transformers"): build_transformers_clip,
    ("clip", "openclip"): build_openclip,
}


FAMILIES = ("bert", "bertencoder", "whisper", "clip")


def drawn_batch(family, drawn, dtype):
    """A batch and its targets; -100 is no target."""
    tokens = torch.randint(2, 95, (2, 12), generator=drawn)
    if family in ("bert", "bertencoder"):
        mask = torch.ones(2, 12, dtype=torch.long)
        mask[1, 9:] = 0
        segments = (torch.arange(12) >= 6).long().expand(2, -1).clone()
        targets = torch.where((torch.arange(12) % 3 == 1) & (mask == 1), torch.randint(2, 60, (2, 12), generator=drawn), -100)
        return types.SimpleNamespace(tokens=tokens * mask, mask=mask, types=segments), targets
    if family == "whisper":
        sound = torch.randn(2, 20, 16, generator=drawn).to(dtype)
        return types.SimpleNamespace(sound=sound, tokens=tokens), torch.cat([tokens[:, 1:], torch.full((2, 1), -100)], 1)
    tokens[:, -1] = 95
    return types.SimpleNamespace(image=torch.randn(2, 3, 16, 16, generator=drawn).to(dtype), tokens=tokens), torch.arange(2)
