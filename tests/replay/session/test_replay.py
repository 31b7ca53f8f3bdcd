"""Real recordings replayed: the unswapped replay says nothing but `identical` and `rounding`, in every mode, over ranks, and
its bits do not depend on threads."""

import sys

import pytest

SAMPLE = "samples/hybrid_lm.py"

# name: (program, arguments)
PROGRAMS = {
    "hybrid": (SAMPLE, ["--steps", "2"]),
    "bytes": ("tests/programs/hf_train.py", ["--steps", "1"]),  # ends by reading its parameters as bytes
    "tied": ("tests/programs/gpt_tied.py", []),
    "experts": ("tests/programs/hf_train.py", ["--model", "qwen3_moe", "--experts", "eager", "--dtype", "bf16", "--steps", "2"]),
}
FULL = {
    "fp8": (SAMPLE, ["--precision", "fp8"]),
    "bf16": (SAMPLE, ["--precision", "bf16"]),
    "dropout": ("tests/programs/moe_dropout.py", []),
    "cache": ("tests/programs/generate_kv.py", []),
    "two-optimizers": ("tests/programs/gan_two_optimizers.py", []),
    **{
        f"hf-{model}-{dtype}-{attention}": ("tests/programs/hf_train.py", ["--model", model, "--dtype", dtype, "--attention", attention])
        for model in ("llama", "gpt2", "qwen3_moe")
        for dtype in ("fp32", "bf16", "autocast")
        for attention in ("eager", "sdpa")
    },
    **{f"hf-llama-{optimizer}": ("tests/programs/hf_train.py", ["--optimizer", optimizer]) for optimizer in ("foreach", "fused", "muon")},
}


@pytest.fixture(scope="module")
def recorded(lastbit, tmp_path_factory):
    """Captures by name, made once."""
    made = {}

    def capture(name):
        if name not in made:
            program, arguments = {**PROGRAMS, **FULL}[name]
            out = tmp_path_factory.mktemp("recorded") / f"{name}.lb"
            lastbit.record(out, program, *arguments, expect=0)
            made[name] = out
        return made[name]

    return capture


def unlike(answer):
    """The ops that speak against the recording, for a message that helps."""
    return [(w["op"], w["layer"], w["phase"], w["bound_ratio"]) for w in answer["worst"] if w["verdict"] == "diverged"]


def check(lastbit, capture):
    isolated = lastbit.json("replay", capture)
    assert isolated["verdict"] in ("identical", "rounding"), unlike(isolated)
    assert isolated["ops"]["opaque"] == 0, isolated["opaque_ops"]
    assert isolated["bitwise"] > 0.8 * isolated["compared"]
    chained = lastbit.json("replay", capture, "--mode", "chained", "--force-decisions")
    assert chained["verdict"] in ("identical", "rounding"), unlike(chained)
    return isolated


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recording_replays_to_its_own_bits_or_within_their_bound(lastbit, recorded, name):
    check(lastbit, recorded(name))


@pytest.mark.full
@pytest.mark.parametrize("name", FULL)
def test_more_recordings_replay_within_their_bound(lastbit, recorded, name):
    check(lastbit, recorded(name))


@pytest.mark.parametrize("mode", ["isolated", "layer", "chained"])
def test_bits_do_not_depend_on_threads(lastbit, recorded, mode):
    one, two, three = (lastbit.json("replay", recorded("hybrid"), "--mode", mode, "--digest", "--threads", n) for n in (1, 2, 3))
    assert one["digest"] == two["digest"] == three["digest"]
    assert one["bitwise"] == two["bitwise"]


def test_a_swap_of_precision_or_order_changes_bits_and_says_where(lastbit, recorded):
    plain = lastbit.json("replay", recorded("hybrid"), "--mode", "chained", "--digest", "--steps", "0")
    wide = lastbit.json("replay", recorded("hybrid"), "--mode", "chained", "--digest", "--steps", "0", "--precision", "layer=layers.0=f64")
    order = lastbit.json("replay", recorded("hybrid"), "--mode", "chained", "--digest", "--steps", "0", "--order", "phase=forward=pairwise")
    assert len({plain["digest"], wide["digest"], order["digest"]}) == 3
    nothing = lastbit.json("replay", recorded("hybrid"), "--mode", "chained", "--digest", "--steps", "0", "--precision", "layer=nowhere=f64")
    assert nothing["digest"] == plain["digest"]


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.full), 4])
def test_collectives_of_gloo_come_out_bit_by_bit(lastbit, tmp_path, ranks):
    capture = tmp_path / "ranks.lb"
    lastbit.record(capture, "tests/programs/ranks/collectives.py", ranks, expect=0)
    answer = lastbit.json("replay", capture, "--worst", 10000)
    assert answer["verdict"] in ("identical", "rounding"), unlike(answer)
    assert not [w for w in answer["worst"] if w["op"].startswith("c10d::")]
    alone = lastbit.json("replay", capture, "--ranks", 0, "--mode", "chained")
    assert alone["verdict"] in ("identical", "rounding"), unlike(alone)
    other = lastbit.json("replay", capture, "--worst", 10000, "--order", "op=allreduce_=tree")
    assert [w for w in other["worst"] if w["op"] == "c10d::allreduce_"] or ranks == 2  # two terms have one order


def test_one_change_of_precision_cures_a_stale_scale(lastbit, tmp_path):
    capture = tmp_path / "stale.lb"
    lastbit.record(capture, SAMPLE, "--fault", "stale-scale", "--steps", 3)
    chained = ("--mode", "chained", "--force-decisions")
    sick = lastbit.json("replay", capture, *chained)
    assert sick["nan"]["ops"] > 0 and sick["nan"]["first"]["step"] == 2
    assert sick["inf"]["ops"] > 0 and sick["inf"]["first"]["index"] < sick["nan"]["first"]["index"]  # what made the NaN
    cured = lastbit.json("replay", capture, *chained, "--precision", "layer=layers.4.attention.qkv&phase=forward=f32")
    assert cured["nan"]["ops"] <= 1  # a tensor made of the logged loss, which was a Python number when it was recorded
    assert cured["verdict"] == "swapped"
    elsewhere = lastbit.json("replay", capture, *chained, "--precision", "layer=layers.3=f32")
    assert elsewhere["nan"]["ops"] > 100


def test_wrong_usage_is_said(lastbit, recorded):
    assert "modes are" in lastbit.run("replay", recorded("tied"), "--mode", "sideways", expect=129).stderr
    assert "selector" in lastbit.run("replay", recorded("tied"), "--mode", "chained", "--skip", "rank=x", expect=129).stderr
    assert "pairwise" in lastbit.run("replay", recorded("tied"), "--order", "circle", expect=129).stderr
    lastbit.run("replay", recorded("tied"), "--steps", "900", expect=(125, 128))


@pytest.mark.parametrize(
    "swap,words",
    [
        (("--routing", "ids"), "forced routing needs --mode chained"),
        (("--routing", "layer=x=ids+weights+slots"), "forced routing needs --mode chained"),
        (("--source", "=finite"), "needs --mode chained"),
        (("--skip", "layer=layers.1"), "needs --mode chained"),
        (("--muon", "adamw"), "needs --mode chained"),
        (("--update", "0.5"), "needs --mode chained"),
    ],
)
def test_a_swap_that_isolated_ops_cannot_show_is_refused(lastbit, recorded, swap, words):
    refused = lastbit.run("replay", recorded("tied"), *swap, expect=129)
    assert words in refused.stderr and swap[0] in refused.stderr
    lastbit.run("replay", recorded("tied"), "--routing", "recompute", expect=(0, 125))


OVERFLOW = """
import sys, torch
torch.manual_seed(0)
dtype = getattr(torch, sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16)).to(dtype)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
y = model(torch.randn(8, 16).to(dtype))
far = y * torch.finfo(dtype).max * 2
((far * y).mean() + (far - far).sum()).backward()
opt.step()
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_step_that_overflows_alike_is_no_difference(lastbit, tmp_path, dtype):
    """torch leaves other bits in a NaN than we do; with digests alone that must not look like other numbers."""
    (tmp_path / "overflow.py").write_text(OVERFLOW)
    for level in ("ops", "sources"):
        lastbit.run("record", "-o", tmp_path / f"{level}.lb", "--level", level, "--", sys.executable, tmp_path / "overflow.py", dtype, expect=0)
    for mode in ("isolated", "chained"):
        full, digests = (lastbit.json("replay", tmp_path / f"{level}.lb", "--mode", mode) for level in ("ops", "sources"))
        assert full["nan"]["ops"] == digests["nan"]["ops"] > 5 and full["inf"]["ops"] == digests["inf"]["ops"] > 5
        assert digests["bitwise"] == full["bitwise"] >= full["compared"] - 1  # of f16, an update may be fused
        assert {v: full["verdicts"][v] for v in ("diverged", "missing")} == {"diverged": 0, "missing": 0}
