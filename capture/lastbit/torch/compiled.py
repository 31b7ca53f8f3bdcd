"""Compiled functions, recorded as the graphs of ATen ops that aot_autograd hands over (`--compiled graph`).

Under an ordinary dispatch mode a compiled function falls back to eager, and its eager ops are recorded. Here the compiler does
trace it, but what it would have handed to inductor comes to us: forward and backward as graphs, which are run op by op under the
recorder's mode. So the recorded bits are those of the graphs — decomposed, with what the compiler removed or moved — computed by
the kernels of eager mode. The bits of compiled kernels are in compiled_kernels.py; the receipt says which were recorded.
"""

import collections
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

    bits = "graph"
    said_once = (
        "compiled functions ran as the graphs of ATen ops that aot_autograd made of them, op by op: the recorded bits are those of the "
        "graphs, not of compiled kernels"
    )

    def __init__(self, session):
        self.session = session
        self.said = False

    def taking(self, arguments):
        """The arguments of torch.compile, with this backend in the place of theirs."""
        return dict(arguments, backend=self.backend)

    def backend(self, graph, example, **_):
        from torch._dynamo.backends.common import aot_autograd

        session, outside = self.session, Outside(graph, example)
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
                session.noticed("compiled", self.said_once)
        except Exception as error:
            session.fail(error)


class Outside(torch.nn.Module):
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

        interpreter = Placed(session, graph, phase)

        def run(*args):
            if phase == _FORWARD:
                session.compiled.begins(outside, args, trains)
            return interpreter.run_and_leave(*args)

        return make_boxed_func(run)

    return compiler


class Placed(torch.fx.Interpreter):
    """Runs a graph op by op, each op in the module that it comes from."""

    def __init__(self, session, graph, phase):
        super().__init__(graph)
        self.session, self.phase = session, phase
        self.stacks = {node: stack_of(node) for node in graph.graph.nodes}
        self.lines = {}  # node -> what the recorder calls its line
        self.paths = {}  # of places as the compiler names them, where the graph runs now
        self.at = None
        self.around = ""

    def run_and_leave(self, *args):
        if self.session.live:
            self.session.guarded(self.arrive, args)
        try:
            return self.run(*args)
        finally:
            self.leave()

    def arrive(self, args):
        """Modules that are compiled one by one share a graph: which of them runs, its parameters say."""
        around = _around(self.session.roles.owners_of(args), {path for path, _ in self.stacks.values()})
        if around != self.around:
            self.around, self.paths = around, {}

    def leave(self):
        self.at = None
        try:
            self.session.native.graph(_NO_PLACE, 0, 0)
        except Exception as error:
            self.session.fail(error)

    def run_node(self, node):
        session = self.session
        if node.op == "call_function" and session.live:
            session.guarded(self.enter, node)
        result = super().run_node(node)
        if node.op == "call_function" and session.live and _is_tap(node.target):
            session.tap(node.args[1], result)
        return result

    def enter(self, node):
        stack = self.stacks[node]
        place = self.paths.get(stack)
        if place is None:
            within = ".".join(filter(None, (self.around, stack[0])))
            place = self.paths[stack] = self.session.modules.path_in_graph((within, stack[1]))
        line = self.line_of(node)
        if (place, line) != self.at:
            self.at = place, line
            self.session.native.graph(self.session.modules.number(*place), self.phase, line)

    def line_of(self, node):
        """By the compiler's own account; a node of backward carries its forward node's."""
        line = self.lines.get(node)
        if line is None:
            found = self.session.lines and self.session.lines.of_trace(node.meta.get("stack_trace"))
            line = self.lines[node] = self.session.native.line(*found) if found else 0
        return line


def _around(owners, paths):
    """The path of the compiled module, of the modules that own its parameters and of what the compiler calls them."""
    votes = collections.Counter()
    for owner in owners:
        inner = max((path for path in paths if path and ("." + owner).endswith("." + path)), key=len, default=None)
        if inner is not None:
            votes[owner[: len(owner) - len(inner)].rstrip(".")] += 1
    if not votes and not any(paths) and len(owners) == 1:
        return next(iter(owners))
    return votes.most_common(1)[0][0] if votes else ""


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


def stack_of(node):
    """Module path and class by the compiler's own account, innermost: a node of backward carries its forward node's."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    for name, kind in reversed(list(stack.values())):
        return _plain(name), getattr(kind, "__name__", str(kind).rpartition(".")[2])
    return "", None
