"""Files as they lie in folders: other forms of the same weights, pointers in their place, bytes that nobody claims, narrow numbers."""

import json
import struct

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 123456\n"


def state():
    torch.manual_seed(6)
    return {f"layers.{i}.{name}.weight": torch.randn(24, 16) for i in range(4) for name in ("q_proj", "down_proj")}


def found(answer):
    return [(f["kind"], f["tensor"], f["file"]) for f in answer["findings"]]


@pytest.fixture
def sharded(tmp_path):
    """Each layer in a file of its own, and an index."""
    tensors, names = state(), [f"model-{i + 1:05}-of-00004.safetensors" for i in range(4)]
    for i, file in enumerate(names):
        save_file({n: t for n, t in tensors.items() if f".{i}." in n}, tmp_path / file)
    index = {"metadata": {}, "weight_map": {n: names[int(n.split(".")[1])] for n in tensors}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


@pytest.mark.parametrize("file", ["model.fp16.safetensors", "model-00001-of-00001.fp16.safetensors", "model.fp16-00001-of-00001.safetensors"])
def test_another_variant_beside_the_weights_is_clean(lastbit, sharded, file):
    save_file({n: t.half() for n, t in state().items()}, sharded / file)
    answer = lastbit.json("audit", sharded, expect=0)
    assert answer["findings"] == [] and answer["tensors"] == 8 and answer["files"] == 4


def test_one_file_beside_the_shards_is_told_once(lastbit, sharded):
    """transformers loads model.safetensors where there is one, and then no shard: which of them was meant nobody knows."""
    save_file(state(), sharded / "model.safetensors")
    assert found(lastbit.json("audit", sharded, expect=1)) == [("unexpected", None, "model.safetensors")]


@pytest.mark.parametrize(("content", "kind"), [(POINTER.encode(), "damaged"), (b"", "truncated"), (None, "no_file")])
def test_a_file_that_is_lost_is_one_finding(lastbit, sharded, content, kind):
    """What its tensors' siblings have and they lack follows from it."""
    path = sharded / "model-00002-of-00004.safetensors"
    path.unlink() if content is None else path.write_bytes(content)
    answer = lastbit.json("audit", sharded, expect=1)
    assert found(answer) == [(kind, None, path.name)]
    assert ("Git LFS" in answer["findings"][0]["message"]) == (content == POINTER.encode())


@pytest.mark.parametrize("where", ["behind", "between"])
def test_bytes_that_no_tensor_claims(lastbit, tmp_path, where):
    """safetensors itself refuses such a file."""
    path = tmp_path / "x.safetensors"
    save_file(state(), path)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, numbers = json.loads(data[8 : 8 + length]), data[8 + length :]
    at = len(numbers) if where == "behind" else 24 * 16 * 4
    for entry in header.values():
        if entry["data_offsets"][0] >= at:
            entry["data_offsets"] = [offset + 32 for offset in entry["data_offsets"]]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + numbers[:at] + bytes(32) + numbers[at:])
    with pytest.raises(SafetensorError):
        load_file(path)
    answer = lastbit.json("audit", path, expect=1)
    assert [f["kind"] for f in answer["findings"]] == ["gap"]
    assert answer["findings"][0]["message"].startswith(f"32 bytes at offset {8 + len(text) + at} ")


def test_a_file_that_was_allocated_and_never_written(lastbit, tmp_path):
    path = tmp_path / "x.safetensors"
    save_file(state(), path)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    path.write_bytes(data[: 8 + length] + bytes(len(data) - 8 - length))
    answer = lastbit.json("audit", path, expect=1)
    assert found(answer) == [("zero", None, None)] and answer["notes"] == []


@pytest.mark.parametrize(
    ("file", "content", "says", "code"), [("x.gguf", b"GGUF" + bytes(60), "GGUF is not read", 125), ("x.h5", b"\x89HDF\r\n", "no format", 128)]
)
def test_a_format_that_is_not_read_is_no_damage(lastbit, tmp_path, file, content, says, code):
    """GGUF is known for what it is, and cannot be tested; what nobody here knows is no checkpoint."""
    (tmp_path / file).write_bytes(content)
    assert says in lastbit.run("audit", tmp_path / file, expect=code).stderr


def test_torch_files_that_are_not_read_say_why(lastbit, tmp_path):
    torch.save(state(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "before torch 1.6" in lastbit.run("audit", tmp_path / "old.pt", expect=125).stderr
    torch.save(torch.nn.Linear(3, 3), tmp_path / "module.pt")
    assert "state_dict()" in lastbit.run("audit", tmp_path / "module.pt", expect=125).stderr


# ---- fp8 without scales


def test_numbers_that_were_cast_as_they_are_need_no_scale(lastbit, tmp_path):
    save_file({n: t.to(torch.float8_e4m3fn) for n, t in state().items()}, tmp_path / "x.safetensors")
    answer = lastbit.json("audit", tmp_path / "x.safetensors", expect=0)
    assert answer["findings"] == [] and [n["kind"] for n in answer["notes"]] == ["scale_missing"]


@pytest.mark.parametrize(("dtype", "top"), [(torch.float8_e4m3fn, 448), (torch.float8_e5m2, 57344)])
def test_numbers_that_fill_their_type_lack_their_scale(lastbit, tmp_path, dtype, top):
    """None of them has a scale, and all were divided by one."""
    scaled = {n: (t * (top / t.abs().max())).to(dtype) for n, t in state().items()}
    save_file(scaled, tmp_path / "x.safetensors")
    answer = lastbit.json("audit", tmp_path / "x.safetensors", expect=1)
    assert {f[:2] for f in found(answer)} == {("scale_missing", n) for n in scaled} and len(answer["findings"]) == len(scaled)


@pytest.mark.parametrize("name", ["_extra_state", "weight_scale", "weight_scale_inv", "scale_weight"])
def test_scales_under_the_names_that_libraries_give_them(lastbit, tmp_path, name):
    tensors = {n: (t * (448 / t.abs().max())).to(torch.float8_e4m3fn) for n, t in state().items()}
    scale = torch.ones(4, dtype=torch.uint8) if name == "_extra_state" else torch.tensor(0.25)
    tensors |= {n.replace("weight", name): scale.clone() for n in tensors}
    save_file(tensors, tmp_path / "x.safetensors")
    assert lastbit.json("audit", tmp_path / "x.safetensors", expect=0)["findings"] == []
