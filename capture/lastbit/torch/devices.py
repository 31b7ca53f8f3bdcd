"""Bytes that lie on a device, copied by torch itself: right on every device that torch copies from (CUDA, ROCm, XPU, MPS,
PrivateUse1), and slow, for the program waits at each value. The C recorder calls it, in the thread whose op it records and on that
thread's stream, so that what was queued before has run.

No mode, no transform and no autograd of the program sees these copies.
"""

import contextlib
import ctypes
import sys

import torch

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
        # What recording wraps is taken as it was, so that our own copies are nobody's events.
        self.frombuffer = getattr(torch.frombuffer, "__wrapped__", torch.frombuffer)
        self.storage_of = torch.UntypedStorage._new_with_weak_ptr
        self.keys = _hidden()

    @contextlib.contextmanager
    def apart(self):
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch._C._ExcludeDispatchKeyGuard(self.keys):
            yield

    def copy(self, key, first, last, to):
        """Bytes [first, last) of the storage at the address `to`. 0: they are there; 1: not now."""
        storage = self.storage_of(key)
        if storage is None or is_capturing():
            return 1
        n = last - first
        with self.apart():
            theirs = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, first, (n,), (1,))
            ours = self.frombuffer((ctypes.c_char * n).from_address(to), dtype=torch.uint8)
            ours.copy_(theirs)
        return 0

    def bytes_of(self, t):
        """Of a tensor of one element; None: not now."""
        storage, first, n = t.untyped_storage(), t.storage_offset() * t.element_size(), t.element_size()
        room = ctypes.create_string_buffer(n)
        return room.raw if self.copy(storage._cdata, first, first + n, ctypes.addressof(room)) == 0 else None


def is_capturing():
    """A graph is being captured on this thread's stream: a copy now would spoil it."""
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()
