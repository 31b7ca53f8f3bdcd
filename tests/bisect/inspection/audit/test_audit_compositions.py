"""Conversions composed at random are innocent; one fault in one layer of them is named, and nothing else is."""

import re

import composed
import pytest
import torch
from safetensors.torch import save_file


def compare(lastbit, folder, checkpoint, other):
    save_file(checkpoint, folder / "checkpoint.safetensors")
    save_file(other, folder / "other.safetensors")
    return lastbit.json("audit", folder / "checkpoint.safetensors", "--against", folder / "other.safetensors")


def layers_in(text):
    return set(map(int, re.findall(r"(?:^|\W)(?:h|layers|blocks)\.(\d+)\.", text or "")))


@pytest.mark.parametrize("seed", [*range(40), 63, 69, 76, 103, 107, 148, 160, 228, 277, 308, 404, 540, 653])
def test_a_composed_conversion_is_innocent(lastbit, tmp_path, seed):
    checkpoint, other, _ = composed.pair_of(seed)
    answer = compare(lastbit, tmp_path, checkpoint, other)
    assert answer["verdict"] == "clean", [(f["kind"], f["tensor"], f["message"]) for f in answer["findings"]]
    told = {p["tensor"] for p in answer["pairs"]} | {p["other"] for p in answer["pairs"]}
    assert len(told) >= len(other) // 2


@pytest.mark.parametrize("fault", composed.FAULTS)
def test_a_fault_in_one_layer_of_a_conversion(lastbit, tmp_path, fault):
    """Of the first three seeds whose decoder has what the fault needs."""
    pairs = [pair for pair in (composed.pair_of(seed, fault) for seed in range(60)) if pair][:3]
    assert len(pairs) == 3
    for checkpoint, other, layer in pairs:
        answer = compare(lastbit, tmp_path, checkpoint, other)
        assert answer["verdict"] == "found"
        assert [f["message"] for f in answer["findings"] if layer not in layers_in(f["tensor"])] == []


@pytest.mark.parametrize("scale, verdict", [(0.125, "clean"), (0.9, "found")])
def test_a_scale_that_all_layers_share(lastbit, tmp_path, scale, verdict):
    """A power of two is what a conversion folds in; nine tenths are not."""
    size, parts = composed.decoder(composed.Draw(3))
    way = composed.PLAIN | {"names": "short"}
    checkpoint = composed.store(size, {k: v * scale if k.endswith(".q") else v for k, v in parts.items()}, way)
    answer = compare(lastbit, tmp_path, checkpoint, composed.store(size, parts, way))
    assert answer["verdict"] == verdict
    assert {f["kind"] for f in answer["findings"]} == ({"differs"} if verdict == "found" else set())
    assert {layer for f in answer["findings"] for layer in layers_in(f["tensor"])} == (set(range(size["layers"])) if verdict == "found" else set())


def test_a_column_that_was_not_scaled(lastbit, tmp_path):
    """A norm folded into the matrix behind it, except for one column."""
    size, parts = composed.decoder(composed.Draw(0))
    way = composed.PLAIN | {"names": "short", "folded": True}
    checkpoint = composed.store(size, parts, way)
    name = next(k for k in checkpoint if k.startswith("h.2.") and k.endswith("attn.q.weight"))
    checkpoint[name][:, 5] = parts["2.q"][:, 5]
    answer = compare(lastbit, tmp_path, checkpoint, composed.store(size, parts, way | {"folded": False}))
    assert answer["verdict"] == "found" and name in {f["tensor"] for f in answer["findings"]}


def test_a_table_that_one_side_computes_is_a_note(lastbit, tmp_path):
    size, parts = composed.decoder(composed.Draw(1))
    tensors = composed.store(size, parts, composed.PLAIN)
    angles = torch.outer(torch.arange(16.0), 10000 ** -torch.linspace(0, 1, 4))
    answer = compare(lastbit, tmp_path, tensors, tensors | {"rotary.cos": angles.cos(), "rotary.sin": angles.sin()})
    assert answer["verdict"] == "clean" and {f["tensor"] for f in answer["notes"]} >= {"rotary.cos", "rotary.sin"}


# ---- the table ----


@pytest.fixture
def table(lastbit, tmp_path):
    """(checkpoint, other, table) of a fused checkpoint."""
    size, parts = composed.decoder(composed.Draw(5))
    checkpoint, other = tmp_path / "checkpoint.safetensors", tmp_path / "other.safetensors"
    save_file(composed.store(size, parts, composed.PLAIN | {"names": "long"}), checkpoint)
    save_file(composed.store(size, parts, composed.PLAIN | {"names": "short", "qkv": "groups"}), other)
    lastbit.run("audit", checkpoint, "--against", other, "--map-out", tmp_path / "table", expect=0)
    return checkpoint, other, tmp_path / "table"


def test_a_table_is_written_and_read_in_either_order(lastbit, table):
    checkpoint, other, file = table
    line = "h.1.attn.c.weight = " + " + ".join(f"model.layers.1.self_attn.{n}_proj.weight" for n in "qkv")
    assert any(text.startswith(line) for text in file.read_text().splitlines())
    for sides in ((checkpoint, "--against", other), (other, "--against", checkpoint)):
        assert lastbit.json("audit", *sides, "--map", file, expect=0)["verdict"] == "clean"


def test_a_line_of_a_table_that_was_changed(lastbit, table):
    checkpoint, other, file = table
    file.write_text(file.read_text().replace("h.0.attn.o.weight = model.layers.0", "h.0.attn.o.weight = model.layers.1"))
    answer = lastbit.json("audit", checkpoint, "--against", other, "--map", file, expect=1)
    assert any("h.0.attn.o.weight are not those of model.layers.1.self_attn.o_proj.weight: element 0" in f["message"] for f in answer["notes"])
    file.write_text("h.0.attn.o.weight = nowhere\n")
    assert "line 1: the first side has no tensor 'nowhere'" in lastbit.run("audit", checkpoint, "--against", other, "--map", file, expect=129).stderr
