"""Servers of language models that two people wrote: prefill and decode over caches of all kinds, requests packed, padded, in chunks or one
by one, quantised weights, adapters, experts. Innocent pairs are one function; of a fault, every place named lies where the fault is."""

import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "programs"))
import served_ways  # noqa: E402

TRUTH = served_ways.truth()
# Of each cut of the requests one, and of each kind of weights that is packed.
IN_SUITE = ("contiguous-paged", "padded-packed", "bert-packed", "stepwise-verified", "int4-packed", "latent-absorbed")
# The rows of a picture are looked up nowhere: which row is which is not known, and both leave windows of other shapes.
PICTURES = {"image-scattered"}
NOT_YET = {
    "adapters-gathered-base-request-adapted": "the attention around the adapter is named",
    "beams-by-ancestors-first-prompt-row-unseen": "the search behind it is named, too",
    "bert-packed-positions-from-one": "attention is named, too",
    "fp8-blocks-group-scale-of-batch": "taken for the rounding of one side's numbers of eight bits",
    "fp8-blocks-range-of-other-format": "taken for the rounding of one side's numbers of eight bits",
    "int8-weights-channel-scale-of-tensor": "the output projection is named, too",
    "int8-weights-zero-point-off-by-one": "the output projection is named, too",
    **{name: "rows of a picture" for name in TRUTH if name.startswith("image-scattered")},
}


def marked(*values, known, in_suite):
    marks = [] if in_suite else [pytest.mark.full]
    marks += [pytest.mark.xfail(strict=True, reason=known)] if known else []
    return pytest.param(*values, marks=marks)


INNOCENT = [
    marked(program, turned, known="rows of a picture" if program in PICTURES else None, in_suite=program in IN_SUITE)
    for program in served_ways.PROGRAMS
    for turned in (False, True)
]
FAULTS = [marked(name, known=NOT_YET.get(name), in_suite=lies["program"] in IN_SUITE) for name, lies in TRUTH.items()]


def lies_in(where, layer):
    return any(layer == module or (module and layer.startswith(module + ".")) for module in where)


@pytest.mark.parametrize("program, turned", INNOCENT)
def test_two_servers_are_one_function(lastbit, recorded_pairs, program, turned):
    folder = recorded_pairs("served_ways", program)
    pair = [folder / f"{program}-first.lb", folder / f"{program}-second.lb"]
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair))
    assert answer["verdict"] in ("identical", "reordered", "rounding") and not answer["differences"]


@pytest.mark.parametrize("name", FAULTS)
def test_places_named_are_where_the_fault_is(lastbit, recorded_pairs, name):
    program, where = TRUTH[name]["program"], TRUTH[name]["where"]
    folder = recorded_pairs("served_ways", program)
    answer = lastbit.json("diff", folder / f"{program}-first.lb", folder / f"{name}.lb")
    assert answer["verdict"] == "diverged" and answer["differences"]
    for place in answer["differences"]:
        assert lies_in(where, place["layer"] or "") or lies_in(where, place["layer_b"] or ""), (place["layer"], place["layer_b"])
