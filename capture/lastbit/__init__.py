"""lastbit: recording what a PyTorch run computed, and reading what was recorded.

    import lastbit

    with lastbit.open("run.lb") as capture:
        for op in capture.step().ops:
            print(op.index, op.phase, op.layer, op.name, [value and value.shape for value in op.results])
    print(lastbit.bisect("run.lb").culprit)

`lastbit record -- python train.py` needs nothing of this; `lastbit.torch` has the context manager for programs that say
themselves what a step is. Importing this package imports neither torch nor NumPy nor anything else that is heavy: what
reads (`lastbit.reader`) is loaded when it is first asked for.
"""

import glob
import os
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from .reader import Answer, Capture, DType, Error, Line, Op, Statistics, Step, Value, bisect, diff, open, replay

__version__ = "0.1.0"

__all__ = ["Answer", "Capture", "DType", "Error", "Line", "Op", "Statistics", "Step", "Value", "bisect", "diff", "library_path", "open", "replay"]


def __getattr__(name: str) -> Any:
    """What `lastbit.reader` offers, imported at its first use: this package is imported in every recorded process."""
    if name not in __all__:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    from . import reader

    return getattr(reader, name)


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})


def library_path(name: str = "liblastbit_capture.so") -> str:
    """A C library of lastbit, the recorder if none is named: LASTBIT_LIB (which `lastbit record` sets) names the
    recorder, and others lie beside it; or in the prefix or the folder that this package is installed in, or in the
    build tree of its sources. Raises OSError when it is nowhere."""
    named = os.environ.get("LASTBIT_LIB")
    package = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(package)
    places = [
        os.path.join(package, name),  # what carries its libraries with it
        os.path.join(root, "..", "..", name),  # prefix/lib/lastbit/python/lastbit -> prefix/lib
        os.path.join(root, "..", "build", "release", name),
        os.path.join(root, "..", "build", "*", name),
    ]
    if named:
        if name == "liblastbit_capture.so":
            return named
        places.insert(0, os.path.join(glob.escape(os.path.dirname(os.path.abspath(named))), name))
    for place in places:
        for path in sorted(glob.glob(place)):
            if os.path.basename(os.path.dirname(path)) not in ("dev", "tsan"):  # sanitized: no interpreter loads them
                return os.path.realpath(path)
    raise OSError("%s is not found; build lastbit, or name the recorder in LASTBIT_LIB, beside which it lies" % name)
