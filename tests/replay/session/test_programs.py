"""Programs that know nothing of lastbit: recorded unchanged, every op of them replays to its own bits or within its bound."""

import os
import sys

import pytest
from conftest import FULL as ALL
from conftest import ROOT

# name: (program, arguments)
PROGRAMS = {
    "tied embeddings": ("tests/programs/gpt_tied.py", []),
    "experts with dropout": ("tests/programs/moe_dropout.py", []),
    "data parallel with accumulation": ("tests/programs/ranks/ddp_accumulate.py", ["--steps", "2"]),
    "decoding from a cache": ("tests/programs/generate_kv.py", ["--sample", "--dtype", "bfloat16"]),
    "two optimizers": ("tests/programs/gan_two_optimizers.py", []),
    "collectives": ("tests/programs/ranks/collectives.py", ["2"]),
    "fully sharded": ("tests/programs/ranks/fsdp_two_linears.py", []),
}
FULL = {
    "fully sharded, mixed precision": ("tests/programs/ranks/fsdp_two_linears.py", ["--mixed", "--world", "3"]),
    "data parallel, gradients in buckets": ("tests/programs/ranks/ddp_accumulate.py", ["--bucket-view", "--spawn", "3"]),
    "decoding without inference mode": ("tests/programs/generate_kv.py", ["--mode", "no_grad"]),
    "decoding greedily": ("tests/programs/generate_kv.py", []),
}


def check(lastbit, tmp_path, program, arguments):
    capture = tmp_path / "run.lb"
    done = lastbit.record(capture, program, *arguments, expect=0)
    assert "recording stopped" not in done.stderr, done.stderr
    isolated = lastbit.json("replay", capture, "--worst", 50, expect=0)
    assert isolated["ops"]["opaque"] == 0, isolated["opaque_ops"]
    assert isolated["verdict"] in ("identical", "rounding"), isolated["worst"]
    assert isolated["verdicts"]["diverged"] == isolated["verdicts"]["missing"] == 0
    assert isolated["compared"] > 100
    chained = lastbit.json("replay", capture, "--mode", "chained", expect=0)
    assert chained["verdict"] in ("identical", "rounding"), chained["worst"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_replays(lastbit, tmp_path, name):
    check(lastbit, tmp_path, *PROGRAMS[name])


@pytest.mark.full
@pytest.mark.parametrize("name", FULL)
def test_more_programs_replay(lastbit, tmp_path, name):
    check(lastbit, tmp_path, *FULL[name])


def test_coverage_counts_ops_and_says_why_one_was_not_computed(lastbit, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, "tests/programs/custom_scale.py", expect=0)
    answer = lastbit.json("replay", capture, "--coverage", expect=0)
    assert [(row["op"], row["count"]) for row in answer["opaque_ops"]] == [("house::scale_rows", 2)]
    rows = {row["op"]: row for row in answer["coverage"]}
    assert rows["aten::addmm"]["count"] == 2 and rows["aten::addmm"]["native"]
    assert not rows["house::scale_rows"]["native"] and "op table" in rows["house::scale_rows"]["why"]
    assert sum(row["count"] for row in answer["coverage"]) == answer["ops"]["total"]
    text = lastbit.run("replay", capture, "--coverage", expect=0).stdout
    assert "house::scale_rows" in text and "no row of the op table has this name" in text


def test_what_could_not_be_judged_is_explained(lastbit, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, "tests/programs/two_linears.py", options=("--level", "sources"), expect=0)
    answer = lastbit.json("replay", capture, expect=125)
    assert answer["verdict"] == "missing" and answer["verdicts"]["missing"] > 0
    assert "--level ops --steps 0-4 -- " in answer["missing"] and "two_linears.py" in answer["missing"]
    assert answer["missing"] in lastbit.run("replay", capture, expect=125).stdout
    whole = tmp_path / "whole.lb"
    lastbit.record(whole, "tests/programs/two_linears.py", options=("--level", "ops"), expect=0)
    answer = lastbit.json("replay", whole, expect=0)
    assert "missing" not in answer and answer["inf"]["ops"] == answer["nan"]["ops"] == 0


@pytest.mark.parametrize("command", ["record", "doctor", "ls", "show", "verify", "recover", "pack", "diff", "replay", "bisect", "order"])
def test_help_is_ascii(lastbit, command):
    """popt drops what follows another character in its column."""
    assert lastbit.run(command, "--help", expect=0).stdout.isascii()


def test_a_backend_runs_what_replay_does_not_know(lastbit, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, "tests/programs/custom_scale.py", options=("--level", "ops"), expect=0)
    torch = ("--backend", "torch", "--backend-python", sys.executable)
    programs = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "programs")}
    for mode in ("isolated", "chained") if ALL else ("chained",):
        answer = lastbit.json("replay", capture, "--mode", mode, "--coverage", *torch, "--backend-import", "custom_scale", expect=0, env=programs)
        assert answer["ops"]["backend"] == 2 and answer["ops"]["opaque"] == 0 and answer["opaque_ops"] == []
        assert {row["op"]: row for row in answer["coverage"]}["house::scale_rows"]["identical"] == 2
    unknown = lastbit.json("replay", capture, *torch, expect=0)
    assert unknown["ops"]["opaque"] == 2 and len(unknown["opaque_ops"]) == 1 and unknown["ops"]["backend"] == 0
    assert "--backend-import" in unknown["opaque_ops"][0]["why"]
    missing = lastbit.run("replay", capture, *torch, "--backend-import", "no_such_module_here", expect=(125, 128))
    assert "no_such_module_here" in missing.stderr
    nobody = lastbit.run("replay", capture, "--backend", "torch", "--backend-python", "/no/such/python", expect=128)
    assert "/no/such/python" in nobody.stderr
    lastbit.run("replay", capture, "--backend-import", "custom_scale", expect=129)


def test_a_backend_runs_an_op_that_writes_a_state_which_may_be_absent(lastbit, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, "tests/programs/optional_state.py", options=("--level", "ops"), expect=0)
    torch = ("--backend", "torch", "--backend-python", sys.executable, "--backend-import", "optional_state")
    answer = lastbit.json("replay", capture, "--coverage", *torch, expect=0, env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "programs")})
    assert answer["ops"]["opaque"] == 0 and {row["op"]: row for row in answer["coverage"]}["house::update"]["identical"] == 2, answer
    told = lastbit.json("bisect", capture, expect=0)
    assert told["outcome"] == "clean" and ", 2 opaque" in told["stages"][0]["note"], told["stages"]


def test_a_failure_in_what_nobody_computes_is_said_to_be_one(lastbit, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, "tests/programs/optional_state.py", "inf", options=("--level", "ops"), expect=0)
    told = " ".join(lastbit.run("bisect", capture, expect=125).stdout.split())
    assert "it shows in what house::update gave, an op that replay does not know: its recorded result stands in" in told, told


@pytest.mark.full
def test_other_bits_of_a_backend_are_no_divergence(lastbit, tmp_path):
    """What runs the op now may not be what ran it then, and nothing bounds their difference."""
    capture, folder = tmp_path / "run.lb", tmp_path / "other"
    lastbit.record(capture, "tests/programs/custom_scale.py", options=("--level", "ops"), expect=0)
    folder.mkdir()
    text = (ROOT / "tests" / "programs" / "custom_scale.py").read_text()
    (folder / "custom_scale.py").write_text(text.replace("* factor", "* (factor * 1.0001)"))
    answer = lastbit.json(
        "replay",
        capture,
        "--backend",
        "torch",
        "--backend-python",
        sys.executable,
        "--backend-import",
        "custom_scale",
        expect=0,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert answer["ops"]["backend"] == 2 and answer["verdicts"]["diverged"] == 0
    assert "other bits" in answer["opaque_ops"][0]["why"]


def tapped(lastbit, tmp_path, name, *arguments):
    capture = tmp_path / name
    capture_folder = {"PYTHONPATH": str(ROOT / "capture")}
    lastbit.record(capture, "tests/programs/tapped.py", *arguments, options=("--level", "ops", "--compiled", "graph"), expect=0, env=capture_folder)
    return capture


def test_a_tap_is_no_wall(lastbit, tmp_path):
    """A marked value is handed on: what changes before the tap arrives behind it, and a search comes to the same end with it as without."""
    with_tap, without = tapped(lastbit, tmp_path, "tap.lb"), tapped(lastbit, tmp_path, "no.lb", "--no-tap")
    answer = lastbit.json("replay", with_tap, "--coverage", expect=0)
    rows = {row["op"]: row for row in answer["coverage"]}
    assert answer["ops"]["opaque"] == 0 and rows["lastbit::tap"]["native"]
    assert rows["lastbit::tap"]["identical"] == rows["lastbit::tap"]["count"] == 2
    assert lastbit.json("replay", with_tap, "--mode", "chained", expect=0)["nan"]["ops"] > 0
    wide = lastbit.json("replay", with_tap, "--mode", "chained", "--precision", ".*=f32", expect=(0, 1))
    assert wide["nan"]["ops"] == wide["inf"]["ops"] == 0
    culprits = [lastbit.json("bisect", capture, expect=1)["culprit"] for capture in (with_tap, without)]
    assert culprits[0] == culprits[1] and culprits[0]["axis"] == "precision"


def test_coverage_counts_bits_that_another_order_gives_too(lastbit, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, "tests/programs/two_linears.py", options=("--level", "ops"), expect=0)
    ways = {order: lastbit.json("replay", capture, "--coverage", *order, expect=0) for order in ((), ("--order", "op=mm=blocked:4096"))}
    plain, blocked = ({row["op"]: row.get("identical") for row in answer["coverage"]} for answer in ways.values())
    assert ways["--order", "op=mm=blocked:4096"]["verdicts"]["reordered"] > 0  # blocks longer than the sums: the same chain
    assert plain == blocked


def test_a_backend_runs_everything_as_a_cross_check(lastbit, tmp_path):
    """Here PyTorch computed the recording, too: what it runs again from the same inputs has the recorded bits."""
    capture = tmp_path / "run.lb"
    lastbit.record(capture, "tests/programs/two_linears.py", options=("--level", "ops"), expect=0)
    both = ("--coverage", "--backend-python", sys.executable)
    answer = lastbit.json("replay", capture, "--backend", "torch:all", *both, expect=0)
    rows = {row["op"]: row for row in answer["coverage"]}
    assert answer["ops"]["backend"] > answer["ops"]["total"] // 2 and answer["ops"]["opaque"] == 0
    for op in ("aten::addmm", "aten::mm", "aten::add_.Tensor"):
        if op in rows:
            assert rows[op]["backend"] == rows[op]["count"] == rows[op]["identical"], rows[op]
    assert "aten::mm" in rows and answer["verdicts"]["diverged"] == 0
    assert sum(row.get("backend", 0) for row in rows.values()) == answer["ops"]["backend"]
    text = lastbit.run("replay", capture, "--backend", "torch:all", *both, expect=0).stdout
    assert "aten::mm  (by PyTorch)" in text
    only = lastbit.json("replay", capture, "--backend", "torch", *both, expect=0)
    assert only["ops"]["backend"] == 0
    chained = lastbit.json("replay", capture, "--mode", "chained", "--backend", "torch:all", *both, expect=0)
    assert chained["ops"]["backend"] > 0 and chained["verdict"] in ("identical", "rounding")


def test_torch_is_a_kernel_of_single_ops(lastbit, tmp_path):
    capture, python = tmp_path / "run.lb", ("--coverage", "--backend-python", sys.executable)
    lastbit.record(capture, "tests/programs/two_linears.py", options=("--level", "ops"), expect=0)
    plain = {row["op"]: row for row in lastbit.json("replay", capture, "--coverage", expect=0)["coverage"]}
    for mode in ("isolated", "chained"):
        answer = lastbit.json("replay", capture, "--mode", mode, "--kernel", "op=mm=torch", *python, expect=0)
        rows = {row["op"]: row for row in answer["coverage"]}
        assert rows["aten::mm"]["backend"] == rows["aten::mm"]["count"] == answer["swaps"][0]["touched"] == answer["ops"]["backend"] > 0
        assert [op for op, row in rows.items() if row.get("backend")] == ["aten::mm"]
        assert mode == "chained" or rows["aten::mm"]["identical"] == rows["aten::mm"]["count"]  # PyTorch computed the recording, too
    assert plain["aten::mm"]["count"] == rows["aten::mm"]["count"]
    listed = lastbit.json("replay", capture, "--kernels", expect=0)
    assert "torch" in listed["any"].split() and "finite torch" in lastbit.run("replay", capture, "--kernels", expect=0).stdout


def test_torch_as_a_kernel_of_ops_that_are_not_known(lastbit, tmp_path):
    """Of two unknown ops only the selected one is run; what PyTorch refuses is an error, since it was asked for."""
    capture, programs = tmp_path / "run.lb", {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "programs")}
    lastbit.record(capture, "tests/programs/custom_scale.py", options=("--level", "ops"), expect=0)
    torch = ("--backend-python", sys.executable)
    known = lastbit.json("replay", capture, expect=0)
    unknown = [row["op"] for row in known["opaque_ops"]]
    assert known["ops"]["opaque"] == 2 and len(unknown) == 1
    name = f"op={unknown[0]}=torch"
    answer = lastbit.json("replay", capture, "--kernel", name, *torch, "--backend-import", "custom_scale", expect=0, env=programs)
    assert answer["ops"]["backend"] == 2 and answer["ops"]["opaque"] == 0
    refused = lastbit.run("replay", capture, "--kernel", name, *torch, expect=(125, 128))
    assert unknown[0] in refused.stderr and "--backend-import" in refused.stderr
    neither = lastbit.json("replay", capture, "--kernel", "op=addmm=torch", *torch, expect=0)
    assert neither["ops"]["opaque"] == 2 and neither["ops"]["backend"] > 0


def test_torch_as_a_kernel_says_what_is_missing(lastbit, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, "tests/programs/two_linears.py", options=("--level", "ops"), expect=0)
    nobody = lastbit.run("replay", capture, "--kernel", "op=mm=torch", "--backend-python", "/no/such/python", expect=128)
    assert "/no/such/python" in nobody.stderr
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # no site-packages
    bare.chmod(0o755)
    absent = lastbit.run("replay", capture, "--kernel", "op=mm=torch", "--backend-python", bare, expect=128)
    assert "torch" in absent.stderr and "Traceback" not in absent.stderr.splitlines()[-1]
    both = lastbit.run("replay", capture, "--kernel", "op=mm=torch", "--precision", "op=mm=f64", "--backend-python", sys.executable, expect=129)
    assert "PyTorch computes ops as they were recorded" in both.stderr
    unknown = lastbit.run("replay", capture, "--kernel", "op=mm=cublas", expect=129)
    assert "finite torch" in unknown.stderr


def test_ops_whose_data_are_no_arguments_say_so(lastbit, tmp_path):
    program = tmp_path / "serve.py"
    program.write_text("""
import torch
library = torch.library.Library("vllm", "DEF")
library.define("unified_attention(Tensor query, Tensor key, Tensor value, str layer_name) -> Tensor")
library.impl("unified_attention", lambda q, k, v, name: q + k + v, "CPU")
class Layer(torch.nn.Linear):
    def forward(self, x):
        return torch.ops.vllm.unified_attention(super().forward(x), x, x, "layer")
with torch.no_grad():
    Layer(4, 4)(torch.randn(2, 4))
""")
    lastbit.record(tmp_path / "run.lb", program, options=("--level", "ops"), expect=0)
    [row] = lastbit.json("replay", tmp_path / "run.lb", expect=0)["opaque_ops"]
    assert row["op"] == "vllm::unified_attention" and "cache of keys and values" in row["why"]
