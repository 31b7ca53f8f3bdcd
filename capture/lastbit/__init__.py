"""lastbit: recording what a PyTorch run computed.

`lastbit record -- python train.py` needs nothing of this; `lastbit.torch` has the context manager for programs that say
themselves what a step is. Importing this package imports neither torch nor anything else that is heavy.
"""

import glob
import os

__version__ = "0.1.0"


def library_path():
    """The C recorder: named in LASTBIT_LIB by `lastbit record`, in the prefix that this package is installed in, or in
    the build tree of its sources. Raises OSError when it is nowhere."""
    named = os.environ.get("LASTBIT_LIB")
    if named:
        return named
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    name = "liblastbit_capture.so"
    for place in (
        os.path.join(root, "..", "..", name),  # prefix/lib/lastbit/python/lastbit -> prefix/lib
        os.path.join(root, "..", "build", "release", name),
        os.path.join(root, "..", "build", "*", name),
    ):
        for path in sorted(glob.glob(place)):
            if os.path.basename(os.path.dirname(path)) not in ("dev", "tsan"):  # sanitized: no interpreter loads them
                return os.path.realpath(path)
    raise OSError("%s is not found; build lastbit, or name the file in LASTBIT_LIB" % name)
