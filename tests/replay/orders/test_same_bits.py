"""Bits do not depend on the number of threads or the instruction set: recordings replayed under each, every result compared.

A digest over everything computed, in order, stands for all of it. LASTBIT_ISA caps the instruction set; above what the
processor has, it changes nothing."""

import os

import pytest

SAMPLE, HF = "samples/hybrid_lm.py", "tests/programs/hf_train.py"
# Large enough that every kind of loop is shared out between threads; tiny models run on one.
WIDE = ["--layers", "1", "--hidden", "256", "--batch", "4", "--seq", "128", "--steps", "1"]

# name: (program, arguments, options of record)
PROGRAMS = {
    "sample-fp32": (SAMPLE, ["--steps", "2"], []),
    "sample-bf16": (SAMPLE, ["--steps", "1", "--precision", "bf16"], []),
    "sample-fp8": (SAMPLE, ["--steps", "2", "--precision", "fp8"], []),
    "llama-bf16": (HF, [*WIDE, "--dtype", "bf16"], ["--level", "sources"]),
    "llama-fp32": (HF, [*WIDE, "--attention", "eager"], ["--level", "sources"]),
}
FULL = {
    "gpt2": (HF, [*WIDE, "--model", "gpt2"], ["--level", "sources"]),
    "experts": (HF, [*WIDE, "--model", "qwen3_moe", "--dtype", "bf16"], ["--level", "sources"]),
    "autocast": (HF, [*WIDE, "--dtype", "autocast", "--optimizer", "muon"], ["--level", "sources"]),
    "fused": (HF, [*WIDE, "--optimizer", "fused"], ["--level", "sources"]),
}
SETTINGS = [(1, "scalar"), (2, "scalar"), (1, "avx2"), (3, "avx2"), (7, "avx512"), (1, "avx512")]
SWAPS = [
    ["--rounding", "=stochastic:7"],
    ["--order", "=pairwise"],
    ["--precision", "=f64"],
    ["--precision", "phase=forward=e4m3"],
    ["--order", "=blocked:48"],
]


@pytest.fixture(scope="module")
def recorded(lastbit, tmp_path_factory):
    made = {}

    def capture(name):
        if name not in made:
            program, arguments, options = {**PROGRAMS, **FULL}[name]
            made[name] = tmp_path_factory.mktemp("recorded") / f"{name}.lb"
            lastbit.record(made[name], program, *arguments, options=options, expect=0)
        return made[name]

    return capture


def digests(lastbit, capture, *options, settings=SETTINGS):
    """By threads and instruction set."""
    found = {}
    for threads, isa in settings:
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "LASTBIT_ISA": isa, "OMP_WAIT_POLICY": "passive"}
        answer = lastbit.json("replay", capture, "--force-decisions", "--digest", "--worst", 0, *options, env=env)
        assert answer["ops"]["native"] > 100
        found[threads, isa] = answer["digest"]
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_depend_neither_on_threads_nor_on_instructions(lastbit, recorded, name):
    found = digests(lastbit, recorded(name), "--mode", "chained")
    assert len(set(found.values())) == 1, found


def test_bits_of_each_op_by_itself_do_not_either(lastbit, recorded):
    found = digests(lastbit, recorded("sample-fp8"), "--mode", "isolated")
    assert len(set(found.values())) == 1, found


@pytest.mark.parametrize("swap", SWAPS, ids=" ".join)
def test_bits_under_a_swap_do_not_either(lastbit, recorded, swap):
    found = digests(lastbit, recorded("sample-bf16"), "--mode", "chained", *swap, settings=SETTINGS[1::2])
    assert len(set(found.values())) == 1, found
    assert set(found.values()) != set(digests(lastbit, recorded("sample-bf16"), "--mode", "chained", settings=SETTINGS[:1]).values())


@pytest.mark.full
@pytest.mark.parametrize("name", [*PROGRAMS, *FULL])
@pytest.mark.parametrize("swap", [[], *SWAPS], ids=lambda swap: " ".join(swap) or "plain")
def test_many_swaps_threads_and_instructions_give_the_same_bits(lastbit, recorded, name, swap):
    every = [(threads, isa) for threads in (1, 2, 3, 7) for isa in ("scalar", "avx2", "avx512")]
    found = digests(lastbit, recorded(name), "--mode", "chained", *swap, settings=every)
    assert len(set(found.values())) == 1, found
