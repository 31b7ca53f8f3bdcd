"""Files as they lie in folders: other forms of the same weights, pointers in their place, bytes that nobody claims, narrow numbers."""

import json
import struct

import numpy as np
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


def text(word):
    return struct.pack("<Q", len(word)) + word.encode()


def gguf(tensors, pairs=(), version=3):
    """{name: (sizes, innermost first, type, bytes)}; offsets are multiples of 32."""
    head, data = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs), b""
    for name, (sizes, kind, numbers) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, len(data))
        data += numbers + bytes(-len(numbers) % 32)
    return head + bytes(-len(head) % 32) + data


def layers(quantised):
    """Four layers of f32, of which some hold blocks of q4_0."""
    rng = np.random.default_rng(0)
    numbers = {False: ([32, 8], 0, rng.standard_normal(256).astype("<f4").tobytes()), True: ([32, 8], 2, rng.bytes(18 * 8))}
    return {f"blk.{i}.attn_q.weight": numbers[i in quantised] for i in range(4)}


@pytest.mark.parametrize("quantised", [(), (1,), (0, 1, 3)])
def test_quantised_tensors_of_gguf_are_neither_judged_nor_missing(lastbit, tmp_path, quantised):
    """Nor are they beside the model that they were made from, by either side's names."""
    (tmp_path / "x.gguf").write_bytes(gguf(layers(quantised)))
    save_file({f"model.layers.{i}.self_attn.q_proj.weight": torch.randn(8, 32) for i in range(4)}, tmp_path / "model.safetensors")
    answer = lastbit.json("audit", tmp_path / "x.gguf", expect=(0, 1))
    assert not any(row["kind"] in ("missing", "gap") for row in answer["findings"]) and answer["tensors"] == 4 - len(quantised)
    assert [row["kind"] for row in answer["notes"]] == ["unread"] * bool(quantised)
    if quantised:
        assert f"{len(quantised)} q4_0" in answer["notes"][0]["message"]
    for pair in (("x.gguf", "model.safetensors"), ("model.safetensors", "x.gguf")):
        both = lastbit.json("audit", tmp_path / pair[0], "--against", tmp_path / pair[1], expect=1)
        differ = {row["tensor"] for row in both["findings"] if row["kind"] in ("differs", "missing", "unexpected")}
        assert not any(f".{i}." in name for name in differ for i in quantised) and len(differ) == 4 - len(quantised), differ


def test_a_gguf_file_without_numbers_is_not_judged(lastbit, tmp_path):
    (tmp_path / "x.gguf").write_bytes(gguf(layers(range(4))))
    assert "every tensor is quantised" in lastbit.run("audit", tmp_path / "x.gguf", expect=125).stderr


def test_gguf_that_is_cut_or_contradicts_itself(lastbit, tmp_path):
    """At every byte of its header it is truncated; so it is where a tensor's bytes lack. What is said names offset and tensor."""
    whole, path = (
        gguf(layers(()), [text("a") + struct.pack("<II", 4, 7), text("b") + struct.pack("<IIQ", 9, 8, 2) + text("x") + text("yz")]),
        tmp_path / "x.gguf",
    )
    assert lastbit.json("audit", write(path, whole), expect=0)["tensors"] == 4
    for size in [*range(5, 100, 13), 150, 250]:
        assert {row["kind"] for row in lastbit.json("audit", write(path, whole[:size]), expect=1)["findings"]} == {"truncated"}, size
    (row,) = [row for row in lastbit.json("audit", write(path, whole[:-4]), expect=1)["findings"] if row["kind"] == "truncated"]
    assert row["tensor"] == "blk.3.attn_q.weight" and "its bytes leave the file" in row["message"]
    q = layers(())["blk.0.attn_q.weight"]
    for tensors, says in (
        ({"a": q, "b": ([7], 2, bytes(18))}, "no whole blocks"),
        ({"a": q, "b": ([2**62, 2**62], 0, b"")}, "overflow"),
        ({"a": q, "b": ([1] * 17, 0, bytes(4))}, "more than 16 dimensions"),
    ):
        rows = lastbit.json("audit", write(path, gguf(tensors)), expect=1)["findings"]
        assert any(row["kind"] == "damaged" and says in row["message"] and "offset" in row["message"] for row in rows), rows
    twice = gguf({"aa": q, "ab": q}).replace(text("ab"), text("aa"))
    assert "duplicate" in {row["kind"] for row in lastbit.json("audit", write(path, twice), expect=1)["findings"]}
    assert "type 250" in lastbit.json("audit", write(path, gguf({"a": q, "b": ([8], 250, bytes(8))})), expect=0)["notes"][0]["message"]


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("file", "content", "says", "code"),
    [
        ("x.gguf", gguf({}, version=1), "GGUF version 1: 2 and 3 are read", 125),
        ("x.gguf", gguf({}, version=3 << 24), "big-endian", 125),
        ("x.h5", b"\x89HDF\r\n", "no format", 128),
    ],
)
def test_a_format_that_is_not_read_is_no_damage(lastbit, tmp_path, file, content, says, code):
    """What nobody here knows is no checkpoint."""
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
