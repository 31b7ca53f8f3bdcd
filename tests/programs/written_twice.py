"""Programs of functions that are written twice, NAME and NAME_second; a fault is one line of the second that is edited.

Such a program is a module with FAULTS: by name and fault the text of the second function that is edited, and what takes its place. Run as FOLDER WORD..., it
records each WORD (NAME, NAME-second or NAME-second-FAULT) to FOLDER/WORD.lb. A faulty function is compiled at the lines where the function stands."""

import inspect
import os
import pathlib
import subprocess
import sys

CAPTURE = pathlib.Path(__file__).parents[2] / "capture"


def words_of(program):
    return [word for name, faults in program.FAULTS.items() for word in (name, f"{name}-second", *(f"{name}-second-{fault}" for fault in faults))]


def source_of(program, name, fault=None):
    """The second function's text, with the fault in it, its first line, and the line of the file where the fault lies."""
    lines, first = inspect.getsourcelines(getattr(program, f"{name}_second"))
    text = "".join(lines)
    old, new = program.FAULTS[name][fault] if fault else ("", "")
    assert old in text
    return text.replace(old, new, 1), first, first + text[: text.index(old)].count("\n")


def function_of(program, word):
    name, *words = word.split("-")
    if not words:
        return getattr(program, name)
    text, first, _ = source_of(program, name, words[1] if len(words) > 1 else None)
    named = dict(vars(program))
    exec(compile("\n" * (first - 1) + text, program.__file__, "exec"), named)
    return named[f"{name}_second"]


def record(program, folder, words=None):
    """Those words, or all of them, by one process."""
    variables = dict(os.environ, PYTHONPATH=str(CAPTURE))
    subprocess.run([sys.executable, program.__file__, folder, *(words or words_of(program))], env=variables, check=True, timeout=600)
    return folder


def ask(lastbit, folder, first, second, turned=False, *, expect):
    sides = [folder / f"{first}.lb", folder / f"{second}.lb"]
    return lastbit.json("diff", *(sides[::-1] if turned else sides), expect=expect)
