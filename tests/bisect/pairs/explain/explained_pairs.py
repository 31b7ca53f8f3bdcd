"""Captures of programs given as text, recorded in pairs, and what of an answer counts."""

import functools


def record(lastbit, folder, name, text, *args, level="ops"):
    """Records a program given as text; what it needs besides torch is in its arguments."""
    script = folder / f"{name}.py"
    script.write_text(text)
    lastbit.record(folder / f"{name}.lb", script, *args, options=("--level", level), expect=0)
    return folder / f"{name}.lb"


def recorded_once(lastbit, folder, text):
    """A capture per way of running `text`: words that the program is given."""
    return functools.cache(lambda how: record(lastbit, folder, how.replace(" ", "-"), text, *how.split()))


def record_pair(lastbit, folder, text, one, other):
    return record(lastbit, folder, "one", text, *one), record(lastbit, folder, "other", text, *other)


def own(answer):
    """What differs for a reason of its own."""
    return [f for f in answer["findings"] if f["cause"] != "input"]
