"""Pairs that came after the comparison was made: second implementations of further models, of further projects, and by further habits of writing.

Innocent, and one fault on either side."""

FORWARD, TRAIN = "forward", "train"
EAGER = ("--attention", "eager")
PIXELS = ("--normalised",)
PADDED = ("--padded",)
Z_LOSS = ("--z-loss", "0.01")
GROUPS = ("--groups",)
ONE_GROUP = ("--set", "n_groups=1")
TANH = ("--set", 'hidden_act="gelu_new"')

# family, side a, side b, modes in which they are innocent, faults in a, faults in b
MODELS = (
    (
        "convnext",
        "tf5",
        "timm",
        (FORWARD, TRAIN),
        "no-layer-scale drop-path-in-eval norm-before-pool norm-after-activation",
        "no-layer-scale dropped-residual norm-eps tanh-gelu",
    ),
    ("convnext", "tf5", "torchvision", (FORWARD, TRAIN), "drop-path-in-eval", "scaled-twice channels-of-norm"),
    ("convnext", "timm", "torchvision", (FORWARD,), "", ""),
    (
        "swin",
        "tf5",
        "timm",
        (FORWARD, TRAIN),
        "no-shift-mask no-relative-bias merge-order unshifted-back",
        "shift-the-other-way no-shift-mask scale-by-width",
    ),
    ("swin", "tf5", "torchvision", (FORWARD, TRAIN), "no-relative-bias", "transposed-bias weak-mask"),
    ("dinov2", "tf5", "timm", (FORWARD, TRAIN), "no-layer-scale pooled-with-class scale-by-width", "scale-of-the-other unpositioned-class"),
    ("beit", "tf5", "timm", (FORWARD, TRAIN), "pooled-with-class no-layer-scale transposed-bias", "biases-exchanged no-relative-bias pooled-token"),
    ("deit", "tf5", "timm", (FORWARD, TRAIN), "class-head-alone tokens-exchanged", "heads-exchanged summed-heads"),
    ("siglip", "tf5", "timm", (FORWARD, TRAIN), "probe-without-residual scale-by-width", "mean-of-tokens residual-of-norm exact-gelu"),
    ("regnet", "tf5", "torchvision", (FORWARD, TRAIN), "gate-of-output no-activation", ""),
    ("densenet", "torchvision", "timm", (FORWARD, TRAIN), "", "order-of-features max-for-mean"),
    (
        "llama",
        "tf5",
        "fms",
        (FORWARD, TRAIN),
        "no-final-norm interleaved-rotary",
        "dropped-residual normed-residual swapped-gate norm-without-mean unturned-keys keys-of-the-other-group",
    ),
    ("mixtral", "tf5", "fms", (FORWARD,), "", "dropped-residual softmax-not-normalised"),
    ("roberta", "tf5", "fms", (FORWARD, TRAIN), "", "dropped-residual positions-from-one tanh-gelu"),
    ("roberta", "tf5", "torchtext", (FORWARD, TRAIN), "", "positions-from-zero no-embedding-norm"),
    ("roberta", "fms", "torchtext", (FORWARD,), "", ""),
    ("mpnet", "tf5", "fms", (FORWARD, TRAIN), "", "bias-without-sign transposed-bias norm-before-add"),
    ("bigcode", "tf5", "fms", (FORWARD, TRAIN), "heads-of-one-key scale-by-width", "shifted-positions dropped-residual norm-eps"),
    (
        "t5",
        "tf5",
        "torchtext",
        (FORWARD, TRAIN),
        "bias-for-first-alone dropped-residual",
        "scaled-scores late-residual gelu-for-relu buckets-both-ways unscaled-head centred-norm",
    ),
    ("wav2vec2", "tf5", "torchaudio", (FORWARD, TRAIN), "", "padded-left norm-first no-positions scale-by-width early-norm"),
    ("esm", "tf5", "fairesm", (FORWARD, TRAIN), "no-mask-ratio dropped-norm", "residual-of-norm rotary-of-keys tanh-gelu"),
    ("encodec", "tf5", "encodec", (FORWARD, TRAIN), "", "no-shortcut no-skip padded-both zero-padding trimmed-left"),
    ("falcon", "tf5", "litgpt", (FORWARD, TRAIN), "", "serial-residual norm-of-sum opposite-turn"),
    ("gemma3", "tf5", "litgpt", (FORWARD, TRAIN), "window-off-by-one", "no-norm-of-keys window-too-long global-table no-norm-after"),
    ("llama", "tf5", "keras", (FORWARD, TRAIN), "rope-linear no-final-norm scale-by-width swapped-gate-up norm-eps", ""),
    ("gpt2", "tf5", "keras", (FORWARD, TRAIN), "shifted-positions other-activation swapped-keys", ""),
    ("qwen2moe", "tf5", "keras", (FORWARD,), "no-shared-gate choice-normalised no-shared-expert", ""),
    (
        "llama",
        "tf5",
        "flatllama",
        (FORWARD, TRAIN),
        "scale-by-width",
        "one-head-of-keys shifted-cache no-scale stale-values wrong-base no-final-norm",
    ),
    ("llama", "tf5", "dictllama", (FORWARD, TRAIN), "norm-eps other-activation", "norm-of-sum gate-and-up groups-exchanged window"),
    ("gpt2", "tf5", "onlinegpt", (FORWARD, TRAIN), "swapped-keys head-layout", "unscaled-sum block-boundary biased-variance exchanged-shifts"),
    (
        "mamba2",
        "tf5",
        "recurrent",
        (FORWARD, TRAIN),
        "norm-before-gate",
        "no-step-bias unscaled-input late-state gate-after-norm one-group-of-norm groups-in-turn kernel-turned",
    ),
    (
        "deepseek",
        "tf5",
        "latent",
        (FORWARD, TRAIN),
        "halves-for-neighbours scale-of-plain-part unnormalised no-shared-expert other-scale-of-routing",
        "scale-of-plain-part no-latent-norm unturned-key unscaled-routing biased-weights unnormalised one-group no-shared-expert",
    ),
    (
        "qwen2moe",
        "tf5",
        "dispatch",
        (FORWARD, TRAIN),
        "no-shared-gate normalised-choice choice-normalised",
        "no-shared-gate normalised-choice one-expert sigmoid-router keys-of-the-other-group mask-without-itself exchanged-experts",
    ),
    ("lstm", "torchlstm", "cells", (FORWARD,), "", "order-of-gates forget-bias stale-state"),
    ("llama", "flatllama", "dictllama", (FORWARD,), "", ""),
    ("llama", "fms", "keras", (FORWARD,), "", ""),
    ("deepseek", "tf457", "tf5", (FORWARD, TRAIN), "", "unnormalised"),
    ("qwen2moe", "tf457", "tf5", (FORWARD, TRAIN), "", "no-shared-gate normalised-choice"),
    ("gptoss", "tf457", "tf5", (FORWARD, TRAIN), "", "no-sink gate-without-one softmax-of-all window-off-by-one"),
    ("falcon", "tf457", "tf5", (FORWARD,), "", ""),
    ("phi3", "tf457", "tf5", (FORWARD, TRAIN), "", ""),
    ("t5", "tf457", "tf5", (FORWARD, TRAIN), "", ""),
    ("gemma3", "tf457", "tf5", (FORWARD,), "", ""),
)

# In training alone: family, side a, side b, side of the fault, fault, words for both sides
TRAINED = (
    ("llama", "tf5", "fms", "b", "label-shift", ()),
    ("llama", "tf5", "fms", "b", "adam-eps", ()),
    ("llama", "tf5", "fms", "b", "clip-of-matrices", ()),
    ("llama", "tf5", "fms", "a", "detached-branch", ()),
    ("llama", "tf5", "fms", "b", None, PADDED),
    ("llama", "tf5", "fms", "b", "mean-over-padding", PADDED),
    ("llama", "tf5", "keras", "b", "mean-over-padding", PADDED),
    ("llama", "tf5", "fms", "b", None, Z_LOSS),
    ("llama", "tf5", "fms", "b", "z-loss-coefficient", Z_LOSS),
    ("llama", "tf5", "dictllama", "b", "no-z-loss", Z_LOSS),
    ("llama", "tf5", "dictllama", "b", "label-shift", ()),
    ("llama", "tf5", "flatllama", "b", "weight-decay", ()),
    ("gpt2", "tf5", "keras", "a", "untied", ()),
    ("gpt2", "tf5", "onlinegpt", "a", "untied", ()),
    ("gpt2", "tf5", "onlinegpt", "b", "wrong-slope", ()),
    ("gpt2", "tf5", "onlinegpt", "b", "exchanged-shifts", ()),
    ("gpt2", "tf5", "keras", "b", "adam-eps", ()),
    ("qwen2moe", "tf5", "dispatch", "a", "detached-router", ()),
    ("qwen2moe", "tf5", "dispatch", "b", "no-shared-gate", ()),
    ("deepseek", "tf5", "latent", "b", "unscaled-routing", ()),
    ("deepseek", "tf5", "latent", "b", "clip-of-matrices", ()),
    ("mamba2", "tf5", "recurrent", "b", "no-step-bias", ()),
    ("mamba2", "tf5", "recurrent", "b", "betas", ()),
    ("t5", "tf5", "torchtext", "b", "gelu-for-relu", ()),
    ("t5", "tf5", "torchtext", "b", "label-shift", ()),
    ("wav2vec2", "tf5", "torchaudio", "b", "no-clip", ()),
    ("wav2vec2", "tf5", "torchaudio", "b", "padded-left", ()),
    ("swin", "tf5", "timm", "b", "no-shift-mask", ()),
    ("swin", "tf5", "torchvision", "b", "rate-of-a-group", GROUPS),
    ("convnext", "tf5", "timm", "b", "decay-of-vectors", GROUPS),
    ("convnext", "tf5", "timm", "b", None, PIXELS),
    ("convnext", "tf5", "timm", "b", "other-deviation", PIXELS),
    ("dinov2", "tf5", "timm", "b", "scale-of-the-other", ()),
    ("regnet", "tf5", "torchvision", "b", "norm-momentum", ()),
    ("regnet", "tf5", "torchvision", "b", "kept-statistics", ()),
    ("encodec", "tf5", "encodec", "b", "no-skip", ()),
    ("falcon", "tf5", "litgpt", "b", "serial-residual", ()),
    ("esm", "tf5", "fairesm", "b", "rotary-of-keys", ()),
)


def extra(family, environment):
    if family == "mamba2" and environment == "tf457":
        return ONE_GROUP
    return EAGER if family == "gptoss" else ()


def of_models(pair):
    for family, a, b, modes, faults_of_a, faults_of_b in MODELS:
        words = dict(extra_a=extra(family, a), extra_b=extra(family, b))
        for mode in modes:
            yield pair(family, a, b, mode, **words)
        for fault in faults_of_b.split():
            yield pair(family, a, b, FORWARD, (fault,), **words)
        for fault in faults_of_a.split():
            yield pair(family, b, a, FORWARD, (fault,), extra_a=words["extra_b"], extra_b=words["extra_a"])


def of_training(pair):
    for family, a, b, where, fault, words in TRAINED:
        first, second = (a, b) if where == "b" else (b, a)
        label = words[0].strip("-") if words else ""
        yield pair(family, first, second, TRAIN, (fault,) if fault else (), extra_a=words, extra_b=words, label=label)


def of_releases(pair):
    """What the second release computes otherwise, and the same where the configuration says so or where it does not matter."""
    yield pair("mamba2", "tf457", "tf5", FORWARD, extra_a=ONE_GROUP, extra_b=ONE_GROUP, label="one-group")
    named = (("mamba2", "tf457", "tf5", (), "release-groups"), ("bertencoder", "tf5", "keras", (), "release-tanh"))
    for family, a, b, words, fault in named:
        made = pair(family, a, b, FORWARD, extra_b=words)
        yield made._replace(name=made.name.replace("innocent", fault), faults=(fault,))
    for mode in (FORWARD, TRAIN):
        yield pair("bertencoder", "tf5", "keras", mode, extra_a=TANH, label="tanh")
    for fault in ("no-types", "ignored-padding", "small-eps", "norm-before-add", "scale-by-width"):
        yield pair("bertencoder", "keras", "tf5", FORWARD, (fault,), extra_b=TANH, label="tanh")
    yield pair("llama", "tf5", "fms", FORWARD, ("dropout-in-evaluation",))
    yield pair("llama", "fms", "tf5", FORWARD, ("dropout-in-evaluation",))
    yield pair("llama", "fms", "tf5", FORWARD, ("bf16-softmax",), extra_b=EAGER, label="eager")
    yield pair("llama", "fms", "tf5", FORWARD, ("rounded-table",))


RELEASES = {
    "release-groups": [f"backbone.layers.{k}.mixer{part}" for k in range(3) for part in ("", ".norm")],
    "release-tanh": [f"encoder.layer.{k}.{part}" for k in range(3) for part in ("intermediate", "intermediate.*", "output", "output.*")],
}


def pairs(pair):
    return [*of_models(pair), *of_training(pair), *of_releases(pair)]
