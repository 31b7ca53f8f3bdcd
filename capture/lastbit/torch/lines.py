"""Lines of the program's code: what the C side asks of a code object or of one of its lines, once each (capture/binding/python_line.c)."""

import linecache
import os
import re
import sys
import sysconfig

import torch

from ..secret_text import mask_code

_PROGRAM, _LIBRARY, _ENGINE, _MADE = range(4)  # lb_code_kind
_LONGEST = 200  # bytes of a line's text, LB_LINE_TEXT
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in ([^\n]+)')


def _folder(path):
    return os.path.join(os.path.abspath(path), "")


_STANDARD = tuple({_folder(sysconfig.get_paths()[key]) for key in ("stdlib", "platstdlib")})
_INSTALLED = re.compile(r"(^|/)(site|dist)-packages/")
_TORCH = _folder(os.path.dirname(torch.__file__))
_OTHERS = (_TORCH, _folder(os.path.join(os.path.dirname(_TORCH[:-1]), "functorch")), _folder(os.path.dirname(os.path.dirname(__file__))))
_GENERATED = ("<frozen", "<eval_with_key", "<__array_function__", "<attrs generated", "<decorator-gen")
_CALLS_THE_ENGINE = os.path.join(_TORCH, "autograd", "__init__.py")


def is_library(file):
    """Of torch, of lastbit, of Python's own library, or made by none of the program's files."""
    if file.startswith(_GENERATED):
        return True
    path = os.path.abspath(file)
    if path.startswith(_OTHERS):
        return True
    return any(path.startswith(folder) and not _INSTALLED.search(path[len(folder) :]) for folder in _STANDARD)


class Lines:
    def __init__(self, started):
        self.started = started  # files that are newer do not hold what runs

    def code_kind(self, code):
        try:
            if code.co_filename == _CALLS_THE_ENGINE and code.co_name in ("backward", "grad"):
                return _ENGINE
            if is_library(code.co_filename):
                return _LIBRARY
            return _MADE if _is_compiled(code) else _PROGRAM
        except Exception:
            return _LIBRARY

    def line_of(self, code, number):
        return self.describe(code.co_filename, number, code.co_name)

    def describe(self, file, number, function):
        """(file, function, text) as the archive holds them; "" where nothing is known."""
        try:
            texts = _below_imports(file), function, self._text(file, number)
            return tuple(text.encode("utf-8", "replace").decode().replace("\0", "") for text in texts)
        except Exception:
            return "", "", ""

    def of_trace(self, trace):
        """(file, number, function, text) of the innermost line of the program in a stack trace, as nodes of a compiled graph have one; None."""
        for file, number, function in reversed(_FRAME.findall(trace or "")):
            if not is_library(file):
                named, function, text = self.describe(file, int(number), function.strip())
                return (named, int(number), function, text) if named else None
        return None

    def _text(self, file, number):
        if os.path.exists(file) and os.stat(file).st_mtime > self.started:
            return ""
        text = mask_code(linecache.getline(file, number).strip()).encode("utf-8", "replace")
        return text[:_LONGEST].decode("utf-8", "ignore")


def _is_compiled(code):
    """Dynamo made it of a function of the program: it calls graphs where no line of the program does."""
    convert = sys.modules.get("torch._dynamo.convert_frame")
    return convert is not None and code in convert.output_codes


def _below_imports(file):
    """The path below the folder of sys.path that the file is imported from, else below the working directory; a capture names no home
    directories."""
    if file.startswith("<"):
        return file
    path = os.path.abspath(file)
    folders = [_folder(entry) for entry in sys.path if isinstance(entry, str)] + [_folder(os.getcwd())]
    inside = [folder for folder in folders if path.startswith(folder)]
    return path[len(max(inside, key=len)) :] if inside else os.path.basename(path)
