"""Compiled functions as they really ran, with their graphs beside (`--compiled kernels`).

Inductor compiles what the program asked it to, and its code computes what the program gets. Before each run of a compiled graph in a
recorded step the same graph runs op by op on the same inputs, and is recorded as `--compiled graph` has it. Then each output of the
compiled code is recorded as an op of unknown contents: `compiled::output` takes what the graph computed op by op and gives what the
compiled kernels made of the same inputs; `compiled::changed` does so for inputs that the graph changes in place.

    graph, op by op    x ─ addmm ─ gelu ─ y ─ compiled::output ─ y'       y' goes on to what comes next, in the program and in the record
    compiled code      x ───────────────────────────────────────┘         (its bits alone are in y')

So the two differ by what the compiled kernels of that one graph do otherwise, and nothing adds up from graph to graph. The run op by op
leaves nothing behind: inputs that it changed and random generators are put back. Where a graph draws random numbers the two draw others.
"""

import functools

import torch

from .compiled import _BACKWARD, _FORWARD, Compiled, Outside, Placed
from .library import COMPOSITE, MUTABLE, WRITTEN


class CompiledKernels(Compiled):
    """What takes the place of inductor, and calls it."""

    bits = "kernels"
    said_once = (
        "compiled functions ran as inductor compiled them; beside each of their graphs its ATen ops ran one by one, and compiled::output "
        "leads from what these gave to what the compiled kernels gave"
    )

    def __init__(self, session):
        super().__init__(session)
        session.native.plan(_plan(output, "compiled::output", COMPOSITE, 0))
        session.native.plan(_plan(changed, "compiled::changed", COMPOSITE | MUTABLE, WRITTEN))

    def taking(self, arguments):
        """The arguments of torch.compile, with our backend for what inductor would compile."""
        given = arguments.get("backend", "inductor")
        if given == "inductor":
            return dict(arguments, backend=self.compile)
        if given != self.compile:
            self.session.degraded("compiled code of the backend %s is not run: its graphs are recorded op by op" % (given,))
            return super().taking(arguments)
        return arguments

    def compile(self, graph, example, mode=None, options=None, **_):
        import torch._functorch.config as settings
        from torch._inductor.compile_fx import compile_fx

        asked = torch._TorchCompileInductorWrapper(mode or "default" if options is None else mode, options, None).config
        # What a CUDA graph gives lies where its next run writes.
        config = dict(asked, **{"triton.cudagraphs": False})
        inner = functools.partial(self.inner, Outside(graph, example))
        with settings.patch(enable_autograd_cache=False):  # it keeps no functions of ours
            return compile_fx(graph, example, inner_compile=inner, config_patches=config)

    def inner(self, outside, graph, example, **given):
        from torch._inductor.compile_fx import compile_fx_inner

        backward = bool(given.get("is_backward"))
        beside = Beside(self.session, _copy_of(graph), _BACKWARD if backward else _FORWARD)  # inductor changes the graph
        code = compile_fx_inner(graph, example, **given)

        def run(inputs):
            if not backward:
                self.begins(outside, inputs, not given.get("is_inference"))
            return beside.run(code, inputs)

        run._boxed_call = True
        return run


class Beside:
    """One compiled graph: its ops, and where its outputs are made."""

    def __init__(self, session, graph, phase):
        self.session, self.phase = session, phase
        self.interpreter = Placed(session, graph, phase)
        nodes = list(graph.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        self.written = [n for n, node in enumerate(inputs) if any(_writes(user, node) for user in node.users)]
        self.outputs = torch.fx.node.map_arg(nodes[-1].args[0], lambda node: node)

    def run(self, code, inputs):
        """`inputs`: a list that the compiled code empties."""
        session = self.session
        if not session.live or session.threads.modes_active() <= session.threads.inherited:
            return code(inputs)
        kept = self.before(inputs)
        given = self.interpreter.run_and_leave(*inputs)
        begun = self.back(inputs, kept)
        session.guarded(session.native.aside, True)
        try:
            out = code(inputs)
        except BaseException:
            session.guarded(session.native.aside, False)
            for number in begun:
                session.guarded(session.native.failed_op, number)
            raise
        session.guarded(session.native.aside, False)
        if session.live:
            session.guarded(self.after, begun, given, out)
        return out

    def before(self, inputs):
        """What the run op by op is going to change, as it is now."""
        self.session.guarded(self.session.native.aside, True)
        try:
            with torch.no_grad():
                changing = [(inputs[n], inputs[n].detach().clone()) for n in self.written if isinstance(inputs[n], torch.Tensor)]
            return changing, _generators()
        finally:
            self.session.guarded(self.session.native.aside, False)

    def back(self, inputs, kept):
        """Puts it back; the numbers of the ops that changes of inputs are."""
        session, (changing, generators), begun = self.session, kept, []
        for tensor, _ in changing:
            if session.live:
                session.guarded(lambda tensor=tensor: begun.append(session.native.begin(changed, (tensor,), None)))
        session.guarded(session.native.aside, True)
        try:
            with torch.no_grad():
                for tensor, before in changing:
                    tensor.detach().copy_(before)
            for put, state in generators:
                put(state)
        finally:
            session.guarded(session.native.aside, False)
        return begun

    def after(self, begun, given, out):
        session = self.session
        for number in begun:
            session.native.end(number, None, False)
        try:
            for node, mine, real in zip(self.outputs, given, out):
                if isinstance(mine, torch.Tensor) and isinstance(real, torch.Tensor) and not _same_memory(mine, real):
                    self.interpreter.enter(node)
                    session.native.end(session.native.begin(output, (mine,), None), real, False)
        finally:
            self.interpreter.leave()


def output(graph):
    """Stands for the op that leads from what a graph gave op by op to what the compiled code gave."""


def changed(graph):
    """The same for an input that was changed in place."""


def _plan(function, name, flags, of_argument):
    return {
        "func": function,
        "callee": function,
        "name": name,
        "flags": flags,
        "arg_flags": bytes([of_argument]),
        "names": ("graph",),
        "defaults": (None,),
        "chance": -1,
        "non_blocking": -1,
        "writing_switch": -1,
    }


def _copy_of(graph):
    copied = torch.fx.Graph()
    copied.output(copied.graph_copy(graph.graph, {}))
    return torch.fx.GraphModule(graph, copied)


def _writes(user, node):
    """Whether a node of a graph may write to its argument `node`."""
    schema = getattr(user.target, "_schema", None)
    if user.op != "call_function":
        return user.op != "output"
    if schema is None:  # a function of functions
        return isinstance(user.target, torch._ops.HigherOrderOperator)
    given = dict(zip((a.name for a in schema.arguments), user.args), **user.kwargs)
    written = (a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return any(node in _flat(given.get(name)) for name in written)


def _flat(argument):
    return argument if isinstance(argument, (list, tuple)) else [argument]


def _same_memory(a, b):
    try:
        return a.data_ptr() == b.data_ptr()
    except RuntimeError:  # no memory that can be named
        return False


def _generators():
    """[(function that sets it, its state)] of the random generators in use."""
    found = [(torch.set_rng_state, torch.get_rng_state())]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        device = torch.cuda.current_device()
        found.append((functools.partial(torch.cuda.set_rng_state, device=device), torch.cuda.get_rng_state(device)))
    return found
