"""The stand-in accelerator (standin_accelerator.cpp): built once per version of its source and of torch, and made known to torch as the
device `standin`."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import subprocess
import types

import torch
from torch.utils._python_dispatch import TorchDispatchMode

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


class StandinGraph:
    """What is captured runs again on the same memory, below everything that could see it; the capture itself leaves all as it was."""

    def __init__(self):
        self.ops = []

    def capture_begin(self, pool=None, capture_error_mode="global"):
        self.before = {}
        self.mode = Capturing(self)
        self.mode.__enter__()
        StandinGraph.capturing = True

    def capture_end(self):
        StandinGraph.capturing = False
        self.mode.__exit__(None, None, None)
        with unseen():
            for storage, copy in self.before.values():
                storage.copy_(copy)
        del self.before, self.mode

    def replay(self):
        with unseen():
            for func, args, kwargs, results in self.ops:
                again = torch.utils._pytree.tree_leaves(func(*args, **kwargs))
                for now, result in zip(again, results):
                    if isinstance(now, torch.Tensor) and now.untyped_storage()._cdata != result.untyped_storage()._cdata:
                        result.copy_(now)

    capturing = False


@contextlib.contextmanager
def unseen():
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Python).add(torch._C.DispatchKey.PythonTLSSnapshot)
    with torch.no_grad(), torch._C._DisableTorchDispatch(), torch._C._ExcludeDispatchKeyGuard(keys):
        yield


class Capturing(TorchDispatchMode):
    def __init__(self, graph):
        super().__init__()
        self.graph = graph
        self.made = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        for t in given:
            storage = t.untyped_storage()
            if storage._cdata not in self.made | self.graph.before.keys():
                with unseen():
                    self.graph.before[storage._cdata] = storage, storage.clone()
        result = func(*args, **kwargs)
        results = torch.utils._pytree.tree_leaves(result)
        self.made |= {t.untyped_storage()._cdata for t in results if isinstance(t, torch.Tensor)} - self.graph.before.keys()
        with unseen():
            alias = [t.detach() if isinstance(t, torch.Tensor) else t for t in results]
        self.graph.ops.append((func, args, kwargs, alias))
        return result


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
    device.StandinGraph = StandinGraph
    device.is_current_stream_capturing = lambda: StandinGraph.capturing
    device.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return device


def load():
    torch.utils.rename_privateuse1_backend("standin")
    torch._register_device_module("standin", module())
    torch.ops.load_library(str(build()))
    torch.utils.generate_methods_for_privateuse1_backend()
