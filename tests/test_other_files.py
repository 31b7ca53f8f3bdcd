"""What stands in a stranger's folder under the name of a file that is looked for, and is none: a FIFO, which waits for a writer without an end, a
device, a folder, a link to itself. No command waits for it, or takes it for a finding that it is not."""

import json
import os
import shutil
import socket
import subprocess

import numpy as np
import pytest
from conftest import BUILD, ROOT
from safetensors.numpy import save_file

SECONDS = 30
ANSWERS = (0, 1, 125, 128)


def run(*words):
    done = subprocess.run([BUILD / "lastbit", *map(str, words)], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode in ANSWERS, (words, done.returncode, done.stderr)
    return done


def fifo(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def folder(path):
    path.mkdir()


def loop(path):
    path.symlink_to(path.name)


def listening(path):
    with socket.socket(socket.AF_UNIX) as it:
        where = os.getcwd()
        os.chdir(path.parent)  # a path of a socket is short
        it.bind(path.name)
        os.chdir(where)


OTHERS = [fifo, device, folder, loop, listening]


def weights(place):
    save_file({"model.layers.0.q.weight": np.ones((4, 4), np.float32)}, place / "model.safetensors")


def shard(place):
    weights(place)
    names = {"model.layers.0.q.weight": "model.safetensors", "model.layers.1.q.weight": "it"}
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return place / "it", [["ls", place], ["audit", place], ["fingerprint", place], ["diff", place, place / "model.safetensors"]]


def index(place):
    weights(place)
    return place / "model.safetensors.index.json", [["ls", place], ["audit", place], ["fingerprint", place]]


def side_file(name):
    def make(place):
        pair = {f"base_model.model.q.lora_{half}.weight": np.ones(shape, np.float32) for half, shape in (("A", (2, 4)), ("B", (4, 2)))}
        save_file(pair, place / "adapter_model.safetensors")
        return place / name, [["audit", place], ["audit", "--adapter", place], ["ls", place]]

    make.__name__ = name
    return make


def archive(place):
    run_folder = place / "run.lb"
    run_folder.mkdir()
    subprocess.run([BUILD / "lastbit", "recover", ROOT / "samples/clean.lbz", "-o", run_folder / "rank-00000.tar"], check=True, capture_output=True)
    other = place / "other.lb"
    shutil.copytree(run_folder, other)
    commands = [["ls", run_folder], ["verify", run_folder], ["diff", run_folder, other], ["recover", run_folder, "-o", place / "out"]]
    return run_folder / "rank-00001.tar", commands + [["pack", run_folder, "-o", place / "out.lbz"], ["ranks", run_folder]]


def ring(place):
    archive(place)
    return place / "run.lb" / "rank-00001.ring", [["ls", place / "run.lb"], ["recover", place / "run.lb", "-o", place / "out"]]


def events(place):
    (place / "train.jsonl").write_text("".join(f'{{"step": {i}, "loss": 1.0}}\n' for i in range(20)))
    return place / "events.out.tfevents.1.host", [["watch", place]]


def metadata(place):
    return place / ".metadata", [["ls", place], ["audit", place]]


def alone(place):
    it = place / "it.safetensors"
    return it, [["ls", it], ["audit", it], ["show", it], ["verify", it], ["fingerprint", it], ["diff", it, it], ["pack", it, "-o", place / "out"]]


PLACES = [shard, index, archive, ring, events, metadata, alone]
PLACES += [side_file(name) for name in ("adapter_config.json", "config.json", "trainer_state.json", "adapter_model.bin")]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.__name__)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_nothing_waits_for_what_is_no_file(tmp_path, place, other):
    path, commands = place(tmp_path)
    if path.exists():
        path.unlink()
    other(path)
    for words in commands:
        run(*words)
