"""The stand-in accelerator (standin_accelerator.cpp): built once per version of its source and of torch, and made known to torch as the
device `standin`."""

import fcntl
import hashlib
import os
import pathlib
import subprocess
import types

import torch

SOURCE = pathlib.Path(__file__).with_name("standin_accelerator.cpp")
FOLDER = SOURCE.parents[3] / "build" / "standin"


def build():
    """The library's path. Several processes may want it at once: one of them compiles."""
    version = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    path = FOLDER / f"libstandin-{version}.so"
    if path.exists():
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            compile_to(path)
    return path


def compile_to(path):
    torch_folder = pathlib.Path(torch.__file__).parent
    libraries = torch_folder / "lib"
    made = path.with_suffix(".part")
    command = ["g++", "-std=c++20", "-O0", "-fPIC", "-shared", f"-I{torch_folder / 'include'}", "-o", made, SOURCE]
    subprocess.run([*command, f"-L{libraries}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}"], check=True)
    os.replace(made, path)


def module():
    """What torch asks of `torch.standin`."""
    device = types.ModuleType("torch.standin")
    device.is_available = lambda: True
    device.device_count = lambda: 1
    device.current_device = lambda: 0
    device.set_device = lambda index: None
    device._is_in_bad_fork = lambda: False
    device.manual_seed_all = lambda seed: None  # draws come from the CPU's generator
    if os.environ.get("STANDIN_GENERATOR"):
        device.get_rng_state = lambda index: torch.get_rng_state()
    device.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return device


def load():
    torch.utils.rename_privateuse1_backend("standin")
    torch._register_device_module("standin", module())
    torch.ops.load_library(str(build()))
    torch.utils.generate_methods_for_privateuse1_backend()
