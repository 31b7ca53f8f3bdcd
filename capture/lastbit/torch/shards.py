"""Which part of a larger tensor a tensor is: DTensor, FSDP, Megatron and DeepSpeed say so themselves, others by `lastbit.torch.shard`.

A part is told of by extents (dimension, size of the whole, first, size), several of one dimension where it is no one range, and by the axes
(name, ranks, placement, dimension, reduction) of the mesh of ranks; include/lastbit/shard.h has what they mean.
"""

import math
import sys
import weakref

import torch

from .modules import clean
from .objects import local

REPLICATE, SHARD, PARTIAL = 0, 1, 2
FLAT = -1
_PLAIN = (torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None))


def shard(tensor, pieces, whole=None, axis=None, size=None, name=None):
    """Says which part of a larger tensor a tensor is, where the program cuts it by hand; returns the tensor.

    pieces   {dimension: [(from, to), …]}: the ranges of the whole that it holds, in the order in which they lie in it
    whole    {dimension: size} of the whole along these dimensions
    axis     what the ranks share it along ("cp"), of which there are `size`, all of the program's
    name     of the whole, where that is another than the tensor's own
    """
    from . import session as sessions

    whole = {} if whole is None else whole
    extents = []
    for dim, n in enumerate(tensor.shape):
        ranges = [(int(a), int(b)) for a, b in pieces.get(dim, [(0, n)])]
        if sum(b - a for a, b in ranges) != n:
            raise ValueError("shard: dimension %d has %d elements, and its ranges %s" % (dim, n, ranges))
        along = int(whole.get(dim, n if dim not in pieces else max(b for _, b in ranges)))
        if any(a < 0 or b < a or b > along for a, b in ranges):
            raise ValueError("shard: dimension %d: ranges %s of a whole of %d" % (dim, ranges, along))
        extents += [(dim, along, a, b - a) for a, b in ranges]
    axes, ranks = [], []
    if axis is not None and size:
        axes = [(axis, int(size), SHARD, min(pieces, default=0), None)]
        ranks = list(range(int(size)))
    said = (name, 0, extents, axes, ranks)
    _SAID[id(tensor)] = (weakref.ref(tensor), said)
    session = sessions.current
    if session is not None:
        session.guarded(session.shards.tell, tensor, said)
    return tensor


_SAID = {}  # id of a tensor: (weak reference to it, what the program said of it)


def _said_of(tensor):
    known = _SAID.get(id(tensor))
    return known[1] if known is not None and known[0]() is tensor else None


# ---- DTensor


def _chunks(ranges, n):
    """Ranges that lie one after the other cut into n parts as torch.chunk cuts."""
    total = sum(size for _, size in ranges)
    step = -(-total // n) if total else 0
    return [_slice(ranges, min(k * step, total), min((k + 1) * step, total)) for k in range(n)]


def _slice(ranges, begin, end):
    found, at = [], 0
    for first, size in ranges:
        low, high = max(begin - at, 0), min(end - at, size)
        if low < high:
            found.append((first + low, high - low))
        at += size
    return found


def _joined(ranges):
    """Ranges that go on where the one before ended are one."""
    found = []
    for first, size in ranges:
        if found and sum(found[-1]) == first:
            found[-1] = (found[-1][0], found[-1][1] + size)
        else:
            found.append((first, size))
    return found or [(0, 0)]


def _cut(ranges, placement, n, coordinate):
    """What the rank at that coordinate has of a dimension. A strided shard is cut within each of the parts that an axis to come makes."""
    factor = getattr(placement, "split_factor", None)
    if factor is None:
        return _chunks(ranges, n)[coordinate]
    return [piece for part in _chunks(ranges, int(factor)) for piece in _chunks(part, n)[coordinate]]


def of_dtensor(t):
    mesh, placements = t.device_mesh, t.placements
    coordinates = mesh.get_coordinate()
    if coordinates is None:
        return None  # this rank has no part
    names = mesh.mesh_dim_names or (None,) * mesh.ndim
    dims = [[(0, int(n))] for n in t.shape]
    axes = []
    for axis, placement in enumerate(placements):
        size, kind, dim, reduce = int(mesh.size(axis)), REPLICATE, 0, None
        if placement.is_partial():
            kind, reduce = PARTIAL, str(placement.reduce_op)
        elif not placement.is_replicate():
            kind, dim = SHARD, int(placement.dim)
            dims[dim] = _cut(dims[dim], placement, size, coordinates[axis])
        axes.append((names[axis], size, kind, dim, reduce))
    extents = [(d, int(t.shape[d]), first, size) for d, ranges in enumerate(dims) for first, size in _joined(ranges)]
    return None, 0, extents, axes, [int(r) for r in mesh.mesh.flatten().tolist()]


# ---- attributes of parameters


def _whole_extents(shape):
    return [(d, int(n), 0, int(n)) for d, n in enumerate(shape)]


def of_megatron(p):
    """`tensor_model_parallel`, `partition_dim` and `partition_stride`, as megatron.core.tensor_parallel.layers sets them."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not getattr(p, "tensor_model_parallel", False):
        return None
    size, mine = int(state.get_tensor_model_parallel_world_size()), int(state.get_tensor_model_parallel_rank())
    dim, stride = int(p.partition_dim), max(1, int(getattr(p, "partition_stride", 1)))
    step = int(p.shape[dim]) // stride
    extents = []
    for d, n in enumerate(p.shape):
        if d != dim:
            extents.append((d, int(n), 0, int(n)))
        else:
            extents += [(d, int(n) * size, (k * size + mine) * step, step) for k in range(stride)]
    return None, 0, extents, [("tp", size, SHARD, dim, None)], _ranks_of(state.get_tensor_model_parallel_group(), size)


def of_deepspeed(p):
    """`ds_shape`, `ds_numel` and `ds_tensor`: what this rank has of a parameter that ZeRO-3 has put away, flat and padded."""
    import torch.distributed as dist

    flat = getattr(p, "ds_tensor", None)
    if flat is None or not hasattr(p, "ds_shape"):
        return None
    group = getattr(p, "ds_process_group", None)
    size, mine = dist.get_world_size(group), dist.get_rank(group)
    total, each = int(p.ds_numel), int(getattr(flat, "ds_numel", flat.numel()))
    first = min(mine * each, total)
    extents = _whole_extents(p.ds_shape) or [(0, 1, 0, 1)]
    extents.append((FLAT, total, first, min(each, total - first)))
    return flat, (None, 0, extents, [("zero", size, SHARD, FLAT, None)], _ranks_of(group, size))


def _ranks_of(group, size):
    import torch.distributed as dist

    try:
        return [int(r) for r in dist.get_process_group_ranks(group)]
    except Exception:
        return list(range(size))


# ---- FSDP1


def of_flat_parameter(handle, name_of):
    """(tensor, what is said of it, the parameter that the program sees) for each parameter of which the flat one of
    FullyShardedDataParallel has a part here; the program sees none of them where it was not asked to keep them (use_orig_params)."""
    flat, group = handle.flat_param, handle.process_group
    part = getattr(flat, "_local_shard", None)
    if part is None:  # before the first forward
        part = flat.data
    if part.numel() != flat._sharded_size.numel():
        return []  # it is whole: no rank has a part of it
    found = []
    size = group.size()
    axes, ranks = [("fsdp", size, SHARD, FLAT, None)], _ranks_of(group, size)
    seen = getattr(flat, "_params", None) or [None] * len(flat._fqns)
    for info, shape, fqn, p in zip(flat._shard_param_infos, flat._shapes, flat._fqns, seen):
        if not info.in_shard or not info.numel_in_shard:
            continue
        extents = _whole_extents(shape) or [(0, 1, 0, 1)]
        extents.append((FLAT, math.prod(shape), int(info.intra_param_start_idx), int(info.numel_in_shard)))
        found.append((part, (name_of(fqn), int(info.offset_in_shard), extents, axes, ranks), p))
    return found


class Shards:
    """Tells the recorder."""

    def __init__(self, session):
        self.session = session
        self.failed = False  # and that was noted
        self.flat = {}  # id of a parameter of FSDP1, flat or original: (weak reference to it, what is said of what lies as it does)

    def tell(self, tensor, said):
        session = self.session
        if session.opened and not session.dead:
            session.native.shard(local(tensor), *said)

    def found(self, tensor, like=None, name=None):
        """A tensor that has a name, or that a module takes or gives. `like`: the parameter that it is the gradient or a state of."""
        try:
            if like is not None and self.flat and self.lies_flat(tensor, like, name):
                return
            for told in (tensor, like):
                if told is None or told is like and tuple(told.shape) != tuple(tensor.shape):
                    continue
                said = self.said_by(told)
                if said is not None:
                    self.tell(*said) if told is tensor else self.tell(tensor, said[1])
                    return
        except Exception as error:  # attributes of others, which may mean something else some day
            if not self.failed:
                self.session.noticed("shard", "which part of a larger tensor some tensors are could not be found out: %s" % error)
            self.failed = True

    def lies_flat(self, tensor, like, name):
        """A gradient or state of what FSDP1 holds, of as many elements as this rank has."""
        known = self.flat.get(id(like))
        if known is None or known[0]() is not like:
            return False
        elements, said = known[1:]
        if tensor.dim() != 1 or tensor.numel() != elements:
            return False
        prefix = name[: name.index(":") + 1] if name and name.startswith("optimizer.") and ":" in name else ""
        for whole, *rest in said:
            self.tell(tensor, (None if whole is None else prefix + whole, *rest))
        return True

    @staticmethod
    def said_by(t):
        """(The tensor that holds the numbers, what is to be said of it), or None."""
        if hasattr(t, "_local_tensor") and hasattr(t, "placements"):
            said = of_dtensor(t)
        elif hasattr(t, "ds_shape"):
            return of_deepspeed(t)
        else:
            said = _said_of(t) or of_megatron(t)
        return None if said is None else (t, said)

    def boundary(self, held, depth=0):
        """DTensors among what a module takes or gives."""
        if type(held) in _PLAIN:
            return
        if hasattr(held, "_local_tensor"):
            self.found(held)
        elif depth < 3 and isinstance(held, (tuple, list)):
            for item in held:
                self.boundary(item, depth + 1)
        elif depth < 3 and isinstance(held, dict):
            for item in held.values():
                self.boundary(item, depth + 1)

    @property
    def anywhere(self):
        """Whether a module may hand on DTensors at all."""
        return "torch.distributed.tensor" in sys.modules

    def step_began(self):
        """What is said of tensors themselves, and flat parameters."""
        for key, (ref, said) in list(_SAID.items()):
            tensor = ref()
            if tensor is None:
                del _SAID[key]
            else:
                self.tell(tensor, said)
        self.flat = {}
        if "torch.distributed.fsdp.fully_sharded_data_parallel" not in sys.modules:
            return
        for root, prefix in self.session.modules.holders():
            for path, module in root.named_modules():
                handle = getattr(module, "_handle", None) if type(module).__name__ == "FullyShardedDataParallel" else None
                if handle is None:
                    continue
                above = prefix + "." if prefix else ""
                inside = clean(path)
                told = of_flat_parameter(handle, lambda fqn: above + (inside + "." if inside else "") + fqn)
                for tensor, said, p in told:
                    self.tell(tensor, said)
                    if p is not None:
                        self.flat[id(p)] = (weakref.ref(p), said[2][-1][3], [(None, 0, *said[2:])])
                if told and all(p is None for _, _, p in told):
                    flat = handle.flat_param
                    self.flat[id(flat)] = (weakref.ref(flat), told[0][0].numel(), [said for _, said, _ in told])
