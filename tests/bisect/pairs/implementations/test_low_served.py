"""Servers in 16 and 8 bits that two people wrote: each side in a dtype of its own, with islands in f32, codes and scales, caches of 8 bits.
Innocent pairs are one function up to the rounding of their precisions; of a fault, every place named lies where the fault is."""

import sys

import pytest
from conftest import ROOT
from test_served_ways import lies_in, marked

sys.path.insert(0, str(ROOT / "tests" / "programs"))
import low_served  # noqa: E402

TRUTH = low_served.truth()
IN_SUITE = ("alibi-half", "capped-shares", "gpt-half", "experts-fp8", "fp8-tensor")
BITS = "bytes that are read as another dtype than they were written in are not run exactly"
FLIPPED = "an expert is chosen differently on the two sides because of their precisions, and what follows was not judged"
INNOCENT_NOT_YET = {
    ("awq-folded", False): "codes beside kept columns, or codes that flip with the rounding of weights",
    ("w8a8-shifted", False): "codes beside kept columns, or codes that flip with the rounding of weights",
    ("w8a8-shifted", True): "codes beside kept columns, or codes that flip with the rounding of weights",
    ("int8-outliers", False): "codes beside kept columns, or codes that flip with the rounding of weights",
    ("experts-mxfp4", False): FLIPPED,
    ("experts-mxfp4", True): FLIPPED,
    ("fp8-pages", False): BITS,
    ("fp8-pages", True): BITS,
}
CASTS = "a cast is the identity in exact arithmetic: taken for rounding"
CARRIED = "the sum that takes what the norm hands on is named"
SOURCES = "sources behind the padding of others meet in hardly any value: no place is named"
PATCHES = "rows of a picture are no tokens, and meet in no value: no place is named, or one behind it"
NOT_YET = {
    "alibi-half": ("the norm behind it is named", "embedding-norm-left-out"),
    "capped-shares": ("the last layer is named, too", "head-scaled-as-embedding"),
    "encoder-decoder": (
        SOURCES,
        "buckets-of-other-stack buckets-turned-round decode-bias-of-first-row head-unscaled position-bias-left-out scores-scaled "
        "source-of-other-request source-padding-seen values-from-keys",
    ),
    "far-positions": (CASTS, "angles-in-brain positions-in-brain"),
    "gemma-islands": ("the first layer's sum is named, too", "embedding-unscaled"),
    "half-stored": (
        CASTS,
        "input-in-half logits-in-brain powers-in-fp8 product-in-brain residual-in-brain scores-in-brain squares-in-half weight-by-way-of-brain",
    ),
    "int8-smoothed": (CARRIED, "residual-after-norm"),
    "patch-prefix": (
        PATCHES,
        "colour-before-row colours-reversed patches-by-column patches-scaled-as-text prefix-causal projector-relu spread-left-out text-unscaled",
    ),
}
# Of programs that multiply with codes (low_served_codes.py), as first asked but for a product's alpha.
PARTS = "weights that are no tensor of their own (sums of parts, folds, look-ups, rotations) are named beside the fault"
CODED = {
    "awq-folded": "fold-inverted fold-left-out norm-eps order-of-lanes-ignored order-of-zeros-not-inverted scale-of-group-before zero-point-one-more",
    "awq-folded-before": (
        "fold-inverted fold-left-out norm-eps order-of-lanes-ignored order-of-zeros-not-inverted scale-of-group-before zero-point-one-more"
    ),
    "coded-tables": "decode-position-one-late kv-heads-tiled mean-of-scales scale-of-row-behind",
    "fp8-squares": "scale-of-first-block step-of-first-run sum-begun-anew",
    "hqq-halves": "residual-after-norm",
    "int8-outliers": (
        "largest-step-for-all-rows outliers-left-out outliers-one-column-early outliers-twice rope-base scales-reversed step-of-row-before"
    ),
    "lora-nibbles": "residual-after-norm",
    "ternary-bytes": "scale-divided-by",
    "turned-stream": (
        "blocks-interleaved keys-not-turned last-stage-left-out mask-one-short norm-eps scale-of-row-before turn-left-out turned-without- norm"
    ),
    "two-codebooks": "codebooks-exchanged codes-one-piece-late scale-of-row-before second-book-left-out",
    "w8a8-shifted": "bias-scaled correction-left-out zero-point-one-less",
}
KNOWN = {f"{program}-{fault}": reason for program, (reason, faults) in NOT_YET.items() for fault in faults.split()}
KNOWN |= {f"fp8-channels-{fault}": CASTS for fault in ("codes-of-other-format", "scale-floor-too-high")}
KNOWN |= {f"{program}-{fault}": PARTS for program, faults in CODED.items() for fault in faults.split()}
KNOWN |= {name: BITS for name, lies in TRUTH.items() if lies["program"] == "fp8-pages"}
KNOWN |= {name: FLIPPED for name, lies in TRUTH.items() if lies["program"] == "experts-mxfp4"}
INNOCENT = [
    marked(program, turned, known=INNOCENT_NOT_YET.get((program, turned)), in_suite=program in IN_SUITE)
    for program in low_served.PROGRAMS
    for turned in (False, True)
]
FAULTS = [marked(name, known=KNOWN.get(name), in_suite=lies["program"] in IN_SUITE) for name, lies in TRUTH.items()]


@pytest.mark.parametrize("program, turned", INNOCENT)
def test_two_precisions_are_one_function(lastbit, recorded_pairs, program, turned):
    folder = recorded_pairs("low_served", program)
    pair = [folder / f"{program}-first.lb", folder / f"{program}-second.lb"]
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair))
    assert answer["verdict"] in ("identical", "reordered", "rounding") and not answer["differences"]


@pytest.mark.parametrize("name", FAULTS)
def test_places_named_are_where_the_fault_of_precision_is(lastbit, recorded_pairs, name):
    program, where = TRUTH[name]["program"], TRUTH[name]["where"]
    folder = recorded_pairs("low_served", program)
    answer = lastbit.json("diff", folder / f"{program}-first.lb", folder / f"{name}.lb")
    assert answer["verdict"] == "diverged" and answer["differences"]
    for place in answer["differences"]:
        assert lies_in(where, place["layer"] or "") or lies_in(where, place["layer_b"] or ""), (place["layer"], place["layer_b"])
