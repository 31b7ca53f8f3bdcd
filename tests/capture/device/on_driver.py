"""Runs a program of tests/programs on the stand-in accelerator and the stand-in driver of CUDA: python on_driver.py PROGRAM ARGUMENTS.

STANDIN_LIBRARY is the accelerator, as torch's library for CUDA: it is there before torch is, as that is in a build of torch for CUDA. What
breaks a rule of the driver's ends the process with 97. STANDIN_USED is a file for the bytes that the accelerator had to have.
"""

import ctypes
import os
import pathlib
import runpy
import sys


def main():
    library = ctypes.CDLL(os.environ["STANDIN_LIBRARY"], ctypes.RTLD_GLOBAL)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    if "STANDIN_USED" in os.environ:
        library.standin_used.restype = ctypes.c_uint64
        pathlib.Path(os.environ["STANDIN_USED"]).write_text(str(library.standin_used()))
    broken = ctypes.c_char_p()
    if library.standin_violations(ctypes.byref(broken)):
        print("a rule of the driver was broken:", broken.value.decode(), file=sys.stderr)
        sys.exit(97)


if __name__ == "__main__":
    main()
