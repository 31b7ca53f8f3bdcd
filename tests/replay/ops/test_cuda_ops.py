"""Ops that a run on CUDA records and none on a CPU does: tests/programs/cuda_kernels.py computes them on the CPU as the public kernels do."""

import op_harness as H
import pytest
import torch

SYNC_NORM = {
    "aten::batch_norm_stats",
    "aten::batch_norm_gather_stats_with_counts",
    "aten::batch_norm_elemt",
    "aten::batch_norm_backward_reduce",
    "aten::batch_norm_backward_elemt",
}


CELLS = {
    "aten::_thnn_fused_lstm_cell",
    "aten::_thnn_fused_lstm_cell_backward_impl",
    "aten::_thnn_fused_gru_cell",
    "aten::_thnn_fused_gru_cell_backward",
    "aten::_cudnn_rnn",
    "aten::_cudnn_rnn_backward",
}


def recorded(lastbit, path, program, *arguments):
    lastbit.record(path, f"tests/programs/{program}.py", *arguments, options=("--level", "ops"), expect=0)
    return path


def replayed(lastbit, capture):
    return lastbit.json("replay", capture, "--coverage", "--worst", 1000, expect=(0, 1))


def natives(answer):
    return {row["op"] for row in answer["coverage"] if row["native"]}


def diverged(answer):
    return [one["op"] for one in answer["worst"] if one["verdict"] == "diverged"]


def test_a_batch_norm_over_ranks_replays_and_the_one_that_errs_is_found(lastbit, tmp_path):
    capture = recorded(lastbit, tmp_path / "run.lb", "ranks/sync_norm", "--wrong")
    assert '"unseen_writes": 0' in lastbit.run("ls", "-t", capture, expect=0).stdout  # its running statistics, which the schema hides
    answer = replayed(lastbit, capture)
    assert answer["ops"]["opaque"] == 0 and SYNC_NORM <= natives(answer)
    assert diverged(answer) == ["aten::batch_norm_backward_elemt"]


@pytest.mark.full
def test_a_batch_norm_over_ranks_is_the_same_function_in_another_precision(lastbit, tmp_path):
    """The f32 program compares itself with a batch norm of the joined batch."""
    fine = recorded(lastbit, tmp_path / "fine.lb", "ranks/sync_norm")
    coarse = recorded(lastbit, tmp_path / "coarse.lb", "ranks/sync_norm", "--dtype", "bfloat16")
    wrong = recorded(lastbit, tmp_path / "wrong.lb", "ranks/sync_norm", "--wrong")
    for capture in (fine, coarse):
        assert replayed(lastbit, capture)["verdict"] == "rounding"
    assert lastbit.json("diff", fine, coarse, expect=(0, 1))["verdict"] == "rounding"
    found = lastbit.json("diff", fine, wrong, expect=1)
    assert (found["first"]["op"], found["first"]["rank"]) == ("aten::batch_norm_backward_elemt", 1), found["first"]


@pytest.mark.parametrize(
    "dtype, wrong",
    [
        ("float32", "_thnn_fused_lstm_cell"),
        *(pytest.param("float32", name[6:], marks=pytest.mark.full) for name in sorted(CELLS) if name[6:] != "_thnn_fused_lstm_cell"),
        pytest.param("bfloat16", None, marks=pytest.mark.full),
    ],
)
def test_recurrent_layers_replay_and_the_one_that_errs_is_found(lastbit, tmp_path, dtype, wrong):
    planted = ("--wrong", wrong) if wrong else ()
    answer = replayed(lastbit, recorded(lastbit, tmp_path / "run.lb", "cuda_cells", "--dtype", dtype, *planted))
    assert answer["ops"]["opaque"] == 0 and CELLS <= natives(answer)
    assert diverged(answer) == ([f"aten::{wrong}"] if wrong else [])


@pytest.mark.parametrize("arch", ["ada", "h100-fp8", "h100-fp8:128", "b200"])
@pytest.mark.parametrize("k", [64, 1024, 8192])
def test_what_a_matrix_unit_makes_of_8_bits_is_within_the_bound(arch, k):
    """Ada and Hopper keep 13 fraction bits of a sum; products of like signs, whose sum grows, lose most."""
    draw = torch.Generator().manual_seed(k)
    a, b = (torch.rand(n, k, generator=draw).add(0.1).to(torch.float8_e4m3fn) for n in (16, 32))
    scales = torch.rand(16, 1, generator=draw), torch.rand(1, 32, generator=draw)
    fast = ":" not in arch
    calls = {
        "aten::_scaled_mm": (a, b.t(), *scales, None, None, torch.float32, fast),
        "aten::_scaled_mm_v2": (a, b.t(), [scales[0]], [1], [], [scales[1]], [1], [], None, torch.float32, [], fast),
    }
    for name, values in calls.items():
        row, result, plain = H.rows()[name], torch.empty(16, 32), torch.empty(16, 32)
        H.run(row, values, [result], method=H.Method(kernel=f"tensorcore:{arch}".encode()))
        assert float(H.ratios(row, values, [result])[0].max()) <= 1
        H.run(row, values, [plain])
        off = float(((result - plain) / plain).abs().max())
        assert off < 1e-5 if arch == "b200" else off > 1e-5 or k == 64  # the unit is not the plain sum


@pytest.mark.full
def test_recurrent_layers_are_the_same_function_in_another_precision(lastbit, tmp_path):
    fine, coarse = (recorded(lastbit, tmp_path / f"{dtype}.lb", "cuda_cells", "--dtype", dtype) for dtype in ("float32", "bfloat16"))
    assert lastbit.json("diff", fine, coarse, expect=(0, 1))["verdict"] == "rounding"
    wrong = recorded(lastbit, tmp_path / "wrong.lb", "cuda_cells", "--wrong", "_thnn_fused_gru_cell_backward")
    found = lastbit.json("diff", fine, wrong, expect=1)["first"]
    assert (found["op"], found["layer"]) == ("aten::_thnn_fused_gru_cell_backward", "gru_cell"), found
