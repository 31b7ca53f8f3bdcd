"""Diff on freshly recorded pairs: innocent ones are never `diverged`, planted differences are found where they are."""

import concurrent.futures
import pathlib
import re

import pytest
import safetensors.torch
import torch
from conftest import ROOT, warm_python

HYBRID = "samples/hybrid_lm.py"


@pytest.fixture(scope="module")
def recorded(lastbit, tmp_path_factory):
    """Records programs, each once per settings and two at a time."""
    folder = tmp_path_factory.mktemp("pairs")
    done = {}

    def record(key):
        program, args, steps = key
        if key not in done:
            done[key] = folder / f"run{abs(hash(key))}.lb"
            lastbit.record(done[key], program, *args, options=("--steps", steps, "--level", "ops"))
        return done[key]

    def get(*runs, steps="0-0"):
        keys = [(program, args, steps) for program, *args in runs for args in [tuple(args)]]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return list(pool.map(record, keys))

    return get


@pytest.fixture(scope="module")
def clean_and_faulty(recorded):
    """Two steps each, which most tests look at the first of."""
    return recorded(*((HYBRID, "--steps", "2", *fault) for fault in ((), ("--fault", "dropped-term"))), steps="0-1")


def diff(lastbit, a, b, *options):
    answer = lastbit.json("diff", *options, a, b, expect=(0, 1))
    assert answer["ops"]["aligned"] > 100
    return answer


def test_the_same_program_twice_is_identical(lastbit, recorded, clean_and_faulty):
    (again,) = recorded((HYBRID, "--steps", "1"))
    answer = diff(lastbit, clean_and_faulty[0], again, "--exact", "--steps", "0")
    assert answer["verdict"] == "identical" and answer["first"] is None
    assert answer["ulp_histogram"] == []


CALM = ("--steps", "1", "--muon-dtype", "float32")  # Newton-Schulz in bf16 amplifies rounding to percents

INNOCENT = {
    "threads": ((HYBRID, *CALM), (HYBRID, *CALM, "--threads", "2")),
    "experts": ((HYBRID, "--steps", "1"), (HYBRID, "--steps", "1", "--experts-kind", "grouped")),
    "attention": ((HYBRID, *CALM), (HYBRID, *CALM, "--attention", "sdpa")),
    "adamw": ((HYBRID, *CALM), (HYBRID, *CALM, "--adamw", "foreach")),
    "accumulation": ((HYBRID, *CALM), (HYBRID, *CALM, "--accumulate", "2")),
}


@pytest.mark.parametrize("pair", INNOCENT)
def test_innocent_pairs_are_never_diverged(lastbit, recorded, pair):
    answer = diff(lastbit, *recorded(*INNOCENT[pair]))
    guilty = [layer for layer in answer["layers"] if layer["verdict"] == "diverged"]
    assert answer["verdict"] in ("identical", "reordered", "rounding") and not guilty, answer["first"]


@pytest.mark.parametrize("fault", ["dropped-term", "differs-eps"])
def test_a_planted_difference_is_found_where_it_is(lastbit, recorded, clean_and_faulty, fault):
    first, second = clean_and_faulty
    if fault == "differs-eps":
        (second,) = recorded((HYBRID, "--steps", "1", "--fault", fault))
    answer = diff(lastbit, first, second, "--steps", "0")
    phase = {"dropped-term": "backward", "differs-eps": "forward"}[fault]
    first = answer["first"]
    assert answer["verdict"] == "diverged"
    assert (first["layer"], first["phase"], first["local"]) == ("layers.3.norm", phase, "diverged"), first
    guilty = {layer["layer"] for layer in answer["layers"] if layer["local"] == "diverged"}
    assert guilty == {"layers.3.norm"}


def test_an_extra_cast_is_rounding(lastbit, recorded):
    """In the first step the norm's weight is 1 and the order of cast and product shows in no bit."""
    bf16 = ("--steps", "2", "--precision", "bf16", "--muon-dtype", "float32")
    answer = diff(lastbit, *recorded((HYBRID, *bf16), (HYBRID, *bf16, "--fault", "differs-cast"), steps="1-1"))
    assert answer["verdict"] == "rounding", answer["first"]
    assert any(re.search("layers.3.norm", row["layer"]) for row in answer["structure"])
    distances = dict(answer["ulp_histogram"])
    assert distances.pop("0") > 0 and sum(distances.values()) >= max(row["differing"] for row in answer["layers"])
    assert max(2.0 ** int(bin[2:]) for bin in distances) <= max(row["max_ulp"] for row in answer["layers"])


def test_what_the_step_before_left_different_stays_diverged(lastbit, clean_and_faulty):
    """Both shadows of step 1 start from the same parameters and agree; the parameters do not."""
    answer = diff(lastbit, *clean_and_faulty)
    verdicts = {row["layer"]: (row["local"], row["inherited"]) for row in answer["layers"] if not row["value"]}
    assert answer["first"]["step"] == 0 and answer["first"]["layer"] == "layers.3.norm"
    assert {layer for layer, (local, _) in verdicts.items() if local == "diverged"} == {"layers.3.norm"}
    for layer in ("layers.3.rnn", "layers.4.attention.qkv", "layers.5.mlp", "norm", "head", "loss"):
        assert verdicts[layer][1] == "diverged", (layer, verdicts[layer])


def test_the_text_is_short_and_its_commands_run(lastbit, clean_and_faulty, tmp_path):
    a, b = clean_and_faulty
    text = lastbit.run("diff", a, b, expect=1).stdout
    head = text.split("\n\n", 1)[0]
    assert head.startswith("verdict: diverged") and "layers.3.norm, aten::mul.Tensor" in head
    table = re.search(r"^layer +verdict.*?(?=\n\n)", text, re.M | re.S).group().splitlines()
    assert len(table) <= 26 and "more layers" in table[-1] and "--all" in table[-1]
    shown = [line.split()[0] for line in table[1:-1]]
    assert {"layers.3.norm", "layers.3.rnn", "layers.2", "head", "loss"} <= set(shown)
    assert not any("weight" in name or "optimizer." in name for name in shown)
    assert re.search(r"^parameters, states and inputs: \d+ differ \(\d+ diverged, all inherited\)", text, re.M)
    commands = [line.split()[1:] for line in text.split("Next:\n")[1].splitlines()]
    assert [command[0] for command in commands] == ["show", "show", "bisect"]
    for command in commands:
        done = lastbit.run(*command, expect=(0, 1), cwd=tmp_path)
        assert "layers.3.norm" in done.stdout
    everything = lastbit.run("diff", "--all", a, b, expect=1).stdout
    assert "optimizer.exp_avg_sq:layers.5.norm.weight " in everything  # the whole name


def record_ranks(lastbit, capture, program, ranks, *args):
    torchrun = (*warm_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    lastbit.run("record", "-o", capture, "--level", "ops", "--", *torchrun, ROOT / program, *args, expect=0)


@pytest.fixture(scope="module")
def tensor_parallel(lastbit, tmp_path_factory):
    """The same steps on one process and on two that hold half of every weight; the second rank loses half of a weight after step 1."""
    folder = tmp_path_factory.mktemp("shards")
    lastbit.record(folder / "one.lb", "tests/programs/ranks/tensor_parallel.py", expect=0)
    record_ranks(lastbit, folder / "two.lb", "tests/programs/ranks/tensor_parallel.py", 2, "--ranks", "2", "--fault", "down")
    return folder / "one.lb", folder / "two.lb"


@pytest.mark.parametrize("turned", [False, True])
def test_shards_are_put_together_before_they_are_compared(lastbit, tensor_parallel, turned):
    pair = tensor_parallel[::-1] if turned else tensor_parallel
    before = lastbit.json("diff", "--steps", "0", *pair, expect=0)
    assert before["verdict"] == "rounding" and before["ops"]["aligned"] > 40, before["first"]
    measured = {row["layer"]: row["elements"] for row in before["layers"] if row["max_abs"]}
    assert measured["1.up"] == 64 * 32  # the gradient of both halves


@pytest.mark.parametrize("turned", [False, True])
def test_a_lost_shard_is_named_with_its_slice(lastbit, tensor_parallel, turned):
    pair = tensor_parallel[::-1] if turned else tensor_parallel
    answer = lastbit.json("diff", *pair, expect=1)
    first, side = answer["first"], "first" if turned else "second"
    assert answer["verdict"] == "diverged" and (first["step"], first["layer"]) == (1, "1.down.weight"), first
    assert f": dimension 1, 32 to 63 of 64 (part 2 of 2); zero on the {side} side; the rest differs by" in first["pattern"], first["pattern"]
    assert first["why"] == f"aten::zero_ writes it last, on the {side} side only; exact values differ"


@pytest.fixture(scope="module")
def four_ranks(lastbit, tensor_parallel):
    """… and on four that hold a quarter; the last loses it after step 1."""
    folder = tensor_parallel[0].parent
    record_ranks(lastbit, folder / "four.lb", "tests/programs/ranks/tensor_parallel.py", 4, "--ranks", "4", "--fault", "down")
    return folder / "four.lb"


@pytest.mark.parametrize("turned", [False, True])
def test_two_ranks_against_four_are_halves_against_their_quarters(lastbit, tensor_parallel, four_ranks, turned):
    pair = (four_ranks, tensor_parallel[1]) if turned else (tensor_parallel[1], four_ranks)
    before = lastbit.json("diff", "--steps", "0", *pair, expect=0)
    assert before["verdict"] == "rounding" and before["ops"]["aligned"] > 90, before["first"]
    measured = {(row["layer"], row["rank"]): row["elements"] for row in before["layers"] if row["max_abs"]}
    ranks = (0, 2) if turned else (0, 1)  # of the first side
    assert [measured["1.up", rank] for rank in ranks] == [32 * 32] * 2
    answer = lastbit.json("diff", *pair, expect=1)
    first = answer["first"]  # the second of two lost columns 32 to 63 of 64, the last of four the half of that
    assert (first["step"], first["layer"], first["rank"]) == (1, "1.down.weight", ranks[1]), first
    zero = "second" if turned else "first"
    assert f": dimension 1, 0 to 15 of 32 (part 1 of 2); zero on the {zero} side" in first["pattern"], first["pattern"]


@pytest.fixture()
def checkpoints(tmp_path):
    """A LoRA adapter and what became of it."""
    numbers = torch.Generator().manual_seed(0)
    names = [f"layers.{i}.{m}.lora_{ab}.weight" for i in range(3) for m in ("q_proj", "down_proj") for ab in "AB"]
    good = {n: torch.randn((16, 256) if "_A" in n else (512, 16), generator=numbers).bfloat16() for n in names}

    def save(name, changes=(), without=()):
        tensors = {n: x for n, x in {**good, **dict(changes)}.items() if n not in without}
        safetensors.torch.save_file({n: x.contiguous() for n, x in tensors.items()}, tmp_path / f"{name}.safetensors")
        return tmp_path / f"{name}.safetensors"

    return good, save


def test_a_shard_lost_from_a_checkpoint_is_named(lastbit, checkpoints):
    good, save = checkpoints
    down, up = "layers.1.down_proj.lora_A.weight", "layers.2.q_proj.lora_B.weight"
    stale, zero = good[down].clone(), good[up].clone()
    stale[:, 128:192] = good["layers.0.down_proj.lora_A.weight"][:, 128:192]
    zero[384:] = 0
    answer = lastbit.json("diff", save("good"), save("bad", {down: stale, up: zero}), expect=1)
    found = {row["layer"]: row["pattern"].split(": ", 1)[1] for row in answer["layers"] if row["verdict"] == "diverged"}
    assert found == {
        down: "dimension 1, 128 to 191 of 256 (part 3 of 4)",
        up: "dimension 0, 384 to 511 of 512 (part 4 of 4); zero on the second side",
    }
    assert answer["sources"] == {"aligned": 12, "identical": 10} and answer["missing"] == []
    text = lastbit.run("diff", save("good"), save("bad"), expect=0).stdout
    assert text.splitlines()[:2] == ["verdict: identical — the same bits everywhere", "12 of 12 tensors that both sides have are the same"]


@pytest.mark.parametrize("turned", [False, True])
def test_a_tensor_that_is_not_there_or_has_another_shape_is_no_identity(lastbit, checkpoints, turned):
    good, save = checkpoints
    name = "layers.0.q_proj.lora_B.weight"
    pair = lambda bad: (bad, save("good")) if turned else (save("good"), bad)
    lost = lastbit.json("diff", *pair(save("lost", without=[name])), expect=1)
    assert lost["verdict"] == "missing" and lost["missing"] == [f"{name} is on the {'second' if turned else 'first'} side only"]
    half = lastbit.json("diff", *pair(save("half", {name: good[name][:256]})), expect=1)
    shapes = ["[512, 16]", "[256, 16]"][:: -1 if turned else 1]
    assert half["verdict"] == "diverged" and half["first"]["layer"] == name
    assert half["first"]["why"] == f"its shape is {shapes[0]} on the first side, {shapes[1]} on the second"
    wide = lastbit.json("diff", *pair(save("wide", {n: x.float() for n, x in good.items()})), expect=0)
    assert wide["verdict"] == "rounding" and all(row["differing"] == 0 for row in wide["layers"])


ORDERS = "tests/programs/orders_of_sums.py"
# Each a step: the first side's way, the second's, the op that differs and the order that is found.
ORDER = {
    "a sum on more threads": ("torch:1:1:64", "torch:2:1:64", "aten::sum", "torch:2"),
    "a product on more threads": ("torch:1:1:1100", "torch:2:1:1100", "aten::mm", "torch:2"),
    "a sum by numpy": ("torch:1:40:64", "numpy:1:40:64", "aten::sum.dim_IntList", "numpy"),
    "a sum in blocks": ("torch:1:40:64", "blocked:1:40:64", "aten::sum.dim_IntList", "blocked:512"),
}


@pytest.mark.parametrize("case", ORDER)
def test_a_sum_in_another_order_is_named(lastbit, recorded, case):
    op, order = ORDER[case][2:]
    if op == "aten::mm" and not (
        torch.backends.mkl.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and "GenuineIntel" in pathlib.Path("/proc/cpuinfo").read_text()
    ):
        pytest.skip("known of MKL with AVX-512 on Intel's processors only")
    runs = recorded(*((ORDERS, *(row[side] for row in ORDER.values())) for side in range(2)), steps="0-3")
    step = ("--steps", list(ORDER).index(case))
    answer = lastbit.json("diff", *step, *runs, expect=0)
    found = answer["first"]
    assert answer["verdict"] == found["local"] == "reordered" and found["op"] == op, found
    assert f"those of torch:1, the second's of {order} (" in found["why"], found["why"]
    assert lastbit.run("diff", "--exact", *step, *runs).returncode == 1


NOISY = "tests/programs/noisy_sum.py"


def test_what_two_runs_of_the_first_side_differ_by_is_noise(lastbit, recorded):
    """The order of the additions really changes from run to run, and no replay gives it."""
    runs = recorded(*((NOISY, "--nth", str(i)) for i in range(4)))
    alone = lastbit.json("diff", *runs[:2], expect=1)
    assert alone["verdict"] == "missing" and alone["first"]["op"] == "noisy::gather_rows"
    known = lastbit.json("diff", *runs[:2], "--noise", runs[2], "--noise", runs[3], expect=0)
    assert known["verdict"] == known["first"]["local"] == "noise", known["first"]
    last = {row["layer"]: row for row in known["layers"]}["last"]
    assert last["verdict"] == "noise" and last["inherited"] == "noise"


def test_a_difference_above_the_noise_is_none(lastbit, recorded):
    first, scaled, *again = recorded((NOISY, "--nth", "0"), (NOISY, "--scale", "1.001"), *((NOISY, "--nth", str(i)) for i in (2, 3)))
    answer = lastbit.json("diff", first, scaled, "--noise", again[0], "--noise", again[1], expect=1)
    assert answer["verdict"] == "diverged" and answer["first"]["op"] == "aten::mul.Tensor", answer["first"]
    assert answer["earliest"]["op"] == "noisy::gather_rows" and answer["earliest"]["verdict"] == "noise"


def test_noise_is_taken_over_all_ranks_as_they_line_up(lastbit, recorded, tmp_path):
    """Columns split over two ranks against themselves and against one process, whichever stands first; a scale is no noise."""
    runs = []
    for i in range(5):  # one run more says too little of what the next may differ by
        runs.append(tmp_path / f"ranks{i}.lb")
        record_ranks(lastbit, runs[-1], NOISY, 2, "--nth", str(i))
    scaled = tmp_path / "scaled.lb"
    record_ranks(lastbit, scaled, NOISY, 2, "--scale", "1.001")
    whole, *again = recorded(*((NOISY, "--nth", str(i)) for i in (0, 2, 3, 4)))
    for one, other, noise in ((runs[0], runs[1], runs[2:]), (runs[0], whole, runs[2:]), (whole, runs[0], again)):
        told = lastbit.json("diff", one, other, *(word for run in noise for word in ("--noise", run)), expect=(0, 1))
        gathered = told["earliest"]
        assert gathered["op"] == "noisy::gather_rows" and gathered["verdict"] == "noise", (one, other, gathered)
        assert told["verdict"] != "diverged" and not [f for f in told["findings"] if "noise" in f]
    told = lastbit.json("diff", runs[0], scaled, *(word for run in runs[2:] for word in ("--noise", run)), expect=1)
    assert told["verdict"] == "diverged" and told["first"]["op"] == "aten::mul.Tensor" and told["earliest"]["verdict"] == "noise"
    lost = lastbit.json("diff", runs[0], runs[1], "--noise", whole, expect=1)
    assert [f for f in lost["findings"] if "none of these runs has all of step 0" in f]


PARTIAL = "tests/programs/partial_write.py"
# What one side writes behind the last update of the last step: the parameter, and what of it differs.
WRITTEN = {
    "rows": ("down.weight", "aten::zero_", "dimension 0, 3 to 4 of 16; zero on the {side} side"),
    "columns": ("down.weight", "aten::mul_.Tensor", "a power-of-two scale"),
    "element": ("up.bias", "aten::fill_.Scalar", "one element: index 5"),
    "frozen": ("shift", "aten::add_.Tensor", ""),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("write", WRITTEN)
def test_what_one_side_writes_last_is_found_although_no_step_reads_it(lastbit, recorded, write, turned):
    parameter, op, pattern = WRITTEN[write]
    pair = recorded((PARTIAL,), (PARTIAL, "--write", write), steps="0-2")
    answer = lastbit.json("diff", *(pair[::-1] if turned else pair), expect=1)
    first, side = answer["first"], "first" if turned else "second"
    assert answer["verdict"] == "diverged" and (first["step"], first["layer"]) == (2, parameter), first
    assert first["why"] == f"{op} writes it last, on the {side} side only; exact values differ"
    assert pattern.format(side=side) in (first["pattern"] or "")
    assert [row["layer"] for row in answer["layers"] if row["verdict"] != "identical"] == [parameter]


def test_parts_written_alike_are_no_difference(lastbit, recorded):
    plain, same, third, by_three = recorded((PARTIAL,), *((PARTIAL, "--write", write) for write in ("same", "third", "by three")), steps="0-2")
    assert lastbit.json("diff", plain, same, expect=0)["verdict"] == "identical"  # the write changes no bit
    assert lastbit.json("diff", third, third, expect=0)["verdict"] == "identical"
    answer = lastbit.json("diff", third, by_three, expect=0)
    assert answer["verdict"] == "rounding" and answer["first"]["layer"] == "down.weight", answer["first"]
    assert answer["first"]["why"] == "in exact arithmetic both sides update it alike" and 0 < answer["first"]["differing"] <= 64


@pytest.mark.parametrize("turned", [False, True])
def test_a_cast_there_and_back_is_rounding_whose_type_is_named(lastbit, recorded, turned):
    """Two bits of mantissa are rounding too (every float cast is the identity in the exact shadow); but a reader must see of what."""
    plain, narrow, other = recorded((PARTIAL,), (PARTIAL, "--cast", "float8_e5m2"), (PARTIAL, "--cast", "bfloat16"), steps="0-2")
    side, reason = "first" if turned else "second", "is the same in exact arithmetic: the {} side rounds to {} on the way"
    for capture, name in ((narrow, "e5m2"), (other, "bf16")):
        answer = lastbit.json("diff", *((capture, plain) if turned else (plain, capture)), expect=0)
        assert answer["verdict"] == answer["first"]["local"] == "rounding" and answer["first"]["why"].endswith(reason.format(side, name))
    answer = lastbit.json("diff", *((narrow, other) if turned else (other, narrow)), expect=0)
    types = ("e5m2", "bf16") if turned else ("bf16", "e5m2")
    assert answer["first"]["why"].endswith(": {} on the first side, {} on the second".format(*types)), answer["first"]


CACHE = "tests/programs/window_cache.py"


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("separate", [(), ("--separate",)])
def test_cached_windows_of_one_projection_are_what_the_other_side_holds(lastbit, recorded, separate, turned):
    """Of a tensor with gaps the range of its storage is recorded: both shadows begin with what lies in the window, and a write of somebody
    between the steps is no rounding."""
    library, by_hand, fault, overwritten = recorded(
        (CACHE,),
        (CACHE, *separate, "--by-hand"),
        (CACHE, *separate, "--by-hand", "--fault"),
        (CACHE, *separate, "--by-hand", "--overwritten"),
        steps="0-1",
    )

    def ask(other, expect):
        return lastbit.json("diff", *((other, library) if turned else (library, other)), expect=expect)

    answer = ask(by_hand, 0)
    assert answer["verdict"] == "rounding", answer["first"]
    cached = [row for row in answer["layers"] if row["layer"].startswith("input:") and row["step"] == 1]
    assert len(cached) == 2 and all("came out of the step before" in row["why"] for row in cached), cached
    first = ask(fault, 1)["first"]
    assert (first["step"], first["layer"], first["op"]) == (1, "layers.1", "aten::mul.Tensor"), first
    first = ask(overwritten, 1)["first"]
    assert (first["step"], first["op"]) == (1, "lb::source") and "something wrote it since" in first["why"], first


NAN_INSIDE = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
x = torch.randn(3, 4)
x[1, 2] = float("nan")
x.view(torch.int32)[1, 2] = {"quiet": 0x7FC00000, "negative": 0x7FC00000 - (1 << 31), "full": 0x7FFFFFFF, "number": 0x3F800000}[sys.argv[1]]
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(x).sum().backward()
    optimizer.step()
"""


def test_nan_is_nan_whatever_its_bits(lastbit, tmp_path):
    """Processors leave other bits in it, and parameters then hold them; the decoy, a number in its place, is a difference."""
    (tmp_path / "program.py").write_text(NAN_INSIDE)
    for how in ("quiet", "negative", "full", "number"):
        lastbit.record(tmp_path / f"{how}.lb", tmp_path / "program.py", how, options=("--level", "ops"), expect=0)
    for how in ("negative", "full"):
        assert lastbit.json("diff", tmp_path / "quiet.lb", tmp_path / f"{how}.lb", "--exact", expect=0)["verdict"] == "identical"
        told = lastbit.json("explain", tmp_path / "quiet.lb", tmp_path / f"{how}.lb", expect=0)
        assert not told["findings"], told
    assert lastbit.json("diff", tmp_path / "quiet.lb", tmp_path / "number.lb", expect=1)["first"]["op"] == "lb::source"
    assert lastbit.json("explain", tmp_path / "quiet.lb", tmp_path / "number.lb", expect=1)["findings"]
