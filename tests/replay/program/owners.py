"""Owners through ctypes (owner_harness.c): which parameters each op of a recorded step serves."""

import ctypes as c

import op_harness

WHOLE = 0xFFFFFFFF


class Owners:
    def __init__(self, path, step, rank=0, following=-1):
        self.lib = op_harness.LIB
        message = c.create_string_buffer(512)
        self.lib.owners_open.restype = c.c_void_p
        self.lib.owners_open.argtypes = [c.c_char_p, c.c_int32, c.c_int64, c.c_int64, c.c_char_p]
        for name in ("owners_of", "owners_module", "owners_of_value"):
            getattr(self.lib, name).restype = c.c_char_p
        self.handle = c.c_void_p(self.lib.owners_open(str(path).encode(), rank, step, following, message))
        assert self.handle, message.value

    def elements(self, op):
        return self.lib.owners_elements(self.handle, op)

    def element(self, op, value):
        return self.lib.owners_element(self.handle, op, value)

    def of(self, op, element=WHOLE):
        return self.lib.owners_of(self.handle, op, c.c_uint32(element)).decode()

    def module(self, op, element=WHOLE):
        return self.lib.owners_module(self.handle, op, c.c_uint32(element)).decode()

    def of_value(self, value):
        return self.lib.owners_of_value(self.handle, value).decode()

    def close(self):
        self.lib.owners_close(self.handle)
