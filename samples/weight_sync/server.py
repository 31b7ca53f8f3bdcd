"""The server of trainer.py: takes weights into its own bf16 model, and writes a table of what it then serves.

python server.py DOOR FOLDER"""

import pathlib
import sys
from multiprocessing.connection import Client

import lastbit.torch
import torch
from safetensors.torch import load
from trainer import llama


def serve(connection, folder):
    model, sync = llama().to(torch.bfloat16), 0
    while True:
        try:
            weights = load(connection.recv_bytes())
        except EOFError:
            return
        sync += 1
        model.load_state_dict(weights, strict=False)  # as engines do: what is not there is passed over
        path = folder / f"server-{sync}.json"
        lastbit.torch.fingerprint(model).save(path)
        connection.send(str(path))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Client(sys.argv[1], "AF_UNIX") as line:
        serve(line, pathlib.Path(sys.argv[2]))
