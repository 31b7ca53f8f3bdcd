"""Pairs that came after the comparison had been mended with all others: further projects, and further ways of computing one thing."""

FORWARD, TRAIN = "forward", "train"
LOOSE = ("--set", "loose=true")

# family, side a, side b, modes in which they are innocent, faults in a, faults in b
MODELS = (
    (
        "patches",
        "vitpytorch",
        "patchvit",
        (FORWARD, TRAIN),
        "scale-by-width heads-within mean-of-tokens",
        "tanh-gelu residual-of-norm unbiased-variance",
    ),
    (
        "latents",
        "perceiver",
        "plainperceiver",
        (FORWARD, TRAIN),
        "scale-by-heads softmax-of-queries",
        "gate-and-value unnormed-context sum-for-mean other-rates",
    ),
    ("sam", "tf5", "sam", (FORWARD, TRAIN), "norm-eps", "no-relative-rows scaled-relative exchanged-axes padded-before"),
    ("hiera", "tf5", "hiera", (FORWARD, TRAIN), "no-scale", "mean-for-max pool-of-input unnormed-feed"),
    ("unet", "diffusers", "plainunet", (FORWARD, TRAIN), "no-second-norm scaled-by-time", "sine-first straight-time scale-by-width skip-first"),
    ("shuffle", "torchvision", "pytorchcv", (FORWARD, TRAIN), "", "no-shuffle other-half extra-activation"),
    ("gcn", "pyg", "densegraph", (FORWARD, TRAIN), "", "double-loops mean-of-neighbours against-the-edges"),
    ("gcn", "pyg", "listgraph", (FORWARD, TRAIN), "", "unscaled-loop"),
    ("gcn", "densegraph", "listgraph", (FORWARD,), "", ""),
    ("gat", "pyg", "densegraph", (FORWARD, TRAIN), "no-bias", "other-slope ends-exchanged softmax-of-sources"),
    ("conformer", "torchaudio", "plainconformer", (FORWARD, TRAIN), "whole-step", "no-mask tanh-gate causal-kernel other-activation"),
    ("tables", "rtdl", "plaintables", (FORWARD, TRAIN), "scale-by-width", "gate-and-value no-level small-eps"),
    ("softmoe", "softmoe", "plainsoft", (FORWARD, TRAIN), "unnormed-slots", "dispatch-over-slots no-slot-gain tanh-gelu"),
    ("clicks", "bags", "pairs", (FORWARD, TRAIN), "scaled-pairs", "mean-of-bag order-of-pairs no-activation"),
    ("splines", "grid", "edges", (FORWARD, TRAIN), "no-scaler", "sigmoid-for-silu shifted-knots other-tail"),
    ("lora", "peft", "byhand", (FORWARD, TRAIN), "", "no-scale scale-by-rank"),
    ("lora", "peft", "merged", (FORWARD,), "", "residual-scale"),
    ("dora", "peft", "byhand", (FORWARD, TRAIN), "", "norm-of-base norm-without-root"),
    ("ia3", "peft", "byhand", (FORWARD, TRAIN), "", "turned-gain"),
    ("llama", "tf5", "decoded", (FORWARD,), "", "norm-eps residual-scale swapped-gate-up"),
    ("llama", "tf5", "leftpadded", (FORWARD, TRAIN), "", "norm-eps residual-scale"),
    ("llama", "tf5", "fastllama", (FORWARD, TRAIN), "scale-by-width", "repeated-groups late-keys opposite-turn norm-eps"),
    ("gpt2", "tf5", "smallgpt", (FORWARD, TRAIN), "swapped-keys", "scale-by-width other-cubic"),
    ("retention", "parallel", "recurrent", (FORWARD, TRAIN), "", "twice-forgotten other-gate"),
    ("retention", "parallel", "chunked", (FORWARD, TRAIN), "", "since-too-early until-too-late unscaled-keys"),
    ("longconv", "fourier", "matrix", (FORWARD, TRAIN), "around-the-end", "looks-ahead turned-filter"),
    ("longconv", "fourier", "grouped", (FORWARD, TRAIN), "", "unturned-filter gates-exchanged"),
)

# In training alone: family, side a, side b, side of the fault, fault
TRAINED = (
    ("shuffle", "torchvision", "pytorchcv", "b", "norm-momentum"),
    ("dora", "peft", "byhand", "b", "trained-norm"),
    ("gcn", "pyg", "densegraph", "b", "betas"),
    ("conformer", "torchaudio", "plainconformer", "b", "causal-kernel"),
    ("clicks", "bags", "pairs", "b", "weight-decay"),
    ("clicks", "bags", "pairs", "b", "label-smoothing"),
    ("splines", "grid", "edges", "b", "grad-clip"),
    ("retention", "parallel", "chunked", "b", "until-too-late"),
    ("unet", "diffusers", "plainunet", "b", "straight-time"),
    ("llama", "tf5", "fastllama", "b", "label-shift"),
)

# In bfloat16: family, side a, side b
COARSE = (("tables", "rtdl", "plaintables"), ("clicks", "bags", "pairs"), ("gpt2", "tf5", "smallgpt"), ("llama", "tf5", "decoded"))


def pairs(pair):
    for family, a, b, modes, faults_of_a, faults_of_b in MODELS:
        for mode in modes:
            yield pair(family, a, b, mode)
        for fault in faults_of_b.split():
            yield pair(family, a, b, FORWARD, (fault,))
        for fault in faults_of_a.split():
            yield pair(family, b, a, FORWARD, (fault,))
    for family, a, b, where, fault in TRAINED:
        first, second = (a, b) if where == "b" else (b, a)
        yield pair(family, first, second, TRAIN, (fault,))
    for mode in (FORWARD, TRAIN):
        yield pair("clicks", "bags", "pairs", mode, extra_a=LOOSE, extra_b=LOOSE, label="loose")
    for family, a, b in COARSE:
        yield pair(family, a, b, FORWARD, dtype="bfloat16")
