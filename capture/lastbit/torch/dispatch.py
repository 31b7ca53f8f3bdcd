"""What a schema tells about an op, worked out once, and the dispatch mode.

The mode's handler is C (capture/binding/python_dispatch.c): it sees every op below autograd, runs it and records what it was.
"""

import sys
from types import MethodType

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .library import CHANGED, COLLECTIVE, COMPOSITE, DECISION, INT_MEANS_FLOAT, MUTABLE, OVERWRITTEN, RANDOM, UNDEFINED, VIEW, WRITTEN

_OVERWRITERS = {
    "copy_",
    "zero_",
    "fill_",
    "bernoulli_",
    "normal_",
    "uniform_",
    "random_",
    "exponential_",
    "geometric_",
    "cauchy_",
    "log_normal_",
    "_foreach_zero_",
    "_foreach_copy_",
}
# In-place ops that make every element of what was there, beside those that torch tags as pointwise.
_CHANGERS = {"addmm_", "addbmm_", "baddbmm_", "addmv_", "addr_", "cumsum_", "cumprod_", "tril_", "triu_", "masked_fill_", "renorm_"}
_UNDEFINED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "empty_quantized"}
_DECISIONS = {"_local_scalar_dense", "item", "equal", "is_nonzero", "_is_all_true", "_is_any_true", "nonzero", "masked_select"}
_ALIASING = {"_unsafe_view", "_reshape_alias"}  # views whose schema does not say so
# Writes that the schema hides: op -> the written arguments, and the argument that says whether they are written (None: always).
_HIDDEN_WRITES = {
    "native_batch_norm": (("running_mean", "running_var"), "training"),
    "cudnn_batch_norm": (("running_mean", "running_var"), "training"),
    "miopen_batch_norm": (("running_mean", "running_var"), "training"),
    "_batch_norm_impl_index": (("running_mean", "running_var"), "training"),
    "batch_norm_gather_stats": (("running_mean", "running_var"), None),
    "batch_norm_gather_stats_with_counts": (("running_mean", "running_var"), None),
    "rrelu_with_noise": (("noise",), "training"),
    **dict.fromkeys(
        (
            "sgl_per_tensor_quant_fp8",
            "sgl_per_token_quant_fp8",
            "sgl_per_token_group_quant_fp8",
            "sgl_per_token_group_quant_int8",
            "sgl_per_token_group_quant_8bit",
        ),
        (("output_q", "output_s"), None),
    ),
}
_SEEN_WHOLE = {"aten", "prims", "prim", "c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp", "quantized"}
_IGNORED = {"profiler", "streams"}
# The same tensor in another class, or another storage in the same tensor, as `t.data = x`: no byte is written.
_REBINDING = {"_wrap_tensor_autograd", "set_"}
# Ops that are a few lines of Python and hide what they write: op -> where those lines are. They are run under the mode.
_LINES = {"fsdp::all_gather_copy_in": ("torch.distributed.fsdp._fully_shard._fsdp_collectives", "all_gather_copy_in_cuda")}
_COLLECTIVE_SPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd"}
# Custom ops that are collectives: op -> the arguments that hold garbage before. replay/ranks/collective_run.c has what they do.
_CUSTOM_COLLECTIVES = {
    **dict.fromkeys(
        (
            "vllm::all_reduce",
            "vllm::inplace_all_reduce",
            "vllm::outplace_all_reduce",
            "vllm::all_gather",
            "vllm::reduce_scatter",
            "_C::shm_allreduce",
            "sglang::inplace_all_reduce",
            "sglang::outplace_all_reduce",
            "sgl_kernel::shm_allreduce",
            "sgl_kernel::shm_allgather",
            "trtllm::allreduce",
            "trtllm::allgather",
            "trtllm::reducescatter",
        ),
        (),
    ),
    **dict.fromkeys(("_C_custom_ar::all_reduce", "sgl_kernel::all_reduce", "sgl_kernel::mscclpp_allreduce"), ("out",)),
    **dict.fromkeys(("sglang::reg_all_gather_into_tensor", "sglang::reg_reduce_scatter_tensor"), ("output",)),
}


def describe(func, writing=False):
    """The plan of an op (lb_dispatch_plan in capture/binding/python_binding.h). `writing`: as it is when it writes what its schema hides."""
    schema = func._schema
    space, _, base = schema.name.partition("::")
    arguments = schema.arguments
    names = [a.name for a in arguments]
    flags = _flags(schema, space, base, getattr(func, "tags", ()))
    changes = base in _CHANGERS or base.startswith("_foreach_") or torch.Tag.pointwise in getattr(func, "tags", ())
    arg_flags = [_arg_flags(a, n, base, changes) for n, a in enumerate(arguments)]
    for n, name in enumerate(names):
        if name in _CUSTOM_COLLECTIVES.get(schema.name, ()):
            arg_flags[n] |= OVERWRITTEN
    hidden, switch = _HIDDEN_WRITES.get(base, ((), None))
    if hidden and writing:
        flags |= MUTABLE
        for n, name in enumerate(names):
            if name in hidden:
                arg_flags[n] |= WRITTEN
    chance = -1
    if flags & RANDOM and ("attention" in base or base.endswith("_rnn")):  # draws only when there is dropout
        chance = next((names.index(n) for n in ("dropout_p", "p", "dropout") if n in names), -1)
        if chance >= 0:
            flags &= ~RANDOM
    masks = base == "index"  # a decision only when it indexes with a mask
    if masks:
        flags &= ~DECISION
    return {
        "func": func,
        "callee": _callee(func),
        "name": schema.name + ("." + schema.overload_name if schema.overload_name else ""),
        "flags": flags,
        "arg_flags": bytes(arg_flags),
        "names": tuple(names),
        "chance": chance,
        "non_blocking": names.index("non_blocking") if "non_blocking" in names else -1,
        "masks": masks,
        "defaults": tuple(a.default_value if a.has_default_value() else None for a in arguments),
        "ignored": space in _IGNORED or base in _REBINDING,
        "in_parts": _parts(func) is not None,
        "collective": bool(flags & COLLECTIVE),
        "writing": describe(func, True) if hidden and not writing and not schema.is_mutable else None,
        "writing_switch": names.index(switch) if switch in names else -1,
    }


def _callee(func):
    """What an overload's own __call__ calls; a frame less per op."""
    inner = getattr(func, "_op", None)
    return inner if type(func) is torch._ops.OpOverload and type(inner) is type(torch._C._get_operation_overload) else func


def describe_opaque(func, session):
    """Anything without a schema (higher-order ops). It runs without the mode, so nothing inside is seen; what it gives enters
    as sources where it is used."""
    name = str(getattr(func, "name", None) and func.name() or func)

    def run(*args, **kwargs):
        session.noticed("skipped", "%s runs functions of its own, whose ops are not seen" % name)
        return func(*args, **kwargs)

    return {
        "func": func,
        "callee": run,
        "name": name,
        "flags": COMPOSITE,
        "arg_flags": b"",
        "names": (),
        "defaults": (),
        "chance": -1,
        "non_blocking": -1,
        "writing_switch": -1,
        "ignored": True,
    }


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
    if schema.name in _CUSTOM_COLLECTIVES or space in _COLLECTIVE_SPACES and base not in ("_wrap_tensor_autograd", "wait_tensor"):
        flags |= COLLECTIVE
    elif space not in _SEEN_WHOLE:
        flags |= COMPOSITE
    return flags


def _arg_flags(argument, position, base, changes):
    flags = 0
    written = argument.alias_info is not None and argument.alias_info.is_write
    if written or position in _OUTPUTS_OF_COLLECTIVES.get(base, ()) or position in _REDUCED_IN_PLACE.get(base, ()):
        flags |= WRITTEN
        if (base in _OVERWRITERS and position == 0) or argument.kwarg_only:
            flags |= OVERWRITTEN
        if position in _OUTPUTS_OF_COLLECTIVES.get(base, ()):
            flags |= OVERWRITTEN
        if changes and not flags & OVERWRITTEN:
            flags |= CHANGED
    if str(argument.type) in ("float", "Optional[float]"):
        flags |= INT_MEANS_FLOAT
    return flags


# Arguments of collectives that hold garbage before: outputs only.
_OUTPUTS_OF_COLLECTIVES = {
    "allgather_": (0,),
    "_allgather_base_": (0,),
    "allgather_coalesced_": (0,),
    "allgather_into_tensor_coalesced_": (0,),
    "reduce_scatter_": (0,),
    "_reduce_scatter_base_": (0,),
    "reduce_scatter_tensor_coalesced_": (0,),
    "alltoall_": (0,),
    "alltoall_base_": (0,),
    "scatter_": (0,),
    "recv_": (0,),
    "recv_any_source_": (0,),
    "gather_": (0,),
}

# Schemas of c10d name no argument as written; these are read and written.
_REDUCED_IN_PLACE = {"allreduce_": (0,), "allreduce_coalesced_": (0,), "broadcast_": (0,), "reduce_": (0,)}


class Recording(TorchDispatchMode):
    """One per thread."""

    supports_higher_order_operators = True

    def __init__(self, native):
        super().__init__()
        self.__torch_dispatch__ = native.handler(self)

    @classmethod
    def ignore_compile_internals(cls):
        return False


def poisoned(mode):
    """The mode, filling with NaN what ops leave unwritten: what no kernel writes is NaN wherever it is read. Numbers that are not floats
    stay, since the program may take them for indices."""
    record = mode.__torch_dispatch__

    def dispatch(mode, func, types, args=(), kwargs=None):
        out = record(func, types, args, kwargs)
        if func._schema.name.partition("::")[2] in _UNDEFINED and _takes_nan(out):
            with mode:
                out.fill_(float("nan"))
        return out

    mode.__torch_dispatch__ = MethodType(dispatch, mode)
    return mode


def _takes_nan(out):
    return type(out) is torch.Tensor and (out.is_floating_point() or out.is_complex()) and not out.is_meta and out.dtype not in _WITHOUT_NAN


_WITHOUT_NAN = {getattr(torch, name) for name in ("float4_e2m1fn_x2",) if hasattr(torch, name)}


class RecordingGraphs(Recording):
    """Lets the compiler work; what it makes is run op by op under the mode (compiled.py)."""

    @classmethod
    def ignore_compile_internals(cls):
        return True


def _parts(func):
    module, name = _LINES.get(func._schema.name, ("", ""))
    return getattr(sys.modules.get(module), name, None)


def decompose(mode, func, args, kwargs):
    """An op that arrived whole: its parts come back to the mode. In inference mode all composite ops do."""
    parts = _parts(func) or func.decompose
    with mode:
        return parts(*args, **(kwargs or {}))
