"""The C recorder, loaded by ctypes: one class, one method per call of capture/wire.h. No torch C++ ABI is involved."""
import ctypes
import os
from ctypes import c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

from .. import library_path

WHOLE, BEGIN, END, DEFER = 0, 1, 2, 3

NONE, VALUE, INT, FLOAT, BOOL, DTYPE, STRING, LIST, COMPLEX = range(9)

VIEW, MUTABLE, RANDOM, DECISION, UNDEFINED, RECOMPUTE, COLLECTIVE, COMPOSITE = (1 << n for n in range(8))

WRITTEN, OVERWRITTEN, INT_MEANS_FLOAT = 1, 2, 128

FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, OTHER = range(5)

PARAMETER, STATE, BATCH, OTHER_SOURCE = 1, 2, 3, 9
IS_PARAMETER, IS_GRADIENT, IS_STATE, IS_INPUT = 1 << 3, 1 << 4, 1 << 5, 1 << 6

_SIGNATURES = {
    "lb_wire_new": (c_void_p, []),
    "lb_wire_free": (None, [c_void_p]),
    "lb_wire_message": (c_char_p, [c_void_p]),
    "lb_wire_open": (c_int, [c_void_p, c_char_p, c_char_p, c_int, c_int, c_char_p, c_char_p, c_uint64, c_uint32, c_uint64, c_int]),
    "lb_wire_close": (c_int, [c_void_p]),
    "lb_wire_abandon": (None, [c_void_p]),
    "lb_wire_recorder": (c_void_p, [c_void_p]),
    "lb_wire_string": (c_int64, [c_void_p, c_char_p]),
    "lb_wire_function": (c_int64, [c_void_p, c_char_p, c_uint32, c_char_p, c_uint32]),
    "lb_wire_op": (c_int64, [c_void_p, c_int, c_int64, c_char_p, c_size_t]),
    "lb_wire_failed": (None, [c_void_p, c_int64]),
    "lb_wire_enter": (c_int64, [c_void_p, c_uint32, c_int, c_char_p, c_size_t]),
    "lb_wire_leave": (c_int, [c_void_p, c_uint32, c_uint32, c_int, c_char_p, c_size_t]),
    "lb_wire_role": (c_int, [c_void_p, c_int, c_uint32, c_char_p, c_char_p, c_size_t]),
    "lb_wire_routing": (c_int, [c_void_p, c_uint32, c_uint32, c_char_p, c_size_t]),
    "lb_wire_collective": (c_int, [c_void_p, c_int64, c_char_p, c_char_p, c_uint64, c_void_p, c_uint32]),
    "lb_wire_group": (c_int, [c_void_p, c_char_p, c_uint32, c_uint32, c_char_p, c_size_t]),
    "lb_wire_step_begin": (c_int, [c_void_p, c_int64, c_char_p]),
    "lb_wire_step_end": (c_int, [c_void_p, c_int]),
    "lb_wire_scalar": (c_int, [c_void_p, c_char_p, c_double]),
    "lb_wire_notice": (c_int, [c_void_p, c_char_p, c_char_p]),
    "lb_wire_table": (c_int, [c_void_p, c_char_p, c_char_p]),
    "lb_wire_trigger": (c_int, [c_void_p, c_char_p]),
    "lb_wire_forget": (None, [c_void_p, c_char_p, c_size_t]),
    "lb_recorder_scope": (c_uint32, [c_void_p, c_char_p, c_char_p, c_uint32]),
    "lb_recorder_step_skip": (None, [c_void_p]),
    "lb_recorder_next_op": (c_uint32, [c_void_p]),
    "lb_recorder_nonfinite": (c_uint64, [c_void_p]),
    "lb_recorder_stop": (None, [c_void_p, c_char_p]),
    "lb_recorder_bytes": (c_uint64, [c_void_p]),
    "lb_recorder_path": (c_char_p, [c_void_p]),
    "lb_recorder_escaped": (None, [c_void_p, c_int64]),
    "lb_dtype_parse": (ctypes.c_uint8, [c_char_p]),
}


class Failed(Exception):
    """The recorder refused; `status` is its lb_status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def load():
    library = ctypes.CDLL(library_path())
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


class Wire:
    """A recorder behind its wire. Calls release the GIL; every failure raises Failed."""

    def __init__(self):
        self.library = load()
        self.handle = self.library.lb_wire_new()
        if not self.handle:
            raise MemoryError("no memory for the recorder")
        self.recorder = None
        self.numbers = {}

    def check(self, status):
        if status < 0:
            raise Failed(status, self.library.lb_wire_message(self.handle).decode("utf-8", "replace"))
        return status

    def open(self, folder, rank, world, settings):
        self.check(
            self.library.lb_wire_open(
                self.handle, os.fsencode(folder), settings["level"].encode(), rank, world, settings["keep"].encode(),
                settings["layers"].encode(), settings["budget"], settings["ring"], 0, 0))
        self.recorder = self.library.lb_wire_recorder(self.handle)

    def close(self):
        if self.recorder:
            self.recorder = None
            self.check(self.library.lb_wire_close(self.handle))

    def abandon(self):
        self.recorder = None
        self.library.lb_wire_abandon(self.handle)

    def string(self, text):
        number = self.numbers.get(text)
        if number is None:
            number = self.numbers[text] = self.check(
                self.library.lb_wire_string(self.handle, text.replace("\0", "").encode("utf-8", "replace")))
        return number

    def function(self, name, flags, arg_flags):
        return self.check(self.library.lb_wire_function(self.handle, name.encode(), flags, bytes(arg_flags), len(arg_flags)))

    def scope(self, path, class_name, parent):
        return self.library.lb_recorder_scope(
            self.recorder, path.encode("utf-8", "replace"), class_name.encode("utf-8", "replace") if class_name else None, parent)

    def table(self, name, json_text):
        self.check(self.library.lb_wire_table(self.handle, name.encode(), json_text.encode("utf-8", "replace")))

    def notice(self, kind, message):
        self.check(self.library.lb_wire_notice(self.handle, kind.encode(), message.encode("utf-8", "replace")))
