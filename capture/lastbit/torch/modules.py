"""Where an op belongs: module scopes, calls, phases, autograd nodes.

Global module hooks tell the recorder which module a thread is in (global, because a hook on a module changes what some
modules run). How an op of backward finds its module stands in capture/binding/python_place.c.
"""

import re
import sys
import threading
import weakref

import torch
from torch.nn.utils.parametrize import ParametrizationList

from .frames import variable_of
from .names import Family

_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "OptimizedModule", "EagerModule", "_FabricModule"}
_AROUND = {"DistributedDataParallel", "FullyShardedDataParallel"}  # that call the module they hold, once
_PREFIXES = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
_STAGE = re.compile(r"submod_pp_\d+")  # what torch.distributed.pipelining holds a stage under, with the model's own names below
_NOBODY = -1  # the scope of a module that is entered while nothing is recorded


def clean(path):
    """A module path without wrapper prefixes."""
    return ".".join(p for p in path.split(".") if p not in _PREFIXES and not _STAGE.fullmatch(p))


class _Thread(threading.local):
    """Modules that one thread is in, outermost first: (module, scope). The recorder keeps a stack of its own beside it."""

    def __init__(self):
        self.stack = []
        self.reading = None  # a parametrization that computes a weight which is read outside every module
        self.told = None  # an outermost module whose call is known already: see watch_roots


def path_by_keras(module):
    """Layers of Keras are no children in torch's sense; each knows its path: "transformer_layer_1/self_attention/query"."""
    layer = getattr(sys.modules.get("keras"), "Layer", None)
    path = getattr(module, "path", None) if isinstance(layer, type) and isinstance(module, layer) else None
    return path.replace("/", ".") if isinstance(path, str) and path else None


class Modules:
    def __init__(self, session):
        self.session = session
        self.entries = {}  # id(module) -> (weak reference, path, class name)
        self.scopes = {}  # path -> number in the recorder that is open
        self.roots = []  # weak references to outermost modules, in order of their first call
        self.prefixes = {}  # id(root) -> path prefix
        self.family = Family()
        self.owners = {}  # id(parameter) -> scope path
        self.thread = _Thread()
        self.handles = []
        self.threads = set()  # that called modules
        self.classes = set()  # of outermost modules, that say when one is called
        self.node = getattr(torch._C, "_current_autograd_node", None)
        self.sequence = getattr(torch.autograd, "_get_sequence_nr", None) or getattr(torch._C._autograd, "_get_sequence_nr", None)
        if self.node is None or self.sequence is None:
            session.degraded("torch has no _current_autograd_node or _get_sequence_nr: backward ops are not attributed to modules")
            self.node = self.sequence = None

    def install(self):
        self.watch_all()
        self.session.replace(torch.nn.modules.module, "_has_any_global_hook", self._others)

    # Every module's hooks cost a few microseconds a call. Between steps that are wanted only outermost modules matter, and these are
    # known by then: their classes say when one of them is called. No object of the host's gets a hook, so that it is copied and
    # saved as it was.

    def watch_all(self):
        if not self.handles:
            hooks = torch.nn.modules.module
            self.handles = [hooks.register_module_forward_pre_hook(self.enter), hooks.register_module_forward_hook(self.leave, always_call=True)]

    def watch_roots(self):
        """False where that cannot be: no module was called yet, or one whose calls the compiler looks into."""
        roots = self.living()
        if not roots or len(self.threads) > 1 or self.thread.stack or self.session.marks.name or self.session.compiles:
            return False
        if any(isinstance(root, torch.jit.ScriptModule) for root in roots):
            return False
        for cls in {type(root) for root in roots}:
            if cls not in self.classes and cls is not torch.nn.Module:
                self.classes.add(cls)
                self._watch_class(cls)
        self.remove()
        return True

    def _watch_class(self, cls):
        own = vars(cls).get("__call__")

        def __call__(module, *args, **kwargs):
            call = super(cls, module).__call__ if own is None else own.__get__(module, type(module))
            if self.handles or self.session.dead or torch.compiler.is_compiling() or self.thread.stack:
                return call(*args, **kwargs)
            self._called(module, args, kwargs)
            if self.handles:  # a step began that is wanted
                return call(*args, **kwargs)
            self.thread.stack.append((module, _NOBODY))
            try:
                return call(*args, **kwargs)
            finally:
                del self.thread.stack[:]

        cls.__call__ = __call__

        def undo():
            if vars(cls).get("__call__") is __call__:
                delattr(cls, "__call__") if own is None else setattr(cls, "__call__", own)

        self.session.undo.append(undo)

    def _called(self, module, args, kwargs):
        session = self.session
        try:
            session.threads.bring_in()
            session.outermost(module, args, kwargs)
            self.thread.told = module if self.handles else None
        except Exception as error:
            session.fail(error)

    def _others(self, original):
        """torch.compile warns of global hooks; ours are none that its user could do something about."""
        hooks = torch.nn.modules.module
        places = [name for name in vars(hooks) if name.startswith("_global_") and "hooks" in name]

        def has_any_global_hook():
            ours = {handle.id for handle in self.handles}
            return any(key not in ours for name in places for key in getattr(hooks, name) or ())

        return has_any_global_hook

    def remove(self):
        for handle in self.handles:
            handle.remove()
        self.handles = []

    # ---- names

    def reset(self):
        """Another recorder: numbers of scopes are given anew."""
        self.scopes = {}

    def number(self, path, class_name):
        number = self.scopes.get(path)
        if number is None:
            parent = self.number(path.rpartition(".")[0], None) if "." in path else 0
            number = self.scopes[path] = self.session.native.scope(path, class_name, parent)
        elif class_name and (path, class_name) not in self.scopes:
            self.session.native.scope(path, class_name, 0)  # a parent that was met before its class
            self.scopes[(path, class_name)] = number
        return number

    def add_root(self, module):
        """Names everything under an outermost module. The first that has parameters is "", others go by their class."""
        self.family.search(module)
        top, path = self.family.path(module)
        if path and id(top) not in self.prefixes:
            self.add_prefix(top)
        if path:
            above = self.prefixes[id(top)]
            self.prefixes[id(module)] = above + ("." if above else "") + clean(path)
        elif id(module) not in self.prefixes:
            self.add_prefix(module)
        self.roots.append(weakref.ref(module))
        self.add_tree(module, self.prefixes[id(module)])

    def add_prefix(self, module, called=True):
        unwrapped = module
        while type(unwrapped).__name__ in _WRAPPERS and isinstance(getattr(unwrapped, "module", None), torch.nn.Module):
            unwrapped = unwrapped.module
        holds = called and next(module.parameters(), None) is not None
        taken = set(self.prefixes.values())
        prefix = "" if holds and "" not in taken else type(unwrapped).__name__
        base, n = prefix, 1
        while prefix in taken:
            n += 1
            prefix = "%s#%d" % (base or type(unwrapped).__name__, n)
        self.prefixes[id(module)] = prefix

    def holders(self):
        """(module, prefix) of all that may name a tensor: those that are called, what holds them, and those that are not called."""
        found = {id(root): root for root in self.living()}
        for ref in self.family.tops:
            module = ref()
            if module is None or id(module) in found or next(module.parameters(), None) is None:
                continue
            if id(module) not in self.prefixes:
                self.add_prefix(module, called=False)
            found[id(module)] = module
        return [(module, self.prefixes[key]) for key, module in found.items() if key in self.prefixes]

    def add_tree(self, module, prefix):
        for name, child in module.named_modules():
            path = clean(name)
            path = prefix + ("." if prefix and path else "") + path
            known = self.entries.get(id(child))
            if known is not None and known[0]() is child:
                continue
            class_name = type(child).__name__
            self.entries[id(child)] = (weakref.ref(child), path, None if class_name in _WRAPPERS else class_name)

    def entry(self, module):
        known = self.entries.get(id(module))
        if known is not None and known[0]() is module:
            return known
        for ref in self.roots:  # a module that was added since (adapters)
            root = ref()
            if root is not None:
                self.add_tree(root, self.prefixes.get(id(root), ""))
        known = self.entries.get(id(module))
        if known is not None and known[0]() is module:
            return known
        path = path_by_keras(module) or type(module).__name__
        known = self.entries[id(module)] = (weakref.ref(module), path, type(module).__name__)
        return known

    def path_in_graph(self, place):
        """(path, class) of a module that the compiler names as seen from the function it compiled."""
        path, class_name = place
        known = {p: name for _, p, name in self.entries.values()}
        parts = path.split(".") if path else []
        for first in range(len(parts)):  # "model.layers.0" of a trainer is "layers.0" of its model
            inner = ".".join(parts[first:])
            if inner in known:
                return inner, known[inner]
        return path, class_name

    def living(self):
        """Outermost modules that are there still, in order of their first call."""
        return [root for root in (ref() for ref in self.roots) if root is not None]

    def is_root(self, module):
        return any(ref() is module for ref in self.roots)

    @staticmethod
    def shapes_only(args):
        """A forward that computes no numbers: its tensors are on torch's device without memory, or pipelining finds out shapes by
        running its stages over unwritten memory."""
        if "torch.distributed.pipelining.stage" in sys.modules and _infers_shapes(sys._getframe(1)):
            return True
        tensors = [a for a in args if isinstance(a, torch.Tensor)] if isinstance(args, (tuple, list)) else []
        return bool(tensors) and all(t.device.type == "meta" for t in tensors)

    # ---- hooks

    # When the compiler traces a module it traces its hooks: they must end before anything that it does not know.

    def enter(self, module, args):
        if torch.compiler.is_compiling():
            return
        session = self.session
        if session.dead:
            return
        try:
            stack = self.thread.stack
            if not stack and self.is_read(module):
                return
            if not stack:
                self.threads.add(threading.get_ident())
            if session.marks.name:
                session.marks.met(self, module)
            told, self.thread.told = self.thread.told, None
            if not stack and told is not module:
                session.threads.bring_in()
                session.outermost(module, args)
                if not self.handles:
                    return  # from here on the classes of outermost modules tell
            if not session.live:
                stack.append((module, _NOBODY))
                session.native.enter(_NOBODY, (), None)
                return
            _, path, class_name = self.entry(module)
            scope = self.number(path, class_name)
            inside = bool(stack)
            stack.append((module, scope))
            if inside and type(module).__name__ in _AROUND:
                session.native.wrap(scope)
                return
            keywords = _keyword_arguments(module)
            if session.shards.anywhere:
                session.shards.boundary((args, keywords))
            session.native.enter(scope, args, keywords)
        except Exception as error:
            session.fail(error)

    def is_read(self, module):
        """Does reading a weight call it, and no forward? Reading `layer.weight` of a parametrized layer (weight_norm, LoRA as a
        parametrization) runs modules; while a model is built or looked at that is no step."""
        thread = self.thread
        if isinstance(module, ParametrizationList):
            thread.reading = module
        elif thread.reading is not None and not any(module is part for part in thread.reading.modules()):
            thread.reading = None  # an exception had left it
        return thread.reading is not None

    def leave(self, module, args, output):
        if torch.compiler.is_compiling():
            return
        session = self.session
        if session.dead:
            return
        try:
            stack = self.thread.stack
            if self.thread.reading is not None and not stack:
                if module is self.thread.reading:
                    self.thread.reading = None
                return
            depth = len(stack)
            while depth and stack[depth - 1][0] is not module:  # modules that an exception left
                depth -= 1
            if not depth:
                return
            scope = stack[depth - 1][1]
            del stack[depth - 1 :]
            recorded = session.live and session.step_open
            if depth > 1 and type(module).__name__ in _AROUND:
                session.native.leave(depth, (), recorded)
                return
            if recorded and session.shards.anywhere:
                session.shards.boundary(output)
            call = session.native.leave(depth, output, recorded)
            if recorded and scope != _NOBODY:
                session.routing.left(module, scope, call, output)
            if not stack:
                session.outermost_left(module, output)
        except Exception as error:
            session.fail(error)

    def owner(self, node):
        """The scope that an op of AccumulateGrad belongs to: the module that owns the parameter."""
        path = self.owners.get(id(getattr(node, "variable", None)))
        return self.number(path, None) if path else 0


def _keyword_arguments(module):
    """The keyword arguments of the call that a global pre-hook cannot see, from the frame that runs the hooks."""
    frame = sys._getframe(2)
    for _ in range(3):
        if frame is None:
            return None
        if frame.f_code.co_name in ("inner", "_call_impl"):
            return variable_of(frame, "kwargs") or None
        frame = frame.f_back
    return None


def _infers_shapes(frame):
    while frame is not None:
        code = frame.f_code
        if "_inference" in code.co_name and code.co_filename.endswith("pipelining/stage.py"):
            return True
        frame = frame.f_back
    return False
