"""Storages that others than recorded ops write to, empty or move: NumPy, DLPack, shared memory, FSDP."""

import torch


class Escapes:
    def __init__(self, session):
        self.session = session

    def install(self):
        """Storages shared with NumPy or through DLPack may be written by code that is not recorded: they are checked at each use."""
        escapes = self

        def outgoing(method):
            def escape(tensor, *args, **kwargs):
                escapes.escaped(tensor)
                result = method(tensor, *args, **kwargs)
                escapes.escaped(tensor, filled=True)
                return result

            return escape

        def incoming(function):
            def arrive(*args, **kwargs):
                tensor = function(*args, **kwargs)
                escapes.escaped(tensor)
                return tensor

            return arrive

        def resizing(method):
            def resize_(storage, size):
                escapes.settle(storage)
                result = method(storage, size)
                escapes.resized(storage)
                return result

            return resize_

        def moving(method):
            def move(storage, *args, **kwargs):
                escapes.settle(storage)
                result = method(storage, *args, **kwargs)
                escapes.settle(None)  # sharing copies into a storage made for it, and then the two change places
                return result

            return move

        self.session.replace(torch.UntypedStorage, "resize_", resizing)
        for name in ("share_memory_", "_share_fd_cpu_", "_share_filename_cpu_", "copy_", "fill_", "byteswap"):
            self.session.replace(torch.UntypedStorage, name, moving)
        for name in ("numpy", "__array__", "__dlpack__"):
            self.session.replace(torch.Tensor, name, outgoing)
        for name in ("from_numpy", "from_dlpack", "frombuffer"):
            self.session.replace(torch, name, incoming)

    def settle(self, storage):
        """Another thread may be reading these bytes: not any more when this returns."""
        s = self.session
        if torch.compiler.is_compiling() or s.dead or not s.opened:
            return
        try:
            s.native.settle_bytes(storage)
        except Exception:
            pass  # no storage of the host's

    def resized(self, storage):
        """FSDP2 empties the storage of gathered parameters and fills it anew, often at the same address."""
        s = self.session
        if torch.compiler.is_compiling() or s.dead or not s.opened:
            return
        try:
            s.native.resized(storage, storage.data_ptr(), storage.nbytes())
        except Exception:
            pass  # no storage of the host's

    def escaped(self, tensor, filled=False):
        """`filled`: it is out, and what was never written may be from now on."""
        s = self.session
        if torch.compiler.is_compiling() or s.dead or not s.opened:
            return
        try:
            (s.native.vouch if filled else s.native.escaped)(tensor)
        except Exception:
            pass  # no storage: sparse, fake …
