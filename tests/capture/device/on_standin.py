"""Runs a program that knows nothing of devices on the stand-in accelerator: python on_standin.py PROGRAM ARGUMENTS. What it makes and
what it reads from NumPy lies there."""

import pathlib
import runpy
import sys

import standin
import torch


def main():
    sys.argv = sys.argv[1:]
    standin.load()
    torch.set_default_device("standin")
    of_host = torch.from_numpy
    torch.from_numpy = lambda array: of_host(array).to("standin")
    sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
