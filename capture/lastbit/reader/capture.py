"""A capture that is open for reading: steps, ops and values as objects over the library's own rows.

Nothing is copied but what is asked for. What an object reads belongs to the capture's memory, which every step, op,
value and array holds: it goes when the last of them is gone, whatever the order, and never under an array. Reading is
safe from several threads, as the library's is. In a forked child the capture is read as in its parent.
"""

import ctypes
import json
import os
import weakref
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Generic,
    Iterator,
    List,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
    overload,
)

from . import arrays
from .answer import Answer, Option, Side, bisect, diff, replay
from .layout import NONE, Error, LineRow, OpRow, Program, Report, Tensor, ValueRow, check, load

if TYPE_CHECKING:
    from numpy import ndarray
    from torch import Tensor as TorchTensor

    NumpyArray = ndarray[Any, Any]
else:  # loading neither
    NumpyArray = TorchTensor = Any

LEVELS = ("stats", "sources", "layers", "ops")
DEVICES = ("cpu", "cuda", "other")
OP_FLAGS = ("view", "mutable", "random", "decision", "undefined", "recompute", "collective", "composite", "failed")
VALUE_FLAGS = ("source", "undefined", "kept", "parameter", "gradient", "state", "input", "conjugated", "negated")

Row = TypeVar("Row")
Argument = Union[None, int, float, bool, complex, str, "Value", Tuple[Any, ...]]


class DType(str):
    """The name of an element type where it is an argument of an op ("bf16"), which tells it from a string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DType(%s)" % super().__repr__()


class Statistics(NamedTuple):
    """Of a value's elements: counts, and numbers in f64 over the finite ones (none: min is inf and max is -inf)."""

    elements: int
    nan: int
    pos_inf: int
    neg_inf: int
    zero: int
    min: float
    max: float
    sum: float
    sum_squares: float


class Line(NamedTuple):
    """The line of the program's code that called an op. `function` and `text` are "" where they are not known."""

    file: str
    number: int
    function: str
    text: str


class Notice(NamedTuple):
    """Something that the recorder noticed: an unseen write, bytes over budget."""

    kind: str
    message: str
    op: Optional[int]
    value: Optional[int]


class Scalar(NamedTuple):
    """A number that the program said or an optimizer has ("loss", "lr.0"); `op`: index of the next op when it was seen."""

    name: str
    number: float
    op: int


class Memory:
    """The open capture of the library. It is closed when nothing refers to it any more."""

    def __init__(self, path: str) -> None:
        self.library = load()
        if "\0" in path:
            raise Error("%r holds a NUL character, which no path has" % path)
        handle, report = ctypes.c_void_p(), Report()
        check(self.library.lb_capture_open(os.fsencode(path), ctypes.byref(handle), ctypes.byref(report)), report)
        self.handle, self.path, self.closed = handle, path, False
        # At the end of the interpreter arrays may be read after this: the system takes the memory back.
        weakref.finalize(self, self.library.lb_capture_close, handle).atexit = False

    def get(self) -> Any:
        """The handle; raises Error after close."""
        if self.closed:
            raise Error("%s: the capture was closed; open it again, or read before its `with` block ends" % self.path, "LB_ERR_STATE")
        return self.handle


class Rows(Sequence[Row], Generic[Row]):
    """A table of a step: made row by row as it is read. IndexError for an index that is out of range."""

    __slots__ = ("_step", "_count", "_make", "_what")

    def __init__(self, step: "Step", count: int, make: Callable[["Step", int], Row], what: str) -> None:
        self._step, self._count, self._make, self._what = step, count, make, what

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Tuple[Row, ...]: ...
    def __getitem__(self, index: Union[int, slice]) -> Union[Row, Tuple[Row, ...]]:
        if isinstance(index, slice):
            return tuple(self._make(self._step, i) for i in range(*index.indices(self._count)))
        row = index + self._count if index < 0 else index
        if not 0 <= row < self._count:
            raise IndexError("step %d of rank %d has %d %s, no %s" % (self._step.number, self._step.rank, self._count, self._what, index))
        return self._make(self._step, row)

    def __iter__(self) -> Iterator[Row]:
        return (self._make(self._step, i) for i in range(self._count))

    def __repr__(self) -> str:
        return "<%d %s of step %d>" % (self._count, self._what, self._step.number)


class _Part:
    """An op or a value: a row of a step."""

    __slots__ = ("step", "index", "_row")
    step: "Step"
    index: int

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, _Part) and self.index == other.index and self.step == other.step

    def __hash__(self) -> int:
        return hash((type(self), self.step, self.index))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a part of an open capture cannot be copied or sent; send the capture's path, step and index")


class Value(_Part):
    """The contents of a tensor at one moment: a window on version `version` of storage `storage`.

    value = op.results[0]
    value.dtype, value.shape          # "bf16", (4, 16)
    if value.kept: value.torch()      # its elements"""

    __slots__ = ()
    _row: ValueRow

    def __init__(self, step: "Step", index: int) -> None:
        self.step, self.index, self._row = step, index, step._get().values[index]

    def _get(self) -> ValueRow:
        self.step.memory.get()
        return self._row

    @property
    def storage(self) -> int:
        """Number of the storage, the same across the steps of one rank."""
        return int(self._get().storage)

    @property
    def version(self) -> int:
        """How often the storage had been written."""
        return int(self._get().version)

    @property
    def dtype(self) -> str:
        """lastbit's name of the element type: "f32", "bf16", "e4m3fn", "i64", "bool"."""
        return str(self.step.memory.library.lb_dtype_name(self._get().dtype).decode())

    @property
    def shape(self) -> Tuple[int, ...]:
        """Elements along each dimension; () of a 0-dimensional tensor, which has one element."""
        layout = self._get().layout
        return tuple(layout.shape[: layout.ndim])

    @property
    def strides(self) -> Tuple[int, ...]:
        """Of each dimension, in elements (not bytes)."""
        layout = self._get().layout
        return tuple(layout.stride[: layout.ndim])

    @property
    def offset(self) -> int:
        """Elements from the start of the storage to the first one."""
        return int(self._get().layout.offset)

    @property
    def name(self) -> str:
        """The parameter's name, "optimizer.exp_avg:NAME", …; "" for none."""
        return self.step._text(self._get().name)

    @property
    def device(self) -> str:
        """Where it lived in the program: "cpu", "cuda" or "other"."""
        return DEVICES[min(self._get().device, 2)]

    @property
    def source(self) -> str:
        """What kind of source it is ("parameter", "batch", "random", …); "" where replay can compute it."""
        kind = self._get().source
        return str(self.step.memory.library.lb_source_kind_name(kind).decode()) if kind else ""

    @property
    def flags(self) -> Tuple[str, ...]:
        """Which of VALUE_FLAGS it has: "parameter", "gradient", "state", "input", "undefined", "conjugated", …"""
        return _flags(VALUE_FLAGS, self._get().flags)

    @property
    def digest(self) -> Optional[str]:
        """Of the elements in row-major order with dtype and shape, 32 hexadecimal digits; None where none was taken."""
        digest = self._get().logical
        return "%016x%016x" % (digest.hi, digest.lo) if digest.hi or digest.lo else None

    @property
    def statistics(self) -> Optional[Statistics]:
        """Counts and sums of the elements; None where none were taken."""
        row = self._get().statistics
        if row == NONE:
            return None
        found = self.step._get().statistics[row]
        return Statistics(*(getattr(found, name) for name in Statistics._fields))

    @property
    def kept(self) -> bool:
        """Whether its bytes were kept (by its level, or in a kept value that contains it), so that it has elements."""
        memory = self.step.memory
        return bool(memory.library.lb_capture_has_value(memory.get(), self.step._get(), self.index))

    def _tensor(self) -> Tensor:
        tensor, report, memory = Tensor(), Report(), self.step.memory
        arguments = (memory.get(), self.step._get(), self.index, ctypes.byref(tensor), ctypes.byref(report))
        check(memory.library.lb_capture_value(*arguments), report)
        return tensor

    def numpy(self) -> NumpyArray:
        """The elements as a read-only NumPy array over the capture's memory, in this shape, without a copy.

        The dtype is NumPy's own where it has one (f64 f32 f16, complex, integers, bool). It has none for bf16, the
        8-bit floats and c32: such an array has a field of that name that holds the bits (`array["bf16"]` is uint16,
        `array["e4m3fn"]` uint8; c32 has the fields "real" and "imag", f2), so that no bits pass for numbers; `torch()`
        has the numbers. The array stays valid after close. A value that the program saw conjugated or negated (`flags`) is here as its
        elements lie. Raises Error: the bytes were not kept, are damaged, or are of e2m1 (`tobytes()` has those)."""
        array: NumpyArray = arrays.numpy_array(self, self._tensor())
        return array

    def torch(self, copy: bool = False) -> TorchTensor:
        """The elements as a torch tensor of the same dtype, shape and strides, on the CPU.

        Without `copy` it lies in the capture's memory, which is read-only: reading is free, and an op that writes to
        the tensor ends the process with SIGSEGV; `copy=True` gives a tensor of its own that may be written. It
        stays valid after close. Negative strides, which torch has not, are copied. Raises Error as `numpy` does."""
        return arrays.torch_tensor(self, self._tensor(), copy)

    def tobytes(self) -> bytes:
        """A copy of the elements in row-major order, little-endian, bits untouched; two elements of e2m1 to a byte."""
        return arrays.gathered(self, self._tensor())

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> NumpyArray:
        """What `numpy.asarray(value)` gives."""
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError("a value of %s is not an array of %s without a copy" % (self.dtype, dtype))
            array = array.astype(dtype)
        elif copy:
            array = array.copy()
        return array

    def __repr__(self) -> str:
        return "<Value %d%s: %s %s>" % (self.index, " " + self.name if self.name else "", self.dtype, list(self.shape))


class Op(_Part):
    """One executed operator, with what it read, gave and wrote."""

    __slots__ = ()
    _row: OpRow

    def __init__(self, step: "Step", index: int) -> None:
        self.step, self.index, self._row = step, index, step._get().ops[index]

    def _get(self) -> OpRow:
        self.step.memory.get()
        return self._row

    @property
    def name(self) -> str:
        """With its overload: "aten::add.Tensor"; "lb::source" gives a value that no op computes."""
        return self.step._text(self._get().name)

    @property
    def layer(self) -> str:
        """The path of the innermost module that it ran in; "" outside every module."""
        return self.step._text(self.step._get().scopes[self._get().scope].path)

    @property
    def class_name(self) -> str:
        """The class of that module; "" where it is not known."""
        return self.step._text(self.step._get().scopes[self._get().scope].class_name)

    @property
    def call(self) -> int:
        """Which call of that module in the step, from 0."""
        return int(self._get().call)

    @property
    def phase(self) -> str:
        """ "forward", "backward", "optimizer", "communication" or "other"."""
        return str(self.step.memory.library.lb_phase_name(self._get().phase).decode())

    @property
    def flags(self) -> Tuple[str, ...]:
        """Which of OP_FLAGS it has: "view", "mutable", "random", "collective", …"""
        return _flags(OP_FLAGS, self._get().flags)

    @property
    def node(self) -> str:
        """The autograd node that was running ("MmBackward0"); "" for none."""
        return self.step._text(self._get().node_name)

    @property
    def thread(self) -> int:
        """0: the program's main thread."""
        return int(self._get().thread)

    @property
    def line(self) -> Optional[Line]:
        """The line of code that called it (of a backward op: that called its forward op); None where it is not known."""
        row = self._get().line
        if not row:
            return None
        line: LineRow = self.step._get().lines[row - 1]
        return Line(self.step._text(line.file), int(line.number), self.step._text(line.function), self.step._text(line.text))

    @property
    def arguments(self) -> Tuple[Argument, ...]:
        """In the order of the op's schema with defaults filled in: Value, int, float, bool, complex, str, DType, None,
        and tuples of these."""
        op = self._get()
        return self.step._arguments(op.first_arg, op.args)

    @property
    def inputs(self) -> Tuple[Value, ...]:
        """The values among the arguments, tuples entered, in order."""
        return tuple(_values(self.arguments))

    @property
    def results(self) -> Tuple[Optional[Value], ...]:
        """What it returned; None for a result that is missing."""
        op = self._get()
        return self.step._values(op.first_result, op.results)

    @property
    def written(self) -> Tuple[Optional[Value], ...]:
        """What it wrote in place, each in its new version."""
        op = self._get()
        return self.step._values(op.first_written, op.written)

    def __repr__(self) -> str:
        return "<Op %d %s%s>" % (self.index, self.layer + " " if self.layer else "", self.name)


class Step:
    """What one rank executed in one step. `ops` and `values` are sequences; ops stand in the order of execution."""

    __slots__ = ("memory", "number", "rank", "_program", "_strings")

    def __init__(self, memory: Memory, rank: int, number: int) -> None:
        program, report = ctypes.POINTER(Program)(), Report()
        arguments = (memory.get(), rank, number, ctypes.byref(program), ctypes.byref(report))
        check(memory.library.lb_capture_program(*arguments), report)
        self.memory, self.number, self.rank = memory, number, rank
        self._program: Program = program.contents
        self._strings: Dict[int, str] = {}

    def _get(self) -> Program:
        self.memory.get()
        return self._program

    @property
    def world(self) -> int:
        """Number of ranks of the run."""
        return int(self._get().world)

    @property
    def level(self) -> str:
        """What was kept: "stats", "sources", "layers" or "ops"."""
        return LEVELS[self._get().level & 3]

    @property
    def complete(self) -> bool:
        """Whether the step was closed in order."""
        return bool(self._get().complete)

    @property
    def ops(self) -> Rows[Op]:
        """All ops, by index."""
        return Rows(self, self._get().n_ops, Op, "ops")

    @property
    def values(self) -> Rows[Value]:
        """All values, by index."""
        return Rows(self, self._get().n_values, Value, "values")

    @property
    def scalars(self) -> Tuple[Scalar, ...]:
        """Numbers of the step in the order in which they were seen."""
        p = self._get()
        return tuple(Scalar(self._text(row.name), float(row.number), int(row.op)) for row in p.scalars[: p.n_scalars])

    @property
    def notices(self) -> Tuple[Notice, ...]:
        """What the recorder noticed, in order."""
        p = self._get()
        return tuple(Notice(self._text(n.kind), self._text(n.message), _row(n.op), _row(n.value)) for n in p.notices[: p.n_notices])

    def find(self, name: str) -> Tuple[Value, ...]:
        """The values of this name ("layers.0.weight"), in all their versions, in the order in which they came."""
        return tuple(value for value in self.values if value.name == name)

    def _text(self, row: int) -> str:
        if row == NONE:
            return ""
        text = self._strings.get(row)
        if text is None:
            text = self._strings[row] = self._program.strings[row].decode("utf-8", "surrogateescape")
        return text

    def _values(self, first: int, count: int) -> Tuple[Optional[Value], ...]:
        rows = self._get().refs[first : first + count] if count else []
        return tuple(None if row == NONE else Value(self, row) for row in rows)

    def _arguments(self, first: int, count: int) -> Tuple[Argument, ...]:
        args = self._get().args
        return tuple(self._argument(args[row]) for row in range(first, first + count))

    def _argument(self, arg: Any) -> Argument:
        tag, u = arg.tag, arg.u
        if tag == 1:
            return Value(self, u.row)
        if tag in (2, 3, 4):
            return int(u.i) if tag == 2 else float(u.f) if tag == 3 else bool(u.i)
        if tag == 5:
            return DType(self.memory.library.lb_dtype_name(u.i & 0xFF).decode())
        if tag == 6:
            return self._text(u.row)
        if tag == 7:
            return self._arguments(u.row, arg.count)
        if tag == 8:
            parts = self._get().args
            return complex(parts[u.row].u.f, parts[u.row + 1].u.f)
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Step) and (self.memory, self.rank, self.number) == (other.memory, other.rank, other.number)

    def __hash__(self) -> int:
        return hash((id(self.memory), self.rank, self.number))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a step of an open capture cannot be copied or sent; send the capture's path and the step's number")

    def __repr__(self) -> str:
        return "<Step %d of rank %d>" % (self.number, self.rank)


class Capture:
    """A capture that is open for reading (`lastbit.open`). Iterating gives its steps, of each step all ranks.

    `close` (or the end of a `with` block) makes every further access through it, its steps, ops and values raise Error;
    arrays stay valid, and the file stays mapped until the last of all those is gone."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self.path: str = os.fsdecode(path)
        self.location: str = os.path.abspath(self.path)  # what commands read, also after a change of folder
        self._memory = Memory(self.path)

    @property
    def ranks(self) -> Tuple[int, ...]:
        """Ranks that are there, ascending."""
        rows = ctypes.POINTER(ctypes.c_int32)()
        n = self._memory.library.lb_capture_ranks(self._memory.get(), ctypes.byref(rows))
        return tuple(rows[:n])

    @property
    def steps(self) -> Tuple[int, ...]:
        """Numbers of the steps that at least one rank recorded, ascending."""
        rows = ctypes.POINTER(ctypes.c_int64)()
        n = self._memory.library.lb_capture_steps(self._memory.get(), ctypes.byref(rows))
        return tuple(rows[:n])

    def step(self, number: Optional[int] = None, rank: Optional[int] = None) -> Step:
        """A step by its number, the first if none is named, of the lowest rank if none is named. Raises Error: there is
        no such step, or it is damaged."""
        steps = self.steps
        if not steps:
            report = Report()
            check(self._memory.library.lb_capture_lacks(self._memory.get(), -(2**63), 2**63 - 1, ctypes.byref(report)), report)
        number, rank = steps[0] if number is None else number, self.ranks[0] if rank is None else rank
        if not -(2**63) <= number < 2**63 or not -(2**31) <= rank < 2**31:
            raise Error("%s: no step %d of rank %d: it has the steps %s" % (self.path, number, rank, list(steps)), "LB_ERR_NOT_FOUND")
        return Step(self._memory, rank, number)

    def __iter__(self) -> Iterator[Step]:
        for number in self.steps:
            for rank in self.ranks:
                try:
                    step = Step(self._memory, rank, number)
                except Error as error:
                    if error.status != "LB_ERR_NOT_FOUND":
                        raise
                else:
                    yield step

    def tables(self, rank: Optional[int] = None) -> List[str]:
        """Names of a rank's tables: "receipt", "coverage", …"""
        names: List[str] = []
        while True:
            name = self._memory.library.lb_capture_table_name(self._memory.get(), self._rank(rank), len(names))
            if name is None:
                return names
            names.append(name.decode())

    def table(self, name: str, rank: Optional[int] = None) -> Any:
        """A table of a rank as read from its JSON, None where there is none of that name."""
        text = self._memory.library.lb_capture_table(self._memory.get(), self._rank(rank), name.encode())
        return None if text is None else json.loads(text)

    def _rank(self, rank: Optional[int]) -> int:
        ranks = self.ranks
        if rank is not None and rank not in ranks:
            raise Error("%s: no rank %d: it has the ranks %s" % (self.path, rank, list(ranks)), "LB_ERR_NOT_FOUND")
        return ranks[0] if rank is None else rank

    def diff(self, other: Side, **options: Option) -> Answer:
        """`lastbit.diff` of this capture and another one, or its path."""
        self._memory.get()
        return diff(self, other, **options)

    def bisect(self, **options: Option) -> Answer:
        """`lastbit.bisect` of this capture."""
        self._memory.get()
        return bisect(self, **options)

    def replay(self, **options: Option) -> Answer:
        """`lastbit.replay` of this capture."""
        self._memory.get()
        return replay(self, **options)

    def close(self) -> None:
        """Ends reading; a second call does nothing."""
        self._memory.closed = True

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._memory.closed

    def __enter__(self) -> "Capture":
        self._memory.get()
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open capture cannot be copied or sent; send its path")

    def __repr__(self) -> str:
        return "<Capture %s%s>" % (self.path, ", closed" if self.closed else "")


def _row(row: int) -> Optional[int]:
    return None if row == NONE else int(row)


def _flags(names: Sequence[str], bits: int) -> Tuple[str, ...]:
    return tuple(name for i, name in enumerate(names) if bits >> i & 1)


def _values(arguments: Sequence[Argument]) -> Iterator[Value]:
    for argument in arguments:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, tuple):
            yield from _values(argument)


def open_capture(path: Union[str, "os.PathLike[str]"]) -> Capture:
    """Opens a capture for reading: a folder NAME.lb, a packed file, one archive, or weights (safetensors, .npy, .npz,
    .pt, a folder of a torch distributed checkpoint), which have one step 0 of sources.

    Raises Error: nothing is there, it is no capture, it is damaged, the library is missing; the message says which and
    what to do."""
    return Capture(path)
