"""Nested tensors: what torch takes out of its padding and puts back is the same bits, and an encoder layer over them within its bound."""

import op_harness as H
import op_samples
import pytest
import torch
from op_samples_nested import LENGTHS, WIDTH, parts

PROGRAM = "tests/programs/nested_encoder.py"


def parts_of(t):
    return [t._nested_tensor_size(), t._nested_tensor_strides(), t._nested_tensor_storage_offsets(), t.values()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_padding_is_taken_away_and_put_back(dtype):
    draw = op_samples.Draw(1)
    value, mask = draw.dense((3, 6, WIDTH), dtype, 1.0), torch.arange(6)[None] < torch.tensor(LENGTHS)[:, None]
    right = parts_of(torch._nested_tensor_from_mask(value, mask))
    ours = [torch.full_like(t, 3) for t in right]
    H.run(H.rows()["parts::_nested_tensor_from_mask"], [value, mask, True], ours)
    assert all(torch.equal(a, b) for a, b in zip(ours, right))
    sequences = torch.nested.nested_tensor(list(right[3].split([n * WIDTH for n in LENGTHS])))
    sequences = torch.nested.nested_tensor([s.view(-1, WIDTH) for s in sequences.unbind()])
    for size in (None, [3, 7, 6]):
        right = torch.nested.to_padded_tensor(sequences, -2.5, size)
        ours = torch.empty_like(right)
        H.run(H.rows()["parts::to_padded_tensor"], [parts_of(sequences), -2.5, size], [ours])
        assert torch.equal(ours, right)


def test_sequences_with_holes_are_refused():
    row, given = H.rows()["parts::to_padded_tensor"], parts(op_samples.Draw(2), torch.float32)
    for k, changed in ((0, [[3, 4], [1, 3], [5, 4]]), (1, [[1, 3], [4, 1], [4, 1]]), (2, [0, 13, 17]), (0, [[3, 4], [1, 4], [6, 4]])):
        with pytest.raises(H.Unsupported):
            H.run(row, [[torch.tensor(changed) if j == k else t for j, t in enumerate(given)], 0.0, None], [torch.empty(3, 5, 4)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_encoder_asked_with_a_padding_mask_is_computed(lastbit, tmp_path, dtype):
    lastbit.record(tmp_path / "run.lb", PROGRAM, "--dtype", dtype, options=("--level", "ops"), expect=0)
    for mode in ("isolated", "chained"):
        answer = lastbit.json("replay", tmp_path / "run.lb", "--mode", mode, "--coverage", expect=0)
        assert answer["ops"]["opaque"] == 0, answer["opaque_ops"]
        assert {row["op"]: row["count"] for row in answer["coverage"]}["aten::_transformer_encoder_layer_fwd"] >= 2
        assert answer["verdict"] in ("identical", "rounding") and answer["verdicts"]["missing"] == 0


def test_one_wrong_number_of_a_sequence_diverges(lastbit, tmp_path):
    lastbit.record(tmp_path / "run.lb", PROGRAM, "--fault", options=("--level", "ops"), expect=0)
    answer = lastbit.json("replay", tmp_path / "run.lb", "--worst", 50, expect=1)
    assert {one["op"] for one in answer["worst"] if one["verdict"] == "diverged"} == {"aten::_transformer_encoder_layer_fwd"}
