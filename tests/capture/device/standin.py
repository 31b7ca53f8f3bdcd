"""The stand-in accelerator (standin_accelerator.cpp): built once per version of its source and of torch, and made known to torch as the
device `standin`."""

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import pathlib
import subprocess
import types

import torch

SOURCE = pathlib.Path(__file__).with_name("standin_accelerator.cpp")
SOURCES = SOURCE, *(SOURCE.with_name(f"standin_{name}.h") for name in ("stream", "on_driver", "device"))
FOLDER = SOURCE.parents[3] / "build" / "standin"


def build(driver=None):
    """The library's path. Several processes may want it at once: one of them compiles. `driver`: the folder of the stand-in driver of CUDA,
    whose device it is then (on_driver.py)."""
    made_of = b"".join(source.read_bytes() for source in SOURCES) + f"{torch.__version__} {driver}".encode()
    version = hashlib.sha256(made_of).hexdigest()[:16]
    path = FOLDER / f"libstandin-{version}.so"
    if path.exists():
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            compile_to(path, driver)
    return path


def compile_to(path, driver):
    torch_folder = pathlib.Path(torch.__file__).parent
    libraries = torch_folder / "lib"
    made = path.with_suffix(".part")
    command = ["g++", "-std=c++20", "-O0", "-fPIC", "-shared", f"-I{torch_folder / 'include'}", "-o", made, SOURCE]
    if driver:  # by its name it is torch's library for CUDA, as far as the recorder asks for one
        beside = ["-lstandin_device", "-Wl,--no-as-needed", "-l:libnvrtc.so.13", "-Wl,--as-needed"]
        command += ["-DSTANDIN_ON_DRIVER", "-Wl,-soname,libtorch_cuda.so", f"-L{driver}", *beside, f"-Wl,-rpath,{driver}"]
    subprocess.run([*command, f"-L{libraries}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}"], check=True)
    os.replace(made, path)


@functools.cache
def library():
    """Its C functions."""
    lib = ctypes.CDLL(os.environ.get("STANDIN_LIBRARY") or str(build()))
    lib.standin_error.restype, lib.standin_graph_new.restype = ctypes.c_char_p, ctypes.c_void_p
    if hasattr(lib, "standin_native_stream"):
        lib.standin_native_stream.restype, lib.standin_native_stream.argtypes = ctypes.c_void_p, (ctypes.c_int64,)
    lib.standin_pool.restype = lib.standin_used.restype = ctypes.c_uint64
    lib.standin_graph_begin.argtypes = ctypes.c_void_p, ctypes.c_uint64
    lib.standin_stand_still.argtypes = (ctypes.c_uint,)
    for of_a_graph in (lib.standin_graph_end, lib.standin_graph_replay, lib.standin_graph_free):
        of_a_graph.argtypes = (ctypes.c_void_p,)
    return lib


class BareGraph:
    """What is captured runs again on the same memory, below everything that could see it; the capture itself leaves all as it was."""

    def __init__(self):
        self.lib, self.made, self.shared = library(), None, None

    def check(self, answer):
        if answer:
            raise torch.AcceleratorError(self.lib.standin_error().decode())

    def capture_begin(self, pool=None, capture_error_mode="global"):
        self.reset()
        self.made, self.shared = self.lib.standin_graph_new(), pool or graph_pool_handle()
        self.check(self.lib.standin_graph_begin(self.made, self.shared[1]))

    def capture_end(self):
        self.check(self.lib.standin_graph_end(self.made))

    def replay(self):
        self.check(self.lib.standin_graph_replay(self.made))

    def pool(self):
        return self.shared

    def reset(self):
        if self.made is not None:
            self.lib.standin_graph_free(self.made)
        self.made = None

    def __del__(self):
        self.reset()


class StandinGraph(BareGraph):
    """As torch.cuda.CUDAGraph is: methods of its own around those of the class below it."""

    def capture_begin(self, pool=None, capture_error_mode="global"):
        super().capture_begin(pool=pool, capture_error_mode=capture_error_mode)

    def capture_end(self):
        super().capture_end()

    def replay(self):
        super().replay()

    def reset(self):
        super().reset()


def stand_still(milliseconds):
    """The device does nothing more until then; whoever waits for it waits."""
    library().standin_stand_still(milliseconds)


class Stream(torch.Stream):
    """As torch.cuda.Stream is: it tells which of the driver's it is, where there is a driver."""

    def __new__(cls, priority=0, **of):
        return super().__new__(cls, **of) if of else super().__new__(cls, device="standin")

    @property
    def standin_stream(self):
        native = getattr(library(), "standin_native_stream", None)
        return (native(self.stream_id) or 0) if native else 0


class Event(torch.Event):
    def __new__(cls, *_, **__):
        return super().__new__(cls, device="standin")


def current_stream(*_):
    now = torch.accelerator.current_stream()
    return Stream(stream_id=now.stream_id, device_index=now.device_index, device_type=now.device_type)


@contextlib.contextmanager
def on_stream(stream):
    """As torch.cuda.stream is."""
    before = torch.accelerator.current_stream()
    torch.accelerator.set_stream(stream or before)
    yield
    torch.accelerator.set_stream(before)


def graph_pool_handle():
    return 0, library().standin_pool()


class graph:
    """As torch.cuda.graph is."""

    def __init__(self, made, pool=None, stream=None, capture_error_mode="global"):
        self.made, self.options = made, dict(pool=pool, capture_error_mode=capture_error_mode)

    def __enter__(self):
        self.made.capture_begin(**self.options)

    def __exit__(self, *_):
        self.made.capture_end()


def module():
    """What torch asks of `torch.standin`."""
    device = types.ModuleType("torch.standin")
    device.is_available = lambda: True
    device.device_count = lambda: library().standin_devices()
    device.is_initialized = lambda: True
    device.current_device = torch.accelerator.current_device_index
    device.set_device = torch.accelerator.set_device_index
    device._is_in_bad_fork = lambda: False
    device.manual_seed_all = lambda seed: None  # draws come from the CPU's generator
    if os.environ.get("STANDIN_GENERATOR"):
        device.get_rng_state = lambda index: torch.get_rng_state()
    device.StandinGraph, device.graph, device.graph_pool_handle = StandinGraph, graph, graph_pool_handle
    device.is_current_stream_capturing = lambda: bool(library().standin_is_capturing())
    device.Stream, device.Event, device.stream, device.current_stream = Stream, Event, on_stream, current_stream
    device.empty_cache = lambda *_: None
    device.synchronize = lambda *_: library().standin_synchronize()
    device.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return device


def load():
    torch.utils.rename_privateuse1_backend("standin")
    torch._register_device_module("standin", module())
    if "STANDIN_LIBRARY" in os.environ:
        library().standin_be_cuda()
    else:
        torch.ops.load_library(str(build()))
    torch.utils.generate_methods_for_privateuse1_backend()
