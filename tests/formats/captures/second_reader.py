"""A second reader of lastbit captures, written from formats/FORMAT.md alone: standard library and msgpack.

It uses neither the closing index nor libarchive, so whatever it reads does not depend on ours. Digests are not computed
(XXH3 is not in the standard library); zstd is reached through ctypes, for packed files only.
"""

import ctypes.util
import io
import os
import re
import struct
import sys
import tarfile

import msgpack

ATTRIBUTE = "SCHILY.xattr.user.lastbit"
DTYPE_BITS = dict(enumerate([64, 32, 16, 16, 8, 8, 8, 8, 8, 4, 32, 64, 128, 8, 16, 32, 64, 8, 16, 32, 64, 8], start=1))
FLOATS = {"statistics": {"min", "max", "sum", "sum_squares"}, "scalars": {"number"}}
DIGESTS = {"logical", "blob"}
TABLES = ("scopes ops args refs values statistics boundaries collectives routings scalars groups group_params notices").split()
SINCE_1_1 = "shards extents placements meshes mesh_axes".split()


def unzstd(data, size):
    decompress = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1").ZSTD_decompress
    decompress.restype, decompress.argtypes = ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t] * 2
    out = ctypes.create_string_buffer(max(size, 1))
    got = decompress(out, size, data, len(data))
    assert got == size, f"zstd gave {got} bytes, expected {size}"
    return out.raw[:size]


def decode(data, coding, size):
    if coding == 0:
        return data
    data = unzstd(data, size)
    if coding == 1:
        return data
    n, out = size // coding, bytearray(data)
    for k in range(coding):
        out[k : n * coding : coding] = data[k * n : (k + 1) * n]
    return bytes(out)


def numbers(data, rows):
    if rows == 0:
        return []
    width = len(data) // rows
    assert width * rows == len(data) and width in (1, 2, 4, 8), f"{len(data)} bytes for {rows} rows"
    return list(struct.unpack(f"<{rows}{'bhiq'[(1, 2, 4, 8).index(width)]}", data))


def read_program(data):
    program = msgpack.unpackb(data, strict_map_key=False)
    for name in TABLES + SINCE_1_1:
        table = program[name] if name in TABLES else program.setdefault(name, {"rows": 0})
        rows = table["rows"]
        for column, data in table.items():
            if column in FLOATS.get(name, ()):
                table[column] = list(struct.unpack(f"<{rows}d", data))
            elif column in DIGESTS:
                table[column] = [data[i * 16 : i * 16 + 16] for i in range(rows)]
            elif column not in ("rows", "shape", "stride"):
                table[column] = numbers(data, rows)
    values = program["values"]
    for column in ("shape", "stride"):
        flat = iter(numbers(values[column], sum(values["ndim"])))
        values[column] = [[next(flat) for _ in range(ndim)] for ndim in values["ndim"]]
    return program


class Archive:
    def __init__(self, path):
        self.path, self.blobs, self.programs, self.tables = path, {}, {}, {}
        records, committed = [], 0
        try:
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    if ATTRIBUTE not in member.pax_headers or not member.isreg():
                        continue
                    raw = member.pax_headers[ATTRIBUTE].encode("utf-8", "surrogateescape")
                    descriptor = msgpack.Unpacker(io.BytesIO(raw)).unpack()
                    records.append((descriptor, tar.extractfile(member).read()))
                    committed = len(records) if descriptor["kind"] == "commit" else committed
        except tarfile.ReadError:
            pass  # cut off in the middle: what was in flight
        assert records and records[0][0]["kind"] == "head" and records[0][0]["major"] == 1, f"{path}: no archive"
        for descriptor, payload in records[:committed]:
            getattr(self, "take_" + descriptor["kind"], lambda *_: None)(descriptor, payload)

    def take_blob(self, d, payload):
        self.blobs.setdefault(d["digest"], decode(payload, d["coding"], d["size"]))

    def take_pack(self, d, payload):
        area = decode(payload[: d["directory"]], d["coding"], d["size"])
        directory = msgpack.unpackb(payload[d["directory"] :])
        n = directory["rows"]
        offsets, sizes = (struct.unpack(f"<{n}Q", directory[column]) for column in ("offset", "size"))
        for i in range(n):
            self.blobs.setdefault(directory["digest"][i * 16 : i * 16 + 16], area[offsets[i] : offsets[i] + sizes[i]])

    def take_program(self, d, payload):
        self.programs[d["rank"], d["step"]] = read_program(decode(payload, d["coding"], d["size"]))

    def take_table(self, d, payload):
        self.tables[d["rank"], d["name"]] = msgpack.unpackb(decode(payload, d["coding"], d["size"]), strict_map_key=False)


class Capture:
    def __init__(self, path):
        inside = [] if os.path.isfile(path) else sorted(os.listdir(path))
        names = [os.path.join(path, name) for name in inside if re.fullmatch(r"rank-\d+(-\d+)?\.tar", name)] or [path]
        self.archives = [Archive(name) for name in names]
        self.blobs = {digest: data for archive in self.archives for digest, data in archive.blobs.items()}
        self.programs = {key: program for archive in self.archives for key, program in archive.programs.items()}

    def dense_range(self, program, v):
        values = program["values"]
        low = high = values["offset"][v]
        for size, stride in zip(values["shape"][v], values["stride"][v]):
            if size == 0:
                return 0, 0
            low, high = low + min(0, (size - 1) * stride), high + max(0, (size - 1) * stride)
        bits = DTYPE_BITS[values["dtype"][v]]
        return low * bits // 8, ((high + 1) * bits + 7) // 8

    def value(self, program, v):
        """The bytes of a value's dense range, or None when they were not kept."""
        values = program["values"]
        first, last = self.dense_range(program, v)
        if first == last:
            return b""
        own = self.blobs.get(values["blob"][v])
        if own is not None:
            assert len(own) == last - first, f"value {v}: {len(own)} bytes, its layout needs {last - first}"
            return own
        for w in range(values["rows"]):
            if (values["storage"][w], values["version"][w]) == (values["storage"][v], values["version"][v]) and values["flags"][w] & 4:
                begin, end = self.dense_range(program, w)
                if begin <= first and last <= end and values["blob"][w] in self.blobs:
                    return self.blobs[values["blob"][w]][first - begin : last - begin]
        return None


if __name__ == "__main__":
    for name in sys.argv[1:]:
        capture = Capture(name)
        for (rank, step), p in sorted(capture.programs.items()):
            kept = sum(capture.value(p, v) is not None for v in range(p["values"]["rows"]))
            print(f"{name}: rank {rank}, step {step}: {p['ops']['rows']} ops, {kept} of {p['values']['rows']} values kept")
