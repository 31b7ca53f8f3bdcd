"""Pairs of published implementations, with what is true of each: innocent, or the faults planted into side B.

A side is (environment, words for released.py). Environments are folders that `tests/setup.sh published` makes: releases of transformers
(tf438 is 4.38.0, tf5 the one of build/venv), litgpt, vision (timm and torchvision)."""

import collections

import later_pairs
import other_pairs
import ported_pairs

Pair = collections.namedtuple("Pair", "name a b faults")

TRANSFORMERS = ("tf436", "tf438", "tf445", "tf463", "tf457", "tf5")
HF = "transformers"


def implementation(environment):
    return HF if environment in TRANSFORMERS else environment


def side(environment, family, mode, faults=(), dtype="float32", extra=()):
    words = [family, implementation(environment), *(["--forward"] if mode == "forward" else []), "--dtype", dtype, *extra]
    return environment, tuple(words + [w for f in faults for w in ("--fault", f)])


def pair(family, a, b, mode, faults=(), dtype="float32", extra_a=(), extra_b=(), label=""):
    name = "-".join([family, a, b, mode, *([dtype] if dtype != "float32" else []), *([label] if label else []), "+".join(faults) or "innocent"])
    return Pair(name, side(a, family, mode, (), dtype, extra_a), side(b, family, mode, faults, dtype, extra_b), tuple(faults))


EAGER = ("--attention", "eager")
TANH = ("--set", 'hidden_activation="gelu_pytorch_tanh"')
EXACT = ("--set", 'hidden_activation="gelu"')


def first_pairs():
    for mode in ("forward", "train"):
        for faults in ((), ("rope-base",), ("norm-eps",)):
            yield pair("llama", "tf5", "litgpt", mode, faults)
        yield pair("mixtral", "tf438", "tf5", mode, extra_a=EAGER, extra_b=EAGER)
        yield pair("llama", "tf438", "tf5", mode)
        yield pair("gpt2", "tf438", "tf5", mode)
    for faults in ((), ("norm-eps",), ("other-gelu",)):
        yield pair("vit", "tf5", "timm", "forward", faults)
    yield pair("resnet", "torchvision", "timm", "forward")
    # 4.38.0 computes the exact GELU that the config names; 4.45.2 the tanh form, unless hidden_activation is given. In bfloat16 it also
    # makes its rotary table and its normaliser in bfloat16, 4.45.2 in float32 first.
    yield pair("gemma", "tf438", "tf445", "forward", extra_b=EXACT, label="given-activation")
    yield between_releases("gemma", "tf438", "tf445", "float32", ("release-gelu",))
    yield between_releases("gemma", "tf438", "tf445", "bfloat16", ("release-gelu", "release-rotary", "release-normaliser"))


def between_releases(family, a, b, dtype, faults):
    """What one release computes differently from another: nothing is planted."""
    made = pair(family, a, b, "forward", dtype=dtype, extra_b=TANH)
    return made._replace(name=made.name.replace("innocent", "+".join(faults)), faults=faults)


# Where each of these first shows, by fault.
RELEASES = {
    "release-gelu": [f"model.layers.{k}.mlp{part}" for k in range(3) for part in ("", ".act_fn")],
    "release-rotary": [f"model.layers.{k}.self_attn.rotary_emb" for k in range(3)],
    "release-normaliser": ["model"],
    **other_pairs.RELEASES,
    "release-skip": ["_blocks.0", "blocks.0.0"],  # efficientnet_pytorch compares a stride, which it keeps in a list, with 1
}


def innocent_pairs():
    for mode in ("forward", "train"):
        for family in ("qwen2", "qwen3", "mixtral", "gemma", "neox", "phi"):
            if (family, mode) != ("gemma", "train"):  # its losses differ by 6e-5 in step 2: not confirmed as innocent
                yield pair(family, "tf5", "litgpt", mode)
        if mode == "forward":  # in training litgpt's head is no longer the embedding, which is transformers' here
            yield pair("gemma2", "tf5", "litgpt", mode, extra_a=EAGER)
        for family in ("qwen2", "neox", "phi", "opt", "mistral"):
            yield pair(family, "tf438", "tf5", mode, extra_a=EAGER if family in ("neox", "opt") else ())
        for old in ("tf436", "tf445", "tf463", "tf457"):
            yield pair("llama", old, "tf5", mode)
        for old in ("tf445", "tf457"):
            yield pair("mixtral", old, "tf5", mode, extra_a=EAGER, extra_b=EAGER)
        yield pair("llama", "tf5", "tf5", mode, extra_a=EAGER, label="eager-sdpa")
        yield pair("llama", "tf457", "litgpt", mode, extra_a=("--plain",), extra_b=("--plain",), label="plain")
    yield pair("vit", "tf457", "timm", "forward")
    yield pair("vit", "tf457", "tf5", "forward")
    yield pair("vit", "tf5", "timm", "train")
    yield pair("resnet", "torchvision", "timm", "train")


def fault_pairs():
    llama = ("attention-scale", "no-causal-mask", "mask-off-by-one", "head-interleave", "residual-scale", "swapped-gate-up", "small-factor")
    for a, b in (("tf5", "litgpt"), ("litgpt", "tf5"), ("tf438", "tf5")):
        for fault in (*llama, "norm-eps", "rope-base"):
            for mode in ("forward", "train"):
                if (a, b, fault, mode)[:2] != ("tf5", "litgpt") or fault not in ("norm-eps", "rope-base"):
                    yield pair("llama", a, b, mode, (fault,))
        for fault in ("weight-decay", "betas", "loss-sum", "label-smoothing", "grad-clip"):
            yield pair("llama", a, b, "train", (fault,))
        yield pair("llama", a, b, "forward", ("norm-eps", "residual-scale"))
        yield pair("llama", a, b, "forward", ("rope-base", "head-interleave", "small-factor"))
    for a, b in (("tf5", "litgpt"), ("litgpt", "tf5")):
        for fault in ("no-qk-norm", "attention-scale"):
            yield pair("qwen3", a, b, "forward", (fault,))
        for fault in ("dropped-bias", "other-gelu", "norm-eps", "mask-off-by-one"):
            yield pair("neox", a, b, "forward", (fault,))
        for fault in ("dropped-bias", "other-gelu"):
            yield pair("phi", a, b, "forward", (fault,))
        for fault in ("other-gelu", "head-interleave"):
            yield pair("gemma", a, b, "forward", (fault,))
        gemma2 = dict(extra_a=EAGER if a == "tf5" else (), extra_b=EAGER if b == "tf5" else ())
        yield pair("gemma2", a, b, "forward", ("no-final-softcap",), **gemma2)
        yield pair("llama", a, b, "forward", ("all-norms-eps",))
    for a, b in (("tf5", "timm"), ("timm", "tf5")):
        for fault in ("attention-scale", "residual-scale", "head-interleave", "norm-eps", "other-gelu"):
            if (a, fault) not in (("tf5", "norm-eps"), ("tf5", "other-gelu")):
                yield pair("vit", a, b, "forward", (fault,))


PAIRS = [*first_pairs(), *innocent_pairs(), *fault_pairs(), *ported_pairs.pairs(pair), *other_pairs.pairs(pair), *later_pairs.pairs(pair)]
