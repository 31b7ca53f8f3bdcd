"""What PyTorch's libraries add up in another order on another processor: recordings of several, made by processors/record.sh, of the same
families of ops on the same numbers. On every one of them each op keeps its bound; between any two the function is the same; and what
replay does not know of a library's order is said to be the library's."""

import itertools
import pathlib

import pytest

FOLDER = pathlib.Path(__file__).parent / "processors"
PROCESSORS = sorted(path.stem for path in FOLDER.glob("*.lbz") if not path.stem.startswith("faults"))
FAMILIES = ["products", "half_products", "sums", "norms", "attention", "training"]  # each a step
REFERENCE = "amd-avx512"


def path(processor):
    return FOLDER / f"{processor}.lbz"


def test_there_are_recordings_of_both_makers_and_of_three_kinds_of_instructions():
    assert {tuple(name.split("-")) for name in PROCESSORS} >= set(itertools.product(("amd", "intel"), ("sse", "avx2", "avx512")))


@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_op_keeps_its_bound_on_its_processor(processor, lastbit):
    answer = lastbit.json("replay", path(processor), expect=0)
    assert answer["verdict"] in ("identical", "rounding")
    assert answer["ops"]["opaque"] == 0
    assert answer["bitwise"] >= answer["ops"]["total"] // 2  # what computes nothing but single roundings is the same everywhere


@pytest.mark.parametrize("processor", [p for p in PROCESSORS if p != REFERENCE])
def test_two_processors_compute_the_same_function(processor, lastbit):
    answers = [lastbit.json("diff", *pair, expect=0) for pair in itertools.permutations((path(REFERENCE), path(processor)))]
    assert len({answer["verdict"] for answer in answers}) == 1
    for answer in answers:
        assert answer["verdict"] in ("identical", "reordered", "rounding")
        assert not answer["missing"] and not answer["structure"] and not answer["differences"]


@pytest.mark.parametrize("processor", [p for p in PROCESSORS if p != REFERENCE])
def test_what_differs_is_an_order_a_kernel_or_the_library_s_own(processor, lastbit):
    answer = lastbit.json("explain", path(REFERENCE), path(processor))
    assert answer["findings"]
    for finding in answer["findings"]:
        assert finding["cause"] in ("order", "kernel", "input", "unexplained"), finding
        if finding["cause"] == "unexplained":
            assert finding["proof"] == "bound" and "of the library's own" in finding["why"], finding


def test_an_explanation_for_a_person_says_whose_the_order_is(lastbit):
    text = lastbit.run("explain", path(REFERENCE), path("intel-avx2")).stdout
    assert "an order or a kernel of the library's own" in text and "no candidate gives these bits" not in text


FAULTS = {"attention": ("aten::mul.Tensor", "other"), "training": ("aten::native_layer_norm", "eps")}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_two_faults_on_another_processor_are_found_and_nothing_else(processor, lastbit):
    for step, family in enumerate(FAMILIES):
        answer = lastbit.json("diff", path(processor), FOLDER / "faults-intel-avx2.lbz", "--steps", str(step))
        if family not in FAULTS:
            assert answer["verdict"] != "diverged" and not answer["missing"], (family, answer["first"])
            continue
        op, argument = FAULTS[family]
        assert answer["verdict"] == "diverged" and answer["first"]["op"] == op, answer["first"]
        assert [a["name"] for a in answer["first"]["arguments"]] == [argument]
