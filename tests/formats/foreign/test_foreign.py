"""Files of other programs open as captures: names, shapes, dtypes and every element as their own libraries read them."""

import json
import struct
import subprocess
import sys

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

NUMPY = [
    np.float64,
    np.float32,
    np.float16,
    np.complex64,
    np.complex128,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.bool_,
]
TORCH = ["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "int16", "int32", "int64", "uint8", "bool"]


def show(lastbit, path, name, *options):
    values = lastbit.json("show", path, "--name", name, "--limit", "100000", *options, expect=0)["values"]
    assert len(values) == 1
    return values[0]


def same(shown, array):
    """Elements as `show` prints them against float64 (parts of complex one after the other)."""
    array = np.asarray(array)
    flat = np.ascontiguousarray(array).reshape(-1)
    if np.iscomplexobj(flat):
        flat = flat.view(flat.real.dtype)
    assert shown["shape"] == list(array.shape)
    assert [float(x) for x in shown["elements"]] == pytest.approx(flat.astype(np.float64).tolist(), abs=0, rel=0, nan_ok=True)


def write_gguf(path, tensors, quantised=None):
    """As llama.cpp's own package writes it; sizes that the alignment pads, pairs of every kind before them."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_array("words", ["a", "bc", ""])
    writer.add_array("numbers", [1.5, 2.5])
    writer.add_custom_alignment(64)
    for name, array in tensors.items():
        if array.dtype == ml_dtypes.bfloat16:
            writer.add_tensor(name, array.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, array)
    if quantised:
        writer.add_tensor(
            quantised, gguf.quants.quantize(np.ones((2, 64), np.float32), gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_of_every_dtype_of_numbers(lastbit, tmp_path):
    rng = np.random.default_rng(1)
    dtypes = [np.float32, np.float16, np.float64, ml_dtypes.bfloat16, np.int8, np.int16, np.int32, np.int64]
    tensors = {f"t.{np.dtype(dtype).name}": rng.integers(-100, 100, (3, 5, 2)).astype(dtype) for dtype in dtypes}
    write_gguf(tmp_path / "a.gguf", tensors)
    for name, array in tensors.items():
        same(show(lastbit, tmp_path / "a.gguf", name), array)
    write_gguf(tmp_path / "b.gguf", tensors, quantised="q.weight")
    said = lastbit.run("ls", tmp_path / "b.gguf", expect=125).stderr
    assert "offset " in said and "'q.weight' is quantised (q8_0)" in said


def test_npy_of_every_dtype_and_order(lastbit, tmp_path):
    rng = np.random.default_rng(1)
    for dtype in NUMPY:
        array = (rng.integers(0, 100, (3, 5, 2)) + (1j if np.issubdtype(dtype, np.complexfloating) else 0)).astype(dtype)
        for order in "CF":
            path = tmp_path / f"a{order}{np.dtype(dtype).name}.npy"
            np.save(path, np.asarray(array, order=order))
            same(show(lastbit, path, path.stem), array)
    np.save(tmp_path / "scalar.npy", np.float32(2.5))
    same(show(lastbit, tmp_path / "scalar.npy", "scalar"), np.float32(2.5))
    np.save(tmp_path / "empty.npy", np.zeros((0, 3), np.float32))
    assert show(lastbit, tmp_path / "empty.npy", "empty")["shape"] == [0, 3]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(lastbit, tmp_path, save):
    arrays = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "layer.b": np.full(7, -1, np.int64), "big": np.arange(200000.0)}
    save(tmp_path / "x.npz", **arrays)
    for name, array in arrays.items():
        same(show(lastbit, tmp_path / "x.npz", name), array[:100000] if name != "big" else array) if name != "big" else None
    listed = lastbit.json("ls", tmp_path / "x.npz", "--values", expect=0)["programs"][0]["value_list"]
    assert {v["name"]: v["shape"] for v in listed} == {name: list(array.shape) for name, array in arrays.items()}
    assert show(lastbit, tmp_path / "x.npz", "big")["statistics"]["sum"] == arrays["big"].sum()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_beside_whose_numbers_stand_texts_dates_and_objects(lastbit, tmp_path, save):
    other = {
        "texts": np.array(["a", "bcd"]),
        "raw": np.array([b"x", b"yz"]),
        "when": np.datetime64("2024-01-01"),
        "any": np.array([{}, 1], dtype=object),
    }
    numbers = {"w": np.arange(6, dtype=np.float32), "step": np.int64(3)}
    save(tmp_path / "x.npz", **other, **numbers)
    answer = lastbit.json("audit", tmp_path / "x.npz", expect=0)
    assert answer["tensors"] == 2 and answer["findings"] == []
    save(tmp_path / "x.npz", **other)
    assert "no array of numbers" in lastbit.run("audit", tmp_path / "x.npz", expect=125).stderr


def test_objects_are_not_unpickled(lastbit, tmp_path):
    np.save(tmp_path / "o.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    np.save(tmp_path / "r.npy", np.zeros(3, dtype=[("a", "<f4"), ("b", "<i2")]))
    np.save(tmp_path / "e.npy", np.zeros(3, dtype=">f4"))
    for name in "ore":
        done = lastbit.run("ls", tmp_path / f"{name}.npy", expect=125)
        assert f"{name}.npy" in done.stderr


def tensors():
    torch.manual_seed(0)
    out = {}
    for i, name in enumerate(TORCH):
        x = torch.randn(4, 6) * 3
        out[f"model.layers.{i}.weight"] = (x > 0) if name == "bool" else x.to(getattr(torch, name))
    return out


def check_tensors(lastbit, path):
    for name, tensor in tensors().items():
        same(show(lastbit, path, name), tensor.to(torch.float64).numpy())


def test_safetensors_single(lastbit, tmp_path):
    save_file(tensors(), tmp_path / "m.safetensors", metadata={"format": "pt"})
    check_tensors(lastbit, tmp_path / "m.safetensors")
    layers = lastbit.json("ls", tmp_path / "m.safetensors", "--layers", expect=0)["programs"][0]["layers"]
    assert "model.layers.3" in {layer["layer"] for layer in layers}


def test_safetensors_sharded_by_index_and_by_folder(lastbit, tmp_path):
    both = tensors()
    names = sorted(both)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: both[name] for name in held}, tmp_path / file)
    index = {"metadata": {}, "weight_map": {name: file for file, held in shards.items() for name in held}}
    check_tensors(lastbit, tmp_path)  # no index: every file of the folder
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    check_tensors(lastbit, tmp_path / "model.safetensors.index.json")
    check_tensors(lastbit, tmp_path)
    index["weight_map"]["absent"] = "model-1.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "tensor 'absent': weight_map: is in no shard" in lastbit.run("ls", tmp_path, expect=128).stderr
    index["weight_map"]["absent"] = "../../etc/passwd"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "is not a file name in this folder" in lastbit.run("ls", tmp_path, expect=128).stderr


# ---- what torch.save and torch.distributed.checkpoint write ---------------------------------------------------------------


def names_of(lastbit, path):
    return {v["name"]: v["shape"] for v in lastbit.json("ls", path, "--values", expect=0)["programs"][0]["value_list"]}


def test_torch_save_of_every_dtype(lastbit, tmp_path):
    torch.save(tensors(), tmp_path / "m.pt")
    check_tensors(lastbit, tmp_path / "m.pt")


def test_torch_save_of_views_parameters_and_nested_states(lastbit, tmp_path):
    layer = torch.nn.Linear(6, 3)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.randn(2, 6)).sum().backward()
    optimizer.step()
    base = torch.arange(24.0).reshape(4, 6)
    torch.save(
        {
            "model": layer.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": 3,
            "note": "text",
            "nothing": None,
            "views": [base[1:3, ::2], base.t(), base[2], torch.tensor(2.5)],
            "parameter": layer.weight,
        },
        tmp_path / "all.pth",
    )
    same(show(lastbit, tmp_path / "all.pth", "model.weight"), layer.weight.detach().double().numpy())
    same(show(lastbit, tmp_path / "all.pth", "parameter"), layer.weight.detach().double().numpy())
    same(show(lastbit, tmp_path / "all.pth", "optimizer.state.0.exp_avg"), optimizer.state[layer.weight]["exp_avg"].double().numpy())
    for i, view in enumerate([base[1:3, ::2], base.t(), base[2], torch.tensor(2.5)]):
        same(show(lastbit, tmp_path / "all.pth", f"views.{i}"), view.double().numpy())


class Runs:
    def __reduce__(self):
        return print, ("executed",)


def test_what_torch_files_cannot_give_is_said(lastbit, tmp_path):
    torch.save({"w": torch.ones(2), "evil": Runs()}, tmp_path / "evil.pt")
    done = lastbit.run("ls", tmp_path / "evil.pt", expect=0)
    assert "executed" not in done.stdout + done.stderr
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    assert "state_dict()" in lastbit.run("ls", tmp_path / "module.pt", expect=125).stderr
    torch.save(tensors(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "save it again" in lastbit.run("ls", tmp_path / "old.pt", expect=125).stderr
    whole = (tmp_path / "evil.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[:-200])
    assert "cut.pt: offset" in lastbit.run("ls", tmp_path / "cut.pt", expect=128).stderr


def checkpoint_of(folder, state):
    import torch.distributed.checkpoint as checkpoint

    checkpoint.save(state, checkpoint_id=folder)


def test_distributed_checkpoint_of_one_process(lastbit, tmp_path):
    checkpoint_of(tmp_path / "ck", {"model": tensors(), "epoch": 3})
    for name, tensor in tensors().items():
        same(show(lastbit, tmp_path / "ck", f"model.{name}"), tensor.to(torch.float64).numpy())


def test_distributed_checkpoint_of_shards_is_whole_again(lastbit, tmp_path):
    """13 rows over two ranks: 7 and 6; against the file that one process saved."""
    program = tmp_path / "shards.py"
    program.write_text("""
import sys, time, torch, torch.distributed as dist, torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
whole = {"layer.rows": torch.randn(13, 7), "layer.columns": torch.randn(4, 5).bfloat16(), "layer.bias": torch.randn(3)}
sharded = {name: distribute_tensor(t, mesh, [Shard(dim)]) for (name, t), dim in zip(whole.items(), (0, 1, 0))}
checkpoint.save(sharded, checkpoint_id=sys.argv[1] + "/ck")
if dist.get_rank() == 0: torch.save(whole, sys.argv[1] + "/whole.pt")
dist.barrier()
time.sleep(0.2)                             # a gloo thread that lets go of a tensor while Python ends aborts the process
dist.destroy_process_group()
""")
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", program, tmp_path],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert len(list((tmp_path / "ck").glob("*.distcp"))) == 2
    assert names_of(lastbit, tmp_path / "ck") == {"layer.rows": [13, 7], "layer.columns": [4, 5], "layer.bias": [3]}
    assert lastbit.json("diff", tmp_path / "whole.pt", tmp_path / "ck", expect=0)["verdict"] == "identical"
    for name, tensor in torch.load(tmp_path / "whole.pt").items():
        same(show(lastbit, tmp_path / "ck", name), tensor.double().numpy())
    lost = sorted((tmp_path / "ck").glob("*.distcp"))[1]
    lost.unlink()
    assert lost.name in lastbit.run("ls", tmp_path / "ck", expect=128).stderr


def test_packed_weights_stay_themselves(lastbit, tmp_path):
    save_file(tensors(), tmp_path / "m.safetensors")
    lastbit.run("pack", tmp_path / "m.safetensors", "-o", tmp_path / "m.lbz", expect=0)
    check_tensors(lastbit, tmp_path / "m.lbz")


def test_npy_export_comes_back(lastbit, tmp_path):
    both = tensors()
    save_file(both, tmp_path / "m.safetensors")
    for i, name in enumerate(TORCH):
        path = tmp_path / f"{name}.npy"
        lastbit.run("show", tmp_path / "m.safetensors", "--name", f"model.layers.{i}.weight", "--npy", path, expect=0)
        array = np.load(path)
        assert np.array_equal(array.astype(np.float64), both[f"model.layers.{i}.weight"].to(torch.float64).numpy())
        same(show(lastbit, path, name), array)
    assert lastbit.run("show", tmp_path / "m.safetensors", "--value", "0", "--npy", tmp_path / "bool.npy").returncode == 128


HOSTILE = {
    "short": b"\x01\x00",
    "long header": struct.pack("<Q", 1 << 60) + b"{}",
    "no json": struct.pack("<Q", 5) + b"{{{{{",
    "no object": struct.pack("<Q", 2) + b"[]",
    "outside": None,
    "overflow": None,
    "too many dims": None,
    "negative": None,
    "size differs": None,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_lying_safetensors_are_refused_by_name_and_offset(lastbit, tmp_path, case):
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    entry.update(
        {
            "outside": {"data_offsets": [0, 1 << 40], "shape": [1 << 38]},
            "overflow": {"shape": [1 << 62, 1 << 62]},
            "too many dims": {"shape": [1] * 17},
            "negative": {"shape": [-2]},
            "size differs": {"shape": [3]},
        }.get(case, {})
    )
    header = json.dumps({"t": entry}).encode()
    data = HOSTILE[case] or struct.pack("<Q", len(header)) + header + bytes(8)
    (tmp_path / "x.safetensors").write_bytes(data)
    done = lastbit.run("ls", tmp_path / "x.safetensors", expect=128)
    assert "x.safetensors" in done.stderr and "offset" in done.stderr


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4611686018427387904), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,), }",
        "{'descr': '<f4', 'fortran_order': Fals",
        "",
        "{" * 50,
    ],
)
def test_lying_npy_is_refused(lastbit, tmp_path, header):
    text = header.encode() + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(16))
    done = lastbit.run("ls", tmp_path / "x.npy", expect=(125, 128))
    assert "x.npy" in done.stderr and "offset" in done.stderr


def test_ml_dtypes_saved_by_numpy_are_named_in_the_refusal(lastbit, tmp_path):
    np.save(tmp_path / "b.npy", np.zeros(3, ml_dtypes.bfloat16))
    assert "V2" in lastbit.run("ls", tmp_path / "b.npy", expect=125).stderr
