"""Bytes that lie on a device, copied by torch itself: right on every device that torch copies from (ROCm, XPU, MPS, PrivateUse1; CUDA
where our kernels cannot measure there), and slow, for the program waits at each value. The C recorder calls it, in the thread whose op it records and on that
thread's stream, so that what was queued before has run.

No mode, no transform and no autograd of the program sees these copies.
"""

import contextlib
import ctypes
import os
import sys
import time

import torch

from . import library

_HIDDEN = (
    "Python",
    "PythonTLSSnapshot",
    "PythonDispatcher",
    "FuncTorchDynamicLayerFrontMode",
    "FuncTorchDynamicLayerBackMode",
    "Functionalize",
    "ADInplaceOrView",
    "AutogradCPU",
    "AutogradCUDA",
    "AutogradXPU",
    "AutogradMPS",
    "AutogradPrivateUse1",
    "AutogradOther",
)


def _hidden():
    """The set of those that this torch has; None where it cannot be made."""
    keys = None
    for name in _HIDDEN:
        key = getattr(torch._C.DispatchKey, name, None)
        if key is not None:
            keys = torch._C.DispatchKeySet(key) if keys is None else keys.add(key)
    return keys


class Devices:
    def __init__(self):
        # What recording wraps is taken as it was, so that our own copies are recorded as no events.
        self.frombuffer = getattr(torch.frombuffer, "__wrapped__", torch.frombuffer)
        self.storage_of = torch.UntypedStorage._new_with_weak_ptr
        self.keys = _hidden()
        self.held = {}  # number -> a tensor of the device into which a graph copies bytes
        self.number = 0

    def next_number(self):
        return self.number + 1

    @contextlib.contextmanager
    def apart(self):
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch._C._ExcludeDispatchKeyGuard(self.keys):
            yield

    def copy(self, key, first, last, to):
        """Bytes [first, last) of the storage at the address `to`. 0: they are there; 1: not now."""
        storage = self.storage_of(key)
        if storage is None or is_capturing():
            return 1
        with self.apart():
            self.at(to, last - first).copy_(self.part(storage, first, last))
        return 0

    def part(self, storage, first, last):
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, first, (last - first,), (1,))

    def at(self, address, n):
        return self.frombuffer((ctypes.c_char * n).from_address(address), dtype=torch.uint8)

    def hold(self, key, first, last):
        """A number under which the graph that is being captured copies those bytes aside. Its memory is the graph's, and stays as long
        as that, whatever becomes of the recording: a replay writes there."""
        storage = self.storage_of(key)
        if storage is None:
            return 0
        with self.apart():
            self.held[self.number + 1] = self.part(storage, first, last).clone()
        self.number += 1
        return self.number

    def copy_held(self, number, n, to):
        with self.apart():
            self.at(to, n).copy_(self.held[number])
        return 0

    def wait_for_held(self):
        """What this thread has queued has run, where graphs copy values aside: the recorder fetches those with its locks held."""
        held = next((t for t in list(self.held.values()) if t.numel()), None)
        if held is not None and not is_capturing():
            with self.apart():
                held[:1].cpu()

    def let_go(self, number):
        self.held.pop(number, None)
        return 0

    def bytes_of(self, t):
        """Of a tensor of one element; None: not now."""
        storage, first, n = t.untyped_storage(), t.storage_offset() * t.element_size(), t.element_size()
        room = ctypes.create_string_buffer(n)
        return room.raw if self.copy(storage._cdata, first, first + n, ctypes.addressof(room)) == 0 else None


def present():
    """Devices that this process can use, as torch.device, the CPU first."""
    found = [torch.device("cpu")]
    kinds = ["cuda", "xpu", "mps", "mtia", "hpu", torch._C._get_privateuse1_backend_name()]
    for kind in kinds:
        module = getattr(torch, kind, None)
        try:
            if module is not None and module.is_available():
                count = module.device_count() if hasattr(module, "device_count") else 1
                found += [torch.device(kind, n) for n in range(count)]
        except Exception:
            pass  # it says that it is there, and is not
    return found


def generators():
    """{"generator:cuda:0": its state} of devices whose generator the program has started: seed and offset, as torch gives them."""
    found = {}
    for kind in ("cuda", "xpu", torch._C._get_privateuse1_backend_name()):
        module = getattr(torch, kind, None)
        try:
            if module is not None and hasattr(module, "get_rng_state") and getattr(module, "is_initialized", module.is_available)():
                states = {n: module.get_rng_state(n) for n in range(module.device_count())}
                found.update(("generator:%s:%d" % (kind, n), state) for n, state in states.items())
        except Exception:
            pass  # not now: a graph is being captured
    return found


def name_of(device):
    """What its maker calls it; None where torch does not say."""
    module = getattr(torch, device.type, None)
    try:
        return module.get_device_name(device.index) if hasattr(module, "get_device_name") else None
    except Exception:
        return None


def measured_where_they_lie(device):
    """By kernels of ours, behind the op that made them: on CUDA, where torch tells on which stream that is."""
    if device.type != "cuda" or torch.version.hip or os.environ.get("LASTBIT_CUDA") == "0":
        return False
    try:
        return hasattr(ctypes.CDLL("libtorch_cuda.so"), "aoti_torch_get_current_cuda_stream")
    except OSError:
        return False


def rate_of(device, size=32 << 20):
    """Bytes per second that are fetched from there (if need be) and digested by one thread."""
    t = torch.ones(size, dtype=torch.uint8, device=device)
    host = ctypes.create_string_buffer(size)
    digest = library.load().lb_digest_bytes
    digest.argtypes, digest.restype = (ctypes.c_void_p, ctypes.c_size_t), _Digest
    devices, key, best = Devices(), t.untyped_storage()._cdata, 0.0
    for _ in range(3):
        began = time.perf_counter()
        if device.type == "cpu":
            digest(t.data_ptr(), size)
        else:
            devices.copy(key, 0, size, ctypes.addressof(host))
            digest(ctypes.addressof(host), size)
        best = max(best, size / (time.perf_counter() - began))
    return best


def rate_where_they_lie(device):
    """Bytes per second that our kernels measure there. RuntimeError says why none are."""
    measure = library.load().lb_measuring_rate
    measure.argtypes, measure.restype = (ctypes.POINTER(ctypes.c_double), ctypes.POINTER(_Error)), ctypes.c_int
    rate, error = ctypes.c_double(), _Error()
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # its context is this thread's from now on
        status = measure(rate, error)
    if status != 0:
        raise RuntimeError(error.message.decode("utf-8", "replace"))
    return rate.value


def kernels_where_they_lie():
    """(whether there are kernels that measure on CUDA's devices, in words which, and what would compile others)."""
    say = library.load().lb_measuring_kernels
    say.argtypes, say.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_bool
    words = ctypes.create_string_buffer(2048)
    return say(words, len(words)), words.value.decode("utf-8", "replace")


class _Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 480)]


class _Digest(ctypes.Structure):
    _fields_ = [("high", ctypes.c_uint64), ("low", ctypes.c_uint64)]


def modules():
    """torch.cuda and its like, as far as they are loaded."""
    kinds = ("cuda", "xpu", torch._C._get_privateuse1_backend_name())
    return [module for module in (sys.modules.get("torch." + kind) for kind in kinds) if module is not None]


def is_capturing():
    """A graph is being captured on this thread's stream: a copy now would spoil it."""
    for module in modules():
        ask = getattr(module, "is_current_stream_capturing", None)
        if ask is not None and getattr(module, "is_initialized", lambda: True)() and ask():
            return True
    return False


def stream_of(module):
    """The address of the device's stream on which this thread queues."""
    current = getattr(module, "current_stream", None)
    return getattr(current(), module.__name__.rpartition(".")[2] + "_stream", 0) if current is not None else 0
