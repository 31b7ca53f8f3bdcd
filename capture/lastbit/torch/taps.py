"""`tap`: a tensor recorded under a name, also inside of what is compiled or captured as a graph."""

import torch

try:

    @torch.library.custom_op("lastbit::tap", mutates_args=())
    def _tap(value: torch.Tensor, name: str) -> torch.Tensor:
        return value.clone()  # an op may not return its argument

    @_tap.register_fake
    def _(value, name):
        return torch.empty_like(value)

    _tap.register_autograd(lambda context, gradient: (gradient, None))
except Exception:  # a torch without custom ops: taps inside graphs are left out
    _tap = None


def tap(name, value):
    """Records a tensor under a name of your choice, also where nothing else is seen; returns it. In a function that is compiled
    or exported it becomes an op of the graph, which copies."""
    if torch.compiler.is_compiling():
        return value if _tap is None else _tap(value, name)
    from . import session as sessions

    if sessions.current is not None and sessions.current.live:
        sessions.current.tap(name, value)
    return value
