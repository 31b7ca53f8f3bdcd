"""make_corpus.py FOLDER: the first inputs of the fuzzers of foreign formats, as their own libraries write them."""

import json
import pathlib
import pickle
import sys
import tempfile
import zipfile

import gguf
import numpy as np
import torch
import torch.distributed.checkpoint as checkpoint
from safetensors.torch import save_file


def main(folder):
    for reader in ("npy", "npz", "safetensors", "gguf", "shards", "torch", "pickle", "distributed"):
        (folder / reader).mkdir(parents=True, exist_ok=True)
    for name, array in {
        "f4": np.arange(6, dtype="<f4").reshape(2, 3),
        "fortran": np.asfortranarray(np.ones((2, 3), "<f8")),
        "scalar": np.float16(2),
        "bool": np.array([True, False]),
        "complex": np.ones(2, "<c8"),
        "empty": np.zeros((0, 4), "<i8"),
    }.items():
        with open(folder / "npy" / name, "wb") as file:
            np.save(file, array)
    with open(folder / "npy" / "version2", "wb") as file:
        np.lib.format.write_array(file, np.ones(2, "<i4"), version=(2, 0))
    for name, save in {"stored": np.savez, "deflated": np.savez_compressed}.items():
        with open(folder / "npz" / name, "wb") as file:
            save(file, **{"w": np.arange(8, dtype="<f4"), "layer.b": np.zeros(40, "<i8")})
    tensors = {"model.layers.0.weight": torch.ones(2, 3, dtype=torch.bfloat16), "b": torch.zeros(0), "q": torch.ones(4).to(torch.float8_e4m3fn)}
    save_file(tensors, folder / "safetensors" / "three", metadata={"format": "pt"})
    save_file({"w": torch.ones(1)}, folder / "safetensors" / "one")
    (folder / "shards" / "index").write_text(json.dumps({"metadata": {"total_size": 8}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    (folder / "shards" / "outside").write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    gguf_file(folder / "gguf" / "pairs", quantised=False)
    gguf_file(folder / "gguf" / "quantised", quantised=True)
    torch_files(folder)


def gguf_file(path, quantised):
    writer, types = gguf.GGUFWriter(path, "llama"), gguf.GGMLQuantizationType
    writer.add_custom_alignment(32)
    writer.add_array("words", ["a", "bc"])
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_tensor("blk.0.attn_q.weight", np.arange(64, dtype=np.float32).reshape(2, 32))
    writer.add_tensor("h", np.ones(3, np.float16))
    if quantised:
        writer.add_tensor("q", gguf.quants.quantize(np.ones((1, 32), np.float32), types.Q4_0), raw_dtype=types.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def torch_files(folder):
    nested = {
        "model": {"w": torch.ones(2, 3), "t": torch.arange(6.0).reshape(2, 3).t(), "p": torch.nn.Parameter(torch.ones(2))},
        "step": 3,
        "list": [torch.zeros(2, dtype=torch.bfloat16), "text", None],
        7: torch.ones(2).to(torch.float8_e4m3fn),
    }
    torch.save(nested, folder / "torch" / "nested")
    torch.save(torch.ones(1), folder / "torch" / "one")
    torch.save({"w": torch.zeros(1).expand(10**12)}, folder / "torch" / "expanded")  # counting it never ended
    (folder / "pickle" / "nested").write_bytes(zipfile.ZipFile(folder / "torch" / "nested").read("nested/data.pkl"))
    (folder / "pickle" / "builtin").write_bytes(pickle.dumps([1, -2, 2**40, 2**70, 1.5, None, True, b"bytes", "text", (), (1,), {3}, {"k": "v"}], 4))
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint.save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "step": 3}, checkpoint_id=scratch)
        (folder / "parts.distcp").write_bytes(pathlib.Path(scratch, "__0_0.distcp").read_bytes())
        metadata = pathlib.Path(scratch, ".metadata").read_bytes()
    (folder / "distributed" / "whole").write_bytes(metadata)
    (folder / "pickle" / "metadata").write_bytes(metadata)
    described = pickle.loads(metadata)  # ours: `a` as two parts that are both the whole of it, one above the other
    part = next(index for index in described.storage_data if index.fqn == "a")
    described.state_dict_metadata["a"].size = torch.Size([4, 3])
    described.storage_data[type(part)(fqn="a", offset=torch.Size([2, 0]), index=1)] = described.storage_data[part]
    (folder / "distributed" / "joined").write_bytes(pickle.dumps(described, 4))


main(pathlib.Path(sys.argv[1]))
