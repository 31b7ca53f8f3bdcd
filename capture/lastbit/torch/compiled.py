"""Compiled functions, recorded as the graphs of ATen ops that aot_autograd hands over (`--compiled graph`).

Under an ordinary dispatch mode a compiled function falls back to eager, and its eager ops are recorded. Here the compiler does
trace it, but what it would have handed to inductor comes to us: forward and backward as graphs, which are run op by op under the
recorder's mode. So the recorded bits are those of the graphs — decomposed, with what the compiler removed or moved — computed by
the kernels of eager mode. The bits of fused kernels are seen by nobody; the receipt says which were recorded.
"""

import re

import torch

from .modules import clean

_FORWARD, _BACKWARD, _NO_PLACE = 0, 1, -1
# "L['self']._modules['layers'].0", "L['fn'].0", "G['model'].attention[2]"
_ROOT = re.compile(r"^[LG]\['[^']*'\]")
_ITEM = re.compile(r"\[['\"]?([^'\"\]]*)['\"]?\]")


def possible():
    """Whether the compiler works while our mode is there."""
    return getattr(torch.utils._python_dispatch.TorchDispatchMode, "ignore_compile_internals", None) is not None


class Compiled:
    """The backend that takes the place of whichever was asked for."""

    def __init__(self, session):
        self.session = session
        self.said = False

    def backend(self, graph, example, **_):
        from torch._dynamo.backends.common import aot_autograd

        session, outside = self.session, _Outside(graph, example)
        compile = aot_autograd(
            fw_compiler=_runner(session, outside, _FORWARD),
            bw_compiler=_runner(session, outside, _BACKWARD),
            inference_compiler=_runner(session, outside, _FORWARD, trains=False),
        )
        return compile(graph, example)

    def begins(self, function, args, trains):
        """A forward graph runs; where no module encloses it, steps are found by it. `trains`: gradients are wanted, though
        autograd is off inside."""
        session = self.session
        if session.dead:
            return
        try:
            if not session.modules.thread.stack:
                with torch.set_grad_enabled(trains or torch.is_grad_enabled()):
                    session.outermost(function, args)
            if session.live and not self.said:
                self.said = True
                session.native.notice(
                    "compiled",
                    "compiled functions ran as the graphs of ATen ops that aot_autograd made of them, op by "
                    "op: the recorded bits are those of the graphs, not of compiled kernels",
                )
        except Exception as error:
            session.fail(error)


class _Outside(torch.nn.Module):
    """Stands for a compiled function that no module encloses, so that steps begin and end with it."""

    def __init__(self, graph, example):
        super().__init__()
        inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.held = {_source_of(node): value for node, value in zip(inputs, example) if isinstance(value, torch.nn.Parameter)}
        self.held.update(graph.named_parameters())

    def parameters(self, recurse=True):
        return iter(self.held.values())

    def named_parameters(self, *args, **kwargs):
        return iter(self.held.items())


def _runner(session, outside, phase, trains=True):
    def compiler(graph, example):
        from torch._functorch.aot_autograd import make_boxed_func

        interpreter = _Interpreter(session, graph, phase)

        def run(*args):
            if phase == _FORWARD:
                session.compiled.begins(outside, args, trains)
            try:
                return interpreter.run(*args)
            finally:
                interpreter.leave()

        return make_boxed_func(run)

    return compiler


class _Interpreter(torch.fx.Interpreter):
    def __init__(self, session, graph, phase):
        super().__init__(graph)
        self.session, self.phase = session, phase
        self.paths = {}  # of nodes
        self.at = None

    def leave(self):
        self.at = None
        try:
            self.session.native.graph(_NO_PLACE, 0)
        except Exception as error:
            self.session.fail(error)

    def run_node(self, node):
        session = self.session
        if node.op == "call_function" and session.live:
            try:
                self.enter(node)
            except Exception as error:
                session.fail(error)
        result = super().run_node(node)
        if node.op == "call_function" and session.live and _is_tap(node.target):
            session.tap(node.args[1], result)
        return result

    def enter(self, node):
        place = self.paths.get(node)
        if place is None:
            place = self.paths[node] = self.session.modules.path_in_graph(_stack_of(node))
        if place != self.at:
            self.at = place
            self.session.native.graph(self.session.modules.number(*place), self.phase)


def _plain(source):
    """A module or parameter path, of what the compiler calls it."""
    path = _ITEM.sub(r".\1", _ROOT.sub("", source)).replace("._modules.", ".").replace("._parameters.", ".")
    return clean(path.strip("."))


def _source_of(node):
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", node.name)
    return _plain(name() if callable(name) else name)


def _is_tap(target):
    return getattr(target, "namespace", None) == "lastbit" and target._schema.name == "lastbit::tap"


def _stack_of(node):
    """Module path and class by the compiler's own account, innermost: a node of backward carries its forward node's."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    for name, kind in reversed(list(stack.values())):
        return _plain(name), getattr(kind, "__name__", str(kind).rpartition(".")[2])
    return "", None
