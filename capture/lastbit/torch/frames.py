"""What the variables of a frame hold, looked at without a trace.

Before Python 3.13 a frame keeps what `f_locals` showed, until it is asked again: what the program's function let go would live on, tensors and
the graphs that they hang on among it. So the view is emptied, but where it may be in the program's own hands.
"""

import sys

_OWN_VIEWS = {"locals", "vars", "eval", "exec", "dir"}  # functions that may have this dict in their hands
_OF_A_FUNCTION = 1  # inspect.CO_OPTIMIZED: elsewhere variables are a dict by themselves


def seen_in(frame, look):
    """What `look` says of {name: value}."""
    variables = frame.f_locals
    try:
        return look(variables)
    finally:
        if sys.version_info < (3, 13) and frame.f_code.co_flags & _OF_A_FUNCTION and not _OWN_VIEWS.intersection(frame.f_code.co_names):
            variables.clear()


def variable_of(frame, name):
    """None where it has none of that name."""
    return seen_in(frame, lambda variables: variables.get(name))
