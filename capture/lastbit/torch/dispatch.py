"""The dispatch mode: sees every op below autograd, runs it, and sends what it was over the wire.

The hot path is `__torch_dispatch__`. What can be known from an op's schema is worked out once (`Plan`). An op that writes no
argument costs one call after it ran; one that does costs a call before, so that what it overwrites is read first.
"""
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import library
from .encoding import Parameter, Tensor, pack
from .library import (BEGIN, COLLECTIVE, COMPOSITE, DECISION, DEFER, END, INT_MEANS_FLOAT, MUTABLE, OVERWRITTEN, RANDOM,
                      RECOMPUTE, UNDEFINED, VIEW, WHOLE, WRITTEN)

_OVERWRITERS = {"copy_", "zero_", "fill_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_", "geometric_", "cauchy_",
                "log_normal_", "_foreach_zero_", "_foreach_copy_"}
_UNDEFINED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "empty_quantized"}
_DECISIONS = {"_local_scalar_dense", "item", "equal", "is_nonzero", "_is_all_true", "_is_any_true", "nonzero", "masked_select"}
_ALIASING = {"_unsafe_view", "_reshape_alias"}  # views whose schema does not say so
# Writes that the schema hides: op -> the written arguments, and the argument that says whether they are written.
_HIDDEN_WRITES = {
    "native_batch_norm": (("running_mean", "running_var"), "training"),
    "cudnn_batch_norm": (("running_mean", "running_var"), "training"),
    "miopen_batch_norm": (("running_mean", "running_var"), "training"),
    "_batch_norm_impl_index": (("running_mean", "running_var"), "training"),
    "rrelu_with_noise": (("noise",), "training"),
}
_SEEN_WHOLE = {"aten", "prims", "prim", "c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp", "quantized"}
_IGNORED = {"profiler", "streams"}
_COLLECTIVE_SPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd"}


class Plan:
    """What a schema tells about an op."""

    __slots__ = ("number", "name", "base", "ignored", "collective", "two_halves", "positional", "defaults", "rest", "masks", "chance",
                 "decomposes", "writing", "switch")

    def __init__(self, func, encoder, writing=False):
        schema = func._schema
        space, _, base = schema.name.partition("::")
        overload = schema.overload_name
        self.name = schema.name + ("." + overload if overload else "")
        self.base = base
        self.ignored = space in _IGNORED
        self.collective = space in _COLLECTIVE_SPACES and base not in ("_wrap_tensor_autograd", "wait_tensor")
        tags = getattr(func, "tags", ())
        flags = self._flags(schema, space, base, tags)
        arg_flags = [self._arg_flags(a, n, base) for n, a in enumerate(schema.arguments)]
        self.writing = self.switch = None
        hidden, switch = _HIDDEN_WRITES.get(base, ((), None))
        if hidden and writing:
            flags |= MUTABLE
            for n, a in enumerate(schema.arguments):
                if a.name in hidden:
                    arg_flags[n] |= WRITTEN
        elif hidden and not schema.is_mutable:
            self.writing = Plan(func, encoder, True)
            self.switch = next((n for n, a in enumerate(schema.arguments) if a.name == switch), None)
        self.two_halves = bool(flags & MUTABLE) or self.collective
        self.chance = None
        if flags & RANDOM:
            names = [a.name for a in schema.arguments]
            self.chance = next((names.index(n) for n in ("dropout_p", "p") if n in names and "attention" in base), None)
        if self.chance is not None:
            flags &= ~RANDOM
        self.masks = base == "index"
        if self.masks:
            flags &= ~DECISION
        self.number = encoder.wire.function(self.name, flags, arg_flags)
        self.positional = len(schema.arguments)
        self.rest = [a.name for a in schema.arguments]
        self.defaults = []
        for a in schema.arguments:
            words = []
            encoder.operand(words, a.default_value if a.has_default_value() else None)
            self.defaults.append(words)
        self.decomposes = None

    @staticmethod
    def _flags(schema, space, base, tags):
        flags = 0
        returns_alias = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        if base in _ALIASING or (returns_alias and not schema.is_mutable) or torch.Tag.inplace_view in tags and base != "resize_":
            flags |= VIEW
        if schema.is_mutable or base in _OUTPUTS_OF_COLLECTIVES or base in _REDUCED_IN_PLACE:
            flags |= MUTABLE
        if torch.Tag.nondeterministic_seeded in tags:
            flags |= RANDOM
        if base in _UNDEFINED:
            flags |= UNDEFINED
        if base in _DECISIONS or torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
            flags |= DECISION
        if space in _COLLECTIVE_SPACES and base not in ("_wrap_tensor_autograd", "wait_tensor"):
            flags |= COLLECTIVE
        elif space not in _SEEN_WHOLE:
            flags |= COMPOSITE
        return flags

    @staticmethod
    def _arg_flags(argument, position, base):
        flags = 0
        written = argument.alias_info is not None and argument.alias_info.is_write
        if written or position in _OUTPUTS_OF_COLLECTIVES.get(base, ()) or position in _REDUCED_IN_PLACE.get(base, ()):
            flags |= WRITTEN
            if (base in _OVERWRITERS and position == 0) or argument.kwarg_only:
                flags |= OVERWRITTEN
            if position in _OUTPUTS_OF_COLLECTIVES.get(base, ()):
                flags |= OVERWRITTEN
        if str(argument.type) in ("float", "Optional[float]"):
            flags |= INT_MEANS_FLOAT
        return flags


# Arguments of collectives that hold garbage before: outputs only.
_OUTPUTS_OF_COLLECTIVES = {
    "allgather_": (0,), "_allgather_base_": (0,), "allgather_coalesced_": (0,), "allgather_into_tensor_coalesced_": (0,),
    "reduce_scatter_": (0,), "_reduce_scatter_base_": (0,), "reduce_scatter_tensor_coalesced_": (0,), "alltoall_": (0,),
    "alltoall_base_": (0,), "scatter_": (0,), "recv_": (0,), "recv_any_source_": (0,), "gather_": (0,),
}

# Schemas of c10d name no argument as written; these are read and written.
_REDUCED_IN_PLACE = {"allreduce_": (0,), "allreduce_coalesced_": (0,), "broadcast_": (0,), "reduce_": (0,)}


def make_mode(session):
    """The mode as a closure over what the hot path needs."""
    encoder, wire = session.encoder, session.wire
    operand, encode_tensor = encoder.operand, encoder.tensor
    send, handle = wire.library.lb_wire_op, wire.handle
    plans = session.plans
    where = session.modules.where
    collectives = session.collectives
    inference = torch.is_inference_mode_enabled

    def plan_of(func):
        plan = plans.get(func)
        if plan is None:
            plan = plans[func] = Plan(func, encoder)
        return plan

    def call_words(plan, args, kwargs):
        phase, flags, scope, call, node, name, thread = where(plan)
        if plan.chance is not None:
            if len(args) > plan.chance and args[plan.chance]:
                flags |= RANDOM
            elif kwargs and kwargs.get("dropout_p"):
                flags |= RANDOM
        if plan.masks and any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1]):
            flags |= DECISION
        w = [plan.number, phase, flags, scope, call, node, name, thread, plan.positional]
        for a in args:
            kind = type(a)
            if kind is Tensor or kind is Parameter:
                encode_tensor(w, a)
            else:
                operand(w, a)
        n = len(args)
        if n < plan.positional:
            defaults, rest = plan.defaults, plan.rest
            for k in range(n, plan.positional):
                if kwargs and rest[k] in kwargs:
                    operand(w, kwargs[rest[k]])
                else:
                    w += defaults[k]
        return w

    def add_results(w, out):
        kind = type(out)
        if kind is Tensor:
            w.append(1)
            encode_tensor(w, out)
        elif kind is tuple or kind is list:
            at = len(w)
            w.append(0)
            w[at] = flatten(w, out)
        elif out is None:
            w.append(0)
        else:
            w.append(1)
            operand(w, out)

    def flatten(w, out):
        n = 0
        for o in out:
            if isinstance(o, (list, tuple)):
                n += flatten(w, o)
            elif o is None or isinstance(o, (Tensor, int, float, bool)):
                operand(w, o)
                n += 1
        return n

    def check(status):
        if status < 0:
            raise library.Failed(status, wire.library.lb_wire_message(handle).decode("utf-8", "replace"))
        return status

    class Recording(TorchDispatchMode):
        @classmethod
        def ignore_compile_internals(cls):
            return False

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if not session.live:
                return func(*args, **kwargs) if kwargs else func(*args)
            if types:
                for t in types:
                    if t in session.unwrapped or (t is not Tensor and session.is_wrapper(t)):
                        return NotImplemented
            try:
                plan = plans.get(func) or plan_of(func)
            except Exception as error:
                session.fail(error)
                return func(*args, **kwargs) if kwargs else func(*args)
            if plan.ignored:
                return func(*args, **kwargs) if kwargs else func(*args)
            if inference():
                if plan.decomposes is None:
                    plan.decomposes = func._can_decompose()
                if plan.decomposes:
                    with self:
                        out = func.decompose(*args, **(kwargs or {}))
                    if out is not NotImplemented:
                        return out
            if plan.writing is not None and (plan.switch is None or (len(args) > plan.switch and args[plan.switch])):
                plan = plan.writing
            if plan.two_halves:
                return two_halves(plan, func, args, kwargs)
            try:
                out = func(*args, **kwargs) if kwargs else func(*args)
            except Exception:
                failed(plan, args, kwargs)
                raise
            try:
                w = call_words(plan, args, kwargs)
                add_results(w, out)
                status = send(handle, WHOLE, 0, pack(w), len(w))
                if status < 0:
                    check(status)
            except Exception as error:
                session.fail(error)
            return out

    def two_halves(plan, func, args, kwargs):
        begun = -1
        try:
            w = call_words(plan, args, kwargs)
            begun = check(send(handle, BEGIN, 0, pack(w), len(w)))
        except Exception as error:
            session.fail(error)
        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
        except Exception:
            if begun >= 0 and session.live:
                wire.library.lb_wire_failed(handle, begun)
            raise
        if begun >= 0 and session.live:
            try:
                w = []
                add_results(w, out)
                if plan.collective:
                    collectives.end(plan, begun, args, kwargs, out, w)
                else:
                    check(send(handle, END, begun, pack(w), len(w)))
            except Exception as error:
                session.fail(error)
        return out

    def failed(plan, args, kwargs):
        """An op that raised: it is noted, and the host's exception goes on."""
        try:
            w = call_words(plan, args, kwargs)
            wire.library.lb_wire_failed(handle, check(send(handle, BEGIN, 0, pack(w), len(w))))
        except Exception as error:
            session.fail(error)

    return Recording()
