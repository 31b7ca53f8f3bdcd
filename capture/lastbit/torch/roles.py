"""What the recorder is told of tensors at the begin of a step: which are parameters, buffers, states and inputs, and what they are called."""

import sys

import torch

from . import library, objects
from .modules import _keyword_arguments, clean
from .names import held_by_program


class Roles:
    def __init__(self, session):
        self.session = session
        self.names = {}  # id of a parameter or buffer -> what it is called

    def role(self, tensor, kind, flags, name, like=None):
        """`like`: the parameter that it is the gradient or a state of."""
        self.session.native.role(objects.local(tensor), kind, flags, name)
        self.session.shards.found(tensor, like, name)

    def name_tensors(self):
        """Tells the recorder which storages are parameters, buffers and states, and which module owns a parameter."""
        names = self.names = {}
        owners = self.session.modules.owners = {}
        for module, prefix in self.session.modules.holders():
            self.name_module(module, prefix, names, owners)
        self.name_held(names)
        self.session.functions.name_tensors(names)
        self.session.guarded(self.session.shards.step_began)
        for optimizer in self.session.optimizers.living():
            self.session.optimizers.name_states(optimizer, names)

    def name_module(self, module, prefix, names, owners):
        prefix += "." if prefix else ""
        for name, p in module.named_parameters():
            if id(p) not in names:
                name = names[id(p)] = prefix + clean(name)
                owners[id(p)] = name.rpartition(".")[0]
                self.name(p, library.PARAMETER, library.IS_PARAMETER, name)
        for name, b in module.named_buffers():
            if id(b) not in names:
                names[id(b)] = prefix + clean(name)
                self.name(b, library.STATE, library.IS_STATE, prefix + clean(name))

    def owners_of(self, tensors):
        """Paths of the modules whose parameters lie in the memory of some of these tensors."""
        if self.owners_at != self.session.step:
            self.owners_at, self.owners = self.session.step, {}
            for p in (p for p in (ref() for ref in self.session.parameters) if p is not None):
                try:
                    self.owners[p.untyped_storage().data_ptr()] = self.session.modules.owners.get(id(p))
                except (RuntimeError, NotImplementedError):
                    pass  # no memory of its own: lazy, spread over ranks
        found = {self.owners.get(t.untyped_storage().data_ptr()) for t in tensors if type(t) in (torch.Tensor, torch.nn.Parameter)}
        return found - {None}

    owners_at = None  # the step whose owners are known

    def name_held(self, names):
        """Parameters that no module holds."""
        held = {}
        for optimizer in self.session.optimizers.living():
            for index, group in enumerate(optimizer.param_groups):
                for n, p in enumerate(group["params"]):
                    if id(p) not in names:
                        held[id(p)] = (p, "%s.%d.%d" % (type(optimizer).__name__, index, n))
        own = {id(t): name for name, t in held_by_program(sys._getframe(1))} if held else {}
        for key, (p, name) in held.items():
            names[key] = own.get(key, name)
            self.name(p, library.PARAMETER, library.IS_PARAMETER, names[key])

    def name(self, tensor, kind, flags, name, like=None):
        """The same as `role` for a tensor that may be none of ours: lazy, fake, wrapped by a transform of functions."""
        try:
            self.role(tensor, kind, flags, name, like)
        except library.Failed:
            raise
        except Exception:
            pass

    def name_inputs(self, module, args, kwargs=None):
        def visit(a, name, depth):
            if isinstance(a, torch.Tensor):
                if id(a) not in self.names:
                    self.role(a, library.BATCH, library.IS_INPUT, name)
            elif depth < 4 and isinstance(a, dict):
                for k, v in a.items():
                    visit(v, "%s.%s" % (name, k) if name != "input" else "input:%s" % k, depth + 1)
            elif depth < 4 and isinstance(a, (list, tuple)):
                for n, v in enumerate(a):
                    visit(v, "%s.%d" % (name, n) if name != "input" else "input:%d" % n, depth + 1)

        visit(args, "input", 0)
        visit(kwargs or _keyword_arguments(module) or {}, "input", 0)
