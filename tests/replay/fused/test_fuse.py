"""`lastbit replay --fuse` and `--kernels`: fused programs on real recordings, against the same kernels run by themselves."""

import re

import composites as K
import pytest
import torch
from composites import same_bits
from swapped import replayed

COUNTS = {
    "rms_norm": 9,
    "add_rms_norm": 4,
    "attention": 2,
    "softmax": 2,
    "finalise": 2,
    "rope": 4,
    "swiglu": 2,
    "router": 2,
    "dispatch": 2,
    "cross_entropy": 1,
}
KERNELS = {
    "rms_norm": "butterfly:32x4,acc:bf16",
    "add_rms_norm": "sequential,residual:f32",
    "attention": "splitkv:2",
    "softmax": "online:3",
    "finalise": "batched-f32,fma:on",
    "rope": "fused,fma:on",
    "swiglu": "fused",
    "router": "softmax-topk,scores:t",
    "dispatch": "reversed",
    "cross_entropy": "online:7",
}


@pytest.fixture(scope="module")
def moe(recordings):
    return recordings("--model", "qwen3_moe", "--dtype", "bf16", "--steps", "1")


def results(lastbit, capture, tmp_path, *options):
    answer, written = replayed(lastbit, capture, tmp_path, *options)
    return answer, {(op, r): t for (_, _, op, r), t in written.tensors.items()}


@pytest.mark.parametrize("kind", sorted(KERNELS))
def test_a_fused_op_gives_what_its_kernel_gives(lastbit, moe, tmp_path, kind):
    """Isolated: from recorded inputs, so that the two can be compared bit by bit."""
    answer, written = results(lastbit, moe, tmp_path, "--fuse", f"{kind}={KERNELS[kind]}")
    assert answer["swaps"][0]["touched"] == COUNTS[kind] and answer["verdict"] == "swapped"
    _, plain = results(lastbit, moe, tmp_path, "--worst", "1")
    different = 0
    for c in K.Step(moe).of(kind):
        ours, last = c.run(KERNELS[kind]), c.row.ops[c.row.n_ops - 1]
        assert same_bits(written[last, 0], ours[0]), c.layer
        different += not same_bits(plain[last, 0], written[last, 0])
    assert different > 0


@pytest.mark.parametrize("kind", sorted(KERNELS))
def test_a_chain_with_fused_ops_never_diverges(lastbit, moe, kind):
    for switch in (f"{kind}=on", f"{kind}={KERNELS[kind]}"):
        answer = lastbit.json("replay", "--mode", "chained", "--force-decisions", "--fuse", switch, moe, expect=0)
        assert answer["swaps"][0]["touched"] == COUNTS[kind] and answer["verdict"] == "swapped" and answer["verdicts"]["diverged"] == 0


def test_nothing_is_left_of_what_only_the_norm_needs(lastbit, recordings):
    """Without a backward the ops of a norm go; with one, what it saved stays."""
    decoded = recordings("--model", "llama", "--decode", "--dtype", "bf16")
    plain = lastbit.json("replay", decoded, expect=0)
    fused = lastbit.json("replay", decoded, "--fuse", "rms_norm=butterfly", expect=0)
    norms = fused["swaps"][0]["touched"]
    assert norms % 5 == 0 and plain["ops"]["total"] - fused["ops"]["total"] == 7 * norms
    both = lastbit.json("replay", decoded, "--fuse", "add_rms_norm=on", "--fuse", "rms_norm=on", "--fuse", "attention=flash:8", expect=0)
    assert [s["touched"] for s in both["swaps"]] == [norms * 4 // 5, norms // 5, norms * 2 // 5]
    assert both["opaque" if "opaque" in both else "ops"] and both["verdicts"]["diverged"] == 0


def test_eager_and_off_change_nothing(lastbit, moe):
    plain = lastbit.json("replay", moe, "--digest", expect=0)["digest"]
    assert lastbit.json("replay", moe, "--digest", "--fuse", "rms_norm=eager", expect=0)["digest"] == plain
    assert lastbit.json("replay", moe, "--digest", "--fuse", "rms_norm=on", "--fuse", "rms_norm=off", expect=0)["digest"] == plain
    assert lastbit.json("replay", moe, "--digest", "--fuse", "rms_norm=pairwise,square:t", expect=0)["digest"] != plain


def test_selectors_and_later_switches_pick_single_composites(lastbit, moe):
    answer = lastbit.json("replay", moe, "--fuse", "layer=model.layers.0=rms_norm:sequential", expect=0)
    assert answer["swaps"][0]["touched"] == 4
    answer = lastbit.json(
        "replay", moe, "--fuse", "rms_norm=butterfly", "--fuse", r"q_norm=rms_norm:off", "--fuse", "layer=model.norm=rms_norm:exact", expect=0
    )
    assert [s["touched"] for s in answer["swaps"]] == [6, 0, 1]


def test_fused_ops_have_an_exact_shadow_and_take_precision_swaps(lastbit, moe, tmp_path):
    """In f64 a fused norm is the real function: the same as the ops one by one in f64."""
    options = ("--mode", "chained", "--force-decisions", "--precision", "phase=forward=f64")
    _, plain = results(lastbit, moe, tmp_path, *options)
    _, fused = results(
        lastbit, moe, tmp_path, *options, "--fuse", "rms_norm=butterfly", "--fuse", "attention=flash:4", "--fuse", "finalise=score-bf16"
    )
    last = max(op for op, _ in fused if fused[op, 0].dtype == torch.float64)
    compared = [key for key in fused if key in plain and key[0] <= last and fused[key].dtype == plain[key].dtype == torch.float64]
    assert len(compared) > 100
    for key in compared:
        torch.testing.assert_close(fused[key], plain[key], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("switch", ["nothing=on", "rms_norm=nothing", "rms_norm", "layer=x=rms_norm:spin", "attention=flash:x"])
def test_a_wrong_switch_is_misuse(lastbit, moe, switch):
    done = lastbit.run("replay", moe, "--fuse", switch, expect=0 if switch == "rms_norm" else 129)
    assert switch == "rms_norm" or "there are:" in done.stderr or "kinds are" in done.stderr


def test_kernels_lists_what_there_is(lastbit, moe):
    answer = lastbit.json("replay", moe, "--kernels", expect=0)
    found = {c["kind"]: c for c in answer["composites"]}
    assert {kind: c["count"] for kind, c in found.items() if kind in COUNTS} == COUNTS
    assert found["attention"]["layers"] == {"model.layers.0.self_attn": 1, "model.layers.1.self_attn": 1}
    for kind, c in found.items():
        assert [k["name"] for k in c["kernels"]][0] == "eager" and c["likely"][0] == "eager" and sum(c["layers"].values()) == c["count"]
        for kernel in c["likely"]:
            lastbit.run("replay", moe, "--fuse", f"{kind}={kernel}", expect=0) if kernel == c["likely"][2] else None
    ops = {o["op"]: o for o in answer["ops"]}
    assert (
        "splitk:N" in ops["aten::mm"]["orders"] and "openblas" in ops["aten::mm"]["kernels"] and "cascade" in ops["aten::sum.dim_IntList"]["orders"]
    )
    text = lastbit.run("replay", moe, "--kernels", expect=0).stdout
    assert re.search(r"^rms_norm: 9$", text, re.M) and "butterfly[:THREADSxVECTOR[xCLUSTER]]" in text
