"""make_corpus.py FOLDER: the first inputs of the fuzzers of foreign formats, as their own libraries write them."""
import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import save_file


def main(folder):
    for reader in ("npy", "npz", "safetensors", "shards"):
        (folder / reader).mkdir(parents=True, exist_ok=True)
    for name, array in {"f4": np.arange(6, dtype="<f4").reshape(2, 3), "fortran": np.asfortranarray(np.ones((2, 3), "<f8")),
                        "scalar": np.float16(2), "bool": np.array([True, False]), "complex": np.ones(2, "<c8"),
                        "empty": np.zeros((0, 4), "<i8")}.items():
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


main(pathlib.Path(sys.argv[1]))
