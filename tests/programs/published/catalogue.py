"""Pairs of published implementations: two sides, and the places where they differ by truth (none: innocent)."""

import dataclasses

# Where each implementation comes from: folders beside each other that tests/setup.sh published fills; "": the ordinary environment.
SOURCES = {
    "transformers-5": "",
    "transformers-438": "tf438,hub",
    "transformers-445": "tf445,hub",
    "transformers-446": "tf446,hub",
    "transformers-457": "tf457,hub",
    "litgpt": "litgpt",
    "timm": "timm",
    "torchvision": "timm",
}


@dataclasses.dataclass
class Pair:
    family: str
    first: str
    second: str
    places: tuple = ()  # regular expressions: each is met by the layer or the op of one difference, on either side
    faults: tuple = ()  # planted into the second side
    first_faults: tuple = ()
    train: bool = False
    dtype: str = "float32"

    @property
    def program(self):
        return "vision.py" if self.family in ("vit", "resnet") else "decoders.py"

    @property
    def name(self):
        kind = ["train"] * self.train + [self.dtype] * (self.dtype != "float32")
        return " ".join([self.family, self.first, self.second, *kind, *self.faults])


def everything():
    pairs = []
    both = (False, True)
    for family in ("llama", "gemma-default", "gpt_neox", "phi", "qwen2", "qwen3", "mixtral"):
        pairs += [Pair(family, "transformers-5", "litgpt", train=train) for train in both]
    for family in ("llama", "mistral", "qwen2", "phi", "gpt_neox", "gpt2", "falcon", "gptj", "opt", "bloom", "mpt", "stablelm", "mixtral"):
        pairs += [Pair(family, "transformers-438", "transformers-5", train=train) for train in both]
    for family in ("gemma2", "olmo", "cohere", "granite", "starcoder2", "llama"):
        pairs += [Pair(family, "transformers-445", "transformers-5", train=train) for train in both]
    pairs += [
        Pair("gemma", "transformers-438", "transformers-445"),
        Pair("vit", "transformers-5", "timm"),
        Pair("vit", "transformers-5", "timm", train=True),
        Pair("resnet", "torchvision", "timm"),
        Pair("resnet", "torchvision", "timm", train=True),
    ]
    # What transformers itself got wrong, and mended.
    pairs.append(Pair("gemma", "transformers-438", "transformers-5", places=("act_fn|mlp",)))
    pairs.append(Pair("gemma-default", "transformers-438", "transformers-445", places=("act_fn|mlp",) * 1))
    # Faults planted into litgpt.
    for family in ("llama", "qwen3"):
        for train in both:
            pairs += [
                Pair(family, "transformers-5", "litgpt", ("rotary|attn|rope",), ("rope-base",), train=train),
                Pair(family, "transformers-5", "litgpt", ("norm",), ("norm-eps",), train=train),
                Pair(family, "transformers-5", "litgpt", ("attn",), ("attention-scale",), train=train),
                Pair(family, "transformers-5", "litgpt", ("lm_head|^$|model",), ("softcap",), train=train),
                Pair(family, "transformers-5", "litgpt", ("attn",), ("window",), train=train),
                Pair(family, "transformers-5", "litgpt", ("norm", "attn"), ("norm-eps", "attention-scale"), train=train),
            ]
    for family in ("gemma-default", "phi"):
        pairs += [Pair(family, "transformers-5", "litgpt", ("mlp|act",), ("gelu",), train=train) for train in both]
        pairs += [Pair(family, "transformers-5", "litgpt", ("mlp|act", "norm"), ("gelu", "norm-eps"))]
    pairs += [
        Pair("phi", "transformers-5", "litgpt", ("rotary|attn",), ("rope-base",)),
        Pair("gpt_neox", "transformers-5", "litgpt", ("rotary|attn",), ("rope-base",)),
        Pair("gpt_neox", "transformers-5", "litgpt", ("mlp|act",), ("gelu",)),
        Pair("gpt_neox", "transformers-5", "litgpt", ("norm",), ("norm-eps",)),
    ]
    # Faults planted into an update or a loss.
    for fault, place in (
        ("weight-decay", "mul"),
        ("beta2", "mul_|addcmul"),
        ("adam-eps", "add"),
        ("lr", "addcdiv|mul"),
        ("loss-sum", "loss|sum|nll|mean|div"),
        ("clip", "norm|mul|clip"),
    ):
        pairs += [
            Pair("llama", "transformers-5", "litgpt", (place,), (fault,), train=True),
            Pair("llama", "transformers-438", "transformers-5", (place,), (fault,), train=True),
        ]
    # Faults planted into transformers' newer release, against the older one.
    for family in ("llama", "mistral", "qwen2"):
        pairs += [
            Pair(family, "transformers-438", "transformers-5", ("norm",), ("norm-eps",)),
            Pair(family, "transformers-438", "transformers-5", ("mlp",), ("act",)),
            Pair(family, "transformers-438", "transformers-5", ("mlp",), ("swapped",)),
            Pair(family, "transformers-438", "transformers-5", ("attn",), ("attention-scale",)),
            Pair(family, "transformers-438", "transformers-5", ("layers.1",), ("residual",)),
            Pair(family, "transformers-438", "transformers-5", ("norm",), ("no-final-norm",)),
            Pair(family, "transformers-438", "transformers-5", ("lm_head",), ("untied-row",)),
            Pair(family, "transformers-438", "transformers-5", ("rotary|attn",), ("rope-base",)),
            Pair(family, "transformers-438", "transformers-5", ("mlp", "attn", "norm"), ("act", "attention-scale", "norm-eps")),
        ]
    for fault, place in (
        ("norm-eps", "norm"),
        ("gelu", "act|mlp|intermediate"),
        ("attention-scale", "attn|attention"),
        ("skipped-block", "layer|block|mlp"),
    ):
        pairs += [Pair("vit", "transformers-5", "timm", (place,), (fault,), train=train) for train in both]
    for fault, place in (("norm-eps", "bn"), ("stride", "layer3.0"), ("act", "layer2.1")):
        pairs += [Pair("resnet", "torchvision", "timm", (place,), (fault,))]
    return pairs
