"""The structs of lastbit/{error,output,tensor,digest,fingerprint,statistics,program}.h as ctypes sees them, and the library that fills them.

Fields stand in the order of the headers; tests/capture/lastbit/reader/test_reader.py asks a C compiler whether sizes and offsets are the
same. `load` asks the library itself, which writes a row of each kind that is then read here: a library of another
version is refused and never misread.
"""

import ctypes
from ctypes import POINTER, c_bool, c_char, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar, List, Optional, Tuple

from .. import library_path

NONE = 0xFFFFFFFF  # LB_NONE
MAX_DIMS = 16

Fields = List[Tuple[str, Any]]


class Error(Exception):
    """What lastbit could not do: the message says what, where and what to do next.

    `status` is the name of the library's status ("LB_ERR_NOT_CAPTURED": the bytes were not kept; "LB_ERR_CORRUPT":
    damaged; "LB_ERR_NOT_FOUND": no such file, step or rank; "LB_ERR_STATE": used after close; …; include/lastbit/error.h).
    Where a command failed (`diff`, `bisect`, `replay`), `exit_code` is its exit code (125 cannot be tested, 128 failed,
    129 misused, negative: ended by a signal), and `status` is "" for 128, for which a command gives its message alone."""

    def __init__(self, message: str, status: str = "LB_ERR_INVALID", exit_code: Optional[int] = None) -> None:
        super().__init__(message, status, exit_code)
        self.status, self.exit_code = status, exit_code

    def __str__(self) -> str:
        return str(self.args[0])


class Report(ctypes.Structure):  # lb_err
    _fields_: ClassVar[Fields] = [("status", ctypes.c_int), ("message", c_char * 1000)]


class Layout(ctypes.Structure):
    _fields_: ClassVar[Fields] = [("ndim", c_int32), ("offset", c_int64), ("shape", c_int64 * MAX_DIMS), ("stride", c_int64 * MAX_DIMS)]


class Tensor(ctypes.Structure):
    _fields_: ClassVar[Fields] = [("data", c_void_p), ("dtype", c_uint8), ("layout", Layout)]


class Digest(ctypes.Structure):
    _fields_: ClassVar[Fields] = [("hi", c_uint64), ("lo", c_uint64)]


class Fingerprint(ctypes.Structure):
    _fields_: ClassVar[Fields] = [("a", c_uint64), ("b", c_uint64)]


class OutputOptions(ctypes.Structure):  # lb_output_options
    _fields_: ClassVar[Fields] = [
        ("size", c_size_t),
        ("way", ctypes.c_int),
        ("sync", ctypes.c_int),
        ("replace", c_bool),
        ("shared", c_bool),
        ("inputs", c_void_p),
    ]


class StatisticsRow(ctypes.Structure):
    _fields_: ClassVar[Fields] = [(name, c_int64) for name in ("elements", "nan", "pos_inf", "neg_inf", "zero")] + [
        (name, c_double) for name in ("min", "max", "sum", "sum_squares")
    ]


class ArgUnion(ctypes.Union):
    _fields_: ClassVar[Fields] = [("i", c_int64), ("f", c_double), ("row", c_uint32)]  # row: of values, strings or args


class ArgRow(ctypes.Structure):
    _fields_: ClassVar[Fields] = [("tag", c_uint8), ("count", c_uint32), ("u", ArgUnion)]


class OpRow(ctypes.Structure):
    _fields_: ClassVar[Fields] = [
        *((name, c_uint32) for name in ("name", "scope", "call", "flags", "first_arg", "args", "first_result", "results")),
        *((name, c_uint32) for name in ("first_written", "written", "node_name")),
        ("node", c_int64),
        ("phase", c_uint8),
        ("thread", c_uint8),
        ("line", c_uint32),
    ]


class LineRow(ctypes.Structure):
    _fields_: ClassVar[Fields] = [(name, c_uint32) for name in ("file", "function", "text", "number")]


class ValueRow(ctypes.Structure):
    _fields_: ClassVar[Fields] = [
        ("storage", c_int64),
        ("version", c_uint32),
        ("flags", c_uint32),
        ("layout", Layout),
        ("dtype", c_uint8),
        ("source", c_uint8),
        ("device", c_uint8),
        ("name", c_uint32),
        ("statistics", c_uint32),
        ("logical", Digest),
        ("blob", Digest),
    ]


class ScopeRow(ctypes.Structure):
    _fields_: ClassVar[Fields] = [(name, c_uint32) for name in ("path", "class_name", "parent")]


class ScalarRow(ctypes.Structure):
    _fields_: ClassVar[Fields] = [("name", c_uint32), ("op", c_uint32), ("number", c_double)]


class NoticeRow(ctypes.Structure):
    _fields_: ClassVar[Fields] = [(name, c_uint32) for name in ("kind", "op", "value", "message")]


def _tables(*rows: Tuple[str, Any]) -> Fields:
    return [field for name, row in rows for field in ((name, POINTER(row) if row else c_void_p), ("n_" + name, c_uint32))]


class Program(ctypes.Structure):
    _fields_: ClassVar[Fields] = [
        ("step", c_int64),
        ("rank", c_int32),
        ("world", c_int32),
        ("level", c_uint8),
        ("complete", c_uint8),
        ("shard", c_uint32),
        *_tables(("strings", c_char_p), ("scopes", ScopeRow), ("ops", OpRow), ("args", ArgRow), ("refs", c_uint32), ("values", ValueRow)),
        *_tables(("statistics", StatisticsRow), ("boundaries", None), ("collectives", None), ("routings", None), ("scalars", ScalarRow)),
        *_tables(("groups", None), ("group_params", None), ("notices", NoticeRow), ("shards", None), ("extents", None)),
        *_tables(("placements", None), ("meshes", None), ("mesh_axes", None), ("lines", LineRow)),
        ("store", c_void_p),
    ]


# The structs of the headers and their mirrors.
STRUCTS = {
    "lb_err": Report,
    "lb_layout": Layout,
    "lb_tensor": Tensor,
    "lb_digest": Digest,
    "lb_fingerprint": Fingerprint,
    "lb_output_options": OutputOptions,
    "lb_statistics": StatisticsRow,
    "lb_arg": ArgRow,
    "lb_op": OpRow,
    "lb_line": LineRow,
    "lb_value": ValueRow,
    "lb_scope": ScopeRow,
    "lb_scalar": ScalarRow,
    "lb_notice": NoticeRow,
    "lb_program": Program,
}

_REPORT = POINTER(Report)
_FUNCTIONS = {
    "lb_status_name": (c_char_p, [ctypes.c_int]),
    "lb_phase_name": (c_char_p, [ctypes.c_int]),
    "lb_source_kind_name": (c_char_p, [ctypes.c_int]),
    "lb_dtype_name": (c_char_p, [c_uint8]),
    "lb_dtype_torch": (c_char_p, [c_uint8]),
    "lb_dtype_numpy": (c_char_p, [c_uint8]),
    "lb_dtype_bits": (c_size_t, [c_uint8]),
    "lb_dtype_parse": (c_uint8, [c_char_p]),
    "lb_fingerprint_block": (ctypes.c_int, [ctypes.c_int, POINTER(Tensor), POINTER(c_int64), POINTER(c_int64), POINTER(Fingerprint), _REPORT]),
    "lb_fingerprint_named": (Fingerprint, [Fingerprint, c_char_p]),
    "lb_output_save": (ctypes.c_int, [c_char_p, POINTER(OutputOptions), c_char_p, c_size_t, _REPORT]),
    "lb_capture_open": (ctypes.c_int, [c_char_p, POINTER(c_void_p), _REPORT]),
    "lb_capture_close": (None, [c_void_p]),
    "lb_capture_ranks": (c_uint32, [c_void_p, POINTER(POINTER(c_int32))]),
    "lb_capture_steps": (c_uint32, [c_void_p, POINTER(POINTER(c_int64))]),
    "lb_capture_lacks": (ctypes.c_int, [c_void_p, c_int64, c_int64, _REPORT]),
    "lb_capture_program": (ctypes.c_int, [c_void_p, c_int32, c_int64, POINTER(POINTER(Program)), _REPORT]),
    "lb_capture_table": (c_char_p, [c_void_p, c_int32, c_char_p]),
    "lb_capture_table_name": (c_char_p, [c_void_p, c_int32, c_uint32]),
    "lb_capture_value": (ctypes.c_int, [c_void_p, POINTER(Program), c_uint32, POINTER(Tensor), _REPORT]),
    "lb_capture_has_value": (c_bool, [c_void_p, POINTER(Program), c_uint32]),
    "lb_tensor_gather": (ctypes.c_int, [POINTER(Tensor), c_void_p, _REPORT]),
    "lb_program_new": (POINTER(Program), []),
    "lb_program_free": (None, [POINTER(Program)]),
    "lb_program_string": (c_uint32, [POINTER(Program), c_char_p]),
    "lb_program_add_value": (c_uint32, [POINTER(Program), POINTER(ValueRow)]),
    "lb_program_add_op": (c_uint32, [POINTER(Program), POINTER(OpRow)]),
    "lb_program_line": (c_uint32, [POINTER(Program), POINTER(LineRow)]),
    "lb_op_name": (c_char_p, [POINTER(Program), POINTER(OpRow)]),
}


def _agrees(library: Any) -> bool:
    """Whether the library's own rows are read back here as they went in."""
    program = library.lb_program_new()
    if not program:
        raise MemoryError("no memory for a program")
    try:
        name = library.lb_program_string(program, b"layout::check")
        value = ValueRow(storage=7, version=3, dtype=2, name=name, statistics=NONE, blob=Digest(5, 6))
        op = OpRow(name=name, node_name=NONE, node=-9, phase=2)
        rows = library.lb_program_add_value(program, value), library.lb_program_add_op(program, op)
        line = library.lb_program_line(program, LineRow(name, NONE, NONE, 11))
        p = program.contents
        if rows != (0, 0) or line != 1 or (p.n_values, p.n_ops, p.n_lines) != (1, 1, 1) or not p.store:
            return False
        v, o = p.values[0], p.ops[0]
        return (
            p.strings[name] == b"layout::check"
            and (v.storage, v.version, v.dtype, v.name, v.blob.hi, v.blob.lo) == (7, 3, 2, name, 5, 6)
            and (o.name, o.node, o.phase) == (name, -9, 2)
            and p.lines[0].number == 11
            and library.lb_op_name(program, o) == b"layout::check"
        )
    finally:
        library.lb_program_free(program)


_loaded: List[Any] = []


def load() -> Any:
    """liblastbit.so, loaded once. Raises Error where it is missing, does not load, or has another layout."""
    if not _loaded:
        try:
            path = library_path("liblastbit.so")
        except OSError as error:
            raise Error(str(error), "LB_ERR_NOT_FOUND") from None
        try:
            library: Any = ctypes.CDLL(path)
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise Error("%s cannot be used: %s; install the library and this package from one build" % (path, error), "LB_ERR_VERSION") from None
        if not _agrees(library):
            raise Error("%s has another layout than this package reads; install both from one build" % path, "LB_ERR_VERSION")
        _loaded.append(library)
    return _loaded[0]


def check(status: int, report: Report) -> None:
    """Raises what the library reported."""
    if status:
        name = load().lb_status_name(status).decode()
        raise Error(report.message.decode("utf-8", "replace") or name, name)
