"""wav2vec 2.0 of transformers and torchaudio, EnCodec of transformers and of its authors, ESM-2 of transformers and of its authors."""

import importlib
import re
import sys

import moved_weights
import other_language_models as own
import torch

FAMILIES = ("wav2vec2", "encodec", "esm")


def encodec_scores(model):
    return lambda waves: model.decoder(model.encoder(waves[:, None])).reshape(waves.shape[0], -1, 8)


def build_transformers(family, changes, attention):
    model = own.build_transformers(family, changes, attention)
    if family == "wav2vec2":
        model.scores_of = lambda waves: model(waves).last_hidden_state
        own.freeze(model, "masked_spec_embed")
    elif family == "encodec":
        model.scores_of = encodec_scores(model)
    else:
        model.scores_of = lambda tokens: model(tokens, attention_mask=torch.ones_like(tokens)).logits
        own.freeze(model, "contact_head")
    return model


def drawn_batch(family, drawn, dtype):
    """Waves with one class for each frame, or the tokens of proteins."""
    if family == "esm":
        tokens = torch.randint(4, 24, (2, 12), generator=drawn)
        return tokens, tokens[:, 1:].flatten()
    waves = torch.randn(2, 400, generator=drawn).to(dtype)
    frames, kinds = {"wav2vec2": (19, 64), "encodec": (50, 8)}[family]
    return waves, torch.randint(0, kinds, (2, frames - 1), generator=drawn).flatten()


def build_torchaudio(family, changes, attention):
    own.without_extension("torchaudio", "torchaudio.models")
    from torchaudio.models.wav2vec2.model import wav2vec2_model

    model = wav2vec2_model("group_norm", [(32, 10, 5), (32, 3, 2), (32, 2, 2)], False, 64, 0.0, 16, 4, 3, 4, 0.0, 128, 0.0, 0.0, False, 0.0, None)
    model.scores_of = lambda waves: model(waves)[0]
    given = own.published("wav2vec2")
    return moved_weights.moved(given, TORCHAUDIO, model)


TORCHAUDIO = [
    (r"^feature_projection", "encoder.feature_projection"),
    (r"^encoder\.(pos_conv_embed|layer_norm|layers)", r"encoder.transformer.\1"),
]


def build_esm(family, changes, attention):
    own.without_extension("esm", "esm.model")
    sys.modules["esm"].data = importlib.import_module("esm.data")
    from esm.model.esm2 import ESM2

    model = ESM2(num_layers=3, embed_dim=64, attention_heads=4, **changes)
    model.scores_of = lambda tokens: model(tokens)["logits"]
    own.freeze(model, "contact_head")
    return moved_weights.moved(own.published("esm"), ESM, model)


ESM = [
    (r"esm\.embeddings\.word_embeddings", "embed_tokens"),
    (r"esm\.encoder\.layer\.", "layers."),
    (r"esm\.encoder\.emb", "emb"),
    (r"esm\.contact", "contact"),
    (r"attention\.self\.(q|k|v)\w+\.", r"self_attn.\1_proj."),
    (r"attention\.output\.dense", "self_attn.out_proj"),
    (r"attention\.LayerNorm", "self_attn_layer_norm"),
    (r"intermediate\.dense", "fc1"),
    (r"output\.dense", "fc2"),
    (r"^layers\.(\d)\.LayerNorm", r"layers.\1.final_layer_norm"),
]


def build_encodec(family, changes, attention):
    own.without_extension("encodec")
    from encodec.modules import seanet

    sizes = dict(channels=1, dimension=16, n_filters=8, ratios=[4, 2], norm="weight_norm", causal=True, lstm=1, true_skip=False)
    model = torch.nn.Module()
    model.encoder, model.decoder = seanet.SEANetEncoder(**{**sizes, **changes}), seanet.SEANetDecoder(**sizes)
    model.forward = model.scores_of = encodec_scores(model)
    given = {name: value for name, value in own.published("encodec").items() if not name.startswith("quantizer")}
    # Both register the same parts in one order, but for a weight's size and direction.
    with torch.no_grad():
        for (name, p), value in zip(sorted_parts(dict(model.named_parameters())), [v for _, v in sorted_parts(given)]):
            assert p.numel() == value.numel(), name
            p.copy_(value.reshape(p.shape))
    return model


def sorted_parts(tensors):
    """In the order of the numbers in their names."""
    suffix = {"original0": "weight_g", "original1": "weight_v"}

    def key(item):
        name = item[0]
        for old, new in suffix.items():
            name = name.replace(old, new)
        return [n.rjust(3, "0") for n in re.findall(r"^encoder|^decoder|\d+", name)], "shortcut" in name, name.split(".")[-1]

    return sorted(tensors.items(), key=key)


BUILDERS = {
    **{(family, "transformers"): build_transformers for family in FAMILIES},
    ("wav2vec2", "torchaudio"): build_torchaudio,
    ("esm", "fairesm"): build_esm,
    ("encodec", "encodec"): build_encodec,
}
