"""Fingerprints of a model that runs: 128 bits for each tensor, as include/lastbit/fingerprint.h has them, which add up over ranks.

    table = lastbit.torch.fingerprint(model)             # this rank's tensors, or its parts of them
    table = table.all_reduce()                           # of all ranks: one all_reduce of int64 numbers
    table.save("trainer.json")                           # as `lastbit fingerprint --json` writes it
    table.compare(lastbit.torch.load_fingerprint("server.json")).matches

A part knows its place (DTensor, FSDP2, Megatron, DeepSpeed, `lastbit.torch.shard`). Tensors of a device are copied through in blocks; the
hashes are made by liblastbit.so, in threads, while the next block is copied. Nothing of the model is changed, kept or moved.
"""

import concurrent.futures
import ctypes
import itertools
import json
import math
import os
import tempfile
import threading

import torch

from ..reader import answer, layout
from . import shards
from .objects import dtypes, local

BLOCK = 16 << 20  # bytes of a tensor that are on the host at a time
NARROW = ("bf16", "f16")
_NARROW = {"bf16": torch.bfloat16, "f16": torch.float16}
_WIDE = (torch.float32, torch.float64)
RAW, NUMBERS = 0, 1
_MASK = (1 << 64) - 1


class Row:
    """One tensor. `sums`: [raw, numbers, bf16, f16], each (a, b), of the `elements` of it that are here."""

    def __init__(self, name, dtype, shape, sums, elements, narrow=(), constant=False, lacks=None, sharded=False):
        self.name, self.dtype, self.shape, self.sums, self.elements = name, dtype, tuple(shape), [tuple(s) for s in sums], elements
        self.narrow, self.constant, self.lacks, self.sharded = tuple(narrow), constant, lacks, sharded

    @property
    def why(self):
        """Why it has no fingerprint of its own; None: it has."""
        if self.lacks:
            return self.lacks
        whole = math.prod(self.shape)
        return None if self.elements == whole else "a part of it: %d of %d elements" % (self.elements, whole)

    @property
    def fingerprint(self):
        return None if self.why else _text(self.sums[0])

    @property
    def numbers(self):
        return None if self.why else _text(self.sums[1])

    def as_json(self):
        marks = dict(
            fingerprint=_text(self.sums[0]),
            numbers=_text(self.sums[1]),
            rounded=[dict(dtype=name, numbers=_text(self.sums[2 + NARROW.index(name)])) for name in self.narrow],
        )
        part = dict(elements=self.elements, **marks) if self.why and not self.lacks else None
        if self.why:
            marks = dict(fingerprint=None, numbers=None, rounded=[])
        return dict(name=self.name, dtype=self.dtype, shape=list(self.shape), **marks, constant=self.constant, lacks=self.why, part=part)

    @classmethod
    def of_json(cls, row):
        part = row.get("part") or (row if not row["lacks"] else dict(fingerprint=None, numbers=None, rounded=[], elements=0))
        sums = [_parsed(part["fingerprint"]), _parsed(part["numbers"]), (0, 0), (0, 0)]
        for one in part["rounded"]:
            sums[2 + NARROW.index(one["dtype"])] = _parsed(one["numbers"])
        elements = part["elements"] if row.get("part") else math.prod(row["shape"])
        narrow = [one["dtype"] for one in part["rounded"]]
        lacks = row["lacks"] if not row.get("part") else None
        return cls(row["name"], row["dtype"], row["shape"], sums, elements, narrow, row["constant"], lacks, bool(row.get("part")))


def _text(sums):
    return "%016x%016x" % sums


def _parsed(text):
    return (int(text[:16], 16), int(text[16:], 16)) if text else (0, 0)


def _added(x, y):
    return [((a + c) & _MASK, (b + d) & _MASK) for (a, b), (c, d) in zip(x, y)]


class Table:
    """Rows by name: `table["lm_head.weight"].fingerprint`."""

    def __init__(self, rows, path="", step=None):
        self.rows = {row.name: row for row in sorted(rows, key=lambda row: row.name.encode())}
        self.path, self.step = path, step

    def __getitem__(self, name):
        return self.rows[name]

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows.values())

    @property
    def sum(self):
        """One fingerprint of all rows that have one, each mixed with its name."""
        library, sums = layout.load(), [(0, 0)]
        for row in self:
            if not row.why:
                named = library.lb_fingerprint_named(layout.Fingerprint(*row.sums[0]), row.name.encode("utf-8", "surrogateescape"))
                sums = _added(sums, [(named.a, named.b)])
        return _text(sums[0])

    def as_json(self):
        rows = [row.as_json() for row in self]
        table = dict(path=self.path, step=self.step, count=len(rows), sum=self.sum, tensors=rows)
        return dict(schema="lastbit.fingerprint/1", verdict=None, tables=[table], others=[], counts=None, matches=[])

    def save(self, path):
        """Writes a table that `lastbit fingerprint` takes for a FILE, whole or not at all; its name ends with .json."""
        path = os.fspath(path)
        if not path.endswith(".json"):
            raise ValueError("the name of a table ends with .json, not as %r does" % path)
        text, how, report = json.dumps(self.as_json()).encode(), layout.OutputOptions(replace=True), layout.Report()
        how.size = ctypes.sizeof(how)
        layout.check(layout.load().lb_output_save(os.fsencode(path), how, text, len(text), report), report)

    def compare(self, *others, earlier=()):
        """What became of each tensor on the other side: the answer of `lastbit fingerprint`, whose fields schema/fingerprint.json has.

        `others`: tables, or paths of what the command reads. `earlier`: what this side sent before, oldest first, of which a tensor of the
        other side may have stayed (`old`). Raises lastbit.Error where a side cannot be read."""
        with tempfile.TemporaryDirectory() as folder:
            number = itertools.count()

            def path_of(side):
                if not isinstance(side, Table):
                    return side
                path = os.path.join(folder, "%d.json" % next(number))
                side.save(path)
                return path

            files = [path_of(side) for side in (*earlier, self)]
            return answer.ask("fingerprint", files, {"against": [path_of(side) for side in others]})

    def all_reduce(self, group=None):
        """The table of all ranks of a process group, the same on each: one all_reduce of int64 numbers.

        All ranks hold tensors of the same names (those of one pipeline stage; `merge_fingerprints` takes any). Parts add up; a tensor that is
        whole on every rank has to be the same there, and a row says so where it is not. Where parts are on several ranks alike (data
        parallelism beside Megatron's tensor parallelism), `group` is one of ranks that hold different ones; DTensors say so themselves."""
        import torch.distributed as dist

        world = dist.get_world_size(group)
        backend = str(dist.get_backend(group))
        device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in backend else torch.device("cpu")
        names = hash_of("\n".join("%s %s %s" % (row.name, row.dtype, row.shape) for row in self))
        numbers = [*names, *itertools.chain.from_iterable(_numbers_of(row) for row in self)]
        sent = torch.tensor([_signed(n) for n in numbers], dtype=torch.int64, device=device)
        dist.all_reduce(sent, group=group)
        got = [n & _MASK for n in sent.tolist()]
        if [n * world & _MASK for n in names] != got[:2]:
            raise layout.Error("ranks of this group hold tensors of other names, dtypes or shapes; merge_fingerprints takes tables of such ranks")
        rows, width = [], _WIDTH
        for i, row in enumerate(self):
            mine = got[2 + i * width : 2 + (i + 1) * width]
            rows.append(_of_all(row, mine, world))
        return Table(rows, self.path, self.step)


_WIDTH = 12


def _numbers_of(row):
    """What a rank gives of a row: its sums, its elements, whether it has them whole, lacks them, holds one number everywhere."""
    return [*itertools.chain.from_iterable(row.sums), row.elements, not row.sharded, bool(row.lacks), row.constant]


def _of_all(row, got, world):
    sums, (elements, wholes, lacking, constant) = [(got[k], got[k + 1]) for k in range(0, 8, 2)], got[8:]
    lacks = row.lacks
    if lacking and not lacks:
        lacks = "another rank could not fingerprint its part"
    if wholes == world:
        elements, same = row.elements, [(a * world & _MASK, b * world & _MASK) for a, b in row.sums] == sums
        sums, lacks = row.sums, lacks or (None if same else "copies of it differ between ranks")
    elif wholes:
        lacks = lacks or "some ranks have all of it, others a part"
    elif elements > math.prod(row.shape):
        lacks = lacks or "ranks hold %d elements of its %d: some hold the same part" % (elements, math.prod(row.shape))
    # Parts of one number each may hold different ones: then nothing is said.
    return Row(row.name, row.dtype, row.shape, sums, elements, row.narrow, bool(wholes == world and constant == world), lacks, row.sharded)


def _signed(number):
    number = int(number) & _MASK
    return number - (1 << 64) if number >> 63 else number


def hash_of(text):
    """Two words, by the library's own hash of a name."""
    named = layout.load().lb_fingerprint_named(layout.Fingerprint(0, 0), text.encode("utf-8", "surrogateescape"))
    return named.a, named.b


def merge(tables):
    """One table of the tables of all ranks, or their paths: parts add up, names that one rank alone has (pipeline stages) are kept, and
    copies have to be the same. A rank's part is to be in one table only."""
    rows = {}
    for row in itertools.chain.from_iterable(table if isinstance(table, Table) else load(table) for table in tables):
        found = rows.get(row.name)
        if found is None:
            rows[row.name] = row
            continue
        sums, elements, lacks = found.sums, found.elements, found.lacks or row.lacks
        if (found.dtype, found.shape, found.narrow, found.sharded) != (row.dtype, row.shape, row.narrow, row.sharded):
            lacks = lacks or "ranks have it with other dtypes or shapes, or in parts and whole"
        elif not row.sharded:
            lacks = lacks or (None if found.sums == row.sums else "copies of it differ between ranks")
        else:
            sums, elements = _added(found.sums, row.sums), found.elements + row.elements
            if elements > math.prod(row.shape):
                lacks = lacks or "ranks hold %d elements of its %d: some hold the same part" % (elements, math.prod(row.shape))
        rows[row.name] = Row(row.name, row.dtype, row.shape, sums, elements, row.narrow, found.constant and not row.sharded, lacks, row.sharded)
    return Table(rows.values())


def load(path):
    """A table that was saved, or that `lastbit fingerprint --json FILE` printed."""
    path = os.fspath(path)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = json.load(file)
        (table,) = text["tables"]
        if text["schema"] != "lastbit.fingerprint/1":
            raise ValueError(text["schema"])
        return Table([Row.of_json(row) for row in table["tensors"]], table["path"], table["step"])
    except FileNotFoundError:
        raise layout.Error("%s: no such file" % path, "LB_ERR_NOT_FOUND") from None
    except (KeyError, TypeError, ValueError) as error:
        raise layout.Error("%s: is not a table of fingerprints (%s)" % (path, error), "LB_ERR_CORRUPT") from None


# ---- tensors


def tensors_of(source):
    """(name, tensor) of a module, parameters and persistent buffers as its state_dict names them, or of a dict. A module's own state_dict
    is not asked: that of FSDP1 puts the model together."""
    if isinstance(source, torch.nn.Module):
        for prefix, module in source.named_modules(remove_duplicate=False):
            head = prefix + "." if prefix else ""
            buffers = {name: b for name, b in module._buffers.items() if name not in module._non_persistent_buffers_set}
            for name, tensor in itertools.chain(module._parameters.items(), buffers.items()):
                if tensor is not None:
                    yield head + name, tensor
        return
    for name, value in source.items():
        if isinstance(value, torch.Tensor):
            yield str(name), value
        elif isinstance(value, dict):  # a state dict of several: {"model": …}
            for inner, tensor in tensors_of(value):
                yield "%s.%s" % (name, inner), tensor


def _placed(tensor):
    """(what lies here, first element of the part, extents, counts here, why not): extents None for a tensor that is whole."""
    said = shards._said_of(tensor)
    if said is not None:
        return tensor.detach(), said[1], said[2], True, None
    if hasattr(tensor, "device_mesh") and hasattr(tensor, "placements"):
        if any(p.is_partial() for p in tensor.placements):
            return tensor, 0, None, False, "it is a sum over ranks that was not made"
        if all(p.is_replicate() for p in tensor.placements):
            return local(tensor).detach(), 0, None, True, None
        told, coordinate = shards.of_dtensor(tensor), tensor.device_mesh.get_coordinate()
        if told is None:  # this rank is not of the mesh
            return local(tensor).detach(), 0, [(d, int(n), 0, 0) for d, n in enumerate(tensor.shape)], False, None
        first = all(c == 0 for c, p in zip(coordinate, tensor.placements) if p.is_replicate())  # copies count once
        return local(tensor).detach(), 0, told[2], first, None
    told = shards.of_deepspeed(tensor)
    if told is not None:
        return told[0].detach(), told[1][1], told[1][2], True, None
    told = shards.of_megatron(tensor)
    return tensor.detach(), 0, told[2] if told else None, True, None


def _blocks(tensor, at, extents):
    """(view, whole shape, where it starts) for each block that the extents name."""
    if extents is None:
        yield tensor, list(tensor.shape), [0] * tensor.ndim
        return
    if extents[-1][0] == shards.FLAT:
        _, whole, first, size = extents[-1]
        yield tensor.reshape(-1)[at : at + size], [whole], [first]
        return
    ranges = [[(e[2], e[3]) for e in extents if e[0] == d] for d in range(len({e[0] for e in extents}))]
    whole = [next(e[1] for e in extents if e[0] == d) for d in range(len(ranges))]
    part = [sum(size for _, size in r) for r in ranges]
    held = tensor if list(tensor.shape) == part else tensor.reshape(-1)[at : at + math.prod(part)].reshape(part)
    for chosen in itertools.product(*(range(len(r)) for r in ranges)):
        view, start = held, []
        for d, k in enumerate(chosen):
            view = view.narrow(d, sum(size for _, size in ranges[d][:k]), ranges[d][k][1])
            start.append(ranges[d][k][0])
        yield view, whole, start


def _shape_of(tensor, extents):
    if extents is None:
        return tuple(tensor.shape)
    sizes = {d: whole for d, whole, _, _ in extents if d != shards.FLAT}
    return tuple(sizes[d] for d in sorted(sizes))


def _slabs(view, whole, start):
    """Of at most BLOCK bytes where its rows are not larger."""
    rows = view.shape[0] if view.ndim else 1
    step = max(1, BLOCK * rows // max(1, view.numel() * view.element_size()))
    if not view.ndim or step >= rows:
        yield view, whole, start
        return
    for first in range(0, rows, step):
        yield view[first : first + step], whole, [start[0] + first, *start[1:]]


def _is_constant(block):
    """Whether all elements have the same bits; most tensors tell by their first few."""
    for part in (block.reshape(-1)[:64], block):
        bits = part.contiguous().view(-1).view(torch.uint8).view(-1, part.element_size())
        if not torch.equal(bits, bits[:1].expand_as(bits)):
            return False
    return True


class _Hasher:
    """Blocks of tensors that lie on the host, hashed by the library in threads."""

    def __init__(self, threads):
        self.library, self.codes, self.pool = layout.load(), {}, concurrent.futures.ThreadPoolExecutor(threads)
        self.room = threading.Semaphore(2 * threads)
        for dtype, name in dtypes().items():
            self.codes[dtype] = self.library.lb_dtype_parse(name.encode())

    def add(self, form, block, whole, start):
        shape = list(block.shape)
        tensor = layout.Tensor(block.data_ptr() or None, self.codes[block.dtype])
        tensor.layout.ndim = len(shape)
        tensor.layout.shape[: len(shape)], tensor.layout.stride[: len(shape)] = shape, list(block.stride())
        sums, report, sizes = layout.Fingerprint(0, 0), layout.Report(), ctypes.c_int64 * max(1, len(whole))
        layout.check(self.library.lb_fingerprint_block(form, tensor, sizes(*whole), sizes(*start), sums, report), report)
        return sums.a, sums.b

    def hash(self, block, whole, start, narrow):
        try:
            sums = [self.add(RAW, block, whole, start), self.add(NUMBERS, block, whole, start)]
            for name in NARROW:
                sums.append(self.add(NUMBERS, block.to(_NARROW[name]), whole, start) if name in narrow else (0, 0))
            return sums, block.numel(), _is_constant(block)
        finally:
            self.room.release()

    def start(self, slab, whole, start, narrow):
        host = slab if slab.device.type == "cpu" else slab.to("cpu")
        host = host.resolve_conj().resolve_neg()
        self.room.acquire()
        return self.pool.submit(self.hash, host, whole, start, narrow)


def _begin(hasher, name, tensor, rounded):
    """What is needed for a row, and its blocks on their way; a row where it has none."""
    code, shape = hasher.codes.get(tensor.dtype), tuple(tensor.shape)
    dtype = hasher.library.lb_dtype_name(code).decode() if code else str(tensor.dtype)
    none = [(0, 0)] * 4
    if tensor.layout is not torch.strided or not code or tensor.is_meta:
        return Row(name, dtype if code else "u8", shape, none, 0, lacks="a tensor without numbers in memory, or of a kind that is not read"), ()
    held, at, extents, counts, why = _placed(tensor)
    if why:
        return Row(name, dtype, shape, none, 0, lacks=why, sharded=True), ()
    narrow = NARROW if rounded and tensor.dtype in _WIDE else ()
    row = Row(name, dtype, _shape_of(tensor, extents), none, 0, narrow, sharded=extents is not None)
    if not counts:
        return row, ()
    slabs = (slab for block in _blocks(held, at, extents) if block[0].numel() for slab in _slabs(*block))
    return row, [hasher.start(*slab, narrow) for slab in slabs]


def fingerprint(source, rounded=False, threads=None):
    """See lastbit.torch.fingerprint."""
    hasher = _Hasher(threads or max(1, min(8, torch.get_num_threads())))
    with torch.no_grad(), hasher.pool:
        begun = [_begin(hasher, name, tensor, rounded) for name, tensor in tensors_of(source)]
        rows = []
        for row, futures in begun:
            alike = True
            for future in futures:
                sums, elements, constant = future.result()
                row.sums, row.elements, alike = _added(row.sums, sums), row.elements + elements, alike and constant
            # Blocks that hold one number each may hold several; a tensor of one block tells.
            row.constant = bool(len(futures) == 1 and alike and not row.sharded)
            rows.append(row)
    return Table(rows)
